"""What the short names in messages mean: the entries of symptoms.md, also a page of the documentation."""

import functools
import re
from importlib import resources

from tfmagic.system.advice import did_you_mean

_HEADING = re.compile(r"^## (.+) \((\S+)\)\n", re.MULTILINE)  # what a user sees, and the short name


@functools.cache
def _parts() -> list[str]:
    page = resources.files("tfmagic.frontends").joinpath("symptoms.md").read_text("utf-8")
    return _HEADING.split(page)[1:]


def entries() -> dict[str, str]:
    """Return the text of each entry by its name."""
    return {name: text.strip() for name, text in zip(_parts()[1::3], _parts()[2::3], strict=True)}


def titles() -> dict[str, str]:
    """Return what a user sees where an entry helps, by its name."""
    return dict(zip(_parts()[1::3], _parts()[::3], strict=True))


def explain(name: str = "") -> str:
    """Return the entry of this name, or all names, each with what a user sees.

    Raises:
        LookupError: There is no entry of this name.
    """
    if not name:
        width = max(map(len, entries()))
        return "\n".join(f"{name:<{width}}  {title}" for name, title in titles().items())
    found = next((known for known in entries() if known.lower() == name.lower()), None)
    if found is None:
        raise LookupError(
            f"there is no entry {name!r}; without a name, all are listed{did_you_mean(name, entries())}"
        )
    return f"{found}: {titles()[found]}\n\n{entries()[found]}"
