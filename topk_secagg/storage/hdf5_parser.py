"""The little of HDF5 that the files of a round use, read without the HDF5 library.

The library trusts the metadata of a file: one that lies, under checksums that fit, can crash it. So files
of others are read by this parser, which knows one layout (docs/file-format.md) and refuses all others
before it has read more than the headers. Names of pieces and messages are those of the HDF5 File Format
Specification, version 3.0.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

SIGNATURE = b"\x89HDF\r\n\x1a\n"
UNDEFINED = 2**64 - 1
_SUPERBLOCK = struct.Struct("<8s4B4QI")  # version, two sizes, flags; base, extension, end, root; checksum
_MESSAGE = struct.Struct("<BHB")
_MOST_CHUNKS = 8
_MOST_MESSAGES = 64
_MOST_DATASETS = 8
_LARGEST_HEADER = 1 << 14
_MOST_ELEMENTS = 1 << 48
_LARGEST_RANK = 8
_LONGEST_TEXT = 128
_LARGEST_OVERHEAD = 64 << 10  # bytes of a file besides its datasets; honest ones have about 2,000

# message types
_NIL, _DATASPACE, _LINK_INFO, _DATATYPE, _FILL_VALUE, _LINK = 0, 1, 2, 3, 5, 6
_LAYOUT, _GROUP_INFO, _ATTRIBUTE, _CONTINUATION, _ATTRIBUTE_INFO = 8, 10, 12, 16, 21
_OF_ROOT = {_NIL, _LINK_INFO, _LINK, _GROUP_INFO, _ATTRIBUTE, _ATTRIBUTE_INFO}
_OF_DATASET = {_NIL, _DATASPACE, _DATATYPE, _FILL_VALUE, _LAYOUT, _ATTRIBUTE, _ATTRIBUTE_INFO}

_SCALAR = b"\x02\0\0\0"
_NO_HEAP = b"\0\0" + b"\xff" * 16  # links or attributes are in the header itself


def _unsigned(size: int) -> bytes:
    return struct.pack("<B3xIHH", 0x10, size, 0, 8 * size)


_NUMBERS = {_unsigned(1): "|u1", _unsigned(2): "<u2", _unsigned(4): "<u4", _unsigned(8): "<u8"} | {
    b"\x11\x20\x3f\0" + struct.pack("<IHHBBBBI", 8, 0, 64, 52, 11, 0, 52, 1023): "<f8"
}
_TEXT = b"\x13\x01\0\0"  # fixed length, filled with zeros, ASCII; the length follows


class Unknown(ValueError):
    """Something that no file of a round has; the text says what."""


@dataclass
class Dataset:
    """Where the bytes of a contiguous dataset lie."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    description: str = ""

    @cached_property
    def size(self) -> int:
        """Its bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass
class Structure:
    """The attributes and datasets of a file."""

    attributes: dict[str, str | int] = field(default_factory=dict)
    datasets: dict[str, Dataset] = field(default_factory=dict)


def parse(fd: int) -> Structure:
    """The structure of an open file; raises Unknown for any but the one layout."""
    size = os.fstat(fd).st_size
    found = Structure()
    links: dict[str, int] = {}
    kinds = set()
    spans = [(0, _SUPERBLOCK.size)]  # start and end of every piece that is accounted for
    for kind, body in _messages(fd, _root(fd, size), _OF_ROOT, spans):
        kinds.add(kind)
        if kind == _LINK:
            name, address = _link(body)
            if name in links or address in links.values() or len(links) == _MOST_DATASETS:
                raise Unknown("too many datasets, or one twice")
            links[name] = address
        elif kind == _ATTRIBUTE:
            name, value = _attribute(body)
            if name in found.attributes:
                raise Unknown(f"two attributes {name!r}")
            found.attributes[name] = value
        elif kind in (_LINK_INFO, _ATTRIBUTE_INFO) and body != _NO_HEAP:
            raise Unknown("links or attributes outside of the root group's header")
        elif kind == _GROUP_INFO and body != b"\0\0":
            raise Unknown("another kind of group")
    if _LINK_INFO not in kinds:
        raise Unknown("something other than a group at its root")
    for name, address in links.items():
        found.datasets[name] = _dataset(fd, address, name, spans)
    if size - sum(d.size for d in found.datasets.values()) > _LARGEST_OVERHEAD:
        raise Unknown("more than its datasets")
    spans += [(d.offset, d.offset + d.size) for d in found.datasets.values() if d.size]
    _refuse_gaps(fd, size, spans)
    return found


def _refuse_gaps(fd: int, size: int, spans: list[tuple[int, int]]) -> None:
    """Pieces do not overlap, and whatever lies between them is zero: no bit of a file is without meaning."""
    ordered = sorted([*spans, (size, size)])
    gaps = [(end, start) for (_, end), (start, _) in pairwise(ordered)]
    if any(start < end for end, start in gaps) or ordered[-1] != (size, size):
        raise Unknown("pieces that overlap, or lie beyond its end")
    if any(any(_read(fd, end, start - end)) for end, start in gaps):  # together at most _LARGEST_OVERHEAD
        raise Unknown("bytes that belong to nothing")


def _root(fd: int, size: int) -> int:
    """The address of the root group's header, from the superblock."""
    block = _read(fd, 0, _SUPERBLOCK.size)
    signature, version, offsets, lengths, flags, base, extension, end, root, checksum = _SUPERBLOCK.unpack(block)
    if signature != SIGNATURE:
        raise Unknown("no HDF5 file at all")
    if (version, offsets, lengths, flags, base, extension) != (3, 8, 8, 0, 0, UNDEFINED):
        raise Unknown("another superblock")
    if checksum != lookup3(block[:-4]):
        raise Unknown("a checksum that does not fit")
    if end != size:
        raise Unknown(f"{size} bytes, not {end}")
    return int(root)


