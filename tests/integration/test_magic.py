"""Cells typed into a real IPython shell, run by real TensorFlow tasks."""

import json
import os
import re
import signal
import sys
import threading
import traceback

import numpy as np
import pytest
from conftest import wait_until
from IPython.core.error import UsageError

from tfmagic.errors import CaptureError, LaunchError, RemoteError, TaskDied, TaskTimeoutError, TfmagicError


def test_a_cell_runs_on_every_task_with_its_role(notebook):
    out = notebook.run(
        "%%tfcluster --workers 2 --out r\n"
        "import json, os, tfmagic\n"
        "me = tfmagic.current_task()\n"
        "print('I am', me.name, me.is_chief, me.num_tasks)\n"
        "json.loads(os.environ['TF_CONFIG'])['task']['index']"
    )
    assert "[worker-0]:    I am worker-0 True 2\n" in out
    assert "[worker-1]:    I am worker-1 False 2\n" in out
    assert "[worker-1]:    1\n" in out
    r = notebook.ns["r"]
    assert dict(r) == {"worker-0": 0, "worker-1": 1}
    assert r.of("worker") == [0, 1]
    assert r.output["worker-0"] == "I am worker-0 True 2\n"
    assert all(s > 0 for s in r.seconds.values())
    with pytest.raises(KeyError, match=r"\.of\('worker'\)"):
        r["worker"]


def test_variables_stay_on_the_task_and_take_precedence_over_the_notebooks(notebook):
    notebook.run("n = 5")
    notebook.run("%%tfcluster --out r\nn + 1")
    assert notebook.ns["r"].of("worker") == [6, 6]
    notebook.run("n = 6")
    notebook.run("%%tfcluster --out r\nn")
    assert notebook.ns["r"].of("worker") == [6, 6]
    notebook.run("%%tfcluster\nn = 100")
    notebook.run("%%tfcluster --out r\nn")
    assert notebook.ns["r"].of("worker") == [100, 100]
    notebook.run("%%tfcluster --push n --out r\nn")
    assert notebook.ns["r"].of("worker") == [6, 6]


def test_notebook_functions_and_classes_travel_with_what_they_use(notebook):
    notebook.run(
        "import math\nfactor = 3\n"
        "def scale(x): return math.floor(x) * factor\n"
        "class Model:\n    def __call__(self, x): return scale(x)\n"
        "model = Model()"
    )
    notebook.run("%%tfcluster --out r\nmodel(2.7), isinstance(model, Model)")
    assert notebook.ns["r"]["worker-0"] == (6, True)


def test_pull_binds_by_task_and_tensors_become_arrays(notebook):
    notebook.run(
        "%%tfcluster --pull a,b\nimport tensorflow as tf, tfmagic\n"
        "a = tf.constant([1.0, 2.0]) * tfmagic.current_task().index\nb = tf.Variable(3)"
    )
    assert set(notebook.ns["a"]) == {"worker-0", "worker-1"}
    np.testing.assert_array_equal(notebook.ns["a"]["worker-1"], np.float32([1, 2]))
    assert notebook.ns["b"]["worker-0"] == 3
    assert "tensorflow" not in sys.modules


def test_ipython_features_of_a_cell(notebook):
    out = notebook.run(
        "%%tfcluster --workers 1\nimport asyncio\nawait asyncio.sleep(0)\n!echo from the shell $HOME\n%pwd\n"
    )
    assert f"from the shell {os.environ['HOME']}" in out
    assert os.getcwd() in out
    assert "'hidden'" not in notebook.run("%%tfcluster\n'hidden';")
    out = notebook.run(
        "%%tfcluster\nfrom IPython.display import display, HTML\nprint('a')\n"
        "display(HTML('<b>x</b>'))\nprint('b')"
    )
    assert [line[15:] for line in out.splitlines()] == ["a", "<IPython.core.display.HTML object>", "b"]


def test_names_inside_magics_travel_too(notebook):
    notebook.run("def double(v): return 2 * v\nword = 'spoken'\nn = 4")
    out = notebook.run("%%tfcluster --workers 1\n!echo $word {n + 1}\n%time result = double(n)\nresult")
    assert "spoken 5" in out and "[worker-0]:    8" in out


