"""tf.train.Example as plain values, without TensorFlow. Called by `tfmagic tfrecord cat --json`.

    Example { features = 1 { feature = 1, a map { key = 1, value = 2 } } }
    Feature { bytes_list = 1 | float_list = 2 | int64_list = 3, each { value = 1, repeated } }

Source: tensorflow/core/example/{example,feature}.proto, protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

Value = bytes | int
Features = dict[str, list[bytes] | list[float] | list[int]]


def parse_example(data: bytes) -> Features:
    """The features of a serialized Example, by name.

    Raises:
        ValueError: It is none.
    """
    found: Features = {}
    for number, features in _fields(data):
        if number != 1 or not isinstance(features, bytes):
            raise ValueError("a field that an Example does not have")
        for number, entry in _fields(features):
            if number != 1 or not isinstance(entry, bytes):
                raise ValueError("a field that Features do not have")
            parts = dict(_fields(entry))
            key, feature = parts.get(1, b""), parts.get(2, b"")
            if not isinstance(key, bytes) or not isinstance(feature, bytes):
                raise ValueError("a feature without a name")
            found[key.decode()] = _values(feature)
    return found


def _values(feature: bytes) -> list[bytes] | list[float] | list[int]:
    for kind, content in _fields(feature):
        if not isinstance(content, bytes):
            break
        values = [value for number, value in _fields(content) if number == 1]
        match kind:
            case 1:
                return [value for value in values if isinstance(value, bytes)]
            case 2:
                return [f for v in values if isinstance(v, bytes) for (f,) in struct.iter_unpack("<f", v)]
            case 3:
                return [n for value in values for n in _integers(value)]
    return []


def _integers(value: Value) -> Iterator[int]:
    """One, or several that are packed; two's complement of 64 bits."""
    place = 0
    numbers = [value] if isinstance(value, int) else []
    while isinstance(value, bytes) and place < len(value):
        number, place = _varint(value, place)
        numbers.append(number)
    yield from (number - (1 << 64) if number >> 63 else number for number in numbers)


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """The fields of a message: their numbers, and bytes or a varint."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        match tag & 7:
            case 0:
                number, place = _varint(data, place)
                yield tag >> 3, number
                continue
            case 2:
                size, place = _varint(data, place)
            case 5:
                size = 4
            case 1:
                size = 8
            case _:
                raise ValueError("no protocol buffer")
        if place + size > len(data):
            raise ValueError("it is cut short")
        yield tag >> 3, data[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while place < len(data) and shift < 70:
        byte = data[place]
        number |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return number & 0xFFFFFFFFFFFFFFFF, place
    raise ValueError("it is cut short")
