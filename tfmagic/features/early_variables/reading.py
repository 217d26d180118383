"""Environment variables that a program sets before it imports TensorFlow, found in its source.

    os.environ["KERAS_BACKEND"] = "jax"     in plain Python, the import below sees it
    import keras                            in a task, TensorFlow was imported before the program began

So the source is read before the cluster starts, and TensorFlow is imported under what it sets: `obey`. Only
what certainly runs before the first import of TensorFlow counts: statements of the module's level and of the
functions that these call, with literal values. (What `tf.keras` is, TensorFlow decides at its first use.)
About other values, and about a cluster that runs already, `tell` says what to write instead.
"""

import ast
import contextlib
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.machinery import PathFinder
from itertools import takewhile
from pathlib import Path

from tfmagic.backends.import_variables import is_read_at_import
from tfmagic.clusters.launch.task_settings import TaskSettings, existing_folder

_LEGACY_KERAS = "TF_USE_LEGACY_KERAS"
_ON = ("1", "True", "true")  # as TensorFlow compares
_AS_UNSET = {  # values that say what holds without them
    "KERAS_BACKEND": ("tensorflow",),
    _LEGACY_KERAS: ("0", "False", "false", ""),
    "TF_CPP_MIN_LOG_LEVEL": ("0",),
}
_ENVIRON, _OS = "os.environ", "os"
_TENSORFLOW = re.compile(r"(tensorflow|keras|tf_keras|tf_agents|tfx)([._]|$)")
UNKNOWN = object()
_Pair = tuple[ast.expr, ast.expr | None]


