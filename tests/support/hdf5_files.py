"""Files, parts and the writer process in the tests of `tfmagic.hdf5`."""

import concurrent.futures
import sys

import h5py
from conftest import wait_until

from tfmagic.features.shared_files import sessions
from tfmagic.hdf5 import TaskFile


def contents(path):
    with h5py.File(path) as file:
        return {name: file[name][...] for name in file}


def in_threads(*calls):
    """Run these at once, with switches between threads as often as can be; raise what one raises."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with concurrent.futures.ThreadPoolExecutor(len(calls)) as threads:
            for done in [threads.submit(call) for call in calls]:
                done.result()
    finally:
        sys.setswitchinterval(interval)


def part(base, task):
    return base.replace(".h5", f".{task}.h5")


def write(base, task, **datasets):
    with TaskFile(base, task=task) as file:
        for name, value in datasets.items():
            file[name] = value


def writer_pid():
    """The one writer process that this process has started."""
    (session,) = sessions._sessions.values()
    return wait_until(lambda: session.pid)
