"""The datasets of a shared file in its writer process: gathers rows, then writes them in few large pieces.

Used by `writer_process` alone. It calls h5py's low-level functions: an append costs 0.05 ms with them, and
0.4 ms with slices (one row, h5py 3.14, measured). Datasets stay open; see `tfmagic.hdf5.parts.TaskFile`.
"""

from __future__ import annotations

import itertools
import math
import mmap
import os
import time
from typing import Any

from tfmagic.features.shared_files.messages import TEXT, Rows, dtype_of_text, text_of_dtype
from tfmagic.hdf5 import closing
from tfmagic.hdf5.errors import MismatchError
from tfmagic.hdf5.rows import check_growth, check_rows

_CHUNK_BYTES = 1 << 20  # larger ones gain nothing; smaller ones cost a look-up each
CACHE_BYTES = 2 * _CHUNK_BYTES  # of a dataset: the chunk that is being filled, and the next
_SMALL_CHUNK_BYTES = 1 << 14  # of a dataset that begins with few rows: HDF5 allocates each chunk as a whole


class Datasets:
    """Appends to datasets of an `h5py.File` along axis 0, and creates missing ones; see `SharedWriter`."""

    def __init__(self, file: Any, compression: str, chunk_rows: int):
        self.file, self._compression, self._chunk_rows = file, compression, chunk_rows
        self._open: dict[str, _Dataset] = {}  # by name; several names can be links to one dataset
        self._known: dict[Any, _Dataset] = {}  # by h5py's identifier
        self._gathered: dict[_Dataset, list[Any]] = {}
        self.was_flushed = False  # with rows
        self.flushed_at = time.monotonic()
        closing.keep_flushed(file)

    def gather(self, rows: Rows, buffer: mmap.mmap | None) -> None:
        """Keep rows, in their memory, for `write`. Raise MismatchError if the dataset does not take them."""
        try:
            array = _array_of(rows, buffer)
            dataset = self._open.get(rows.dataset)
            if dataset is None:
                dataset = self._open[rows.dataset] = self._find_or_create(rows, array)
            dataset.check(rows)
        except MismatchError:
            raise
        except (TypeError, ValueError, KeyError) as error:  # of h5py: names and dtypes that cannot be
            raise MismatchError(f"{rows.dataset!r} cannot be a dataset: {error}") from error
        self._gathered.setdefault(dataset, []).append(array)

    def write(self) -> None:
        """Write what was gathered. Raises OSError where that fails."""
        gathered, self._gathered = self._gathered, {}
        for dataset, arrays in gathered.items():
            dataset.append(arrays)

    def flush(self) -> None:
        """Hand all rows to the operating system. Raises OSError where that fails."""
        self.write()
        closing.reserve_end(self.file, sum(dataset.held_bytes for dataset in self._known.values()))
        self.file.flush()
        for dataset in self._known.values():
            dataset.new_bytes = 0
        self.flushed_at = time.monotonic()
        self.was_flushed = bool(self._open)

    def _find_or_create(self, rows: Rows, array: Any) -> _Dataset:
        import h5py

        if 0 in (row_shape := rows.shape[1:]):
            hold = f"rows of the shape {row_shape} hold nothing"
            raise MismatchError(f"{rows.dataset!r} cannot be made: {hold}")
        if rows.dataset not in self.file:
            self.file.create_dataset(
                rows.dataset,
                shape=(0, *row_shape),
                maxshape=(None, *row_shape),
                chunks=(self._chunk_rows or _chunk_rows(array), *row_shape),
                dtype=h5py.string_dtype() if rows.dtype == TEXT else array.dtype,
                compression=self._compression or None,
            )
        found = self.file[rows.dataset]
        check_growth(found, rows.dataset)
        if (known := self._known.get(found.id)) is None:  # identifiers are equal for all names of a dataset
            known = _Dataset(_with_cache(found))
            self._known[known.low] = known
        return known


