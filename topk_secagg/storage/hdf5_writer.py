"""Laying out the HDF5 files of a round, with the HDF5 library, such that hdf5_parser.py can read
them.

All attributes stand in one block behind the datasets, since the digest among them becomes known
last.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any

import numpy as np

from .atomic import Array, pwrite_all

_LARGE = 1 << 17  # bytes
_MOST_ATTRIBUTES = 64  # in the header of the root group; HDF5 would put more than eight into a heap

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
# the types that each dataset may have, and its description
Schema = Mapping[str, tuple[tuple[str, ...], str]]
Put = Callable[[str, int, Array], None]


def bytes_of(shapes: Shapes) -> int:
    """The bytes of all datasets together."""
    return sum(np.dtype(dtype).itemsize * math.prod(shape) for dtype, shape in shapes.values())


class NewFile:
    """An HDF5 file in the making: its datasets have their places, and its attributes come last."""

    def __init__(self, file: Any, descriptor: int, places: Mapping[str, int]) -> None:
        self._file = file
        self._descriptor = descriptor
        self._places = places  # of the first byte of every dataset
        self.is_finished = False

    def put(self, name: str, first_row: int, rows: Array) -> None:
        """Write rows of a dataset from a row on, in any order."""
        data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
        offset = self._places[name] + first_row * rows[:1].nbytes
        pwrite_all(self._descriptor, data, offset)
        if len(data) >= _LARGE and hasattr(os, "posix_fadvise"):
            # Linux begins to write these bytes to the disk, so that syncing the file takes less;
            # pages that are being written stay in memory, although the advice is that nobody needs
            # them
            with suppress(OSError):
                os.posix_fadvise(self._descriptor, offset, len(data), os.POSIX_FADV_DONTNEED)

    def finish(self, attributes: Mapping[str, str | int]) -> None:
        """Write all attributes: fixed-length text, or 64-bit unsigned integers."""
        for name, value in sorted(attributes.items()):
            stored = np.bytes_(value) if isinstance(value, str) else np.uint64(value)
            self._file.attrs.create(name, stored)
        self.is_finished = True


@contextmanager
def new_file(stream: IO[bytes], shapes: Shapes, schema: Schema) -> Iterator[NewFile]:
    """A new HDF5 file in an open file, which must be given its attributes in the end.

    A full disk becomes the OSError that it is. HDF5 never opens a file by name: what a name refers
    to can change between two calls.
    """
    import h5py

    target = _Target(stream.fileno(), "r+", closefd=False)
    # with a place in the file before anything is written to it
    contiguous = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    contiguous.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    contiguous.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    with _created(target) as file:
        places = {}
        for name, (dtype, shape) in shapes.items():
            dataset = file.create_dataset(name, shape, dtype, dcpl=contiguous, track_times=False)
            dataset.attrs.create("description", np.bytes_(schema[name][1]))  # for `h5ls -v`
            places[name] = dataset.id.get_offset() or 0
        unfinished = NewFile(file, target.fileno(), places)
        yield unfinished
        if not unfinished.is_finished:
            raise ValueError("a file was left without its attributes")
    if target.error:
        raise target.error


def _created(target: _Target) -> Any:
    """An empty HDF5 file. The list of properties goes at once: HDF5 would free its `target` after
    Python has ended."""
    import h5py

    creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    creation.set_attr_phase_change(_MOST_ATTRIBUTES, 0)
    creation.set_obj_track_times(False)
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
    access.set_meta_block_size(0)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    access.set_fileobj_driver(h5py.h5fd.fileobj_driver, target)
    return h5py.File(h5py.h5f.create(repr(target).encode(), h5py.h5f.ACC_TRUNC, creation, access))


class _Target(io.FileIO):
    """An open file as HDF5 wants it, which never fails: the first error is kept for when HDF5 is
    done.

    HDF5 goes on after an error, and would call other methods while the exception is pending.
    """

    error: BaseException | None = None

    def readinto(self, buffer: Any) -> int:
        self._try(os.preadv, self.fileno(), [buffer], self.tell())
        return len(buffer)

    def write(self, data: Any) -> int:
        self._try(pwrite_all, self.fileno(), data, self.tell())
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        self._try(os.ftruncate, self.fileno(), size)
        return size or 0

    def _try(self, operation: Callable[..., object], *arguments: object) -> None:
        try:
            operation(*arguments)
        except BaseException as error:  # a signal too
            self.error = self.error or error
