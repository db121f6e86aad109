"""The little of HDF5 that the files of a round use, read without the HDF5 library.

The library trusts the metadata of a file: one that lies, under checksums that fit, can crash it. So
files of others are read by this parser, which knows one layout (docs/file-format.md) and refuses
all others before it has read more than the headers. Names of pieces and messages are those of the
HDF5 File Format Specification, version 3.0.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

SIGNATURE = b"\x89HDF\r\n\x1a\n"  # with which every HDF5 file begins
_UNDEFINED = 2**64 - 1
# version, two sizes, flags; base, extension, end, root; a checksum follows
_SUPERBLOCK = struct.Struct("<8s4B4Q")
_MESSAGE = struct.Struct("<BHB")  # type, size of the body, flags
_MOST_CHUNKS = 8
_MOST_MESSAGES = 64
_MOST_DATASETS = 8
_LARGEST_HEADER = 1 << 14
_MOST_ELEMENTS = 1 << 48
_LARGEST_RANK = 8
_LONGEST_TEXT = 128
_LARGEST_OVERHEAD = 64 << 10  # bytes of a file besides its datasets; honest ones have about 2,000

# types of messages
_NIL = 0
_DATASPACE = 1
_LINK_INFO = 2
_DATATYPE = 3
_FILL_VALUE = 5
_LINK = 6
_LAYOUT = 8
_GROUP_INFO = 10
_ATTRIBUTE = 12
_CONTINUATION = 16
_ATTRIBUTE_INFO = 21
# those that a header may have, with the body where there is only one
_Allowed = dict[int, bytes | None]
_NO_HEAP = b"\0\0" + b"\xff" * 16  # links or attributes are in the header itself
_EITHER: _Allowed = {_NIL: None, _ATTRIBUTE: None, _ATTRIBUTE_INFO: _NO_HEAP}
_OF_ROOT: _Allowed = _EITHER | {_LINK: None, _LINK_INFO: _NO_HEAP, _GROUP_INFO: b"\0\0"}
_OF_DATASET: _Allowed = _EITHER | dict.fromkeys((_DATASPACE, _DATATYPE, _FILL_VALUE, _LAYOUT))

_NUMBERS = {
    struct.pack("<B3xIHH", 0x10, size, 0, 8 * size): np.dtype(f"<u{size}") for size in (1, 2, 4, 8)
}
_NUMBERS[struct.pack("<BB2xIHH", 0x10, 8, 4, 0, 32)] = np.dtype("<i4")  # bit 3: with a sign
_NUMBERS[b"\x11\x20\x3f\0" + struct.pack("<IHHBBBBI", 8, 0, 64, 52, 11, 0, 52, 1023)] = np.dtype(
    "<f8"
)
_SCALAR = b"\x02\0\0\0"


class Unknown(ValueError):
    """Something that no file of a round has; the text says what."""


@dataclass
class Dataset:
    """Where the bytes of a contiguous dataset lie."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    size: int  # in bytes
    description: str


def parse(fd: int) -> tuple[dict[str, str | int], dict[str, Dataset]]:
    """The attributes and datasets of an open file; raises Unknown for any but the one layout."""
    size = os.fstat(fd).st_size
    *start, end, root = _SUPERBLOCK.unpack(_checked(fd, 0, _SUPERBLOCK.size))
    if start != [SIGNATURE, 3, 8, 8, 0, 0, _UNDEFINED]:
        raise Unknown("no HDF5 file, or another superblock")
    if end != size:
        raise Unknown(f"{size} bytes, not {end}")
    spans = [(0, _SUPERBLOCK.size + 4)]  # start and end of every piece that is accounted for
    messages = list(_messages(fd, root, allowed=_OF_ROOT, spans=spans))
    if _LINK_INFO not in dict(messages):
        raise Unknown("something other than a group at its root")
    links = [_link(body) for kind, body in messages if kind == _LINK]
    if len(links) > _MOST_DATASETS or any(
        len(set(column)) < len(links) for column in zip(*links, strict=True)
    ):
        raise Unknown("too many datasets, or one twice")
    attributes: dict[str, str | int] = {}
    for name, value in (_attribute(body) for kind, body in messages if kind == _ATTRIBUTE):
        if name in attributes:
            raise Unknown(f"two attributes {name!r}")
        attributes[name] = value
    datasets = {name: _dataset(fd, address, name, spans=spans) for name, address in links}
    if size - sum(d.size for d in datasets.values()) > _LARGEST_OVERHEAD:
        raise Unknown("more than its datasets")
    spans += [(d.offset, d.offset + d.size) for d in datasets.values() if d.size]
    _check_nothing_between(fd, size, spans)
    return attributes, datasets


