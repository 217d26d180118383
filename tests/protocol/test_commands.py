"""What tools see that show the values of a task's frames."""

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import TaskBoot


def test_a_boot_message_does_not_show_the_environment():
    own = {
        "environ": {"TOKEN": "secret"},
        "authkey": b"secret",
        "cwd": "/",
        "sys_path": (),
        "stacks_path": "",
    }
    task = TaskId("worker", 0)
    shown = repr(
        TaskBoot(task, 1, "default", (task,), "", leader=task, heartbeat_ms=1, keras_fix=True, **own)
    )
    assert shown == "TaskBoot(worker-0, 1)"
