"""What is about to run on a cluster, as far as the start of its tasks depends on it."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Program:
    """A cell, or a script.

    Attributes:
        again: Returns the line that runs it with new tasks; ``{}`` stands for a further option.
        source: That of a cell.
        target: A script, or the name of a module; "" for a cell.
    """

    again: Callable[[], str]
    source: str = ""
    target: str = ""
    is_module: bool = False