def test_a_variable_read_at_import_gets_a_new_launcher_and_unloading_ends_all(notebook, monkeypatch):
    notebook.run("%%tfcluster --workers 1\n1")
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    notebook.run("%tfcluster stop")
    notebook.run("%%tfcluster --workers 1 --out r\nimport os\nos.environ['TF_ENABLE_ONEDNN_OPTS']")
    assert notebook.ns["r"]["worker-0"] == "0"
    assert not notebook.cluster().state.tasks[notebook.cluster().tasks[0]].fresh
    notebook.run("%unload_ext tfmagic")
    assert not notebook.cluster().running
    monkeypatch.undo()
    notebook.run("%load_ext tfmagic")
    notebook.run("%%tfcluster --workers 1 --out r\n1")
    assert len(notebook.ns["r"]) == 1


def test_a_variable_that_did_not_arrive_is_sent_again(notebook):
    notebook.run(
        "import os\n"
        "class Picky:\n    def __setstate__(self, state):\n"
        "        if not os.path.exists(state['path']): raise OSError('no ' + state['path'])\n"
    )
    notebook.run("import tempfile\nfolder = tempfile.mkdtemp()\np = Picky(); p.path = folder + '/late'")
    with pytest.raises(CaptureError, match=r"(?s)p \(Picky\).*OSError: no .*late"):
        notebook.run("%%tfcluster --workers 1\np")
    notebook.run("open(p.path, 'w').close()")
    notebook.run("%%tfcluster --out r\ntype(p).__name__")
    assert notebook.ns["r"]["worker-0"] == "Picky"


def test_a_dead_task_does_not_cost_the_others_their_variables(notebook):
    notebook.run("v = [1]")
    notebook.run("%tfcluster start --workers 2")
    notebook.cluster().kill("worker-1")
    with pytest.raises(TaskDied):
        notebook.run("%%tfcluster\nv")
    notebook.run("%tfcluster restart worker-1")
    notebook.run("%%tfcluster --out r\nv")
    assert notebook.ns["r"].of("worker") == [[1], [1]]


def test_print_in_a_tf_function_prints_values(notebook):
    out = notebook.run(
        "%%tfcluster --workers 1\nimport tensorflow as tf\n"
        "@tf.function\ndef f(x):\n    if x > 1:\n        print('traced')\n    return x + 1\n"
        "float(f(tf.constant(2.0)))"
    )
    assert "traced" in out and "3.0" in out


def test_output_is_in_the_order_in_which_it_was_written(notebook):
    out = notebook.run(
        "%%tfcluster --workers 1\n"
        "import os, sys, ctypes, subprocess\n"
        "print('1', end=' ')\nos.write(1, b'2 ')\nsys.stderr.write('3 ')\n"
        "ctypes.CDLL(None).puts(b'4')\nsubprocess.run(['echo', '5'])\n_ = os.system('echo 6 >&2')\nprint(7)"
    )
    assert out.splitlines()[-4:] == [f"[worker-0]:    {x}" for x in ("1 2 3 4", "5", "6", "7")]


def test_on_runs_on_the_selected_tasks_only(notebook):
    notebook.run("%%tfcluster --workers 3 --on worker-1:3 --out r\n1")
    assert list(notebook.ns["r"]) == ["worker-1", "worker-2"]


def test_the_tasks_own_exception_is_raised_with_its_lines(notebook):
    notebook.run(
        "class MyError(Exception):\n    def __init__(self, a, *, b): super().__init__(a); self.b = b\n"
        "    def __reduce__(self): return (_make, (self.args[0], self.b))\n"
        "def _make(a, b): return MyError(a, b=b)"
    )
    with pytest.raises(notebook.ns["MyError"]) as caught:
        notebook.run(
            "%%tfcluster --workers 2\nimport tfmagic\n"
            "if tfmagic.current_task().index == 1:\n    raise MyError('bad', b=7)\ntfmagic.barrier()"
        )
    assert caught.value.b == 7
    assert any("raised on worker-1 (pid" in note for note in caught.value.__notes__)
    assert any("also on worker-0: BrokenBarrierError" in note for note in caught.value.__notes__)
    assert caught.traceback[-1].lineno + 1 == 4
    assert str(caught.traceback[-1].path).startswith("<Cell In[")


