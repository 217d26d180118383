"""Checkpoints in folders, and a server that speaks S3, for the tests of `tfmagic.logdir`."""

import logging
from resource import RLIM_INFINITY, RLIMIT_FSIZE, getrlimit, setrlimit

import pytest

from tfmagic import logdir
from tfmagic.logdir import owners
from tfmagic.logdir.mirrors import Remote
from tfmagic.protocol.task_context import TaskContext

SPEC = {"worker": ["localhost:1", "localhost:2"]}


WORKER_0 = TaskContext("worker", 0, SPEC, True)


WORKER_1 = TaskContext("worker", 1, SPEC, False)


@pytest.fixture(autouse=True, scope="module")
def _tensorflow():
    """Import TensorFlow, which sets environment variables, before the guard against leaks reads them."""
    import tensorflow as tf

    _ = tf.keras.Model


def variable(value=0.0):
    import tensorflow as tf

    return tf.Variable([value] * 1000)


def saves(base, item=None, **options):
    return logdir.checkpoints(variable() if item is None else item, base, **options)


def three(base, **options):
    """Save checkpoints 1, 2, 3 that hold their number, and close the folder."""
    v = variable()
    with saves(base, v, **options) as kept:
        for step in (1, 2, 3):
            v.assign([float(step)] * 1000)
            kept.save(step)


def restored(base):
    """Return the step and the value from which a new process of the run starts."""
    v = variable()
    return logdir.checkpoints(v, base).restore_or_initialize(), float(v[0])


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


@pytest.fixture
def small_files():
    """Limit files to 2000 bytes, as a full disk does."""
    before = getrlimit(RLIMIT_FSIZE)

    def limit(on=True):
        setrlimit(RLIMIT_FSIZE, (2000 if on else RLIM_INFINITY, before[1]))

    yield limit
    setrlimit(RLIMIT_FSIZE, before)


@pytest.fixture(scope="module")
def server():
    """Start the server; its address."""
    import fsspec.asyn
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    started = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    started.start()
    host, port = started.get_host_and_port()
    fsspec.asyn.get_loop()  # its thread stays, for all tests
    yield f"http://{host}:{port}"
    started.stop()
    fsspec.get_filesystem_class("s3").clear_instance_cache()  # they would ask this server


@pytest.fixture(scope="module")
def store(server):
    """A client of the server for the buckets of all tests: to make one costs as much as a test."""
    import fsspec

    options = {"key": "a", "secret": "b", "endpoint_url": server, "use_listings_cache": False}
    return fsspec.filesystem("s3", skip_instance_cache=True, **options)


@pytest.fixture
def bucket(server, store, monkeypatch, request):
    """Make a bucket, and set the environment for it; its URL."""
    for name, value in {"ENDPOINT_URL": server, "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    name = f"bucket-{abs(hash(request.node.name))}"
    store.mkdir(name)
    yield f"s3://{name}"
    store.rm(name, recursive=True)


def names(url):
    return set(Remote(url).names()) - {owners.NAME, owners.MIRROR_NAME}


def save(base, *steps, **options):
    v = variable()
    with logdir.checkpoints(v, base, **options) as kept:
        for step in steps:
            v.assign([float(step)] * 1000)
            kept.save(step)
