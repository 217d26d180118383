"""A record of imports tells whether another process, or a later one, would import the same."""

import ctypes
import importlib
import os
import shutil
import sys
import time

import pytest

from tfmagic.task.import_record import ImportRecord


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder on `sys.path` with a module and an installed package; the home folder has no settings."""
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "recorded_module.py").write_text("value = 1")
    (packages / "other.dist-info").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("KERAS_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", [str(packages)])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    importlib.invalidate_caches()
    return packages


@pytest.fixture
def record(folder):
    made = ImportRecord()
    importlib.import_module("recorded_module")
    with pytest.raises(ImportError):
        importlib.import_module("optional_module")
    made.end()
    assert made not in sys.meta_path
    assert made.outdated() == "" == made.difference(sys.path, os.getcwd())
    return made


def test_a_loaded_file_that_has_changed_is_noticed(record, folder):
    (folder / "recorded_module.py").write_text("value = 22")
    assert record.outdated() == f"{folder / 'recorded_module.py'} has changed"


def test_a_file_that_changed_during_the_import_is_noticed(folder):
    made = ImportRecord()
    module = importlib.import_module("recorded_module")
    (folder / "recorded_module.py").write_text("value = 22")
    made.end()
    assert module.value == 1 and made.outdated().endswith("has changed")


def test_a_clock_behind_the_files_times_makes_no_import_outdated(folder, monkeypatch):
    """As on a machine that was resumed, or whose file server is ahead: each start would import again."""
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - 3_600_000_000_000)
    made = ImportRecord()
    importlib.import_module("recorded_module")
    made.end()
    assert made.outdated() == ""
    (folder / "recorded_module.py").write_text("value = 22")
    assert made.outdated().endswith("has changed")


def test_a_shared_library_that_has_changed_is_noticed(folder):
    """As after ``conda update mkl``: no module and no `.dist-info` tells."""
    library = shutil.copy(importlib.import_module("_bisect").__file__, folder / "libmine.so")
    made = ImportRecord()
    ctypes.CDLL(str(library))
    made.end()
    assert made.outdated() == ""
    os.utime(library, (5, 5))
    assert made.outdated() == f"{library} has changed"


@pytest.mark.parametrize("name", ["new.dist-info", "new.egg-link", "new.pth"])
def test_an_installed_package_is_noticed(record, folder, name):
    (folder / name).touch()
    assert record.outdated() == "a package was installed or removed"


def test_a_package_that_was_installed_again_is_noticed(record, folder):
    os.utime(folder / "other.dist-info", (1, 1))
    assert record.outdated() == "a package was installed or removed"


def test_another_folder_without_modules_of_these_names_makes_no_difference(record, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    for name in ("recorded_module", "data"):  # a folder without code does not hide a module
        (elsewhere / name).mkdir(parents=True)
    (elsewhere / "analysis.py").touch()
    (elsewhere / "optional_module.txt").touch()
    assert record.difference(["", *sys.path, "missing"], str(elsewhere)) == ""


@pytest.mark.parametrize(
    "name", ["recorded_module.py", "optional_module.py", "optional_module/part.py", "sitecustomize.py"]
)
def test_a_module_that_would_be_found_first_makes_a_difference(record, tmp_path, name):
    (tmp_path / "elsewhere" / name).parent.mkdir(parents=True)
    (tmp_path / "elsewhere" / name).touch()
    assert "other modules" in record.difference(["", *sys.path], str(tmp_path / "elsewhere"))


def test_only_where_a_name_is_found_first_makes_a_difference(record, folder, tmp_path):
    assert "other modules" in record.difference([str(tmp_path)], str(tmp_path))
    (tmp_path / "recorded_module.py").touch()
    assert record.difference([*sys.path, str(tmp_path)], str(folder)) == ""
    assert "other modules" in record.difference([str(tmp_path), *sys.path], str(folder))


def test_settings_of_keras_and_matplotlib_make_a_difference(record, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "matplotlibrc").touch()
    os.utime(tmp_path / "elsewhere" / "matplotlibrc", (5, 5))
    assert "settings" in record.difference(sys.path, str(tmp_path / "elsewhere"))
    (tmp_path / "home" / ".keras").mkdir(parents=True)
    (tmp_path / "home" / ".keras" / "keras.json").write_text("{}")
    assert "settings" in record.outdated()
