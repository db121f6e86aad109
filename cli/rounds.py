"""A whole round: start it, run it on one machine, or see what it would cost."""

from __future__ import annotations

import importlib.util
import os
import shlex
from collections.abc import Callable
from inspect import signature
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import topk_secagg as ts
from topk_secagg.errors import UsageError, amount

from . import options as o
from .console import PROGRAM, Console, facts_of
from .phases import described, rounding_warnings, selection_lines

if TYPE_CHECKING:
    import numpy.typing as npt

    from topk_secagg.gradients.layout import Layout
    from topk_secagg.gradients.tensors import Gradient
    from topk_secagg.review.plan import Plan
    from topk_secagg.steps.run import RunReport, Survey


def arguments_of(function: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    """Those of the options that a function has arguments for."""
    names = signature(function).parameters
    return {name: value for name, value in options.items() if name in names}


def chosen(
    console: Console, **options: Any
) -> tuple[Layout, ts.Parameters, str, npt.NDArray[Any] | None]:
    """The layout and the parameters that the options of `init` ask for, why, and the gradient that
    --like names.

    What is left out of that gradient is said, how the clip fits it, and what one step of the
    quantiser is.
    """
    layout, tensors = chosen_layout(**options)
    p, reason = chosen_parameters(layout, **options)
    if tensors is None:
        return layout, p, reason, None
    console.say(*tensors.notes)
    gradient = layout.flatten(tensors)
    largest = float(max(abs(gradient.max()), abs(gradient.min())))
    fits = (
        f"beyond the clip of {p.clip:g}"
        if largest > p.clip
        else f"{largest / p.clip:.1%} of the clip"
    )
    name = options["like"].name
    step = 1 / p.scale
    console.say(
        f"the largest value of {name} is {largest:.4g}, {fits}; one step of the quantiser is "
        f"{step:.3g}"
    )
    return layout, p, reason, gradient


def chosen_layout(**options: Any) -> tuple[Layout, Gradient | None]:
    """The layout that the options of `init` ask for, and the gradient that --like names."""
    from topk_secagg.steps.init import choose_layout

    for name in ("users", "survivors", "colluders"):
        if options[name] is None:
            raise click.UsageError(f"Missing option '--{name}'.")
    return choose_layout(**arguments_of(choose_layout, options))


def chosen_parameters(layout: Layout, **options: Any) -> tuple[ts.Parameters, str]:
    """The parameters that the options of `init` ask for, and why."""
    from topk_secagg.steps.init import choose_parameters

    wanted = arguments_of(ts.Parameters.choose, options) | {
        "density": options["density"],
        "length": layout.length,
    }
    return choose_parameters(**wanted)


def start_round(
    console: Console, root: Path, layout: Layout, p: ts.Parameters, reason: str, **options: Any
) -> tuple[ts.Workspace, bool]:
    """Write session.json if it is new; say what was chosen for what reason."""
    from topk_secagg.steps.init import start

    if options["recipients"] is None and os.environ.get(o.KEYS_VARIABLE):
        console.warn(
            f"{o.KEYS_VARIABLE} is set, but a round takes its keys from --recipients alone: "
            "this one has none"
        )
    space, new = start(root, p, layout, **arguments_of(start, options))
    if reason and new:
        console.say(f"construction {reason}")
    if p.survivors == p.colluders + 1:
        console.warn(
            "U = T + 1: when only U users remain, T of them can subtract their inputs and see the "
            "last one"
        )
    return space, new


@o.command(
    "Start a round: write session.json.",
    o.round_argument,
    *o.users_and_layout,
    *o.round_options,
    o.file(
        "--from",
        "Take everything but the nonce from another round; the clip may be given anew.",
        "OTHER_ROUND",
    ),
    o.value(
        "--clip-from-sum",
        "F",
        "With --from: the clip is F times the largest magnitude of that round's sum, "
        "divided by the largest weight.",
        float,
    ),
    o.flag("--distributed", "Every user has its own machine: disk space for one user is enough."),
    *o.keys_options,
    example="round --users 5 --survivors 3 --colluders 1 --top-k 2 --length 4",
)
def init(console: Console, space: ts.Workspace, **options: Any) -> None:
    """Start a round: fix what all users agree on, and write ROUND/session.json.

    Everybody works with the same session.json; its SHA-256 names the session. A round that was
    started with the same options is left as it is. With --from, no other option is required.
    """
    from topk_secagg.protocol.constructions import construction
    from topk_secagg.steps.costs import footprint, offline_bytes

    if options["from"] is not None:
        space, new = start_like(console, space.root, **options)
    elif options["clip_from_sum"] is not None:
        raise click.UsageError("--clip-from-sum takes the sum of another round; give --from too")
    else:
        layout, p, reason, _ = chosen(console, **options)
        space, new = start_round(console, space.root, layout, p, reason, **options)
    session = space.session
    p = session.parameters
    files = footprint(p)
    console.result(
        {
            "path": space.session_path,
            "written": new,
            **vars(p),
            **facts_of(construction(p), "entries", "share_bytes"),
            "offline_bytes": offline_bytes(p),
            **facts_of(files, "pair_bytes", "all_bytes"),
            "left_out": session.layout.left_out,
            "sealed": session.recipients is not None,
            **facts_of(session, "freezer", "confirmations"),
        },
        f"session {session.fingerprint}: {space.session_path}" + ("" if new else " exists already"),
        p.summary(),
        f"offline files: about {amount(files.pair_bytes)} a pair of users, "
        f"{amount(files.all_bytes)} in all",
        space=space,
    )


def start_like(console: Console, root: Path, **options: Any) -> tuple[ts.Workspace, bool]:
    """Start a round like the one that --from names; only the options of the clip go with it."""
    from topk_secagg.steps.init import init_like

    source_of = click.get_current_context().get_parameter_source
    given = {
        name: value
        for name, value in options.items()
        if source_of(name) is click.core.ParameterSource.COMMANDLINE and value != ()
    }
    if given.keys() - {"from", "clip", "clip_from_sum"}:
        raise click.UsageError(
            "--from takes everything but the clip from the other round; leave out other options"
        )
    factor = given.get("clip_from_sum")
    space, new = init_like(root, options["from"], clip=given.get("clip"), clip_from_sum=factor)
    if factor is not None:
        clip = space.session.parameters.clip
        console.say(f"the clip is {clip:.6g}, {factor:g} times what the sum of that round asks for")
    return space, new


@o.command(
    "All steps of all users on one machine.",
    o.round_argument,
    click.Argument(["more"], nargs=-1, metavar="", type=o.PATH),
    o.file(
        "--gradients",
        "A folder, whose files are sorted naturally by name, or one file per user, in order.",
        "DIR_OR_FILES...",
        multiple=True,
        required=True,
    ),
    o.value("--drop-masking", "5", "Users that never mask.", o.user_set, default=""),
    o.value("--drop-elimination", "4", "Users that never answer.", o.user_set, default=""),
    o.file("--weights", "CSV or JSON: user or file name, weight."),
    o.file("--residuals", "Error feedback: a folder with one residual file per user.", "DIR"),
    *o.output_options,
    o.select_option,
    o.saturate_option,
    o.randomness_option,
    o.jobs_option,
    *o.keys_options,
    o.file(
        "--identities",
        "The users' identity files, as `keygen` names them, in a sealed round.",
        "DIR",
    ),
    *o.users_and_layout_of_run,
    *o.run_options,
    example="round --gradients gradients/ --survivors 3 --colluders 1 --density 0.01",
)
def run(
    console: Console,
    space: ts.Workspace,
    more: tuple[Path, ...],
    gradients: tuple[Path, ...],
    **options: Any,
) -> None:
    """A whole round on one machine: every step of every user, through the same files.

    For studies and offline batches. N is the number of gradients unless --users says so, and the
    layout is that of the first gradient unless --like or --length says so. Without --clip, the clip
    is the largest magnitude that any user would send. The same call resumes an interrupted round. A
    round that stopped before any secret was drawn can be run again with other options.
    """
    from topk_secagg.protocol.constructions import construction
    from topk_secagg.steps.costs import offline_bytes
    from topk_secagg.steps.user_files import (
        check_output,
        gradient_files,
        identity_files,
        read_weights,
    )

    given = [*gradients, *more]
    if options["output"] is not None:
        check_output(options["output"], given)
    if options["randomness"] == "os" and options["insecure_seed"] is not None:
        raise click.UsageError("--randomness os and --insecure-seed contradict each other")
    files = gradient_files(given)
    if options["like"] is None and options["length"] is None:
        options["like"] = files[0]
    if options["users"] not in (None, len(files)):
        raise click.UsageError(
            f"{len(files)} gradients for {options['users']} users; one file per user is needed"
        )
    users = options["users"] = len(files)
    if options["weights"]:
        options["weights"] = read_weights(options["weights"], files)
        options["max_weight"] = max(options["weights"])
    if options["identities"]:
        options["identities"] = identity_files(options["identities"], users)
    space, report, seen = run_round(console, space, files, **options)
    p = space.session.parameters
    c = construction(space.session.parameters)
    console.notes({user.user: user.notes for user in report.masked})
    facts, lines = described(console, space, report.decoded)
    by_user = dict(enumerate(files, start=1))
    kept = min(
        (user.kept_energy for user in report.masked if user.kept_energy is not None), default=None
    )
    clipped = sum(user.clipped for user in report.masked)
    rounding = max(
        (user.rounding_error for user in report.masked if user.rounding_error is not None),
        default=None,
    )
    console.warn(*rounding_warnings(p, rounding, "the values that a user sends"))
    facts |= {"gradients": by_user, "clipped": clipped, "kept_energy": kept}
    facts |= {"clip": p.clip, "rounding_error": rounding, "settled": report.settled}
    facts |= {"share_bytes": c.share_bytes, "offline_bytes": offline_bytes(p)}
    facts |= {"plain_bytes": seen.plain_bytes}
    online = report.decoded.masked_bytes + report.decoded.answer_bytes
    console.result(
        facts,
        "users: " + ", ".join(f"{user} {file.name}" for user, file in by_user.items()),
        *lines,
        *selection_lines(p, kept, clipped, "every user keeps at least"),
        f"a user sends {amount(offline_bytes(p))} offline and {amount(online)} online; "
        f"a plain gradient has {amount(seen.plain_bytes)}",
        space=space,
    )


def run_round(
    console: Console, space: ts.Workspace, files: list[Path], **options: Any
) -> tuple[ts.Workspace, RunReport, Survey]:
    """Look at all gradients, start a round with a clip that fits them if none is given, and run
    it."""
    from topk_secagg.gradients.quantise import clip_of
    from topk_secagg.steps.dropouts import remaining
    from topk_secagg.steps.run import survey, withdrawn_unless_drawn
    from topk_secagg.steps.sending import clip_note

    users = range(1, len(files) + 1)
    left = remaining(users, options["drop_masking"], options["drop_elimination"])
    if options["clip"] is not None:
        layout, p, reason, _ = chosen(console, **options)
    else:
        layout, tensors = chosen_layout(**options)
        console.say(*(tensors.notes if tensors else ()))
    with console.progress() as note:
        seen = survey(layout, files, left.masking, **arguments_of(survey, options), note=note)
    if options["clip"] is None:
        resumed = space.session_path.exists()
        clip = space.session.parameters.clip if resumed else clip_of(seen.largest.values())
        p, reason = chosen_parameters(layout, **(options | {"clip": clip}))
        origin = (
            f"the clip is {clip:.6g}, as session.json says"
            if resumed
            else clip_note(clip, residuals=options["residuals"] is not None)
        )
        console.say(f"{origin}; one step of the quantiser is {1 / p.scale:.3g}")
    space, new = start_round(console, space.root, layout, p, reason, **options)
    with withdrawn_unless_drawn(space, new=new), console.progress(stays=True) as note:
        report = ts.run(space, files, **arguments_of(ts.run, options), surveyed=seen, note=note)
    return space, report, seen


@o.command(
    "What a round would cost, before it is run.",
    *o.users_and_layout,
    *o.round_options,
    o.file("--plot", "Draw the trade-off (needs matplotlib).", "FILE.png"),
    example="--users 10 --survivors 5 --colluders 3 --density 0.01 --like gradient.pt",
)
def plan(console: Console, plot: Path | None, **options: Any) -> None:
    """Show what each construction would cost for the options of `init`, and which one `init` would
    choose.

    The table has both constructions, several numbers of picks, and two fields; the last rows are
    what the paper's theorem and dense LightSecAgg need. With --like, also how much of the energy of
    the K largest entries of that gradient each choice keeps.
    """
    from topk_secagg.review.plan import measure_speed

    if plot and importlib.util.find_spec("matplotlib") is None:
        raise UsageError("drawing needs matplotlib", "pip install 'topk-secagg[plot]'")
    _, p, reason, gradient = chosen(console, **options)
    comparison = ts.plan(p, gradient, measure_speed(p, Path.cwd()))
    paste = _init_words(p, **options)
    # peers have none
    rows = [
        {
            "construction": row.name,
            **{name: getattr(row.parameters, name, None) for name in ("picks", "field")},
            **facts_of(
                row, "pair_bytes", "all_bytes", "masked_bytes", "answer_bytes", "online_bytes"
            ),
            **facts_of(row, "step", "seconds", "energy", "memory_bytes"),
            "recommended": row is comparison.best,
        }
        for row in comparison.rows
    ]
    if plot:
        _plot(plot, rows)
    facts = facts_of(comparison, "remarks", "certain_answers", "liars_excluded")
    console.result({"choices": rows, **facts, "command": shlex.join(paste)})
    columns = {
        title: column
        for title, column in _COLUMNS.items()
        if title != "energy" or gradient is not None
    }
    cells = [
        ["" if row[name] is None else show(row[name]) for name, show in columns.values()]
        for row in rows
    ]
    for row, texts in zip(rows, cells, strict=True):
        texts[0] += " *" if row["recommended"] else ""
    console.table(list(columns), cells, narrow=True)
    console.prose(
        *([f"init chooses (*) {reason}"] if reason else []),
        *comparison.remarks,
        "a pair: the share that one user sends to one other before there are gradients; in all: "
        "the files of all users",
        "X is what a user broadcasts with its gradient, and Y what it answers, when nobody drops "
        "out",
        f"one step of the quantiser, the resolution, is {_steps(rows)}",
        *([_ENERGY] if gradient is not None else []),
        "LightSecAgg aggregates dense gradients; Theorem 1 has the paper's rates",
        _strict_line(p, comparison),
        "time is an estimate for `run` with all users on this machine, from a quick measurement in "
        "this folder",
        f"the largest step of the choice takes {amount(comparison.best.memory_bytes or 0)} of memory",
    )
    console.pasted("to start:", paste)


def _strict_line(p: ts.Parameters, comparison: Plan) -> str:
    """What it takes to exclude T users that lie together."""
    line = f"decode --strict takes {comparison.certain_answers} answers that agree (D + 2T)"
    if comparison.certain_answers <= p.users:
        return f"{line}, which exclude T = {p.colluders} users that lie together"
    excluded = comparison.liars_excluded
    most = (
        f"at most {excluded} of T = {p.colluders} liars are excluded"
        if excluded
        else "no liar is excluded"
    )
    rule = "U + T <= N" if p.spare is None else "U + T <= N, and --spare of at least T"
    return f"{line}, and there are {p.users} users: {most}; it needs {rule}"


_ENERGY = "energy is the sum of the squares of the entries that are sent, as a share of that of the K largest"


def _steps(rows: list[dict[str, Any]]) -> str:
    """The resolution in each field of the table, as a share of the clip."""
    steps = {row["field"]: row["step"] for row in rows if row["field"]}
    return ", ".join(f"{step:.2g} of the clip in field {field}" for field, step in steps.items())


def _init_words(p: ts.Parameters, **options: Any) -> list[str]:
    """The call of `init` that chooses exactly these parameters, and the layout and seed of the
    options."""
    from topk_secagg.algebra.field import DEFAULT_FIELD

    given = [
        (name, options[name])
        for name in ("like", "length", "entry", "strip_prefix", "insecure_seed")
    ]
    given += [(name, pattern) for name in ("only", "exclude") for pattern in options[name]]
    given += facts_of(p, "users", "survivors", "colluders", "top_k", "construction").items()
    # those of the other construction too
    defaults = {
        "blocks": p.survivors - p.colluders,
        "picks": 0,
        "spare": None,
    }
    defaults |= {"field": DEFAULT_FIELD, "clip": 1, "max_weight": 1}
    given += [
        (name, value) for name, value in facts_of(p, *defaults).items() if value != defaults[name]
    ]
    words = [
        (f"--{name.replace('_', '-')}", str(value))
        for name, value in given
        if value not in (None, "")
    ]
    return [PROGRAM, "init", "ROUND", *chain(*words)]


_UNITS = (("s", 1), ("min", 60), ("h", 3600), ("d", 86_400), ("y", 365.25 * 86_400))
_LONGEST = 999  # years that are worth telling apart


def _duration(seconds: float) -> str:
    """A time of two or three digits, such as 1.6 s, 90 min or 31 h: in a unit of which there are
    two or more."""
    unit, length = next((u for u in reversed(_UNITS) if seconds >= 2 * u[1]), _UNITS[0])
    count = seconds / length
    if unit == _UNITS[-1][0] and count > _LONGEST:
        return f"> {_LONGEST} {unit}"
    return f"{count:.2g} {unit}" if count < 10 else f"{count:.0f} {unit}"


# what the columns of the table show: a fact, and in which form
_COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "construction": ("construction", str),
    "P": ("picks", lambda picks: str(picks or "")),
    "field": ("field", str),
    "a pair": ("pair_bytes", amount),
    "in all": ("all_bytes", amount),
    "X": ("masked_bytes", amount),
    "Y": ("answer_bytes", amount),
    "time": ("seconds", _duration),
    "energy": ("energy", "{:.4f}".format),
}


