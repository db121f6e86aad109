"""One array of numpy, without a name."""

from __future__ import annotations

import math
import os
import threading
import warnings
from pathlib import Path
from typing import IO

import numpy as np

from ...errors import BadData
from ..tensors import Gradient, Tensor
from .malformed import refusing

_WIDEST = 8  # bytes of a value
_ONE_HEADER = threading.Lock()  # numpy reads headers with `ast`, which fails in two threads of 3.11


def read(path: Path) -> Gradient:
    """The array of a file."""
    with path.open("rb") as stream, refusing(path):
        return Gradient([read_array("", stream, os.fstat(stream.fileno()).st_size)])


def write(stream: IO[bytes], tensors: Gradient) -> None:
    """All tensors one after the other, as one flat vector; tied ones once."""
    np.save(stream, np.concatenate([t.array.reshape(-1) for t in tensors]), allow_pickle=False)


def read_array(name: str, stream: IO[bytes], size: int) -> Tensor:
    """Read one array, whose header must not promise more than the `size` bytes that there are."""
    version = np.lib.format.read_magic(stream)
    header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }[version]
    try:
        # numpy warns of headers of Python 2; which warnings are shown is one setting for all
        # threads, so that it is changed under the lock too
        with _ONE_HEADER, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shape, fortran, dtype = header(stream)
    except TypeError as error:  # it is a Python literal, such as {[]: 1}
        raise ValueError("it has a header that describes no array") from error
    if not all(type(n) is int for n in shape):  # True is an int for numpy's reader
        raise ValueError("it has a shape that is not of integers")
    expected = math.prod(shape) * dtype.itemsize
    if dtype.kind not in "fiub" or dtype.itemsize > _WIDEST:
        raise BadData(
            f"it holds an array of type {str(dtype)[:40]}", "save array.astype(np.float32)"
        )
    content = stream.read(expected + 1) if 0 <= expected <= size else b""
    if len(content) != expected:
        raise ValueError(f"it does not hold exactly a {dtype} of shape {shape}")
    array = np.ndarray(shape, dtype, content, order="F" if fortran else "C")
    return Tensor(name, dtype.newbyteorder("=").name, array)
