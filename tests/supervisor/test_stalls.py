"""When a task is called stalled, when not, and the sentence that says who waits for whom. Histories."""

import pytest
from histories import (
    A,
    B,
    C,
    History,
    abort,
    at_line,
    commands_of,
    observed,
    raised,
    reached,
    returned,
    started,
)
from msgspec import structs

from tfmagic.protocol.commands import AbortCollectives
from tfmagic.protocol.events import (
    Displayed,
    HostCutOff,
    HostSilent,
    InputAnswered,
    InputWanted,
    ProcessSample,
    TaskLost,
    TaskReady,
    TasksObserved,
    TasksSlowed,
    Wait,
)
from tfmagic.supervisor import stall_sentences, stalls
from tfmagic.supervisor.state import Policy

POLICY = Policy(stall_s=10)


class WatchedCell:
    """Tasks that run a cell from second 100 on, looked at twice a second."""

    def __init__(self, *tasks, cells=None, source="", **how):
        self.history = started(*tasks, policy=POLICY)
        self.history.run(*(cells or tasks), now=100.0, source=source, **how)
        self.tasks = tasks
        self.cpu = dict.fromkeys(tasks, 5.0)
        self.logs = dict.fromkeys(tasks, 0)
        self.stopped = ()

    def happen(self, *events):
        return self.history.happen(*events)

    def pass_time(self, seconds, computing=(), share=1.0, idle_share=0.005, step=0.5):
        for _ in range(round(seconds / step)):
            for task in self.tasks:
                self.cpu[task] += step * (share if task in computing else idle_share)
            look = observed(dict(self.cpu), dict(self.logs), self.stopped)
            self.history.happen(look, now=self.history.now + step)

    def sleep(self, seconds):
        """Nobody looks meanwhile."""
        self.history.now += seconds

    @property
    def cell(self):
        return self.history.state.cells[1]

    def words(self):
        activities = stalls.describe(self.history.state, self.cell, POLICY, self.history.now)
        return {task.name: activity.doing.value for task, activity in activities.items()}

    def note(self, task):
        return stalls.describe(self.history.state, self.cell, POLICY, self.history.now)[task].note

    def sentence(self):
        return stall_sentences.explain(self.history.state, self.cell, POLICY, self.history.now)


def test_a_time_limit_keeps_who_waited_for_whom_before_it_stops_the_tasks():
    """However short it was: a wait need not be a stall yet."""
    h = started(A, B, policy=POLICY)
    h.run(A, B, now=100.0, timeout_s=2)
    h.happen(at_line(A, 14, "all_reduce", Wait.COLLECTIVE), at_line(B, 9), now=100.5)
    h.happen(observed({A: 5.0, B: 5.0}, {A: 0, B: 0}, ()), now=101.0)
    assert stall_sentences.explain(h.state, h.state.cells[1], POLICY, h.now) == ""
    assert h.tick(102.0) and h.state.cells[1].timed_out
    said = "worker-0 waits in all_reduce (cell line 14); worker-1 runs (line 9)"
    assert h.state.cells[1].waits == said
    h.happen(at_line(A, 15), at_line(B, 15), now=102.1)
    h.tick(103.0)
    assert h.state.cells[1].waits == said, "not what the interrupt has made of it"


def test_a_task_without_any_sign_for_ten_seconds_is_stalled():
    watched = WatchedCell(A)
    watched.happen(at_line(A, 9))
    watched.pass_time(9)
    assert watched.words() == {"worker-0": "running"} and watched.sentence() == ""
    watched.happen(at_line(A, 9, "time.sleep"))
    watched.pass_time(2)
    assert watched.words() == {"worker-0": "stalled"} and watched.note(A) == "in time.sleep"
    assert watched.sentence() == "worker-0 is in time.sleep (cell line 9)"


def test_the_sentence_says_who_waits_for_whom():
    watched = WatchedCell(A, B, C)
    for task in (A, C):
        watched.happen(at_line(task, 14, "all_reduce", Wait.COLLECTIVE))
    watched.happen(at_line(B, 9, "time.sleep"))
    watched.pass_time(2)
    assert watched.words() == {"worker-0": "waiting", "worker-1": "running", "worker-2": "waiting"}
    assert watched.note(A) == "in all_reduce for worker-1" and watched.sentence() == ""
    watched.pass_time(10)
    assert watched.sentence() == (
        "worker-0 and worker-2 wait in all_reduce (cell line 14); worker-1 is in time.sleep (line 9)"
    )
    assert watched.words()["worker-1"] == "stalled"


