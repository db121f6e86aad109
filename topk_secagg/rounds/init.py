"""`init`: what all users agree on, written into session.json."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from ..algebra import entropy
from ..algebra.bases import Basis
from ..brief import Brief
from ..errors import Advice, Refused, SecAggError, UsageError
from ..gradients.layout import Layout
from ..gradients.reduce import Reduction
from ..protocol.constructions import construction
from ..protocol.family import check_family, find_family
from ..protocol.parameters import DERIVED, KEYS, Parameters
from ..storage import basis as basis_file
from ..storage.atomic import make_folder, mark_done, write_whole
from ..storage.keys import read_recipients
from ..storage.session import Series, Session
from ..storage.workspace import Workspace
from .arguments import (
    AnyPath,
    AnyRound,
    context_digest,
    optional_path,
    real_number,
    whole_number,
    workspace,
)
from .costs import check_disk
from .following import (
    FIRST_OF_LOW_RANK,
    Following,
    LastSum,
    after_no_sum,
    after_sum,
    clips_after,
    default_factor,
    first,
    last_sum,
    sum_for_clip,
)
from .options import (
    OF_REDUCTION,
    Choice,
    SessionOptions,
    changed_parameters,
    changed_reduction,
    choose_layout,
    choose_round,
    given_options,
    same_clips,
    with_fit,
)

Clips = tuple[float, ...]  # of the tensors
# clips that fit gradients which are known; None where others are given
Fit = Callable[[Layout, Following, float], Clips | None]

_NONCE_BYTES = 16
_OF_LAYOUT = {"like", "length", "entry", "strip_prefix", "only", "exclude"}
_OF_PARAMETERS = {"top_k", "density", "rank", "picks", "max_weight", "field"}
_OF_SESSION = {"feedback_decay", "clip", "weight_name", "context"}


@dataclass(frozen=True, repr=False)
class InitReport(Brief):
    """The round (`Workspace`), whether this call wrote its session.json, why it has this
    construction (empty if it was given), and what its users should know."""

    round: Workspace
    written: bool
    reason: str = ""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def init(
    round: AnyRound,
    *,
    from_: AnyRound | None = None,
    clip_from_sum: float | None = None,
    new_keys: bool = False,
    generation: int | None = None,
    secrets: AnyPath | None = None,
    distributed: bool = False,
    **options: Unpack[SessionOptions],
) -> InitReport:
    """Start a round: fix what all users agree on, and write session.json into its folder.

    A round that was started in the same way is left as it is. Give users, survivors and colluders,
    either `like` or `length`, and one of `top_k`, `density`, `rank` and `whole`. With `from_`
    nothing is required: the round is like that one, and a later one of its series.

    Arguments:
    round: the folder of the round.
    from_: another round, of which this one takes everything but the nonce and the context; the
        layout, how it is reduced, picks, clip, max_weight, weight_name, field and feedback_decay
        may be given anew.
    clip_from_sum: with `from_`, the clip of each tensor is so many times the largest magnitude of
        that round's sum, divided by the largest weight; 2 by default with low rank (1/4 with
        symbols of one byte).
    new_keys: with `from_`, start a new series: every user deals new keys.
    generation: with `from_`, how late in the series the round is; by default one more than the
        latest that the other round and the users' chains that are here know.
    secrets: with `from_`, the folder of secrets in which users' chains are.
    distributed: every user has its own machine, so that disk space for one user is enough.
    users: N.
    survivors: U, the users that must remain at least.
    colluders: T, the users that together learn nothing but the sum.
    like: a gradient, as a file or in memory: all gradients of the round have its names, shapes and
        types.
    length: L, for gradients that are one flat vector.
    entry: the entry of a PyTorch checkpoint that holds the tensors.
    strip_prefix: taken off tensor names that begin with it.
    only: patterns; only tensors with such a name.
    exclude: patterns; no tensors with such a name. By default the buffers of batch norm.
    max_weight: the largest weight that a user may give its gradient; 1 by default.
    recipients: the users' public keys, a line each as `keygen` makes it: seals and signs the files.
    freezer: the user that freezes; 1 by default, and none where users confirm.
    confirm: whether users must confirm the survivors.
    context: a file; `mask` refuses another one, so that all users train from the same model.
    weight_name: what weights are, such as "examples"; users see it in the session.
    feedback_decay: what is left of a residual in the next round, from 0 to 1; 1 by default.
    top_k: K, the coordinates that each user sends; or
    density: K as a share of the gradient's length, such as 0.01; or
    rank: low rank: every matrix is projected on so many columns; for series; or
    whole: everything is sent.
    whole_tensors: patterns; tensors with such a name are sent whole.
    field: q, a prime below 2^32; 65521 by default with low rank.
    construction: "permutation" (the paper's) or "sketch"; by default permutation while its offline
        files stay below 256 MiB, and else sketch.
    dealing: "keys" (sketch) or "shares", which are written out.
    picks: P, in the construction sketch.
    clip: the largest magnitude of a gradient's values; 1 by default.

    Returns an InitReport, which has the round as a Workspace, and whether it is new.
    """
    root = workspace(round).root
    if from_ is not None:
        return start_like(
            root,
            workspace(from_, secrets),
            clip_from_sum=clip_from_sum,
            new_keys=new_keys,
            generation=generation,
            options=options,
        )
    if generation is not None:
        raise UsageError("a generation is one of a series, and no earlier round is given")
    if clip_from_sum is not None:
        raise UsageError("the clip comes from the sum of another round, and none is given")
    if new_keys:
        raise UsageError("new keys replace those of another round, and none is given")
    choice = with_fit(choose_round(options), options.get("like"))
    return start_chosen(root, choice, options, distributed=distributed)


def start_chosen(
    root: Path,
    choice: Choice,
    options: SessionOptions,
    *,
    fit: Fit | None = None,
    distributed: bool = False,
) -> InitReport:
    """Start a round with the parameters and the layout that were chosen, and with the clips that
    `fit` finds, if it finds some.

    Of the options only those are read that are not in the choice already. `distributed` is as in
    `init`.
    """
    p = choice.parameters
    decay = _decay(options.get("feedback_decay"), 1.0)
    recipients = optional_path("recipients", options.get("recipients"))
    points = construction(p).points()
    session = partial(
        Session,
        parameters=p,
        points=points,
        layout=choice.layout,
        reduction=choice.reduction,
        weight_name=options.get("weight_name"),
        context=context_digest(options.get("context")),
        family=find_family(p, points) if p.dealing == KEYS else None,
        recipients=read_recipients(recipients, p.users) if recipients else None,
        freezer=_freezer(options),
        confirm=bool(options.get("confirm")),
        feedback_decay=decay,
    )

    def drafted(nonce: str) -> _Draft:
        following = first(choice.reduction, choice.layout, nonce)
        clips = fit(choice.layout, following, decay) if fit else None
        draft = session(clips=clips or choice.clips, basis=following.digest, nonce=nonce)
        return _Draft(draft, following.bases)

    space, new = _write_session(root, drafted, distributed=distributed)
    of_rank = (FIRST_OF_LOW_RANK,) if choice.reduction.has_basis else ()
    return InitReport(
        round=space,
        written=new,
        reason=choice.reason,
        notes=(*choice.notes, *of_rank),
        warnings=_warnings(p),
    )


def _decay(given: Any, usual: float) -> float:
    """What is left of a residual in the next round."""
    return usual if given is None else real_number("feedback_decay", given)


def _freezer(options: SessionOptions) -> int | None:
    """Who freezes: nobody where users confirm."""
    freezer = options.get("freezer")
    if not options.get("confirm"):
        return 1 if freezer is None else whole_number("freezer", freezer)
    if freezer is not None:
        raise UsageError(
            "a freezer and confirmations are given: where users confirm, anybody proposes",
            "leave out the freezer",
        )
    return None


def _warnings(p: Parameters) -> tuple[str, ...]:
    if p.survivors > p.colluders + 1:
        return ()
    return (
        "U = T + 1: when only U users remain, T of them can subtract their inputs and see the "
        "last one",
    )


def start_like(
    root: Path,
    before: Workspace,
    *,
    clip_from_sum: float | None = None,
    new_keys: bool = False,
    generation: int | None = None,
    options: SessionOptions,
    fit: Fit | None = None,
) -> InitReport:
    """Start a round like another one: everything in its session.json but the nonce, and nothing
    else of it; `options` may change its layout and what follows from it.

    It is a later generation of a series, unless `new_keys`. Clips are those that are given, that
    follow from the last sum with the factor `clip_from_sum`, or that `fit` finds.
    """
    session = before.session
    given = given_options(options)
    allowed = _OF_LAYOUT | OF_REDUCTION | _OF_PARAMETERS | _OF_SESSION
    if unknown := sorted(given.keys() - allowed):
        raise UsageError(
            f"{unknown[0]} comes from the other round",
            f"leave out {', '.join(unknown)}",
            Advice.OF_OTHER_ROUND,
            option=unknown[0],
        )
    if "clip" in given and clip_from_sum is not None:
        raise UsageError("both a clip and a factor for the sum are given", advice=Advice.CLIP_TWICE)
    layout = session.layout
    if given.keys() & _OF_LAYOUT:
        layout, _ = choose_layout(**{name: given[name] for name in _OF_LAYOUT if name in given})
    reduction = changed_reduction(session, layout, given)
    changed = {name: given[name] for name in _OF_PARAMETERS if name in given}
    p = changed_parameters(session.parameters, reduction, changed)
    if session.family is not None and p.field != session.parameters.field:
        check_family(p, session.points, session.family)
    there = _started(root)
    # a sum that came after the round was started changes nothing
    goes_on = there is None or there.before == session.id
    last = last_sum(before) if goes_on and _reads_sum(reduction, clip_from_sum) else None
    decay = _decay(given.get("feedback_decay"), session.feedback_decay)

    def drafted(nonce: str) -> _Draft:
        following = _following(reduction, layout, nonce, before, last)
        # the two sides may differ in their length
        of_side = changed_parameters(session.parameters, following.reduction, changed)
        fitting = fit(layout, following, decay) if fit else None
        draft = replace(
            session,
            id="",
            parameters=of_side,
            layout=layout,
            reduction=following.reduction,
            clips=fitting or chosen_clips(following, of_side),
            basis=following.digest,
            nonce=nonce,
            weight_name=given.get("weight_name", session.weight_name),
            context=context_digest(given.get("context")),
            series=None if new_keys else _later(before, generation, there),
            before=_before(before, there),
            feedback_decay=decay,
        )
        return _Draft(draft, following.bases)

    def chosen_clips(following: Following, p: Parameters) -> Clips:
        return _clips(
            session,
            layout,
            following,
            p,
            last=last if clip_from_sum is None else sum_for_clip(last, before),
            clip=given.get("clip"),
            factor=clip_from_sum,
        )

    space, new = _write_session(root, drafted, distributed=True)
    finds_basis = reduction.has_basis and not session.reduction.has_basis
    notes = (FIRST_OF_LOW_RANK,) if finds_basis else ()
    return InitReport(round=space, written=new, notes=notes, warnings=_warnings(p))


def _reads_sum(reduction: Reduction, clip_from_sum: float | None) -> bool:
    """Whether a basis or a clip follows from the last sum."""
    return reduction.has_basis or clip_from_sum is not None


def _following(
    reduction: Reduction, layout: Layout, nonce: str, before: Workspace, last: LastSum | None
) -> Following:
    """On which basis the next round projects."""
    if last is not None:
        return after_sum(reduction, layout, nonce, last)
    if before.session.before is not None:
        return after_no_sum(reduction, layout, nonce, before)
    return first(reduction, layout, nonce)


def _clips(
    before: Session,
    layout: Layout,
    following: Following,
    p: Parameters,
    *,
    last: LastSum | None,
    clip: Any,
    factor: float | None,
) -> Clips:
    """Of each tensor: the one that is given, or from the last sum, or as it was."""
    if clip is not None:
        return same_clips(layout, clip)
    if factor is None and layout == before.layout:
        factor = default_factor(p, following.reduction)
    if factor is not None and last is not None:
        return clips_after(last, following, layout, real_number("clip_from_sum", factor))
    if len(layout.slots) == len(before.clips):
        return before.clips
    return same_clips(layout, max(before.clips))


def _started(root: Path) -> Session | None:
    """The session that is in the folder already."""
    space = Workspace(root)
    return space.session if space.session_path.exists() else None


def _later(before: Workspace, generation: int | None, there: Session | None) -> Series:
    """A later round of a series: the one that was started already, if nothing else is asked for."""
    from .series import latest_generation  # which a round that starts anew need not load

    session = before.session
    root = session.series_root
    if generation is not None:
        if whole_number("generation", generation) <= session.generation:
            raise UsageError(
                f"generation {generation} is not after the other round's, {session.generation}",
                "give a larger one, or none",
            )
        return Series(root, generation)
    known = None if there is None else there.series
    if known is not None and known.root == root and known.generation > session.generation:
        return known
    return Series(root, 1 + latest_generation(before))


def _before(before: Workspace, there: Session | None) -> str | None:
    """The last session that gave a sum; of a round that was started already, the one that it
    names."""
    from ..storage import aggregate as aggregate_file
    from ..storage.artifacts import opened

    session = before.session
    if there is not None and there.before in (session.id, session.before):
        return there.before
    with suppress(SecAggError), opened(before.aggregate_path, aggregate_file.KIND) as artifact:
        artifact.expect_attributes({"session": session.id})
        return session.id
    return session.before


class _Draft(NamedTuple):
    """A session that is to be written, and its basis."""

    session: Session
    bases: list[Basis]


def _write_session(
    root: Path, drafted: Callable[[str], _Draft], *, distributed: bool
) -> tuple[Workspace, bool]:
    """Write session.json if there is none, with a new nonce, and then the basis; say whether it is
    new. One that is there must agree, but for its nonce."""
    space = Workspace(root)
    new = not space.session_path.exists()
    if new:
        draft = drafted(entropy.draw(_NONCE_BYTES, "nonce of a session").hex())
        check_disk(root, draft.session.parameters, distributed=distributed)
    make_folder(root)
    # a second `run` does not stop the first, which decodes now
    with space.step_of_account() if new else nullcontext():
        if not space.session_path.exists():
            write_whole(space.session_path, draft.session.content())
        else:
            draft = drafted(space.session.nonce)
            if not _agree(space.session, draft.session):
                raise Refused(
                    f"{space.session_path} exists, with other parameters: "
                    + ", ".join(_differences(space.session, draft.session)),
                    "choose another folder",
                )
            mark_done(space.session_path)
        if draft.session.basis is not None and not space.basis_path.exists():
            basis_file.write(space, draft.bases)
        space.make_rooms()
    return space, new


def _agree(there: Session, here: Session) -> bool:
    """Whether two sessions are the same but for what belongs to a file, and for the family: any
    that meets the condition will do."""
    compared = [each.name for each in fields(Session) if each.name not in ("id", "nonce", "family")]
    return all(getattr(there, name) == getattr(here, name) for name in compared)


def _differences(there: Session, here: Session) -> Iterator[str]:
    """What two sessions disagree about, as phrases; not what follows from other differences."""
    old = vars(there.parameters)
    new = vars(here.parameters)
    names = [name for name in old if old[name] != new[name]]
    for name in [name for name in names if name not in DERIVED] or names:
        yield f"{name} is {_said(old[name])} there and {_said(new[name])} here"
    for name in ("freezer", "confirm", "feedback_decay", "weight_name", "context"):
        old_value = getattr(there, name)
        new_value = getattr(here, name)
        if old_value != new_value:
            yield f"{name} is {_said(old_value)} there and {_said(new_value)} here"
    if there.series != here.series:
        yield "it is another round of a series"
    if there.recipients != here.recipients:
        yield "the users' keys differ"
    if there.layout != here.layout:
        yield "the layout of the gradient differs"
    if there.reduction.kinds != here.reduction.kinds:
        yield "other tensors are projected or sent whole"
    if there.clips != here.clips:
        yield f"the clip is {max(there.clips):g} there and {max(here.clips):g} here"
    if there.basis != here.basis:
        yield "the basis differs"
    if there.points != here.points and not names:
        yield "the points differ"


def _said(value: Any) -> str:
    return "not given" if value is None else repr(value)
