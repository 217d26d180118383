"""The arguments of a test whose body runs on the tasks: values that travel, and fixtures made there.

Fixtures are evaluated in pytest's process, as ever. A value travels by dill. One that acts in its process
would do nothing on a task: either it is made there again, or it is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

_MADE_THERE: Mapping[type, str] = {
    pytest.MonkeyPatch: "monkeypatch",
    pytest.LogCaptureFixture: "caplog",
    pytest.WarningsRecorder: "recwarn",
}
_MODULES = {  # of the objects that fixtures of pytest return; other objects of pytest can be parameters
    f"_pytest.{name}"
    for name in (
        *("fixtures", "capture", "config", "cacheprovider", "tmpdir", "junitxml", "legacypath", "pytester"),
        "subtests",
    )
}
_INSTEAD = {
    "request": "take what you need of it in a fixture of yours, and use that fixture's value",
    "capfd": "use capsys, or print: the report of a failed test shows each task's output",
    "capfdbinary": "use capsys, or print: the report of a failed test shows each task's output",
    "capsysbinary": "use capsys",
    "capteesys": "use capsys",
    "cache": "read the value in a fixture, and use that fixture's value",
    "pytestconfig": "read the option in a fixture, and use that fixture's value",
    "tmp_path_factory": "use tmp_path, or make the folder in a fixture and use its path",
    "tmpdir_factory": "use tmp_path, or make the folder in a fixture and use its path",
}


@dataclass(slots=True)
class Arguments:
    """The arguments of a body.

    Attributes:
        values: Those that travel, by name.
        made: Those that each task makes: the name of the argument, and that of pytest's fixture.
    """

    values: dict[str, Any] = field(default_factory=dict)
    made: dict[str, str] = field(default_factory=dict)


def sort_arguments(test: str, given: Mapping[str, Any]) -> Arguments:
    """Return the arguments of a test, sorted by how they reach a task.

    Raises:
        pytest.fail.Exception: One is an object of pytest's that would do nothing on a task.
    """
    found = Arguments()
    for name, value in given.items():
        if kind := _made_there(value):
            found.made[name] = kind
        elif _acts_here(value):
            instead = _INSTEAD.get(name, "leave it out, or use it in a fixture of yours")
            problem = f"its argument {name} acts in pytest's process alone, and would do nothing there"
            raise pytest.fail.Exception(refusal(test, problem, instead), pytrace=False)
        else:
            found.values[name] = value
    return found


def find_culprit(test: str, body: object, values: Mapping[str, Any], main: dict[str, Any]) -> str:
    """Return a message that names the value which cannot travel; "" if it is none of them."""
    from tfmagic.serialization import culprits

    owner = getattr(body, "__self__", None)
    of_class = {f"self.{name}": value for name, value in getattr(owner, "__dict__", {}).items()}
    for name, value in {**values, **of_class}.items():
        if problem := culprits.problem_of(value, main):
            why = culprits.explain(value, problem, main)
            return refusal(
                test,
                f"{name} ({type(value).__qualname__}) cannot travel to the tasks: {why}",
                "a fixture is made once, in pytest's process; make such a thing in the test's body, or in a "
                "function that the body calls, so that each task has its own",
            )
    return ""


def refusal(test: str, problem: str, instead: str) -> str:
    """Return the message of a test that cannot have ``each=True``."""
    return f"{test} has each=True, so its body runs on the tasks: {problem}; {instead}"


def _made_there(value: object) -> str:
    if isinstance(value, pytest.CaptureFixture):
        is_plain = value.captureclass.__name__ == "SysCapture" and not getattr(value, "_config", None)
        return "capsys" if is_plain else ""
    return _MADE_THERE.get(type(value), "")


def _acts_here(value: object) -> bool:
    """Check whether a value is that of a fixture of pytest, which acts in its process."""
    owner = value if callable(value) and hasattr(value, "__qualname__") else type(value)
    return getattr(owner, "__module__", "") in _MODULES
