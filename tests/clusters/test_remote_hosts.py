"""What is asked of the hosts of Ray, and which versions must agree."""

import pytest

from tfmagic.backends.remote.messages import HostFacts, HostRequest
from tfmagic.backends.remote.versions import own_versions
from tfmagic.clusters.launch.cluster_options import BackendOptions
from tfmagic.clusters.launch.remote_hosts import check_versions, request_of
from tfmagic.clusters.launch.task_settings import TaskSettings
from tfmagic.errors import BackendError, ClusterSpecError, LaunchError

HERE = {"python": "3.11.7", "tensorflow": "2.21.0", "keras": "3.15.1", "tfmagic": "0.1.0", "ray": "2.60.0"}


def facts(address="10.0.0.2", **versions):
    return HostFacts(address, (), {**HERE, **versions})


def test_equal_versions_and_other_patches_may_work_together():
    check_versions([facts(), facts(python="3.11.9", tensorflow="2.21.1", keras="3.15.0")], HERE)


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("python", "3.12.1"),
        ("tensorflow", "2.20.0"),
        ("keras", "3.14.0"),
        ("tfmagic", "0.1.1"),
        ("ray", "2.60.1"),
    ],
)
def test_another_version_is_told_with_both_and_the_host(name, there):
    with pytest.raises(LaunchError, match=rf"10\.0\.0\.2: {name} {there} \(here {HERE[name]}\)"):
        check_versions([facts(**{name: there})], HERE)


def test_hosts_that_differ_alike_are_told_together():
    others = [facts("10.0.0.2", keras="3.1.0"), facts("10.0.0.3", keras="3.1.0"), facts("10.0.0.4")]
    with pytest.raises(LaunchError, match=r"10\.0\.0\.2, 10\.0\.0\.3: keras 3\.1\.0"):
        check_versions(others, HERE)


def test_the_line_that_mends_it_has_the_versions_of_the_notebook():
    with pytest.raises(LaunchError) as error:
        check_versions([facts(python="3.12.1", keras="3.1.0")], HERE)
    assert str(error.value).endswith("before ray start:  a Python 3.11.7 and pip install keras==3.15.1")


def test_what_is_missing_on_a_host_is_none():
    host = HostFacts(
        "10.0.0.2", (), {name: version for name, version in HERE.items() if name != "tensorflow"}
    )
    with pytest.raises(LaunchError, match="tensorflow none"):
        check_versions([host], HERE)


def test_the_versions_here_are_those_that_are_compared():
    assert set(own_versions()) == set(HERE)


def test_arguments_of_ray_need_ray():
    with pytest.raises(ClusterSpecError, match="address is for tasks on other machines"):
        request_of(BackendOptions(backend="local", address="10.0.0.1:6379"))
    with pytest.raises(BackendError, match="local and ray"):
        request_of(BackendOptions(backend="dask"))
    with pytest.raises(ClusterSpecError, match="strict-spread"):
        request_of(BackendOptions(backend="ray", placement="everywhere"))
    with pytest.raises(ClusterSpecError, match="cpus_per_task"):
        request_of(BackendOptions(backend="ray", cpus_per_task=-1))


def test_a_network_within_this_machine_is_not_for_hosts():
    with pytest.raises(ClusterSpecError, match="leave it out on Ray"):
        TaskSettings(isolate=True, hosts=HostRequest())
