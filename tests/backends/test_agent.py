"""The agent of a host without an engine: called directly, as an engine calls it."""

import dataclasses
import errno
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import msgspec
import pytest
from conftest import alive, wait_until

from tfmagic.backends.remote import journal, memory_files, task_files
from tfmagic.backends.remote.agent import HostAgent
from tfmagic.backends.remote.messages import (
    EPOCH,
    LEASE_OVER,
    TAKEN_OVER,
    AgentSetup,
    HostReports,
    KeptTask,
    LaunchTask,
    PrepareLaunch,
    ReadAgain,
    TasksUsed,
)
from tfmagic.backends.remote.own_modules import collect
from tfmagic.errors import LaunchError
from tfmagic.features.shared_files.sessions import SharedWriters
from tfmagic.protocol.channel import Decoder, encode
from tfmagic.protocol.cluster_spec import ClusterShape, ClusterSpec, TaskId
from tfmagic.protocol.commands import Carried, ReleaseBarrier, RunCell, TaskBoot
from tfmagic.protocol.events import (
    BarrierReached,
    CellRaised,
    CellReturned,
    Displayed,
    SocketSent,
    TaskExited,
    TaskLost,
    TaskReady,
    TaskStarted,
)
from tfmagic.protocol.payload import Packed
from tfmagic.runs.folder import create_run
from tfmagic.serialization.pickling import loads
from tfmagic.system import process_identity

TASK = TaskId("worker", 0)


class Client:
    """The part of a driver: numbers orders, polls, and keeps what the tasks have written."""

    def __init__(self, agent):
        self.agent, self.sent, self.batch, self.log = agent, 0, 0, b""
        self.decoder, self.waiting = Decoder(HostReports), []

    def attach(self, *opened):
        """Take the agent over, as the driver of a kernel that attaches."""
        epoch = self.agent.claim()
        *_, kept, _ = self.agent.resume(epoch, {"worker-0.log": len(self.log)}, opened)
        self.sent = self.batch = epoch * EPOCH
        return [Decoder(KeptTask).decode_frame(frame, ()) for _, frame in kept]

    def order(self, order, task="", cell=0):
        frame, handles = encode(order)
        parcel = [task] if task else [], cell, frame, range(len(handles))
        self.sent += 1
        self.agent.perform(self.sent, [parcel], *map(memory_files.read, handles))

    def launch(self, boot, *modules):
        """Start a process, of which all but its number is in the first order."""
        self.order(PrepareLaunch(7, boot, *modules))
        self.order(LaunchTask(boot.task, boot.attempt, 7, "", 0))

    def send(self, command):
        """Send a command to the task."""
        self.order(command, TASK.name, getattr(command, "cell", 0))

    def wait_for(self, kinds, timeout_s=60):
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            while self.waiting:
                if isinstance(event := self.waiting.pop(0), kinds):
                    return event
            found = self.agent.poll(self.batch + 1, 5.0)
            self.batch = found.number
            self.log += b"".join(content for name, _, content in found.files if name.endswith(".log"))
            if found.frame:
                self.contents = found.contents
                handles = list(map(memory_files.receive, found.contents))
                self.waiting += self.decoder.decode_frame(found.frame, handles).reports
        raise TimeoutError(self.log)

    def run(self, source):
        self.send(RunCell(cell=self.sent, source=source, filename="<c>", tasks=(TASK,)))
        return self.wait_for((CellReturned, CellRaised))


@pytest.fixture
def client(state_dir):
    agent = HostAgent(AgentSetup("run-1", "contract"), "127.0.0.1", {}, lambda: None)
    yield Client(agent)
    agent.close()


