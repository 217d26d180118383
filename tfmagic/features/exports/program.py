"""Write cells that have run as the text of main.py, and of task_setup.py, which it imports."""

from __future__ import annotations

import ast
import builtins
import itertools
import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tfmagic.errors import TfmagicError
from tfmagic.features.exports.kernel import RanCell
from tfmagic.features.exports.notebook_names import NotebookNames
from tfmagic.features.exports.secrets import Secrets
from tfmagic.features.exports.translation import Translated, translate
from tfmagic.protocol.cluster_spec import ClusterShape
from tfmagic.serialization import user_modules
from tfmagic.serialization.free_names import names_assigned, names_read

TEMPLATES = Path(__file__).parent / "templates"
_FITS = re.compile(r"\.(fit|evaluate|predict)\(")
SETUP = "task_setup.py"
_SETUP_TITLE = '"""Set TF_CONFIG of this task, and prepare its process for main.py. Written by tfmagic."""'
_JOIN = "outside_tasks.join()  # for current_task(), barrier(), and fit of Keras 3"
_BEGINS = '"""Prepare this process. Return the name of its task, such as worker-0."""'
_IMPORTS = {
    "data.npz": ("from pathlib import Path", "import numpy"),
    "data.pickle": ("from pathlib import Path", "import pickle"),
}
_OPEN = {
    "data.npz": "with numpy.load(Path(__file__).with_name('data.npz')) as _data:",
    "data.pickle": "with open(Path(__file__).with_name('data.pickle'), 'rb') as _file:\n"
    "    _data = pickle.load(_file)",
}


@dataclass(frozen=True, slots=True)
class Setup:
    """What a program needs to know of its cluster.

    Attributes:
        title: Names the cells and the cluster, for the first line.
        environ: Variables that are set before any import.
        repairs_keras: Whether `fit` of Keras 3 is repaired on the tasks.
    """

    title: str
    shape: ClusterShape
    environ: Mapping[str, str]
    repairs_keras: bool


@dataclass(frozen=True, slots=True)
class Program:
    """The text of main.py, and what lies beside it.

    Attributes:
        setup: The text of task_setup.py.
    """

    text: str
    setup: str
    names: NotebookNames
    needs_tfmagic: bool
    left_out: tuple[str, ...] = ()


def choose(ran: Sequence[RanCell], asked: Collection[int] | None) -> tuple[list[RanCell], list[RanCell]]:
    """Return the cells of the program in their order, by default those that succeeded; and all others.

    Raises:
        TfmagicError: There is none.
    """
    ran = sorted(ran, key=lambda cell: cell.number)
    chosen = [cell for cell in ran if (cell.succeeded if asked is None else cell.prompt in asked)]
    if not chosen:
        cells = ", ".join(f"{cell.prompt}{'' if cell.succeeded else ' (failed)'}" for cell in ran) or "none"
        raise TfmagicError(f"no such cell has run on this cluster since its start; it has run {cells}")
    return chosen, [cell for cell in ran if cell not in chosen]


