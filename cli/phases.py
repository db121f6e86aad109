"""The phases of a round: what each user does, and decoding."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import topk_secagg as ts
from topk_secagg.errors import amount, counted, named_users
from topk_secagg.gradients.formats import any_of, suffixes_read

from . import options as o
from .commands import StepResult, command, step
from .console import Console, facts_of, payload_line, plain

if TYPE_CHECKING:
    from topk_secagg.rounds.decode import DecodeReport
    from topk_secagg.rounds.mask import MaskReport
    from topk_secagg.storage.session import Session

_FEW = 10  # users that a warning lists
_ROUNDING_LIMIT = 0.05  # what rounding may add to the values that are sent, rms


@command(
    "Make a user's keys for sealed shares.",
    o.user_option,
    o.file(
        "--secrets",
        "The user's folder of secrets, to which the keys are tied.",
        "DIR",
        envvar=o.SECRETS_VARIABLE,
        required=True,
    ),
    example="--user 3 --secrets ~/secagg >> recipients.txt",
)
def keygen(console: Console, user: int, secrets: Path) -> None:
    """Make the keys of one user: an age identity to open shares, and an Ed25519 key to sign them.

    Writes DIR/user-NN.identity (mode 0600, also good for `age -d -i`), and prints the public line;
    keys that are there already stay. All users' lines together are the file for `init
    --recipients`. The keys take part with this folder alone: whoever has lost it makes new ones.
    """
    public = ts.keygen(user, secrets)
    path = ts.Workspace(secrets, secrets).identity_path(user)
    if not console.as_json:
        click.echo(public.line())  # even with -q: it is what the call is for
    console.result({"path": path, **vars(public), "fingerprint": public.fingerprint})
    console.say(
        f"secret keys of user {user}: {path}; fingerprint of the public keys: {public.fingerprint}"
    )


@step(
    "Draw a user's secret and share it.",
    o.randomness_option,
    o.file(
        "--from",
        "An earlier round, from which this one goes on. With --secrets it is found.",
        "OTHER_ROUND",
    ),
    o.word("--skip-generations", "Go on although this round is more than 100 generations later."),
    example="round --user 3",
)
def offline(space: ts.Workspace, user: int, **how: Any) -> StepResult:
    """Offline phase of a user: draw its secret, and share it with every user.

    Writes secrets/user-NN.h5, which never leaves this machine, and shares/user-MM/from-NN.h5, which
    you send to user MM only. Where shares are keys, it publishes dealt/user-NN.json too: send that
    to everybody. An interrupted run continues with the same shares.
    """
    report = ts.offline(space, user, from_=how.pop("from"), **how)
    secret = space.secret_path(user)
    done = f"user {user} drew its secret: {secret}"
    if space.session.series is not None and space.session.family is not None:
        lines = [
            f"user {user} has the keys of {counted(report.shares_kept, 'user')} for this round",
            f"session {space.session.fingerprint}",
            f"generation {space.session.generation} of series {space.session.series_fingerprint}: "
            "nothing is sent",
        ]
        warnings = list(_folder_warnings(user, report.other_folder))
        return StepResult({"secret": secret, **facts_of(report)}, lines, warnings=warnings)
    lines = [
        done
        if report.shares_written
        else f"user {user} has all its shares already; nothing was changed",
        f"session {space.session.fingerprint}",
        f"send shares/user-MM/{space.share_path(user, user).name} to user MM only "
        f"(payload {_most(space.session)}{amount(report.share_bytes)})",
    ]
    if space.session.family is not None:
        lines.append(f"send {space.dealt_path(user)} to everybody")
    warnings = list(_folder_warnings(user, report.other_folder))
    return StepResult({"secret": secret, **facts_of(report)}, lines, warnings=warnings)


def _most(session: Session) -> str:
    """Users receive the same number of bytes only where all shares are written out."""
    return "" if session.parameters.dealing == "shares" else "at most "


def series_facts(session: Session) -> dict[str, Any]:
    """To which series a round belongs."""
    return {"series": session.series_name, "generation": session.generation}


def series_lines(session: Session) -> list[str]:
    """The same for people."""
    return [f"generation {session.generation} of series {session.series_fingerprint}"]


def _files(
    _context: click.Context, _option: click.Parameter, folder: Path | None
) -> list[Path] | None:
    """The gradients in the folder that --gradients names."""
    from topk_secagg.rounds.user_files import gradient_files

    return None if folder is None else gradient_files([folder])


def _above(files: list[Path]) -> str:
    """The innermost folder that has all of them."""
    return os.path.commonpath([file.parent.absolute() for file in files])


@step(
    "Mask a user's gradient: X_n.",
    o.file(
        "--gradient",
        f"{any_of(suffixes_read())}.  {o.GRADIENT_REQUIRED}",
    ),
    o.file(
        "--gradients",
        "A folder with one gradient for every user of the round, or a pattern such as "
        f"'DIR/*/grad.pt'.  {o.GRADIENT_REQUIRED}",
        "DIR",
        callback=_files,
    ),
    o.entry_option,
    o.prefix_option,
    o.value(
        "--weight",
        "W",
        "Scale the gradient; the weight is public, and decode --mean divides by the sum.",
        kind=float,
        default=1.0,
    ),
    o.feedback_option,
    o.select_option,
    o.saturate_option,
    o.word("--again", "Send a gradient again that was sent in another round."),
    o.context_option,
    o.word("--without-them", "Mask although the shares of fewer than U users have arrived."),
    example="round --user 3 --gradient gradients/user-03.pt",
)
def mask(
    space: ts.Workspace, user: int, gradient: Path | None, gradients: list[Path] | None, **how: Any
) -> StepResult:
    """Masked-input phase of a user: X_n from its gradient.

    Keeps the coordinates of largest magnitude (sketch: the largest of every bucket), quantises and
    masks them, and writes the public file masked/user-NN.h5. A user masks one gradient per round;
    its ledger refuses a second one. Opens and checks the shares that have arrived: X says whose its
    user holds, and that stays so. With --secrets, the same gradient is recognised in later rounds,
    and refused without --again, unless survivors.json shows that it is in no sum.
    """
    from topk_secagg.protocol.parameters import rate_of_masked

    if gradients and len(gradients) != len(space.users()):
        raise click.UsageError(
            f"{counted(len(gradients), 'gradient')} in {_above(gradients)} "
            f"for {counted(len(space.users()), 'user')}"
        )
    own = gradients[user - 1] if gradients else gradient
    if own is None or (gradient and gradients):
        raise click.UsageError("give either --gradient FILE or --gradients DIR")
    del how["progress"]  # there is none to speak of
    report = ts.mask(space, user, own, **how)
    session = space.session
    p = session.parameters
    rate = rate_of_masked(p, report.masked_bytes)
    lines = [
        f"user {user} masked {report.coordinates} of {p.length} coordinates: {report.path}"
        if session.reduction.is_top_k
        else f"user {user} masked {report.coordinates} symbols: {report.path}",
        f"session {space.session.fingerprint}",
        payload_line(rate, report.masked_bytes),
        *selection_lines(session, report.kept_energy, report.clipped),
    ]
    facts = {**facts_of(report), "weight": how["weight"], **rate.facts()}
    warnings = [
        *_mask_warnings(space, report),
        *rounding_warnings(session, report.rounding_error, f"the values that user {user} sends"),
    ]
    return StepResult(facts, lines, notes=report.notes, warnings=warnings)


def _mask_warnings(space: ts.Workspace, report: MaskReport) -> Iterator[str]:
    """What is wrong, or may become so, although X is written."""
    user = report.user
    secret = space.secret_path(user)
    if not report.private_secret:
        yield f"{secret} can be read by others; run: chmod 600 {secret}"
    if report.late:
        yield f"the survivors are fixed already: this X of user {user} comes too late"
    if report.not_proposed:
        yield (
            f"survivors.json is proposed without this X of user {user}: it comes too late, unless "
            "users confirm another one"
        )
    yield from _folder_warnings(user, report.other_folder)
    for session in report.sent_before:
        yield (
            f"user {user} masked the same gradient in session {session[:16]}; whoever has the sums "
            "of both can subtract them"
        )
    for sender, why in report.bad_shares.items():
        yield (
            f"the share of user {sender} for user {user} is bad: {why}; "
            "X says that it is not held, and freeze leaves out users whose shares too few hold"
        )
    if lacking := report.missing_shares:
        whose = named_users(lacking) if len(lacking) <= _FEW else f"{len(lacking)} users"
        yield (
            f"user {user} has not received the shares of {whose}; its X says so, and "
            "freeze leaves out users whose shares too few hold"
        )


def _folder_warnings(user: int, other_folder: str | None) -> Iterator[str]:
    """A session that comes back in another folder."""
    if other_folder:
        yield (
            f"user {user} prepared this session in {other_folder}; "
            "if nobody moved that folder here, an old session was issued again: do not take part"
        )


def reduction_facts(session: Session) -> dict[str, Any]:
    """How a round reduces gradients, for JSON."""
    reduction = session.reduction
    return {
        "reduction": reduction.name,
        **facts_of(reduction, "rank", "side"),
        "coordinates": session.layout.length,
        "clip": max(session.clips),
    }


def rounding_warnings(session: Session, error: float | None, values: str) -> Iterator[str]:
    """That the field is too small for the clip, or the clip too large for the values."""
    if error is not None and error > _ROUNDING_LIMIT:
        yield (
            f"rounding is expected to add {error:.0%} (rms) to {values}: the clip of "
            f"{max(session.clips):g} is too large for them in a field of "
            f"{session.parameters.field} elements"
        )


def selection_lines(
    session: Session, energy: float | None, clipped: int, whose: str = "it sends"
) -> Iterator[str]:
    """What share of the gradient's energy leaves, and how many values were clamped. Only the user
    itself sees it."""
    from topk_secagg.gradients.reduced import WHOLE

    if energy is not None and session.reduction.name != WHOLE:
        yield f"{whose} {energy:.1%} of the energy of its gradient"
    if clipped:
        clip = f"clamped to the clip of {max(session.clips):g}"
        if len(set(session.clips)) > 1:
            clip = "clamped to the clips of their tensors"
        yield f"{counted(clipped, 'value was', 'values were')} {clip}"


@command(
    "Fix the survivors: U1.",
    *o.space_options,
    o.value("--only", "1,2,3", "Only these users, although more have masked.", kind=o.user_set),
    o.value("--user", "n", "Who freezes.  [default: the session's freezer]", kind=o.one_user),
    *o.access_options,
    *o.limit_options,
    example="round",
)
def freeze(
    console: Console,
    space: ts.Workspace,
    only: list[int] | None,
    user: int | None,
    **access: Any,
) -> None:
    """Fix the survivors U1 of the masked-input phase in survivors.json.

    This is the step of the session's freezer; in rounds with --confirm anybody may propose the
    survivors. It takes every user whose X is sound, unless too few users hold its share. All users
    must answer the same survivors.json, because answers for two sets would reveal what one user
    sent: once it exists it never changes.
    """
    report = ts.freeze(space, only, user=user, **access)
    console.warn(*(f"user {n} is left out: {why}" for n, why in report.left_out.items()))
    console.result(
        {
            "path": space.survivors_path,
            **facts_of(report),
            "dropped": [n for n in space.users() if n not in report.survivors],
        },
        f"survivors {plain(report.survivors)}: {space.survivors_path}",
        f"session {space.session.fingerprint}",
        f"digest {report.survivors_sha256[:16]}: everybody must answer this one",
        space=space,
    )


@command(
    "Confirm the survivors, in rounds with --confirm.",
    *o.space_options,
    o.user_option,
    *o.access_options,
    *o.limit_options,
    example="round --user 3 --secrets ~/secagg",
)
def confirm(console: Console, space: ts.Workspace, user: int, **access: Any) -> None:
    """Sign survivors.json, in a round that was started with --confirm.

    Users answer only once more than (N+T)/2 users have confirmed the same survivors.json. A user
    confirms one per round: one with every X here and sound, and with its own as it sent it. Writes
    the public file confirmed/user-NN.json.
    """
    report = ts.confirm(space, user, **access)
    console.result(
        facts_of(report),
        f"user {user} confirmed survivors {plain(report.survivors)}: {report.path}",
        f"session {space.session.fingerprint}, digest {report.survivors_sha256[:16]}",
        f"{_confirmations(len(report.confirmed), report.needed)} here: "
        f"{named_users(report.confirmed)}",
        space=space,
    )


def _confirmations(there: int, needed: int) -> str:
    """How many confirmations there are of those that it takes, with the verb."""
    if there >= needed:
        return "enough confirmations are"
    return f"{there} of {counted(needed, 'confirmation')} {'is' if there == 1 else 'are'}"


@step(
    "Answer for the survivors: Y_n.",
    example="round --user 3",
)
def eliminate(space: ts.Workspace, user: int, **how: Any) -> StepResult:
    """Mask-elimination phase of a user: Y_n for the frozen survivors.

    Reads survivors.json, the X of every survivor and the shares that this user holds of them, and
    writes the public file elimination/user-NN.h5. A user answers one survivor set per round.
    `--user all` means all survivors.
    """
    from topk_secagg.protocol.parameters import rate_of_answer

    report = ts.eliminate(space, user, **how)
    rate = rate_of_answer(space.session.parameters, report.answer_bytes)
    digests = f"session {space.session.fingerprint}, survivors.json {report.survivors_sha256[:16]}"
    lines = [
        f"user {user} answered for {plain(report.survivors)}: {report.path}",
        f"{digests}: compare with the others",
        payload_line(rate, report.answer_bytes),
    ]
    return StepResult({**facts_of(report), **rate.facts()}, lines)


def described(
    console: Console, space: ts.Workspace, report: DecodeReport, *, output: Path | None, mean: bool
) -> tuple[dict[str, Any], list[str]]:
    """Warn of what deserves attention in an aggregate; what else is said about it, and about what
    --output got, as facts and in lines."""
    from topk_secagg.protocol.parameters import rate_of_answer, rate_of_masked

    console.warn(
        *(f"the answer of user {n} is left out: {why}" for n, why in report.left_out.items())
    )
    if report.beyond_clip:
        console.warn(
            f"{counted(report.beyond_clip, 'coordinate is', 'coordinates are')} larger than any "
            "sum of the survivors' clipped gradients: a user cheated, or a share is wrong"
        )
    p = space.session.parameters
    checked = len(report.answering) - report.answers_needed
    r1 = rate_of_masked(p, report.masked_bytes)
    r2 = rate_of_answer(p, report.answer_bytes)
    facts = {**facts_of(report), **r1.facts(), **r2.facts(), "checked_answers": checked}
    what = "mean" if mean else "sum"
    written = [f"the {what} in the form of a gradient: {output}"] if output else []
    return facts, [
        f"sum of users {plain(report.survivors)}, decoded from {plain(report.answering)}: "
        f"{report.path}",
        *written,
        f"{report.nonzero} of {p.length} coordinates are not zero",
        f"X: {payload_line(r1, report.masked_bytes)}",
        f"Y: {payload_line(r2, report.answer_bytes)}",
        agreement_line(p.colluders, report, guilty=space.session.names_the_guilty),
    ]


def _guilt(*, guilty: bool) -> str:
    """What it says of a user that it is named."""
    if guilty:
        return "who is named lied, or its machine is faulty: all keys fit their commitments"
    return "who is named may be innocent, a bad share has the same effect"


def agreement_line(colluders: int, report: DecodeReport, *, guilty: bool = False) -> str:
    """What the agreement of the answers says about the sum, and on which condition."""
    agreeing = len(report.answering) - len(report.corrected)
    excluded = report.liars_excluded
    if report.corrected:
        return (
            f"WRONG ANSWERS from {named_users(report.corrected)}, left out:"
            f" the {agreeing} others agree, and the sum is right"
            f" unless more than {counted(colluders, 'user lies', 'users lie')} (T);"
            f" {_guilt(guilty=guilty)}"
        )
    if not excluded:
        return (
            "no more answers than needed, so that nothing was checked:"
            " the sum is right if nobody lied"
        )
    beyond = agreeing - report.answers_needed
    more = f"{counted(beyond, 'more answer')} than needed, and all agree"
    line = f"{more}: the sum is right unless"
    if excluded == colluders:
        return f"{line} more than {counted(colluders, 'user lies', 'users lie')} (T)"
    needed = report.answers_needed + colluders
    lying = counted(excluded, "user lies", "users lie")
    return f"{line} more than {lying}; T = {colluders} liars are excluded by {needed} answers"


@command(
    "Decode the aggregate.",
    *o.space_options,
    *o.output_options,
    o.flag(
        "--strict",
        "Refuse a damaged answer or one that disagrees, fewer than D + 2T that agree, and a sum "
        "beyond the clip.",
    ),
    *o.pin_options,
    *o.limit_options,
    example="round --output sum.pt",
)
def decode(console: Console, space: ts.Workspace, **how: Any) -> None:
    """Decode the sum of the survivors' inputs from the answers in elimination/.

    Writes aggregate.h5: the sum, sparse, in the field and as reals. --output writes it in the shape
    of the gradient as well. An answer that cannot be read counts as missing. A wrong answer is left
    out if at most T are wrong and D + 2T others agree. The result says how many users lying
    together the agreement of the answers excludes; --strict refuses a sum for which that is fewer
    than T. A round that failed counts as published: mask does not send the same gradient again.
    """
    with console.progress() as progress:
        report = ts.decode(space, progress=lambda done: progress("decoding", 0, 1, done), **how)
    facts, lines = described(console, space, report, output=how["output"], mean=how["mean"])
    console.warn_foreign_secrets(space.foreign_secrets())
    console.result(facts, *lines, f"session {space.session.fingerprint}", space=space)


@command(
    "Erase a user's secret and shares.",
    *o.space_options,
    o.user_option,
    o.flag("--end-series", "Erase the user's chain too: it takes part in no later round."),
    o.word("--give-up", "Erase them before the answer too, in a round that will have no sum."),
    *o.access_options,
    example="round --user 3",
)
def forget(console: Console, space: ts.Workspace, user: int, **how: Any) -> None:
    """Erase a user's secret, the shares that it holds, and its copies of those that it made.

    Do it once they have done their work: after its answer, or when it dropped out; in rounds with
    --confirm, once enough users have confirmed that. With X, the secret reveals the input for ever.
    The ledger stays, so that nothing can be used twice. --give-up erases them before: this user can
    then neither mask nor answer. In a series the user's chain keeps the keys: they open this round
    too until the next one is prepared, or until you forget with --end-series. See docs/security.md
    for what deleting means on an SSD.
    """
    report = ts.forget(space, user, **how)
    lines = [
        f"user {user} erased {counted(len(report.erased), 'file')}; its ledger stays",
        f"session {space.session.fingerprint}",
    ]
    if report.kept:
        lines.append(
            f"{counted(len(report.kept), 'sealed share belongs', 'sealed shares belong')} to other "
            "accounts; without your identity nobody opens them"
        )
    if report.needed_by:
        one = len(report.needed_by) == 1
        not_answered = f"who {'has' if one else 'have'} not answered"
        why = "who may go on with the series" if space.session.family else not_answered
        share = "its share" if one else "its shares"
        stays = "stays" if one else "stay"
        lines.append(f"{share} for {named_users(report.needed_by)}, {why}, {stays}")
    if report.chain:
        lines.append(f"{report.chain} has the keys of the series; offline of the next round erases")
        lines[-1] += " those of this one"
    console.result(facts_of(report), *lines, space=space)
