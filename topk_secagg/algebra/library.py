"""The kernels' machine code: compiled once, kept in an object file, and loaded without numba.

numba can cache functions too, but then every process imports numba and looks through all of its
registries for each function that it loads. Here a process maps one file of machine code through
LLVM. Where that file is missing, a process of its own compiles it (`machine_code`), so that numba
and its settings never meet the process that computes.

Whoever can write such a file can run code as its reader: see `Folder`, and "Compiled code" in
docs/security.md.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

Function = Callable[..., None]

SOURCE = Path(__file__).parent
COMPILED = (  # what the machine code is made from, and by
    "entry.py",
    "field.py",
    "kernels.py",
    "library.py",
    "machine_code.py",
    "montgomery.py",
    "recovery.py",
    "selection_kernels.py",
    "sketch_kernels.py",
)
COMPILER = f"{__package__}.machine_code"

DIGEST_BYTES = 32

_log = logging.getLogger(__name__)
_lock = Lock()


class Code(NamedTuple):
    """An object file with all kernels, and the versions of what compiled it."""

    compilers: str
    machine_code: bytes

    def sealed(self, name: str) -> bytes:
        """The content of the file of this name."""
        body = self.compilers.encode() + b"\n" + self.machine_code
        return hashlib.sha256(name.encode() + b"\n" + body).digest() + body

    @classmethod
    def unsealed(cls, name: str, content: bytes) -> Code | None:
        """What is in a file, if it is whole and was written under this name."""
        compilers, _, machine_code = content[DIGEST_BYTES:].partition(b"\n")
        code = cls(compilers.decode(errors="replace"), machine_code)
        return code if code.sealed(name) == content else None


class Folder(NamedTuple):
    """A place for object files, and the accounts that may have written them."""

    path: Path
    owners: tuple[int, ...]

    @contextmanager
    def opened(self) -> Iterator[int]:
        """The folder's descriptor, if nobody but its owners can change it; OSError otherwise."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self.check(fd, str(self.path))
            yield fd
        finally:
            os.close(fd)

    def check(self, fd: int, name: str) -> None:
        """PermissionError if others than the owners can have written this file or folder."""
        status = os.fstat(fd)
        writable = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if status.st_uid not in self.owners or writable:
            raise PermissionError(f"others can have written {name}")

    def read(self, name: str) -> bytes:
        """A file that one of the owners has put here: no link, and no pipe."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with self.opened() as folder:
            fd = os.open(name, flags, dir_fd=folder)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise PermissionError(f"{name} is no file")
            self.check(fd, name)
            return file.read()

    def write(self, name: str, content: bytes) -> None:
        """Put a file here, whole, in the place of what is there."""
        self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        draft = f".draft-{os.getpid()}-{time.time_ns()}"  # others may compile at the same time
        with self.opened() as folder:
            fd = os.open(draft, flags, 0o644, dir_fd=folder)
            with os.fdopen(fd, "wb") as file:
                file.write(content)
                os.fchmod(fd, 0o644)
            os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)


def folders() -> Iterator[Folder]:
    """Beside the source, where the administrator may have compiled; else the user's own cache."""
    user = os.geteuid()
    yield Folder(SOURCE / "__pycache__", owners=(user, 0))
    with suppress(RuntimeError):  # this user has no home
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        if cache.is_absolute():
            yield Folder(cache / "topk-secagg", owners=(user,))


def find() -> tuple[Path, Code] | None:
    """The file that is kept for this processor, if nobody else can have written it."""
    name = file_name()
    for folder in folders():
        with suppress(OSError):
            code = Code.unsealed(name, folder.read(name))
            if code is not None:
                return folder.path / name, code
    return None


def keep(code: Code, places: Iterable[Folder]) -> Path | None:
    """Where the code is kept from now on: in the first place that can be used, if there is one."""
    name = file_name()
    for folder in places:
        with suppress(OSError):
            folder.write(name, code.sealed(name))
            return folder.path / name
    return None


@lru_cache(maxsize=1)
def file_name() -> str:
    """A file is for one source of the kernels, one compiler and one processor."""
    import llvmlite

    numba = find_spec("numba")
    if numba is None or numba.origin is None:
        raise RuntimeError("numba is not installed, and the kernels are compiled by it")
    version = Path(numba.origin).with_name("_version.py")  # importing numba takes too long
    files = [SOURCE / name for name in COMPILED]
    files.append(version if version.exists() else Path(numba.origin))
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    key = repr((digests, llvmlite.__version__, processor()))
    return f"kernels-{hashlib.sha256(key.encode()).hexdigest()[:32]}.o"


def symbol(name: str, count: int) -> str:
    """What a kernel with so many arguments is called in the object file."""
    return f"topk_secagg_{name}_{count}"


@lru_cache(maxsize=1)
def processor() -> str:
    """LLVM's name of this processor, and what it can do."""
    import llvmlite.binding as llvm

    return f"{llvm.get_host_cpu_name()} {features()}"


def features() -> str:
    """What the processor can do; LLVM does not know it on every system, and does without there."""
    import llvmlite.binding as llvm

    try:
        return str(llvm.get_host_cpu_features().flatten())
    except RuntimeError:
        return ""


def compile_kernels() -> Code:
    """Compile all kernels, in a process of its own: no setting of this one changes the code."""
    import subprocess  # here, as few processes compile: the rest need not load it

    _log.info("compiling kernels for the first time; this takes a few seconds")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")}
    environment["NUMBA_OPT"] = "0"  # see machine_code
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if Path(p).is_absolute())
    done = subprocess.run(  # noqa: S603 - ourselves
        [sys.executable, "-P", "-m", COMPILER],
        cwd=SOURCE,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    compilers, _, machine_code = done.stdout.partition(b"\n")
    if done.returncode or not compilers.startswith(b"numba "):
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no output"]
        raise RuntimeError(f"the kernels cannot be compiled: {lines[-1]}")
    return Code(compilers.decode(), machine_code)


@lru_cache(maxsize=1)
def _loaded() -> tuple[Any, str]:
    """LLVM's loader with the kernels, which lives as long as the process, and their compilers."""
    import llvmlite.binding as llvm

    kept = find()
    if kept is not None:
        code = kept[1]
    else:
        code = compile_kernels()
        # beside the source it would survive the package, and hide one that is installed in its
        # place from another folder: only who calls `compile` puts it there
        keep(code, reversed([*folders()]))
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code.machine_code))
    engine.finalize_object()
    return engine, code.compilers


def compilers() -> str:
    """The versions of what compiled the kernels that are loaded."""
    return _loaded()[1]


def function(name: str, count: int) -> Function:
    """A kernel as a function of addresses and integers. `native` calls it, and nothing else does.

    The number of arguments is part of the symbol: with another number there is no such kernel.
    """
    with _lock:
        engine, made_with = _loaded()
    address = engine.get_function_address(symbol(name, count))
    if not address:
        raise RuntimeError(f"no kernel {name} takes {count} arguments: compiled with {made_with}")
    return ctypes.CFUNCTYPE(None, *[ctypes.c_uint64] * count)(address)
