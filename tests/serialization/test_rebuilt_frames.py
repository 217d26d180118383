"""Frames that were rebuilt from plain data have the names, lines, parameters and values of the real ones."""

import ast
import inspect
import math
import pickle
import traceback

import pytest

from tfmagic.serialization import frame_variables, rebuilt_frames


def sent(function, *args, **kwargs):
    """Call a function that raises; return the last frames of the real traceback and of the rebuilt one."""
    with pytest.raises(ZeroDivisionError) as caught:
        function(*args, **kwargs)
    real = caught.value.__traceback__.tb_next
    entries = []
    while real is not None:
        entries.append(real)
        real = real.tb_next
    copies = frame_variables.copy_frames(entry.tb_frame for entry in entries)
    plain = pickle.loads(pickle.dumps(rebuilt_frames.describe(entries, copies)))
    rebuilt = list(traceback.walk_tb(rebuilt_frames.rebuild(plain, lambda name: name)))
    assert [line for _, line in rebuilt] == [frame.f_lineno for frame, _ in rebuilt]
    assert [line for _, line in rebuilt] == [entry.tb_lineno for entry in entries]
    return entries[-1].tb_frame, rebuilt[-1][0]


class Every:
    def kind(self, one, /, two=2, *more, key, other=None, **rest):
        local = [one]
        return local[0] / 0


def free(number):
    def inner(by):
        return number / by

    return inner(0)


def gives_up(first, second=1):
    del first
    return second / 0


def with_odd_names(maths, __dunder, *args):
    return 1 / 0


@pytest.mark.parametrize(
    "call",
    [
        lambda: sent(Every().kind, 1, 3, 4, 5, key=6, more_of_it=7),
        lambda: sent(Every().kind, 1, key=6),
        lambda: sent(free, 5),
        lambda: sent(gives_up, 5),
        lambda: sent(lambda x: x / 0, 5),
        lambda: sent(lambda: sum(1 / n for n in range(1))),
        lambda: sent(lambda: exec("class Body:\n    first = 1\n    second = first / 0")),
        lambda: sent(lambda: exec("\n\nx = 1\n1 / 0\n", {})),
    ],
)
def test_a_frame_is_shown_as_the_real_one_is(call):
    real, rebuilt = call()
    for name in ("co_filename", "co_name", "co_qualname", "co_firstlineno"):
        assert getattr(rebuilt.f_code, name) == getattr(real.f_code, name)
    if real.f_code.co_flags & inspect.CO_OPTIMIZED:
        assert inspect.getargvalues(rebuilt)[:3] == inspect.getargvalues(real)[:3]
    values = {name: value for name, value in real.f_locals.items() if not name.startswith("__")}
    assert set(values) <= set(rebuilt.f_locals) | {"x"}
    assert all(
        rebuilt.f_locals[name] == v for name, v in values.items() if type(v) in (int, list, tuple, dict)
    )


def test_each_parameter_has_a_value_or_at_least_a_text():
    """IPython shows no parameter where one has none: modules, for example, are not copied."""
    real, rebuilt = sent(with_odd_names, math, 2, *range(3))
    assert inspect.formatargvalues(*inspect.getargvalues(rebuilt)) == (
        "(maths=<module>, __dunder=<int>, *args=(0, 1, 2))"
    )
    assert real.f_locals["maths"] is math


def test_more_variables_than_are_copied_leave_every_parameter_its_place():
    names = [f"p{n}" for n in range(400)]
    namespace = {}
    exec(f"def wide({', '.join(names)}): return 1 / 0", namespace)
    _, rebuilt = sent(namespace["wide"], *range(400))
    assert list(inspect.getargvalues(rebuilt).args) == names
    assert rebuilt.f_locals["p0"] == 0 and str(rebuilt.f_locals["p399"]) == "<int>"


def test_lines_above_the_first_line_of_their_code_are_kept():
    """Macros and translated code have them."""
    tree = ast.parse("\n\ndef moved(value):\n    return value / 0")
    tree.body[0].lineno = tree.body[0].end_lineno = 1000
    namespace = {}
    exec(compile(tree, "<moved>", "exec"), namespace)
    real, rebuilt = sent(namespace["moved"], 1)
    assert rebuilt.f_lineno == real.f_lineno == 4


def test_what_a_frame_is_called_by_is_no_module_to_import(tmp_path, monkeypatch):
    """dill imports the module that the ``__name__`` in a dict is, here one that raises when it is imported."""
    (tmp_path / "raises_again.py").write_text("import threading\nlock = threading.Lock()\n1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ZeroDivisionError) as caught:
        import raises_again  # noqa: F401
    entries = [caught.value.__traceback__]
    while entries[-1].tb_next is not None:
        entries.append(entries[-1].tb_next)
    copies = frame_variables.copy_frames(entry.tb_frame for entry in entries)
    import dill

    plain = dill.loads(dill.dumps(rebuilt_frames.describe(entries, copies)))
    rebuilt = [frame for frame, _ in traceback.walk_tb(rebuilt_frames.rebuild(plain, lambda name: name))]
    assert rebuilt[-1].f_globals["__name__"] == "raises_again"
