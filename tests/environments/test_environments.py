"""A cluster works beside other libraries as it does in our environment, and its tasks are forked there, too.

Each environment is a virtual one with the packages of ours and some more, which `scripts/beside` installs; the last
two have modules of their own that Python imports by itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kernels import Kernel

ROOT = Path(__file__).parents[2]
FIT = """%%tfcluster --out losses
import numpy as np, tensorflow as tf, keras
with tf.distribute.MultiWorkerMirroredStrategy().scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = np.arange(32, dtype="float32").reshape(16, 2) / 32
history = model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0)
round(history.history["loss"][-1], 5)
"""
LAUNCHER = """
from tfmagic.backends import launcher_client
print([launcher.process.pid for launcher in launcher_client.running()])
"""


@dataclass(frozen=True)
class Beside:
    """Packages beside tfmagic, and what a user does with them.

    Attributes:
        name: The environment's name for `scripts/beside`; "" for ours.
        make: Cell of the notebook that makes `value`.
        use: Expression of a task that uses `value`, with another value of the library as result.
        same: Condition in the notebook on `results`, the results of `use` by task.
        modules: Further modules by file name, in a folder at the beginning of the path.
        told: What is said of tasks that cannot be forked; "" where they are.
    """

    name: str
    make: str
    use: str
    same: str
    modules: dict[str, str] = field(default_factory=dict)
    told: str = ""


ARROW = Beside(
    "arrow",
    "import pyarrow as pa, polars as pl, pandas as pd\n"
    "value = pa.table({'a': [1, None, 3]}), pl.DataFrame({'b': ['x', 'y']}), pd.Series([1.5], dtype='float64[pyarrow]')",
    "(value[0].append_column('c', value[0]['a']), value[1].with_columns(pl.col('b').str.to_uppercase().alias('d')), value[2] * 2)",
    "all(t.equals(value[0].append_column('c', value[0]['a'])) and d['d'].to_list() == ['X', 'Y'] and s[0] == 3.0"
    " and str(s.dtype) == 'double[pyarrow]' for t, d, s in results.values())",
)
JOBLIB = Beside(
    "",
    "import numpy as np\nfrom sklearn.ensemble import RandomForestClassifier\n"
    "points = np.arange(40.0).reshape(20, 2)\n"
    "value = RandomForestClassifier(8, n_jobs=2, random_state=1).fit(points, points[:, 0] > 19)",
    "value.set_params(warm_start=True, n_estimators=12).fit(points, points[:, 0] > 19)",
    "all(len(r.estimators_) == 12 and (r.predict(points) == (points[:, 0] > 19)).all() for r in results.values())",
)
JAX = Beside(
    "jax",
    "import jax, jax.numpy as jnp\nvalue = jnp.arange(4.0)",
    "jax.jit(jax.grad(lambda x: (x ** 2).sum()))(value)",
    "all(isinstance(r, jax.Array) and r.tolist() == [0, 2, 4, 6] for r in results.values())",
)
TORCH = Beside(
    "torch",
    "import torch\nvalue = torch.nn.Linear(2, 1)",
    "[torch.optim.Adam(value.parameters()), value(torch.ones(1, 2)).sum().backward(), value.weight.grad][2]",
    "all(r.tolist() == [[1.0, 1.0]] for r in results.values())",
)
DATASETS = Beside(
    "datasets",
    "import tensorflow_datasets as tfds\nvalue = tfds.features.FeaturesDict({'image': tfds.features.Image(shape=(2, 2, 3))})",
    "value['image'].shape",
    "set(results.values()) == {(2, 2, 3)}",
)
OPENCV = Beside(
    "opencv",
    "import cv2, numpy as np\nvalue = np.eye(8, dtype='uint8') * 200",
    "cv2.GaussianBlur(value, (3, 3), 0)",
    "all((r == cv2.GaussianBlur(value, (3, 3), 0)).all() for r in results.values())",
)
PRINTS = Beside(
    "",
    "import noisy\nvalue = noisy.Box(3)",
    "noisy.Box(value.item + 1)",
    "all(r.item == 4 and type(r) is noisy.Box for r in results.values())",
    {
        "noisy.py": "import sys, os, warnings\nprint('hello from noisy')\nprint('and on stderr', file=sys.stderr)\n"
        "os.write(1, b'raw\\n')\nwarnings.warn('noisy is deprecated')\n"
        "class Box:\n    def __init__(self, item): self.item = item\n",
        "sitecustomize.py": "import noisy\n",
    },
)
STARTS_A_THREAD = Beside(
    "",
    "import busy\nvalue = busy.started",
    "busy.started",
    "all(r is True for r in results.values())",
    {
        "busy.py": "import threading\nstarted = True\n"
        "threading.Thread(None, threading.Event().wait, 'busy-reporter', daemon=True).start()\n",
        # urllib3, which TensorFlow imports, imports it where it is installed
        "brotli.py": "import busy\n__version__, error, Decompressor = '1.2.0', OSError, object\n",
    },
    told="busy.py",
)
soak = pytest.mark.soak


@pytest.mark.parametrize(
    "beside",
    [
        ARROW,
        *(
            pytest.param(row, marks=soak)
            for row in (STARTS_A_THREAD, JOBLIB, JAX, TORCH, DATASETS, OPENCV, PRINTS)
        ),
    ],
    ids=["arrow", "a thread", "joblib", "jax", "torch", "datasets", "opencv", "prints"],
)
def test_a_cluster_works_beside_other_packages(beside, tmp_path):
    with kernel_beside(beside, tmp_path) as kernel:
        kernel.run("%load_ext tfmagic")
        launcher = kernel.text(LAUNCHER)
        kernel.run(beside.make)  # what a library sets in the environment needs no other launcher
        shown = kernel.text(f"%%tfcluster --workers 2 --out results\n{beside.use}")
        assert kernel.text(f"print({beside.same})") == "True\n", shown
        assert beside.told in shown and kernel.text(LAUNCHER) == launcher
        kernel.run("%tfcluster stop")
        shown = kernel.text("%%tfcluster --workers 2 --out results\nprint('second start')\n2 + 3")
        assert shown.count("second start") == 2
        first = pids(kernel)
        assert all(is_forked(pid) != bool(beside.told) for pid in first.values())
        assert beside.told in kernel.text("%tfcluster status") and beside.told in kernel.text(
            "%tfcluster doctor"
        )
        kernel.run(FIT)
        assert kernel.text("print(len(set(losses.values())), min(losses.values()) > 0)") == "1 True\n"
        name, text = kernel.error(
            "%%tfcluster\nimport tfmagic\nif tfmagic.current_task().index == 1:\n    {}['lost']\nkept = 1"
        )
        assert name == "KeyError" and "raised on worker-1" in text
        kernel.run("%tfcluster kill worker-1\n%tfcluster revive")
        now = pids(kernel)
        assert now["worker-0"] == first["worker-0"] and now["worker-1"] != first["worker-1"]
        assert is_forked(now["worker-1"]) != bool(beside.told)
        kernel.run(f"%%tfcluster --out results\n{beside.use}")
        assert kernel.text(f"print({beside.same})") == "True\n"


def test_loguru_shows_the_frames_of_the_cell_alone(tmp_path):
    with kernel_beside(ARROW, tmp_path) as kernel:
        kernel.run("%load_ext tfmagic")
        shown = kernel.text(
            "%%tfcluster --workers 1\nfrom loguru import logger\ndef f(a):\n    return 1 / a\n"
            "try:\n    f(0)\nexcept ZeroDivisionError:\n    logger.exception('bad')"
        )
    assert "tfmagic" not in shown and '"<string>"' not in shown
    assert [line.split(", line ")[1] for line in shown.splitlines() if ", line " in line] == [
        "6, in <module>",
        "4, in f",
    ]


@contextmanager
def kernel_beside(beside: Beside, folder: Path) -> Iterator[Kernel]:
    """Start a kernel in an environment, with its modules on the path."""
    python = str(ROOT / ".venv-beside" / beside.name / "bin" / "python") if beside.name else ""
    assert not python or os.path.exists(python), f"it is not installed: scripts/beside {beside.name}"
    for name, text in beside.modules.items():
        (folder / name).write_text(text)
    kernel = Kernel(
        cwd=str(folder), python=python, PYTHONPATH=str(folder)
    )  # not the lean imports of other tests
    try:
        yield kernel
    finally:
        kernel.close()


def pids(kernel: Kernel) -> dict[str, int]:
    """Return the pid of each task."""
    return {row["task"]: row["pid"] for row in json.loads(kernel.text("%tfcluster status --json"))}


def is_forked(pid: int) -> bool:
    """Check whether a process shares the imports of its launcher."""
    return b"launcher.main" in Path(f"/proc/{pid}/cmdline").read_bytes()
