"""Python's own functions of a task, as they were before its first cell.

A cell can replace or delete one (``builtins.isinstance = mine``). A plain kernel answers no more then. A task
goes on as long as its own part works with the replacement, and puts the former ones back when it does not.
"""

import builtins

_known = dict(vars(builtins))


def note() -> None:
    """Note the builtins of this moment, before any cell runs."""
    _known.clear()
    _known.update(vars(builtins))


def put_back() -> str:
    """Put back what was replaced or deleted, and say so in half a sentence; "" if nothing was."""
    replaced = []
    now = builtins.__dict__  # no function is called before all are back
    for name in _known:
        if name not in now or now[name] is not _known[name]:
            replaced.append(name)
    now.update(_known)
    return f"a cell had replaced builtins of Python ({', '.join(sorted(replaced))})" if replaced else ""
