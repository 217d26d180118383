"""Launchers from a template: what a kernel shares with another one, and what it does not.

See also test_cleanup, which ends kernels of both kinds, and tests/task/test_import_record.
"""

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from conftest import ENDED_S, alive, wait_until
from snippets import snippets

from tfmagic.backends import launcher_client, templates
from tfmagic.clusters.launch.settings import TFCluster
from tfmagic.runs import warm_folder
from tfmagic.system.inherited_facts import inherited_facts
from tfmagic.system.process_identity import identify

KERNEL = """
import json, os, sys
import tfmagic
from tfmagic.backends import launcher_client, templates

templates.join(int(sys.argv[1]), float(sys.argv[2]))
cluster = tfmagic.Cluster(workers=1).start()
(launcher,) = launcher_client.running()
answer = {"pids": launcher.own_pids(), "is_borrowed": isinstance(launcher.process, templates.PidfdProcess)}
answer["task"] = cluster.run(os.getpid, view="quiet")["worker-0"]
while True:
    print(json.dumps(answer), flush=True)
    code = json.loads(sys.stdin.readline())
    names = {"__name__": "__main__"}
    exec(code, names)
    answer = cluster.run(names["look"], view="quiet")["worker-0"]
"""


class Kernel:
    """A process with a cluster of one worker, which asks the templates of an owner."""

    def __init__(self, owner, idle_s=600, cwd=None, prefix=(), before="", **options):
        command = [*prefix, sys.executable, "-c", before + KERNEL, str(owner), str(idle_s)]
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, text=True, cwd=cwd, **streams, **options)
        try:
            said = json.loads(self.process.stdout.readline())
            self.task, self.is_borrowed, self.pids = said["task"], said["is_borrowed"], said["pids"]
            self.parent = psutil.Process(self.pids["reaper"]).ppid()
        except BaseException:
            with self.process:
                self.process.kill()
            raise

    @property
    def below(self):
        return {*self.pids.values(), self.task}

    def look(self, function_source):
        """Run a function `look` on the task."""
        self.process.stdin.write(json.dumps(textwrap.dedent(function_source)) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


class Owner:
    """A process that allows templates, as a Jupyter server does."""

    def __init__(self):
        self.process = subprocess.Popen(["sleep", "1000"])
        self.identity = identify(self.process.pid)
        warm_folder.announce(self.identity, 600)
        self.pid = self.process.pid

    @property
    def templates(self):
        return [warm for warm in warm_folder.find(warm_folder.state_dir()) if warm.owner == self.identity]

    def close(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def owner(state_dir):
    made = Owner()
    yield made
    made.close()
    wait_until(lambda: not made.templates, ENDED_S)


@pytest.fixture
def kernel(owner):
    with Kernel(owner.pid) as made:
        assert made.is_borrowed
        yield made


def only(found):
    (one,) = found
    return one


STATE = """
def look():
    import os, resource, signal, sys
    from tfmagic.system.inherited_facts import inherited_facts

    own = ("TF_CONFIG", "TFMAGIC_LAUNCHER")
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    kinds = [os.readlink(link).partition(":")[0] for link in links if os.path.exists(link)]
    return {
        "environ": {name: value for name, value in os.environ.items() if name not in own},
        "facts": {name: value for name, value in inherited_facts().items()},
        "cwd": os.getcwd(),
        "path": sys.path,
        "stdin": os.readlink("/proc/self/fd/0"),
        "fds": sorted(kind for kind in kinds if not kind.startswith("/")),
        "leads": os.getsid(0) == os.getpid() == os.getpgid(0),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "sigint": signal.getsignal(signal.SIGINT).__class__.__name__,
        "argv": sys.argv,
        "modules": sorted(name for name in sys.modules if name.split(".")[0] in ("tensorflow", "keras", "IPython")),
    }
"""


def test_a_task_is_as_one_whose_kernel_has_a_launcher_of_its_own(owner, tmp_path):
    """What a fork inherits is the kernel's: variables, folder, limits, session, signals, open files."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    environ = {**os.environ, "JPY_SESSION_NAME": "a.ipynb"}
    with Kernel(owner.pid, cwd=tmp_path / "first", env=environ) as first:
        assert first.is_borrowed
        environ = {**environ, "JPY_SESSION_NAME": "b.ipynb"}
        options = {"cwd": tmp_path / "second", "env": environ}
        with Kernel(owner.pid, **options) as borrowed, Kernel(owner.pid, idle_s=0, **options) as own:
            assert borrowed.parent == first.parent == only(owner.templates).process.pid
            assert not own.is_borrowed and own.parent == own.process.pid
            seen, expected = borrowed.look(STATE), own.look(STATE)
    assert seen.pop("modules") == expected.pop("modules")
    assert seen["environ"]["JPY_SESSION_NAME"] == "b.ipynb" and seen["cwd"].endswith("second")
    assert seen == expected


def test_processes_of_a_kernel_carry_its_mark_and_no_other(kernel, owner):
    """By it they are found if reaper and launcher were killed together."""
    with Kernel(owner.pid) as other:
        marks = []
        for pids in (kernel.below, other.below, {kernel.parent}):
            environs = [Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in pids]
            marks.append(
                {line for lines in environs for line in lines if line.startswith(b"TFMAGIC_LAUNCHER=")}
            )
    assert [len(found) for found in marks] == [1, 1, 1] and len(set.union(*marks)) == 3


def test_a_killed_kernel_takes_its_task_and_no_other_along(kernel, owner):
    with Kernel(owner.pid) as other:
        other.process.kill()
        wait_until(lambda: not alive(other.below), ENDED_S)
        assert alive(kernel.below) == kernel.below and kernel.look("def look(): return 'works'") == "works"
        assert alive({kernel.parent})


def test_a_killed_launcher_takes_nothing_of_another_kernel_along(kernel, owner):
    with Kernel(owner.pid) as other:
        os.kill(other.pids["launcher"], signal.SIGKILL)
        wait_until(lambda: not alive(other.below), ENDED_S)
        assert kernel.look("def look(): return 'works'") == "works"


def test_a_task_has_no_connection_of_another_kernel(kernel, owner):
    """The sockets of a task, its launcher and its reaper have their other ends in this kernel alone."""
    inodes = """
    def look():
        import os
        parent = os.getppid()
        fds = [f"/proc/{pid}/fd/{fd}" for pid in (parent, "self") for fd in os.listdir(f"/proc/{pid}/fd")]
        links = [os.readlink(fd) for fd in fds if os.path.lexists(fd)]
        return sorted(link for link in links if link.startswith("socket:"))
    """
    with Kernel(owner.pid) as other:
        assert other.parent == kernel.parent
        assert not set(kernel.look(inodes)) & set(other.look(inodes))


def test_a_module_that_hides_one_of_tensorflows_is_imported(owner, kernel, tmp_path):
    (tmp_path / "wrapt.py").write_text("raise ImportError('the module of the notebook')")
    with Kernel(owner.pid) as same:
        assert same.parent == kernel.parent
    command = [sys.executable, "-c", KERNEL, str(owner.pid), "600"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "the module of the notebook" in done.stderr
    assert kernel.parent == only(owner.templates).process.pid, "it serves other folders as before"


def test_a_template_that_does_not_answer_is_not_waited_for(owner, kernel):
    psutil.Process(kernel.parent).suspend()
    try:
        with Kernel(owner.pid) as other:
            assert not other.is_borrowed
    finally:
        psutil.Process(kernel.parent).resume()
    with Kernel(owner.pid) as other:
        assert other.parent == kernel.parent


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_is_refused(owner, kernel):
    """Also one that the permissions of the folder let in."""
    code = (
        "import ctypes, os, socket, sys; os.seteuid(65534); ctypes.CDLL(None).setfsuid(0); "
        "sock = socket.socket(socket.AF_UNIX); sock.settimeout(20); sock.connect(sys.argv[1]); print(sock.recv(1))"
    )
    folder, name = os.path.split(only(owner.templates).place.path)  # together too long for a socket's path
    command = [sys.executable, "-c", code, name]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "b''", done.stderr
    assert kernel.look("def look(): return 1") == 1


SANDBOX = (
    "unshare",
    "--net",
    "--uts",
    *(() if os.getuid() == 0 else ("--map-root-user",)),
    "setpriv",
    "--no-new-privs",
)
FORGES = """
import json, sys
from tfmagic.backends import templates
from tfmagic.system import namespaces

namespaces.start_loopback()
facts = json.loads(sys.argv.pop())
templates.inherited_facts = lambda: facts  # says that it is outside
"""


def test_a_sandbox_gets_no_task_outside_of_itself(owner, kernel):
    """Whatever a process says of itself: another network, and no further rights, are read from the system."""
    where = """
    def look():
        import os
        lines = open("/proc/self/status").read().splitlines()
        return [os.readlink("/proc/self/ns/net"), *[line for line in lines if line.startswith("NoNewPrivs")]]
    """
    outside = kernel.look(where)
    before = f"import sys; sys.argv.append({json.dumps(inherited_facts())!r})\n{FORGES}"  # those of `kernel`
    with Kernel(owner.pid, prefix=SANDBOX, before=before) as other:
        assert not other.is_borrowed and len(owner.templates) == 1
        net, privileges = other.look(where)
        assert net != outside[0] and privileges.split()[1] == "1" and outside[1].split()[1] == "0"


@contextlib.contextmanager
def changed(fact):
    """Change what later processes of this one inherit."""
    if fact == "umask":
        before = os.umask(0o027)
        yield
        os.umask(before)
    elif fact == "limit of open files":
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
        yield
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    else:
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(cores)})
        yield
        os.sched_setaffinity(0, cores)


@pytest.mark.parametrize("fact", ["umask", "limit of open files", "cores"])
def test_what_was_set_after_the_import_is_that_of_the_next_tasks(notebook, fact):
    notebook.run("%%tfcluster --workers 1\n1")
    flavour = launcher_client.running()[0].flavour
    assert launcher_client.is_warm(flavour)
    with changed(fact):
        assert not launcher_client.is_warm(flavour), "this launcher's tasks have another one"
    assert launcher_client.is_warm(flavour)


CHANGES = {
    "session keyring": "libc.syscall({'x86_64': 250, 'aarch64': 219}[platform.machine()], 1, None)",  # join a new one
    "timer slack": "libc.prctl(29, ctypes.c_ulong(123_000), 0, 0, 0)",
    "memory policy": "libc.syscall({'x86_64': 238, 'aarch64': 237}[platform.machine()], 2,"
    " ctypes.byref(ctypes.c_ulong(1)), ctypes.c_ulong(64))",  # bind to the first node
}


@pytest.mark.parametrize("fact", CHANGES)
def test_what_a_process_alone_knows_of_itself_is_among_what_it_has_inherited(fact):
    program = (
        "import ctypes, json, os, platform\nfrom tfmagic.backends import templates\n"
        "from tfmagic.system.inherited_facts import inherited_facts\nlibc = ctypes.CDLL(None)\n"
        "def look():\n    return inherited_facts(), templates.Environment({}, ()).digest\n"
        f"before, change, after = look(), {CHANGES[fact]}, look()\n"
        "child = os.fork()\n"
        "if child == 0:\n    os._exit(look() != after)\n"
        "names = [n for n in after[0] if after[0][n] != before[0].get(n)]\n"
        "print(json.dumps([change, names, before[1] != after[1], os.waitpid(child, 0)[1]]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    change, names, is_other, child = json.loads(done.stdout)
    if change == -1:
        pytest.skip("the system refuses the change")
    assert (names, is_other, child) == ([fact], True, 0)


def test_bytes_that_are_not_ours_end_only_their_connection(owner, kernel):
    folder, name = os.path.split(only(owner.templates).place.path)
    at = os.open(folder, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(20)
        sock.connect(f"/proc/self/fd/{at}/{name}")
        os.close(at)
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert sock.recv(1) == b""
    with Kernel(owner.pid) as other:
        assert other.parent == kernel.parent


def test_a_killed_template_leaves_its_kernels_alone_and_another_one_takes_its_place(owner, kernel):
    os.kill(kernel.parent, signal.SIGKILL)
    with Kernel(owner.pid) as other:
        assert other.is_borrowed and other.parent == only(owner.templates).process.pid != kernel.parent
        assert kernel.look("def look(): return 'works'") == "works"
        kernel.process.kill()
        wait_until(lambda: not alive(kernel.below), ENDED_S)


def test_a_package_that_was_installed_meanwhile_makes_a_new_import(owner, tmp_path):
    (tmp_path / "old.dist-info").mkdir()
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    environ = {**os.environ, "PYTHONPATH": path}
    with Kernel(owner.pid, env=environ) as before:
        with Kernel(owner.pid, env=environ) as same:
            assert same.parent == before.parent
        (tmp_path / "new.dist-info").mkdir()
        with Kernel(owner.pid, env=environ) as after:
            assert after.is_borrowed and after.parent != before.parent
        wait_until(lambda: not alive({before.parent}), ENDED_S)
        assert before.look("def look(): return 'works'") == "works"


THREAD = """
import threading
__version__, error, Decompressor = "1.2.0", OSError, object
threading.Thread(target=threading.Event().wait, name="metrics", daemon=True).start()
"""


def test_a_template_in_which_a_thread_runs_forks_one_launcher_whose_tasks_are_no_forks(owner, tmp_path):
    """A package starts the thread when TensorFlow imports it: a fork of the thread's process is not safe."""
    (tmp_path / "brotli.py").write_text(THREAD)  # which urllib3 imports, and TensorFlow that
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    look = """
    def look():
        import threading
        names = [thread.name for thread in threading.enumerate()]
        return [names.count("metrics"), b"run_task" in open("/proc/self/cmdline", "rb").read()]
    """
    before = {warm.process.pid for warm in owner.templates}
    with Kernel(owner.pid, env={**os.environ, "PYTHONPATH": path}) as kernel:
        assert kernel.is_borrowed and kernel.look(look) == [1, True]
        wait_until(lambda: {warm.process.pid for warm in owner.templates} <= before, ENDED_S)
        assert psutil.Process(kernel.pids["launcher"]).num_threads() == 1


LATE = """
import os, select
from tfmagic.task import reaper

kernel = os.pidfd_open(os.getpid())
told, tell = os.pipe()
if (template := os.fork()) == 0:
    template = os.pidfd_open(os.getpid())
    if os.fork() == 0:
        select.select([template], [], [])
        reaper.split_off(kernel)
        os.write(tell, b"launcher")
    os._exit(0)
os.waitpid(template, 0)
os.close(tell)
print(os.read(told, 99).decode())
"""


def test_a_launcher_whose_template_ends_before_it_is_set_up_lives():
    """As one does that was forked when the template was about to end: four of 24 under load."""
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=60)
    assert done.stdout == "launcher\n", done


def test_a_template_ends_with_its_owner_and_kernels_with_theirs(state_dir):
    """The owner is killed while the template imports, and while a kernel uses it."""
    brief = Owner()
    command = [sys.executable, "-c", KERNEL, str(brief.pid), "600"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        wait_until(lambda: brief.templates)
        brief.close()
        wait_until(lambda: not brief.templates, ENDED_S)
        said = json.loads(process.stdout.readline())
        assert not said["is_borrowed"], "it starts a launcher of its own"
        process.kill()
    assert not warm_folder.warm_folder(brief.identity).exists()


def test_a_template_that_hangs_in_its_import_is_not_waited_for(state_dir):
    """It is stopped in the middle; its kernel imports TensorFlow itself, and names it."""
    assert TFCluster.start_timeout_s.default_value > 2 * templates._IMPORT_S, "a start has time for its own"
    brief = Owner()
    hurried = "from tfmagic.backends import templates; templates._IMPORT_S = 1.0\n"
    command = [sys.executable, "-c", hurried + KERNEL, str(brief.pid), "600"]
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, **streams) as process:
        try:
            (warm,) = wait_until(lambda: brief.templates)
            warm.process.signal(signal.SIGSTOP)
            said = json.loads(process.stdout.readline())
            assert not said["is_borrowed"] and alive({warm.process.pid})
        finally:
            process.kill()
            errors = process.communicate()[1].decode()
            brief.close()
            warm.process.kill()
    assert f"pid {warm.process.pid}, which imports TensorFlow" in errors and "kill -9" in errors
    warm_folder.tidy(state_dir)


def test_a_template_without_a_kernel_ends_when_its_time_is_over(state_dir):
    brief = Owner()
    try:
        with Kernel(brief.pid, idle_s=0.1) as kernel:
            template = kernel.parent
            assert kernel.is_borrowed and alive({template}), "a kernel uses it"
        wait_until(lambda: not alive({template, *kernel.below}), ENDED_S)
    finally:
        brief.close()


def test_an_owner_that_has_not_allowed_it_has_no_template(state_dir):
    """As a server without the extension, or one that switches it off."""
    brief = Owner()
    try:
        warm_folder.withdraw(brief.identity)
        with Kernel(brief.pid) as kernel:
            assert not kernel.is_borrowed and not brief.templates
    finally:
        brief.close()


def test_the_name_of_an_environment_stands_for_what_an_import_can_see(monkeypatch):
    def digest(environ, *preload):
        return templates.Environment(environ, preload).digest

    base = {"PATH": "/bin", "JPY_SESSION_NAME": "a.ipynb"}
    assert digest(base) == digest({**base, "JPY_SESSION_NAME": "b.ipynb", "SHLVL": "2"})
    others = {
        digest(base),
        digest({**base, "TF_ANY": "1"}),
        digest({"PATH": "/usr/bin"}),
        digest(base, "pytest"),
    }
    before = os.umask(0o027)
    try:
        others.add(digest(base))
    finally:
        os.umask(before)
    monkeypatch.setattr("tfmagic.backends.templates.VERSION", "0.0.1")
    others.add(digest(base))
    assert len(others) == 6


CELL = "%%tfcluster --workers 2 --view text\nimport tensorflow as tf; tf.constant(1) + 1"
WHO = """
import json, os, psutil
from tfmagic.backends import launcher_client
(launcher,) = launcher_client.running()
pids = launcher.own_pids()
below = [child.pid for child in psutil.Process(pids["reaper"]).children(recursive=True)]
print(json.dumps({"template": psutil.Process(pids["reaper"]).ppid(), "all": [os.getpid(), pids["reaper"], *below]}))
"""


def start_and_look(run):
    run("%load_ext tfmagic")
    assert "numpy=2" in run(CELL)
    return json.loads(run(WHO))


def test_a_restarted_kernel_of_a_jupyter_server_starts_from_its_template(tmp_path):
    from jupyter_server_process import OURS, JupyterServerProcess

    with JupyterServerProcess(tmp_path, OURS) as server:
        kernel = server.start_kernel()
        with server.client(kernel) as run:
            first = start_and_look(run)
        server.restart_kernel(kernel)
        with server.client(kernel) as run:
            second = start_and_look(run)
            assert first["template"] == second["template"], "TensorFlow was imported once"
            assert "template.main" in " ".join(psutil.Process(first["template"]).cmdline())
            wait_until(lambda: not alive(first["all"]), ENDED_S)
            everyone = {second["template"], *second["all"]}
            assert len(alive(everyone)) == 6, "template, kernel, reaper, launcher, two tasks"
            server.process.kill()
            wait_until(lambda: not alive(everyone), 1 + ENDED_S)  # a kernel looks once a second


@pytest.mark.soak  # an owner that ends: above; here it is a server, and another one follows
def test_a_jupyter_server_that_was_started_again_has_a_template_of_its_own(tmp_path):
    from jupyter_server_process import OURS, JupyterServerProcess

    found = []
    for _ in range(2):
        with JupyterServerProcess(tmp_path, OURS) as server:
            with server.client(server.start_kernel()) as run:
                found.append(start_and_look(run)["template"])
            server.process.send_signal(signal.SIGTERM)
            server.process.wait(30)
        wait_until(lambda: not alive(found), ENDED_S)
    assert len(set(found)) == 2


def test_a_jupyter_server_keeps_a_template_as_long_as_it_is_told(tmp_path):
    from jupyter_server_process import OURS, JupyterServerProcess

    (line,) = snippets("docs/quick-starts.md", "python")
    for seconds in ("3600", "0"):
        (tmp_path / "jupyter_server_config.py").write_text(line.code.replace("3600", seconds))
        with JupyterServerProcess(tmp_path, OURS) as server:
            owner = identify(server.process.pid)
            assert b"metrics and logs" in (tmp_path / "server.log").read_bytes()
            assert warm_folder.announced_idle_s(owner) == float(seconds)


def test_scripts_start_from_the_process_that_tfmagic_warm_keeps(tmp_path):
    """By the commands of the page."""
    (tmp_path / "train.py").write_text("import psutil\nprint([p.pid for p in psutil.Process().parents()])")

    def tool(words):
        environ = {**os.environ, "TFMAGIC_STATE_DIR": str(tmp_path / "state")}
        command = [sys.executable, "-m", "tfmagic", *words.split()]
        return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)

    (block,) = snippets("docs/quick-starts.md", "bash")
    lines = [line.partition("#")[0].removeprefix("tfmagic ") for line in block.code.splitlines()]
    to_warm, to_run, to_see, to_end = lines
    warm = tool(to_warm)
    try:
        assert warm.returncode == 0, warm.stderr
        (pid,) = (int(word) for word in warm.stdout.split() if word.isdecimal())
        assert alive({pid})
        again = tool(to_warm)
        assert again.returncode == 1 and "imported already" in again.stderr
        assert f"TensorFlow is imported in pid {pid}" in tool(to_see).stdout
        for _ in range(2):
            done = tool(to_run)
            assert done.returncode == 0 and f" {pid}," in done.stdout, done.stdout + done.stderr
        assert f"would end: TensorFlow is imported in pid {pid}" in tool("reap --dry-run").stdout
        assert alive({pid})
    finally:
        reap = tool(to_end)
    assert f"ended: TensorFlow is imported in pid {pid}" in reap.stdout
    wait_until(lambda: not alive({pid}), ENDED_S)
    assert "TensorFlow is imported" not in tool(to_see).stdout
    assert tool("warm --minutes 0").returncode == 2


