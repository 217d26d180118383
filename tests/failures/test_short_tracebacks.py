"""A failure as text: the outcome first, and never more than its limit."""

import pytest

from tfmagic.failures import ipython_tracebacks
from tfmagic.failures.ipython_tracebacks import Explanation, TracebackRenderer, shorten

RED = "\x1b[31m{}\x1b[39m"


def size(lines):
    return sum(len(line.encode()) + 1 for line in lines)


def test_what_fits_stays_as_it_is_and_colours_do_not_count():
    lines = [RED.format("x" * 9)] * 10
    assert shorten(lines, 100) == lines


@pytest.mark.parametrize(
    "lines", [[f"frame {n}" for n in range(500)], ["x" * 9000], ["a", "ü" * 9000, "b"] * 9]
)
def test_what_is_too_long_keeps_its_beginning_and_its_end(lines):
    short = shorten(lines, 1000)
    assert size(short) <= 1000 and short[0][:7] == lines[0][:7] and short[-1][-7:] == lines[-1][-7:]


def test_the_outcome_stands_first_and_the_way_to_more_last(monkeypatch):
    monkeypatch.setattr(TracebackRenderer, "__call__", lambda self: ["frame\nline"] * 900)
    around = Explanation("worker-1 failed", ["the last lines:", "    a", "more:  errors"])
    shown = TracebackRenderer(ValueError(), lambda: around).in_short(4000)
    assert (shown[0], shown[-1]) == ("worker-1 failed", "more:  errors")
    assert 3500 < size(shown) <= 4000 and any("lines left out" in line for line in shown)


def test_an_explanation_that_fails_costs_no_traceback(monkeypatch):
    monkeypatch.setattr(TracebackRenderer, "__call__", lambda self: ["ValueError: bad"])
    assert TracebackRenderer(ValueError(), lambda: 1 / 0).in_short(4000) == ["ValueError: bad"]
    assert ipython_tracebacks.shorten([], 10) == []
