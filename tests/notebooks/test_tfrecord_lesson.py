"""The lesson on TFRecord files is executed: its failures happen, and its remedies work."""

import re

from test_quickstart import outputs


def text_of(notebook, source):
    found = outputs(notebook, source)
    return "".join(o.get("text", "") + o.get("data", {}).get("text/plain", "") for o in found)


def test_the_lesson_on_tfrecord_files_breaks_and_cures(lessons):
    notebook = lessons.execute("how-to/tfrecord.ipynb")
    assert int(text_of(notebook, "'of 1000 records'").split()[0]) < 1000
    assert "all whole: 1,000 records" in text_of(notebook, "found = tfmagic.tfrecord.verify")
    error = outputs(notebook, "open_writer = tf")[-1]
    told = "\n".join(error.traceback)
    assert error.ename == "DataLossError"
    assert re.search(r"hint: \S+/open ended at byte 1,499,784 within a record when it was read", told)
    assert re.search(r"still being written, by process \d+: it was read before its writer closed it", told)
    assert "late-00000-of-00001.tfrecord.writing" in str(outputs(notebook, "seen = str(error)"))
    assert str(outputs(notebook, "for e in range(2)")).count("[500, 500]") >= 2
    assert "data CRC at byte 20,320 (record 20)" in text_of(notebook, "data[20 * 1016")
    assert "20 records with ignore_errors, 499 with salvage" in text_of(notebook, "report.records")
    assert "500 records were written, 100 are whole" in text_of(notebook, "os.truncate")
