"""A pattern that tries all ways is ended, and other threads go on meanwhile."""

import threading

import pytest
from conftest import alive

from tfmagic.runs import line_search
from tfmagic.runs.line_search import LineSearch, SlowPattern


def test_lines_that_match_are_found_in_pieces():
    lines = [f"line {n} é \udc80" + "x" * 9000 for n in range(100)]
    with LineSearch(r"line \d*7 é") as search:
        assert [line[:7].strip() for line in search.matching(lines)] == [
            f"line {n}7".replace(" 07", " 7") for n in ("0", *range(1, 10))
        ]
        assert list(search.matching([])) == []
        process = search._process
    assert alive([process.pid]) == set()


def test_a_pattern_that_tries_all_ways_is_ended_and_holds_nobody(monkeypatch):
    monkeypatch.setattr(line_search, "LIMIT_S", 0.3)
    seen = []

    def search():
        with LineSearch("(a+)+$") as found:
            try:
                list(found.matching(["short", "a" * 60 + "b"]))
            except SlowPattern as error:
                seen.append(str(error))

    thread = threading.Thread(target=search)
    thread.start()
    turns = 0
    while thread.is_alive():  # with `re` in this process, the first turn would not end
        turns += 1
        thread.join(0.01)
    assert turns > 2 and "took more than 0.3 s, and was ended: a repeat in a repeat" in seen[0]


@pytest.mark.parametrize("pattern", ["(", "(?:" * 5000, "x" * 10_001])
def test_what_is_no_pattern_is_said_in_words(pattern):
    with pytest.raises(ValueError):
        line_search.check(pattern)