@dataclass(slots=True)
class _Reader:
    """Reads statements in the order in which they run, up to the first import of TensorFlow.

    Attributes:
        names: What names of the program mean, of `os` and its parts.
        found: The values that variables have by then: None for a removed one, `UNKNOWN` for one that only
            the run can tell.
        functions: The functions of the program by name.
    """

    environ: Mapping[str, str]
    names: dict[str, str] = field(default_factory=lambda: {"os": _OS})
    found: dict[str, object] = field(default_factory=dict)
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)

    def read(self, statements: Iterable[ast.stmt], is_certain: bool = True) -> bool:
        """Return whether TensorFlow was imported."""
        return any(self._read_one(statement, is_certain) for statement in statements)

    def _read_one(self, node: ast.stmt, is_certain: bool) -> bool:
        for name, value in self._assigned(node):
            self._set(name, value, is_certain)
        match node:
            case ast.Import(names):
                self.names |= {a.asname or a.name: _OS for a in names if a.name == _OS}
                return any(_TENSORFLOW.match(alias.name) for alias in names)
            case ast.ImportFrom(module, names, level):
                if module == _OS and not level:
                    self.names |= {a.asname or a.name: f"{_OS}.{a.name}" for a in names}
                return not level and bool(_TENSORFLOW.match(module or ""))
            case ast.Assign(value=ast.Call() as call) | ast.Expr(ast.Call() as call):
                return self._read_call(call, is_certain)
            case ast.FunctionDef():
                self.functions[node.name] = node
                return False
            case ast.AsyncFunctionDef() | ast.ClassDef():
                return False
            case ast.If(test, body, orelse):
                is_main = ast.unparse(test).replace('"', "'") == "__name__ == '__main__'"
                return self.read(body, is_certain and is_main) | self.read(orelse, False)
            case ast.With(_, body):
                return self.read(body, is_certain)
        blocks = [getattr(node, name, []) for name in ("body", "handlers", "orelse", "finalbody")]
        blocks += [part.body for block in blocks for part in block if hasattr(part, "type")]
        inner = [part for block in blocks for part in block if isinstance(part, ast.stmt)]
        return bool([imports for part in inner if (imports := self._read_one(part, False))])

    def _read_call(self, call: ast.Call, is_certain: bool) -> bool:
        match call:
            case ast.Call(ast.Name(name)) if function := self.functions.pop(name, None):  # it may call itself
                before_end = [part for part in ast.walk(function) if part is not function.body[-1]]
                may_end = any(isinstance(part, ast.Return) for part in before_end)
                imports = self.read(function.body, is_certain and not may_end)
                self.functions[name] = function
                return imports
            case ast.Call(called, [ast.Constant(str(module)), *_]):
                return _imports(called, module)
        return False

    def _meaning(self, node: ast.expr) -> str:
        """Return the dotted name of a part of `os`; "" for anything else."""
        match node:
            case ast.Name(name):
                return self.names.get(name, "")
            case ast.Attribute(value, name) if (owner := self._meaning(value)).startswith(_OS):
                return f"{owner}.{name}"
        return ""

    def _set(self, name: ast.expr, value: ast.expr | None, is_certain: bool) -> None:
        if not (isinstance(name, ast.Constant) and isinstance(name.value, str)):
            return
        known = value.value if isinstance(value, ast.Constant) else UNKNOWN
        if is_certain:
            self.found[name.value] = known if known is None or isinstance(known, str) else UNKNOWN
        elif _differs(name.value, known, self.environ.get(name.value)):
            self.found[name.value] = UNKNOWN

    def _assigned(self, node: ast.stmt) -> Iterator[_Pair]:
        """Yield the variables that a simple statement sets: the name and the value, None if computed."""
        targets, value = getattr(node, "targets", []), getattr(node, "value", None)
        match node:
            case ast.AugAssign(ast.Name() | ast.Attribute() as target, ast.BitOr()):
                if self._meaning(target) == _ENVIRON:
                    yield from _pairs([node.value], [])
            case ast.AugAssign(target):
                targets, value = [target], None
            case ast.Delete():
                value = ast.Constant(None)
        for target in targets:
            if isinstance(target, ast.Subscript) and self._meaning(target.value) == _ENVIRON:
                yield target.slice, value
        if isinstance(node, ast.Assign | ast.Expr) and isinstance(value, ast.Call):
            yield from self._assigned_by(value)

    def _assigned_by(self, call: ast.Call) -> Iterator[_Pair]:
        match self._meaning(call.func), call.args:
            case "os.environ.update", args:
                yield from _pairs(args, call.keywords)
            case "os.environ.setdefault", [ast.Constant(str(name)) as key, value]:
                if self.found.get(name, self.environ.get(name)) is None:
                    yield key, value
            case "os.environ.__setitem__", [key, value]:
                yield key, value
            case "os.putenv", [ast.Constant(str(name)) as key, value]:
                if not name.startswith(("KERAS_", _LEGACY_KERAS)):  # Python code reads these in os.environ
                    yield key, value
            case "os.environ.pop" | "os.unsetenv" | "os.environ.__delitem__", [key, *_]:
                yield key, ast.Constant(None)
            case "", [ast.Constant("env" | "set_env"), ast.Constant(str(line))]:  # ``%env K=V``, ``%env K V``
                if isinstance(call.func, ast.Attribute) and call.func.attr == "run_line_magic":
                    name, sign, text = line.partition("=" if "=" in line else " ")
                    is_literal = not re.search(r"[${]", text)  # else IPython puts in a variable
                    if sign:
                        yield ast.Constant(name.strip()), ast.Constant(text.strip()) if is_literal else None


def _pairs(args: Iterable[ast.expr], keywords: Iterable[ast.keyword]) -> Iterator[_Pair]:
    """Yield the items of dicts, and of keywords."""
    for given in args:
        match given:
            case ast.Dict(keys, values):
                yield from ((key, value) for key, value in zip(keys, values, strict=True) if key is not None)
            case ast.Call(ast.Name("dict"), args=[], keywords=words):
                yield from _pairs([], words)
    yield from ((ast.Constant(keyword.arg), keyword.value) for keyword in keywords)


