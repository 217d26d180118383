"""The contents of a wheel: the package, `py.typed`, and the kernel that Jupyter finds."""

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import nbformat
import pytest
import yaml
from nbclient import NotebookClient

import tfmagic

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """Return the folder with an sdist, and the wheel that was built from this sdist."""
    return build(tmp_path_factory.mktemp("dist"))


def test_each_note_of_a_change_has_a_kind_that_the_changelog_has():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["towncrier"]
    kinds = "|".join(kind["directory"] for kind in settings["type"])
    names = {path.name for path in (ROOT / settings["directory"]).iterdir()}
    assert [n for n in names - {"README.md"} if not re.fullmatch(rf"\+[\w.-]+\.({kinds})\.md", n)] == []
    assert settings["start_string"] in (ROOT / settings["filename"]).read_text("utf-8")


@pytest.fixture(scope="module")
def wheel(dist):
    (made,) = dist.glob("tfmagic-*.whl")
    return made


def build(folder):
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    environ = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_two_builds_are_equal(dist, tmp_path):
    again = build(tmp_path)
    names = sorted(path.name for path in dist.iterdir())
    assert len(names) == 2 and names == sorted(path.name for path in again.iterdir())
    assert [name for name in names if (dist / name).read_bytes() != (again / name).read_bytes()] == []


def test_a_notebook_runs_with_the_wheel_alone(wheel, tmp_path):
    """The libraries are those of this environment; tfmagic itself is the installed wheel."""
    place = tmp_path / "installed"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", place, wheel]
    subprocess.run(command, check=True, capture_output=True)
    notebook = nbformat.v4.new_notebook()
    cells = (
        "import tfmagic\n%load_ext tfmagic",
        "%%tfcluster --workers 2 --out found --view text\nimport tensorflow as tf, tfmagic\n"
        "strategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
        "(strategy.num_replicas_in_sync, tfmagic.__file__)",
        "print(sorted({*found.values(), (2, tfmagic.__file__)}))",
    )
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    environ = {**os.environ, "PYTHONPATH": str(place)}
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute(env=environ, cwd=str(tmp_path))
    shown = notebook.cells[-1].outputs[0].text
    assert shown.strip() == repr([(2, str(place / "tfmagic" / "__init__.py"))])


def test_a_wheel_from_the_checkout_is_complete(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        kernel = next(n for n in names if n.endswith("share/jupyter/kernels/tfmagic/kernel.json"))
        spec = json.loads(archive.read(kernel))
        placed = "data/etc/jupyter/jupyter_server_config.d/tfmagic.json"
        switch = json.loads(archive.read(next(n for n in names if n.endswith(placed))))
    lesson = "features/course/notebooks/01-first-cluster.ipynb"
    for name in (
        "py.typed",
        "task/launcher.py",
        "views/assets/panel.js",
        "views/assets/panel.css",
        lesson,
        "features/exports/templates/tf_config.py",
        "frontends/symptoms.md",
    ):
        assert f"tfmagic/{name}" in names
    assert any("tfmagic" in argument for argument in spec["argv"])
    assert switch == {"ServerApp": {"jpserver_extensions": {"tfmagic.server": True}}}
    assert not any(n.startswith("tests") for n in names)


def test_the_wheel_of_an_export_is_the_one_that_was_installed(wheel, tmp_path):
    """But for what the kernel of Jupyter needs; and it is the same each time."""
    place, made = tmp_path / "installed", tmp_path / "made"
    made.mkdir()
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", place, wheel]
    subprocess.run(command, check=True, capture_output=True)
    code = (
        "import tfmagic\nfrom tfmagic.features.exports.wheel import make_wheel\n"
        f"assert tfmagic.__file__.startswith({str(place)!r})\n"
        "name, packed = make_wheel()\nassert (name, packed) == make_wheel()\n"
        f"open({str(made)!r} + '/' + name, 'wb').write(packed)"
    )
    environ = {**os.environ, "PYTHONPATH": str(place)}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=environ)
    assert [path.name for path in made.iterdir()] == [wheel.name]
    found, built = files_in(made / wheel.name), files_in(wheel)
    jupyters = {name for name in built if ".data/" in name}
    own = {name for name in built if name.endswith((".dist-info/RECORD", ".dist-info/WHEEL"))}
    assert found.keys() == built.keys() - jupyters
    assert [name for name in found.keys() - own if found[name] != built[name]] == []
    records = (name for name in own if name.endswith("RECORD"))
    rows = [{*found[name].decode().splitlines()} - {*built[name].decode().splitlines()} for name in records]
    assert [row.split(",")[0] for row in rows[0]] == [name for name in own if name.endswith("WHEEL")]


def files_in(archive):
    with zipfile.ZipFile(archive) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


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

    def line(since):  # each 15 s, on a slow machine, one comes before the last one
        return rf"(?:  \d:\d\d{since}  packages .*\n)*  \d:\d\d{since}  packages installed: 1\n"

    code, shown = install(wheel)
    assert code == 0 and (tmp_path / "into" / "tfmagic").is_dir()
    assert re.fullmatch(line(""), shown), shown
    assert "Processing" in (tmp_path / "install.log").read_text()
    (tmp_path / "install.seconds").write_text("75")
    code, shown = install("--upgrade", wheel)
    assert code == 0 and re.fullmatch(line(" of 1:15 last time"), shown), shown
    assert int((tmp_path / "install.seconds").read_text()) < 75
    code, shown = install("tfmagic-nowhere")
    assert code == 1 and "No matching distribution found for tfmagic-nowhere" in shown
    assert f"pip failed with exit code 1; all of its output is in {tmp_path / 'install.log'}" in shown


def test_the_workflow_that_releases_is_sound():
    """zizmor audits it offline; each action is pinned by its commit, and only the last job can get a token."""
    workflow = ROOT / ".github" / "workflows" / "release.yml"
    schema = ["check-jsonschema", "--builtin-schema", "vendor.github-workflows", workflow]
    for command in (["zizmor", "--offline", "--persona", "pedantic", workflow], schema):
        program = Path(sys.executable).with_name(command[0])
        done = subprocess.run([program, *command[1:]], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    jobs = yaml.safe_load(workflow.read_text("utf-8"))["jobs"]
    assert [name for name, job in jobs.items() if "id-token" in job["permissions"]] == ["publish"]
    uses = [step["uses"] for job in jobs.values() for step in job["steps"] if "uses" in step]
    assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action) for action in uses)


def test_the_forms_and_the_citation_name_what_there_is():
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text("utf-8"))
    assert "tfmagic doctor --json" in [part["attributes"]["label"] for part in form["body"]]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == tfmagic.__version__ and citation["license"] == "Apache-2.0"
