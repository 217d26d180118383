"""The lessons on log folders, executed: each problem appears, and each solution works."""

import re
import sys

from test_quickstart import outputs


def value(notebook, source):
    """Return the text of the results of a cell."""
    shown = [o.data["text/plain"] for o in outputs(notebook, source) if "text/plain" in o.get("data", {})]
    return "\n".join(shown)


def text(notebook, source):
    return value(notebook, source) + "".join(o.get("text", "") for o in outputs(notebook, source))


def test_the_lesson_on_log_folders_shows_each_problem_and_its_solution(lessons):
    notebook = lessons.execute("how-to/logdir.ipynb")
    naive = value(notebook, "--out naive\n")
    assert "BadZipFile" in naive or (sys.version_info >= (3, 13) and "save 1000: whole" in naive)
    assert re.search(r"'whole': 20", value(notebook, "--out cured\n"))
    naive = value(notebook, "--out naive_checkpoints")
    assert "NotFoundError" in naive or "InvalidArgumentError" in naive
    assert value(notebook, "--out cured_checkpoints").count("{0: 60}") == 2
    assert outputs(notebook, "die_at=5)")[-1].ename == "TaskDied"
    assert outputs(notebook, "latest_checkpoint")[-1].ename == "IndexError"
    again = text(notebook, "--out again")
    assert again.count("'began after step 3, ended with v = 8.0'") == 2
    assert "checkpoint 4 in" in again and "is passed over" in again
    assert any("<iframe" in o.data.get("text/html", "") for o in outputs(notebook, "%tfcluster tensorboard"))
    assert outputs(notebook, "s3://bucket")[-1].ename == "UnimplementedError"
    assert outputs(notebook, "s4://bucket")[-1].ename == "LogdirError"


def test_monitored_training_goes_on_after_kill_9_with_one_writer_and_no_lost_step(lessons):
    notebook = lessons.execute("how-to/monitored-training-session.ipynb")
    found = eval(re.search(r"\{'step'.*?\}", value(notebook, "--out found"))[0])
    assert 600 <= found["step"] < 603 and found["w"] == found["step"] and found["event files"] == 1
    made = re.search(r"worker-1 made (\d+) steps", text(notebook, "--out second_life"))
    assert int(made[1]) > 0
    assert outputs(notebook, "%tfcluster wait")[-1].ename == "TaskDied"
