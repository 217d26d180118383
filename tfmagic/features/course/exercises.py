"""What an exercise is, and how its check is called.

    @exercise("3.2", "a first hint", "a second one")
    def _(answers: Answers) -> None:
        total = answers.number("total")
        expect(total == 3, "`total` is the sum over both workers; each has contributed one number so far.")

`answers` reads the notebook's variables and says which are missing or of another kind. `expect` says what an
answer lacks. The functions stand in a module for each lesson, `lesson_01` and so on, which is imported when
one of its exercises is checked.
"""

import json
import numbers
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tfmagic.errors import TfmagicError

_NUMBER = re.compile(r"(\d{1,2})\.(\d)")


class NotYet(AssertionError):
    """The answer lacks something, which the message names."""


@dataclass(frozen=True, slots=True)
class Exercise:
    """An exercise: its number, the function that checks it, and its hints."""

    number: str
    check: Callable[["Answers"], None]
    hints: tuple[str, ...]


EXERCISES: dict[str, Exercise] = {}  # filled by the modules of the lessons
_hints_given: dict[str, int] = {}
_files: dict[str, tuple[object, dict[Path, int]]] = {}  # what checks have seen: results and their files
_checked = 0, ""  # the cell of the last check or hint, and what was raised before it
_faults: dict[str, list[str]] = {}  # what each check of an exercise has said; "" where it was right


def exercise(
    number: str, *hints: str
) -> Callable[[Callable[["Answers"], None]], Callable[["Answers"], None]]:
    """Add a check to `EXERCISES`."""

    def add(function: Callable[["Answers"], None]) -> Callable[["Answers"], None]:
        EXERCISES[number] = Exercise(number, function, hints)
        return function

    return add


def expect(holds: object, otherwise: str) -> None:
    """Raise `NotYet` with the text if something does not hold."""
    if not holds:
        raise NotYet(otherwise)


def expect_new(number: str, results: object, paths: Iterable[Path]) -> None:
    """Raise `NotYet` if an earlier try has written these files, and that of these results none of them."""
    written = {path: path.stat().st_mtime_ns for path in paths}
    before, known = _files.get(number, (results, {}))
    expect(before is results or written != known, "the files are of an earlier try: the cell wrote none.")
    _files[number] = (results, written)


