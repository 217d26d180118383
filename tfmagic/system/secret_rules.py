"""Which names and values are taken for passwords, keys and tokens.

Used by what writes files that leave this machine: exports and reports. A rule that errs hides a value that is
none, which is named to the user; no rule finds a password that looks like a word and has a harmless name.
"""

import os
import re
from collections.abc import Mapping

_ALWAYS = re.compile(
    r"PASSW|PASSPHRASE|SECRET|CREDENTIAL|(API|ACCESS|PRIVATE|SIGNING|ENCRYPTION|ACCOUNT)_?KEY"
)
_WORDS = "TOKEN|PASS|PWD|PW|PAT|AUTH|CREDS?|COOKIE|JWT|BEARER|SAS|PIN|KEY"
_AT_AN_END = re.compile(rf"(?:^|_)(?:{_WORDS})S?[_\d]*$|^(?:{_WORDS})_|(?:TOKEN|PASS|PWD|AUTH)$")
_OF_OBJECTS = re.compile(r"(?:^|_)(?:PWD|PASS|PAT)$|(?:TOKEN|DBPASS|AUTH_?KEY)$")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_LEAST = 6  # characters; a shorter value is a word such as "true"

ISSUED = re.compile(
    r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY(?:-----[^-]{0,8000})?"
    r"|\b(?:gh[opsru]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_\w{20,}|sk-[\w-]{16,}|pypi-[\w-]{20,}"
    r"|[srp]k_(?:live|test)_\w{10,}|xox[a-z]-[\w-]{10,}|A(?:KIA|SIA)[A-Z0-9]{12,}|AIza[\w-]{30,}"
    r"|ya29\.[\w-]{20,}|nvapi-[\w-]{16,}|npm_\w{20,}|r8_\w{20,}|gsk_\w{20,}|SG\.[\w-]{10,}\.[\w-]{10,}"
    r"|dckr_pat_[\w-]{16,}|dapi[0-9a-f]{32}|\d{8,10}:AA[\w-]{30,}|eyJ[\w-]{10,}\.[\w-]{5,}\.[\w-]*)"
)
"""What services issue, in any text: its form tells what it is."""

SENT = re.compile(
    r"://[^\s/@:'\"]{0,200}:[^\s/@'\"]{1,200}@"  # user:password@
    r"|\b(?i:bearer|basic|token)\s+(?=[A-Za-z_.~+/=-]*\d)[\w.~+/=-]{12,}"
    r"|(?i:accountkey|sharedaccesssignature|[?&;]sig|pwd|password|passwd)=[^\s;&'\"]{4,}"
)
"""Parts of addresses, headers and connection strings; in a program's text it can be an argument."""


def is_secret_name(name: str) -> bool:
    """Check whether a variable of this name is taken for a secret."""
    upper = _CAMEL.sub("_", name).upper()
    return bool(_ALWAYS.search(upper) or _AT_AN_END.search(upper))


def is_secret_field(name: str, value: str) -> bool:
    """Check the same of a field of code or of an object, where ``key="loss"`` and ``pass_`` are usual."""
    upper = _CAMEL.sub("_", name).upper()
    return len(value) >= _LEAST and bool(_ALWAYS.search(upper) or _OF_OBJECTS.search(upper))


def secret_values(environ: Mapping[str, str]) -> dict[str, str]:
    """Return values of secret environment variables, each with its name. Paths and short words are none."""
    return {
        value: name
        for name, value in environ.items()
        if is_secret_name(name)
        and len(value) >= _LEAST
        and not (value.startswith(("/", "unix:/")) and os.path.exists(value.removeprefix("unix:")))
    }
