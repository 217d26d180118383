"""Cells on two hosts of a Ray cluster: what tests of this machine's tasks hold, and what is Ray's own."""

import contextlib
import io
import subprocess
import sys
import threading

import pytest
import test_strategies
from features.diff.test_diff import (  # noqa: F401
    test_a_variable_is_compared_over_tasks,
)
from features.faults import test_faults_on_tasks
from features.faults.test_faults_on_tasks import (  # noqa: F401
    test_a_crash_on_purpose_is_told_as_one,
    test_a_fault_can_come_while_a_cell_runs,
    test_a_flood_costs_nothing_but_its_bytes,
    test_a_stopped_task_dies_with_its_cluster,
    two,
)
from features.pictures.test_pictures import (  # noqa: F401
    test_the_map_of_a_cluster_in_a_terminal,
    test_the_timeline_shows_who_waits_for_whom_at_a_barrier,
)
from features.profile.test_profile import test_the_task_that_the_others_wait_for_is_the_straggler  # noqa: F401
from test_detached import (  # noqa: F401 - collected here, too
    flag,
    test_interrupt_ends_a_detached_cell,
    test_wait_raises_the_first_exception_when_all_cells_have_ended_and_the_next_wait_the_next,
)
from test_magic import (  # noqa: F401
    test_a_log_that_grows_between_cells_is_bounded_too_and_later_cells_warn,
    test_a_task_that_dies_is_named_with_its_last_lines_and_the_way_back,
    test_a_time_limit_shows_where_the_tasks_were,
    test_notebook_functions_and_classes_travel_with_what_they_use,
    test_output_is_in_the_order_in_which_it_was_written,
    test_the_tasks_own_exception_is_raised_with_its_lines,
    test_variables_stay_on_the_task_and_take_precedence_over_the_notebooks,
)
from test_nice import test_each_process_of_a_task_has_it_also_a_new_one  # noqa: F401
from test_track import test_values_of_all_tasks_are_rows_and_a_chart  # noqa: F401

import tfmagic
from tfmagic.backends.remote import driver_client
from tfmagic.clusters.launch.settings import TFCluster
from tfmagic.errors import LaunchError


@pytest.fixture(scope="module", autouse=True)
def on_ray(ray_nodes):
    """Let clusters run on Ray, as a user's configuration does."""
    ray_nodes.add(cpus=8, gpus=2)
    config = TFCluster.instance()
    with ray_nodes.driver_environment():
        config.backend, config.address = "ray", ray_nodes.address
        yield ray_nodes
        config.backend, config.address = "local", "auto"
        driver_client.close_idle()


def test_each_task_has_its_host_in_the_status_and_in_tf_config(notebook):
    notebook.run(
        "%%tfcluster --workers 2 --placement strict-spread --out found --view quiet\nimport os\nos.environ['TF_CONFIG']"
    )
    rows = notebook.cluster().status()
    assert {row["host"] for row in rows} == {"127.0.0.2", "127.0.0.3"}
    assert all(row["address"].startswith(f"{row['host']}:") for row in rows)
    assert all(row["address"] in notebook.ns["found"]["worker-0"] for row in rows)
    assert all(row["uptime_s"] is None or row["uptime_s"] >= 0 for row in rows)
    assert "127.0.0.3" in notebook.run("%tfcluster status")


def test_who_waits_for_whom_is_told_with_the_hosts(notebook):
    notebook.run("%config TFCluster.stall_s = 1.0")
    notebook.run("%tfcluster start --workers 2 --placement strict-spread")
    cell = "import tfmagic, time\nif tfmagic.current_task().index:\n    time.sleep(60)\ntfmagic.barrier()"
    out = io.StringIO()

    def end_when_told():
        for _ in range(600):
            if "time.sleep" in out.getvalue():
                break
            threading.Event().wait(0.1)
        notebook.cluster().interrupt()

    threading.Thread(target=end_when_told).start()
    with contextlib.redirect_stdout(out), pytest.raises(KeyboardInterrupt):
        notebook.shell.run_cell_magic("tfcluster", "--view text", cell)
    notebook.run("%config TFCluster.stall_s = 10.0")
    hosts = {row["task"]: row["host"] for row in notebook.cluster().status()}
    assert f"worker-0 on {hosts['worker-0']} waits at barrier 1" in out.getvalue()
    assert f"worker-1 on {hosts['worker-1']} is in time.sleep" in out.getvalue()


def test_stacks_displays_and_large_arrays_come_from_the_hosts(notebook):
    import numpy as np

    notebook.ns["big"] = np.arange(1 << 20, dtype="float64")
    notebook.run(
        "%%tfcluster --workers 2 --pull sums,big2 --view quiet\nsums = float(big.sum())\nbig2 = big + 1"
    )
    assert set(notebook.ns["sums"].values()) == {float(notebook.ns["big"].sum())}
    np.testing.assert_array_equal(notebook.ns["big2"]["worker-1"], notebook.ns["big"] + 1)
    told = notebook.run(
        "%%tfcluster --view text\nfrom IPython.display import display, Markdown\ndisplay(Markdown('*hi*'))"
    )
    assert told.count("Markdown") == 2
    assert "worker-1" in notebook.run("%tfcluster stacks worker-1")


