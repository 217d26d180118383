"""Build the documentation site into build/site: the pages of docs/, the notebooks, and the reference.

The notebooks have their outputs. The reference is generated from the real parsers, settings and docstrings.
Warnings are errors; each page has its Markdown beside it, and llms.txt lists the pages.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "build" / "site-source"
SITE = ROOT / "build" / "site"

PARTS = {
    "By task": ["guides"],
    "How to": [
        *("setup", "doctor", "cells", "panel", "seeing", "failures", "training"),
        *("keras-callbacks", "profile"),
        *("python", "scripts"),
        *("testing", "multi_process_runner", "faults", "simulated-hosts", "tfrecord", "hdf5", "logdir"),
        *("ray", "ray-ssh", "ray-slurm", "ray-kuberay", "ray-cloud", "export", "quick-starts", "agents"),
        *("linters", "jupyterhub", "monitoring", "backends"),
    ],
    "Reference": [
        *("support", "front-ends", "reference/symptoms", "reference/cell", "reference/lines"),
        *("reference/shell", "reference/settings", "reference/api"),
    ],
    "Explanation": [
        *("comparison", "benchmarks", "promises", "teaching", "security", "scale", "releasing", "inside"),
        *("CONTRIBUTING", "CHANGELOG"),
    ],
}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")
_MODULES = ("hdf5", "tfrecord", "logdir", "multi_process_runner")


def main() -> int:
    """Lay out the sources, build the site, and return Sphinx's exit code."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--check-links", action="store_true", help="also ask each external address")
    asked = arguments.parse_args()
    shutil.rmtree(SOURCE, ignore_errors=True)
    shutil.rmtree(SITE, ignore_errors=True)
    lay_out()
    build = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-j", "auto"]
    code = subprocess.run([*build, "-b", "html", SOURCE, SITE]).returncode
    if asked.check_links and not code:
        code = subprocess.run([*build, "-b", "linkcheck", SOURCE, ROOT / "build" / "links"]).returncode
    if not code:
        add_markdown()
        print(f"build/site/index.html: {len(list(SITE.rglob('*.html')))} pages")
    return code


