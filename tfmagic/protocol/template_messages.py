"""The messages between a kernel and a template; `tfmagic.task.template` has the drawing."""

from collections.abc import Mapping

from tfmagic.protocol.payload import Handle, Message


class ForkLauncher(Message, frozen=True):
    """Fork a launcher, and a reaper, for the kernel that asks. Which process that is, the system says.

    Attributes:
        output: The file that gets what the launcher writes.
        path: Its `sys.path`.
        mark: Identifies all processes below the launcher; see `tfmagic.runs.orphans`.
    """

    output: Handle
    environ: Mapping[str, str]
    path: tuple[str, ...]
    cwd: str
    mark: str


class EndIfIdle(Message, frozen=True):
    """End, if no launcher of this template runs: another template takes its place."""


class LauncherForked(Message, frozen=True):
    """The launcher was forked, and waits for `ServeKernel`. The pid is that of its reaper."""

    pid: int
    pidfd: Handle


class LauncherRefused(Message, frozen=True):
    """No launcher was forked.

    Attributes:
        outdated: Whether the template has ended itself, since an import would find other files now.
    """

    reason: str
    outdated: bool


class ServeKernel(Message, frozen=True):
    """Serve the kernel on this root channel. The launcher reads it, where the template has answered."""

    root: Handle


TemplateRequest = ForkLauncher | EndIfIdle
TemplateAnswer = LauncherForked | LauncherRefused
