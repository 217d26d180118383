"""The image of an export, as far as no Docker is needed: the steps of its Dockerfile, and a run of what they make."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from fnmatch import fnmatch
from pathlib import Path

import portpicker
import pytest
import yaml
from ordinary_user import as_ordinary_user
from test_export import cell, program

from tfmagic.features.exports.folder import write_folder
from tfmagic.protocol.cluster_spec import ClusterShape

SHAPE = ClusterShape(2)
TRAIN = """import keras
import tensorflow as tf
import tfmagic

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile("sgd", "mse", jit_compile=False)
data = tf.data.Dataset.from_tensor_slices((features, features.sum(1))).batch(4)
model.fit(data, epochs=1, verbose=0, callbacks=[keras.callbacks.TensorBoard("tb")])
model.save("model.keras")
print("tfmagic of", tfmagic.__file__)
"trained", round(float(abs(model.get_weights()[0]).sum()), 5)"""


def make_venv(folder, site=None):
    """Make a virtual environment; with `site`, all packages of that folder are in it, but for tfmagic."""
    venv.create(folder, with_pip=True)
    if site is not None:
        (linked := folder / "linked").mkdir()
        for entry in Path(site).iterdir():
            if "tfmagic" not in entry.name and not entry.name.startswith(("pip", "__")):
                (linked / entry.name).symlink_to(entry)
        (inner,) = folder.glob("lib/python*/site-packages")
        (inner / "linked.pth").write_text(f"{linked}\n")
    return folder / "bin"


def context(folder):
    """Return the names of the files that docker build gets: what .dockerignore leaves."""
    first, *others = [s for s in (folder / ".dockerignore").read_text().splitlines() if s[:1] != "#"]
    assert first == "*"
    kept = [line.removeprefix("!") for line in others]
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    return [name for name in names if any(fnmatch(name, pattern) for pattern in kept)]


def build(folder, root, path):
    """Do each step of the Dockerfile below `root`. Return folder, environment and command of a container."""
    environ = {"PATH": f"{path}{os.pathsep}/usr/bin{os.pathsep}/bin", "HOME": str(root)}
    environ |= {name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "SSL_"))}
    here, user, command = root, "", []
    for line in (folder / "Dockerfile").read_text().splitlines():
        step, _, words = line.partition(" ")
        words = re.sub(r"(?<![\w.])/(app|data)\b", rf"{root}/\1", words)
        match step:
            case "FROM":
                assert words == f"python:{sys.version_info[0]}.{sys.version_info[1]}-slim"
            case "WORKDIR":
                (here := Path(words)).mkdir(exist_ok=True)
            case "COPY":
                *options, source, target = words.split()
                names = [name for name in [*options, source] if not name.startswith("--")]
                for name in context(folder) if names == ["."] else names:
                    (here / target / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(folder / name, here / target / name)
                owner = re.search(r"--chown=(\d+)", words)
            case "RUN" if words.startswith("useradd"):
                assert re.search(r"--uid 1000 .*mkdir .*/data && chown 1000 .*/data", words)
                (root / "data").mkdir()
            case "RUN":
                done = subprocess.run(
                    words, shell=True, cwd=here, env=environ, capture_output=True, text=True
                )
                assert done.returncode == 0, done.stdout + done.stderr
            case "ARG" | "ENV":
                name, _, value = words.partition("=")
                environ[name] = value.strip('"')
            case "USER":
                user = words
            case "CMD":
                command = json.loads(words)
            case "#" | "":
                pass
            case _:
                raise AssertionError(f"this test knows no {step}")
    assert user == owner[1] == "1000", "the files are only for their owner"
    return here, environ, command


def run(folder, here, environ, command):
    """Run a container for each task of compose.yaml. Return what each has printed."""
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    ports = {f"{name}:2222": f"127.0.0.1:{portpicker.pick_unused_port()}" for name in services}
    running = {}
    for name, service in services.items():
        config = service["environment"]["TF_CONFIG"]
        for inside, outside in ports.items():
            config = config.replace(inside, outside)
        running[name] = subprocess.Popen(
            as_ordinary_user(*command), cwd=here, env={**environ, "TF_CONFIG": config},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    ended = {name: (process.communicate(), process.returncode) for name, process in running.items()}
    assert {name: code for name, (_, code) in ended.items() if code} == {}, ended
    return {name: out.splitlines() for name, ((out, _), _) in ended.items()}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("packages", ["this environment", pytest.param("the index", marks=pytest.mark.soak)])
def test_the_image_can_be_built_and_trains(tmp_path, packages):
    """With the packages of this environment, but not its tfmagic; `make chaos` takes all from the index."""
    import numpy as np

    folder, root = tmp_path / "train", tmp_path / "image"
    written = write_folder(folder, program(cell(1, TRAIN, ("worker-0", "worker-1")), shape=SHAPE,
                                           features=np.ones((16, 2), "float32")), SHAPE)  # fmt: skip
    (folder / "notes-of-mine.txt").write_text("private")
    root.mkdir()
    site = sysconfig.get_path("purelib") if packages == "this environment" else None
    here, environ, command = build(folder, root, make_venv(root / "python", site))
    copied = {str(path.relative_to(root / "app")) for path in (root / "app").rglob("*") if path.is_file()}
    (wheel,) = (name for name in written.files if name.endswith(".whl"))
    assert copied == {"main.py", "task_setup.py", "data.npz", "requirements.txt", wheel}
    shown = run(folder, here, environ, command)
    assert shown["worker-0"][-1] == shown["worker-1"][-1] and "trained" in shown["worker-0"][-1]
    installed = str(next((root / "python").glob("lib/python*/site-packages")) / "tfmagic" / "__init__.py")
    assert f"tfmagic of {installed}" in shown["worker-0"]
    assert {path.name for path in (root / "data").iterdir()} >= {"model.keras", "tb"}
    assert "keras_fix" not in "".join(shown["worker-0"])
