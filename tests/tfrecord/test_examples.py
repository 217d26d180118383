"""A serialized tf.train.Example is parsed without TensorFlow."""

import struct

import pytest
from shards_on_disk import feature, field, varint

from tfmagic.tfrecord import examples


def test_examples_are_read_without_tensorflow():
    features = (
        feature(b"text", 1, field(1, b"a") + field(1, b"\xff"))
        + feature(b"x", 2, field(1, struct.pack("<2f", 1.5, -2)))
        + feature(b"n", 3, field(1, varint(7) + varint(-1)))
        + feature(b"old", 3, b"\x08" + varint(5) + b"\x08" + varint(6))
        + feature(b"none", 2, b"")
    )
    assert examples.parse_example(field(1, features)) == {
        "text": [b"a", b"\xff"],
        "x": [1.5, -2.0],
        "n": [7, -1],
        "old": [5, 6],
        "none": [],
    }


@pytest.mark.parametrize("data", [b"hello world", b"\xff" * 20, b"\x0a\x05ab", field(2, b"x")])
def test_data_that_are_no_example_are_an_error(data):
    with pytest.raises(ValueError):
        examples.parse_example(data)
