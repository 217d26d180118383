"""TF_CONFIG of a task that gets new addresses: what the program has made of it stays."""

import json
import os

import pytest

from tfmagic.task.tensorflow import tf_config

FIRST, SECOND = (json.dumps({"cluster": {"worker": [f"127.0.0.1:{port}"]}}) for port in (1, 2))


@pytest.mark.parametrize("program", [FIRST, "{}", None])
def test_new_addresses_replace_only_what_tfmagic_has_set(monkeypatch, program):
    monkeypatch.setenv("TF_CONFIG", "of the notebook")
    monkeypatch.setattr(tf_config, "_own", "")
    tf_config.give(FIRST)
    assert os.environ["TF_CONFIG"] == FIRST
    if program is None:
        del os.environ["TF_CONFIG"]
    else:
        os.environ["TF_CONFIG"] = program
    tf_config.give(SECOND)
    assert os.environ.get("TF_CONFIG") == (SECOND if program == FIRST else program)


@pytest.mark.parametrize(
    ("value", "is_read"),
    [
        ('{"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}}', False),
        ('{"cluster": {"worker": {"0": "10.0.0.1:5"}}}', False),
        ('{"cluster": {"chief": ["127.0.0.1:1"], "worker": []}}', True),
        ('{"cluster": 5}', True),
        ('{"cluster": {"worker": 5}}', True),
        ('{"cluster', True),
        ("", True),
    ],
)
def test_addresses_of_other_machines_are_not_read(monkeypatch, value, is_read):
    monkeypatch.setenv("TF_CONFIG", value)
    monkeypatch.setattr(tf_config, "_own", FIRST)
    read = tf_config.reading(lambda: os.environ["TF_CONFIG"])()
    assert read == (value if is_read else FIRST)
