"""No argument, no count and no odd value ends a task: it is refused, or it is a failure of that call."""

import numpy as np
import pytest
from conftest import wait_until

import tfmagic
from tfmagic.errors import CaptureError, ClusterSpecError, TfmagicError


@pytest.fixture(scope="module")
def cluster_of_module():
    with tfmagic.Cluster(workers=2, name="odd") as started:
        yield started


@pytest.fixture(autouse=True)
def every_task_lives_on(cluster_of_module):
    """Fail a test that has cost a task its process, and with it the variables."""
    before = cluster_of_module.attempts()
    yield
    assert cluster_of_module.attempts() == before
    assert {row["state"] for row in cluster_of_module.status()} == {"ready"}


# ---- arguments ----------------------------------------------------------------------------------


def test_a_list_of_names_is_pulled_as_the_names_are(cluster_of_module):
    cluster_of_module.push(a=1, b=2)
    expected = {"a": {"worker-0": 1, "worker-1": 1}, "b": {"worker-0": 2, "worker-1": 2}}
    assert cluster_of_module.pull("a", "b") == expected
    assert cluster_of_module.pull(["a", "b"]) == cluster_of_module.pull(("a", "b")) == expected


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda c: c.pull(None), r"what pull\(\) takes is names of variables: .*not \(None,\)"),
        (lambda c: c.pull(["a"], "b"), r"pull\('a', 'b'\) or pull\(\['a', 'b'\]\), not"),
        (lambda c: c.pull(b"ab"), "names of variables"),
        (lambda c: c.gather(5), r"name is a text, not 5 \(int\)"),
        (lambda c: c.gather(None), r"name is a text, not None \(NoneType\)"),
        (lambda c: c.diff(5), r"name is a text, not 5 \(int\)"),
        (lambda c: c.diff("a", rows="yes"), r"rows is True or False, not 'yes' \(str\)"),
        (lambda c: c.scatter(5, [1]), r"name is the name of a variable, .*, not 5 \(int\)"),
        (lambda c: c.push("a"), r"values is \{name: value\}, or None, not 'a' \(str\)"),
        (lambda c: c.push({5: 1}), r"a name is the name of a variable.*, not 5 \(int\)"),
        (lambda c: c.push(**{"a b": 1}), "none of Python's own, not 'a b'"),
        (lambda c: c.push(__name__="x"), "none of Python's own, not '__name__'"),
        (lambda c: c.run(5), r"fn is a function, not 5 \(int\)"),
        (lambda c: c.run(int, timeout="5"), r"timeout is a number of seconds above 0, or None, not '5' \(str\)"),
        (lambda c: c.run(int, keep_going="no"), "keep_going is True or False"),
        (lambda c: c.run(int, view="loud"), "view is 'text' or 'quiet', not 'loud'"),
        (lambda c: c.run(int, profile="x"), "profile is True, False or a number of seconds above 0"),
        (lambda c: c.submit(int, timeout="5").result(20), "timeout is a number of seconds above 0"),
        (lambda c: c.map(int, 5), r"an argument of map\(\) is something to iterate over, not 5"),
        (lambda c: c.map(5, "ab"), "fn is a function, not 5"),
        (lambda c: c.map(int, "12", timeout=0), "timeout is a number of seconds above 0, or None, not 0"),
        (lambda c: c.logs(grep="("), r"grep is a regular expression, not '\(' \(str\): missing \)"),
        (lambda c: c.logs(tail="all"), "tail is a whole number of 0 or more, or None, not 'all'"),
        (lambda c: c.tensorboard(5), r"logdir is a path, or None, not 5 \(int\)"),
        (lambda c: c.tensorboard(port="x"), "port is a whole number"),
        (lambda c: c.timeline("last"), "cell is a whole number of 0 or more, or None, not 'last'"),
        (lambda c: c.draw_map(5), "task is a text, not 5"),
        (lambda c: c.network(5), "link is a text, not 5"),
        (lambda c: c.kill("worker-0", signal_number="KILL"), "there is no signal 'KILL'"),
        (lambda c: c.faults.slow("worker-0", None), "1 to 100 times slower, not None times"),
        (lambda c: c.faults.flood("worker-0", None), "a flood has 0 to"),
        (lambda c: c.faults.chaos(seconds="long"), "chaos needs times above 0, not long s"),
        (lambda c: c.faults.unleash("x"), r"a plan is what draw_plan returns, and not one of 'x' \(str\)"),
        (lambda c: c.faults.unleash(5), r"a plan is what draw_plan returns, not 5 \(int\)"),
        (lambda c: c.logs(grep=np.ones(2)), r"grep is a .*, not array\("),
        (lambda c: c.draw_map(np.ones(2)), r"task is a text, not array\("),
        (lambda c: c.faults.chaos(kinds=5), r"kinds is names of faults, not 5 \(int\)"),
    ],
)  # fmt: skip
def test_an_argument_of_another_type_is_refused_by_name_before_anything_is_sent(
    cluster_of_module, use, message
):
    with pytest.raises((TypeError, ValueError), match=message):
        use(cluster_of_module)


