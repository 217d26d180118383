"""Translate the next step that a message names into a call that works where the user is.

Messages name the step as a magic line, for a notebook. In Python (a script, a test, a plain shell) the same
step is a method of the cluster: `here` replaces the one by the other. Under pytest the cluster is the fixture
`tfcluster`. `tfmagic.frontends.cli` translates messages for a command line.

Every message that leaves tfmagic passes `here`: the text of errors, notes, and what is printed.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable

_TASKS = r"((?: +[a-z]+-\d+)*)"
_METHODS = "revive|restart|stop|start|interrupt|status|stacks|errors|logs|debug"
_PATTERNS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"%tfcluster restart --workers (\d+) --ps (\d+)", r"tfmagic.Cluster(workers=\1, ps=\2)"),
    (r"%tfcluster stop, then start", "{cluster}.stop(), then {cluster}.start()"),
    (r"%tfcluster start or Cluster\.start\(\)", "{cluster}.start()"),
    (r"%tfcluster restart --hosts (\d+)", r"tfmagic.Cluster(hosts=\1)"),
    (r"%tfcluster heal\b", "{cluster}.faults.heal()"),
    (r"%tfcluster wait\b", "future.result()"),
    (r"%tfcluster pull NAME\b", "{cluster}.pull(NAME)"),
    (r"%tfcluster tensorboard LOGDIR", "{cluster}.tensorboard(LOGDIR)"),
    (rf"%tfcluster resume\b{_TASKS}", lambda found: f"{{cluster}}.faults.resume({_quoted(found[1])})"),
    (
        r"%tfcluster reload((?: +[\w.]+)+)",
        lambda found: f"{{cluster}}.reload({_quoted(found[1])})",
    ),
    (r"%tfcluster debug TASK", "{cluster}.debug(TASK)"),
    (rf"%tfcluster ({_METHODS})\b{_TASKS}", lambda found: f"{{cluster}}.{found[1]}({_quoted(found[2])})"),
    (
        r"--push (\w+(?:,\w+)*)",
        lambda found: f"{{cluster}}.push({', '.join(f'{n}={n}' for n in found[1].split(','))})",
    ),
    (r"%config TFCluster\.(\w+) = (\S+)", r"tfmagic.Cluster(\1=\2)"),
    (r"%config TFCluster\.(\w+)", r"tfmagic.Cluster(\1=...)"),
    (r"%env (\w+)=(\S+)", r'os.environ["\1"] = "\2"'),
    (r"with --timeout\b", "with timeout="),
    (r"%pip install", "pip install"),
)

_in_notebook: bool | None = None


def here(text: str) -> str:
    """Return a message whose next steps work in this process."""
    if ("%" not in text and " --" not in text) or is_notebook():
        return text
    for pattern, words in _PATTERNS:
        text = re.sub(pattern, words, text)
    return text.replace("{cluster}", "tfcluster" if "PYTEST_CURRENT_TEST" in os.environ else "cluster")


def not_forked(obstacle: str) -> str:
    """Return what an obstacle to forks costs, and what helps."""
    return (
        f"no process could be forked after TensorFlow's import, because of {obstacle}. So each one imports "
        "TensorFlow itself, at every start, restart and revive: some seconds, and about 300 MB. Start that "
        "at its first use, not at an import, or take the package out of this environment"
    )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown word: a question with the closest known one, or ""."""
    import difflib  # 3 ms, for a message that is rare

    closest = difflib.get_close_matches(word, known, 1)
    return f"; did you mean {closest[0]}?" if closest else ""


def _quoted(tasks: str) -> str:
    return ", ".join(repr(name) for name in tasks.split())


def translate_for(in_notebook: bool) -> None:
    """Translate as for another process: a task translates for the process that has the cluster."""
    global _in_notebook
    _in_notebook = in_notebook


def is_notebook() -> bool:
    """Check whether magic lines work here: IPython is imported and has a shell."""
    if _in_notebook is not None:
        return _in_notebook
    module = sys.modules.get("IPython.core.getipython")
    return module is not None and module.get_ipython() is not None
