"""Exceptions that travel from a task to the notebook, and the stand-ins for those that cannot."""

import io
import pickle
import subprocess
import sys
import threading
import time
import traceback
from unittest.mock import patch

import pytest
import tblib

from tfmagic.errors import RemoteError, TfmagicError
from tfmagic.failures import hints
from tfmagic.serialization import exceptions, frame_variables, rebuilt_frames, tracebacks
from tfmagic.system import time_limits
from tfmagic.task.tensorflow import interrupts


class Plain(Exception):
    pass


class OddInit(Exception):
    """Its constructor does not take its `args`."""

    def __init__(self, code, *, where):
        super().__init__(f"{code} at {where}")
        self.code, self.where = code, where


class OddOsError(OSError):
    def __init__(self, path, why):
        super().__init__(2, why, path)
        self.why = why


class KeywordOnly(ValueError):
    def __init__(self, *, why):
        self.why = why


class HoldsLock(KeyError):
    def __init__(self):
        super().__init__("locked")
        self.lock = threading.Lock()


class HoldsFile(OSError):
    def __init__(self):
        super().__init__("open")
        self.file = io.BytesIO()


def loop_for_ever():
    while True:
        pass


class LoopsHere(ValueError):
    is_here = False

    def __init__(self, text):
        super().__init__(text)
        self.text = text

    def __setstate__(self, state):
        if self.is_here:
            loop_for_ever()
        vars(self).update(state)


def raise_on_arrival():
    raise RuntimeError("no")


class LoopsOnArrival(ValueError):
    def __reduce__(self):
        return loop_for_ever, ()


class RaisesOnArrival(ValueError):
    def __reduce__(self):
        return raise_on_arrival, ()


class LoopsOnDeparture(ValueError):
    def __reduce__(self):
        loop_for_ever()


class LiesAboutItsClass(LookupError):
    def __reduce__(self):
        return ValueError, ("not me",)


class LiesAboutItsMessage(LookupError):
    def __reduce__(self):
        return LiesAboutItsMessage, ("another message",)


class BadText(Exception):
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


class SlowText(Exception):
    def __str__(self):
        loop_for_ever()


class NoAttributes(Exception):
    def __setattr__(self, name, value):
        raise AttributeError(name)


class BaseKind(BaseException):
    pass


