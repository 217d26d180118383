"""The snippets of README.md and docs/*.md, run as a reader pastes them, on real tasks.

The language behind a fence decides how a block is run: `ipython` and `python` in a kernel, one page after another;
`bash` as commands; `text` is output, which the code in OUTPUTS must print, or a synopsis; `yaml` is parsed.
"""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from kernels import plain
from snippets import PAGES, ROOT, assert_shown, inline_commands, snippets, with_options, without_options

from benchmarks import __main__ as benchmarks
from tfmagic.frontends.cli.parsers import parse
from tfmagic.frontends.notebook.options import HelpShown, parse_cell_line, parse_line
from tfmagic.frontends.notebook.whole import COMMAND_MODULES  # noqa: F401

NOT_RUN = {
    "make demo": "installs packages; tests/notebooks runs the notebook that it runs",
    "make test": "runs this test",
    "tfmagic warm": "leaves a process; test_templates.py runs it",
    "old_*.py": "is a file; tests/backends/test_own_modules.py has such rules",
    "pip install .": "needs the network; test_packaging.py installs the wheel",
    'pip install "tfmagic[remote]" s3fs': "needs the network",
    "pip install xprof": "needs the network",
    "cluster = tfmagic.attach(": "needs a kernel that was killed; tests/backends/remote/test_ray_kept.py has some",
    "task      seconds  compute": "is a table with other figures each time; test_profile.py has what it shows",
    "kernel ── driver process ──→ Ray": "is a drawing",
    "Jupyter server ──→ template": "is a drawing",
    "-    opened = cluster._open(": "is a change that was made",
    "cluster default: cell [3] on 3 tasks": "its times differ; tests/features/pictures/test_pictures.py has such a cell",
    "worker-0 and worker-2 wait in all_reduce": "takes ten seconds; tests/supervisor/test_stalls.py has the sentence",
}
ELSEWHERE = {
    ("docs/testing.md", "python"): "runner/test_pytest_plugin.py",
    ("docs/testing.md", "text"): "runner/test_pytest_plugin.py",
    ("docs/testing.md", "toml"): "runner/test_pytest_plugin.py",
    ("docs/multi_process_runner.md", "python"): "runner/test_pytest_plugin.py",
    ("docs/linters.md", "text"): "frontends/test_linters.py",
    ("docs/monitoring.md", "bash"): "server/test_server_extension.py",
    ("docs/monitoring.md", "text"): "server/test_server_extension.py",
    ("docs/teaching.md", "bash"): "environments/test_class.py",
    ("docs/teaching.md", "python"): "features/course/test_exercises.py",
    ("docs/quick-starts.md", "bash"): "backends/test_templates.py",
    ("docs/quick-starts.md", "python"): "backends/test_templates.py",
    ("docs/export.md", "bash"): "features/exports/test_exported_runs.py",
    ("docs/ray.md", "ipython"): "backends/remote/test_ray_docs.py",
    ("docs/ray.md", "python"): "backends/remote/test_ray_docs.py",
    ("docs/ray.md", "bash"): "backends/remote/test_ray_docs.py",
    ("docs/ray-ssh.md", "bash"): "backends/remote/test_ray_docs.py",
    ("docs/ray-slurm.md", "bash"): "backends/remote/test_ray_docs.py",
    ("docs/ray-slurm.md", "python"): "backends/remote/test_ray_docs.py",
    ("docs/ray-kuberay.md", "bash"): "backends/remote/test_ray_docs.py",
    ("docs/ray-cloud.md", "bash"): "backends/remote/test_ray_docs.py",
    ("docs/inside.md", "python"): "features/report/test_report.py",
    ("docs/seeing.md", "sql"): "features/pictures/test_perfetto.py",
}
IN_SHELL = ("README.md", "docs/scripts.md", "docs/setup.md")
OUTPUTS = {  # the first words of a block, and the code whose output it shows
    "ValueError: bad batch": """%%tfcluster
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
if strategy.cluster_resolver.task_id == 1:
    raise ValueError("bad batch")
strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0)))
""",
    "tfmagic: worker-1 failed first": """
import time

import tfmagic

def step():
    if tfmagic.current_task().index == 1:
        raise ValueError("bad batch")

step()
time.sleep(600)  # a collective could notice the end of its peer just before the grace period is over
""",
}
CHECKS = {  # of what the cells of a page have made, in the notebook
    "README.md": "assert dict(results) == {name: name for name in ('worker-0', 'worker-1')}",
    "docs/cells.md": "assert list(results.values()) == [1, 2] and list(scaled.values()) == [[1, 2, 3], [2, 4, 6]]",
    "docs/export.md": "import os\nassert {'main.py', 'data.npz', 'run_local.sh'} <= set(os.listdir('train'))",
    "docs/failures.md": "%load_ext tfmagic\n%tfcluster start --workers 2",
    "docs/python.md": "assert list(rates['rate'].values()) == [0.1, 0.1] and rows == [3, 1, 4] and len(scores) == 3 and len(train_alone(0.1)) == 2",
    "docs/hdf5.md": """
import h5py
rows = {name: h5py.File(f"{name}.h5")[key].shape for name, key in
        [("results", "loss"), ("activations", "layer1"), ("scores", "score")]}
assert rows == {"results": (6,), "activations": (1536, 1024), "scores": (4,)}, rows
""",
    "docs/keras-callbacks.md": """
import os
assert len(set(ended.values())) == 1 and ended["worker-0"][0] < 30, ended
made = {"best.keras", "trained.keras", "epochs-worker-0.csv", "epochs-worker-1.csv", "epochs.csv", "saved", "tb"}
assert made <= set(os.listdir()) and "backup" not in os.listdir()
assert dict(rows) == {"worker-0": 3, "worker-1": 3} and sorted(os.listdir("tb")) == ["worker-0", "worker-1"]
""",
    "docs/logdir.md": """
import os
assert sorted(os.listdir("runs/7/tb")) == ["worker-0", "worker-1"] and os.path.exists("runs/7/model.keras")
""",
    "docs/simulated-hosts.md": """
assert [row.variant["network"] for row in found.rows] == ["100mbit", "1gbit", "off"]
assert all(row.steps == 20 and row.sent_bytes > 400_000 for row in found.rows)
""",
    "docs/profile.md": "assert profile.straggler.task == 'worker-1' and share.seconds['waiting'] > 0.5",
    "docs/seeing.md": "assert 'worker-1' in cluster.draw_map().text",
    "docs/tfrecord.md": """
assert found.ok
assert tfmagic.tfrecord.verify("good.tfrecord").ok
""",
}


