"""`Comparison`: the results of ``%%tfcluster --compare``, the same cell at several sizes."""

from __future__ import annotations

import html
from typing import Any

from tfmagic.clusters.results import TaskResults, table_bundle


class Comparison(dict[int, TaskResults[Any]]):
    """Results by number of workers; displayed as a table with a chart of the seconds."""

    @property
    def seconds(self) -> dict[int, float]:
        """The time of the cell at each size: that of the slowest task."""
        return {size: max(results.seconds.values()) for size, results in self.items()}

    def __repr__(self) -> str:
        return self._repr_mimebundle_()["text/plain"]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        seconds = self.seconds
        first, most = next(iter(seconds.values())), max(seconds.values())
        rows = []
        for size, taken in seconds.items():
            bar = "█" * max(round(30 * taken / most), 1)
            rows.append((str(size), f"{taken:.2f}", f"{first / taken:.2f} ×", bar))
        bundle = table_bundle(("workers", "seconds", "speed-up", ""), rows)
        bars = "".join(
            f'<div style="display:flex;align-items:center;margin:2px 0">'
            f'<span style="width:90px">{size} worker{"s" if size > 1 else ""}</span>'
            f'<span style="display:inline-block;height:14px;width:{max(300 * taken / most, 2):.0f}px;'
            f'background-color:#1a73e8"></span><span style="margin-left:6px">{html.escape(f"{taken:.2f} s")}'
            "</span></div>"
            for size, taken in seconds.items()
        )
        table = table_bundle(("workers", "seconds", "speed-up"), [row[:3] for row in rows])["text/html"]
        return {**bundle, "text/html": table + bars}
