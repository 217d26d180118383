"""Import dill, without its changes to Python's own pickler. Every other module takes dill from here.

dill's import adds its functions to `pickle._Pickler.dispatch`. Each pickler that is written in Python copies
this table when its class is made, as joblib's does; then it fails at dataclasses, in the notebook and on each
task. dill's own pickler has a table of its own. If dill was imported before, by the user or by TensorFlow in
the kernel, its changes stay; a task imports it here first.
"""

import sys

_is_users = "dill" in sys.modules

import dill  # noqa: E402

if not _is_users:
    dill.extend(use_dill=False)

__all__ = ["dill"]
