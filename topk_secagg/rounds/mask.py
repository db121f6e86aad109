"""`mask`: X_n from a gradient. Loads neither numba nor galois."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

from ..algebra.randomness import CipherRandomness
from ..brief import Brief
from ..errors import (
    Advice,
    BadData,
    InputMissing,
    Refused,
    UsageError,
    about,
    counted,
    named_users,
)
from ..gradients.arrays import Given, Vector
from ..gradients.tensors import is_path, left_out
from ..protocol.constructions import construction
from ..protocol.messages import Secret
from ..protocol.parameters import Parameters
from ..storage import inputs
from ..storage import masked as masked_file
from ..storage import residual as residual_file
from ..storage import secret as secret_file
from ..storage.artifacts import Content
from ..storage.chain import Chain
from ..storage.keys import Identity
from ..storage.ledger import Ledger, Previous, Report
from ..storage.secret import StoredSecret
from ..storage.session import Session
from ..storage.share import SharesOfUser
from ..storage.workspace import Workspace
from . import barrier, bases, outcome, series, spend
from .access import Step, admitted, hint_of_secrets, other_folder, taking_part
from .arguments import (
    SELECTIONS,
    AnyPath,
    AnyRound,
    check_choice,
    context_digest,
    path_of,
    real_number,
)
from .backups import check_knows
from .feedback import Carried, carried, check_name
from .sending import Chosen, Encoding, prepare, read_gradient_of, subject_of

_DIGITS = 6  # of what the ledger says about a gradient


@dataclass(frozen=True, repr=False)
class MaskReport(Brief):
    """What `mask` did. `clipped`, `kept_energy` and `rounding_error` are for the user's own eyes.

    `residual` is the file with what was not sent, with feedback. `holds` are the users whose shares
    X says that this user holds, `missing_shares` those whose shares have not arrived, and
    `bad_shares` says what is wrong with shares that have. `late` is an X after the freeze, and
    `not_proposed` one that a survivors.json leaves out which too few have confirmed yet;
    `sent_before` are other sessions in which the same gradient was masked; `other_folder` is where
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
    residual: Path | None = None
    clipped: int = 0
    kept_energy: float | None = None
    rounding_error: float | None = None
    late: bool = False
    not_proposed: bool = False
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
    feedback: bool = False,
    select: str = "top",
    saturate: bool = False,
    again: bool = False,
    without_them: bool = False,
    context: AnyPath | None = None,
    **access: Unpack[Step],
) -> MaskReport:
    """Masked-input phase of one user: reduce, quantise and mask its gradient, and write X.

    The ledger line is durable before X appears. A user masks one gradient in a round.

    Arguments:
    round: the folder of the round.
    user: the user's number, from 1.
    gradient: its file: .pt, .pth, .bin, .ckpt, .safetensors, .npz or .npy; or the gradient itself:
        an array, or a mapping of names to arrays or torch tensors, or a list of them, or a
        torch.nn.Module, which stands for what backward left in it. A folder that save_pretrained
        wrote stands for its file.
    entry: the entry of a PyTorch checkpoint that holds the tensors.
    strip_prefix: taken off tensor names that begin with it.
    weight: what the gradient is multiplied with; it is public.
    feedback: add what the user's last X that counted did not send, and keep what this one does not.
    select: "top" sends the largest magnitudes, "random" random coordinates.
    saturate: clamp values beyond the clip, and count them, instead of refusing; always so with
        `feedback`.
    again: mask it even if the same gradient was sent in another round.
    without_them: mask even if fewer than U users' shares have arrived.
    context: the file that the user trains from; it must be the one that the session names.
    secrets: the folder of the user's secrets and ledgers, instead of the round's own.
    session: refuse any other session than this one; at least 16 of its digits.
    series: the same of the series of the round, whose name `init` and `inspect` say.
    recipients: refuse a session that has other keys than this file.
    identity: the user's keys, in a sealed round.
    max_memory: refuse a round that takes more bytes of memory; by default, more than there are.
    max_disk: refuse a round for whose files a user needs more bytes.

    Returns a MaskReport.
    """
    space, how = taking_part(round, **access)
    signer = admitted(space, user, how)
    check_choice("selection", select, SELECTIONS)
    _check_context(space, context)
    flat, notes = _read_flat(space.session, user, gradient, entry=entry, strip_prefix=strip_prefix)
    wanted = _Wanted(
        flat=flat,
        name=path_of("gradient", gradient).name if is_path(gradient) else None,
        weight=_admissible_weight(space.session.parameters, weight),
        select=select,
        feedback=feedback,
        saturate=saturate or feedback,
        notes=notes,
    )
    with series.step_of(space, user):
        ledger = _prepared(space, user)
        stored = _stored(space, ledger)
        check_knows(space, ledger)
        own_input = _own_input(space, wanted)
        if ledger.masked is not None:
            _check_repeated(ledger, wanted, own_input)
            if spend.finish_masked(space, ledger):
                return _report(space, ledger, stored, wanted)
        elsewhere = [] if ledger.masked else _sent_elsewhere(space, ledger, own_input, again=again)
        shares, secret = _shares(space, ledger, stored=stored, opener=signer)
        if ledger.masked is None and not without_them:
            _check_enough(space.session, user, shares)
        taken = _taken(space, ledger, wanted)
        encoding = Encoding.of(space.session, bases.of_user(space, ledger))
        decided = _decided(
            space.session, ledger, wanted, stored=stored, secret=secret, shares=shares, taken=taken,
            encoding=encoding, signer=signer,
        )  # fmt: skip
        ledger.check_masks(decided.x.digest)
        key = inputs.ensure_key(space)
        own_input = inputs.digest(key, wanted.flat)
        keyed = {
            "input": own_input,
            "name": _name_digest(key, wanted),
            "residual": _residual_digest(key, decided.residual),
        }
        if shares.chain is not None:
            series.store(space, user, shares.chain)
        ledger = spend.masked(
            space,
            ledger,
            spend.Masking(
                x=decided.x,
                line={**decided.line, **keyed},
                residual=decided.residual,
                input=own_input if wanted.flat.any() else None,
                takes=taken.source,
            ),
        )
        # only now: the round may have been frozen meanwhile
        ledger, evidence = outcome.look(space, ledger)
        is_late = outcome.left_out(ledger, evidence)
    return _report(
        space,
        ledger,
        stored,
        wanted,
        shares=shares,
        late=is_late,
        not_proposed=not is_late and outcome.not_proposed(space, ledger),
        sent_before=elsewhere,
    )


