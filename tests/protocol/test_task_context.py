"""Which task the environment says this process is."""

import json

from tfmagic.protocol import task_context


def test_the_task_of_tf_config_is_chief_as_for_tensorflow(monkeypatch):
    def leads(kind, index, **cluster):
        config = {"cluster": cluster, "task": {"type": kind, "index": index}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        return task_context.task_of_environment().is_chief

    assert leads("worker", 0, worker=["a:1", "b:1"]) and not leads("worker", 1, worker=["a:1", "b:1"])
    assert not leads("worker", 0, worker=["a:1"], chief=["b:1"])
    assert leads("chief", 0, worker=["a:1"], chief=["b:1"])
