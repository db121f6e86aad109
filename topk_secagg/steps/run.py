"""`run`: all steps of all users in one go, through the same files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from ..brief import Brief
from ..errors import Busy, Refused, SecAggError, UsageError, about
from ..gradients.arrays import Given, Vector, is_path
from ..gradients.layout import Layout
from ..gradients.quantise import check_clips, clip_of, magnitude
from ..protocol.constructions import construction
from ..protocol.parameters import SHARES
from ..storage import residual as residual_file
from ..storage import survivors as survivors_file
from ..storage.atomic import make_folder
from ..storage.ledger import Ledger
from ..storage.session import read_session
from ..storage.workspace import Workspace
from .access import TakingPart
from .arguments import (
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
from .dropouts import Remaining, remaining
from .each import Report, for_each
from .eliminate import EliminateReport, eliminate
from .freeze import confirm, freeze
from .init import (
    Choice,
    InitReport,
    SessionOptions,
    choose_layout,
    choose_round,
    chosen_layout,
    chosen_parameters,
    given_options,
    start_chosen,
    start_like,
)
from .mask import MaskReport, mask
from .offline import offline
from .sending import clip_note, read_gradient_of, subject_of, with_residual
from .settle import settle
from .user_files import check_output, gradients_by_user, identities_by_user, weights_by_user

Note = Callable[..., None]
_OF_READING = {"entry", "strip_prefix"}  # options that do not change a session


@dataclass(frozen=True, repr=False)
class RunReport(Brief):
    """Who did what, and what came out; `settled` are the survivors that did not answer, and whose
    residuals were committed all the same. A gradient as it is has `plain_bytes`; `files` are the
    gradients that are files.

    `round` is the round as a Workspace, and `started` what `init` would have returned, or None if
    the round was there and nothing was said about it.
    """

    masked: list[MaskReport]
    answered: list[EliminateReport]
    settled: list[int]
    decoded: DecodeReport
    plain_bytes: int
    files: dict[int, Path]
    round: Workspace = field(repr=False)
    started: InitReport | None = field(repr=False)

    @property
    def total(self) -> Given:
        """The sum or the mean in the form of a gradient."""
        return self.decoded.total


@dataclass(frozen=True)
class Survey:
    """What the gradients of a round are like before it starts: the largest magnitude that each user
    would send, its residual included, and the bytes of the largest gradient as it is."""

    largest: dict[int, float]
    plain_bytes: int


def run(
    round: AnyRound,
    gradients: Any,
    *,
    from_: AnyRound | None = None,
    new_keys: bool = False,
    clip_from_sum: float | None = None,
    drop_masking: Collection[int] = (),
    drop_elimination: Collection[int] = (),
    weights: Mapping[int, float] | Sequence[float] | AnyPath | None = None,
    residuals: AnyPath | None = None,
    output: AnyPath | None = None,
    mean: bool = False,
    select: str = "top",
    saturate: bool = False,
    randomness: str = "cipher",
    jobs: int | None = None,
    identities: Mapping[int, AnyPath] | Sequence[AnyPath] | AnyPath | None = None,
    note: Note = lambda *_: None,
    started: Callable[[InitReport], None] = lambda _: None,
    **options: Unpack[SessionOptions],
) -> RunReport:
    """A whole round on one machine: every user's steps, less those of the users that drop out.

    It starts the round, as `init` does, with the number and the layout of the gradients; a round
    that has been started is used as it is, or with the same options. All gradients are checked
    before any offline work. The same call resumes an interrupted round.

    Arguments:
    round: the folder of the round.
    gradients: of users 1 to N: a folder, whose files are sorted naturally by name; a list of files,
        or of gradients in memory; or a mapping {user: file or gradient}.
    from_: another round, which this one is like, as in `init`: the next one of a series, whose keys
        follow from those of that round.
    new_keys: with `from_`, start a new series: every user deals new keys.
    clip_from_sum: with `from_`, the clip is so many times the largest magnitude of that round's
        sum, divided by the largest weight.
    drop_masking: users that never send an X; they are not in the sum.
    drop_elimination: users that send an X, and never answer.
    weights: what each user's gradient is multiplied with: a list, a mapping {user: weight}, or a
        table of users or files and weights (.csv or .json). 1 by default. The largest is then the
        round's `max_weight`.
    residuals: a folder for error feedback, with a file for each user.
    output: write the sum there too: .pt, .safetensors, .npz or .npy.
    mean: divide what `output` gets, and `total` of the report, by the sum of the survivors' weights.
    select: "top" sends the largest magnitudes, "random" random coordinates.
    saturate: clamp values beyond the clip, and count them, instead of refusing.
    randomness: "cipher" (AES-256-CTR keyed by the operating system) or "os" (every byte from it).
    jobs: users to work on at a time; the number of cores by default.
    identities: the users' identity files in a sealed round: a folder, a list or {user: file}.
    note: called as note(phase, user, count) when a user has finished a phase (user 0 at its start);
        of decoding, also with the share that is done.
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
    freezer: the user that freezes; 1 by default.
    confirm: whether users must confirm the survivors.
    insecure_seed: draw everything from a public seed: reproducible, and not secret at all.
    top_k: K, the coordinates that each user sends; or
    density: K as a share of the gradient's length, such as 0.01.
    field: q, a prime below 2^32.
    blocks: D, in the construction permutation.
    construction: "permutation" (the paper's), "moments" or "sketch"; or
    minimise: "total" (sketch) or "online" (moments), what a user sends in all or with its gradient.
        By default permutation while its offline files stay below 256 MiB, and else "total".
    dealing: "keys" (sketch), "seeds" (sketch, moments) or "shares", which are written out and
        which randomness from the operating system needs.
    picks: P, in the constructions moments and sketch.
    spare: in the construction moments, pack answers so tightly that only so many may be missing.
    clip: the largest magnitude of a gradient's values; by default that of all gradients (with
        their residuals) that are sent.

    Returns a RunReport: `masked` and `answered`, a report for each user, `decoded`, and the sum as
    its `total`.
    """
    space = workspace(round)
    check_choice("selection", select, SELECTIONS)
    check_choice("source of randomness", randomness, SOURCES)
    if randomness == "os" and options.get("insecure_seed") is not None:
        raise UsageError(
            "a public seed and randomness from the operating system contradict each other",
            topic="seed",
        )
    if randomness == "os" and from_ is None and options.get("dealing") is None:
        options["dealing"] = SHARES
    before = None if from_ is None else workspace(from_)
    listed = gradients if is_path(gradients) else by_user("gradients", gradients)
    written_to = optional_path("output", output)
    if written_to is not None:
        check_output(written_to, [listed] if is_path(listed) else listed.values())
    given = gradients_by_user(listed)
    left = remaining(given, drop_masking, drop_elimination)
    weight = weights_by_user(weights, given)
    if weights is not None and given_options(options):
        options["max_weight"] = max(weight.values())
    play = _Play(
        gradients=given,
        left=left,
        weights=weight,
        residuals=optional_path("residuals", residuals),
        identities=identities_by_user(identities, list(given)),
        entry=options.get("entry") or "",
        strip_prefix=options.get("strip_prefix") or "",
        select=select,
        saturate=saturate,
        randomness=randomness,
        earlier=before,
        jobs=jobs,
        note=note,
    )
    begun = None
    asked = given_options(options).keys() - _OF_READING
    if randomness == "os":
        asked -= {"dealing"}
    if before is not None:
        begun, seen = _begin_like(
            space,
            play,
            before=before,
            clip_from_sum=clip_from_sum,
            options=options,
            new_keys=new_keys,
        )
        space = begun.round
        started(begun)
    elif space.session_path.exists() and not asked:
        _check_count(given, len(space.users()))
        seen = play.survey(space.session.layout)
    else:
        begun, seen = _begin(space, play, options)
        space = begun.round
        started(begun)
    with withdrawn_unless_drawn(space, new=begun is not None and begun.written):
        play.check(space, seen)
        with space.run_of_all():
            _check_unchanged(space)
            masked, answered, settled = play.steps(space)
            progress = partial(note, "decode", 0, 1)
            decoded = decode(space, written_to, mean=mean, progress=progress)
    return RunReport(
        masked=masked,
        answered=answered,
        settled=settled,
        decoded=decoded,
        plain_bytes=seen.plain_bytes,
        files={user: path for user, path in given.items() if isinstance(path, Path)},
        round=space,
        started=begun,
    )


def _check_count(gradients: Mapping[int, Given], users: int) -> None:
    if len(gradients) != users:
        raise UsageError(
            f"{len(gradients)} gradients for {users} users", "one file per user is needed"
        )


def _begin(space: Workspace, play: _Play, options: SessionOptions) -> tuple[InitReport, Survey]:
    """Look at all gradients, and start a round with a clip that fits them if none is given."""
    users = options.get("users")
    if users is not None:
        _check_count(play.gradients, whole_number("users", users))
    options = {**options, "users": len(play.gradients)}
    if options.get("like") is None and options.get("length") is None:
        options["like"] = play.gradients[1]
    if options.get("clip") is not None:
        choice = choose_round(options)
        seen = play.survey(choice.layout)
    else:
        layout, tensors = chosen_layout(options)
        seen = play.survey(layout)
        choice = _with_fitting_clip(space, play, options=options, layout=layout, seen=seen)
        choice = replace(choice, notes=(*(tensors.notes if tensors else ()), *choice.notes))
    return start_chosen(space.root, choice, options), seen


def _begin_like(
    space: Workspace,
    play: _Play,
    before: Workspace,
    clip_from_sum: float | None,
    options: SessionOptions,
    *,
    new_keys: bool,
) -> tuple[InitReport, Survey]:
    """Start a round like an earlier one, with a clip that fits the gradients if none is given."""
    _check_count(play.gradients, len(before.users()))
    layout = before.session.layout
    if options.get("like") is not None or options.get("length") is not None:
        layout, _ = choose_layout(options.get("like"), options.get("length"))
    seen = play.survey(layout)
    if options.get("clip") is None and clip_from_sum is None:
        resumed = space.session_path.exists()
        fitting = clip_of(seen.largest.values())
        options = {**options, "clip": space.session.parameters.clip if resumed else fitting}
    begun = start_like(
        space.root,
        before.root,
        clip_from_sum=clip_from_sum,
        new_keys=new_keys,
        options=options,
    )
    return begun, seen


def _with_fitting_clip(
    space: Workspace, play: _Play, options: SessionOptions, layout: Layout, seen: Survey
) -> Choice:
    """The parameters with the clip of the session, if there is one, or that of the gradients."""
    resumed = space.session_path.exists()
    clip = space.session.parameters.clip if resumed else clip_of(seen.largest.values())
    parameters, reason = chosen_parameters(layout, {**options, "clip": clip})
    origin = (
        f"the clip is {clip:.6g}, as session.json says"
        if resumed
        else clip_note(clip, residuals=play.residuals is not None)
    )
    step = 1 / parameters.scale
    return Choice(
        layout=layout,
        parameters=parameters,
        reason=reason,
        gradient=None,
        notes=(f"{origin}; one step of the quantiser is {step:.3g}",),
    )


@dataclass(frozen=True)
class _Play:
    """Who does what in a round, and how: all steps, each for the users that do it."""

    gradients: Mapping[int, Given]
    left: Remaining
    weights: Mapping[int, float]
    residuals: Path | None
    identities: Mapping[int, Path]
    entry: str
    strip_prefix: str
    select: str
    saturate: bool
    randomness: str
    earlier: Workspace | None
    jobs: int | None
    note: Note

    def survey(self, layout: Layout) -> Survey:
        """Read the gradients of the users that mask, and their residuals; nothing is written."""
        seen = self._phase("check", self.left.masking, partial(self._look, layout))
        return Survey(
            largest={user: largest for user, (largest, _) in seen.items()},
            plain_bytes=max((plain_bytes for _, plain_bytes in seen.values()), default=0),
        )

    def _look(self, layout: Layout, user: int) -> tuple[float, int]:
        """The largest magnitude that a user would send, and the bytes of its gradient as it is."""
        flat, plain_bytes = self._read(layout, user)
        residual = self._residual_path(user)
        if residual is not None:
            carried, _ = residual_file.read(residual, user, layout.length)
            if carried is not None:
                with about(residual):
                    flat = with_residual(flat, carried)
        return magnitude(flat), plain_bytes

    def _read(self, layout: Layout, user: int) -> tuple[Vector, int]:
        """A gradient as a flat vector, and the bytes that it has as it is."""
        gradient = self.gradients[user]
        tensors = read_gradient_of(user, gradient, entry=self.entry, strip_prefix=self.strip_prefix)
        with about(subject_of(user, gradient)):
            return layout.flatten(tensors), layout.plain_bytes(tensors)

    def check(self, space: Workspace, seen: Survey) -> None:
        """Refuse what could only fail later, before anything secret is drawn."""
        p = space.session.parameters
        self.left.check_enough(p)
        frozen = space.survivors_path.exists()
        if frozen and survivors_file.read(space).users != self.left.masking:
            raise Refused(
                "the survivors of this round are fixed already, and differ", "choose another folder"
            )
        for user in space.users():
            masked = user not in self.left.masking and space.masked_path(user).exists()
            answered = user not in self.left.answering and space.answer_path(user).exists()
            if masked or answered:
                what = "masked" if masked else "answered"
                raise Refused(
                    f"user {user} has {what} in this round already", "choose another folder"
                )
        if self.residuals is not None:
            make_folder(self.residuals, private=True)
        if not self.saturate:
            open_users = [user for user in self.left.masking if not _has_masked(space, user)]
            check_clips(p.clip, {self._name(user): seen.largest[user] for user in open_users})

    def _name(self, user: int) -> str:
        """A user in a message, with the name of its file."""
        gradient = self.gradients[user]
        return f"{user} ({gradient.name})" if isinstance(gradient, Path) else str(user)

    def steps(self, space: Workspace) -> tuple[list[MaskReport], list[EliminateReport], list[int]]:
        """Every step up to decoding: the reports of masking and answering, and who was settled."""
        access = self._access
        everybody = list(space.users())
        draw = partial(offline, space, randomness=self.randomness)
        if space.session.series is not None:
            draw = partial(draw, from_=self.earlier)
        self._phase("offline", everybody, lambda n: draw(n, **access(n)))
        masked = self._phase("mask", self.left.masking, partial(self._mask, space))
        freeze(space, self.left.masking, **access(space.session.freezer))
        if space.session.confirm:
            self._phase("confirm", everybody, lambda n: confirm(space, n, **access(n)))
        answered = self._answers(space)
        silent = self.left.silent if self.residuals is not None else []
        if silent:  # what they sent is in the sum as well
            self._phase("settle", silent, lambda n: settle(space, n))
        return list(masked.values()), list(answered.values()), silent

    def _mask(self, space: Workspace, user: int) -> MaskReport:
        return mask(
            space,
            user,
            self.gradients[user],
            entry=self.entry,
            strip_prefix=self.strip_prefix,
            weight=self.weights[user],
            residual=self._residual_path(user),
            select=self.select,
            saturate=self.saturate,
            **self._access(user),
        )

    def _answers(self, space: Workspace) -> dict[int, EliminateReport]:
        """The answers; once more with D = U - T where the first are too few."""
        access = self._access
        users = self.left.answering
        answered = self._phase("eliminate", users, lambda n: eliminate(space, n, **access(n)))
        c = construction(space.session.parameters)
        if len(users) >= c.answer_shape(len(self.left.masking)).quorum:
            return answered
        again = partial(eliminate, space, fallback=True)
        return self._phase("eliminate, fallback", users, lambda n: again(n, **access(n)))

    def _access(self, user: int) -> TakingPart:
        # who runs it has said so
        return {"identity": self.identities.get(user), "insecure": True}

    def _residual_path(self, user: int) -> Path | None:
        return self.residuals / f"user-{user:02}.h5" if self.residuals else None

    def _phase(
        self, name: str, who: Sequence[int], step: Callable[[int], Report]
    ) -> dict[int, Report]:
        """A step of several users, of whom the first failure is raised; `note` hears of each."""
        self.note(name, 0, len(who))
        outcome = for_each(
            who, step, jobs=self.jobs, done=lambda user: self.note(name, user, len(who))
        )
        return outcome.every_report()


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
