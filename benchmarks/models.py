"""Gradients with the shapes of real models, in safetensors files."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

Shapes = Mapping[str, tuple[int, ...]]
_STEP = 1e-3  # about the size of a gradient's values


def resnet20() -> Shapes:
    """The 272,474 parameters of experiments/cifar10: 3 x 3 blocks, a convolution in each
    shortcut."""
    shapes = _convolution("conv1", 16, 3, 3)
    inputs = 16
    for stage, outputs in enumerate((16, 32, 64), 1):
        for block in range(3):
            name = f"layer{stage}.{block}"
            shapes |= _convolution(f"{name}.conv1", outputs, inputs, 3)
            shapes |= _convolution(f"{name}.conv2", outputs, outputs, 3)
            if inputs != outputs:
                shapes |= _convolution(f"{name}.shortcut", outputs, inputs, 1)
            inputs = outputs
    return shapes | {"fc.weight": (10, 64), "fc.bias": (10,)}


def resnet50() -> Shapes:
    """The 25,557,032 parameters of ResNet-50 for ImageNet."""
    shapes = _convolution("conv1", 64, 3, 7)
    inputs = 64
    for stage, (width, blocks) in enumerate(zip((64, 128, 256, 512), (3, 4, 6, 3), strict=True), 1):
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            shapes |= _convolution(f"{name}.conv1", width, inputs, 1)
            shapes |= _convolution(f"{name}.conv2", width, width, 3)
            shapes |= _convolution(f"{name}.conv3", 4 * width, width, 1)
            if not block:
                shapes |= _convolution(f"{name}.downsample", 4 * width, inputs, 1)
            inputs = 4 * width
    return shapes | {"fc.weight": (1000, 2048), "fc.bias": (1000,)}


def _convolution(name: str, outputs: int, inputs: int, size: int) -> dict[str, tuple[int, ...]]:
    """A convolution without a bias, and its batch norm."""
    return {
        f"{name}.weight": (outputs, inputs, size, size),
        f"{name}.norm.weight": (outputs,),
        f"{name}.norm.bias": (outputs,),
    }


def times(shapes: Shapes, copies: int) -> Shapes:
    """A model with every tensor so many times."""
    return {f"{copy}.{name}": shape for copy in range(copies) for name, shape in shapes.items()}


def entries(shapes: Shapes) -> int:
    """L."""
    return sum(map(math.prod, shapes.values()))


def random_tensors(shapes: Shapes, seed: int) -> dict[str, np.ndarray]:
    """Normal numbers, some tensors larger than others."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(shape, np.float32) * np.float32(_STEP * (1 + at % 3))
        for at, (name, shape) in enumerate(shapes.items())
    }


def save(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """As safetensors: the length of a JSON header, the header, and all tensors."""
    header = {}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": (start, end)}
    encoded = json.dumps(header).encode()
    with path.open("wb") as stream:
        stream.write(len(encoded).to_bytes(8, "little") + encoded)
        for tensor in tensors.values():
            stream.write(tensor.tobytes())


def save_gradients(folder: Path, shapes: Shapes, users: int, distinct: int = 4) -> Path:
    """A file a user; only the first ones are distinct, the others are links to these."""
    folder.mkdir(parents=True)
    for n in range(users):
        path = folder / f"user-{n + 1:03}.safetensors"
        if n < distinct:
            save(path, random_tensors(shapes, seed=n))
        else:
            os.link(folder / f"user-{n % distinct + 1:03}.safetensors", path)
    return folder
