"""Each guide begins with who it is for and when not, and ends with what can fail and what to do."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
from docs import PARTS  # noqa: E402

TRIED = "What was tried"  # what follows the failures in recipes for machines that no test has


@pytest.mark.parametrize("name", PARTS["How to"])
def test_a_guide_begins_with_its_readers_and_ends_with_failures(name):
    text = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
    title, first, *_ = text.split("\n\n")
    assert title.startswith("# ") and re.match(r"For (?!:)", first), "say for whom it is"
    assert len(re.findall(r"\.(?=\s|$)", first)) >= 2, "then say when it is not for them, or what is better"
    headings = [h for h in re.findall(r"^## (.+)$", text, re.MULTILINE) if h != TRIED]
    assert headings[-1] in ("When something fails", "Limits") and "When something fails" in headings
    end = text.split("\n## When something fails\n")[1].split("\n## ")[0]
    assert re.search(r"^(\| what you see|- \*\*)", end, re.MULTILINE), (
        "a table or a list, what to do with each"
    )


def test_the_page_on_security_names_each_process_that_listens_on_a_port():
    page = (ROOT / "docs" / "security.md").read_text("utf-8")
    (rule,) = [line for line in page.split("\n- ") if "listens on a port**" in line]
    assert "TensorBoard" in rule and "`%tfcluster tensorboard`" in rule
    assert re.search(r"\*\*TensorBoard\*\* .*listens on a port of 127\.0\.0\.1", page)
    assert "`%tfcluster debug TASK --editor`" in rule and "`tfmagic run --debug TASK SCRIPT`" in rule
    assert re.search(r"\*\*The debugger of an editor\*\* .*listens on 127\.0\.0\.1", page)


def test_each_page_of_the_docs_has_its_place():
    placed = {name for part in PARTS.values() for name in part}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"} <= placed
