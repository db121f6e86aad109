"""Laying out the HDF5 files of a round, with the HDF5 library, such that hdf5_parser.py can read them.

All attributes stand in one block behind the datasets, since the digest among them becomes known last.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

import numpy as np

from .hdf5_parser import Dataset

_MOST_ATTRIBUTES = 64  # in the header of the root group; HDF5 would put more than eight into a heap

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]


@contextmanager
def new_file(stream: IO[bytes]) -> Iterator[Any]:
    """A new HDF5 file in an open file; a full disk becomes the OSError that it is.

    HDF5 never opens a file by name: what a name refers to can change between two calls.
    """
    import h5py

    creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    creation.set_attr_phase_change(_MOST_ATTRIBUTES, 0)
    creation.set_obj_track_times(False)
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
    access.set_meta_block_size(0)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    with os.fdopen(os.dup(stream.fileno()), "r+b", buffering=0) as raw:
        access.set_fileobj_driver(h5py.h5fd.fileobj_driver, raw)
        file = h5py.File(h5py.h5f.create(repr(raw).encode(), h5py.h5f.ACC_TRUNC, creation, access))
        try:
            yield file
        finally:
            try:
                file.close()
            except RuntimeError as error:
                raise OSError(str(error)) from error


def lay_out(file: Any, shapes: Shapes) -> dict[str, Dataset]:
    """Give every dataset its place in an open HDF5 file, without writing to it."""
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
        datasets[name] = Dataset(np.dtype(dtype), shape, made.get_offset() or 0)
    return datasets


def put_attributes(file: Any, attributes: Mapping[str, str | int]) -> None:
    """Write the attributes: fixed-length text, or 64-bit unsigned integers."""
    for name, value in sorted(attributes.items()):
        file.attrs.create(name, np.bytes_(value) if isinstance(value, str) else np.uint64(value))
