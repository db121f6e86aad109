"""`run`: all steps of all users in one go, through the same files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from ..brief import Brief
from ..errors import Advice, Busy, SecAggError, UsageError, counted
from ..gradients.arrays import Given
from ..gradients.layout import Layout
from ..gradients.tensors import is_path
from ..progress import UserProgress, unheard_of_users
from ..protocol.parameters import SHARES
from ..storage.basis import of_round
from ..storage.session import read_session
from ..storage.workspace import Workspace
from .arguments import (
    CIPHER,
    OS,
    SELECTIONS,
    SOURCES,
    AnyPath,
    AnyRound,
    by_user,
    check_choice,
    optional_path,
    whole_number,
    workspace,
)
from .decode import DecodeReport, decode
from .dropouts import remaining
from .eliminate import EliminateReport
from .following import Following
from .init import Clips, InitReport, start_chosen, start_like
from .mask import MaskReport
from .options import SessionOptions, choose_round, given_options
from .play import Play, Survey
from .sending import clip_note, fitting_clips
from .user_files import check_output, gradients_by_user, weights_by_user

_OF_READING = {"entry", "strip_prefix"}  # options that do not change a session


@dataclass(frozen=True, repr=False)
class RunReport(Brief):
    """Who did what, and what came out. A gradient as it is has `plain_bytes`; `files` are the
    gradients that are files.

    `round` is the round as a Workspace, and `started` what `init` would have returned, or None if
    the round was there and nothing was said about it.
    """

    masked: list[MaskReport]
    answered: list[EliminateReport]
    decoded: DecodeReport
    plain_bytes: int
    files: dict[int, Path]
    round: Workspace = field(repr=False)
    started: InitReport | None = field(repr=False)

    @property
    def total(self) -> Given:
        """The sum or the mean in the form of a gradient."""
        return self.decoded.total


def run(
    round: AnyRound,
    gradients: Any,
    *,
    from_: AnyRound | None = None,
    new_keys: bool = False,
    generation: int | None = None,
    clip_from_sum: float | None = None,
    drop_masking: Collection[int] = (),
    drop_elimination: Collection[int] = (),
    weights: Mapping[int, float] | Sequence[float] | AnyPath | None = None,
    feedback: bool = False,
    again: bool = False,
    secrets: AnyPath | None = None,
    output: AnyPath | None = None,
    mean: bool = False,
    select: str = "top",
    saturate: bool = False,
    randomness: str = CIPHER,
    jobs: int | None = None,
    progress: UserProgress = unheard_of_users,
    started: Callable[[InitReport], None] = lambda _: None,
    **options: Unpack[SessionOptions],
) -> RunReport:
    """A whole round on one machine: every user's steps, less those of the users that drop out.

    It starts the round, as `init` does, with the number and the layout of the gradients; a round
    that has been started is used as it is, or with the same options. All gradients are checked
    before any offline work. The same call resumes an interrupted round.

    Arguments:
    round: the folder of the round.
    gradients: of users 1 to N: a folder, whose files are sorted naturally by name; a pattern, such
        as "DIR/*/grad.pt"; a list of files, or of gradients in memory; or a mapping {user: file or
        gradient}. A folder that save_pretrained wrote stands for its file.
    from_: another round, which this one is like, as in `init`: the next one of a series, whose keys
        follow from those of that round.
    new_keys: with `from_`, start a new series: every user deals new keys.
    generation: with `from_`, how late in the series the round is; by default the next one.
    clip_from_sum: with `from_`, the clip of each tensor is so many times the largest magnitude of
        that round's sum, divided by the largest weight.
    drop_masking: users that never send an X; they are not in the sum.
    drop_elimination: users that send an X, and never answer.
    weights: what each user's gradient is multiplied with: a list, a mapping {user: weight}, or a
        table of users or files and weights (.csv or .json). 1 by default. The largest is then the
        round's `max_weight`.
    feedback: add what a user's last X that counted did not send, and keep what this one does not.
    again: send gradients again that were sent in another round.
    secrets: the folder of all users' secrets, ledgers and identities, instead of the round's own;
        a sealed round needs it.
    output: write the sum there too: .pt, .safetensors, .npz or .npy.
    mean: divide what `output` gets, and `total` of the report, by the sum of the survivors'
        weights.
    select: "top" sends the largest magnitudes, "random" random coordinates.
    saturate: clamp values beyond the clip, and count them, instead of refusing; always so with
        `feedback`.
    randomness: "cipher" (AES-256-CTR keyed by the operating system) or "os" (every byte from it).
    jobs: users to work on at a time; the number of cores by default.
    progress: called as progress(phase, user, count) when a user has finished a phase (user 0 at its
        start); of decoding, also with the share that is done.
    started: called with the InitReport before the first step, if the round was started or compared.
    users: N; the number of gradients by default, and nothing else.
    survivors: U, the users that must remain at least.
    colluders: T, the users that together learn nothing but the sum.
    like: a gradient, whose names, shapes and types all have; the first one by default.
    length: L, for gradients that are one flat vector.
    entry: the entry of a PyTorch checkpoint that holds the tensors.
    strip_prefix: taken off tensor names that begin with it.
    only: patterns; only tensors with such a name.
    exclude: patterns; no tensors with such a name. By default the buffers of batch norm.
    max_weight: the largest weight that a user may give its gradient; 1 by default.
    recipients: the users' public keys, a line each as `keygen` makes it: seals and signs the files.
    freezer: the user that freezes; 1 by default, and none where users confirm.
    confirm: whether users must confirm the survivors.
    feedback_decay: what is left of a residual in the next round, from 0 to 1; 1 by default.
    context: a file that all users train from; its digest is in the session.
    weight_name: what weights are, such as "examples"; users see it in the session.
    top_k: K, the coordinates that each user sends; or
    density: K as a share of the gradient's length, such as 0.01; or
    rank: low rank: every matrix is projected on so many columns; for series; or
    whole: everything is sent.
    whole_tensors: patterns; tensors with such a name are sent whole.
    field: q, a prime below 2^32; 65521 by default with low rank.
    construction: "permutation" (the paper's) or "sketch"; by default permutation while its offline
        files stay below 256 MiB, and else sketch.
    dealing: "keys" (sketch) or "shares", which are written out and
        which randomness from the operating system needs.
    picks: P, in the construction sketch.
    clip: the largest magnitude of a gradient's values; by default that of all gradients (with
        their residuals) that are sent, for each tensor.

    Returns a RunReport: `masked` and `answered`, a report for each user, `decoded`, and the sum as
    its `total`.
    """
    space = workspace(round, secrets)
    check_choice("selection", select, SELECTIONS)
    check_choice("source of randomness", randomness, SOURCES)
    before = None if from_ is None else Workspace(workspace(from_).root, space.secrets)
    listed = gradients if is_path(gradients) else by_user("gradients", gradients)
    written_to = optional_path("output", output)
    if written_to is not None:
        check_output(written_to, [listed] if is_path(listed) else listed.values())
    given = gradients_by_user(listed)
    left = remaining(given, drop_masking, drop_elimination)
    weight = weights_by_user(weights, given)
    play = Play(
        gradients=given,
        left=left,
        weights=weight,
        feedback=feedback,
        entry=options.get("entry") or "",
        strip_prefix=options.get("strip_prefix") or "",
        select=select,
        saturate=saturate,
        again=again,
        context=options.get("context"),
        randomness=randomness,
        earlier=before,
        jobs=jobs,
        progress=progress,
    )
    begun = None
    looking = _Looking(space, play, fits=options.get("clip") is None and clip_from_sum is None)
    largest_weight = None if weights is None else max(weight.values())
    if before is not None:
        if largest_weight is not None and given_options(options):
            options["max_weight"] = largest_weight
        begun = _begin_like(
            space,
            looking,
            before=before,
            clip_from_sum=clip_from_sum,
            options=options,
            new_keys=new_keys,
            generation=generation,
        )
    elif space.session_path.exists() and not _describes_round(options, randomness):
        _check_count(given, len(space.users()))
        s = space.session
        looking.look(s.layout, Following(s.reduction, of_round(space)), s.feedback_decay)
    else:
        implied: SessionOptions = {}
        if randomness == OS and options.get("dealing") is None:
            implied["dealing"] = SHARES
        if largest_weight is not None:
            implied["max_weight"] = largest_weight
        begun = _begin(space, looking, {**options, **implied})
    survey = looking.survey
    if begun is not None:
        space = Workspace(begun.round.root, space.secrets)
        started(begun)
    with withdrawn_unless_drawn(space, new=begun is not None and begun.written):
        play.check(space, survey)
        with space.run_of_all():
            _check_unchanged(space)
            masked, answered = play.steps(space)
            of_decoding = partial(progress, "decode", 0, 1)
            decoded = decode(space, written_to, mean=mean, progress=of_decoding)
    return RunReport(
        masked=masked,
        answered=answered,
        decoded=decoded,
        plain_bytes=survey.plain_bytes,
        files={user: path for user, path in given.items() if isinstance(path, Path)},
        round=space,
        started=begun,
    )


def _describes_round(options: SessionOptions, randomness: str) -> bool:
    """Whether the options say what a round should be like: then it is started, or must agree.

    How shares are dealt says nothing new where the randomness is the operating system's.
    """
    implied = {"dealing"} if randomness == OS else set()
    return bool(given_options(options).keys() - _OF_READING - implied)


def _check_count(gradients: Mapping[int, Given], users: int) -> None:
    if len(gradients) != users:
        raise UsageError(
            f"{counted(len(gradients), 'gradient')} for {counted(users, 'user')}",
            "one file per user is needed",
        )


@dataclass
class _Looking:
    """Looks at all gradients before a round starts, and finds clips that fit them if none is
    given."""

    space: Workspace
    play: Play
    fits: bool
    survey: Survey = field(default_factory=lambda: Survey({}, 0))

    def look(self, layout: Layout, following: Following, decay: float) -> None:
        """Read all gradients."""
        session = self.space.session.id if self.space.session_path.exists() else ""
        self.survey = self.play.survey(layout, following, session=session, decay=decay)

    def clips(self, layout: Layout, following: Following, decay: float) -> Clips | None:
        """Those of the session, if there is one, or of the gradients; None if some are given."""
        self.look(layout, following, decay)
        if not self.fits:
            return None
        if self.space.session_path.exists():
            return self.space.session.clips
        return fitting_clips(following.reduction, self.survey.largest.values())

    def noted(self, begun: InitReport, *, resumed: bool) -> InitReport:
        """Say where clips come from that nobody gave, and what they mean for the quantiser."""
        if not self.fits:
            return begun
        s = begun.round.session
        origin = (
            f"the clip is {max(s.clips):.6g}, as session.json says"
            if resumed
            else clip_note(s.clips, residuals=self.play.feedback)
        )
        note = f"{origin}; one step of the quantiser is {s.fixed_point.step:.3g}"
        return replace(begun, notes=(*begun.notes, note))


def _begin(space: Workspace, looking: _Looking, options: SessionOptions) -> InitReport:
    """Look at all gradients, and start a round with a clip that fits them if none is given."""
    gradients = looking.play.gradients
    users = options.get("users")
    if users is not None:
        _check_count(gradients, whole_number("users", users))
    options = {**options, "users": len(gradients)}
    if options.get("like") is None and options.get("length") is None:
        options["like"] = gradients[1]
    resumed = space.session_path.exists()
    with _counting_gradients(len(gradients)):
        choice = choose_round(options)
        begun = start_chosen(space.root, choice, options, fit=looking.clips)
    return looking.noted(begun, resumed=resumed)


@contextmanager
def _counting_gradients(count: int) -> Iterator[None]:
    """Where there are too few users, say of what their number is."""
    try:
        yield
    except UsageError as error:
        if error.advice is not Advice.TOO_FEW_USERS:
            raise
        hint = f"{error.hint}; N is the number of gradients that were given: {count}"
        raise error.but(hint=hint) from error


def _begin_like(
    space: Workspace,
    looking: _Looking,
    before: Workspace,
    clip_from_sum: float | None,
    options: SessionOptions,
    *,
    new_keys: bool,
    generation: int | None,
) -> InitReport:
    """Start a round like an earlier one, with a clip that fits the gradients if none is given."""
    _check_count(looking.play.gradients, len(before.users()))
    resumed = space.session_path.exists()
    begun = start_like(
        space.root,
        before,
        clip_from_sum=clip_from_sum,
        new_keys=new_keys,
        generation=generation,
        options=options,
        fit=looking.clips,
    )
    return looking.noted(begun, resumed=resumed)


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