@pytest.mark.parametrize("sign", ["output", "line", "display", "computing", "left the call"])
def test_any_sign_of_progress_counts(sign):
    watched = WatchedCell(A)
    watched.happen(at_line(A, 3, "f"))
    for _ in range(4):
        watched.pass_time(8, computing=(A,) if sign == "computing" else ())
        match sign:
            case "output":
                watched.logs[A] += 1
            case "line":
                watched.happen(at_line(A, watched.cell.progress[A].place.line + 1, "f"))
            case "display":
                watched.happen(Displayed(A, 1, 1, 0, b""))
            case "left the call":
                watched.happen(at_line(A, 3), at_line(A, 3, "f"))
        assert watched.words() == {"worker-0": "running"}
    watched.pass_time(12)
    assert watched.words() == {"worker-0": "stalled"}


def test_a_long_compile_and_a_long_single_op_are_no_hang():
    watched = WatchedCell(A, B)
    watched.happen(at_line(A, 4, "step", Wait.NONE), at_line(B, 4, "all_reduce", Wait.COLLECTIVE))
    watched.pass_time(300, computing=(A,), share=0.9)
    assert watched.words() == {"worker-0": "running", "worker-1": "waiting"}
    assert watched.sentence() == "worker-1 waits in all_reduce (cell line 4); worker-0 runs (line 4)"


def test_one_that_computes_a_little_all_the_time_is_no_hang():
    watched = WatchedCell(A)
    watched.happen(at_line(A, 4, "read"))
    watched.pass_time(60, computing=(A,), share=0.04)  # most of the time it waits for a disk
    assert watched.words() == {"worker-0": "running"}


def test_bursts_of_computing_between_long_waits_count():
    watched = WatchedCell(A)
    watched.happen(at_line(A, 4, "next"))
    for _ in range(5):
        watched.pass_time(8)
        watched.pass_time(0.5, computing=(A,), share=0.1)
    assert watched.words() == {"worker-0": "running"}


def test_a_slow_data_set_is_told_but_is_no_hang():
    watched = WatchedCell(A, B)
    watched.happen(at_line(A, 5, "next", Wait.DATASET), at_line(B, 5, "next", Wait.DATASET))
    watched.pass_time(60)
    assert watched.words() == {"worker-0": "waiting", "worker-1": "waiting"}
    assert watched.note(A) == "for its data set" and watched.sentence() == ""


def test_those_that_wait_for_one_with_a_slow_data_set_are_told_of_it():
    watched = WatchedCell(A, B)
    watched.happen(at_line(A, 5, "next", Wait.DATASET), at_line(B, 7, "all_reduce", Wait.COLLECTIVE))
    watched.pass_time(12)
    assert watched.sentence() == (
        "worker-0 waits for the next batch (cell line 5); worker-1 waits in all_reduce (line 7)"
    )
    assert "stalled" not in watched.words().values()


@pytest.mark.parametrize("asleep_s", [60, 3600 * 8])
def test_a_laptop_that_was_suspended_does_not_make_a_hang(asleep_s):
    watched = WatchedCell(A, B)
    watched.happen(at_line(A, 5, "f"), at_line(B, 5, "all_reduce", Wait.COLLECTIVE))
    watched.pass_time(5)
    watched.sleep(asleep_s)
    watched.pass_time(3)
    assert watched.words() == {"worker-0": "running", "worker-1": "waiting"} and watched.sentence() == ""
    watched.pass_time(4)  # what it had waited before still counts
    assert watched.words()["worker-0"] == "stalled"


def test_time_before_the_cell_counts_for_nothing():
    history = started(A, policy=POLICY)
    history.happen(observed({A: 1.0}), now=10.0)
    watched = WatchedCell(A)
    watched.history = history
    history.run(A, now=500.0)
    watched.pass_time(1)
    assert watched.words() == {"worker-0": "running"}


def test_a_stopped_process_is_stalled_at_once_and_goes_on():
    watched = WatchedCell(A, B)
    watched.happen(at_line(A, 5, "f"), at_line(B, 5, "all_reduce", Wait.COLLECTIVE))
    watched.stopped = (A,)
    watched.pass_time(0.5)
    assert watched.words()["worker-0"] == "stalled" and "SIGSTOP" in watched.note(A)
    assert watched.sentence() == "worker-1 waits in all_reduce (cell line 5); worker-0 is stopped (line 5)"
    watched.stopped = ()
    watched.pass_time(0.5)
    assert watched.words()["worker-0"] == "running"


