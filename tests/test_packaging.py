"""The contents of a wheel: the package, `py.typed`, and the kernel that Jupyter finds."""

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    (made,) = folder.glob("tfmagic-*.whl")
    return made


def test_a_wheel_from_the_checkout_is_complete(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        kernel = next(n for n in names if n.endswith("share/jupyter/kernels/tfmagic/kernel.json"))
        spec = json.loads(archive.read(kernel))
        placed = "data/etc/jupyter/jupyter_server_config.d/tfmagic.json"
        switch = json.loads(archive.read(next(n for n in names if n.endswith(placed))))
    lesson = "frontends/course/notebooks/01-first-cluster.ipynb"
    for name in ("py.typed", "task/launcher.py", "views/assets/panel.js", "views/assets/panel.css", lesson):
        assert f"tfmagic/{name}" in names
    assert any("tfmagic" in argument for argument in spec["argv"])
    assert switch == {"ServerApp": {"jpserver_extensions": {"tfmagic.server": True}}}
    assert not any(n.startswith("tests") for n in names)


def test_an_installation_shows_what_it_does_and_its_log_only_if_it_fails(wheel, tmp_path):
    def install(*words):
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--no-index",
            "--no-deps",
            "--target",
            tmp_path / "into",
        ]
        command = [
            sys.executable,
            ROOT / "scripts" / "pip_progress.py",
            tmp_path / "install.log",
            *pip,
            *words,
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    code, shown = install(wheel)
    assert code == 0 and (tmp_path / "into" / "tfmagic").is_dir()
    assert re.fullmatch(r"  0:\d\d  packages installed: 1\n", shown)
    assert "Processing" in (tmp_path / "install.log").read_text()
    code, shown = install("tfmagic-nowhere")
    assert code == 1 and "No matching distribution found for tfmagic-nowhere" in shown
    assert f"pip failed with exit code 1; all of its output is in {tmp_path / 'install.log'}" in shown
