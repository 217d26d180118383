"""voila 0.5.13: the page that its server makes of a notebook, whose cells it has run with nbclient.

The page ends with a cell that fails. voila writes what is wrong into its log, or into the page if it is told to.
"""

import html
import json
import os
import re
import socket
import sys
import urllib.request

from conftest import program, wait_until
from pages import write_notebook
from whole_notebooks import PYTHON, WholeNotebook

DISPLAY = r'<script type="application/vnd\.voila\.cell-output\+json">(?P<display>.*?)</script>'
TEXT = r'<div class="jp-RenderedText[^>]*/vnd\.jupyter\.(?P<name>\w+)">\s*<pre>(?P<text>.*?)</pre>'


class Client(WholeNotebook):
    def execute(self, cells):
        path = write_notebook(self.folder / "notebook.ipynb", "%load_ext tfmagic\nimport tfmagic", *cells)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        options = ("--no-browser", f"--port={self.url.rpartition(':')[2]}", "--Voila.ip=127.0.0.1")
        shares = f"{PYTHON.parents[1]}/share/jupyter:{sys.prefix}/share/jupyter"  # its templates, those of nbconvert
        variables = {"JUPYTER_PATH": shares, "JUPYTER_CONFIG_DIR": str(self.folder)}
        with program(PYTHON, "-m", "voila", path, *options, env={**os.environ, **variables}) as server:
            wait_until(self.answers, 60)
            page = urllib.request.urlopen(self.url, timeout=120).read().decode()
            server.terminate()
        return [self.outputs_of(part) for part in page.split("<div cell-index=")[2:]]

    def answers(self):
        try:
            return urllib.request.urlopen(f"{self.url}/voila/static/voila.js", timeout=1)
        except OSError as error:
            return getattr(error, "code", 0)

    def outputs_of(self, part):
        for found in re.finditer(f"(?s){DISPLAY}|{TEXT}", part):
            text = html.unescape(re.sub("<[^>]*>", "", found["text"] or ""))
            stream = {"output_type": "stream", "name": found["name"], "text": text}
            yield json.loads(found["display"]) if found["display"] else stream
