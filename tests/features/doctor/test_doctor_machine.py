"""The doctor's findings in the machine, the network and the state folder, with real limits if possible."""

import errno
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from doctoring import case, install, look_in_process

from tfmagic.clusters.launch import task_settings
from tfmagic.clusters.launch.task_settings import TaskSettings
from tfmagic.features.doctor import folder, machine
from tfmagic.features.doctor.findings import Severity
from tfmagic.runs.cell_records import CellRecord, append_record
from tfmagic.runs.folder import RunFolder
from tfmagic.system import advice, memory
from tfmagic.system.process_identity import Identity, identify, this_boot


@pytest.fixture(autouse=True)
def in_a_notebook():
    """Let the doctor advise what helps in a notebook."""
    advice.set_front_end(advice.FrontEnd.NOTEBOOK)
    yield
    advice.set_front_end(None)


def one(findings):
    (found,) = findings
    return found


def look_or_skip(*arguments, **more):
    said = look_in_process(*arguments, **more)
    if said.startswith("refused"):
        pytest.skip(said)  # unshare(1) is for root, or for users where the system lets them
    return said


@pytest.fixture
def cgroup(tmp_path, monkeypatch):
    """Control groups made of files: cgroup(controller, name=text) gives their root."""

    def make(controller, **files):
        place = tmp_path / "cgroup" / controller / "docker" / "abc"
        place.mkdir(parents=True)
        for name, text in files.items():
            (place / name.replace("__", ".")).write_text(text)
        own, line = memory.read_text, f"4:{controller}:/docker/abc"
        monkeypatch.setattr(
            memory, "read_text", lambda path: line if path == Path("/proc/self/cgroup") else own(path)
        )
        return tmp_path / "cgroup"

    return make


# ---- memory, cores, GPUs ------------------------------------------------------------------------


def test_memory_is_shown_with_the_number_of_tasks_that_fit():
    found = one(machine.memory_room(case(workers=2)))
    assert found.severity is Severity.FINE and "2 workers take" in found.what and "tasks fit" in found.what


def test_too_little_memory_is_refused_as_a_start_does_it():
    found = one(machine.memory_room(case(workers=20_000)))
    assert found.severity is Severity.TROUBLE and found.refused_by_start
    assert "Up to" in found.advice


def test_files_that_a_container_has_read_are_free_memory(cgroup):
    files = {"memory__limit_in_bytes": "600000000", "memory__usage_in_bytes": "500000000"}
    stat = "cache 9\ninactive_file 1\ntotal_inactive_file 400000000\n"
    assert memory.free_bytes(cgroup("memory", **files, memory__stat=stat)) == 500_000_000


def test_a_full_container_has_no_free_memory(cgroup):
    root = cgroup("memory", memory__limit_in_bytes="600000000", memory__usage_in_bytes="700000000")
    assert memory.free_bytes(root) == 0