def commands_of(snippet):
    """Return the commands of a block of shell lines, without those that cannot be run."""
    return [line for line in snippet.code.splitlines() if line and not line.startswith(tuple(NOT_RUN))]


def assert_runs(kernel, code, place):
    """Run a cell that must not raise."""
    errors = [content for kind, content in kernel.run(code) if kind == "error"]
    assert not errors, f"{place}:\n" + plain("\n".join(errors[0]["traceback"]))


def code_behind(snippet):
    """Return the code whose output a block shows, None for a synopsis and for blocks in NOT_RUN."""
    return next((code for beginning, code in OUTPUTS.items() if snippet.code.startswith(beginning)), None)


# -- each block has a way ---------------------------------------------------------------------------


def test_each_block_is_run_by_a_test():
    for page in PAGES:
        for snippet in snippets(page):
            if (page, snippet.language) in ELSEWHERE or snippet.language == "yaml":
                continue
            if snippet.language in ("ipython", "python"):
                assert page in CHECKS or page in IN_SHELL, snippet.place
            elif snippet.language == "bash":
                assert page in IN_SHELL or not commands_of(snippet), snippet.place
            else:
                assert snippet.language == "text", f"{snippet.place}: {snippet.language!r}"
                assert snippet.code.startswith((*OUTPUTS, *NOT_RUN, "%")), snippet.place


def test_the_exceptions_are_those_of_the_docs():
    blocks = {page: snippets(page) for page in PAGES}
    lines = [line for page in PAGES for snippet in blocks[page] for line in snippet.code.splitlines()]
    for beginning in (*NOT_RUN, *OUTPUTS):
        assert any(line.startswith(beginning) for line in lines), f"no page has {beginning!r}"
    for (page, language), file in ELSEWHERE.items():
        assert any(snippet.language == language for snippet in blocks[page]), (page, language)
        assert f'snippets("{page}"' in (Path(__file__).parents[1] / file).read_text()


