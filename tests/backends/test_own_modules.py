"""Which of the notebook's modules hosts of Ray get, and where these find them."""

import os
import shutil
import sys
import sysconfig
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from tfmagic.backends.remote.own_modules import Unpacked, collect
from tfmagic.errors import LaunchError
from tfmagic.protocol.module_origins import original_path

LIMIT = 1 << 20


@pytest.fixture
def folder(tmp_path):
    """A folder as a notebook has it, with what is not to be sent beside what is."""
    root = tmp_path / "work"
    for name in (
        "mymodel.py",
        "package/__init__.py",
        "package/inner/layers.py",
        "data.csv",
        "package/weights.bin",
        ".hidden/secret.py",
        "my-runs/other.py",
        "venv/pyvenv.cfg",
        "venv/lib/thing.py",
        "package/__pycache__/mymodel.cpython-311.pyc",
    ):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"NAME = {name!r}\n")
    return root


def names_in(archive, root):
    return sorted(os.path.relpath(f"/{name}", root) for name in zipfile.ZipFile(BytesIO(archive)).namelist())


def test_the_sources_of_the_notebooks_folder_are_sent_and_nothing_else(folder):
    found = collect([str(folder)], (), LIMIT)
    assert names_in(found.archive, folder) == ["mymodel.py", "package/__init__.py", "package/inner/layers.py"]
    assert found.before == (str(folder),)


def test_what_is_installed_is_not_sent():
    installed = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib")]
    assert collect(installed, [os.__file__, pytest.__file__], LIMIT).archive == b""


def test_folders_keep_their_place_before_and_after_pythons_own_modules(folder, tmp_path):
    last = tmp_path / "editable"
    last.mkdir()
    found = collect([str(folder), sysconfig.get_path("stdlib"), str(last)], (), LIMIT)
    assert (found.before, found.after) == ((str(folder),), (str(last),))


def test_a_link_to_a_folder_above_is_followed_once(folder):
    (folder / "package" / "loop").symlink_to(folder)
    assert len(names_in(collect([str(folder)], (), LIMIT).archive, folder)) == 3


def test_tfmagic_itself_is_not_sent():
    root = os.path.dirname(os.path.dirname(sys.modules["tfmagic"].__file__))
    names = names_in(collect([root], (), 1 << 30).archive, root)
    assert names and not any(name.startswith("tfmagic/") for name in names)


def test_too_large_modules_are_refused_by_name(folder):
    (folder / "package" / "tables.py").write_bytes(b"#" * LIMIT)
    with pytest.raises(LaunchError, match=r"work/package \(1.0 MiB\).*max_module_bytes"):
        collect([str(folder)], (), LIMIT)
    assert collect([str(folder)], (), 0).archive == b""


def test_a_host_with_the_same_files_uses_them(folder, tmp_path):
    unpacked = Unpacked(collect([str(folder)], (), LIMIT).archive, tmp_path)
    assert unpacked.here(str(folder)) == str(folder)


def test_a_host_with_other_files_uses_those_of_the_notebook(folder, tmp_path):
    archive = collect([str(folder)], (), LIMIT).archive
    (folder / "mymodel.py").write_text("NAME = 'another'\n")
    here = Unpacked(archive, tmp_path).here(str(folder))
    assert here != str(folder)
    assert Path(here, "mymodel.py").read_text() == "NAME = 'mymodel.py'\n"


def test_a_change_gets_a_folder_of_its_own(folder, tmp_path):
    first = Unpacked(collect([str(folder)], (), LIMIT).archive, tmp_path)
    (folder / "mymodel.py").write_text("NAME = 'edited'\n")
    second = Unpacked(collect([str(folder)], (), LIMIT).archive, tmp_path)
    assert first.folder != second.folder and first.folder.exists()


def test_a_traceback_names_the_file_of_the_notebooks_machine(folder, tmp_path):
    run = tmp_path / "hosts" / "h-1" / "runs" / "20260131"
    run.mkdir(parents=True)
    unpacked = Unpacked(collect([str(folder)], (), LIMIT).archive, run)
    shutil.rmtree(folder)
    there = unpacked.here(str(folder / "mymodel.py"))
    assert there != str(folder / "mymodel.py")
    assert original_path(there) == str(folder / "mymodel.py")
    assert original_path("/a/runs/b/modules-x/c.py") == "/a/runs/b/modules-x/c.py"
