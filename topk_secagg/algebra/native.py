"""Runs the kernels of `kernels.py`: compiled by numba once, kept as object files, and loaded without numba.

numba can cache functions too, but then every process imports numba and, for each function that it loads, looks through
all of numba's registries. Here a process maps a few kilobytes of machine code through LLVM; it imports numba
only where an object file is missing. Kernels release the GIL.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

_SOURCES = ("field.py", "kernels.py", "montgomery.py", "native.py", "recovery.py")
_DIGEST_BYTES = 32
_DRAFT, _OLD = ".draft-", 3600  # a name, and seconds
_log = logging.getLogger(__name__)
_lock = Lock()


def run(name: str, *inputs: npt.NDArray[Any] | int, out: tuple[npt.NDArray[Any], ...]) -> None:
    """Call a kernel with its inputs, arrays or integers below 2^64, and with the arrays it writes to."""
    if not all(array.flags.c_contiguous and array.flags.writeable for array in out):
        raise ValueError(f"{name} writes to whole, contiguous arrays only")
    values = [
        value if isinstance(value, int) else np.ascontiguousarray(value)
        for value in (*inputs, *out)
    ]
    types = tuple(
        "int" if isinstance(value, int) else _type(value.dtype, value.ndim) for value in values
    )
    words: list[int] = []
    for value in values:
        words += (value,) if isinstance(value, int) else _words(value)
    with _lock:  # a kernel is loaded once
        kernel = _loaded(name, types)
    results = (
        ctypes.c_void_p * 2
    )()  # for the value and the error that numba's functions return: there are none
    at = ctypes.addressof(results)
    if kernel(at, at + ctypes.sizeof(ctypes.c_void_p), *words):
        raise AssertionError(f"{name} failed")


@lru_cache
def _type(dtype: np.dtype[Any], dimensions: int) -> str:
    """The name of a type of arrays."""
    if not dtype.isnative:
        raise ValueError("kernels take numbers in this machine's byte order only")
    return f"{dtype.str[1:]}x{dimensions}"


def _words(array: npt.NDArray[Any]) -> tuple[int, ...]:
    """How numba's functions take an array: owner, parent (none), entries, bytes an entry, address, shape, strides."""
    if array.flags.writeable and array.size:
        address = ctypes.addressof(
            ctypes.c_char.from_buffer(array.data)
        )  # three times as fast as the other way
    else:
        address = array.ctypes.data
    return 0, 0, array.size, array.itemsize, address, *array.shape, *array.strides


@cache
def _loaded(name: str, types: tuple[str, ...]) -> Callable[..., int]:
    """The kernel for these types of arguments, as a function of machine words."""
    import llvmlite.binding as llvm

    symbol, code = _kept(name, types) or _compiled(name, types)
    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    count = 2 + sum(1 if kind == "int" else 5 + 2 * int(kind[-1]) for kind in types)
    return ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_uint64] * count)(
        engine.get_function_address(symbol)
    )


@lru_cache(maxsize=1)
def _engine() -> Any:
    """LLVM's loader. It owns the code, so it lives as long as the process."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


# Object files


class _Folder(NamedTuple):
    """A place for object files, and the accounts that may have written them."""

    path: Path
    owners: tuple[int, ...]

    @contextmanager
    def opened(self) -> Iterator[int]:
        """A descriptor of the folder, if nobody but its owners can change what is in it; OSError otherwise."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not self.trusts(os.fstat(fd)):
                raise PermissionError(f"others can write to {self.path}")
            yield fd
        finally:
            os.close(fd)

    def trusts(self, found: os.stat_result) -> bool:
        """Whether only the owners can have written this file or folder."""
        return found.st_uid in self.owners and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)

    def read(self, name: str) -> bytes:
        """A file that one of the owners has put here."""
        with self.opened() as folder:
            fd = os.open(
                name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
            )
        with os.fdopen(fd, "rb") as stream:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or not self.trusts(found):
                raise PermissionError(f"others can have written {name}")
            return stream.read()

    def write(self, name: str, content: bytes) -> None:
        """Put a file here, whole, in the place of what is there; old drafts of killed processes are removed."""
        self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
        with self.opened() as folder:
            with os.scandir(folder) as others:
                for other in others:
                    if other.name.startswith(_DRAFT) and other.stat().st_mtime < time.time() - _OLD:
                        os.unlink(other.name, dir_fd=folder)
            draft = f"{_DRAFT}{os.getpid()}"
            fd = os.open(
                draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=folder
            )
            with os.fdopen(fd, "wb") as stream:
                stream.write(content)
                os.fchmod(fd, 0o644)
            os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)


def _folders() -> Iterator[_Folder]:
    """Beside the source, where the administrator may have compiled, or else in the user's own cache."""
    yield _Folder(Path(__file__).parent / "__pycache__", (os.geteuid(), 0))
    with suppress(RuntimeError):  # this user has no home
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        if cache.is_absolute():
            yield _Folder(cache / "topk-secagg", (os.geteuid(),))


def _kept(name: str, types: tuple[str, ...]) -> tuple[str, bytes] | None:
    """The symbol and the code of a kernel from its file, if there is one that nobody else can have written."""
    file = _file(name, types)
    for folder in _folders():
        with suppress(OSError):
            content = folder.read(file)
            symbol, newline, code = content[_DIGEST_BYTES:].partition(b"\n")
            if newline and content == _sealed(file, symbol, code):
                return symbol.decode(), code
    return None


def _compiled(name: str, types: tuple[str, ...]) -> tuple[str, bytes]:
    """The symbol and the code of a kernel, made now; a later process finds it in the first folder that can be used."""
    from .kernels import machine_code

    _log.info("compiling kernels for the first time; this takes a few seconds")
    symbol, code = machine_code(name, types)
    file = _file(name, types)
    for folder in _folders():
        with suppress(OSError):
            folder.write(file, _sealed(file, symbol.encode(), code))
            break
    return symbol, code


def _sealed(file: str, symbol: bytes, code: bytes) -> bytes:
    """The content of an object file: it is for one name only."""
    body = symbol + b"\n" + code
    return hashlib.sha256(file.encode() + b"\n" + body).digest() + body


def _file(name: str, types: tuple[str, ...]) -> str:
    """An object file is for a kernel, for types of arguments, and for everything the code depends on."""
    key = hashlib.sha256(repr((_circumstances(), types)).encode()).hexdigest()
    return f"{name}-{key[:32]}.o"


@lru_cache(maxsize=1)
def _circumstances() -> str:
    """The kernels' source, the compiler and its settings, and the processor."""
    import llvmlite
    import llvmlite.binding as llvm

    numba = find_spec("numba")
    assert numba is not None
    assert numba.origin is not None
    files = [
        Path(numba.origin).with_name("_version.py"),
        *(Path(__file__).with_name(file) for file in _SOURCES),
    ]
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    features = ""
    with suppress(
        RuntimeError
    ):  # LLVM does not know them on every system; numba compiles without them there
        features = llvm.get_host_cpu_features().flatten()
    settings = sorted(item for item in os.environ.items() if item[0].startswith("NUMBA_"))
    return repr((digests, llvmlite.__version__, settings, llvm.get_host_cpu_name(), features))
