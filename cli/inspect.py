"""topk-secagg inspect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import topk_secagg as ts
from topk_secagg.errors import BadData

from .console import Console, answered, picked, plain
from .options import PATH, flag_option

_SHOWN = ("path", "kind", "intact", "datasets", "problems")


@click.command("inspect", short_help="Show what a file of a round holds.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=PATH)
@flag_option("--reveal", "Show the values in secret files too.")
@answered
def command(console: Console, files: tuple[Path, ...], reveal: bool) -> None:
    """Show what files of a round hold: kind, session, user, shapes, ranges, and whether they are intact.

    The values in secrets/ and shares/ are shown only with --reveal.

    \b
    Example:
      topk-secagg inspect round/session.json round/masked/user-03.h5
    """
    found, failure = [], None
    for path in files:
        try:
            found.append(ts.inspect(path, reveal=reveal))
        except ts.SecAggError as error:
            failure = failure or error
    if failure and not found:
        raise failure
    console.result("inspect", {"files": [d.facts | picked(d, *_SHOWN) for d in found]})
    for d in found:
        state = "intact" if d.intact else "NOT INTACT"
        insecure = ", INSECURE: drawn from a public seed" if d.facts.get("insecure") else ""
        console.line(f"{d.path}: {d.kind}, {state}{insecure}")
        facts = [(key.replace("_", " "), plain(value)) for key, value in d.facts.items() if key != "insecure"]
        console.table((), facts + [("problem", problem) for problem in d.problems])
        if d.datasets:
            rows = [_row(name, info) for name, info in d.datasets.items()]
            console.table(("dataset", "type and shape", "range", "first values"), rows)
        console.line()
    if failure:
        raise failure
    damaged = [d for d in found if not d.intact]
    if damaged:
        raise BadData(f"{damaged[0].path}: {damaged[0].problems[0]}", "fetch or make the file again")


def _row(name: str, info: dict[str, Any]) -> tuple[str, ...]:
    shape = f"{info['type']} {'x'.join(map(str, info['shape']))}"
    extent = f"{plain(info['low'])} to {plain(info['high'])}" if "low" in info else ""
    return name, shape, extent, plain(info.get("values", ""))
