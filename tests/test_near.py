"""`scripts/near.py`, which `make near` calls: which tests stand for what has changed."""

import importlib.util
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "near.py"


@pytest.fixture
def near(tmp_path, monkeypatch):
    """Return the module, for a repository of its own with one commit."""
    spec = importlib.util.spec_from_file_location("near", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "old.md").write_text("old")
    for words in (("init", "-q", "-b", "main"), ("add", "."), ("commit", "-q", "-m", "first")):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)
    return module


def test_changed_files_are_those_since_the_commit_and_new_ones(near, tmp_path):
    assert near.changed_files(near.base()) == []
    (tmp_path / "old.md").write_text("new")
    (tmp_path / "new name.py").write_text("")
    assert near.changed_files(near.base()) == ["new name.py", "old.md"]


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("tfmagic/supervisor/escalation.py", {"tests/supervisor"}),
        ("tfmagic/features/notify/kernel.py", {"tests/features", "tests/test_features.py"}),
        ("tfmagic/errors.py", {"tests/test_errors.py"}),
        ("tfmagic/pytest_plugin.py", {"tests/runner"}),
        ("tfmagic/multi_process_runner/runner.py", {"tests/runner"}),
        ("tfmagic/unknown/module.py", {"tests/test_errors.py"}),
        ("tests/runs/test_folder.py", {"tests/runs/test_folder.py"}),
        ("tests/runs/test_gone.py", set()),
        ("docs/ray.md", {"tests/test_docs_pages.py", "tests/test_docs_site.py"}),
        ("scripts/suite.py", {"tests/test_near.py", "tests/test_suite.py"}),
    ],
)
def test_a_change_has_the_tests_of_its_package(near, changed, tests):
    present = {"tests/supervisor", "tests/features", "tests/runs", "tests/runs/test_folder.py"}
    assert set(near.tests_of([changed], present)) == tests | set(near.ALWAYS)
