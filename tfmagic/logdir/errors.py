"""The exceptions of `tfmagic.logdir`.

TfmagicError
├── LogdirError        (OSError)      a folder cannot be used: read-only, full, in use, not reachable
├── CheckpointError    (ValueError)   a checkpoint does not exist, or belongs to another object
└── DriverError        (ImportError)  a package is missing; the message is the line that installs it
"""

from __future__ import annotations

from tfmagic.errors import TfmagicError


class LogdirError(TfmagicError, OSError):
    """A log folder cannot be used; the message names it."""


class CheckpointError(TfmagicError, ValueError):
    """There is no such checkpoint, or it does not fit the object that is saved or restored."""


class DriverError(TfmagicError, ImportError):
    """The package for this kind of folder is not installed."""