def boot_of(client, folder):
    (address,) = client.agent.reserve([TASK.name]).values()
    spec = ClusterSpec(ClusterShape(workers=1), {TASK: address})
    return TaskBoot(
        task=TASK,
        attempt=1,
        cluster="contract",
        shape_tasks=(TASK,),
        tf_config=spec.tf_config(TASK),
        environ={},
        cwd=str(folder),
        sys_path=(str(folder), *sys.path),
        stacks_path="/of/another/machine/worker-0.stacks",
        leader=TASK,
        heartbeat_ms=3000,
        keras_fix=True,
    )


def test_the_first_task_of_a_host_shares_its_cores_with_those_that_start_with_it(
    client, tmp_path, monkeypatch
):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    boot = boot_of(client, tmp_path)
    client.agent.reserve([TASK.name, "worker-1", "worker-2", "chief-0", "ps-0"])
    client.launch(boot)
    client.wait_for(TaskReady)
    client.run("import os; print(os.environ['TF_NUM_INTRAOP_THREADS'])")
    assert client.log.endswith(b"2\n")


def test_a_task_imports_the_modules_of_a_machine_whose_files_it_does_not_see(client, tmp_path):
    folder = tmp_path / "notebook"
    folder.mkdir()
    (folder / "shipped.py").write_text("def double(x):\n    return 2 * x\n")
    (folder / "tables").mkdir()
    (folder / "tables" / "__init__.py").write_text("")
    (folder / "tables" / "sizes.txt").write_text("of a package")
    modules = collect([str(folder)], (), 1 << 20)
    handle = memory_files.write(modules.pack())
    boot = boot_of(client, folder)
    shutil.rmtree(folder)
    client.launch(boot, handle, modules.before, modules.after)
    client.wait_for(TaskReady)
    client.run("import shipped; print(shipped.double(21))")
    assert client.log.endswith(b"42\n")
    client.run(
        "import tables, importlib.resources as r; print(r.files(tables).joinpath('sizes.txt').read_text())"
    )
    assert client.log.endswith(b"of a package\n")
    client.run("import os; print(os.getcwd())")
    assert not client.log.endswith(f"{folder}\n".encode())


def test_a_large_value_is_copied_only_to_another_machine(state_dir, tmp_path):
    for shares_memory in (True, False):
        agent = HostAgent(AgentSetup("run-3", "contract"), "127.0.0.1", {}, lambda: None, shares_memory)
        client = Client(agent)
        client.launch(boot_of(client, tmp_path))
        client.wait_for(TaskReady)
        source = "bytes(1 << 20)"
        cell = RunCell(cell=9, source=source, filename="<c>", tasks=(TASK,), want_value=True)
        client.send(cell)
        returned = client.wait_for((CellReturned, CellRaised))
        assert loads(returned.value, {}) == bytes(1 << 20)
        assert [isinstance(content, tuple) for content in client.contents] == [shares_memory]
        agent.close()


def test_one_order_runs_a_cell_on_all_tasks_of_the_host_and_one_answer_has_their_ends(client, tmp_path):
    other = TaskId("worker", 1)
    boot = boot_of(client, tmp_path)
    for task in (TASK, other):
        client.launch(msgspec.structs.replace(boot, task=task, shape_tasks=(TASK, other)))
        client.wait_for(TaskReady)
    cell = RunCell(cell=5, source="open(__import__('os').environ['X'], 'w')", tasks=(TASK, other))
    frame, _ = encode(cell)
    client.sent += 1
    client.agent.perform(client.sent, [([TASK.name, other.name], 5, frame, [])])
    ended = [client.wait_for((CellReturned, CellRaised)) for _ in range(2)]
    assert {event.task for event in ended} == {TASK, other}
    assert {event.error.type_name for event in ended} == {"KeyError"}
    missing = TaskId("worker", 9)
    client.sent += 1
    client.agent.perform(client.sent, [([TASK.name, missing.name], 6, frame, [])])
    assert client.wait_for((CellReturned, CellRaised)).task == TASK


