"""The parts of the pytest plugin that need a cluster: requests, leases, and reports of the tasks' output."""
