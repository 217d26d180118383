"""Read and set the options of pandas in its own table: `get_option` for each would take a millisecond.

A row of `notebook_settings`, for processes that have imported pandas.
"""

import functools
import importlib
import sys
import warnings
from collections.abc import Mapping
from typing import Any


def read() -> dict[str, Any]:
    """Return all options by name."""
    registered = sys.modules["pandas._config.config"]._registered_options
    return {name: options[last] for name, options, last in _places_of(len(registered))}


@functools.lru_cache(1)
def _places_of(number: int) -> list[tuple[str, dict[str, Any], str]]:
    """Return where each of so many options is kept: to find that takes much longer than to read them."""
    found = []
    queue = [("", sys.modules["pandas._config.config"]._global_config)]
    for prefix, options in queue:
        for name, value in options.items():
            if type(value) is dict:
                queue.append((f"{prefix}{name}.", value))
            else:
                found.append((prefix + name, options, name))
    return found


def first() -> dict[str, Any]:
    """Return the options with which pandas begins."""
    config = sys.modules["pandas._config.config"]
    return {name: option.defval for name, option in config._registered_options.items()}


def set_all(options: Mapping[str, Any]) -> None:
    """Set options by name."""
    pandas = importlib.import_module("pandas")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of options that are deprecated: the notebook has shown them
        for name, value in options.items():
            pandas.set_option(name, value)
