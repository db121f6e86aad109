"""The task: a network with one hidden layer, in numpy, on scikit-learn's digits (8 x 8 pixels)."""

import numpy as np

HIDDEN = 64
TRAINING = 1_500  # images; the other 297 are the test set of the server
BATCH = 16


def _shuffled():
    from sklearn.datasets import load_digits  # slow, and most messages need no data

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return (images[order] / 16).astype(np.float32), labels[order]


def load_partition(partition_id: int, num_partitions: int):
    """The images and labels of one node."""
    images, labels = _shuffled()
    mine = slice(partition_id, TRAINING, num_partitions)
    return images[mine], labels[mine]


def load_test():
    """The images and labels that no node trains with."""
    images, labels = _shuffled()
    return images[TRAINING:], labels[TRAINING:]


def new_model() -> list[np.ndarray]:
    """Weights and biases of both layers: 4,810 parameters."""
    random = np.random.default_rng(1)
    return [
        random.normal(0, 0.2, (64, HIDDEN)).astype(np.float32),
        np.zeros(HIDDEN, np.float32),
        random.normal(0, 0.2, (HIDDEN, 10)).astype(np.float32),
        np.zeros(10, np.float32),
    ]


def forward(model, images):
    """The hidden layer, and the probability of each digit."""
    w1, b1, w2, b2 = model
    hidden = np.maximum(images @ w1 + b1, 0)
    scores = hidden @ w2 + b2
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, powers / powers.sum(axis=1, keepdims=True)


def train(model, images, labels, epochs: int, learning_rate: float) -> float:
    """Change the model by gradient descent; the mean loss of the last epoch."""
    w1, b1, w2, b2 = model
    random = np.random.default_rng(2)
    losses = []
    for _ in range(epochs):
        order = random.permutation(len(labels))
        losses = []
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            x = images[rows]
            y = labels[rows]
            hidden, chances = forward(model, x)
            losses.append(-np.log(chances[np.arange(len(y)), y] + 1e-9).mean())
            error = chances
            error[np.arange(len(y)), y] -= 1
            error *= learning_rate / len(y)
            back = (error @ w2.T) * (hidden > 0)
            w2 -= hidden.T @ error
            b2 -= error.sum(axis=0)
            w1 -= x.T @ back
            b1 -= back.sum(axis=0)
    return float(np.mean(losses))


def accuracy(model, images, labels) -> float:
    """How many of the digits it reads right, 0 to 1."""
    _, chances = forward(model, images)
    return float((chances.argmax(axis=1) == labels).mean())
