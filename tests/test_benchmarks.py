"""The tables of the benchmarks, and the tasks that they simulate. No process."""

import pytest

from benchmarks.growth import CELL, CELLS, UNITS, simulate
from benchmarks.report import Row, Target, render

ROWS = [
    Row("empty cell, 4 tasks", 1.5, "ms", 15.0, "%%px", Target("value", "<=", 2)),
    Row(CELL, 2.0, "ms", tasks=4),
    Row(CELL, 6.4, "ms", tasks=64, target=Target("value", "<=", 8)),
    Row(CELL, 20.0, "ms", tasks=1000, is_simulated=True),
    Row("memory", 20.0, "MiB", tasks=4),
]


def test_growth_is_one_table_with_the_cost_of_a_task():
    assert render(ROWS[1:], markdown=True).splitlines() == [
        "| value (a task) of | 4 | 64 | 1,000 simulated | target | met? |",
        "| --- | --- | --- | --- | --- | --- |",
        "| empty cell, ms | 2 (0.5) | 6.4 (0.1) | 20 (0.02) | 64 tasks: <= 8 ms | yes |",
        "| memory, MiB | 20 (5) | - | - | - | - |",
    ]


def test_other_figures_are_a_table_of_their_own():
    figures, growth = render(ROWS, markdown=True).split("\n\n")
    assert figures.splitlines()[2:] == [
        "| empty cell, 4 tasks | 1.5 ms | 15 ms, %%px | 0.100 | <= 2 ms | yes |"
    ]
    assert growth == render(ROWS[1:], markdown=True)
    assert " | 0.100 | <= 2 ms | yes\n" in render(ROWS)


@pytest.fixture
def state_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("TFMAGIC_STATE_DIR", str(tmp_path))
    return tmp_path


def test_simulated_tasks_run_each_cell_that_is_measured(state_dir):
    found = simulate(3, rounds=1)
    assert found.keys() == UNITS.keys() >= CELLS.keys() and all(found.values())
    logs = sorted(path.stat().st_size for path in state_dir.glob("*/*.log"))
    assert logs == [70_000] * 3
