"""Let an `assert` on a task explain a comparison as in pytest's process: what differs, and where.

    the test module is rewritten on the task, too (`tfmagic.protocol.module_origins`): an assert that fails
    asks `util._reprcompare` ──→ `explain`: pytest's own code, with a configuration that has no file

Pytest makes that configuration for the process of a session alone. Here it is made when the first assert
fails, which takes a tenth of a second. Where pytest's parts are not as we know them, an assert shows its
values only.
"""

import contextlib
import functools
import os
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any


@contextlib.contextmanager
def explained(verbosity: int) -> Iterator[None]:
    """Explain the asserts of the block, as long as `verbosity` of pytest's process says."""
    try:
        from _pytest.assertion import util
    except ImportError:  # a host without pytest
        yield
        return
    before = util._reprcompare, util._config
    short: Any = SimpleNamespace(get_verbosity=lambda kind=None: verbosity)
    util._reprcompare, util._config = functools.partial(_explain, verbosity), short
    try:
        yield
    finally:
        util._reprcompare, util._config = before


def _explain(verbosity: int, op: str, left: object, right: object) -> str | None:
    try:
        return _explainer(verbosity)(op, left, right)
    except Exception:  # of private parts, or of the user's own comparison
        return None


@functools.cache
def _explainer(verbosity: int) -> Any:
    """Return the function that pytest would set for a test."""
    from _pytest import assertion
    from _pytest.assertion import util

    item: Any = SimpleNamespace(config=(config := _make_config(verbosity)), ihook=config.hook)
    before = util._reprcompare, util._assertion_pass, util._config
    around = assertion.pytest_runtest_protocol(item)
    try:
        next(around)
        return util._reprcompare
    finally:
        around.close()
        util._reprcompare, util._assertion_pass, util._config = before


def _make_config(verbosity: int) -> Any:
    import pytest
    from _pytest.config import get_config

    words = ["-c", os.devnull, "--rootdir", os.sep, "--noconftest", "--assert=plain", "-p", "no:terminal"]
    config: Any = get_config()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        config.parse(words, addopts=False)
    config.option.assertmode = "rewrite"  # the message is formatted as that of a rewritten assert
    config.option.verbose = verbosity
    plain = SimpleNamespace(_highlight=lambda source, lexer="python": source)
    config.pluginmanager.register(SimpleNamespace(_tw=plain), "terminalreporter")
    return config
