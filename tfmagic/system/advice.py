"""The next step that a message proposes, in the words of the front end whose user reads it.

    f"it is stopped (SIGSTOP); {Step('resume', task)} lets it go on"

    in a notebook   %tfcluster resume worker-1
    in Python       cluster.faults.resume('worker-1')   (under pytest the cluster is the fixture `tfcluster`)
    in a shell      another run, tfmagic logs RUN, export NAME=VALUE; else as in Python

Code that cannot know its front end builds a `Step`. A task, a host's agent and Ray's driver get the front end
of the process that has the cluster.
"""

import enum
import os
import sys
from collections.abc import Iterable
from typing import Self


class FrontEnd(enum.Enum):
    """How the user of a process works with tfmagic; the value is the place in the rows of `_STEPS`."""

    NOTEBOOK = 0  # or IPython in a terminal
    PYTHON = 1
    SHELL = 2


DEFAULT_CLUSTER = "default"
_METHOD = ("%tfcluster {verb}{words}{of_cluster}", "{cluster}.{verb}({arguments})")
_STEPS = {  # verb: in a notebook, in Python, in a shell (if not as in Python). Other verbs are a `_METHOD`
    "restart": (*_METHOD, "another run"),
    "revive": (*_METHOD, "another run"),
    "stop, then start": ("%tfcluster {verb}", "{cluster}.stop(), then {cluster}.start()", "another run"),
    "start it": ("%tfcluster start or Cluster.start()", "{cluster}.start()"),
    "reshape": ("%tfcluster restart{words}", "tfmagic.Cluster({arguments})", "{tool} run{words} SCRIPT"),
    "clean up": ("%tfcluster start", "{cluster}.start()", "{tool} reap"),
    "attach": ("%tfcluster attach{words}", "tfmagic.attach({arguments})", "{tool} logs{words}"),
    "begin with it": (
        "after %tfcluster restart put it into the first cell",
        "after {cluster}.restart() put it into the first cell",
        "put it first in the script",
    ),
    "resume": (_METHOD[0], "{cluster}.faults.resume({arguments})"),
    "heal": (_METHOD[0], "{cluster}.faults.heal()"),
    "wait": (_METHOD[0], "future.result()"),
    "explain": ("%tfcluster {verb}{words}", "{tool} explain{words}"),
    "give time": ("--timeout", "timeout=", "--timeout"),
    "show all": ("--all", "whole=True", "--all"),
    "push": ("--push {keys}", "{cluster}.push({arguments})"),
    "configure": ("%config TFCluster.{keys} = {value}", "tfmagic.Cluster({arguments})"),
    "adjust": ("%config TFCluster.{0}", "tfmagic.Cluster({0}=...)"),
    "set": ("%env {keys}={value}", 'os.environ["{keys}"] = "{value}"', "export {keys}={value}"),
    "assign": (*['import os; os.environ["{keys}"] = "{value}"'] * 2, "export {keys}={value}"),
    "unset": (*['import os; del os.environ["{0}"]'] * 2, "unset {0}"),
    "limit open files": (
        *["import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {1}))"] * 2, "ulimit -n {0}",
    ),
    "type": ("!{0}", "{0}"),
    "install": ("%pip install {0}", "pip install {0}"),
}  # fmt: skip
_CHOSEN = ("LOGDIR", "NAME", "TASK")

_front_end: FrontEnd | None = None
_cluster = ""


class Step:
    """A step that a message proposes. `str` gives it in the words of this process' front end.

    Args:
        verb: A method of `Cluster` and command of ``%tfcluster``, or a key of `_STEPS`.
        names: What it is done to, or one of `_CHOSEN`, for which the user puts a name.
        options: Options of a new cluster, variables, or a setting.
    """

    __slots__ = ("cluster", "names", "options", "verb")

    def __init__(self, verb: str, *names: object, **options: object):
        self.verb, self.names, self.options, self.cluster = verb, tuple(map(str, names)), options, _cluster

    def of(self, cluster: str) -> Self:
        """Let this be a step of another cluster than that of this process."""
        self.cluster = cluster
        return self

    def __str__(self) -> str:
        forms = _STEPS.get(self.verb, _METHOD)
        of_cluster = f" --cluster {self.cluster}" if self.cluster not in ("", DEFAULT_CLUSTER) else ""
        given = [name if name in _CHOSEN else repr(name) for name in self.names]
        return forms[min(front_end().value, len(forms) - 1)].format(
            *self.names,
            verb=self.verb,
            cluster="tfcluster" if "PYTEST_CURRENT_TEST" in os.environ else "cluster",
            tool=program_name(),
            words="".join([f" {n}" for n in self.names] + [f" --{k} {v}" for k, v in self.options.items()]),
            arguments=", ".join(given + [f"{k}={v}" for k, v in self.options.items()]),
            keys=",".join(self.options),
            of_cluster=of_cluster,
            value=next(iter(self.options.values()), ""),
        )


def front_end() -> FrontEnd:
    """Return the front end of this process. Magic lines work if IPython is imported and has a shell."""
    if _front_end is not None:
        return _front_end
    module = sys.modules.get("IPython.core.getipython")
    has_shell = module is not None and module.get_ipython() is not None
    return FrontEnd.NOTEBOOK if has_shell else FrontEnd.PYTHON


def set_front_end(chosen: FrontEnd | None, cluster: str = "") -> None:
    """Choose the front end of this process; None finds out again. `cluster` is that of a task process."""
    global _front_end, _cluster
    _front_end, _cluster = chosen, cluster


def in_notebook(text: str) -> str:
    """Return words that help only in a notebook, or ""."""
    return text if front_end() is FrontEnd.NOTEBOOK else ""


def program_name() -> str:
    """Return the command that starts tfmagic's program, as the user has typed it."""
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    return "tfmagic" if name == "tfmagic" else "python -m tfmagic"


def not_forked(obstacle: str) -> str:
    """Describe the cost of an obstacle to forks, and what helps."""
    return (
        f"no process could be forked after TensorFlow's import, because of {obstacle}. So each one imports "
        "TensorFlow itself, at every start, restart and revive: some seconds, and about 300 MB. Start that "
        "at its first use, not at an import, or take the package out of this environment"
    )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown word: a question with the closest known one, or ""."""
    import difflib  # 3 ms, for a message that is rare

    closest = difflib.get_close_matches(word, known, 1, 0.7)  # 0.6 takes explode for reload
    return f"; did you mean {closest[0]}?" if closest else ""
