"""The contents of a wheel: the package, `py.typed`, and the kernel that Jupyter finds."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_wheel_from_the_checkout_is_complete(tmp_path):
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(tmp_path),
        str(ROOT),
    ]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("tfmagic-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        kernel = next(n for n in names if n.endswith("share/jupyter/kernels/tfmagic/kernel.json"))
        spec = json.loads(archive.read(kernel))
        placed = "data/etc/jupyter/jupyter_server_config.d/tfmagic.json"
        switch = json.loads(archive.read(next(n for n in names if n.endswith(placed))))
    for name in ("py.typed", "task/launcher.py", "views/assets/panel.js", "views/assets/panel.css"):
        assert f"tfmagic/{name}" in names
    assert any("tfmagic" in argument for argument in spec["argv"])
    assert switch == {"ServerApp": {"jpserver_extensions": {"tfmagic.server": True}}}
    assert not any(n.startswith("tests") for n in names)
