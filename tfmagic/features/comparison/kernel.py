"""The option ``--compare``; `ways` runs the cells that have it."""

from typing import ClassVar

from tfmagic.clusters.cells.features import CellFeature
from tfmagic.features.comparison.axes import parse_axis


class Compared(CellFeature):
    """The option ``--compare``."""

    name = "comparison"
    options: ClassVar = {
        "--compare": {
            "metavar": "AXIS=A,B,C",
            "help": "run the cell in several clusters: workers=1,2,4, hosts=1,2, network=100mbit,1gbit,off",
            "type": parse_axis,
            "action": "extend",
            "nargs": "+",
            "default": [],
        }
    }


FEATURE = Compared()
