"""What happens before a program begins: the import of TensorFlow, its threads, and the variables that it sees."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
from conftest import wait_until

import tfmagic
from tfmagic.clusters.launch import startup
from tfmagic.clusters.tools.status import StatusWriter
from tfmagic.features.doctor import checks, findings
from tfmagic.frontends import cli

NUMEXPR = """
import threading
import time

def set_num_threads(count):
    global _threads, _ends
    old, _threads[:], ends = len(_threads) + 1, [], _ends
    ends.set()
    wait = [thread.join() for thread in _started]
    _ends, _started[:] = threading.Event(), []
    for _ in range(count - 1):
        thread = threading.Thread(target=_ends.wait, name="numexpr", daemon=True)
        _started.append(thread)
        _threads.append(thread)
        thread.start()
    return old

_threads, _started, _ends = [], [], threading.Event()
set_num_threads(3)
"""
# urllib3, which TensorFlow imports, imports brotli where it is installed
BROTLI = """
import os
import {module}
__version__, error, Decompressor = "1.2.0", OSError, object
seen = {{name: os.environ.get(name) for name in ("JE_ARROW_MALLOC_CONF", "OPENBLAS_NUM_THREADS")}}
"""
THREAD = """
import threading
threading.Thread(target=threading.Event().wait, name="metrics", daemon=True).start()
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Put packages where the next launcher finds them."""

    def put(**sources):
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(str(tmp_path))

    return put


def look():
    import threading

    import brotli

    names = [thread.name for thread in threading.enumerate()]
    own = {name: os.environ.get(name) for name in brotli.seen}
    return brotli.seen, own, names.count("numexpr"), names.count("metrics")


def test_libraries_start_no_threads_while_the_launcher_imports_them(installed):
    """Arrow's allocator is told not to, and numexpr's threads stop; the tasks have the latter again."""
    installed(numexpr=NUMEXPR, brotli=BROTLI.format(module="numexpr"))
    env = {"JE_ARROW_MALLOC_CONF": "dirty_decay_ms:7", "OPENBLAS_NUM_THREADS": "2"}
    with tfmagic.Cluster(workers=1, env=env) as cluster:
        (found,) = cluster.run(look, view="quiet").values()
        (task,) = cluster.state.tasks.values()
        assert (task.fresh, cluster.status()[0]["not_forked"]) == (False, "")
    at_import = {
        "JE_ARROW_MALLOC_CONF": "background_thread:false,dirty_decay_ms:7",
        "OPENBLAS_NUM_THREADS": "1",
    }
    assert found == (at_import, env, 2, 0)


def test_a_package_that_starts_a_thread_at_its_import_is_named(installed, capsys, monkeypatch, tmp_path):
    """Its tasks are not forked; the first start, status and doctor say why."""
    monkeypatch.setattr(startup, "_told", set())
    installed(metrics_agent=THREAD, brotli=BROTLI.format(module="metrics_agent"))
    why = "the thread 'metrics' of metrics_agent.py"
    with tfmagic.Cluster(workers=1, env={"JE_ARROW_MALLOC_CONF": "dirty_decay_ms:8"}) as cluster:
        (found,) = cluster.run(look, view="quiet").values()
        assert found[3] == 1  # the task has it, as plain Python has
        assert [row["not_forked"] for row in cluster.status()] == [why]
        told = capsys.readouterr().err
        assert told.count(why) == 1 and "worker-0: no process could be forked" in told
        (finding,) = (f for f in checks.examine(findings.case_of(None, cluster)) if why in f.advice)
        assert finding.severity is findings.Severity.NOTE
        cluster._latest._status_writer._next_write = 0.0
        StatusWriter.write_if_due(cluster._latest._status_writer, cluster._latest.supervisor)
        assert cli.main(["status"]) == 0
        assert f"worker-0: not forked, because of {why}" in capsys.readouterr().out
        os.kill(cluster.status()[0]["pid"], signal.SIGKILL)
        wait_until(cluster._latest.dead_tasks)
        cluster.revive()
        assert [row["not_forked"] for row in cluster.status()] == [why]
        assert why not in capsys.readouterr().err  # once is enough


def test_a_thread_of_a_library_is_named_by_the_library():
    """OpenBLAS starts its threads when numpy is imported."""
    code = "import numpy; from tfmagic.system import thread_origins as t; print(t.describe_others())"
    run = [sys.executable, "-c", code]
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}
    out = subprocess.run(run, env=environ, capture_output=True, text=True, check=True).stdout
    assert "of numpy.libs/lib" in out and "blas" in out


# ---- variables that programs set at their beginning ----------------------------------------------

LEGACY = """
import os
print(os.environ.get("TF_CPP_MAX_VLOG_LEVEL"))
os.environ["TF_CPP_MAX_VLOG_LEVEL"] = "0"
os.environ["TF_USE_LEGACY_KERAS"] = "1"
import tensorflow as tf
print(tf.keras.Model.__module__, os.environ["TF_USE_LEGACY_KERAS"])
print(type(tf.keras.optimizers.legacy.SGD(0.1)).__module__)
"""
BACKEND = """
import os
os.environ["KERAS_BACKEND"] = "numpy"
import keras
print(keras.backend.backend())
"""
LEVEL = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
tf.constant(1.0)
print(tf.keras.Model.__module__, os.environ["TF_CPP_MIN_LOG_LEVEL"])
"""
GUIDE = '''
"""
Title: A guide of keras.io
"""
import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
model.compile("sgd", "mse")
model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
print(keras.backend.backend(), model.predict(np.zeros((1, 2)), verbose=0).shape)
'''
THREADS = """
from os import environ
environ.update({"OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_dump_to=dump"})
import os
import tensorflow as tf
from threadpoolctl import threadpool_info
print({pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "openmp"})
print(tf.function(lambda x: x + 1, jit_compile=True)(tf.ones(2)).numpy(), os.path.isdir("dump"))
"""


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(LEGACY, id="legacy"),
        *(pytest.param(s, id=i, marks=pytest.mark.soak) for s, i in [(BACKEND, "backend"), (LEVEL, "level")]),
        *(pytest.param(s, id=i, marks=pytest.mark.soak) for s, i in [(GUIDE, "guide"), (THREADS, "threads")]),
    ],
)
def test_a_script_that_sets_variables_before_its_imports_runs_as_plainly(source, tmp_path, commands):
    script = tmp_path / "script.py"
    script.write_text(source)
    command, plain = [sys.executable, str(script)], tmp_path / "plain"
    plain.mkdir()
    found = subprocess.run(command, cwd=plain, capture_output=True, text=True)
    environ = {"TFMAGIC_STATE_DIR": str(tmp_path / "state"), "TF_CPP_MIN_LOG_LEVEL": ""}
    commands.start(tmp_path, ["run", "--workers", 1, "--log-dir", "logs", script], **environ)
    assert commands.wait() == found.returncode, (tmp_path / "err.txt").read_text()
    log = (tmp_path / "logs" / "worker-0.log").read_text()
    assert [line for line in found.stdout.splitlines() if line not in log] == []
    if found.returncode:
        assert found.stderr.splitlines()[-1] in log
    elif source is LEVEL:
        assert log == found.stdout  # nothing else: the level was seen by the import


