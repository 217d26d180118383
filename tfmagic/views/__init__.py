"""Shows a cell: as prefixed text, as a live panel, and as the static form that stays. Views only read;
the buttons of a panel go through `CellControls`.
"""
