"""The rows of parts in the consolidated file: mapped, or copied through a buffer of a fixed size.

Used by `consolidation`, which decides where rows go.
"""

import os
from typing import Any

import h5py
import numpy as np

from tfmagic.hdf5.closing import SpaceReserve
from tfmagic.hdf5.errors import PartError, reason_of
from tfmagic.hdf5.layouts import Stack
from tfmagic.hdf5.partnames import Part

_BLOCK_BYTES = 8 << 20  # large enough that calls cost nothing; small beside what a task needs
_TEXT_ROWS = 4096  # at once where the size of a row is not known: text and ragged arrays


def missing_value(dtype: Any) -> Any:
    """Return the value that a virtual dataset shows where a part is gone; HDF5 alone would show zeros.

    NaN; for integers, which have none, the number farthest from zero. None, HDF5's default, for all others.
    """
    if dtype.names or dtype.subdtype or h5py.check_enum_dtype(dtype) is not None:
        return None
    if dtype.kind in "fc":  # of its own type: HDF5 makes no complex number of a real one
        return dtype.type(np.nan)
    if dtype.kind == "i":
        return np.iinfo(dtype).min
    return np.iinfo(dtype).max if dtype.kind == "u" else None


def map_rows(file: Any, stack: Stack) -> None:
    """Make a virtual dataset of the parts, which are named relative to the file: the folder can be moved."""
    assert stack.shape is not None
    if 0 in stack.shape:
        chunks = tuple(max(1, n) for n in stack.shape)
        limits = (None, *(n or None for n in stack.shape[1:]))  # a chunk is never empty
        file.create_dataset(stack.path, stack.shape, stack.dtype, chunks=chunks, maxshape=limits)
        return
    layout = h5py.VirtualLayout(stack.shape, stack.dtype)
    for part, start, stop in stack.spans():
        if stop > start:
            name = _literal(os.path.basename(part.path))
            shape = (stop - start, *stack.shape[1:])
            layout[start:stop] = h5py.VirtualSource(name, _literal(stack.path), shape, stack.dtype)
    file.create_virtual_dataset(stack.path, layout, fillvalue=missing_value(stack.dtype))


def _literal(name: str) -> str:
    """Escape a name: HDF5 reads it as a pattern, in which %b is a number (H5Pset_virtual)."""
    return name.replace("%", "%%")


def set_attribute(item: Any, name: str, value: Any) -> None:
    """Write an attribute that h5py has read from a part."""
    try:
        item.attrs[name] = value
    except UnicodeEncodeError:  # bytes that are no UTF-8, such as a digest: h5py reads them as surrogates
        array = np.asarray(value, object)
        raw = [text.encode(errors="surrogateescape") for text in array.flat]
        item.attrs.create(name, np.array(raw, object).reshape(array.shape), dtype=h5py.string_dtype("ascii"))


def make_dataset(file: Any, stack: Stack, first: Any) -> None:
    """Make an empty dataset for all rows, stored as in the first part: chunks, filters, fill value."""
    assert stack.shape is not None
    plist = first.id.get_create_plist()
    layout = plist.get_layout()
    if layout == h5py.h5d.VIRTUAL or plist.get_external_count():
        plist, layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE), h5py.h5d.CONTIGUOUS
    if layout == h5py.h5d.COMPACT:  # at most 64 KiB, which all parts together can exceed
        plist.set_layout(h5py.h5d.CONTIGUOUS)
    limits = (None, *first.maxshape[1:]) if layout == h5py.h5d.CHUNKED else stack.shape
    most = tuple(h5py.h5s.UNLIMITED if limit is None else limit for limit in limits)
    space = h5py.h5s.create_simple(stack.shape, most)
    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    links.set_char_encoding(h5py.h5t.CSET_UTF8)
    kind = first.id.get_type().copy()
    h5py.h5d.create(file.id, stack.path.encode(errors="surrogateescape"), kind, space, plist, links)


def copy_rows(source: Any, target: Any, start: int, stop: int, part: Part, space: SpaceReserve) -> None:
    """Copy all rows of a part's dataset. Raise PartError if they are damaged, OSError for want of space."""
    if copy_chunks(source, target, start, space):
        return
    block = rows_at_once(source)
    for first in range(0, stop - start, block):
        last = min(first + block, stop - start)
        try:
            rows = source[first:last]
        except OSError as error:
            raise PartError(
                f"{part}, is damaged: rows {first} to {last} of {source.name} cannot be read: "
                f"{reason_of(error)}"
            ) from error
        if rows.size:
            space.take(_size_of(rows))
            target[start + first : start + last] = rows
    target.flush()  # else the end of the object would write it, and ignore errors


def _size_of(rows: Any) -> int:
    """Return about how many bytes rows take in a file."""
    if not rows.dtype.hasobject:
        return int(rows.nbytes)
    held = (getattr(item, "nbytes", None) or getattr(item, "__len__", int)() for item in rows.flat)
    return int(rows.nbytes) + sum(size + 32 for size in held)


def rows_at_once(dataset: Any) -> int:
    """Return how many rows of a dataset are read at a time: a block of them, in whole chunks."""
    if dataset.dtype.hasobject:
        return _TEXT_ROWS
    row_bytes = dataset.dtype.itemsize * int(np.prod(dataset.shape[1:], dtype=np.int64))
    rows = max(1, _BLOCK_BYTES // max(1, row_bytes))
    chunk_rows = dataset.chunks[0] if dataset.chunks else 1
    return rows // chunk_rows * chunk_rows or rows


def copy_chunks(source: Any, target: Any, start: int, space: SpaceReserve) -> bool:
    """Copy compressed chunks as they are, where those of both datasets coincide. Return whether they do.

    Compression would be most of the work.
    """
    ours, theirs = source.id.get_create_plist(), target.id.get_create_plist()
    if not source.chunks or source.chunks != target.chunks or start % source.chunks[0]:
        return False
    if not ours.get_nfilters() or not ours.equal(theirs) or source.dtype.hasobject:
        return False
    for offset in _chunk_offsets(source.id):
        mask, data = source.id.read_direct_chunk(offset)
        space.take(len(data))
        target.id.write_direct_chunk((offset[0] + start, *offset[1:]), data, mask)
    return True


def _chunk_offsets(dataset: Any) -> list[tuple[int, ...]]:
    """Return where the chunks of a dataset begin, in one walk where HDF5 has a correct one.

    Asked for by number, HDF5 counts to each chunk from the first (measured with 8,000 chunks: 6 s, and four
    times that with twice as many).
    """
    if h5py.version.hdf5_version_tuple < (1, 14, 1):
        return [dataset.get_chunk_info(number).chunk_offset for number in range(dataset.get_num_chunks())]
    offsets: list[tuple[int, ...]] = []
    dataset.chunk_iter(lambda info: offsets.append(info.chunk_offset))
    return offsets
