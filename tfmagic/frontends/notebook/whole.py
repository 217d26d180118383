"""The notebook's part of tfmagic as a whole: what the magics need at their first use."""

from tfmagic.frontends.notebook import line_commands, line_reports
from tfmagic.frontends.notebook.magic import NotebookClusters
from tfmagic.frontends.notebook.options import overview
from tfmagic.system import features

__all__ = ["COMMAND_MODULES", "NotebookClusters", "overview"]

# they fill `COMMANDS` of `tfmagic.clusters.api.lines`
COMMAND_MODULES = (
    *(line_commands, line_reports),
    *features.halves("lines"),
)
