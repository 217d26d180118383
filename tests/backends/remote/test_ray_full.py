"""Values for which a node of Ray has no room: neither in its object store nor on its disk."""

import pytest
from ray_nodes import RayNodes

import tfmagic
from tfmagic.errors import CaptureError

SMALL = {"store_bytes": 80_000_000}  # Ray takes no less than 75 MiB
# what a full disk does, without one: Ray spills nothing onto a disk that is used to 1 %
FULL = {**SMALL, "settings": {"RAY_local_fs_capacity_threshold": "0.01"}}
COUNT = 12_500_000  # float64: 95 MiB


def make():
    import numpy

    import __main__

    __main__.made = numpy.ones(COUNT)
    return __main__.made


def seven(cluster):
    return set(cluster.run(lambda: 7, view="quiet").values())


@pytest.mark.parametrize("full", ["127.0.0.2", "127.0.0.3"], ids=["the-notebooks", "another"])
def test_what_a_node_has_no_room_for_is_told_and_the_next_cell_runs(full, monkeypatch):
    numpy = pytest.importorskip("numpy")
    with RayNodes() as nodes:
        first = nodes.start(cpus=1, **(FULL if full == "127.0.0.2" else SMALL))
        other = nodes.add(cpus=1, **(FULL if full == "127.0.0.3" else SMALL))
        for name, value in nodes.driver_variables().items():
            monkeypatch.setenv(name, value)
        options = {"backend": "ray", "address": nodes.address, "placement": "strict-spread"}
        with tfmagic.Cluster(workers=2, **options) as cluster:
            tasks = {row["host"]: row["task"] for row in cluster.status()}
            near, far = tasks[first.address], tasks[other.address]
            why = f"Ray's object store on {full} is full, and so is the disk.*start that node with"
            value = numpy.ones(COUNT)
            with pytest.raises(tfmagic.RemoteError, match=why) as raised:
                cluster.push(big=value)
            assert raised.value.__notes__ == [f"raised on {far}, to which it was not sent"]
            assert seven(cluster) == {7}
            with pytest.raises(CaptureError, match=f"(?s){far} returned cannot travel.*{why}"):
                cluster.run(make, view="quiet")
            pulled = cluster.pull("made")["made"]
            assert pulled[near].shape == (COUNT,) and full in repr(pulled[far])
            assert seven(cluster) == {7}
            assert {row["state"] for row in cluster.status()} == {"ready"}
