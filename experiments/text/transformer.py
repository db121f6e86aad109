"""A small transformer that guesses the next character: 1,018,624 parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

LETTERS = 96
CONTEXT = 64
WIDTH = 128
HEADS = 4
LAYERS = 5
PARAMETERS = 1_018_624


class Block(nn.Module):
    """Attention to what came before, and two linear layers, each beside a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.attention_in = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.attention_out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape: texts, places, WIDTH."""
        x = x + self.attention_out(self.attend(self.attention_norm(x)))
        return x + self.down(gelu(self.up(self.norm(x))))

    def attend(self, x: Tensor) -> Tensor:
        """Each head's mean of the values of the places before."""
        texts, places, _ = x.shape
        parts = self.attention_in(x).reshape(texts, places, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        found = scaled_dot_product_attention(*parts, is_causal=True)
        return found.transpose(1, 2).reshape(texts, places, WIDTH)


class Transformer(nn.Module):
    """The letters so far to the logits of the next, for every place."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, LETTERS, bias=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                last = name.endswith(("attention_out.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * LAYERS) ** 0.5 if last else 0.02)
        assert sum(p.numel() for p in self.parameters()) == PARAMETERS

    def forward(self, x: Tensor) -> Tensor:
        """(texts, places) to (texts, places, LETTERS)."""
        h = self.letters(x) + self.places(torch.arange(x.shape[1]))
        return self.head(self.norm(self.blocks(h)))
