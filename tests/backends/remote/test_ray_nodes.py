"""The Ray clusters of the tests: see `tests/support/ray_nodes.py`."""

import os
import subprocess
import sys

import pytest
from conftest import alive, program, wait_until
from ray_nodes import RayNodes

pytestmark = pytest.mark.filterwarnings("error")

_DRIVER = """\
import sys, ray
ray.init(sys.argv[1], log_to_driver=False)
@ray.remote(num_cpus=1, resources={"rack": 1})
class Agent:
    def address(self):
        return ray.util.get_node_ip_address()
agent = Agent.remote()
print(ray.get(agent.address.remote()), flush=True)
sys.stdin.readline()
try:
    while True:
        ray.get(agent.address.remote(), timeout=60)
except ray.exceptions.ActorDiedError:
    print("died", flush=True)
"""


@pytest.mark.soak  # of the helper; the other tests of Ray need it to work
def test_an_actor_runs_on_the_node_that_was_added_until_its_raylet_is_killed():
    with RayNodes() as nodes:
        nodes.start(cpus=1)
        added = nodes.add(resources={"rack": 1})
        environ = {**os.environ, **nodes.driver_variables()}
        with program(
            sys.executable, "-c", _DRIVER, nodes.address, env=environ, stdin=subprocess.PIPE
        ) as driver:
            assert driver.stdout.readline().strip() == added.address
            nodes.kill_raylet(added)
            driver.stdin.write("\n")
            driver.stdin.flush()
            assert "died" in driver.stdout.read()
        wait_until(lambda: not added.pids())
        pids = nodes.nodes[0].pids()
        assert alive(pids) == pids
    assert not alive(pids) and not nodes.folder.exists()
    assert all(not node.pids() for node in nodes.nodes)
