"""What tfmagic costs, beside its peers, in one run: `python -m benchmarks [NAME ...] [--quick]`.

Every module measures one thing, and says against what. A figure is worth nothing alone: ours and the
peer's alternate on the same machine, in the same minutes, and are compared as medians.
"""
