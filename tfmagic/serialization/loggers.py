"""Pickle a logger for a task: its name, and the settings of it and of its parents.

Python pickles a logger by its name alone, so that a task would drop the lines that the notebook shows. Level,
`propagate` and `disabled` travel, and handlers that write to stdout, to stderr or, as a `FileHandler`, to the
end of a file, with their formatters, and the filters of both. Other handlers stay here, and each is named
once: they hold sockets of this process, or do what only one process can do, such as rotating a file. So does
a filter that cannot travel, with its handler: a handler must not show what its filter hides.

On the task, a setting changes when the notebook has changed it, so that what a cell sets there stays. A
logger that has handlers of its own there gets none.
"""

import fcntl
import logging
import os
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tfmagic.serialization import process_bound
from tfmagic.system import notices

# of libraries that have their own on each task, or belong to the notebook alone
_SILENT = ("absl", "_pytest", "IPython", "ipykernel", "tfmagic", "traitlets")
_OF_FRONT_ENDS = (*_SILENT, "IPKernelApp", "comm", "dill", "jupyter_client", "parso", "tornado")


@dataclass(frozen=True, slots=True)
class _Handler:
    level: int
    formatter: logging.Formatter | None
    filters: tuple[Any, ...]
    stream: str = ""
    path: str = ""
    encoding: str | None = None
    errors: str | None = None


@dataclass(frozen=True, slots=True)
class _Settings:
    name: str
    level: int
    propagate: bool
    disabled: bool
    handlers: tuple[_Handler, ...] | None = ()  # None: as they are, and so the filters
    filters: tuple[Any, ...] = ()


_named: weakref.WeakSet[Any] = weakref.WeakSet()  # handlers and filters that stay here
_unopened: set[str] = set()  # in a task, files that were named
_brought: dict[str, tuple[_Settings, list[logging.Handler]]] = {}  # in a task, by logger; with its filters


def reduce(logger: logging.Logger, problem_of: Callable[[object], str]) -> tuple[Any, ...] | None:
    """Return how `pickle` finds a logger; None if it has no name here.

    Args:
        logger: The logger.
        problem_of: Returns why a value cannot be pickled, or "".
    """
    if logging.getLogger(logger.name) is not logger:
        return None
    settings = []
    found: logging.Logger | None = logger
    while found is not None:
        travelling = _travelling(found, problem_of)
        settings.append(_Settings(found.name, found.level, found.propagate, found.disabled, *travelling))
        found = found.parent
    return _set, (settings,)


def _travelling(
    logger: logging.Logger, problem_of: Callable[[object], str]
) -> tuple[tuple[_Handler, ...], tuple[Any, ...]]:
    """Return the handlers and the filters of a logger that tasks get."""
    handlers = (_settings_of(logger, handler, problem_of) for handler in logger.handlers)
    filters = (each for each in logger.filters if _travels(logger, each, problem_of))
    return tuple(filter(None, handlers)), tuple(filters)


def _travels(logger: logging.Logger, each: Any, problem_of: Callable[[object], str]) -> bool:
    """Check whether a filter of a logger can travel; name it once if it cannot."""
    if _is_of_library(each) or not (problem := problem_of(each)):
        return not _is_of_library(each)
    if each not in _named:
        _named.add(each)
        name = getattr(each, "__name__", type(each).__name__)
        notices.say(
            f"tfmagic: the filter {name} of the logger {logger.name!r} stays here, and tasks log without "
            f"it: it cannot travel ({problem}). Add a filter in the cell"
        )
    return False


def settings_of(name: str, problem_of: Callable[[object], str]) -> _Settings:
    """Return what `bring` takes: the settings of one logger, with handlers for the root logger alone.

    Those of another logger travel with it, since a library that a task imports adds its own.
    """
    logger = logging.getLogger(name)
    travelling = _travelling(logger, problem_of) if logger is logging.root else (None, ())
    return _Settings(name, logger.level, logger.propagate, logger.disabled, *travelling)


def is_of_front_end(name: str) -> bool:
    """Check whether a logger belongs to the notebook's process alone."""
    return name.partition(".")[0] in _OF_FRONT_ENDS


