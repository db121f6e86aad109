"""`mask`: X_n from a gradient. Loads neither numba nor galois."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..algebra.randomness import CipherRandomness, Randomness
from ..errors import BadData, CannotWrite, InputMissing, Refused, SecAggError, UsageError, about
from ..gradients.files import read_gradient
from ..gradients.quantize import dequantise, quantise, rounding_source, uniform
from ..gradients.tensors import left_out
from ..protocol.constructions import construction
from ..protocol.masking import mask_input
from ..protocol.messages import Sparse
from ..protocol.parameters import Parameters
from ..protocol.permutation import kept_energy
from ..storage import masked as masked_file
from ..storage import residual as residual_file
from ..storage import secret as secret_file
from ..storage import survivors as survivors_file
from ..storage.atomic import mark_done
from ..storage.ledger import Ledger
from ..storage.session import Session
from ..storage.share import is_there
from ..storage.workspace import Workspace
from .access import PLAIN, Access, admitted

Vector = npt.NDArray[Any]
SELECTIONS = ("top", "random")


@dataclass(frozen=True)
class MaskReport:
    """What `mask` did. `clipped` and `kept_energy` are for the user's own eyes; a repeated call after
    the residual was committed finds everything done, and has none. `late` is an X after the freeze;
    `missing_shares` are the users whose shares have not arrived; `unsettled_round` is an earlier one whose residual was
    never committed; `notes` say how the gradient was read."""

    user: int
    path: Path
    sha256: str
    entries: int
    payload_bytes: int
    private_secret: bool
    missing_shares: list[int]
    clipped: int = 0
    kept_energy: float | None = None
    late: bool = False
    unsettled_round: str | None = None
    notes: tuple[str, ...] = ()


def mask(
    space: Workspace,
    user: int,
    gradient: Path,
    *,
    entry: str = "",
    strip_prefix: str = "",
    weight: float = 1.0,
    residual: Path | None = None,
    select: str = "top",
    saturate: bool = False,
    access: Access = PLAIN,
) -> MaskReport:
    """Select, quantise and mask; the ledger line is durable before X appears."""
    signer = admitted(space, user, access)
    session, path = space.session, space.masked_path(user)
    p, c = session.parameters, construction(session.parameters)
    if not 0 < weight <= p.max_weight:
        raise UsageError(
            f"a weight of {weight:g}, and this round takes weights above 0 up to {p.max_weight:g}",
            "choose a weight within the bound, or start a round with a larger one",
            "weight",
        )
    flat, notes = read_flat(session, gradient, entry, strip_prefix)
    with space.step_of(user):
        ledger = Ledger.read(space.ledger_path(user), session.id, user)
        ledger.check_kept()
        stored = secret_file.read(space, user)
        if ledger.shared != stored.sharing:
            hint = "run offline again for this user; it continues where it stopped"
            raise InputMissing(f"the shares of user {user} are not complete", hint)
        holds = ledger.holds
        if holds is None:  # what X says about arrived shares stays as it was when X was first made
            holds = tuple(m for m in space.users() if is_there(space, user, m))
        missing = [m for m in space.users() if m not in holds]
        report = MaskReport(
            user, path, ledger.masked or "", c.entries, c.masked_bytes, stored.private, missing
        )
        before, unsettled, digest_of_input = None, None, ""
        if residual is not None:
            if not residual.absolute().parent.is_dir():
                hint = "make the folder and run this again"
                raise CannotWrite(f"there is no folder for the residual {residual}", hint)
            digest_of_input = residual_file.input_digest(flat, weight, select)
            carried, before = residual_file.read(residual, user, p.length)
            kept = ledger.residual
            if kept and (kept.committed or before == kept.after):
                if kept.input != digest_of_input:
                    ledger.check_masks("")
                if (
                    masked_file.read(session, path, user).digest != ledger.masked
                ):  # it cannot be computed again
                    raise BadData(
                        f"{path} is not the X that user {user} sent",
                        "fetch it from somebody who has it",
                    )
                mark_done(path)
                return report
            unsettled = residual_file.waiting_round(residual, session.id)
            if carried is not None:
                flat = with_residual(flat, carried)
        rounding = CipherRandomness(stored.key)  # the same when the step is repeated
        sparse, clipped, energy = choose(p, rounding, flat, weight, select, saturate=saturate)
        masked = mask_input(p, stored.secret, sparse)
        x = masked_file.content(
            session, user, stored.sharing, masked, weight, frozenset(holds), signer
        )
        ledger.check_masks(x.digest)
        if _sent_before(space, user, stored.sharing) - {x.digest}:
            raise Refused(
                f"user {user} has sent another X in this round, though its ledger does not know it",
                "was the secrets folder restored from a backup? it must not be used; start a new round",
            )
        pending = None
        if residual is not None:
            after = residual_file.stage(
                space.residual_path(user), session, user, unsent(p, flat, sparse, weight)
            )
            pending = residual_file.Residual(
                str(residual.absolute()), before, after, digest_of_input
            )
            residual_file.leave_note(residual, session.id, space.root.absolute())
        space.make_room(path)
        # durable before a byte of X is anywhere that others can see
        ledger.record(masked=x.digest, holds=holds, residual=pending or ledger.residual)
        x.write(path)
    report = replace(
        report,
        sha256=x.digest,
        clipped=clipped,
        kept_energy=energy,
        unsettled_round=unsettled,
        notes=notes,
    )
    with suppress(SecAggError):  # only now: the round may have been frozen meanwhile
        report = replace(report, late=user not in survivors_file.read(space).digests)
    return report


def _sent_before(space: Workspace, user: int, sharing: str) -> set[str | None]:
    """Digests of X that this user sent with this sharing, as far as the round's public files show it.

    A ledger that does not know of them is older than they are: the secrets came back from a backup. In a sealed
    round, files that are not signed as they should be show nothing.
    """
    found: set[str | None] = set()
    with suppress(SecAggError):
        found.add(survivors_file.read(space).digests.get(user))
    with suppress(SecAggError):
        x = masked_file.read(space.session, space.masked_path(user), user)
        found.add(x.digest if x.sharing == sharing else None)
    return found - {None}


def read_flat(
    session: Session, gradient: Path, entry: str, strip_prefix: str
) -> tuple[Vector, tuple[str, ...]]:
    """The gradient as one flat vector in the session's layout, and notes about how it was read."""
    tensors = read_gradient(gradient, entry, strip_prefix)
    notes = tensors.notes + left_out("not in this round", session.layout.unused(tensors))
    with about(gradient):
        return session.layout.flatten(tensors), notes


