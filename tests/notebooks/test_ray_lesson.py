"""The lesson on Ray, executed with the nodes that it starts itself."""

import os
import re
from pathlib import Path

import pytest
from lessons import Lessons
from ray_nodes import START_SETTINGS, short_folder
from test_log_lessons import text, value
from test_quickstart import outputs

FOLDER = Path(__file__).parents[2] / "notebooks"
SCRIPTS = FOLDER.parent / "scripts"


@pytest.mark.soak  # what it shows is tested in integration/test_ray_*.py
def test_the_lesson_on_ray_trains_on_two_hosts_and_goes_on_after_the_loss_of_one(monkeypatch):
    for name, setting in START_SETTINGS.items():
        monkeypatch.setenv(name, setting)
    monkeypatch.setenv("PYTHONPATH", str(SCRIPTS), prepend=os.pathsep)  # RAY_START_HOOK
    monkeypatch.setenv("RAY_NODES_FOLDER", str(short_folder()))
    lessons = Lessons(FOLDER)  # with a kernel of its own: Ray stays in this one
    try:
        notebook = lessons.execute("how-to/ray.ipynb")
    finally:
        lessons.close()
    assert set(re.findall(r"127\.0\.0\.\d", value(notebook, "--out addresses"))) == {"127.0.0.2", "127.0.0.3"}
    assert len(re.findall(r"^worker-\d", value(notebook, 'losses["worker-0"] =='), re.M)) == 2
    assert "Ray did not have room for all 9 tasks" in outputs(notebook, "--workers 9")[-1].evalue
    lost = outputs(notebook, "%tfcluster wait")[-1]
    assert lost.ename == "TaskDied" and "its host 127.0.0.3 is lost" in lost.evalue
    again = text(notebook, "--out again")
    assert again.count("'lost'") == 1 and again.count("7)") == 1
