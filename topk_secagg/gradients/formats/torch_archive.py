"""The zip of a file of `torch.save`, and the arrays in it: read without torch.

Its members are not compressed: `data/<key>` are the storages, plain arrays; `data.pkl` says which
storage, offset, size and stride make up each tensor; `byteorder` is the byte order of the numbers.
"""

from __future__ import annotations

import io
import math
import os
import struct
import zipfile
import zlib
from typing import Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt

from ...errors import BadData
from ..tensors import called, widen
from .torch_pickle import AGAIN, ONLY_TENSORS, Budget, Call, Name, Storage

DTYPES = {
    "torch.HalfStorage": "float16", "torch.BFloat16Storage": "bfloat16",
    "torch.FloatStorage": "float32",
    "torch.DoubleStorage": "float64", "torch.CharStorage": "int8", "torch.ShortStorage": "int16",
    "torch.IntStorage": "int32", "torch.LongStorage": "int64", "torch.ByteStorage": "uint8",
    "torch.BoolStorage": "bool",
}  # fmt: skip

_TENSOR_COST = 400  # bytes of a Tensor and its array without its values
_MAX_WRAPPED = 2  # a tensor with attributes in a Parameter
_MAX_DIMENSIONS = 32

_ZIP_MAGIC = b"PK\x03\x04"
_OLD_MAGIC = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
# magic, flags, method, length of the name and of the extra field
_LOCAL_HEADER = struct.Struct("<4s2xHH16xHH")
# the flags that torch.save sets
_UTF8_NAME = 0x0800
_SIZES_FOLLOW = 0x0008
_DIRECTORY = 0x10  # among a member's attributes

# Tensors that are a storage, an offset, a size and a stride: how many arguments may follow these.
_STRIDED = {"torch._utils._rebuild_tensor": (0,), "torch._utils._rebuild_tensor_v2": (2, 3)}
_OF_NEW_TYPE = "torch._utils._rebuild_tensor_v3"
_PARAMETER = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
_WITH_ATTRIBUTES = "torch._tensor._rebuild_from_type_v2"
_PLAIN_CLASSES = ("torch.Tensor", "torch.nn.parameter.Parameter")
_NO_VALUES = ("it is a meta tensor and has no values", "save a tensor of the cpu")
_REFUSED = {
    "torch._utils._rebuild_sparse_tensor": ("it is sparse", "save tensor.to_dense()"),
    "torch._utils._rebuild_sparse_csr_tensor": ("it is sparse", "save tensor.to_dense()"),
    "torch._utils._rebuild_qtensor": ("it is quantised", "save tensor.dequantize()"),
    "torch._utils._rebuild_nested_tensor": ("it is a nested tensor", "save list(tensor.unbind())"),
    "torch._utils._rebuild_meta_tensor_no_storage": _NO_VALUES,
}

_NO_ZIP_TOOL = "save the file with torch.save, not with a zip tool"
_CONVERT = "save tensor.to(torch.float32)"

Array = npt.NDArray[Any]


