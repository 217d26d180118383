"""How changes of a path and of filters are put into a process that has changed its own."""

import json
import subprocess
import sys
import warnings

import pytest

from tfmagic.serialization import notebook_settings


@pytest.mark.parametrize(
    ("own", "before", "now", "after"),
    [
        ("abc", "abc", "xabc", "xabc"),
        ("abc", "abc", "axbc", "axbc"),
        ("abc", "abc", "abcx", "abcx"),
        ("abc", "abc", "ac", "ac"),
        ("oabc", "abc", "xabc", "xoabc"),  # the task has put its own first
        ("abco", "abc", "abcx", "abcxo"),
        ("abco", "abc", "bc", "bco"),
        ("abcx", "abc", "abcx", "abcx"),  # the task has it already
        ("bc", "abc", "abcx", "bcx"),  # the task has removed a
    ],
)
def test_a_path_takes_the_changes_and_keeps_what_is_the_tasks_own(own, before, now, after, monkeypatch):
    monkeypatch.setattr(sys, "path", list(own))
    notebook_settings.make({"sys.path": {"sys.path": (tuple(before), tuple(now))}})
    found = [entry for entry in sys.path if entry != "a" or "a" in own]
    assert "".join(found) == after


def entry(action, category=UserWarning):
    return (action, None, category, None, 0)


@pytest.mark.parametrize(
    ("before", "now", "of_task", "after"),
    [
        ("d", "id", "d", "id"),
        ("id", "d", "id", "d"),
        ("d", "id", "ed", "ied"),  # what is new stands before the task's own
        ("id", "id", "eid", "eid"),
        ("di", "id", "edi", "ied"),  # set again, an old one is the first
        ("id", "aid", "eid", "aeid"),
        ("aid", "id", "aeid", "eid"),
        ("id", "ida", "eid", "eida"),  # appended, as libraries do
        ("d", "ida", "ed", "ieda"),
    ],
)
def test_filters_take_the_changes_and_keep_the_tasks_own(before, now, of_task, after):
    of = {name[0]: entry(name) for name in ("default", "ignore", "error", "always")}
    with warnings.catch_warnings():
        warnings.filters[:] = [of[name] for name in of_task]
        changed = tuple(of[n] for n in before), tuple(of[n] for n in now)
        notebook_settings.make({"warnings": {"filters": changed}})
        assert "".join(action[0] for action, *_ in warnings.filters) == after


def test_what_fails_is_named_once_and_the_rest_is_made(capfd):
    ours = sys.getrecursionlimit()
    found = {"decimal": {"prec": (28, -1)}, "recursion": {"depth": (ours, ours + 1)}}
    for _ in range(2):
        notebook_settings.make(found)
    assert sys.getrecursionlimit() == ours + 1
    sys.setrecursionlimit(ours)
    assert capfd.readouterr().err.count("decimal (prec)") == 1


SEEN = """
import decimal, json, logging, sys, warnings
import matplotlib, pandas
from tfmagic.serialization import notebook_settings

def register():
    pandas._config.config.register_option("display.of_mine", 1)

def look(change):
    global before
    change()
    now = notebook_settings.read(before)
    found = notebook_settings.changes(before, now)
    before = now
    print(json.dumps({row: sorted(names) for row, names in found.items()}))

traps = decimal.getcontext().traps
before = notebook_settings.read({})
look(lambda: None)
look(lambda: pandas.set_option("display.max_rows", 7))
look(lambda: pandas.set_option("display.max_rows", 60))
look(register)
look(lambda: pandas.set_option("display.of_mine", 2))
look(lambda: matplotlib.rcParams.update({"lines.linewidth": 7.0}))
look(lambda: matplotlib.rcParams.update({"lines.linewidth": 1.5}))
look(lambda: matplotlib.rcParams.update({"axes.facecolor": "red", "font.family": ["serif"]}))
look(matplotlib.rcdefaults)
look(lambda: warnings.simplefilter("error", FutureWarning))
look(lambda: warnings.filters.pop(0))
look(lambda: logging.getLogger("mine").setLevel("INFO"))
look(lambda: traps.update({decimal.Inexact: True}))
look(lambda: traps.update({decimal.Inexact: False}))
"""


def test_each_change_is_seen_once_and_so_is_the_way_back():
    done = subprocess.run([sys.executable, "-c", SEEN], capture_output=True, text=True, check=True)
    rows, linewidth = {"pandas": ["display.max_rows"]}, {"matplotlib": ["lines.linewidth"]}
    figures = {"matplotlib": ["axes.facecolor", "font.family"]}
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        *({}, rows, rows, {"pandas": ["display.of_mine"]}, {"pandas": ["display.of_mine"]}),
        *(linewidth, linewidth, figures, figures),
        *({"warnings": ["filters"]}, {"warnings": ["filters"]}, {"logging": ["mine"]}),
        *({"decimal": ["traps"]}, {"decimal": ["traps"]}),
    ]
