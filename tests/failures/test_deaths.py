"""The description of how a process ended."""

import re
import signal
from pathlib import Path

import pytest

from tfmagic.failures import deaths, stacks
from tfmagic.failures.deaths import describe_end, died_error
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import Cause, TaskExited, TaskLost
from tfmagic.runs.folder import RunFolder, attempt_mark
from tfmagic.system import memory
from tfmagic.system.own_code import OUR_FOLDER

A = TaskId("worker", 0)
ALL_SIGNALS = [s for s in signal.Signals if s not in (signal.SIGRTMIN, signal.SIGRTMAX)]


@pytest.mark.parametrize("number", ALL_SIGNALS, ids=lambda s: s.name)
def test_every_signal_is_named_with_a_cause(number):
    text = describe_end(TaskExited(A, 1, -number), memory.count_oom_kills())
    assert text.startswith(f"was ended by {number.name} (") and len(text) > len(number.name) + 18


def test_an_end_that_was_asked_for_is_no_killing_from_outside():
    ends = {
        cause: describe_end(TaskExited(A, 1, -9, cause=cause), memory.count_oom_kills()) for cause in Cause
    }
    assert ends[Cause.USER] == "was killed by you (SIGKILL)"
    assert len(set(ends.values())) == len(Cause)
    assert [cause for cause, text in ends.items() if "from outside" in text] == [Cause.NONE]


def test_a_signal_without_a_name_is_described_by_its_number():
    assert "signal 40" in describe_end(TaskExited(A, 1, -40))


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "os._exit"), (1, "exited with code 1"), (139, "SIGSEGV")],
)
def test_exit_codes_are_described(code, words):
    assert words in describe_end(TaskExited(A, 1, code))


def test_an_exit_code_beyond_the_signals_is_that_of_the_program():
    assert describe_end(TaskExited(A, 1, 128 + 64)).endswith("SIGRTMAX of a program that it ran")
    assert describe_end(TaskExited(A, 1, 255)) == "exited with code 255"  # sys.exit(-1)


def test_a_lost_task_is_described_with_its_reason():
    assert describe_end(TaskLost(A, 1, "its launcher was killed")) == "was lost: its launcher was killed"


def test_memory_that_ran_out_is_recognised_by_the_kernels_count(monkeypatch):
    monkeypatch.setattr(memory, "count_oom_kills", lambda: 5)
    text = describe_end(TaskExited(A, 1, -9, 3 << 30), 4)
    assert "out of memory: the kernel's OOM killer" in text and "its peak was 3.0 GiB of the" in text


def test_a_kill_near_the_limit_is_probably_out_of_memory(monkeypatch):
    monkeypatch.setattr(memory, "limit_bytes", lambda: 4 << 30)
    kills = memory.count_oom_kills()
    assert "probably out of memory" in describe_end(TaskExited(A, 1, -9, 3 << 30), kills)
    assert "killed from outside" in describe_end(TaskExited(A, 1, -9, 1 << 30), kills)


@pytest.mark.parametrize(
    ("line", "folder", "files"),
    [
        (
            "0::/user/app",
            "user/app",
            {"memory.max": "600000000", "memory.events": "low 0\noom 3\noom_kill 2\n"},
        ),
        (
            "4:memory:/docker/abc",
            "memory/docker/abc",
            {"memory.limit_in_bytes": "600000000", "memory.oom_control": "oom_kill_disable 0\noom_kill 2\n"},
        ),
    ],
    ids=["version 2", "version 1"],
)
def test_the_limits_and_counts_of_control_groups_are_read(tmp_path, monkeypatch, line, folder, files):
    place = tmp_path / "cgroup" / folder
    place.mkdir(parents=True)
    for name, text in files.items():
        (place / name).write_text(text)
    (tmp_path / "vmstat").write_text("nr_free_pages 5\noom_kill 7\n")
    own = memory.read_text
    monkeypatch.setattr(
        memory, "read_text", lambda path: line if path == Path("/proc/self/cgroup") else own(path)
    )
    assert memory.limit_bytes(tmp_path / "cgroup") == 600_000_000
    assert memory.count_oom_kills(tmp_path / "cgroup", tmp_path / "vmstat") == 9


