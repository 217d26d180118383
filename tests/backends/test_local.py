"""The local backend and a launcher that ends; see tests/contract for what every backend does."""

import sys
from types import SimpleNamespace

import pytest

from tfmagic.backends import launcher_client
from tfmagic.backends.launcher_client import TaskEnviron
from tfmagic.backends.local import LocalBackend
from tfmagic.protocol.channel import Channel, channel_pair
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import TaskBoot
from tfmagic.protocol.events import TaskLost
from tfmagic.protocol.launcher_messages import ForkTask, SessionEvent, SessionFailed
from tfmagic.runs import folder

TASK = TaskId("worker", 0)


@pytest.fixture
def session(monkeypatch):
    """Return a launcher's end of the session that the next backend opens."""
    ours, end = channel_pair(SessionEvent)
    theirs = Channel(end, ForkTask)
    launcher = SimpleNamespace(
        task_environ=lambda environ, flavour: TaskEnviron(environ, flavour, False, {}, environ),
        open_session=lambda: ours,
        import_failure=str,
        end_strays=lambda: None,
    )
    monkeypatch.setattr(launcher_client, "warm", lambda flavour: launcher)
    yield theirs
    theirs.close()


def _launch(backend, run):
    boot = TaskBoot(
        task=TASK,
        attempt=1,
        cluster="local",
        shape_tasks=(TASK,),
        tf_config="{}",
        environ={},
        cwd=str(run.folder),
        sys_path=tuple(sys.path),
        stacks_path=str(run.stacks_path(TASK)),
        leader=TASK,
        heartbeat_ms=3000,
        keras_fix=True,
    )
    backend.launch(boot)


@pytest.mark.parametrize(
    ("sent", "reason"), [([SessionFailed("no memory")], "no memory"), ([], "its launcher process was killed")]
)
def test_a_launcher_that_ended_before_a_request_was_sent_has_said_why(session, state_dir, sent, reason):
    """The request cannot be sent, and the launcher's last words are still unread."""
    run = folder.create_run(state_dir, "local", {})
    backend = LocalBackend(launcher_client.Flavour(), run)
    for message in sent:
        session.send(message)
    session.close()
    _launch(backend, run)
    assert backend.take_events() == [TaskLost(TASK, 1, reason)]
    backend.close()
