"""What agents and scripts read: JSON with schemas, cells of one line, and a wait that comes back in time."""

import json
import os
import re
import shlex
import sys
import traceback

import msgspec
import pexpect
import pytest
from conftest import wait_until

from tfmagic.runs import schemas

LOOP = "import os, time, tfmagic\nwhile not os.path.exists({!r}):\n    time.sleep(0.005)\n"


def read(text, kind):
    """Return the last line as a report: nothing in it is unknown to its schema."""
    line = text.splitlines()[-1]
    found = msgspec.json.decode(line, type=kind)
    assert schemas.as_json(found) == line
    return found


def test_a_cell_that_runs_is_described_and_waited_for_without_an_error(notebook, tmp_path):
    flag = tmp_path / "go"
    notebook.run(
        f"%%tfcluster --workers 2 --detach\ntrack = 5\nimport tfmagic\ntfmagic.track(step=340, loss=0.21)\n"
        f"print('so far')\n{LOOP.format(str(flag))}"
    )
    wait_until(lambda: all(row["line"] in (8, 9) for row in notebook.cluster().status()))
    text = notebook.run("%tfcluster wait --timeout 0.5")
    assert "still runs: step 340, loss 0.21 (worker-0), line" in text
    assert "[worker-1]:    so far" in text
    found = read(notebook.run("%tfcluster wait --timeout 0.01 --json"), schemas.WaitReport)
    (cell,) = found.cells
    assert (found.state, cell.state, found.run) == ("running", "running", str(notebook.cluster().run_folder))
    assert [(t.task, t.tracked, t.last_line) for t in cell.tasks] == [
        (f"worker-{n}", {"loss": (340, 0.21)}, "so far") for n in (0, 1)
    ]
    rows = read(notebook.run("%tfcluster status --json"), list[schemas.TaskReport])
    assert [row.tracked["loss"] for row in rows] == [(340, 0.21)] * 2
    assert all(row.state == "running" and row.pid and row.log.endswith(f"{row.task}.log") for row in rows)
    flag.touch()
    done = read(notebook.run("%tfcluster wait --json"), schemas.WaitReport)
    assert (done.state, [c.state for c in done.cells]) == ("done", ["done"])
    notebook.run("%%tfcluster --detach --on worker-0\ntfmagic.track(step=1, loss=0.5)")
    assert re.search(
        r"done on worker-0 after .* s: step 1, loss 0.5 \(worker-0\)", notebook.run("%tfcluster wait")
    )


def test_failures_are_json_with_the_root_cause_first(notebook, capsys):
    with pytest.raises(ValueError, match="bad batch 3"):
        notebook.run(
            "%%tfcluster --workers 2\nimport tfmagic, os\nif tfmagic.current_task().index:\n"
            "    raise ValueError('bad batch 3')\ntfmagic.barrier()"
        )
    errors = read(notebook.run("%tfcluster errors --json"), list[schemas.ErrorReport])
    assert [(e.task, e.type, e.root, e.cell_line) for e in errors] == [
        ("worker-1", "ValueError", True, 4),
        ("worker-0", "BrokenBarrierError", False, 5),
    ]
    assert "[worker-1]" not in notebook.run("%tfcluster errors worker-1 --json")
    with pytest.raises(Exception, match="worker-0"):
        notebook.run("%%tfcluster --on worker-0 --detach\nimport os\nos.kill(os.getpid(), 11)")
        notebook.run("%tfcluster wait --json")
    (death,) = read(notebook.run("%tfcluster errors --json"), list[schemas.ErrorReport])
    assert (death.type, death.signal, death.exit_code, death.cell_line) == ("TaskDied", "SIGSEGV", None, 3)


def test_logs_are_read_in_pieces(notebook):
    notebook.run("%%tfcluster --workers 1\nfor n in range(100): print('line', n)")
    (first,) = read(notebook.run("%tfcluster logs --json --max-bytes 50"), list[schemas.LogReport])
    assert first.text.startswith("line 0\n") and first.next <= 50 < first.size
    (rest,) = read(notebook.run(f"%tfcluster logs --json --since {first.next}"), list[schemas.LogReport])
    assert first.text + rest.text == "".join(f"line {n}\n" for n in range(100))
    text = notebook.run(f"%tfcluster logs --since {first.next} --max-bytes 20")
    assert "[worker-0]:    line" in text and "go on with  %tfcluster logs worker-0 --since" in text


def test_findings_of_the_doctor_are_json(notebook):
    found = read(notebook.run("%tfcluster doctor --json"), list[schemas.FindingReport])
    assert {finding.severity for finding in found} <= {"fine", "note", "trouble"} and len(found) > 5


def test_a_cell_of_one_line(notebook):
    def run(line):
        return notebook.shell.run_cell(line).raise_error()

    notebook.ns["x"] = "of the notebook"
    run("%tfcluster run --workers 2 x = {'a': 5}; y = 6")
    run("%tfcluster run --on worker-::2 --out found f'{y} {x}'")
    assert dict(notebook.ns["found"]) == {"worker-0": "6 {'a': 5}"}
    with pytest.raises(ZeroDivisionError) as caught:
        run("a = 1\n%tfcluster run 1 / 0")
    assert traceback.extract_tb(caught.value.__traceback__)[-1].lineno == 2
    run("made = 'by hand'; get_ipython().run_line_magic('tfcluster', 'run --out made y')")  # not rewritten
    assert dict(notebook.ns["made"]) == {"worker-0": 6, "worker-1": 6}
    assert "the code is missing" in str(notebook.shell.run_cell("%tfcluster run").error_in_exec)


