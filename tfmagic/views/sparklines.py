"""The CPU that tasks used in the last minute of a cell: sampled while a panel shows it, then a curve."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise

_SAMPLES = 60  # as many as the panel draws
_EACH_S = 1.0
_LEAST_SAMPLES = 2
_LEAST_WIDTH = 12  # in samples: a short cell has a short curve at the right, as in the panel
_HEIGHT = 14
_POINT_BYTES = 5
_MARKS_BYTES = 450


class CpuSamples:
    """Keeps what each task used, once a second."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[int]] = {}
        self._due = 0.0

    def add(self, percents: Mapping[str, float | None]) -> None:
        """Note what tasks use now, in per cent of a core, if a second has passed since the last time."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + _EACH_S
        for name, percent in percents.items():
            if percent is not None:
                self._samples.setdefault(name, deque(maxlen=_SAMPLES)).append(round(percent))

    def of(self, name: str) -> tuple[int, ...]:
        """Return the samples of a task, the last one last."""
        return tuple(self._samples.get(name, ()))


def sparkline_html(samples: Sequence[int], colour: str, room: int) -> str:
    """Return the curve as an image of at most `room` bytes, with the last samples that fit; "" if none do."""
    samples = samples[-max((room - _MARKS_BYTES) // _POINT_BYTES, 0) :] if room > _MARKS_BYTES else ()
    if len(samples) < _LEAST_SAMPLES:
        return ""
    top = max(100, *samples)
    heights = [_HEIGHT - round(_HEIGHT * sample / top) for sample in samples]
    width = max(len(samples) - 1, _LEAST_WIDTH)
    steps = ",".join(f"1{after - before:+d}" for before, after in pairwise(heights))
    path = f"M{width - len(samples) + 1},{heights[0] + 1}l{steps}".replace("+", ",")
    image = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='60' height='16' viewBox='0,0,{width},16' "
        f"preserveAspectRatio='none'><path d='{path}' fill='none' stroke='{colour}' stroke-width='1.25' "
        "vector-effect='non-scaling-stroke'/></svg>"
    )
    for mark, code in (("<", "%3C"), (">", "%3E"), ("#", "%23"), (" ", "%20")):
        image = image.replace(mark, code)
    title = f"CPU in its last {len(samples)} s: up to {max(samples)} %"
    marks = f'class="tfm-spark" alt="{title}" title="{title}"'
    return f'<img {marks} style="vertical-align:middle;margin-right:6px" src="data:image/svg+xml,{image}">'
