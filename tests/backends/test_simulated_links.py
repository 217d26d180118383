"""How links are written, and which tasks are on which of the simulated hosts."""

import pytest

from tfmagic.backends.simulated.hosts import NetworkRequest, read_request
from tfmagic.backends.simulated.links import Link, parse_link
from tfmagic.errors import ClusterSpecError
from tfmagic.protocol.cluster_spec import ClusterShape

TASKS = ClusterShape(workers=3, ps=1).tasks


@pytest.mark.parametrize(
    ("text", "link", "shown"),
    [
        ("1gbit", Link(1e9), "1gbit"),
        ("2.5Gbit/s", Link(2.5e9), "2.5gbit"),
        ("100mbit,0.5ms", Link(1e8, 0.0005), "100mbit,0.5ms"),
        ("64kbit, 1s, 0.1%", Link(64e3, 1, 0.001), "64kbit,1000ms,0.1%"),
        ("10gbit,250us", Link(1e10, 0.00025), "10gbit,0.25ms"),
        ("off", Link(), "off"),
        ("OFF,20ms", Link(0, 0.02), "off,20ms"),
        ("8000bit", Link(8e3), "8kbit"),
    ],
)
def test_a_link_is_read_and_shown(text, link, shown):
    assert parse_link(text) == link
    assert str(link) == shown
    assert parse_link(shown) == link


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fast", "RATE[,LATENCY[,LOSS]]"),
        ("1 gigabyte", "RATE"),
        ("1gbit,5", "RATE"),
        ("1gbit,5ms,1", "RATE"),
        ("1gbit,5ms,1%,2", "RATE"),
        ("", "RATE"),
        ("0mbit", "from 8kbit to 400gbit"),
        ("1000gbit", "from 8kbit to 400gbit"),
        ("1gbit,60s", "at most 10 s"),
        ("1gbit,1ms,101%", "at most 100%"),
    ],
)
def test_what_is_no_link_says_how_to_write_one(text, says):
    with pytest.raises(ClusterSpecError) as error:
        parse_link(text)
    assert says in str(error.value)


def test_a_network_alone_gives_each_task_a_host():
    assert read_request(None, None, TASKS) is None
    assert read_request(2, None, TASKS) == NetworkRequest(2, Link())
    assert read_request(None, "1gbit", TASKS) == NetworkRequest(5, Link(1e9))


@pytest.mark.parametrize(
    ("hosts", "says"), [(0, "from 1"), (True, "from 1"), ("2", "from 1"), (6, "each host needs a task")]
)
def test_a_number_of_hosts_that_makes_no_sense_is_refused(hosts, says):
    with pytest.raises(ClusterSpecError) as error:
        read_request(hosts, None, TASKS)
    assert says in str(error.value)
