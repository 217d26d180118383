"""What tfmagic asks the head of a Ray cluster before it connects, and what it says where that fails."""

import json
import os
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


@pytest.mark.parametrize("address", ["ray://10.0.0.7:10001", "ray://10.0.0.7"])
def test_an_address_for_ways_from_outside_is_refused_with_the_one_to_take(address):
    reason = ray_head.look(address).reason
    assert "ray:// are not taken" in reason
    assert "ray start --address=10.0.0.7:6379 --num-cpus=0" in reason


KUBERNETES = """
mount -t tmpfs none /run && mkdir -p /run/secrets/ray.io/serviceaccount ~/.ray
echo of-kubernetes > /run/secrets/ray.io/serviceaccount/token
echo of-home > ~/.ray/auth_token
"$0" -c "$1"
"""
TOKENS = """
import os
for variables in ({}, {"RAY_ENABLE_K8S_TOKEN_AUTH": "true"}, {"RAY_ENABLE_K8S_TOKEN_AUTH": "1", "RAY_AUTH_TOKEN": "given"}):
    if os.fork():  # Ray reads its settings once in a process
        os.wait()
        continue
    os.environ.update(variables)
    from ray._raylet import AuthenticationTokenLoader
    from tfmagic.backends.remote import ray_head
    print(AuthenticationTokenLoader.instance().get_raw_token(), ray_head.token_of(os.environ), flush=True)
    break
"""


def test_a_token_is_found_where_ray_finds_it(tmp_path):
    environ = {**os.environ, "HOME": str(tmp_path), "RAY_AUTH_MODE": "token"}
    words = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-ec",
        KUBERNETES,
        sys.executable,
        TOKENS,
    ]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    both = [line.split() for line in done.stdout.splitlines()]
    assert both == [["of-home"] * 2, ["of-kubernetes"] * 2, ["given"] * 2]


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
    assert ray_head.resolve("auto", {"RAY_ADDRESS": "auto", "RAY_TMPDIR": str(tmp_path)}) == "10.0.0.1:6379"


def test_the_note_of_a_ray_that_has_ended_is_not_taken(tmp_path, monkeypatch):
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.1:6379\n")
    monkeypatch.setattr(ray_head, "_running", lambda: ["10.0.0.3:6379"])
    assert ray_head.resolve("auto", {"RAY_TMPDIR": str(tmp_path)}) == "10.0.0.3:6379"
    monkeypatch.setattr(ray_head, "_running", lambda: ["10.0.0.3:6379", "10.0.0.4:6379"])
    assert ray_head.resolve("auto", {"RAY_TMPDIR": str(tmp_path)}) == ""


def test_addresses_of_this_machine_are_known():
    assert ray_head.is_here("127.0.0.3") and not ray_head.is_here("192.0.2.77")
