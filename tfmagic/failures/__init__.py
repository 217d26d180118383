"""From the outcomes of a cell to the exception that is raised, and the words about it.

Imports `tfmagic.protocol`, `tfmagic.serialization`, `tfmagic.system`, `tfmagic.runs` and the supervisor's
state.
"""