# load


@dataclass(frozen=True)
class _Wanted:
    """What the user asked for: its gradient as one flat vector, as it was given, and how it is to
    be sent."""

    flat: Vector = field(repr=False)
    name: str | None
    weight: float
    select: str
    feedback: bool
    saturate: bool
    notes: tuple[str, ...]


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


def _check_context(space: Workspace, context: AnyPath | None) -> None:
    """Refuse to send what was trained from anything else than the session names."""
    agreed = space.session.context
    if agreed is None and context is None:
        return
    if agreed is None:
        raise UsageError(
            "a context is given, and the session names none", "leave it out", Advice.CONTEXT
        )
    if context is None:
        raise UsageError(
            "the session names what its users train from, and no such file is given",
            "give the file that you trained from",
            Advice.CONTEXT,
        )
    if context_digest(context) != agreed:
        raise BadData(
            "is not what the users of this session train from",
            "get the model from who started the round; train from it, and nothing else",
            subject=path_of("context", context),
        )


def _read_flat(
    session: Session, user: int, gradient: Given, *, entry: str, strip_prefix: str
) -> tuple[Vector, tuple[str, ...]]:
    """The gradient as one flat vector in the session's layout, and notes about how it was read."""
    tensors = read_gradient_of(user, gradient, entry=entry, strip_prefix=strip_prefix)
    notes = tensors.notes + left_out("not in this round", session.layout.unused(tensors))
    with about(subject_of(user, gradient)):
        return session.layout.flatten(tensors), notes


def _prepared(space: Workspace, user: int) -> Ledger:
    """The ledger of a user that has shared its secret, and not given up."""
    if not space.ledger_path(user).exists() and not space.secret_path(user).exists():
        raise InputMissing(
            f"user {user} has no secret in {space.private}",
            *hint_of_secrets(
                space, user, "run offline first, for this user and with the same folder of secrets"
            ),
        )
    ledger = Ledger.read(space.ledger_path(user), space.session.id, user)
    ledger.check_kept()
    return ledger


