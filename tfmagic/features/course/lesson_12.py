"""Lesson 12: off to real machines."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tfmagic.features.course.exercises import Answers, exercise, expect


@exercise(
    "12.1",
    "TF_CONFIG of a cluster without a chief: worker-0 acts as chief.",
    'json.loads(os.environ["TF_CONFIG"])["task"] has the type and the index of this process.',
)
def _(answers: Answers) -> None:
    saved = Path(answers.text("saved"))
    codes = answers.value("codes", list, "the exit codes of the two processes")
    expect(codes == [0, 0], "a process has failed; its error is above.")
    files = sorted(path for path in saved.rglob("*") if path.is_file())
    names = [path.name for path in files]
    expect(files, "nothing was saved in the folder, which is the script's first argument.")
    expect(names != ["result.json"] * 2, "both workers have saved; only the chief should.")
    expect(names == ["result.json"], f"there should be result.json alone, and there is {', '.join(names)}.")
    try:
        found = json.loads(files[0].read_text())
    except ValueError:
        found = None
    expect(isinstance(found, dict), "result.json should be a dictionary in JSON.")
    expect(found.get("by") != 1, "the worker that is not the chief has saved.")
    expect(found.get("by") == 0, '"by" should be the index of the worker that saves.')
    expect(found.get("workers") == 2, '"workers" should be the number of workers, from the cluster spec.')
    script = answers.text("script")
    three, with_chief = {"worker": ["a:1", "b:1", "c:1"]}, {"chief": ["a:1"], "worker": ["b:1", "c:1"]}
    with_server = {"ps": ["a:1"], "worker": ["b:1"]}
    for cluster, chief, said in (
        (three, ("worker", 0), "of three workers"),
        (with_chief, ("chief", 0), "of a chief and two workers"),
        (with_server, ("worker", 0), "of a parameter server and a worker"),
    ):
        results = _results_of(script, cluster)
        where = f"run by hand in a cluster {said},"
        expect(set(results) == {chief}, f"{where} {_names(results)} saved, and should be {_names([chief])}.")
        right = {"by": 0, "workers": len(cluster["worker"])}
        expect(results[chief] == right, f"{where} it saves {results[chief]} instead of {right}.")


@exercise(
    "12.2",
    'the cluster spec is {"chief": [one address], "worker": [the other addresses]}, equal for all.',
    "the first machine is chief 0; the second one is worker 0, the third one worker 1.",
)
def _(answers: Answers) -> None:
    configs: Any = answers.value("configs")
    expect(callable(configs), "`configs` should be a function of the hosts and the port.")
    for hosts, port in ((["alpha", "beta", "gamma"], 2222), (["10.0.0.5", "10.0.0.6"], 4000)):
        try:
            found = list(configs(list(hosts), port))
        except Exception as error:
            expect(False, f"it raises {type(error).__name__}: {error}")
        expect(len(found) == len(hosts), f"for {len(hosts)} machines it returns {len(found)} TF_CONFIGs.")
        expect(all(isinstance(text, str) for text in found), "TF_CONFIG is a text: json.dumps makes it.")
        try:
            parts = [json.loads(text) for text in found]
            clusters = [part["cluster"] for part in parts]
            tasks = [(part["task"]["type"], part["task"]["index"]) for part in parts]
        except (ValueError, TypeError, KeyError):
            expect(False, 'each should be in JSON, with the parts "cluster" and "task".')
        expect(all(cluster == clusters[0] for cluster in clusters), "the machines must agree on the cluster.")
        expect(tasks[0] == ("chief", 0), "the first machine should be the chief, with the index 0.")
        expect(
            tasks[1:] == [("worker", index) for index in range(len(hosts) - 1)],
            "the other machines are workers, and the indices of workers begin at 0.",
        )
        right = [f"{host}:{port}" for host in hosts]
        expect(
            clusters[0] == {"chief": right[:1], "worker": right[1:]},
            "the cluster spec does not have each address in its place.",
        )


@exercise(
    "12.3",
    "socket.create_connection((host, port), timeout=2) raises OSError if there is no connection.",
    "an address is a text: host, port = address.split(':'), and the port has to become an int.",
)
def _(answers: Answers) -> None:
    unreachable: Any = answers.value("unreachable")
    expect(callable(unreachable), "`unreachable` should be a function of a list of addresses.")
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        here, closed, also = (f"127.0.0.1:{server.getsockname()[1]}" for server in servers)
        for gone in servers[1:]:
            gone.close()
        for addresses, right in (
            ([here, closed], [closed]),
            ([here], []),
            ([closed, here, also], [closed, also]),
        ):
            try:
                said = list(unreachable(addresses))
            except Exception as error:
                expect(False, f"it raises {type(error).__name__}: {error}")
            expect(here not in said, "it returns an address that can be reached.")
            expect(said == right, "it does not return all addresses, as texts, that cannot be reached.")
    with _silent_address() as silent:
        said = []
        asking = threading.Thread(target=lambda: said.extend(unreachable([silent])), daemon=True)
        asking.start()
        asking.join(4)
        expect(not asking.is_alive(), "it waits longer than two seconds for a port that never answers.")
    expect(said == [silent], "it does not return the address of a port that never answers.")


def _results_of(script: str, cluster: dict[str, list[str]]) -> dict[tuple[str, int], Any]:
    """Run a script once for each task; return what is in the result.json of those that saved one."""
    found: dict[tuple[str, int], Any] = {}
    with tempfile.TemporaryDirectory(prefix="tfmagic-exercise-") as folder:
        path = Path(folder, "save.py")
        path.write_text(script)
        for kind, index in ((kind, n) for kind, addresses in cluster.items() for n in range(len(addresses))):
            own = Path(folder, f"{kind}-{index}")
            own.mkdir()
            config = json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
            environ = {**os.environ, "TF_CONFIG": config}
            try:
                done = subprocess.run(
                    [sys.executable, path, own], env=environ, capture_output=True, text=True, timeout=20
                )
            except subprocess.TimeoutExpired:
                expect(False, f"as {kind}-{index} of {cluster}, the script does not end within 20 s.")
            error = done.stderr.strip().splitlines()[-1:] or [""]
            expect(done.returncode == 0, f"as {kind}-{index} of {cluster}, the script fails: {error[0]}")
            if (own / "result.json").exists():
                found[kind, index] = json.loads((own / "result.json").read_text())
    return found


def _names(tasks: Any) -> str:
    return " and ".join(f"{kind}-{index}" for kind, index in tasks) or "no task"


@contextmanager
def _silent_address() -> Iterator[str]:
    """The address of a port that takes no connection and refuses none: its queue is full."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(server.getsockname())
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            for one in waiting:
                one.close()
