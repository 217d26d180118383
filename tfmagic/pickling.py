"""User values to bytes and back, on both sides of the wire.

    value ── dill ──→ pickle stream + raw buffers (protocol 5) ──→ Packed
             │ names that the other side has are linked, not copied
             │ TensorFlow tensors become numpy arrays on their way to the notebook

Plain data, arrays and functions go through Python's own pickler, which is ten times as fast as dill's, which
is written in Python. Whatever it meets beside those, dill takes over.

Small values travel in the message. From 64 KiB on stream and buffers lie in a memory file whose
descriptor travels instead: one copy on the way in, none on the way out, and nothing to clean up if
either side dies.

A notebook's functions find their globals by name in whatever ``__main__`` they land in, and a class
that both sides have is linked by its name, so that ``isinstance`` and ``except`` hold across.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import io
import marshal
import mmap
import os
import pickle
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import dill

from tfmagic import absl_flags, testcases
from tfmagic.packed import OwnedHandle, Packed

_IN_BAND_BYTES = 1 << 16  # below, copying beats a descriptor and a mapping
_MAPPED_BYTES = 1 << 20  # from here on a mapping beats a copy by more than a descriptor is worth
_UNTRACKED: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
_ALIGN = 64  # a cache line: numpy arrays over the mapping stay aligned
HEAVY_ROOTS = frozenset({"tensorflow", "keras", "tf_keras"})


class TooLarge(Exception):
    """The pickle grew over its limit."""


class NeedsTensorFlow(Exception):
    """Unpickling would import TensorFlow into a process that has not imported it."""


class _Sink(io.RawIOBase):
    """Collects a pickle stream and stops it at a limit, before anything is copied."""

    def __init__(self, limit_bytes: int | None):
        self.chunks: list[bytes] = []
        self.size_bytes = 0
        self.limit_bytes = limit_bytes

    def add(self, size_bytes: int) -> None:
        self.check(size_bytes)
        self.size_bytes += size_bytes

    def check(self, size_bytes: int) -> None:
        """Raise `TooLarge` if that much more would be over the limit."""
        if self.limit_bytes is not None and self.size_bytes + size_bytes > self.limit_bytes:
            raise TooLarge

    def write(self, data: Any) -> int:
        self.add(len(data))
        self.chunks.append(data)
        return len(data)


class Pickler(dill.Pickler):  # type: ignore[misc]  # dill is untyped
    """dill, with the notebook's namespace linked by name.

    Args:
        main: The ``__main__`` namespace that is linked instead of copied.
        linkable: Whether the other side has the class or function bound to this name in `main`.
        for_notebook: Turn tensors and variables into numpy arrays.
        refuse: Classes whose instances are not to travel.
        tried: Ids of objects whose attributes are tried one by one: they are left out of that.
    """

    def __init__(
        self,
        sink: _Sink,
        main: Mapping[str, Any],
        linkable: Callable[[str], bool],
        for_notebook: bool = False,
        refuse: tuple[type, ...] = (),
        tried: frozenset[int] = frozenset(),
    ):
        self.buffers: list[memoryview] = []
        self._sink, self._namespace, self._linkable = sink, main, linkable
        self._for_notebook, self._refuse, self._tried = for_notebook, refuse, tried
        keep = functools.partial(_keep, sink=sink, buffers=self.buffers)
        super().__init__(sink, protocol=5, byref=False, recurse=False, buffer_callback=keep)

    def persistent_id(self, obj: Any) -> Any:
        if self._tried and id(obj) in self._tried:
            return ("tried",)
        return _link(obj, self._namespace, self._linkable)

    def reducer_override(self, obj: Any) -> Any:
        if self._refuse and isinstance(obj, self._refuse):
            raise TypeError(f"cannot pickle {type(obj).__qualname__!r} object")
        if isinstance(obj, BaseException) and _takes_frames_along(type(obj)):
            return obj.__reduce_ex__(5)
        if isinstance(obj, types.ModuleType) and sys.modules.get(obj.__name__) is obj:
            return (_import_module, (obj.__name__,))
        if type(obj).__module__ == "numpy" and type(obj).__name__ == "ndarray":
            self._sink.check(obj.nbytes)  # before a strided one is copied
            return obj.__reduce_ex__(5)  # out of band; dill's own way copies
        if self._for_notebook and _is_tensor(obj):
            return (_same, (obj.numpy(),))
        if absl_flags.is_flags(obj):
            return absl_flags.reduce_flags(obj)
        testcases.refuse_what_stays(obj)
        if testcases.is_test_case(obj):
            return testcases.reduce_test_case(obj, functools.partial(self._problem_of_part, obj))
        return NotImplemented

    def _problem_of_part(self, whole: object, part: object) -> str:
        """Why an attribute of `whole` cannot be pickled; "" if it can."""
        tried = self._tried | {id(whole)}
        sink = _Sink(self._sink.limit_bytes)
        trial = Pickler(sink, self._namespace, self._linkable, self._for_notebook, self._refuse, tried)
        try:
            trial.dump(part)
        except TooLarge:
            return ""  # a limit is told as what it is
        except Exception as error:  # the user's own __reduce__ may raise anything
            return f"{type(error).__name__}: {error}"
        return ""


class _NeedsDill(Exception):
    """A value holds something that Python's own pickler is not trusted with."""


