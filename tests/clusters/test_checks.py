"""Every argument of a cluster is checked where it enters; what is refused is named, with what is allowed."""

import numpy as np
import pytest
from traitlets import TraitError

import tfmagic
from tfmagic.clusters.launch.settings import TFCluster


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"auto_restart": None}, r"auto_restart is a whole number of 0 or more, not None \(NoneType\)"),
        ({"auto_restart": "x"}, "auto_restart is a whole number"),
        ({"auto_restart": -1}, "auto_restart is a whole number of 0 or more, not -1"),
        ({"auto_restart": 2.5}, "auto_restart is a whole number of 0 or more, not 2.5"),
        ({"workers": "2"}, "workers is a number of tasks, not '2'"),
        ({"workers": True}, "workers is a number of tasks, not True"),
        ({"name": "a b"}, "'a b' cannot name a cluster"),
        ({"isolate": "yes"}, r"isolate is True or False, not 'yes' \(str\)"),
        ({"keras": "3"}, "keras is 2 or 3, not '3'"),
        ({"keras": 4}, "keras is 2 or 3, not 4"),
        ({"keras_fix": None}, "keras_fix is True or False"),
        ({"env": "A=1"}, r"env is \{name: text\}, .* not 'A=1' \(str\)"),
        ({"gpus_per_task": "2"}, "gpus_per_task is a whole number"),
        ({"hosts": "2"}, "hosts is a number of machines, from 1, or None, not '2'"),
        ({"network": 5}, "network is a text, or None, not 5"),
        ({"backend": 5}, "backend is a text, or None, not 5"),
        ({"address": 5}, "address is a text, or None, not 5"),
        ({"resources": 5}, r"resources is \{name: number\}, or None, not 5"),
        ({"resources": {"disk": "big"}}, r"resources is \{name: number\}"),
        ({"cpus_per_task": "2"}, "cpus_per_task is a number of 0 or more, or None, not '2'"),
        ({"namespace": 5}, "namespace is a dict"),
        ({"cluster_spec": 5}, r"cluster_spec is \{task type: \[address, ...\]\}"),
        ({"cluster_spec": {"worker": "localhost:1"}}, r"cluster_spec is \{task type: \[address, ...\]\}"),
        ({"stall_s": "5"}, "'stall_s' trait .* expected a float, not the str '5'"),
        ({"stall_s": -1}, "'stall_s' trait .* should not be less than 0"),
        ({"stal_s": 1}, "no argument or setting stal_s"),
    ],
)
def test_an_argument_of_a_cluster_is_refused_by_name(given, message):
    with pytest.raises((TypeError, ValueError), match=message):
        tfmagic.Cluster(**given)


def test_numbers_of_numpy_are_taken_and_become_those_of_python():
    cluster = tfmagic.Cluster(
        workers=np.int64(2), hosts=np.int8(1), auto_restart=np.int32(3), isolate=np.False_
    )
    assert (cluster.shape.workers, cluster.task_settings.auto_restart) == (2, 3)
    assert type(cluster.shape.workers) is type(cluster.task_settings.auto_restart) is int
    assert tfmagic.Cluster(timeout_s=5).setting("timeout_s") == 5.0


def test_a_setting_is_refused_wherever_it_is_set():
    with pytest.raises(TraitError, match="'failure_grace_s' trait .* should not be less than 0"):
        TFCluster.instance().failure_grace_s = -1


def test_a_decorator_refuses_what_it_cannot_call():
    with pytest.raises(TypeError, match="what tfmagic.cluster decorates is a function, not 5"):
        tfmagic.cluster(5)