def test_an_interrupt_by_a_signal_handler_of_the_users_shows_that_handler(notebook):
    def on_alarm(number, frame):
        raise KeyboardInterrupt("mine")

    notebook.run("%tfcluster start --workers 1")
    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt, match="mine") as caught:
            notebook.run("%%tfcluster --view quiet\nimport time\ntime.sleep(60)")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    files = [str(entry.path) for entry in caught.traceback]
    assert caught.traceback[-1].name == "on_alarm"
    assert threading.__file__ not in files and not any("tfmagic/clusters" in file for file in files)
    assert "still here" in notebook.run("%%tfcluster\nprint('still here')")


def test_causes_and_unpicklable_errors_travel_as_text(notebook):
    with pytest.raises(RuntimeError) as caught:
        notebook.run(
            "%%tfcluster --workers 1\ntry:\n    {}['k']\nexcept KeyError as e:\n    raise RuntimeError('outer') from e"
        )
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(RemoteError) as remote:
        notebook.run(
            "%%tfcluster\nclass Odd(ValueError):\n"
            "    def __reduce__(self):\n        return int, ()\nraise Odd('x')"
        )
    assert isinstance(remote.value, ValueError)
    assert type(remote.value).__name__ == "Odd" and "Traceback" in remote.value.text


def test_a_tensorflow_error_does_not_bring_tensorflow_into_the_notebook(notebook):
    with pytest.raises(RemoteError) as caught:
        notebook.run(
            "%%tfcluster --workers 1\nimport tensorflow as tf\ntf.constant([1.0]) @ tf.constant([[1.0, 2.0]])"
        )
    assert type(caught.value).__name__ == "InvalidArgumentError"
    assert "tensorflow" not in sys.modules


def test_sys_exit_is_an_error_that_keeps_the_task(notebook):
    notebook.run("%%tfcluster --workers 1\nkept = 1")
    with pytest.raises(
        RemoteError, match=r"sys\.exit\(3\); the task and its variables are kept.*%tfcluster stop"
    ):
        notebook.run("%%tfcluster\nimport sys\nsys.exit(3)")
    notebook.run("%%tfcluster --out r\nkept")
    assert notebook.ns["r"]["worker-0"] == 1


def test_a_task_that_dies_is_named_with_its_last_lines_and_the_way_back(notebook):
    with pytest.raises(TaskDied, match="worker-1 exited with code 3") as caught:
        notebook.run(
            "%%tfcluster --workers 2\nimport os, tfmagic\n"
            "if tfmagic.current_task().index == 1:\n    print('last words', end='')\n    os._exit(3)\n"
            "tfmagic.barrier()"
        )
    assert caught.value.exit_code == 3 and "last words" in str(caught.value)
    with pytest.raises(TaskDied, match="%tfcluster revive"):
        notebook.run("%%tfcluster\n1")
    notebook.run("%tfcluster restart worker-1")
    notebook.run("%%tfcluster --out r\n1")
    assert len(notebook.ns["r"]) == 2


def test_a_time_limit_shows_where_the_tasks_were(notebook):
    with pytest.raises(TaskTimeoutError, match=r"worker-0, worker-1:\n.*line [345] in spin"):
        notebook.run("%%tfcluster --workers 2 --timeout 0.5\ndef spin():\n    while True: pass\nspin()")
    notebook.run("%%tfcluster --out r\n1")
    assert notebook.ns["r"].of("worker") == [1, 1]


def test_a_failing_task_releases_the_others_and_keep_going_does_not(notebook):
    cell = (
        "import time, tfmagic\n"
        "if tfmagic.current_task().index == 1:\n    raise ValueError('early')\n"
        "while not done:\n    time.sleep(0.01)\n"
    )
    notebook.run("done = False")
    notebook.run("%config TFCluster.failure_grace_s = 0.1")
    try:
        with pytest.raises(ValueError, match="early") as caught:
            notebook.run("%%tfcluster --workers 2\n" + cell)
    finally:
        notebook.run("%config TFCluster.failure_grace_s = 3.0")
    assert any("also on worker-0: interrupted" in note for note in caught.value.__notes__)
    with pytest.raises(ValueError, match="early"):
        notebook.run("%%tfcluster --keep-going --push done\nimport tfmagic\ndone = True\n" + cell)


