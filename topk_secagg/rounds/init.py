"""`init`: what all users agree on, written into session.json."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Unpack

from ..algebra import entropy
from ..brief import Brief
from ..errors import Advice, BadData, InputMissing, Refused, SecAggError, UsageError
from ..gradients.layout import Layout
from ..protocol.constructions import construction
from ..protocol.family import check_family, find_family
from ..protocol.parameters import DERIVED, KEYS, Parameters
from ..storage.atomic import make_folder, mark_done, write_whole
from ..storage.keys import read_recipients
from ..storage.session import Series, Session
from ..storage.workspace import Workspace
from .arguments import (
    AnyPath,
    AnyRound,
    optional_path,
    real_number,
    whole_number,
    workspace,
)
from .costs import check_disk
from .options import (
    Choice,
    SessionOptions,
    changed_parameters,
    choose_layout,
    choose_round,
    given_options,
)

_NONCE_BYTES = 16
_OF_LAYOUT = {"like", "length", "entry", "strip_prefix", "only", "exclude"}
_OF_PARAMETERS = {"top_k", "density", "picks", "clip", "max_weight", "field"}
_OF_SESSION = {"feedback_decay"}


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
    either `like` or `length`, and either `top_k` or `density`. With `from_` nothing is required:
    the round is like that one, and a later one of its series.

    Arguments:
    round: the folder of the round.
    from_: another round, of which this one takes everything but the nonce; the layout, top_k or
        density, picks, clip, max_weight, field and feedback_decay may be given anew.
    clip_from_sum: with `from_`, the clip is so many times the largest magnitude of that round's
        sum, divided by the largest weight.
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
    feedback_decay: what is left of a residual in the next round, from 0 to 1; 1 by default.
    top_k: K, the coordinates that each user sends; or
    density: K as a share of the gradient's length, such as 0.01.
    field: q, a prime below 2^32.
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
    return start_chosen(root, choose_round(options), options, distributed=distributed)


def start_chosen(
    root: Path, choice: Choice, options: SessionOptions, *, distributed: bool = False
) -> InitReport:
    """Start a round with the parameters and the layout that were chosen.

    Of the options only `recipients`, `freezer`, `confirm` and `feedback_decay` are read: all others
    are in the choice already. `distributed` is as in `init`.
    """
    decay = options.get("feedback_decay")
    space, new = start(
        root,
        choice.parameters,
        choice.layout,
        recipients=optional_path("recipients", options.get("recipients")),
        freezer=_freezer(options),
        confirm=bool(options.get("confirm")),
        feedback_decay=1.0 if decay is None else real_number("feedback_decay", decay),
        distributed=distributed,
    )
    return InitReport(
        round=space,
        written=new,
        reason=choice.reason,
        notes=choice.notes,
        warnings=_warnings(choice.parameters),
    )


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


def start(
    root: Path,
    parameters: Parameters,
    layout: Layout,
    *,
    recipients: Path | None = None,
    freezer: int | None = 1,
    confirm: bool = False,
    feedback_decay: float = 1.0,
    distributed: bool = False,
) -> tuple[Workspace, bool]:
    """Write session.json into a new round, and say whether it is new: one that was started like
    this is left alone."""
    keys = read_recipients(recipients, parameters.users) if recipients else None
    points = construction(parameters).points()
    session = Session(
        parameters=parameters,
        points=points,
        layout=layout,
        family=find_family(parameters, points) if parameters.dealing == KEYS else None,
        recipients=keys,
        freezer=freezer,
        confirm=confirm,
        feedback_decay=feedback_decay,
    )
    return _write_session(root, session, distributed=distributed)


def start_like(
    root: Path,
    before: Workspace,
    *,
    clip_from_sum: float | None = None,
    new_keys: bool = False,
    generation: int | None = None,
    options: SessionOptions,
) -> InitReport:
    """Start a round like another one: everything in its session.json but the nonce, and nothing
    else of it; `options` may change its layout and what follows from it.

    It is a later generation of a series, unless `new_keys`. The clip is another one if it is among
    the options, or that of `clip_of_sum` with the factor `clip_from_sum`.
    """
    session = before.session
    given = given_options(options)
    if unknown := sorted(given.keys() - _OF_LAYOUT - _OF_PARAMETERS - _OF_SESSION):
        raise UsageError(
            f"{unknown[0]} comes from the other round",
            f"leave out {', '.join(unknown)}",
            Advice.OF_OTHER_ROUND,
            option=unknown[0],
        )
    changed = {name: given[name] for name in _OF_PARAMETERS if name in given}
    if "clip" in changed and clip_from_sum is not None:
        raise UsageError("both a clip and a factor for the sum are given", advice=Advice.CLIP_TWICE)
    if clip_from_sum is not None:
        changed["clip"] = clip_of_sum(before, clip_from_sum)
    layout = session.layout
    if given.keys() & _OF_LAYOUT:
        layout, _ = choose_layout(**{name: given[name] for name in _OF_LAYOUT if name in given})
    p = changed_parameters(session.parameters, layout.length, changed)
    if session.family is not None and p.field != session.parameters.field:
        check_family(p, session.points, session.family)
    there = _started(root)
    following = replace(
        session,
        id="",
        nonce="",
        parameters=p,
        layout=layout,
        series=None if new_keys else _later(before, generation, there),
        before=_before(before, there),
        feedback_decay=real_number(
            "feedback_decay", given.get("feedback_decay", session.feedback_decay)
        ),
    )
    space, new = _write_session(root, following, distributed=True)
    return InitReport(round=space, written=new, warnings=_warnings(p))


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


def clip_of_sum(space: Workspace, factor: float) -> float:
    """A clip that everybody can compute: factor * (largest magnitude of the sum) / max_weight."""
    # a round that starts anew reads no sum, and need not load what reads it
    from ..gradients.quantise import dequantise, magnitude
    from ..storage import aggregate as aggregate_file
    from ..storage.artifacts import opened

    if not 0 < factor < math.inf:
        raise UsageError(
            f"a factor of {factor:g} for the clip", "give a positive number, such as 2"
        )
    path = space.aggregate_path
    if not path.exists():
        raise InputMissing(
            f"{path} is not there, and the clip comes from the sum in it",
            "decode that round first; if it has no sum, choose a clip",
            Advice.CHOOSE_CLIP,
        )
    with opened(path, aggregate_file.KIND) as artifact:
        total = aggregate_file.parsed(space, artifact).total
    p = space.session.parameters
    largest = magnitude(dequantise(p.fixed_point, total.value))
    if not largest:
        what = f"{path}: the sum is zero everywhere, and gives no clip"
        raise BadData(what, "choose a clip", Advice.CHOOSE_CLIP)
    return factor * largest / p.max_weight


def _write_session(root: Path, session: Session, *, distributed: bool) -> tuple[Workspace, bool]:
    """Write session.json, with a nonce, if there is none, and say whether it is new. One that is
    there must agree."""
    space = Workspace(root)
    new = not space.session_path.exists()
    if new:
        check_disk(root, session.parameters, distributed=distributed)
    make_folder(root)
    # a second `run` does not stop the first, which decodes now
    with space.step_of_account() if new else nullcontext():
        if not space.session_path.exists():
            nonce = entropy.draw(_NONCE_BYTES, "nonce of a session").hex()
            write_whole(space.session_path, replace(session, nonce=nonce).content())
        elif not _agree(space.session, session):
            raise Refused(
                f"{space.session_path} exists, with other parameters: "
                + ", ".join(_differences(space.session, session)),
                "choose another folder",
            )
        else:
            mark_done(space.session_path)
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
    for name in ("freezer", "confirm", "feedback_decay"):
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
    if there.points != here.points and not names:
        yield "the points differ"


def _said(value: Any) -> str:
    return "not given" if value is None else repr(value)
