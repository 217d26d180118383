"""The static form of a cell, which stays in the saved notebook: html and plain text of bounded size.

The html can be read without a script, a style sheet, a kernel, or trust in the notebook.

    CellRecord + logs + displays on disk ──→ _Part for each task ──→ fit into the limit ──→ html, text
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tfmagic.protocol.cluster_spec import parse_task
from tfmagic.protocol.comms import WIDGET_VIEW
from tfmagic.runs.cell_records import CellRecord, TaskRecord, read_displays
from tfmagic.runs.doing import Doing
from tfmagic.runs.folder import RunFolder, file_size
from tfmagic.runs.given_hints import Hint, count_hints, read_hints
from tfmagic.runs.log_reader import PREFIX_COLUMNS, prefix
from tfmagic.runs.terminal.screen import plain_text
from tfmagic.system.advice import program_name
from tfmagic.system.memory import format_bytes
from tfmagic.views import embedding, palette, static_html
from tfmagic.views.facts import attach_line
from tfmagic.views.figures import Figures
from tfmagic.views.hints import announce, hints_of
from tfmagic.views.log_items import WHOLE_BYTES, DisplayItem, GapItem, Item, RemarkItem, RowItem, read_items
from tfmagic.views.sparklines import sparkline_html
from tfmagic.views.values import Bundle, ValueRow, fold_values

LIMIT_BYTES = 200_000
_PREFIX_BYTES = PREFIX_COLUMNS + 1
_TEXT_SHARE = 0.35  # of the limit is for text/plain; the html of the same lines is longer by its tags
_DISPLAY_SHARE = 0.75  # of the html's part is for rich displays, at most
_FIGURES_SHARE = 0.25  # of the limit is for figures, at most
_MARKS_BYTES = 1700  # the html of a task beside its lines
_DISPLAY_MARKS_BYTES = 300  # the html beside a display, and the beginning of the text after it
_CURVES_SHARE = 0.05  # of the html is for the CPU of the tasks
_ERRORS_SHARE = 0.4  # of the html is for failures with tracebacks; longer tracebacks are left out
_OPEN_TASKS = 4  # up to so many tasks are open
_IN_ORDER = 8  # of more tasks, those that failed stand first
FULL_BYTES = 20_000_000  # of a cell that is shown with --full


@dataclass(frozen=True, slots=True)
class StaticForm:
    """What stays in the notebook."""

    html: str  #: With the rich displays that html can hold.
    text: str  #: The prefixed lines.
    apart: tuple[DisplayItem, ...] = ()  #: Rich displays that html cannot hold, such as plots by scripts.
    widgets: tuple[tuple[str, str], ...] = ()  #: The task and the model id of each widget.
    pictures: tuple[DisplayItem, ...] = ()  #: Those in the html, without their text.


@dataclass(slots=True)
class _Part:
    """One task's record with its items."""

    record: TaskRecord
    items: list[Item]
    values: list[Bundle]

    @property
    def lines(self) -> int:
        return _count_lines(self.items)

    @property
    def widgets(self) -> list[str]:
        """The model ids of the widgets that the task displayed."""
        bundles = [item.data for item in self.items if isinstance(item, DisplayItem)]
        views = [data.get(WIDGET_VIEW) for data in (*bundles, *(data for data, _ in self.values))]
        return list(dict.fromkeys(str(view.get("model_id")) for view in views if isinstance(view, dict)))


