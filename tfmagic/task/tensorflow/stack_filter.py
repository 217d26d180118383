"""TensorFlow's own stacks in its errors ("Detected at node ... defined at"), without our frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfmagic.system.own_code import OUR_FOLDER


def hide_our_frames() -> None:
    """Filter the frames between the process' start and the cell, for the main thread and for good."""
    from tensorflow.python.util import tf_stack

    ours = {str(path) for path in Path(OUR_FOLDER, "task").rglob("*.py")} | {"<string>"}

    class OurFrames(tf_stack.StackTraceFilter):  # type: ignore[misc]  # TensorFlow is untyped
        def get_filtered_filenames(self) -> Any:
            return frozenset(ours)

    OurFrames().__enter__()