def test_a_core_for_each_task_is_fine_and_less_is_a_note(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert one(machine.cores(case(workers=2, ps=0))).severity is Severity.FINE
    found = one(machine.cores(case(workers=4)))
    assert found.severity is Severity.NOTE and found.advice.endswith("--workers 2")


@pytest.mark.parametrize(
    "files",
    [
        {"cpu__max": "150000 100000"},
        {"cpu__cfs_quota_us": "150000\n", "cpu__cfs_period_us": "100000\n"},
    ],
    ids=["version 2", "version 1"],
)
def test_cores_that_a_container_may_not_use_are_named(cgroup, monkeypatch, files):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    found = one(machine.cores(case(), cgroup("cpu", **files)))
    assert found.what == "cores: 1.5 of 64, by a limit of the container"
    assert "--env TF_NUM_INTRAOP_THREADS=1" in found.advice


@pytest.mark.parametrize("files", [{"cpu__max": "max 100000"}, {"cpu__cfs_quota_us": "-1"}])
def test_a_container_without_a_limit_of_cores_is_silent(cgroup, files):
    assert "container" not in one(machine.cores(case(), cgroup("cpu", **files))).what


@pytest.fixture
def gpus(monkeypatch, tmp_path):
    """Simulate GPUs 0 to 3, a TensorFlow built with or without CUDA, and CUDA's libraries or not."""

    def make(cuda_build=True, libraries=True, count=4):
        real = task_settings.visible_gpus
        monkeypatch.setattr(
            task_settings,
            "visible_gpus",
            lambda e: real(e) if "CUDA_VISIBLE_DEVICES" in e else list("0123")[:count],
        )
        built = tmp_path / "site/tensorflow/python/platform/build_info.py"
        built.parent.mkdir(parents=True)
        (tmp_path / "site/tensorflow/__init__.py").touch()
        built.write_text(f"build_info = OrderedDict([('is_cuda_build', {cuda_build}), ('x', False)])")
        packages = {"nvidia_cuda_runtime_cu12": "12.5.82"} if libraries else {}
        monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
        monkeypatch.setattr(sys, "path", [install(tmp_path / "site", **packages)])

    return make


def said_of_gpus(**given):
    found = list(machine.gpus(case(**given)))
    assert all((f.severity is Severity.FINE) is not bool(f.advice) for f in found)
    return "\n".join(map(str, found))


def test_no_gpu_is_fine_unless_some_were_asked_for(monkeypatch):
    monkeypatch.setattr(task_settings, "visible_gpus", lambda _: [])
    assert said_of_gpus() == "✓ no GPU: tasks compute on the processor"
    found = one(machine.gpus(case(task_settings=TaskSettings(gpus_per_task=1))))
    assert found.refused_by_start and "each need 2; this machine shows 0" in found.advice


def test_gpus_for_every_task_are_fine(gpus):
    gpus()
    assert said_of_gpus(workers=2) == "✓ GPUs: 4 of 4"


def test_gpus_that_are_shared_or_hidden_are_noted(gpus, monkeypatch):
    gpus()
    assert "5 tasks share them" in said_of_gpus(workers=5)
    assert "share" not in said_of_gpus(workers=4, ps=2, chief=True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    said = said_of_gpus(workers=1)
    assert "GPUs: 1 of 4: CUDA_VISIBLE_DEVICES is '2'" in said and "share" not in said
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert said_of_gpus().startswith("! GPUs: 0 of 4")


def test_a_tensorflow_without_cuda_beside_gpus_is_noted(gpus):
    gpus(cuda_build=False)
    assert "built without CUDA" in said_of_gpus()


def test_missing_libraries_of_cuda_are_noted(gpus, monkeypatch, tmp_path):
    gpus(libraries=False)
    assert not machine.has_cuda_libraries(tmp_path / "no cache")
    (tmp_path / "cache").write_bytes(b"\0libcudart.so.12\0")
    assert machine.has_cuda_libraries(tmp_path / "cache")
    (tmp_path / "libcudart.so.12").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path}")
    assert machine.has_cuda_libraries(tmp_path / "no cache")
    monkeypatch.setattr(machine, "has_cuda_libraries", lambda: False)
    assert "CUDA's libraries are missing" in said_of_gpus()


# ---- limits of this process and its container ---------------------------------------------------


@pytest.mark.parametrize(("limit", "hard", "mend"), [(100, 4096, "setrlimit"), (100, 100, "ulimit -n")])
def test_too_few_open_files_are_named(limit, hard, mend):
    before = f"resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {hard}))"
    said = look_in_process("machine.open_files", before, workers=100)
    assert said.startswith("✕ open files: at most 100") and mend in said
    assert look_in_process("machine.open_files", before, workers=2) == ""


def test_the_line_for_more_open_files_gives_enough():
    before = "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 4096))\nexec(str(*machine.open_files(asked)).partition(':  ')[2])"
    assert look_in_process("machine.open_files", before, workers=100) == ""


def test_too_few_threads_of_the_user_are_named():
    before = (
        "import psutil\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        "used = machine._own_threads()\n"
        "resource.setrlimit(resource.RLIMIT_NPROC, (used + 300, used + 300))"
    )
    said = look_in_process("machine.threads", before, workers=8)
    assert said.startswith("✕ threads: ") and "Up to 2 tasks fit" in said
    assert look_in_process("machine.threads", before, workers=1) == ""


def test_too_few_threads_of_the_container_are_named(cgroup):
    root = cgroup("pids", pids__max="1000\n", pids__current="100\n")
    found = one(machine.threads(case(workers=20), root))
    assert "900 of the container's 1000 are left" in found.what and "Up to 8 tasks fit" in found.advice
    assert list(machine.threads(case(workers=8), root)) == []
    assert list(machine.threads(case(workers=20, running=True), root)) == []


def test_a_container_without_a_limit_of_threads_is_silent(cgroup):
    assert list(machine.threads(case(workers=20), cgroup("pids", pids__max="max", pids__current="5"))) == []


def test_a_limit_of_virtual_memory_that_kills_tasks_is_named():
    before = "resource.setrlimit(resource.RLIMIT_AS, ({0}, {0}))"
    assert "ulimit -v unlimited" in look_in_process("machine.address_space", before.format(3 << 30))
    assert look_in_process("machine.address_space", before.format(8 << 30)) == ""
    assert look_in_process("machine.address_space") == ""


# ---- network -------------------------------------------------------------------------------------


def test_this_machine_reaches_itself_and_nothing_stays_open():
    before = len(os.listdir("/proc/self/fd"))
    found = one(machine.loopback(case(workers=30)))
    assert found.severity is Severity.FINE and "30 tasks" in found.what
    assert len(os.listdir("/proc/self/fd")) == before
    assert list(machine.loopback(case(running=True))) == []


def test_a_loopback_interface_that_is_down_is_named():
    said = look_or_skip("machine.loopback", wrap=("unshare", "-rn"))
    assert "nothing can connect to 127.0.0.1" in said and "ip link set lo up" in said


def test_ports_that_run_out_are_named():
    before = "resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))"
    said = look_in_process("machine.loopback", before, workers=100)
    assert "no port for each of 100 tasks (Too many open files)" in said


def test_more_tasks_than_the_system_has_ports_are_named():
    assert one(machine.loopback(case(workers=10_000))).severity is Severity.FINE
    found = one(machine.loopback(case(workers=60_000)))
    assert found.refused_by_start and "the system hands out" in found.what


def test_a_port_that_is_refused_is_reported_as_a_start_does_it(monkeypatch):
    def refuse(*_):
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    assert one(machine.loopback(case())).refused_by_start


# ---- state folder --------------------------------------------------------------------------------


@pytest.fixture
def base(tmp_path, monkeypatch):
    monkeypatch.setenv("TFMAGIC_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def test_a_state_folder_with_room_is_fine(base, monkeypatch):
    monkeypatch.setattr(folder, "_free_bytes", lambda _: 50 << 30)
    found = one(folder.state_folder(case()))
    assert found.severity is Severity.FINE and "50 GiB free" in found.what


def test_a_state_folder_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("TFMAGIC_STATE_DIR", str(blocked))
    found = one(folder.state_folder(case()))
    assert found.refused_by_start and "cannot be written" in found.advice


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("size=50m", "✕ state folder"),
        ("size=500m", "! state folder"),
        ("size=5g", "✓ state folder"),
        ("ro", "cannot be written (Read-only file system)"),
    ],
)
def test_a_small_or_read_only_disk_is_named(tmp_path, monkeypatch, options, words):
    place = tmp_path / "disk"
    place.mkdir()
    monkeypatch.setenv("TFMAGIC_STATE_DIR", str(place))
    script = f'mount -t tmpfs -o {options} none "{place}" && exec "$@"'
    said = look_or_skip("folder.state_folder", wrap=("unshare", "-rm", "sh", "-c", script, "sh"), workers=2)
    assert words in said


