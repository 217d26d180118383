"""Private parts of IPython, h5py, Ray, debugpy and Python can be gone: a line says what that costs, and the rest works."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tfmagic.backends.remote import patches as of_ray
from tfmagic.features.debug import pydevd_parts
from tfmagic.frontends.notebook import patches as of_ipython
from tfmagic.hdf5 import patches as of_h5py
from tfmagic.system import signal_handlers
from tfmagic.system.patches import Patch, PatchTable

TABLES = {
    "IPython": of_ipython.TABLE,
    "h5py": of_h5py.TABLE,
    "Python": signal_handlers.TABLE,
    "debugpy": pydevd_parts.TABLE,
}
if importlib.util.find_spec("ray") is not None:
    TABLES["ray"] = of_ray.TABLE
ROWS = [(package, name) for package, table in TABLES.items() for name in table.rows]

# The packages are imported once, and each row is broken in a fork.
PROGRAM = f"""
import importlib, json, os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "support")!r})
import debugpy._vendored.force_pydevd, h5py, pydevd
from IPython.core.interactiveshell import InteractiveShell
from IPython.terminal.prompts import Prompts
from broken_patches import break_row
from doctoring import case
from tfmagic.backends.remote import patches as of_ray, ray_head
from tfmagic.clusters.launch.settings import TFCluster
from tfmagic.features.debug import pydevd_parts
from tfmagic.features.doctor import ray_cluster, software
from tfmagic.frontends.notebook import patches as of_ipython, plain_cells
from tfmagic.hdf5 import guarding, patches as of_h5py
from tfmagic.system import signal_handlers

def use_IPython():
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "tfmagic")
    shell.prompts = Prompts(shell)
    plain_cells.install(shell, "default", None)
    plain_cells.remove(shell)
    shell.run_cell("1 / 0")
    print(*software.ipython_parts(case(shell)))

def use_h5py():
    original = h5py.File.__init__
    guarding.guard()
    assert h5py.File.__init__ is original or of_h5py.TABLE.fits(of_h5py.GUARD)
    print(*of_h5py.TABLE.left_out())

def use_ray():
    if not of_ray.TABLE.fits(of_ray.MESSAGES):
        assert ray_head._decode(b"?", b"?") == ("", ())
    if not of_ray.TABLE.fits(of_ray.HEAD):
        head = ray_head._ask("127.0.0.1:1", {{}}, 1.0)
        (finding,) = ray_cluster.head_findings(head, "2.60.0", {{}})
        assert head == ray_head.Head("127.0.0.1:1") and "could not be asked" in finding.what
    print(*of_ray.TABLE.left_out())

def use_Python():
    module = importlib.reload(signal_handlers)
    assert (module.handler_of is signal.getsignal) is not module.TABLE.fits(module.HANDLERS)
    print(*module.TABLE.left_out())

def use_debugpy():
    pydevd.PyDB()
    pydevd_parts.hide_folders("/nowhere")
    pydevd_parts.set_file("cell", "/nowhere/cell.py")
    pydevd_parts.leave_by_interrupts()
    pydevd_parts.trace_main_thread()
    print(*pydevd_parts.TABLE.left_out())

tables = dict(IPython=of_ipython.TABLE, h5py=of_h5py.TABLE, ray=of_ray.TABLE, Python=signal_handlers.TABLE)
tables["debugpy"] = pydevd_parts.TABLE
TFCluster.instance().warm = False  # no launcher
for package, name in json.loads(sys.argv[1]):
    print(f"--- {{name or package}}", flush=True)
    if os.fork() == 0:
        if name != "":
            break_row(tables[package].rows[name])
        globals()[f"use_{{package}}"]()
        sys.stdout.flush()
        os._exit(0)
    assert os.wait()[1] == 0
"""


@pytest.fixture(scope="module")
def shown():
    """Return what each row's package prints without it."""
    command = [
        sys.executable,
        "-W",
        "error",
        "-c",
        PROGRAM,
        json.dumps([*ROWS, *((package, "") for package in TABLES)]),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return dict(part.split("\n", 1) for part in done.stdout.split("--- ")[1:])


@pytest.mark.parametrize("package", TABLES)
def test_all_rows_fit_the_installed_versions(shown, package):
    assert "left out" not in shown[package]


@pytest.mark.parametrize(("package", "name"), ROWS)
def test_what_works_without_a_row_is_said(shown, package, name):
    assert f"{name} is left out (" in shown[name]
    assert TABLES[package].rows[name].without_it in shown[name]


@pytest.mark.parametrize(
    ("target", "missing"),
    [
        ("json.decoder:JSONDecoder|Decoder.decode(s) uses raw_decode", ""),
        ("json:nothing", "no json:nothing"),
        ("json:dumps.nothing", "no json:dumps.nothing"),
        ("nowhere.at_all:x", "nowhere.at_all:x: No module named 'nowhere'"),
        ("json:__version__()", "json:__version__ is no function"),
        ("json:dumps(obj, nothing)", "json:dumps has no parameter nothing"),
        ("json:dumps uses JSONEncoder, nothing", "json:dumps does not use nothing"),
    ],
)
def test_a_probe_says_what_is_missing(target, missing):
    table = PatchTable(Patch("row", (target,), "", ""), Patch("other", (), "", "", needs=("row",)))
    assert table.missing("other") == table.missing("row") == missing


def test_an_install_that_fails_is_left_out():
    table = PatchTable(Patch("row", ("json:dumps",), "", "no row", install="json:loads(given)"))
    assert table.fits("row") and not table.install("row", given="{}")
    assert table.left_out() == [f"row is left out ({table.missing('row')}): no row"]
