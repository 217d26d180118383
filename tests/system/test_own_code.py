"""The frames that lead to the user's code, and those that are the user's."""

import functools
import threading
import traceback

import pytest

from tfmagic.system import own_code


def frame(name, file, source, **known):
    """Return a function whose frame has this file."""
    exec(compile(f"def {name}(call=None):\n    {source}", file, "exec"), names := known)
    return names[name]


IN_OURS = f"{own_code.OUR_FOLDER}task/shell.py"
ours = frame("ours", IN_OURS, "return call()")
loop = frame("run_until_complete", "/lib/asyncio/base_events.py", "return call()")
users = frame("users", "<cell>", "return call()")
fails = frame("fails", "/home/fails.py", "1 / 0")
ipython = frame("ipython", "/lib/IPython/core/magic.py", "return call()")
generated = frame("generated", "<string>", "return call()", __name__="tfmagic.protocol.cluster_spec")
waits = frame("waits", threading.__file__, "return call()")


def raised(*calls):
    """Return the traceback of these functions, each of which calls the next."""
    *others, last = calls
    for caller in reversed(others):
        last = functools.partial(caller, last)
    with pytest.raises(ZeroDivisionError) as caught:
        last()
    entries = own_code.entries_of(caught.value.__traceback__)
    return own_code.linked([e for e in entries if e.tb_frame.f_code.co_filename != __file__])


def names(frames):
    return [found.f_code.co_name for found, _ in traceback.walk_tb(frames)]


def test_the_frames_above_the_users_are_dropped_and_others_of_ours_stay():
    found = own_code.without_leading(raised(ours, loop, ours, users, ours, fails))
    assert names(found) == ["users", "ours", "fails"]


def test_the_last_frame_stays_also_if_it_is_ours():
    only = own_code.linked(own_code.entries_of(raised(ours, ours, fails))[:2])
    assert names(own_code.without_leading(only)) == ["ours"]
    assert own_code.without_leading(None) is None


def test_a_function_of_ours_in_the_place_of_another_packages_is_dropped_unless_it_raised():
    patch = frame("patch", f"{own_code.OUR_FOLDER}task/tensorflow/keras_steps.py", "return call()")
    entries = own_code.entries_of(raised(users, patch, ours, patch, fails))
    kept = [own_code.without_patches(found) for found in (entries, entries[:4], [])]
    assert [names(own_code.linked(found)) for found in kept] == [
        ["users", "ours", "fails"],
        ["users", "ours", "patch"],
        [],
    ]


def test_a_handler_of_ours_below_the_users_frames_is_dropped():
    entries = own_code.entries_of(raised(ours, users, ours, ours, fails))[:4]
    assert names(own_code.without_handler(own_code.linked(entries))) == ["ours", "users"]


def test_the_notebook_shows_the_users_frames_alone():
    assert names(own_code.users_frames(raised(users, ipython, ours, generated, users, ours, fails))) == [
        "users",
        "users",
        "fails",
    ]
    assert names(own_code.users_frames(raised(waits, ipython, fails))) == ["waits", "fails"]


def test_a_dump_has_the_users_lines_alone_the_innermost_first():
    dump = f"""Current thread 0x1 (most recent call first):
  File "/home/fails.py", line 2 in fails
  File "{IN_OURS}", line 3 in ours
  File "<string>", line 4 in generated
  File "<cell>", line 5 in users
  File "<frozen runpy>", line 6 in run_path
  File "{IN_OURS}", line 7 in ours
  File "<string>", line 1 in <module>"""
    found = [line.split()[-1] for line in own_code.users_lines(dump)]
    assert found == ["fails", "generated", "users"]
