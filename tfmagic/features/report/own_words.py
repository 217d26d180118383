"""Keep of a text what tfmagic itself can have written: words of its source, names of tasks, numbers.

All other words become ``…``: paths, names, addresses, messages of other programs. So a text of ours that
names something of the user's can go into a report, and no form of a secret has to be recognized.
"""

import functools
import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tfmagic.runs.folder import is_task_name
from tfmagic.system.own_code import OUR_FOLDER

T = TypeVar("T")
_AROUND = "\"'`.,:;()[]{}<>*?!"
_NUMBER = re.compile(r"v?[+-]?\d{1,7}(?:[.,]\d{1,6}){0,2}(?:rc\d|\.dev\d{1,8})?(?:%|s|ms|MiB|GiB)?|host-\d+")


def own_words(text: str) -> str:
    """Return the text with ``…`` for each word that is none of ours."""
    lines = (" ".join(map(_own, line.split(" "))) for line in text.splitlines())
    return re.sub(r"…(?: …)+", "…", "\n".join(lines))


def own_values(value: T) -> T:
    """Return a dataclass or struct of ours with such texts."""
    kind: Any = type(value)
    return msgspec.convert(_walk(msgspec.to_builtins(value)), kind, strict=False)


def _walk(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _walk(inner) for key, inner in content.items()}
    if isinstance(content, list | tuple):
        return [_walk(inner) for inner in content]
    return own_words(content) if isinstance(content, str) else content


def _own(word: str) -> str:
    core = word.strip(_AROUND)
    is_ours = not core or core in _vocabulary() or is_task_name(core) or _NUMBER.fullmatch(core)
    return word if is_ours else "…"


@functools.cache
def _vocabulary() -> frozenset[str]:
    files = (path for end in ("py", "md") for path in Path(OUR_FOLDER).rglob(f"*.{end}"))
    return frozenset(word.strip(_AROUND) for path in files for word in path.read_text("utf-8").split())
