"""The way of orders, from the kernel's backend to an agent, with a stand-in for the engine."""

import sys
import threading
import time
from types import SimpleNamespace

import pytest
from conftest import wait_until
from msgspec import structs

from tfmagic.backends.remote import driver_client, memory_files
from tfmagic.backends.remote.backend import RemoteBackend
from tfmagic.backends.remote.driver import Driver
from tfmagic.backends.remote.engine import HostUnreachable
from tfmagic.backends.remote.messages import (
    LEASE_OVER,
    AgentSetup,
    CloseHosts,
    Deliver,
    DriverReply,
    DriverReport,
    DriverRequest,
    HostLost,
    HostOrder,
    HostReports,
    HostRequest,
    HostsClosed,
    HostsOpened,
    OpenHosts,
    OrderFailed,
    Orders,
)
from tfmagic.backends.remote.relay import Host, Relay
from tfmagic.protocol.channel import Channel, Decoder, channel_pair, encode
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import RunCell, TaskBoot
from tfmagic.protocol.events import CellRaised, CellReturned, HostSilent, TaskLost
from tfmagic.protocol.payload import LOST, HandleLost, OwnedHandle, Packed
from tfmagic.runs.folder import create_run
from tfmagic.system.advice import Step

ZERO, ONE = TaskId("worker", 0), TaskId("worker", 1)
SETUP = AgentSetup("run-1", "contract", lease_s=40)


class FullStoreError(Exception):
    """What an engine raises that has no room."""


class Engine:
    """A host for each task; keeps what it is asked to perform, and has no room for some contents."""

    own_node = "here"
    batch = LEASE_OVER, 0, 0.0, [], b"", []

    def __init__(self):
        self.performed, self.forgotten, self.lease_over = [], [], threading.Event()
        self.closed, self.dead_nodes = threading.Event(), []
        self.gives_signs, self.errors = False, []

    def connect(self, address, name, step):
        pass

    def place(self, opening, left_out, say):
        return {task: task.name for task in opening.tasks}

    def agent_at(self, node):
        return node

    def open(self, nodes, trial, timeout_s):
        for node in nodes:
            yield node, (f"host-of-{node}", {}, False)

    def call(self, agent, method, *args):
        if method == "perform":
            number, parcels, _ = args
            if agent in self.forgotten:
                raise FullStoreError("this actor is broken")
            self.performed += [(agent, number + i, *parcel[::2]) for i, parcel in enumerate(parcels)]
        return method

    def answer(self, call):
        if call == "heartbeat":
            return None
        wait_until(lambda: self.closed.is_set() or self.lease_over.is_set(), 60)
        if self.errors:
            raise self.errors.pop()
        return self.batch

    def has_answer(self, call):
        return self.gives_signs

    def get(self, content):
        return content

    def put(self, content):
        if bytes(content) == b"too much":
            raise FullStoreError("the object store is full")
        return bytes(content)

    def forget(self, agent):
        self.forgotten.append(agent)

    def lives(self, node):
        return node not in self.dead_nodes

    def close(self, agents, timeout_s):
        self.closed.set()

    def end(self):
        pass


@pytest.fixture
def kernel(tmp_path):
    """Return an engine and the kernel's ends of the channels of a driver that has opened two hosts."""
    control, theirs = channel_pair(DriverReply)
    reports, their_reports = channel_pair(DriverReport)
    engine = Engine()
    ends = Channel(theirs, DriverRequest), Channel(their_reports, Orders)
    driver = Driver(engine, *ends)
    serving = threading.Thread(target=driver.serve)
    serving.start()
    control.receive()
    control.send(OpenHosts(HostRequest(), (ZERO, ONE), (), str(tmp_path), SETUP, 60, 10))
    assert isinstance(control.receive(), HostsOpened)
    yield engine, reports
    control.send(CloseHosts(60))
    assert isinstance(control.receive(), HostsClosed)
    control.close()
    reports.close()
    serving.join()
    wait_until(lambda: not any(thread.name == "tfmagic-orders" for thread in threading.enumerate()))
    for end in ends:
        end.close()


def deliver(task, content=b"", cell=0):
    handles = (memory_files.write(content),) if content else ()
    return Orders((Deliver([task], b"frame", handles, to_task=True, cell=cell),))


