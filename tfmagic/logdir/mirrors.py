"""Files behind a URL, by fsspec, for the URLs that TensorFlow's own file system cannot write.

    event and checkpoint files ──→ local folder ── push: changed files; `checkpoint` last ──→ URL

TensorFlow 2.21 knows only local paths and gs:// ("File system scheme 's3' not implemented"). A file is
uploaded as a whole. Object stores show it when it is complete; elsewhere it is uploaded under another name
and renamed. Every call ends within `TIMEOUT_S`, a transfer when nothing has moved for about as long. It runs
on a thread "tfmagic-bounded", which is left behind after that.

A mirror with `every_s` has a thread "tfmagic-mirror", which reads the folder, uploads, and ends in `close`.
`fsspec.generic.rsync` uploads in any order, also files that are not complete yet, and has no time limit.
"""

import contextlib
import json
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from tfmagic.logdir import owners
from tfmagic.logdir.errors import DriverError, LogdirError
from tfmagic.protocol import task_context
from tfmagic.system import files, notices, time_limits
from tfmagic.system.arguments import as_path

TIMEOUT_S = 60.0  # for a small file or a listing; for a transfer without progress, and see `_Transfer`
_PIECE_BYTES = 8 << 20  # of S3: larger ones would be a minute without progress on a slow line
_UNSEEN_BYTES = 10 * _PIECE_BYTES  # that a driver has under way at once, before it reports any
_SLOWEST = 256 << 10  # bytes a second
_T = TypeVar("_T")
_BY_TENSORFLOW = ("gs", "file")
_WHOLE_ONLY = ("s3", "s3a", "gs", "gcs", "abfs", "az", "memory")  # an upload is visible when it is complete
# files that their writer renames when they are complete (TensorFlow's checkpoints, our shards), and our notes
_UNDER_WAY = re.compile(r"(.*/)?([^/]*_temp/part-[^/]*|[^/]*\.tempstate\d+|\.[^/]*\.writing|\.tfmagic-[^/]*)")
_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {
        "config_kwargs": {"connect_timeout": 5, "read_timeout": 30, "retries": {"max_attempts": 2}},
        "default_block_size": _PIECE_BYTES,  # of downloads
    }
}
_OPTIONS["s3a"] = _OPTIONS["s3"]
_DRIVERS = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hdfs": "pyarrow", "abfs": "adlfs"}
_IS_IT_UP = "Is its server up, and its address right (AWS_ENDPOINT_URL, storage_options)?"


def is_remote(base: str | os.PathLike[str]) -> bool:
    """Return whether this is a URL that TensorFlow does not write by itself."""
    scheme, mark, _ = os.fspath(base).partition("://")
    return bool(mark) and scheme not in _BY_TENSORFLOW


def refuse_private(url: str) -> None:
    """Refuse a URL that means another place in each process, if several tasks are to share it."""
    if url.startswith("memory://") and task_context.is_task() and task_context.current_task().num_tasks > 1:
        raise LogdirError(
            f"{url} is in the memory of one process: the {task_context.current_task().num_tasks} tasks of "
            "this cluster would each have their own. Name a folder of this machine, or s3://, gs://, hdfs://"
        )


class _Transfer:
    """How a file's transfer goes on: it has no limit but that for a time without progress.

    Drivers report a piece when it is through, and have several pieces under way: the limit grows with what
    can be under way unseen.
    """

    def __init__(self, size: int = 0):
        self.limit_s, self._is_given_up = 0.0, False
        self._size, self._moved_at = size, time.monotonic()

    def note(self, size: int | None, _moved: int, **_: object) -> None:
        """Note progress; fsspec calls it in its own thread. An upload that was given up must not go on."""
        if self._is_given_up:
            raise TimeoutError("this transfer was given up")
        self._size, self._moved_at = size or self._size, time.monotonic()

    def left_s(self) -> float:
        """Return how long to wait from now for progress, in seconds; 0 gives the transfer up."""
        self.limit_s = TIMEOUT_S + min(self._size, _UNSEEN_BYTES) / _SLOWEST
        left = self._moved_at + self.limit_s - time.monotonic()
        self._is_given_up = left <= 0
        return left


