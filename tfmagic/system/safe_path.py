"""Checks whether another user can replace a folder: the rule by which sshd trusts a file of keys.

A user who owns a folder above a file, or can write to it, can put something else in the place of the file: a
link to another file of ours, or a pipe that nothing reads. Below a folder with the sticky bit (/tmp) only the
owners of the folder and of the entry can do that. A symbolic link is such an entry, too.
"""

import contextlib
import grp
import os
import pwd
import stat
from pathlib import Path


def why_replaceable(path: Path) -> str:
    """Return why another user could replace a part of `path`; "" if none could, or a part is missing.

    Raise OSError, such as ENOTDIR, EACCES or, for links in a circle, ELOOP.
    """
    parts, here = list(reversed(path.absolute().parts)), Path("/")
    with contextlib.suppress(FileNotFoundError):
        os.stat(path)  # for its errors
        while parts:
            here = Path(os.path.normpath(here / parts.pop()))  # without links, ".." is the parent
            info = os.lstat(here)
            if reason := _why_untrusted(info):
                return f"{here} {reason}"
            if stat.S_ISLNK(info.st_mode):
                parts += reversed(Path(os.readlink(here)).parts)
                here = here.parent
    return ""


def _why_untrusted(info: os.stat_result) -> str:
    if info.st_uid not in (0, os.geteuid()) and not _is_unmapped(info.st_uid):
        return f"belongs to {user_name(info.st_uid)}"
    if stat.S_ISLNK(info.st_mode) or info.st_mode & stat.S_ISVTX:
        return ""
    if info.st_mode & stat.S_IWOTH:
        return "can be written by every user"
    if info.st_mode & stat.S_IWGRP and (others := _others_in_group(info.st_gid)):
        return f"can be written by {', '.join(sorted(others)[:3])}"
    return ""


def _is_unmapped(user: int) -> bool:
    """Check whether this stands for users outside of our user namespace: there, / can belong to it."""
    overflow = int(Path("/proc/sys/kernel/overflowuid").read_text())
    ranges = [[int(n) for n in line.split()] for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return user == overflow and not any(first <= user < first + count for first, _, count in ranges)


def _others_in_group(group: int) -> set[str]:
    """Return the members of a group without root and this user, since many systems give each user a group."""
    users = pwd.getpwall()
    found = {user.pw_name for user in users if user.pw_gid == group}
    with contextlib.suppress(KeyError):
        found |= set(grp.getgrgid(group).gr_mem)
    return found - {"root", user_name(os.geteuid())}


def user_name(user: int) -> str:
    """Return a user's name, or ``user 1234`` where the system knows none."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
