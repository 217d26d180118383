"""The story of a loop: in words, in files, and decided once more by the rules."""

import json
import re

import msgspec
import pytest
from simulation import Simulation

import tfmagic
from tfmagic.protocol import commands, events
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.payload import Packed
from tfmagic.supervisor import lifecycle, story, story_files
from tfmagic.supervisor.state import Decision, Policy

TASKS = (TaskId("worker", 0), TaskId("worker", 1))


@pytest.mark.parametrize("seed", range(3))
def test_the_rules_decide_again_what_they_have_decided(seed, state_dir):
    simulation, parts = Simulation(seed, 2000, state_dir), []
    late = story.Story(simulation.supervisor.state)
    whole = story.Story(simulation.supervisor.state, parts.append)
    for each in (late, whole):
        simulation.supervisor.watch(each.note)
    simulation.run()
    begin, *entries = parts
    for told in (late.told(), msgspec.structs.replace(begin, entries=tuple(entries))):
        again = story.decode(msgspec.msgpack.encode(told))
        assert again == told and story.differences(again) == []
    assert len(entries) > 500 >= len(late.told().entries) - 500


def test_a_rule_that_has_changed_is_seen_in_an_old_story(state_dir, monkeypatch):
    simulation = Simulation(1, 2000, state_dir)
    made = story.Story(simulation.supervisor.state)
    simulation.supervisor.watch(made.note)
    simulation.run()
    decide = lifecycle.decide

    def lazy(state, policy, now):
        decision = decide(state, policy, now)
        return decision if decision.wake_at is None else msgspec.structs.replace(decision, actions=())

    monkeypatch.setattr(lifecycle, "decide", lazy)
    assert any("then" in line and "now" in line for line in story.differences(made.told()))


def test_nothing_of_the_users_is_in_a_story():
    secret = Packed(b"secret")
    carried = commands.Carried((secret,), (("secret", "secret"),), secret, secret)
    command = commands.RunCell(1, "secret", "secret", carried, secret, ("secret",))
    event = events.CellRequested(1, dict.fromkeys(TASKS, command))
    returned = events.CellReturned(
        TASKS[0], 1, 1, 0.1, 10, secret, "secret", {"secret": secret}, owned=("secret",)
    )
    asked = events.InputWanted(TASKS[1], 1, 1, 0, 1, "secret")
    answered = events.InputAnswered(TASKS[1], commands.AnswerInput(1, "secret"))
    shown = events.Displayed(TASKS[1], 1, 1, 0, b"secret")
    made, state, seen = story.Story(lifecycle.new_state(TASKS)), lifecycle.new_state(TASKS), []
    for now, one in enumerate((event, returned, asked, answered, shown)):
        for run in lifecycle.runs_of([one]):
            state = lifecycle.fold(state, run, now)
        decision = lifecycle.decide(state, Policy(), now)
        state = decision.state
        seen.append(one)
        made.note([one], decision, Policy(), now)
    content = msgspec.msgpack.encode(made.told())
    assert b"secret" not in content and len(made.told().entries) == len(seen)


def test_idle_looks_do_not_push_out_what_happened():
    state = lifecycle.new_state(TASKS)
    made = story.Story(state)
    made.note([events.TaskLost(TASKS[0], 0, "gone")], Decision((), state, None), Policy(), 0.0)
    for now in range(1, 5000):
        made.note([events.TasksObserved({})], Decision((), state, None), Policy(), now)
    assert [type(e.arrived[0]) for e in made.told().entries] == [events.TaskLost, events.TasksObserved]


def test_the_story_of_a_cluster_is_told_in_words_and_files(tmp_path, monkeypatch):
    monkeypatch.setenv(story_files.TRACE, str(tmp_path / "trace"))

    def fail():
        raise ValueError("what the user says")

    with tfmagic.Cluster(workers=2) as cluster:
        with pytest.raises(ValueError):
            cluster.run(fail, view="quiet")
        cluster.kill("worker-1")
        text = "\n".join(cluster.story("worker-1"))
    for words in (
        "did   start worker-1 as process 1",
        "is ready on",
        r"saw   cell \d+ was requested on worker-0, worker-1",
        r"saw   worker-1: cell \d+ raised ValueError after",
        "saw   SIGKILL was requested for worker-1",
        "saw   worker-1: process 1 was ended by SIGKILL",
    ):
        assert re.search(words, text), text
    assert not re.search(r"worker-0: cell \d+ raised", text)
    run = cluster.run_folder
    told = story_files.read(run.folder)
    assert told is not None and story.differences(told) == []
    (traced,) = story_files.read_trace(tmp_path / "trace").values()
    assert len(traced.entries) >= len(told.entries) and story.differences(traced) == []
    lines = [json.loads(line) for line in (tmp_path / "trace").read_text().splitlines()]
    assert {line["run"] for line in lines} == {str(run)} and any(
        "SIGKILL" in str(line["words"]) for line in lines
    )
    assert "what the user says" not in (tmp_path / "trace").read_text() + str(told)
