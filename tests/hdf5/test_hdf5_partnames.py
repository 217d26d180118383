"""Which file is the part of which task, and their order."""

import os

import pytest

from tfmagic.errors import ClusterSpecError
from tfmagic.hdf5 import (
    SharedWriter,
    TaskFile,
    consolidate,
    find_parts,
    missing_parts,
)


@pytest.fixture
def base(tmp_path):
    return str(tmp_path / "results.h5")


def names(base):
    return sorted(os.listdir(os.path.dirname(base)))


def test_outside_of_a_cluster_it_is_the_part_of_worker_0_or_of_tf_config(base, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert open_and_close(base) == "worker-0"
    config = (
        '{"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "task": {"type": "worker", "index": 1}}'
    )
    monkeypatch.setenv("TF_CONFIG", config)
    assert open_and_close(base) == "worker-1"
    monkeypatch.setenv("TF_CONFIG", "{nonsense")
    with pytest.raises(ClusterSpecError, match="TF_CONFIG does not say"):
        TaskFile(base)


def open_and_close(base):
    with TaskFile(base) as file:
        return file.task.name


def test_parts_stand_by_task_and_number_and_not_as_text(base):
    for task in ("worker-10", "worker-9", "ps-0", "chief-0", "evaluator-0"):
        TaskFile(base, task=task).close()
    for other_file in ("results.notes.h5", "results.worker-01.h5", "resultsXworker-1.h5"):
        open(os.path.join(os.path.dirname(base), other_file), "w").close()
    tasks = [part.task.name for part in find_parts(base)]
    assert tasks == ["chief-0", "worker-9", "worker-10", "ps-0", "evaluator-0"]


def test_a_task_that_is_no_name_is_refused_and_one_part_is_a_part(base):
    with pytest.raises(TypeError, match=r"such as 'worker-3', not \('worker', 3\)"):
        TaskFile(base, task=("worker", 3))
    TaskFile(base).close()
    assert "results.h5: 1 part, virtual, " in str(consolidate(base))


def test_a_name_of_bytes_is_that_name(base):
    name = os.fsencode(base)
    with TaskFile(name) as file:
        file["x"] = [1]
    assert names(base) == ["results.worker-0.h5"]
    assert consolidate(name).path == base and missing_parts(name) == {}
    with SharedWriter(os.fsencode(base + ".too")) as writer:
        writer.append("x", 1)
    assert writer.path == os.path.realpath(base + ".too") and os.path.exists(writer.path)
