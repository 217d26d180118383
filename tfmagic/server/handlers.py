"""The requests below ``/tfmagic/``, with Jupyter's own authentication and authorization.

    GET /tfmagic/runs                    the kept runs, as JSON, the latest first
    GET /tfmagic/runs/<run>/logs/<task>  a log's bytes as they are; ?tail=LINES, ?offset=BYTE, or Range

A log is served as the task wrote it, control bytes included, and always as plain text. It is sent in pieces.
A thread of asyncio's pool reads each piece, and the piece is sent before the next one is read, so neither a
long log nor a slow client costs memory or blocks the event loop.

Names come from the network. A run must be listed in the folder, a task's name must be one that tfmagic
writes, and only a regular file in exactly that place is opened: no names are joined to a path, no link is
followed.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado import web
from tornado.iostream import StreamClosedError

from tfmagic.runs.ended_cells import CellsFile
from tfmagic.runs.folder import is_task_name
from tfmagic.runs.status_reader import Snapshot, newest_runs, read_snapshot

AUTH_RESOURCE = "tfmagic"
MAX_RUNS = 200
_PIECE_BYTES = 1 << 18
_TEXT = "text/plain; charset=utf-8"
_BLOCK_BYTES = 1 << 16
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.ENXIO)
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


def add_handlers(web_app: Any, base: Path) -> None:
    """Add the addresses below ``/tfmagic/`` to the server."""
    prefix = url_path_join(web_app.settings["base_url"], "tfmagic", "runs")
    log = prefix + "/([^/]+)/logs/([^/]+)"
    web_app.add_handlers(".*$", [(prefix, RunsHandler, {"base": base}), (log, LogHandler, {"base": base})])


class _Reader(APIHandler):
    auth_resource = AUTH_RESOURCE
    _track_activity = False  # so that an idle server is culled although a page polls a log

    def initialize(self, base: Path) -> None:
        self.base = base


class RunsHandler(_Reader):
    """The kept runs."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.set_header("Cache-Control", "no-store")
        self.finish(json.dumps(await asyncio.to_thread(list_runs, self.base)))


class LogHandler(_Reader):
    """One task's log, finished or growing."""

    @web.authenticated
    @authorized
    async def get(self, run: str, task: str) -> None:
        tail, offset = self._count("tail"), self._count("offset")
        if tail is not None and offset is not None:
            raise web.HTTPError(400, "give tail or offset, not both")
        try:
            fd = await asyncio.to_thread(open_log, self.base, run, task)
        except LookupError:
            raise web.HTTPError(404, "there is no such log") from None
        try:
            size = os.fstat(fd).st_size
            if tail is not None:
                span: ByteRange | None = await asyncio.to_thread(span_of_tail, fd, tail, size)
            elif offset is not None:
                span = span_from_offset(offset, size)
            else:
                span = span_of_range(self.request.headers.get("Range", ""), size)
            await self._send(fd, span, size)
        except StreamClosedError:
            pass  # the client has disconnected
        finally:
            os.close(fd)

    def _count(self, name: str) -> int | None:
        text = self.get_query_argument(name, None)
        if text is None:
            return None
        if not re.fullmatch(r"[0-9]{1,18}", text):
            raise web.HTTPError(400, f"{name} is a number that is not negative")
        return int(text)

    async def _send(self, fd: int, span: ByteRange | None, size: int) -> None:
        self.set_header("Accept-Ranges", "bytes")
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        if span is None:
            self.set_status(416)
            self.set_header("Content-Range", f"bytes */{size}")
            self.finish(set_content_type=_TEXT)
            return
        if span.partial:
            self.set_status(206)
            self.set_header("Content-Range", f"bytes {span.start}-{span.end - 1}/{size}")
        self.set_header("Content-Type", _TEXT)
        self.set_header("Content-Length", str(span.end - span.start))
        self.set_header("Tfmagic-Next-Offset", str(span.end))
        at = span.start
        while at < span.end:
            piece = await asyncio.to_thread(os.pread, fd, min(_PIECE_BYTES, span.end - at), at)
            if not piece:  # truncated meanwhile; the client sees less than the promised Content-Length
                raise web.HTTPError(500, "the log became shorter")
            at += len(piece)
            self.write(piece)
            await self.flush()
        self.finish(set_content_type=_TEXT)


