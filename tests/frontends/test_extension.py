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