def render(
    record: CellRecord, run: RunFolder, *, limit_bytes: int = LIMIT_BYTES, fold_noise: bool = True
) -> StaticForm:
    """Return the static form of a cell, from what is on disk: html and text of at most `limit_bytes`.

    With `fold_noise` TensorFlow's start-up lines are put into a <details>.
    """
    line = attach_line(run, record.prompt)
    whole_bytes = max(WHOLE_BYTES, limit_bytes // len(record.tasks))
    if not record.verdict:
        record = replace(record, notes=(*record.notes, _say_how_to_follow(run, line)))
        whole_bytes = limit_bytes // len(record.tasks)  # a draft is drawn often
    parts = [_load(record, part, run, whole_bytes) for part in record.tasks]
    widgets = tuple((part.record.task, model) for part in parts for model in part.widgets)
    folded = fold_values({part.record.task: part.values for part in parts})
    if len(parts) > _IN_ORDER:
        parts.sort(key=lambda part: part.record.error is None)
    if any(_is_consequence(part.record) for part in parts):
        parts.sort(key=lambda part: part.record.error is None or _is_consequence(part.record))
    whole = f"the whole: {run.folder}"
    if limit_bytes < FULL_BYTES:
        whole = f"{line} --full"
    below = "shown below" if record.verdict else f"{line} shows it"
    values, more = _fit_values(folded, below)
    text, lost = _text(parts, values, int(limit_bytes * _TEXT_SHARE), run)
    opened = Figures(run, record.cell, [parse_task(part.task) for part in record.tasks])
    opened.read()
    figures = opened.figures()
    text = "\n".join([text, *(figure.text for figure in figures)])
    given = read_hints(run, record.cell)
    said = "\n".join(f"tfmagic: {hint.note}" for hint in given)  # the traceback of a failure has its own
    notes = [*filter(None, [_shorten(said, limit_bytes // 10)])]
    notes += [f"tfmagic: {note}" for note in (*_left_out(lost, whole), *record.notes)]
    text = "\n".join([text, *notes]).lstrip("\n")
    apart = _fit_displays(parts, int(limit_bytes * (1 - _TEXT_SHARE) * _DISPLAY_SHARE), below)
    drawn = {figure.text: figure.draw() for figure in figures}
    charts = static_html.figures_html(drawn, int(limit_bytes * _FIGURES_SHARE))
    limit = limit_bytes - len(text.encode())
    hints = hints_of(record, given)
    page = _html(record, parts, values, limit, fold_noise, run=run, whole=whole, charts=charts, hints=hints)
    shown = [item for part in parts for item in part.items if isinstance(item, DisplayItem)]
    pictures = _pictures([*shown, *map(_display_of, values)])
    return StaticForm(page, text, (*apart, *more), widgets, tuple(pictures))


def _say_how_to_follow(run: RunFolder, line: str) -> str:
    """Return the note of a draft: a kernel that is busy with this cell cannot run the line that shows all."""
    now = f"this is the cell at {time.strftime('%H:%M:%S')}, while it runs. A terminal shows what it writes"
    return f"{now}:  {program_name()} logs {run} --follow  When it has ended, this shows all:  {line}"


def _load(record: CellRecord, part: TaskRecord, run: RunFolder, whole_bytes: int) -> _Part:
    task = parse_task(part.task)
    end = part.end if part.end is not None else file_size(run.log_path(task))
    shown = deque(read_displays(run, task, record.cell))
    counts = bool(record.verdict)  # a draft is drawn often
    items, values = read_items(
        run.log_path(task), part.start, end, shown, whole_bytes=whole_bytes, counts_lines=counts
    )
    displays = (item for item in items if isinstance(item, DisplayItem) and WIDGET_VIEW in item.data)
    closed = {item.key for item in displays if not item.data.get("text/plain")}
    return _Part(part, [item for item in items if getattr(item, "key", None) not in closed], values)


# ---- fitting ------------------------------------------------------------------------------------


def _fit_displays(parts: Sequence[_Part], room_bytes: int, below: str) -> list[DisplayItem]:
    """Replace displays that html cannot hold, that are equal to one before, or too large, by remarks.

    Equal displays are frequent, since all tasks draw the same curve. Return those that html cannot hold.
    """
    apart: list[DisplayItem] = []
    seen: dict[str, str] = {}
    for part in parts:
        for place, item in enumerate(part.items):
            if not isinstance(item, DisplayItem):
                continue
            name = embedding.name_of(item.data)
            made = embedding.as_html(item.data, item.metadata)
            size = len((made or "").encode())
            if made is None:
                apart.append(item)
                remark = f"[{name}: {below}]"
            elif (first := seen.get(made)) and WIDGET_VIEW not in item.data:
                remark = f"[{name}: equal to that of {first}]"
            elif size > room_bytes:
                remark = (
                    f"[{name} of {format_bytes(size)}: too large for a saved cell; "
                    "%tfcluster attach --full shows it]"
                )
            else:
                room_bytes -= size + _DISPLAY_MARKS_BYTES
                seen[made] = part.record.task
                continue
            part.items[place] = RemarkItem(remark)
    return apart


def _display_of(row: ValueRow) -> DisplayItem:
    return DisplayItem(row.data, row.metadata, f"{row.tasks[0]}:value:{row.place}")


def _fit_values(rows: Sequence[ValueRow], below: str) -> tuple[list[ValueRow], list[DisplayItem]]:
    """Return the rows, with a remark on each value that html cannot hold, and these values as displays."""
    kept, apart = list(rows), []
    for place, row in enumerate(rows):
        if embedding.as_html(row.data, row.metadata) is None:
            apart.append(_display_of(row))
            remark = f"{row.text}\n[{embedding.name_of(row.data)}: {below}]".lstrip("\n")
            kept[place] = replace(row, data={"text/plain": remark})
    return kept, apart


def _pictures(items: Iterable[DisplayItem]) -> Iterator[DisplayItem]:
    """Yield the displays of the html that are pictures and nothing else."""
    for item in items:
        data = {kind: value for kind, value in item.data.items() if kind.startswith("image/")}
        if data and not set(item.data) - {*data, "text/plain"}:
            yield replace(item, data=data)


def _shares(sizes: Sequence[int], room: int) -> list[int]:
    """Divide `room`: a part that needs less than an equal share leaves the rest to the others."""
    shares = [0] * len(sizes)
    left = sorted(range(len(sizes)), key=lambda i: sizes[i])
    while left:
        equal = max(room, 0) // len(left)
        smallest = left.pop(0)
        shares[smallest] = min(sizes[smallest], equal)
        room -= shares[smallest]
    return shares


def _cut(items: Sequence[Item], room: int, size_of: Callable[[Item], int]) -> list[Item]:
    """Return the items that fit: a fifth of the room for the beginning, the rest for the end, a gap."""
    sizes = [size_of(item) for item in items]
    if sum(sizes) <= room:
        return list(items)
    head, used = 0, 0
    gaps = [place for place, item in enumerate(items) if isinstance(item, GapItem)]  # in the middle, as one
    first, last = (gaps[0], gaps[-1]) if gaps else (len(items), -1)
    while head < first and used + sizes[head] <= room // 5:
        used += sizes[head]
        head += 1
    tail = len(items)
    while tail > max(head, last + 1) and used + sizes[tail - 1] <= room:
        tail -= 1
        used += sizes[tail]
    middle = items[head:tail]
    lost = GapItem(sum(map(_bytes_of, middle)), _count_lines(middle))
    kept: list[Item] = [item for item in middle if isinstance(item, DisplayItem)]
    return [*items[:head], lost, *kept, *items[tail:]]


def _fit(
    parts: Sequence[_Part], room: int, size_of: Callable[[Item], int]
) -> tuple[dict[str, list[Item]], GapItem]:
    """Return the items of each task that fit, and all gaps as one."""
    shares = _shares([sum(map(size_of, part.items)) for part in parts], room)
    pairs = zip(parts, shares, strict=True)
    kept = {part.record.task: _cut(part.items, share, size_of) for part, share in pairs}
    gaps = [i for items in kept.values() for i in items if isinstance(i, GapItem) and i.size_bytes]
    return kept, GapItem(sum(gap.size_bytes for gap in gaps), _count_lines(gaps))


def _left_out(gap: GapItem, whole: str) -> list[str]:
    return [f"{_amount(gap)} left out here:  {whole}"] if gap.size_bytes else []


def _amount(gap: GapItem) -> str:
    lines = f"{gap.lines:,} {'line' if gap.lines == 1 else 'lines'}, " if gap.lines else ""
    return f"{lines}{format_bytes(gap.size_bytes)},"


def _count_lines(items: Iterable[Item]) -> int:
    """Return the number of lines; 0 where those of a gap were not counted."""
    counts = [i.lines if isinstance(i, GapItem) else 1 for i in items if isinstance(i, GapItem | RowItem)]
    return sum(counts) if all(counts) else 0


def _bytes_of(item: Item) -> int:
    match item:
        case RowItem(row):
            return len(plain_text(row).encode("utf-8", "replace")) + 1
        case GapItem(size_bytes=size):
            return size
        case _:
            return 0


# ---- text ---------------------------------------------------------------------------------------


def _text(
    parts: Sequence[_Part], values: Sequence[ValueRow], room: int, run: RunFolder
) -> tuple[str, GapItem]:
    """Return the prefixed lines, and what they leave out."""
    lines: list[str] = []
    kept, lost = _fit(parts, room, _text_size)
    for name, items in kept.items():
        texts = (text for item in items for text in _line_of(item, name, run).split("\n"))
        lines += [f"{prefix(name)}{text}".rstrip() for text in texts]
    for row in values:
        for name in row.tasks:
            lines += [f"{prefix(name)}{line}" for line in row.text[:_MARKS_BYTES].splitlines()]
    return _shorten("\n".join(lines), room), lost


def _shorten(text: str, room: int) -> str:
    """Return whole lines up to `room` bytes: a thousand tasks with a line each are too many."""
    data = text.encode("utf-8", "replace")
    if len(data) <= room + _MARKS_BYTES:
        return text
    kept = data[:room].rpartition(b"\n")[0].decode("utf-8", "replace")
    return f"{kept}\n[{format_bytes(len(data) - len(kept))} of text left out here]"


def _text_size(item: Item) -> int:
    match item:
        case RowItem():
            return _PREFIX_BYTES + _bytes_of(item)
        case DisplayItem(data):
            return len(str(data.get("text/plain", ""))) + 2 * _PREFIX_BYTES
        case _:
            return 150


def _line_of(item: Item, task: str, run: RunFolder) -> str:
    match item:
        case RowItem(row):
            return plain_text(row)
        case GapItem():
            return _gap_text(item, task, run)
        case DisplayItem(data):
            return str(data.get("text/plain") or f"[{embedding.name_of(data)}]")
        case RemarkItem(text):
            return text


def _gap_text(gap: GapItem, task: str, run: RunFolder) -> str:
    return f"[{_amount(gap)} left out here; the whole: {run.log_path(parse_task(task))}]"


# ---- html ---------------------------------------------------------------------------------------


def _html(
    record: CellRecord,
    parts: Sequence[_Part],
    values: Sequence[ValueRow],
    limit: int,
    fold_noise: bool,
    *,
    run: RunFolder,
    whole: str,
    charts: str,
    hints: Sequence[Hint],
) -> str:
    bars = static_html.hints_html(hints, limit // 3, whole)
    said, ended = announce(record, hints) if record.verdict else "", record.started + record.elapsed_s
    room = limit - _MARKS_BYTES - sum(len(part.encode("utf-8", "replace")) for part in (charts, bars, said))
    table = static_html.values_html(values, room // 4)
    parts, left_out = _choose_parts(parts, limit // 3 // _MARKS_BYTES)
    room -= _MARKS_BYTES * len(parts) + len(table.encode())
    room -= _shorten_errors(parts, int((limit - _MARKS_BYTES) * _ERRORS_SHARE))
    room -= sum(static_html.item_size(i) for part in parts for i in part.items if isinstance(i, DisplayItem))
    share = int(limit * _CURVES_SHARE) // max(len(parts), 1)
    curves = [sparkline_html(p.record.cpu, palette.tone_of(p.record.state).mid, share) for p in parts]
    room -= sum(map(len, curves))
    body = ""
    fitting, lost = _fit(parts, room, _row_size)
    for part, curve, (name, kept) in zip(parts, curves, fitting.items(), strict=True):
        is_short = len(record.tasks) <= _OPEN_TASKS and bool(part.items)
        is_open = part.record.error is not None or name in record.open or is_short
        shown = [RemarkItem(_gap_text(i, name, run)) if isinstance(i, GapItem) else i for i in kept]
        look = {"is_open": is_open, "fold_noise": fold_noise}
        body += static_html.task_html(part.record, shown, part.lines, **look, curve=curve)
    body += static_html.more_html(left_out, whole) if left_out else ""
    logs = static_html.logs_html(run) if parts else ""
    head = static_html.head_html(record, run, _left_out(lost, whole), count_hints(hints)) + bars
    page, name = head + body + charts + table + logs, f"{run}/{record.cell}"
    return static_html.page_html(page, name, not record.verdict, said, ended)


def _choose_parts(parts: Sequence[_Part], count: int) -> tuple[list[_Part], int]:
    """Return the tasks that get a panel, failed ones preferred, and the number of those left out.

    A task without output, failure or note needs none: the header counts it.
    """
    shown = [part for part in parts if part.items or part.record.error or not _is_plain(part.record)]
    chosen = sorted(shown, key=lambda part: part.record.error is None)[: max(count, 1)]
    return [part for part in shown if part in chosen], len(shown) - len(chosen)


def _shorten_errors(parts: Sequence[_Part], room: int) -> int:
    """Leave out tracebacks where they do not fit; return the size of the failures in bytes."""
    for part in parts:
        error = part.record.error
        size = len(static_html.error_html(error).encode("utf-8", "replace"))
        if error is not None and size > max(room, 0):
            part.record = replace(part.record, error=replace(error, text="", message=error.message[:200]))
        room -= size
    return sum(len(static_html.error_html(p.record.error).encode("utf-8", "replace")) for p in parts)


def _row_size(item: Item) -> int:
    """Return the size of an item's html, 0 for a display, which has room of its own."""
    return 0 if isinstance(item, DisplayItem) else static_html.item_size(item)


def _is_plain(task: TaskRecord) -> bool:
    return task.state in (Doing.DONE, Doing.READY) and not task.note


def _is_consequence(task: TaskRecord) -> bool:
    return task.error is not None and not task.error.root
