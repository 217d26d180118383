"""The lesson on networks, executed: what it claims must hold."""

from test_quickstart import outputs

_CLAIMS = """
by_ms = {row.variant["network"]: row.step_s * 1e3 for row in by_rate.rows}
print(by_ms, wire_ms, {row.variant["network"]: row.sent_bytes for row in by_rate.rows})
print(shares)
assert wire_ms["40mbit"] * 0.8 < by_ms["40mbit"] < wire_ms["40mbit"] * 1.6, "the wire explains a slow step"
assert wire_ms["160mbit"] * 0.8 < by_ms["160mbit"] < by_ms["40mbit"]
assert by_ms["off"] < by_ms["160mbit"]
assert all(2e6 <= row.sent_bytes < 2.3e6 for row in by_rate.rows), "each worker sends as many bytes as it has"
assert shares[64] > 0.7 and shares[64] > shares[8192], "larger batches make communication a smaller share"
"""


def shown(notebook, source):
    """Return the text that the cell with exactly this source shows."""
    (cell,) = [c for c in notebook.cells if c.source == source]
    return "".join(o.get("text", "") or o.get("data", {}).get("text/plain", "") for o in cell.outputs)


def test_the_claims_of_the_lesson_hold(lessons):
    notebook = lessons.execute("how-to/network.ipynb", then=_CLAIMS)
    assert "worker-1 is on host-1, at 10.77.0.2" in shown(notebook, "places")
    failed = outputs(notebook, "%tfcluster wait")[-1]
    assert failed.ename in ("UnavailableError", "DeadlineExceededError", "InternalError")
    assert "host-1 was cut off from the others" in "\n".join(failed.traceback)
    states = shown(notebook, "%tfcluster status")
    assert states.count("ready") == 2 and "host-1 (cut off)" in states
    assert "2.0" in shown(notebook, "steps")