def _check_nothing_between(fd: int, size: int, spans: list[tuple[int, int]]) -> None:
    """Refuse pieces that overlap, and anything but zeros between them: no bit of a file is without
    meaning."""
    ordered = sorted([*spans, (size, size)])
    gaps = [(end, start) for (_, end), (start, _) in pairwise(ordered)]
    if any(start < end for end, start in gaps) or ordered[-1] != (size, size):
        raise Unknown("pieces that overlap, or lie beyond its end")
    # together at most _LARGEST_OVERHEAD
    if any(any(_read(fd, end, start - end)) for end, start in gaps):
        raise Unknown("bytes that belong to nothing")


def _messages(
    fd: int, address: int, allowed: _Allowed, spans: list[tuple[int, int]]
) -> Iterator[tuple[int, bytes]]:
    """The messages of an object header (version 2): type and body. Its pieces are added to
    `spans`."""
    signature, flags, most, fewest = struct.unpack("<5sBHH", _read(fd, address, 10))
    counts = flags & 0x10  # how many attributes the header may hold
    # neither times nor order of creation
    if signature != b"OHDR\2" or flags & ~0x13 or (counts and fewest > most):
        raise Unknown("another object header")
    begin = 10 if counts else 6
    width = 1 << (flags & 3)
    length = int.from_bytes(_read(fd, address + begin, width), "little")
    chunks = [(address, begin + width, length)]
    read = messages = 0
    for number, (at, skip, length) in enumerate(chunks):  # which grows on the way
        read += length
        if number == _MOST_CHUNKS or read > _LARGEST_HEADER:
            raise Unknown("a header without end")
        chunk = _checked(fd, at, skip + length)
        spans.append((at, at + len(chunk) + 4))
        if number and chunk[:4] != b"OCHK":
            raise Unknown("another continuation of a header")
        for kind, message in _split(chunk[skip:]):
            messages += 1
            if messages > _MOST_MESSAGES:
                raise Unknown("another kind of message")
            if kind == _CONTINUATION and len(message) == 16:
                offset, long = struct.unpack("<QQ", message)
                if long < 8:
                    raise Unknown("another continuation of a header")
                chunks.append((offset, 4, long - 8))
                continue
            known = kind in allowed and allowed[kind] in (None, message)
            if not known or (kind == _NIL and any(message)):
                raise Unknown(f"a message of type {kind}")
            yield kind, message


def _split(body: bytes) -> Iterator[tuple[int, bytes]]:
    """The messages in a piece of an object header: type and body."""
    has_nil = False
    while len(body) >= _MESSAGE.size:
        kind, size, how = _MESSAGE.unpack_from(body)
        message = body[_MESSAGE.size : _MESSAGE.size + size]
        body = body[_MESSAGE.size + size :]
        has_nil |= kind == _NIL
        if len(message) != size or how & ~0x05:
            raise Unknown("another kind of message")
        yield kind, message
    if body and (has_nil or any(body)):
        raise Unknown("a gap that should not be there")


def _link(body: bytes) -> tuple[str, int]:
    """Name and address of a hard link."""
    name = body[3:-8]
    address = int.from_bytes(body[-8:], "little")
    if list(body[:3]) != [1, 0, len(body) - 11]:
        raise Unknown("a link that is not a plain one")
    return _text(name), address


def _attribute(body: bytes) -> tuple[str, str | int]:
    """Name and value of an attribute: fixed-length text, or a 64-bit unsigned integer."""
    label, _, rest = body[9:].partition(b"\0")
    name = _text(label)
    size = 8 if rest[:1] == b"\x13" else 12  # of the type: text, or a number
    dtype = rest[:size]
    space = rest[size : size + 4]
    value = rest[size + 4 :]
    start = struct.pack("<BBHHH", 3, 0, len(label) + 1, size, 4)
    if body[:9] not in (start + b"\0", start + b"\1") or space != _SCALAR:
        raise Unknown("an attribute that is not a plain one")
    if _NUMBERS.get(dtype) == "<u8" and len(value) == 8:
        return name, int.from_bytes(value, "little")
    # ASCII
    if dtype == struct.pack("<4BI", 0x13, 1, 0, 0, len(value)) and 0 < len(value) <= _LONGEST_TEXT:
        return name, _text(value.rstrip(b"\0"))
    raise Unknown(f"an attribute {name!r} that is neither text nor an integer")


