"""Name signals; get and set their handlers in a tenth of the time that `signal` takes: without its enums.

For each cell the kernel looks at all handlers, and kernel and tasks set that of SIGINT.
"""

import importlib
import signal

from tfmagic.system.patches import Patch, PatchTable

HANDLERS = "handlers without enums"

TABLE = PatchTable(
    Patch(
        HANDLERS,
        ("_signal:getsignal()", "_signal:signal()"),
        "`signal` makes an enum of each number and handler: 0.1 ms of a cell that does nothing",
        "each cell takes 0.1 ms longer",
        versions_tried="CPython>=3.11",
    )
)

_handlers = importlib.import_module("_signal") if TABLE.fits(HANDLERS) else signal
handler_of, set_handler = _handlers.getsignal, _handlers.signal


def name_signal(number: int) -> str:
    """Return the name of a signal; most real-time signals have none: ``signal 40``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