def test_an_order_that_fails_on_its_host_is_answered_and_the_next_ones_are_performed(
    client, tmp_path, monkeypatch
):
    client.launch(boot_of(client, tmp_path))
    client.wait_for(TaskReady)
    no_memory = OSError(errno.ENOMEM, "no memory")
    value = Packed(handle=memory_files.write(b"x"), sizes=(1,))
    with monkeypatch.context() as patched:
        patched.setattr(memory_files, "write", raising(no_memory))
        client.send(RunCell(cell=5, source="y", carried=Carried((value,)), tasks=(TASK,)))
    raised = client.wait_for(CellRaised)
    assert (raised.cell, raised.error.type_name) == (5, "OSError") and not raised.bound
    assert "on 127.0.0.1" in raised.error.message and "no memory" in raised.error.message
    client.run("print('next')")
    assert client.log.endswith(b"next\n")
    with monkeypatch.context() as patched:
        patched.setattr(memory_files, "write", raising(no_memory))
        client.launch(boot_of(client, tmp_path), value.handle)
    lost = client.wait_for(TaskLost)
    assert (lost.attempt, "no memory" in lost.reason) == (1, True)
    client.order(LaunchTask(TASK, 2, 8, "", 0))
    lost = client.wait_for(TaskLost)
    assert (lost.attempt, "did not arrive" in lost.reason) == (2, True)


def raising(error):
    def fail(*args):
        raise error

    return fail


def test_where_a_disk_is_nearly_full_the_host_keeps_no_output_that_the_kernel_has(
    client, tmp_path, monkeypatch
):
    monkeypatch.setattr(task_files, "_LEAST_FREE_BYTES", 1 << 62)
    client.launch(boot_of(client, tmp_path))
    client.wait_for(TaskReady)
    client.run("for i in range(80_000): print(i, 'x' * 100)")
    client.run("pass")
    client.run("pass")  # with it, the batches before have arrived
    log = client.agent._run.log_path(TASK)
    assert log.stat().st_size == len(client.log) > 8 << 20
    assert client.log.splitlines()[79_999].startswith(b"79999 x")
    assert log.stat().st_blocks * 512 < 6 << 20
    client.order(ReadAgain(TASK))
    client.log = b""
    client.run("print('last')")
    assert client.log.endswith(b"last\n") and b"\0" not in client.log[-1000:]


def test_a_full_disk_is_told_with_its_host_and_folder(client, tmp_path):
    client.launch(boot_of(client, tmp_path))
    client.wait_for(TaskReady)
    client.send(
        RunCell(
            cell=3,
            # what a full disk raises, without one: no file of this process can become larger
            source="import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))\nprint('x' * 1000)",
            tasks=(TASK,),
        )
    )
    ended = client.wait_for((CellReturned, CellRaised))
    assert ended.lost_bytes > 900
    assert ended.lost_where == f"127.0.0.1:{client.agent._run.folder}"


def test_a_shared_writer_reaches_the_notebooks_machine_or_says_that_it_cannot(client, tmp_path):
    h5py = pytest.importorskip("h5py")
    client.launch(boot_of(client, tmp_path))
    client.wait_for(TaskReady)
    path = str(tmp_path / "x.h5")
    source = (
        "from tfmagic.hdf5 import SharedWriter, SharedWriterError\n"
        "from tfmagic.features.shared_files import links\n"
        f"try:\n    with SharedWriter({path!r}) as writer:\n        writer.append('x', [1, 2])\n"
        "        for n in range(3): writer.append('big', [[n] * 100_000])\n"
        "except SharedWriterError as error:\n    print(error)\n"
    )
    client.send(RunCell(cell=client.sent, source=source, filename="<c>", tasks=(TASK,)))
    asked, files = client.wait_for(SocketSent), SharedWriters()
    state = SimpleNamespace(cells={asked.cell: SimpleNamespace(outcomes={})}, groups={})
    files.hear(asked, state)
    returned = client.wait_for((CellReturned, CellRaised))
    files.hear(returned, state)
    assert isinstance(returned, CellReturned) and files.settle(asked.cell) is None
    with h5py.File(path) as file:
        assert file["x"][:].tolist() == [1, 2] and file["big"].shape == (3, 100_000)
    client.run(source.replace("links\n", "links; links._REACH_S = 0.1\n"))  # its request is not passed on
    assert path in client.log.decode() and "consolidate() joins them" in client.log.decode()


