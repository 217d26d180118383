"""tfmagic.tfrecord in tasks: real workers, TensorFlow's own reader and writer, a real strategy."""

import itertools
import os

import pytest

import tfmagic
from tfmagic.tfrecord import ShardWriter, framing, merge, salvage, split, verify

N = 120


@pytest.fixture(scope="module")
def cluster_of_module():
    with tfmagic.Cluster(workers=2, name="records") as started:
        yield started


@pytest.fixture(scope="module")
def folder(cluster_of_module, tmp_path_factory):
    """A set of four shards (two a task), written by the tasks."""
    made = tmp_path_factory.mktemp("shards")

    def write(base):
        import tensorflow as tf

        me = tfmagic.current_task().index
        with tfmagic.tfrecord.ShardWriter(base, max_records=30) as writer:
            for number in range(60):
                feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[60 * me + number]))
                writer.write(tf.train.Example(features=tf.train.Features(feature={"n": feature})))

    cluster_of_module.run(write, str(made / "a.tfrecord"), view="quiet", timeout=100)
    return made


def numbers(pattern, **more):
    import tensorflow as tf

    spec = {"n": tf.io.FixedLenFeature([], tf.int64)}
    data = tfmagic.tfrecord.read_shards(pattern, **more)
    return [int(tf.io.parse_single_example(record, spec)["n"]) for record in data]


def test_tasks_read_disjoint_shards_that_are_everything_once(cluster_of_module, folder):
    assert verify(folder / "a.tfrecord").ok and len(list(folder.glob("*.tfrecord"))) == 4
    read = cluster_of_module.run(numbers, str(folder / "a-*.tfrecord"), view="quiet", timeout=100)
    parts = list(read.values())
    assert all(len(part) == 60 for part in parts)
    assert sorted(itertools.chain(*parts)) == list(range(N))


def test_each_epoch_has_an_order_of_its_own_that_comes_again(cluster_of_module, folder):
    def read(pattern):
        return [numbers(pattern, seed=1, epoch=epoch) for epoch in (0, 1, 0)]

    orders = list(cluster_of_module.run(read, str(folder / "a.tfrecord"), view="quiet", timeout=100).values())
    for first, second, again in orders:
        assert first == again != second and first != sorted(first)
    for epoch in range(2):
        assert sorted(itertools.chain(*(order[epoch] for order in orders))) == list(range(N))


def test_a_seed_of_numpy_is_the_number_that_it_is(cluster_of_module, folder):
    import numpy as np

    pattern = str(folder / "a-*.tfrecord")

    def read(task):
        there = numbers(pattern, seed=7, epoch=2, task=task)
        return there, numbers(pattern, seed=np.int64(7), epoch=np.int32(2), task=task)

    for task in ((0, 2), (1, 2)):
        there, same = cluster_of_module.run(read, task, on="worker-0", view="quiet", timeout=100)["worker-0"]
        assert there and same == there


def test_fewer_shards_than_tasks_are_divided_by_record_with_a_warning(cluster_of_module, folder, tmp_path):
    merge(folder / "a.tfrecord", tmp_path / "one")

    def read(path):
        import warnings

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = numbers(path, seed=1)
        return found, [str(w.message) for w in caught if w.category is tfmagic.tfrecord.FewShards]

    read_by = cluster_of_module.run(read, str(tmp_path / "one"), view="quiet", timeout=100).values()
    assert sorted(itertools.chain(*(found for found, _ in read_by))) == list(range(N))
    for _, said in read_by:
        assert len(said) == 1 and "1 shards for 2 tasks" in said[0] and "AutoShardPolicy.DATA" in said[0]


