"""A whole round: start it, or run it on one machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import topk_secagg as ts
from topk_secagg.errors import amount

from . import options as o
from .commands import check_from, check_required, command, typed_options
from .console import Console, facts_of
from .phases import (
    described,
    reduction_facts,
    rounding_warnings,
    selection_lines,
    series_facts,
    series_lines,
)
from .sending import sending_line

if TYPE_CHECKING:
    from topk_secagg.rounds.init import InitReport
    from topk_secagg.rounds.run import RunReport


def show_start(console: Console, report: InitReport) -> None:
    """What was chosen for what reason, and what is remarkable about it."""
    console.say(*report.notes)
    if report.reason and report.written:
        console.say(f"construction {report.reason}")
    console.warn(*report.warnings)


def warn_of_keys(console: Console, recipients: Path | None) -> None:
    """That a round has no keys although the environment names some."""
    if recipients is None and o.KEYS_VARIABLE in os.environ:
        console.warn(
            f"{o.KEYS_VARIABLE} is set, but a round takes its keys from --recipients alone: "
            "this one has none"
        )


@command(
    "Start a round: write session.json.",
    *o.space_options,
    *o.users_and_layout,
    *o.round_options,
    *o.from_options,
    *o.agreement_options,
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
    from topk_secagg.rounds.costs import footprint, offline_bytes_in

    with console.progress() as progress:  # an example of a gradient may take seconds to read
        progress("starting", 0, 1)
        report = _start(console, space, options)
    show_start(console, report)
    space = report.round
    session = space.session
    p = session.parameters
    files = footprint(p)
    exists = "" if report.written else " exists already"
    console.result(
        {
            "path": space.session_path,
            "written": report.written,
            **vars(p),
            **reduction_facts(session),
            **facts_of(construction(p), "entries", "share_bytes"),
            "offline_bytes": offline_bytes_in(session),
            **facts_of(files, "pair_bytes", "all_bytes"),
            "left_out": session.layout.left_out,
            "sealed": session.recipients is not None,
            **facts_of(session, "freezer", "confirmations"),
            **series_facts(session),
        },
        f"session {session.fingerprint}: {space.session_path}{exists}",
        *series_lines(session),
        p.summary(),
        sending_line(p, in_series=session.keys_go_on),
        f"all files of all users take about {amount(files.all_bytes)}",
        space=space,
    )


def _start(console: Console, space: ts.Workspace, options: dict[str, Any]) -> InitReport:
    """Start the round that the options ask for."""
    other = options.pop("from")
    if other is not None:
        return _start_like(console, space, other)
    check_from(options)
    check_required(options)
    report = ts.init(space, **options)
    warn_of_keys(console, options["recipients"])
    return report


def _start_like(console: Console, space: ts.Workspace, other: Path) -> InitReport:
    """Start a round like the one that --from names, with the options that were typed."""
    typed = typed_options()
    report = ts.init(space, from_=other, secrets=space.secrets, **typed)
    factor = typed.get("clip_from_sum")
    if factor is not None:
        clip = max(report.round.session.clips)
        console.say(f"the clip is {clip:.6g}, {factor:g} times what the sum of that round asks for")
    return report


@command(
    "All steps of all users on one machine.",
    *o.space_options,
    click.Argument(["more"], nargs=-1, metavar="", type=o.PATH),
    o.file(
        "--gradients",
        "A folder, whose files are sorted naturally by name, a pattern such as 'DIR/*/grad.pt', or "
        "one file per user, in order.",
        "DIR_OR_FILES...",
        multiple=True,
        required=True,
    ),
    o.value("--drop-masking", "5", "Users that never mask.", kind=o.user_set, default=""),
    o.value("--drop-elimination", "4", "Users that never answer.", kind=o.user_set, default=""),
    o.file("--weights", "CSV or JSON: user or file name, weight."),
    o.feedback_option,
    o.word("--again", "Send gradients again that were sent in another round."),
    *o.output_options,
    o.select_option,
    o.saturate_option,
    o.randomness_option,
    o.jobs_option,
    *o.keys_options,
    *o.users_and_layout_of_run,
    *o.run_options,
    *o.from_options,
    *o.agreement_options,
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
    round that stopped before any secret was drawn can be run again with other options. With --from
    it is a round like another one, and where shares are keys the next one of a series.
    """
    other = options.pop("from")
    if other is None:
        check_from(options)
        check_required(options, "survivors", "colluders")
    else:
        defaults = dict.fromkeys(
            ("recipients", "freezer", "max_weight", "confirm", "feedback_decay")
        )
        typed = typed_options()
        options = {**options, **defaults, **typed, "from_": other}
    warn_of_keys(console, options["recipients"])
    from topk_secagg.rounds.user_files import in_natural_order

    with console.progress(stays=True) as progress:
        report = ts.run(
            space,
            in_natural_order([*gradients, *more]),
            progress=progress,
            started=lambda begun: show_start(console, begun),
            **options,
        )
    console.notes({user.user: user.notes for user in report.masked})
    _show_run(console, report, output=options["output"], mean=options["mean"])


def _show_run(console: Console, report: RunReport, *, output: Path | None, mean: bool) -> None:
    """The sum, what became of the users' gradients, and what a user sends."""
    from topk_secagg.protocol.constructions import construction
    from topk_secagg.rounds.costs import offline_bytes_in
    from topk_secagg.rounds.user_files import names_of

    p = report.round.session.parameters
    facts, lines = described(console, report.round, report.decoded, output=output, mean=mean)
    energies = [user.kept_energy for user in report.masked if user.kept_energy is not None]
    errors = [user.rounding_error for user in report.masked if user.rounding_error is not None]
    kept = min(energies, default=None)
    rounding = max(errors, default=None)
    clipped = sum(user.clipped for user in report.masked)
    session = report.round.session
    console.warn(*rounding_warnings(session, rounding, "the values that a user sends"))
    facts |= {
        "gradients": report.files,
        "clipped": clipped,
        "kept_energy": kept,
        **reduction_facts(session),
        "rounding_error": rounding,
        "share_bytes": construction(p).share_bytes,
        "offline_bytes": offline_bytes_in(report.round.session),
        "plain_bytes": report.plain_bytes,
    }
    console.result(
        facts,
        "users: " + ", ".join(f"{user} {name}" for user, name in names_of(report.files).items()),
        *lines,
        *selection_lines(session, kept, clipped=clipped, whose="every user sends at least"),
        sending_line(p, in_series=report.round.session.series is not None),
        f"a plain gradient has {amount(report.plain_bytes)}",
        space=report.round,
    )
