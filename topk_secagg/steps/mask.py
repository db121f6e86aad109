"""`mask`: X_n from a gradient. Loads neither numba nor galois."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import BadData, InputMissing
from ..gradients.files import read_gradient
from ..gradients.quantize import quantise, rounding_source
from ..gradients.sparsify import select, values_at
from ..protocol.masking import mask_input
from ..protocol.messages import Sparse
from ..storage.artifacts import write_artifact
from ..storage.atomic import make_folder, whole_file
from ..storage.ledger import Ledger
from ..storage.public import masked_bytes, masked_datasets
from ..storage.secrets import read_secret
from ..storage.workspace import Workspace


@dataclass(frozen=True)
class MaskReport:
    """What `mask` did. `clipped` and `kept_energy` are for the user's own eyes."""

    user: int
    path: Path
    digest: str
    entries: int
    payload: int
    clipped: int
    kept_energy: float
    private_secret: bool


def mask(space: Workspace, user: int, gradient: Path, *, saturate: bool = False) -> MaskReport:
    """Select, quantise and mask; the ledger line is durable before X appears."""
    space.check_user(user)
    session = space.session
    p = session.parameters
    try:
        flat = session.layout.flatten(read_gradient(gradient))
    except BadData as error:
        raise BadData(
            f"{gradient}: {error.message}".replace(f"{gradient}: {gradient}", str(gradient)), error.hint
        ) from error
    with space.step_of(user):
        stored = read_secret(space, user)
        ledger = Ledger.read(space.ledger_path(user), session.id, user)
        if ledger.shared != stored.sharing:
            raise InputMissing(
                f"the shares of user {user} are not complete", "run `topk-secagg offline` again; it goes on"
            )
        index = select(p, flat)
        values = values_at(flat, index)
        quantised = quantise(p, values, rounding_source(stored.rounding(), index, values), saturate=saturate)
        masked = mask_input(p, stored.secret, Sparse(index, quantised.value))
        path = space.masked_path(user)
        make_folder(path.parent)
        with whole_file(path) as temporary:
            attributes = session.header(user, sharing=stored.sharing)
            digest = write_artifact(temporary, "masked", attributes, masked_datasets(p, masked))
            ledger.spend_masks(digest)
    return MaskReport(
        user, path, digest, p.entries, masked_bytes(p), quantised.clipped, kept_energy(flat, values, p.top_k),
        stored.private,
    )  # fmt: skip


def kept_energy(flat: np.ndarray, values: np.ndarray, k: int) -> float:
    """The energy of the selected values as a share of what the k largest would have."""
    energy = np.square(flat, dtype=np.float64)
    best = float(np.partition(energy, energy.size - k)[energy.size - k :].sum())
    return float(np.square(values).sum()) / best if best else 1.0
