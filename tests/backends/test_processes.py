"""A broken launcher is reported, and the user's own processes are left alone. See also test_cleanup."""

import inspect
import os
import subprocess
import sys
import textwrap
import threading

import h5py
import pytest

import tfmagic


def run_script(code, *words, **env):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *words],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise ImportError('broken build of TensorFlow')", "broken build of TensorFlow"),
        ("import os; os.abort()", "SIGABRT"),
        ("import os; os.kill(os.getpid(), 40)", "signal 40"),  # a real-time signal, which has no name
    ],
)
def test_an_import_error_of_tensorflow_is_reported(tmp_path, body, said):
    (tmp_path / "tensorflow.py").write_text(body)
    done = run_script(
        """
        import tfmagic
        try:
            tfmagic.Cluster(workers=2).start()
        except tfmagic.LaunchError as error:
            print("LaunchError:", error)
        """,
        PYTHONPATH=str(tmp_path),
    )
    assert "LaunchError:" in done.stdout and said in done.stdout, done.stdout + done.stderr


def open_all(folder):
    """Open files of Python, TensorFlow and HDF5, and register an exit function."""
    import atexit

    import h5py
    import tensorflow as tf

    import __main__

    __main__.text = open(folder + "/text", "w")  # noqa: SIM115
    __main__.text.write("all of it")
    __main__.records = tf.io.TFRecordWriter(folder + "/records")
    __main__.records.write(b"all of it")
    __main__.rows = h5py.File(folder + "/rows.h5", "w")
    __main__.rows["x"] = [1, 2, 3]
    atexit.register(lambda: open(folder + "/at exit", "w").close())


def check_whole(folder):
    assert (folder / "text").read_text() == "all of it" and (folder / "at exit").exists()
    assert list(tfmagic.tfrecord.iterate(folder / "records")) == [b"all of it"]
    with h5py.File(folder / "rows.h5") as file:
        assert file["x"][:].tolist() == [1, 2, 3]


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """One kernel for several questions: its lines, a folder of files that a task had open at its end, its errors."""
    folder = tmp_path_factory.mktemp("open")
    code = textwrap.dedent(
        """
        import multiprocessing, os, pathlib, sys, time, warnings, tfmagic
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads, from Python 3.12 on
        sys.path.append(pathlib.Path.cwd())
        before = multiprocessing.get_start_method(allow_none=True)
        cluster = tfmagic.Cluster(workers=2).start()
        if os.fork() == 0:
            raise SystemExit(0)
        os.wait()
        print(cluster.run(int).of("worker"))
        print(before, multiprocessing.get_start_method(allow_none=True), "tensorflow" in sys.modules)
        cluster.run(open_all, sys.argv[1], on="worker-1", view="quiet")
        futures = [cluster.submit(time.sleep, 1000, on="worker-0") for _ in range(5)]
        """
    )
    done = run_script(inspect.getsource(open_all) + code, str(folder))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), folder, done.stderr


def test_a_fork_of_the_kernel_does_not_end_the_cluster(script):
    assert script[0][0] == "[0, 0]"


def test_a_path_object_in_sys_path_does_not_keep_a_cluster_from_starting(script):
    """`sys.path.append(Path("src"))` is common, and Python passes over it without a word."""
    assert script[0][0] == "[0, 0]"


def test_an_interpreter_that_ends_with_pending_calls_does_not_hang(script):
    assert script[2] == ""


def test_the_users_multiprocessing_is_left_alone(script):
    assert script[0][1].split() == ["None", "None", "False"]


def test_what_is_open_in_a_task_is_whole_when_its_kernel_has_ended(script):
    """As after the end of a Python program: files of Python, TensorFlow and HDF5, and functions of atexit."""
    check_whole(script[1])


def test_a_cluster_gets_a_new_launcher_while_the_killed_one_is_still_being_cleaned_up():
    done = run_script(
        """
        import os, psutil, signal, tfmagic
        from tfmagic.backends import launcher_client
        with tfmagic.Cluster(workers=1, name="first"):
            reaper = launcher_client._launchers[0].process.pid
            (launcher,) = psutil.Process(reaper).children()
            os.kill(reaper, signal.SIGSTOP)
            launcher.kill()
            while launcher.status() != psutil.STATUS_ZOMBIE:
                pass
            with tfmagic.Cluster(workers=1, name="second") as second:
                print(second.run(int).of("worker"))
        """
    )
    assert done.stdout.strip() == "[0]", done.stderr


def test_what_autograph_writes_is_gone_with_the_task(tmp_path):
    def add(folder):
        import tempfile

        import tensorflow as tf

        tempfile.tempdir = folder

        @tf.function
        def step(x):
            for _ in tf.range(3):
                x += 1
            return x

        return float(step(tf.constant(1.0)))

    with tfmagic.Cluster(workers=1) as cluster:
        assert cluster.run(add, str(tmp_path), view="quiet")["worker-0"] == 4
        folder = cluster.run_folder.folder
        assert [path.suffix for path in folder.glob("*.scratch/__autograph*")] == [".py"]
    assert not list(folder.glob("**/__autograph*")) and not os.listdir(tmp_path)


@pytest.mark.parametrize("how", ["stop", "restart"])
def test_what_is_open_in_a_task_is_whole_after_a_stop_and_a_restart(tmp_path, how):
    with tfmagic.Cluster(workers=2) as cluster:
        cluster.run(open_all, str(tmp_path), on="worker-1", view="quiet")
        getattr(cluster, how)()
        check_whole(tmp_path)


def test_a_task_that_does_not_end_by_itself_delays_a_stop_by_a_second_at_most(tmp_path):
    def stay(folder):
        import atexit

        import __main__

        __main__.text = open(folder + "/text", "w")  # noqa: SIM115
        __main__.text.write("all of it")
        atexit.register(threading.Event().wait)

    with tfmagic.Cluster(workers=1) as cluster:
        cluster.run(stay, str(tmp_path), view="quiet")
    assert (tmp_path / "text").read_text() == "all of it"


def test_what_a_script_leaves_open_is_whole(tmp_path, commands):
    (tmp_path / "mine.py").write_text(
        "import h5py; file = h5py.File('module.h5', 'w'); file['x'] = [1, 2, 3]"
    )
    (tmp_path / "main.py").write_text(
        textwrap.dedent(
            """
            import threading, time
            import h5py, tensorflow as tf, mine

            class Slow:
                def __del__(self, sleep=time.sleep):
                    sleep(0.1)

            def heartbeat():
                while True:
                    time.sleep(0.001)

            threading.Thread(target=heartbeat, daemon=True).start()
            slow = Slow()
            rows = h5py.File("main.h5", "w")
            rows["x"] = [1, 2, 3]
            records = tf.io.TFRecordWriter("records")
            records.write(b"all of it")
            text = open("text", "w")
            text.write("all of it")
            """
        )
    )
    commands.start(tmp_path, ["run", "--workers", "1", "main.py"])
    assert commands.wait() == 0
    assert "NameError" not in (tmp_path / "out.txt").read_text() + (tmp_path / "err.txt").read_text()
    assert (tmp_path / "text").read_text() == "all of it"
    assert list(tfmagic.tfrecord.iterate(tmp_path / "records")) == [b"all of it"]
    for name in ("main.h5", "module.h5"):
        with h5py.File(tmp_path / name) as file:
            assert file["x"][:].tolist() == [1, 2, 3]
