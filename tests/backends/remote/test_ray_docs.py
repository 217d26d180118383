"""The snippets of docs/ray*.md: cells on real Ray nodes, Ray's commands by Ray's own parser, and its files."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import jsonschema
import pytest
import yaml
from kernels import plain
from ray_nodes import RayNodes
from snippets import snippets

BASH = [
    *snippets("docs/ray.md", "bash"),
    *snippets("docs/ray-ssh.md", "bash"),
    *snippets("docs/ray-slurm.md", "bash"),
    *snippets("docs/ray-kuberay.md", "bash"),
    *snippets("docs/ray-cloud.md", "bash"),
]
COMMANDS = Path(__file__).parents[2] / "support" / "ray_commands.py"


def ray_lines(text):
    """Return the commands of Ray's in these lines, with numbers for the variables of Slurm."""
    text = re.sub(r'"?\$\{?SLURM_\w+\}?"?', "4", text.replace("\\\n", " "))
    return re.findall(r"(?<![\w./-])(?:~/tf/bin/)?(ray [a-z][^'\n]*)", text)


def test_rays_own_parser_takes_the_lines_of_the_docs():
    (launcher,) = snippets("docs/ray-cloud.md", "yaml")
    cluster = yaml.safe_load(launcher.code)
    texts = [snippet.code for snippet in BASH]
    texts += cluster["head_start_ray_commands"] + cluster["worker_start_ray_commands"]
    lines = [line for text in texts for line in ray_lines(text)]
    assert len(lines) > 15
    done = subprocess.run(
        [sys.executable, str(COMMANDS), json.dumps(lines)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("snippet", BASH, ids=[snippet.place for snippet in BASH])
def test_the_lines_for_a_shell_are_such(snippet):
    done = subprocess.run(["bash", "-n"], input=snippet.code, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_launchers_file_is_valid_by_rays_schema():
    schema = json.loads((Path(find_spec("ray").origin).parent / "autoscaler/ray-schema.json").read_text())
    (launcher,) = snippets("docs/ray-cloud.md", "yaml")
    jsonschema.validate(yaml.safe_load(launcher.code), schema)


def test_the_script_of_slurm_is_python():
    (script,) = snippets("docs/ray-slurm.md", "python")
    compile(script.code, script.place, "exec")


@pytest.mark.parametrize(
    "kept",
    [False, pytest.param(True, marks=pytest.mark.soak)],
    ids=["", "kept"],  # test_ray_kept has kept clusters
)
def test_the_cells_run_on_ray_nodes(kernel, tmp_path, kept):
    with RayNodes() as nodes:
        nodes.start(cpus=4)
        before = Path.cwd()
        environ = {**nodes.driver_variables(), "RAY_ADDRESS": nodes.address}
        if not kept:
            kernel.unload()  # the first cell loads it
        kernel.run(f"%cd {tmp_path}\nimport os\nos.environ.update({environ!r})")
        try:
            outputs = []
            for snippet in snippets("docs/ray.md", "ipython", "python"):
                if ("keep" in snippet.code or "attach" in snippet.code) != kept:
                    continue
                found = kernel.outputs(kernel.start(snippet.code), timeout=240)
                errors = [content for kind, content in found if kind == "error"]
                assert not errors, f"{snippet.place}:\n" + plain("\n".join(errors[0]["traceback"]))
                outputs.append(found)
            assert len(outputs) == 3
            if not kept:
                assert any("42" in str(found) for found in outputs)
                found = kernel.run("assert set(replicas.values()) == {2}, replicas")
                assert not [content for kind, content in found if kind == "error"]
        finally:
            kernel.clear()
            kernel.run(
                "import os\nfrom tfmagic.backends.remote import driver_client\ndriver_client.close_idle()\n"
                f"for name in {list(environ)!r}: os.environ.pop(name, None)\n%cd {before}"
            )