class _QuickPickler(pickle.Pickler):
    """Writes what `Pickler` would, in C: plain data is never looked at from here, whatever its size."""

    def __init__(self, sink: _Sink, main: Mapping[str, Any], linkable: Callable[[str], bool]):
        self.buffers: list[memoryview] = []
        self._sink, self._namespace, self._linkable = sink, main, linkable
        self._cells: set[int] = set()
        keep = functools.partial(_keep, sink=sink, buffers=self.buffers)  # a method of ours would be a cycle
        super().__init__(sink, protocol=5, buffer_callback=keep)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | types.FunctionType | types.BuiltinFunctionType):
            if obj.__module__ == "__main__" and (link := _link(obj, self._namespace, self._linkable)):
                return _linked, link
            is_plain = _is_importable(obj)
            if not is_plain and type(obj) is types.FunctionType:
                self._cells.update(map(id, obj.__closure__ or ()))  # which the function fills
                return _reduce_function(obj, self._namespace)
        elif obj is _MAIN:
            return _linked, ("namespace",)
        elif isinstance(obj, types.CellType) and id(obj) in self._cells:
            return (_make_cell, ())
        elif (numpy := sys.modules.get("numpy")) is not None and type(obj).__module__.startswith("numpy"):
            is_plain = type(obj) is numpy.ndarray or isinstance(obj, numpy.generic | numpy.dtype)
            self._sink.check(getattr(obj, "nbytes", 0))  # before a strided array is copied
        else:
            is_plain = type(obj) is functools.partial
        if not is_plain:
            raise _NeedsDill
        return NotImplemented


def _keep(buffer: pickle.PickleBuffer, sink: _Sink, buffers: list[memoryview]) -> bool:
    """Whether this array's bytes belong into the stream: large ones are kept beside it."""
    raw = buffer.raw()
    if raw.nbytes < _IN_BAND_BYTES:
        return True
    sink.add(raw.nbytes)
    buffers.append(raw)
    return False


def _link(obj: Any, namespace: Mapping[str, Any], linkable: Callable[[str], bool]) -> Any:
    """What stands for `obj` where the other side has it; else None."""
    if obj is namespace:
        return ("namespace",)
    if isinstance(obj, type | types.FunctionType) and obj.__module__ == "__main__":
        name = obj.__qualname__
        if namespace.get(name) is obj and linkable(name):
            return ("main", name)
    return None


def _is_importable(obj: Any) -> bool:
    """Whether a function or class is what its module has under its name."""
    if obj.__module__ in (None, "__main__"):
        return False
    found: Any = sys.modules.get(obj.__module__)
    for name in obj.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is obj


