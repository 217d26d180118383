"""The command ``tfmagic tfrecord``: verify, salvage, cat, split and merge files without TensorFlow."""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from typing import Any

from tfmagic import tfrecord
from tfmagic.errors import TfmagicError
from tfmagic.tfrecord.examples import parse_example

_FINE, _DAMAGED, _CANNOT = 0, 1, 2


def main(found: argparse.Namespace) -> int:
    """Run an action. Return 0 if all is whole, 1 if something is damaged, 2 if it cannot be done."""
    try:
        return _ACTIONS[found.action](found)
    except BrokenPipeError:
        raise  # the reader of our output has ended; the main of all commands handles that
    except (TfmagicError, OSError, ImportError) as error:
        sys.stderr.write(f"{found.parser.prog} {found.action}: {error}\n")
        return _DAMAGED if isinstance(error, tfrecord.ShardDamaged) else _CANNOT


def _verify(found: argparse.Namespace) -> int:
    result = tfrecord.verify(found.paths, workers=found.workers)
    if found.json:
        content = {"ok": result.ok, "seconds": result.seconds, "files": [asdict(f) for f in result.files]}
        print(json.dumps(content, indent=1))
    else:
        print(result)
    return _FINE if result.ok else _DAMAGED


def _salvage(found: argparse.Namespace) -> int:
    result = tfrecord.salvage(found.src, found.dst, overwrite=found.overwrite)
    print(result)
    return _FINE if result.ok else _DAMAGED


def _cat(found: argparse.Namespace) -> int:
    for number, record in enumerate(islice(tfrecord.iterate(found.paths), found.head)):
        if found.json:
            try:
                print(json.dumps(parse_example(record), default=_text_or_hex))
            except ValueError as error:
                found.parser.error(f"record {number} is no tf.train.Example: {error}; leave --json out")
        elif found.hex:
            print(record.hex())
        else:
            print(_text(record))
    return _FINE


def _split(found: argparse.Namespace) -> int:
    limits: dict[str, Any] = {"count": found.shards, "records": found.records, "compression": found.gzip}
    print(*tfrecord.split(found.src, found.dst, **limits, overwrite=found.overwrite), sep="\n")
    return _FINE


def _merge(found: argparse.Namespace) -> int:
    records = tfrecord.merge(found.paths, found.dst, compression=found.gzip, overwrite=found.overwrite)
    print(f"{found.dst}: {records:,} records")
    return _FINE


def _text(record: bytes) -> str:
    """Return printable text as it is, other bytes as Python writes them."""
    try:
        text = record.decode()
    except UnicodeDecodeError:
        return repr(record)
    return text if text.isprintable() else repr(record)


def _text_or_hex(value: bytes) -> str:
    """Return bytes as JSON can hold them: as hexadecimal digits if they are no text."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"hex:{value.hex()}"


_ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "verify": _verify,
    "salvage": _salvage,
    "cat": _cat,
    "split": _split,
    "merge": _merge,
}
