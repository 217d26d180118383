"""A line that names modules which have changed since tasks imported them."""

import os
from collections.abc import Collection, Mapping, Sequence

from tfmagic.clusters.cells.features import CellFeature, Context
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.serialization import user_modules
from tfmagic.system import notices
from tfmagic.system.advice import Step


class Reload(CellFeature):
    """Says how an old module is mended."""

    name = "reload"

    def old_modules(
        self, found: Mapping[str, Sequence[TaskId]], known: Collection[str], context: Context
    ) -> None:
        """Print which modules have changed; tasks on hosts import a copy, which can be old from the start."""
        tasks = sorted({task for those in found.values() for task in those})
        names = ", ".join(sorted(found))
        files = ", ".join(sorted({os.path.basename(user_modules.file_of(name)) for name in found}))
        where = ", ".join(task.name for task in tasks)
        step = Step("reload", *sorted(found), *user_modules.with_values_of(sorted(found), known))
        if context.supervisor.backend.runs_here:
            why = f"changed after {where} imported it, and the old version runs there"
        else:
            why = f"changed after {where} got copies of this notebook's files, which they import"
        notices.say(f"tfmagic: {names}: {files} {why}:  {step}")


FEATURE = Reload()
