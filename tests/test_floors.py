"""The architecture, held by tests: import floors, public names, and what an import costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tfmagic

PACKAGE = Path(tfmagic.__file__).parent
FLOORS = [
    {"spec", "packed", "orders", "events", "launches", "errors", "advice"},
    {
        "wire",
        "pickling",
        "capture",
        "names",
        "tracebacks",
        "exceptions",
        "bounded",
        "copies",
        "own_code",
        "context",
        "runs",
        "tasklog",
    }
    | {"screen", "lines", "styles", "noise", "records", "resources", "memory"}
    | {"identity", "leftovers", "snapshots", "origins", "testcases", "absl_flags", "openers", "main_script"}
    | {"definitions", "classes", "refusals", "tensorflow_values"}
    | {"tfrecord", "hdf5", "logdir"},
    {"backends", "task"},
    {"states", "barriers", "lifecycle", "stalls", "respawns", "endings", "supervisor"},
    {"sources", "options", "compare", "clusters", "calls", "failures", "environment", "results", "config"}
    | {"views", "calling", "mapping"}
    | {"payloads", "outcomes", "stacks", "cells", "startup", "status", "jobs", "makes"}
    | {"execution", "deaths", "hints", "life", "faults", "rendering", "arguments", "tables"}
    | {"errands", "boards", "managers", "sharing", "multi_process_runner", "lending", "transcripts"},
    {"magic", "commands", "completion", "decorator", "awaiting", "detached", "doctor", "server"}
    | {"pytest_plugin"}
    | {"cli", "__main__"},
]
FLOOR_OF = {name: level for level, names in enumerate(FLOORS) for name in names}


def modules():
    return sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


def room(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tfmagic"):
            parts = node.module.split(".")
            yield from [parts[1]] if len(parts) > 1 else [a.name for a in node.names]
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("tfmagic."))


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_strictly_downward(path):
    here = room(path)
    for other in imports_of(path):
        if other == here:
            continue
        assert FLOOR_OF[other] <= FLOOR_OF[here], f"{here} imports {other}, which stands above it"
        assert {here, other} != {"backends", "task"}, "backends and the task program meet on the wire only"


@pytest.mark.parametrize("name", ["lifecycle", "states", "barriers", "stalls", "respawns", "endings"])
def test_the_lifecycle_is_pure(name):
    tree = ast.parse((PACKAGE / f"{name}.py").read_text())
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert not names & {"os", "time", "threading", "signal", "subprocess", "socket"}


def test_the_supervisor_unpickles_nothing():
    text = (PACKAGE / "supervisor.py").read_text()
    assert "pickl" not in text.replace("unpickles nothing", "")


def test_the_server_extension_reads_run_folders_and_nothing_else():
    """It is loaded by Jupyter Server, beside everybody's notebooks: no cluster, no kernel, no TensorFlow."""
    own = [path for path in modules() if room(path) == "server"]
    allowed = {"server", "runs", "snapshots", "records", "tasklog", "spec", "errors"}
    assert own and {name for path in own for name in imports_of(path)} <= allowed
    assert not [p for p in modules() if room(p) != "server" and "server" in imports_of(p)]
    code = (
        "import sys, tfmagic.server.metrics, tfmagic.server.handlers; "
        "print({m.partition('.')[0] for m in sys.modules} "
        "& {'tensorflow', 'keras', 'ipywidgets', 'numpy', 'dill'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_magic_uses_the_public_interface_of_clusters():
    """Whatever it can do, Python code can do as well."""
    foreign = {"_option_string_actions", "_getframe"}  # of argparse and sys
    inner = {"life", "supervisor", "lifecycle", "states", "payloads", "wire"}
    magics = {
        "magic",
        "commands",
        "completion",
        "decorator",
        "awaiting",
        "detached",
        "doctor",
        "pytest_plugin",
    }
    for path in [p for p in modules() if room(p) in magics]:
        assert not inner & set(imports_of(path)), path
        nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute)]
        private = [n for n in nodes if n.attr.startswith("_") and not n.attr.startswith("__")]
        reached = {n.attr for n in private if ast.unparse(n.value) not in ("self", "cls")}
        assert reached <= foreign, path


def test_importing_tfmagic_loads_nothing_heavy():
    code = (
        "import sys, tfmagic; "
        "print({m.partition('.')[0] for m in sys.modules} "
        "& {'tensorflow', 'keras', 'IPython', 'ipywidgets', 'ray', 'h5py', 'dill', 'numpy', 'jupyter_server'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_public_names_are_those_of_all():
    for name in tfmagic.__all__:
        assert getattr(tfmagic, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = tfmagic.nope


def test_files_stay_readable():
    too_long = {str(p): n for p in modules() if (n := len(p.read_text().splitlines())) > 500}
    assert not too_long