def test_a_cell_that_starts_its_cluster_sets_variables_for_the_import(notebook, capsys):
    cell = (
        "%%tfcluster --workers 1 --out r\nimport os\n{}os.environ['TF_CPP_MAX_VLOG_LEVEL'] = '0'\n"
        "import tensorflow as tf\nbefore, open('/proc/self/environ').read()"
    )
    first = "before = os.environ.get('TF_CPP_MAX_VLOG_LEVEL')\n"
    for _ in range(2):
        notebook.run(cell.format(first))
        before, real = notebook.ns["r"]["worker-0"]
        assert before is None and "TF_CPP_MAX_VLOG_LEVEL=0" in real
        notebook.run("%tfcluster restart")
        assert not notebook.cluster().state.tasks[notebook.cluster().tasks[0]].fresh
    assert "MAX_VLOG" not in capsys.readouterr().err


def test_a_variable_that_a_later_cell_sets_is_told_once_with_a_line_that_works(notebook, capsys, tmp_path):
    home = tmp_path / "a dir"
    notebook.run("%tfcluster start --workers 1 --env MY_NAME='a b'")
    cell = f"%%tfcluster\nimport os\nos.environ['KERAS_HOME'] = '{home}'\nos.environ['TF_NUM_INTEROP_THREADS'] = '1'"
    for _ in range(2):
        notebook.run(cell)
    told = capsys.readouterr().err
    assert told.count("KERAS_HOME is read when TensorFlow") == 1 and "INTEROP" not in told
    line = told.rpartition("import:  ")[2].strip()
    assert line == f"%tfcluster restart --workers 1 --env 'MY_NAME=a b' --env KERAS_HOME='{home}'"
    notebook.run(line)
    notebook.run("%%tfcluster --out r\nimport os\nos.environ['MY_NAME'], open('/proc/self/environ').read()")
    name, real = notebook.ns["r"]["worker-0"]
    assert name == "a b" and f"KERAS_HOME={home}" in real
    notebook.run(cell)
    assert "KERAS_HOME" not in capsys.readouterr().err  # the import has seen this value


@pytest.mark.soak
def test_a_cell_after_a_conditional_value_is_told_of_it_and_runs(notebook, capsys):
    notebook.run(
        textwrap.dedent("""\
            %%tfcluster --workers 1 --out r
            import os
            if os.environ.get("HOME"):
                os.environ["NUMEXPR_MAX_THREADS"] = "3"
            import keras
            1""")
    )
    assert "--env NUMEXPR_MAX_THREADS=VALUE" in capsys.readouterr().err
    assert notebook.ns["r"]["worker-0"] == 1


def test_a_start_in_a_folder_that_was_deleted_says_so(notebook, capsys, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    notebook.run("%%tfcluster --workers 1 --out r\nimport os\nos.getcwd()")
    home = os.path.expanduser("~")
    assert notebook.ns["r"]["worker-0"] == home
    assert f"the current folder was deleted: the tasks begin in {home}" in capsys.readouterr().err


@pytest.mark.soak  # the launcher, too, is started there
def test_a_program_in_a_folder_that_was_deleted_has_a_cluster(tmp_path):
    code = (
        f"import os; os.chdir({str(tmp_path)!r}); os.mkdir('x'); os.chdir('x'); os.rmdir('../x'); import tfmagic\n"
        "with tfmagic.Cluster(workers=1) as cluster: print(cluster.run(os.getcwd, view='quiet').values())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert os.path.expanduser("~") in found.stdout and "was deleted" in found.stderr
