"""`make shots`: take the pictures of the docs from the running quickstart in JupyterLab."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "support")]

THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
WIDTH, HEIGHT = 1180, 820


def main() -> int:
    """Take every picture. Return 0."""
    from pages import ARGUMENTS, Server, chromium
    from playwright.sync_api import sync_playwright

    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, theme in THEMES.items():
        with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
            shutil.copy(ROOT / "notebooks" / "how-to" / "quickstart.ipynb", folder)
            server = Server(Path(folder), theme=theme)
            browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS, headless=True)
            try:
                page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=1.5)
                _take(page, server, name)
            finally:
                browser.close()
                server.close()
    print(*sorted(PICTURES.glob("*.png")), sep="\n")
    return 0


def _take(page: Any, server: Any, theme: str) -> None:
    """Run the quickstart. Take a picture during the training, after it, and after a task has failed."""
    from pages import NotebookPage

    book = NotebookPage(page, server, "quickstart.ipynb")
    book.command("application:toggle-left-area")
    book.command("notebook:run-all-cells")
    cells = _code_cells(book)
    training = cells["model, epoch_seconds = train()"]
    _show(book, training)
    book.output(training).locator(".tfm-row", has_text="epoch  8").first.wait_for(timeout=180_000)
    _shoot(page, f"training-{theme}")
    book.wait_until_ended(training, 300)
    _show(book, training)
    _shoot(page, f"trained-{theme}")
    failing = cells["bad data"]
    book.wait_until_ended(failing, 300)
    _show(book, failing)
    _shoot(page, f"failed-{theme}")


def _code_cells(book: Any) -> dict[str, int]:
    """Return the indices of the cells that are photographed, by a piece of their source."""
    sources = book.page.evaluate(
        "() => window.jupyterapp.shell.currentWidget.content.widgets.map(c => c.model.sharedModel.source)"
    )
    return {
        piece: next(i for i, source in enumerate(sources) if piece in source)
        for piece in ("model, epoch_seconds = train()", "bad data")
    }


def _show(book: Any, place: int) -> None:
    book.select(place)
    book.page.evaluate(
        "i => window.jupyterapp.shell.currentWidget.content.widgets[i].node.scrollIntoView({block: 'start'})",
        place,
    )
    book.page.wait_for_timeout(300)


def _shoot(page: Any, name: str) -> None:
    page.screenshot(path=str(PICTURES / f"{name}.png"))


if __name__ == "__main__":
    sys.exit(main())
