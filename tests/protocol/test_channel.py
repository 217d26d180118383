"""Frames over a real socket pair: whole, in order, with descriptors, and nothing foreign."""

import gc
import os
import pickle
import random
import resource
import struct
import threading
import typing
from collections.abc import Mapping

import msgspec
import pytest
from conftest import wait_until
from hypothesis import given, settings
from hypothesis import strategies as st

from tfmagic.errors import ProtocolError
from tfmagic.features.shared_files import messages as hdf5_messages
from tfmagic.protocol import channel, launcher_messages
from tfmagic.protocol.channel import Channel, channel_pair, encode
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import AnswerInput, Command, MainScript, Origin, ReleaseBarrier, RunCell
from tfmagic.protocol.events import CellReturned, TaskEvent
from tfmagic.protocol.launcher_messages import ForkTask
from tfmagic.protocol.payload import Handle, HandleLost, Packed, PackedError
from tfmagic.serialization.packing import pack
from tfmagic.serialization.pickling import dumps, loads
from tfmagic.system import shared_memory

UNIONS = (
    Command,
    TaskEvent,
    launcher_messages.OpenSession | launcher_messages.ForkTask,
    launcher_messages.LauncherReport,
    launcher_messages.SessionEvent,
    hdf5_messages.ToWriter,
    hdf5_messages.ToTask,
    hdf5_messages.WriterOrder,
    hdf5_messages.WriterReport,
)
A_TASK = TaskId("worker", 0)
MESSAGES = [(kind, union) for union in UNIONS for kind in typing.get_args(union)]


@pytest.fixture
def pair():
    """Two ends; the second one reads what a task or its launcher reads, and results."""
    ours, theirs = channel_pair(Command)
    other = Channel(theirs, Command | ForkTask | CellReturned)
    yield ours, other
    ours.close()
    other.close()


def test_messages_arrive_whole_and_in_order(pair):
    ours, other = pair
    for n in range(300):
        ours.send(RunCell(cell=n, source="x" * n))
    assert [other.receive().cell for _ in range(300)] == list(range(300))


@pytest.mark.parametrize("how", ["post", "post_frame"])
def test_a_large_message_is_queued_without_blocking_and_arrives(pair, how):
    ours, other = pair
    message = RunCell(cell=1, source="x" * (8 << 20))
    assert not (ours.post(message) if how == "post" else ours.post_frame(*encode(message)))
    got = []
    reader = threading.Thread(target=lambda: got.append(other.receive()))
    reader.start()
    while not ours.flush():
        pass
    reader.join(10)
    assert len(got[0].source) == 8 << 20


def test_descriptors_travel_beside_a_message(pair, tmp_path):
    ours, other = pair
    fd = os.open(tmp_path / "log", os.O_CREAT | os.O_RDWR)
    ours.send(ForkTask(TaskId("worker", 0), 1, Handle(fd), Handle(fd), {}, False))
    got = other.receive()
    os.write(got.log.fd, b"hello")
    assert (tmp_path / "log").read_bytes() == b"hello"
    assert got.log.fd != fd
    os.close(fd)


def open_files():
    return len(os.listdir("/proc/self/fd"))


def test_a_descriptor_that_nobody_takes_is_closed_with_its_message(pair):
    ours, other = pair
    before = open_files()
    for _ in range(50):
        ours.send(CellReturned(TaskId("worker", 0), 1, 1, 0.0, 0, value=pack(dumps(bytes(200_000), {}))))
        other.receive()
    assert open_files() == before


@pytest.mark.parametrize("size_bytes", [100_000, 5_000_000], ids=["copied", "mapped"])
def test_values_that_were_read_and_dropped_leave_no_descriptor(pair, size_bytes, monkeypatch):
    monkeypatch.setattr(shared_memory, "_KEPT_S", 0.1)
    ours, other = pair
    before = open_files()
    for _ in range(20):
        ours.send(
            CellReturned(TaskId("worker", 0), 1, 1, 0.0, 0, value=pack(dumps(bytearray(size_bytes), {})))
        )
        assert len(loads(other.receive().value, {})) == size_bytes
    wait_until(lambda: open_files() == before)


