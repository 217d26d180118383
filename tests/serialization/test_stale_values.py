"""Tasks have what the notebook has: after a change in place, and after Ctrl-C while a cell is on its way."""

from __future__ import annotations

import pytest

DEFINITIONS = """
import functools
class CFG:
    opts = {"lr": 0.1}
    old = 1
def count(x, seen=[]): return len(seen)
def make():
    steps = 0
    def step(by=0):
        nonlocal steps
        steps += by
        return steps
    return step
step = make()
def tagged(): return tagged.tags
tagged.tags = ["a"]
hooks = {"count": count}
"""
CHANGE = """
CFG.opts["lr"] = 0.01
del CFG.old
count.__defaults__[0].append(1)
step(5)
tagged.tags.append("b")
"""
SHOW = """
print(CFG.opts["lr"], hasattr(CFG, "old"), count(0), hooks["count"](0), hooks["count"] is count, step(), tagged())
"""


def test_what_the_notebook_changes_in_place_reaches_its_tasks(notebook):
    notebook.run(DEFINITIONS)
    first = notebook.run(f"%%tfcluster --workers 2 --view text\n{SHOW}")
    assert first.count("0.1 True 0 0 True 0 ['a']") == 2
    notebook.run("%tfcluster restart worker-1")  # the two have different parts of the variables from here on
    notebook.run(CHANGE)
    second = notebook.run(f"%%tfcluster --view text\n{SHOW}")
    assert second.count("0.01 False 1 1 True 5 ['a', 'b']") == 2


def test_ctrl_c_between_packing_and_sending_loses_no_variable(notebook, monkeypatch):
    notebook.run("%tfcluster start --workers 2")
    cluster = notebook.cluster()
    notebook.run("x, y = 0, [0]\ndef f(*items): return x, y")

    def on_tasks(text="x, y"):
        notebook.run(f"%%tfcluster --view quiet --out found\n{text}")
        return set(map(str, notebook.ns["found"].values()))

    ways = [
        lambda: notebook.run("%%tfcluster --view quiet\nx, y"),
        lambda: notebook.run("%%tfcluster --view quiet --detach\nx, y"),
        lambda: notebook.run("%%tfcluster --view quiet --push x,y\nx, y"),
        lambda: cluster.run(notebook.ns["f"]),
        lambda: cluster.submit(notebook.ns["f"]),
        lambda: cluster.map(notebook.ns["f"], [1, 2]),
        lambda: cluster.push(x=-1, y=-1),
        lambda: cluster.scatter("y", [7, 8]),
    ]
    assert on_tasks() == {"(0, [0])"}
    for number, way in enumerate(ways, 1):
        notebook.ns["x"] = number
        notebook.ns["y"].append(number)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(cluster._latest.kept_record, "begin", _press_ctrl_c)
            way()
        expected = {str((number, notebook.ns["y"]))}
        assert on_tasks() == expected, way
        assert set(map(str, cluster.run(notebook.ns["f"]).values())) == expected
        notebook.ns["x"] = number - 1  # which they had before
        assert on_tasks("x") == {str(number - 1)}


def _press_ctrl_c(job):
    raise KeyboardInterrupt


@pytest.mark.parametrize("assign", ["best = None", "for best in [None]: pass", "set_best()"])
def test_the_only_name_that_was_sent_is_the_tasks_own_when_a_cell_assigns_it(notebook, assign):
    notebook.run("best = None")
    define = "def set_best():\n    global best\n    best = None\n"
    notebook.run(f"%%tfcluster --workers 1 --view quiet\n{define}\nbest;")
    notebook.run(f"%%tfcluster --view quiet\n{assign}")
    notebook.run("best = 0.9")
    assert "own None\n" in notebook.run("%%tfcluster --view text\nprint('own', best)")