def _settings_of(
    logger: logging.Logger, handler: logging.Handler, problem_of: Callable[[object], str]
) -> _Handler | None:
    """Return what makes an equal handler on a task; if none can be made, name it once."""
    stream = process_bound.stream_name(getattr(handler, "stream", None))
    parts = {"formatter": handler.formatter, "filters": (filters := tuple(handler.filters))}
    problems = {name: problem for name, part in parts.items() if (problem := problem_of(part))}
    why = next((f"its {name} cannot travel ({problem})" for name, problem in problems.items()), "")
    if type(handler) is logging.StreamHandler and stream and not why:
        return _Handler(handler.level, handler.formatter, filters, stream)
    if isinstance(handler, logging.FileHandler) and not why and not (why := _why_not_shared(handler)):
        place = (os.path.abspath(handler.baseFilename), handler.encoding, handler.errors)
        return _Handler(handler.level, handler.formatter, filters, "", *place)
    if handler not in _named and not (_is_of_library(handler) if problems else _is_silent(handler)):
        _named.add(handler)
        notices.say(
            f"tfmagic: the {type(handler).__name__} of the logger {logger.name!r} stays here, and gets no "
            f"lines of tasks: {why or 'no equal one can be made there'}. Add a handler in the cell"
        )
    # without any handler, Python would show what the filters of this one hide
    return _Handler(handler.level, None, (_hide,), "stderr") if "filters" in problems else None


def _hide(record: logging.LogRecord) -> bool:
    return False


def _why_not_shared(handler: logging.FileHandler) -> str:
    """Let an open file take each line at its end, where tasks write too. Return why it cannot, or ""."""
    if type(handler) is not logging.FileHandler:
        return "only one process can rotate or replace its file"
    if handler.stream is None:
        return "its first line would empty the file; log one here first" if handler.mode == "w" else ""
    try:
        fd = handler.stream.fileno()
    except (OSError, ValueError):
        return "its stream is no open file"
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    return ""


def _is_silent(handler: logging.Handler) -> bool:
    is_stale = getattr(getattr(handler, "stream", None), "name", "") in (
        "<stdout>",
        "<stderr>",
        "stdout",
        "stderr",
    )
    return is_stale or _is_of_library(handler) or isinstance(handler, logging.NullHandler)


def _is_of_library(part: Any) -> bool:
    home = getattr(part, "__module__", None) or type(part).__module__
    return str(home).partition(".")[0] in _SILENT


def bring(settings: list[_Settings]) -> None:
    """Change loggers of a task as the notebook has changed its own."""
    _set(settings)


def _set(settings: list[_Settings]) -> logging.Logger:
    for new in reversed(settings):
        logger = logging.getLogger(new.name)
        default = _Settings(new.name, logging.WARNING if logger is logging.root else 0, True, False)
        before, made = _brought.get(new.name, (default, []))
        if new.level != before.level:
            logger.setLevel(new.level)
        if new.propagate != before.propagate:
            logger.propagate = new.propagate
        if new.disabled != before.disabled:
            logger.disabled = new.disabled
        if new.handlers is None:
            new = replace(new, handlers=before.handlers, filters=before.filters)
        else:
            for handler in made:
                logger.removeHandler(handler)
                if isinstance(handler, logging.FileHandler):
                    handler.close()
            for each in before.filters:
                logger.removeFilter(each)
            for each in new.filters:
                logger.addFilter(each)
            made = [] if logger.handlers else list(filter(None, map(_make_handler, new.handlers)))
            for handler in made:
                logger.addHandler(handler)
        _brought[new.name] = new, made
    return logger


def _make_handler(settings: _Handler) -> logging.Handler | None:
    """Return a new handler; None, and say so once, where its file cannot be opened."""
    handler: logging.Handler
    try:
        handler = (
            logging.FileHandler(settings.path, "a", settings.encoding, errors=settings.errors)
            if settings.path
            else logging.StreamHandler(getattr(sys, settings.stream))
        )
    except OSError as error:
        if settings.path not in _unopened:
            _unopened.add(settings.path)
            notices.tell(f"tfmagic: no lines are logged to {settings.path} from here ({error.strerror})")
        return None
    handler.setLevel(settings.level)
    handler.setFormatter(settings.formatter)
    for each in settings.filters:
        handler.addFilter(each)
    return handler