def test_descriptors_for_which_there_is_no_room_cost_their_own_message_alone(pair):
    ours, other = pair
    room = resource.getrlimit(resource.RLIMIT_NOFILE)
    for n in range(3):
        ours.send(
            CellReturned(TaskId("worker", 0), 1, n, 0.0, 0, value=pack(dumps(bytes([n]) * 100_000, {})))
        )
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, room[1]))
        first = other.receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, room)
    with pytest.raises(HandleLost, match="too many open files"):
        loads(first.value, {})
    assert [loads(other.receive().value, {})[0] for _ in range(2)] == [1, 2]


def test_more_values_than_the_system_takes_descriptors_at_once_arrive_each_at_its_place(pair):
    ours, other = pair
    gc.collect()  # of the tests before this one
    before, many = open_files(), 600
    pulled = {f"w{n}": pack(dumps(n.to_bytes(2, "big") * 40_000, {})) for n in range(many)}
    sending = threading.Thread(target=ours.send, args=(CellReturned(A_TASK, 1, 1, 0.0, 0, pulled=pulled),))
    sending.start()
    got = other.receive().pulled
    sending.join()
    assert [int.from_bytes(loads(got[f"w{n}"], {})[:2], "big") for n in range(many)] == list(range(many))
    del pulled, got, sending
    assert ours.post(CellReturned(A_TASK, 1, 2, 0.0, 0)) and other.receive().cell == 2
    assert open_files() == before


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (
            RunCell(1, pull=(["a", "b"],)),
            r"a RunCell cannot be sent: Expected `str`, got `array` - at `pull\[0\]`",
        ),
        (RunCell("1"), "Expected `int`, got `str` - at `cell`"),
        (RunCell(1, call=object()), "it cannot hold a object"),
        (RunCell(2**70), "serialize ints"),
        (AnswerInput(1, text=b"yes"), "Expected `str`, got `bytes` - at `text`"),
    ],
    ids=["list for a name", "text for a number", "any object", "huge number", "bytes for a text"],
)
def test_what_the_receiver_would_refuse_is_an_error_of_the_sender(pair, message, what):
    ours, other = pair
    for send in (ours.send, ours.post):
        with pytest.raises(ProtocolError, match=what):
            send(message)
    ours.send(RunCell(7))
    assert other.receive() == RunCell(7)


def test_a_message_longer_than_a_receiver_takes_is_an_error_of_the_sender(pair, monkeypatch):
    monkeypatch.setattr(channel, "_MAX_BODY_BYTES", 1000)
    with pytest.raises(ProtocolError, match="bytes long, and at most 1000 can be sent"):
        pair[0].send(RunCell(1, source="x" * 1001))


st.register_type_strategy(Handle, st.builds(Handle, st.just(1)))
st.register_type_strategy(float, st.floats(allow_nan=False))
st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))
st.register_type_strategy(
    str, st.text(st.characters(exclude_categories=()), max_size=30)
)  # lone surrogates, too
st.register_type_strategy(
    Mapping, lambda kind: st.dictionaries(*map(st.from_type, kind.__args__), max_size=2)
)


def instances(cls):
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{name: st.from_type(hint) for name, hint in hints.items()})


for part in (Packed, PackedError, Origin, MainScript):
    st.register_type_strategy(part, instances(part))


def by_value(message):
    """A message without its handles, which are others where it arrives."""
    if isinstance(message, Handle):
        return "a handle"
    if isinstance(message, msgspec.Struct):
        return type(message), [by_value(getattr(message, name)) for name in message.__struct_fields__]
    if isinstance(message, tuple):
        return [by_value(item) for item in message]
    if isinstance(message, dict):
        return [(by_value(key), by_value(value)) for key, value in message.items()]
    return message


