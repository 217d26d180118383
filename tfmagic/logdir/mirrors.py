"""Folders behind a URL, by fsspec: what TensorFlow's own file system cannot write.

    event and checkpoint files ──→ local folder ── push: what has changed; `checkpoint` last ──→ URL

TensorFlow 2.21 knows local paths and gs:// alone ("File system scheme 's3' not implemented"). A file is
uploaded as a whole. Object stores show it when it is complete; elsewhere it is uploaded beside and renamed.
Every call ends within `TIMEOUT_S`: it runs on a thread "tfmagic-bounded", which nobody waits for after that.

A mirror with `every_s` has a thread "tfmagic-mirror": it reads the folder, uploads, and ends in `close`.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from tfmagic.logdir import owners
from tfmagic.logdir.errors import DriverError, LogdirError
from tfmagic.protocol import task_context
from tfmagic.system import files, time_limits

TIMEOUT_S = 60.0  # for one file or listing
_T = TypeVar("_T")
_BY_TENSORFLOW = ("gs", "file")
_WHOLE_ONLY = ("s3", "s3a", "gs", "gcs", "abfs", "az", "memory")  # an upload is visible when it is complete
# what its writer renames when it is complete: TensorFlow's checkpoints, our shards; and our own notes
_UNDER_WAY = re.compile(r"(.*/)?([^/]*_temp/part-[^/]*|[^/]*\.tempstate\d+|\.[^/]*\.writing|\.tfmagic-[^/]*)")
_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {"config_kwargs": {"connect_timeout": 5, "read_timeout": 30, "retries": {"max_attempts": 2}}}
}
_OPTIONS["s3a"] = _OPTIONS["s3"]


def is_remote(base: str | os.PathLike[str]) -> bool:
    """Whether this is a URL that TensorFlow does not write by itself."""
    scheme, mark, _ = os.fspath(base).partition("://")
    return bool(mark) and scheme not in _BY_TENSORFLOW


def refuse_private(url: str) -> None:
    """Refuse a place that each process has for itself, where several tasks are to share it."""
    if url.startswith("memory://") and task_context.is_task() and task_context.current_task().num_tasks > 1:
        raise LogdirError(
            f"{url} is in the memory of one process: the {task_context.current_task().num_tasks} tasks of "
            "this cluster would each have their own. Name a folder of this machine, or s3://, gs://, hdfs://"
        )


class Remote:
    """The files right below a URL.

    Raises:
        DriverError: fsspec, or its driver for this kind of URL, is missing.
        LogdirError: There is no such place, or it cannot be reached.
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None = None):
        self.url = url.rstrip("/")
        self._scheme = url.partition("://")[0]
        options = {**_OPTIONS.get(self._scheme, {}), **(storage_options or {})}
        fsspec = _fsspec(url)
        self._fs, self._path = self._ask("be opened", lambda: fsspec.core.url_to_fs(self.url, **options))

    def __repr__(self) -> str:
        return f"<Remote {self.url}>"

    def prove(self) -> None:
        """Write and remove a small file: what is wrong is told before any training starts."""
        name = f".tfmagic-probe-{uuid.uuid4().hex}"
        self.write(name, b"x")
        self.remove(name)

    def names(self) -> dict[str, int]:
        """The files and their sizes in bytes; none where there is no folder yet."""

        def look() -> dict[str, int]:
            self._fs.invalidate_cache()
            try:
                found = self._fs.ls(self._path, detail=True)
            except FileNotFoundError:
                return {}
            files = [f for f in found if f["type"] == "file"]
            return {f["name"].rpartition("/")[2]: int(f["size"] or 0) for f in files}

        return self._ask("be listed", look)

    def write(self, name: str, content: bytes) -> None:
        """A small file, in one piece."""
        self._ask("be written", lambda: self._fs.pipe_file(self._at(name), content))

    def read(self, name: str) -> bytes | None:
        """A small file; None where there is none."""

        def fetch() -> bytes | None:
            try:
                return bytes(self._fs.cat_file(self._at(name)))
            except FileNotFoundError:
                return None

        return self._ask("be read", fetch)

    def remove(self, name: str) -> None:
        """A file, if it is there."""

        def delete() -> None:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._at(name))

        self._ask("be written", delete)

    def put(self, local: str, name: str) -> None:
        """Upload a file; nobody sees half of it."""

        def upload() -> None:
            target = self._at(name)
            self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            if self._scheme in _WHOLE_ONLY:
                self._fs.put_file(local, target)
                return
            beside = f"{target}.uploading"
            self._fs.put_file(local, beside)
            self._fs.mv(beside, target)

        self._ask("be written", upload)

    def get(self, name: str, local: str) -> None:
        """Download a file; half of one is never seen under its name."""

        def download() -> None:
            with files.replacing(local, f"{local}.fetching") as beside:
                self._fs.get_file(self._at(name), beside)

        self._ask("be read", download)

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"

    def _ask(self, what: str, call: Callable[[], _T]) -> _T:
        try:
            return cast(_T, time_limits.call(call, TIMEOUT_S))
        except ImportError as error:
            raise DriverError(f"{self.url}: {error}. {_install_line(self._scheme)}") from error
        except TimeoutError as error:
            raise LogdirError(
                f"{self.url} cannot {what}: no answer within {TIMEOUT_S:.0f} s. Is its server up, and its "
                "address right (AWS_ENDPOINT_URL, storage_options)?"
            ) from error
        except Exception as error:  # drivers raise what their libraries do: botocore's are not even OSErrors
            raise LogdirError(
                f"{self.url} cannot {what}: {type(error).__name__}: {error}{_advice(error)}"
            ) from error


