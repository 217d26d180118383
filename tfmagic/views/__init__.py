"""What shows a cell. Views only read: the log files of the tasks and the state of the cell.

Imports `tfmagic.protocol`, `tfmagic.system`, `tfmagic.runs`, `tfmagic.failures` and the supervisor's state.
"""
