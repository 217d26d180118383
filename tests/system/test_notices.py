"""Sentences of tfmagic, also where nobody can read them."""

import subprocess
import sys

import pytest

PROGRAM = """
from tfmagic.system import notices
for _ in range(3):
    notices.say("a sentence", is_error=False)
    notices.say_now("starting")
    notices.say("an error")
    notices.tell("a traceback")
open("went_on", "w").close()
import os
os._exit(0)  # Python itself cannot flush its streams
"""


@pytest.mark.parametrize("streams", [">/dev/full 2>&1", ">&- 2>&-", "2>&1 | true", ">/dev/full 2>&-"])
def test_a_sentence_that_cannot_be_shown_ends_nothing(streams, tmp_path):
    command = f"{sys.executable} -u -c '{PROGRAM}' {streams}"
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=False, timeout=60)
    assert (tmp_path / "went_on").exists()