def result_of(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the answer. Raise `NotYet` if it raises."""
    try:
        return function(*arguments)
    except Exception as error:
        given = ", ".join(map(repr, arguments))
        raise NotYet(f"called with {given}, it raises {type(error).__name__}: {error}") from None


class Answers:
    """The variables of the notebook, as a check reads them. Each method raises `NotYet`."""

    def __init__(self, namespace: Mapping[str, Any]):
        self._namespace = namespace

    def value(self, name: str, kind: type | tuple[type, ...] = object, called: str = "") -> Any:
        """Return a variable that the exercise asks for.

        Args:
            kind: The types that it may have.
            called: What such a value is called in a sentence, as "a list".
        """
        expect(name in self._namespace, f"there is no variable `{name}` yet.")
        found = self._namespace[name]
        expect(found is not ..., f"`{name}` is still the `...` of the exercise: put your answer there.")
        expect(
            isinstance(found, kind), f"`{name}` should be {called}, and is of type {type(found).__name__}."
        )
        return found

    def number(self, name: str) -> float:
        return float(self.value(name, (numbers.Real,), "a number"))

    def text(self, name: str) -> str:
        return str(self.value(name, (str,), "a text"))

    def results(self, name: str, *tasks: str) -> Mapping[str, Any]:
        """Return results that a cell has bound with ``--out``, of exactly these tasks if some are named."""
        found: Mapping[str, Any] = self.value(
            name, (Mapping,), f"the results of a cell (`%%tfcluster --out {name}`)"
        )
        expect(hasattr(found, "seconds"), f"bind `{name}` with `%%tfcluster --out {name}`, not by hand.")
        for task in tasks:
            expect(task in found, f"`{name}` has no result of {task}; it has those of {', '.join(found)}.")
        for task in found:
            expect(
                not tasks or task in tasks, f"`{name}` also has a result of {task}, which was not asked for."
            )
            expect(found[task] is not None, f"on {task} the last line of the cell has no value.")
            expect(found[task] is not ..., f"on {task} the last line of the cell is still the `...`.")
        return found

    def numbers(self, name: str, *tasks: str) -> dict[str, float]:
        """Return such results as numbers; a tensor or array with one number is a number, too."""
        found = {}
        for task, value in self.results(name, *tasks).items():
            single = isinstance(value, numbers.Real) or (
                getattr(value, "size", None) == 1 and hasattr(value, "item")
            )
            expect(
                single,
                f"{task} should return a number, and returned something of type {type(value).__name__}.",
            )
            try:
                found[task] = float(value if isinstance(value, numbers.Real) else value.item())
            except (TypeError, ValueError):
                expect(False, f"{task} should return a number, and returned {value!r}.")
        return found


def find(number: str) -> Exercise:
    """Return an exercise. Raise `TfmagicError` if there is none of that number."""
    match = _NUMBER.fullmatch(str(number))
    if match is not None:
        try:
            import_module(f"tfmagic.features.course.lesson_{int(match[1]):02}")
        except ModuleNotFoundError as error:
            if not str(error.name).startswith("tfmagic.features.course."):
                raise
    if number not in EXERCISES:
        raise TfmagicError(
            f'there is no exercise {number!r}; they are called as "3.2" (lesson 3, exercise 2)'
        )
    return EXERCISES[number]


def find_fault(number: str, namespace: Mapping[str, Any]) -> str:
    """Return the lack of the answer in these variables, or "" if it is right."""
    chosen = find(number)
    try:
        chosen.check(Answers(namespace))
    except NotYet as fault:
        return str(fault)
    except Exception as error:  # a value that the check does not expect, as a list of tensors
        return f"the check cannot read the answer ({type(error).__name__}: {error})."
    return ""


def check(number: str, *, raises: bool = False) -> None:
    """Print whether the notebook's answer to an exercise is right, or what it lacks.

    Args:
        raises: Whether to raise what it lacks instead, for graders.

    Raises:
        NotYet: The answer is not right; an AssertionError.
    """
    fault, raised = find_fault(number, _notebook()), _raised_before()
    if not fault and raised:
        fault = f"the cell before this check raised {raised}; what it checks is left from an earlier try."
    elif raised:
        fault += f" Note that the cell before this check raised {raised}: such a cell binds no results."
    _faults.setdefault(number, []).append(fault)
    if not fault:
        print(f"✔ {number}: right.")
        return
    if raises:
        raise NotYet(f"{number}: not yet: {fault}")
    more = f'  (a hint: tfmagic.course.hint("{number}"))' if find(number).hints else ""
    print(f"✘ {number}: not yet: {fault}{more}")


def results() -> dict[str, dict[str, Any]]:
    """Return the result of the last check of each exercise in this notebook, and how many there were."""
    return {
        number: {"right": not faults[-1], "fault": faults[-1], "checks": len(faults)}
        for number, faults in sorted(_faults.items())
    }


def export(path: str | os.PathLike[str]) -> None:
    """Write `results` into a file in JSON."""
    Path(path).write_text(json.dumps(results(), indent=1, ensure_ascii=False) + "\n", "utf-8")


def hint(number: str) -> None:
    """Print the next hint for an exercise; after the last one, the first again."""
    hints = find(number).hints
    _raised_before()
    place = _hints_given.get(number, 0) % max(len(hints), 1)
    _hints_given[number] = place + 1
    print(f"hint {place + 1} of {len(hints)}: {hints[place]}" if hints else f"{number} has no hint")


def _raised_before() -> str:
    """Return the type of the exception of the last cell that was no check or hint, or ""."""
    global _checked
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    last = getattr(shell, "last_execution_result", None)
    error = getattr(last, "error_in_exec", None) or getattr(last, "error_before_exec", None)
    raised = "" if error is None else type(error).__name__
    place, earlier = getattr(shell, "execution_count", 0), _checked
    if earlier[0] == place - 1 and (error is None or isinstance(error, NotYet)):
        raised = earlier[1]  # the cell before was a check or a hint itself
    _checked = place, raised
    return raised


def _notebook() -> Mapping[str, Any]:
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is None:
        raise TfmagicError("the exercises are checked in a notebook or in IPython, where their variables are")
    namespace: Mapping[str, Any] = shell.user_ns
    return namespace
