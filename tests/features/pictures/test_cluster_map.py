"""The map of a cluster: from its state to who talks to whom, to SVG and to text."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
from histories import A, B, C, History

from tfmagic.features.pictures import cluster_map, map_svg
from tfmagic.features.pictures.cluster_map import make_map
from tfmagic.features.pictures.map_svg import Card, Link
from tfmagic.protocol.cluster_spec import ClusterShape, ClusterSpec, TaskId
from tfmagic.protocol.events import FIRST_STRATEGY, BarrierReached, LineReached, TaskExited, TaskReady, Wait
from tfmagic.supervisor.state import Policy, with_task
from tfmagic.views.scene import Box

CHIEF, SERVER = TaskId("chief", 0), TaskId("ps", 0)


def map_of(history, shape, only=""):
    spec = ClusterSpec(shape, {task: f"127.0.0.1:{4000 + n}" for n, task in enumerate(shape.tasks)})
    return make_map("cluster default", spec, history.state, Policy(), history.now, only)


def started(shape):
    history = History(*shape.tasks)
    history.ready()
    return history


def test_before_a_strategy_the_map_shows_what_the_shape_implies_and_says_so():
    shape = ClusterShape(workers=3)
    found = map_of(started(shape), shape)
    assert "No task has reported a strategy yet" in found.text
    assert "MultiWorkerMirroredStrategy" in found.text
    assert "worker-0 → worker-1 → worker-2 → worker-0" in found.text
    assert not any(link.is_known for link in found.links)
    assert "stroke-dasharray" in found.svg


def test_the_members_of_a_strategy_are_known_from_what_they_report():
    shape = ClusterShape(workers=3)
    history = started(shape)
    history.run(*shape.tasks)
    for task in (A, B):
        history.happen(BarrierReached(task, 1, FIRST_STRATEGY, (A, B), cell=1))
    found = map_of(history, shape)
    assert "In use: a collective strategy over worker-0, worker-1." in found.text
    assert [(link.source, link.target) for link in found.links] == [
        ("worker-0", "worker-1"),
        ("worker-1", "worker-0"),
    ]
    assert all(link.is_known for link in found.links)


def test_a_strategy_is_in_use_only_when_all_of_its_members_have_come():
    shape = ClusterShape(workers=2, ps=1)
    history = started(shape)
    history.run(CHIEF)
    history.happen(BarrierReached(CHIEF, 1, FIRST_STRATEGY, (CHIEF, A, B), cell=1))
    found = map_of(history, shape)
    assert "In use" not in found.text, "the workers do not run the cell, so it never came into being"
    assert "No task has reported a strategy yet; this is what the shape implies: Param" in found.text
    shape = ClusterShape(workers=2)
    history = started(shape)
    history.run(A, B)
    history.happen(BarrierReached(A, 1, FIRST_STRATEGY, (A, B), cell=1))
    text = map_of(history, shape).text
    assert "worker-0 has begun to make a collective strategy, which is not in use yet" in text
    history.happen(BarrierReached(B, 1, FIRST_STRATEGY, (A, B), cell=1))
    assert "In use: a collective strategy over worker-0, worker-1." in map_of(history, shape).text


def test_the_ring_is_cut_where_a_process_has_ended():
    shape = ClusterShape(workers=3)
    history = started(shape)
    history.run(*shape.tasks)
    for task in (A, B, C):
        history.happen(BarrierReached(task, 1, FIRST_STRATEGY, (A, B, C), cell=1))
    history.happen(TaskExited(B, 1, -9))
    found = map_of(history, shape)
    assert "the process of worker-1 ended since: it must be made again" in found.text
    assert "worker-0 ╳ worker-1 ╳ worker-2 → worker-0" in found.text
    assert {link.source for link in found.links if link.kind == "cut"} == {"worker-0", "worker-1"}
    assert "dead: was ended by SIGKILL (killed)" in found.text


def test_a_coordinator_that_waits_in_a_remote_call_uses_its_servers():
    shape = ClusterShape(workers=1, ps=1)
    history = started(shape)
    assert "this is what the shape implies: ParameterServerStrategy" in map_of(history, shape).text
    history.run(CHIEF)
    history.happen(LineReached(CHIEF, 1, 1, "cell", 3, "coordinator.join", Wait.RPC))
    found = map_of(history, shape)
    assert "In use: chief-0 coordinates workers and servers." in found.text
    assert ("worker-0", "ps-0") in {(link.source, link.target) for link in found.links if link.is_known}


def test_one_task_explains_its_tf_config_field_by_field():
    shape = ClusterShape(workers=2, evaluator=True)
    text = map_of(started(shape), shape, "worker-1").text
    assert re.search(r"cluster\.worker\[0\] = 127\.0\.0\.1:4000 +worker-0 listens here", text)
    assert re.search(r"cluster\.worker\[1\] = 127\.0\.0\.1:4001 +this task listens here", text)
    assert re.search(r"task\.type = worker +the kind of this task", text)
    assert re.search(r"task\.index = 1 +number 1 of 2, counted from 0; so the task is called worker-1", text)
    assert "no cluster.evaluator" in text
    own = map_of(started(shape), shape, "evaluator-0").text
    assert "cluster.evaluator[0] = 127.0.0.1:4002" in own
    assert "no cluster.evaluator" not in own


def test_tasks_stand_in_a_box_for_each_host_where_there_are_several():
    shape = ClusterShape(workers=3)
    history = History(*shape.tasks)
    for task, host in zip(shape.tasks, ("host-0", "host-1", "host-0"), strict=True):
        history.happen(TaskReady(task, history.state.tasks[task].attempt, 7, host))
    found = map_of(history, shape)
    assert {"host host-0", "host host-1"} <= texts_of(found.svg)
    place = map_svg.lay_out(found.cards)
    for card in found.cards:
        inner, outer = place.cards[card.name], place.hosts[card.host]
        assert outer.x < inner.x and inner.x + inner.width < outer.x + outer.width
        assert outer.y < inner.y and inner.y + inner.height < outer.y + outer.height
    rows = [line.split()[0] for line in found.text.splitlines()[2:5]]
    assert rows == ["worker-0", "worker-2", "worker-1"]


def texts_of(picture):
    return {element.text for element in ElementTree.fromstring(picture).iter() if element.text}


def test_a_saved_notebook_keeps_the_picture_and_the_texts_of_the_pointer():
    shape = ClusterShape(workers=2)
    bundle = map_of(started(shape), shape)._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    page = bundle["text/html"]
    name, text = bundle["text/plain"].split("\n", 1)
    assert f'<img alt="{name}" src' in page
    assert '<summary style="cursor:pointer;padding:1px 6px">As text</summary><pre' in page and text in page
    assert 'src="data:image/svg+xml;base64,' in page
    assert 'title="worker-1: worker: computes its share of each batch' in page
    assert "<details" in page
    assert "TF_CONFIG of <b>worker-1</b>" in page
    assert "<svg" not in page  # the sanitizer of JupyterLab would drop it


def test_no_text_of_a_task_breaks_out_of_the_picture():
    evil = "</text><script>alert(1)</script>\"'&\x00\udc80"
    card = Card("worker-0", evil, "waiting", evil, 1, evil, evil, 1)
    link = Link("worker-0", "worker-1", evil, "ring", True)
    other = Card("worker-1", "worker", "ready", "", 2, "b", "c", 1)
    scene = map_svg.draw([card, other], [link], evil, evil)
    names = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(scene.svg).iter()}
    assert "script" not in names
    page = scene.bundle(evil)["text/html"]
    assert "<script" not in page


@pytest.mark.parametrize("count", [1, 2, 17, 300])
def test_maps_of_any_size_are_bounded(count):
    shape = ClusterShape(workers=count, ps=count)
    found = map_of(started(shape), shape)
    ElementTree.fromstring(found.svg)
    assert len(found.svg) < 200_000
    assert len(found.text) < 12_000
    place = map_svg.lay_out(found.cards)
    boxes = list(place.cards.values())
    assert not [(a, b) for i, a in enumerate(boxes[:60]) for b in boxes[i + 1 : 60] if overlap(a, b)]


def overlap(a: Box, b: Box) -> bool:
    return abs(a.x - b.x) < a.width and abs(a.y - b.y) < a.height


def test_a_map_that_shows_the_same_has_equal_facts():
    shape = ClusterShape(workers=2)
    history = started(shape)
    before = map_of(history, shape)
    history.now += 5
    assert map_of(history, shape).facts == before.facts
    history.happen(TaskExited(A, 1, -9))
    assert map_of(history, shape).facts != before.facts


def test_roles_are_explained_without_a_chief_too():
    tasks = [A, B]
    assert "acts as chief" in cluster_map.role_of(A, tasks)
    assert "acts as chief" not in cluster_map.role_of(B, tasks)
    assert "coordinator" in cluster_map.role_of(CHIEF, [CHIEF, A, SERVER])


def test_what_a_partition_cuts_is_drawn_as_cut():
    shape = ClusterShape(workers=3, evaluator=True)
    history = History(*shape.tasks)
    for task, host in zip(shape.tasks, ("host-0", "host-0", "host-1", "host-1"), strict=True):
        history.happen(TaskReady(task, history.state.tasks[task].attempt, 7, host))
    history.state = with_task(history.state, C, cut_off=True)
    found = map_of(history, shape)
    kinds = {(link.source, link.target): link.kind for link in found.links}
    assert kinds == {
        ("worker-0", "worker-1"): "ring",
        ("worker-1", "worker-2"): "cut",
        ("worker-2", "worker-0"): "cut",
        ("evaluator-0", "worker-0"): "files",
    }
    assert "worker-0 → worker-1 ╳ worker-2 ╳ worker-0" in found.text
    assert "host-1 (cut off)" in found.text
