"""Records, and whole or damaged files of records, for the tests of `tfmagic.tfrecord`."""

from tfmagic.tfrecord import ShardWriter, framing

RECORDS = [bytes([n % 256]) * (n % 90) for n in range(1000)]


def packed(records):
    return b"".join(map(framing.frame, records))


def place_of(number, records=RECORDS):
    return len(packed(records[:number]))


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def whole_in(tmp_path):
    path = tmp_path / "whole.tfrecord"
    path.write_bytes(packed(RECORDS))
    return path


def damaged(tmp_path, data):
    path = tmp_path / "damaged.tfrecord"
    path.write_bytes(data)
    return path


def kinds(found):
    return [damage.kind for damage in found.damages]


def flipped(data, place):
    changed = bytearray(data)
    changed[place] ^= 0x10
    return bytes(changed)


def cut(data, number, behind):
    return data[: place_of(number) + behind]


def write_set(folder, count, record=b"old", **more):
    for index in range(count):
        with ShardWriter(folder / "a.tfrecord", task=(index, count), **more) as writer:
            writer.write(record)


def varint(number):
    number &= (1 << 64) - 1
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def feature(name, kind, content):
    return field(1, field(1, name) + field(2, field(kind, content)))