def lay_out() -> None:
    """Write the sources of the site: pages with links to each other, notebooks, the generated reference."""
    SOURCE.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(ROOT / "docs" / "site", SOURCE)
    shutil.copytree(ROOT / "docs" / "pictures", SOURCE / "docs" / "pictures")
    shutil.copytree(ROOT / "docs" / "pictures", SOURCE / "pictures")
    for notebook in sorted((ROOT / "notebooks").rglob("*.ipynb")):
        copy = SOURCE / notebook.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(_without_widgets(notebook), "utf-8")
    for page in sorted((ROOT / "notebooks").rglob("*.md")):
        (SOURCE / page.relative_to(ROOT)).write_text("---\norphan: true\n---\n" + _on_site(page), "utf-8")
    for picture in sorted((ROOT / "notebooks").rglob("*.svg")):
        shutil.copy(picture, SOURCE / picture.relative_to(ROOT))
    for page in (*(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"):
        (SOURCE / page.name).write_text(_on_site(page), "utf-8")
    index = SOURCE / "index.md"
    index.write_text(_on_site(ROOT / "README.md") + "\n" + "\n".join(_contents()), "utf-8")
    (SOURCE / "guides.md").write_text(_on_site(ROOT / "docs" / "index.md"), "utf-8")
    (SOURCE / "reference").mkdir()
    for name, text in reference():
        (SOURCE / "reference" / f"{name}.md").write_text(text, "utf-8")


def _without_widgets(notebook: Path) -> str:
    """Return a notebook with the html and text of its outputs: no page has a kernel for its widgets."""
    content = json.loads(notebook.read_text("utf-8"))
    content["metadata"].pop("widgets", None)
    for cell in content["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = _relink("".join(cell["source"]), notebook.parent)
    return json.dumps(content)


def _on_site(page: Path) -> str:
    """Return a page whose links lead to pages of the site; a file of the sources is only named."""
    return _relink(page.read_text("utf-8"), page.parent)


def _relink(text: str, folder: Path) -> str:
    def replace(link: re.Match[str]) -> str:
        image, words, target = link.groups()
        path, _, anchor = target.partition("#")
        found = (folder / path).resolve()
        inside = found.relative_to(ROOT) if found.is_relative_to(ROOT) else Path(path)
        if image or found.parent.parent == folder.parent.parent == ROOT / "notebooks":
            return link[0]
        if inside.suffix in (".md", ".ipynb"):
            place = {"README.md": "/index.md", "docs/index.md": "/guides.md"}.get(
                str(inside), "/" + str(inside).removeprefix("docs/")
            )
            return f"[{words}]({place}{'#' + anchor if anchor else ''})"
        return f"`{inside}`" if words in ("tests", str(inside), path) else f"{words} (`{inside}`)"

    return _LINK.sub(replace, text)


def _parts() -> dict[str, list[str]]:
    lessons = [
        f"notebooks/course/{path.stem}" for path in sorted((ROOT / "notebooks" / "course").glob("*.ipynb"))
    ]
    guides = [
        f"notebooks/how-to/{path.stem}" for path in sorted((ROOT / "notebooks" / "how-to").glob("*.ipynb"))
    ]
    return {"Tutorials": lessons} | PARTS | {"Notebooks": guides}


def _contents() -> Iterator[str]:
    for caption, names in _parts().items():
        yield from ("```{toctree}", ":hidden:", f":caption: {caption}", "", *names, "```", "")


# -- the reference -----------------------------------------------------------------------------------


def reference() -> Iterator[tuple[str, str]]:
    """Yield name and text of each page of the reference."""
    from tfmagic.frontends.cli import parsers
    from tfmagic.frontends.notebook import options, whole

    yield "symptoms", _relink((ROOT / "tfmagic/frontends/symptoms.md").read_text("utf-8"), ROOT / "docs")
    assert whole.COMMAND_MODULES
    yield "cell", _help("%%tfcluster, the cell magic", options.cell_parser().format_help())
    lines = [
        (f"%tfcluster {name}", options.line_parser(name).format_help()) for name in sorted(options.COMMANDS)
    ]
    yield "lines", "# %tfcluster, the line magic\n\n" + "\n".join(_section(*line) for line in lines)
    shell = [(f"tfmagic {name}", parsers.make_parser(name).format_help()) for name in parsers.PAGES]
    yield "shell", "# tfmagic, the shell command\n\n" + "\n".join(_section(*command) for command in shell)
    yield "settings", "\n".join(_settings())
    yield "api", "\n".join(_api())


def _help(title: str, text: str) -> str:
    return f"# {title}\n\n```text\n{text}```\n"


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text}```\n"


def _settings() -> Iterator[str]:
    from tfmagic import TFCluster

    yield "# Settings\n\nAs `c.TFCluster.NAME` in an IPython configuration, `%config TFCluster.NAME = ...`"
    yield "in a notebook, or an argument of `tfmagic.Cluster`.\n"
    yield "| name | type | default | what it is |\n| --- | --- | --- | --- |"
    for name, trait in sorted(TFCluster.class_own_traits().items()):
        if trait.help:
            cells = (
                f"`{name}`",
                type(trait).__name__.lower(),
                f"`{trait.default_value!r}`",
                _cell(trait.help),
            )
            yield f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _api() -> Iterator[str]:
    import tfmagic

    yield "# Python\n"
    for name in tfmagic.__all__:
        if not name.endswith("_ipython_extension"):
            yield from _documented(f"tfmagic.{name}", getattr(tfmagic, name))
    for module in _MODULES:
        found = getattr(tfmagic, module)
        yield f"## tfmagic.{module}\n"
        for name in found.__all__:
            yield from _documented(f"tfmagic.{module}.{name}", getattr(found, name))


def _documented(path: str, item: object) -> Iterable[str]:
    kind = (
        "autoexception" if _is_exception(item) else "autoclass" if isinstance(item, type) else "autofunction"
    )
    members = [] if path == "tfmagic.TFCluster" else ["   :members:"]  # the page of settings has them
    if path == "tfmagic.Cluster":
        members.append("   :inherited-members:")
    if path == "tfmagic.TaskResults":  # what features bring is in its bases
        members.append("   :inherited-members: Mapping")
    yield f"```{{eval-rst}}\n.. {kind}:: {path}"
    yield from members if kind == "autoclass" else ()
    yield "```\n"


def _is_exception(item: object) -> bool:
    return isinstance(item, type) and issubclass(item, BaseException)


# -- for programs ------------------------------------------------------------------------------------


def add_markdown() -> None:
    """Write each page's Markdown beside its html, and llms.txt, which lists all pages in the site's order."""
    for page in sorted(SOURCE.rglob("*.md")):
        copy = SITE / page.relative_to(SOURCE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(_LINK.sub(functools.partial(_beside, copy.parent), page.read_text("utf-8")), "utf-8")
    lines = ["# tfmagic", "", "> A multi-process TensorFlow cluster, as easy to use as a notebook cell."]
    for caption, names in _parts().items():
        lines += ["", f"## {caption}", ""]
        for name in names:
            text = (SOURCE / name).with_suffix(".md")
            title = re.search(r"^# (.+)", text.read_text("utf-8"), re.M) if text.exists() else None
            lines.append(f"- [{title[1] if title else name}]({name}.{'md' if text.exists() else 'html'})")
    (SITE / "llms.txt").write_text("\n".join(lines) + "\n", "utf-8")


def _beside(folder: Path, link: re.Match[str]) -> str:
    """Return a link of a page's Markdown on the site, where a notebook is html and pictures have a folder."""
    image, words, target = link.groups()
    path, mark, anchor = target.partition("#")
    found = SITE / path.lstrip("/") if path.startswith("/") else folder / path
    if found.suffix == ".ipynb":
        found = found.with_suffix(".html")
    elif image:
        found = SITE / "_images" / found.name
    return f"{image}[{words}]({os.path.relpath(found, folder)}{mark}{anchor})"


if __name__ == "__main__":
    sys.exit(main())