@pytest.mark.parametrize("cell", ["x = = 3", "def f(:\n    pass", "return 1", "nonlocal q"])
def test_a_syntax_error_starts_nothing(notebook, cell):
    with pytest.raises(SyntaxError) as caught:
        notebook.run("%%tfcluster --workers 2\n" + cell)
    assert notebook.magics.clusters == {}
    assert caught.value.lineno == 2


@pytest.mark.parametrize(
    "line",
    ["--workers 0", "--workers 2 --on ps", "--cluster ghost", "--backend dask", "--chief --chief", "--zzz"],
)
def test_a_bad_line_starts_nothing(notebook, line):
    with pytest.raises(UsageError):
        notebook.run(f"%%tfcluster {line}\n1")
    assert not any(c.running for c in notebook.magics.clusters.values())


def test_a_running_cluster_of_another_shape_says_how_to_restart(notebook):
    notebook.run("%%tfcluster --workers 1\n1")
    notebook.run("%%tfcluster --workers 1\n1")
    with pytest.raises(UsageError, match="%tfcluster restart --workers 3"):
        notebook.run("%%tfcluster --workers 3\n1")
    notebook.run("%tfcluster restart --workers 3")
    notebook.run("%%tfcluster --out r\n1")
    assert len(notebook.ns["r"]) == 3


def test_the_line_of_a_refusal_starts_what_was_asked_for_and_keeps_the_rest(notebook):
    notebook.run("%tfcluster start --workers 1 --env A=5")
    with pytest.raises(UsageError, match="which is not --chief; ") as refused:
        notebook.run("%%tfcluster --chief --workers 1\n1")
    notebook.run(str(refused.value).rpartition("start it again with  ")[2])
    notebook.run("%%tfcluster --out r\nimport os\nos.environ['A']")
    assert dict(notebook.ns["r"]) == {"chief-0": "5", "worker-0": "5"}


def test_a_restart_keeps_what_its_line_leaves_out(notebook):
    notebook.run("%tfcluster start --workers 1 --chief --auto-restart 1")
    notebook.run("%tfcluster restart --env A=5")
    notebook.run("%tfcluster restart --workers 2 --env B=6")
    notebook.run("%%tfcluster --env A=5 --out r\nimport os\nos.environ['A'] + os.environ['B']")
    assert dict(notebook.ns["r"]) == {"worker-0": "56", "worker-1": "56"}
    assert notebook.cluster().task_settings.auto_restart == 1


def test_what_cannot_travel_is_refused_before_anything_runs(notebook):
    notebook.run("gen = (i for i in 'ab')\nimport numpy as np\nbig = np.zeros(10 << 20)")
    with pytest.raises(CaptureError, match=r"gen \(generator\)"):
        notebook.run("%%tfcluster --workers 1\nprint('ran')\ngen")
    with pytest.raises(CaptureError, match=r"big \(ndarray\): 80 MiB"):
        notebook.run("%%tfcluster\nbig.sum()")
    with pytest.raises(CaptureError, match="--push names nope"):
        notebook.run("%%tfcluster --push nope\n1")
    assert "ran" not in notebook.run("%tfcluster logs")
    notebook.run("%%tfcluster --push big --out r\nbig.nbytes")
    notebook.run("%%tfcluster --out r\nbig.nbytes")
    assert notebook.ns["r"]["worker-0"] == 80 << 20


def test_no_capture_sends_nothing(notebook):
    notebook.run("n = 1")
    with pytest.raises(NameError, match="'n'"):
        notebook.run("%%tfcluster --workers 1 --no-capture\nn")


