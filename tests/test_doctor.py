"""What the doctor finds, on environments made for it."""

from types import SimpleNamespace

import pytest

from tfmagic import doctor


class Runner:
    def __str__(self):
        return "asyncio"


NOTEBOOK = SimpleNamespace(kernel=object(), autoawait=True, loop_runner=Runner())


def finding(shell, word, monkeypatch=None, **versions):
    if monkeypatch is not None:
        real = doctor.version
        monkeypatch.setattr(doctor, "version", lambda name: versions.get(name) or real(name))
    return next(f for f in doctor.examine(shell) if word in f.what)


def test_a_present_kernel_needs_nothing():
    assert [f for f in doctor.examine(NOTEBOOK) if f.advice] == []


def test_an_older_ipykernel_has_everything_but_live_buttons(monkeypatch):
    found = finding(NOTEBOOK, "ipykernel", monkeypatch, ipykernel="6.29.5")
    assert "buttons of a panel work only after the cell" in found.advice
    assert 'pip install -U "ipykernel>=7.4"' in found.advice


def test_autoawait_that_is_off_is_named():
    off = SimpleNamespace(kernel=object(), autoawait=False, loop_runner=Runner())
    assert "%autoawait asyncio" in finding(off, "ipykernel").advice


def test_a_state_folder_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("TFMAGIC_STATE_DIR", str(blocked))
    assert "cannot be written" in finding(NOTEBOOK, "state folder").advice


@pytest.mark.parametrize("shell", [SimpleNamespace(), NOTEBOOK])
def test_everything_is_said_in_order(shell):
    words = [f.what.split()[0] for f in doctor.examine(shell)]
    assert words[:2] == ["Python", "tensorflow"] and words[-1] == "state"
