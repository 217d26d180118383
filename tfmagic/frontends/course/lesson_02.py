"""Lesson 2: what a task is."""

import json
from typing import Any

from tfmagic.frontends.course.exercises import Answers, exercise, expect


@exercise(
    "2.1",
    'TF_CONFIG is a text in JSON: json.loads(os.environ["TF_CONFIG"]) is a dict.',
    'its part "task" has a type and an index; its part "cluster" has a list of addresses for each type.',
)
def _(answers: Answers) -> None:
    found = answers.results("addresses", "chief-0", "worker-0", "worker-1")
    for task, address in found.items():
        expect(isinstance(address, str), f"{task} should return a text.")
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
        (without, "worker", 1, False, "worker-1"),
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
    first, second = configs
    expect(first["cluster"] == second["cluster"], "the two do not agree on the cluster.")
    workers = first["cluster"].get("worker", [])
    expect(set(first["cluster"]) == {"worker"}, "there are workers only.")
    expect(len(workers) == 2, "two workers need two addresses.")
    expect(len(set(workers)) == 2, "two tasks cannot have one address.")
    expect(all(":" in address for address in workers), "each address needs a port.")
    tasks = [(config["task"].get("type"), config["task"].get("index")) for config in configs]
    expect(all(kind == "worker" for kind, _ in tasks), "both tasks are workers.")
    expect([index for _, index in tasks] == [0, 1], "indices count from 0, and each task has its own.")
