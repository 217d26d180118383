"""Which of the notebook's files hosts of Ray get, and where these find them."""

import os
import sys
import sysconfig
import zipfile
from io import BytesIO
from pathlib import Path
from types import ModuleType

import pytest

from tfmagic.backends.remote.own_modules import Unpacked, collect, merge
from tfmagic.errors import LaunchError
from tfmagic.protocol.module_origins import original_path

LIMIT = 1 << 20
SENT = [
    "helpers/parts.py",
    "mymodel.py",
    "package/__init__.py",
    "package/inner/layers.py",
    "package/my-templates/page.txt",
    "package/table.json",
]
NOT_SENT = [
    "data.csv",
    "helpers/data.csv",
    ".hidden/secret.py",
    ".env",
    "key.pem",
    "my-runs/other.py",
    "results/plot.png",
    "unrelated/private/cred.py",
    "project/train.py",
    "project/pyproject.toml",
    "package/.env",
    "package/.git/config",
    "package/server.key",
    "package/id_rsa",
    "package/credentials.json",
    "package/.ipynb_checkpoints/layers.py",
    "package/__pycache__/mymodel.cpython-311.pyc",
    "venv/pyvenv.cfg",
    "venv/thing.py",
]


@pytest.fixture
def folder(tmp_path):
    """A folder as a notebook has it, with what is not to be sent beside what is."""
    root = tmp_path / "work"
    for name in (*SENT, *NOT_SENT):
        write(root / name, f"NAME = {name!r}\n")
    return root


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def names_in(archive, root):
    names = zipfile.ZipFile(BytesIO(archive)).namelist()
    return sorted(os.path.relpath(f"/{name}", root) for name in names)


def sent_of(folder, limit=LIMIT):
    return names_in(collect([str(folder)], (), limit).pack(), folder)


def test_what_the_notebook_can_import_is_sent_with_the_data_of_packages_and_nothing_else(folder):
    found = collect([str(folder)], (), LIMIT)
    assert names_in(found.pack(), folder) == SENT
    assert found.before == (str(folder),)
    why = {os.path.relpath(path, folder): reason for path, reason in found.left_out.items()}
    assert why["project"] == "a project of its own" and why["unrelated"] == "no package"
    assert why["package/server.key"] == why["package/credentials.json"] == "perhaps a secret"


