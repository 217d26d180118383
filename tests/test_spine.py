"""The spine: the files on a cell's way from Enter to its tasks and back, as CONTRIBUTING lists them."""

import re
import sys
import threading
from pathlib import Path

import tfmagic
from tfmagic.protocol.commands import RunCell

PACKAGE = Path(tfmagic.__file__).parent
PAGE = PACKAGE.parent / "CONTRIBUTING.md"
MOST_FILES, MOST_LINES = 28, 6963  # the aim is 25 and 5500; less is better, more is not allowed
WITHOUT_CODE = {"protocol/events.py"}  # classes that only hold something
NOTE_CALLS = """
import os, sys, tfmagic
called, root = set(), os.path.dirname(tfmagic.__file__) + os.sep
sys.setprofile(lambda frame, event, arg: called.add(frame.f_code.co_filename))
"""


def listed():
    """Return the files of the block in CONTRIBUTING, without `tfmagic/`."""
    page = PAGE.read_text()
    way = page.partition("**A cell, from Enter to its tasks, and back.**")[2]
    block = re.search(r"\n\n((?:    .*\n)+)\n", way)
    paths = re.findall(r"^ {4,6}([a-z_]+(?:/[a-z_]+)+) ", block[1], re.MULTILINE)
    return [f"frontends/{path}.py" if path.startswith("notebook/") else f"{path}.py" for path in paths]


def test_the_spine_is_no_longer_than_it_was():
    files = set(listed())
    lines = sum(len((PACKAGE / file).read_text().splitlines()) for file in files)
    assert len(files) <= MOST_FILES and lines <= MOST_LINES, (len(files), lines)


def test_the_command_of_a_cell_has_few_fields():
    assert len(RunCell.__struct_fields__) <= 13


def test_an_empty_cell_goes_through_each_file_of_the_spine(notebook):
    called = set()

    def note(frame, event, arg):
        called.add(frame.f_code.co_filename)

    threading.setprofile(note)  # of the cluster's loop
    try:
        notebook.run("%tfcluster start --workers 2")
    finally:
        threading.setprofile(None)
    notebook.run(f"%%tfcluster{NOTE_CALLS}")
    called.clear()
    sys.setprofile(note)
    try:
        notebook.run("%%tfcluster\npass")
    finally:
        sys.setprofile(None)
    notebook.run("%%tfcluster --out found\nsys.setprofile(None)\nsorted(called)")
    there = {file for files in notebook.ns["found"].values() for file in files}
    missed = {file for file in listed() if str(PACKAGE / file) not in called | there}
    assert missed == WITHOUT_CODE, missed
