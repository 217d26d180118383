"""One HDF5 file for all tasks, on real clusters: no acknowledged row is lost, whichever process is killed."""

import os
import signal
import subprocess
import sys

import h5py
import numpy as np
import psutil
import pytest
from conftest import alive, wait_until

import tfmagic
from tfmagic.features.shared_files import sessions
from tfmagic.hdf5 import MismatchError, SharedWriter, SharedWriterError


@pytest.fixture(scope="module")
def cluster_of_module():
    with tfmagic.Cluster(workers=2, name="shared", failure_grace_s=1.0) as started:
        yield started


@pytest.fixture
def cluster(cluster_of_module):
    yield cluster_of_module
    assert not sessions._sessions, "a file is still open"


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "out.h5")


def rows_of(path, name="x"):
    with h5py.File(path) as file:
        return file[name][...]


def test_all_tasks_append_to_one_file_each_in_its_order(cluster, path):
    def work(path):
        import numpy as np

        me = tfmagic.current_task().index
        with SharedWriter(path) as writer:
            for step in range(200):
                writer.append("x", np.full((5, 300), 1000 * me + step))
                writer.append("who", tfmagic.current_task().name)
        return os.path.exists(path)

    cluster.run(work, path)
    rows = rows_of(path)
    assert (rows == rows[:, :1]).all()
    for me in range(2):
        own = [row for row in rows[:, 0] if row // 1000 == me]
        assert own == [1000 * me + step for step in range(200) for _ in range(5)]
    assert sorted(set(rows_of(path, "who"))) == [b"worker-0", b"worker-1"]


def test_after_the_last_close_every_task_can_read_the_file(cluster, path):
    def work(path):
        import h5py

        with SharedWriter(path) as writer:
            writer.append("x", 1)
        tfmagic.barrier()
        with h5py.File(path) as file:
            return len(file["x"])

    assert set(cluster.run(work, path).values()) == {2}


def test_a_writer_of_the_notebooks_travels_with_the_call(cluster, path):
    def work(writer, step):
        writer.append("x", 10 * step + tfmagic.current_task().index)

    with SharedWriter(path) as writer:
        for step in range(3):
            cluster.run(work, writer, step)
        writer.append("x", 99)
    assert sorted(rows_of(path)) == [0, 1, 10, 11, 20, 21, 99]
    with pytest.raises(tfmagic.CaptureError, match="while it is open"):
        cluster.run(work, writer, 4)


def test_a_copy_that_is_used_after_the_end_is_an_error(cluster, path):
    def keep(writer):
        global kept
        kept = writer
        kept.append("x", 1)

    def use():
        kept.append("x", 2)

    with SharedWriter(path) as writer:
        cluster.run(keep, writer)
    with pytest.raises(SharedWriterError, match="has been closed"):
        cluster.run(use)
    assert rows_of(path).tolist() == [1, 1]


def test_the_same_loop_on_every_task_makes_the_file_anew_each_time(cluster, path):
    """A task that is faster waits until the others have closed the file, too."""

    def work(path):
        for epoch in range(3):
            with SharedWriter(path) as writer:
                writer.append("x", epoch)

    cluster.run(work, path)
    assert rows_of(path).tolist() == [2, 2]


def test_a_task_that_does_not_open_the_file_keeps_no_task_waiting(cluster, path):
    def work(path):
        if tfmagic.current_task().index == 0:
            for mode in "aaw":  # the last one waits for worker-1, which has ended
                with SharedWriter(path, mode) as writer:
                    writer.append("x", 1)

    for _ in range(2):
        cluster.run(work, path)
        assert rows_of(path).tolist() == [1]


def test_a_file_that_stays_open_is_named_and_closed_by_the_next_cell(cluster, path, capfd):
    def work(path):
        global writer
        writer = SharedWriter(path, "a")
        writer.append("x", 1)

    cluster.run(work, path)
    assert (
        "is still open on worker-0, worker-1, and gets its name when it is closed" in capfd.readouterr().err
    )
    assert not os.path.exists(path)
    cluster.run(work, path)
    assert rows_of(path).tolist() == [1, 1]
    cluster.run(lambda: writer.close())
    wait_until(lambda: not sessions._sessions)
    assert rows_of(path).tolist() == [1, 1, 1, 1]


def test_rows_that_do_not_fit_raise_on_the_task_that_brought_them(cluster, path):
    def work(path):
        import numpy as np

        with SharedWriter(path) as writer:
            writer.append("x", np.zeros((1, 2)))
            tfmagic.barrier()
            if tfmagic.current_task().index:
                writer.append("x", np.zeros((1, 3)))

    with pytest.raises(MismatchError, match=r"has rows of shape \(2,\)") as caught:
        cluster.run(work, path)
    assert "raised on worker-1" in "".join(caught.value.__notes__)
    assert rows_of(path).shape == (2, 2)


def test_a_task_that_opens_the_file_in_another_way_is_refused(cluster, path):
    def work(path):
        me = tfmagic.current_task().index
        if me:
            tfmagic.barrier()
        try:
            with SharedWriter(path, compression="gzip" if me else None) as writer:
                writer.append("x", me)
                tfmagic.barrier()
                tfmagic.barrier()
        except SharedWriterError:
            tfmagic.barrier()
            raise

    with pytest.raises(SharedWriterError, match="another task has .* open with .*not .*gzip"):
        cluster.run(work, path)
    assert rows_of(path).tolist() == [0]


def test_a_file_that_the_notebook_has_open_is_not_taken_away(cluster, path):
    with SharedWriter(path) as writer:
        with pytest.raises(SharedWriterError, match="is open in the notebook"):
            cluster.run(lambda: SharedWriter(path))
        writer.append("x", 1)
    assert rows_of(path).tolist() == [1]


def test_a_file_that_another_cluster_has_left_open_is_not_replaced(cluster, path):
    def leave_open(path):
        global left_open
        left_open = SharedWriter(path)
        left_open.append("x", 7)

    cluster.run(leave_open, path)
    with tfmagic.Cluster(workers=1, name="other") as other:
        with pytest.raises(SharedWriterError, match="still open on worker-0, worker-1 of another cluster"):
            other.run(lambda: SharedWriter(path))
        cluster.run(lambda: left_open.close())
        wait_until(lambda: os.path.exists(path))
        other.run(lambda: SharedWriter(path, "a").close())
    assert rows_of(path).tolist() == [7, 7]


def test_a_cell_under_way_keeps_its_file(cluster, path, tmp_path):
    def hold(path, flag):
        with SharedWriter(path) as writer:
            writer.append("x", 1)
            open(flag, "w").close()
            while os.path.exists(flag):
                pass

    flag = str(tmp_path / "flag")
    future = cluster.submit(hold, path, flag, on="worker-0")
    wait_until(lambda: os.path.exists(flag))
    with pytest.raises(SharedWriterError, match="written by another cell, which runs on worker-0"):
        cluster.run(lambda: SharedWriter(path), on="worker-1")
    os.unlink(flag)
    future.result(60)
    assert rows_of(path).tolist() == [1]


def test_an_interrupt_in_mid_append_leaves_a_file_with_whole_appends(cluster, path, tmp_path):
    def work(path, flag):
        import numpy as np

        with SharedWriter(path) as writer:
            for step in range(10**9):
                writer.append("x", np.full(3000, step))
                if step == 20:
                    open(flag + tfmagic.current_task().name, "w").close()

    flag = str(tmp_path / "flag")
    future = cluster.submit(work, path, flag)
    wait_until(lambda: all(os.path.exists(f"{flag}worker-{i}") for i in range(2)))
    cluster.interrupt()
    with pytest.raises(KeyboardInterrupt):
        future.result(60)
    rows = rows_of(path).reshape(-1, 3000)
    assert (rows == rows[:, :1]).all() and len(rows) >= 40
    assert cluster.run(os.getpid) is not None  # both still take calls


def test_what_a_killed_task_has_appended_is_in_the_file(cluster, path, tmp_path):
    """The task notes each append that has returned; all of them are there, in order, and the other's too."""

    def work(path, noted):
        import numpy as np

        me = tfmagic.current_task().index
        with SharedWriter(path) as writer, open(f"{noted}{me}", "ab", buffering=0) as log:
            for step in range(400 if me == 0 else 10**9):
                size = (100, 3000, 300_000)[step % 3]
                writer.append("x", np.full(size, 10**6 * me + step))
                log.write(f"{step}\n".encode())

    noted = str(tmp_path / "noted")
    future = cluster.submit(work, path, noted)
    wait_until(lambda: os.path.exists(f"{noted}1") and os.path.getsize(f"{noted}1") > 200)
    cluster.kill("worker-1")
    with pytest.raises(tfmagic.TaskDied):
        future.result(60)
    cluster.revive()
    rows = rows_of(path)
    with open(f"{noted}1") as file:
        acknowledged = [int(line) for line in file]
    own = rows[rows >= 10**6] - 10**6
    starts = own[np.flatnonzero(np.diff(own, prepend=-1))]
    assert starts.tolist()[: len(acknowledged)] == acknowledged
    assert len(starts) - len(acknowledged) in (0, 1)  # one may have been on its way
    counts = np.bincount(own)
    assert all(counts[step] == (100, 3000, 300_000)[step % 3] for step in acknowledged)


def test_a_fork_that_outlives_its_killed_task_does_not_keep_the_file_open(cluster, path):
    def work(path):
        import signal

        writer = SharedWriter(path)
        writer.append("x", tfmagic.current_task().index)
        if tfmagic.current_task().index:
            if os.fork() == 0:
                os.setsid()
                signal.pause()
            os.kill(os.getpid(), signal.SIGKILL)
        writer.close()

    with pytest.raises(tfmagic.TaskDied):
        cluster.run(work, path)
    wait_until(lambda: os.path.exists(path))
    cluster.revive()
    assert sorted(rows_of(path)) == [0, 1]


def test_a_full_disk_is_an_error_on_every_task(cluster, path):
    def work(path):
        import numpy as np

        with SharedWriter(path) as writer:
            tfmagic.barrier()
            for _ in range(500):
                writer.append("x", np.zeros(100_000))

    import resource

    future = cluster.submit(work, path)
    session = wait_until(lambda: sessions._sessions.get(path))
    resource.prlimit(wait_until(lambda: session.pid), resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    with pytest.raises(SharedWriterError, match="could not be written"):
        future.result(60)
    wait_until(lambda: os.listdir(os.path.dirname(path)) == [])


def test_stopping_the_cluster_closes_what_its_tasks_have_open(path):
    def work(path):
        global writer
        writer = SharedWriter(path)
        writer.append("x", tfmagic.current_task().index)

    with tfmagic.Cluster(workers=2, name="stops") as cluster:
        cluster.run(work, path)
        pid = sessions._sessions[path].pid
    assert sorted(rows_of(path)) == [0, 1] and not alive({pid})


def test_tasks_that_end_at_the_moment_of_their_cell_lose_nothing(path):
    """The writer, held meanwhile, finds the end of the cell first, and of both sockets in the same look."""

    def work(path):
        global writer
        writer = SharedWriter(path)
        writer.append("x", tfmagic.current_task().index)
        tfmagic.barrier()
        if tfmagic.current_task().is_chief:
            os.kill(writer._connection.writer_pid, signal.SIGSTOP)

    with tfmagic.Cluster(workers=2, name="moment") as cluster:
        future = cluster.submit(work, path)
        session = wait_until(lambda: sessions._sessions.get(path))
        wait_until(lambda: session.owner.ended == {"worker-0", "worker-1"}, 60)
        cluster.kill("worker-0")
        cluster.kill("worker-1")
        wait_until(lambda: {row["state"] for row in cluster.status()} == {"dead"})
        os.kill(session.pid, signal.SIGCONT)
        future.result(60)
    assert sorted(rows_of(path)) == [0, 1]


KERNEL = """
import sys, tfmagic
from tfmagic.hdf5 import SharedWriter
from tfmagic.features.shared_files import sessions

def work(path):
    import numpy as np, os
    with SharedWriter(path) as writer:
        for step in range(10**9):
            writer.append("x", np.full(1000, step))
            if step == 50:
                open(path + tfmagic.current_task().name, "w").close()

if __name__ == "__main__":
    cluster = tfmagic.Cluster(workers=2, name="dies").start()
    future = cluster.submit(work, sys.argv[1])
    sys.stdin.read()
"""


def test_when_the_kernel_is_killed_the_file_is_closed_and_the_writer_ends(path, tmp_path):
    script = tmp_path / "kernel.py"
    script.write_text(KERNEL)
    kernel = subprocess.Popen([sys.executable, script, path], stdin=subprocess.PIPE)
    wait_until(lambda: all(os.path.exists(f"{path}worker-{i}") for i in range(2)), 60)
    below = {process.pid for process in psutil.Process(kernel.pid).children(recursive=True)}
    kernel.send_signal(signal.SIGKILL)
    kernel.communicate()
    wait_until(lambda: os.path.exists(path))
    rows = rows_of(path).reshape(-1, 1000)
    assert (rows == rows[:, :1]).all() and len(rows) > 100
    wait_until(lambda: not alive(below))


@pytest.mark.parametrize("mode", ["w", "a"])
def test_a_restarted_task_of_a_script_goes_on_with_the_file(path, tmp_path, commands, mode):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, sys, tfmagic\n"
        "from tfmagic.hdf5 import SharedWriter\n"
        "me, is_first = tfmagic.current_task().index, not os.path.exists(sys.argv[1] + '.again')\n"
        "with SharedWriter(sys.argv[1], sys.argv[2]) as writer:\n"
        "    writer.append('x', me + 10 * (not is_first))\n"
        "    tfmagic.barrier()\n"
        "    if me and is_first:\n"
        "        open(sys.argv[1] + '.again', 'w').close()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    tfmagic.barrier()\n"
    )
    commands.start(tmp_path, ["run", "--workers", "2", "--auto-restart", "1", script, path, mode])
    assert commands.wait() == 0
    assert sorted(rows_of(path)) == [0, 1, 10, 11]


def test_tasks_of_a_script_write_one_file(path, tmp_path, commands):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, tfmagic\n"
        "from tfmagic.hdf5 import SharedWriter\n"
        "with SharedWriter(sys.argv[1]) as writer:\n"
        "    writer.append('x', tfmagic.current_task().index)\n"
    )
    commands.start(tmp_path, ["run", "--workers", "2", script, path])
    assert commands.wait() == 0
    assert sorted(rows_of(path)) == [0, 1]
