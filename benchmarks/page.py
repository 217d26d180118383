"""The live panel in a real JupyterLab, in a real browser, while 4 tasks print as fast as they can.

The figures are the bytes that reach the browser, the longest time without a reaction of the page (between two
frames), the time from the cell's end until the page shows the end of the log, the memory of the kernel, and
the rate of the tasks compared with 4 plain scripts that print the same. All lines must be on disk.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import output
from benchmarks.report import Row, Sizes, Target

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

_LOAD = "%load_ext tfmagic\n%tfcluster start --workers 4"
_FLOOD = "%%tfcluster --out printed\nfor _ in range({lines}):\n    print({line!r})\nprint('the end')"
_MEMORY = """import psutil
before = psutil.Process().memory_info().rss
open('/proc/self/clear_refs', 'w').write('5')"""
_CHECK = (
    "peak = next(int(l.split()[1]) * 1024 for l in open('/proc/self/status') if l.startswith('VmHWM'))\n"
    "run = get_ipython().magics_manager.registry['TFClusterMagics'].notebook.clusters['default'].run_folder\n"
    "sizes = [(run.folder / f'worker-{n}.log').stat().st_size for n in range(4)]\n"
    "print(peak - before, max(printed.seconds.values()), min(sizes))"
)
_WATCH = """() => {
  window.gaps = []; let last = performance.now();
  const look = now => { window.gaps.push(now - last); last = now; requestAnimationFrame(look); };
  requestAnimationFrame(look);
  const panel = window.jupyterapp.shell.currentWidget.content.widgets[2];
  const ended = () => /\\[\\d+\\]/.test(panel.inputArea.promptNode.innerText);
  const output = panel.outputArea.node;
  const shown = () => output.innerText.includes('the end') && !output.querySelector('.tfm-root');
  window.times = {};
  const timer = setInterval(() => {
    if (ended() && !window.times.ended) window.times.ended = performance.now();
    if (shown() && !window.times.shown) window.times.shown = performance.now();
    if (window.times.ended && window.times.shown) clearInterval(timer);
  }, 20);
}"""


def measure(sizes: Sizes) -> list[Row]:
    from pages import ARGUMENTS, NotebookPage, Server, chromium, write_notebook
    from playwright.sync_api import sync_playwright

    lines = sizes.page_lines
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = Server(Path(folder))
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS, headless=True)
        try:
            flood = _FLOOD.format(lines=lines, line=output.LINE)
            write_notebook(Path(folder) / "flood.ipynb", _LOAD, _MEMORY, flood, _CHECK)
            page = browser.new_page(viewport={"width": 1280, "height": 1000})
            found = _watch(NotebookPage(page, server, "flood.ipynb"))
        finally:
            browser.close()
            server.close()
    assert found["disk_bytes"] >= lines * (len(output.LINE) + 1), "a line is missing on disk"
    plain = output.plain_rate(lines // 4)
    rate = output.TASKS * lines / found["seconds"]
    what = f"panel, 4 x {lines / 1e6:g} M lines: "
    return [
        Row(what + "to the browser", found["bytes"] / 1e6, "MB", target=Target("value", "<=", 5)),
        Row(what + "page without reaction", found["gap_s"], "s", target=Target("value", "<=", 0.3)),
        Row(
            what + "end of the log, after the cell's", found["late_s"], "s", target=Target("value", "<=", 0.5)
        ),
        Row(
            what + "memory of the kernel",
            found["growth_bytes"] / 2**20,
            "MiB",
            target=Target("value", "<=", 50),
        ),
        Row("printing, panel", rate, "lines/s", plain, "4 plain scripts", output.RATE_TARGET),
    ]


def _watch(book: Any) -> dict[str, float]:
    """Run the flood and return its figures."""
    book.run(0, 120)
    book.run(1)
    book.page.evaluate(_WATCH)
    book.received_bytes = 0
    book.run(2, 600)
    book.page.wait_for_function("() => window.times.shown && window.times.ended", timeout=60_000)
    times = book.page.evaluate("() => ({...window.times, gap: Math.max(...window.gaps)})")
    received = book.received_bytes
    book.run(3)
    growth, seconds, disk = book.output(3).inner_text().split()
    return {
        "bytes": received,
        "gap_s": times["gap"] / 1000,
        "late_s": max(times["shown"] - times["ended"], 0) / 1000,
        "growth_bytes": float(growth),
        "seconds": float(seconds),
        "disk_bytes": float(disk),
    }
