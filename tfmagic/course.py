"""The course for users: `tfmagic.course.check("3.2")` in a notebook. See `tfmagic.features.course`."""

from tfmagic.features.course.exercises import check, export, find_fault, hint, results
from tfmagic.features.course.lessons import copy, lesson_files
from tfmagic.features.course.machine import can_simulate_hosts, reset

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
