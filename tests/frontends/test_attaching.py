"""Which run `%tfcluster attach` takes, and what it says where another kernel has that: without a host of Ray."""

import json
import re
import socket
import subprocess

import pytest
from IPython.core.error import UsageError

from tfmagic.errors import LaunchError, TfmagicError
from tfmagic.frontends.notebook import reports
from tfmagic.runs import folder
from tfmagic.runs.kept import KeptCluster, KeptFile
from tfmagic.system.process_identity import identify


@pytest.fixture
def sleeping(tmp_path, monkeypatch):
    """Return a process that could be a kernel; the state folder has no other runs."""
    monkeypatch.setenv("TFMAGIC_STATE_DIR", str(tmp_path / "state"))
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def run_of(kernel, name, kept, options=None, addresses=None):
    """Create a run of a kernel, which can be kept."""
    run = folder.create_run(folder.state_dir(), "default", {}, name)
    meta = json.loads((run.folder / "run.json").read_text())
    (run.folder / "run.json").write_text(json.dumps({**meta, **kernel.as_json()}))
    if kept:
        KeptFile(run.folder, KeptCluster("kept", 600, options or {"name": "default"}, addresses or {}))
    return run


def test_a_run_that_waits_for_a_kernel_precedes_a_newer_one_that_has_ended(notebook, sleeping, monkeypatch):
    ended = identify(sleeping.pid)
    sleeping.kill()
    sleeping.wait()
    kept, _ = run_of(ended, "20260101-1", True), run_of(ended, "20260102-1", False)
    taken = []
    monkeypatch.setattr(type(notebook.magics), "attach", lambda magics, run: taken.append(str(run)))
    monkeypatch.setattr(reports, "attachment", lambda cluster: "attached")
    assert "attached" in notebook.run("%tfcluster attach")
    assert taken == [str(kept)]


def test_a_run_of_a_living_kernel_is_refused_with_that_kernel(notebook, sleeping):
    run = run_of(identify(sleeping.pid), "20260101-1", True)
    for line in ("%tfcluster attach", f"%tfcluster attach {run}"):
        with pytest.raises(TfmagicError, match=f"the kernel with the process {sleeping.pid}, which lives"):
            notebook.run(line)


def test_a_kept_run_whose_nodes_have_gone_hides_no_newer_run(notebook, sleeping, capsys):
    ended = identify(sleeping.pid)
    sleeping.kill()
    sleeping.wait()
    with socket.socket() as unused:  # bound and not listening: who connects is refused
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        counts = {"workers": 2, "ps": 0, "chief": False, "evaluator": False}
        options = {
            **counts,
            "name": "default",
            "backend": "ray",
            "address": address,
            "resources": {},
            "keep": 600,
        }
        kept = run_of(ended, "20260101-1", True, options, {"worker-0": "a:1", "worker-1": "b:1"})
        why = f"run {kept} cannot be attached: .*nothing answers there"
        with pytest.raises(LaunchError, match=why):
            notebook.run("%tfcluster attach")
        newest = run_of(ended, "20260102-1", False)
        with pytest.raises(UsageError, match=f"run {newest} has no record of a cell"):  # which it would show
            notebook.run("%tfcluster attach")
        said = capsys.readouterr().err
        assert re.search(f"{why}.*; it is kept until ", said), said
        with pytest.raises(LaunchError, match=why):
            notebook.run(f"%tfcluster attach {kept}")