class Archive:
    """The zip of a torch file: no member is compressed, and no two overlap."""

    def __init__(self, file: io.BufferedReader) -> None:
        self.file = file
        self.size = file.seek(0, os.SEEK_END)
        self.budget = Budget(self.size)
        self.storages: dict[str, tuple[str, Array]] = {}  # key -> kind, values
        # (key of the storage, offset, size, stride) -> the array, so that tied tensors are one
        # object
        self.views: dict[tuple[Any, ...], Array] = {}
        file.seek(0)
        start = file.read(len(_OLD_MAGIC))
        if start == _OLD_MAGIC:
            hint = (
                "save it with a newer torch: torch.save(torch.load(path, weights_only=True), path)"
            )
            raise BadData("it is in the old format of torch.save, which is not a zip", hint)
        if start[:1] == b"\x80":
            raise BadData("it is a plain pickle, not a file of torch.save", ONLY_TENSORS)
        if start[:4] != _ZIP_MAGIC:
            raise BadData(
                "it is not a file of torch.save" if start else "it is empty", ONLY_TENSORS
            )
        with zipfile.ZipFile(file) as directory:
            infos = sorted(directory.infolist(), key=lambda info: info.header_offset)
        root = infos[0].filename.partition("/")[0] + "/"
        if any(info.filename == f"{root}constants.pkl" for info in infos):
            raise BadData("it is a TorchScript archive", "save torch.jit.load(path).state_dict()")
        self.members: dict[
            str, tuple[int, int, int]
        ] = {}  # name without the root -> offset, size, CRC
        free = 0
        for info in infos:
            name = info.filename.removeprefix(root)
            if not info.filename.startswith(root) or info.filename != info.orig_filename:
                self._refuse(info, "is not one of torch.save's")
            if info.external_attr & _DIRECTORY:
                # torch would use uninitialised memory as its content
                self._refuse(info, "is a directory")
            if name in self.members:
                self._refuse(info, "is there twice")
            if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
                self._refuse(info, "is compressed")
            if (
                info.header_offset < free
                or (begin := self._start(info)) + info.file_size > directory.start_dir
            ):
                self._refuse(info, "overlaps another one")
            free = begin + info.file_size
            self.members[name] = (begin, info.file_size, info.CRC)
        if infos[0].header_offset != 0:
            raise BadData("something lies in front of its zip", AGAIN)
        if "data.pkl" not in self.members:
            raise BadData("it is a zip, but not one of torch.save", ONLY_TENSORS)
        order = self.member("byteorder").tobytes() if "byteorder" in self.members else b"little"
        if order not in (b"little", b"big"):
            raise BadData("its byte order is neither little nor big", AGAIN)
        self.order: Literal["<", ">"] = "<" if order == b"little" else ">"

    @staticmethod
    def _refuse(info: zipfile.ZipInfo, why: str) -> NoReturn:
        raise BadData(f"its zip member {called(info.filename)} {why}", _NO_ZIP_TOOL)

    def _start(self, info: zipfile.ZipInfo) -> int:
        """The offset of the member's bytes; its local header must agree with the directory."""
        self.file.seek(min(info.header_offset, self.size))
        local = self.file.read(_LOCAL_HEADER.size)
        magic, flags, method, name_length, extra_length = _LOCAL_HEADER.unpack(local)
        name = info.filename.encode("utf-8" if flags & _UTF8_NAME else "cp437")
        if (magic, method, self.file.read(name_length)) != (_ZIP_MAGIC, zipfile.ZIP_STORED, name):
            self._refuse(info, "has two different headers")
        if (flags | info.flag_bits) & ~(_UTF8_NAME | _SIZES_FOLLOW):
            self._refuse(info, "is encrypted or of an unknown kind")
        return info.header_offset + _LOCAL_HEADER.size + int(name_length) + int(extra_length)

    def member(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a member, read once and checked against their CRC."""
        if name not in self.members:
            raise BadData(f"its zip member {called(name)} is missing", AGAIN)
        start, size, crc = self.members[name]
        self.file.seek(start)
        content = np.fromfile(self.file, np.uint8, size)
        if len(content) != size or zlib.crc32(content.data) != crc:
            hint = f"{AGAIN} (torch.serialization.set_crc32_options(False) also does this)"
            raise BadData(f"its zip member {called(name)} is damaged: the CRC does not match", hint)
        return content

    def array(self, call: Any, wrapped: int = 0) -> tuple[str, Array]:
        """The type's name and the values of a tensor."""
        match call:
            case Call(name, (inner, *_)) if name in _PARAMETER and wrapped < _MAX_WRAPPED:
                return self.array(inner, wrapped + 1)
            case Call(name, (Name(inner), Name(kind), tuple(arguments), _)) if (
                name == _WITH_ATTRIBUTES and kind in _PLAIN_CLASSES and wrapped < _MAX_WRAPPED
            ):
                return self.array(Call(inner, arguments), wrapped + 1)
            case Call(name, (Storage() as storage, offset, tuple(size), tuple(stride), *rest)) if (
                len(rest) in _STRIDED.get(name, ())
            ):
                values = self._values_in(storage)
                # the flags conj and neg: torch applies them when it computes
                if len(rest) > 2 and rest[2]:
                    raise BadData(
                        "it is negated or conjugated lazily",
                        "save tensor.resolve_conj().resolve_neg()",
                    )
                return DTYPES[storage.kind], self._view(
                    storage.key, values, offset=offset, size=size, stride=stride
                )
            case Call(name, (_, _, _, _, _, _, Name(dtype), *_)) if name == _OF_NEW_TYPE:
                raise BadData(f"it is of the type {dtype.removeprefix('torch.')}", _CONVERT)
            case Call(name, _) if name in _REFUSED:
                raise BadData(*_REFUSED[name])
        raise BadData(
            "it is of a kind unknown here", "save a plain tensor: tensor.detach().clone()"
        )

    def _view(
        self, key: str, values: Array, offset: Any, size: tuple[Any, ...], stride: tuple[Any, ...]
    ) -> Array:
        """x[i, j, ...] = values[offset + i stride_0 + j stride_1 + ...] for i < size_0, j < size_1,
        ...

        The same view of the storage `key` is the same array.
        """
        numbers = (offset, *size, *stride)
        if (
            len(size) != len(stride)
            or len(size) > _MAX_DIMENSIONS
            or any(type(n) is not int for n in numbers)
        ):
            raise BadData("it has a size, stride or offset that no tensor has", AGAIN)
        if min(numbers) < 0:
            raise BadData("it has a negative size, stride or offset", AGAIN)
        view = (key, offset, size, stride)  # hashed only now: these are a text and integers
        if view in self.views:
            self.budget.spend(_TENSOR_COST)
            return self.views[view]
        count = math.prod(size)
        self.budget.spend(_TENSOR_COST + count * values.itemsize)
        if count == 0:
            return np.empty(size, values.dtype)
        if offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) >= len(
            values
        ):
            raise BadData("it reaches beyond its storage", AGAIN)
        steps = [step * values.itemsize for step in stride]
        self.views[view] = np.ndarray(
            size, values.dtype, values.data, offset * values.itemsize, steps
        )
        return self.views[view]

    def _values_in(self, storage: Storage) -> Array:
        """The values of a storage, flat; bfloat16 is widened to float32.

        A storage is read once, and every tensor in it must describe it alike.
        """
        if storage.device == "meta":
            raise BadData(*_NO_VALUES)
        if storage.kind.startswith("torch.Complex"):
            raise BadData("it is complex", "save torch.view_as_real(tensor)")
        if storage.kind not in DTYPES:
            raise BadData(f"it is in a {called(storage.kind)}", _CONVERT)
        if storage.key not in self.storages:
            raw = self.member(f"data/{storage.key}")
            dtype = DTYPES[storage.kind]
            self.storages[storage.key] = storage.kind, self._numbers(raw, dtype)
        kind, values = self.storages[storage.key]
        if kind != storage.kind or len(values) != storage.length:
            raise BadData("it is in a storage of another size or type than it says", AGAIN)
        return values

    def _numbers(self, raw: npt.NDArray[np.uint8], dtype: str) -> Array:
        if dtype == "bool":
            return raw.astype(np.bool_)  # as in torch, anything but 0 is True
        kind = np.dtype("uint16" if dtype == "bfloat16" else dtype)
        if len(raw) % kind.itemsize:
            raise BadData("it is in a storage that ends with a part of a number", AGAIN)
        values: Array = raw.view(kind.newbyteorder(self.order)).astype(kind, copy=False)
        return widen(values) if dtype == "bfloat16" else values
