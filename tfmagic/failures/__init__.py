"""Turns the outcomes of a cell into the exception that is raised, and into the texts that explain it.

Imports `tfmagic.protocol`, `tfmagic.serialization`, `tfmagic.system`, `tfmagic.runs` and the supervisor's
state.
"""