def write_program(
    cells: Sequence[RanCell], others: Sequence[RanCell], namespace: Mapping[str, Any], setup: Setup
) -> Program:
    """Return the program that does what these cells have done.

    Raises:
        TfmagicError: The cells read what a program cannot get; the message names it.
    """
    parts, secrets = {cell: translate(cell) for cell in cells}, Secrets(namespace, setup.environ)
    setup = replace(setup, environ=secrets.without(setup.environ))
    names = _names_of(parts, others, NotebookNames(namespace, secrets))
    for cell, part in parts.items():
        part.text = names.without_secrets(f"cell {cell.prompt}", part.text)
    notes = [f"cell {cell.prompt}, which failed" for cell in others if not cell.succeeded]
    notes += [f"{magic} of cell {cell.prompt}" for cell, part in parts.items() for magic in part.left_out]
    notes += [f"{name}, which the notebook does not have now" for name in names.missing]
    notes += [f"the value of {name}: set it in the environment" for name in secrets.variables.values()]
    body = [_section(cell, part.text, setup.shape) for cell, part in parts.items() if part.text.strip()]
    code = "\n".join([*names.imports, *names.sources, *body, *(i for p in parts.values() for i in p.imports)])
    own_name = {"task_setup": f"{SETUP} is a file of the export; rename your module"}
    taken = own_name if own_name.keys() & user_modules.names_imported(code) else {}
    _check(names.problems | _secrets_of_modules(code, secrets) | taken)
    needs_tfmagic = bool(re.search(r"\btfmagic\b", code)) or (
        setup.repairs_keras and bool(_FITS.search(code))
    )
    text = _join(parts, names, body, setup, notes)
    try:
        compile(text, "main.py", "exec", dont_inherit=True)
    except SyntaxError as error:
        raise TfmagicError(
            f"the cells are no program: {error.msg}{_place_of_error(parts)}; nothing was written. Put what "
            "awaits into an `async def`, and call that with asyncio.run(), or choose other cells with --cells"
        ) from None
    return Program(text, _setup_text(names, setup, needs_tfmagic), names, needs_tfmagic, tuple(notes))


def _check(problems: Mapping[str, str]) -> None:
    if problems:
        raise TfmagicError(
            "main.py cannot have these variables of the notebook; nothing was written:\n"
            + "\n".join(f"  {name}: {problem}" for name, problem in problems.items())
            + "\nMake them inside a cell, or choose other cells with --cells."
        )


def _secrets_of_modules(code: str, secrets: Secrets) -> dict[str, str]:
    """Return which of the user's own modules, which are copied, have a secret, and where."""
    files = {
        name: user_modules.file_of(name) for name in user_modules.stamps_of(user_modules.names_imported(code))
    }
    texts = {name: Path(file).read_text("utf-8", "replace") for name, file in files.items() if file}
    found = {f"module {name}": secrets.found_in(text) for name, text in texts.items()}
    return {name: f"{kept}; read that from os.environ" for name, kept in found.items() if kept}


def _place_of_error(parts: Mapping[RanCell, Translated]) -> str:
    """Return which cell is no program by itself, as the end of a sentence, or ""."""
    for cell, part in parts.items():
        try:
            compile(part.text, "main.py", "exec", dont_inherit=True)
        except SyntaxError:
            return f" in cell {cell.prompt}"
    return ""


def _names_of(
    parts: Mapping[RanCell, Translated], others: Sequence[RanCell], names: NotebookNames
) -> NotebookNames:
    """Add the names that the cells read from the notebook, and not from each other."""
    assigned = set(dir(builtins)) - names.namespace.keys() - {"get_ipython"}
    for cell, part in parts.items():
        source = "\n".join([*part.imports, part.text])
        reads = names_read(ast.parse(source), source) - assigned
        for other in (other for other in others if other.number < cell.number):
            made = reads & names_assigned(other.source)
            names.problems |= dict.fromkeys(made, f"cell {other.prompt} makes it, and is left out")
        names.add(reads - names.problems.keys())
        assigned |= names_assigned(source)
    return names


def _section(cell: RanCell, text: str, shape: ClusterShape) -> str:
    """Return a cell as a part of the program, which only its tasks run."""
    is_default = {task.name for task in shape.cell_tasks} <= set(cell.tasks)
    condition = "" if is_default else f"_TASK in {cell.tasks!r}"
    if is_default and shape.evaluator and "evaluator-0" not in cell.tasks:
        condition = '_TASK != "evaluator-0"'
    if condition:
        inner = textwrap.indent(ast.unparse(ast.parse(text)), "    ")  # also where a text has several lines
        text = f"if {condition}:\n{inner}"
    return f"# cell {cell.prompt}\n{text}"


