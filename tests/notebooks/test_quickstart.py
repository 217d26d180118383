"""The quickstart, executed in a real kernel by nbclient, and its export in processes of its own."""

import os
import re
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
    *rows, said = table.data["text/plain"].splitlines()
    assert [row.split()[0] for row in rows] == ["workers", "1", "2"] and "the first step" in said
    error = outputs(notebook, "bad data")[-1]
    assert (error.ename, error.evalue.splitlines()[0]) == ("ValueError", "worker-1 has bad data")
    assert "worker-1 has bad data" in "\n".join(error.traceback)
    (form,) = [o for o in outputs(notebook, "I am {me.name}") if "data" in o]
    assert form.data["text/plain"].startswith("[worker-0]:    I am worker-0 of 2, chief: True\n")
    assert "<details open" in form.data["text/html"] and "widgets" not in notebook.metadata
    check_export(notebook, tmp_path / "digits")


def check_export(notebook, folder):
    """Check that the exported program comes to the same losses and accuracy as the notebook."""
    assert ", which failed" in notebook.cells[-1].outputs[0].text
    environ = {**os.environ, "PYTHON": sys.executable, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run([folder / "run_local.sh"], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (form,) = [o for o in outputs(notebook, "--pull checksum") if "data" in o]
    results = re.findall(r"^\[worker-\d\]:? +(epoch .*|0\.\d{4,})$", form.data["text/plain"], re.MULTILINE)
    assert len(results) == 5  # three losses, and the accuracy on each worker
    assert sorted(re.findall(r"^\[worker-\d\]:? +(epoch .*|0\.\d{4,})$", done.stdout, re.MULTILINE)) == sorted(results)
