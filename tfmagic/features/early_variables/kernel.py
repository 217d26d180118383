"""Import TensorFlow under the variables that a cell or script sets first, or say that they come too late."""

import ast
import os
from collections.abc import Iterable, Mapping

from tfmagic.clusters.cells.features import CellFeature
from tfmagic.clusters.launch.program import Program
from tfmagic.clusters.launch.task_settings import TaskSettings
from tfmagic.features.early_variables import reading


class EarlyVariables(CellFeature):
    """The variables of cells and scripts."""

    name = "early_variables"

    def adapt(self, program: Program, settings: TaskSettings, keras: int | None) -> TaskSettings:
        """Let the import see them."""
        return reading.obey(settings, _found(program, {**os.environ, **settings.env}), keras)

    def remarks(
        self, program: Program, environ: Mapping[str, str], is_adapted: bool, told: set[str]
    ) -> Iterable[str]:
        """Name those that come too late, and those that only the run can tell."""
        found = _found(program, environ)
        if is_adapted:
            found = {name: value for name, value in found.items() if value is reading.UNKNOWN}
        return reading.tell(found, program.again(), told) if found else ()


FEATURE = EarlyVariables()


def _found(program: Program, environ: Mapping[str, str]) -> dict[str, object]:
    if program.target:
        return reading.of_script(program.target, program.is_module, environ)
    return reading.find(ast.parse(program.source), environ) if "env" in program.source else {}  # most cells