def test_an_order_for_all_tasks_goes_to_each_host_once(kernel):
    engine, reports = kernel
    reports.send(Orders((Deliver([ZERO, ONE], b"all", to_task=True, cell=1), Deliver([ONE], b"one"))))
    wait_until(lambda: len(engine.performed) == 3)
    assert engine.performed == [
        (ZERO.name, 1, [ZERO.name], b"all"),
        (ONE.name, 1, [ONE.name], b"all"),
        (ONE.name, 2, [], b"one"),
    ]


def test_an_order_for_whose_values_no_room_is_left_is_answered_and_the_next_ones_go_on(kernel):
    engine, reports = kernel
    reports.send(deliver(ZERO, b"too much", 7), deliver(ONE, b"little", 7), deliver(ZERO))
    assert reports.receive() == OrderFailed((ZERO,), 7, "FullStoreError: the object store is full")
    wait_until(lambda: len(engine.performed) == 2)
    assert {(agent, number) for agent, number, *_ in engine.performed} == {(ZERO.name, 1), (ONE.name, 1)}
    reports.send(deliver(ZERO))
    wait_until(lambda: (ZERO.name, 2, [ZERO.name], b"frame") in engine.performed)


def test_an_order_whose_descriptor_was_lost_is_answered(kernel, monkeypatch):
    _, reports = kernel
    # the system drops what a process has no room for
    monkeypatch.setattr(Channel, "_take_handles", lambda self, count: [OwnedHandle(LOST)] * count)
    reports.send(deliver(ONE, b"x", 3))
    failed = reports.receive()
    assert (failed.tasks, failed.cell) == ((ONE,), 3) and "too many open files" in failed.reason


def test_a_host_whose_agent_cannot_be_called_is_lost_and_the_others_go_on(kernel):
    engine, reports = kernel
    engine.forgotten.append(ZERO.name)
    reports.send(deliver(ZERO), deliver(ONE))
    lost = reports.receive()
    assert isinstance(lost, HostLost) and lost.tasks == (ZERO,)
    assert lost.reason == "its agent on host-of-worker-0 is lost: FullStoreError: this actor is broken"
    wait_until(lambda: [agent for agent, *_ in engine.performed] == [ONE.name])


def test_a_host_is_lost_with_its_node_whatever_words_the_engine_has_for_it(kernel):
    engine, reports = kernel
    engine.forgotten += [ZERO.name, ONE.name]
    engine.dead_nodes.append(ONE.name)
    reports.send(deliver(ZERO), deliver(ONE))
    reasons = {(lost := reports.receive()).tasks: lost.reason for _ in (ZERO, ONE)}
    assert reasons[(ZERO,)].startswith("its agent on host-of-worker-0 is lost: ")
    assert reasons[(ONE,)].startswith("its host host-of-worker-1 is lost: ")


def fails(method, wanted=""):
    """Return a method of the engine that fails, for the calls of the method `wanted` of an agent."""

    def fail(*args):
        if wanted in args or not wanted:
            raise RuntimeError("the engine \udc80 is broken")
        return method(*args)

    return fail


@pytest.mark.parametrize("case", ["the next poll", "a confirmation", "what is said of a lost host"])
def test_an_error_of_the_engine_loses_a_host_wherever_it_is_raised(kernel, case):
    """A thread that ended without a word would leave the tasks waiting."""
    engine, reports = kernel
    if case == "the next poll":
        engine.call = fails(engine.call, "poll")
        engine.batch = 1, 0, 0.0, [], b"", []
        engine.lease_over.set()
    elif case == "a confirmation":
        reports.send(deliver(ZERO), deliver(ONE))
        wait_until(lambda: len(engine.performed) == 2)
        engine.batch, engine.errors = (1, 0, 0.0, [], b"", []), [HostUnreachable() for _ in range(4)]
        engine.forgotten += [ZERO.name, ONE.name]  # `perform` fails from now on
        engine.lease_over.set()
    else:
        engine.forgotten.append(ZERO.name)
        engine.lives = fails(engine.lives)
        reports.send(deliver(ZERO))
    lost = reports.receive()
    assert isinstance(lost, HostLost) and "is lost: " in lost.reason and "broken" in lost.reason
    if case == "what is said of a lost host":
        reports.send(deliver(ONE))
        wait_until(lambda: [agent for agent, *_ in engine.performed] == [ONE.name])