def test_an_agent_that_is_asked_nothing_ends_its_tasks_and_says_that_its_lease_ran_out(
    state_dir, tmp_path, monkeypatch
):
    monkeypatch.setattr("tfmagic.backends.remote.agent._TELL_S", 1.0)
    given_up = threading.Event()
    agent = HostAgent(AgentSetup("run-2", "contract", lease_s=0.5), "127.0.0.1", {}, given_up.set)
    client = Client(agent)
    client.launch(boot_of(client, tmp_path))
    started = client.wait_for(TaskStarted)
    client.wait_for(TaskReady)
    client.wait_for(TasksUsed)  # polls that take longer than the lease are its renewal
    assert alive([started.pid]) and not given_up.is_set()
    wait_until(lambda: not alive([started.pid]))
    assert agent.poll(client.batch + 1, 5.0).number == LEASE_OVER
    assert given_up.wait(20)


def test_an_agent_whose_lease_ran_out_leaves_its_process_to_the_next_cluster(state_dir, monkeypatch):
    monkeypatch.setattr("tfmagic.backends.remote.agent._TELL_S", 30.0)
    given_up = threading.Event()
    agent = HostAgent(AgentSetup("run-2", "contract", lease_s=0.1), "127.0.0.1", {}, given_up.set)
    wait_until(lambda: agent.poll(1, 0).number == LEASE_OVER)
    agent.close()
    wait_until(lambda: not any(t.name == "tfmagic-lease" for t in threading.enumerate()))
    assert not given_up.is_set()


@pytest.fixture
def kept(state_dir, tmp_path):
    """Return a client of a kept agent with a task that is ready."""
    setup = AgentSetup("run-3", "contract", lease_s=0.5, keep_s=60, kept_as="run-3")
    agent = HostAgent(setup, "127.0.0.1", {}, lambda: None)
    client = Client(agent)
    client.launch(boot_of(client, tmp_path))
    client.wait_for(TaskReady)
    yield client
    agent.close()


def cell(number, source):
    return RunCell(cell=number, source=source, filename="<c>", tasks=(TASK,), want_value=True)


def test_a_driver_that_takes_over_gets_each_line_once_and_what_the_cell_returned(kept, tmp_path):
    go = tmp_path / "go"
    kept.send(
        cell(
            7,
            f"import os, time\nx = 0\nprint('first')\nwhile not os.path.exists({str(go)!r}): pass\n"
            "for x in range(1000): print(x)\nx",
        )
    )
    old = Client(kept.agent)
    old.log = kept.log
    while b"first" not in old.log:
        found = kept.agent.poll(kept.batch + 1, 5.0)
        kept.batch = found.number
        old.log += b"".join(content for name, _, content in found.files if name.endswith(".log"))
    kept.log, old.sent, old.batch = old.log, kept.sent, kept.batch
    go.touch()
    old.wait_for(CellReturned)  # its kernel is killed before it does anything with it
    (task,) = kept.attach(7)
    assert (task.attempt, task.host, task.cells[-1].command.cell) == (1, "127.0.0.1", 7)
    ended = kept.wait_for((CellReturned, CellRaised))
    assert ended.cell == 7 and ended.owned is not None and "x" in ended.owned
    assert kept.log.decode().split("first\n")[1].split() == [str(x) for x in range(1000)]
    assert kept.agent.poll(old.batch + 1, 0).number == TAKEN_OVER
    old.send(cell(8, "print('of the old driver')"))
    kept.send(cell(9, "print(x + 1)"))
    kept.wait_for(CellReturned)
    assert kept.log.endswith(b"\n1000\n")


