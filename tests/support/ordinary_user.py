"""Execute a command as a user without rights: `python ordinary_user.py COMMAND ...`.

Root becomes user 1000 (or ORDINARY_UID) in a user namespace, in which its files stay its own; it loses all capabilities with the
execution of the command. Another user stays what it is.
"""

import os
import sys
from pathlib import Path

from tfmagic.system.processes import call_libc

_CLONE_NEWUSER = 0x10000000
_UID = int(os.environ.get("ORDINARY_UID", "1000"))


def as_ordinary_user(*command: str) -> list[str]:
    """Return the command that executes `command` as a user without rights."""
    return [sys.executable, __file__, *command]


if __name__ == "__main__":
    if os.getuid() == 0:
        call_libc("unshare", _CLONE_NEWUSER)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{_UID} 0 1"), ("gid_map", f"{_UID} 0 1")):
            Path(f"/proc/self/{name}").write_text(text)
    os.execvp(sys.argv[1], sys.argv[1:])
