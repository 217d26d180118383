"""tfmagic for a host where it is not installed, unpacked as the actor of the host does it."""

import os
import subprocess
import sys

import tfmagic

_UNPACK = """
import shutil, sys, os
shutil.copytree(sys.argv[1], "nix/tfmagic", dirs_exist_ok=True)
os.utime("nix/tfmagic/py.typed", (0, 0))  # as Nix does with all files
sys.path.insert(0, os.path.abspath("nix"))
from tfmagic.backends.remote.own_source import source_of_tfmagic, unpack_source
first = unpack_source(source_of_tfmagic())
again = unpack_source(source_of_tfmagic())
import os
os.remove(os.path.join(first, "tfmagic", "py.typed"))
print(first, again, unpack_source(source_of_tfmagic()), sep="\\n")
"""
_USE = """
import tfmagic, sys
from importlib import metadata
from tfmagic.backends.remote import agent
print(tfmagic.__file__, metadata.version("tfmagic") == tfmagic.__version__)
"""


def test_a_host_keeps_one_whole_copy_that_only_this_user_can_write(tmp_path):
    def run(code, **environ):
        done = subprocess.run(
            [sys.executable, "-c", code, os.path.dirname(tfmagic.__file__)],
            cwd=tmp_path.parent,
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    first, again, after_a_loss = run(_UNPACK, TMPDIR=str(tmp_path))
    assert first == again != after_a_loss
    assert os.stat(first).st_mode & 0o777 == 0o700
    assert sorted(os.listdir(tmp_path)) == sorted(map(os.path.basename, (first, after_a_loss)))
    file, has_version = run(_USE, PYTHONPATH=after_a_loss)
    assert file == f"{after_a_loss}/tfmagic/__init__.py" and has_version == "True"
