"""Tests on clusters: a body that runs on every task, and what a test expects of one task.

    pytest_hooks.py: @pytest.mark.tfcluster(each=True) ──→ fixtures.py: which arguments travel
          │   ↑ kernel.py: warnings
          └── cluster.run ══→ on_tasks.py: a start barrier, pytest's filters of warnings, the body
                              asserts.py: what an assert says
    raises.py: raises_on, in pytest's process and on a task
    coverage.py: lines that tasks have run, for a coverage.py that measures pytest's process
    kernel.py ←══ extras of each report: warnings, lines ══ task.py

A user reaches this package as `tfmagic.testing`.
"""
