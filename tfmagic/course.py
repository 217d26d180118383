"""The course for users: `tfmagic.course.check("3.2")` in a notebook. See `tfmagic.frontends.course`."""

from tfmagic.frontends.course import check, copy, export, find_fault, hint, lesson_files, results

__all__ = ["check", "copy", "export", "find_fault", "hint", "lesson_files", "results"]
