"""Check this environment for problems; each finding has the line that fixes it.


    %tfcluster doctor [shape] ── Case ──→ examine ──→ all findings, in the order in which users meet them
    start, first cell ────────── Case ──→ troubles ──→ only what will fail or hang, two lines each

A check is a function from the `Case` to findings; a new one is a line in the table below. A check must start
no process, import neither TensorFlow nor Keras, and use no network but this machine's own. Only those of
`ray_cluster` ask another machine: its head. And `simulated_hosts`, if a shape has some, tries to make them.
"""

from collections.abc import Callable, Iterator

from tfmagic.features.doctor import folder, machine, ray_cluster, software
from tfmagic.features.doctor.findings import Case, Finding, Severity

_ALWAYS, _HERE, _ON_RAY = (False, True), (False,), (True,)  # whether the tasks run on hosts of Ray

_CHECKS: tuple[tuple[Callable[[Case], Iterator[Finding]], tuple[bool, ...], bool], ...] = (
    # the check, where the tasks run, and whether it is made before each start, which would not notice it
    (software.python, _ALWAYS, True),
    (software.processor, _ALWAYS, True),
    (software.tensorflow, _ALWAYS, True),
    (software.keras, _ALWAYS, True),
    (software.tried_versions, _ALWAYS, False),
    (software.hidden_modules, _ALWAYS, True),
    (software.front_end, _ALWAYS, True),
    (software.ipython_parts, _ALWAYS, False),
    (machine.forks, _HERE, False),
    (machine.private_parts, _HERE, False),
    (machine.memory_room, _HERE, False),
    (machine.options_of_tasks, _HERE, False),
    (machine.cores, _HERE, False),
    (machine.gpus, _HERE, False),
    (machine.open_files, _ALWAYS, True),
    (machine.threads, _HERE, True),
    (machine.address_space, _HERE, True),
    (machine.loopback, _HERE, True),
    (machine.simulated_hosts, _ALWAYS, False),
    (machine.proxy, _HERE, True),
    (folder.state_folder, _ALWAYS, True),
    (folder.leftovers, _ALWAYS, False),
    (software.timeouts, _ALWAYS, True),
    (software.tf_config, _ALWAYS, False),
    (ray_cluster.ray, _ON_RAY, False),
    (ray_cluster.tls, _ON_RAY, False),
    (ray_cluster.tensorflow_ports, _ON_RAY, False),
    (ray_cluster.host_software, _ON_RAY, False),
    (ray_cluster.own_files, _ON_RAY, False),
    (ray_cluster.shared_folder, _ON_RAY, False),
)


def examine(case: Case) -> list[Finding]:
    """Return all findings."""
    return list(_run(case))


def troubles(case: Case) -> list[Finding]:
    """Return the problems that fail or hang only after a start. Takes some milliseconds."""
    found = _run(case, only_before_start=True)
    return [f for f in found if f.severity is Severity.TROUBLE and not f.refused_by_start]


def _run(case: Case, only_before_start: bool = False) -> Iterator[Finding]:
    """Yield the findings of the checks, and a note for one that fails: the others go on."""
    for check, places, is_before_start in _CHECKS:
        if (case.task_settings.hosts is not None) not in places or is_before_start < only_before_start:
            continue
        try:
            yield from check(case)
        except Exception as error:
            name = check.__name__.replace("_", " ")
            yield Finding(f"{name}: the check failed ({error!r})", severity=Severity.NOTE)
