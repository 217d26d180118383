"""The command ``tfmagic tfrecord``: verify, salvage, cat, split and merge files without TensorFlow."""

import argparse
import json
import sys
from dataclasses import asdict
from itertools import islice
from typing import Any

from tfmagic import tfrecord
from tfmagic.errors import TfmagicError
from tfmagic.tfrecord.examples import parse_example


def main(found: argparse.Namespace) -> int:
    """Run an action. Return 0 if all is whole, 1 if something is damaged, 2 if it cannot be done."""
    try:
        return 0 if _run(found) else 1
    except BrokenPipeError:
        raise  # the reader of our output has ended; the main of all commands handles that
    except (TfmagicError, OSError, ImportError) as error:
        sys.stderr.write(f"{found.parser.prog} {found.action}: {error}\n")
        return 1 if isinstance(error, tfrecord.ShardDamaged) else 2


def _run(found: argparse.Namespace) -> bool:
    """Run an action and print its result. Return whether nothing is damaged."""
    match found.action:
        case "verify":
            checked = tfrecord.verify(found.paths, workers=found.workers)
            files = [asdict(file) for file in checked.files]
            content = {"ok": checked.ok, "seconds": checked.seconds, "files": files}
            print(json.dumps(content, indent=1) if found.json else checked)
            return checked.ok
        case "salvage":
            saved = tfrecord.salvage(found.src, found.dst, overwrite=found.overwrite)
            print(saved)
            return saved.ok
        case "cat":
            for number, record in enumerate(islice(tfrecord.iterate(found.paths), found.head)):
                print(record.hex() if found.hex else _text(found, number, record))
        case "split":
            limits: dict[str, Any] = {"count": found.shards, "records": found.records}
            more = {"compression": found.gzip, "overwrite": found.overwrite}
            print(*tfrecord.split(found.src, found.dst, **limits, **more), sep="\n")
        case "merge":
            more = {"compression": found.gzip, "overwrite": found.overwrite}
            print(f"{found.dst}: {tfrecord.merge(found.paths, found.dst, **more):,} records")
    return True


def _text(found: argparse.Namespace, number: int, record: bytes) -> str:
    """Return a record as JSON, or printable text as it is and other bytes as Python writes them."""
    if found.json:
        try:
            return json.dumps(parse_example(record), default=_text_or_hex)
        except ValueError as error:
            found.parser.error(f"record {number} is no tf.train.Example: {error}; leave --json out")
    text = record.decode(errors="replace")
    return text if text.isprintable() and text.encode() == record else repr(record)


def _text_or_hex(value: bytes) -> str:
    """Return bytes as JSON can hold them: as hexadecimal digits if they are no text."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"hex:{value.hex()}"