def test_mismatched_collectives_are_stalled_and_both_places_are_named():
    watched = WatchedCell(A, B)
    watched.happen(at_line(A, 5, "all_reduce", Wait.COLLECTIVE), at_line(B, 8, "all_gather", Wait.COLLECTIVE))
    watched.pass_time(5)
    assert watched.words() == {"worker-0": "waiting", "worker-1": "waiting"}
    watched.pass_time(7)
    assert watched.words() == {"worker-0": "stalled", "worker-1": "stalled"}
    assert watched.sentence() == (
        "worker-0 waits in all_reduce (cell line 5); worker-1 waits in all_gather (line 8); "
        "all wait: no task can come"
    )


def test_a_task_that_has_ended_will_not_come():
    watched = WatchedCell(A, B)
    watched.happen(at_line(A, 5, "all_reduce", Wait.COLLECTIVE), returned(B))
    watched.pass_time(11)
    assert watched.words() == {"worker-0": "stalled"}
    assert watched.sentence() == (
        "worker-0 waits in all_reduce (cell line 5); worker-1 has ended the cell; all wait: no task can come"
    )
    assert "no task can come" in watched.note(A)


@pytest.mark.parametrize(
    ("source", "wait", "is_named"),
    [
        ("for x in read_shards(path): step(x)", Wait.COLLECTIVE, True),
        ("for x in range(3): step(x)", Wait.COLLECTIVE, False),
        ("for x in read_shards(path): step(x)", Wait.PEERS, False),
    ],
)
def test_data_that_ended_first_is_named_where_the_others_meet_in_a_collective(source, wait, is_named):
    watched = WatchedCell(A, B, source=source)
    watched.happen(at_line(A, 5, "all_reduce", wait), returned(B))
    watched.pass_time(11)
    assert ("perhaps its data ended first" in watched.sentence()) is is_named


def test_one_waits_at_a_barrier_and_the_other_in_a_collective():
    watched = WatchedCell(A, B)
    watched.happen(
        at_line(A, 5, "all_reduce", Wait.COLLECTIVE), at_line(B, 8), reached(B, "barrier 1", (A, B))
    )
    watched.pass_time(12)
    assert watched.words() == {"worker-0": "stalled", "worker-1": "stalled"}
    assert watched.sentence() == (
        "worker-0 waits in all_reduce (cell line 5); worker-1 waits at barrier 1 (line 8); "
        "all wait: no task can come"
    )


def test_tasks_that_wait_for_their_peers_to_start():
    watched = WatchedCell(A, B)
    watched.happen(at_line(A, 2, "MultiWorkerMirroredStrategy", Wait.PEERS), at_line(B, 7, "time.sleep"))
    watched.pass_time(12)
    assert watched.sentence() == (
        "worker-0 waits for the others to start (cell line 2); worker-1 is in time.sleep (line 7)"
    )


def test_a_question_to_the_user_is_no_hang():
    watched = WatchedCell(A, B)
    watched.happen(at_line(A, 2, "input"), InputWanted(A, 1, 1, 0, 1, "? "), at_line(B, 2, "f"))
    watched.pass_time(60, computing=(B,))
    assert watched.words() == {"worker-0": "waiting", "worker-1": "running"}
    assert watched.note(A) == "for your input" and watched.sentence() == ""
    watched.happen(InputAnswered(A, None))
    watched.pass_time(11)
    assert watched.words()["worker-0"] == "stalled"


def test_a_task_in_the_debugger_of_an_editor_is_no_hang_and_is_told_at_once():
    watched = WatchedCell(A, B, C)
    watched.happen(at_line(B, 4, "", Wait.DEBUGGER), at_line(A, 5, "all_reduce", Wait.COLLECTIVE))
    assert watched.sentence() == "worker-1 stands in the debugger (cell line 4)"  # worker-2 runs
    watched.happen(at_line(C, 5, "all_reduce", Wait.COLLECTIVE))
    watched.pass_time(3600)
    assert set(watched.words().values()) == {"waiting"} and watched.note(B) == "in the debugger"
    assert watched.sentence() == "worker-1 stands in the debugger (cell line 4); the others wait for it"
    watched.happen(at_line(B, 4, "time.sleep"))  # its silence begins only now
    assert watched.words()["worker-1"] == "running"
    watched.pass_time(11)
    assert watched.words()["worker-1"] == "stalled"


