"""What a user appends to a shared file, as a message has it: checked where the error concerns nobody else.

Called by `tfmagic.hdf5.shared_writer.client` alone, in the process that appends; knows nothing of the writer.
"""

from __future__ import annotations

from typing import Any

from tfmagic.hdf5.shared_writer.messages import TEXT


def name_of(dataset: Any) -> str:
    """The one way to write this name: rows for "x" and "/x" are for one dataset."""
    parts = [part for part in dataset.split("/") if part not in ("", ".")] if isinstance(dataset, str) else []
    name = "/".join(parts)
    if not name or "\0" in name:
        raise ValueError(f"a dataset has a name, not {dataset!r}")
    return name


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def _decoded(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise ValueError(
            f"HDF5 holds text as UTF-8, not {text[:80]!r}: append bytes as rows of one length, as with "
            "numpy.frombuffer(data, 'uint8')"
        ) from None


def rows_of(array: Any) -> tuple[str, Any]:
    """The dtype as a message has it, and the rows: contiguous, or strings."""
    import numpy as np

    found = np.asarray(array)
    if found.ndim == 0:
        found = found.reshape(1)
    kind = found.dtype.kind
    if kind in "UT" or (kind == "O" and all(isinstance(value, str | bytes) for value in found.flat)):
        texts = found.astype(object)
        for place, text in enumerate(texts.flat):
            if isinstance(text, bytes):  # of a string tensor
                texts.flat[place] = _decoded(text)
        for text in texts.flat:  # here: the writer would fail over it, for all tasks
            if "\0" in text or not (text.isascii() or _is_utf8(text)):
                raise ValueError(f"HDF5 holds text as UTF-8 that ends at a NUL character, not {text[:80]!r}")
        return TEXT, texts
    if found.dtype.hasobject or kind in "OmM" or (kind == "V" and found.dtype.names is None):
        raise TypeError(
            f"HDF5 has nothing for the dtype {found.dtype}: convert it first, as with astype('float32')"
        )
    return repr(np.lib.format.dtype_to_descr(found.dtype)), np.ascontiguousarray(found)
