"""docs/support.md agrees with the files in requirements/, with the Makefile, and with the tests that it names."""

import re
from pathlib import Path

import pytest
from test_requirements import LOCKS, PROJECT, ROOT, pinned

PAGE = (ROOT / "docs" / "support.md").read_text("utf-8")


def rows(heading):
    """Return the rows of the table below a heading, by cells; the first is the header."""
    table = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("|") and not line.startswith("| ---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


HEADER, *VERSIONS = rows("Versions")


@pytest.mark.parametrize("row", VERSIONS, ids=lambda row: row[0])
def test_each_row_has_the_versions_of_its_file(row):
    kept_by, python, *versions, file = row
    found = pinned(ROOT / file.strip("`"))
    for name, version in zip(HEADER[2:-1], versions, strict=True):
        names = (name.lower(), f"{name.lower()}-nightly")
        assert next((found[name] for name in names if name in found), "-") == version, name
    target, _, given = kept_by.strip("`").removeprefix("make ").partition(" PYTHON=python")
    rule = rf"^(?:[\w-]+ )*{target}(?: [\w-]+)*:.*\n(?:\t.*\n)+"
    recipe = re.search(rule, (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)[0]
    name = Path(file.strip("`")).stem
    assert (f".venv-{name}/" in recipe.replace("$*", name)) if target != "test" else name == python
    assert not given or given == python


def test_no_file_and_no_version_of_python_is_missing():
    assert {Path(row[-1].strip("`")).name for row in VERSIONS} == {path.name for path in LOCKS}
    classifiers = {text.rpartition(" ")[2] for text in PROJECT["classifiers"] if ":: 3." in text}
    assert {row[1] for row in VERSIONS} == classifiers


@pytest.mark.parametrize("heading", ["Front ends", "Systems"])
def test_each_front_end_and_system_names_its_test_or_how_it_was_tried(heading):
    for name, how in rows(heading)[1:]:
        tests = re.findall(r"\]\(\.\./([^)]+)\)", how)
        assert all((ROOT / path).exists() for path in tests), name
        assert tests or re.search(r"not tried|by hand|all tests|does not work", how), name
