"""Replace what is of the machine in texts: paths, names of users and hosts, addresses, tokens.

The same text is replaced by the same label everywhere, so that a reader can still compare. Some texts are
known (the home folder, the user, the host, the values of secret environment variables), others have a form
that tells what they are. A text that is neither, such as the name of a data set, is not recognized.
"""

import getpass
import ipaddress
import os
import platform
import posixpath
import pwd
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from tfmagic.runs.folder import is_task_name
from tfmagic.system.own_code import OUR_FOLDER

T = TypeVar("T")

KINDS = {  #: What each kind of label stands for.
    "home": "your home folder", "project": "the folder of the notebook or script",
    "environment": "the folder of the Python environment", "python": "the folder of its Python",
    "packages": "the folder of installed packages", "state": "the folder in which runs are kept",
    "temporary": "the folder for temporary files", "folder": "another folder",
    "url": "an address of another site or store", "user": "a name of a user", "host": "a name of a machine",
    "address": "a network address", "mail": "a mail address", "token": "a password, key or token",
    "id": "the id of a device or machine",
}  # fmt: skip

_KEPT_FOLDERS = {"bin", "boot", "dev", "etc", "lib", "lib64", "proc", "sbin", "sys", "usr"}
_KEPT_NAMES = {  # that tell nobody who it is, and words of our own
    *("admin", "codespace", "default", "jovyan", "localhost", "nobody", "root", "runner", "ubuntu", "user"),
    *("vagrant", "vscode", "chief", "evaluator", "ps", "worker"),
}
_KEPT_SITES = re.compile(
    r"(.+\.)?(github\.com|jax\.dev|jupyter\.org|keras\.io|pypi\.org|python\.org|tensorflow\.org)"
)
_OUR_HOST = re.compile(r"host-\d+")  # of simulated machines
_USER_NAMES = ("USER", "LOGNAME", "USERNAME", "SUDO_USER", "JUPYTERHUB_USER", "GIT_AUTHOR_NAME")

_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|(^|_)(API|ACCESS)?_?KEY($|_)", re.I)
_LEAST_SECRET = 6  # characters; a shorter value is a word such as "true"
_SECRET_WORD = r"(?:token|secret|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key|credentials?)"
_TOKENS = (
    re.compile(r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)", re.S),
    re.compile(r"(?<=://)[^\s/@:'\"]*:[^\s/@'\"]+(?=@)"),  # user:password@
    re.compile(r"(?<=bearer )[\w.~+/=-]{6,}", re.I),
    re.compile(
        rf"(?<![a-z])[\w-]{{0,40}}{_SECRET_WORD}[\"']?\s*[=:]\s*[\"']?(?P<value>[^\s\"'&,;)}}<>]{{4,}})", re.I
    ),
    re.compile(
        r"\b(?:gh[opsru]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_\w{20,}|sk-[\w-]{16,}|pypi-[\w-]{20,}"
        r"|xox[a-z]-[\w-]{10,}|A(?:KIA|SIA)[A-Z0-9]{12,}|AIza[\w-]{30,}|ya29\.[\w-]{20,}"
        r"|eyJ[\w-]{10,}\.[\w-]{5,}\.[\w-]*)"
    ),
    re.compile(r"(?<![0-9A-Za-z])[0-9a-fA-F]{32,}(?![0-9A-Za-z])"),  # Jupyter's, for example
)
_NO_TOKENS = re.compile(r"<token-\d+>|None|null|True|False")

_URL = re.compile(r"\b(?!file:)[a-z][a-z0-9+.-]{0,15}://[^\s\"'<>\])]+", re.I)
_NAME = r"[\w.@+=,%~-]+"
_PATH = re.compile(
    r"(?<=\")/[^\"\n/]+/[^\"\n]+(?=\")|(?<=')/[^'\n/]+/[^'\n]+(?=')"
    rf"|(?:(?<=file://)|(?<![\w./:>~-]))/(?:{_NAME}/)+{_NAME}"
)
_INNER = re.compile(rf"(?:(?<=<home>)|(?<=<temporary>))/((?:{_NAME}/)+)(?={_NAME})")
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_UUID = re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9A-Za-z])", re.I)
_MAC = re.compile(r"(?<![\w:])(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?![\w:])", re.I)
_INNER_HOST = re.compile(
    r"(?<![\w.-])[\w-]+(?:\.[\w-]+)*\.(?:internal|intranet|corp|lan|home\.arpa)(?![\w-])"
)
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\d)")
_IPV6 = re.compile(r"(?<![\w:])(?=[0-9a-f:]*\d)(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:])", re.I)
_FORMS = ((_MAIL, "mail"), (_UUID, "id"), (_MAC, "id"), (_INNER_HOST, "host"))


