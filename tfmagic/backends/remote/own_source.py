"""tfmagic's own source, for hosts where it is not installed.

`unpack_source` travels by value to a host that has nothing of tfmagic yet, so it imports what it needs.
"""

import functools
import io
import zipfile
from pathlib import Path

from tfmagic.system.own_code import OUR_FOLDER
from tfmagic.system.version import VERSION


@functools.cache
def source_of_tfmagic() -> bytes:
    """Return this package as a zip file, for hosts where it is not installed."""
    root = Path(OUR_FOLDER)
    archive = io.BytesIO()
    # Nix, Guix and Bazel give files the time 0, which a zip file does not have
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as out:
        for path in sorted(root.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                out.write(path, f"tfmagic/{path.relative_to(root)}")
        about = f"Metadata-Version: 2.1\nName: tfmagic\nVersion: {VERSION}\n"
        out.writestr(f"tfmagic-{VERSION}.dist-info/METADATA", about)
    return archive.getvalue()


def unpack_source(source: bytes) -> str:
    """Return a folder with the packages of this archive, which only this user can write. It is kept."""
    import hashlib
    import io
    import os
    import shutil
    import tempfile
    import zipfile

    name = f"tfmagic-{os.getuid()}-{hashlib.sha256(source).hexdigest()[:16]}"
    folder = os.path.join(tempfile.gettempdir(), name)
    made = tempfile.mkdtemp(prefix=f"{name}-")  # mode 0700
    with zipfile.ZipFile(io.BytesIO(source)) as archive:
        archive.extractall(made)
        names = archive.namelist()
    try:
        os.rename(made, folder)
    except OSError:  # it is there, perhaps of somebody else, or cleaned in part
        known = os.lstat(folder)
        is_ours = known.st_uid == os.getuid() and not known.st_mode & 0o077
        if not is_ours or not all(os.path.exists(os.path.join(folder, name)) for name in names):
            return made
        shutil.rmtree(made)
    return folder
