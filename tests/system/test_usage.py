"""Samples of processes at a bounded cost, and a warning before memory runs out."""

import os
import time
from dataclasses import replace

import pytest

from tfmagic.system import memory
from tfmagic.system.usage import Sampler, Usage


def test_a_look_gives_time_memory_threads_and_files():
    sampler = Sampler()
    usage = sampler.sample({"me": os.getpid(), "nobody": 0})
    assert set(usage) == {"me"}
    me = usage["me"]
    assert me.cpu_s > 0 and me.memory_bytes > 1 << 20 and me.shared_bytes >= 0
    assert me.threads >= 1 and me.open_files >= 3 and not me.paused and me.cpu_percent is None
    assert sampler.sample({}) == {} == sampler.usage


def test_a_look_without_memory_leaves_it_to_the_next_one():
    sampler = Sampler()
    seen = sampler.sample({"me": os.getpid()}, with_memory=False)["me"]
    assert seen.cpu_s > 0 and seen.memory_bytes is None
    assert sampler.sample({"me": os.getpid()})["me"].memory_bytes > 0


def test_one_that_has_ended_is_known_by_nothing():
    sampler = Sampler()
    assert sampler.sample({"gone": 2**22 - 3}) == {"gone": Usage()}


def test_weighing_is_bounded_whatever_the_number():
    sampler = Sampler()
    pids = {n: os.getpid() for n in range(2000)}
    looks = 2000 // 128 + 1
    for _ in range(looks):
        sampler.sample(pids)
    assert len(sampler.usage) == 2000, "each in its turn"
    measured = sum(usage.memory_bytes is not None for usage in sampler.usage.values())
    assert 0 < measured <= looks * 4


def test_each_comes_in_its_turn_while_others_are_weighed(monkeypatch):
    looked_at = []
    monkeypatch.setattr("tfmagic.system.usage._SHARE", 1e9)  # weighing is never too dear
    monkeypatch.setattr(Sampler, "_read", lambda _, key, *how: looked_at.append(key) or Usage(memory_bytes=1))
    sampler, pids = Sampler(), dict.fromkeys(range(256), os.getpid())
    for _ in range(4):
        sampler.sample(pids)
    looked_at.clear()
    for _ in range(2):
        sampler.sample(pids)
    assert sorted(looked_at) == sorted(pids)


def test_the_memory_of_a_process_is_read_again_only_after_it_has_computed(monkeypatch):
    read = []
    monkeypatch.setattr("tfmagic.system.usage._SHARE", 1e9)  # weighing is never too dear
    monkeypatch.setattr(
        "tfmagic.system.usage.read_memory",
        lambda process, seen: read.append(1) or replace(seen, memory_bytes=1),
    )
    sampler = Sampler()
    for _ in range(5):
        sampler.sample({"me": os.getpid()})
    assert len(read) == 1
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    for _ in range(2):  # the first one sees the time
        sampler.sample({"me": os.getpid()})
    assert len(read) == 2


@pytest.fixture
def cgroups(tmp_path, monkeypatch):
    """A folder as the control group of this process; return a function that sets its limit and use."""
    folder = tmp_path / "cgroup"
    folder.mkdir()
    real = memory.read_text

    def read(path):
        return "0::/\n" if str(path) == "/proc/self/cgroup" else real(path)

    monkeypatch.setattr(memory, "read_text", read)

    def settle(limit, used, cache=0):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cache}\n")
        return folder

    return settle


MIB = 1 << 20


@pytest.mark.parametrize(
    ("used", "cache", "warns"),
    [(500, 0, False), (940, 0, False), (960, 0, True), (1000, 0, True), (1000, 500, False)],
)
def test_a_container_that_is_nearly_full_gives_a_warning_that_names_the_largest_task(
    cgroups, used, cache, warns
):
    folder = cgroups(1000 * MIB, used * MIB, cache * MIB)
    said = memory.shortage({"worker-0": 100 * MIB, "worker-1": 700 * MIB, "worker-2": None}, folder)
    if warns:
        left = 1000 - used
        assert said.startswith("memory is nearly used up:") and "of 1000 MiB" in said and f"{left}" in said
        assert said.endswith("worker-1 has most of it, 700 MiB")
    else:
        assert said == ""


def test_a_warning_needs_no_tasks(cgroups):
    assert memory.shortage({}, cgroups(1000 * MIB, 999 * MIB)).endswith("are left")