def _stored(space: Workspace, ledger: Ledger) -> StoredSecret:
    """The secret that was shared."""
    stored = secret_file.read(space, ledger.user)
    if ledger.shared != stored.sharing:
        hint = "run offline again for this user; it continues where it stopped"
        raise InputMissing(f"the shares of user {ledger.user} are not complete", hint)
    return stored


@dataclass(frozen=True)
class _Shares:
    """Whose shares a user holds, whose have not arrived, and what is wrong with those of others.

    Where they are keys, each that is held has the digest of its dealer's list, and `chain` is the
    user's chain in which all of these dealers are entered.
    """

    held: Mapping[int, str | None]
    missing: list[int]
    bad: Mapping[int, str]
    chain: Chain | None = None

    @property
    def lists(self) -> tuple[str, ...] | None:
        """The digests of the lists, in the order of the dealers that are held."""
        return tuple(digest for digest in self.held.values() if digest is not None) or None


def _shares(
    space: Workspace, ledger: Ledger, *, stored: StoredSecret, opener: Identity | None
) -> tuple[_Shares, Secret]:
    """Whose shares the user holds, and its own secret.

    Others rely on what X says about shares: too few could answer if one counted that cannot be
    used. Once X is made, what it says stays as it is.
    """
    session = space.session
    user = ledger.user
    if session.family is None:
        shares = _said(ledger) if ledger.masked else _opened(space, user, opener)
        return shares, stored.secret(session, user, ())
    chain = series.read_chain(space, user)
    if ledger.masked:
        shares = _said(ledger)
    else:
        holding = series.enter(space, chain, opener)
        held = dict(sorted(holding.chain.lists.items()))
        shares = _Shares(held, holding.missing, holding.bad, holding.chain)
    return shares, stored.secret(session, user, chain.own)


def _said(ledger: Ledger) -> _Shares:
    """What X says already."""
    holds = ledger.holds or ()
    lists = ledger.lists or [None] * len(holds)
    return _Shares(dict(zip(holds, lists, strict=True)), [], {})


def _opened(space: Workspace, user: int, opener: Identity | None) -> _Shares:
    """Open every share for this user and check all of it, one after the other."""
    shares = SharesOfUser(space, user, opener)
    held: dict[int, str | None] = {}
    missing = []
    bad = {}
    for m in space.users():
        try:
            with barrier.around(space.share_path(user, m)), shares.opened(m) as share:
                share.check_all()
                held[m] = None
        except InputMissing:
            missing.append(m)
        except BadData as error:
            bad[m] = error.said_of(space.share_path(user, m))
    return _Shares(held, missing, bad)


def _taken(space: Workspace, ledger: Ledger, wanted: _Wanted) -> Carried:
    """The residual that goes into this X."""
    if not wanted.feedback:
        return Carried(None, None)
    if wanted.name is not None:
        check_name(space, ledger, wanted.name)
    taken = carried(space, ledger, space.session.layout.length)
    if ledger.feedback not in (None, taken.name):
        raise BadData(
            f"the X of user {ledger.user} took another residual than the one that is here",
            "fetch X from somebody who has it",
        )
    return taken


def _own_input(space: Workspace, wanted: _Wanted) -> str | None:
    """The keyed digest of the gradient; None where nothing was ever sent, so that there is no
    key."""
    key = inputs.read_key(space)
    return None if key is None else inputs.digest(key, wanted.flat)


def _name_digest(key: bytes, wanted: _Wanted) -> str | None:
    """What the ledger keeps of the name of the gradient's file."""
    return None if wanted.name is None else inputs.name_digest(key, wanted.name)


def _residual_digest(key: bytes, residual: Content | None) -> str | None:
    """What the ledger keeps of what is not sent."""
    return None if residual is None else inputs.residual_digest(key, residual.digest)


# decide


@dataclass(frozen=True)
class _Decided:
    """The X, what the ledger says about it, and what is not sent."""

    x: Content
    line: dict[str, Any]
    residual: Content | None


