"""PyTorch's files, without torch: `torch_file` reads them and `torch_writer` writes them.

Each is loaded when it is needed: who writes a sum need not load what reads pickles.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO

from ..tensors import Gradient


def read(path: Path, entry: str = "") -> Gradient:
    """The tensors of a file of `torch.save`, or of its entry."""
    from . import torch_file

    return torch_file.read(path, entry)


def write(stream: IO[bytes], tensors: Gradient) -> None:
    """What `torch.save` writes."""
    from . import torch_writer

    torch_writer.write(stream, tensors)
