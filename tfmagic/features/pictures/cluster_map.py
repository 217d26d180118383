"""The map of a cluster: who is who, where, and what talks to what under the strategy in use. Pure functions.

The strategy is known from what the tasks report: those that have made a collective strategy
(`TaskState.joined`), and a coordinator that waits in a remote call. Otherwise the map shows what the shape
implies, and says so.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfmagic.failures.deaths import describe_end
from tfmagic.features.pictures import map_svg
from tfmagic.features.pictures.map_svg import Card, Link
from tfmagic.protocol.cluster_spec import Spec, TaskId, parse_task
from tfmagic.protocol.events import FIRST_STRATEGY, Wait
from tfmagic.runs.doing import Doing
from tfmagic.supervisor import stalls
from tfmagic.supervisor.stalls import TaskActivity
from tfmagic.supervisor.state import ALIVE, ClusterState, Policy
from tfmagic.views import tables
from tfmagic.views.scene import Scene

_RING = "all-reduce: gradients go around the ring"
_NO_PACKETS = "cut off: the network drops what they send"
_CUT_RING = "cut: the process of a member has ended"
_HEADER = ("task", "role", "state", "pid", "host", "address")
_NAMED = 40  # rows and arrows of the text form
_EXPLAINED = 64  # tasks with a TF_CONFIG below the picture


@dataclass(frozen=True, slots=True)
class Strategy:
    """What the tasks use to train together."""

    kind: str  #: collective, servers, or "" for a single task.
    members: tuple[TaskId, ...]  #: The tasks of a collective strategy, in the order of its ring.
    note: str  #: One sentence: what is known, or what was assumed.
    is_known: bool  #: Whether the tasks have reported it.
    gone: tuple[TaskId, ...] = ()  #: Members whose process has ended since.


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """The tasks of a cluster at one moment, and the links between them.

    It shows itself as a picture in a notebook, and as text elsewhere.

    Attributes:
        title: The name of the cluster, its shape, and when it was looked at.
        explanations: For each task, what each field of its TF_CONFIG means.
        only: The one task that is shown as text, if one was asked for.
    """

    title: str
    cards: tuple[Card, ...]
    links: tuple[Link, ...]
    strategy: Strategy
    explanations: Mapping[str, tuple[tuple[str, str], ...]]
    only: str = ""

    @property
    def text(self) -> str:
        """The map as text; for one task, what its TF_CONFIG means."""
        return explain(self, self.only)["text/plain"] if self.only else _to_text(self)

    @property
    def svg(self) -> str:
        """The picture as SVG."""
        return self._scene.svg

    @property
    def _scene(self) -> Scene:
        return map_svg.draw(self.cards, self.links, self.title, self.strategy.note)

    @property
    def facts(self) -> object:
        """What a new picture would show, but for the time."""
        return self.cards, self.links, self.strategy

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return self.bundle()

    def bundle(self) -> dict[str, str]:
        """Return the html and the text that a notebook shows and keeps."""
        if self.only:
            return explain(self, self.only)
        some = dict(list(self.explanations.items())[:_EXPLAINED])
        return self._scene.bundle(self.text, map_svg.details_html(some))


def make_map(
    title: str, spec: Spec, state: ClusterState, policy: Policy, now: float, only: str = ""
) -> ClusterMap:
    """Return the map of a cluster in this state at the supervisor's time `now`; `only` shows one task."""
    addresses = spec.addresses
    tasks = sorted(set(addresses) & set(state.tasks))
    strategy = find_strategy(state, tasks)
    activities: dict[TaskId, TaskActivity] = {}
    for cell in state.cells.values():
        if cell.sent:
            activities |= stalls.describe(state, cell, policy, now)
    cards = []
    for task in tasks:
        seen = state.tasks[task]
        doing, note = Doing(seen.phase.value), describe_end(seen.death) if seen.death else ""
        if (activity := activities.get(task)) is not None:
            doing, note = activity.doing, activity.note
        where = (seen.pid, seen.place, addresses.get(task, ""), seen.attempt)
        cards.append(Card(task.name, role_of(task, tasks), doing, note, *where))
    links = links_of(strategy, tasks)
    for name in (task.name for task in tasks if state.tasks[task].cut_off):
        links = cut_links(links, {card.name: card.host for card in cards}, name)
    explanations = {task.name: explain_config(spec.tf_config(task), tasks) for task in tasks}
    return ClusterMap(title, tuple(cards), links, strategy, explanations, only)


def map_of_rows(title: str, rows: Sequence[Mapping[str, Any]]) -> ClusterMap:
    """Return the map of a run from the rows of its status on disk, which does not have its strategy."""
    tasks = sorted(parse_task(row["task"]) for row in rows)
    by_name = {row["task"]: row for row in rows}
    cards = []
    for task in tasks:
        row = by_name[task.name]
        where = (row["pid"] or 0, row["host"], row["address"], 1 + (row["restarts"] or 0))
        cards.append(
            Card(
                task.name,
                role_of(task, tasks),
                row["doing"] or row["state"] or "unknown",
                row["note"],
                *where,
            )
        )
    strategy = implied_strategy(tasks, "As the shape implies: ")
    return ClusterMap(title, tuple(cards), links_of(strategy, tasks), strategy, {})


