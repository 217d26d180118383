"""What the tasks have: a cell costs no more looks at files for many tasks than for one."""

from pathlib import Path

import pytest

from tfmagic.clusters.cells.cell_plan import CellPlan
from tfmagic.clusters.cells.task_variables import TaskVariables
from tfmagic.protocol.cluster_spec import TaskId

TASKS = {TaskId("worker", i): 1 for i in range(3)}
SETTINGS = {"track_fit": True, "max_capture_bytes": 1 << 20}


def test_files_of_modules_are_looked_at_once_for_all_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "module_of_several_tasks.py"
    file.write_text("ONE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    variables, looks = TaskVariables(dict, SETTINGS.__getitem__), list[str]()
    variables.sent = looks.append  # of no file do the tasks have a copy
    prepared = variables.commands_for(CellPlan(source="import module_of_several_tasks"), TASKS)

    assert variables.find_old_modules(prepared)[0] == {}
    assert looks == [str(file)]

    variables.handed_over(prepared)
    file.write_text("ONE = 1 + 0\n")
    assert variables.find_old_modules(prepared)[0] == {"module_of_several_tasks": list(TASKS)}
    assert variables.find_old_modules(prepared)[0] == {}  # it was told
