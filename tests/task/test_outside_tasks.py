"""`outside_tasks.join` without a cluster; tests/features/exports/test_exported_runs.py has strategies."""

import json
import subprocess
import sys

import pytest

CODE = """
import tfmagic
from tfmagic.task import outside_tasks
outside_tasks.join()
task = tfmagic.current_task()
print(task.name, task.is_chief, task.num_tasks)
tfmagic.barrier()
"""


def join(config):
    environ = {"TF_CONFIG": config, "TF_USE_LEGACY_KERAS": "1"}  # Keras 3 would be imported, to repair it
    return subprocess.run([sys.executable, "-c", CODE], env=environ, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("cluster", "task", "printed"),
    [
        ({"worker": ["a:1", "b:1"]}, "worker", "worker-0 True 2\n"),
        ({"chief": ["a:1"], "worker": ["b:1"]}, "worker", "worker-0 False 2\n"),
        ({"chief": ["a:1"], "worker": ["b:1"]}, "chief", "chief-0 True 2\n"),
    ],
)
def test_a_process_of_another_system_is_the_task_that_tf_config_names(cluster, task, printed):
    done = join(json.dumps({"cluster": cluster, "task": {"type": task, "index": 0}}))
    assert done.stdout == printed, done.stderr
    assert "barrier() outside of tfmagic needs a strategy that was made before" in done.stderr


def test_without_a_task_in_tf_config_it_says_so():
    assert "TfmagicError: TF_CONFIG names no task; set it before join()" in join("{}").stderr
