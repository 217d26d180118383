"""Lesson 2: what a task is."""

import json
from typing import Any

from tfmagic.features.course.exercises import Answers, exercise, expect


@exercise(
    "2.1",
    'TF_CONFIG is a text in JSON: json.loads(os.environ["TF_CONFIG"]) is a dict.',
    'its part "task" has a type and an index; its part "cluster" has a list of addresses for each type.',
)
def _(answers: Answers) -> None:
    found = answers.results("addresses", "chief-0", "worker-0", "worker-1")
    for task, address in found.items():
        expect(
            isinstance(address, str),
            f"{task} should return one address as a text, not a value of type {type(address).__name__}.",
        )
        expect(":" in address, f"an address is a host and a port, as host:port; {task} returned {address!r}.")
    expect(len(set(found.values())) == 3, "each task has an address of its own: take the one of this task.")


@exercise(
    "2.2",
    "with a chief in the cluster, the chief leads; without one, worker-0 does.",
    "compare the type and the index of this task with those two cases.",
)
def _(answers: Answers) -> None:
    leads: Any = answers.value("leads")
    expect(callable(leads), "`leads` should be a function of a TF_CONFIG, given as a text.")
    with_chief = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}
    without = {"worker": ["b:1", "c:1"]}
    cases = [
        (with_chief, "chief", 0, True, "the chief of a cluster that has one"),
        (with_chief, "worker", 0, False, "worker-0 beside a chief"),
        (without, "worker", 0, True, "worker-0 of a cluster without a chief"),
        (without, "worker", 1, False, "worker-1 of a cluster without a chief"),
        (without | {"ps": ["d:1"]}, "ps", 0, False, "ps-0 of a cluster without a chief"),
        ({"ps": ["d:1"]} | without, "worker", 0, True, "worker-0 of a cluster with a parameter server"),
        ({"worker": ["b:1"], "chief": ["a:1"]}, "worker", 0, False, "worker-0 before a chief in the text"),
    ]
    for cluster, task_type, index, right, who in cases:
        config = json.dumps({"cluster": cluster, "task": {"type": task_type, "index": index}})
        try:
            said = leads(config)
        except Exception as error:
            expect(False, f"for {who} it raises {type(error).__name__}: {error}")
        expect(isinstance(said, bool), "it should return True or False.")
        expect(said is right, f"it is wrong about {who}.")


@exercise(
    "2.3",
    "all tasks must agree on the cluster: the lists must be equal, in the same order.",
    'an index counts from 0; every address is there once; the parts are called "cluster" and "task".',
)
def _(answers: Answers) -> None:
    configs: Any = answers.value("configs", list, "a list of two TF_CONFIGs, as dicts")
    expect(len(configs) == 2, "there are two workers, so two TF_CONFIGs.")
    for config in configs:
        expect(
            isinstance(config, dict) and set(config) == {"cluster", "task"}, "each has a cluster and a task."
        )
        expect(all(isinstance(part, dict) for part in config.values()), "cluster and task are dicts.")
    first, second = configs
    expect(first["cluster"] == second["cluster"], "the two do not agree on the cluster.")
    workers = first["cluster"].get("worker", [])
    expect(set(first["cluster"]) == {"worker"}, "there are workers only.")
    expect(isinstance(workers, list) and len(workers) == 2, "two workers need a list of two addresses.")
    expect(all(isinstance(address, str) for address in workers), "each address is a text.")
    hosts, ports = zip(*(address.partition(":")[::2] for address in workers), strict=True)
    expect(all(ports), "each address needs a port.")
    expect(sorted(hosts) == ["alpha", "beta"], "one worker runs on alpha and one on beta.")
    expect(ports == ("2222", "2222"), "both use port 2222.")
    tasks = [(config["task"].get("type"), config["task"].get("index")) for config in configs]
    expect(all(kind == "worker" for kind, _ in tasks), "both tasks are workers.")
    indices = [index for _, index in tasks]
    expect(all(index in (0, 1) for index in indices), "an index is a place in the list, and the first is 0.")
    expect(indices[0] != indices[1], "each task has an index of its own.")
    expect(indices == [0, 1], "the first of the two is for worker-0.")
    expect(hosts == ("alpha", "beta"), "worker-0 runs on alpha: its address is the first in the list.")
