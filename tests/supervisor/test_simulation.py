"""The supervisor on a virtual clock, with random requests, deaths, presses, barriers and late messages.

SIMULATED_EVENTS is the number of events of all simulations, CHAOS_SEED the first seed: `make chaos` sets them.
"""

import itertools
import os
import time

import pytest
from simulation import Simulation

from tfmagic.supervisor import lifecycle
from tfmagic.supervisor.state import Policy

EVENTS = int(os.environ.get("SIMULATED_EVENTS", "150000"))
FIRST_SEED = int(os.environ.get("CHAOS_SEED", "0"))
EVENTS_EACH = 10_000
PARTS = 5


@pytest.mark.timeout(36_000)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_rule_of_a_cluster_holds_whatever_happens(part, state_dir):
    each = EVENTS // EVENTS_EACH // PARTS
    seeds = range(FIRST_SEED + part * each, FIRST_SEED + (part + 1) * each)
    assert sum(Simulation(seed, EVENTS_EACH, state_dir).run() for seed in seeds) >= EVENTS // PARTS


def test_where_no_decision_is_needed_one_would_do_nothing(state_dir, monkeypatch):
    skipped, skips = [], lifecycle.demands_nothing

    def check(arrived, state):
        if skips(arrived, state):
            decision = lifecycle.decide(state, Policy(), 0.0)
            assert not decision.actions and decision.state == state
            skipped.append(arrived)
        return skips(arrived, state)

    monkeypatch.setattr(lifecycle, "demands_nothing", check)
    for seed in range(3):
        Simulation(seed, EVENTS_EACH, state_dir).run()
    assert len(skipped) > 20


def test_outcomes_that_come_together_are_folded_as_one_by_one(state_dir, monkeypatch):
    together, fold = [], lifecycle.fold

    def check(state, run, now):
        folded = state
        for event in run:
            folded = lifecycle.apply(folded, event, now)
        assert fold(state, run, now) == folded
        together.append(len(run))
        return folded

    monkeypatch.setattr(lifecycle, "fold", check)
    for seed in range(3):
        Simulation(seed, EVENTS_EACH, state_dir).run()
    assert sum(count > 1 for count in together) > 20


def test_a_seed_repeats_what_happened_however_busy_the_machine_is(state_dir, monkeypatch):
    first, second = Simulation(7, 2000, state_dir), Simulation(7, 2000, state_dir)
    happened = first.run(), first.now
    used = itertools.count()
    monkeypatch.setattr(time, "thread_time", lambda: 0.1 * next(used))  # a look takes 0.1 s of the processor
    assert happened == (second.run(), second.now)
