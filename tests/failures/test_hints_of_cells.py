"""A hint takes a way of its own, to the run folder: it is there whatever becomes of the cell and its task."""

import json
import os
import signal
import subprocess
import sys

import pytest

import tfmagic
from tfmagic.runs.cell_records import read_records
from tfmagic.runs.given_hints import read_hints
from tfmagic.runs.schemas import cell_report

GIVE = """\
from tfmagic.task.tensorflow import notices
notices.hint_once("own-statistics", "A hint for you.")
"""


@pytest.fixture(scope="module")
def cluster_of_module():
    with tfmagic.Cluster(workers=2) as started:
        yield started


def give(*then):
    exec(GIVE)
    for step in then:
        step()


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def fail():
    raise ValueError("bad")


def test_a_hint_of_a_cell_is_no_output_of_its_tasks(cluster_of_module, capsys):
    results = cluster_of_module.run(give)
    assert results.output == {"worker-0": "", "worker-1": ""}
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("tfmagic: hint: A hint for you. (worker-0, worker-1; "), "once for both"
    cluster_of_module.run(give, on="worker-1", view="quiet")
    assert read_hints(cluster_of_module.run_folder)[-1].tasks == ("worker-0", "worker-1")
    assert capsys.readouterr().out == ""


def test_an_exception_has_the_hint_as_a_note(cluster_of_module, capsys):
    with pytest.raises(ValueError, match="bad") as caught:
        cluster_of_module.run(give, fail)
    (note,) = [note for note in caught.value.__notes__ if note.startswith("hint: ")]
    assert "A hint for you." in note and "A hint for you." not in capsys.readouterr().out


def test_a_hint_outlives_the_task_that_gave_it(cluster_of_module):
    with pytest.raises(tfmagic.TaskDied) as caught:
        cluster_of_module.run(give, die, on="worker-1")
    assert any("A hint for you. (worker-1; " in note for note in caught.value.__notes__)
    cluster_of_module.revive()


def test_a_child_process_of_a_task_prints_its_hint(cluster_of_module):
    def fork():
        import multiprocessing

        child = multiprocessing.get_context("fork").Process(target=give)
        child.start()
        child.join()

    results = cluster_of_module.run(fork, on="worker-0", view="quiet")
    assert "tfmagic: hint: A hint for you." in results.output["worker-0"]


def test_the_record_of_a_cell_has_its_hints_for_programs(notebook):
    notebook.run(f"%%tfcluster --workers 2\n{GIVE}")
    run = notebook.cluster().run_folder
    report = cell_report(read_records(run)[-1], run)
    (hint,) = report.hints
    assert (hint.name, hint.tasks) == ("own-statistics", ["worker-0", "worker-1"])


def test_a_script_has_its_hints_on_the_error_stream_and_in_json(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(f"print('output')\n{GIVE}")
    command = [sys.executable, "-m", "tfmagic", "run", "--json", "--workers", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert "A hint" in done.stderr.splitlines()[-1] and "(worker-0, worker-1; " in done.stderr
    *lines, report = done.stdout.splitlines()
    assert "hint" not in "".join(lines)
    assert json.loads(report)["hints"][0]["tasks"] == ["worker-0", "worker-1"]
