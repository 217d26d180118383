"""More answers to exercises than the lessons try: wrong ones that look right, and right ones in another style.

An answer that needs a cluster is given as the results that such a cell leaves.
"""

import json
import os
import subprocess
import sys

import pytest
from tensorboard.compat.proto.event_pb2 import Event

from tfmagic import course
from tfmagic.tfrecord import ShardWriter


class Results(dict):
    """As `--out` binds them."""

    seconds = 0


def on_two(first, second):
    return Results({"worker-0": first, "worker-1": second})


def faults(number, answers, **given):
    """Return what the check says to each answer: its source, or the variables that it has left."""
    said = []
    for answer in answers:
        found = dict(given)
        if isinstance(answer, dict):
            found |= answer
        else:
            exec(answer, found)
        said.append(course.find_fault(number, found))
    return said


def lambdas(name, arguments, bodies):
    return [f"import math\n{name} = lambda {arguments}: {body}" for body in bodies]


RING = "2 * (workers - 1) / workers * weights"
FUNCTIONS = {
    "2.2": (
        "leads",
        "text, loads=__import__('json').loads",
        (
            "loads(text)['task'] == {'type': list(loads(text)['cluster'])[0], 'index': 0}",
            "loads(text)['task']['type'] in ('chief', 'worker') and loads(text)['task']['index'] == 0",
            "loads(text)['task'] == {'type': sorted(loads(text)['cluster'])[0], 'index': 0}",
            "'chief' not in loads(text)['cluster'] and loads(text)['task']['index'] == 0",
            "int(loads(text)['task'] == {'type': 'chief', 'index': 0})",
            "'chief' in text",
        ),
        ("loads(text)['task'] == {'type': min(loads(text)['cluster'].keys() - {'ps'}), 'index': 0}",),
    ),
    "4.2": (
        "steps",
        "rows, batch",
        (
            "rows[-1] // batch",
            "rows[0] // batch",
            "round(min(rows) / batch)",
            "math.ceil(min(rows) / batch)",
            "max(rows) // batch",
            "min(rows) // batch * batch",
        ),
        ("min(map(lambda row: divmod(row, batch)[0], rows))", "__import__('numpy').min(rows) // batch"),
    ),
    "7.1": (
        "path_for",
        "folder, task, is_chief",
        (
            "f'{folder}/model.keras' if task.endswith('-0') else f'{folder}/{task}.keras'",
            "f'{folder}/model.keras' if is_chief else f'{folder}/other-{task[-1]}.keras'",
            "f'{folder}/model.keras' if is_chief else None",
            "f'{folder}/{task}/model.keras'",
            "f'{folder}/model' if is_chief else f'{folder}/{task}/model'",
            "f'{folder}/model.keras' if is_chief else f'{folder}/others/../model.keras'",
        ),
        (
            "f'{folder}/' + ('' if is_chief else task + '-') + 'model.keras'",
            "__import__('pathlib').Path(folder, *([] if is_chief else ['rest', task]), 'model.keras')",
        ),
    ),
    "5.1": (
        "plan",
        "workers",
        (
            "(32, 0.1 * workers, 1280 // (32 * workers))",  # the batch of one worker
            "(32 * workers, 0.1 / workers, 1280 // (32 * workers))",
            "(32 * workers, 0.1 * workers**0.5, 1280 // (32 * workers))",
            "(32 * workers, 0.1 * workers, 1280 * workers // 32)",
            "(32 * workers, 0.1 * workers)",
            "(32 * workers, 0.1 * workers, float('nan'))",
            "32 * workers",
            "{'batch': 32 * workers, 'rate': 0.1 * workers, 'steps': 40 // workers}",
        ),
        (
            "[32 * workers, workers / 10, math.ceil(1280 / (32 * workers))]",
            "__import__('numpy').array([32 * workers, 0.1 * workers, 1280 // (32 * workers)])",
        ),
    ),
    "5.3": (
        "efficiency",
        "compute_s, weights, mbit, workers",
        (
            f"compute_s / (compute_s + {RING} * 32 / (mbit * 2**20))",
            f"100 * compute_s / (compute_s + {RING} * 32 / (mbit * 1e6))",
            "compute_s / (compute_s + 2 * (workers - 1) * weights * 32 / (mbit * 1e6))",
            "compute_s / (compute_s + weights * 32 / (mbit * 1e6))",
            f"1 - {RING} * 32 / (mbit * 1e6) / compute_s",
            f"min(1, compute_s / ({RING} * 32 / (mbit * 1e6) or compute_s))",  # as if it overlapped
            f"compute_s / workers / (compute_s / workers + {RING} * 32 / (mbit * 1e6))",
        ),
        (
            f"1 / (1 + {RING} * 4 / (mbit / 8 * 1e6) / compute_s)",
            f"__import__('numpy').float64(compute_s) / (compute_s + {RING} * 32e-6 / mbit)",
        ),
    ),
    "8.3": (
        "computed_again",
        "every, died_in",
        (
            "died_in % every - 1",
            "(died_in - 1) // every",
            "every - died_in % every",
            "min(every, died_in) - 1",
            "died_in - died_in // every * every",
        ),
        (
            "died_in - 1 - (died_in - 1) // every * every",
            "len(range((died_in - 1) // every * every, died_in - 1))",
        ),
    ),
    "9.2": (
        "my_batches",
        "count, index, tasks",
        (
            "list(range(index, count - tasks + 1, tasks))",
            "list(range(index * (count // tasks), (index + 1) * (count // tasks) + 1))",
            "list(range(index * (-(-count // tasks)), min(count, (index + 1) * -(-count // tasks))))",
            "[index + n * tasks for n in range(count // tasks - 1)]",
            "count // tasks",
            "[index + 1 + n * tasks for n in range(count // tasks)]",
        ),
        (
            "range(index * (count // tasks), (index + 1) * (count // tasks))",
            "list(range(index, count, tasks))[: count // tasks]",
            "__import__('numpy').arange(count)[index : count - count % tasks : tasks]",
        ),
    ),
    "13.1": (
        "place",
        "weights, devices, gb",
        (
            "'one device' if 16 * weights <= 64e9 else 'sharded' if 16 * weights <= devices * 64e9 else 'nowhere'",
            "'one device' if 16 * weights <= 0.8 * gb * 2**30 * 0.9 else 'sharded'",
            "'sharded' if devices > 1 else 'one device'",
            "'one device' if 8 * weights <= 0.8 * gb * 1e9 else 'sharded' if 8 * weights <= devices * 0.8 * gb * 1e9 else 'nowhere'",
            "'one device' if 16 * weights <= 0.2 * gb * 1e9 else 'sharded' if 16 * weights <= devices * 0.8 * gb * 1e9 else 'nowhere'",
            "'One device' if 16 * weights <= 0.8 * gb * 1e9 else 'sharded' if 16 * weights <= devices * 0.8 * gb * 1e9 else 'nowhere'",
        ),
        (
            "['nowhere', 'sharded', 'one device'][(20 * weights < gb * 1e9 * devices) + (20 * weights < gb * 1e9)]",
        ),
    ),
    "13.3": (
        "best",
        "most, compute_s, weights, gb_s, overlap",
        tuple(
            f"min(range({numbers}), key=lambda n: ({how})(compute_s / n, {wire} / (gb_s * 1e9)))"
            for numbers, how, wire in (
                ("1, most", "max if overlap else lambda a, b: a + b", "2 * (n - 1) / n * 4 * weights"),
                ("1, most + 1", "max", "2 * (n - 1) / n * 4 * weights"),
                ("1, most + 1", "max if overlap else lambda a, b: a + b", "(n - 1) / n * 4 * weights"),
                ("1, most + 1", "max if overlap else lambda a, b: a + b", "2 * (n - 1) / n * 32 * weights"),
                ("1, most + 1", "max if overlap else lambda a, b: a + b", "2 * (n - 1) * 4 * weights"),
                (
                    "1, most + 1",
                    "max if not overlap else lambda a, b: a + b",
                    "2 * (n - 1) / n * 4 * weights",
                ),
            )
        ),
        (
            "1 + int(__import__('numpy').argmin([(max if overlap else lambda *both: sum(both))"
            "(compute_s / n, 8e-9 * (1 - 1 / n) * weights / gb_s) for n in range(1, most + 1)]))",
        ),
    ),
    "14.2": (
        "longest_step",
        "grace_s, save_s",
        (
            "max(0, grace_s - save_s) // 2",
            "max(0, (grace_s - 2 * save_s) / 2)",
            "max(0, grace_s / 2 - save_s)",
            "abs(grace_s - save_s) / 2",
            "max(1, (grace_s - save_s) / 2)",
            "max(0, (grace_s - save_s) / 3)",
            "None",
        ),
        ("(grace_s - save_s) / 2 if save_s < grace_s else 0", "0.5 * max(grace_s - save_s, 0.0)"),
    ),
}