def _advice(error: Exception) -> str:
    names = " ".join(kind.__name__ for kind in type(error).__mro__)
    if "Credentials" in names or isinstance(error, PermissionError):
        return ". Give the tasks credentials, in storage_options or their environment"
    if isinstance(error, FileNotFoundError):
        return ". Make the bucket first: a folder is made by itself, a bucket is not"
    if "Connect" in names or "Endpoint" in names:
        return ". Is its server up, and its address right (AWS_ENDPOINT_URL, storage_options)?"
    return ""


def _fsspec(url: str) -> Any:
    try:
        import fsspec
    except ImportError as error:
        raise DriverError(f'{url} needs fsspec:  pip install "tfmagic[remote]"') from error
    scheme = url.partition("://")[0]
    if scheme not in fsspec.available_protocols():
        raise LogdirError(f"{url}: there is no kind of folder {scheme}://; write s3://, gs://, hdfs:// ...")
    return fsspec


def _install_line(scheme: str) -> str:
    package = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hdfs": "pyarrow", "abfs": "adlfs"}
    found = package.get(scheme)
    return f"Install it with:  pip install {found}" if found else "Install the package that it names"


class Mirror:
    """A local folder whose files, those of its subfolders included, are copied to a URL as they grow.

    Args:
        local: The folder.
        url: Where to.
        every_s: Seconds between two looks on a thread; None looks only when `push` or `close` is called.
        storage_options: What fsspec is to know.
        is_sole: Whether this process alone is to write there: it uploads no more when another has begun to.

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
        self.local, self.remote = os.fspath(local), Remote(url, storage_options)
        self.remote.prove()
        self._is_sole, self._is_lost = is_sole, False
        if is_sole:  # who comes later has it: perhaps the other one was killed
            self.remote.write(owners.MIRROR_NAME, owners.claim())
        self._seen: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        if every_s is not None:
            serve = (every_s,)
            self._thread = threading.Thread(
                target=self._serve, args=serve, name="tfmagic-mirror", daemon=True
            )
            self._thread.start()

    def __enter__(self) -> Mirror:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def push(self) -> list[str]:
        """Upload what has changed since the last time; the names.

        What a checkpoint's index names goes before the index, and the file `checkpoint` last.

        Raises:
            LogdirError: It cannot be written; what was not uploaded is tried again by the next call.
        """
        with self._lock:
            files = sorted(self._files().items(), key=lambda item: _order(item[0]))
            changed = [(name, mark) for name, mark in files if self._seen.get(name) != mark]
            if changed and self._is_sole:
                self._hold()
            return [name for name, mark in changed if self._upload(name, mark)]

    def _upload(self, name: str, mark: tuple[int, int]) -> bool:
        path = os.path.join(self.local, name)
        try:
            self.remote.put(path, name)
        except LogdirError:
            if os.path.exists(path):
                raise
            return False  # deleted since the look: of old checkpoints, for one
        self._seen[name] = mark
        return True

    def _hold(self) -> None:
        owner = self.remote.read(owners.MIRROR_NAME)
        self._is_lost = owner is not None and owner != owners.claim()
        if owner is None:
            self.remote.write(owners.MIRROR_NAME, owners.claim())
        elif self._is_lost:
            who = owners.tell(owner.decode("utf-8", "replace"))
            raise LogdirError(
                f"{who} has begun to write to {self.remote.url} after this run, which uploads no "
                "more: they would replace each other's files. Give one of them a folder of its own"
            )

    def close(self) -> None:
        """Upload the rest, and end. May be called again after an error.

        Raises:
            LogdirError: It cannot be written; the local folder has everything.
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
            except LogdirError as error:  # the next look may do better; close() raises
                print(f"tfmagic: {error}", file=sys.stderr, flush=True)
                if self._is_lost:
                    return

    def _files(self) -> dict[str, tuple[int, int]]:
        found = {}
        for folder, _, names in os.walk(self.local):
            for name in names:
                path = os.path.join(folder, name)
                relative = os.path.relpath(path, self.local)
                if _UNDER_WAY.fullmatch(relative):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    stat = os.stat(path)
                    found[relative] = (stat.st_size, stat.st_mtime_ns)
        return found


def _order(name: str) -> tuple[int, str]:
    last = os.path.basename(name)
    return (2 if last == "checkpoint" else 1 if last.endswith(".index") else 0, name)


def mirror(
    local: str | os.PathLike[str],
    url: str,
    *,
    every_s: float | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Mirror:
    """Copy a local folder to a URL as it grows: ``with mirror("logs", "s3://bucket/run", every_s=10):``.

    For the arguments and errors see `Mirror`.
    """
    return Mirror(local, url, every_s=every_s, storage_options=storage_options)
