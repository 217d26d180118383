"""The method `Cluster.diff`."""

import functools
from typing import Any

from tfmagic.clusters.api.base import ClusterBase
from tfmagic.clusters.launch.checks import check
from tfmagic.features.diff import comparing
from tfmagic.features.diff.differences import Difference
from tfmagic.protocol.cluster_spec import Selector


class Differences(ClusterBase):
    """The method that compares."""

    def diff(self, name: str, *, on: Selector = "all", rows: bool = False, of: Any = None) -> Difference:
        """Compare a variable over the tasks: are they doing the same thing?

        A model is compared by weight, a dict, list or dataclass by item, a data set by its settings, and an
        array number by number.

        Args:
            name: A variable of the tasks, or an attribute of one, such as ``model.optimizer``.
            on: The tasks to compare.
            rows: Also compare the rows of its arrays, as of batches: which were read by several tasks.
            of: All rows that there are, to find those that nobody has read.

        Raises:
            NameError: A task does not have it.
        """
        name, rows = check("name", name), check("rows", rows)
        return comparing.diff(functools.partial(self._ask_tasks, on), name, rows, of)
