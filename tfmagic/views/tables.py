"""Tables as text, and the rows of the status table: the same in a notebook and in a shell."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfmagic.system.memory import format_bytes

STATUS_HEADER = (
    "task", "state", "pid", "host", "uptime", "CPU %", "memory", "shared", "threads", "files", "does",
    "address",
)  # fmt: skip


def to_text(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in columns as text, without a line end at its end."""
    table = [header, *rows]
    widths = [max(len(str(row[i])) for row in table) for i in range(len(header))]
    lines = ("  ".join(str(c).ljust(w) for c, w in zip(row, widths, strict=True)) for row in table)
    return "\n".join(line.rstrip() for line in lines)


def status_table(
    rows: Iterable[Mapping[str, Any]], own: Iterable[Mapping[str, Any]] = ()
) -> list[tuple[str, ...]]:
    """Return a row for each task and each process of tfmagic's own.

    Args:
        rows: From `tfmagic.clusters.tools.status.status_rows`.
        own: From `tfmagic.clusters.tools.status.own_rows`.
    """
    table = [_status_row(row) for row in rows]
    for row in own:
        used = (_percent(row["cpu_percent"]), _size(row["memory_bytes"]))
        table.append((row["process"], "", str(row["pid"]), "", "", *used, "", "", "", "", ""))
    return table


def imports(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each reason for which processes have imported TensorFlow themselves."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if why := row.get("not_forked"):
            found.setdefault(why, []).append(row["task"])
    return [f"{', '.join(tasks)}: not forked, because of {why}" for why, tasks in found.items()]


def _status_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        row["task"],
        row["state"],
        str(row["pid"] or "-"),
        f"{row['host']} (cut off)" if row.get("cut_off") else row["host"] or "-",
        "-" if row["uptime_s"] is None else f"{row['uptime_s']:.0f} s",
        _percent(row["cpu_percent"]),
        _size(row["memory_bytes"]),
        _size(row["shared_bytes"]),
        str(row["threads"] or "-"),
        str(row["open_files"] or "-"),
        _what_it_does(row),
        row["address"],
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _size(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else format_bytes(size_bytes)


def _what_it_does(row: Mapping[str, Any]) -> str:
    if row["doing"] == row["state"] and row["line"] is None:
        return ""
    where = f" at line {row['line']}" if row["line"] else ""
    return f"{row['doing']}{where}{': ' if row['note'] else ''}{row['note']}"
