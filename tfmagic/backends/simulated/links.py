"""What a link of a simulated host does to its traffic: rate, latency and loss, and how they are written."""

import re
from dataclasses import dataclass

from tfmagic.errors import ClusterSpecError

_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "": 1.0}
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)bit(?:/s|ps)?", re.I)
_LATENCY = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s)", re.I)
_LOSS = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_LEAST_BITS, _MOST_BITS = 8e3, 400e9
_MOST_LATENCY_S = 10.0
_HOW = "write RATE[,LATENCY[,LOSS]], as 1gbit or 100mbit,0.5ms or off,20ms,0.1%; or off"


@dataclass(frozen=True, slots=True)
class Link:
    """The limits of a host's link, in each direction.

    Attributes:
        bits_per_s: The rate; 0 for as fast as this machine copies.
        latency_s: The time from one host to another, in seconds.
        loss: The share of the packets that are lost, from 0 to 1.
    """

    bits_per_s: float = 0.0
    latency_s: float = 0.0
    loss: float = 0.0

    def __str__(self) -> str:
        if self == Link():
            return "off"
        latency = f",{self.latency_s * 1e3:g}ms" if self.latency_s or self.loss else ""
        return f"{_rate_text(self.bits_per_s)}{latency}{f',{self.loss * 100:g}%' if self.loss else ''}"

    @property
    def needs_netem(self) -> bool:
        """Whether Linux needs its network emulator for it, which is not in every kernel."""
        return bool(self.latency_s or self.loss)


def parse_link(text: str) -> Link:
    """Return the link that ``RATE[,LATENCY[,LOSS]]`` or ``off`` describes.

    Rates are decimal, as networks' are: 1gbit is 10**9 bits a second.

    Raises:
        ClusterSpecError: It describes none.
    """
    parts = [part.strip() for part in str(text).split(",")]
    matches = [
        pattern.fullmatch(part) for pattern, part in zip((_RATE, _LATENCY, _LOSS), parts, strict=False)
    ]
    is_off = parts[0].lower() == "off"
    if len(parts) > 3 or not all(matches[is_off:]):
        raise ClusterSpecError(f"{text!r} is not a network; {_HOW}")
    rate, latency, loss = (*matches, None, None)[:3]
    link = Link(
        float(rate[1]) * _UNITS[rate[2].lower()] if rate and not is_off else 0.0,
        float(latency[1]) * _TIMES[latency[2].lower()] if latency else 0.0,
        float(loss[1]) / 100 if loss else 0.0,
    )
    if not is_off and not _LEAST_BITS <= link.bits_per_s <= _MOST_BITS:
        raise ClusterSpecError(f"a rate is from 8kbit to 400gbit, not {parts[0]}; {_HOW}")
    if link.latency_s > _MOST_LATENCY_S:
        raise ClusterSpecError(f"a latency is at most {_MOST_LATENCY_S:g} s, not {parts[1]}")
    if link.loss > 1:
        raise ClusterSpecError(f"a loss is at most 100%, not {parts[2]}")
    return link


def _rate_text(bits_per_s: float) -> str:
    if not bits_per_s:
        return "off"
    unit = next(unit for unit in "gmk " if bits_per_s >= _UNITS[unit.strip()])
    return f"{bits_per_s / _UNITS[unit.strip()]:g}{unit.strip()}bit"
