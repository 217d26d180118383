"""Frames over a real socket pair: whole, in order, with descriptors, and nothing foreign."""

import os
import pickle
import random
import struct
import threading

import pytest

from tfmagic.errors import ProtocolError
from tfmagic.events import CellReturned
from tfmagic.launches import ForkTask
from tfmagic.orders import ReleaseBarrier, RunCell
from tfmagic.packed import Handle, Packed
from tfmagic.pickling import dumps, loads, pack
from tfmagic.spec import TaskId
from tfmagic.wire import Channel, channel_pair, decode, encode


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
    for used in (fd, got.log.fd, got.channel.fd):
        os.close(used)


def test_a_large_value_travels_as_a_memory_file(pair):
    ours, other = pair
    value = {"a": bytearray(200_000), "b": list(range(50_000))}
    packed = pack(*dumps(value, {}))
    assert packed.handle is not None
    ours.send(CellReturned(TaskId("worker", 0), 1, 1, 0.0, 0, value=packed))
    assert loads(other.receive().value, {}) == value


def test_a_small_value_travels_in_the_message():
    assert pack(*dumps([1, 2], {})) == Packed(data=dumps([1, 2], {})[0])


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
