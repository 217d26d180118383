"""Compare the two behaviours of a program with each other and with the list of differences."""

from __future__ import annotations

from typing import Any

from comparing import find_differences
from differences import DEFECTS, MEANT


def check(program: Any, pair: Any) -> None:
    """Run a program on both sides. Fail if an unlisted aspect differs, or a listed one no longer does."""
    bare, ours = pair.run(program)
    found = find_differences(bare, ours)
    if program.name in DEFECTS:
        assert found, (
            f"no longer wrong: {DEFECTS[program.name]}. Delete {program.name!r} from DEFECTS in differences.py"
        )
        return
    meant = MEANT[program.name].aspects if program.name in MEANT else frozenset()
    unexpected = "\n".join(f"{aspect}: {text}" for aspect, text in found.items() if aspect not in meant)
    assert not unexpected, f"{program.name}\n{unexpected}"
    assert meant <= set(found), (
        f"{sorted(meant - set(found))} no longer differ: delete them from differences.py"
    )
