"""The notebook's own modules on two hosts of Ray: all tasks have the same version, whatever is edited meanwhile."""

import sys

import pytest
from ray_nodes import RayNodes

from tfmagic.errors import LaunchError

PACKAGE = """
import json
from pathlib import Path

def rows():
    return json.loads(Path(__file__).with_name("table.json").read_text())
"""


@pytest.fixture
def address(monkeypatch):
    with RayNodes() as nodes:
        nodes.start(cpus=1)
        nodes.add(cpus=1)
        for name, value in nodes.driver_variables().items():
            monkeypatch.setenv(name, value)
        yield nodes.address


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of modules beside the notebook, which it does not import itself."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "ray_package").mkdir()
    (tmp_path / "ray_package" / "__init__.py").write_text(PACKAGE)
    (tmp_path / "ray_package" / "table.json").write_text("[1, 2, 3]")
    (tmp_path / "ray_module.py").write_text("VERSION = 1")
    return tmp_path


def test_all_tasks_have_one_version_of_an_edited_module_until_it_is_reloaded_or_they_restart(
    address, folder, notebook, capfd
):
    notebook.run(
        f"%%tfcluster --workers 2 --backend ray --address {address} --placement strict-spread --view text\nx = 1"
    )

    def on_both(text):
        return notebook.run(f"%%tfcluster --view text\n{text}")

    shown = on_both(
        "import ray_package\nprint('rows', ray_package.rows(), '/modules-' in ray_package.__file__)"
    )
    assert shown.count("rows [1, 2, 3] True") == 2

    module, later = folder / "ray_module.py", folder / "ray_later.py"
    module.write_text("VERSION = 2.0")  # after the start, and before any task has imported it
    capfd.readouterr()
    assert on_both("import ray_module\nprint('version', ray_module.VERSION)").count("version 1\n") == 2
    told = capfd.readouterr().err
    assert "ray_module.py changed after worker-0, worker-1 got copies of this notebook's files" in told
    assert "%tfcluster reload ray_module" in told
    notebook.run("%tfcluster reload ray_module")
    assert on_both("print('version', ray_module.VERSION)").count("version 2.0\n") == 2
    assert "changed" not in capfd.readouterr().err

    later.write_text("NEW = True")
    find = "import importlib.util as u\nprint('found', u.find_spec('ray_later') is not None)"
    assert on_both(find).count("found False") == 2
    on_both("try:\n    import ray_later\nexcept ImportError:\n    pass")
    assert "ray_later.py changed after" in capfd.readouterr().err
    notebook.run("%tfcluster reload ray_later")
    assert on_both("import ray_later\nprint('new', ray_later.NEW)").count("new True") == 2

    module.write_text("VERSION = 3.00")
    notebook.run("%tfcluster kill worker-1")
    notebook.run("%tfcluster revive")
    assert on_both("import ray_module\nprint('version', ray_module.VERSION)").count("version 2.0\n") == 2

    notebook.run("%config TFCluster.max_module_bytes = 10")
    with pytest.raises(LaunchError, match="Nothing was started or ended"):
        notebook.run("%tfcluster restart")
    with pytest.raises(LaunchError, match="Nothing was started or ended"):
        notebook.run(f"%tfcluster restart --workers 1 --backend ray --address {address}")
    assert "1" in notebook.run("%%tfcluster --on worker-0 --view text\nprint(x)")
    notebook.run(f"%config TFCluster.max_module_bytes = {32 << 20}")
    later.unlink()
    module.write_text("VERSION = 1")  # all is as it was at the start, which the hosts' copies are not
    capfd.readouterr()
    notebook.run("%tfcluster restart")
    assert on_both("import ray_module\nprint('version', ray_module.VERSION)").count("version 1\n") == 2
    assert "changed" not in capfd.readouterr().err
    assert not {"ray_module", "ray_later", "ray_package"} & set(sys.modules)