@pytest.mark.parametrize(("cls", "union"), MESSAGES, ids=lambda kind: getattr(kind, "__name__", ""))
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_every_message_arrives_as_it_was_sent(cls, union, data):
    message = data.draw(instances(cls))
    ours, theirs = channel_pair(union)
    other = Channel(theirs, union)
    try:
        ours.send(message)
        assert by_value(other.receive()) == by_value(message)
    finally:
        ours.close()
        other.close()


def frame_of(body, handles=0, escaped=False):
    return struct.pack("!4sII?", b"tfm1", len(body), handles, escaped) + body


def arrives(frame, union):
    """What a channel reads of a frame: a message, or a ProtocolError."""
    ours, theirs = channel_pair(union)
    try:
        theirs.sendall(frame)
        return ours.receive()
    except ProtocolError as error:
        return error
    finally:
        ours.close()
        theirs.close()


@given(
    data=st.data(),
    union=st.sampled_from(UNIONS),
    escaped=st.booleans(),
    place=st.integers(0, 999),
    new=st.binary(),
)
@settings(max_examples=300, deadline=None)
def test_a_damaged_message_is_another_message_of_the_channel_or_a_protocol_error(
    data, union, escaped, place, new
):
    message = data.draw(instances(data.draw(st.sampled_from(typing.get_args(union)))))
    frame, handles = encode(message)
    body = bytearray(frame[10:])
    body[place % len(body) : place % len(body) + len(new)] = new
    found = arrives(frame_of(bytes(body), escaped=escaped), union)
    assert isinstance(found, (*typing.get_args(union), ProtocolError))
    if handles and not new:
        assert isinstance(found, ProtocolError), "the descriptors that it names did not come"


@given(body=st.binary(max_size=200), union=st.sampled_from(UNIONS), escaped=st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_message_of_the_channel_or_a_protocol_error(body, union, escaped):
    assert isinstance(
        arrives(frame_of(body, escaped=escaped), union), (*typing.get_args(union), ProtocolError)
    )


def test_subclasses_of_plain_types_travel_as_these(pair):
    class Text(str):
        def __str__(self):
            return "another"

    class Number(int):
        pass

    ours, other = pair
    ours.send(AnswerInput(Number(3), Text("typed")))
    answer = other.receive()
    assert (answer.number, answer.text, type(answer.number), type(answer.text)) == (3, "typed", int, str)


def test_deep_nesting_is_a_protocol_error():
    body = b"\x91" * 500_000 + b"\xc0"
    for escaped in (False, True):
        assert isinstance(arrives(frame_of(body, escaped=escaped), Command), ProtocolError)


def test_a_large_value_travels_as_a_memory_file(pair):
    ours, other = pair
    value = {"a": bytearray(200_000), "b": list(range(50_000))}
    packed = pack(dumps(value, {}))
    assert packed.handle is not None
    ours.send(CellReturned(TaskId("worker", 0), 1, 1, 0.0, 0, value=packed))
    assert loads(other.receive().value, {}) == value


def test_a_small_value_travels_in_the_message():
    assert pack(dumps([1, 2], {})) == Packed(data=dumps([1, 2], {}).stream)


def test_the_end_of_a_peer_is_an_end_of_file(pair):
    ours, other = pair
    other.close()
    with pytest.raises(EOFError):
        ours.receive()


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", random.Random(7).randbytes(64), b"tfm1" + b"\xff" * 60],
    ids=["http", "random", "huge"],
)
def test_foreign_bytes_are_a_protocol_error(pair, garbage):
    ours, other = pair
    other.sock.sendall(garbage)
    with pytest.raises(ProtocolError):
        ours.receive()


def test_a_pickle_runs_nothing(pair, tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "pwned"),))

    ours, other = pair
    other.sock.sendall(frame_of(pickle.dumps(Evil())))
    with pytest.raises(ProtocolError, match="could not be read"):
        ours.receive()
    assert not (tmp_path / "pwned").exists()


def test_a_message_that_the_channel_does_not_read_is_a_protocol_error():
    frame, _ = encode(ReleaseBarrier("barrier 1"))
    with pytest.raises(ProtocolError, match="could not be read"):
        raise arrives(frame, TaskEvent)
