import os


def check_environment(*names: str) -> None:
    """End the program if one of these variables is not set. Their values are in no file of the export."""
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise SystemExit(f"Set {', '.join(missing)} in the environment of each task: main.py has no secrets.")
