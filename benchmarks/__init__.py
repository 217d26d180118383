"""Measure tfmagic and its peers in one run: `python -m benchmarks [NAME ...] [--quick]`.

Every module measures one subject, and its docstring names the peer. Measurements of tfmagic and of the peer
alternate on the same machine, in the same minutes, and their medians are compared.
"""
