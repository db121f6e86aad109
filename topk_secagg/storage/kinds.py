"""All kinds of HDF5 files of a round, and how large each may be."""

from __future__ import annotations

from collections.abc import Callable

from ..protocol.parameters import Parameters
from . import aggregate, answer, masked, residual, secret, share
from .artifacts import Artifact, Kind
from .hdf5_writer import bytes_of

# the most bytes that the datasets of a file of this kind take in a session
_LARGEST: dict[str, Callable[[Parameters], int]] = {
    secret.KIND.name: lambda p: bytes_of(secret.shapes(p)),
    share.KIND.name: lambda p: bytes_of(share.shapes(p)),
    masked.KIND.name: lambda p: bytes_of(masked.shapes(p)),
    answer.KIND.name: answer.largest_bytes,
    residual.KIND.name: lambda p: bytes_of(residual.shapes(p.length)),
    aggregate.KIND.name: aggregate.largest_bytes,
}
ARTIFACT_KINDS: tuple[Kind, ...] = (
    secret.KIND,
    share.KIND,
    masked.KIND,
    answer.KIND,
    residual.KIND,
    aggregate.KIND,
)


def check_size(artifact: Artifact, p: Parameters) -> None:
    """Refuse a file whose datasets take more bytes than in any such file of a session."""
    largest = _LARGEST[artifact.kind.name](p)
    if sum(dataset.size for dataset in artifact.datasets.values()) > largest:
        raise artifact.bad("it is larger than any such file of this session")