def test_the_limit_of_this_machine_is_a_limit():
    assert 0 < memory.limit_bytes() < 1 << 50
    assert memory.count_oom_kills() >= 0


DUMP = """{mark}
Fatal Python error: Segmentation fault

Thread 0x00007f (most recent call first):
  File "/x/threading.py", line 3 in wait

Current thread 0x00007e (most recent call first):
  File "/x/ctypes/__init__.py", line 9 in string_at
  File "<tfcluster-1>", line 3 in f
  File "{ours}/task/shell.py", line 5 in _execute

Extension modules: numpy (total: 1)
"""


def test_a_crash_is_described_with_its_place_and_the_users_frames(tmp_path):
    run = RunFolder(tmp_path)
    ours = OUR_FOLDER.rstrip("/")
    run.stacks_path(A).write_text(DUMP.format(mark=attempt_mark(2), ours=ours))
    run.log_path(A).write_text("".join(f"line {i}\n" for i in range(30)))
    error = died_error(A, TaskExited(A, 2, -11), run, None)
    assert "It was at line 3 of the cell" in str(error)
    assert "string_at" in str(error) and "shell.py" not in str(error) and "threading" not in str(error)
    assert "    line 29" in str(error) and "line 9\n" not in str(error)
    assert re.search(r"tfcluster.restart\W+worker-0", str(error))


def test_the_last_lines_are_those_of_the_process_that_died(tmp_path):
    run = RunFolder(tmp_path)
    run.log_path(A).write_text("before\nof the dead one\nof the next one\n")
    error = died_error(
        A, TaskExited(A, 1, -9, log_end=len("before\nof the dead one\n")), run, None, len("before\n")
    )
    assert "Its last line of output:\n    of the dead one\nGo on" in str(error)


def test_a_crash_of_an_earlier_process_is_not_reported_again(tmp_path):
    run = RunFolder(tmp_path)
    run.stacks_path(A).write_text(DUMP.format(mark=attempt_mark(1), ours="") + attempt_mark(2) + "\n")
    assert not stacks.fatal_stack(run, A, 2)


def test_the_line_of_a_cell_that_is_known_is_shown(monkeypatch):
    monkeypatch.setattr(deaths.linecache, "getline", lambda file, line: "  x = f(y)\n")
    assert deaths.place_in_cell("<tfcluster-1>", 3) == "at line 3 of the cell:  x = f(y)"
    assert deaths.place_in_cell("<tfcluster-1>", 0) == ""


def test_a_task_in_a_barrier_is_shown_at_its_line_of_the_cell():
    ours = OUR_FOLDER.rstrip("/")
    text = (
        "Current thread 0x1 (most recent call first):\n"
        f'  File "{ours}/task/waiting.py", line 5 in wait\n  File "{ours}/task/program.py", line 6 in <lambda>\n'
        f'  File "{ours}/context.py", line 7 in barrier\n  File "<tfcluster-1>", line 3 in <module>\n'
        f'  File "{ours}/task/shell.py", line 9 in _execute\n  File "<string>", line 1 in <module>\n'
    )
    assert stacks.group_stacks({"worker-0": text}) == 'worker-0:\n  File "<tfcluster-1>", line 3 in <module>'


def test_a_task_in_a_function_without_python_code_is_not_said_to_be_between_cells():
    ours = OUR_FOLDER.rstrip("/")
    text = (
        f'Current thread 0x1 (most recent call first):\n  File "{ours}/task/program.py", line 396 in _call\n'
    )
    assert stacks.group_stacks({"worker-0": text}).endswith(
        "(between cells, or in a call without Python code)"
    )