def test_many_tasks_need_more_room_for_logs(base, monkeypatch):
    monkeypatch.setattr(folder, "_free_bytes", lambda _: 3 << 30)
    assert one(folder.state_folder(case(workers=2))).severity is Severity.FINE
    found = one(folder.state_folder(case(workers=8)))
    assert found.severity is Severity.NOTE and "logs of 8 tasks can take 8.0 GiB" in found.advice


def test_little_room_is_noted_also_where_little_is_kept(base, monkeypatch):
    monkeypatch.setattr(folder, "_free_bytes", lambda _: 500 << 20)
    found = one(folder.state_folder(case(settings={"max_log_bytes": 1 << 20})))
    assert found.severity is Severity.NOTE


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701])
def test_a_folder_that_others_can_read_is_closed(base, monkeypatch, mode):
    monkeypatch.setattr(folder, "_free_bytes", lambda _: 50 << 30)
    assert one(folder.state_folder(case())).advice == ""
    (base / "runs").chmod(mode)
    assert one(folder.state_folder(case())).advice == ""
    assert (base / "runs").stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(base, monkeypatch):
    monkeypatch.setattr(folder, "_free_bytes", lambda _: 50 << 30)
    (base / "runs").mkdir(parents=True, mode=0o700)
    os.chown(base / "runs", 65534, -1)
    found = one(folder.state_folder(case()))
    assert found.refused_by_start and "belongs to nobody" in found.advice


