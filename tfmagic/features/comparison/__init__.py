"""``--compare``: the same cell in clusters that differ in their size, their hosts or their network.

axes: workers=1,2  network=100mbit,off ──→ 4 variants
ways: a cluster each, one after the other ──→ measured: a table, a chart, and what the cores add
"""
