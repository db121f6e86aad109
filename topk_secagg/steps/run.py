"""`run`: all steps of all users in one go, through the same files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..brief import Brief
from ..errors import Busy, Refused, SecAggError, UsageError, about
from ..gradients.files import read_gradient
from ..gradients.layout import Layout
from ..gradients.quantise import check_clips, magnitude
from ..protocol.constructions import construction
from ..storage import residual as residual_file
from ..storage import survivors as survivors_file
from ..storage.atomic import make_folder
from ..storage.ledger import Ledger
from ..storage.session import read_session
from ..storage.workspace import Workspace
from .access import Access
from .decode import DecodeReport, decode
from .dropouts import remaining
from .each import Report, for_each
from .eliminate import EliminateReport, eliminate
from .freeze import confirm, freeze
from .mask import MaskReport, mask
from .offline import offline
from .sending import with_residual
from .settle import settle

Note = Callable[..., None]


@dataclass(frozen=True, repr=False)
class RunReport(Brief):
    """Who did what, and what came out; `settled` are the survivors that did not answer, and whose
    residuals were committed all the same."""

    masked: list[MaskReport]
    answered: list[EliminateReport]
    settled: list[int]
    decoded: DecodeReport


@dataclass(frozen=True)
class Survey:
    """What the gradients of a round are like before it starts: the largest magnitude that each user
    would send, its residual included, and the bytes of the largest gradient as it is."""

    largest: dict[int, float]
    plain_bytes: int


def survey(
    layout: Layout,
    gradients: Sequence[Path],
    masking: Sequence[int],
    *,
    residuals: Path | None = None,
    entry: str = "",
    strip_prefix: str = "",
    jobs: int | None = None,
    note: Note = lambda *_: None,
) -> Survey:
    """Read the gradients of the users that mask, and their residuals; nothing is written."""

    def look(user: int) -> tuple[float, int]:
        path = gradients[user - 1]
        tensors = read_gradient(path, entry, strip_prefix)
        with about(path):
            flat = layout.flatten(tensors)
            plain_bytes = layout.plain_bytes(tensors)
        if residuals is not None:
            kept = _residual_path(residuals, user)
            carried, _ = residual_file.read(kept, user, layout.length)
            if carried is not None:
                with about(kept):
                    flat = with_residual(flat, carried)
        return magnitude(flat), plain_bytes

    seen = _phase("check", masking, look, jobs, note)
    return Survey(
        largest={user: largest for user, (largest, _) in seen.items()},
        plain_bytes=max((plain_bytes for _, plain_bytes in seen.values()), default=0),
    )


def run(
    space: Workspace,
    gradients: Sequence[Path],
    *,
    drop_masking: Collection[int] = (),
    drop_elimination: Collection[int] = (),
    weights: Sequence[float] | None = None,
    residuals: Path | None = None,
    identities: Sequence[Path] | None = None,
    randomness: str = "cipher",
    entry: str = "",
    strip_prefix: str = "",
    select: str = "top",
    saturate: bool = False,
    output: Path | None = None,
    mean: bool = False,
    jobs: int | None = None,
    surveyed: Survey | None = None,
    note: Note = lambda *_: None,
) -> RunReport:
    """A whole round on one machine: every user's steps, less those of the users that drop out.

    All gradients are checked before any offline work. The same call resumes an interrupted round.

    Arguments:
    space: the round, from `init`.
    gradients: one file for each user; gradients[n-1] belongs to user n.
    drop_masking: users that never send an X; they are not in the sum.
    drop_elimination: users that send an X, and never answer.
    weights: what each user's gradient is multiplied with, in order of the users; 1 by default.
    residuals: a folder for error feedback, with a file for each user.
    identities: the users' identity files, in order, in a sealed round.
    randomness: "cipher" (AES-256-CTR keyed by the operating system) or "os" (every byte from it).
    entry: the entry of a PyTorch checkpoint that holds the tensors.
    strip_prefix: taken off tensor names that begin with it.
    select: "top" sends the largest magnitudes, "random" random coordinates.
    saturate: clamp values beyond the clip, and count them, instead of refusing.
    output: write the sum there too: .pt, .safetensors, .npz or .npy.
    mean: divide what `output` gets by the sum of the survivors' weights.
    surveyed: what `survey` found in the gradients, which saves reading them for that again.
    jobs: users to work on at a time; the number of cores by default.
    note: called as note(phase, user, count) when a user has finished a phase (user 0 at its start);
        of decoding, also with the share that is done.

    Returns a RunReport: `masked` and `answered`, a report for each user, and `decoded`.
    """
    users = list(space.users())
    if len(gradients) != len(users):
        raise UsageError(
            f"{len(gradients)} gradients for {len(users)} users", "one file per user is needed"
        )
    left = remaining(users, drop_masking, drop_elimination)
    masking = left.masking
    answering = left.answering
    p = space.session.parameters
    left.check_enough(p)
    if space.survivors_path.exists() and survivors_file.read(space).users != masking:
        raise Refused(
            "the survivors of this round are fixed already, and differ", "choose another folder"
        )
    drops = {
        "masked": (drop_masking, space.masked_path),
        "answered": (drop_elimination, space.answer_path),
    }
    for what, (dropped, path) in drops.items():
        for user in dropped:
            if path(user).exists():
                raise Refused(
                    f"user {user} has {what} in this round already", "choose another folder"
                )
    if residuals is not None:
        make_folder(residuals, private=True)

    def access(user: int) -> Access:
        # who runs it has said so
        return Access(identities[user - 1] if identities else None, insecure=True)

    def phase(name: str, who: Sequence[int], step: Callable[[int], Report]) -> dict[int, Report]:
        return _phase(name, who, step, jobs, note)

    mask_of = partial(
        mask, space, entry=entry, strip_prefix=strip_prefix, select=select, saturate=saturate
    )

    def mask_one(user: int) -> MaskReport:
        weight = weights[user - 1] if weights else 1.0
        residual = _residual_path(residuals, user) if residuals else None
        return mask_of(
            user, gradients[user - 1], weight=weight, residual=residual, access=access(user)
        )

    if surveyed is None:
        surveyed = survey(
            space.session.layout,
            gradients,
            masking,
            residuals=residuals,
            entry=entry,
            strip_prefix=strip_prefix,
            jobs=jobs,
            note=note,
        )
    if not saturate:
        open_users = [user for user in masking if not _has_masked(space, user)]
        names = {user: f"{user} ({gradients[user - 1].name})" for user in open_users}
        check_clips(p.clip, {names[user]: surveyed.largest[user] for user in open_users})
    with space.run_of_all():
        _check_unchanged(space)
        phase(
            "offline", users, lambda n: offline(space, n, randomness=randomness, access=access(n))
        )
        masked = phase("mask", masking, mask_one)
        survivors = freeze(space, masking, access=access(space.session.freezer)).survivors
        if space.session.confirm:
            phase("confirm", users, lambda n: confirm(space, n, access=access(n)))
        answered = phase("eliminate", answering, lambda n: eliminate(space, n, access=access(n)))
        if len(answering) < construction(p).answer_shape(len(survivors)).quorum:
            again = partial(eliminate, space, fallback=True)
            answered = phase("eliminate, fallback", answering, lambda n: again(n, access=access(n)))
        silent = left.silent if residuals is not None else []
        if silent:  # what they sent is in the sum as well
            phase("settle", silent, lambda n: settle(space, n))
        decoded = decode(space, output, mean=mean, progress=partial(note, "decode", 0, 1))
        return RunReport(
            masked=list(masked.values()),
            answered=list(answered.values()),
            settled=silent,
            decoded=decoded,
        )


@contextmanager
def withdrawn_unless_drawn(space: Workspace, *, new: bool) -> Iterator[None]:
    """Take a new session.json back if `run` stops before anything secret is drawn.

    Then nobody has used it, and the folder is free for another try with other parameters.
    """
    try:
        yield
    except BaseException:
        if new:
            with suppress(SecAggError, OSError), space.run_of_all():
                if not any(space.private.glob("user-*")):
                    space.session_path.unlink(missing_ok=True)
        raise


def _check_unchanged(space: Workspace) -> None:
    """Refuse a session.json that another `run` has taken back or written anew since it was read."""
    if read_session(space.session_path).id != space.session.id:
        raise Busy("another process has just started this round anew", "run this again")


def _has_masked(space: Workspace, user: int) -> bool:
    """Whether an interrupted `run` went that far: then the residual may have been committed."""
    with suppress(SecAggError):
        ledger = Ledger.read(space.ledger_path(user), space.session.id, user)
        return ledger.masked is not None
    return False


def _residual_path(folder: Path, user: int) -> Path:
    return folder / f"user-{user:02}.h5"


def _phase(
    name: str,
    who: Sequence[int],
    step: Callable[[int], Report],
    jobs: int | None,
    note: Note,
) -> dict[int, Report]:
    """A step of several users, of whom the first failure is raised; `note` hears of each."""
    note(name, 0, len(who))
    return for_each(who, step, jobs, lambda user: note(name, user, len(who))).every_report()
