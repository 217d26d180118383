"""A data set of the records that belong to a task. This is the only module here that loads TensorFlow.

    pattern ──→ files ──→ names, sizes, compression checked ──→ this task's files ──→ tf.data.Dataset
                                 │                                   (order by seed and epoch)
                                 └─ fewer files than tasks ──→ all files, every n-th record

User code calls it, in tasks and elsewhere.
"""

import hashlib
import random
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from tfmagic.tfrecord import manifests, record_stream, shard_owner, shards, verifying
from tfmagic.tfrecord.errors import FewShards, ShardDamaged, ShardError, ShardsMissing, UnequalShards

_NAMES = {"auto": None, None: "", "": "", "gzip": "GZIP", "zlib": "ZLIB"}
_SHOWN = 5
_CYCLE = 4  # files read in turn when the order is shuffled: neighbours come from several of them

Check = Literal["names", "contents"] | None


def read_shards(
    pattern: shards.Paths | Iterable[shards.Paths],
    task: shard_owner.Member = None,
    *,
    seed: int | None = None,
    epoch: int = 0,
    shuffle_buffer: int = 10_000,
    compression: str | None = "auto",
    check: Check = "names",
) -> Any:
    """Return the records of this task: together the tasks read every record exactly once.

    Files are divided: task i of n reads every n-th file. With fewer files than tasks the records are divided
    instead, as TensorFlow's AutoShardPolicy.DATA does, with a warning (`FewShards`). The data set is marked
    as divided (AutoShardPolicy.OFF), so ``experimental_distribute_dataset`` does not divide it again. Shards
    whose manifests give the tasks different numbers of records get a warning (`UnequalShards`).

    Args:
        pattern: A glob, a file, a folder, the name of a set as `ShardWriter` takes it; or several of them.
            Files that are still being written are left out.
        task: The owner of the records: a task, or (index, count) among chief and workers. By default the task
            that runs this code, of a tfmagic cluster or of TF_CONFIG; elsewhere all records are read.
        seed: Shuffle files and records, equally in each run with the same ``tf.random.set_seed``, which
            TensorFlow mixes in. All tasks must give the same. None keeps the order.
        epoch: Each epoch has another order. All tasks must give the same.
        shuffle_buffer: Number of records among which is shuffled.
        compression: "auto" detects it; with None, "gzip" or "zlib", other files are an error.
        check: "names" checks that every shard exists, is of one run, and has the size in its manifest, if it
            has one. "contents" also verifies this task's files before a record is read. None checks nothing.

    Returns:
        A tf.data.Dataset of serialized records, tf.string scalars.

    Raises:
        ShardsMissing: The pattern matches nothing, or a shard of the set is missing.
        ShardError: Files do not fit together, are damaged, or are no TFRecord files.
    """
    if task is None:
        _check_caller()
    index, count = shard_owner.place_of(task)
    files = shards.find_files(pattern, "pattern")
    if check not in ("names", "contents", None):
        raise ShardError(f"check is 'names', 'contents' or None, not {check!r}")
    if seed is not None and shard_owner.whole(seed) is None:
        raise ShardError(f"seed is a whole number or None, not {seed!r}")
    shard_owner.at_least(0, "epoch", epoch)
    shard_owner.at_least(0, "shuffle_buffer", shuffle_buffer)
    if check is not None:
        _check_whole(files)
    packed = _compression_of(files, compression)
    if seed is not None:
        _random(seed, epoch, "files").shuffle(files)
    by_file = len(files) >= count
    mine = files[index::count] if by_file else files
    if check == "contents" and not (found := verifying.verify(mine, workers=1)).ok:
        places = "; ".join(f"{damage.path}: {damage}" for damage in found.damages[:_SHOWN])
        raise ShardDamaged(f"{places}. tfmagic.tfrecord.salvage saves what is whole")
    if not by_file:
        warnings.warn(
            f"{len(files)} shards for {count} tasks: they are divided by record (as AutoShardPolicy.DATA), "
            f"so every task reads all of them and keeps one record in {count}. Write {count} or more to "
            "read each once",
            FewShards,
            stacklevel=2,
        )
    elif check is not None and len(set(totals := _records_by_task(files, count))) > 1:
        warnings.warn(
            f"the tasks get {min(totals)} to {max(totals)} records each. A loop over this data set in which "
            "the tasks meet at each step would wait for ever when one has no batch left; fit, and a loop "
            "over strategy.experimental_distribute_dataset(...), end together. As many records on each task: "
            f"read_shards(...).take({min(totals)})",
            UnequalShards,
            stacklevel=2,
        )
    random_seed = None if seed is None else _random(seed, epoch, f"records {index}").randrange(1 << 31)
    return _dataset(mine, packed, None if by_file else (index, count), random_seed, shuffle_buffer)


