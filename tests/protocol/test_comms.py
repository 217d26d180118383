"""Messages of widgets wait in order; updates that a later one replaces do not wait at all."""

import json

from hypothesis import given
from hypothesis import strategies as st

from tfmagic.protocol.comms import CommMessage, CommQueue, updated_names


def update(comm, buffers=(), **state):
    data = {"method": "update", "state": state, "buffer_paths": []}
    return CommMessage("comm_msg", comm, json.dumps(data).encode(), b"{}", buffers, updated_names(data))


def custom(comm):
    data = {"method": "custom", "content": 1}
    return CommMessage("comm_msg", comm, json.dumps(data).encode(), sets=updated_names(data))


def state_of(message):
    return json.loads(message.data)["state"]


def queue_of(*messages, **how):
    queue = CommQueue(**how)
    for message in messages:
        queue.add(message)
    return queue


def test_a_million_updates_of_a_bar_are_one_message():
    queue = queue_of(CommMessage("comm_open", "bar"))
    for n in range(1_000_000 // 100):
        queue.add(update("bar", value=n))
    opened, last = queue.take()
    assert opened.kind == "comm_open" and state_of(last) == {"value": 9999}
    assert not queue


def test_updates_of_different_values_are_joined():
    queue = queue_of(*(update("bar", **{name: n}) for n in range(100) for name in ("value", "text")))
    (only,) = queue.take()
    assert state_of(only) == {"value": 99, "text": 99} and set(only.sets) == {"value", "text"}


def test_an_update_stays_before_the_message_that_needs_it():
    queue = queue_of(update("a", value=1), custom("a"), update("a", value=2))
    assert [state_of(m) if m.sets else "custom" for m in queue.take()] == [
        {"value": 1},
        "custom",
        {"value": 2},
    ]


def test_a_reference_stays_behind_what_it_refers_to():
    queue = queue_of(
        update("box", children=[]), CommMessage("comm_open", "b"), update("box", children=["IPY_MODEL_b"])
    )
    assert [m.kind for m in queue.take()] == ["comm_msg", "comm_open", "comm_msg"]


def test_binary_values_are_kept_together_with_their_message():
    queue = queue_of(update("a", (b"1",), image=None), update("a", value=1), update("a", (b"2",), image=None))
    assert [m.buffers for m in queue.take()] == [(b"1",), (), (b"2",)]


def test_a_page_takes_as_much_as_it_can():
    queue = queue_of(*(update(str(n), value="x" * 1000) for n in range(10)))
    assert len(queue.take(count=3)) == 3
    assert len(queue.take(size_bytes=2500)) == 2
    assert len(queue.take(size_bytes=1)) == 1
    assert len(queue.take()) == 4


def test_what_waits_is_bounded_and_a_widget_can_always_close():
    queue = queue_of(*(custom("a") for _ in range(5)), limit=3)
    assert not queue.add(custom("a"))
    assert queue.add(update("a", value=1)) and queue.add(update("a", value=2))
    assert queue.add(CommMessage("comm_close", "a"))
    assert len(queue) == 5
    queue.take(count=1)
    assert queue.add(custom("b")) and not queue.add(custom("b"))


VALUES = st.dictionaries(st.sampled_from("xyz"), st.integers(0, 9), min_size=1)
SENT = st.tuples(st.sampled_from("ab"), st.none() | VALUES)


@given(st.lists(st.one_of(SENT, st.just("take"))))
def test_the_page_ends_in_the_state_of_the_widget(history):
    """At each message that is no update, too."""
    queue, sent, got = CommQueue(), [], []
    true: dict = {"a": {}, "b": {}}
    shown: dict = {"a": {}, "b": {}}

    def deliver():
        for message in queue.take():
            if message.sets:
                shown[message.comm].update(state_of(message))
            else:
                got.append(dict(shown[message.comm]))

    for step in history:
        if step == "take":
            deliver()
            continue
        comm, state = step
        if state is None:
            sent.append(dict(true[comm]))
            queue.add(custom(comm))
        else:
            true[comm].update(state)
            queue.add(update(comm, **state))
    deliver()
    assert (shown, got) == (true, sent)
