"""`mask`: X_n from a gradient. Loads neither numba nor galois."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from ..algebra.randomness import CipherRandomness
from ..brief import Brief
from ..errors import BadData, CannotWrite, InputMissing, Refused, SecAggError, UsageError, about
from ..gradients.files import read_gradient
from ..gradients.tensors import left_out
from ..protocol.constructions import construction
from ..protocol.parameters import Parameters
from ..storage import inputs
from ..storage import masked as masked_file
from ..storage import residual as residual_file
from ..storage import secret as secret_file
from ..storage import survivors as survivors_file
from ..storage.atomic import mark_done
from ..storage.keys import Identity
from ..storage.ledger import Ledger
from ..storage.secret import StoredSecret
from ..storage.session import Session
from ..storage.share import is_there, opened_share
from ..storage.workspace import Workspace
from .access import PLAIN, Access, admitted
from .keys import list_of_keys
from .offline import other_folder
from .published import sent_before
from .sending import choose, unsent, with_residual

Vector = npt.NDArray[Any]


@dataclass(frozen=True, repr=False)
class MaskReport(Brief):
    """What `mask` did. `clipped`, `kept_energy` and `rounding_error` are for the user's own eyes;
    a repeated call after the residual was committed finds everything done, and has none.

    `holds` are the users whose shares X says that this user holds, `missing_shares` those whose
    shares have not arrived, and `bad_shares` says what is wrong with shares that have. `late` is an
    X after the freeze; `unsettled_round` is an earlier one whose residual was never committed;
    `sent_before` are other rounds in which the same gradient was masked; `other_folder` is where
    this session was prepared, if not here; `notes` say how the gradient was read.
    """

    user: int
    path: Path
    sha256: str
    entries: int
    masked_bytes: int
    private_secret: bool
    holds: list[int]
    missing_shares: list[int]
    bad_shares: dict[int, str]
    clipped: int = 0
    kept_energy: float | None = None
    rounding_error: float | None = None
    late: bool = False
    unsettled_round: str | None = None
    sent_before: list[str] = field(default_factory=list)
    other_folder: str | None = None
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
    again: bool = False,
    without_them: bool = False,
    access: Access = PLAIN,
) -> MaskReport:
    """Masked-input phase of one user: select, quantise and mask its gradient, and write X.

    The ledger line is durable before X appears. A user masks one gradient in a round.

    Arguments:
    space: the round (`Workspace`).
    user: the user's number, from 1.
    gradient: its file: .pt, .pth, .bin, .ckpt, .safetensors, .npz or .npy.
    entry: the entry of a PyTorch checkpoint that holds the tensors.
    strip_prefix: taken off tensor names that begin with it.
    weight: what the gradient is multiplied with; it is public.
    residual: the user's file for error feedback, which this step reads and `eliminate` replaces.
    select: "top" sends the largest magnitudes, "random" random coordinates.
    saturate: clamp values beyond the clip, and count them, instead of refusing.
    again: mask it even if the same gradient was sent in a round that failed.
    without_them: mask even if fewer than U users' shares have arrived.
    access: how the user takes part: its identity in a sealed round, the session and the keys that it
        expects (`Access`).

    Returns a MaskReport.
    """
    signer = admitted(space, user, access)
    session = space.session
    path = space.masked_path(user)
    p = session.parameters
    c = construction(session.parameters)
    if not 0 < weight <= p.max_weight:
        raise UsageError(
            f"a weight of {weight:g}, and this round takes weights above 0 up to {p.max_weight:g}",
            "choose a weight within the bound, or start a round with a larger one",
            "weight",
        )
    own, notes = read_flat(session, gradient, entry, strip_prefix)
    flat = own
    with space.step_of(user):
        ledger, stored = _prepared(space, user)
        shares = _arrived(space, user, ledger, signer)
        if ledger.masked is None and not without_them:
            _check_enough(p, user, shares)
        report = MaskReport(
            user=user,
            path=path,
            sha256=ledger.masked or "",
            entries=c.entries,
            masked_bytes=c.masked_bytes,
            private_secret=stored.private,
            holds=list(shares.held),
            missing_shares=shares.missing,
            bad_shares=shares.bad,
            other_folder=other_folder(space, ledger),
        )
        before = None
        unsettled = None
        digest_of_input = ""
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
                # it cannot be computed again
                if masked_file.read(session, path, user).digest != ledger.masked:
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
        chosen = choose(p, rounding, flat, weight, select, saturate=saturate)
        masked = c.mask(stored.secret, chosen.sparse)
        x = masked_file.content(
            session,
            user,
            sharing=stored.sharing,
            masked=masked,
            weight=weight,
            holds=shares.held,
            dealt=ledger.dealt,
            signer=signer,
        )
        ledger.check_masks(x.digest)
        if _sent_before(space, user, stored.sharing) - {x.digest}:
            raise Refused(
                f"user {user} has sent another X in this round, though its ledger does not know it",
                "was the secrets folder restored from a backup? it must not be used; start a new "
                "round",
            )
        first_time = ledger.masked is None and not session.insecure
        elsewhere = sent_before(space, own, again=again) if first_time else []
        pending = None
        if residual is not None:
            after = residual_file.stage(
                space.residual_path(user), session, user, unsent(p, flat, chosen.sparse, weight)
            )
            pending = residual_file.Residual(
                str(residual.absolute()), before, after, digest_of_input
            )
            residual_file.leave_note(residual, session.id, space.root.absolute())
        space.make_room(path)
        # in a round from a public seed nothing is secret, and nothing worth remembering
        known = inputs.digest(inputs.ensure_key(space), own) if first_time else ledger.input
        # durable before a byte of X is anywhere that others can see
        ledger.record(
            masked=x.digest,
            holds=tuple(shares.held),
            lists=shares.lists,
            residual=pending or ledger.residual,
            input=known,
        )
        x.write(path)
    report = replace(
        report,
        sha256=x.digest,
        clipped=chosen.clipped,
        kept_energy=chosen.kept_energy,
        rounding_error=chosen.rounding_error,
        unsettled_round=unsettled,
        sent_before=elsewhere,
        notes=notes,
    )
    survivors = survivors_file.fixed(space)  # only now: the round may have been frozen meanwhile
    return replace(report, late=survivors is not None and user not in survivors.digests)


def _prepared(space: Workspace, user: int) -> tuple[Ledger, StoredSecret]:
    """The ledger and the secret of a user that has shared it, and has not erased it."""
    if not space.ledger_path(user).exists() and not space.secret_path(user).exists():
        raise InputMissing(
            f"user {user} has no secret in {space.private}",
            "run offline first, for this user and with the same folder of secrets",
        )
    ledger = Ledger.read(space.ledger_path(user), space.session.id, user)
    ledger.check_kept()
    stored = secret_file.read(space, user)
    if ledger.shared != stored.sharing:
        hint = "run offline again for this user; it continues where it stopped"
        raise InputMissing(f"the shares of user {user} are not complete", hint)
    return ledger, stored


@dataclass(frozen=True)
class _Shares:
    """Whose shares a user holds, whose have not arrived, and what is wrong with those of others.

    Where they are keys, each that is held has the digest of its dealer's list.
    """

    held: dict[int, str | None]
    missing: list[int]
    bad: dict[int, str]

    @property
    def lists(self) -> tuple[str, ...] | None:
        """The digests of the lists, in the order of the dealers that are held."""
        digests = [digest for digest in self.held.values() if digest is not None]
        return tuple(digests) or None


def _arrived(space: Workspace, user: int, ledger: Ledger, opener: Identity | None) -> _Shares:
    """Open every share for this user and check all of it, one after the other.

    Others rely on what X says about them: too few could answer if a share counted that cannot be
    used. Once X is made, what it says stays as it is.
    """
    if ledger.holds is not None:
        lacking = [m for m in space.users() if m not in ledger.holds]
        missing = [m for m in lacking if not is_there(space, user, m)]
        lists = ledger.lists or [None] * len(ledger.holds)
        return _Shares(dict(zip(ledger.holds, lists, strict=True)), missing, {})
    held: dict[int, str | None] = {}
    missing = []
    bad = {}
    for m in space.users():
        try:
            with opened_share(space, user, m, identity=opener) as share:
                share.check_all()
                held[m] = list_of_keys(space, m, share)
        except InputMissing:
            missing.append(m)
        except BadData as error:
            bad[m] = error.message.removeprefix(f"{space.share_path(user, m)}: ")
    return _Shares(held, missing, bad)


def _check_enough(p: Parameters, user: int, shares: _Shares) -> None:
    """Refuse an X whose user could not answer for U survivors: what it says cannot be mended."""
    if len(shares.held) >= p.survivors:
        return
    lacking = [f"missing: {', '.join(map(str, shares.missing))}"] if shares.missing else []
    lacking += [f"the share of user {m} is bad: {why}" for m, why in shares.bad.items()]
    raise InputMissing(
        f"user {user} holds the shares of {len(shares.held)} users, and an answer takes those of "
        f"at least {p.survivors}; {'; '.join(lacking)}",
        "fetch them first: X says for good whose shares its user held",
        "without-them",
    )


def _sent_before(space: Workspace, user: int, sharing: str) -> set[str | None]:
    """Digests of X that this user sent with this sharing, as far as the round's public files show
    it.

    A ledger that does not know of them is older than they are: the secrets came back from a backup.
    In a sealed round, files that are not signed as they should be show nothing; nor does a
    survivors.json that too few users confirmed, where users confirm: any user could name any X in
    it.
    """
    digests: set[str | None] = set()
    if survivors := survivors_file.fixed(space):
        digests.add(survivors.digests.get(user))
    with suppress(SecAggError):
        x = masked_file.read(space.session, space.masked_path(user), user)
        digests.add(x.digest if x.sharing == sharing else None)
    return digests - {None}


def read_flat(
    session: Session, gradient: Path, entry: str, strip_prefix: str
) -> tuple[Vector, tuple[str, ...]]:
    """The gradient as one flat vector in the session's layout, and notes about how it was read."""
    tensors = read_gradient(gradient, entry, strip_prefix)
    notes = tensors.notes + left_out("not in this round", session.layout.unused(tensors))
    with about(gradient):
        return session.layout.flatten(tensors), notes
