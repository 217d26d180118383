"""Name, before a cluster starts, what would fail or hang only later; and all findings for a report."""

import contextlib
from collections.abc import Iterable
from typing import Any

from tfmagic.clusters.cells.features import CellFeature, Startable
from tfmagic.runs.schemas import FindingReport


class Doctor(CellFeature):
    """The checks before each start, and of a report."""

    name = "doctor"

    def before_start(self, shell: Any, cluster: Startable) -> Iterable[str]:
        """Return the problems, each with what fixes it."""
        with contextlib.suppress(Exception):  # no failure of the checks may prevent a start
            from tfmagic.features.doctor import checks  # which a script does not need
            from tfmagic.features.doctor.findings import case_of

            return [f"{found.what}\n    {found.advice}" for found in checks.troubles(case_of(shell, cluster))]
        return []

    def findings(self, shell: Any, cluster: Startable) -> Iterable[FindingReport]:
        """Return all findings."""
        from tfmagic.features.doctor import checks
        from tfmagic.features.doctor.findings import case_of

        return [found.for_programs for found in checks.examine(case_of(shell, cluster))]


FEATURE = Doctor()
