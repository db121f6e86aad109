"""Laying out the HDF5 files of a round, with the HDF5 library, such that hdf5_parser.py can read them.

All attributes stand in one block behind the datasets, since the digest among them becomes known last.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

import numpy as np

from .atomic import pwrite_all
from .hdf5_parser import Dataset

_MOST_ATTRIBUTES = 64  # in the header of the root group; HDF5 would put more than eight into a heap

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]


@contextmanager
def new_file(stream: IO[bytes]) -> Iterator[Any]:
    """A new HDF5 file in an open file; a full disk becomes the OSError that it is.

    HDF5 never opens a file by name: what a name refers to can change between two calls.
    """
    target = _Target(stream.fileno())
    file = _created(target)
    try:
        yield file
    finally:
        file.close()
    if target.error:
        raise target.error


def _created(target: _Target) -> Any:
    """An empty HDF5 file. The list of properties goes at once: HDF5 would free its `target` after Python has ended."""
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


class _Target:
    """An open file as HDF5 wants it, which never fails: the first error is kept for when HDF5 is done.

    HDF5 goes on after an error, and would call other methods while the exception is pending.
    """

    def __init__(self, fd: int) -> None:
        self.fd, self.at = fd, 0
        self.error: BaseException | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to an offset from the start, or from the end."""
        self.at = offset + (os.fstat(self.fd).st_size if whence == os.SEEK_END else 0)
        return self.at

    def tell(self) -> int:
        """Where it is."""
        return self.at

    def readinto(self, buffer: memoryview) -> int:
        """Fill the buffer."""
        self._try(lambda: os.preadv(self.fd, [buffer], self.at))
        return len(buffer)

    def write(self, data: memoryview) -> int:
        """Write all."""
        self._try(lambda: pwrite_all(self.fd, data, self.at))
        return len(data)

    def truncate(self, size: int) -> None:
        """Set the file's size."""
        self._try(lambda: os.ftruncate(self.fd, size))

    def flush(self) -> None:
        """Nothing is held back."""

    def _try(self, operation: Callable[[], object]) -> None:
        try:
            operation()
        except BaseException as error:  # a signal too
            self.error = self.error or error


def lay_out(file: Any, shapes: Shapes, descriptions: Mapping[str, str]) -> dict[str, Dataset]:
    """Give every dataset its place in an open HDF5 file, with a description for `h5ls -v`, without writing to it."""
    import h5py

    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5py.h5d.CONTIGUOUS)
    plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    plist.set_obj_track_times(False)
    datasets = {}
    for name, (dtype, shape) in shapes.items():
        space = h5py.h5s.create_simple(shape)
        made = h5py.h5d.create(file.id, name.encode(), h5py.h5t.py_create(np.dtype(dtype)), space, plist)
        text = descriptions[name]
        h5py.Dataset(made).attrs.create("description", np.bytes_(text))
        datasets[name] = Dataset(np.dtype(dtype), shape, made.get_offset() or 0, text)
    return datasets


def put_attributes(file: Any, attributes: Mapping[str, str | int]) -> None:
    """Write the attributes: fixed-length text, or 64-bit unsigned integers."""
    for name, value in sorted(attributes.items()):
        file.attrs.create(name, np.bytes_(value) if isinstance(value, str) else np.uint64(value))
