"""The next step in the words of the place where the user is.

Messages name it as a magic line, as a notebook takes it. In Python (a script, a test, a plain shell) the same
step is a call of the cluster: `here` puts that in its place. Under pytest the cluster is the fixture
`tfcluster`. `tfmagic.frontends.cli` has the words of a command line.

Used wherever a message leaves tfmagic: in the text of our errors, in notes, and in what is printed.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable

_TASKS = r"((?: +[a-z]+-\d+)*)"
_METHODS = "revive|restart|stop|start|interrupt|status|stacks|errors|logs|debug"
_PATTERNS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"%tfcluster restart --workers (\d+) --ps (\d+)", r"tfmagic.Cluster(workers=\1, ps=\2)"),
    (r"%tfcluster stop, then start", "{cluster}.stop(), then {cluster}.start()"),
    (r"%tfcluster start or Cluster\.start\(\)", "{cluster}.start()"),
    (r"%tfcluster wait\b", "future.result()"),
    (r"%tfcluster tensorboard LOGDIR", "{cluster}.tensorboard(LOGDIR)"),
    (rf"%tfcluster resume\b{_TASKS}", lambda found: f"{{cluster}}.faults.resume({_quoted(found[1])})"),
    (r"%tfcluster debug TASK", "{cluster}.debug(TASK)"),
    (rf"%tfcluster ({_METHODS})\b{_TASKS}", lambda found: f"{{cluster}}.{found[1]}({_quoted(found[2])})"),
    (
        r"--push (\w+(?:,\w+)*)",
        lambda found: f"{{cluster}}.push({', '.join(f'{n}={n}' for n in found[1].split(','))})",
    ),
    (r"%config TFCluster\.(\w+) = (\S+)", r"tfmagic.Cluster(\1=\2)"),
    (r"%config TFCluster\.(\w+)", r"tfmagic.Cluster(\1=...)"),
    (r"with --timeout\b", "with timeout="),
    (r"%pip install", "pip install"),
)


_spoken_for: bool | None = None


def here(text: str) -> str:
    """Return a message with its next steps in the words of this process."""
    if ("%" not in text and " --" not in text) or is_notebook():
        return text
    for pattern, words in _PATTERNS:
        text = re.sub(pattern, words, text)
    return text.replace("{cluster}", "tfcluster" if "PYTEST_CURRENT_TEST" in os.environ else "cluster")


def _quoted(tasks: str) -> str:
    return ", ".join(repr(name) for name in tasks.split())


def speak_for(in_notebook: bool) -> None:
    """Take the words of another process: in a task, those of the process that has the cluster."""
    global _spoken_for
    _spoken_for = in_notebook


def is_notebook() -> bool:
    """Whether magic lines work here: there is an IPython shell, asked without importing IPython."""
    if _spoken_for is not None:
        return _spoken_for
    module = sys.modules.get("IPython.core.getipython")
    return module is not None and module.get_ipython() is not None