def _reduce_function(function: types.FunctionType, main: Mapping[str, Any]) -> tuple[Any, ...]:
    """A function by its value: its code, where it finds its globals, and what it closes over."""
    names = function.__globals__
    home: Any = _MAIN
    if names is not main:
        home = names.get("__name__")
        is_found = getattr(sys.modules.get(home), "__dict__", None) is names
        if home == "__main__" or not is_found or getattr(function, "__type_params__", ()):
            raise _NeedsDill
    cells = function.__closure__ or ()
    attributes = {name: getattr(function, name) for name in _FUNCTION_ATTRIBUTES}
    state = ([_contents(cell) for cell in cells], attributes, function.__dict__)
    code = marshal.dumps(function.__code__)
    return _make_function, (code, home, function.__name__, cells), state, None, None, _fill_function


def _linked(*link: str) -> Any:
    """What a link stands for; `Unpickler` knows."""
    raise pickle.UnpicklingError(f"a link to {link} outside of tfmagic")


_MAIN = object()  # stands for the namespace of the other side
_FUNCTION_ATTRIBUTES = (
    "__module__", "__qualname__", "__doc__", "__defaults__", "__kwdefaults__", "__annotations__",
)  # fmt: skip


def _contents(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # nothing has been assigned yet
        return ()


def _make_cell() -> types.CellType:
    return types.CellType()


def _make_function(code: bytes, home: Any, name: str, cells: tuple[types.CellType, ...]) -> Any:
    names = vars(_import_module(home)) if isinstance(home, str) else home
    return types.FunctionType(marshal.loads(code), names, name, None, cells or None)


def _fill_function(function: Any, state: tuple[Any, ...]) -> None:
    contents, attributes, own = state
    for cell, content in zip(function.__closure__ or (), contents, strict=True):
        if content:
            (cell.cell_contents,) = content
    for name, value in attributes.items():
        setattr(function, name, value)
    function.__dict__.update(own)


class Unpickler(dill.Unpickler):  # type: ignore[misc]  # dill is untyped
    """The other side of `Pickler`.

    Args:
        import_tensorflow: False refuses, by `NeedsTensorFlow`, to import it where nobody has.
    """

    def __init__(self, *args: Any, main: Mapping[str, Any], import_tensorflow: bool, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._namespace, self._import_tensorflow = main, import_tensorflow

    def persistent_load(self, pid: Any) -> Any:
        return self._follow(*pid)

    def _follow(self, kind: str, name: str = "") -> Any:
        if kind == "namespace":
            return self._namespace
        if name not in self._namespace:
            raise NameError(
                f"there is no {name!r} here: the process is another one than when this was packed, or has "
                "deleted it; run it again"
            )
        return self._namespace[name]

    def find_class(self, module: str, name: str) -> Any:
        if name == "_linked" and module == __name__:
            return self._follow
        root = module.partition(".")[0]
        if root in HEAVY_ROOTS and not self._import_tensorflow and root not in sys.modules:
            raise NeedsTensorFlow(f"{module}.{name}")
        return super().find_class(module, name)


def dumps(
    value: Any,
    main: Mapping[str, Any],
    linkable: Callable[[str], bool] = lambda name: False,
    for_notebook: bool = False,
    limit_bytes: int | None = None,
    refuse: tuple[type, ...] = (),
) -> tuple[bytes, list[memoryview]]:
    """Pickle `value` into its stream and its out-of-band buffers (views, not copies).

    Raises:
        TooLarge: Stream and buffers together are over `limit_bytes`.
        Exception: Whatever pickling the value raises.
    """
    if not refuse:
        sink = _Sink(limit_bytes)
        quick = _QuickPickler(sink, main, linkable)
        with contextlib.suppress(_NeedsDill):
            quick.dump(value)
            return b"".join(sink.chunks), quick.buffers
    sink = _Sink(limit_bytes)
    pickler = Pickler(sink, main, linkable, for_notebook, refuse)
    pickler.dump(value)
    return b"".join(sink.chunks), pickler.buffers


def pack(stream: bytes, buffers: list[memoryview]) -> Packed:
    """Put a pickle on its way. Raises OSError when memory for it runs out."""
    sizes = (len(stream), *(b.nbytes for b in buffers))
    if sum(sizes) < _IN_BAND_BYTES:
        return Packed(data=stream)
    fd = os.memfd_create("tfmagic", os.MFD_CLOEXEC)
    offset = 0
    for part in (memoryview(stream), *buffers):
        _write_at(fd, part, offset)
        offset += -(-part.nbytes // _ALIGN) * _ALIGN
    os.ftruncate(fd, max(offset, 1))
    return Packed(handle=OwnedHandle(fd), sizes=sizes)


def _write_at(fd: int, part: memoryview, offset: int) -> None:
    flat = part.cast("B") if part.nbytes else memoryview(b"")
    while flat:
        written = os.pwrite(fd, flat, offset)
        flat, offset = flat[written:], offset + written


def loads(packed: Packed, main: Mapping[str, Any], import_tensorflow: bool = True) -> Any:
    """The value of `packed`. Big arrays are private, writable views of the memory file.

    May be called once: it takes over the file descriptor.

    Raises:
        NeedsTensorFlow: See `Unpickler`.
        Exception: Whatever unpickling the value raises.
    """
    stream: Any = packed.data
    buffers: list[memoryview] = []
    if packed.handle is not None:
        stream, buffers = _read(packed.handle.take(), packed.sizes)
    unpickler = Unpickler(io.BytesIO(stream), buffers=buffers, main=main, import_tensorflow=import_tensorflow)
    return unpickler.load()


def _read(fd: int, sizes: tuple[int, ...]) -> tuple[memoryview, list[memoryview]]:
    """The parts of a memory file, whose descriptor is closed.

    A mapping keeps a descriptor of its own until Python 3.13: values of less than a MiB, of which a notebook
    may hold many, are copied.
    """
    length = sum(-(-size // _ALIGN) * _ALIGN for size in sizes)
    try:
        if length < _MAPPED_BYTES:
            whole = memoryview(bytearray(length))
            os.preadv(fd, [whole], 0)
        else:
            whole = memoryview(mmap.mmap(fd, length, mmap.MAP_PRIVATE, **_UNTRACKED))
    finally:
        os.close(fd)
    parts, offset = [], 0
    for size in sizes:
        parts.append(whole[offset : offset + size])
        offset += -(-size // _ALIGN) * _ALIGN
    return parts[0], parts[1:]


def _import_module(name: str) -> types.ModuleType:
    """Modules travel by name (a function of ours, so that its name in a message is stable)."""
    import importlib

    return importlib.import_module(name)


def frames_below(frames: types.TracebackType | None) -> types.TracebackType | None:
    """The frames that pickling has called, without the hundreds of its own: what the user's classes did."""
    own = {__file__, pickle.__file__, dill._dill.__file__}
    below = frames
    while frames is not None:
        if frames.tb_frame.f_code.co_filename in own:
            below = frames.tb_next
        frames = frames.tb_next
    return below


def _same(value: Any) -> Any:
    return value


def _takes_frames_along(cls: type) -> bool:
    """Whether somebody has registered tblib for the class: it would pickle frames, causes and all."""
    reducer = copyreg.dispatch_table.get(cls)
    return getattr(reducer, "__module__", "") == "tblib.pickling_support"


def _is_tensor(obj: Any) -> bool:
    """Whether `obj` is an eager tensor or a variable, asked without importing TensorFlow."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None or type(obj).__module__.partition(".")[0] not in HEAVY_ROOTS:
        return False
    return isinstance(obj, tensorflow.Tensor | tensorflow.Variable) and hasattr(obj, "numpy")
