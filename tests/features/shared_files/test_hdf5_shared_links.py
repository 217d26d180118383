"""The socket between the kernel and a task on another machine."""

import socket
import threading

import pytest

from tfmagic.features.shared_files import links
from tfmagic.protocol import task_context


@pytest.fixture(autouse=True)
def task(monkeypatch):
    me = task_context.TaskContext("worker", 0, {"worker": ["127.0.0.1:1"]}, is_chief=True)
    monkeypatch.setattr(task_context, "current_task", lambda: me)


def test_only_who_has_the_token_gets_the_task(monkeypatch):
    strangers = []

    def come(place):
        host, port, token = place
        for shown in (b"", b"x", b"x" * len(token)):
            strangers.append(socket.create_connection((host, port)))
            strangers[-1].sendall(shown)
            if len(shown) < len(token):
                strangers[-1].shutdown(socket.SHUT_WR)
        kernel.append(links.connect(host, port, token))

    kernel = []
    thread = []

    def send(place):
        thread.append(threading.Thread(target=come, args=(place,)))
        thread[0].start()

    with links.await_kernel(send) as mine:
        thread[0].join()
        with kernel[0]:
            kernel[0].sendall(b"rows")
            assert mine.recv(4) == b"rows"
    assert [stranger.recv(1) for stranger in strangers] == [b""] * 3
    for stranger in strangers:
        stranger.close()


def test_a_kernel_that_does_not_come_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(links, "_REACH_S", 0.05)
    places = []
    with pytest.raises(TimeoutError):
        links.await_kernel(places.append)
    with pytest.raises(ConnectionRefusedError):
        links.connect(*places[0])
