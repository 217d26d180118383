"""The datasets of a shared file, as its writer sees them: rows are gathered, then written in few big pieces.

Called by `tfmagic.hdf5.shared_writer.writer_process` alone.
What was flushed stays readable, and datasets stay open: see
`tfmagic.hdf5.closing`. h5py's low-level calls: its slices cost 0.4 ms for a single row, these
0.05 ms (h5py 3.14, measured), and an append is little else.
"""

from __future__ import annotations

import ast
import functools
import math
import mmap
import os
import time
from typing import Any

from tfmagic.hdf5 import closing
from tfmagic.hdf5.errors import MismatchError
from tfmagic.hdf5.rows import check_growth, check_kind, check_shape
from tfmagic.hdf5.shared_writer.messages import TEXT, Hello, Rows

_CHUNK_BYTES = 1 << 20  # larger ones gain nothing; smaller ones cost a look-up each
CACHE_BYTES = 2 * _CHUNK_BYTES  # of a dataset: the chunk that is being filled, and the next
_SMALL_CHUNK_BYTES = 1 << 14  # of a dataset that begins with few rows: each chunk is allocated whole


class Datasets:
    """Appends to datasets along axis 0, and creates those that are not there.

    Args:
        file: An open, writable `h5py.File`.
    """

    def __init__(self, file: Any, hello: Hello):
        self._file, self._hello = file, hello
        self._open: dict[str, _Dataset] = {}  # by name; a link is another name for one of them
        self._known: dict[Any, _Dataset] = {}  # by h5py's identifier
        self._gathered: dict[_Dataset, list[Any]] = {}
        self.was_flushed = False  # with rows in it
        self.flushed_at = time.monotonic()
        closing.keep_flushed(file)

    def gather(self, rows: Rows, ring: mmap.mmap | None) -> None:
        """Keep rows for `write`; they stay where they are until then.

        Raises:
            MismatchError: Their dtype or shape is not that of the dataset, or it cannot be made.
        """
        try:
            array = self._array_of(rows, ring)
            dataset = self._open.get(rows.dataset)
            if dataset is None:
                dataset = self._open[rows.dataset] = self._find_or_make(rows, array)
            dataset.check(rows)
        except MismatchError:
            raise
        except (TypeError, ValueError, KeyError) as error:  # h5py's words for names and dtypes that cannot be
            raise MismatchError(f"{rows.dataset!r} cannot be a dataset: {error}") from error
        self._gathered.setdefault(dataset, []).append(array)

    def write(self) -> None:
        """Write what was gathered. Raises OSError where it cannot be."""
        gathered, self._gathered = self._gathered, {}
        for dataset, arrays in gathered.items():
            dataset.append(arrays)

    def flush(self) -> None:
        """Hand everything to the system. Raises OSError where it does not take it."""
        self.write()
        closing.reserve_end(self._file, sum(dataset.held_bytes for dataset in self._known.values()))
        self._file.flush()
        for dataset in self._known.values():
            dataset.new_bytes = 0
        self.flushed_at = time.monotonic()
        self.was_flushed = bool(self._open)

    def _array_of(self, rows: Rows, ring: mmap.mmap | None) -> Any:
        import numpy as np

        if rows.dtype == TEXT:
            return np.array(rows.texts, dtype=object).reshape(rows.shape)
        dtype = _dtype_of(rows.dtype)
        count = math.prod(rows.shape)
        if rows.handle is not None:
            fd = rows.handle.take()
            whole = mmap.mmap(fd, max(count * dtype.itemsize, 1), prot=mmap.PROT_READ)
            os.close(fd)
            return np.frombuffer(whole, dtype, count).reshape(rows.shape)
        if rows.offset >= 0:
            assert ring is not None
            return np.frombuffer(ring, dtype, count, rows.offset).reshape(rows.shape)
        return np.frombuffer(rows.data, dtype, count).reshape(rows.shape)

    def _find_or_make(self, rows: Rows, array: Any) -> _Dataset:
        import h5py

        if 0 in rows.shape[1:]:
            raise MismatchError(
                f"{rows.dataset!r} cannot be made: rows of the shape {rows.shape[1:]} hold nothing"
            )
        if rows.dataset not in self._file:
            dtype = h5py.string_dtype() if rows.dtype == TEXT else array.dtype
            self._file.create_dataset(
                rows.dataset,
                shape=(0, *rows.shape[1:]),
                maxshape=(None, *rows.shape[1:]),
                chunks=(self._chunk_rows(array), *rows.shape[1:]),
                dtype=dtype,
                compression=self._hello.compression or None,
            )
        there = self._file[rows.dataset]
        check_growth(there, rows.dataset)
        if (known := self._known.get(there.id)) is None:  # equal for all names that lead to it
            known = _Dataset(_with_cache(there))
            self._known[known.low] = known
        return known

    def _chunk_rows(self, array: Any) -> int:
        if self._hello.chunk_rows:
            return self._hello.chunk_rows
        row_bytes = max(array.dtype.itemsize * math.prod(array.shape[1:]), 1)
        wanted = min(max(array.nbytes, _SMALL_CHUNK_BYTES), _CHUNK_BYTES)
        return max(wanted // row_bytes, 1)


class _Dataset:
    """One that can grow along axis 0."""

    def __init__(self, dataset: Any):
        import h5py
        import numpy as np

        self.low = dataset.id
        self._is_text = h5py.check_string_dtype(dataset.dtype) is not None and dataset.dtype.kind == "O"
        self.dtype = TEXT if self._is_text else repr(np.lib.format.dtype_to_descr(dataset.dtype))
        self._type = h5py.h5t.py_create(dataset.dtype) if self._is_text else None
        self._row_shape, self._count = tuple(dataset.shape[1:]), int(dataset.shape[0])
        self._chunk_bytes = _chunk_bytes(dataset)
        self.new_bytes = 0  # since the last flush

    @property
    def held_bytes(self) -> int:
        """What HDF5 may hold of it in memory, at most."""
        if not self.new_bytes:
            return 0
        return min(self.new_bytes + 2 * self._chunk_bytes, max(CACHE_BYTES, 2 * self._chunk_bytes))

    def check(self, rows: Rows) -> None:
        """Raises MismatchError where these rows are not as those that are there."""
        if rows.dtype != self.dtype:
            check_kind(rows.dataset, _name(self.dtype), _name(rows.dtype))
        check_shape(rows.dataset, self._row_shape, rows.shape[1:])

    def append(self, arrays: list[Any]) -> None:
        """Write these rows at the end; small ones together."""
        import numpy as np

        small: list[Any] = []
        for array in arrays:
            if array.nbytes < _SMALL_CHUNK_BYTES:
                small.append(array)
                continue
            if small:
                self._write(np.concatenate(small) if len(small) > 1 else small[0])
                small = []
            self._write(array)
        if small:
            self._write(np.concatenate(small) if len(small) > 1 else small[0])

    def _write(self, array: Any) -> None:
        import h5py

        if not len(array):
            return
        start, self._count = self._count, self._count + len(array)
        self.new_bytes += array.nbytes
        self.low.set_extent((self._count, *self._row_shape))
        space = h5py.h5s.create_simple((self._count, *self._row_shape))
        space.select_hyperslab((start, *(0 for _ in self._row_shape)), array.shape)
        self.low.write(h5py.h5s.create_simple(array.shape), space, array, self._type)


def _chunk_bytes(dataset: Any) -> int:
    return int(dataset.dtype.itemsize * math.prod(dataset.chunks))


def _with_cache(dataset: Any) -> Any:
    """The same with room for two of its chunks: one that does not fit is read and written for each append."""
    import h5py

    if 2 * _chunk_bytes(dataset) <= CACHE_BYTES:
        return dataset
    access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
    slots, _, preemption = access.get_chunk_cache()
    access.set_chunk_cache(slots, 2 * _chunk_bytes(dataset), preemption)
    file, name = dataset.file, dataset.name
    dataset.id.close()  # an open one keeps its cache
    return h5py.Dataset(h5py.h5d.open(file.id, name.encode(), access))


@functools.lru_cache
def _dtype_of(text: str) -> Any:
    """Return the numpy dtype that a message names."""
    import numpy as np

    return np.lib.format.descr_to_dtype(ast.literal_eval(text))


def _name(dtype: str) -> str:
    """Return the name of a dtype as people write it, such as float32."""
    return TEXT if dtype == TEXT else str(_dtype_of(dtype))
