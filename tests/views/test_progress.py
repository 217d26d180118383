"""The line that shows the start of a cluster, in a pipe and on a real terminal."""

import os
import re
import time
from contextlib import redirect_stdout

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.supervisor.state import ClusterState, Phase, TaskState, replace
from tfmagic.views.progress import StartProgress

READY = TaskState(phase=Phase.READY, attempt=1, pid=1)
STARTING = ClusterState({TaskId("worker", i): replace(READY, phase=Phase.STARTING, pid=0) for i in range(2)})
HALF = replace(STARTING, tasks={**STARTING.tasks, TaskId("worker", 0): READY})
DONE = replace(STARTING, tasks=dict.fromkeys(STARTING.tasks, READY))


def show_start(*states, already_s=1.0):
    progress = StartProgress("default", "2 workers")
    progress._started = time.monotonic() - already_s
    for state in states:
        progress(state)
    progress.end()


def test_a_start_is_one_line_in_a_pipe(capsys):
    show_start(*[STARTING] * 50, HALF, DONE)
    assert re.fullmatch(
        r"tfmagic: cluster default \(2 workers\): 2 of 2 ready, 1\.\d s\n", capsys.readouterr().out
    )
    show_start(STARTING, HALF)  # it failed
    assert re.search(r"1 of 2 ready, 1\.\d s, starting tasks\n$", capsys.readouterr().out)
    show_start(DONE, already_s=0.0)
    assert capsys.readouterr().out == ""


def test_a_start_is_drawn_in_place_on_a_terminal():
    ours, theirs = os.openpty()
    with open(ours, "rb") as reader, open(theirs, "w") as terminal, redirect_stdout(terminal):
        show_start(STARTING, HALF, DONE)
        drawn = reader.readline().decode()
    assert drawn.count("\n") == 1 and drawn.count("\r") == 4, "the terminal adds one to the line end"
    assert "░" * 20 in drawn and "█" * 20 + "  2 of 2 ready, 1." in drawn
