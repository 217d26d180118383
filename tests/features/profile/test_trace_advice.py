"""What a profile says about its full traces."""

import pytest

from tfmagic.features.profile import kernel
from tfmagic.features.profile.records import FOLDER
from tfmagic.runs import trace_folders
from tfmagic.runs.folder import create_run


@pytest.mark.parametrize("is_there", [False, True])
def test_the_folder_is_named_and_what_shows_it(tmp_path, monkeypatch, is_there):
    run = create_run(tmp_path / "state", "c", {})
    monkeypatch.setattr(trace_folders, "has_plugin", lambda: is_there)
    assert str(run.folder / FOLDER) in kernel.advice(run)
    assert ("pip install xprof" in kernel.advice(run)) is not is_there


def test_where_the_traces_are_is_found_by_what_shows_them(tmp_path):
    run = create_run(tmp_path / "state", "c", {})
    assert trace_folders.find_traces(run) == ""
    (run.folder / FOLDER / "plugins" / "profile").mkdir(parents=True)
    assert trace_folders.find_traces(run) == str(run.folder / FOLDER)
