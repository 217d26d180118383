"""A module is changed as soon as it is imported."""

import subprocess
import sys

PROGRAM = """
import sys
from tfmagic.system.after_import import change_module

def change(module):
    seen.append((module.__name__, "hsv_to_rgb" in vars(module)))

seen, before = [], list(sys.meta_path)
for _ in range(2):
    change_module("colorsys", change)
assert seen == [] and len(sys.meta_path) == len(before) + 1
import colorsys
assert seen == [("colorsys", True)] and sys.meta_path == before
change_module("colorsys", change)
change_module("no_such_module", change)
assert len(seen) == 2
try:
    import no_such_module
except ModuleNotFoundError:
    assert sys.meta_path == before
"""


def test_a_module_is_changed_once_whenever_it_is_imported():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
