"""The lessons as slides, made by the real nbconvert."""

import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser

import nbformat
import pytest
from snippets import snippets

from tfmagic import course
from tfmagic.frontends.cli import main


class Slides(HTMLParser):
    """The text of each slide; a fragment, which one more press shows, is a slide of its own."""

    def __init__(self, page):
        super().__init__()
        self.texts = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        if tag == "section" or "fragment" in (dict(attributes).get("class") or "").split():
            self.texts.append("")

    def handle_data(self, data):
        if self.texts:
            self.texts[-1] += data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("slides") / "made"
    assert main(["course", "--format", "slides", str(made)]) == 0
    return made


def test_every_lesson_has_slides_without_exercises(folder, capsys):
    assert sorted(path.name for path in folder.glob("*.ipynb")) == [p.name for p in course.lesson_files()]
    for path in folder.glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        text = path.read_text()
        assert "tfmagic.course.check" not in text and "Solution of" not in text and "%load_ext" not in text
        assert "What you know now" in text and text.count("**Predict:**") >= 2
        kinds = [cell.metadata.slideshow.slide_type for cell in notebook.cells]
        assert kinds[0] == "slide" and set(kinds) >= {"slide", "subslide", "-"}
        for link in re.findall(r"\]\((?!http)([^)]+)\)", text):
            assert link.endswith(".slides.html") or (folder / link).exists(), f"{path.name}: {link}"
    assert main(["course", "--format", "slides", str(folder)]) == 1
    assert "exists" in capsys.readouterr().err


def test_an_output_comes_one_press_after_its_code(folder, tmp_path, capsys):
    assert main(["course", "--format", "slides", str(tmp_path / "made")]) == 0
    (command,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("    jupyter")]
    assert any(command.strip() in snippet.code for snippet in snippets("docs/teaching.md", "bash"))
    words = [word.replace("*", "05-scaling") for word in shlex.split(command)]
    assert words[:2] == ["jupyter", "nbconvert"]
    subprocess.run([sys.executable, "-m", *words], cwd=folder, check=True, capture_output=True, timeout=120)
    slides = Slides((folder / "05-scaling.slides.html").read_text("utf-8")).texts
    (code,) = [n for n, text in enumerate(slides) if "Train a classifier of one layer" in text]
    assert "two of the three trainings" in slides[code] and "21 steps, loss" not in slides[code]
    assert "batch 256, learning rate 0.8:  21 steps, loss" in slides[code + 1]
