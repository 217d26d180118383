"""The features of `tfmagic.features` can be taken away: nothing else names them, and the rest works."""

import ast
import copy
import functools
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tfmagic
from tfmagic import features
from tfmagic.clusters.api.lines import COMMANDS
from tfmagic.clusters.cells.results import TaskResults
from tfmagic.frontends.notebook.whole import COMMAND_MODULES
from tfmagic.system.advice import Step
from tfmagic.system.features import halves, propose

PACKAGE = Path(tfmagic.__file__).parent
ROOMS = PACKAGE / "features"
LISTS = (
    "bases.py",
    "names.py",
    "../hdf5/__init__.py",
)  # of methods of `Cluster`; functions, attributes; classes
THREE = {"profile": "an attribute of results, and an argument of calls"}
"""What is named in one file more, since an editor has to see both."""
TRY = """
import tfmagic
from tfmagic.frontends.notebook import whole
from tfmagic.clusters.api.lines import COMMANDS
assert whole.COMMAND_MODULES and "%tfcluster COMMAND" in whole.overview()
assert NAME not in COMMANDS and not hasattr(tfmagic.Cluster, NAME)
from tfmagic.frontends.cli import parsers
assert NAME not in parsers.PAGES and parsers.overview()
with tfmagic.Cluster(workers=2) as cluster:
    print(sorted(cluster.run(lambda: tfmagic.current_task().name).values()))
    print({tfmagic.__file__, *cluster.run(lambda: tfmagic.__file__).values()})
"""


def test_every_room_is_listed():
    found = {path.name for path in ROOMS.iterdir() if (path / "__init__.py").exists()}
    assert found == set(features.NAMES) and len(features.NAMES) == len(found)


@pytest.mark.parametrize("name", features.NAMES)
def test_few_files_outside_of_a_room_name_it(name):
    """The tuple does, and one more: the list of an editor's names, or where it has to see an argument."""
    naming = {p for p in PACKAGE.rglob("*.py") if ROOMS / name not in p.parents and name in words_of(p)}
    assert ROOMS / "__init__.py" in naming and len(naming) <= 2 + (name in THREE), naming


@functools.cache
def words_of(path):
    """Return what a module spells: parts of the names of our modules, texts, keyword arguments and properties."""
    found, packages = set(), set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.ImportFrom(module=str(module)) if module.startswith("tfmagic"):
                found |= {*module.split("."), *(alias.name for alias in node.names)}
            case ast.Constant(value=str(text)):
                found |= {text, *(text.split(".") if text.startswith("tfmagic.") else ())}
            case ast.arguments(kwonlyargs=arguments):
                found |= {argument.arg for argument in arguments}
            case ast.FunctionDef(name=word, decorator_list=[ast.Name(id="property")]):
                found.add(word)
            case ast.Call(
                func=ast.Name(id="Step"), args=[ast.Constant(value="install"), ast.Constant(value)]
            ):
                packages.add(value)
            case ast.Assign(targets=[ast.Name(id="_WITHOUT_IMPORT")], value=ast.Dict(keys=names)):
                packages |= {name.value for name in names if isinstance(name, ast.Constant)}
    return found - packages


def take_lines_away(file, name):
    """Remove the lines of a feature in one of `LISTS`: an import, and what it imports."""
    text = file.read_text()
    imported = re.search(rf"^ *from tfmagic\.features\.{name}\.\w+ import (.+)\n", text, re.MULTILINE)
    if imported is not None:
        names = imported[1].replace(", ", "|")
        file.write_text(
            re.sub(rf'^    "?({names})"?(: ".*")?,\n', "", text.replace(imported[0], ""), flags=re.MULTILINE)
        )


def test_a_message_proposes_only_steps_that_are_there():
    assert propose("compare", "; {} compares", "NAME") == f"; {Step('diff', 'NAME')} compares"
    assert propose("what no feature does", "; {} does it") == ""
    assert COMMAND_MODULES
    for half in halves("steps"):
        assert set(half.STEPS.values()) <= COMMANDS.keys(), half


def test_results_have_what_features_find_and_no_other_name():
    found = TaskResults({}, {}, {}, run=None, times=None, found={"profile": 3})
    assert found.profile == 3 and "profile" in dir(found) and copy.copy(found).profile == 3
    assert TaskResults({}, {}, {}, run=None, times=None).profile is None
    with pytest.raises(AttributeError, match="'TaskResults' object has no attribute 'mode'"):
        _ = found.mode


TRIED = random.Random(os.environ.get("TEST_SEED", "0")).choice(features.NAMES)  # the others are soaked


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.soak] * (each != TRIED)) for each in features.NAMES]
)
def test_a_room_can_be_taken_away(name, tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "tfmagic", ignore=shutil.ignore_patterns("__pycache__"))
    rooms = tmp_path / "tfmagic" / "features"
    shutil.rmtree(rooms / name)
    (rooms.parent / f"{name}.py").unlink(missing_ok=True)  # its door for users
    listed = (rooms / "__init__.py").read_text()
    assert f'"{name}"' in listed
    (rooms / "__init__.py").write_text(re.sub(rf'"{name}",? ?', "", listed))
    for each in LISTS:
        take_lines_away(rooms / each, name)
    program = TRY.replace("NAME", repr(name))
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,  # from where "-c" imports, before PYTHONPATH
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0 and "['worker-0', 'worker-1']" in done.stdout, done.stderr
    assert repr({str(rooms.parent / "__init__.py")}) in done.stdout, "kernel and tasks have the copy"