class _Dataset:
    """A dataset that grows along axis 0."""

    def __init__(self, dataset: Any):
        import h5py

        is_text = h5py.check_string_dtype(dataset.dtype) is not None and dataset.dtype.kind == "O"
        self.low = dataset.id
        self.dtype = TEXT if is_text else text_of_dtype(dataset.dtype)
        self._memory_type = h5py.h5t.py_create(dataset.dtype) if is_text else None
        self._row_shape, self._count = tuple(dataset.shape[1:]), int(dataset.shape[0])
        self._chunk_bytes = _chunk_bytes(dataset)
        self.new_bytes = 0  # since the last flush

    @property
    def held_bytes(self) -> int:
        """The most that HDF5 can hold of it in memory."""
        if not self.new_bytes:
            return 0
        return min(self.new_bytes + 2 * self._chunk_bytes, max(CACHE_BYTES, 2 * self._chunk_bytes))

    def check(self, rows: Rows) -> None:
        """Raise MismatchError where these rows do not fit those of the dataset."""
        shape = rows.shape[1:]
        if rows.dtype != self.dtype or shape != self._row_shape:
            check_rows(rows.dataset, _name(self.dtype), _name(rows.dtype), self._row_shape, shape)

    def append(self, arrays: list[Any]) -> None:
        """Write rows at the end; small arrays together."""
        for is_small, group in itertools.groupby(arrays, lambda array: array.nbytes < _SMALL_CHUNK_BYTES):
            for pieces in [list(group)] if is_small else ([array] for array in group):
                self._write(pieces)

    def _write(self, arrays: list[Any]) -> None:
        import h5py
        import numpy as np

        if not sum(map(len, arrays)):
            return
        array = np.concatenate(arrays) if len(arrays) > 1 else arrays[0]
        start, self._count = self._count, self._count + len(array)
        self.new_bytes += array.nbytes
        self.low.set_extent((self._count, *self._row_shape))
        space = h5py.h5s.create_simple((self._count, *self._row_shape))
        space.select_hyperslab((start, *(0 for _ in self._row_shape)), array.shape)
        self.low.write(h5py.h5s.create_simple(array.shape), space, array, self._memory_type)


def _array_of(rows: Rows, buffer: mmap.mmap | None) -> Any:
    import numpy as np

    if rows.dtype == TEXT:
        return np.array(rows.texts, dtype=object).reshape(rows.shape)
    dtype, count = dtype_of_text(rows.dtype), math.prod(rows.shape)
    if rows.handle is not None:
        fd = rows.handle.take()
        buffer = mmap.mmap(fd, max(count * dtype.itemsize, 1), prot=mmap.PROT_READ)
        os.close(fd)
    source = rows.data or buffer
    if source is None or not count:
        return np.empty(rows.shape, dtype)
    return np.frombuffer(source, dtype, count, rows.offset).reshape(rows.shape)


def _chunk_rows(array: Any) -> int:
    row_bytes = max(array.dtype.itemsize * math.prod(array.shape[1:]), 1)
    return max(min(max(array.nbytes, _SMALL_CHUNK_BYTES), _CHUNK_BYTES) // row_bytes, 1)


def _chunk_bytes(dataset: Any) -> int:
    return int(dataset.dtype.itemsize * math.prod(dataset.chunks))


def _with_cache(dataset: Any) -> Any:
    """Return the dataset with room for two of its chunks: HDF5 reads and writes others for each append."""
    import h5py

    if 2 * _chunk_bytes(dataset) <= CACHE_BYTES:
        return dataset
    access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
    slots, _, preemption = access.get_chunk_cache()
    access.set_chunk_cache(slots, 2 * _chunk_bytes(dataset), preemption)
    file, name = dataset.file, dataset.name
    dataset.id.close()  # an open one keeps its cache
    return h5py.Dataset(h5py.h5d.open(file.id, name.encode(), access))


def _name(dtype: str) -> str:
    """Return a dtype as people write it: float32."""
    return TEXT if dtype == TEXT else str(dtype_of_text(dtype))
