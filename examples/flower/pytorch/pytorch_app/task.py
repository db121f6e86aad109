"""The task: a small convolutional network on scikit-learn's digits (8 x 8 pixels)."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRAINING = 1_500  # images; the other 297 are the test set of the server

torch.set_num_threads(1)  # nodes run side by side, and the network is small


class Net(nn.Module):
    """Two convolutions with batch norm, and a layer for the ten digits."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 2 * 2, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """A score for each digit."""
        return self.layers(images)


def new_model() -> Net:
    """The same first model in every run."""
    torch.manual_seed(1)
    return Net()


def _shuffled() -> TensorDataset:
    from sklearn.datasets import load_digits  # slow, and most messages need no data

    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images = torch.from_numpy(images).float().reshape(-1, 1, 8, 8) / 16
    return TensorDataset(images[order], torch.from_numpy(labels)[order])


def load_partition(partition_id: int, num_partitions: int) -> TensorDataset:
    """The images and labels of one node."""
    return TensorDataset(*_shuffled()[partition_id:TRAINING:num_partitions])


def load_test() -> TensorDataset:
    """The images and labels that no node trains with."""
    return TensorDataset(*_shuffled()[TRAINING:])


def train(model: Net, data: TensorDataset, epochs: int, learning_rate: float) -> float:
    """Change the model by gradient descent; the mean loss of the last epoch."""
    loader = DataLoader(data, batch_size=16, shuffle=True)
    optimiser = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    model.train()
    total = 0.0
    for _ in range(epochs):
        total = 0.0
        for images, labels in loader:
            optimiser.zero_grad()
            loss = loss_of(model(images), labels)
            loss.backward()
            optimiser.step()
            total += loss.item()
    return total / len(loader)


def accuracy(model: Net, data: TensorDataset) -> float:
    """How many of the digits it reads right, 0 to 1."""
    images, labels = data.tensors
    model.eval()
    with torch.no_grad():
        return (model(images).argmax(dim=1) == labels).float().mean().item()