def list_runs(base: Path) -> list[dict[str, object]]:
    """Return the kept runs, the latest first."""
    found = ((folder, read_snapshot(folder)) for folder in newest_runs(base, MAX_RUNS))
    return [_describe(folder, snapshot) for folder, snapshot in found if snapshot is not None]


def _describe(folder: Path, snapshot: Snapshot) -> dict[str, object]:
    cells = snapshot.cells
    if cells is None:  # the run has no status
        cells = {"ended": CellsFile(folder / "cells.jsonl").count_all()}
    tasks = [
        # no task outlives its kernel, whatever status the kernel wrote last
        {"task": t.task, "state": "dead" if snapshot.died else t.state, **t.texts, **t.numbers}
        for t in snapshot.tasks
    ]
    facts = {name: getattr(snapshot, name) for name in ("run", "cluster", "shape", "started", "live", "host")}
    return {**facts, "tasks": tasks, "cells": cells}


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes `start` to `end` of a log."""

    start: int
    end: int
    partial: bool = False  # a Range header asked for them: the answer is 206


def open_log(base: Path, run: str, task: str) -> int:
    """Return a file descriptor of the task's log.

    Raises:
        LookupError: There is no such run or log.
    """
    if not is_task_name(task):
        raise LookupError(task)
    folders: list[int] = []
    try:
        if run not in os.listdir(base / "runs"):  # no separator, no "..", no NUL
            raise LookupError(run)
        folders.append(os.open(base / "runs", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        folders.append(os.open(run, flags | os.O_DIRECTORY, dir_fd=folders[-1]))
        os.stat("run.json", dir_fd=folders[-1])
        fd = os.open(f"{task}.log", flags, dir_fd=folders[-1])
    except OSError as error:
        if error.errno in _NOT_THERE:
            raise LookupError(f"{run}/{task}") from error
        raise
    finally:
        for folder in folders:
            os.close(folder)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise LookupError("not a file")
    return fd


def span_from_offset(offset: int, size: int) -> ByteRange:
    """Return the bytes from `offset` on; none if the log is shorter."""
    return ByteRange(min(offset, size), size)


def span_of_range(header: str, size: int) -> ByteRange | None:
    """Return the bytes that a Range header asks for; None if the log has none of them.

    A header that cannot be parsed, or asks for several ranges, gets the whole log, as HTTP allows.
    """
    match = _RANGE.fullmatch(header.strip())
    if not match or not (match[1] or match[2]):
        return ByteRange(0, size)
    if not match[1]:  # the last N bytes
        start, end = max(size - int(match[2]), 0), size
    else:
        start, end = int(match[1]), min(int(match[2]) + 1, size) if match[2] else size
        if match[2] and int(match[2]) < start:
            return ByteRange(0, size)
    return ByteRange(start, end, partial=True) if start < end else None


def span_of_tail(fd: int, lines: int, size: int) -> ByteRange:
    """Return the last lines. A line end at the end of the log begins no further line.

    Reads the log backwards, in constant memory. Must not be called on an event loop.
    """
    if not lines or not size:
        return ByteRange(size, size)
    wanted = lines + (os.pread(fd, 1, size - 1) == b"\n")
    end = size
    while end:
        start = max(end - _BLOCK_BYTES, 0)
        block = os.pread(fd, end - start, start)
        ends = block.count(b"\n")
        if ends >= wanted:
            at = len(block)
            for _ in range(wanted):
                at = block.rfind(b"\n", 0, at)
            return ByteRange(start + at + 1, size)
        wanted -= ends
        end = start
    return ByteRange(0, size)