# -- commands in sentences, and configuration ------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_in_the_text_exist(page, capsys):
    synopses = [with_options(" ".join(s.code.split())) for s in snippets(page, "text") if s.code[0] == "%"]
    for command in (*synopses, *map(with_options, inline_commands(page))):
        name, _, rest = command.partition(" ")
        try:
            if name == "%%tfcluster":
                parse_cell_line(rest)
            elif name == "%tfcluster":
                parse_line(rest)
            elif name == "tfmagic" and rest not in ("", "run"):
                parse(shlex.split(rest, comments=True))
            elif name == "make":
                assert re.search(
                    rf"^{rest.partition(' ')[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE
                ), command
            elif command.startswith("python -m benchmarks "):
                known = {*benchmarks.NAMES, *benchmarks.ASKED_ONLY, "NAME", "--quick", "--markdown"}
                assert set(rest.split()[2:]) <= known, command
            elif name == "pip":
                extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
                    "optional-dependencies"
                ]
                assert set(re.findall(r"\[(\w+)\]", command)) <= set(extras), command
        except HelpShown:
            pass
        except BaseException as error:
            if isinstance(error, SystemExit) and error.code == 0:  # the shell's help
                continue
            pytest.fail(f"{page}: `{command}`: {error or capsys.readouterr().err}")


@pytest.mark.parametrize("page", PAGES)
def test_yaml_is_valid(page):
    for snippet in snippets(page, "yaml"):
        assert isinstance(yaml.safe_load(snippet.code), dict), snippet.place


# -- cells ------------------------------------------------------------------------------------------


def test_the_cells_of_each_page_run_in_order(kernel, tmp_path):
    """A page's kernel is fresh: the page itself has to load the extension, and to import what it uses."""
    before = Path.cwd()
    for page, check in CHECKS.items():
        folder = tmp_path / page
        folder.mkdir(parents=True)
        kernel.unload()
        kernel.run(f"%cd {folder}")
        for snippet in snippets(page, "ipython", "python"):
            assert_runs(kernel, snippet.code, snippet.place)
        assert_runs(kernel, check, page)
        for snippet in snippets(page, "text"):
            if code := code_behind(snippet):
                assert_shown(snippet, kernel.error(code)[1])
        kernel.run(f"%cd {before}")
        assert kernel.clear()


# -- commands ---------------------------------------------------------------------------------------


COUNTS_WORKERS = """
import json, os
print("trained on", len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]))
"""


@pytest.fixture
def shell(commands, tmp_path):
    """Run a line as a shell does; `tfmagic` in a process that has imported TensorFlow. Return code and output."""

    def run(line):
        words = shlex.split(line, comments=True)
        if words[0] != "tfmagic":
            environ = {name: value for name, value in os.environ.items() if name != "IPYTHONDIR"}
            environ |= {
                "HOME": str(tmp_path),
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            }
            done = subprocess.run(
                ["bash", "-c", line], cwd=tmp_path, env=environ, capture_output=True, text=True
            )
            return done.returncode, done.stdout + done.stderr
        commands.start(tmp_path, words[1:], TFMAGIC_STATE_DIR=str(tmp_path / "state"))
        code = commands.wait()
        output = "".join((tmp_path / name).read_text("utf-8") for name in ("out.txt", "err.txt"))
        return code, output.replace("python -m tfmagic", "tfmagic")  # as the installed command names itself

    return run


def test_the_commands_run_and_print_what_the_docs_show(shell, tmp_path):
    """`train.py` is the script of the command's section, or the first one of docs/scripts.md."""
    scripts = snippets("docs/scripts.md", "python")
    (tmp_path / "package").mkdir()
    (tmp_path / "package/train.py").write_text(COUNTS_WORKERS)  # that of scripts trains twice already
    was_run = set()
    for snippet in [snippet for page in IN_SHELL for snippet in snippets(page, "bash")]:
        script = next((s for s in scripts if s.section == snippet.section), scripts[0])
        (tmp_path / "train.py").write_text(script.code)
        for line in commands_of(snippet):
            command = " ".join(shlex.split(without_options(line), comments=True))
            if "[" in line:
                parse(shlex.split(with_options(line), comments=True)[1:])
            if (script, command) not in was_run:
                was_run.add((script, command))
                code, output = shell(without_options(line))
                assert code == 0 or "doctor" in line, f"{snippet.place}: {line}\n{output}"
                if script is scripts[0] and command.startswith("tfmagic run"):
                    assert re.search(r"^\[worker-0\]:    trained on [24]$", output, re.MULTILINE), output
    _, output = shell("ipython --TFCluster.warm=False -c '%tfcluster status'")
    assert "no cluster" in output  # the profile loads the extension
    for snippet in snippets("docs/scripts.md", "text"):
        (tmp_path / "train.py").write_text(code_behind(snippet))
        code, output = shell("tfmagic run train.py")
        assert code == 1
        assert_shown(snippet, output)
