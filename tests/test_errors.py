"""Every error class of tfmagic can be pickled and derives from one base."""

import pickle
import subprocess
import sys

import pytest

from tfmagic import errors

EVERY = [
    errors.TfmagicError("a"),
    errors.ClusterSpecError("a"),
    errors.CaptureError("a"),
    errors.LaunchError("a"),
    errors.TaskDied("worker-1 died", "worker-1", -9),
    errors.TaskTimeoutError("a"),
    errors.RemoteError("a", "OddError", "text"),
    errors.remote_error("a", "OddError", "text", ValueError),
    errors.BackendError("a"),
    errors.ProtocolError("a"),
]


@pytest.mark.parametrize("error", EVERY, ids=lambda e: type(e).__name__)
def test_errors_survive_pickling(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again).__name__ == type(error).__name__
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    assert isinstance(again, errors.TfmagicError)


@pytest.mark.parametrize(("colours", "is_coloured"), [("NoColor", False), ("Neutral", True)])
def test_ipython_shows_an_error_in_colours_where_the_user_wants_some(colours, is_coloured):
    program = "import tfmagic.errors as e; raise e.TfmagicError('bad')"
    command = [sys.executable, "-m", "IPython", f"--InteractiveShell.colors={colours}", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "TfmagicError" in done.stdout and ("\x1b[31m" in done.stdout) is is_coloured, done.stdout


def test_a_remote_error_is_caught_as_its_nearest_base():
    with pytest.raises(ValueError, match="bad"):
        raise errors.remote_error("bad", "OddError", "", ValueError)


@pytest.mark.parametrize("base", [OSError, KeyError, UnicodeDecodeError, StopIteration, SystemExit])
def test_a_remote_error_of_an_odd_base_still_says_what_happened(base):
    error = errors.remote_error("bad", "OddError", "", base)
    assert isinstance(error, errors.RemoteError)
    assert str(error) == "bad"