def test_a_coordinator_that_waits_for_its_servers_is_told():
    watched = WatchedCell(A, B, C, cells=(A,))
    watched.happen(at_line(A, 6, "coordinator.join", Wait.RPC))
    watched.pass_time(11)
    assert watched.sentence() == "worker-0 waits in coordinator.join (cell line 6)"
    assert watched.words() == {"worker-0": "waiting"}


def test_steps_that_may_read_data_are_told_if_all_wait():
    """The task itself says that it waits for its data set where it sees that at work."""
    watched = WatchedCell(A, B)
    watched.happen(at_line(A, 5, "step", Wait.STEP), at_line(B, 5, "step", Wait.STEP))
    watched.pass_time(9)
    assert watched.words() == {"worker-0": "waiting", "worker-1": "waiting"} and watched.sentence() == ""
    watched.pass_time(2)
    assert watched.words() == {"worker-0": "stalled", "worker-1": "stalled"}
    assert watched.sentence() == (
        "worker-0 and worker-1 wait in step (cell line 5); all wait, and no data set is seen to read or compute: "
        "probably no task can come"
    )
    watched.happen(at_line(B, 5, "step", Wait.DATASET))
    assert watched.sentence() == (
        "worker-0 waits in step (cell line 5); worker-1 waits for the next batch (line 5)"
    )
    assert watched.words() == {"worker-0": "waiting", "worker-1": "waiting"}


def test_a_step_waits_for_a_task_that_sleeps():
    watched = WatchedCell(A, B)
    watched.happen(at_line(A, 5, "step", Wait.STEP), at_line(B, 7, "time.sleep"))
    watched.pass_time(12)
    assert watched.sentence() == "worker-0 waits in step (cell line 5); worker-1 is in time.sleep (line 7)"
    assert watched.note(A) == "in step"


@pytest.mark.parametrize("what", ["computes", "stopped", "data", "input"])
def test_no_alarm_while_one_of_them_can_come(what):
    watched = WatchedCell(A, B)
    place = at_line(B, 8, "step", Wait.DATASET if what == "data" else Wait.NONE)
    watched.happen(at_line(A, 5, "all_reduce", Wait.COLLECTIVE), place)
    if what == "input":
        watched.happen(InputWanted(B, 1, 1, 0, 1, "? "))
    watched.stopped = (B,) if what == "stopped" else ()
    watched.pass_time(60, computing=(B,) if what == "computes" else ())
    assert watched.words()["worker-0"] == "waiting" and "no task can come" not in watched.sentence()


def test_a_peer_that_runs_another_cell_can_come():
    watched = WatchedCell(A, B)
    watched.happen(at_line(A, 5, "all_reduce", Wait.COLLECTIVE), returned(B))
    watched.history.run(B, cell=2, now=watched.history.now)
    watched.pass_time(12, computing=(B,))
    assert watched.words() == {"worker-0": "waiting"}
    assert watched.sentence() == "worker-0 waits in all_reduce (cell line 5); worker-1 has ended the cell"


def test_a_short_time_limit_says_that_all_wait():
    h = started(A, B, policy=POLICY)
    h.run(A, B, now=100.0, timeout_s=5)
    h.happen(at_line(A, 14, "fit", Wait.STEP), at_line(B, 14, "fit", Wait.STEP), now=100.5)
    for half in range(9):
        h.happen(observed({A: 5.0, B: 5.0}, {A: 0, B: 0}, ()), now=100.5 + half / 2)
    h.tick(105.0)
    assert h.state.cells[1].waits.startswith("worker-0 and worker-1 wait in fit (cell line 14); all wait, ")


def test_one_that_wants_a_core_and_gets_little_of_it_is_no_hang():
    history = started(A, policy=POLICY)
    history.run(A, now=100.0)
    for step in range(100):
        wanted = {A: ProcessSample(5 + 0.016 * 0.5 * step, 0, wanted_s=0.98 * 0.5 * step)}
        history.happen(TasksObserved(wanted), now=100.5 + 0.5 * step)
    assert (
        stalls.describe(history.state, history.state.cells[1], POLICY, history.now)[A].doing.value
        == "running"
    )


