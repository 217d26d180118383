"""Print the traceback of a defect that must not end a cluster: each one once."""

import traceback
from collections.abc import Callable
from typing import Any

from tfmagic.system import notices


class DefectReports:
    """The tracebacks that were printed."""

    def __init__(self) -> None:
        self._texts = set[str]()

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function of which a defect must not end a cluster."""
        try:
            function(*arguments)
        except Exception:
            self.report()

    def report(self) -> None:
        """Print the traceback of the present exception, if it was not printed before."""
        text = traceback.format_exc()
        if text not in self._texts:
            self._texts.add(text)
            notices.tell(text)
