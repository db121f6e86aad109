"""The users of a federated training of a transformer: their local steps, and the test."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from texts import Owned, Text
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformer import CONTEXT, LETTERS, Transformer

BATCH = 8
RATE = 1e-3
TESTED = 32  # stretches of each user's text that it was not trained on

Vector = npt.NDArray[np.float64]


class Chapters:
    """The weights as one vector; one network computes with it. A user keeps what its AdamW has
    learned of its gradients."""

    def __init__(self, owned: list[Owned], seed: int) -> None:
        self.owned = owned
        self.seed = seed
        self.kept: dict[int, Any] = {}
        rng = np.random.default_rng(0)  # the same for every seed
        self.tested = torch.cat([stretches(own.tested, TESTED, rng) for own in owned])
        torch.manual_seed(seed)
        self.network = Transformer()
        self.weights = self._weights()
        self.statistics = torch.zeros(0)  # layer norm has none

    def _weights(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.network.parameters()])

    def load(self) -> None:
        """Put the common weights into the network."""
        with torch.no_grad():
            for name, part in self.named(self.weights.numpy()).items():
                self.network.get_parameter(name).copy_(part)

    def train(
        self, user: int, *, done: int, steps: int, rate: float
    ) -> tuple[Vector, Tensor, float]:
        """A user's local steps: the difference of its weights, no statistics, and its mean
        loss."""
        rng = np.random.default_rng([self.seed, 1, done, user])
        self.load()
        optimiser = torch.optim.AdamW(self.network.parameters(), weight_decay=0.0)
        if user in self.kept:
            optimiser.load_state_dict(self.kept[user])
        optimiser.param_groups[0]["lr"] = RATE * rate
        losses = []
        for _ in range(steps):
            loss = self.loss(stretches(self.owned[user - 1].training, BATCH, rng))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        self.kept[user] = optimiser.state_dict()
        moved = self._weights() - self.weights
        return moved.double().numpy(), self.statistics, float(np.mean(losses))

    def loss(self, letters: Tensor) -> Tensor:
        """Of every next character, in nats."""
        return cross_entropy(
            self.network(letters[:, :-1]).reshape(-1, LETTERS), letters[:, 1:].reshape(-1)
        )

    @torch.no_grad()
    def test(self) -> dict[str, float]:
        """The loss on texts that nobody trained on."""
        self.load()
        losses = [self.loss(letters).item() for letters in self.tested.split(TESTED)]
        return {"test_loss": round(float(np.mean(losses)), 5)}

    def named(self, vector: Vector) -> dict[str, Tensor]:
        """A vector in the form of a state_dict."""
        parts = torch.from_numpy(vector).split([p.numel() for p in self.network.parameters()])
        names = self.network.named_parameters()
        return {name: part.reshape(p.shape) for (name, p), part in zip(names, parts, strict=True)}


def stretches(text: Text, count: int, rng: np.random.Generator) -> Tensor:
    """(count, CONTEXT + 1) letters from anywhere in a text."""
    starts = rng.integers(len(text) - CONTEXT, size=count)
    return torch.from_numpy(text[starts[:, None] + np.arange(CONTEXT + 1)].astype(np.int64))
