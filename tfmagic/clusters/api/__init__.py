"""The methods of `Cluster`, in groups: calls, variables, hosts, and the story of the loop."""