def _decided(
    session: Session,
    ledger: Ledger,
    wanted: _Wanted,
    *,
    stored: StoredSecret,
    secret: Secret,
    shares: _Shares,
    taken: Carried,
    encoding: Encoding,
    signer: Identity | None,
) -> _Decided:
    """X from the gradient and what is carried on, without a file."""
    user = ledger.user
    prepared = prepare(
        encoding,
        CipherRandomness(stored.key),  # the same when the step is repeated
        taken.added_to(wanted.flat, wanted.weight, session.feedback_decay),
        wanted.weight,
        wanted.select,
        saturate=wanted.saturate,
    )
    x = masked_file.content(
        session,
        user=user,
        sharing=stored.sharing,
        masked=construction(session.parameters).mask(secret, prepared.chosen.sparse),
        weight=wanted.weight,
        holds=shares.held,
        dealt=ledger.dealt,
        signer=signer,
    )
    line = {
        "holds": tuple(shares.held),
        "lists": shares.lists,
        "weight": wanted.weight,
        "select": wanted.select,
        "feedback": taken.name if wanted.feedback else None,
        "report": _for_own_eyes(prepared.chosen),
    }
    residual = None
    if wanted.feedback:
        residual = residual_file.content(session, user, prepared.unsent)
    return _Decided(x, line, residual)


def _for_own_eyes(chosen: Chosen) -> Report:
    """What the ledger keeps of how the gradient was reduced and rounded, in digits that are the
    same on every machine."""
    error = chosen.rounding_error
    return Report(
        clipped=chosen.clipped,
        kept_energy=_rounded(chosen.kept_energy),
        rounding_error=None if error is None else _rounded(error),
    )


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _check_repeated(ledger: Ledger, wanted: _Wanted, own_input: str | None) -> None:
    """Refuse another input than the one that was masked, or another way to send it."""
    before = (ledger.input, ledger.weight, ledger.select, ledger.feedback is not None)
    if before != (own_input, wanted.weight, wanted.select, wanted.feedback):
        ledger.refuse_second_x()


def _sent_elsewhere(
    space: Workspace, ledger: Ledger, own_input: str | None, *, again: bool
) -> list[str]:
    """The other sessions in which this very gradient was masked, and is or may be in a sum.

    Only what its user made for this round is a contribution: refused, unless `again`, which is the
    user's word for this one call.
    """
    user = ledger.user
    sessions = [s for s, digest in inputs.sent(space, user) if digest == own_input]
    counting = [s for s in sessions if s != ledger.session and _may_count(space, user, s)]
    if counting and not again:
        raise Refused(
            f"user {user} has sent this gradient already, in session {counting[0][:16]}",
            outcome.PUBLISHED,
            Advice.AGAIN,
        )
    return counting


def _may_count(space: Workspace, user: int, session: str) -> bool:
    """Whether an X of this user in another session counts as sent, for all that is known."""
    before = outcome.earlier(space, user, Previous(session, "."))
    return before is None or outcome.counted(*before.looked_at())


def _check_enough(session: Session, user: int, shares: _Shares) -> None:
    """Refuse an X whose user could not answer for U survivors: what it says cannot be mended."""
    p = session.parameters
    if len(shares.held) >= p.survivors:
        return
    what = "shares" if session.series is None else "keys of the root round"
    lacking = [f"missing: {named_users(shares.missing)}"] if shares.missing else []
    lacking += [f"the share of user {m} is bad: {why}" for m, why in shares.bad.items()]
    raise InputMissing(
        f"user {user} holds the {what} of {counted(len(shares.held), 'user')}, and an answer "
        f"takes those of at least {p.survivors}; {'; '.join(lacking)}",
        "fetch them first: X says for good whose shares its user held",
        Advice.WITHOUT_THEM,
    )


# report


def _report(
    space: Workspace,
    ledger: Ledger,
    stored: StoredSecret,
    wanted: _Wanted,
    shares: _Shares | None = None,
    **known: Any,
) -> MaskReport:
    """What was done; of a repeated call, what the ledger knows."""
    c = construction(space.session.parameters)
    shares = shares or _said(ledger)
    chosen = ledger.report
    return MaskReport(
        user=ledger.user,
        path=space.masked_path(ledger.user),
        sha256=ledger.masked or "",
        coordinates=c.coordinate_count,
        masked_bytes=c.masked_bytes,
        private_secret=stored.private,
        holds=list(shares.held),
        missing_shares=shares.missing,
        bad_shares=dict(shares.bad),
        residual=None if ledger.residual is None else space.residual_path(ledger.user),
        clipped=chosen.clipped if chosen else 0,
        kept_energy=chosen.kept_energy if chosen else None,
        rounding_error=chosen.rounding_error if chosen else None,
        other_folder=other_folder(space, ledger),
        notes=wanted.notes,
        **known,
    )
