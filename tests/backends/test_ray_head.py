"""What tfmagic asks the head of a Ray cluster before it connects, and what it says where that fails."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tfmagic.backends.remote import ray_head

SCRIPT = Path(__file__).parents[1] / "support" / "ray_head_script.py"


def heard(*cases):
    """Return what `look` finds for heads with these tokens ("": none; None: no head of Ray's), in these environments."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), json.dumps(cases)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_head_says_its_version_and_whether_it_asks_for_a_token(tmp_path):
    file = tmp_path / "token"
    file.write_text("right\n")
    without, wrong, off, right, by_file, open_head, foreign = heard(
        ("right", {"RAY_AUTH_TOKEN_PATH": "/nowhere"}),
        ("right", {"RAY_AUTH_TOKEN": "wrong"}),
        ("right", {"RAY_AUTH_TOKEN": "right", "RAY_AUTH_MODE": "disabled"}),
        ("right", {"RAY_AUTH_TOKEN": "right", "RAY_AUTH_MODE": "token"}),
        ("right", {"RAY_AUTH_TOKEN_PATH": str(file)}),
        ("", {"RAY_AUTH_TOKEN": "right"}),
        (None, {}),
    )
    assert without[1] and "asks for a token, and there is none here" in without[2]
    assert wrong[1] and "refuses the token" in wrong[2] and "RAY_AUTH_TOKEN" in wrong[2]
    assert off[1] and "RAY_AUTH_MODE is not token here" in off[2]
    nodes = ["127.0.0.3", "192.0.2.2"]  # the third has ended
    assert right == by_file == ["2.60.0", True, "", nodes]
    assert open_head == ["2.60.0", False, "", nodes]
    assert foreign[1] is None and "no head of Ray's" in foreign[2] and "RAY_USE_TLS" in foreign[2]


def test_the_server_of_ray_clients_says_whether_it_lets_us_in():
    wrong, right, open_server = heard(
        ("right", {"RAY_AUTH_TOKEN": "wrong"}, "ray://"),
        ("right", {"RAY_AUTH_TOKEN": "right"}, "ray://"),
        ("", {"RAY_AUTH_TOKEN": ""}, "ray://"),
    )
    assert "refuses the token" in wrong[2]
    assert right == ["", True, "", []] and open_server == ["", False, "", []]


def test_an_address_where_nothing_answers_is_named_with_the_line_that_starts_a_head():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    head = ray_head.look(f"127.0.0.1:{port}")
    assert "Connection refused" in head.reason and "ray start --head" in head.reason


@pytest.mark.parametrize("address", ["10.0.0.1", "somewhere", "10.0.0.1:x"])
def test_what_is_no_address_is_refused(address):
    assert "no address" in ray_head.look(address).reason


def test_a_machine_without_a_node_is_told_how_to_get_one():
    reason = ray_head._no_node_here("10.0.0.1:6379", ["10.0.0.1", "10.0.0.2"])
    assert "10.0.0.1, 10.0.0.2" in reason and "ray start --address=10.0.0.1:6379 --num-cpus=0" in reason


def test_auto_is_the_address_that_ray_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_head, "_running", list)  # other tests can run a Ray
    assert ray_head.resolve("auto", {"RAY_TMPDIR": str(tmp_path)}) == ""
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.1:6379\n")
    assert ray_head.resolve("auto", {"RAY_TMPDIR": str(tmp_path)}) == "10.0.0.1:6379"
    assert ray_head.resolve("auto", {"RAY_ADDRESS": "10.0.0.2:6379"}) == "10.0.0.2:6379"


def test_addresses_of_this_machine_are_known():
    assert ray_head.is_here("127.0.0.3") and not ray_head.is_here("192.0.2.77")
