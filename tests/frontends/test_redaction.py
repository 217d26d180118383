"""What is of the machine is replaced in texts, the same text by the same label; all else stays."""

import os
import platform
import pwd

import pytest

from tfmagic.frontends.report import redaction
from tfmagic.frontends.report.redaction import KINDS, Redactor
from tfmagic.runs.status_reader import TaskStatus


@pytest.fixture
def redactor(monkeypatch):
    """A redactor of the user erika.muster on the machine build7.acme.example."""
    monkeypatch.setattr(platform, "node", lambda: "build7.acme.example")
    monkeypatch.setenv("HOME", "/home/erika.muster")
    entry = pwd.struct_passwd(
        ("erika.muster", "x", 1000, 1000, "Erika Mustermann,,,", "/home/erika.muster", "")
    )
    monkeypatch.setattr(redaction.pwd, "getpwuid", lambda _: entry)
    environ = {"ACME_TOKEN": "s3cret-value", "SHORT_KEY": "true", "USER": "erika.muster", "PATH": "/usr/bin"}
    folders = {"project": "/home/erika.muster/My Project", "state": "/var/acme/state"}
    return Redactor(folders, ["gpu-3", "10.1.2.3", "worker-1", "host-2"], environ)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('File "/home/erika.muster/My Project/lib/a.py", line 3', 'File "<project>/lib/a.py", line 3'),
        ("/home/erika.muster/acme/plans/x.csv", "<home>/<folder-1>/x.csv"),
        ("/home/erika.muster/.keras/keras.json", "<home>/.keras/keras.json"),
        ("reads '/data/acme corp/rows 1.csv' now", "reads '<folder-1>/rows 1.csv' now"),
        ("file:///data/acme/x.py", "file://<folder-1>/x.py"),
        ("%2Fhome%2Ferika.muster/x", "<home>/x"),
        ("/var/acme/state/runs/1", "<state>/runs/1"),
        ("user Erika.Muster, Erika Mustermann, erika.muster_2", "user <user-1>, <user-2>, <user-1>_2"),
        ("on gpu-3, BUILD7 and build7.acme.example", "on <host-1>, <host-2> and <host-3>"),
        ("db.prod.internal:5432", "<host-1>:5432"),
        ("10.1.2.3:80 and fe80::1 and 10.1.2.3", "<address-1>:80 and <address-2> and <address-1>"),
        ("write to erika@acme.example", "write to <mail-1>"),
        ("s3cret-value is true", "<token-1> is true"),
        ("password=hunter22, api_key: 'abcdefgh'", "password=<token-1>, api_key: '<token-2>'"),
        ("Authorization: Bearer abc.def-ghi", "Authorization: Bearer <token-1>"),
        ("hf_abcdefghijklmnopqrstuvwx", "<token-1>"),
        ("http://127.0.0.1:8888/lab?token=0123456789abcdef", "http://127.0.0.1:8888/lab?token=<token-1>"),
        ("https://me:pass@git.acme.example/a/b", "<url-1>"),
        ("gs://acme-models/7", "<url-1>"),
        ("GPU-12345678-abcd-abcd-abcd-123456789abc 00:1a:2b:3c:4d:5e", "GPU-<id-1> <id-2>"),
        ("-----BEGIN KEY-----\nabc\n-----END KEY-----\nnext", "<token-1>\nnext"),
    ],
)
def test_what_is_of_the_machine_is_replaced(redactor, text, shown):
    assert redactor.text(text) == shown
    assert sum(redactor.counts.values()) == shown.count("<")


@pytest.mark.parametrize(
    "text",
    [
        "/job:worker/replica:0/task:0/device:CPU:0 and/or 3/4",
        "worker-1 waits on host-2 at 127.0.0.1:4000, [::1]:80, 0.0.0.0",
        "/usr/lib/python3/dist-packages/x.py, /proc/self/maps",
        "https://www.tensorflow.org/guide/keras and https://github.com/keras-team/keras/issues/20585",
        "std::vector, absl::Status, fd::add; 12:34:56; keras 3.15.1; root cause; token=None",
        "tokens: 512, step 340, loss 0.21, Adam(learning_rate=0.001)",
    ],
)
def test_other_text_stays(redactor, text):
    assert redactor.text(text) == text


def test_fields_of_structures_are_replaced_and_tasks_keep_their_names(redactor):
    status = TaskStatus("worker-1", "ready", {"pid": 3}, {"host": "gpu-3", "note": "reads /data/acme/x"})
    found = redactor.value(status)
    assert found == TaskStatus(
        "worker-1", "ready", {"pid": 3}, {"host": "<host-1>", "note": "reads <folder-1>/x"}
    )
    assert {label.partition("-")[0] for label in redactor.counts} <= set(KINDS)


def test_a_home_folder_that_says_nothing_is_left(monkeypatch):
    monkeypatch.setenv("HOME", "/root")
    assert os.path.expanduser("~") == "/root"
    redactor = Redactor({}, [], {"USER": "root"})
    assert redactor.text("/root/x by root") == "<home>/x by root"


def test_a_long_line_is_read_once(redactor):
    """A pattern that reads the rest of the line again at each place would not end within the time of a test."""
    for piece in (
        "a" * 1000,
        "/a" * 500,
        "a.b@" * 250,
        "1:" * 500,
        "a." * 500,
        "token" * 200,
        "-_" * 500,
        "'/" * 500,
    ):
        redactor.text(piece * 100)
