"""Backends start task processes: the interface (`protocol`), and one module for each kind of backend.

May import `tfmagic.protocol`, `tfmagic.system` and `tfmagic.runs`; never `tfmagic.task`, whose program they
start.
"""