read_shards.autograph_info__ = {}  # type: ignore[attr-defined]  # as do_not_convert does, without TensorFlow


def _check_caller() -> None:
    """Raise ShardError if a ClusterCoordinator traces the caller on the chief, and runs it on each worker.

    Then every worker would get the part of the chief.
    """
    me = shard_owner.current()
    if me is None or me.type != "chief" or not me.cluster_spec.get("ps"):
        return
    import tensorflow as tf

    if tf.inside_function():
        raise ShardError(
            f"read_shards was called on {me.name} within a function that TensorFlow traces, as for "
            "create_per_worker_dataset: all workers would read the shards of the chief, and none the "
            "others. Say task=(0, 1): then each worker reads all of them"
        )


def _check_whole(files: Sequence[Path]) -> None:
    """Check that every shard of each set is there, is of one run, and has the size in its manifest."""
    missing = shards.check_sets(files)
    if left_out := [path for path in missing if path.exists()]:
        raise ShardError(
            f"{left_out[0]} is there, of the same set, and the pattern does not match it: every task would "
            "lose its records. check=None reads what the pattern matches"
        )
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise ShardsMissing(
            f"missing: {', '.join(map(str, missing[:_SHOWN]))}{more}. Its task has not closed its writer "
            "yet, has failed, or the file was not copied; check=None reads what is there"
        )
    manifests.check_runs(files)
    there = set(files)
    if differing := [
        f"{path}: it has {size:,} bytes, and {entry.bytes:,} when it was written, with {entry.records:,} "
        "records"
        for path, entry in manifests.entries_of(files).items()
        if path in there and (size := path.stat().st_size) != entry.bytes
    ]:
        raise ShardError(
            f"{'; '.join(differing[:_SHOWN])}. It was cut, copied in part or written again by something "
            "else: records are lost. tfmagic.tfrecord.salvage saves what is whole; check=None reads it "
            "without this check"
        )


def _records_by_task(files: Sequence[Path], count: int) -> list[int]:
    """Return the number of records of each task, [] if a file has no manifest."""
    entries = manifests.entries_of(files)
    if any(path not in entries for path in files):
        return []
    return [sum(entries[path].records for path in files[index::count]) for index in range(count)]


def _compression_of(files: Sequence[Path], asked: str | None) -> str:
    """Return the compression of the files, as TFRecordDataset takes it."""
    asked = asked.lower() if isinstance(asked, str) else asked
    if asked not in _NAMES:
        raise ShardError(f"compression is 'auto', None, 'gzip' or 'zlib', not {asked!r}")
    found: dict[str, Path] = {}
    for path in files:
        packed = record_stream.detect(path)
        if packed is None:
            raise ShardError(
                f"{path} is no TFRecord file: its first bytes are neither a record nor a gzip stream. "
                f"tfmagic.tfrecord.verify({str(path)!r}) looks at all of it"
            )
        if path.stat().st_size:
            found.setdefault(packed, path)
    if len(found) > 1:
        each = ", ".join(f"{path} is {packed or 'not compressed'}" for packed, path in found.items())
        raise ShardError(f"the files are compressed differently: {each}. Read them one after the other")
    (is_packed,) = found or {"": Path()}
    wanted = _NAMES[asked]
    if wanted is not None and found and wanted != is_packed:
        raise ShardError(
            f"{found[is_packed]} is {is_packed or 'not compressed'}, and compression={asked!r} was asked "
            'for. Leave it at "auto"'
        )
    return is_packed


def _random(seed: int, epoch: int, what: str) -> random.Random:
    """Return a generator that is the same in every process, which hash() is not."""
    return random.Random(hashlib.sha256(f"{seed}/{epoch}/{what}".encode()).digest())


def _dataset(
    files: Sequence[Path], packed: str, part: tuple[int, int] | None, seed: int | None, buffer: int
) -> Any:
    import tensorflow as tf

    names = [str(path) for path in files]
    options = tf.data.Options()
    options.deterministic = True
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    if seed is None or len(names) == 1:
        data = tf.data.TFRecordDataset(names, packed)
    else:
        data = tf.data.Dataset.from_tensor_slices(names).interleave(
            lambda name: tf.data.TFRecordDataset(name, packed),
            cycle_length=min(_CYCLE, len(names)),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
    if part is not None:
        data = data.shard(part[1], part[0])
    if seed is not None and buffer > 1:
        data = data.shuffle(buffer, seed=seed, reshuffle_each_iteration=False)
    return data.with_options(options)
