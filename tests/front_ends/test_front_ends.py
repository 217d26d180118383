"""What stays of a cell in the notebook of each front end: five cases, against documents that were read by people.

A file of `clients` is a front end. `GOLDEN=write` writes the documents of the clients that the test runs.
"""

import importlib
import json
import os
from pathlib import Path

import pytest
from kernels import Kernel
from replays import normalise
from whole_notebooks import PYTHON, WholeNotebook

HERE = Path(__file__).parent
CLIENTS = sorted(path.stem for path in (HERE / "clients").glob("*.py"))
# A start is shown from its first millisecond on, and programs get lines from a cell that lasts, but not from others,
# however busy the machine is. A failure has its limit as text.
SETUP = """
import os, tfmagic
from tfmagic.clusters.launch import startup
from tfmagic.views import logged, progress
before = startup._LOOK_S, progress._QUIET_S, logged._QUICK_S
startup._LOOK_S, progress._QUIET_S = 0.001, 0.0
%config TFCluster.text_bytes = 4000
"""
RESET = """
startup._LOOK_S, progress._QUIET_S, logged._QUICK_S = before
os.environ.pop("JPY_SESSION_NAME", None)
"""
LASTS = "progress"
CASES = {
    "first cell": """%%tfcluster --workers 2 --cluster first
print("I am", tfmagic.current_task().name)""",
    "two tasks": """%%tfcluster
import sys
print("on standard output")
print("on standard error", file=sys.stderr)
tfmagic.current_task().index + 40""",
    "failure": """%%tfcluster
print("before")
if tfmagic.current_task().index == 1:
    raise ValueError("bad batch 3")
tfmagic.barrier()""",
    "progress": """%%tfcluster
import os, time
from tqdm import tqdm
for step in range(3):
    print(f"\\rstep {step}", end="", flush=True)
    tfmagic.track(loss=1 / (step + 1))
print()
for _ in tqdm(range(3)):
    pass
while not os.path.exists(FLAG):
    time.sleep(0.01)""",
    "figure and table": """%%tfcluster --on worker-0
import matplotlib.pyplot as plt, pandas as pd
plt.plot([1, 2])
plt.show()
pd.DataFrame({"a": [1, 2]})""",
}
IN_SESSION = "os.environ['JPY_SESSION_NAME'] = 'a.ipynb'"  # as a Jupyter server does for a notebook's kernel
BY_ITSELF = "os.environ.pop('JPY_SESSION_NAME', None)"
LIVE = "step 2"  # the cell that lasts goes on until the client was sent it


@pytest.fixture(scope="module")
def kernel_of_all(shared_kernel):
    shared_kernel.run(SETUP)
    yield shared_kernel
    shared_kernel.run(RESET)


@pytest.fixture
def scripts(commands, tmp_path):
    """Return the process that runs commands and scripts, and a folder for them."""
    return commands, tmp_path


@pytest.fixture
def xeus_kernel():
    kernel = Kernel(python=str(PYTHON), module="xpython_launcher")
    kernel.run("%load_ext tfmagic\nimport tfmagic")
    yield kernel
    kernel.close()


@pytest.mark.parametrize("name", CLIENTS)
def test_the_document_of_a_front_end(kernel_of_all, name, tmp_path, request):
    kind = importlib.import_module(f"clients.{name}").Client
    client = kind(request.getfixturevalue(getattr(kind, "takes", "kernel_of_all")))
    kernel_of_all.run(IN_SESSION if client.in_session else BY_ITSELF)
    document, flag = {}, tmp_path / "flag"

    def look(text):
        if LIVE in text:
            flag.touch()

    cells = {case: code.replace("FLAG", repr(str(flag))) for case, code in CASES.items()}
    if isinstance(client, WholeNotebook):
        flag.touch()
        client.open(list(cells.values()))
    for case, code in cells.items():
        kernel_of_all.run(f"logged._QUICK_S = {0 if case == LASTS else 1e9}")
        document[case] = normalise(client.run(code, look))
    kernel_of_all.run("%tfcluster stop --cluster first")
    golden = HERE / "golden" / f"{name}.json"
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    if os.environ.get("GOLDEN") == "write":
        golden.write_text(text)
    assert text == golden.read_text()


def test_each_front_end_has_its_row_in_the_documentation():
    page = (HERE.parents[1] / "docs" / "front-ends.md").read_text()
    assert [name for name in CLIENTS if f"clients/{name}.py)" not in page] == []
