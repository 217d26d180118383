"""The tools for agents, on the run folder of a cluster whose kernel is busy and answers nobody."""

import asyncio
import json
import os

import pytest
from conftest import wait_until

from tfmagic.runs import line_search
from tfmagic.server import tools


@pytest.fixture
def ask(notebook):
    """Ask a tool as jupyter-server-mcp does: by its specification, without the cluster."""

    def ask(name, **arguments):
        (spec,) = [spec for spec in tools.TOOLS if spec.endswith(f":tfmagic_{name}")]
        module, _, function = spec.partition(":")
        assert module == tools.__name__
        answer = asyncio.run(getattr(tools, function)(**arguments))
        return json.loads(json.dumps(answer))

    return ask


def test_a_cell_that_runs_and_one_that_failed_are_read_without_the_kernel(notebook, ask, tmp_path):
    flag = tmp_path / "go"
    notebook.run(
        "%%tfcluster --workers 2 --detach\nimport os, time, tfmagic\nprint('so far')\n"
        f"tfmagic.track(step=340, loss=0.21)\nwhile not os.path.exists({str(flag)!r}):\n    time.sleep(0.005)\n"
        "if tfmagic.current_task().index:\n    raise ValueError('bad batch 3')\ntfmagic.barrier()"
    )
    run = str(notebook.cluster().run_folder)

    def progress():
        clusters = {cluster["run"]: cluster for cluster in ask("status")["clusters"]}
        return clusters[run]["cell"]["tasks"] if run in clusters and clusters[run]["cell"] else []

    wait_until(lambda: [t["line"] in (5, 6) for t in progress()] == [True, True])
    assert [(t["last_line"], t["tracked"]) for t in progress()] == [("so far", {"loss": [340, 0.21]})] * 2
    (said,) = ask("status", run=run)["summary"]
    assert "running: cell [" in said and "still runs: step 340, loss 0.21 (worker-0), line" in said
    (piece,) = ask("logs", run=run, task="worker-1", since=-1, grep="far")
    assert piece["text"] == "so far\n" and piece["next"] == piece["size"] == 7
    shown = ask("stacks", run=run)
    assert shown["stacks"].startswith("worker-0, worker-1:\n") and shown["not_asked"] == []
    assert ask("errors", run=run)["state"] == "running"
    flag.touch()
    with pytest.raises(ValueError, match="bad batch 3"):
        notebook.run("%tfcluster wait")
    found = ask("errors", run=run)
    assert [(e["task"], e["root"]) for e in found["errors"]] == [("worker-1", True), ("worker-0", False)]
    assert found["state"] == "failed" and "ValueError: bad batch 3" in found["text"]


def test_what_is_not_there_is_said_in_words(ask, tmp_path, monkeypatch):
    monkeypatch.setenv("TFMAGIC_STATE_DIR", str(tmp_path))
    assert ask("status") == {"clusters": [], "summary": []}
    for name in ("logs", "errors", "stacks"):
        with pytest.raises(LookupError, match="there is no run"):
            ask(name)
    folder = tmp_path / "runs" / "20260101-1-x-1"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    (folder / "worker-0.log").write_bytes(b"a\n")
    with pytest.raises(LookupError, match="no task 'worker-1'; it has worker-0"):
        ask("logs", task="worker-1")
    assert ask("stacks") == {"run": folder.name, "stacks": "", "not_asked": ["worker-0"]}


def test_an_agent_can_ask_for_neither_too_much_nor_too_long(ask, tmp_path, monkeypatch):
    monkeypatch.setenv("TFMAGIC_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(line_search, "LIMIT_S", 0.3)
    folder = tmp_path / "runs" / "20260101-1-x-1"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    for task in ("worker-0", "worker-1"):
        (folder / f"{task}.log").write_bytes(b"a" * 60 + b"b\n" + (b"y" * 99 + b"\n") * 30_000)
    assert sum(len(piece["text"]) for piece in ask("logs", max_bytes=1 << 60)) <= 1 << 20
    assert ask("logs", max_bytes=-5, task="worker-0")[0]["text"] == "a\n"
    for pattern, reason in (("(a+)+$", "took more than"), ("(", "unterminated")):
        with pytest.raises(ValueError, match=reason):
            ask("logs", grep=pattern)


def test_no_process_of_another_program_is_asked_for_stacks(ask, tmp_path, monkeypatch):
    """SIGUSR1 ends a process without a handler: the pid of a status is not enough."""
    monkeypatch.setenv("TFMAGIC_STATE_DIR", str(tmp_path))
    folder = tmp_path / "runs" / "20260101-1-x-1"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    (folder / "worker-0.log").write_bytes(b"a\n")
    task = {"task": "worker-0", "state": "running", "pid": os.getpid()}
    (folder / "status.json").write_text(json.dumps({"tasks": [task]}))
    noted = {"role": "worker-0", "pid": os.getpid(), "start": 1, "boot": "another", "mark": ""}
    (folder / "processes.jsonl").write_text(json.dumps(noted) + "\n")
    assert ask("stacks")["not_asked"] == ["worker-0"]