def test_an_agent_that_is_alone_keeps_the_end_of_a_task_for_the_next_driver(kept):
    kept.send(cell(3, "import os; os._exit(5)"))
    wait_until(
        lambda: kept.agent._watched[TASK].journal.task.end is not None
    )  # the lease is over, the time to keep is not
    (task,) = kept.attach()
    assert isinstance(task.end, TaskExited) and task.end.exit_code == 5
    assert task.cells[-1].end == task.end


def test_a_driver_that_attaches_just_when_the_agent_finds_itself_alone_gets_what_happened(kept):
    kept.send(cell(4, "1"))
    wait_until(lambda: kept.agent._watched[TASK].journal.told)
    (lease,) = (
        thread for thread in threading.enumerate() if thread.name == "tfmagic-lease" and thread.is_alive()
    )
    wait_until(lambda: not kept.agent._watched[TASK].held)  # the agent is alone
    with kept.agent._waiting:
        wait_until(lambda: sys._current_frames()[lease.ident].f_code.co_name == "_keep_lease")
        kept.attach(4)
    wait_until(lambda: sys._current_frames()[lease.ident].f_code.co_name != "_keep_lease")
    assert kept.wait_for(CellReturned, 10).cell == 4


def test_the_owned_names_of_a_process_are_told_to_the_next_driver(kept):
    kept.run("a = 1")
    kept.run("b = 2")
    kept.run("pass")
    (task,) = kept.attach()
    assert {"a", "b"} <= set(task.owned)


def test_a_later_claim_refuses_an_earlier_one(kept):
    first, second = kept.agent.claim(), kept.agent.claim()
    kept.agent.resume(second, {}, ())
    with pytest.raises(LaunchError, match="another notebook attached"):
        kept.agent.resume(first, {}, ())


def test_a_journal_drops_the_oldest_values_and_says_so():
    kept = journal.Journal(KeptTask(TASK, attempt=1))
    kept.note_command(RunCell(cell=1), 0)
    kept.note_event(Displayed(TASK, 1, 1, 0, b"x" * 100), 0)
    kept.note_event(CellReturned(TASK, 1, 1, 0.1, 0, value=Packed(b"y" * 100)), 0)
    journal.limit([kept], 150)
    assert [event.value.data for _, event in kept.told] == [b"y" * 100]
    journal.limit([kept], 50)
    ((_, event),) = kept.told
    assert event.value is None and "100 B were returned while no notebook was attached" in event.value_error


def test_a_journal_has_barriers_only_as_long_as_the_task_waits_there():
    kept = journal.Journal(KeptTask(TASK, attempt=1))
    kept.note_event(BarrierReached(TASK, 1, "a", (TASK,)), 0)
    kept.note_command(ReleaseBarrier("a"), 0)
    assert not kept.told
    kept.note_event(BarrierReached(TASK, 1, "b", (TASK,)), 0)
    assert [event.barrier for _, event in kept.told] == ["b"]


def test_only_folders_of_agents_that_ended_on_this_machine_are_deleted(state_dir):
    """Containers can share the host name; and a pid means nothing in another one."""
    ended = subprocess.Popen(["true"])
    gone = process_identity.identify(ended.pid)
    ended.wait()
    far = dataclasses.replace(gone, boot="another", host="here")
    old = {}
    for name, owner in {"gone": gone, "far": far, "lives": process_identity.identify(os.getpid())}.items():
        old[name] = create_run(state_dir / "hosts" / f"{socket.gethostname()}-{name}", "c", owner.as_json())
    HostAgent(AgentSetup("run-5", "contract"), "127.0.0.1", {}, lambda: None).close()
    assert [name for name, run in old.items() if run.folder.exists()] == ["far", "lives"]
    shutil.rmtree(state_dir / "hosts")
