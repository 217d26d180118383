"""``%load_ext tfmagic`` where something stands in its way."""

import subprocess
import sys

CODE = """
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
config = Config()
config.TFCluster.workers = "many"
shell = InteractiveShell.instance(config=config)
shell.run_cell("%load_ext tfmagic")
print("tfcluster" in shell.magics_manager.magics["line"], shell.input_transformers_post)
"""


def test_a_setting_that_makes_no_sense_is_one_sentence_and_registers_nothing():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout == "False []\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "UsageError: The 'workers' trait of a TFCluster instance expected an int, not the str"
    )


SHELL = """
import os, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
"""
FOREGROUND = """
sys.modules["tfmagic.frontends.notebook.whole"] = None  # without its thread
before = set(sys.modules)
shell.run_line_magic("load_ext", "tfmagic")
print(*sorted(set(sys.modules) - before))
"""
FORKED = """
shell.run_line_magic("load_ext", "tfmagic")
if (pid := os.fork()) == 0:
    import tfmagic.frontends.notebook.whole
    os._exit(42)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def printed(code):
    """Return what a fresh interpreter prints, without a launcher that would import TensorFlow."""
    code = f"{SHELL}from tfmagic import TFCluster; TFCluster.instance(parent=shell, warm=False)\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.splitlines()


def test_loading_imports_little():
    (line,) = printed(FOREGROUND)
    found = set(line.split())
    assert not found & {
        "anywidget",
        "dill",
        "google.protobuf",
        "h5py",
        "ipywidgets",
        "numpy",
        "tensorflow",
        "tfmagic.clusters.cluster",
        "tfmagic.features.doctor.checks",
        "tfmagic.frontends.notebook.magic",
        "tfmagic.frontends.notebook.options",
        "tfmagic.serialization.pickling",
        "tfmagic.supervisor.supervisor",
        "wcwidth",
    }
    assert "tfmagic.backends.launcher_client" in found  # the launcher starts at once
    assert not {name for name in found if name.startswith("tfmagic.views")}


def test_a_process_that_is_forked_while_the_rest_is_imported_can_import_it():
    assert printed(FORKED) == ["42"]


def test_what_cannot_be_imported_meanwhile_is_an_error_of_the_first_use():
    use = f'{FOREGROUND}shell.run_cell("%tfcluster status")'
    assert "ModuleNotFoundError" in printed(use)[-1]


def test_an_import_that_fails_in_the_background_names_its_reason():
    """The first use comes while the thread imports: no file can be written, so dill finds no folder."""
    use = (
        "import resource, tempfile; tempfile.tempdir = None; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        'shell.run_line_magic("load_ext", "tfmagic")\nshell.run_cell("%tfcluster status")'
    )
    assert "[Errno 2] No usable temporary directory" in "".join(printed(use)[-2:])
