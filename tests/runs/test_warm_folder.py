"""The folder of templates: whose it is, what it lists, and when it is deleted."""

import json
import os
import subprocess
from dataclasses import replace

import pytest

from tfmagic.errors import LaunchError
from tfmagic.runs import warm_folder
from tfmagic.system.process_identity import identify


@pytest.fixture
def process():
    with subprocess.Popen(["sleep", "1000"]) as started:
        yield started
        started.kill()


@pytest.fixture
def owner(process, tmp_path):
    """A process that has announced templates in `tmp_path`."""
    made = identify(process.pid)
    warm_folder.announce(made, 60, tmp_path)
    return made


def note(owner, base, process, name="a" * 32):
    path = warm_folder.warm_folder(owner, base) / f"{name}.json"
    path.write_text(json.dumps({**process.as_json(), "python": "python3", "started": 1.0, "until": 0.0}))


def test_what_an_owner_announces_is_its_own_alone(owner, tmp_path):
    folder = warm_folder.warm_folder(owner, tmp_path)
    assert [path.stat().st_mode & 0o777 for path in (folder.parent, folder)] == [0o700, 0o700]
    assert warm_folder.announced_idle_s(owner, tmp_path) == 60
    assert warm_folder.announced_idle_s(replace(owner, start=owner.start + 1), tmp_path) == 0
    warm_folder.withdraw(owner, tmp_path)
    assert warm_folder.announced_idle_s(owner, tmp_path) == 0


def test_a_folder_that_others_can_read_is_not_used(owner, tmp_path):
    warm_folder.warm_folder(owner, tmp_path).chmod(0o755)
    with pytest.raises(LaunchError, match="of this user alone"):
        warm_folder.announce(owner, 60, tmp_path)


def test_only_the_very_process_that_was_noted_is_found_and_ended(owner, tmp_path):
    with subprocess.Popen(["sleep", "1000"]) as other:
        try:
            template = identify(other.pid)
            note(owner, tmp_path, replace(template, start=template.start - 1), "b" * 32)
            note(owner, tmp_path, replace(template, boot="another"), "c" * 32)
            assert warm_folder.find(tmp_path) == []
            note(owner, tmp_path, template)
            (found,) = warm_folder.find(tmp_path)
            assert found.process == template and not found.is_left_over
            assert f"pid {other.pid} (python3), for the kernels of pid {owner.pid}" in str(found)
            assert found.end() and warm_folder.find(tmp_path) == []
        finally:
            other.kill()


def test_what_a_killed_owner_has_left_is_ended_and_deleted(owner, process, tmp_path):
    with subprocess.Popen(["sleep", "1000"]) as template:
        note(owner, tmp_path, identify(template.pid))
        warm_folder.tidy(tmp_path)
        assert template.poll() is None
        process.kill()
        process.wait()
        assert warm_folder.find(tmp_path)[0].is_left_over
        warm_folder.announce(identify(os.getpid()), 60, tmp_path)
        assert template.wait(20) == -9
    assert not warm_folder.warm_folder(owner, tmp_path).exists()


def test_the_folder_of_an_owner_elsewhere_is_left_alone(owner, tmp_path):
    """Containers can share a state folder."""
    elsewhere = replace(owner, boot="another")
    path = warm_folder.warm_folder(owner, tmp_path) / "owner.json"
    path.write_text(json.dumps({**elsewhere.as_json(), "idle_s": 60}))
    warm_folder.tidy(tmp_path)
    assert path.exists() and warm_folder.announced_idle_s(owner, tmp_path) == 0


def test_a_note_that_goes_while_it_is_looked_at_is_none(owner, tmp_path, process, monkeypatch):
    note(owner, tmp_path, identify(process.pid))
    assert len(warm_folder.find(tmp_path)) == 1
    read = warm_folder._read

    def read_last(path):
        content = read(path)
        if path.name.startswith("aaa"):
            path.unlink()
        return content

    monkeypatch.setattr(warm_folder, "_read", read_last)
    assert warm_folder.find(tmp_path) == []
