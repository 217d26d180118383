"""Frames over a real socket pair: whole, in order, with descriptors, and nothing foreign."""

import dataclasses
import importlib
import os
import pickle
import random
import resource
import struct
import threading
import typing
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfmagic.errors import ProtocolError
from tfmagic.protocol import channel
from tfmagic.protocol.channel import Channel, channel_pair, decode, encode
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import ReleaseBarrier, RunCell
from tfmagic.protocol.events import CellReturned
from tfmagic.protocol.launcher_messages import ForkTask
from tfmagic.protocol.payload import Handle, HandleLost, Packed
from tfmagic.serialization.pickling import dumps, loads, pack


@pytest.fixture
def pair():
    ours, theirs = channel_pair()
    other = Channel(theirs)
    yield ours, other
    ours.close()
    other.close()


def test_messages_arrive_whole_and_in_order(pair):
    ours, other = pair
    for n in range(300):
        ours.send(RunCell(cell=n, source="x" * n))
    assert [other.receive().cell for _ in range(300)] == list(range(300))


def test_a_large_message_is_queued_without_blocking_and_arrives(pair):
    ours, other = pair
    assert not ours.post(RunCell(cell=1, source="x" * (8 << 20)))
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
def test_values_that_were_read_and_dropped_leave_no_descriptor(pair, size_bytes):
    ours, other = pair
    before = open_files()
    for _ in range(20):
        ours.send(
            CellReturned(TaskId("worker", 0), 1, 1, 0.0, 0, value=pack(dumps(bytearray(size_bytes), {})))
        )
        assert len(loads(other.receive().value, {})) == size_bytes
    assert open_files() == before


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


def all_messages() -> list[type]:
    modules = [importlib.import_module(name) for name in channel._OUR_MODULES]
    return [
        found
        for module in modules
        for found in vars(module).values()
        if dataclasses.is_dataclass(found) and found.__module__ == module.__name__
        if module.__name__ != "tfmagic.protocol.cluster_spec"
        or found is TaskId  # the others check what they are made of
    ]


st.register_type_strategy(Handle, st.builds(Handle, st.just(1)))
st.register_type_strategy(float, st.floats(allow_nan=False))
st.register_type_strategy(
    Mapping, lambda kind: st.dictionaries(*map(st.from_type, kind.__args__), max_size=2)
)


def instances(cls):
    plain = st.none() | st.integers() | st.text(max_size=5) | st.binary(max_size=5)
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{n: plain if hint is Any else st.from_type(hint) for n, hint in hints.items()})


def by_value(message):
    """A message without its handles, which are others where it arrives."""
    if isinstance(message, Handle):
        return "a handle"
    if dataclasses.is_dataclass(message):
        names = [field.name for field in dataclasses.fields(message)]
        return type(message), [by_value(getattr(message, name)) for name in names]
    if isinstance(message, tuple):
        return [by_value(item) for item in message]
    if isinstance(message, dict):
        return [(by_value(key), by_value(value)) for key, value in message.items()]
    return message


@pytest.mark.parametrize("cls", all_messages(), ids=lambda cls: cls.__name__)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_every_message_arrives_as_it_was_sent(cls, data):
    message = data.draw(instances(cls))
    ours, theirs = channel_pair()
    other = Channel(theirs)
    try:
        ours.send(message)
        assert by_value(other.receive()) == by_value(message)
    finally:
        ours.close()
        other.close()


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


def test_a_pickle_that_names_a_foreign_class_runs_nothing(pair, tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "pwned"),))

    body = pickle.dumps(Evil())
    ours, other = pair
    other.sock.sendall(struct.pack("!4sIB", b"tfm1", len(body), 0) + body)
    with pytest.raises(ProtocolError, match="none of ours"):
        ours.receive()
    assert not (tmp_path / "pwned").exists()


def test_a_damaged_body_is_a_protocol_error():
    frame, _ = encode(ReleaseBarrier("barrier 1"))
    with pytest.raises(ProtocolError):
        decode(frame[9:-3], [])
