"""`run`: all steps of all users in one go, through the same files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ..brief import Brief
from ..errors import Refused, TooFewSurvivors, UsageError, about
from ..gradients.quantize import check_clip
from ..protocol.constructions import construction
from ..storage import survivors as survivors_file
from ..storage.atomic import make_folder
from ..storage.workspace import Workspace
from .access import Access
from .decode import DecodeReport, decode
from .each import Report, for_each
from .eliminate import EliminateReport, eliminate
from .freeze import confirm, freeze
from .mask import MaskReport, mask, read_flat
from .offline import offline


@dataclass(frozen=True, repr=False)
class RunReport(Brief):
    """Who did what, and what came out."""

    masked: list[MaskReport]
    answered: list[EliminateReport]
    decoded: DecodeReport


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
    note: Callable[..., None] = lambda *_: None,
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
    masking = [user for user in users if user not in drop_masking]
    answering = [user for user in masking if user not in drop_elimination]
    p = space.session.parameters
    c = construction(p)
    least = c.answer_shape(len(masking), fallback=True).quorum
    for left, need, what in ((masking, p.survivors, "mask"), (answering, least, "answer")):
        if len(left) < need:
            raise TooFewSurvivors(
                f"{len(left)} users would {what}, and {need} are needed", "let fewer users drop out"
            )
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
            space.check_user(user)
            if path(user).exists():
                raise Refused(
                    f"user {user} has {what} in this round already", "choose another folder"
                )
    if residuals is not None:
        make_folder(residuals, private=True)

    def access(user: int) -> Access:
        return Access(
            identities[user - 1] if identities else None, insecure=True
        )  # who runs it has said so

    def phase(name: str, who: Sequence[int], step: Callable[[int], Report]) -> dict[int, Report]:
        note(name, 0, len(who))
        return for_each(who, step, jobs, lambda user: note(name, user, len(who))).check()

    mask_of = partial(
        mask, space, entry=entry, strip_prefix=strip_prefix, select=select, saturate=saturate
    )

    def mask_one(user: int) -> MaskReport:
        weight = weights[user - 1] if weights else 1.0
        residual = residuals / f"user-{user:02}.h5" if residuals else None
        return mask_of(
            user, gradients[user - 1], weight=weight, residual=residual, access=access(user)
        )

    def check_one(user: int) -> None:
        path = gradients[user - 1]
        flat, _ = read_flat(space.session, path, entry, strip_prefix)
        if select == "top" and not saturate and not residuals:  # as `mask` would refuse it
            with about(path):
                check_clip(p, flat[c.select(flat)].astype(np.float64))

    phase("check", masking, check_one)
    with space.run_of_all():
        phase(
            "offline", users, lambda n: offline(space, n, randomness=randomness, access=access(n))
        )
        masked = phase("mask", masking, mask_one)
        survivors = freeze(space, masking, access=access(space.session.freezer)).survivors
        if space.session.confirm:
            phase("confirm", users, lambda n: confirm(space, n, access=access(n)))
        answered = phase("eliminate", answering, lambda n: eliminate(space, n, access=access(n)))
        if len(answering) < c.answer_shape(len(survivors)).quorum:
            again = partial(eliminate, space, fallback=True)
            answered = phase("eliminate, fallback", answering, lambda n: again(n, access=access(n)))
        decoded = decode(space, output, mean=mean, progress=partial(note, "decode", 0, 1))
        return RunReport(list(masked.values()), list(answered.values()), decoded)