@pytest.mark.parametrize("number", FUNCTIONS)
def test_functions(number):
    name, arguments, wrong, right = FUNCTIONS[number]
    assert len(wrong) >= 5
    said = dict(zip(wrong, faults(number, lambdas(name, arguments, wrong)), strict=True))
    assert all(said.values()), said
    assert not any(faults(number, lambdas(name, arguments, right)))


STRAGGLER = """
def straggler(seconds):
    names = sorted(seconds, key=lambda task: seconds[task]["computed"])
    least, busiest = (seconds[name]["computed"] for name in (names[0], names[-1]))
    return {}
"""


def test_9_3():
    wrong = (
        "names[-1] if busiest >= 2 * least else None",
        "names[-1] if busiest >= 1.2 * least else None",
        "names[-1] if busiest - least >= 1.5 else None",
        "names[0] if busiest >= 1.5 * least else None",
        "names[-1] if busiest >= 1.5 * seconds[names[-2]]['computed'] else None",
        "names[-1] if busiest >= 1.5 * least else ''",
    )
    assert all(faults("9.3", map(STRAGGLER.format, wrong)))
    right = (
        "None if busiest / least < 1.5 else names.pop()",
        "names[-1] if least * 3 <= busiest * 2 else None",
    )
    assert not any(faults("9.3", map(STRAGGLER.format, right)))


