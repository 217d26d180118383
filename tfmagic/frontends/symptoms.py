"""What the short names in messages mean: the entries of symptoms.md, also a page of the documentation."""

import functools
import re
from importlib import resources

from tfmagic.system.advice import did_you_mean


@functools.cache
def entries() -> dict[str, str]:
    """Return the text of each entry by its name."""
    page = resources.files("tfmagic.frontends").joinpath("symptoms.md").read_text("utf-8")
    parts = re.split(r"^## (\S+)\n", page, flags=re.MULTILINE)[1:]
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


def explain(name: str = "") -> str:
    """Return the entry of this name, or all names, each with its first sentence.

    Raises:
        LookupError: There is no entry of this name.
    """
    if not name:
        width = max(map(len, entries()))
        firsts = ((name, " ".join(text.split()).split(". ")[0]) for name, text in entries().items())
        return "\n".join(f"{name:<{width}}  {first.rstrip('.')}" for name, first in firsts)
    found = next((known for known in entries() if known.lower() == name.lower()), None)
    if found is None:
        raise LookupError(
            f"there is no entry {name!r}; without a name, all are listed{did_you_mean(name, entries())}"
        )
    return f"{found}\n\n{entries()[found]}"
