"""``tfmagic report``: a file about a run that failed, that has ended, that still runs, or that ran a script."""

import html
import json
import os
import platform
import re
import shlex

import pytest
from conftest import wait_until
from snippets import snippets

from tfmagic.frontends.cli import main
from tfmagic.runs import folder
from tfmagic.system import process_identity

SECRET, HOME = "zq81-kfgh-99", "/home/gretel.witch"
FORMS = (  # no rule recognizes all of these
    *(SECRET, HOME, "gretel", "ovenhost", "10.20.30.40", "gingerbread", "candy", "cinnamon", "hunter2x"),
    *("gpu18.cs.example.edu", "AccountKey", "qw0erty1", "dckr_pat", "CandyError", "~bob", "sugar"),
)
FAILS = f"""%%tfcluster --workers 2 --env CANDY_API_KEY={SECRET}
import os, tfmagic
class CandyError(FileNotFoundError): pass
print("key", os.environ["CANDY_API_KEY"], "on 10.20.30.40 of gretel.witch; Authorization: Basic hunter2x")
print("reads {HOME}/gingerbread/rows.csv from postgres://candy-db:5432/rows on gpu18.cs.example.edu of ~bob")
print("AccountKey=qw0erty1; dckr_pat_aaaabbbbccccdddd; MYSQL_PWD=sugar-and-spice")
if tfmagic.current_task().index:
    raise CandyError("no {HOME}/gingerbread/rows.csv on ovenhost")
tfmagic.barrier()
"""


@pytest.fixture
def gretel(monkeypatch):
    """Make this process that of another user on another machine, with secrets in its environment."""
    monkeypatch.setattr(platform, "node", lambda: "ovenhost")
    monkeypatch.setenv("HOME", HOME)
    monkeypatch.setenv("LOGNAME", "gretel.witch")
    monkeypatch.setenv("CANDY_API_KEY", SECRET)


def read(path, with_output=False):
    """Return the page as text, without marks of html; it loads nothing, and has no text of the user's."""
    page = path.read_text("utf-8")
    assert not re.search(r"<script|\bsrc=|@import|url\((?!#)|href=\"(?!#)", page)
    text = html.unescape(
        re.sub(r"<(?:style|title)>.*?</(?:style|title)>|<[^>]*>", " ", page, flags=re.DOTALL)
    )
    here = process_identity.this_machine()[1]
    planted = () if with_output else (*FORMS, here, str(folder.state_dir()))
    assert [word for word in planted if word.lower() in page.lower()] == []
    return text


def test_a_failed_run_has_its_errors_pictures_findings_and_no_text_of_the_users(
    notebook, gretel, tmp_path, capsys
):
    with pytest.raises(FileNotFoundError):
        notebook.run(FAILS)
    path = tmp_path / "bug.html"
    said = notebook.run(f"%tfcluster report --out {shlex.quote(str(path))}")
    assert "--with-output adds output" in said and path.stat().st_mode & 0o777 == 0o600
    text = read(path)
    assert re.search(r"worker-1\s+…\s+line 8 of the cell", text), "an exception of the user's own"
    assert re.search(r"worker-0\s+\S+ \(a consequence\)", text) and "failed after" in text
    assert page_has(path, "Run", "Errors", "Map", "Timeline", "Doctor", "Versions", "JSON")
    assert "2 workers, when it was last seen" in text and "The whole run" in text  # in the pictures
    found = json.loads(html.unescape(re.search(r"<pre>({.*})</pre>", path.read_text("utf-8"), re.DOTALL)[1]))
    assert [task["task"] for task in found["tasks"]] == ["worker-0", "worker-1"] and found["texts"] == []
    (snippet,) = snippets("docs/inside.md", "python")
    names = {"text": found["loop"]}
    exec(snippet.code, names)  # the rules decide it again
    assert capsys.readouterr().out == "[]\n" and len(names["states"]) > 5
    assert not [word for word in FORMS if word in str(names["told"])]
    assert re.search(r"saw   worker-1: cell \d+ raised …", "\n".join(found["story"]))
    run = str(notebook.cluster().run_folder)
    notebook.run("%tfcluster stop")
    assert main(["report", run, "--out", str(path)]) == 0
    assert re.search(r'"worker-1",\s+"failed: …"', read(path)), "an event of the timeline"
    assert main(["report", run, "--with-output", "--out", str(path)]) == 0  # an earlier report is replaced
    assert "read it before you send it" in capsys.readouterr().out
    text = read(path, with_output=True)
    assert re.search(r"state\s+ended", text) and "raise CandyError" in text and "reads /home/gretel" in text
    assert SECRET not in text and "qw0erty1" not in text and "8 texts in them had the form" in text
    assert "output of worker-1: 3 lines" in text and "Nobody has judged the rest" in text
    assert text.index("Read this file before you send it") < text.index("CandyError")


