"""The features of `tfmagic.features` can be taken away: nothing else names them, and the rest works."""

import ast
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

PACKAGE = Path(tfmagic.__file__).parent
ROOMS = PACKAGE / "features"
BASES = ROOMS / "bases.py"  # names the features that have methods of `Cluster`
TRY = """
import tfmagic
from tfmagic.frontends.notebook import whole
from tfmagic.clusters.api.lines import COMMANDS
assert whole.COMMAND_MODULES and "%tfcluster COMMAND" in whole.overview()
assert NAME not in COMMANDS and not hasattr(tfmagic.Cluster, NAME)
with tfmagic.Cluster(workers=2) as cluster:
    print(sorted(cluster.run(lambda: tfmagic.current_task().name).values()))
    print({tfmagic.__file__, *cluster.run(lambda: tfmagic.__file__).values()})
"""


def test_every_room_is_listed():
    found = {path.name for path in ROOMS.iterdir() if (path / "__init__.py").exists()}
    assert found == set(features.NAMES) and len(features.NAMES) == len(found)


@pytest.mark.parametrize("name", features.NAMES)
def test_nothing_outside_of_a_room_names_it(name):
    module = re.compile(rf"features[./]{name}\b|features import .*\b{name}\b")
    key = re.compile(rf"extras.*[\"']{name}[\"']")
    outside = [p for p in PACKAGE.rglob("*.py") if ROOMS / name not in p.parents and p != BASES]
    assert not [path for path in outside if module.search(text := path.read_text()) or key.search(text)]


def take_bases_away(bases, name):
    """Remove the lines of a feature in `bases`: an import, and a base."""
    text = bases.read_text()
    imported = re.search(rf"^from tfmagic\.features\.{name}\.\w+ import (\w+)\n", text, re.MULTILINE)
    if imported is not None:
        bases.write_text(
            re.sub(rf"^    {imported[1]},\n", "", text.replace(imported[0], ""), flags=re.MULTILINE)
        )


SPELLED = {  # what users see of a feature, typed: an argument of calls, an attribute of their results
    "profile": {"clusters/api/call_api.py", "clusters/cells/results.py"},
}


@pytest.mark.parametrize(
    "name", ["profile", "notify", "diff"]
)  # the other names are words of other things, too
def test_nothing_below_the_rooms_has_a_part_of_that_name(name):
    outside = [path for path in PACKAGE.rglob("*.py") if ROOMS not in path.parents]
    found = {str(path.relative_to(PACKAGE)) for path in outside if name in words_of(path)}
    assert found == SPELLED.get(name, set())


def words_of(path):
    """Return the names in a module, and its texts."""
    fields = ("id", "attr", "arg", "name", "value")
    nodes = ast.walk(ast.parse(path.read_text()))
    return {value for node in nodes for f in fields if isinstance(value := getattr(node, f, None), str)}


TRIED = random.Random(os.environ.get("TEST_SEED", "0")).choice(features.NAMES)  # the others are soaked


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.soak] * (each != TRIED)) for each in features.NAMES]
)
def test_a_room_can_be_taken_away(name, tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "tfmagic", ignore=shutil.ignore_patterns("__pycache__"))
    rooms = tmp_path / "tfmagic" / "features"
    shutil.rmtree(rooms / name)
    listed = (rooms / "__init__.py").read_text()
    assert f'"{name}"' in listed
    (rooms / "__init__.py").write_text(re.sub(rf'"{name}",? ?', "", listed))
    take_bases_away(rooms / "bases.py", name)
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
