"""`make docs` builds the documentation site without a warning, and its pages hold what the product says of itself."""

import functools
import http.server
import re
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlencode

import pytest
from pages import ARGUMENTS, chromium
from playwright.sync_api import sync_playwright

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
    from tfmagic.features.names import FeatureAttributes
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
    of_features = {name for name in dir(FeatureAttributes) if not name.startswith("_")}
    api = (site / "reference" / "api.html").read_text("utf-8")
    assert of_features and all(f'id="tfmagic.TaskResults.{name}"' in api for name in of_features)


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


SEARCHES = {  # what somebody types who has used tfmagic for an hour, and the page that answers
    "early stopping": "keras-callbacks",
    "ModelCheckpoint": "keras-callbacks",
    "save best model": "keras-callbacks",
    "keras callbacks": "keras-callbacks",
    "CSVLogger": "keras-callbacks",
    "batch size": "cells",
    "batch_size per worker": "cells",
    "name a second cluster": "cells",
    "stop cluster": "cells",
    "get results": "cells",
    "changed function": "cells",
    "changed module": "cells",
    "loss of each worker": "panel",
    "worker died": "reference/symptoms",
    "cell hangs": "reference/symptoms",
    "out of memory": "reference/symptoms",
    "address already in use": "reference/symptoms",
    "PerReplica": "reference/symptoms",
    "torchrun": "scripts",
    "nproc_per_node": "scripts",
    "docker image": "export",
    "kubernetes export": "export",
    "install": "index",
}


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def results_of(site):
    """Return a function that types words into the site's search, and returns the pages and titles that it finds."""
    handler = functools.partial(Quiet, directory=site)
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        sync_playwright() as playwright,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        page = browser.new_page()

        def search(words):
            page.goto(f"http://127.0.0.1:{server.server_port}/search.html?{urlencode({'q': words})}")
            page.wait_for_function("document.querySelector('#search-results .search-summary')?.innerText")
            return page.eval_on_selector_all(
                "#search-results ul.search li > a",
                "found => found.map(a => [a.getAttribute('href'), a.textContent])",
            )

        try:
            yield search
        finally:
            browser.close()
            server.shutdown()


@pytest.mark.parametrize("words", SEARCHES)
def test_a_search_finds_its_page_first(results_of, words):
    found = results_of(words)
    assert found and re.match(r"[\w/-]+", found[0][0])[0] == SEARCHES[words], found[:5]


def test_a_name_of_python_finds_its_reference_first(results_of):
    for name in ("task_logdir", "tfmagic.Cluster"):
        assert results_of(name)[0][0].startswith("reference/api.html#"), name


def test_a_backend_is_described_by_all_its_methods():
    from tfmagic.backends.protocol import Backend

    described = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "backends.md").read_text("utf-8"), re.M)
    assert described == [name for name in vars(Backend) if not name.startswith("_")]
