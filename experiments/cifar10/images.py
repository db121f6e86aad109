"""The users of a federated training of ResNet-20: their images, their local steps, and the test."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, cross_entropy

sys.path.insert(0, str(Path(__file__).parent.parent))
import cifar
from resnet20 import resnet20

CONCENTRATION = 0.5
BATCH = 32
RATE = 0.2
MEAN = (0.4914, 0.4822, 0.4465)  # of red, green and blue
STD = (0.2470, 0.2435, 0.2616)

Vector = npt.NDArray[np.float64]


class Images:
    """All images of a split, pooled to `size` x `size`, with mean 0 and variance 1 per channel."""

    def __init__(self, split: str, path: Path, size: int) -> None:
        pixels, labels = cifar.load(split, path)
        mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (MEAN, STD))
        parts = torch.from_numpy(pixels).split(5000)
        pooled = [avg_pool2d((part / 255 - mean) / std, 32 // size) for part in parts]
        self.pixels = torch.cat(pooled).contiguous(memory_format=torch.channels_last)
        self.labels = torch.from_numpy(labels)


def partition(labels: npt.NDArray[np.int64], users: int, seed: int) -> list[npt.NDArray[np.int64]]:
    """Which images each user has: every class is dealt out in shares drawn from a Dirichlet
    distribution."""
    rng = np.random.default_rng([seed, 0])
    owned: list[list[npt.NDArray[np.int64]]] = [[] for _ in range(users)]
    for label in range(10):
        images = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.cumsum(rng.dirichlet([CONCENTRATION] * users))[:-1] * len(images)
        for own, part in zip(owned, np.split(images, cuts.astype(int)), strict=True):
            own.append(part)
    dealt = [np.concatenate(own) for own in owned]
    assert min(map(len, dealt)) >= BATCH, "a user has too few images: choose another seed"
    return dealt


class Cifar:
    """The weights as one vector and the statistics of batch norm as another; one network computes
    with both."""

    def __init__(self, training: Images, tested: Images, users: int, seed: int) -> None:
        self.training = training
        self.tested = tested
        self.seed = seed
        self.owned = partition(training.labels.numpy(), users, seed)
        self.kept: dict[int, Any] = {}  # SGD keeps nothing
        torch.manual_seed(seed)
        self.network = resnet20().to(memory_format=torch.channels_last)
        self.weights = self._weights()
        self.statistics = self._statistics()

    def _buffers(self) -> list[Tensor]:
        return [buffer for buffer in self.network.buffers() if buffer.is_floating_point()]

    def _weights(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.network.parameters()])

    def _statistics(self) -> Tensor:
        return torch.cat(self._buffers()).clone()

    def load(self) -> None:
        """Put the common weights and statistics into the network."""
        with torch.no_grad():
            for values, tensors in (
                (self.weights, list(self.network.parameters())),
                (self.statistics, self._buffers()),
            ):
                for tensor, part in zip(
                    tensors, values.split([t.numel() for t in tensors]), strict=True
                ):
                    tensor.copy_(part.reshape(tensor.shape))

    def train(
        self, user: int, *, done: int, steps: int, rate: float
    ) -> tuple[Vector, Tensor, float]:
        """A user's local steps: the difference of its weights, its statistics, and its mean
        loss."""
        rng = np.random.default_rng([self.seed, 1, done, user])
        own = self.owned[user - 1]
        self.load()
        self.network.train()
        optimiser = torch.optim.SGD(self.network.parameters(), lr=RATE * rate)
        losses = []
        for _ in range(steps):
            batch = torch.from_numpy(rng.choice(own, BATCH, replace=False))
            found = self.network(self.training.pixels[batch])
            loss = cross_entropy(found, self.training.labels[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        moved = self._weights() - self.weights
        return moved.double().numpy(), self._statistics(), float(np.mean(losses))

    @torch.no_grad()
    def test(self) -> dict[str, float]:
        """The share of all images that the common model gets right."""
        images = self.tested
        self.load()
        self.network.eval()
        right = sum(
            int((self.network(pixels).argmax(1) == labels).sum())
            for pixels, labels in zip(
                images.pixels.split(500), images.labels.split(500), strict=True
            )
        )
        return {"accuracy": right / len(images.labels)}

    def named(self, vector: Vector) -> dict[str, Tensor]:
        """A vector in the form of a state_dict."""
        parts = torch.from_numpy(vector).split([p.numel() for p in self.network.parameters()])
        names = self.network.named_parameters()
        return {name: part.reshape(p.shape) for (name, p), part in zip(names, parts, strict=True)}
