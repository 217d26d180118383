"""``%%tfcluster --notify``: the user is told when the cell is done."""
