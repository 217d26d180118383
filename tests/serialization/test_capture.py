"""Variables that travel to the tasks, that are refused, and that are sent only once."""

import sys
import types
import weakref

import numpy as np
import pytest

from tfmagic.errors import CaptureError
from tfmagic.serialization import classes, pickling
from tfmagic.serialization.capture import TaskNames, capture, pack_call

LIMIT = 1 << 20


class Side:
    """A notebook and a task, each with a namespace."""

    def __init__(self, code=""):
        self.module = types.ModuleType("__main__")
        self.main = self.module.__dict__
        exec(code, self.main)
        self.task_main = types.ModuleType("__main__").__dict__
        self.has = TaskNames()
        self.known = weakref.WeakValueDictionary()  # classes that the task has, as another process would

    def send(self, *names, push=(), limit=LIMIT):
        found = capture(names, push, self.main, self.main, {"t": self.has}, limit)["t"]
        got = {}
        ours, classes._known = classes._known, self.known
        try:
            for packed in found.names:
                got.update(pickling.load_names(packed, self.task_main))
                self.task_main.update(got)
        finally:
            classes._known = ours
        return got


@pytest.fixture
def side(monkeypatch):
    def make(code=""):
        made = Side(code)
        monkeypatch.setitem(sys.modules, "__main__", made.module)
        return made

    return make


def test_a_function_takes_the_globals_it_uses_along_transitively(side):
    s = side("n = 2\nunused = object()\ndef g(): return n\ndef f(): return g() + 1")
    got = s.send("f")
    assert set(got) == {"f", "g", "n"}
    assert s.task_main["f"]() == 3


def test_a_function_finds_its_globals_in_the_task(side):
    s = side("n = 2\ndef f(): return n")
    s.send("f")
    s.task_main["n"] = 40
    assert s.task_main["f"]() == 40


def test_a_recursive_closure_and_a_class_with_super_travel(side):
    s = side(
        "def make():\n"
        "    def fact(k): return 1 if k < 2 else k * fact(k - 1)\n"
        "    return fact\n"
        "fact = make()\n"
        "class A:\n    def m(self): return 1\n"
        "class B(A):\n    def m(self): return super().m() + 1\n"
        "b = B()"
    )
    s.send("fact", "b")
    assert s.task_main["fact"](5) == 120
    assert s.task_main["b"].m() == 2


def test_functions_by_value_are_what_they_were(side):
    source = """
import math
def outer(start):
    count = start
    def step(by: int = 2, *, times: int = 1):
        'Doc.'
        nonlocal count
        count += by * times * shift
        return count
    def look():
        return count
    def fact(n):
        return n * fact(n - 1) if n > 1 else 1
    def never():
        return later
    step.note = [1]
    return step, look, fact, never
    later = 1
shift = 10
parts = outer(5)
"""
    s = side(source)
    pickled = pickling.dumps(s.main["parts"], s.main)
    assert b"dill" not in pickled.stream
    step, look, fact, never = pickling.loads(pickling.pack(pickled), {"shift": 100})
    assert step(times=2) == 405 and look() == 405 and fact(5) == 120
    assert step.__doc__ == "Doc." and step.note == [1] and step.__annotations__["by"] is int
    assert step.__qualname__ == "outer.<locals>.step" and step.__globals__ == {"shift": 100}
    with pytest.raises(NameError, match="later"):
        never()


def test_a_function_of_a_module_finds_its_module(side):
    def nested():
        return pytest

    back = pickling.loads(pickling.pack(pickling.dumps(nested, {})), {})
    assert back is not nested and back.__globals__ is globals() and back() is pytest


def test_an_instance_sent_later_is_of_the_class_sent_before(side):
    s = side("class A: pass")
    s.send("A")
    s.main["a"] = s.main["A"]()
    assert set(s.send("a")) == {"a"}
    assert isinstance(s.task_main["a"], s.task_main["A"])


def test_two_names_for_one_object_stay_one_object(side):
    s = side("a = [1]\nb = a")
    got = s.send("a", "b")
    assert got["a"] is got["b"]


