"""Check whether this machine has the resources for a cluster: memory, cores, GPUs, limits, network."""

import importlib.util
import os
import resource
import socket
import tempfile
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import psutil

from tfmagic.backends import launcher_client
from tfmagic.backends.held_ports import HeldPorts
from tfmagic.backends.simulated.hosts import SimulatedHosts
from tfmagic.backends.simulated.links import Link
from tfmagic.clusters.launch import task_settings
from tfmagic.errors import ClusterSpecError, LaunchError
from tfmagic.features.doctor.findings import Case, Finding, note, parts_finding, refused, trouble
from tfmagic.system import memory, process_options
from tfmagic.system.advice import Step, in_notebook, not_forked
from tfmagic.system.memory import format_bytes, read_text
from tfmagic.task.tensorflow import patches

_CGROUPS = Path("/sys/fs/cgroup")
_THREADS = 110  # of a task with a TensorFlow server, of which 97 are gRPC's (measured, 2.21 on 2 cores)
_KERNEL_FILES = 3  # open in the notebook's kernel for each task (measured: 17 for 2 tasks, 29 for 6)
_SPARE_FILES = 40  # for other files that are opened meanwhile: libraries, the page's channels, ports
_ADDRESS_BYTES = 3_700_000_000  # of a task that trains (measured: it dies at 3.0 GB and lives at 4.0)
_ADDRESS = "127.0.0.1"  # where tasks listen
_CONNECT_S = 1.0
_BEFORE = "   before Jupyter is started"
_TRIED_PORTS = 64  # the system's search for a free port takes seconds for thousands of them


def forks(case: Case) -> Iterator[Finding]:
    """Check whether tasks are forked from the process that has imported TensorFlow, if one runs here."""
    for obstacle in dict.fromkeys(launcher.obstacle for launcher in launcher_client.running()):
        if obstacle:
            yield note("each task imports TensorFlow itself", not_forked(obstacle))


def private_parts(case: Case) -> Iterator[Finding]:
    """Report what the launchers found of the private parts of TensorFlow and Keras on which tasks rely."""
    count, what = len(patches.TABLE.rows), "private parts of TensorFlow and Keras"
    found = [launcher.left_out for launcher in launcher_client.running() if launcher.left_out is not None]
    if found:
        yield parts_finding(what, count, list(dict.fromkeys(line for left_out in found for line in left_out)))
    else:
        yield Finding(f"{what}: {count}; the first start checks them, and leaves out what does not fit")


def memory_room(case: Case) -> Iterator[Finding]:
    """Check whether the tasks fit into memory, as a start does."""
    warm, task_bytes = launcher_client.is_warm(case.task_settings.flavour), case.setting("task_bytes")
    free, total = memory.free_bytes(), memory.limit_bytes()
    what = f"memory: {format_bytes(free)} of {format_bytes(total)} free"
    if case.running:
        yield Finding(what)
        return
    try:
        task_settings.check_memory(case.shape, task_bytes, warm)
    except LaunchError as error:
        yield refused(what, str(error))
        return
    needed = task_settings.needed_bytes(case.shape, task_bytes, warm)
    fits = len(case.shape.tasks) + (free - needed) // max(task_bytes, 1)
    yield Finding(
        f"{what}; {case.shape} take {format_bytes(needed)} to begin with, and up to {fits} tasks fit"
    )


def options_of_tasks(case: Case) -> Iterator[Finding]:
    """Check whether this machine lets tasks obey their options, as a start does."""
    if problem := process_options.find_problem(case.task_settings.of_process):
        yield refused("an option of the tasks is forbidden here", problem)


