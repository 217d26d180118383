"""Hold a program's two behaviours against each other and against the list of differences."""

from __future__ import annotations

from typing import Any

from comparing import find_differences
from differences import DEFECTS, MEANT


def check(program: Any, pair: Any) -> None:
    """Run a program on both sides; fail where they differ and need not, or no longer differ and are listed."""
    bare, ours = pair.run(program)
    found = find_differences(bare, ours)
    if program.name in DEFECTS:
        assert found, (
            f"mended: {DEFECTS[program.name]}. Take {program.name!r} out of DEFECTS in differences.py"
        )
        return
    meant = MEANT[program.name].aspects if program.name in MEANT else frozenset()
    told = "\n".join(f"{aspect}: {text}" for aspect, text in found.items() if aspect not in meant)
    assert not told, f"{program.name}\n{told}"
    assert meant <= set(found), (
        f"{sorted(meant - set(found))} no longer differ: take them out of differences.py"
    )