def _plot(path: Path, rows: list[dict[str, Any]]) -> None:
    """Bars for each choice: offline bytes, online bytes, and the energy kept where it is known."""
    from matplotlib.figure import Figure

    from topk_secagg.storage.atomic import OWN, whole_file

    facts = {"construction": "{}", "picks": "P = {}", "field": "q = {}"}
    named = (
        ", ".join(text.format(row[fact]) for fact, text in facts.items() if row[fact])
        for row in rows
    )
    names = [name + " *" * row["recommended"] for name, row in zip(named, rows, strict=True)]
    panels = [
        ("all_bytes", "offline files of all users, bytes"),
        ("online_bytes", "what a user broadcasts, bytes"),
    ]
    if any(row["energy"] for row in rows):
        panels.append(("energy", "share of the top-K energy that is kept"))
    figure = Figure(figsize=(7 * len(panels), 5), layout="constrained")
    for panel, (fact, title) in zip(
        figure.subplots(1, len(panels), sharey=True), panels, strict=True
    ):
        panel.barh(names, [row[fact] or 0 for row in rows])
        panel.set(xscale="log", title=title)
        panel.grid(visible=True, axis="x", alpha=0.3)
        if fact == "energy":  # all are close to 1
            panel.set(xscale="linear", xlim=(min(row[fact] or 1 for row in rows) - 0.02, 1.005))
    figure.axes[0].invert_yaxis()
    figure.supxlabel("* what init chooses")
    with whole_file(path, OWN) as stream:
        figure.savefig(stream, format="png", dpi=110)
