"""The options of a cluster that each task process obeys itself, before any user code runs.

    TaskSettings.of_process ──┬─→ find_problem, before a start on this machine
                              └─→ TaskBoot.options ──┬─→ find_problem, on a host of Ray
                                                     └─→ obey, in the task

Their names are those of the table, `tfmagic.clusters.launch.cluster_options`.
"""

import contextlib
import os
import threading

import msgspec


class ProcessOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """The options, as the table declares them.

    Attributes:
        nice: The priority of the process, from -20 (the highest) to 19; None leaves the inherited one.
    """

    nice: int | None = None


def find_problem(asked: ProcessOptions) -> str:
    """Return why a process that this one starts cannot obey, and what helps; "" if it can."""
    return "" if asked.nice is None else _problem_of_nice(asked.nice)


def obey(asked: ProcessOptions) -> None:
    """Do to this process what was asked.

    Raises:
        PermissionError: It must not; the message says what helps.
    """
    if asked.nice is not None:
        _set_nice(asked.nice)


def _problem_of_nice(nice: int) -> str:
    """Try it in a thread of its own: Linux has a priority for each thread, and this one ends at once."""
    if nice >= (now := os.getpriority(os.PRIO_PROCESS, 0)):
        return ""
    refused: list[OSError] = []

    def attempt() -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, nice)
        except OSError as error:
            refused.append(error)

    thread = threading.Thread(target=attempt, name="tfmagic-nice", daemon=True)
    thread.start()
    thread.join()
    return _forbidden(nice, now) if refused else ""


def _forbidden(nice: int, now: int) -> str:
    return (
        f"the priority --nice {nice} needs the right CAP_SYS_NICE, or a limit of {20 - nice} "
        f"(ulimit -e, RLIMIT_NICE); use {now} to 19, which need none"
    )


def _set_nice(nice: int) -> None:
    """Set the priority of this thread, from which later ones have it, and of those that exist."""
    now = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.setpriority(os.PRIO_PROCESS, int(thread), nice)
    except PermissionError as error:
        raise PermissionError(_forbidden(nice, now)) from error
