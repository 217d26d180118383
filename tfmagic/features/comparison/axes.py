"""The axes of ``--compare``, and the variants of a cluster that they make."""

import argparse
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfmagic.backends.simulated.links import parse_link
from tfmagic.errors import ClusterSpecError

AXES = ("workers", "hosts", "network")
Value = int | str
Axis = tuple[str, tuple[Value, ...]]
Variant = Mapping[str, Value]
"""A value for each axis that is compared."""

_OF_A_LINK = re.compile(r"(\d\s*(us|ms|s)|%)$", re.I)  # a latency or a loss


def parse_axis(text: str) -> Axis:
    """Read ``workers=1,2,4``, ``hosts=1,2`` or ``network=100mbit,1gbit,0.5ms,off``, for argparse."""
    name, _, given = text.partition("=")
    words = [word.strip() for word in given.split(",")]
    if name == "network" and given:
        return name, _parse_links(words)
    if name not in AXES or not all(word.isdigit() and int(word) > 0 for word in words):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not of the form workers=1,2,4, hosts=1,2 or network=100mbit,1gbit,off"
        )
    return name, tuple(map(int, words))


def _parse_links(words: Sequence[str]) -> tuple[Value, ...]:
    """Return the links of a list in which a latency or a loss follows the rate that it belongs to."""
    links: list[str] = []
    for word in words:
        if links and _OF_A_LINK.search(word):
            links[-1] += f",{word}"
        else:
            links.append(word)
    try:
        return tuple(str(parse_link(link)) for link in links)
    except ClusterSpecError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def variants_of(axes: Iterable[Axis]) -> list[dict[str, Any]]:
    """Return every combination, the first axis slowest."""
    named = dict(axes)
    return [dict(zip(named, values, strict=True)) for values in itertools.product(*named.values())]


def name_of(variant: Variant) -> str:
    """Return "2 workers, network 1gbit"."""
    words = []
    for axis, value in variant.items():
        singular = axis[:-1] if value == 1 else axis
        words.append(f"network {value}" if axis == "network" else f"{value} {singular}")
    return ", ".join(words)
