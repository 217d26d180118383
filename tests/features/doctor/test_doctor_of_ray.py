"""The doctor's findings about a Ray cluster, without one: what the head's answers mean, and when they are asked."""

import socket
import sysconfig

import pathspec  # noqa: F401  # before a test replaces the import path
import pytest
from doctoring import case, install

from tfmagic.backends.remote.messages import HostRequest
from tfmagic.backends.remote.ray_head import Head
from tfmagic.clusters.launch.task_settings import TaskSettings
from tfmagic.features.doctor import checks, ray_cluster
from tfmagic.features.doctor.findings import Severity
from tfmagic.protocol import module_origins

sysconfig.get_config_vars()  # it is read once, from a module


def on_ray(address="127.0.0.1:1"):
    return case(task_settings=TaskSettings(hosts=HostRequest(address)))


def of_head(head, version="2.60.0", environ=None, trusts_network=False):
    (found,) = ray_cluster.head_findings(head, version, environ or {}, trusts_network)
    return found


def test_a_head_that_nobody_answers_for_is_asked_for_real():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    found = list(ray_cluster.ray(on_ray(f"127.0.0.1:{port}")))
    assert found[-1].refused_by_start and "ray start --head" in found[-1].advice


@pytest.mark.parametrize(
    ("versions", "fix"), [({}, "pip install 'tfmagic[ray]'"), ({"ray": "2.51.1"}, "ray>=2.52")]
)
def test_ray_must_be_there_and_know_tokens(monkeypatch, tmp_path, versions, fix):
    monkeypatch.setattr("sys.path", [install(tmp_path / "site", **versions)])
    assert fix in next(ray_cluster.ray(on_ray())).advice


def test_a_head_with_a_token_is_fine():
    assert of_head(Head("10.0.0.1:6379", "2.60.0", True)).severity is Severity.FINE


def test_another_version_of_ray_is_told_with_both():
    found = of_head(Head("10.0.0.1:6379", "2.58.0", True))
    assert "2.58.0" in found.what and "2.60.0" in found.what and "pip install ray==2.58.0" in found.advice


def test_a_head_without_a_token_is_noted_here_and_refused_elsewhere():
    assert of_head(Head("127.0.0.1:6379", "2.60.0", False)).severity is Severity.NOTE
    found = of_head(Head("192.0.2.77:6379", "2.60.0", False))
    assert found.refused_by_start and "RAY_AUTH_TOKEN" in found.advice
    nodes = ("127.0.0.1", "192.0.2.78")
    assert of_head(Head("127.0.0.1:6379", "2.60.0", False, nodes)).refused_by_start


def test_certificates_or_trust_in_the_network_replace_a_token():
    head = Head("192.0.2.77:6379", "2.60.0", False)
    assert of_head(head, environ={"RAY_USE_TLS": "1"}).severity is Severity.FINE
    trusted = of_head(head, trusts_network=True)
    assert trusted.severity is Severity.NOTE and "can run code in your name" in trusted.advice


def test_a_file_of_the_token_that_others_can_read_is_told_with_the_line_that_closes_it(tmp_path):
    file = tmp_path / "token"
    file.touch(0o600)
    assert not list(ray_cluster.token_findings({"RAY_AUTH_TOKEN_PATH": str(file)}))
    file.chmod(0o644)
    (found,) = ray_cluster.token_findings({"RAY_AUTH_TOKEN_PATH": str(file)})
    assert found.severity is Severity.TROUBLE and found.advice == f"chmod 600 {file}"
    assert not list(ray_cluster.token_findings({"RAY_AUTH_TOKEN_PATH": str(file), "RAY_AUTH_TOKEN": "x"}))


def test_the_files_of_tls_must_be_readable(tmp_path):
    file = tmp_path / "a.pem"
    file.touch()
    files = dict.fromkeys(("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"), str(file))
    assert not list(ray_cluster.tls_findings({}, elsewhere=False))
    (off,) = ray_cluster.tls_findings({}, elsewhere=True)
    (incomplete,) = ray_cluster.tls_findings({"RAY_USE_TLS": "1"}, elsewhere=True)
    (complete,) = ray_cluster.tls_findings({"RAY_USE_TLS": "1", **files}, elsewhere=True)
    assert [f.severity for f in (off, incomplete, complete)] == [
        Severity.NOTE,
        Severity.TROUBLE,
        Severity.FINE,
    ]
    assert "RAY_TLS_CA_CERT=" in incomplete.advice


def test_the_ports_of_tensorflow_and_the_folder_matter_where_hosts_are_elsewhere():
    assert not list(ray_cluster.tensorflow_ports(on_ray()))
    (found,) = ray_cluster.tensorflow_ports(on_ray("192.0.2.77:6379"))
    assert "firewall" in found.advice
    (found,) = ray_cluster.shared_folder(on_ray("192.0.2.77:6379"))
    assert "no other data" in found.advice


def test_what_hosts_get_of_the_notebook_is_listed_with_what_stays_here(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.setattr(module_origins, "find_origins", lambda: ())  # pytest's modules would be sent, too
    (tmp_path / "model.py").write_text("x = 1")
    (tmp_path / "notes.py").write_text("")
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text("")
    (tmp_path / "package/data.bin").write_bytes(bytes(2000))
    (tmp_path / ".tfmagicignore").write_text("notes.py")
    sent, stays = ray_cluster.own_files(on_ray())
    assert sent.what.startswith("hosts get 3 files of this notebook, 2.0 KiB; the largest:")
    assert f"{tmp_path}/package/data.bin (2.0 KiB)" in sent.what and "notes.py" not in str(sent)
    assert stays.severity is Severity.FINE and f"{tmp_path}/notes.py: .tfmagicignore" in stays.what

    def limited(limit):
        return list(
            ray_cluster.own_files(
                case(settings={"max_module_bytes": limit}, task_settings=on_ray().task_settings)
            )
        )

    sent, stays = limited(1000)
    assert "2 files" in sent.what and stays.severity is Severity.NOTE
    assert f"{tmp_path}/package: 2.0 KiB of data" in stays.what
    (refused,) = limited(3)
    assert refused.refused_by_start and str(tmp_path) in refused.advice
    (none,) = limited(0)
    assert "no files" in none.what


def test_a_cluster_on_ray_is_not_checked_for_room_here_and_a_local_one_not_for_ray(monkeypatch):
    monkeypatch.setattr(ray_cluster, "_ask", lambda address: (Head(address, "0", True), []))
    remote = [finding.what for finding in checks.examine(on_ray())]
    local = [finding.what for finding in checks.examine(case())]
    assert any(what.startswith("Ray at") for what in remote)
    assert not any(what.startswith(("memory:", "cores:")) for what in remote)
    assert any(what.startswith("memory:") for what in local)
    assert not any("Ray" in what for what in local)


def test_nothing_of_ray_is_asked_before_a_start(monkeypatch):
    monkeypatch.setattr(ray_cluster, "_ask", lambda address: pytest.fail("asked"))
    assert not checks.troubles(on_ray())
