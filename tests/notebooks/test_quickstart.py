"""The quickstart, executed in a real kernel by nbclient, and its export in processes of its own."""

import ast
import subprocess
import sys


def outputs(notebook, source):
    cell = next(c for c in notebook.cells if source in c.source and c.cell_type == "code")
    return cell.outputs


def test_the_quickstart_trains_to_over_95_percent_on_equal_replicas(lessons, tmp_path):
    notebook = lessons.execute("how-to/quickstart.ipynb", f"%tfcluster export {tmp_path / 'digits'}")
    (result,) = [o for o in outputs(notebook, "min(accuracy.values()) > 0.95") if "data" in o]
    assert "worker-1" in result.data["text/plain"] and "<table>" in result.data["text/html"]
    table = [o for o in outputs(notebook, "--compare") if "data" in o][-1]
    assert [line.split()[0] for line in table.data["text/plain"].splitlines()] == ["workers", "1", "2"]
    error = outputs(notebook, "bad data")[-1]
    assert (error.ename, error.evalue.splitlines()[0]) == ("ValueError", "worker-1 has bad data")
    assert "worker-1 has bad data" in "\n".join(error.traceback)
    (form,) = [o for o in outputs(notebook, "I am {me.name}") if "data" in o]
    assert form.data["text/plain"].startswith("[worker-0]:    I am worker-0 of 2, chief: True\n")
    assert "<details open" in form.data["text/html"] and "widgets" not in notebook.metadata
    exported = notebook.cells[-1].outputs[0].text
    assert f"to {tmp_path / 'digits'}" in exported and "which failed" in exported
    values = next(o for o in outputs(notebook, "min(accuracy.values()) > 0.95") if "data" in o)
    check_export(tmp_path / "digits", values.data["text/plain"], outputs(notebook, "--pull checksum"))


def check_export(folder, values, printed):
    """Check that the exported program trains to the same accuracy, with the same losses on the way."""
    done = subprocess.run(
        ["bash", folder / "run_local.sh"], env={"PYTHON": sys.executable}, capture_output=True, text=True
    )
    print(done.stdout, done.stderr, values, printed)
    assert done.returncode == 0, done.stdout + done.stderr