class Remote:
    """The files directly below a URL.

    Raises:
        DriverError: fsspec, or its driver for this kind of URL, is missing.
        LogdirError: There is no such place, or it cannot be reached.
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None = None):
        self.url = url.rstrip("/")
        self._scheme = url.partition("://")[0]
        try:
            import fsspec
        except ImportError as error:
            raise DriverError(f'{url} needs fsspec:  pip install "tfmagic[remote]"') from error
        if self._scheme not in fsspec.available_protocols():
            kinds = "write s3://, gs://, hdfs:// ..."
            raise LogdirError(f"{url}: there is no kind of folder {self._scheme}://; {kinds}")
        options = {**_OPTIONS.get(self._scheme, {}), **(storage_options or {})}
        self._fs, self._path = self._ask("be opened", lambda: fsspec.core.url_to_fs(self.url, **options))

    def prove(self) -> None:
        """Write and remove a small file, so that a problem shows before any training starts."""
        name = f".tfmagic-probe-{uuid.uuid4().hex}"
        self.write(name, b"x")
        self.remove(name)

    def names(self) -> dict[str, int]:
        """Return the files and their sizes in bytes; none if there is no folder yet."""

        def list_files() -> list[Any]:
            self._fs.invalidate_cache()
            return list(self._fs.ls(self._path, detail=True))

        found = self._ask("be listed", list_files, list[Any]())
        return {f["name"].rpartition("/")[2]: int(f["size"] or 0) for f in found if f["type"] == "file"}

    def write(self, name: str, content: bytes) -> None:
        """Write a small file in one piece."""
        self._ask("be written", lambda: self._fs.pipe_file(self._at(name), content))

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file, None if there is no such file."""
        return self._ask("be read", lambda: bytes(self._fs.cat_file(self._at(name))), None)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        self._ask("be written", lambda: self._fs.rm_file(self._at(name)), None)

    def put(self, local: str, name: str) -> None:
        """Upload a file. No reader sees half of the file."""
        size = os.path.getsize(local) if os.path.exists(local) else 0
        transfer = _Transfer(size)
        pieces = {"chunksize": max(_PIECE_BYTES, size // 5000)} if self._scheme in ("s3", "s3a") else {}

        def upload() -> None:
            target = self._at(name)
            self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            is_whole = self._scheme in _WHOLE_ONLY
            beside = target if is_whole else f"{target}.uploading"
            self._fs.put_file(local, beside, callback=_callback(transfer), **pieces)
            if not is_whole:
                self._fs.mv(beside, target)

        self._ask("be written", upload, transfer=transfer)

    def get(self, name: str, local: str) -> None:
        """Download a file. No reader sees half of the file."""
        transfer = _Transfer()

        def download() -> None:
            with files.replacing(local, f"{local}.fetching") as beside:
                self._fs.get_file(self._at(name), beside, callback=_callback(transfer))

        self._ask("be read", download, transfer=transfer)

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"

    def _ask(
        self, what: str, call: Callable[[], _T], *if_missing: _T, transfer: _Transfer | None = None
    ) -> _T:
        """Return the result of a call to the server; `if_missing` if it says that there is no such file."""
        transfer = transfer or _Transfer()
        try:
            return cast(_T, time_limits.call(call, transfer.left_s))
        except ImportError as error:
            driver = _DRIVERS.get(self._scheme)
            mend = f"Install it with:  pip install {driver}" if driver else "Install the package named here"
            raise DriverError(f"{self.url}: {error}. {mend}") from error
        except TimeoutError as error:
            limit = f"no answer within {max(TIMEOUT_S, transfer.limit_s):.0f} s"
            raise LogdirError(f"{self.url} cannot {what}: {limit}. {_IS_IT_UP}") from error
        except Exception as error:  # drivers raise the errors of their libraries; botocore's are no OSErrors
            if if_missing and isinstance(error, FileNotFoundError):
                return if_missing[0]
            said = f"{type(error).__name__}: {error}{_advice(error)}"
            raise LogdirError(f"{self.url} cannot {what}: {said}") from error


def _callback(transfer: _Transfer) -> Any:
    from fsspec.callbacks import Callback

    return Callback(hooks={"progress": transfer.note})


def _advice(error: Exception) -> str:
    names = " ".join(kind.__name__ for kind in type(error).__mro__)
    if "Credentials" in names or isinstance(error, PermissionError):
        return ". Give the tasks credentials, in storage_options or their environment"
    if isinstance(error, FileNotFoundError):
        return ". Make the bucket first: tfmagic makes folders, but no buckets"
    return f". {_IS_IT_UP}" if "Connect" in names or "Endpoint" in names else ""


class RemoteClaim:
    """A file behind a URL, where there are no locks, that names the run which began last to write there.

    It stays: a run that starts again after a kill must be able to write, and the other's state is unknown.
    Writers in one process with different tokens are different runs.
    """

    def __init__(self, remote: Remote, name: str, token: str):
        self._remote, self._name, self.is_lost = remote, name, False
        self._content = json.dumps({**owners.describe(), "claim": token}).encode()
        remote.write(name, self._content)

    def check(self, consequence: str) -> None:
        """Raise `LogdirError` if another run has begun to write since."""
        content = self._remote.read(self._name)
        if content is None:
            self._remote.write(self._name, self._content)
        elif content != self._content:
            self.is_lost = True
            rival = f"{owners.owner_of(content)} has begun to write to {self._remote.url} after this run"
            raise LogdirError(f"{rival}{consequence}")


class Mirror(contextlib.AbstractContextManager["Mirror"]):
    """A local folder whose files, with those of its subfolders, are copied to a URL as they grow.

    Args:
        local: The folder.
        url: The target.
        every_s: Seconds between two uploads by a thread; None uploads only in `push` and `close`.
        storage_options: Options for fsspec.
        is_sole: Whether this process alone may write there: it uploads no more once another one has begun to.

    Raises:
        DriverError, LogdirError: It cannot be written.
    """

    def __init__(
        self,
        local: str | os.PathLike[str],
        url: str,
        *,
        every_s: float | None = None,
        storage_options: Mapping[str, Any] | None = None,
        is_sole: bool = False,
    ):
        self.local = as_path("local", local)
        self.remote = Remote(as_path("url", url, "a URL"), storage_options)
        self.remote.prove()
        self._claim = (  # the later run gets the place: perhaps the other one was killed
            RemoteClaim(self.remote, owners.MIRROR_NAME, owners.process_token()) if is_sole else None
        )
        self._seen: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        if every_s is not None:
            how: dict[str, Any] = {"name": "tfmagic-mirror", "daemon": True}
            self._thread = threading.Thread(target=self._serve, args=(every_s,), **how)
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def push(self) -> list[str]:
        """Upload the files that have changed since the last call. Return their names.

        The files that a checkpoint's index names go before the index, and the file `checkpoint` goes last.

        Raises:
            LogdirError: A file cannot be written; the next call tries again.
        """
        with self._lock:
            changed = [(name, mark) for name, mark in self._files() if self._seen.get(name) != mark]
            if changed and self._claim is not None:
                self._claim.check(
                    ", which uploads no more: they would replace each other's files. Give one of them a "
                    "folder of its own"
                )
            uploaded = []
            for name, mark in changed:
                path = os.path.join(self.local, name)
                try:
                    self.remote.put(path, name)
                except LogdirError:
                    if os.path.exists(path):
                        raise
                    continue  # deleted meanwhile, as old checkpoints are
                self._seen[name] = mark
                uploaded.append(name)
            return uploaded

    def close(self) -> None:
        """Upload the rest, and end. Can be called again after an error.

        Raises:
            LogdirError: A file cannot be written; the local folder has everything.
        """
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        try:
            self.push()
        except LogdirError as error:
            raise LogdirError(
                f"{error}. All of it is still in {self.local}: close() again when that is mended, or copy it "
                "away before this process ends"
            ) from error

    def _serve(self, every_s: float) -> None:
        while not self._over.wait(every_s):
            try:
                self.push()
            except LogdirError as error:  # the next upload can succeed; close() raises
                notices.tell(f"tfmagic: {error}")
                if self._claim is not None and self._claim.is_lost:
                    return

    def _files(self) -> list[tuple[str, tuple[int, int]]]:
        """Return the files, each with its size and time, in the order of their upload."""
        found = {}
        for folder, _, names in os.walk(self.local):
            for path in (os.path.join(folder, name) for name in names):
                relative = os.path.relpath(path, self.local)
                with contextlib.suppress(FileNotFoundError):
                    if not _UNDER_WAY.fullmatch(relative):
                        stat = os.stat(path)
                        found[relative] = (stat.st_size, stat.st_mtime_ns)
        order = {n: (os.path.basename(n) == "checkpoint", n.endswith(".index"), n) for n in found}
        return sorted(found.items(), key=lambda file: order[file[0]])


mirror = Mirror  # ``with mirror("logs", "s3://bucket/run", every_s=10):``
