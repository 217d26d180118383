"""Execute a command on a machine that forbids network namespaces: `python no_namespaces.py COMMAND ...`.

The command runs in a user namespace, which has limits of its own.
"""

import os
import sys
from pathlib import Path

from tfmagic.system.processes import call_libc

_CLONE_NEWUSER = 0x10000000


def without_namespaces(*command: str) -> list[str]:
    """Return the command that executes `command` where no network namespace can be made."""
    return [sys.executable, __file__, *command]


if __name__ == "__main__":
    uid, gid = os.getuid(), os.getgid()
    call_libc("unshare", _CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        Path(f"/proc/self/{name}").write_text(text)
    Path("/proc/sys/user/max_net_namespaces").write_text("0")
    os.execvp(sys.argv[1], sys.argv[1:])
