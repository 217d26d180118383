"""What a task does, in one word: for tables, pictures and the page, and in the files of a run."""

import enum


class Doing(enum.StrEnum):
    """What a task does, or how its part of a cell ended, in the order of a summary: problems first."""

    FAILED = "failed"  # its part of the cell
    DIED = "died"  # in the cell
    DEAD = "dead"  # without a process
    STALLED = "stalled"
    PAUSED = "paused"  # its process is stopped
    WAITING = "waiting"
    INPUT = "input"  # waits for the user to type
    RUNNING = "running"
    STARTING = "starting"
    PLANNED = "planned"
    ENDING = "ending"
    READY = "ready"
    IDLE = "idle"
    STOPPED = "stopped"
    DONE = "done"


PHASES = (
    *(Doing.PLANNED, Doing.STARTING, Doing.READY, Doing.RUNNING),
    *(Doing.ENDING, Doing.DEAD, Doing.STOPPED),
)
"""What a task process does, for readers that know no cells."""
FAILURES = (Doing.FAILED, Doing.DIED)
ENDS = (*FAILURES, Doing.STOPPED, Doing.DONE)
"""How a task can have ended its part of a cell."""