def test_a_burst_counts_also_of_one_that_is_looked_at_closely():
    history = started(A, policy=POLICY)
    history.run(A, now=100.0)
    for step in range(100):
        bursts = step // 16  # each 8 s, 0.05 s
        wanted = {A: ProcessSample(5 + 0.05 * bursts, 0, wanted_s=0.05 * bursts + 0.001 * step)}
        history.happen(TasksObserved(wanted), now=100.5 + 0.5 * step)
        cell = history.state.cells[1]
        assert stalls.describe(history.state, cell, POLICY, history.now)[A].doing.value == "running"


def test_one_that_only_wakes_up_now_and_then_on_a_crowded_machine_is_stalled():
    history = started(A, policy=POLICY)
    history.run(A, now=100.0)
    for step in range(100):
        wanted = {A: ProcessSample(5 + 0.005 * 0.5 * step, 0, wanted_s=0.2 * 0.5 * step)}
        history.happen(TasksObserved(wanted), now=100.5 + 0.5 * step)
    assert (
        stalls.describe(history.state, history.state.cells[1], POLICY, history.now)[A].doing.value
        == "stalled"
    )


def test_a_cell_that_waits_for_a_new_process_says_so():
    history = History(A, B, policy=POLICY)
    history.happen(TaskReady(A, 1, 100, "host"))
    history.run(A, B, now=5.0)
    cell = history.state.cells[1]
    assert stall_sentences.explain(history.state, cell, POLICY, 14.0) == ""
    assert (
        stall_sentences.explain(history.state, cell, POLICY, 16.0)
        == "the cell waits for a new process of worker-1"
    )


def test_a_question_that_was_given_up_is_no_question_any_more():
    watched = WatchedCell(A)
    watched.happen(at_line(A, 2, "input"), InputWanted(A, 1, 1, 0, 1, "? "), at_line(A, 3, "time.sleep"))
    watched.pass_time(12)
    assert watched.words() == {"worker-0": "stalled"}


def test_many_tasks_are_counted_not_listed():
    many = [type(A)("worker", i) for i in range(64)]
    watched = WatchedCell(*many)
    for task in many[1:]:
        watched.happen(at_line(task, 3, "all_reduce", Wait.COLLECTIVE))
    watched.happen(at_line(many[0], 9, "time.sleep"))
    watched.pass_time(11)
    assert watched.sentence() == (
        "worker-1, worker-2, worker-3 and 60 more wait in all_reduce (cell line 3); "
        "worker-0 is in time.sleep (line 9)"
    )


def test_each_time_that_a_task_is_stalled_is_counted_once():
    watched = WatchedCell(A)
    for _ in range(2):
        watched.pass_time(15)
        watched.logs[A] += 1
        watched.pass_time(1)
    assert watched.history.state.tasks[A].stalls == 2


def test_a_place_of_an_earlier_cell_says_nothing_of_a_later_one():
    watched = WatchedCell(A)
    watched.happen(at_line(A, 5, cell=7))
    assert watched.cell.progress.get(A) is None


def test_a_queued_cell_is_not_stalled():
    history = History(A, policy=POLICY).ready()
    history.run(A, now=1.0)
    history.run(A, cell=2, now=1.0)
    history.happen(observed({A: 1.0}), now=60.0)
    cell = history.state.cells[2]
    assert stalls.describe(history.state, cell, POLICY, 60.0)[A].doing.value == "running"
    assert stall_sentences.explain(history.state, cell, POLICY, 60.0) == ""


def test_a_failed_task_is_named():
    watched = WatchedCell(A, B)
    watched.happen(at_line(A, 5, "all_reduce", Wait.COLLECTIVE), raised(B, at=100.0))
    watched.history.state = watched.history.state
    assert watched.words() == {"worker-0": "waiting"}


# ---- a collective to which no task can come -----------------------------------------------------


def deserted(*more, wait=Wait.COLLECTIVE, ended=None, seconds=8, tasks=(A, B), attended=True, **how):
    """Return the actions of a cell in which A waits and B has ended, and its state."""
    watched = WatchedCell(*tasks, cells=(), attended=attended, **how)
    watched.happen(at_line(A, 5, "all_reduce", wait), ended or returned(B), *more)
    watched.history.actions.clear()
    watched.pass_time(seconds)
    return watched


