"""What the tasks of a cell report beside its end: warnings of a test's body, and lines that were run."""

from msgspec import Struct, json

NAME = "testing"  # under which it travels


class SeenWarning(Struct, frozen=True):
    """A warning: the module and name of its class and of each base of it; its text, file and line."""

    classes: tuple[tuple[str, str], ...]
    text: str
    file: str
    line: int


class Ran(Struct, frozen=True):
    """The lines that a file's code has run, or with `has_arcs` the steps between lines, in pairs."""

    file: str
    lines: tuple[int, ...] = ()
    arcs: tuple[tuple[int, int], ...] = ()


class TaskReport(Struct, frozen=True, omit_defaults=True):
    """What one task reports."""

    warnings: tuple[SeenWarning, ...] = ()
    ran: tuple[Ran, ...] = ()
    has_arcs: bool = False


class Measure(Struct, frozen=True):
    """What a task is asked to measure: options of coverage.py by name."""

    options: dict[str, bool | str | list[str] | None]


encode = json.encode


def decode_report(record: bytes) -> TaskReport:
    """Return what a task has sent, empty if it has sent nothing."""
    return json.decode(record, type=TaskReport) if record else TaskReport()


def decode_measure(record: bytes) -> Measure:
    """Return what the kernel has sent with a cell."""
    return json.decode(record, type=Measure)
