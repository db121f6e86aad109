"""ResNet-20 for CIFAR-10, with convolutions of 1 x 1 and batch norm as shortcuts: 272,474
parameters."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

PARAMETERS = 272_474


def conv(inputs: int, outputs: int, size: int, stride: int) -> nn.Sequential:
    """A convolution without bias, and batch norm."""
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """Two convolutions of 3 x 3 beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = conv(inputs, outputs, size=3, stride=stride)
        self.second = conv(outputs, outputs, size=3, stride=1)
        self.shortcut = (
            nn.Identity() if inputs == outputs else conv(inputs, outputs, size=1, stride=stride)
        )

    def forward(self, x: Tensor) -> Tensor:
        """ReLU of the sum of both ways."""
        return torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))


def resnet20() -> nn.Sequential:
    """Three stages of three blocks, with 16, 32 and 64 channels."""
    stem = conv(inputs=3, outputs=16, size=3, stride=1)
    layers: dict[str, nn.Module] = {"stem": stem, "relu": nn.ReLU()}
    inputs = 16
    for stage, outputs in enumerate((16, 32, 64), 1):
        for n in range(1, 4):
            layers[f"stage{stage}_{n}"] = Block(inputs, outputs, 2 if n == 1 and stage > 1 else 1)
            inputs = outputs
    layers |= {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "fc": nn.Linear(64, 10)}
    model = nn.Sequential(OrderedDict(layers))
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == PARAMETERS
    return model
