"""A log's bytes: the file that a name opens, and the requested span."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfmagic.server import handlers as logs
from tfmagic.server.handlers import ByteRange, open_log, span_from_offset, span_of_range, span_of_tail


@pytest.fixture
def base(tmp_path):
    folder = tmp_path / "state" / "runs" / "run-1"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    (folder / "worker-0.log").write_bytes(b"hello\n")
    return tmp_path / "state"


def read(base, run, task):
    fd = open_log(base, run, task)
    try:
        return os.read(fd, 100)
    finally:
        os.close(fd)


def test_a_log_is_found_by_run_and_task(base):
    assert read(base, "run-1", "worker-0") == b"hello\n"


@pytest.mark.parametrize(
    "run", ["", ".", "..", "run-1/", "./run-1", "../runs/run-1", "run-1\0", "\0", "nope"]
)
def test_only_a_listed_run_is_opened(base, run):
    with pytest.raises(LookupError):
        open_log(base, run, "worker-0")
    with pytest.raises(LookupError):
        open_log(base, str(base / "runs" / "run-1"), "worker-0")


@pytest.mark.parametrize(
    "task",
    [
        "",
        "..",
        "run",
        "worker-1",
        "worker-00",
        "worker-٠",
        "Worker-0",
        "worker-0.log",
        "../run-1/worker-0",
        "worker-0\x00",
        "worker-0\n",
        "/etc/passwd",
        "worker-" + "9" * 5000,
    ],
)
def test_only_a_task_with_a_log_is_opened(base, task):
    with pytest.raises(LookupError):
        open_log(base, "run-1", task)


def test_links_pipes_and_folders_are_no_logs(base):
    secret = base / "secret"
    secret.write_text("secret")
    folder = base / "runs" / "run-1"
    (folder / "worker-1.log").symlink_to(secret)
    os.mkfifo(folder / "worker-2.log")
    (folder / "worker-3.log").mkdir()
    (base / "runs" / "run-2").symlink_to(folder)
    (base / "runs" / "no-run").mkdir()
    (base / "runs" / "no-run" / "worker-0.log").write_text("not of a run")
    before = len(os.listdir("/proc/self/fd"))
    for run, task in [
        *(("run-1", f"worker-{n}") for n in (1, 2, 3)),
        ("run-2", "worker-0"),
        ("no-run", "worker-0"),
    ]:
        with pytest.raises(LookupError):
            open_log(base, run, task)
    assert len(os.listdir("/proc/self/fd")) == before


@given(st.lists(st.sampled_from([b"\n", b"a", b"bb", b"\r\n", b"\xff"])).map(b"".join), st.integers(0, 12))
def test_a_tail_is_the_last_lines(content, count):
    fd = os.memfd_create("log")
    try:
        os.write(fd, content)
        blocks, logs._BLOCK_BYTES = logs._BLOCK_BYTES, 3
        try:
            span = span_of_tail(fd, count, len(content))
        finally:
            logs._BLOCK_BYTES = blocks
    finally:
        os.close(fd)
    lines = [line + b"\n" for line in content.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    if not lines[-1]:
        lines.pop()
    expected = b"".join(lines[len(lines) - count :] if count < len(lines) else lines)
    assert content[span.start : span.end] == expected
    assert span.end == len(content)


@pytest.mark.parametrize(
    ("header", "span"),
    [
        ("bytes=0-", ByteRange(0, 10, True)),
        ("bytes=4-", ByteRange(4, 10, True)),
        ("bytes=4-4", ByteRange(4, 5, True)),
        ("bytes=4-999", ByteRange(4, 10, True)),
        ("bytes=-3", ByteRange(7, 10, True)),
        ("bytes=-99", ByteRange(0, 10, True)),
        ("bytes=10-", None),
        ("bytes=-0", None),
        ("", ByteRange(0, 10)),
        ("bytes=-", ByteRange(0, 10)),
        ("bytes=5-4", ByteRange(0, 10)),
        ("bytes=0-1,3-4", ByteRange(0, 10)),
        ("lines=0-1", ByteRange(0, 10)),
        ("bytes=" + "9" * 5000 + "-", ByteRange(0, 10)),
        ("bytes=٣-", ByteRange(0, 10)),
    ],
)
def test_a_range_is_what_http_means_by_it(header, span):
    assert span_of_range(header, 10) == span


def test_an_offset_beyond_the_end_is_empty_and_stays_at_the_end():
    assert span_from_offset(4, 10) == ByteRange(4, 10)
    assert span_from_offset(99, 10) == ByteRange(10, 10)