def test_a_definition_that_was_changed_in_place_is_sent_again(side):
    s = side("class A:\n    rate = 1\ndef f(k=1): return k\na = A()")
    assert set(s.send("A", "f", "a")) == {"A", "f", "a"}
    assert s.send("A", "f", "a") == {}
    sent = s.task_main["A"]
    s.main["A"].rate = 5
    s.main["f"].__defaults__ = (7,)
    assert set(s.send("A", "f", "a")) == {"A", "f"}
    assert s.task_main["A"] is sent and s.task_main["a"].rate == 5 and s.task_main["f"]() == 7


def test_a_helper_with_two_underscores_travels(side):
    s = side("def __helper__(): return 3\ndef use(): return __helper__(), __name__")
    assert set(s.send("use")) == {"__helper__", "use"}


def test_an_unchanged_value_is_sent_once_and_a_changed_one_again(side):
    s = side("a = [1]")
    assert s.send("a") == {"a": [1]}
    assert s.send("a") == {}
    s.main["a"].append(2)
    assert s.send("a") == {"a": [1, 2]}


def test_what_the_task_owns_wins_unless_pushed(side):
    s = side("a = 1")
    s.has.owned = frozenset({"a"})
    assert s.send("a") == {}
    assert s.send("a", push=("a",)) == {"a": 1}


def test_names_that_the_notebook_does_not_have_are_left_to_the_task(side):
    assert side("a = 1").send("a", "only_on_the_task") == {"a": 1}


def test_big_arrays_arrive_writable_and_aligned(side):
    s = side()
    s.main["x"] = np.arange(50_000.0)
    got = s.send("x")["x"]
    got[0] = 7
    assert got.ctypes.data % 64 == 0 or got.ctypes.data % 16 == 0
    assert s.main["x"][0] == 0
    np.testing.assert_array_equal(got[1:], s.main["x"][1:])


def test_every_culprit_is_named_with_type_and_reason(side):
    s = side("ok = 1")
    s.main["gen"] = (i for i in "ab")
    s.main["frame"] = sys._getframe()
    with pytest.raises(CaptureError) as caught:
        s.send("ok", "gen", "frame")
    text = str(caught.value)
    assert "gen (generator)" in text and "frame (frame)" in text and "nothing was run" in text
    assert "  ok " not in text
    assert s.has.sent == {}


def test_ten_gigabytes_are_refused_before_they_are_copied(side):
    s = side()
    s.main["huge"] = np.broadcast_to(np.zeros(1), (10 << 27,))
    s.main["blob"] = bytearray(8 << 20)
    with pytest.raises(CaptureError, match=r"huge \(ndarray\): 10 GiB[\s\S]*max_capture_bytes"):
        s.send("huge", "blob", limit=1 << 20)


def test_many_small_ones_over_the_limit_are_all_named(side):
    s = side("a = 'x' * 70_000\nb = 'y' * 70_000")
    with pytest.raises(CaptureError) as caught:
        s.send("a", "b", limit=100_000)
    assert "a (str)" in str(caught.value) and "b (str)" in str(caught.value)
    assert "push" in str(caught.value)


def test_push_has_no_limit(side):
    s = side("a = 'x' * 200_000")
    assert len(s.send(push=("a",), limit=1000)["a"]) == 200_000


def test_push_of_a_missing_name_is_refused(side):
    with pytest.raises(CaptureError, match="--push names nope"):
        side().send(push=("nope",))


def test_a_call_names_the_argument_that_cannot_travel(side):
    s = side()
    with pytest.raises(CaptureError, match=r"argument 1 \(generator\)"):
        pack_call((print, (1, (i for i in "ab")), {}), s.main)


def test_names_of_a_call_follow_functions_and_instances(side):
    s = side("k = 1\ndef f(x): return k\nclass A: pass")
    assert pack_call((s.main["f"], (s.main["A"](),), {}), s.main).needs == {"f", "A"}


def test_the_cause_of_a_refusal_shows_the_frames_of_the_users_class_alone():
    class Stubborn:
        def __reduce__(self):
            raise RuntimeError("not me")

    with pytest.raises(
        CaptureError, match="argument 0 .* cannot travel to the tasks: RuntimeError: not me"
    ) as caught:
        pack_call((print, (Stubborn(),), {}), {})
    frames = caught.value.__cause__.__traceback__
    assert frames.tb_frame.f_code.co_name == "__reduce__" and frames.tb_next is None
