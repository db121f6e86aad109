"""`mask`: X_n from a gradient. Loads neither numba nor galois."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Unpack

from ..algebra.randomness import CipherRandomness
from ..brief import Brief
from ..errors import (
    Advice,
    BadData,
    CannotWrite,
    InputMissing,
    Refused,
    SecAggError,
    UsageError,
    about,
    counted,
    named_users,
)
from ..gradients.arrays import Given, Vector
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
from ..storage.share import SharesOfUser
from ..storage.workspace import Workspace
from .access import TakingPart, admitted, hint_of_secrets, other_folder, taking_part
from .arguments import (
    SELECTIONS,
    AnyPath,
    AnyRound,
    check_choice,
    optional_path,
    real_number,
)
from .keys import list_of_keys
from .published import sent_before
from .sending import choose, read_gradient_of, subject_of, unsent, with_residual


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
    coordinates: int
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
    round: AnyRound,
    user: int,
    gradient: Given,
    *,
    entry: str = "",
    strip_prefix: str = "",
    weight: float = 1.0,
    residual: AnyPath | None = None,
    select: str = "top",
    saturate: bool = False,
    again: bool = False,
    without_them: bool = False,
    **access: Unpack[TakingPart],
) -> MaskReport:
    """Masked-input phase of one user: select, quantise and mask its gradient, and write X.

    The ledger line is durable before X appears. A user masks one gradient in a round.

    Arguments:
    round: the folder of the round.
    user: the user's number, from 1.
    gradient: its file, in a format of docs/gradients.md; or the gradient itself: an array, or a
        mapping of names to arrays or torch tensors, or a list of them.
    entry: the entry of a PyTorch checkpoint that holds the tensors.
    strip_prefix: taken off tensor names that begin with it.
    weight: what the gradient is multiplied with; it is public.
    residual: the user's file for error feedback, which this step reads and `eliminate` replaces.
    select: "top" sends the largest magnitudes, "random" random coordinates.
    saturate: clamp values beyond the clip, and count them, instead of refusing.
    again: mask it even if the same gradient was sent in a round that failed.
    without_them: mask even if fewer than U users' shares have arrived.
    secrets: the folder of the user's secrets and ledgers, instead of the round's own.
    session: refuse any other session than this one; at least 16 of its digits.
    series: the same of the series of the round, whose name `init` and `inspect` say.
    recipients: refuse a session that has other keys than this file.
    identity: the user's keys, in a sealed round.

    Returns a MaskReport.
    """
    space, how = taking_part(round, **access)
    signer = admitted(space, user, how)
    session = space.session
    check_choice("selection", select, SELECTIONS)
    weight = _admissible_weight(session.parameters, weight)
    kept_at = optional_path("residual", residual)
    own, notes = _read_flat(session, user, gradient, entry=entry, strip_prefix=strip_prefix)
    with space.step_of(user):
        ledger, stored = _prepared(space, user)
        shares = _arrived(space, user, ledger=ledger, opener=signer)
        if ledger.masked is None and not without_them:
            _check_enough(session, user, shares)
        report = _first_report(space, ledger, stored=stored, shares=shares)
        feedback = None
        if kept_at is not None:
            digest_of_input = residual_file.input_digest(own, weight, select)
            feedback = _read_feedback(space, user, path=kept_at, digest_of_input=digest_of_input)
            if _is_committed(feedback, ledger):
                _check_sent_already(space, feedback, ledger)
                return report
        flat = own if feedback is None else feedback.added_to(own)
        rounding = CipherRandomness(stored.key)  # the same when the step is repeated
        chosen = choose(
            session.parameters,
            source=rounding,
            flat=flat,
            weight=weight,
            select=select,
            saturate=saturate,
        )
        x = masked_file.content(
            session,
            user=user,
            sharing=stored.sharing,
            masked=construction(session.parameters).mask(stored.secret, chosen.sparse),
            weight=weight,
            holds=shares.held,
            dealt=ledger.dealt,
            signer=signer,
        )
        _check_only_x(space, ledger, sharing=stored.sharing, digest=x.digest)
        is_new = ledger.masked is None
        elsewhere = sent_before(space, own, again=again) if is_new else []
        pending = ledger.residual
        if feedback is not None:
            left = unsent(session.parameters, flat, sparse=chosen.sparse, weight=weight)
            pending = _stage(space, user, feedback=feedback, left=left)
        space.make_room(report.path)
        input_digest = inputs.digest(inputs.ensure_key(space), own) if is_new else ledger.input
        # durable before a byte of X is anywhere that others can see
        ledger.record(
            masked=x.digest,
            holds=tuple(shares.held),
            lists=shares.lists,
            residual=pending,
            input=input_digest,
        )
        x.write(report.path)
    survivors = survivors_file.fixed(space)  # only now: the round may have been frozen meanwhile
    return replace(
        report,
        sha256=x.digest,
        clipped=chosen.clipped,
        kept_energy=chosen.kept_energy,
        rounding_error=chosen.rounding_error,
        late=survivors is not None and user not in survivors.digests,
        unsettled_round=None if feedback is None else feedback.unsettled_round,
        sent_before=elsewhere,
        notes=notes,
    )


def _admissible_weight(p: Parameters, given: float) -> float:
    """The weight, which must be within what the round takes."""
    weight = real_number("weight", given)
    if not 0 < weight <= p.max_weight:
        raise UsageError(
            f"a weight of {weight:g}, and this round takes weights above 0 up to {p.max_weight:g}",
            "choose a weight within the bound, or start a round with a larger one",
            Advice.WEIGHT,
        )
    return weight


def _first_report(
    space: Workspace, ledger: Ledger, stored: StoredSecret, shares: _Shares
) -> MaskReport:
    """What is known before X is made; it is all when a repeated call finds everything done."""
    c = construction(space.session.parameters)
    return MaskReport(
        user=ledger.user,
        path=space.masked_path(ledger.user),
        sha256=ledger.masked or "",
        coordinates=c.coordinate_count,
        masked_bytes=c.masked_bytes,
        private_secret=stored.private,
        holds=list(shares.held),
        missing_shares=shares.missing,
        bad_shares=shares.bad,
        other_folder=other_folder(space, ledger),
    )


@dataclass(frozen=True)
class _Feedback:
    """The residual that a user keeps: its file, what is in it (None if there is no file) with its
    digest, the digest of what is masked now, and the earlier round that was never settled."""

    path: Path
    carried: Vector | None
    digest: str | None
    digest_of_input: str
    unsettled_round: str | None

    def added_to(self, flat: Vector) -> Vector:
        """The gradient and what was not sent before."""
        return flat if self.carried is None else with_residual(flat, self.carried)


def _read_feedback(space: Workspace, user: int, path: Path, digest_of_input: str) -> _Feedback:
    if not path.absolute().parent.is_dir():
        hint = "make the folder and run this again"
        raise CannotWrite(f"there is no folder for the residual {path}", hint)
    carried, digest = residual_file.read(path, user, space.session.parameters.length)
    return _Feedback(
        path=path,
        carried=carried,
        digest=digest,
        digest_of_input=digest_of_input,
        unsettled_round=residual_file.waiting_round(path, space.session.id),
    )


def _is_committed(feedback: _Feedback, ledger: Ledger) -> bool:
    """Whether the residual of this round is in its place already: then X cannot be computed again,
    because what it was computed from is gone."""
    before = ledger.residual
    return before is not None and (before.committed or feedback.digest == before.after)


def _check_sent_already(space: Workspace, feedback: _Feedback, ledger: Ledger) -> None:
    """Refuse another input than the one that was masked, and an X that is not the one sent."""
    user = ledger.user
    path = space.masked_path(user)
    if ledger.residual is None or ledger.residual.input != feedback.digest_of_input:
        ledger.refuse_second_x()
    if masked_file.read(space.session, path, user).digest != ledger.masked:
        raise BadData(
            f"{path} is not the X that user {user} sent", "fetch it from somebody who has it"
        )
    mark_done(path)


def _check_only_x(space: Workspace, ledger: Ledger, sharing: str, digest: str) -> None:
    """Refuse a second X, also one that only the public files of the round know of."""
    ledger.check_masks(digest)
    user = ledger.user
    if _published_digests(space, user, sharing) - {digest}:
        raise Refused(
            f"user {user} has sent another X in this round, though its ledger does not know it",
            "was the secrets folder restored from a backup? it must not be used; start a new round",
        )


def _stage(
    space: Workspace, user: int, feedback: _Feedback, left: Vector
) -> residual_file.Residual:
    """Put what is not sent beside the secret, until the user is among the survivors."""
    session = space.session
    after = residual_file.stage(space.residual_path(user), session, user=user, value=left)
    residual_file.leave_note(feedback.path, session.id, space.root.absolute())
    return residual_file.Residual(
        path=str(feedback.path.absolute()),
        before=feedback.digest,
        after=after,
        input=feedback.digest_of_input,
    )


def _prepared(space: Workspace, user: int) -> tuple[Ledger, StoredSecret]:
    """The ledger and the secret of a user that has shared it, and has not erased it."""
    if not space.ledger_path(user).exists() and not space.secret_path(user).exists():
        raise InputMissing(
            f"user {user} has no secret in {space.private}",
            *hint_of_secrets(
                space, user, "run offline first, for this user and with the same folder of secrets"
            ),
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
    shares = SharesOfUser(space, user, opener)
    if ledger.holds is not None:
        lacking = [m for m in space.users() if m not in ledger.holds]
        missing = [m for m in lacking if not shares.is_there(m)]
        lists = ledger.lists or [None] * len(ledger.holds)
        return _Shares(dict(zip(ledger.holds, lists, strict=True)), missing, {})
    held: dict[int, str | None] = {}
    missing = []
    bad = {}
    for m in space.users():
        try:
            with shares.opened(m) as share:
                share.check_all()
                held[m] = list_of_keys(space, m, share)
        except InputMissing:
            missing.append(m)
        except BadData as error:
            bad[m] = error.said_of(space.share_path(user, m))
    return _Shares(held, missing, bad)


def _check_enough(session: Session, user: int, shares: _Shares) -> None:
    """Refuse an X whose user could not answer for U survivors: what it says cannot be mended."""
    p = session.parameters
    if len(shares.held) >= p.survivors:
        return
    if session.series is not None:
        raise InputMissing(
            f"user {user} holds the keys of {counted(len(shares.held), 'user')}, and an answer "
            f"takes those of at least {p.survivors}"
            + "".join(f"; {why}" for why in set(shares.bad.values())),
            "run offline again for this user, from an earlier round of the series",
            Advice.FROM,
        )
    lacking = [f"missing: {named_users(shares.missing)}"] if shares.missing else []
    lacking += [f"the share of user {m} is bad: {why}" for m, why in shares.bad.items()]
    raise InputMissing(
        f"user {user} holds the shares of {counted(len(shares.held), 'user')}, and an answer "
        f"takes those of at least {p.survivors}; {'; '.join(lacking)}",
        "fetch them first: X says for good whose shares its user held",
        Advice.WITHOUT_THEM,
    )


def _published_digests(space: Workspace, user: int, sharing: str) -> set[str | None]:
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


def _read_flat(
    session: Session, user: int, gradient: Given, *, entry: str, strip_prefix: str
) -> tuple[Vector, tuple[str, ...]]:
    """The gradient as one flat vector in the session's layout, and notes about how it was read."""
    tensors = read_gradient_of(user, gradient, entry=entry, strip_prefix=strip_prefix)
    notes = tensors.notes + left_out("not in this round", session.layout.unused(tensors))
    with about(subject_of(user, gradient)):
        return session.layout.flatten(tensors), notes
