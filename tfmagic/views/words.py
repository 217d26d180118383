"""The words and numbers of a cell and its tasks: the same on the live panel and in the saved form."""

from collections import Counter

from tfmagic.runs.cell_records import CellRecord, ErrorRecord, TaskRecord
from tfmagic.runs.doing import Doing

_SIGNS = {"done": "✓", "failed": "✕", "": "●"}


def sign_of(verdict: str) -> str:
    """Return the sign of how a cell ended; "" as a verdict while it runs."""
    return _SIGNS.get(verdict, "■")


def done_of(record: CellRecord) -> str:
    """Return how many tasks have ended the cell without a failure: "2 of 4 done"."""
    return f"{count_done(record)} of {len(record.tasks)} done"


def outcome_of(record: CellRecord) -> str:
    """Return the same, and how the cell ended where no state of a task says so: "0 of 2 done, timed out"."""
    is_said = record.verdict not in ("interrupted", "timed out")
    return done_of(record) if is_said else f"{done_of(record)}, {record.verdict}"


def summary_of(record: CellRecord) -> str:
    """Return how a cell has ended, in one line."""
    counts = [text for _, text in counts_of(record)]
    facts = ", ".join([done_of(record), *counts, duration(record.elapsed_s)])
    return f"tfmagic: cluster {record.cluster}: {facts}"


def count_done(record: CellRecord) -> int:
    return sum(task.state == Doing.DONE for task in record.tasks)


def counts_of(record: CellRecord) -> list[tuple[str, str]]:
    """Return each state but `done` with its count, problems first: ("stalled", "2 stalled")."""
    counts = Counter(task.state for task in record.tasks)
    order = list(Doing)
    known = sorted(counts, key=lambda word: order.index(Doing(word)) if word in order else len(order))
    return [(word, f"{counts[word]} {word}") for word in known if word != Doing.DONE]


def took(task: TaskRecord) -> str:
    """Return how long the task's part took, or "" while it runs."""
    return "" if task.seconds is None else duration(task.seconds)


def place_of(error: ErrorRecord) -> str:
    """Return where an error was raised, or ""."""
    return f"line {error.line} of the cell" if error.line else ""


def duration(seconds: float) -> str:
    """Return a duration as text: 0.12 s, 12.3 s, 2 min 5 s, 1 h 2 min."""
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
