"""The course for users: `tfmagic.course.check("3.2")` in a notebook. See `tfmagic.frontends.course`."""

from tfmagic.frontends.course import (
    can_simulate_hosts,
    check,
    copy,
    export,
    find_fault,
    hint,
    lesson_files,
    reset,
    results,
)

__all__ = [
    "can_simulate_hosts",
    "check",
    "copy",
    "export",
    "find_fault",
    "hint",
    "lesson_files",
    "reset",
    "results",
]
