"""The training side of the example: ten users, scikit-learn's digits, and a small network in numpy.

Usage: model.py start WORK     the users' data, their weights, and round 1
       model.py step WORK n    what the users do after round n: take the step, say how good the
           model is, train again

Files: WORK/weights.csv, and for every round WORK/n/model.npz (the same for all),
WORK/n/updates/user-NN.npz (what a user's training changed, its own) and WORK/n/mean.npz (what
`topk-secagg run` made of these).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

USERS = 10
HIDDEN = 32
TESTED = 360  # images that no user has
LOCAL_STEPS = 10
BATCH = 32
RATE = 0.3

Array = npt.NDArray[np.float32]
Arrays = dict[str, Array]


def start(work: Path) -> float:
    """Deal out the images, and train for the first time; the accuracy of the new model."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        sys.exit(
            "the digits come from scikit-learn, which is not installed: pip install scikit-learn"
        )
    rng = np.random.default_rng(0)
    images, labels = load_digits(return_X_y=True)
    order = rng.permutation(len(labels))
    images = images[order] / 16
    labels = labels[order]
    owner = deal(labels, rng)
    work.mkdir(parents=True)
    np.savez(work / "digits.npz", images=images.astype(np.float32), labels=labels, owner=owner)
    sizes = [f"{user},{np.count_nonzero(owner == user)}" for user in range(1, USERS + 1)]
    (work / "weights.csv").write_text("\n".join(["user,weight", *sizes]) + "\n")
    model = {
        "hidden.weight": rng.normal(scale=64**-0.5, size=(64, HIDDEN)),
        "hidden.bias": np.zeros(HIDDEN),
        "output.weight": rng.normal(scale=HIDDEN**-0.5, size=(HIDDEN, 10)),
        "output.bias": np.zeros(10),
    }
    return begin(work, 1, {name: array.astype(np.float32) for name, array in model.items()})


def step(work: Path, done: int) -> float:
    """Add the mean of the users' changes to the model, and go on; the accuracy of the new model."""
    model, mean = (dict(np.load(work / str(done) / name)) for name in ("model.npz", "mean.npz"))
    return begin(work, done + 1, {name: model[name] + mean[name] for name in model})


def begin(work: Path, number: int, model: Arrays) -> float:
    """Every user trains, and saves what that changed; the model is saved last and says that all is
    there."""
    data = np.load(work / "digits.npz")
    images = data["images"]
    labels = data["labels"]
    owner = data["owner"]
    folder = work / str(number)
    (folder / "updates").mkdir(parents=True, exist_ok=True)
    for user in range(1, USERS + 1):
        rng = np.random.default_rng([number, user])
        trained = train(model, images[owner == user], labels[owner == user], rng=rng)
        np.savez(
            folder / "updates" / f"user-{user:02}.npz",
            **{name: trained[name] - model[name] for name in model},
        )
    np.savez(folder / "model.npz", **model)
    guesses = forward(model, images[owner == 0])[1].argmax(1)
    return float(np.mean(guesses == labels[owner == 0]))


def deal(labels: npt.NDArray[np.int64], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """The user of every image: 0 for the tested ones; of every digit, users have shares of
    different size."""
    owner = np.zeros(len(labels), dtype=np.int64)
    for digit in range(10):
        chances = rng.dirichlet(np.ones(USERS))
        own = np.flatnonzero(labels[TESTED:] == digit) + TESTED
        owner[own] = rng.choice(np.arange(1, USERS + 1), size=len(own), p=chances)
    return owner


def train(
    model: Arrays, images: Array, labels: npt.NDArray[np.int64], rng: np.random.Generator
) -> Arrays:
    """A few steps of gradient descent on a user's own images."""
    model = {name: array.copy() for name, array in model.items()}
    for _ in range(LOCAL_STEPS):
        batch = rng.integers(len(labels), size=BATCH)
        for name, gradient in gradients(model, images[batch], labels[batch]).items():
            model[name] -= RATE * gradient
    return model


def forward(model: Arrays, images: Array) -> tuple[Array, Array]:
    """The hidden layer, and the logits."""
    hidden = np.maximum(images @ model["hidden.weight"] + model["hidden.bias"], 0)
    return hidden, hidden @ model["output.weight"] + model["output.bias"]


def gradients(model: Arrays, images: Array, labels: npt.NDArray[np.int64]) -> Arrays:
    """Of the mean cross-entropy."""
    hidden, logits = forward(model, images)
    chances = np.exp(logits - logits.max(1, keepdims=True))
    chances /= chances.sum(1, keepdims=True)
    wrong = (chances - np.eye(10, dtype=np.float32)[labels]) / len(labels)
    back = wrong @ model["output.weight"].T * (hidden > 0)
    return {
        "hidden.weight": images.T @ back,
        "hidden.bias": back.sum(0),
        "output.weight": hidden.T @ wrong,
        "output.bias": wrong.sum(0),
    }


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    if sys.argv[1] == "start":
        print(f"before round 1: {start(folder):.1%} of the test images")
    else:
        number = int(sys.argv[3])
        print(f"after round {number}: {step(folder, number):.1%} of the test images")
