"""Commands: what tools see of them that show the values of a task's frames, and how large a cell's is."""

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import RunCell, TaskBoot


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


def test_a_cell_has_few_fields_of_its_own():
    """What belongs to a feature travels in `extras`; a field more is one that each cell pays for."""
    assert len(RunCell.__struct_fields__) <= 13
