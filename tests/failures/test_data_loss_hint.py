"""A DataLossError of a task gets a hint: which file, which place in it, and the likely cause."""

import gzip
import os
import random

import pytest

import tfmagic
from tfmagic.tfrecord import ShardWriter, framing, salvage, verify


@pytest.fixture(scope="module")
def cluster_of_module():
    with tfmagic.Cluster(workers=2, name="hints-of-records") as started:
        yield started


def hint_of(cluster, fn, *args):
    with pytest.raises(Exception) as caught:
        cluster.run(fn, *args, on="worker-0", timeout=100, view="quiet")
    assert type(caught.value).__name__ == "DataLossError"
    (hint,) = [note for note in caught.value.__notes__ if note.startswith("hint: ")]
    return hint


def read_interleaved(pattern):
    import tensorflow as tf

    files = tf.data.Dataset.list_files(pattern, shuffle=False)
    for _ in files.interleave(tf.data.TFRecordDataset, cycle_length=3):
        pass


def test_the_hint_names_the_file_among_those_of_an_interleaved_data_set(cluster_of_module, tmp_path):
    records = [bytes([n]) * 300 for n in range(50)]
    for number in range(3):
        data = bytearray(b"".join(map(framing.frame, records)))
        if number == 1:
            data[20 * 316 + 40] ^= 1
        (tmp_path / f"part-{number}").write_bytes(data)
    hint = hint_of(cluster_of_module, read_interleaved, str(tmp_path / "part-*"))
    assert f"{tmp_path / 'part-1'} is damaged at byte 6,332" in hint and "data CRC" in hint
    salvage(tmp_path / "part-1", tmp_path / "part-1-saved")  # as the hint says
    assert verify(tmp_path / "part-1-saved").records == 49


def test_the_hint_names_a_compressed_file_that_is_read_as_plain(cluster_of_module, tmp_path):
    with ShardWriter(tmp_path / "a.tfrecord", compression="gzip") as writer:
        writer.write(b"x" * 100)
    hint = hint_of(cluster_of_module, read_interleaved, str(writer.paths[0]))
    assert "GZIP stream that is read as plain" in hint and writer.paths[0].name in hint


def read_all(path, compression):
    import tensorflow as tf

    for _ in tf.data.TFRecordDataset([path], compression):
        pass


def keep_readers_of(path):
    """Keep data sets as an earlier failed cell does, whose frames are kept for the debugger."""
    import tensorflow as tf

    global kept
    kept = [tf.data.TFRecordDataset([path]), tf.data.TFRecordDataset([path], "GZIP")]


def test_the_hint_takes_no_damage_of_an_earlier_cell_for_this_ones(cluster_of_module, tmp_path):
    with ShardWriter(tmp_path / "a.tfrecord", compression="gzip") as writer:
        writer.write(b"x" * 100)
    (tmp_path / "letter").write_text("To whom it may concern\n" * 20)
    cluster_of_module.run(keep_readers_of, str(writer.paths[0]), on="worker-0", view="quiet")
    hint = hint_of(cluster_of_module, read_all, str(tmp_path / "letter"), None)
    assert f"{tmp_path / 'letter'} is not a TFRecord file" in hint


def random_records():
    source = random.Random(7)
    return [source.randbytes(60) for _ in range(400)]


def test_the_hint_names_a_file_that_is_read_as_a_url_and_no_other(cluster_of_module, tmp_path):
    """An earlier cell has read a file with the same damage."""
    for name in ("earlier", "one that is a url"):
        path = tmp_path / name
        path.write_bytes(os.urandom(100))
        url = f"file://{path}" if "url" in name else str(path)
        assert f"{path} is not a TFRecord file" in hint_of(cluster_of_module, read_all, url, None)


def test_the_hint_names_the_place_in_a_compressed_file(cluster_of_module, tmp_path):
    with ShardWriter(tmp_path / "a.tfrecord", compression="gzip") as writer:
        for record in random_records():
            writer.write(record)
    path = writer.paths[0]
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    hint = hint_of(cluster_of_module, read_all, str(path), "GZIP")
    assert "of what is unpacked: it ends within a record" in hint and "a truncated copy" in hint
    assert str(path) in hint
    damaged = bytearray(gzip.decompress(whole))
    damaged[20 * 76 + 40] ^= 1
    path.write_bytes(gzip.compress(damaged))
    hint = hint_of(cluster_of_module, read_all, str(path), "GZIP")
    assert f"{path} is damaged at byte 1,532 of what is unpacked" in hint and "record 20" in hint


def test_the_hint_of_a_stream_that_cannot_be_unpacked_names_file_and_cause(cluster_of_module, tmp_path):
    plain = tmp_path / "plain"
    plain.write_bytes(b"".join(map(framing.frame, random_records())))
    hint = hint_of(cluster_of_module, read_all, str(plain), "GZIP")
    assert f"{plain} holds plain records, and is read as GZIP" in hint
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    hint = hint_of(cluster_of_module, read_all, str(packed), "ZLIB")
    assert f"{packed} is a GZIP stream, and is read as ZLIB" in hint
    packed.write_bytes(packed.read_bytes()[:-8] + bytes(8))  # the stream's own checksum
    hint = hint_of(cluster_of_module, read_all, str(packed), "GZIP")
    assert f"{packed} is damaged: its GZIP stream cannot be unpacked at byte" in hint and "salvage" in hint


def fit_a_data_set_that_no_variable_holds(path):
    import keras
    import tensorflow as tf

    def make():
        return tf.data.TFRecordDataset([path]).map(lambda record: (tf.zeros([1]), tf.zeros([1]))).batch(2)

    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(make(), verbose=0)


def test_the_hint_names_the_file_of_a_data_set_that_only_fit_has_held(cluster_of_module, tmp_path):
    """Keras takes its frames out of the traceback, so no frame has the data set."""
    data = bytearray(b"".join(map(framing.frame, random_records())))
    data[20 * 76 + 40] ^= 1
    (tmp_path / "a").write_bytes(data)
    hint = hint_of(cluster_of_module, fit_a_data_set_that_no_variable_holds, str(tmp_path / "a"))
    assert f"{tmp_path / 'a'} is damaged at byte 1,532: the checksum of a record's data" in hint
