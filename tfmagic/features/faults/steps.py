"""The steps of messages about tasks that are stopped, and hosts that are cut off."""

STEPS = {"let go on": "resume", "join hosts": "heal"}