def _messages(fd: int, address: int, allowed: set[int], spans: list[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
    """The messages of an object header (version 2): type and body. Its pieces are added to `spans`."""
    start = _read(fd, address, 6)
    signature, version, flags = start[:4], start[4], start[5]
    if (signature, version) != (b"OHDR", 2) or flags & ~0x13:  # neither times nor an order of creation
        raise Unknown("another object header")
    width = 1 << (flags & 3)
    begin = 6
    if flags & 0x10:  # how many attributes the header may hold
        most, fewest = struct.unpack("<HH", _read(fd, address + begin, 4))
        if fewest > most:
            raise Unknown("another object header")
        begin += 4
    length = int.from_bytes(_read(fd, address + begin, width), "little")
    chunks = [(address, begin + width, length)]
    read = messages = 0
    for number, (at, skip, length) in enumerate(chunks):  # which grows on the way
        read += length
        if number == _MOST_CHUNKS or read > _LARGEST_HEADER:
            raise Unknown("a header without end")
        chunk = _read(fd, at, skip + length + 4)
        spans.append((at, at + len(chunk)))
        if number and chunk[:4] != b"OCHK":
            raise Unknown("another continuation of a header")
        if int.from_bytes(chunk[-4:], "little") != lookup3(chunk[:-4]):
            raise Unknown("a checksum that does not fit")
        body, gaps = chunk[skip:-4], False
        while len(body) >= _MESSAGE.size:
            kind, size, how = _MESSAGE.unpack_from(body)
            message, body = body[4 : 4 + size], body[4 + size :]
            messages += 1
            gaps |= kind == _NIL
            if len(message) != size or how & ~0x05 or messages > _MOST_MESSAGES:
                raise Unknown("another kind of message")
            if kind == _CONTINUATION and size == 16:
                offset, long = struct.unpack("<QQ", message)
                if long < 8:
                    raise Unknown("another continuation of a header")
                chunks.append((offset, 4, long - 8))
            elif kind in allowed and not (kind == _NIL and any(message)):
                yield kind, message
            else:
                raise Unknown(f"a message of type {kind}")
        if body and (gaps or any(body)):
            raise Unknown("a gap that should not be there")


def _link(body: bytes) -> tuple[str, int]:
    """Name and address of a hard link."""
    version, flags, length = _start(body, 3)
    if (version, flags, len(body)) != (1, 0, 3 + length + 8):
        raise Unknown("a link that is not a plain one")
    return _name(body[3:-8]), int.from_bytes(body[-8:], "little")


def _attribute(body: bytes) -> tuple[str, str | int]:
    """Name and value of an attribute: fixed-length text, or a 64-bit unsigned integer."""
    if len(body) < 9:
        raise Unknown("a short attribute")
    version, flags, name_size, type_size, space_size, charset = struct.unpack_from("<BBHHHB", body)
    parts = []
    rest = body[9:]
    for size in (name_size, type_size, space_size):
        parts.append(rest[:size])
        rest = rest[size:]
    label, dtype, space = parts
    if (version, flags, space) != (3, 0, _SCALAR) or charset > 1 or label[-1:] != b"\0":
        raise Unknown("an attribute that is not a plain one")
    name = _name(label[:-1])
    if _NUMBERS.get(dtype) == "<u8" and len(rest) == 8:
        return name, int.from_bytes(rest, "little")
    if dtype == _TEXT + struct.pack("<I", len(rest)) and 0 < len(rest) <= _LONGEST_TEXT:
        return name, _name(rest.rstrip(b"\0"))
    raise Unknown(f"an attribute {name!r} that is neither text nor an integer")


def _dataset(fd: int, address: int, name: str, spans: list[tuple[int, int]]) -> Dataset:
    """A contiguous dataset of one of the known types."""
    parts: dict[int, bytes] = {}
    for kind, body in _messages(fd, address, _OF_DATASET, spans):
        if kind in parts:
            raise Unknown(f"a dataset {name!r} that says something twice")
        if kind != _NIL:
            parts[kind] = body
    if set(parts) | {_NIL, _ATTRIBUTE_INFO} != _OF_DATASET or parts.get(_ATTRIBUTE_INFO, _NO_HEAP) != _NO_HEAP:
        raise Unknown(f"something other than a dataset under {name!r}")
    label, description = _attribute(parts[_ATTRIBUTE])
    if label != "description" or not isinstance(description, str):
        raise Unknown(f"a dataset {name!r} without a description")
    dtype = _NUMBERS.get(parts[_DATATYPE])
    if dtype is None:
        raise Unknown(f"a dataset {name!r} of another type")
    layout = parts[_LAYOUT]
    if layout[:2] not in (b"\x03\x01", b"\x04\x01") or len(layout) != 18:
        raise Unknown(f"a dataset {name!r} that is not contiguous")
    offset, stored = struct.unpack("<QQ", layout[2:])
    place = 0 if offset == UNDEFINED else offset
    dataset = Dataset(np.dtype(dtype), _shape(parts[_DATASPACE], name), place, description)
    if dataset.size != stored:
        raise Unknown(f"a dataset {name!r} whose shape and size differ")
    return dataset


def _shape(body: bytes, name: str) -> tuple[int, ...]:
    """The shape in a simple dataspace that cannot grow."""
    version, rank, flags, kind = _start(body, 4)
    sizes = body[4:]
    if flags == 1:
        sizes, limits = sizes[: 8 * rank], sizes[8 * rank :]
        if limits != sizes:
            raise Unknown(f"a dataset {name!r} that can grow")
    if (version, kind) != (2, 1) or flags > 1 or not 0 < rank <= _LARGEST_RANK or len(sizes) != 8 * rank:
        raise Unknown(f"a dataset {name!r} without a shape")
    shape: tuple[int, ...] = struct.unpack(f"<{rank}Q", sizes)
    if math.prod(size or 1 for size in shape) > _MOST_ELEMENTS:
        raise Unknown(f"a dataset {name!r} of an absurd shape")
    return shape


def _start(body: bytes, size: int) -> bytes:
    if len(body) < size:
        raise Unknown("a short message")
    return body[:size]


def _name(data: bytes) -> str:
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


def lookup3(data: bytes) -> int:
    """Jenkins' lookup3 hash (hashlittle, from zero): the checksum of all metadata."""
    ones = 0xFFFFFFFF
    padded = data + bytes(-len(data) % 12)
    a = b = c = (0xDEADBEEF + len(data)) & ones
    for at in range(0, len(padded), 12):
        x, y, z = struct.unpack_from("<III", padded, at)
        a, b, c = (a + x) & ones, (b + y) & ones, (c + z) & ones
        if at + 12 < len(padded):
            for k in (4, 6, 8, 16, 19, 4):
                a, b, c = b, (c + b) & ones, (a - c) & ones ^ (c << k & ones | c >> 32 - k)
    for k in (14, 11, 25, 16, 4, 14, 24):
        a, b, c = b, (c ^ b) - (b << k & ones | b >> 32 - k) & ones, a
    return b