def test_several_clusters_and_the_line_magic(notebook):
    notebook.run("%tfcluster start --workers 1")
    notebook.run("%tfcluster start --workers 2 --cluster second")
    notebook.run("v = 7")
    told = notebook.run("%tfcluster push v --cluster second")
    assert re.search(r"cluster second: pushed v to worker-0, worker-1, (\d+) B each, \d+ B in all", told)
    notebook.run("%%tfcluster --cluster second\nv += 1")
    told = notebook.run("%tfcluster pull v --cluster second")
    assert re.search(r"cluster second: pulled v from worker-0, worker-1, \d+ B each, \d+ B in all", told)
    assert notebook.ns["v"] == {"worker-0": 8, "worker-1": 8}
    status = notebook.run("%tfcluster status --json --cluster second")
    assert [row["state"] for row in json.loads(status)] == ["ready", "ready"]
    notebook.run("%%tfcluster\nprint('one')\nprint('two')")
    assert notebook.run("%tfcluster logs worker-0 --tail 1") == "[worker-0]:    two\n"
    assert notebook.run("%tfcluster logs --grep o.e") == "[worker-0]:    one\n"
    notebook.run("%tfcluster stop --all")
    assert not notebook.cluster("second").running
    assert "two" in notebook.run("%tfcluster logs")
    with pytest.raises(UsageError, match="there is no cluster 'third'"):
        notebook.run("%tfcluster stop --cluster third")


def test_a_shape_that_cannot_be_had_ends_no_cluster(notebook):
    notebook.run("%%tfcluster --workers 1\nkept = 7\nprint('still there')")
    pids = [row["pid"] for row in notebook.cluster().status()]
    with pytest.raises(UsageError, match="this machine shows"):
        notebook.run("%tfcluster restart --gpus-per-task 1000")
    with pytest.raises(LaunchError, match="nothing was started. Up to"):
        notebook.run("%tfcluster restart --workers 60000")
    assert [row["pid"] for row in notebook.cluster().status()] == pids
    notebook.run("%%tfcluster --out r\nkept")
    assert notebook.ns["r"]["worker-0"] == 7


def test_after_a_start_that_fails_the_former_output_can_be_read(notebook):
    notebook.run("%%tfcluster --workers 1\nprint('still there')")
    with pytest.raises(LaunchError):
        notebook.run("%tfcluster restart --workers 2 --env PYTHONHOME=/nowhere")
    assert "still there" in notebook.run("%tfcluster logs")


def test_messages_have_lines_that_can_be_copied(notebook):
    notebook.run("%tfcluster start --workers 2 --cluster second")
    with pytest.raises(
        UsageError, match="no cluster 'default' .*, or name another one with --cluster second$"
    ):
        notebook.run("%tfcluster stacks")
    with pytest.raises(UsageError, match="%tfcluster restart --env 'A=1 2' --env B=3 --cluster second$"):
        notebook.run("%%tfcluster --cluster second --env 'A=1 2' --env B=3\n1")
    with pytest.raises(NameError, match="on worker-0, worker-1: nope: there is no such variable"):
        notebook.run("%tfcluster pull nope --cluster second")


