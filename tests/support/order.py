"""Order the test files and decide which of them share a process of pytest-xdist; `conftest` calls this.

The tests of a file share kernels and launchers, and so do the files of a group. Long files come first: at the
end of a run they would leave the other processes idle.
"""

from __future__ import annotations

from typing import Any

# The files that take longer than 10 s on an idle machine, the longest about first; `scripts/suite.py` prints the
# slowest tests.
LONG = (
    "tests/same/test_programs.py",
    "tests/browser/test_panel.py",
    "tests/integration/test_multi_process_runner.py",
    "tests/notebooks/test_quickstart.py",
    "tests/integration/test_cleanup.py",
    "tests/integration/test_pytest_plugin.py",
    "tests/integration/test_script_runs.py",
    "tests/integration/test_magic.py",
    "tests/integration/test_hints.py",
    "tests/hdf5/test_hdf5_shared.py",
    "tests/integration/test_hangs.py",
    "tests/integration/test_processes.py",
    "tests/integration/test_exposure.py",
    "tests/integration/test_runner_install.py",
    "tests/integration/test_every_interpreter.py",
    "tests/integration/test_log_folders.py",
    "tests/integration/test_server_extension.py",
    "tests/integration/test_failing_tasks.py",
    "tests/integration/test_strategies.py",
    "tests/integration/test_recovery.py",
    "tests/integration/test_cluster.py",
    "tests/frontends/test_doctor.py",
    "tests/chaos/test_chaos.py",
)
_GROUPS = dict.fromkeys(
    [f"tests/same/test_{name}.py" for name in ("programs", "docstrings", "generated")], "a pair of kernels"
)


def place(node_id: str) -> int:
    """Return the position of a test's file in the order of the suite."""
    file = node_id.partition("::")[0]
    return LONG.index(file) if file in LONG else len(LONG)


def make_scheduler(config: Any, log: Any) -> Any:
    """Return a scheduler for `--dist loadfile` that keeps groups of files together; None for other modes."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler.loadfile import LoadFileScheduling

    class GroupScheduling(LoadFileScheduling):  # type: ignore[misc, unused-ignore]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "the lessons" if file.startswith("tests/notebooks/") else _GROUPS.get(file, file)

    return GroupScheduling(config, log)
