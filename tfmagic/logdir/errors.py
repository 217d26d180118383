"""The exceptions of `tfmagic.logdir`."""

from tfmagic.errors import TfmagicError


class LogdirError(TfmagicError, OSError):
    """A log folder cannot be used: it is read-only, full, in use, or not reachable; the message names it."""


class CheckpointError(TfmagicError, ValueError):
    """There is no such checkpoint, or it does not fit the object that is saved or restored."""


class DriverError(TfmagicError, ImportError):
    """The package for this kind of folder is not installed; the message is the line that installs it."""