class Redactor:
    """Replaces texts by labels, such as ``<home>`` or ``<host-1>``.

    Args:
        folders: Known folders by label, such as the project's.
        hosts: Names or addresses of machines.
        environ: The environment of the run: values of variables with names such as ``*_TOKEN`` are secrets.
    """

    def __init__(self, folders: Mapping[str, str], hosts: Iterable[str], environ: Mapping[str, str]):
        self.counts: Counter[str] = Counter()  #: How often each label was written.
        self._labels: dict[tuple[str, str], str] = {}
        self._secrets = _known_secrets(environ)
        self._folders = _known_folders(folders)
        self._users = _words(_known_users(environ))
        self._hosts = _words(_with_short({*hosts, platform.node(), environ.get("HOSTNAME", "")}))

    def text(self, text: str) -> str:
        """Return the text with labels."""
        text = _URL.sub(self._url, text)
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, self._label("token", secret))
        for pattern in _TOKENS:
            text = pattern.sub(self._token, text)
        for path, label in self._folders:
            if path in text:
                text = re.sub(rf"{re.escape(path)}(?![\w.-])", partial(self._folder, label), text)
        text = _PATH.sub(self._path, _INNER.sub(self._inner, text))
        for pattern, kind in _FORMS:
            text = pattern.sub(partial(self._found, kind), text)
        for pattern in (_IPV4, _IPV6):
            text = pattern.sub(self._address, text)
        for names, kind in ((self._hosts, "host"), (self._users, "user")):
            text = text if names is None else names.sub(partial(self._found, kind), text)
        return text

    def value(self, value: T) -> T:
        """Return a dataclass or struct with labels in all its texts."""
        kind: Any = type(value)
        return msgspec.convert(self._walk(msgspec.to_builtins(value)), kind, strict=False)

    def _walk(self, content: Any) -> Any:
        if isinstance(content, str):
            return content if is_task_name(content) else self.text(content)
        if isinstance(content, dict):
            return {key: self._walk(inner) for key, inner in content.items()}
        return [self._walk(inner) for inner in content] if isinstance(content, list | tuple) else content

    def _label(self, kind: str, text: str) -> str:
        """Return the label of a text, which is numbered by kind."""
        known = self._labels.get((kind, text))
        if known is None:
            number = 1 + sum(of_kind == kind for of_kind, _ in self._labels)
            known = self._labels[kind, text] = f"{kind}-{number}"
        return self._counted(known)

    def _counted(self, label: str) -> str:
        self.counts[label] += 1
        return f"<{label}>"

    def _folder(self, label: str, _: re.Match[str]) -> str:
        return self._counted(label)

    def _found(self, kind: str, found: re.Match[str]) -> str:
        return self._label(kind, found[0].lower())

    def _token(self, found: re.Match[str]) -> str:
        value = found.groupdict().get("value") or found[0]
        if _NO_TOKENS.fullmatch(value):
            return found[0]
        return found[0].replace(value, self._label("token", value))

    def _url(self, found: re.Match[str]) -> str:
        host = re.sub(r".*@|:\d+$", "", found[0].split("://", 1)[1].split("/")[0])
        is_kept = host in ("localhost", "127.0.0.1", "") or _KEPT_SITES.fullmatch(host)
        return found[0] if is_kept else self._label("url", found[0])

    def _path(self, found: re.Match[str]) -> str:
        folder, _, name = found[0].rpartition("/")
        return (
            found[0] if folder.split("/")[1] in _KEPT_FOLDERS else f"{self._label('folder', folder)}/{name}"
        )

    def _inner(self, found: re.Match[str]) -> str:
        """Return a folder below the home folder; one that begins with a dot is that of a program."""
        return found[0] if found[1].startswith(".") else f"/{self._label('folder', found[1])}/"

    def _address(self, found: re.Match[str]) -> str:
        try:
            address = ipaddress.ip_address(found[0])
        except ValueError:
            return found[0]
        is_kept = address.is_loopback or address.is_unspecified
        return found[0] if is_kept else self._label("address", found[0].lower())


def _known_secrets(environ: Mapping[str, str]) -> list[str]:
    values = {value for name, value in environ.items() if _SECRET_NAME.search(name)}
    found = [value for value in values if len(value) >= _LEAST_SECRET and not value.startswith("/")]
    return sorted(found, key=len, reverse=True)


def _known_folders(more: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return folders with their labels, as they are, behind links, and as part of a URL; inner ones first."""
    known = {"temporary": tempfile.gettempdir(), "python": sys.base_prefix, "environment": sys.prefix}
    known |= {"packages": str(Path(OUR_FOLDER).parent), **more, "home": os.path.expanduser("~")}
    found: dict[str, str] = {}
    for label, path in known.items():
        for form in (path, os.path.realpath(path)) if path else ():
            parts = Path(posixpath.normpath(form)).parts
            if len(parts) > 1 and parts[0] == "/" and parts[1] not in _KEPT_FOLDERS:
                text = posixpath.join(*parts)
                found |= {text: label, quote(text, safe=""): label}
    return sorted(found.items(), key=lambda pair: len(pair[0]), reverse=True)


def _known_users(environ: Mapping[str, str]) -> Iterable[str]:
    yield from (environ[name] for name in _USER_NAMES if name in environ)
    yield os.path.basename(os.path.expanduser("~"))
    try:
        yield getpass.getuser()
        entry = pwd.getpwuid(os.getuid())
    except (KeyError, OSError):  # a user without a name, in a container
        return
    yield from (entry.pw_name, entry.pw_gecos.partition(",")[0])


def _with_short(hosts: Iterable[str]) -> set[str]:
    """Return names of hosts, also without their domains."""
    names = {host for host in hosts if not re.fullmatch(r"[\d.]*|.*:.*", host)}
    return names | {name.partition(".")[0] for name in names}


def _words(names: Iterable[str]) -> re.Pattern[str] | None:
    """Return a pattern that matches the names as words, in upper or lower case; None without a name."""
    found = {name for name in (name.strip().lower() for name in names) if len(name) > 1}
    found -= _KEPT_NAMES | KINDS.keys()  # a label is not replaced again
    ordered = sorted(found, key=len, reverse=True)
    kept = [re.escape(name) for name in ordered if not (is_task_name(name) or _OUR_HOST.fullmatch(name))]
    return re.compile(rf"(?<![^\W_])(?:{'|'.join(kept)})(?![^\W_])", re.I) if kept else None