def mounted(place, kind):
    return SimpleNamespace(mountpoint=place, fstype=kind)


@pytest.mark.parametrize(
    ("kind", "speaks"),
    [
        *((kind, 1) for kind in ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p")),
        *((kind, 0) for kind in ("ext4", "tmpfs", "overlay", "fuse.fuse-overlayfs")),
    ],
)
def test_a_network_file_system_is_named(tmp_path, monkeypatch, base, kind, speaks):
    monkeypatch.setattr(folder, "_free_bytes", lambda _: 50 << 30)
    mounts = [("/", "ext4"), (str(tmp_path), kind), (f"{base}other", "nfs")]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: [mounted(*mount) for mount in mounts])
    found = [f for f in folder.state_folder(case()) if f.severity is Severity.NOTE]
    assert len(found) == speaks
    if speaks:
        assert kind in found[0].what and "O_APPEND" in found[0].advice


def test_of_two_mounts_on_a_place_the_last_one_counts(tmp_path, monkeypatch):
    assert folder.file_system(Path("/proc")) == "proc"
    place = tmp_path / "my home"
    place.mkdir()
    mounts = [mounted("/", "ext4"), mounted(str(place), "ext4"), mounted(str(place), "nfs4")]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)
    assert folder.file_system(place / "state") == "nfs4"
    assert folder.file_system(tmp_path) == "ext4"
    mounts.clear()
    assert folder.file_system(tmp_path) == ""


# ---- leftovers -----------------------------------------------------------------------------------


def make_run(base, name, pid, verdict, **identity):
    place = base / "runs" / name
    place.mkdir(parents=True)
    known = identify(pid) or Identity(pid, 1, this_boot())
    facts = {**known.as_json(), "started": time.time(), "cluster": "default", **identity}
    (place / "run.json").write_text(json.dumps(facts))
    (place / "worker-0.log").write_bytes(b"x" * 5000)
    append_record(RunFolder(place), CellRecord(1, "default", "1 worker", (), verdict=verdict))


def dead_pid():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_no_run_and_the_runs_of_living_kernels_are_no_leftovers(base):
    assert list(folder.leftovers(case())) == []
    make_run(base, "a", os.getpid(), "")
    assert list(folder.leftovers(case())) == []


def test_ended_runs_are_shown_with_their_size_and_limits(base):
    make_run(base, "a", dead_pid(), "done")
    make_run(base, "b", dead_pid(), "failed")
    found = one(folder.leftovers(case()))
    assert found.severity is Severity.FINE
    assert found.what.startswith("2 earlier runs, 1") and "KiB" in found.what
    assert "7 days" in found.what and "keep_runs_bytes" in found.what


def test_a_run_whose_kernel_ended_before_its_cell_is_named(base):
    make_run(base, "a", dead_pid(), "done")
    make_run(base, "b", dead_pid(), "")
    found = one(folder.leftovers(case()))
    assert found.severity is Severity.NOTE and "in 1 run the kernel ended before the cell: b" in found.what
    assert "%tfcluster attach b" in found.advice


def test_runs_of_other_machines_are_named_with_their_hosts(base):
    me = identify(os.getpid()).as_json()
    make_run(base, "a", me.pop("pid"), "", **{**me, "boot": "another", "host": "node-7"})
    said = one(folder.leftovers(case()))
    assert said.severity is Severity.FINE and "1 run of other machines or containers (node-7)" in said.what


def test_a_pid_that_another_process_has_now_is_no_living_kernel(base):
    me = identify(os.getpid()).as_json()
    pid = me.pop("pid")
    make_run(base, "a", pid, "", **me)
    assert list(folder.leftovers(case())) == []
    make_run(base, "b", pid, "", **{**me, "start": me["start"] - 1})
    assert "b" in one(folder.leftovers(case())).what
