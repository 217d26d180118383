"""Strategies compute the same losses and weights in plain processes with TF_CONFIG and in cells of a cluster.

Each plain process imports TensorFlow, so `make test` runs one program; `make chaos` runs all.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpus import ALL, Program, read_chapters

RUN_S = 150.0
PROGRAMS = read_chapters("distribution") if ALL else read_chapters("distribution")[:1]  # the fewest processes
_ANSWER = "ANSWER "
_SERVE = """
import json, os
config = json.loads(os.environ["TF_CONFIG"])
if "ps" in config["cluster"] and config["task"]["type"] != "chief":
    import tensorflow as tf
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    tf.distribute.Server(resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id,
                         protocol="grpc").join()
"""


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_strategy_computes_in_cells_what_it_computes_in_plain_processes(program, notebook, tmp_path):
    bare = run_plain(program, tmp_path / "bare")
    ours = run_cells(program, tmp_path / "ours", notebook)
    assert set(bare) == set(ours)
    for task, answer in bare.items():
        assert_same(ours[task], answer)


def assert_same(one: Any, other: Any) -> None:
    """Check that texts and counts are equal, and floats up to the order of a sum."""
    if isinstance(other, list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    elif isinstance(other, float):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    else:
        assert one == other


def _words(program: Program) -> list[str]:
    return program.title.rpartition(": ")[2].split()


def _count(words: list[str], option: str) -> int:
    return int(words[words.index(option) + 1]) if option in words else 0


def run_plain(program: Program, folder: Path) -> dict[str, Any]:
    """Run the program in one plain process a task. Return the answers of the tasks that end by themselves."""
    folder.mkdir()
    words = _words(program)
    jobs = {"worker": _count(words, "--workers"), "ps": _count(words, "--ps")}
    jobs |= {"chief": 1} if jobs["ps"] else {}
    addresses = iter(_free_addresses(sum(jobs.values())))
    cluster = {job: [next(addresses) for _ in range(n)] for job, n in jobs.items() if n}
    tasks = [(job, index) for job, addresses in cluster.items() for index in range(len(addresses))]
    tasks += [("evaluator", 0)] if "--evaluator" in words else []
    environ = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "no_grpc_proxy": "127.0.0.1"}
    environ |= {"TF_USE_LEGACY_KERAS": "1"} if "--keras" in words else {}
    started = {}
    for job, index in tasks:
        script = folder / f"{job}-{index}.py"
        cell = program.cells[-1] if job == "evaluator" else program.cells[0]
        script.write_text(f"folder = {str(folder)!r}\n{_SERVE}\n{_printing(cell.source)}", "utf-8")
        config = json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})
        started[f"{job}-{index}"] = subprocess.Popen(
            [sys.executable, script], env=environ | {"TF_CONFIG": config}, stdout=subprocess.PIPE, text=True
        )
    try:
        running = [name for name in started if not cluster.get("ps") or name == "chief-0"]
        texts = {name: started[name].communicate(timeout=RUN_S)[0] for name in running}
    finally:
        for process in started.values():
            process.kill()
            process.communicate()
    return {name: json.loads(text.rpartition(_ANSWER)[2]) for name, text in texts.items()}


def _free_addresses(count: int) -> list[str]:
    """Return loopback addresses whose ports are free."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in held]


def _printing(source: str) -> str:
    """Return the program with its last expression printed."""
    tree = ast.parse(source)
    head = "\n".join(source.splitlines()[: tree.body[-1].lineno - 1])
    return f"{head}\nprint({_ANSWER!r} + json.dumps({ast.unparse(tree.body[-1])}), flush=True)\n"


def run_cells(program: Program, folder: Path, notebook: Any) -> dict[str, Any]:
    """Run the program as a cell on a cluster, and then the cell of the evaluator."""
    folder.mkdir()
    notebook.ns["folder"] = str(folder)
    shape = " ".join(_words(program))
    notebook.run(f"%%tfcluster {shape} --view quiet --timeout {RUN_S:.0f} --out r\n{program.cells[0].source}")
    answers = dict(notebook.ns["r"])
    if len(program.cells) > 1:
        cell = f"%%tfcluster --on evaluator --view quiet --timeout {RUN_S:.0f} --out r\n{program.cells[1].source}"
        notebook.run(cell)
        answers |= dict(notebook.ns["r"])
    return answers