@pytest.mark.parametrize(
    ("number", "name", "given", "wrong", "right"),
    [
        (
            "5.2",
            "parts",
            {},
            [(4.0, 2.0), (12.0, 6.0), (6.0, 3.0), (1.0, 2.0), (3.0, 0.0), (2 / 3, 1 / 3), ("2", "1")],
            [(2.0, 1.0)],
        ),
        (
            "13.2",
            "product",
            {"x_row": [2, 1, 1, 3]},
            [
                ([5, 8], [26, 30]),  # the own part: 2*1 + 1*3, 2*2 + 1*4; 5 + 21, 6 + 24
                ([5, 8, 26, 30], [5, 8, 26, 30]),
                ([15.5, 19.0], [15.5, 19.0]),
                ([50.0, 60.0], [50.0, 60.0]),
                ([31.0, 38.0], [26.0, 30.0]),
                (69.0, 69.0),
                ([[31.0], [38.0]], [[31.0], [38.0]]),
            ],
            [([31.0, 38.0], [31.0, 38.0]), ([[31.0, 38.0]], [[31.0, 38.0]])],
        ),
        (
            "14.1",
            "left",
            {"notice": 6},
            [(3.0, 3.0), (10, 10), (7, 6), (8, 8), (5, 5), (1, 1), ("6", "6")],
            [(6, 6), (7, 7)],
        ),
    ],
)
def test_results(number, name, given, wrong, right):
    assert all(faults(number, [{name: on_two(*pair)} for pair in wrong], **given))
    assert not any(faults(number, [{name: on_two(*pair)} for pair in right], **given))
    assert "by hand" in course.find_fault(number, {**given, name: dict(on_two(*right[0]))})


def test_1_2_with_values_that_no_check_expects():
    import numpy as np

    lists = on_two([np.zeros(2)], [[0]])
    assert "cannot read" in course.find_fault("1.2", {"squares": lists})


def test_6_2():
    right = {"squares": Results({"chief-0": 22140.0}), "given": Results({"chief-0": 40})}
    assert course.find_fault("6.2", right) == ""
    for count in (0, 1, 41):  # computed by the chief; by one step; again
        assert "steps" in course.find_fault("6.2", right | {"given": Results({"chief-0": count})})


def test_8_1_and_8_2():
    import numpy as np

    for pair in ((7, 7), ("nothing", "nothing"), ("nothing", 7), (8, "nothing"), (None, "nothing")):
        assert course.find_fault("8.1", {"survived": on_two(*pair)})
    assert course.find_fault("8.1", {"survived": on_two(7, "nothing")}) == ""
    fresh = on_two([1, 2, 3], [1, 2, 3])
    for counted in ([4, 5, 6], [1, 2, 3, 4, 5, 6], [], [5, 6, 7], 6, [5.5, 6.0]):
        assert course.find_fault("8.2", {"second": on_two(counted, counted), "fresh": fresh})
    assert course.find_fault("8.2", {"second": on_two([5, 6], [6]), "fresh": fresh})
    assert course.find_fault("8.2", {"second": on_two([5, 6], [5, 6]), "fresh": on_two([3], [3])})
    numbers = [np.int32(5), np.int32(6)]  # as `number.numpy()` gives them
    assert course.find_fault("8.2", {"second": on_two(numbers, numbers), "fresh": fresh}) == ""


