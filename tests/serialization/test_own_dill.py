"""dill's import leaves Python's own pickler as it was, unless the user has imported dill."""

import subprocess
import sys

import pytest

PROGRAM = """
import dataclasses, io, pickle, sys
{first}
from tfmagic.serialization import pickling
@dataclasses.dataclass
class Config:
    rate: float = 0.1
class Pickler(pickle._Pickler):  # as joblib's: it copies the table
    dispatch = pickle._Pickler.dispatch.copy()
class Notes: pass
sys.modules["notes"] = type(sys)("notes"); sys.modules["notes"].Notes = Notes; Notes.__module__ = "notes"
for value in (Config(), Config, Notes):
    Pickler(io.BytesIO()).dump(value)
print(any(f.__module__ == "dill._dill" for f in pickle._Pickler.dispatch.values()))
print(pickling.dumps(lambda: 1, {{}}).size_bytes > 0)
"""


@pytest.mark.parametrize("first", ["", "import dill", "import dill; dill.extend(False)"])
def test_pythons_own_pickler_stays_as_the_user_has_it(first):
    command = [sys.executable, "-c", PROGRAM.format(first=first)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if first == "import dill":  # the plain class, at least: the user has chosen that
        assert "True" in done.stdout or "save_function" in done.stderr
    else:
        assert done.stdout == "False\nTrue\n", done.stderr