def _dataset(fd: int, address: int, name: str, spans: list[tuple[int, int]]) -> Dataset:
    """A contiguous dataset of one of the known types."""
    all_messages = _messages(fd, address, allowed=_OF_DATASET, spans=spans)
    messages = [(kind, body) for kind, body in all_messages if kind != _NIL]
    parts = dict(messages)
    if len(parts) < len(messages) or parts.keys() | {_NIL, _ATTRIBUTE_INFO} != _OF_DATASET.keys():
        raise Unknown(
            f"something other than a dataset under {name!r}, or one that says something twice"
        )
    label, description = _attribute(parts[_ATTRIBUTE])
    if label != "description" or not isinstance(description, str):
        raise Unknown(f"a dataset {name!r} without a description")
    dtype = _NUMBERS.get(parts[_DATATYPE])
    layout = parts[_LAYOUT]
    if dtype is None or layout[:2] not in (b"\x03\x01", b"\x04\x01") or len(layout) != 18:
        raise Unknown(f"a dataset {name!r} of another type, or one that is not contiguous")
    shape = _shape(parts[_DATASPACE], name)
    (offset, size) = struct.unpack("<QQ", layout[2:])
    if size != math.prod(shape) * dtype.itemsize:
        raise Unknown(f"a dataset {name!r} whose shape and size differ")
    return Dataset(
        dtype=dtype,
        shape=shape,
        offset=0 if offset == _UNDEFINED else offset,
        size=size,
        description=description,
    )


def _shape(body: bytes, name: str) -> tuple[int, ...]:
    """The shape in a simple dataspace that cannot grow: without limits, or with those that it has
    reached."""
    limited = body[2:3] == b"\1"
    rank = (len(body) - 4) // (16 if limited else 8)
    if not 0 < rank <= _LARGEST_RANK:
        raise Unknown(f"a dataset {name!r} without a shape")
    shape: tuple[int, ...] = struct.unpack_from(f"<{rank}Q", body, 4)
    if body != struct.pack("<4B", 2, rank, limited, 1) + struct.pack(f"<{rank}Q", *shape) * (
        1 + limited
    ):
        raise Unknown(f"a dataset {name!r} without a shape, or one that can grow")
    if math.prod(size or 1 for size in shape) > _MOST_ELEMENTS:
        raise Unknown(f"a dataset {name!r} of an absurd shape")
    return shape


def _text(data: bytes) -> str:
    """Printable ASCII."""
    text = data.decode("latin-1")
    if not (text.isascii() and text.isprintable()):
        raise Unknown("text that cannot be printed")
    return text


def _read(fd: int, offset: int, size: int) -> bytes:
    data = os.pread(fd, size, offset) if offset < 2**62 else b""
    if len(data) != size:
        raise Unknown("metadata beyond its end")
    return data


def _checked(fd: int, offset: int, size: int) -> bytes:
    """A piece of metadata, without the checksum that follows it."""
    data = _read(fd, offset, size + 4)
    if int.from_bytes(data[-4:], "little") != lookup3(data[:-4]):
        raise Unknown("a checksum that does not fit")
    return data[:-4]


def lookup3(data: bytes) -> int:
    """Jenkins' lookup3 hash (hashlittle, from zero): the checksum of all metadata."""
    ones = 0xFFFFFFFF
    padded = data + bytes(-len(data) % 12)
    a = b = c = (0xDEADBEEF + len(data)) & ones
    for at in range(0, len(padded), 12):
        x, y, z = struct.unpack_from("<III", padded, at)
        a = (a + x) & ones
        b = (b + y) & ones
        c = (c + z) & ones
        if at + 12 < len(padded):
            for k in (4, 6, 8, 16, 19, 4):
                a, b, c = b, (c + b) & ones, (a - c) & ones ^ (c << k & ones | c >> 32 - k)
    for k in (14, 11, 25, 16, 4, 14, 24):
        a, b, c = b, (c ^ b) - (b << k & ones | b >> 32 - k) & ones, a
    return b
