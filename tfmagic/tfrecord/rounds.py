"""Which run of writers a set of shards belongs to, as all tasks of a cluster know it without a word.

    mark of the cell or script + name of the set + how often this task has closed it there ──→ id

The tasks run one program, so that they close a set equally often. A task that died has closed it less often
than the others, and its last shard has another id.
"""

from __future__ import annotations

import hashlib
import os

from tfmagic.protocol import task_context
from tfmagic.tfrecord.shards import ShardName

_closed: dict[tuple[str, str], int] = {}  # under the present mark


def present(name: ShardName) -> str:
    """Return the id of the run that writes this set now; "" where the tasks run no code together."""
    key = _key(name)
    if not key[0]:
        return ""
    for other in [other for other in _closed if other[0] != key[0]]:
        del _closed[other]
    count = _closed.setdefault(key, 0)
    return hashlib.blake2s(f"{key}{count}".encode(), digest_size=8).hexdigest()


def end(name: ShardName) -> None:
    """Note that this task has closed the set: to write it once more in the same cell is another run."""
    key = _key(name)
    if key in _closed:
        _closed[key] += 1


def _key(name: ShardName) -> tuple[str, str]:
    folder, stem, suffix = name.family
    return task_context.run_mark(), f"{os.path.realpath(folder)}/{stem}{suffix}"
