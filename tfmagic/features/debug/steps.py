"""The step of a message about an object that has stayed on its task."""

STEPS = {"look inside": "debug"}