def test_unequal_shards_get_a_warning_beforehand_and_end_jointly_as_the_documentation_has_it(
    cluster_of_module, tmp_path
):
    def write(base, count):
        with tfmagic.tfrecord.ShardWriter(base) as writer:
            for _ in range(count * (1 + tfmagic.current_task().index)):
                writer.write(b"record")

    def read(base):
        import warnings

        import tensorflow as tf

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            data = tfmagic.tfrecord.read_shards(base).batch(2)
        strategy = tf.distribute.MultiWorkerMirroredStrategy()

        @tf.function
        def step(batch):
            return strategy.reduce("sum", strategy.run(tf.size, (batch,)), axis=None)

        counts = [int(step(batch)) for batch in strategy.experimental_distribute_dataset(data)]
        said = [str(w.message) for w in caught if w.category is tfmagic.tfrecord.UnequalShards]
        return said, counts

    cluster_of_module.run(write, str(tmp_path / "a.tfrecord"), 3, view="quiet")
    for said, counts in cluster_of_module.run(read, str(tmp_path / "a.tfrecord"), timeout=100).values():
        assert len(said) == 1 and "get 3 to 6 records each" in said[0] and ".take(3)" in said[0]
        assert counts == [2, 2, 2, 1, 1, 1], "two records a step, one on each task; they end together"


def test_a_coordinators_workers_are_not_given_the_part_of_the_chief(capfd, tmp_path):
    """The chief traces the function and each worker runs it, so the current task in it is the chief."""
    for index in range(2):
        with ShardWriter(tmp_path / "a.tfrecord", task=(index, 2)) as writer:
            writer.write(b"%d" % index)

    def read(pattern):
        import tensorflow as tf

        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        coordinator = tf.distribute.coordinator.ClusterCoordinator(
            tf.distribute.ParameterServerStrategy(resolver)
        )

        def read_all(**more):
            data = coordinator.create_per_worker_dataset(
                lambda: tfmagic.tfrecord.read_shards(pattern, **more).batch(10)
            )
            step = tf.function(lambda iterator: next(iterator))
            return coordinator.schedule(step, args=(iter(data),)).fetch().tolist()

        with pytest.raises(Exception, match=r"Say task=\(0, 1\)"):
            read_all()  # TensorFlow makes an error of its own of it
        return read_all(task=(0, 1))

    with tfmagic.Cluster(workers=1, chief=True, ps=1) as cluster:
        assert cluster.run(read, str(tmp_path / "a-*"), timeout=100)["chief-0"] == [b"0", b"1"]
    assert "AutoGraph could not transform" not in capfd.readouterr().out


@pytest.mark.parametrize("how", ["dataset", "function"])
def test_a_strategy_does_not_divide_the_shards_once_more(cluster_of_module, folder, how):
    def read(pattern, how):
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        spec = {"n": tf.io.FixedLenFeature([], tf.int64)}

        def data(context=None):
            records = tfmagic.tfrecord.read_shards(pattern)
            parsed = records.map(lambda r: tf.io.parse_single_example(r, spec)["n"])
            return parsed.batch(10 if context else 20)

        if how == "dataset":
            distributed = strategy.experimental_distribute_dataset(data())
        else:
            distributed = strategy.distribute_datasets_from_function(data)
        found = []
        for batch in distributed:
            found += [int(n) for part in strategy.experimental_local_results(batch) for n in part]
        return found

    read_by = cluster_of_module.run(read, str(folder / "a-*.tfrecord"), how, view="quiet", timeout=100)
    assert sorted(itertools.chain(*read_by.values())) == list(range(N))


@pytest.mark.parametrize(
    "break_it, said",
    [
        (lambda paths: paths[0].unlink(), "missing: .*a-00000-of-00002"),
        (
            lambda paths: paths[0].write_bytes(paths[0].read_bytes()[:-50]),
            "bytes, and .* when it was written",
        ),
        (lambda paths: paths[0].rename(paths[0].with_name("a-00000-of-00003.tfrecord")), "different runs"),
    ],
)
def test_an_incomplete_set_is_refused_before_a_record_is_read(tmp_path, break_it, said):
    for index in range(2):
        with ShardWriter(tmp_path / "a.tfrecord", task=(index, 2)) as writer:
            writer.write(b"x" * 100)
    break_it([tmp_path / f"a-0000{n}-of-00002.tfrecord" for n in range(2)])
    with pytest.raises(tfmagic.TfmagicError, match=said):
        tfmagic.tfrecord.read_shards(tmp_path / "a-*.tfrecord")


