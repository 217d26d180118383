"""Draw the pictures of the course: `python scripts/course_pictures.py` writes them beside the lessons.

A test draws them again, and compares what they show with what the lessons have printed.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path

from tfmagic.runs.doing import Doing
from tfmagic.views.palette import AMBER, BLUE, FAINT, GREEN, GREY, LINE, TEAL, Tone, tone_of
from tfmagic.views.scene import MARGIN, MONO, Box, Scene

FOLDER = Path(__file__).resolve().parents[1] / "notebooks" / "course"

Parts = list[list[int]]  # the numbers that each worker has, part by part


def ring_steps(start: Parts) -> list[tuple[Parts, set[tuple[int, int]]]]:
    """Return the state before a ring all-reduce and after each step, with the parts that have arrived."""
    tasks, now, steps = len(start), [list(row) for row in start], []
    steps.append(([list(row) for row in now], set()))
    for step in range(2 * (tasks - 1)):
        adds = step < tasks - 1
        part_of = [(task - step if adds else task + 1 - (step - tasks + 1)) % tasks for task in range(tasks)]
        sent = [now[task][part] for task, part in enumerate(part_of)]
        for task, part in enumerate(part_of):
            neighbour = (task + 1) % tasks
            now[neighbour][part] = sent[task] + (now[neighbour][part] if adds else 0)
        arrived = {((task + 1) % tasks, part) for task, part in enumerate(part_of)}
        steps.append(([list(row) for row in now], arrived))
    return steps


def ring() -> Scene:
    """Draw an all-reduce of three workers in a ring."""
    start = [[1, 2, 3], [10, 20, 30], [100, 200, 300]]
    sums = [sum(column) for column in zip(*start, strict=True)]
    left, top, wide, high, cell, gap = 84, 84, 34, 26, 54, 44
    column = 3 * wide + gap
    scene = Scene("An all-reduce in a ring", float(left + 5 * column - gap + MARGIN))
    scene.heading("An all-reduce in a ring: three workers, each with a gradient of three parts")
    for number, (values, arrived) in enumerate(ring_steps(start)):
        x = left + number * column
        scene.text(x, top - 12, f"step {number}" if number else "before", font_weight="bold")
        for task, row in enumerate(values):
            for part, value in enumerate(row):
                tone = GREEN if value == sums[part] else BLUE if (task, part) in arrived else GREY
                box = Box(x + part * wide, top + task * cell, wide - 2, high)
                scene.rect(box, fill=tone.tint, stroke=tone.mid)
                scene.text(box.middle[0], box.y + 17, str(value), font_family=MONO, text_anchor="middle")
            if number < 4:
                aim = (task + 1) % 3
                begin, end = top + task * cell + high / 2, top + aim * cell + high / 2 + 4 * (aim == 0)
                scene.arrow(f"M{x + 3 * wide + 2} {begin} L{x + column - 4} {end}", TEAL)
    for task in range(3):
        scene.text(12, top + task * cell + 17, f"worker-{task}", font_size=12, font_family=MONO)
    for first, words in ((1, "steps 1 and 2: add what comes"), (3, "steps 3 and 4: hand the sums on")):
        x = left + first * column
        scene.line(f"M{x} {top - 30} H{x + 2 * column - gap - 4}", TEAL.ink, stroke_width=2)
        scene.text(x, top - 36, words, fill=TEAL.ink)
    legend = [
        (_mark(scene, GREY), "not complete"),
        (_mark(scene, BLUE), "has just been added up"),
        (_mark(scene, GREEN), "sum over all workers"),
    ]
    note = (
        "Each worker sends one third of the gradient to its neighbour in each of the four steps, "
        "4/3 of it in all: 2 × (N − 1) / N for N workers."
    )
    scene.end(top + 3 * cell + 4, legend, note)
    return scene


ROWS = range(12)
BY_ROW = [[row for row in ROWS if row % 4 // 2 == task] for task in range(2)]  # half of each batch of four
BY_FILE = [[row for row in ROWS if row % 2 == task] for task in range(2)]  # a file for each worker
POLICIES = {
    "FILE": (BY_FILE, BY_FILE),
    "DATA": ([list(ROWS)] * 2, BY_ROW),
    "OFF": ([list(ROWS)] * 2, [list(ROWS)] * 2),
}
"""For each policy: the rows that each of two workers reads, and those that it uses."""


def rows() -> Scene:
    """Draw who reads and who uses which rows."""
    left, top, side, task_high = 170, 66, 28, 34
    scene = Scene("Who reads and who uses which rows", float(left + 12 * side + 150))
    scene.heading("Two workers and twelve rows: who reads them, who uses them")
    for row in ROWS:
        scene.text(left + (row + 0.5) * side, top - 10, str(row), fill=FAINT, text_anchor="middle")
    y = top
    for policy, (read, used) in POLICIES.items():
        scene.text(MARGIN, y + 16, policy, font_size=13, font_weight="bold", font_family=MONO)
        for task in range(2):
            scene.text(88, y + 16, f"worker-{task}", font_size=12, font_family=MONO)
            for row in read[task]:
                box = Box(left + row * side + 2, y, side - 4, side - 6)
                scene.rect(box, **(_USED if row in used[task] else _ONLY_READ))
            words = f"reads {len(read[task])}, uses {len(used[task])}"
            scene.text(left + 12 * side + 14, y + 16, words, fill=FAINT)
            y += task_high
        y += 12
    legend = [
        (functools.partial(scene.rect, Box(0, -6, 18, 12), **_USED), "read and used"),
        (functools.partial(scene.rect, Box(0, -6, 18, 12), **_ONLY_READ), "read, and thrown away"),
    ]
    scene.end(y + 10, legend)
    return scene


_USED = {"fill": BLUE.mid, "stroke": BLUE.ink}
_ONLY_READ = {"fill": GREY.tint, "stroke": GREY.mid, "stroke_dasharray": "3 2"}


def life() -> Scene:
    """Draw the life of a worker: what it does, and what is left when its process ends."""
    left, top, bar = 150, 84, 22
    spans = [
        (Doing.STARTING, 60), (Doing.READY, 60), (Doing.RUNNING, 90), (Doing.WAITING, 80),
        (Doing.RUNNING, 60), (Doing.DEAD, 90), (Doing.STARTING, 60), (Doing.READY, 60), (Doing.RUNNING, 90),
    ]  # fmt: skip
    ends = [left]
    for _, width in spans:
        ends.append(ends[-1] + width)
    scene = Scene("The life of a worker", float(ends[-1] + MARGIN))
    scene.heading("The life of worker-1: two processes, one after the other")
    for word, number in (("start", 0), ("a cell", 2), ("kill, or a crash", 5), ("revive", 6), ("a cell", 8)):
        x = ends[number]
        scene.line(f"M{x} {top - 24} V{top + 4 * 34}", LINE)
        scene.text(x + 3, top - 14, word, fill=FAINT)
    scene.text(12, top + 15, "worker-1", font_size=12, font_family=MONO)
    for number, (doing, width) in enumerate(spans):
        tone, box = tone_of(doing), Box(ends[number], top, width, bar)
        hatched = doing in (Doing.WAITING, Doing.DEAD)
        scene.rect(box, fill=scene.hatch(tone) if hatched else tone.tint, stroke=GREY.mid)
        scene.text(box.x + 5, top + 15, str(doing.value), fill=tone.ink)
    kept = (
        ("its process", [(0, 5, "pid 4242", GREY), (6, 9, "pid 5151", GREY)]),
        ("its variables", [(2, 5, "x = 100", AMBER), (8, 9, "none yet", AMBER)]),
        ("log, checkpoints", [(0, 9, "stay on disk", GREEN)]),
    )
    for lane, (name, bars) in enumerate(kept, 1):
        y = top + lane * 34
        scene.text(12, y + 15, name)
        for begin, end, words, tone in bars:
            scene.rect(Box(ends[begin], y, ends[end] - ends[begin], bar), fill=tone.tint, stroke=tone.mid)
            scene.text(ends[begin] + 5, y + 15, words, fill=tone.ink)
    scene.end(top + 4 * 34 + 6, [], "Other workers keep their process and their variables all this time.")
    return scene


def overlap() -> Scene:
    """Draw a step that sends when all is computed, and one that sends while it computes."""
    left, top, lane, bar = 236, 60, 30, 22
    computes, sends = 120, 153  # pixels, as 40 to 51 ms
    scene = Scene("Sending after computing, and while computing", float(left + 2 * (computes + sends) + 28))
    scene.heading("A step whose gradient has two halves")
    y = top
    for words, begin in (("computed, then sent", 2 * computes), ("sent when ready", computes)):
        scene.text(MARGIN, y + 15, words, font_weight="bold")
        both = (("computing", 0, computes, BLUE, y), ("sending", begin, sends, TEAL, y + lane))
        for does, start, width, tone, at in both:
            scene.text(left - 8, at + 15, does, fill=FAINT, text_anchor="end")
            for number, half in enumerate(("last layers", "first layers")):
                box = Box(left + start + number * width, at, width - 2, bar)
                scene.rect(box, fill=tone.tint, stroke=tone.mid)
                scene.text(box.x + 6, at + 15, half, fill=tone.ink)
        y += 2 * lane + 18
    scene.end(y + 4, [], "Time runs to the right. The gradients of the last layers are computed first.")
    return scene


def _mark(scene: Scene, tone: Tone) -> Callable[[], object]:
    return functools.partial(scene.rect, Box(0, -6, 18, 12), fill=tone.tint, stroke=tone.mid)


PICTURES = {"ring": ring, "rows": rows, "life": life, "overlap": overlap}


def main() -> int:
    """Write each picture. Return 0."""
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
