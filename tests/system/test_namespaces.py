"""What namespaces change for a process, and what a refusal says."""

import errno
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from ordinary_user import as_ordinary_user

from tfmagic.system.namespaces import explain_refusal


def run(code):
    words = as_ordinary_user(sys.executable, "-c", textwrap.dedent(code))
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_process_of_an_ordinary_user_keeps_its_user_and_gets_no_rights(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0)
    said = run(
        f"""
        import os, socket
        uid = os.getuid()
        from tfmagic.system import namespaces
        namespaces.enter_own_network()
        namespaces.enter_new_host("here")
        namespaces.start_loopback()
        namespaces.drop_rights()
        print(os.getuid() == uid != 0, socket.gethostname())
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname()).close()
        for refused in (lambda: socket.sethostname("there"), lambda: open({str(secret)!r})):
            try:
                refused()
            except PermissionError as error:
                print(error.strerror)
        """
    )
    assert said.splitlines() == ["True here", "Operation not permitted", "Permission denied"]


def test_a_refusal_names_the_line_that_allows_it(tmp_path):
    refused = PermissionError(errno.EPERM, "unshare: Operation not permitted")
    assert "docker run" in explain_refusal(refused, tmp_path)
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "max_user_namespaces").write_text("0\n")
    assert "sysctl -w user.max_user_namespaces=10000" in explain_refusal(refused, tmp_path)
    assert explain_refusal(OSError(errno.EMFILE, "too many open files"), tmp_path) == ""


@pytest.mark.parametrize("hosts_file", ["", "hosts"])
def test_hosts_have_names_where_they_are_given(tmp_path, hosts_file):
    (tmp_path / "hosts").write_text("10.77.0.9 there\n")
    said = run(
        f"""
        import os, socket
        from tfmagic.system import namespaces
        namespaces.enter_own_network()
        namespaces.enter([], {hosts_file and str(tmp_path / hosts_file)!r})
        try:
            print(socket.gethostbyname("there"))
        except socket.gaierror:
            print("unknown")
        """
    )
    assert said.strip() == ("10.77.0.9" if hosts_file else "unknown")
    assert "there" not in Path("/etc/hosts").read_text()