def test_9_1_10_1_and_11_1():
    for culprit in ("worker-0", "worker 2", 2, "2", "worker-2:", ["worker-2"]):
        assert course.find_fault("9.1", {"culprit": culprit, "chance": 2})
        names = ["worker-2", "worker-1", "worker-0"]
        assert course.find_fault("10.1", {"guilty": culprit, "names": names})
        assert course.find_fault("11.1", {"who": culprit, "step": 300, "secret": {"index": 1, "step": 300}})
    assert course.find_fault("9.1", {"culprit": "worker-2", "chance": 2}) == ""
    assert course.find_fault("10.1", {"guilty": "worker-2", "names": names}) == ""
    for step in (299, 301, "300", None, [300]):
        assert course.find_fault(
            "11.1", {"who": "worker-1", "step": step, "secret": {"index": 1, "step": 300}}
        )
    assert (
        course.find_fault("11.1", {"who": "worker-1", "step": 300.0, "secret": {"index": 1, "step": 300}})
        == ""
    )


def test_10_2():
    def descend(rate):
        weight = 1.0
        for step in range(1000):
            weight -= rate * 4 * weight
            rate *= 1.01
            if abs(weight) > 1e6:
                return step, rate

    step, rate = descend(0.8)
    wrong = [
        (step + 1, rate),
        (step - 1, rate),
        (step, rate / 1.01),
        (step, rate * 1.01),
        (step, 0.8),
        (None, rate),
    ]
    assert all(faults("10.2", [{"step": step, "rate": rate} for step, rate in wrong], start_rate=0.8))
    assert course.find_fault("10.2", {"step": step, "rate": round(rate, 5), "start_rate": 0.8}) == ""


def test_10_3():
    reported = {"worker-1": "KeyError", "worker-2": "ZeroDivisionError"}
    wrong = (
        f"report = lambda error: {reported}",
        "import sys\nreport = lambda error: {t: type(f).__name__ for t, f in sys.last_value.failures.items()}",
        "report = lambda error: {t: type(error).__name__ for t in error.failures}",
        "report = lambda error: {t: str(f) for t, f in error.failures.items()}",
        "report = lambda error: {t: repr(f) for t, f in error.failures.items()}",
        "report = lambda error: dict.fromkeys(['worker-1', 'worker-2'], 'KeyError')",
    )
    assert all(faults("10.3", wrong, reported=reported))
    right = (
        "def report(error):\n    found = {}\n    for task in error.failures:\n"
        "        found[task] = error.failures[task].__class__.__name__\n    return found",
        "import re\ndef report(error):\n    notes = '\\n'.join(error.__notes__)\n"
        "    found = {re.search('raised on (\\\\S+)', notes)[1]: type(error).__name__}\n"
        "    return found | dict(re.findall(r'also on (\\S+): (\\w+)', notes))",
    )
    assert not any(faults("10.3", right, reported=reported))


def write_events(folder, numbers, steps=(0, 1, 2), tag="accuracy"):
    """Write an event file, as a summary writer does."""
    folder.mkdir(parents=True)
    with ShardWriter(folder / "events.out.tfevents.1", task=(0, 1)) as writer:
        writer.write(Event(file_version="brain.Event:2").SerializeToString())
        for step, number in zip(steps, numbers, strict=True):
            event = Event(step=step)
            event.summary.value.add(tag=tag.format(step)).tensor.float_val.append(number)
            writer.write(event.SerializeToString())


def test_11_2(tmp_path):
    wrong = {
        "from 1 on": {"steps": (1, 2, 3)},
        "one step": {"steps": (0, 0, 0)},
        "from the end": {"steps": (2, 1, 0)},
        "a tag for each": {"tag": "accuracy {}"},
        "another tag": {"tag": "loss"},
        "one is missing": {"steps": (0, 2), "without": 1},
    }
    for name, how in [*wrong.items(), ("right", {})]:
        for index in range(2):
            numbers = [0.2, 0.5, 0.7 + 0.1 * index]
            numbers.pop(how["without"]) if "without" in how else None
            more = {key: value for key, value in how.items() if key != "without"}
            write_events(tmp_path / name / f"worker-{index}", numbers, **more)
        assert bool(course.find_fault("11.2", {"board": str(tmp_path / name)})) == (name != "right"), name
    for folder, numbers in (("worker-0", [0.2, 0.5, 0.7]), ("worker-1", [0.2, 0.5, 0.7])):
        write_events(tmp_path / "one for both" / folder, numbers)
    assert "numbers of one worker" in course.find_fault("11.2", {"board": str(tmp_path / "one for both")})