def page_has(path, *titles):
    page = path.read_text("utf-8")
    return all(f'<h2 id="{title.lower()}">{title}</h2>' in page for title in titles)


def test_a_run_that_runs_has_the_stacks_of_its_tasks(notebook, gretel, tmp_path, capsys):
    flag, path = tmp_path / "go", tmp_path / "bug.html"
    loop = f"import os, time\ndef waits():\n    while not os.path.exists({str(flag)!r}):\n        time.sleep(0.005)  # cinnamon\nwaits()"
    notebook.run(f"%%tfcluster --workers 2 --detach\n{loop}")
    status = notebook.cluster().run_folder.folder / "status.json"
    wait_until(lambda: [t["state"] for t in json.loads(status.read_text())["tasks"]] == ["running"] * 2)
    assert main(["report", str(notebook.cluster().run_folder), "--out", str(path)]) == 0
    text = read(path)
    assert re.search(r"state\s+running", text) and "No cell of this run has failed" in text
    assert "running after" in text and "worker-1 running" in text
    assert main(["report", str(notebook.cluster().run_folder), "--out", str(path), "--with-output"]) == 0
    text = read(path, with_output=True)
    assert "stacks of all tasks" in text and "in waits" in text
    flag.touch()
    notebook.run("%tfcluster wait")


def test_a_script_has_a_report(commands, gretel, tmp_path, capsys, monkeypatch):
    script = tmp_path / "gingerbread" / "train.py"
    script.parent.mkdir()
    script.write_text('raise ValueError("bad batch")')
    commands.start(script.parent, ["run", "--workers", "1", script])
    assert commands.wait() == 1
    run = re.search(r"logs (\S+)", (script.parent / "err.txt").read_text())[1]
    monkeypatch.chdir(tmp_path)
    assert main(["report", run]) == 0
    said = capsys.readouterr().out
    path = tmp_path / f"tfmagic-report-{run}.html"
    assert path.name in said
    text = read(path)
    assert "failed" in text and "bad batch" not in text
    assert main(["report", run, "--with-output"]) == 0
    assert "ValueError: bad batch" in read(path, with_output=True)


def test_nothing_else_is_overwritten_and_mistakes_are_named(notebook, gretel, tmp_path, capsys):
    notebook.run("%%tfcluster --workers 1\n1")
    path, run = tmp_path / "thesis.html", str(notebook.cluster().run_folder)
    path.write_text("mine")
    assert main(["report", run, "--out", str(path)]) == 1 and path.read_text() == "mine"
    assert "thesis.html is not a report, and is left as it is" in capsys.readouterr().err
    assert main(["report", run, "--out", str(tmp_path / "none" / "x.html")]) == 1
    assert "cannot be written (No such file or directory)" in capsys.readouterr().err
    assert main(["report", "nothing"]) == 1 and "nothing" in capsys.readouterr().err
    assert not os.path.exists(f"tfmagic-report-{run}.html")
