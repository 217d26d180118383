"""Why a call of a task waits, and why a process was ended: the reasons that events have."""

import enum


class Wait(enum.Enum):
    """What a call that does not return waits for, as the frames of its thread show."""

    NONE = ""
    COLLECTIVE = "a collective"
    RPC = "a remote call"
    DATASET = "its data set"
    PEERS = "its peers to start"
    STEP = "its data set or a collective"  # a tf.function can have both
    DEBUGGER = "the user of a debugger"


class Cause(enum.Enum):
    """Why tfmagic has ended a process, or sent it a signal."""

    NONE = ""
    USER = "a signal of the user's"
    CHAOS = "chaos"
    STOP = "the stop of the cluster"
    RESTART = "a new process was asked for"
    UNREACHABLE = "nothing else reached it"
    CHIEF = "the end of the chief"
