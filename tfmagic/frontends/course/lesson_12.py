"""Lesson 12: off to real machines."""

import json
import socket
from pathlib import Path
from typing import Any

from tfmagic.frontends.course.exercises import Answers, exercise, expect


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
            found = list(configs(hosts, port))
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
    with (
        socket.create_server(("127.0.0.1", 0)) as open_server,
        socket.create_server(("127.0.0.1", 0)) as gone,
    ):
        here, closed = (f"127.0.0.1:{server.getsockname()[1]}" for server in (open_server, gone))
        gone.close()
        for addresses, right in (([here, closed], [closed]), ([here], []), ([closed], [closed])):
            try:
                said = list(unreachable(addresses))
            except Exception as error:
                expect(False, f"it raises {type(error).__name__}: {error}")
            expect(here not in said, "it returns an address that can be reached.")
            expect(said == right, "it does not return all addresses, as texts, that cannot be reached.")
