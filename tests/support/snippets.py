"""Read the snippets of a page of the documentation: its fenced blocks, and the commands within its sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))


@dataclass(frozen=True, slots=True)
class Snippet:
    """A fenced block.

    Attributes:
        page: Path of its page, relative to the project.
        line: Line number of its first line.
        section: Heading that it stands below.
        language: The word behind the fence, "" if there is none.
        code: The lines between the fences.
    """

    page: str
    line: int
    section: str
    language: str
    code: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def snippets(page: str, *languages: str) -> list[Snippet]:
    """Return the fenced blocks of a page in these languages, or all of them."""
    found, section, language, block, start = [], "", "", list[str](), 0
    for number, line in enumerate((ROOT / page).read_text("utf-8").splitlines(), 1):
        if line.startswith("```") and not start:
            language, block, start = line[3:].strip(), [], number + 1
        elif line.startswith("```"):
            found.append(Snippet(page, start, section, language, "\n".join(block) + "\n"))
            start = 0
        elif start:
            block.append(line)
        elif line.startswith("#"):
            section = line.lstrip("# ")
    assert not start, f"{page}: a fence that is opened in line {start - 1} is not closed"
    return [snippet for snippet in found if snippet.language in languages or not languages]


def inline_commands(page: str) -> Iterator[str]:
    """Yield the texts in backquotes of a page, outside of its blocks."""
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    for found in re.findall(r"`([^`]+)`", text):
        yield " ".join(found.split())


def with_options(synopsis: str) -> str:
    """Return the command with everything that its synopsis has in brackets, with numbers for N and SECONDS."""
    return re.sub(r"\b(N|SECONDS)\b", "2", re.sub(r"[\[\]]|\.\.\.|…", " ", synopsis))


def without_options(synopsis: str) -> str:
    """Return the command without what its synopsis has in brackets."""
    return re.sub(r"\[[^\]]*\]", "", synopsis)


def assert_shown(snippet: Snippet, output: str) -> None:
    """Check that the output contains a block's text: numbers and the word `host` can differ, and `...` is any text."""
    pattern = re.escape(snippet.code.rstrip("\n"))
    pattern = re.sub(r"\d+", r"\\d+", pattern).replace(r"\ ", r"\s+")
    pattern = re.sub(r"\bhost\b", r"\\S+", pattern).replace(r"\.\.\.", ".*?")
    assert re.search(pattern, output, re.DOTALL), f"{snippet.place} is not what is printed:\n{output}"
