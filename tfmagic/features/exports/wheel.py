"""Make a wheel of the tfmagic that runs here, so that an export needs no index which has this version.

The files are those of the imported package, also of an editable installation; the metadata are those of the
installation. The kernel of Jupyter, which is no part of a program, is left out.
"""

import base64
import hashlib
import io
import zipfile
from importlib import metadata
from pathlib import Path

from tfmagic.errors import TfmagicError
from tfmagic.system.own_code import OUR_FOLDER

_FORMAT = "Wheel-Version: 1.0\nGenerator: tfmagic\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_METADATA = ("METADATA", "entry_points.txt", "licenses/LICENSE")


def make_wheel() -> tuple[str, bytes]:
    """Return the file name and the content of the wheel. The same files give the same bytes.

    Raises:
        TfmagicError: tfmagic was imported from a folder, and is not installed.
    """
    try:
        installed = metadata.distribution("tfmagic")
    except metadata.PackageNotFoundError:
        raise TfmagicError(
            "tfmagic is not installed in this environment, so its dependencies are not known; "
            "pip install the folder that has it"
        ) from None
    package, stem = Path(OUR_FOLDER), f"tfmagic-{installed.version}"
    info = f"{stem}.dist-info"
    contents = {
        f"tfmagic/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    texts = {name: installed.read_text(name) for name in _METADATA} | {"WHEEL": _FORMAT}
    contents |= {f"{info}/{name}": text.encode() for name, text in texts.items() if text}
    record = "".join(f"{name},{_digest(data)},{len(data)}\n" for name, data in contents.items())
    contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    with zipfile.ZipFile(packed := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            (entry := zipfile.ZipInfo(name)).external_attr = 0o644 << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return f"{stem}-py3-none-any.whl", packed.getvalue()


def _digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
