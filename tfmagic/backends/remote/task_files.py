"""What a task of a host has written to its files there: what is new, and what the kernel has by now.

The kernel's log has the same offsets as the host's. Where the disk of a host is nearly full, the blocks of
what has arrived are given back to it: the size of the log, and so all offsets, stay as they are.
"""

import contextlib
import os
import shutil
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path

from tfmagic.backends.remote.messages import AgentSetup
from tfmagic.errors import BackendError
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.runs import folder
from tfmagic.runs.folder import STDERR, RunFolder, file_size
from tfmagic.runs.kernels import KernelState, kernel_state
from tfmagic.system import files

Piece = tuple[str, int | None, bytes]
"""The name of a file, an offset in it or None for its end, and what is to be written there."""
PIECE_BYTES = 4 << 20  # of one file in one batch
_LOG, _ENDINGS = "log", ("log", STDERR[1:], "stacks")
_LEAST_FREE_BYTES = 256 << 20  # of a disk; below it, what has arrived is dropped
_DROP_BYTES = 1 << 20  # at once


class TaskFiles:
    """The log, the notes on its error stream, and the stacks of one task.

    Attributes:
        sent: How much of each file was reported, in bytes, by the ending of its name.
    """

    def __init__(self, run: RunFolder, task: TaskId):
        self._run, self._task = run, task
        self.sent = dict.fromkeys(_ENDINGS, 0)
        self._dropped = 0  # of the log

    def begin(self, log_bytes: int) -> None:
        """Let the log continue a log of this length, for a new process. Raises OSError."""
        path = self._run.log_path(self._task)
        if file_size(path) < log_bytes:  # offsets in the log are the same here and there
            os.close(files.open_to_append(path))
            os.truncate(path, log_bytes)
        self.sent[_LOG] = log_bytes  # again what is on its way, or what the kernel has lost

    def read_new(self, log_only: bool = False) -> list[Piece]:
        """Return the bytes written since the last call.

        Args:
            log_only: Look at the other files only if the log has become longer: a look costs CPU time.
        """
        found: list[Piece] = []
        if log_only and file_size(self._run.log_path(self._task)) <= self.sent[_LOG]:
            return found
        for ending, sent in self.sent.items():
            path = self._run.folder / f"{self._task.name}.{ending}"
            if file_size(path) > sent:
                with contextlib.suppress(OSError):
                    new = files.read_bytes(path, PIECE_BYTES, sent)
                    self.sent[ending] += len(new)
                    # the kernel's other files can have more, of other hosts
                    found.append((path.name, sent if ending == _LOG else None, new))
        return found

    def read_again(self) -> None:
        """Report the files from their beginning, or from what is still there."""
        self.sent = dict.fromkeys(self.sent, 0)
        self.sent[_LOG] = self._dropped

    def resume(self, sizes: Mapping[str, int]) -> None:
        """Go on where a kernel is that has files of these sizes."""
        for ending, sent in self.sent.items():
            name = f"{self._task.name}.{ending}"
            there = sizes.get(name, 0)
            self.sent[ending] = there if there <= file_size(self._run.folder / name) else sent

    def note_arrived(self, pieces: list[Piece]) -> None:
        """Note what the kernel has, and drop that much of the log where the disk needs the room."""
        name = self._run.log_path(self._task).name
        arrived = max(
            (at + len(new) for file, at, new in pieces if file == name and at is not None), default=0
        )
        if arrived - self._dropped < _DROP_BYTES:
            return
        disk = os.statvfs(self._run.folder)
        if disk.f_bavail * disk.f_frsize < _LEAST_FREE_BYTES:
            with contextlib.suppress(OSError):  # the file system cannot, or the log was moved
                files.drop_blocks(self._run.log_path(self._task), self._dropped, arrived)
                self._dropped = arrived


def write_piece(run_folder: str, name: str, offset: int | None, content: bytes) -> None:
    """Write what a host has sent into the run folder of the kernel. Raises OSError.

    Raises:
        BackendError: A host may not write a file of this name.
    """
    task, _, ending = name.partition(".")
    if not (ending in _ENDINGS and folder.is_task_name(task)):
        raise BackendError(f"it wants to write the file {name!r}, which is no log of a task")
    fd = files.open_regular(os.path.join(run_folder, name), os.O_WRONLY | os.O_CREAT)
    try:
        at = os.fstat(fd).st_size if offset is None else offset
        rest = memoryview(content)
        while rest:
            written = os.pwrite(fd, rest, at)
            rest, at = rest[written:], at + written
    finally:
        os.close(fd)


def create_run_folder(setup: AgentSetup) -> RunFolder:
    """Make a folder for this run, and delete those of agents of this machine that were killed."""
    hosts = folder.state_dir() / "hosts"
    for old in hosts.glob("*"):
        if {kernel_state(run) for run in folder.find_runs(old)} == {KernelState.GONE}:
            shutil.rmtree(old, ignore_errors=True)
    # containers can share the folder, and the host name, and each has a process of this pid
    base = hosts / f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    return folder.create_run(base, setup.cluster, {}, Path(setup.run).name)
