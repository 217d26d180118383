"""Pickle a logger for a task: its name, and the settings of it and of its parents.

Python pickles a logger by its name alone, so that a task would drop the lines that the notebook shows. Level,
`propagate` and `disabled` travel, and handlers that write to stdout or stderr, with their formatters. Other
handlers hold files and sockets of this process and stay here.

On the task, a setting changes when the notebook has changed it, so that what a cell sets there stays. A
logger that has handlers of its own there gets none.
"""

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tfmagic.serialization import process_bound


@dataclass(frozen=True, slots=True)
class _Settings:
    name: str
    level: int
    propagate: bool
    disabled: bool
    handlers: tuple[tuple[str, int, logging.Formatter | None], ...] = ()  # stream, level, formatter


_brought: dict[str, tuple[_Settings, list[logging.Handler]]] = {}  # in a task, by logger


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
        handlers = tuple(
            (process_bound.stream_name(handler.stream), handler.level, handler.formatter)
            for handler in found.handlers
            if type(handler) is logging.StreamHandler
            and process_bound.stream_name(handler.stream)
            and not problem_of(handler.formatter)
        )
        settings.append(_Settings(found.name, found.level, found.propagate, found.disabled, handlers))
        found = found.parent
    return _set, (settings,)


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
        for handler in made:
            logger.removeHandler(handler)
        made = [] if logger.handlers else [_make_handler(*handler) for handler in new.handlers]
        for handler in made:
            logger.addHandler(handler)
        _brought[new.name] = new, made
    return logger


def _make_handler(stream: str, level: int, formatter: logging.Formatter | None) -> logging.Handler:
    handler = logging.StreamHandler(getattr(sys, stream))
    handler.setLevel(level)
    handler.setFormatter(formatter)
    return handler
