"""Order the test files and decide which of them share a process of pytest-xdist; `conftest` calls this.

The tests of a file share kernels and launchers, and so do the files of a group. Long files come first: at the
end of a run they would leave the other processes idle. The simulation comes last, for the processes that are ready
first.
"""

from __future__ import annotations

from typing import Any

# The files, or the first files of groups, that take longer than 10 s on an idle machine, the longest about first;
# `scripts/suite.py` prints the slowest tests. Files of a group run in this order, those that are not listed at its end.
LONG = (
    "tests/browser/test_panel.py",
    "tests/course/test_lessons.py",
    "tests/integration/test_multi_process_runner.py",
    "tests/integration/test_docs.py",
    "tests/browser/test_accessibility.py",
    "tests/environments/test_class.py",
    "tests/same/test_programs.py",
    "tests/integration/test_on_ray.py",
    "tests/integration/test_ray_failures.py",
    "tests/integration/test_ray_kept.py",
    "tests/integration/test_hints.py",
    "tests/integration/test_pytest_plugin.py",
    "tests/notebooks/test_quickstart.py",
    "tests/integration/test_ray_patience.py",
    "tests/integration/test_cleanup.py",
    "tests/integration/test_ray_hosts.py",
    "tests/hdf5/test_hdf5_shared_sessions.py",
    "tests/hdf5/test_hdf5_shared_target.py",
    "tests/integration/test_ray_security.py",
    "tests/browser/test_shared_pages.py",
    "tests/front_ends/test_front_ends.py",
    "tests/integration/test_simulated_hosts.py",
    "tests/integration/test_hangs.py",
    "tests/notebooks/test_network_lesson.py",
    "tests/integration/test_magic.py",
    "tests/integration/test_cluster.py",
    "tests/integration/test_recovery.py",
    "tests/logdir/test_mirrors.py",
    "tests/integration/test_script_runs.py",
    "tests/integration/test_strategies.py",
    "tests/integration/test_kernel.py",
    "tests/integration/test_ray_docs.py",
    "tests/integration/test_notebook_errors.py",
    "tests/integration/test_failing_tasks.py",
    "tests/integration/test_every_interpreter.py",
    "tests/integration/test_tfrecord_tasks.py",
    "tests/same/test_same_scripts.py",
    "tests/same/test_distribution.py",
    "tests/frontends/test_doctor.py",
    "tests/frontends/test_doctor_machine.py",
    "tests/integration/test_server_extension.py",
    "tests/integration/test_runner_install.py",
    "tests/chaos/test_chaos.py",
    "tests/integration/test_new_context.py",
    "tests/integration/test_captured_values.py",
    "tests/integration/test_as_ipython_does.py",
    "tests/integration/test_processes.py",
    "tests/integration/test_faults_on_tasks.py",
    "tests/integration/test_shared_writer.py",
    "tests/integration/test_keras_saving.py",
    "tests/integration/test_exposure.py",
    "tests/integration/test_attach.py",
)
# Its tests share nothing and only compute: one by one at the end they keep all processes busy.
LAST = "tests/supervisor/test_simulation.py"
_SHARED = {  # what the files of a group share, and would each start again
    "a pair of kernels": ("same/test_programs", "same/test_docstrings", "same/test_generated"),
    "tfmagic commands": (
        *("integration/test_docs", "integration/test_script_runs", "integration/test_tfrecord_tasks"),
        *(
            "integration/test_every_interpreter",
            "integration/test_processes",
            "integration/test_shared_writer",
        ),
    ),
    "a kernel": (
        *("integration/test_multi_process_runner", "integration/test_kernel", "integration/test_ray_docs"),
        *("integration/test_notebook_errors", "integration/test_captured_values"),
        "integration/test_log_folders",
    ),
    "TensorFlow in the process of the tests": (
        *("logdir/test_saving", "logdir/test_mirrors", "logdir/test_stores", "logdir/test_places"),
        *("logdir/test_owners", "logdir/test_logdir_checks"),
    ),
    "a launcher with Keras 2": ("integration/test_hints", "integration/test_strategies"),
}
_GROUPS = {f"tests/{name}.py": group for group, names in _SHARED.items() for name in names}


def place(node_id: str) -> int:
    """Return the position of a test's file in the order of the suite."""
    file = node_id.partition("::")[0]
    return LONG.index(file) if file in LONG else len(LONG) + (file == LAST)


def make_scheduler(config: Any, log: Any) -> Any:
    """Return a scheduler for `--dist loadfile` that keeps groups of files together; None for other modes."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler.loadfile import LoadFileScheduling

    class GroupScheduling(LoadFileScheduling):  # type: ignore[misc, unused-ignore]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if file == LAST:
                return nodeid
            return "the lessons" if file.startswith("tests/notebooks/") else _GROUPS.get(file, file)

    return GroupScheduling(config, log)