def test_a_launch_for_which_no_host_can_be_sought_is_answered_and_the_next_orders_go_on(kernel, monkeypatch):
    engine, reports = kernel
    engine.forgotten.append(ZERO.name)
    reports.send(deliver(ZERO))
    assert isinstance(reports.receive(), HostLost)
    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", fails(None))  # as when the system has no more threads
        reports.send(Orders((Deliver([ZERO], b"launch", launches=True), Deliver([ONE], b"next"))))
        failed = reports.receive()
    assert failed.tasks == (ZERO,) and "is broken" in failed.reason
    wait_until(lambda: [agent for agent, *_ in engine.performed] == [ONE.name])
    engine.node_of = fails(None)
    reports.send(Orders((Deliver([ZERO], b"launch", launches=True),)))
    assert "is broken" in reports.receive().reason


@pytest.mark.parametrize(
    "name", ["../../stolen", "/tmp/stolen", "run.json", "worker-0.log/../../x", "worker-00.log"]
)
def test_a_host_writes_nothing_but_the_files_of_tasks(kernel, tmp_path, name):
    engine, reports = kernel
    before = set(tmp_path.parent.rglob("*"))
    engine.batch = 1, 0, 0.0, [(name, None, b"x"), ("worker-0.log", 0, b"x")], b"", []
    engine.lease_over.set()
    lost = [reports.receive() for _ in (ZERO, ONE)]
    assert all(f"it wants to write the file {name!r}" in report.reason for report in lost)
    assert set(tmp_path.parent.rglob("*")) == before


def test_a_value_that_cannot_come_is_told_with_its_reason_and_the_others_come(kernel, backend):
    engine, reports = kernel
    backend, driver = backend
    pulled = {name: Packed(handle=memory_files.write(b"x"), sizes=(1,)) for name in "abc"}
    frame, _ = encode(HostReports((CellReturned(ZERO, 1, 5, 0.0, 0, pulled=pulled),)))
    engine.batch = 1, 0, 0.0, [], frame, [b"1", "could not be sent: the store is full", b"3"]
    engine.lease_over.set()
    arrived = reports.receive()
    engine.batch = Engine.batch
    driver.theirs.send(arrived)
    backend.wait(60)
    (returned,) = backend.take_events()
    found = [packed.handle for packed in returned.pulled.values()]
    assert [bytes(memory_files.read(found[place])) for place in (0, 2)] == [b"1", b"3"]
    with pytest.raises(HandleLost, match="a value could not be sent: the store is full"):
        found[1].take()


def test_a_host_without_an_address_yet_leaves_no_gap_in_what_is_told():
    sent = []
    relay = SimpleNamespace(_engine=Engine(), give_up=lambda host, reason: sent.append(reason))
    relay._engine.dead_nodes.append("gone")
    Relay.lose(relay, Host([ZERO], node="gone"), "it said so")
    assert sent == ["its host is lost: it said so"]


def test_a_task_that_was_lost_by_its_lease_is_told_with_the_setting(kernel):
    engine, reports = kernel
    engine.lease_over.set()
    reasons = {reports.receive().reason for _ in (ZERO, ONE)}
    assert all("heard nothing of this notebook for 40 s (lease_s)" in reason for reason in reasons)
    assert all(str(Step("configure", lease_s=80)) in reason for reason in reasons)


def test_a_host_whose_report_is_late_is_silent_only_if_it_gives_no_sign(monkeypatch, tmp_path):
    engine, (reports, theirs) = Engine(), channel_pair(DriverReport)
    end, host = Channel(theirs, Orders), Host([ZERO], "agent", is_served=True)
    relay = Relay(engine, end, str(tmp_path), 10.0, 40.0, None)
    try:
        for gives_signs, late_s, is_silent in ((True, 8, False), (True, 12, False), (False, 12, True)):
            engine.gives_signs, host.heard = gives_signs, time.monotonic() - late_s
            relay._look_at(host)
            assert host.is_silent == is_silent
        assert reports.receive() == HostSilent((ZERO,), "", True)
        engine.gives_signs = True
        relay._look_at(host)
        assert reports.receive() == HostSilent((ZERO,), "", False)
    finally:
        relay.close()
        reports.close()
        end.close()


