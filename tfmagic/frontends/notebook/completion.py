"""Complete the lines of ``%%tfcluster`` and ``%tfcluster``: from the declarations of their options."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from IPython.core.error import TryNext

from tfmagic.frontends import symptoms
from tfmagic.protocol.cluster_spec import TASK_TYPES

if TYPE_CHECKING:
    from tfmagic.clusters.cluster import Cluster

_MATCHER = "tfmagic"
_LINE = re.compile(r"\s*%%?tfcluster\s")


def complete(
    line: str, clusters: Mapping[str, Cluster], variables: Iterable[str] = ()
) -> tuple[str, list[str]]:
    """Return the end of the line that is completed, and the words that can replace it.

    Args:
        line: The line up to the cursor.
        clusters: The clusters of the notebook, by name.
        variables: The variables of the notebook.
    """
    from tfmagic.clusters.api.lines import COMMANDS  # at the first Tab
    from tfmagic.frontends.notebook.options import cell_parser, line_parser

    magic, *before, word = re.split(r"\s+", line.lstrip())
    if magic == "%tfcluster" and (not before or before[0] not in COMMANDS):
        known: Iterable[str] = () if before else COMMANDS
        return word, sorted(name for name in known if name.startswith(word))
    parser = cell_parser() if magic == "%%tfcluster" else line_parser(before[0])
    options = parser._option_string_actions
    option, equals, value = word.partition("=")
    action = options.get(option if equals else before[-1] if before else "")
    if action is not None and action.nargs != 0:
        values, word = _values(action, clusters, variables), value if equals else word
    else:
        shown = [name for name, action in options.items() if action.help != argparse.SUPPRESS]
        values = [name for name in shown if name.startswith("--")]
        for positional in parser.positionals:
            values += _values(positional, clusters, variables)
    if not word.startswith("-"):
        word = word.rpartition(",")[2]
    return word, sorted({value for value in values if value.startswith(word)})


def _values(action: argparse.Action, clusters: Mapping[str, Cluster], variables: Iterable[str]) -> list[str]:
    """Return the known values of an option or a positional argument."""
    if action.metavar in ("SELECTOR", "TASK"):
        return ["all", *TASK_TYPES, *(task.name for cluster in clusters.values() for task in cluster.tasks)]
    if action.dest in ("names", "push", "pull", "out"):
        return list(variables)
    if action.dest == "word":
        return list(symptoms.entries())
    return list(clusters if action.dest == "name" else action.choices or ())


def install_completion(shell: Any, clusters: Callable[[], Mapping[str, Cluster]]) -> None:
    """Let the shell complete the lines of tfmagic with nothing but these words.

    A matcher of IPython, before all others: one that answers leaves the others out, jedi included. Before
    IPython 8.6, which has none, it is a completer of the command.
    """

    def words_for(line: str) -> tuple[str, list[str]]:
        hidden = shell.user_ns_hidden
        variables = [name for name in shell.user_ns if name[0] != "_" and name not in hidden]
        return complete(line, clusters(), variables)

    remove_completion(shell)
    try:
        from IPython.core.completer import SimpleCompletion, context_matcher
    except ImportError:
        _install_completer(shell, words_for)
        return

    def match(context: Any) -> dict[str, Any]:
        line, above = context.text_until_cursor, context.full_text.split("\n")[: context.cursor_line]
        in_cell = line.lstrip().startswith("%%") and any(map(str.strip, above))
        if not _LINE.match(line) or in_cell:
            return {"completions": []}
        word, words = words_for(line)
        # none would ask the others
        found = [SimpleCompletion(text, type="param") for text in words or [word]]
        return {"completions": found, "suppress": True, "matched_fragment": word}

    shell.Completer.custom_matchers.append(context_matcher(identifier=_MATCHER, priority=1000)(match))


def _install_completer(shell: Any, words_for: Callable[[str], tuple[str, list[str]]]) -> None:
    def complete_command(_: Any, event: Any) -> list[str]:
        if "tfcluster" not in shell.magics_manager.magics["line"]:  # IPython cannot remove a completer
            raise TryNext
        word, words = words_for(event.text_until_cursor)
        return words or [word]

    for command in ("%tfcluster", "%%tfcluster"):
        shell.set_hook("complete_command", complete_command, str_key=command)


def remove_completion(shell: Any) -> None:
    """Remove the completions."""
    matchers = shell.Completer.custom_matchers
    matchers[:] = [matcher for matcher in matchers if getattr(matcher, "matcher_identifier", "") != _MATCHER]