HERE = {name: value for name, value in globals().items() if isinstance(value, type)}
FAITHFUL = [
    Plain("x", 1),
    OddInit(3, where="here"),
    OddOsError("/path", "gone"),
    KeywordOnly(why="this"),
    ValueError("plain"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    FileNotFoundError(2, "no such file", "/x"),
    StopIteration(3),
    NoAttributes("fixed"),
    BaseKind("base"),
]
UNFAITHFUL = [
    LoopsOnArrival("a"),
    RaisesOnArrival("b"),
    LoopsOnDeparture("c"),
    LiesAboutItsClass("d"),
    LiesAboutItsMessage("e"),
    BadText("f"),
    SlowText("g"),
]
REACHED = {  # the time limit that each of these reaches
    LoopsOnArrival: (exceptions, "_OBJECT_S"),
    LoopsOnDeparture: (exceptions, "_OBJECT_S"),
    SlowText: (tracebacks, "_TEXT_S"),
}


def raised(error):
    """Return the exception with a traceback."""
    try:
        raise error
    except BaseException as caught:
        return caught


def send(error, main=HERE):
    packed = tracebacks.pack_error(error, {}, lambda name: False, "worker-1 (pid 1, host)")
    packed = pickle.loads(pickle.dumps(packed))
    return tracebacks.unpack_error(packed, main)


@pytest.mark.parametrize("error", FAITHFUL, ids=lambda e: type(e).__name__)
def test_an_exception_arrives_as_what_it_was(error):
    arrived = send(raised(error))
    assert type(arrived) is type(error)
    assert str(arrived) == str(error) and arrived.args == error.args
    assert {k: v for k, v in vars(arrived).items() if k != "__notes__"} == vars(error)
    assert arrived.__notes__ == ["raised on worker-1 (pid 1, host)"]
    assert traceback.extract_tb(arrived.__traceback__)[-1].name == "raised"


@pytest.mark.parametrize("error", UNFAITHFUL, ids=lambda e: type(e).__name__)
def test_what_cannot_travel_becomes_a_remote_error_that_is_also_its_class(error, monkeypatch):
    if type(error) in REACHED:
        monkeypatch.setattr(*REACHED[type(error)], 0.1)
    began = time.monotonic()
    arrived = send(raised(error))
    assert time.monotonic() - began < 30
    assert isinstance(arrived, RemoteError) and isinstance(arrived, type(error))
    assert type(arrived).__name__ == arrived.type_name == type(error).__name__
    assert "in raised" in arrived.text and "raise error" in arrived.text
    assert traceback.extract_tb(arrived.__traceback__)[-1].name == "raised"
    again = pickle.loads(pickle.dumps(arrived))
    assert str(again) == str(arrived) and again.text == arrived.text
    assert [c for c in threading.enumerate() if c.name == "tfmagic-bounded" and c.daemon is False] == []


def test_a_class_that_loops_in_the_notebook_alone_does_not_hang_it(monkeypatch):
    packed = tracebacks.pack_error(raised(LoopsHere("b")), {}, lambda name: False, "worker-1 (pid 1, host)")
    monkeypatch.setattr(LoopsHere, "is_here", True)
    monkeypatch.setattr(exceptions, "_ARRIVAL_S", 0.1)
    began = time.monotonic()
    arrived = tracebacks.unpack_error(packed, HERE)
    assert time.monotonic() - began < 30
    assert isinstance(arrived, RemoteError) and isinstance(arrived, LoopsHere) and str(arrived) == "b"


@pytest.mark.parametrize("kind", [HoldsLock, HoldsFile])
def test_an_attribute_that_cannot_travel_costs_no_other(kind):
    error = kind()
    error.step, error.batch = 7, [1, 2]
    arrived = send(raised(error))
    assert type(arrived) is kind and arrived.args == error.args
    assert arrived.step == 7 and arrived.batch == [1, 2]
    (name,) = set(vars(error)) - {"step", "batch"}
    value = getattr(error, name)
    assert repr(getattr(arrived, name)) == repr(value)
    told = f"stayed on the task, since it cannot travel: .{name} ({type(value).__name__})"
    assert arrived.__notes__ == [told, "raised on worker-1 (pid 1, host)"]


def test_an_argument_that_cannot_travel_is_its_text():
    lock = threading.Lock()
    arrived = send(raised(Plain("no lock", lock)))
    assert type(arrived) is Plain and arrived.args[0] == "no lock" and repr(arrived.args[1]) == repr(lock)
    assert str(arrived) == str(("no lock", lock))
    assert arrived.__notes__[0] == "stayed on the task, since it cannot travel: args[1] (lock)"


def test_an_exception_whose_class_cannot_travel_keeps_its_attributes():
    error = RaisesOnArrival("b")
    error.step, error.lock = 7, threading.Lock()
    arrived = send(raised(error))
    assert isinstance(arrived, RemoteError) and arrived.step == 7 and not hasattr(arrived, "lock")
    assert arrived.__notes__[0] == "stayed on the task, since it cannot travel: .lock (lock)"


def test_a_class_that_the_notebook_lacks_stands_on_its_nearest_base_there():
    class Hidden(RaisesOnArrival):
        pass

    arrived = send(raised(Hidden()))
    assert isinstance(arrived, RaisesOnArrival) and isinstance(arrived, ValueError)
    assert (
        type(arrived).__name__
        == "test_a_class_that_the_notebook_lacks_stands_on_its_nearest_base_there.<locals>.Hidden"
    )


def test_the_original_exception_is_left_as_it_was():
    error = raised(HoldsLock())
    error.ag_error_metadata = threading.Lock()
    before = (error.__traceback__, dict(vars(error)))
    send(error)
    assert (error.__traceback__, vars(error)) == before


def test_cause_context_and_notes_arrive():
    def fail():
        try:
            try:
                raise KeyError("first")
            except KeyError:
                raise OddInit(2, where="second")  # noqa: B904 - the implicit context is the point
        except OddInit as error:
            error.add_note("a note of the user's")
            raise Plain("third") from error

    with pytest.raises(Plain) as caught:
        fail()
    arrived = send(caught.value)
    assert isinstance(arrived.__cause__, OddInit) and arrived.__suppress_context__
    assert arrived.__cause__.__notes__ == ["a note of the user's"]
    assert isinstance(arrived.__cause__.__context__, KeyError)
    assert [f.name for f in traceback.extract_tb(arrived.__traceback__)][-1] == "fail"


def test_the_parts_of_a_group_arrive_with_frames_notes_and_causes():
    def fail(error, cause=None):
        raise error from cause

    def raised_in_fail(*parts):
        try:
            fail(*parts)
        except Exception as error:
            error.add_note("of the part")
            return error

    inner = ExceptionGroup("inner", [raised_in_fail(KeyError("k"), OSError("cause"))])
    arrived = send(raised(ExceptionGroup("outer", [raised_in_fail(ValueError("v")), inner])))
    assert arrived.message == "outer" and type(arrived) is ExceptionGroup
    value, (key,) = arrived.exceptions[0], arrived.exceptions[1].exceptions
    for error, kind in ((value, ValueError), (key, KeyError)):
        assert type(error) is kind and error.__notes__ == ["of the part"]
        assert [f.name for f in traceback.extract_tb(error.__traceback__)] == ["raised_in_fail", "fail"]
    assert isinstance(key.__cause__, OSError)


def test_a_part_that_cannot_travel_costs_the_group_no_other_part():
    arrived = send(raised(BaseExceptionGroup("g", [HoldsLock(), KeyboardInterrupt("stop"), BadText()])))
    assert type(arrived) is BaseExceptionGroup and arrived.message == "g"
    lock, stop, text = arrived.exceptions
    assert isinstance(lock, KeyError) and type(stop) is KeyboardInterrupt and isinstance(text, BadText)


def test_a_loop_of_causes_ends():
    first, second = Plain("1"), Plain("2")
    first.__cause__, second.__cause__ = second, first
    assert type(send(raised(first)).__cause__) is Plain


def test_of_a_thousand_causes_it_is_said_how_many_are_left_out():
    error = raised(Plain("the first"))
    for number in range(1000):
        cause, error = error, Plain(number)
        error.__cause__ = cause
    packed = tracebacks.pack_error(raised(error), {}, lambda name: False, "worker-1 (pid 1, host)")
    arrived = tracebacks.unpack_error(packed, HERE)
    assert "its causes and contexts are 1,000 exceptions; 981 of them are left out" in arrived.__notes__
    shown = 0
    while arrived is not None:
        arrived, shown = arrived.__cause__, shown + 1
    assert shown == 1001 - 981
    few = send(raised(Plain("alone")))
    assert not any("left out" in note for note in few.__notes__)


def test_a_deep_recursion_travels_by_its_ends():
    def deeper(n):
        return deeper(n - 1) if n else 1 / 0

    with pytest.raises(ZeroDivisionError) as caught:
        deeper(800)
    frames = traceback.extract_tb(send(caught.value).__traceback__)
    assert len(frames) == 200
    assert frames[0].name == "test_a_deep_recursion_travels_by_its_ends" and frames[-1].name == "deeper"


def test_no_character_is_marked_in_the_lines_of_remote_frames():
    """tblib's own stub marks the first characters of a long line, whatever has failed there."""

    def fail(a, b):
        return (a) + len("a long line, of which the part that has failed is far to the right") + (a / b)

    with pytest.raises(ZeroDivisionError) as caught:
        fail(1, 0)
    for error in (send(caught.value), send(raised(Plain("x")))):
        text = "".join(traceback.format_exception(error))
        assert ("far to the right" in text or "raise error" in text) and "^" not in text


def test_the_frames_travel_as_tblib_describes_them_and_nothing_is_registered_with_pickle():
    code = (
        "import copyreg, sys; before = {**copyreg.dispatch_table}; import tfmagic.serialization.tracebacks\n"
        "assert 'tblib' in sys.modules and 'tblib.pickling_support' not in sys.modules\n"
        "assert not [kind for kind in {*copyreg.dispatch_table} - {*before} if issubclass(kind, BaseException)]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    entry = raised(Plain("x")).__traceback__
    ((plain, *_),) = rebuilt_frames.describe([entry], {})
    plain["tb_frame"]["f_locals"] = plain["tb_frame"]["f_globals"] = {}
    of_tblib = tblib.Traceback(entry).to_dict()
    of_tblib["tb_frame"]["f_globals"] = {}
    assert plain == of_tblib


class Slow:
    def __repr__(self):
        loop_for_ever()


class Raises:
    def __repr__(self):
        raise SystemExit


class Waits:
    release = threading.Event()

    def __repr__(self):
        Waits.release.wait()


def locals_of(arrived, function):
    frames = arrived.__traceback__
    while frames.tb_frame.f_code.co_name != function:
        frames = frames.tb_next
    return frames.tb_frame.f_locals


def test_remote_locals_are_bounded_copies_whatever_they_are(monkeypatch):
    import numpy as np

    # a machine that stands still for a moment must not make a quick repr a slow one
    monkeypatch.setattr(frame_variables, "_EACH_S", 0.5)
    monkeypatch.setattr(frame_variables, "_TOTAL_S", 20)

    def fail():
        number, text, items, nested = 7, "abc", [1, (2, {"k": None})], {"a": [1.5, b"x"]}
        array, big_array = np.arange(4.0), np.zeros(1 << 20)
        huge, slow, bad, stuck, own = list(range(10**6)), Slow(), Raises(), Waits(), Plain("own")
        long = "x" * 10**6
        raise Plain(number, text, items, nested, array, big_array, huge, slow, bad, stuck, own, long)

    with pytest.raises(Plain) as caught:
        fail()
    caught.value.args = ("short",)
    began = time.monotonic()
    found = locals_of(send(caught.value), "fail")
    Waits.release.set()
    assert time.monotonic() - began < 30
    assert (found["number"], found["text"], found["items"]) == (7, "abc", [1, (2, {"k": None})])
    assert found["nested"] == {"a": [1.5, b"x"]}
    assert found["array"].tolist() == [0, 1, 2, 3]
    assert found["big_array"].shape == "(1048576,)" and found["big_array"].dtype == "float64"
    assert repr(found["huge"]).endswith("...]") and len(repr(found["long"])) < 3000
    assert repr(found["slow"]) == "<Slow: repr() took longer than 0.5 s>"
    assert repr(found["bad"]) == "<Raises: repr() raised SystemExit>"
    assert "took longer" in repr(found["stuck"])
    assert repr(found["own"]) == "Plain('own')"
    with pytest.raises(AttributeError, match="stayed on its task.*tfcluster.debug.TASK"):
        _ = found["own"].args_of_it


def test_expressions_can_be_evaluated_in_a_remote_frame():
    def fail():
        items = [1, 2, 3]
        raise Plain(items)

    with pytest.raises(Plain) as caught:
        fail()
    frames = send(caught.value).__traceback__
    while frames.tb_next:
        frames = frames.tb_next
    assert eval("len(items) + sum(items)", frames.tb_frame.f_globals, frames.tb_frame.f_locals) == 9


def test_a_call_is_bounded_and_the_next_one_goes_on():
    results = time_limits.call_each([lambda: 1, loop_for_ever, lambda: 1 / 0, lambda: 2], 0.1, 5)
    assert [r.value for r in results] == [1, None, None, 2]
    assert isinstance(results[1].error, time_limits.TookTooLong)
    assert isinstance(results[2].error, ZeroDivisionError)


def test_calls_end_when_their_time_together_is_up():
    began = time.monotonic()
    results = time_limits.call_each([loop_for_ever] * 50, 0.1, 0.3)
    assert time.monotonic() - began < 4  # one by one they take 5 s
    assert all(isinstance(r.error, time_limits.TookTooLong) for r in results)


def test_an_abandoned_loop_ends():
    seen = []

    def spin():
        seen.append(threading.current_thread())
        loop_for_ever()

    with pytest.raises(time_limits.TookTooLong):
        time_limits.call(spin, 0.05)
    seen[0].join(5)
    assert not seen[0].is_alive()


def test_what_a_copy_is_asks_no_code_of_the_value():
    class Trap(dict):
        def __len__(self):
            raise AssertionError("asked")

    def fail():
        trap = Trap()
        raise Plain(id(trap))

    with pytest.raises(Plain) as caught:
        fail()
    frame = caught.value.__traceback__.tb_next.tb_frame
    assert isinstance(frame_variables.copy_frames([frame])[id(frame)][0]["trap"], frame_variables.RemoteLocal)


def test_an_error_of_ours_is_itself_again():
    assert type(send(raised(TfmagicError("x")))) is TfmagicError


def test_a_class_that_is_registered_with_tblib_travels_without_frames():
    import copyreg

    from tblib import pickling_support

    error = raised(Plain("x"))
    error.__context__ = HoldsLock()
    with patch.dict(copyreg.dispatch_table):
        pickling_support.install(error)
        assert type(send(error)) is Plain


class Hostile(Exception):
    """Raises for the attributes that every tool reads."""

    @property
    def __notes__(self):
        raise RuntimeError("notes")

    @property
    def __cause__(self):
        raise RuntimeError("cause")


class Locked(Exception):
    def __getattribute__(self, name):
        raise RuntimeError(name)


class Unknowing(Exception):
    """A class that passes unknown attributes on to another object."""

    def __getattr__(self, name):
        raise KeyError(name)


class Sealed(type):
    def __getattribute__(cls, name):
        raise RuntimeError(name)


class Nameless(type):
    __name__ = property(lambda cls: 1 / 0)


class Homeless(type):
    __module__ = property(lambda cls: 1 / 0)


class Rootless(type):
    __mro__ = property(lambda cls: 1 / 0)


@pytest.mark.parametrize("meta", [Sealed, Nameless, Homeless, Rootless])
def test_a_metaclass_that_makes_the_names_of_its_classes_raise_hides_nothing(meta):
    kind = meta("Kind", (ValueError,), {})
    error = raised(kind("the text"))
    packed = tracebacks.pack_error(error, {}, lambda name: False, "worker-1")
    assert (packed.type_name, packed.message) == ("Kind", "the text")
    assert "in raised" in packed.text and packed.text.endswith("Kind: the text\n")
    assert exceptions.describe(error) == "Kind: the text"
    assert not interrupts.is_interrupt(error)
    assert not hints.find_hint(packed).advice
    shown = "".join(traceback.format_exception(tracebacks.unpack_error(packed, HERE)))
    assert "raise error" in shown and "Kind: the text" in shown and "raised on worker-1" in shown


class Ending(Exception):
    """It ends the process that asks for its text, its arguments or its pickle."""

    def __repr__(self):
        raise SystemExit(1)

    __str__ = __reduce_ex__ = args = property(lambda self: sys.exit(2))


def test_a_class_whose_pickling_ends_the_process_is_reported_like_another():
    packed = tracebacks.pack_error(raised(Ending("x")), {}, lambda name: False, "worker-1")
    assert packed.type_name == "Ending" and packed.message == "<Ending whose str() raised SystemExit>"
    shown = "".join(traceback.format_exception(tracebacks.unpack_error(packed, HERE)))
    assert "raise error" in shown and "whose str() raised SystemExit" in shown


@pytest.mark.parametrize("kind", [Hostile, Locked, Unknowing])
def test_a_class_that_makes_its_dunders_raise_is_reported_nevertheless(kind):
    packed = tracebacks.pack_error(raised(kind("the text")), {}, lambda name: False, "worker-1")
    assert packed.type_name == kind.__name__ and packed.message == "the text"
    text = packed.text.partition("Ignored error getting __notes__")[0]  # which Python 3.13 adds
    assert "in raised" in text and text.endswith(f"{kind.__name__}: the text\n")
    assert not interrupts.is_interrupt(kind("x"))
    arrived = tracebacks.unpack_error(packed, HERE)
    shown = "".join(traceback.format_exception(arrived))
    assert "raise error" in shown and f"{kind.__name__}: the text" in shown and "raised on worker-1" in shown
    assert type(arrived) is kind if kind is Unknowing else isinstance(arrived, RemoteError)


@pytest.mark.parametrize("notes", [[1, None], [BadText("x")], 5])
def test_odd_notes_cost_nothing_but_themselves(notes):
    error = raised(Plain("x"))
    error.__notes__ = notes
    arrived = send(error)
    assert type(arrived) is Plain
    assert arrived.__notes__ == ([*map(str, notes)] if notes == [1, None] else []) + [
        "raised on worker-1 (pid 1, host)"
    ]


def test_a_message_of_any_length_is_reported_at_once():
    began = time.monotonic()
    error = raised(ValueError("x" * 5_000_000 + "end", 3))
    kept = []

    def keep(text):
        kept.append(text)
        return "a file"

    packed = tracebacks.pack_error(error, {}, lambda name: False, "worker-1", keep=keep)
    assert not hints.find_hint(packed).advice
    assert len(packed.message) < 30_000 and "characters left out" in packed.message
    arrived = tracebacks.unpack_error(packed, HERE)
    assert type(arrived) is ValueError and arrived.args[1] == 3
    assert "xend" in str(arrived) and len(str(arrived)) < 200_000
    (text,) = kept
    assert "x" * 5_000_000 + "end" in text and "in raised" in text
    assert arrived.__notes__[0].startswith("the message has 5,000,010 characters, of which ")
    assert arrived.__notes__[0].endswith("; the whole text is in a file")
    assert time.monotonic() - began < 30


def test_a_long_message_of_a_class_of_its_own_is_clipped_too():
    class Long(Exception):
        def __str__(self):
            return "y" * 5_000_000

    arrived = tracebacks.unpack_error(tracebacks.pack_error(raised(Long()), {}, lambda name: False, ""), HERE)
    assert isinstance(arrived, RemoteError) and len(str(arrived)) < 200_000
    assert "characters left out" in str(arrived)


def test_the_modules_variables_that_the_code_names_can_be_seen_from_every_frame():
    namespace = {"__name__": "__main__", "table": {"k": [1, 2]}, "unused": 1}
    exec(
        compile(
            "def look(q):\n    return table['nope']\ndef call(q):\n    return look(q)\n",
            "<tfcluster-0>",
            "exec",
        ),
        namespace,
    )
    with pytest.raises(KeyError) as caught:
        exec(compile("call(3)", "<tfcluster-0>", "exec"), namespace)
    arrived = send(caught.value)
    frames = arrived.__traceback__
    while frames:
        if frames.tb_frame.f_code.co_filename == "<tfcluster-0>":
            scope = (frames.tb_frame.f_globals, frames.tb_frame.f_locals)
            assert eval("table", *scope) == {"k": [1, 2]}
            assert "unused" not in {**scope[0], **scope[1]}
        frames = frames.tb_next
