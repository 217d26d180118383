"""Answer a word that is no option or command with the one that it is here.

A word of another tool (torchrun, mpirun, srun, horovodrun, accelerate, DeepSpeed, Ray, ipyparallel, Docker,
`tail`) is looked up in a table; any other one is compared with the words that the help shows. None is taken
as a synonym: `-n` of mpirun counts all processes, for example, and `--workers` only those of one type.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Collection, Mapping, Sequence

from tfmagic.system.advice import did_you_mean

Words = Mapping[str, tuple[str, ...]]
NO_WORDS: Words = {}

OPTIONS: Words = {  # without leading dashes, and with _ instead of -
    "--workers": (
        *("n", "np", "nprocs", "num_proc", "nproc_per_node", "num_processes", "num_workers", "ntasks"),
        *("ntasks_per_node", "num_tasks", "num_replicas", "replicas", "engines", "world_size"),
    ),
    "--ps": ("num_ps", "num_servers", "parameter_servers", "servers"),
    "--hosts": ("nnodes", "num_nodes", "nodes", "N", "num_machines"),
    "--cluster": ("name", "cluster_id", "cluster_name", "profile_dir", "job_name", "J"),
    "--env": ("e", "x", "genv", "env_vars", "environment", "export"),
    "--cpus-per-task": ("c", "cpus", "num_cpus"),
    "--gpus-per-task": ("gpus", "num_gpus", "gpus_per_node", "gres"),
    "--auto-restart": ("max_restarts", "restarts", "max_retries", "retries"),
    "--on": ("targets", "target", "t", "block_on", "ranks", "task", "tasks", "w", "nodelist"),
    "--out": ("o", "output", "result", "results"),
    "--detach": ("noblock", "no_wait", "nowait", "background", "bg", "async", "d", "daemonize", "daemon"),
    "--timeout": ("t", "time", "time_limit", "walltime"),
    "--keep-going": ("k", "no_kill", "ignore_errors", "continue_on_error"),
    "--log-dir": ("o", "output", "output_filename", "logs", "r", "redirects"),
    "--quiet": ("q", "silent"),
    "--json": ("format",),
    "--tail": ("n", "lines", "last"),
    "--grep": ("filter", "regex", "e"),
    "--all": ("a",),
    "--dry-run": ("n",),
    "--signal": ("s",),
    "--port": ("p",),
}
_ADDRESSES = (
    *("master_addr", "master_port", "master", "node_rank", "rank", "local_rank", "rdzv_backend", "rdzv_id"),
    *("rdzv_endpoint", "rdzv_conf", "standalone", "main_process_ip", "main_process_port", "machine_rank"),
    *("H", "host", "hostfile", "machinefile", "hostlist", "include"),
    *("ps_hosts", "worker_hosts", "task_index", "task_id", "task_type"),
)
_CHOSEN = "; tfmagic chooses addresses and ports, and sets TF_CONFIG; tasks on other machines: --backend ray"
_BARE = ("workers", "cluster", "hosts", "help")  # typed without their dashes
_SIGNAL, _SIGNALS = re.compile(r"-((SIG)?[A-Z]{3,}\d?|\d+)"), "--signal"  # kill -9

COMMANDS: Words = {
    "run": ("launch", "exec", "execute", "submit", "train", "px"),
    "start": ("up", "launch", "create", "init", "new", "open"),
    "stop": ("down", "shutdown", "quit", "exit", "terminate", "end", "close", "delete", "rm", "destroy"),
    "restart": ("reset", "reboot", "respawn"),
    "interrupt": ("abort", "cancel"),
    "status": ("ps", "ls", "list", "top", "show", "info", "nodes", "jobs", "stats", "tasks", "memory"),
    "logs": ("tail", "output", "cat"),
    "errors": ("traceback", "tb", "failures"),
    "stacks": ("dump", "backtrace", "threads"),
    "pull": ("get", "gather", "fetch"),
    "push": ("put", "set", "scatter", "send", "sync"),
    "all": ("autopx",),
    "pause": ("suspend", "freeze"),
    "resume": ("unpause", "continue", "cont"),
    "doctor": ("check", "test", "env", "diagnose", "health"),
    "wait": ("join", "result", "pxresult"),
    "timeline": ("trace",),
    "map": ("topology", "describe"),
    "reap": ("clean", "cleanup", "prune"),
    "--version": ("version",),
}


def read(words: Sequence[str], parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the words. Call the parser's `error` for a word too many, with what it can mean."""
    refuse_unknown(words, parser)
    found, rest = parser.parse_known_args(words)
    if rest:
        which = _positional(rest[0], rest[0] == words[0], parser)
        parser.error(f"unrecognized arguments: {' '.join(rest)}{which}")
    return found