def test_a_script_runs_on_the_hosts_and_its_error_is_the_runs(on_ray, tmp_path):
    script = tmp_path / "where.py"
    script.write_text(
        "import os, sys\nimport beside\n"
        "print(os.environ['TF_CONFIG'], beside.name, sys.argv[1:], os.environ.get('MPLBACKEND'))\n"
        "sys.exit(3)\n"
    )
    (tmp_path / "beside.py").write_text("name = 'a module beside it'\n")
    where = ["--backend", "ray", "--address", on_ray.address, "--placement", "pack"]
    words = ["run", *where, script, "--epochs", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "tfmagic", *words], capture_output=True, text=True, timeout=240, cwd=tmp_path
    )
    assert done.returncode == 3, done.stderr
    for task in ("worker-0", "worker-1"):
        (line,) = (line for line in done.stdout.splitlines() if line.startswith(f"[{task}]"))
        assert "127.0.0." in line and "a module beside it ['--epochs', '2'] None" in line
    assert "failed first: it exited with code 3" in done.stderr, done.stderr


def test_tasks_of_all_hosts_append_to_one_file_of_the_notebooks_machine(on_ray, tmp_path):
    h5py = pytest.importorskip("h5py")
    from tfmagic.hdf5 import SharedWriter

    def work(path):
        import numpy as np

        me = tfmagic.current_task().index
        with SharedWriter(path) as writer:
            for step in range(50):
                writer.append("x", np.full((5, 3000), 1000 * me + step))

    def append(writer):
        writer.append("x", tfmagic.current_task().index)

    def die(path):
        import os

        writer = SharedWriter(path)
        for step in range(100):
            writer.append("x", [step] * 1000)
        os.kill(os.getpid(), 9)

    paths = [str(tmp_path / f"{name}.h5") for name in ("own", "notebook", "killed")]
    with tfmagic.Cluster(workers=2, placement="strict-spread") as cluster:
        cluster.run(work, paths[0])
        with SharedWriter(paths[1]) as writer:
            cluster.run(append, writer)
        with pytest.raises(tfmagic.TaskDied):
            cluster.run(die, paths[2], on="worker-1")
    own, notebook, killed = (h5py.File(path)["x"][...] for path in paths)
    assert (own == own[:, :1]).all() and own.shape == (500, 3000)
    for me in range(2):
        rows = [row for row in own[:, 0] if row // 1000 == me]
        assert rows == [1000 * me + step for step in range(50) for _ in range(5)]
    assert sorted(notebook) == [0, 1] and len(killed) == 100_000


def test_a_second_start_uses_the_launchers_of_the_first(on_ray):
    launchers = []
    for _ in range(2):
        with tfmagic.Cluster(workers=2) as cluster:
            launchers.append(set(cluster.run(lambda: __import__("os").getppid(), view="quiet").values()))
    assert launchers[0] == launchers[1]


# a variable that TensorFlow reads at its import needs a fresh interpreter: on this machine in test_exposure
@pytest.mark.parametrize(
    "env", [{}, pytest.param({"TF_CPP_MIN_LOG_LEVEL": "3"}, marks=pytest.mark.soak)], ids=["forked", "fresh"]
)
def test_gpus_that_ray_has_reserved_are_those_of_each_task(on_ray, env):
    with tfmagic.Cluster(workers=2, gpus_per_task=1, env=env) as cluster:
        seen = cluster.run(lambda: __import__("os").environ["CUDA_VISIBLE_DEVICES"], view="quiet")
    assert sorted(seen.values()) == ["0", "1"]


def test_what_ray_has_no_room_for_is_told_with_what_is_there(on_ray):
    cluster = tfmagic.Cluster(workers=2, cpus_per_task=64, start_timeout_s=3)
    with pytest.raises(LaunchError, match=r"each needs 64 CPU.*127\.0\.0\.2: .*8 CPU.*free are"):
        cluster.start()
    assert not cluster.running


# strategies on several hosts: test_ray_hosts; faults that reach a task through its agent: the tests above
@pytest.mark.soak
@pytest.mark.parametrize("workers", [2, 3])
def test_mirrored_strategy_again_and_after_a_restart(notebook, workers):
    test_strategies.test_mirrored_strategy_again_and_after_a_restart(notebook, workers)


@pytest.mark.soak
def test_parameter_servers_start_by_themselves(notebook):
    test_strategies.test_parameter_servers_start_by_themselves(notebook)


@pytest.mark.soak
def test_a_slowed_task_does_less_in_the_same_time_and_is_not_stalled(two):  # noqa: F811
    test_faults_on_tasks.test_a_slowed_task_does_less_in_the_same_time_and_is_not_stalled(two)