@pytest.mark.parametrize(
    "use", ["kill", "restart", "revive", "stacks", "errors", "interrupt", "logs", "debug"]
)
def test_a_task_is_named_by_a_text(cluster_of_module, use):
    with pytest.raises(ClusterSpecError, match="tasks are named by text"):
        getattr(cluster_of_module, use)(5)


def test_numbers_of_numpy_are_numbers(cluster_of_module):
    assert cluster_of_module.run(int, timeout=np.float32(20), keep_going=np.True_) == {
        "worker-0": 0,
        "worker-1": 0,
    }
    assert cluster_of_module.logs(tail=np.int64(0)) == {"worker-0": [], "worker-1": []}


# ---- what a cell sends ----------------------------------------------------------------------------


def bind_many():
    import __main__

    for number in range(260):
        setattr(__main__, f"w{number}", np.full(10_000, number))


def test_more_large_values_are_pulled_than_one_call_of_the_system_takes(cluster_of_module):
    cluster_of_module.run(bind_many)
    pulled = cluster_of_module.pull([f"w{number}" for number in range(260)])
    assert {name: found["worker-1"][-1] for name, found in pulled.items()} == {
        f"w{number}": number for number in range(260)
    }


def returns_what_exits_when_pickled():
    class Leaves:
        def __reduce__(self):
            raise SystemExit(3)

    return Leaves()


def raises_what_exits_when_looked_at():
    class Meta(type):
        def __getattribute__(cls, name):
            raise SystemExit

    class Error(Exception, metaclass=Meta):
        pass

    raise Error


def raises_in_a_file_that_cannot_be():
    exec(compile("1/0", "\ud800.py", "exec"))


def raises_in_a_file_with_a_very_long_name():
    exec(compile("1/0", "/runs/" * 200_000 + ".py", "exec"))


def replaces_a_builtin(name):
    import builtins

    def mine(*args):
        raise ValueError("mine")

    setattr(builtins, name, mine)


def deletes_a_builtin():
    import builtins

    del builtins.isinstance


def opens_a_comm_for_a_number():
    import comm

    return comm.create_comm(
        target_name=5, target_module=5, data={"method": "update", "state": {5: 1}}
    ).comm_id


def sends_a_message_of_no_kind():
    import comm

    comm.create_comm(target_name="x").publish_msg("comm_shout", {})


def names_that_are_no_texts():
    import __main__

    vars(__main__).update({5: 1, "\ud800": 2})


@pytest.mark.parametrize(
    ("cell", "error", "message"),
    [
        (returns_what_exits_when_pickled, CaptureError, "cannot be pickled: SystemExit: 3"),
        (raises_what_exits_when_looked_at, Exception, "raised on worker-"),
        (raises_in_a_file_that_cannot_be, ZeroDivisionError, "division by zero"),
        (raises_in_a_file_with_a_very_long_name, ZeroDivisionError, "division by zero"),
        (sends_a_message_of_no_kind, TfmagicError, "a CommsSent cannot be sent: .*'comm_shout'"),
    ],
)
def test_what_cannot_be_sent_is_a_failure_of_its_cell(cluster_of_module, cell, error, message):
    cluster_of_module.push(kept=cell.__name__)
    with pytest.raises(error, match=message):
        cluster_of_module.run(cell, view="quiet", timeout=20)
    assert cluster_of_module.pull("kept")["kept"]["worker-1"] == cell.__name__


@pytest.mark.parametrize("name", ["isinstance", "len", "type", "hasattr", "str"])
def test_a_builtin_that_a_cell_has_broken_is_put_back(cluster_of_module, name):
    """A plain kernel answers no more."""
    cluster_of_module.push(kept=name)
    with pytest.raises(TfmagicError, match=rf"could not be sent.*replaced builtins of Python \({name}\)"):
        for _ in range(2):  # the first one can end without it
            cluster_of_module.run(replaces_a_builtin, name, view="quiet", timeout=20)
    assert cluster_of_module.pull("kept")["kept"] == {"worker-0": name, "worker-1": name}


def test_a_builtin_that_a_cell_has_deleted_is_put_back(cluster_of_module):
    with pytest.raises(TfmagicError, match=r"NameError.*replaced builtins of Python \(isinstance\)"):
        cluster_of_module.run(deletes_a_builtin, view="quiet", timeout=20)
    assert cluster_of_module.run(int) == {"worker-0": 0, "worker-1": 0}


@pytest.mark.parametrize("cell", [opens_a_comm_for_a_number, names_that_are_no_texts])
def test_what_a_plain_kernel_takes_is_taken(cluster_of_module, cell):
    cluster_of_module.run(cell, view="quiet")
    assert cluster_of_module.run(int) == {"worker-0": 0, "worker-1": 0}


def leaves_an_alarm():
    import signal

    def ring(number, frame):
        raise TimeoutError("too late")

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.02)


def test_an_alarm_that_rings_after_its_cell_ends_no_task(cluster_of_module):
    cluster_of_module.run(leaves_an_alarm)
    wait_until(lambda: all("TimeoutError: too late" in found for found in cluster_of_module.logs().values()))
    assert cluster_of_module.run(int) == {"worker-0": 0, "worker-1": 0}
