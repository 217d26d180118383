"""The agent of a host without an engine: called directly, as an engine calls it."""

import shutil
import sys
import threading
import time

import pytest
from conftest import alive, wait_until

from tfmagic.backends.remote import memory_files
from tfmagic.backends.remote.agent import HostAgent
from tfmagic.backends.remote.messages import AgentSetup, HostReport, LaunchTask, SendCommand, TasksUsed
from tfmagic.backends.remote.own_modules import collect
from tfmagic.protocol.channel import Decoder, encode
from tfmagic.protocol.cluster_spec import ClusterShape, ClusterSpec, TaskId
from tfmagic.protocol.commands import RunCell, TaskBoot
from tfmagic.protocol.events import CellRaised, CellReturned, TaskReady, TaskStarted
from tfmagic.serialization.pickling import loads

TASK = TaskId("worker", 0)


class Client:
    """The part of a driver: numbers orders, polls, and keeps what the tasks have written."""

    def __init__(self, agent):
        self.agent, self.sent, self.batch, self.log = agent, 0, 0, b""
        self.decoder = Decoder(HostReport)

    def order(self, order):
        frame, handles = encode(order)
        self.sent += 1
        self.agent.perform(self.sent, [(frame, range(len(handles)))], *map(memory_files.read, handles))

    def wait_for(self, kinds, timeout_s=60):
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            found = self.agent.poll(self.batch + 1, 5.0)
            self.batch = found.number
            self.log += b"".join(content for name, _, content in found.files if name.endswith(".log"))
            for frame, contents in found.frames:
                self.contents = contents
                event = self.decoder.decode_frame(frame, list(map(memory_files.receive, contents)))
                if isinstance(event, kinds):
                    return event
        raise TimeoutError(self.log)

    def run(self, source):
        self.order(SendCommand(TASK, RunCell(cell=self.sent, source=source, filename="<c>", tasks=(TASK,))))
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


def test_a_task_imports_the_modules_of_a_machine_whose_files_it_does_not_see(client, tmp_path):
    folder = tmp_path / "notebook"
    folder.mkdir()
    (folder / "shipped.py").write_text("def double(x):\n    return 2 * x\n")
    modules = collect([str(folder)], (), 1 << 20)
    boot = boot_of(client, folder)
    shutil.rmtree(folder)
    handle = memory_files.write(modules.archive)
    client.order(LaunchTask(boot, 0, handle, modules.before, modules.after))
    client.wait_for(TaskReady)
    client.run("import shipped; print(shipped.double(21))")
    assert client.log.endswith(b"42\n")
    client.run("import os; print(os.getcwd())")
    assert not client.log.endswith(f"{folder}\n".encode())


def test_a_large_value_is_copied_only_to_another_machine(state_dir, tmp_path):
    for shares_memory in (True, False):
        agent = HostAgent(AgentSetup("run-3", "contract"), "127.0.0.1", {}, lambda: None, shares_memory)
        client = Client(agent)
        client.order(LaunchTask(boot_of(client, tmp_path), 0))
        client.wait_for(TaskReady)
        source = "bytes(1 << 20)"
        cell = RunCell(cell=9, source=source, filename="<c>", tasks=(TASK,), want_value=True)
        client.order(SendCommand(TASK, cell))
        returned = client.wait_for((CellReturned, CellRaised))
        assert loads(returned.value, {}) == bytes(1 << 20)
        assert [isinstance(content, tuple) for content in client.contents] == [shares_memory]
        agent.close()


def test_a_shared_writer_says_that_it_cannot_reach_the_notebooks_machine(client, tmp_path):
    pytest.importorskip("h5py")
    client.order(LaunchTask(boot_of(client, tmp_path), 0))
    client.wait_for(TaskReady)
    path = str(tmp_path / "x.h5")
    client.run(
        "from tfmagic.hdf5 import SharedWriter, SharedWriterError\n"
        f"try:\n    SharedWriter({path!r}).append('x', 1)\n"
        "except SharedWriterError as error:\n    print(error)"
    )
    assert path in client.log.decode() and "consolidate() joins them" in client.log.decode()
    assert not list(tmp_path.iterdir())


def test_an_agent_that_is_asked_nothing_ends_its_tasks_when_its_lease_runs_out(state_dir, tmp_path):
    given_up = threading.Event()
    agent = HostAgent(AgentSetup("run-2", "contract", lease_s=0.5), "127.0.0.1", {}, given_up.set)
    client = Client(agent)
    client.order(LaunchTask(boot_of(client, tmp_path), 0))
    started = client.wait_for(TaskStarted)
    client.wait_for(TaskReady)
    client.wait_for(TasksUsed)  # polls that take longer than the lease are its renewal
    assert alive([started.pid]) and not given_up.is_set()
    assert given_up.wait(20)
    wait_until(lambda: not alive([started.pid]))
