"""The files in requirements/ are complete, within the bounds, and name no machine or registry."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))


def pinned(path):
    """Return the versions in a lock file by name. Each line is a comment or one exact version."""
    lines = [line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
    found = [re.fullmatch(r"([a-z0-9-]+)==([\w.+!]+)\s*(#.*)?", line) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if not match]
    return {match[1]: match[2] for match in found}


def required(extra):
    """Return the requirements of the project and of an extra, with the extras that it names."""
    for text in PROJECT["dependencies"] if not extra else PROJECT["optional-dependencies"][extra]:
        requirement = Requirement(text)
        if requirement.name == PROJECT["name"]:
            for inner in requirement.extras:
                yield from required(inner)
        else:
            yield requirement


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_a_lock_names_no_registry_and_no_path(path):
    assert not re.search(r"https?:|file:|index-url|find-links|trusted-host|\s/", path.read_text("utf-8"))


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_a_lock_has_a_version_within_the_bounds_of_all_that_the_tests_need(version):
    versions = pinned(ROOT / "requirements" / f"{version}.txt")
    for requirement in (*required(""), *required("dev")):
        if not requirement.marker or requirement.marker.evaluate({"python_version": version}):
            assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement


@pytest.mark.parametrize("image", ["colab", "kaggle"])
def test_an_installation_on_a_hosted_page_replaces_nothing_there(image):
    versions = pinned(ROOT / "requirements" / f"{image}.txt")
    for requirement in required(""):
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement


def test_the_demo_needs_no_more_than_the_notebook_and_its_script():
    assert {r.name for r in required("demo")} == {"ipykernel", "nbclient", "nbformat", "scikit-learn"}
