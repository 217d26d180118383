"""The transformer awaits a top-level ``%%tfcluster`` on a kernel, and nothing else."""

from types import SimpleNamespace

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from tfmagic.frontends.notebook.awaited_cells import Transformer, can_await


class Runner:
    def __init__(self, name):
        self.name = name

    def __str__(self):
        return self.name


def shell(kernel=True, autoawait=True, runner="asyncio"):
    made = SimpleNamespace(autoawait=autoawait, loop_runner=Runner(runner))
    if kernel:
        made.kernel = object()
    return made


def transform(cell, **how):
    lines = TransformerManager().transform_cell(cell).splitlines(keepends=True)
    return "".join(Transformer(shell(**how))(lines))


def test_a_cluster_cell_of_a_notebook_is_awaited():
    assert transform("%%tfcluster --workers 2\nprint(1)") == (
        "await get_ipython().run_cell_magic('_tfcluster_async', '--workers 2', 'print(1)\\n')\n"
    )


def test_wait_is_awaited_also_among_other_lines():
    code = transform("x = 1\n%tfcluster wait --timeout 3\ny = 2")
    assert (
        code
        == "x = 1\nawait get_ipython().run_line_magic('_tfcluster_wait_async', 'wait --timeout 3')\ny = 2\n"
    )


@pytest.mark.parametrize(
    "cell",
    [
        "%tfcluster status",
        "%tfcluster waiting",
        "%%time\n%%tfcluster\nx",
        "print('%%tfcluster')",
        "",
        "if 1:\n    %tfcluster wait",
    ],
)
def test_everything_else_stays_as_it_is(cell):
    assert "await" not in transform(cell)


@pytest.mark.parametrize("how", [{"kernel": False}, {"autoawait": False}, {"runner": "trio"}])
def test_nothing_is_awaited_where_that_would_not_work(how):
    assert "await" not in transform("%%tfcluster\nprint(1)", **how)
    assert not can_await(shell(**how))
