"""`mask`: X_n from a gradient. Loads neither numba nor galois."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BadData, CannotWrite, InputMissing, Refused, TooFewSurvivors, UsageError
from ..gradients.files import read_gradient
from ..gradients.quantize import dequantise, quantise, rounding_source
from ..gradients.sparsify import kept_energy, select_random, select_top, values_at
from ..protocol.masking import mask_input
from ..protocol.messages import Sparse
from ..protocol.parameters import Parameters
from ..storage.artifacts import digest_at_hand, write_artifact
from ..storage.atomic import make_folder, whole_file
from ..storage.ledger import Ledger
from ..storage.public import (
    masked_bytes,
    masked_datasets,
    read_masked,
    read_survivors,
    sent_before,
    sound_weight,
    weight_text,
)
from ..storage.residual import Residual, input_digest, read_residual, stage_residual
from ..storage.secrets import StoredSecret, read_secret
from ..storage.session import Session
from ..storage.workspace import Workspace
from .identity import own_identity

Vector = npt.NDArray[Any]


@dataclass(frozen=True)
class MaskReport:
    """What `mask` did. `clipped` and `kept_energy` are for the user's own eyes; a repeated call after
    the residual was committed finds everything done, and has none. `late` is an X after the freeze."""

    user: int
    path: Path
    digest: str
    entries: int
    payload: int
    private_secret: bool
    clipped: int = 0
    kept_energy: float | None = None
    late: bool = False


@dataclass(frozen=True)
class Selected:
    """The coordinates that are sent, in the field, and as the reals that the field elements stand for."""

    sparse: Sparse
    sent: npt.NDArray[np.float64]
    clipped: int
    kept_energy: float


def mask(
    space: Workspace,
    user: int,
    gradient: Path,
    *,
    entry: str = "",
    weight: float = 1.0,
    residual: Path | None = None,
    select: str = "top",
    saturate: bool = False,
    identity: Path | None = None,
) -> MaskReport:
    """Select, quantise and mask; the ledger line is durable before X appears."""
    space.check_user(user)
    if not sound_weight(weight):
        raise UsageError(
            f"a weight of {weight:g}", "take a positive number up to 2^53, such as a count of samples"
        )
    session = space.session
    p = session.parameters
    signer = own_identity(space, user, identity)
    flat = read_flat(session, gradient, entry)
    with space.step_of(user):
        stored = read_secret(space, user)
        ledger = Ledger.read(space.ledger_path(user), session.id, user)
        if ledger.shared != stored.sharing:
            raise InputMissing(
                f"the shares of user {user} are not complete", "run `topk-secagg offline` again; it goes on"
            )
        path = space.masked_path(user)
        digest_of_input = input_digest(flat, weight, select) if residual else ""
        before = None
        if residual is not None:
            if not residual.absolute().parent.is_dir():
                raise CannotWrite(
                    f"there is no folder for the residual {residual}", "make the folder and run this again"
                )
            carried, before = read_residual(residual, user, p.length)
            if ledger.residual and (ledger.residual.committed or before == ledger.residual.after):
                return _done_already(space, user, ledger, stored, digest_of_input)
            if carried is not None:
                flat = flat + carried
        chosen = choose(p, stored, flat, weight, select, saturate=saturate)
        masked = mask_input(p, stored.secret, chosen.sparse)
        attributes = session.header(user, sharing=stored.sharing, weight=weight_text(weight))
        datasets = masked_datasets(p, masked)
        digest = digest_at_hand("masked", attributes, datasets)
        if signer:
            attributes["signature"] = signer.sign("masked", digest)
        ledger.check_masks(digest)
        if sent_before(space, user, stored.sharing) - {digest}:
            raise Refused(
                f"user {user} has sent another X in this round, though its ledger does not know it",
                "was secrets/ restored from a backup? it must not be used; start a new round",
            )
        pending = None
        if residual is not None:
            unsent = flat.astype(np.float64)
            inside = chosen.sparse.index < p.length
            unsent[chosen.sparse.index[inside]] -= chosen.sent[inside] / weight
            after = stage_residual(space.residual_path(user), session, user, unsent)
            pending = Residual(str(residual.absolute()), before, after, digest_of_input)
        make_folder(path.parent)
        ledger.spend_masks(digest, pending)  # durable before a byte of X is anywhere that others can see
        with whole_file(path) as temporary:
            write_artifact(temporary, "masked", attributes, datasets)
    return MaskReport(
        user,
        path,
        digest,
        p.entries,
        masked_bytes(p),
        stored.private,
        chosen.clipped,
        chosen.kept_energy,
        _is_late(space, user),
    )


def _is_late(space: Workspace, user: int) -> bool:
    """Whether the survivors are fixed already, without this user."""
    with suppress(InputMissing, BadData, TooFewSurvivors):
        return user not in read_survivors(space).digests
    return False


def read_flat(session: Session, gradient: Path, entry: str) -> Vector:
    """The gradient as one flat vector in the session's layout."""
    tensors = read_gradient(gradient, entry)
    try:
        return session.layout.flatten(tensors)
    except BadData as error:
        raise BadData(f"{gradient}: {error.message}", error.hint) from error


def choose(
    p: Parameters, stored: StoredSecret, flat: Vector, weight: float, select: str, *, saturate: bool
) -> Selected:
    """Which coordinates are sent, and as what."""
    index = select_top(p, flat) if select == "top" else select_random(p, stored.rounding().child("select"))
    values = values_at(flat, index)
    with np.errstate(over="ignore"):
        weighted = values * weight  # beyond any float is beyond the clip
    rounding = rounding_source(stored.rounding(), index, weighted)
    quantised = quantise(p, weighted, rounding, saturate=saturate)
    exact = select == "top" and not p.buckets
    return Selected(
        Sparse(index, quantised.value),
        dequantise(p, quantised.value),
        quantised.clipped,
        1.0 if exact else kept_energy(p, flat, values),
    )


def _done_already(
    space: Workspace, user: int, ledger: Ledger, stored: StoredSecret, digest_of_input: str
) -> MaskReport:
    """The residual was committed, so X cannot be computed again: it is there, or it is not."""
    path = space.masked_path(user)
    assert ledger.residual is not None
    if ledger.residual.input != digest_of_input:
        raise Refused(
            f"user {user} has already masked another input in this round",
            "masks are good for one input only; start a new round for another gradient",
        )
    x = read_masked(space.session, path, user)
    if x.digest != ledger.masked:
        raise BadData(f"{path} is not the X that user {user} sent", "fetch it from somebody who has it")
    return MaskReport(user, path, x.digest, space.session.parameters.entries, x.payload, stored.private)