def role_of(task: TaskId, tasks: list[TaskId]) -> str:
    """Return in a few words what the task is there for."""
    has_servers = any(other.type == "ps" for other in tasks)
    match task.type:
        case "chief" if has_servers:
            return "coordinator: sends steps, and saves checkpoints"
        case "chief":
            return "chief: a worker that also saves checkpoints and logs"
        case "worker" if has_servers:
            return "worker: computes the steps that it is sent"
        case "worker" if task == min(tasks):
            return "worker, and acts as chief: saves checkpoints and logs"
        case "worker":
            return "worker: computes its share of each batch"
        case "ps":
            return "parameter server: holds variables"
        case "evaluator":
            return "evaluator: tests checkpoints, outside of the training"
    return task.type


# ---- the strategy ---------------------------------------------------------------------------------


def find_strategy(state: ClusterState, tasks: list[TaskId]) -> Strategy:
    """Return the strategy in use, or the one that the shape implies."""
    joined = [tuple(sorted(t.joined)) for t in state.tasks.values() if t.phase in ALIVE and t.joined]
    if members := max(joined, key=len, default=()):
        note = f"In use: a collective strategy over {_list(members)}."
        if gone := _gone_since(state, members):
            whose = "the process" if len(gone) == 1 else "the processes"
            note = (
                f"A collective strategy over {_list(members)} was made, and {whose} of {_list(gone)} "
                "ended since: it must be made again on every task."
            )
        return Strategy("collective", members, note, True, gone)
    servers = [task for task in tasks if task.type == "ps"]
    coordinator = TaskId("chief", 0)
    places = [cell.place(coordinator) for cell in state.cells.values()]
    if servers and any(place is not None and place.wait is Wait.RPC for place in places):
        return Strategy("servers", (), f"In use: {coordinator} coordinates workers and servers.", True)
    if makers := _makers(state):
        begun = f"{_list(makers)} {'has' if len(makers) == 1 else 'have'} begun to make a collective strategy"
        return implied_strategy(tasks, f"{begun}, which is not in use yet; the shape implies: ")
    return implied_strategy(tasks, "No task has reported a strategy yet; this is what the shape implies: ")


def _makers(state: ClusterState) -> list[TaskId]:
    """Return the tasks that wait for others to make a first collective strategy."""
    begun = (waiting for (_, name), waiting in state.barriers.items() if name.startswith(FIRST_STRATEGY))
    return sorted(task for waiting in begun for task in waiting)


def implied_strategy(tasks: list[TaskId], assumed: str) -> Strategy:
    """Return what tasks of these types are for; the note begins with `assumed`."""
    if any(task.type == "ps" for task in tasks):
        return Strategy("servers", (), f"{assumed}ParameterServerStrategy.", False)
    members = tuple(task for task in tasks if task.type in ("chief", "worker"))
    if len(members) > 1:
        return Strategy("collective", members, f"{assumed}MultiWorkerMirroredStrategy.", False)
    return Strategy("", members, "One task computes: it needs no other task to train.", False)


def _gone_since(state: ClusterState, members: tuple[TaskId, ...]) -> tuple[TaskId, ...]:
    """Return the members whose process has ended since the strategy was made."""
    known = {task: attempt for member in members for task, attempt in state.tasks[member].joined.items()}
    return tuple(
        task
        for task in members
        if state.tasks[task].attempt != known.get(task) or state.tasks[task].phase not in ALIVE
    )


def links_of(strategy: Strategy, tasks: list[TaskId]) -> tuple[Link, ...]:
    """Return the links between tasks."""
    links: list[Link] = []
    ring = [member.name for member in strategy.members]
    if strategy.kind == "collective" and len(ring) > 1:
        ends = [*ring[1:], ring[0]]
        gone = {task.name for task in strategy.gone}
        for source, target in zip(ring, ends, strict=True):
            is_cut = bool({source, target} & gone)
            what, kind = (_CUT_RING, "cut") if is_cut else (_RING, "ring")
            links.append(Link(source, target, what, kind, strategy.is_known and not is_cut))
    if strategy.kind == "servers":
        workers = [task.name for task in tasks if task.type == "worker"]
        servers = [task.name for task in tasks if task.type == "ps"]
        for chief in (task.name for task in tasks if task.type == "chief"):
            links += [Link(chief, to, "steps to compute", "call", strategy.is_known) for to in workers]
            links += [
                Link(chief, to, "creates and saves variables", "call", strategy.is_known) for to in servers
            ]
        what = "reads variables, sends gradients"
        links += [Link(worker, to, what, "data", strategy.is_known) for worker in workers for to in servers]
    for task in tasks:
        if task.type == "evaluator":
            links.append(Link(task.name, min(tasks).name, "reads checkpoints from files", "files", False))
    return tuple(links)