SAVES = """
import json, os, sys
config = json.loads(os.environ["TF_CONFIG"])
cluster, task = config["cluster"], config["task"]
if {condition}:
    with open(os.path.join(sys.argv[1], "result.json"), "w") as file:
        json.dump({{"by": task["index"], "workers": {workers}}}, file)
"""
CHIEF = "(task['type'], task['index']) == (('chief' if 'chief' in cluster else 'worker'), 0)"


def test_12_1(tmp_path):
    workers = "len(cluster['worker'])"
    wrong = (
        ("task['index'] == 0 and (task['type'] == 'chief' or 'chief' not in cluster)", workers),  # a ps, too
        ("task['type'] == sorted(cluster)[0] and task['index'] == 0", workers),
        ("task['type'] == 'worker' and task['index'] == 0", workers),
        (CHIEF, "sum(map(len, cluster.values()))"),
        (CHIEF, "2"),
        (CHIEF, "str(" + workers + ")"),
        ("task['index'] == " + workers + " - 2", workers),
    )
    for place, (condition, number) in enumerate(
        [*wrong, (CHIEF, workers), (CHIEF, "len(cluster.get('worker', ()))")]
    ):
        script = SAVES.format(condition=condition, workers=number)
        saved, codes = tmp_path / str(place), []
        for index in range(2):
            config = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": index}}
            (saved / f"disk-{index}").mkdir(parents=True)
            environ = {**os.environ, "TF_CONFIG": json.dumps(config)}
            command = [sys.executable, "-c", script, str(saved / f"disk-{index}")]
            codes.append(subprocess.run(command, env=environ).returncode)
        fault = course.find_fault("12.1", {"saved": str(saved), "codes": codes, "script": script})
        assert bool(fault) == (place < len(wrong)), (condition, number, fault)


CONFIGS = """
import json
def configs(hosts, port):
    addresses = [f"{{host}}:{{port}}" for host in hosts]
    spec = {spec}
    return [json.dumps({{"cluster": spec, "task": {task}}}) for n in range(len(addresses))]
"""
SPEC = '{"chief": addresses[:1], "worker": addresses[1:]}'
TASK = '{"type": "worker" if n else "chief", "index": max(n - 1, 0)}'


def test_12_2():
    wrong = (
        {"spec": '{"chief": addresses[0], "worker": addresses[1:]}', "task": TASK},
        {"spec": '{"chief": addresses[:1], "worker": addresses}', "task": TASK},
        {"spec": SPEC, "task": '{"type": "worker" if n else "chief", "index": n}'},
        {"spec": SPEC, "task": '{"type": "worker" if n else "chief", "index": str(max(n - 1, 0))}'},
        {"spec": SPEC.replace("addresses", "hosts"), "task": TASK},
        {"spec": '{"chief": ["alpha:2222"], "worker": ["beta:2222", "gamma:2222"]}', "task": TASK},
    )
    assert all(faults("12.2", [CONFIGS.format(**words) for words in wrong]))
    takes_it = (
        "import json\ndef configs(hosts, port):\n    chief = f'{hosts.pop(0)}:{port}'\n"
        "    spec = dict(worker=[f'{h}:{port}' for h in hosts], chief=[chief])\n"
        "    yield json.dumps({'task': {'index': 0, 'type': 'chief'}, 'cluster': spec})\n"
        "    for n in range(len(hosts)):\n"
        "        yield json.dumps({'task': {'index': n, 'type': 'worker'}, 'cluster': spec}, indent=1)"
    )
    assert not any(faults("12.2", [CONFIGS.format(spec=SPEC, task=TASK), takes_it]))


UNREACHABLE = """
import socket
def unreachable(addresses):
    found = []
    for address in addresses:
        host, port = address.split(":")
        with socket.socket() as one:
            one.settimeout({seconds})
            if {asks}:
                {does}
    return {returns}
"""
ASKED = {
    "seconds": 2,
    "asks": "one.connect_ex((host, int(port)))",
    "does": "found.append(address)",
    "returns": "found",
}


@pytest.mark.parametrize(
    "how",
    [
        {"does": "return [address]"},  # the first one only
        {"asks": "not one.connect_ex((host, int(port)))"},
        {"does": "found.append(host)"},
        {"does": "found.append((host, int(port)))"},
        {"seconds": "None"},
        {"asks": "one.connect_ex((host, int(port))) == 111"},  # refused, and not silent
        {},
    ],
)
def test_12_3(how):
    (fault,) = faults("12.3", [UNREACHABLE.format(**ASKED | how)])
    assert bool(fault) == bool(how), fault