def test_tasks_are_released_from_a_collective_to_which_no_task_can_come():
    watched = deserted(at_line(C, 5, "all_reduce", Wait.COLLECTIVE), tasks=(A, B, C), seconds=2.5)
    assert watched.history.actions == []
    watched.pass_time(1)
    why = (
        "worker-0 and worker-2 wait in all_reduce (cell line 5); worker-1 has ended the cell; "
        "all wait: no task can come"
    )
    assert watched.history.actions == [abort(task, why, 1, when_stuck=True) for task in (A, C)]
    watched.pass_time(5)
    assert len(watched.history.actions) == 2, "once"
    watched.happen(raised(A, "UnavailableError", at=watched.history.now))
    assert not [action for action in watched.history.actions[2:] if commands_of(action, AbortCollectives)]


@pytest.mark.parametrize("wait", [Wait.NONE, Wait.RPC, Wait.STEP, Wait.DATASET])
def test_what_is_no_wait_in_a_collective_goes_on(wait):
    assert deserted(wait=wait).history.actions == []


@pytest.mark.parametrize("how", [{"keep_going": True}, {"attended": False}])
def test_a_cell_of_which_the_user_may_expect_more_goes_on(how):
    assert deserted(**how).history.actions == []


@pytest.mark.parametrize(
    "more",
    [
        at_line(C, 9),
        at_line(C, 9, "f", Wait.STEP),
        InputWanted(C, 1, 1, 0, 1, "? "),
        HostSilent((B,), "10.0.0.2"),
        HostCutOff((B,), cut=True),
        TasksSlowed({A: 2.0}),
    ],
)
def test_nothing_is_released_while_a_task_can_come_late(more):
    assert deserted(at_line(C, 5, "all_reduce", Wait.COLLECTIVE), more, tasks=(A, B, C)).history.actions == []


def test_nothing_is_released_for_a_thread_that_goes_on_or_a_task_that_runs_another_cell():
    assert deserted(ended=structs.replace(returned(B), goes_on=True)).history.actions == []
    watched = deserted(seconds=1)
    watched.history.run(B, cell=2, now=watched.history.now)
    watched.history.actions.clear()
    watched.pass_time(8)
    assert watched.history.actions == []


def test_nothing_is_released_for_a_worker_that_does_not_run_the_cell():
    watched = WatchedCell(A, B, C, cells=(A, B), attended=True)
    watched.happen(at_line(A, 5, "all_reduce", Wait.COLLECTIVE), returned(B))
    watched.history.actions.clear()
    watched.pass_time(8)
    assert watched.history.actions == []


def test_nothing_is_released_while_a_task_computes():
    watched = deserted(seconds=1)
    watched.pass_time(20, computing=(A,))
    assert watched.history.actions == []


# ---- tasks on other machines --------------------------------------------------------------------


def on_hosts(watched, **hosts):
    for task in watched.tasks:
        watched.happen(TaskReady(task, 1, 7, hosts[task.name.replace("-", "_")]))


def test_the_sentence_names_the_hosts_where_there_are_several():
    watched = WatchedCell(A, B, C)
    on_hosts(watched, worker_0="10.0.0.1", worker_1="10.0.0.2", worker_2="10.0.0.2")
    watched.happen(
        at_line(A, 14, "all_reduce", Wait.COLLECTIVE), at_line(C, 14, "all_reduce", Wait.COLLECTIVE)
    )
    watched.happen(at_line(B, 9, "time.sleep"))
    watched.pass_time(11)
    assert watched.sentence() == (
        "worker-0 on 10.0.0.1 and worker-2 on 10.0.0.2 wait in all_reduce (cell line 14); "
        "worker-1 on 10.0.0.2 is in time.sleep (line 9)"
    )


def test_a_host_that_does_not_answer_is_named_until_it_does():
    watched = WatchedCell(A, B)
    on_hosts(watched, worker_0="10.0.0.1", worker_1="10.0.0.2")
    watched.happen(at_line(A, 14, "all_reduce", Wait.COLLECTIVE), at_line(B, 14))
    watched.pass_time(2, computing=[B])
    assert watched.sentence() == ""
    watched.happen(HostSilent((B,), "10.0.0.2"))
    assert watched.words() == {"worker-0": "waiting", "worker-1": "stalled"}
    assert "worker-1 on 10.0.0.2 is out of reach: 10.0.0.2 does not answer" in watched.sentence()
    watched.happen(HostSilent((B,), "10.0.0.2", silent=False))
    assert watched.words()["worker-1"] == "running" and watched.sentence() == ""
    watched.happen(HostSilent((B,), "10.0.0.2"), TaskLost(B, 1, "its host is lost"))
    assert watched.history.state.tasks[B].silent_host == ""
