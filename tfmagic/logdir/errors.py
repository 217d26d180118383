"""What `tfmagic.logdir` raises.

TfmagicError
├── LogdirError        (OSError)      a folder that cannot be used: read-only, full, in use, out of reach
├── CheckpointError    (ValueError)   a checkpoint that is not there, or is none of this object
└── DriverError        (ImportError)  a package is missing; the message is the line that installs it
"""

from __future__ import annotations

from tfmagic.errors import TfmagicError


class LogdirError(TfmagicError, OSError):
    """A log folder cannot be used; the message names it."""


class CheckpointError(TfmagicError, ValueError):
    """There is no such checkpoint, or it does not fit what is to be saved or restored."""


class DriverError(TfmagicError, ImportError):
    """A package that reaches this kind of folder is not installed."""
