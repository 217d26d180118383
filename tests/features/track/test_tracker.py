"""Points that a cell tracks: their steps, their batches, and what is no number."""

import json
import threading

import numpy as np
import pytest

from tfmagic.features.track import task
from tfmagic.features.track.task import Tracker
from tfmagic.protocol.commands import RunCell


@pytest.fixture
def sent():
    return []


@pytest.fixture
def tracked(sent, monkeypatch):
    monkeypatch.setattr(task, "SEND_S", 1e9)
    made = Tracker(lambda points, cell: sent.append((cell, json.loads(points))))
    made._sent_at = 1e18
    made.begin(RunCell(3))
    return made


def test_steps_count_by_name_and_can_be_given(tracked, sent):
    tracked.track(None, {"loss": 1})
    tracked.track(None, {"loss": np.float32(0.5), "accuracy": 0.25})
    tracked.track(10, {"loss": 0.1})
    tracked.track(None, {"loss": True})
    tracked.flush()
    assert sent == [(3, {"loss": [[0, 1], [1, 0.5], [10, 0.1], [11, 1]], "accuracy": [[0, 0.25]]})]
    tracked.begin(RunCell(4))
    tracked.track(None, {"loss": 2})
    tracked.flush()
    assert sent[1] == (4, {"loss": [[0, 2]]})
    tracked.flush()
    assert len(sent) == 2, "nothing to send"


@pytest.mark.parametrize("value", ["text", None, [1, 2], np.ones(2), 10**400])
def test_what_is_no_number_is_refused_by_name(tracked, sent, value):
    with pytest.raises(TypeError, match="track\\(\\) takes numbers, and loss is of type") as caught:
        tracked.track(None, {"loss": value})
    assert caught.value.__cause__ is None and caught.value.__suppress_context__, (
        "the traceback would have frames of tfmagic"
    )
    tracked.flush()
    assert sent == []


def test_many_points_are_few_messages_and_none_is_lost(sent):
    made = Tracker(lambda points, cell: sent.append(json.loads(points)))
    made.begin(RunCell(1))
    threads = [
        threading.Thread(target=lambda: [made.track(None, {"x": n}) for n in range(20_000)]) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made.flush()
    steps = [step for batch in sent for step, _ in batch["x"]]
    assert steps == list(range(40_000))
    assert len(sent) < 50
