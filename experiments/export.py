"""Local gradients of ResNet-20 on CIFAR-10, split non-IID over the users, at some steps of its
training.

Usage: export.py --steps 0,100,300 --users 10 OUT. Writes OUT/step-000/user-01.pt and so on: each a
state_dict of the parameters' names to the user's gradient over one batch of 32 of its own images.

Between those steps the model is trained by SGD on one joint batch of 32 a step, drawn from all
users' images: a stand-in for averaging everybody's gradient (FedSGD) that costs a tenth with ten
users.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

import cifar
import numpy as np
import torch
from resnet20 import resnet20
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

BATCH = 32
SHARDS = 2
TESTED = 2000
MEAN = (0.4914, 0.4822, 0.4465)  # of red, green and blue
STD = (0.2470, 0.2435, 0.2616)


def main() -> None:
    """Train, and save every user's gradient at the steps asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument(
        "--steps", type=lambda text: {int(n) for n in text.split(",")}, default="0,100,300"
    )
    parser.add_argument("--users", type=int, default=10)
    parser.add_argument("--rate", type=float, default=0.1, help="learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--data", type=Path, default=cifar.DATA, help="CIFAR-10, in a folder or an archive"
    )
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(args.seed)
    model = resnet20()
    images, labels = cifar.load("train", args.data)
    tested, truth = (part[:TESTED] for part in cifar.load("test", args.data))
    owned = split(labels, args.users, args.seed)
    optimiser = torch.optim.SGD(model.parameters(), lr=args.rate)

    def loss_of(net: nn.Module, chosen: np.ndarray) -> Tensor:
        return cross_entropy(net(normalised(images[chosen])), torch.from_numpy(labels[chosen]))

    for step in range(max(args.steps) + 1):
        if step in args.steps:
            folder = args.out / f"step-{step:03d}"
            folder.mkdir(parents=True, exist_ok=True)
            losses = []
            for user, own in enumerate(owned, 1):
                # a copy, whose batch norm does not move the model's running means
                local = copy.deepcopy(model)
                local.zero_grad()
                loss = loss_of(local, draw(own, seed=args.seed, step=step, user=user))
                loss.backward()
                losses.append(loss.item())
                gradient = {name: p.grad for name, p in local.named_parameters()}
                torch.save(gradient, folder / f"user-{user:02d}.pt")
            right = accuracy(model, tested, truth)
            print(
                f"{folder}: mean local loss {np.mean(losses):.3f}, test accuracy {right:.1%}",
                flush=True,
            )
        optimiser.zero_grad()
        joint = draw(np.concatenate(owned), seed=args.seed, step=step, user=0)
        loss_of(model, joint).backward()
        optimiser.step()


def split(labels: np.ndarray, users: int, seed: int) -> list[np.ndarray]:
    """Which images each user has: two of the shards that all images, sorted by label, are cut
    into."""
    shards = np.array_split(np.argsort(labels, kind="stable"), SHARDS * users)
    dealt = np.random.default_rng(seed).permutation(len(shards)).reshape(users, SHARDS)
    return [np.concatenate([shards[n] for n in own]) for own in dealt]


def draw(own: np.ndarray, seed: int, step: int, user: int) -> np.ndarray:
    """The batch of this step and user (0 for all together), whatever has been drawn before."""
    return np.random.default_rng([seed, step, user]).choice(own, BATCH, replace=False)


def normalised(images: np.ndarray) -> Tensor:
    """Pixels with mean 0 and variance 1 per channel; no augmentation."""
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (MEAN, STD))
    return (torch.from_numpy(images) / 255 - mean) / std


@torch.no_grad()
def accuracy(model: nn.Module, images: np.ndarray, labels: np.ndarray) -> float:
    """The share of images that the model gets right, with the running means of its batch norm."""
    model.eval()
    guesses = [
        model(normalised(part)).argmax(1) for part in np.array_split(images, len(images) // 200)
    ]
    model.train()
    return float(np.mean(torch.cat(guesses).numpy() == labels))


if __name__ == "__main__":
    main()
