"""TFRecord files for several tasks: written as shards, read exactly once, verified and salvaged.

    ShardWriter ──→ train-00003-of-00008.tfrecord + manifest ──→ read_shards ──→ tf.data.Dataset
                                    │
                                    ├─→ verify(paths) ──→ Verification
                                    └─→ salvage(src, dst) ──→ Salvage;  split, merge, iterate

It works in tasks and in plain Python. Importing it loads neither TensorFlow nor numpy; only `read_shards`
needs TensorFlow.
"""

from tfmagic.system import linux_only

linux_only.check()

from tfmagic.tfrecord.copying import iterate, merge, salvage, split
from tfmagic.tfrecord.errors import (
    FewShards,
    ShardDamaged,
    ShardError,
    ShardExists,
    ShardsMissing,
    ShardWriteError,
    UnequalShards,
)
from tfmagic.tfrecord.findings import Damage, FileReport, Salvage, Verification
from tfmagic.tfrecord.manifests import Entry, Manifest, read_manifests
from tfmagic.tfrecord.reading import read_shards
from tfmagic.tfrecord.verifying import verify
from tfmagic.tfrecord.writing import ShardWriter

__all__ = [
    "Damage",
    "Entry",
    "FewShards",
    "FileReport",
    "Manifest",
    "Salvage",
    "ShardDamaged",
    "ShardError",
    "ShardExists",
    "ShardWriteError",
    "ShardWriter",
    "ShardsMissing",
    "UnequalShards",
    "Verification",
    "iterate",
    "merge",
    "read_manifests",
    "read_shards",
    "salvage",
    "split",
    "verify",
]