def with_residual(flat: Vector, carried: Vector) -> Vector:
    """The gradient and what was not sent before; two finite values can add up to one that is not."""
    with np.errstate(over="ignore"):
        total: Vector = flat + carried
    if not np.isfinite(total).all():
        raise BadData(
            "gradient and residual add up to values that are not finite",
            "remove the residual to start from zero",
        )
    return total


def choose(
    p: Parameters, source: Randomness, flat: Vector, weight: float, select: str, *, saturate: bool
) -> tuple[Sparse, int, float]:
    """Which coordinates are sent, and as what; how many of them were clipped, and the energy that they keep.

    Random ones are those with the largest of L random keys.
    """
    if select not in SELECTIONS:
        raise UsageError(f"unknown selection {select!r}", f"one of {', '.join(SELECTIONS)}")
    index = construction(p).select(
        flat if select == "top" else uniform(source.child("select"), p.length)
    )
    values = flat[index].astype(np.float64)
    value, clipped = quantise(
        p, values, rounding_source(source, index, values), weight=weight, saturate=saturate
    )
    return Sparse(index, value), clipped, kept_energy(flat, index)


def unsent(p: Parameters, flat: Vector, sparse: Sparse, weight: float) -> npt.NDArray[np.float64]:
    """The new residual: what is left of the vector once these weighted values are sent."""
    left = flat.astype(np.float64)
    left[sparse.index] -= dequantise(p, sparse.value) / weight
    return left