def test_local_runs_the_cell_in_the_notebook_as_well(notebook):
    notebook.run("n = 2")
    out = notebook.run("%%tfcluster --workers 1 --local --out r\nimport os\npid = os.getpid()\nn + 1")
    assert "[worker-0]:    3\n" in out and out.rstrip().endswith("3")
    assert notebook.ns["pid"] == os.getpid() and notebook.ns["r"]["worker-0"] == 3
    with pytest.raises(ZeroDivisionError):
        notebook.run("%%tfcluster --local\ntouched = 1\n1 / 0")
    assert "touched" not in notebook.ns, "a cell that failed on its tasks does not run here"
    with pytest.raises(TfmagicError, match="for code that runs on a task") as caught:
        notebook.run(
            "%%tfcluster --local\nimport asyncio, tfmagic\nawait asyncio.sleep(0)\n"
            "seen = 1\ntfmagic.current_task().name"
        )
    lines = [frame.lineno for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert 5 in lines and notebook.ns["seen"] == 1


def test_fresh_processes_end_with_their_cell(notebook):
    notebook.run("%%tfcluster --workers 1\nleft = 1")
    with pytest.raises(NameError):
        notebook.run("%%tfcluster --fresh --workers 1\nleft")
    notebook.run("%%tfcluster --out r\nleft")
    assert notebook.ns["r"]["worker-0"] == 1


@pytest.mark.soak  # what a program sets itself: test_early_imports
def test_env_that_is_read_at_import_is_in_the_process_that_tasks_are_forked_from(notebook):
    notebook.run(
        "%%tfcluster --workers 1 --env MY_NAME=x --env TF_ENABLE_ONEDNN_OPTS=0 --out r\n"
        "import os\nos.environ['MY_NAME'], os.environ['TF_ENABLE_ONEDNN_OPTS'], open('/proc/self/environ').read()"
    )
    name, onednn, real = notebook.ns["r"]["worker-0"]
    assert (name, onednn) == ("x", "0")
    assert "TF_ENABLE_ONEDNN_OPTS=0" in real
    assert not notebook.cluster().state.tasks[notebook.cluster().tasks[0]].fresh


def test_more_tasks_than_memory_allows_start_nothing(notebook):
    with pytest.raises(LaunchError, match=r"nothing was started\. Up to \d+ tasks fit"):
        notebook.run("%%tfcluster --workers 20000\n1")


def test_a_state_folder_that_cannot_be_written_is_named(notebook, monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("TFMAGIC_STATE_DIR", str(blocked))
    with pytest.raises(LaunchError, match="cannot be written.*TFMAGIC_STATE_DIR"):
        notebook.run("%%tfcluster --workers 1\n1")
    assert not any(c.running for c in notebook.magics.clusters.values())


def test_logs_are_for_the_user_alone(notebook):
    notebook.run("%%tfcluster --workers 1\nprint('secret')")
    run = notebook.cluster().run_folder
    assert oct(run.folder.stat().st_mode)[-3:] == "700"
    assert {oct(p.stat().st_mode)[-3:] for p in run.folder.iterdir()} == {"600"}


def test_a_log_that_grows_between_cells_is_bounded_too_and_later_cells_warn(notebook, capsys):
    notebook.run("%config TFCluster.max_log_bytes = 100000")
    try:
        notebook.run("%tfcluster start --workers 1")
        notebook.run("%tfcluster flood worker-0 300kB")
        cluster = notebook.cluster()
        log = cluster.run_folder.log_path(cluster.tasks[0])
        wait_until(lambda: b"reached its limit of 100000 bytes" in log.read_bytes())
        notebook.run("%%tfcluster --view quiet\nprint('lost')")
    finally:
        notebook.run("%config TFCluster.max_log_bytes = 1073741824")
    assert "the log of worker-0 has reached TFCluster.max_log_bytes" in capsys.readouterr().err


def test_a_log_over_its_limit_is_closed_with_a_notice_and_the_cell_goes_on(notebook):
    notebook.run("%config TFCluster.max_log_bytes = 100000")
    try:
        notebook.run(
            "%%tfcluster --workers 1 --view quiet\nimport os, time\nprint('start')\n"
            "while os.fstat(1).st_size > 0:\n    print('x' * 999)\n'done'"
        )
    finally:
        notebook.run("%config TFCluster.max_log_bytes = 1073741824")
    assert "reached its limit of 100000 bytes" in notebook.run("%tfcluster logs --tail 3")


@pytest.mark.soak  # the same of a `Cluster`: test_exposure
def test_isolated_tasks_train_and_cannot_be_reached(notebook):
    notebook.run(
        "%%tfcluster --workers 2 --isolate --out r\nimport tensorflow as tf, os\n"
        "s = tf.distribute.MultiWorkerMirroredStrategy()\nos.readlink('/proc/self/ns/net')"
    )
    import socket

    assert notebook.ns["r"]["worker-0"] != os.readlink("/proc/self/ns/net")
    host, port = notebook.cluster().spec.addresses[notebook.cluster().tasks[0]].split(":")
    with pytest.raises(OSError):
        socket.create_connection((host, int(port)), timeout=2).close()


def test_an_interrupt_raises_keyboard_interrupt_and_keeps_variables(notebook):
    import signal
    import threading

    notebook.run("%%tfcluster --workers 2\nkept = 5")
    log = notebook.cluster().run_folder.log_path(notebook.cluster().tasks[1])

    def press():
        wait_until(lambda: "spinning" in log.read_text())
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        notebook.run("%%tfcluster\nimport time\nprint('spinning')\nwhile True:\n    time.sleep(0.01)")
    presser.join()
    notebook.run("%%tfcluster --out r\nkept")
    assert notebook.ns["r"].of("worker") == [5, 5]