@pytest.mark.parametrize("kind", ["deleted", "damaged", "another's"])
def test_a_template_that_no_command_finds_ends(tmp_path, kind):
    base = tmp_path / "state"
    command = [sys.executable, "-m", "tfmagic", "warm", "--minutes", "10"]
    environ = {**os.environ, "TFMAGIC_STATE_DIR": str(base)}
    subprocess.run(command, cwd=tmp_path, env=environ, check=True, capture_output=True, timeout=120)
    (warm,) = warm_folder.find(base)
    note = Path(f"{warm.place.path}.json")
    if kind == "deleted":
        shutil.rmtree(base)
    else:
        other = json.dumps(json.loads(note.read_text()) | identify(os.getpid()).as_json())
        note.write_text("{" if kind == "damaged" else other)
    try:
        wait_until(lambda: not warm.process.alive, 2 * ENDED_S)
    finally:
        warm.process.kill()
    assert note.exists() == (kind == "another's")


def test_an_import_that_fails_is_reported_by_tfmagic_warm(tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('broken build of TensorFlow')")
    environ = {**os.environ, "TFMAGIC_STATE_DIR": str(tmp_path / "state"), "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "tfmagic", "warm"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "broken build of TensorFlow" in done.stderr
    assert not warm_folder.find(tmp_path / "state")