def cores(case: Case, cgroups: Path = _CGROUPS) -> Iterator[Finding]:
    """Check whether tasks will share cores, and whether a container allows fewer cores than it shows."""
    shown = len(os.sched_getaffinity(0))
    allowed = min(_cpu_quota(cgroups), shown)
    computing = sum(1 for task in case.shape.tasks if task.type != "ps")
    if allowed < shown:
        each = max(int(allowed // computing), 1)
        yield note(
            f"cores: {allowed:g} of {shown}, by a limit of the container",
            f"TensorFlow starts threads for {shown}, which then wait for each other:  "
            f"--env TF_NUM_INTRAOP_THREADS={each} --env TF_NUM_INTEROP_THREADS={each}",
        )
    elif computing > allowed:
        yield note(
            f"cores: {shown}",
            f"{computing} tasks share them: right for trying out, slower than fewer tasks for training:  "
            f"--workers {int(allowed)}",
        )
    else:
        yield Finding(f"cores: {shown}")


def _cpu_quota(cgroups: Path) -> float:
    """Return the cores that the control groups allow, or infinity (cgroup-v2.rst, cpu.max; sched-bwc.rst)."""
    found = [float("inf")]
    for folder in memory.cgroup_folders(cgroups, "cpu"):
        words = read_text(folder / "cpu.max").split()
        words = words or [read_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
        if len(words) == 2 and all(word.isdigit() for word in words):
            found.append(int(words[0]) / int(words[1]))
    return min(found)


def gpus(case: Case) -> Iterator[Finding]:
    """Check which GPUs the tasks will see, and whether this TensorFlow can use them."""
    present, seen = task_settings.visible_gpus({}), task_settings.visible_gpus(case.environ)
    task = task_settings.computing_tasks(case.shape)[0]  # the others get as many
    try:
        task_settings.assign_gpus(task, case.shape, seen, case.task_settings.gpus_per_task)
    except ClusterSpecError as error:
        yield refused(f"GPUs: {len(seen)}", str(error))
        return
    if not present:
        yield Finding("no GPU: tasks compute on the processor")
        return
    found = list(_gpu_problems(case, present, seen))
    yield from found or [Finding(f"GPUs: {len(seen)} of {len(present)}")]


def _gpu_problems(case: Case, present: list[str], seen: list[str]) -> Iterator[Finding]:
    what = f"GPUs: {len(seen)} of {len(present)}"
    if len(seen) < len(present):
        value = case.environ.get("CUDA_VISIBLE_DEVICES", "")
        yield note(
            f"{what}: CUDA_VISIBLE_DEVICES is {value!r}",
            f"tasks see no others. For all:  {Step('unset', 'CUDA_VISIBLE_DEVICES')}",
        )
    if not seen:
        return
    restart = in_notebook(", then restart the kernel")
    fix = f"tasks compute on the processor:  pip install 'tensorflow[and-cuda]'{restart}"
    if not built_with_cuda():
        yield note(f"{what}, and this TensorFlow is built without CUDA", fix)
    elif not has_cuda_libraries():
        yield note(f"{what}, and CUDA's libraries are missing", fix)
    computing = len(task_settings.computing_tasks(case.shape))
    if computing > len(seen):
        share = f"{computing} tasks share them and their memory; one for each:  --workers {len(seen)}"
        yield note(what, share)


def built_with_cuda() -> bool:
    """Return whether TensorFlow was built with CUDA, by the file about its build; True without that file."""
    spec = importlib.util.find_spec("tensorflow")
    folders = spec.submodule_search_locations or () if spec else ()
    texts = [read_text(Path(folder, "python/platform/build_info.py")) for folder in folders]
    return not any("'is_cuda_build', False" in text for text in texts)


def has_cuda_libraries(cache: Path = Path("/etc/ld.so.cache")) -> bool:
    """Look for the CUDA runtime: in wheels, in the loader's cache, and on LD_LIBRARY_PATH."""
    if any((d.metadata["Name"] or "").startswith("nvidia-cuda-runtime") for d in distributions()):
        return True
    folders = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    if any(any(Path(folder).glob("libcudart.so*")) for folder in folders):
        return True
    try:
        return b"libcudart.so" in cache.read_bytes()
    except OSError:
        return False


def open_files(case: Case) -> Iterator[Finding]:
    """Check the limit of open files.

    The kernel holds the most. A task needs about 15, and the leader one more for each task.
    """
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if case.running or limit == resource.RLIM_INFINITY:
        return
    tasks = len(case.shape.tasks)
    needed = len(os.listdir("/proc/self/fd")) + _KERNEL_FILES * tasks + _SPARE_FILES
    if needed <= limit:
        return
    fix: object = f"ulimit -n {2 * needed}{in_notebook(_BEFORE)}"
    if hard == resource.RLIM_INFINITY or needed <= hard:
        fix = Step(
            "limit open files", 2 * needed if hard == resource.RLIM_INFINITY else min(2 * needed, hard), hard
        )
    yield trouble(f"open files: at most {limit}", f"{tasks} tasks need about {needed}:  {fix}")


def threads(case: Case, cgroups: Path = _CGROUPS) -> Iterator[Finding]:
    """Check the limits of threads: the user's (root has none, see setrlimit(2)) and the container's."""
    tasks = len(case.shape.tasks)
    needed = _THREADS * tasks
    for left, whose, option in [] if case.running else _thread_limits(needed, cgroups):
        if left < needed:
            where = in_notebook(", where Jupyter is started")
            fits = f"Up to {left // _THREADS} tasks fit; or{where}:  {option} {2 * needed}"
            yield trouble(
                f"threads: {left} of {whose} are left",
                f"{tasks} tasks with TensorFlow's servers need about {needed}. {fits}",
            )


def _thread_limits(needed: int, cgroups: Path) -> Iterator[tuple[int, str, str]]:
    """Yield how many threads are left by each limit, the limit's name, and the option that raises it."""
    limit, words = resource.getrlimit(resource.RLIMIT_NPROC)[0], read_text(Path("/proc/loadavg")).split()
    # of the machine (proc(5)): no user has more, and it is cheap
    threads = int(words[3].partition("/")[2]) if len(words) > 3 else 1 << 30
    if os.geteuid() != 0 and limit != resource.RLIM_INFINITY and limit < needed + threads:
        yield max(limit - _own_threads(), 0), f"the user's {limit}", "ulimit -u"
    limits = []
    for folder in memory.cgroup_folders(cgroups, "pids"):
        most, used = (read_text(folder / name).strip() for name in ("pids.max", "pids.current"))
        if most.isdigit() and used.isdigit():
            limits.append((max(int(most) - int(used), 0), f"the container's {most}"))
    if limits:
        yield *min(limits), "docker run --pids-limit"


def _own_threads() -> int:
    found = [process.info for process in psutil.process_iter(["uids", "num_threads"])]
    return sum(p["num_threads"] or 0 for p in found if p["uids"] and p["uids"].real == os.getuid())


def address_space(case: Case) -> Iterator[Finding]:
    """Check the limit of virtual memory, which some shared machines set."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _ADDRESS_BYTES:
        yield trouble(
            f"virtual memory: at most {format_bytes(limit)} a process",
            f"a task takes {format_bytes(_ADDRESS_BYTES)} of addresses, most of it never used, and crashes "
            f"in native code without:  ulimit -v unlimited{in_notebook(_BEFORE)}",
        )


def loopback(case: Case) -> Iterator[Finding]:
    """Check that there is a port for every task, and that one can be connected to."""
    if case.running:
        return
    tasks = case.shape.tasks
    try:
        HeldPorts(tasks[:_TRIED_PORTS]).close()
        reason = "" if len(tasks) <= _count_ports() else f"the system hands out {_count_ports()}"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        fix = f"end what holds them, or ask for fewer tasks:  {Step('type', 'ss -tan | wc -l')}"
        yield refused(f"no port for each of {len(tasks)} tasks ({reason})", fix)
        return
    if case.task_settings.isolate or case.task_settings.network:  # the tasks get a loopback of their own
        return
    with socket.create_server((_ADDRESS, 0)) as server:
        try:
            socket.create_connection(server.getsockname(), _CONNECT_S).close()
        except OSError as error:
            fix = "tasks cannot reach each other: bring the loopback interface up:  ip link set lo up"
            yield trouble(f"nothing can connect to {_ADDRESS} ({error.strerror or error})", fix)
            return
    yield Finding(f"network: {_ADDRESS}, with a port for each of {len(tasks)} tasks")


def simulated_hosts(case: Case) -> Iterator[Finding]:
    """Try whether this machine can simulate the hosts and links that the shape asks for."""
    request = case.task_settings.network
    if request is None or case.running:
        return
    what = f"simulated hosts: {request.hosts}, link {request.link}"
    with tempfile.TemporaryDirectory() as folder:
        hosts = SimulatedHosts(case.shape.tasks, request, Path(folder) / "hosts")
        try:
            hosts.wait_until_made()
            yield Finding(what)
            hosts.set_link(Link(latency_s=0.001))
        except LaunchError as error:
            yield refused(what, str(error))
        except ClusterSpecError as error:
            if request.link.needs_netem:
                yield refused(what, str(error))
            else:
                yield Finding("simulated hosts: rates and partitions; this Linux has no latency and loss")
        finally:
            hosts.close()


def _count_ports(limits: Path = Path("/proc/sys/net/ipv4/ip_local_port_range")) -> int:
    """Return the number of ports that the system assigns by itself (ip(7))."""
    words = read_text(limits).split()
    return int(words[1]) - int(words[0]) + 1 if len(words) == 2 else 1 << 16


def proxy(case: Case) -> Iterator[Finding]:
    """Name a proxy for web pages; a start excludes the tasks' addresses from it."""
    name = task_settings.proxy_variable(case.environ)
    if name:
        yield Finding(f"{name} is set: tasks connect to each other past it, and to the world through it")
