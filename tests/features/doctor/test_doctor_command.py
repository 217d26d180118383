"""``tfmagic doctor``: what it prints, and its exit code."""

import json
import re

from tfmagic.frontends.cli import main


def test_the_doctor_reports_trouble_in_json_and_in_its_exit_code(capsys, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    assert main(["doctor", "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)
    (found,) = [f for f in findings if f["severity"] == "trouble"]
    assert found["what"] == "KERAS_BACKEND is torch"
    assert found["advice"].endswith("export KERAS_BACKEND=tensorflow")
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "✕ KERAS_BACKEND is torch\n    " in text and "\x1b" not in text
    assert not re.search(r"%(env|config|tfcluster)|notebook's", text)
    monkeypatch.delenv("KERAS_BACKEND")
    assert main(["doctor"]) == 0
