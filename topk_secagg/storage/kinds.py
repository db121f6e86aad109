"""All kinds of HDF5 files of a round, and how large each may be."""

from __future__ import annotations

from collections.abc import Callable

from . import aggregate, answer, basis, chain, masked, residual, secret, share
from .artifacts import Artifact, Kind
from .hdf5_writer import bytes_of
from .session import Session

# the most bytes that the datasets of a file of this kind take in a session
_LARGEST: dict[str, Callable[[Session], int]] = {
    secret.KIND.name: lambda s: bytes_of(secret.shapes(s)),
    share.KIND.name: share.largest_bytes,
    chain.KIND.name: chain.largest_bytes,
    masked.KIND.name: lambda s: bytes_of(masked.shapes(s.parameters)),
    answer.KIND.name: lambda s: answer.largest_bytes(s.parameters),
    residual.KIND.name: lambda s: bytes_of(residual.shapes(s.layout.length)),
    basis.KIND.name: lambda s: bytes_of(basis.shapes(s)),
    aggregate.KIND.name: lambda s: aggregate.largest_bytes(s.parameters),
}
ARTIFACT_KINDS: tuple[Kind, ...] = (
    secret.KIND,
    share.KIND,
    chain.KIND,
    masked.KIND,
    answer.KIND,
    residual.KIND,
    basis.KIND,
    aggregate.KIND,
)


def check_size(artifact: Artifact, s: Session) -> None:
    """Refuse a file whose datasets take more bytes than in any such file of a session."""
    largest = _LARGEST[artifact.kind.name](s)
    if sum(dataset.size for dataset in artifact.datasets.values()) > largest:
        raise artifact.bad("it is larger than any such file of this session")