def test_a_pattern_that_leaves_shards_of_a_set_out_is_an_error(cluster_of_module, tmp_path):
    for index in range(12):
        with ShardWriter(tmp_path / "a.tfrecord", task=(index, 12)) as writer:
            writer.write(b"x")
    with pytest.raises(tfmagic.tfrecord.ShardError, match="a-00010-of-00012.tfrecord is there.*not match"):
        tfmagic.tfrecord.read_shards(tmp_path / "a-0000?-of-*")

    def count(pattern):
        return sum(1 for _ in tfmagic.tfrecord.read_shards(pattern, check=None))

    counts = cluster_of_module.run(count, str(tmp_path / "a-0000?-of-*"), view="quiet", timeout=100)
    assert set(counts.values()) == {5}


def test_compression_is_seen_and_a_mixture_is_refused(tmp_path):
    for name, compression in (("plain", None), ("packed", "gzip")):
        with ShardWriter(tmp_path / f"{name}.tfrecord", compression=compression) as writer:
            writer.write(b"x")
    with pytest.raises(tfmagic.tfrecord.ShardError, match="compressed differently"):
        tfmagic.tfrecord.read_shards(tmp_path)
    with pytest.raises(tfmagic.tfrecord.ShardError, match="is GZIP, and compression=None"):
        tfmagic.tfrecord.read_shards(tmp_path / "packed.tfrecord", compression=None)
    with pytest.raises(FileNotFoundError, match="there are: .*plain-00000-of-00001.tfrecord"):
        tfmagic.tfrecord.read_shards(tmp_path / "plane-*.tfrecord")


# ---- what TensorFlow does, and the cure beside it -------------------------------------------------


def test_many_readers_of_one_file_are_no_trouble(cluster_of_module, folder):
    def read(path):
        import tensorflow as tf

        return [sum(1 for _ in tf.data.TFRecordDataset(path)) for _ in range(5)]

    path = str(sorted(folder.glob("*.tfrecord"))[0])
    assert set(map(tuple, cluster_of_module.run(read, path, view="quiet", timeout=100).values())) == {
        (30,) * 5
    }


def test_two_writers_of_one_file_lose_half_silently_and_shards_do_not(cluster_of_module, tmp_path):
    def write(folder):
        import tensorflow as tf

        me = tfmagic.current_task().index
        with tf.io.TFRecordWriter(f"{folder}/one") as naive:
            tfmagic.barrier()
            for _ in range(500):
                naive.write(bytes([me]) * 1000)
            tfmagic.barrier()
        with tfmagic.tfrecord.ShardWriter(f"{folder}/good.tfrecord") as writer:
            for _ in range(500):
                writer.write(bytes([me]) * 1000)

    cluster_of_module.run(write, str(tmp_path), view="quiet", timeout=100)
    assert verify(tmp_path / "one").records < 1000
    assert verify(tmp_path / "good.tfrecord").records == 1000


def test_a_cut_at_a_records_edge_or_in_a_header_is_silent_for_tensorflow(cluster_of_module, tmp_path):
    with ShardWriter(tmp_path / "a.tfrecord") as writer:
        for _ in range(100):
            writer.write(b"x" * 100)
    data = writer.paths[0].read_bytes()

    def count(path):
        import tensorflow as tf

        return sum(1 for _ in tf.data.TFRecordDataset(path))

    for size in (50 * 116, 50 * 116 + 7):
        writer.paths[0].write_bytes(data[:size])
        path = str(writer.paths[0])
        assert cluster_of_module.run(count, path, on="worker-0", view="quiet")["worker-0"] == 50
        assert "count" in [damage.kind for damage in verify(path).damages]


def test_ignoring_errors_drops_all_the_rest_and_salvage_does_not(cluster_of_module, tmp_path):
    data = bytearray(b"".join(framing.frame(b"x" * 100) for _ in range(200)))
    data[20 * 116 + 50] ^= 1
    (tmp_path / "bad").write_bytes(data)

    def count(path):
        import tensorflow as tf

        return sum(1 for _ in tf.data.TFRecordDataset(path).ignore_errors())

    assert cluster_of_module.run(count, str(tmp_path / "bad"), on="worker-0", view="quiet")["worker-0"] == 20
    assert salvage(tmp_path / "bad", tmp_path / "good").records == 199


