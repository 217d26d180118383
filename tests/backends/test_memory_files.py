"""Memory files between two processes of one machine."""

import os
import subprocess
import sys

import pytest

from tfmagic.backends.remote import memory_files


def ask_elsewhere(code):
    command = f"from tfmagic.backends.remote import memory_files; print({code})"
    return subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True).stdout


def test_another_process_of_this_machine_opens_a_file_by_its_place():
    handle = memory_files.write(b"content of a value")
    place = memory_files.place_of(handle)
    assert "content of a value" in ask_elsewhere(f"bytes(memory_files.read(memory_files.open_at({place!r})))")


def test_a_trial_fails_where_the_place_holds_nothing_or_something_else():
    trial, other = memory_files.Trial(), memory_files.Trial()
    (place, content), (_, foreign) = trial.question, other.question
    assert ask_elsewhere(f"memory_files.can_open({(place, content)!r})") == "True\n"
    assert ask_elsewhere(f"memory_files.can_open({(place, foreign)!r})") == "False\n"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert not memory_files.can_open(((ended.pid, *place[1:]), content))


def test_a_place_that_another_file_has_taken_is_refused():
    handle, other = memory_files.write(b"first"), memory_files.write(b"second")
    pid, fd, inode = memory_files.place_of(handle)
    os.dup2(other.fd, fd)
    with pytest.raises(FileNotFoundError):
        memory_files.open_at((pid, fd, inode))
