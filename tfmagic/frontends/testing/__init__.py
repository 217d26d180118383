"""What the pytest plugin is made of: clusters that tests share, and the output of a test's tasks."""