def _join(
    parts: Mapping[RanCell, Translated],
    names: NotebookNames,
    body: Sequence[str],
    setup: Setup,
    notes: Sequence[str],
) -> str:
    """Return the text of main.py."""
    loads = [_load(file, found) for file, found in names.data.items() if found]
    own_imports = [line for file, found in names.data.items() if found for line in _IMPORTS[file]]
    own_imports.append("import task_setup")
    imports = [*own_imports, *names.imports, *(line for part in parts.values() for line in part.imports)]
    uses_task = any("if _TASK " in text for text in body)
    start = [
        f"{'_TASK = ' * uses_task}task_setup.begin()  # sets TF_CONFIG",
        *loads,
        "\n".join(names.constants),
        "display = print" if any(re.search(r"\bdisplay\(", text) for text in body) else "",
    ]
    code = [*filter(None, start), *names.sources, *body]
    left_out = ["", "Left out:", *(f"- {note}" for note in notes), ""] if notes else []
    docstring = "\n".join([setup.title, *left_out]).replace("\\", "\\\\").replace('"""', r"\"\"\"")
    head = [f'"""Written by tfmagic: {docstring}"""', *_sort_imports(imports, setup.environ)]
    return _stack([*head, *code], {*names.sources})


def _setup_text(names: NotebookNames, setup: Setup, needs_tfmagic: bool) -> str:
    """Return the text of task_setup.py."""
    types = [task.type for task in setup.shape.tasks]
    roles = {kind: types.count(kind) for kind in ("chief", "ps", "evaluator") if kind in types}
    needed = tuple(names.secrets.variables.values())
    imports, functions = _read_templates(
        "tf_config.py",
        *(["check_environment.py"] if needed else []),
        *(["serve.py"] if "ps" in roles else []),
    )
    if needs_tfmagic:
        imports.append("from tfmagic.task import outside_tasks")
    steps = [
        f"check_environment({', '.join(map(repr, needed))})" if needed else "",
        f"config = tf_config({roles!r})",
        "set_tf_config(config)",
        _JOIN if needs_tfmagic else "",
        "serve()" if "ps" in roles else "",
        'return "{type}-{index}".format(**config["task"])',
    ]
    begin = "\n    ".join(["def begin() -> str:", _BEGINS, *filter(None, steps)])
    return _stack([_SETUP_TITLE, *_sort_imports(imports, {}), begin, *functions], {begin, *functions})


def _stack(parts: Sequence[str], definitions: Collection[str]) -> str:
    """Return the parts one below the other, with two empty lines around definitions."""
    text = parts[0]
    for above, part in itertools.pairwise(parts):
        text += ("\n\n\n" if above in definitions or part in definitions else "\n\n") + part
    return text + "\n"


def _read_templates(*files: str) -> tuple[list[str], list[str]]:
    """Return the imports of these files, and their functions."""
    imports, functions = [], []
    for file in files:
        head, _, rest = (TEMPLATES / file).read_text("utf-8").partition("\n\n\n")
        imports += head.splitlines()
        functions.append(rest.strip())
    return imports, functions


def _load(file: str, names: Iterable[str]) -> str:
    lines = [_OPEN[file], *(f"    {name} = _data[{name!r}]" for name in names)]
    return "\n".join(lines)


def _sort_imports(lines: Iterable[str], environ: Mapping[str, str]) -> list[str]:
    """Return the imports in groups: ``from __future__``, those of Python, all others, and what needs them."""
    groups: dict[int, list[str]] = {}
    for line in dict.fromkeys(lines):
        module = line.split()[1].partition(".")[0]
        kind = 0 if module == "__future__" else 2 if module in sys.stdlib_module_names else 3
        groups.setdefault(kind if line.startswith(("import ", "from ")) else 4, []).append(line)
    if environ:
        groups[1] = [f"import os\n\nos.environ.update({dict(environ)!r})  # before TensorFlow's import"]
    return ["\n".join(sorted(groups[key], key=_from_last)) for key in sorted(groups)]


def _from_last(line: str) -> tuple[bool, str]:
    return line.startswith("from "), line
