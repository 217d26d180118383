"""The layout of the packages: the imports between them, the public names, and the cost of an import."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tfmagic

PACKAGE = Path(tfmagic.__file__).parent
BASE = {"errors", "protocol", "system"}
ROOMS = {"tfrecord", "hdf5", "logdir"}
WHOLE = {f"clusters.{name}" for name in ("cluster", "attaching", "decorator")}
"""What stands above the features, since it has their methods: `Cluster`, and what makes one."""
BELOW = (
    "features.names",
    "features.track.names",
    "features.profile.names",
    "features.profile.shares",
    "features.profile.records",
    "features.profile.intervals",
)
"""What types the results and functions that users see: `clusters` has it as bases."""
ON_TOP = (
    "course",  # the doors of features
    "testing",
    "features.doctor",
    "features.comparison.ways",
    "features.report",
    "features.course",
    "features.faults.lines",
    "features.faults.words",
    "features.pictures.lines",
    "features.pictures.pages",
    "features.pictures.shell",
    "features.testing.pytest_hooks",
)
"""Features that use the ways in: `Cluster`, options of lines, the command line."""
MAY_IMPORT = {  # exactly: remove an entry when the package no longer imports it
    "system": set(),
    "errors": {"system"},
    "protocol": {"errors", "system"},
    "serialization": BASE,
    "runs": BASE,
    "tfrecord": BASE,
    "logdir": BASE,
    "hdf5": BASE | {"runs"},
    "backends": BASE | {"runs"},
    "task": BASE | {"serialization", "runs"} | ROOMS,
    "supervisor": {"protocol", "system", "runs", "backends"},
    "failures": BASE | {"serialization", "runs", "supervisor"},
    "views": {"protocol", "system", "runs", "supervisor", "failures"},
    "names of features": {"protocol", "views"},
    "clusters": {"names of features"}
    | BASE
    | {"serialization", "runs", "backends", "supervisor", "failures", "views"},
    "features": {
        "hdf5",
        "names of features",
        "errors",
        "protocol",
        "system",
        "serialization",
        "runs",
        "backends",
        "supervisor",
        "failures",
        "views",
        "task",
        "clusters",
    },
    "cluster": {"errors", "protocol", "runs", "backends", "supervisor", "failures", "views"}
    | {"clusters", "features"},
    "multi_process_runner": BASE
    | {"serialization", "runs", "supervisor", "failures", "task", "clusters", "cluster"},
    "frontends": BASE
    | {
        "serialization",
        "runs",
        "backends",
        "supervisor",
        "failures",
        "views",
        "task",
        "clusters",
        "cluster",
        "tfrecord",
    },
    "features on top": BASE
    | {"runs", "backends", "task", "supervisor", "views", "clusters", "cluster", "frontends"}
    | {"features", "tfrecord"},
    "server": {"runs", "system"},
    "pytest_plugin": {"backends", "cluster", "errors", "frontends", "system"},
    "__init__": {
        "hdf5",
        "features",
        "names of features",
        "errors",
        "protocol",
        "system",
        "clusters",
        "cluster",
        "frontends",
        "task",
    },
    "__main__": {"frontends"},
}


def modules(package=""):
    return sorted((PACKAGE / package).rglob("*.py"))


def package_of(path):
    return group_of(".".join(path.relative_to(PACKAGE).with_suffix("").parts))


def group_of(module):
    """Return the entry of the table for a module, given without `tfmagic.`."""
    if module == "hdf5.__init__":  # the door, which has what a feature brings
        return "__init__"
    first, *rest = module.split(".")
    if any(f"{module}.".startswith(f"{top}.") for top in ON_TOP):
        return "features on top"
    if any(f"{module}.".startswith(f"{low}.") for low in BELOW):
        return "names of features"
    return "cluster" if rest and f"{first}.{rest[0]}" in WHOLE else first


def name_of(path):
    """Return the name of a module, without `tfmagic.`; "" for `tfmagic` itself."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip(".")


