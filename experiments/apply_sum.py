"""What to do with an aggregate in PyTorch: take an optimiser's step with it, or load it as weights.

Usage: apply_sum.py MEAN.pt, where MEAN.pt comes from `topk-secagg decode demo --output MEAN.pt --mean` after
`make demo`. Needs torch.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "fixtures" / "gradients"))
from make import Net


def step_with(model: torch.nn.Module, gradient: dict[str, torch.Tensor], rate: float = 0.5) -> None:
    """The aggregate as the gradient of an ordinary optimiser."""
    for name, parameter in model.named_parameters():
        parameter.grad = gradient[name]
    torch.optim.SGD(model.parameters(), lr=rate).step()


def main(path: Path) -> None:
    """Do both, and say so."""
    aggregate = torch.load(path, weights_only=True)
    model = Net()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    step_with(model, aggregate)
    moved = sum(int((p != before[name]).sum()) for name, p in model.named_parameters())
    print(f"one step of SGD moved {moved} of {sum(p.numel() for p in model.parameters())} parameters")
    print(f"load_state_dict: {Net().load_state_dict(aggregate)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
