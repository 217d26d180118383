"""The methods of `Cluster`, in groups: calls, variables, faults, and pictures."""