def read_action(words: Sequence[str], parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse words of which the first chooses an action with a parser of its own."""
    (actions,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    name = next(iter(words), "-")
    if name in actions.choices:
        refuse_unknown(words[1:], actions.choices[name])
    elif not name.startswith("-"):
        which = _question(name, name, {}, actions.choices) or f"; it is one of {', '.join(actions.choices)}"
        parser.error(f"there is no action {name!r}{which}")
    return parser.parse_args(words)


def refuse_unknown(words: Sequence[str], parser: argparse.ArgumentParser) -> None:
    """Call the parser's `error` for a word that looks like an option and is none of its options."""
    for word in words:
        name = word.partition("=")[0]
        is_option = re.match("--?[a-zA-Z]", name) or (_SIGNAL.fullmatch(name) and _SIGNALS in _shown(parser))
        if is_option and name not in parser._option_string_actions:
            parser.error(f"unrecognized arguments: {word}{_option(name, parser)}")


def script(word: str, parser: argparse.ArgumentParser) -> str:
    """Return the end of a message about a script that `tfmagic run` cannot run."""
    if os.path.exists(word):
        return ""
    if re.fullmatch(r"python[\d.]*", word):
        return "; give the script alone: this Python runs it"
    return _positional(word, False, parser)


def command(word: str, known: Collection[str], elsewhere: Words = NO_WORDS) -> str:
    """Return the end of a message about an unknown command: a question with ours, or "".

    Args:
        elsewhere: What other tools call commands that are not in our table.
    """
    ours = _question(word.lower(), word, {**COMMANDS, **elsewhere}, [*known, "--version"])
    option = "" if ours else did_you_mean(word, _BARE)
    return ours or option.replace("mean ", "mean --")


def _option(name: str, parser: argparse.ArgumentParser) -> str:
    """Return the end of a message about an unknown option."""
    plain = re.sub(r"(?<=[a-zA-Z])\d+$", "", name.lstrip("-–—")).replace("-", "_")  # -n4, -np4
    shown = _shown(parser)
    if plain in _ADDRESSES and "--workers" in shown:
        return _CHOSEN if "--backend" in shown else ""
    if _SIGNAL.fullmatch(name) and _SIGNALS in shown:
        return f"; did you mean {_SIGNALS} {plain}?"
    dashed = f"--{name.lstrip('-–—')}" if len(plain) > 1 else name
    return _question(plain, dashed, OPTIONS, shown)


def _positional(word: str, is_first: bool, parser: argparse.ArgumentParser) -> str:
    """Return the end of a message about a word that is no option and of which the line has too many."""
    shown = _shown(parser)
    if is_first and word.isdecimal() and "--workers" in shown:
        return f"; did you mean --workers {word}?"
    if is_first and "--on" in shown and re.fullmatch(r"all|(chief|worker|ps|evaluator)(-\d.*)?", word):
        return f"; did you mean --on {word}?"
    name, equals, value = word.partition("=")
    is_option = word[0] in "–—" or (equals and name.isidentifier())  # a dash of a web page, or workers=4
    option = _option(name, parser) if is_option else ""
    return option.replace("?", f"{equals}{value}?") if option.endswith("?") else option


def _shown(parser: argparse.ArgumentParser) -> list[str]:
    actions = parser._option_string_actions.items()
    return [name for name, action in actions if action.help != argparse.SUPPRESS]


def _question(word: str, typed: str, table: Words, known: Collection[str]) -> str:
    """Return a question with the known words that this one of the table can mean, else with the closest one.

    A word of another tool without a counterpart here is not compared: what is close to it is something else.
    """
    ours = [name for name, theirs in table.items() if word in theirs]
    if here := [name for name in ours if name in known]:
        return f"; did you mean {' or '.join(here)}?"
    return "" if ours else did_you_mean(typed, known)