def _imports(call: ast.expr, module: str) -> bool:
    name = ast.unparse(call).rpartition(".")[2]
    return name in ("import_module", "__import__") and bool(_TENSORFLOW.match(module))


def find(tree: ast.Module, environ: Mapping[str, str]) -> dict[str, object]:
    """Return the variables that the import of TensorFlow should see, and does not see in `environ`.

    Args:
        environ: What the program starts with.
    """
    reader, until_keras = _Reader(environ), _Reader(environ)
    reader.read(tree.body)
    for statement in takewhile(lambda statement: not _uses_keras(statement), tree.body):
        until_keras.read([statement])
    if _LEGACY_KERAS in until_keras.found:  # it is read when `tf.keras` is used first
        reader.found[_LEGACY_KERAS] = until_keras.found[_LEGACY_KERAS]
    return {
        name: value
        for name, value in reader.found.items()
        if is_read_at_import(name) and _differs(name, value, environ.get(name))
    }


def _uses_keras(statement: ast.stmt) -> bool:
    names: list[str] = []
    for node in ast.walk(statement):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.ImportFrom(module=str(name)):
                names.append(name)
            case ast.Import(aliases):
                names += [alias.name for alias in aliases]
    return not isinstance(statement, ast.FunctionDef | ast.ClassDef) and any("keras" in n for n in names)


def _differs(name: str, value: object, seen: str | None) -> bool:
    unset = (None, *_AS_UNSET.get(name, ()))
    return value != seen and not (value in unset and seen in unset)


def obey(settings: TaskSettings, found: Mapping[str, object], keras: int | None) -> TaskSettings:
    """Return settings under which TensorFlow's import sees the variables that were found.

    Args:
        keras: The version that the user asked for, who is obeyed first; None if they have not.
    """
    early = {
        name: value
        for name, value in found.items()
        if name not in settings.env and (value is None or isinstance(value, str))
    }
    if keras is not None or early.get(_LEGACY_KERAS) in _ON:
        legacy = early.pop(_LEGACY_KERAS, None)
        keras = keras or (2 if legacy else None)
    return replace(settings, keras=keras or settings.keras, early=early)


def of_script(target: str, is_module: bool, environ: Mapping[str, str]) -> dict[str, object]:
    """Return the variables that a script or a module sets before its imports, as `find`."""
    body: list[ast.stmt] = []
    for path in _files(target, is_module):
        with contextlib.suppress(OSError, SyntaxError, ValueError):  # an archive; the task reports errors
            body += ast.parse(path.read_bytes()).body
    return find(ast.Module(body, []), environ)


def _files(target: str, is_module: bool) -> list[Path]:
    """Return the files that run first, in their order."""
    if not is_module:
        return [Path(target, "__main__.py") if os.path.isdir(target) else Path(target)]
    first, *others = target.split(".")
    spec = PathFinder.find_spec(first, [existing_folder(), *sys.path])
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        return [Path(spec.origin)] if spec is not None and spec.origin else []
    folder = Path(spec.origin).parent
    found = [folder / "__init__.py"]
    for name in others:
        folder /= name
        found.append(folder / "__init__.py")
    return [*found, folder / "__main__.py" if folder.is_dir() else folder.with_suffix(".py")]


def tell(found: Mapping[str, object], line: str, told: set[str]) -> Iterator[str]:
    """Yield a sentence about each variable that comes too late for the import, and was not told before.

    Args:
        line: Starts the tasks again; ``{}`` stands for a further option.
        told: Gets the names.
    """
    for name, value in found.items():
        if value is None or name in told:
            continue
        told.add(name)
        option = f"--env {name}={shlex.quote(value) if isinstance(value, str) else 'VALUE'}"
        if name == _LEGACY_KERAS and value in _ON:
            option = "--keras 2"
        yield (
            f"{name} is read when TensorFlow and its libraries are imported, which was before this program "
            f"sets it, so it has no effect here. To set it for the import:  {line.format(option)}"
        )
