"""``--local``: the notebook runs a cell too, with the file name and the lines that it has on the tasks."""

import ast
import contextlib
import inspect
from dataclasses import dataclass
from typing import Any

from tfmagic.clusters.cells.cell_plan import CellPlan


@dataclass(frozen=True, slots=True)
class LocalCell:
    """A cell that the notebook itself is to run, in its own variables."""

    plan: CellPlan
    shell: Any

    def run(self) -> object:
        """Run the cell; an ``await`` in it runs the shell's event loop. Raise what the cell raises."""
        source = self.plan.source
        if self.shell.should_run_async(source, transformed_cell=source):
            return self.shell.loop_runner(self.run_async())
        with contextlib.suppress(StopIteration):  # nothing is awaited: the first step is the last
            self.run_async().send(None)
        return None

    async def run_async(self) -> None:
        """Run the cell, statement by statement; show the value of the last expression as IPython does."""
        plan, shell = self.plan, self.shell
        body = shell.transform_ast(shell.compile.ast_parse(plan.source, plan.filename)).body
        with shell.compile.extra_flags(ast.PyCF_ALLOW_TOP_LEVEL_AWAIT):
            for node in body:
                is_shown = plan.show_value and node is body[-1] and isinstance(node, ast.Expr)
                tree, mode = (
                    (ast.Interactive([node]), "single") if is_shown else (ast.Module([node], []), "exec")
                )
                code = shell.compile(tree, plan.filename, mode)
                value = eval(code, shell.user_global_ns, shell.user_ns)
                if code.co_flags & inspect.CO_COROUTINE:
                    await value
