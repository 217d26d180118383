"""A step that no interrupt ends halfway: real signals at real moments."""

import signal
import threading

import pytest

from tfmagic.system.whole_steps import run_whole


def test_an_interrupt_within_the_step_is_raised_after_it():
    done = []

    def step():
        done.append("began")
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
        threading.Event().wait(0.05)  # so that the main thread has got them
        done.append("ended")

    with pytest.raises(KeyboardInterrupt):
        run_whole(step)
    assert done == ["began", "ended"]


def test_an_error_of_the_step_is_raised_as_it_is():
    with pytest.raises(ZeroDivisionError):
        run_whole(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    assert "tfmagic-step" not in {thread.name for thread in threading.enumerate()}


def test_where_no_thread_can_start_nothing_is_run(monkeypatch):
    done = []

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError):
        run_whole(lambda: done.append(1))
    assert not done


def test_an_interrupt_while_the_thread_starts_does_not_lose_its_end(monkeypatch):
    done, real = [], threading.Thread.start

    def start(thread):
        real(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(KeyboardInterrupt):
        run_whole(lambda: done.append(threading.Event().wait(0.05)))
    assert done in ([], [False]), "not at all, or to the end"
    for thread in threading.enumerate():
        assert thread.name != "tfmagic-step" or thread.join(5) is None
