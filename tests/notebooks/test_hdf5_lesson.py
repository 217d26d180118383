"""The lesson about HDF5: each trap breaks as described, and each way beside it works."""

def text_of(notebook, source):
    cell = next(c for c in notebook.cells if source in c.source and c.cell_type == "code")
    return "".join(o.get("text", "") or o.get("data", {}).get("text/plain", "") for o in cell.outputs)


def error_of(notebook, source):
    cell = next(c for c in notebook.cells if source in c.source and c.cell_type == "code")
    return next(o for o in cell.outputs if o.output_type == "error")


def test_the_hdf5_lesson_breaks_and_mends(lessons):
    notebook = lessons.execute("how-to/hdf5.ipynb")
    error = error_of(notebook, "naive.h5")
    assert error.ename == "FileInUseError" and "naive.h5 is open for writing by worker-" in error.evalue
    assert "after:  0 bytes" in text_of(notebook, "before:")
    guarded = text_of(notebook, "tfmagic.hdf5.guard()")
    assert "open for writing by" in guarded and "after:  0 bytes" not in guarded
    unlocked = text_of(notebook, "exit codes")
    assert "exit codes [0, 0]" in unlocked and "40 of 40" not in unlocked
    assert "[1. 2. 3. 1. 2. 3.]" in text_of(notebook, "print(consolidate(base))\nwith")
    gone = text_of(notebook, "by hand:")
    assert "by hand: [0. 0. 0.]" in gone and "[ 1.  2.  3. nan nan nan]" in gone and "it is missing" in gone
    assert error_of(notebook, "os.kill(").ename == "TaskDied"
    assert error_of(notebook, "SharedWriter(").ename == "TaskDied"
    shared = text_of(notebook, 'print(file["rows"].shape')
    assert shared.strip() == f"(12, 4) {3 * ['worker-0'] + 3 * ['worker-1']}"
    killed = text_of(notebook, "recover=True")
    assert "left unfinished: worker-1 was killed" in killed and "recovered: worker-1" in killed
