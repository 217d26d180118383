"""`make docs` builds the documentation site without a warning, and its pages hold what the product says of itself."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SITE = ROOT / "build" / "site"


@pytest.fixture(scope="module")
def site():
    """Return the folder of a site that was just built; warnings are errors."""
    built = subprocess.run(
        [sys.executable, ROOT / "scripts" / "docs.py"], capture_output=True, text=True, timeout=300
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return SITE


def test_each_page_notebook_and_lesson_is_on_the_site(site):
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    pages |= {str(path.relative_to(ROOT).with_suffix("")) for path in (ROOT / "notebooks").rglob("*.ipynb")}
    assert all((site / f"{page}.html").exists() for page in pages)
    menu = (site / "index.html").read_text("utf-8")
    assert [page for page in sorted(pages) if f'href="{page}.html"' not in menu] == []


def test_the_reference_has_each_option_command_and_setting(site):
    from tfmagic import TFCluster
    from tfmagic.frontends.cli.parsers import PAGES
    from tfmagic.frontends.notebook import options, whole  # noqa: F401  which fills the commands

    def words(page):
        return re.sub("<[^>]+>", "", (site / "reference" / f"{page}.html").read_text("utf-8"))

    assert all(f"%tfcluster {name}" in words("lines") for name in options.COMMANDS)
    assert all(f"tfmagic {name}" in words("shell") for name in PAGES)
    assert all(
        name in words("settings") for name, trait in TFCluster.class_own_traits().items() if trait.help
    )
    assert "--keep-going" in words("cell") and "tfmagic.Cluster(" in words("api")


def test_each_page_has_its_markdown_and_a_line_in_the_list_for_programs(site):
    listed = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text("utf-8"))
    assert "cells.md" in listed and all((site / path).exists() for path in listed)
    assert [path for path in listed if not (site / path).with_suffix(".html").exists()] == []


def test_each_link_of_the_markdown_leads_somewhere(site):
    """Links of headings apart, which Sphinx has checked in the pages themselves."""
    dead = []
    for page in site.rglob("*.md"):
        for path in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text("utf-8")):
            if not (page.parent / path).exists():
                dead.append(f"{page.relative_to(site)}: {path}")
    assert not dead


def test_a_backend_is_described_by_all_its_methods():
    from tfmagic.backends.protocol import Backend

    described = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "backends.md").read_text("utf-8"), re.M)
    assert described == [name for name in vars(Backend) if not name.startswith("_")]