def imports_of(path):
    """Return the modules of tfmagic that a module imports, without `tfmagic.`; "__init__" is `tfmagic` itself."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "tfmagic":
            inner = node.module.removeprefix("tfmagic").lstrip(".")
            for found in (f"{inner}.{alias.name}".lstrip(".") for alias in node.names):
                yield found if inner or is_module(found) else "__init__"
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names if a.name.split(".")[0] == "tfmagic"]
            yield from (name.partition(".")[2] or "__init__" for name in names)


def is_module(name):
    """Check whether `tfmagic` has a module of this name."""
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists()


def packages_imported_by(package):
    found = {group_of(name) for path in modules() if package_of(path) == package for name in imports_of(path)}
    return found & set(MAY_IMPORT) - {package}


def test_every_package_stands_in_the_table():
    assert {package_of(path) for path in modules()} == set(MAY_IMPORT)
    assert len(MAY_IMPORT) <= 24


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_what_the_table_says(package):
    assert packages_imported_by(package) == MAY_IMPORT[package]


def test_imports_between_packages_go_one_way():
    above = {package: set(others) for package, others in MAY_IMPORT.items()}
    while above:
        free = [package for package, others in above.items() if not others & set(above)]
        assert free, f"these import each other: {sorted(above)}"
        for package in free:
            del above[package]


def test_imports_between_files_go_one_way():
    """Imports for type checkers count: a Protocol or a function that is handed in cuts a circle."""
    names = {name_of(path): path for path in modules()}
    above = {
        name: {found if found in names else found.rpartition(".")[0] for found in imports_of(path)} - {name}
        for name, path in names.items()
    }
    while free := [name for name, others in above.items() if not others & above.keys()]:
        for name in free:
            del above[name]
    assert not above, f"these import each other: {sorted(above)}"


def test_wings_of_clusters_import_one_way():
    wings = {"launch": set(), "cells": {"launch"}, "tools": set()}
    for wing, others in wings.items():
        found = {
            name.split(".")[1]
            for path in modules(f"clusters/{wing}")
            for name in imports_of(path)
            if name.startswith("clusters.")
        }
        assert found - {wing} == others, wing


def test_every_package_says_what_it_is_for():
    for path in PACKAGE.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path


@pytest.mark.parametrize(
    "name", ["lifecycle", "escalation", "state", "barriers", "stalls", "restarts", "one_shot_rules"]
)
def test_the_lifecycle_is_pure(name):
    tree = ast.parse((PACKAGE / "supervisor" / f"{name}.py").read_text())
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert not names & {"os", "time", "threading", "signal", "subprocess", "socket"}


def test_the_supervisor_unpickles_nothing():
    for path in modules("supervisor"):
        assert "pickl" not in path.read_text().replace("unpickles nothing", "")


@pytest.mark.parametrize("package", sorted(set(MAY_IMPORT) - {"frontends", "task"}))
def test_a_message_on_a_failing_stream_ends_nothing(package):
    """Only `notices.tell` prints on the error stream where tasks run on: it raises nothing."""
    for path in (path for path in modules(package) if path.name not in ("notices.py", "shell.py")):
        text = path.read_text()
        assert not re.search(r"file=sys\.stderr|sys\.stderr\.write|\.print_exc\(", text), path


def test_one_function_makes_the_commands_of_cells():
    makers = {
        path.stem
        for name in ("clusters", "frontends")
        for path in modules(name)
        if "RunCell(" in path.read_text()
    }
    assert makers == {"task_variables", "one_shot_tasks"}  # the last one in a record of failures


def test_nobody_writes_the_state_of_the_supervisor_from_outside():
    for path in modules():
        stores = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        ]
        assert not [node.attr for node in stores if ast.unparse(node.value).endswith("supervisor")], path


def test_the_server_extension_reads_run_folders_and_nothing_else():
    """Jupyter Server loads it for all its notebooks: it needs no cluster, no kernel and no TensorFlow."""
    assert not [package for package, others in MAY_IMPORT.items() if "server" in others]
    code = (
        "import sys, tfmagic.features.metrics.server, tfmagic.server.handlers; "
        "print({m.partition('.')[0] for m in sys.modules} "
        "& {'tensorflow', 'keras', 'ipywidgets', 'numpy', 'dill'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_magic_uses_the_public_interface_of_clusters():
    """Python code can do everything that the magic can do."""
    foreign = {"_option_string_actions", "_getframe"}  # of argparse and sys
    inner = ("supervisor.supervisor", "supervisor.lifecycle", "supervisor.state", "protocol.channel")
    inner += ("clusters.running_cluster", "clusters.cells.task_variables", "clusters.cells.cluster_cells")
    ways_in = [*modules("frontends/notebook"), *modules("features/doctor"), PACKAGE / "pytest_plugin.py"]
    for path in ways_in:
        assert not [name for name in imports_of(path) if name.startswith(inner)], path
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
    too_long = {str(p): n for p in modules() if (n := len(p.read_text().splitlines())) > 400}
    assert not too_long


LONG = {  # functions of more than 40 lines of code, and why a cut would not make them clearer
    "clusters/cluster.py:__init__": "half of it is the signature, which is the interface",
    "clusters/running_cluster.py:__init__": "the wiring of the parts, in one place",
    "backends/remote/backend.py:__init__": "the wiring of the driver, in one place",
    "supervisor/lifecycle.py:apply": "a flat match of events",
    "supervisor/story_words.py:_seen": "a flat match of events",
    "tfrecord/reading.py:read_shards": "half of it is the signature, which is the interface",
}
MANY_PARAMETERS = {  # more than 7 that can be positional
    "backends/remote/backend.py:__init__": "see above",
    "multi_process_runner/runner.py:__init__": "TensorFlow's own signature",
    "multi_process_runner/runner.py:run": "TensorFlow's own signature",
}


def test_functions_stay_readable():
    long, many = set(), set()
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            name = f"{path.relative_to(PACKAGE)}:{node.name}"
            text = node.body[0] if ast.get_docstring(node, clean=False) else None
            docstring = text.end_lineno - text.lineno + 1 if text is not None else 0
            if node.end_lineno - node.lineno + 1 - docstring > 40:
                long.add(name)
            positional = [
                a.arg for a in (*node.args.posonlyargs, *node.args.args) if a.arg not in ("self", "cls")
            ]
            if len(positional) > 7:
                many.add(name)
    assert long == set(LONG) and many == set(MANY_PARAMETERS)


def test_tests_stand_in_the_folder_of_their_package():
    """What crosses packages is in tests/integration, and one can read its list of files."""
    folder = Path(__file__).parent / "integration"
    assert len(list(folder.glob("test_*.py"))) <= 15
