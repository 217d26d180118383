"""What a task writes to a log on a disk that is full: every byte that is lost is counted."""

import subprocess
import sys

CODE = """
import io, resource, signal, sys
from tfmagic.task import streams

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
log = streams._LogFile(sys.argv[1], "w")
text = io.TextIOWrapper(log, write_through=True)
text.write("x" * 90)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
text.write("y" * 1000)
text.write("z" * 50)
print(log.lost_bytes)
"""


def test_a_part_that_a_full_disk_does_not_take_is_counted(tmp_path):
    command = [sys.executable, "-c", CODE, tmp_path / "log"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) == 990 + 50
    assert (tmp_path / "log").read_bytes() == b"x" * 90 + b"y" * 10
