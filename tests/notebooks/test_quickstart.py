"""The quickstart, executed in a real kernel by nbclient."""

def outputs(notebook, source):
    cell = next(c for c in notebook.cells if source in c.source and c.cell_type == "code")
    return cell.outputs


def test_the_quickstart_trains_to_over_95_percent_on_equal_replicas(lessons):
    notebook = lessons.execute("how-to/quickstart.ipynb")
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