def test_a_detached_cell_without_a_panel_can_be_shown_again_while_it_runs(notebook, tmp_path):
    flag = tmp_path / "go"
    notebook.run(f"%%tfcluster --workers 1 --detach\nprint('so far')\n{LOOP.format(str(flag))}")
    wait_until(lambda: notebook.cluster().status()[0]["line"] in (4, 5))
    shown = notebook.shell.run_cell("%tfcluster attach", store_history=False)
    assert shown.success
    flag.touch()
    notebook.run("%tfcluster wait")
    assert json.loads(notebook.run("%tfcluster errors --json").splitlines()[-1]) == []


def test_the_end_of_a_detached_cell_without_a_panel_is_told_by_the_next_wait(kernel):
    kernel.text("%%tfcluster --workers 1 --view text --detach --out found\nprint('over')\n7")
    kernel.text("import asyncio\nwhile not found.done: await asyncio.sleep(0.01)")
    assert kernel.text("print(dict(found))") == "{'worker-0': 7}\n"
    assert re.search(r"cell \[\d+\] done on worker-0 after", kernel.text("%tfcluster wait"))
    assert "no detached cell is left" in kernel.text("%tfcluster wait")


def test_a_failure_where_no_page_shows_it_is_short_text_with_the_outcome_first(kernel):
    def traceback(cell):
        (error,) = [content for kind, content in kernel.run(cell) if kind == "error"]
        return re.sub(r"\x1b\[[\d;]*m", "", "\n".join(error["traceback"])).splitlines()

    kernel.run("%config TFCluster.text_bytes = 4000")  # as it is for users
    deep = "def f(n):\n    print('at', n)\n    return f(n - 1) if n else int('x' * 9000)\n"
    lines = traceback(f"%%tfcluster --workers 2\nimport tfmagic\n{deep}tfmagic.current_task().index and f(9)")
    assert lines[0].startswith("worker-1 failed at line 5 of the cell: ValueError: invalid literal for int()")
    assert lines[-1] == "more:  %tfcluster errors   or   %tfcluster logs worker-1 --tail 50"
    assert lines[-3:-1] == ["    at 1", "    at 0"] and "the last lines of worker-1:" in lines
    assert len("\n".join(lines).encode()) <= 4000
    dead = traceback("%%tfcluster --on worker-0\nimport os\nos.kill(os.getpid(), 11)")
    assert dead[0].startswith("TaskDied: worker-0 was ended by SIGSEGV") and dead[-1].startswith("more:  ")
    kernel.run("%config TFCluster.text_bytes = 0")
    assert not traceback("%%tfcluster --fresh --workers 1\n1 / 0")[0].startswith("worker-0 failed")


def test_a_command_of_the_user_is_told_how_a_cell_ended(notebook, tmp_path, capfd):
    told = tmp_path / "told"
    script = f"import sys; open({str(told)!r}, 'a').write(sys.argv[1] + chr(10))"
    notebook.run(f"%config TFCluster.notify_command = {shlex.join([sys.executable, '-c', script])!r}")
    try:
        notebook.run(
            "%%tfcluster --workers 1 --notify --detach\nimport tfmagic\ntfmagic.track(step=3, loss=0.5)"
        )
        notebook.run("%tfcluster wait")
        wait_until(lambda: told.exists() and told.read_text().endswith("\n"))
        assert re.match(r"cluster default: cell \[\d+\] done after \d+ s\n$", told.read_text())
        with pytest.raises(ValueError, match="bad"):
            notebook.run("%%tfcluster --notify\nraise ValueError('bad')")
        wait_until(lambda: told.read_text().count("\n") == 2)
        assert "failed after 0 s: worker-0: ValueError: bad, at line 2 of the cell" in told.read_text()
        notebook.run("%%tfcluster\n1")
        notebook.run("%config TFCluster.notify_command = '/no/such/program'")
        notebook.run("%%tfcluster --notify\n1")
        wait_until(lambda: "notify_command '/no/such/program' failed" in capfd.readouterr().err)
        assert told.read_text().count("\n") == 2
    finally:
        notebook.run("%config TFCluster.notify_command = ''")


def test_a_terminal_which_cannot_show_a_figure_mentions_it(tmp_path):
    """Without the tests' short imports: Keras brings matplotlib, which reads the launcher's environment."""
    environ = {**os.environ, "IPYTHONDIR": str(tmp_path), "TERM": "dumb", "PYTHONPATH": ""}
    environ = {name: value for name, value in environ.items() if name != "MPLBACKEND"}
    words = ["-m", "IPython", "--simple-prompt", "--no-banner", "--colors=nocolor", "--ext=tfmagic"]
    with pexpect.spawn(sys.executable, words, env=environ, encoding="utf-8", timeout=60, echo=False) as shell:
        shell.expect(r"In \[1\]: ")
        figure = "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()"
        shell.sendline(f"%tfcluster run --workers 1 {figure}")
        shell.expect_exact("[worker-0]:    <Figure size 640x480 with 1 Axes>")
        shell.expect(r"In \[2\]: ")
        shell.sendline(
            "%tfcluster run --fresh --env MPLBACKEND=agg import matplotlib; matplotlib.get_backend()"
        )
        shell.expect_exact("[worker-0]:    'agg'")
