"""The step of a message about values that should be equal."""

STEPS = {"compare": "diff"}