def cut_links(links: Sequence[Link], hosts: Mapping[str, str], name: str) -> tuple[Link, ...]:
    """Return the links with those cut that lead from the host of this task, or to it, over the network."""
    found = []
    for link in links:
        ends = (link.source, link.target)
        is_cut = link.kind != "files" and name in ends and hosts[link.source] != hosts[link.target]
        found.append(Link(*ends, _NO_PACKETS, "cut", False) if is_cut else link)
    return tuple(found)


# ---- TF_CONFIG ------------------------------------------------------------------------------------


def explain_config(config: str, tasks: list[TaskId]) -> tuple[tuple[str, str], ...]:
    """Return each field of a TF_CONFIG with its meaning."""
    content = json.loads(config)
    me = TaskId(content["task"]["type"], content["task"]["index"])
    rows = []
    places = [
        (kind, n, address) for kind, found in content["cluster"].items() for n, address in enumerate(found)
    ]
    for kind, index, address in places[:_NAMED]:
        task = TaskId(kind, index)
        whose = "this task listens here" if task == me else f"{task} listens here"
        if kind == "evaluator":
            whose = "kept for the evaluator, which no other task calls"
        rows.append((f"cluster.{kind}[{index}] = {address}", f"{whose}; {role_of(task, tasks)}"))
    if len(places) > _NAMED:
        rows.append(("…", f"{len(places) - _NAMED} more tasks"))
    rows.append((f"task.type = {me.type}", f"the kind of this task: {role_of(me, tasks)}"))
    several = len(content["cluster"].get(me.type, ()))
    which = f"number {me.index} of {several}, counted from 0" if several > 1 else "the only one of its type"
    rows.append((f"task.index = {me.index}", f"{which}; so the task is called {me}"))
    if "rpc_layer" in content:
        rows.append((f"rpc_layer = {content['rpc_layer']}", "how TensorFlow's servers talk"))
    if any(task.type == "evaluator" for task in tasks) and "evaluator" not in content["cluster"]:
        rows.append(("no cluster.evaluator", "the others train without it: only its own TF_CONFIG names it"))
    return tuple(rows)


def explain(found: ClusterMap, name: str) -> dict[str, str]:
    """Return the TF_CONFIG of a task, field by field, and what it talks to, as text and html."""
    card = next(card for card in found.cards if card.name == name)
    pid = f", pid {card.pid}" if card.pid else ""
    where = f"{card.state}{pid}{f', on {card.host}' if card.host else ''}"
    to = [f"  to {link.target}: {link.what}" for link in found.links if link.source == name]
    come = [f"  from {link.source}: {link.what}" for link in found.links if link.target == name]
    rows = [(tables.code(place), meaning) for place, meaning in found.explanations[name]]
    title = f"{name}: {card.role} ({where}). Its TF_CONFIG:"
    return tables.bundle(("", ""), rows, [found.strategy.note, *to[:_NAMED], *come[:_NAMED]], title)


# ---- text -----------------------------------------------------------------------------------------


def _to_text(found: ClusterMap) -> str:
    several = len({card.host for card in found.cards}) > 1
    cards = sorted(found.cards, key=lambda card: card.host) if several else list(found.cards)
    rows = [(c.name, c.role, c.doing, str(c.pid or "-"), c.host or "-", c.address) for c in cards]
    lines = [found.title, tables.to_text(_HEADER, rows[:_NAMED])]
    if len(rows) > _NAMED:
        lines.append(f"and {len(rows) - _NAMED} more tasks")
    return "\n".join([*lines, "", found.strategy.note, *_link_lines(found.links)])


def _link_lines(links: tuple[Link, ...]) -> list[str]:
    """Return a line for a ring, and one for each source with the same message to several tasks."""
    ring = [link for link in links if link.kind in ("ring", "cut")]
    lines = []
    if ring:
        steps = [f"{link.source} {'╳' if link.kind == 'cut' else '→'}" for link in ring]
        steps = steps if len(steps) <= _NAMED else [*steps[:3], "…", steps[-1]]
        lines.append(f"  {' '.join(steps)} {ring[0].source}   {_RING}")
    grouped: dict[tuple[str, str], list[TaskId]] = {}
    for link in links:
        if link not in ring:
            grouped.setdefault((link.source, link.what), []).append(parse_task(link.target))
    lines += [f"  {source} → {_list(targets)}   {what}" for (source, what), targets in grouped.items()]
    return lines[:_NAMED]


def _list(tasks: Sequence[TaskId]) -> str:
    names = [task.name for task in tasks]
    if len(names) > 6:
        names = [*names[:3], f"… ({len(names)} tasks)"]
    return ", ".join(names)