class StandIn:
    """A driver process that reads nothing."""

    process, alive = None, False

    def __init__(self):
        self.reports, theirs = channel_pair(DriverReport)
        self.theirs = Channel(theirs, Orders)

    def open(self, opening, waits_for):
        return HostsOpened((), SETUP)

    def release(self, keep_s):
        self.close()

    def close(self):
        self.reports.close()
        self.theirs.close()


@pytest.fixture
def backend(monkeypatch, state_dir):
    """Return a backend with a process for `ZERO`, and its driver."""
    driver = StandIn()
    monkeypatch.setattr(driver_client, "take", lambda address: driver)
    run = create_run(state_dir, "contract", {})
    backend = RemoteBackend(HostRequest(), SETUP, run, (ZERO,), (), 60, 10)
    boot = TaskBoot(
        task=ZERO,
        attempt=1,
        cluster="contract",
        shape_tasks=(ZERO,),
        tf_config="{}",
        environ={},
        cwd="/",
        sys_path=tuple(sys.path),
        stacks_path="",
        leader=ZERO,
        heartbeat_ms=3000,
        keras_fix=True,
    )
    backend.launch(boot)
    yield backend, driver
    backend.close()


def test_orders_wait_for_a_driver_that_does_not_read_and_the_backend_does_not(backend):
    backend, driver = backend
    cells = 2000  # 16 MB, far more than a socket takes
    for number in range(cells):
        backend.send(ZERO, RunCell(cell=number, source="x" * 8000))
        if number % 100 == 0:
            backend.wait(0)  # the thread that waits here is the supervisor's
    found = []
    while len(found) < cells + 2:
        found += [order for sent in driver.theirs.receive_ready() for order in sent.orders]
        backend.wait(0)
    assert [order.cell for order in found[2:]] == list(range(cells))
    backend.wait(0)
    assert not backend._is_full


def test_a_command_for_several_tasks_is_encoded_once_and_keeps_its_place(backend):
    backend, driver = backend
    cell, other = RunCell(cell=1), RunCell(cell=2)
    backend._processes[ONE] = backend._processes[ZERO]
    for task, command in ((ZERO, cell), (ONE, cell), (ONE, other), (ZERO, cell)):
        backend.send(task, command)
    backend.wait(0)
    _, _, *found = driver.theirs.receive().orders
    assert [(order.tasks, order.cell) for order in found] == [([ZERO, ONE], 1), ([ONE], 2), ([ZERO], 1)]


def test_what_processes_that_start_together_have_in_common_goes_to_each_host_once(backend):
    backend, driver = backend
    backend.wait(0)
    driver.theirs.receive()
    config = '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": %d}}'
    boots = [
        TaskBoot(task, 2, "c", (ZERO, ONE), config % n, {"A": "1"}, "/", (), f"/{n}", ZERO, 0, False)
        for n, task in enumerate((ZERO, ONE))
    ]
    for boot in (*boots, structs.replace(boots[1], attempt=3, environ={"A": "2"})):
        backend.launch(boot)
    backend.wait(0)
    found, decoder = driver.theirs.receive().orders, Decoder(HostOrder)
    assert [order.tasks for order in found] == [[ZERO, ONE], [ZERO], [ONE], [ONE], [ONE]]
    assert all(order.launches for order in found)
    both, *launches, other, again = [decoder.decode_frame(order.frame, ()) for order in found]
    assert (both.boot.environ, other.boot.environ) == ({"A": "1"}, {"A": "2"})
    assert [both.boot.tf_config + launch.tf_config for launch in launches] == [config % 0, config % 1]
    numbers = [order.prepared for order in (*launches, again)]
    assert numbers == [both.number, both.number, other.number] and both.number != other.number
    backend.launch(boots[0])
    backend.wait(0)
    assert len(driver.theirs.receive().orders) == 2  # a host that came meanwhile has nothing of the first one


def test_a_cell_that_was_not_passed_on_raises_and_a_launch_that_was_not_ends_the_task(backend):
    backend, driver = backend
    driver.theirs.send(OrderFailed((ZERO,), 5, "FullStoreError: no room"), OrderFailed((ZERO,), 0, "no room"))
    backend.wait(60)
    raised, lost = backend.take_events()
    assert isinstance(raised, CellRaised) and raised.cell == 5
    assert (raised.error.type_name, raised.error.message) == ("FullStoreError", "no room")
    assert isinstance(lost, TaskLost) and lost.reason == "it could not be started: no room"
