"""Sphinx's settings for the documentation site. scripts/docs.py lays out the sources and builds it."""

from pathlib import Path

import tfmagic

project = "tfmagic"
author = "the tfmagic developers"
version = release = tfmagic.__version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_reredirects",
]
html_theme = "furo"
html_title = "tfmagic"
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_show_copyright = False
html_copy_source = False  # each page has its Markdown beside it instead, which scripts/docs.py writes
exclude_patterns = ["_build", "LICENSE"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # the notebooks have the outputs of real runs
nb_mime_priority_overrides = [
    ("*", "text/html", 0),
    ("*", "application/vnd.jupyter.widget-view+json", None),
]
# notebooks end a cell with a magic's own syntax, and show what a terminal shows
suppress_warnings = [
    "misc.highlighting_failure",
    "mystnb.unknown_mime_type",
    "mystnb.mime_priority",
    "ref.python",  # `name` in a docstring is an argument far more often than one of several attributes
]

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_use_ivar = True
copybutton_exclude = ".linenos, .gp, .go"
redirects = {}  # old page: new page, when one moves