def test_tensorflow_reads_what_split_has_written(cluster_of_module, folder, tmp_path):
    merge(folder / "a.tfrecord", tmp_path / "one")
    split(tmp_path / "one", tmp_path / "s.tfrecord", count=3, compression="gzip")
    read = cluster_of_module.run(numbers, str(tmp_path / "s-*"), view="quiet", timeout=100)
    assert sorted(itertools.chain(*read.values())) == list(range(N))


# ---- shards of two runs ---------------------------------------------------------------------------


def write_words(base, word, dies_at=None, rounds=1):
    """Write a set; the task `dies_at` is killed before it closes its writer."""
    me = tfmagic.current_task().index
    for number in range(rounds):
        if number:
            tfmagic.barrier()  # which shard is the former one is a matter of time
        with tfmagic.tfrecord.ShardWriter(base, overwrite=True) as writer:
            writer.write(f"{word}{number}-{me}".encode())
            if me == dies_at and number == rounds - 1:
                os._exit(9)
    return writer.manifest.run


def words(base, **more):
    data = tfmagic.tfrecord.read_shards(base, task=(0, 1), **more)
    return sorted(record.numpy().decode() for record in data)


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_shard_of_a_former_run_is_not_read_with_those_of_the_next(tmp_path, rounds):
    base = str(tmp_path / "a.tfrecord")
    with tfmagic.Cluster(workers=2) as cluster:
        runs = set(cluster.run(write_words, base, "old").values())
        assert len(runs) == 1 and runs != {""} and verify(tmp_path).ok
        assert set(cluster.run(write_words, base, "new").values()) not in (runs, {""})
        with pytest.raises(tfmagic.TaskDied):
            cluster.run(write_words, base, "last", 1, rounds, keep_going=True)
        cluster.revive()
        (damage,) = verify(tmp_path).damages
        assert damage.kind == "former run" and damage.path.endswith("a-00001-of-00002.tfrecord")
        for check in ("names", "contents"):
            with pytest.raises(tfmagic.tfrecord.ShardError, match=r"a-00001-of-00002.* of different runs"):
                cluster.run(words, base, on="worker-0", check=check)
        read = cluster.run(words, base, on="worker-0", check=None)["worker-0"]
        assert read == (["last0-0", "new0-1"] if rounds == 1 else ["last0-1", "last1-0"])
        with pytest.raises(tfmagic.tfrecord.ShardError, match="of different runs"):
            merge(base, tmp_path / "merged.tfrecord")
        cluster.run(write_words, base, "again", None, 3)
        assert cluster.run(words, base, on="worker-0")["worker-0"] == ["again2-0", "again2-1"]
        cluster.run(write_words, base, "alone", on="worker-1")  # one task on purpose: its run is unknown
        assert verify(tmp_path).ok
        assert cluster.run(words, base, on="worker-0")["worker-0"] == ["again2-0", "alone0-1"]


RUN_SCRIPT = """\
import sys, tfmagic.tfrecord
with tfmagic.tfrecord.ShardWriter(sys.argv[1], overwrite=True) as writer:
    writer.write(b"x")
    if len(sys.argv) > 2 and tfmagic.current_task().index == 1:
        raise SystemExit(3)
"""


def test_the_tasks_of_a_script_have_a_run_in_common(tmp_path, commands):
    script, base = tmp_path / "script.py", tmp_path / "a.tfrecord"
    script.write_text(RUN_SCRIPT)

    def run(*more):
        commands.start(tmp_path, ["run", "--workers", "2", script, base, *more])
        return commands.wait()

    assert run() == 0 and verify(base).ok
    first = {manifest.run for manifest in tfmagic.tfrecord.read_manifests(base)}
    assert len(first) == 1 and first != {""}
    assert run("fail") == 3
    assert len({manifest.run for manifest in tfmagic.tfrecord.read_manifests(base)}) == 2
    assert not verify(base).ok
