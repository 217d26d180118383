"""Order the tests, and decide which files share a process of pytest-xdist; `conftest` calls this.

The order is drawn from a seed, TEST_SEED, where there is one: no test may need what another one leaves. Only files
that take twice as long as others come before them, since at the end of a run they would leave processes idle.
"""

from __future__ import annotations

import json
import math
import os
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

SHARES = Path(__file__).with_name("durations.json")
"""What each file takes of the time of all, in thousandths: `scripts/suite.py` keeps it."""

# Its tests share nothing and only compute: one by one at the end they keep all processes busy.
LAST = "tests/supervisor/test_simulation.py"
_SHARED = {  # what the files of a group share, and would each start again
    "a pair of kernels": (
        *("same/test_programs", "same/test_docstrings", "same/test_generated", "same/test_sequences"),
    ),
    "tfmagic commands": (
        *("integration/test_docs", "integration/test_script_runs", "tfrecord/test_tfrecord_tasks"),
        *("integration/test_every_interpreter", "backends/test_processes", "features/report/test_report"),
        *("features/shared_files/test_shared_writer", "backends/test_early_imports"),
    ),
    "a kernel": (
        *("runner/test_multi_process_runner", "integration/test_kernel", "backends/remote/test_ray_docs"),
        *(
            "integration/test_notebook_errors",
            "serialization/test_captured_values",
            "features/pictures/test_pictures",
        ),
        *("integration/test_log_folders", "views/test_logged_cells", "views/test_hosted_pages"),
        *("clusters/test_interrupted_starts", "task/test_settings_on_tasks"),
        *("views/test_text_for_programs", "views/test_unseen_output"),
        *("server/test_server_extension", "front_ends/test_front_ends", "features/debug/test_debug"),
        "features/debug/test_editor",
    ),
    "TensorFlow in the process of the tests": (
        *("logdir/test_saving", "logdir/test_mirrors", "logdir/test_stores", "logdir/test_places"),
        *("logdir/test_owners", "logdir/test_logdir_checks"),
    ),
    "a launcher with Keras 2": ("failures/test_hints", "training/test_strategies"),
    "the lessons": ("features/course/test_lessons",),  # and all of tests/notebooks
}
_GROUPS = {f"tests/{name}.py": group for group, names in _SHARED.items() for name in names}


def file_of(node_id: str) -> str:
    """Return the path of a test's file."""
    return node_id.partition("::")[0]


def arrange(items: list[pytest.Item]) -> None:
    """Put the tests of long files first; draw the order of files, and of the tests in a file, from the seed.

    A test that is marked with `judges_its_file` is the last one of its file.
    """
    shares: dict[str, int] = json.loads(SHARES.read_text("utf-8"))
    of_group: dict[str, int] = defaultdict(int)
    for file in dict.fromkeys(file_of(item.nodeid) for item in items):
        of_group[_group(file)] += shares.get(file, 0)
    seed = os.environ.get("TEST_SEED")

    def drawn(name: str) -> float:
        return random.Random(f"{seed} {name}").random() if seed else 0.0

    def place(item: pytest.Item) -> tuple[Any, ...]:
        file = file_of(item.nodeid)
        group = _group(file)
        length = 0 if file == LAST else int(math.log2(of_group[group] + 1)) + 1
        of_file = (item.get_closest_marker("judges_its_file") is not None, drawn(item.nodeid))
        return (-length, drawn(group), group, drawn(file), *of_file)

    items.sort(key=place)


def _group(file: str) -> str:
    return "the lessons" if file.startswith("tests/notebooks/") else _GROUPS.get(file, file)


def make_scheduler(config: Any, log: Any) -> Any:
    """Return a scheduler for `--dist loadfile` that keeps groups of files together; None for other modes."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler.loadfile import LoadFileScheduling

    class GroupScheduling(LoadFileScheduling):  # type: ignore[misc, unused-ignore]
        def _split_scope(self, nodeid: str) -> str:
            file = file_of(nodeid)
            return nodeid if file == LAST else _group(file)

    return GroupScheduling(config, log)
