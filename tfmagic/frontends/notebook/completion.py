"""Tab completion of the magics' commands, options, task types and names, and cluster names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfmagic.clusters.cluster import Cluster
from tfmagic.frontends.notebook.options import COMMANDS, VIEWS, cell_parser, line_parser
from tfmagic.protocol.cluster_spec import TASK_TYPES

_KEYS = ("%tfcluster", "%%tfcluster")


def complete(line: str, word: str, clusters: Mapping[str, Cluster]) -> list[str]:
    """Return the words that can replace `word`.

    Args:
        line: The line up to the cursor, `word` included.
        word: The part of the word that has been typed.
        clusters: The clusters of the notebook, by name.
    """
    words = line.split()
    if word and words and words[-1] == word:
        words.pop()
    is_cell = bool(words) and words[0] == "%%tfcluster"
    before = words[-1] if words else ""
    if before == "--cluster":
        options = list(clusters)
    elif before == "--on":
        options = ["all", *TASK_TYPES, *_task_names(clusters)]
    elif before == "--view":
        options = list(VIEWS)
    elif is_cell:
        options = list(cell_parser()._option_string_actions)
    elif len(words) < 2:
        options = list(COMMANDS)
    elif words[1] in COMMANDS:
        options = list(line_parser(words[1])._option_string_actions)
        if {"task", "tasks"} & {name for name, _ in COMMANDS[words[1]].options}:
            options += _task_names(clusters)
    else:
        options = []
    return sorted(option for option in options if option.startswith(word))


def _task_names(clusters: Mapping[str, Cluster]) -> list[str]:
    return sorted({task.name for cluster in clusters.values() for task in cluster.tasks})


def install(shell: Any, clusters: Mapping[str, Cluster]) -> None:
    """Add the completions to those of the shell."""

    def complete_event(_: Any, event: Any) -> list[str]:
        return complete(event.line, event.symbol, clusters)

    for key in _KEYS:
        shell.set_hook("complete_command", complete_event, str_key=key)


def remove(shell: Any) -> None:
    """Remove the completions."""
    table = shell.strdispatchers.get("complete_command")
    for key in _KEYS:
        if table is not None:
            table.strs.pop(key, None)