def test_a_folder_that_the_notebook_has_imported_is_sent_though_it_is_no_package(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    import unrelated.private.cred  # noqa: F401

    try:
        assert set(sent_of(folder)) - set(SENT) == {"unrelated/private/cred.py"}
    finally:
        for name in ("unrelated", "unrelated.private", "unrelated.private.cred"):
            sys.modules.pop(name, None)


def test_tests_of_a_project_that_is_installed_from_its_folder_stay_unless_they_are_imported(
    tmp_path, monkeypatch
):
    project = tmp_path / "project"
    names = ("pyproject.toml", "package/__init__.py", "package/tests/data.json", "tests/helpers.py")
    for name in names:
        write(project / name, "")
    sent = ["package/__init__.py", "package/tests/data.json"]
    found = collect([str(project)], (), LIMIT)
    assert names_in(found.pack(), project) == sent
    assert "tests of a project" in found.left_out[str(project / "tests")]
    monkeypatch.setitem(sys.modules, "helpers", ModuleType("helpers"))
    monkeypatch.setattr(sys.modules["helpers"], "__file__", str(project / "tests/helpers.py"), raising=False)
    assert sent_of(project) == [*sent, "tests/helpers.py"]
    del sys.modules["helpers"]
    monkeypatch.chdir(project)  # the notebook's own
    assert sent_of(project) == [*sent, "tests/helpers.py"]


def test_an_ignore_file_leaves_out_what_its_patterns_say_as_in_git(folder):
    write(folder.parent / ".tfmagicignore", "mymodel.py\n*.txt\n")
    write(folder / ".tfmagicignore", "# scripts\n/helpers/\n!mymodel.py\n")
    write(folder / "package/.tfmagicignore", "*.json\n")
    found = collect([str(folder)], (), LIMIT)
    assert names_in(found.pack(), folder) == ["mymodel.py", "package/__init__.py", "package/inner/layers.py"]
    ignored = {
        os.path.relpath(path, folder) for path, why in found.left_out.items() if why == ".tfmagicignore"
    }
    assert ignored == {"helpers", "package/table.json", "package/my-templates/page.txt"}


def test_what_is_installed_is_not_sent():
    installed = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib")]
    assert not collect(installed, [os.__file__, pytest.__file__], LIMIT).sent


def test_folders_keep_their_place_before_and_after_pythons_own_modules(folder, tmp_path):
    last = tmp_path / "editable"
    last.mkdir()
    found = collect([str(folder), sysconfig.get_path("stdlib"), str(last)], (), LIMIT)
    assert (found.before, found.after) == ((str(folder),), (str(last),))


def test_a_link_to_a_folder_above_is_followed_once(folder):
    (folder / "package" / "loop").symlink_to(folder)
    assert sent_of(folder) == SENT
    for name in ("a", "zz"):  # whichever is found first, the folder itself is sent, too
        (folder / "package" / name).symlink_to(folder / "helpers")
    assert {"helpers/parts.py", "package/a/parts.py", "package/zz/parts.py"} < set(sent_of(folder))


def test_an_ignore_file_that_cannot_be_read_lets_nothing_out(folder):
    (folder / ".tfmagicignore").write_bytes(b"\xff\xfe")
    with pytest.raises(LaunchError, match=r"tfmagicignore cannot be read"):
        collect([str(folder)], (), LIMIT)
    (folder / ".tfmagicignore").unlink()
    (folder / ".tfmagicignore").symlink_to("missing")
    with pytest.raises(LaunchError, match=r"tfmagicignore is a link to a file that is missing"):
        collect([str(folder)], (), LIMIT)


def test_an_ignore_file_of_windows_holds_from_its_first_line_on(folder):
    (folder / ".tfmagicignore").write_bytes(b"\xef\xbb\xbfmymodel.py\r\npackage/\r\n")
    assert sent_of(folder) == ["helpers/parts.py"]


SECRETS = [
    *(
        "secrets.yaml",
        "service-account.json",
        "token.txt",
        "kubeconfig",
        "prod.env",
        "my_id_rsa",
        "x.jks",
        "x.ppk",
    ),
    *("x.kdbx", "x.pem.bak", "terraform.tfstate", "hf_token", "db.password", "my_secrets.py"),
]


def test_a_secret_is_not_sent_under_any_of_its_names(folder, tmp_path):
    """By its name, through a link, in a linked folder, or by its content."""
    package = folder / "package"
    for name in SECRETS:
        write(package / name, "x")
    write(tmp_path / "home/.ssh/id_rsa", "key")
    write(folder / "package/keys/plain", "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n")
    for name, target in (
        ("mylink", tmp_path / "home/.ssh/id_rsa"),
        ("config.py", folder / ".env"),
        ("page.txt", package / "server.key"),
        ("linked", tmp_path / "home"),
        ("hidden", folder / ".hidden"),
        ("also_ignored.txt", package / "drafts" / "plan.txt"),
    ):
        (package / name).symlink_to(target)
    write(package / "drafts/plan.txt", "x")
    (package / "again").symlink_to(folder / "helpers")
    write(folder / "helpers/plan.txt", "x")
    write(folder / ".tfmagicignore", "drafts/\n/helpers/plan.txt\n")
    found = collect([str(folder)], (), LIMIT)
    assert names_in(found.pack(), folder) == sorted(
        [*SENT, "package/again/parts.py", "package/again/data.csv"]
    )
    why = {os.path.relpath(path, folder): reason for path, reason in found.left_out.items()}
    assert {why[f"package/{name}"] for name in (*SECRETS, "page.txt", "keys/plain")} == {"perhaps a secret"}
    assert why["package/mylink"] == f"a link out of the folder, to {tmp_path}/home/.ssh/id_rsa"
    assert why["package/linked"].startswith("a link out of") and why["package/hidden"].startswith("a link to")
    assert why["package/also_ignored.txt"] == why["package/drafts"] == ".tfmagicignore"


def test_code_and_data_of_tokenizers_are_sent(folder):
    names = ["package/tokenizer.py", "package/password_rules.py", "package/special_tokens_map.json"]
    names += ["package/tokenizer.json", "package/keys.py"]
    for name in names:
        write(folder / name, "x = 1")
    (folder / "package" / "again.py").symlink_to(folder / "mymodel.py")
    assert set(sent_of(folder)) - set(SENT) == {*names, "package/again.py"}


def test_a_name_that_is_no_text_is_left_out_and_named(folder):
    bad = os.fsdecode(b"caf\xe9")
    write(folder / f"{bad}.py", "x = 1")
    write(folder / "package" / bad / "data.txt", "x")
    write(folder.parent / bad / "other.py", "x = 1")
    paths = [str(folder), str(folder.parent / bad)]
    found = collect(paths, [str(folder / f"{bad}.py")], LIMIT)
    assert names_in(found.pack(), folder) == SENT and found.before == (str(folder),)
    why = {os.path.relpath(path, folder): reason for path, reason in found.left_out.items()}
    named = {name for name, reason in why.items() if reason == "its name is no UTF-8"}
    assert named == {"caf?.py", "package/caf?", "../caf?"}


def test_tfmagic_itself_is_not_sent():
    root = os.path.dirname(os.path.dirname(sys.modules["tfmagic"].__file__))
    names = [os.path.relpath(file, root) for file in collect([root], (), 1 << 30).sent]
    assert names and not any(name.startswith("tfmagic/") for name in names)


def test_too_large_modules_are_refused_by_name(folder):
    (folder / "package" / "tables.py").write_bytes(b"#" * LIMIT)
    with pytest.raises(LaunchError, match=r"work/package \(1.0 MiB\).*tfmagicignore.*max_module_bytes"):
        collect([str(folder)], (), LIMIT)
    assert not collect([str(folder)], (), 0).sent


def test_data_that_is_too_large_stays_by_folders_and_is_named(folder):
    (folder / "package" / "images").mkdir()
    for number in range(2):
        (folder / "package" / "images" / f"{number}.bin").write_bytes(b"#" * (LIMIT // 2))
    found = collect([str(folder)], (), LIMIT)
    assert names_in(found.pack(), folder) == SENT
    assert found.too_large == {str(folder / "package" / "images"): LIMIT}


def test_a_host_with_the_same_files_uses_the_copy_but_for_a_script(folder, tmp_path):
    unpacked = Unpacked(collect([str(folder)], (), LIMIT).pack(), tmp_path)
    module = str(folder / "mymodel.py")
    assert unpacked.copy_of(module) == f"{unpacked.folder}{module}" != unpacked.script(module)
    assert unpacked.script(module) == module
    (folder / "mymodel.py").write_text("NAME = 'another'\n")
    assert Path(unpacked.script(module)).read_text() == "NAME = 'mymodel.py'\n"


def test_a_copy_with_a_change_is_another_folder_with_the_changed_file_alone_replaced(folder, tmp_path):
    first = collect([str(folder)], (), LIMIT)
    packed = first.pack()
    write(folder / "mymodel.py", "NAME = 'edited'\n")
    write(folder / "package/inner/layers.py", "NAME = 'edited too'\n")
    now = collect([str(folder)], (), LIMIT)
    changed = first.changed(now, ["package"])
    assert list(changed) == [str(folder / "package/inner/layers.py")]
    old, new = Unpacked(packed, tmp_path), Unpacked(merge(packed, changed), tmp_path)
    assert old.folder != new.folder
    assert "edited" not in Path(new.copy_of(str(folder / "mymodel.py"))).read_text()
    assert "edited too" in Path(new.copy_of(str(folder / "package/inner/layers.py"))).read_text()


def test_a_file_that_is_new_since_has_no_time_and_one_that_stays_here_no_stamp(folder):
    found = collect([str(folder)], (), LIMIT)
    known, new = str(folder / "mymodel.py"), str(folder / "later.py")
    assert found.stamp_of(known) == found.sent[known]
    assert found.stamp_of(new) == (new, 0, 0)
    assert found.stamp_of(str(folder / "project/train.py")) is found.stamp_of("/else/where.py") is None


def test_a_traceback_names_the_file_of_the_notebooks_machine(folder, tmp_path):
    run = tmp_path / "hosts" / "h-1" / "runs" / "20260131"
    run.mkdir(parents=True)
    unpacked = Unpacked(collect([str(folder)], (), LIMIT).pack(), run)
    there = unpacked.copy_of(str(folder / "mymodel.py"))
    assert there != str(folder / "mymodel.py")
    assert original_path(there) == str(folder / "mymodel.py")
    assert original_path("/a/runs/b/modules-x/c.py") == "/a/runs/b/modules-x/c.py"
