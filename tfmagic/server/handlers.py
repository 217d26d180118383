"""The requests below ``/tfmagic/``, with Jupyter's own authentication and authorization.

    GET /tfmagic/runs                    the kept runs, as JSON, the latest first
    GET /tfmagic/runs/<run>/logs/<task>  a log's bytes as they are; ?tail=LINES, ?offset=BYTE, or Range

A log is served as the task wrote it, control bytes included, and always as plain text. It is sent in pieces.
A thread of asyncio's pool reads each piece, and the piece is sent before the next one is read, so neither a
long log nor a slow client costs memory or blocks the event loop.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado import web
from tornado.iostream import StreamClosedError

from tfmagic.runs.status_reader import Snapshot, newest_runs, read_snapshot
from tfmagic.server.ended_cells import CellsFile
from tfmagic.server.logs import Span, open_log, span_from_offset, span_of_range, span_of_tail

AUTH_RESOURCE = "tfmagic"
MAX_RUNS = 200
_PIECE_BYTES = 1 << 18
_TEXT = "text/plain; charset=utf-8"


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
                span: Span | None = await asyncio.to_thread(span_of_tail, fd, tail, size)
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

    async def _send(self, fd: int, span: Span | None, size: int) -> None:
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
    return {
        "run": snapshot.run,
        "cluster": snapshot.cluster,
        "shape": snapshot.shape,
        "started": snapshot.started,
        "live": snapshot.live,
        "tasks": tasks,
        "cells": cells,
    }
