"""The exceptions of `tfmagic.tfrecord`. Each is also the builtin one would expect, and can be pickled."""

from tfmagic.errors import TfmagicError


class ShardError(TfmagicError, ValueError):
    """Shards, manifests or arguments that do not fit together; the message names the file."""


class ShardDamaged(ShardError):
    """Damaged records where intact ones are needed; the message names the file."""


class ShardsMissing(TfmagicError, FileNotFoundError):
    """Files that should be there are not; the message names them."""


class ShardExists(TfmagicError, FileExistsError):
    """The name of a shard is taken by a file, a former run or another writer."""


class ShardWriteError(TfmagicError, OSError):
    """A file could not be written; nothing of it is left. It has `errno` and `filename`."""


class FewShards(UserWarning):
    """There are fewer shards than tasks: they are divided by record, and every task reads all of them."""


class UnequalShards(UserWarning):
    """The tasks' shards have different numbers of records, as their manifests say."""
