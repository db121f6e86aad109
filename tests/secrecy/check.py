"""The exact secrecy check as a command: what it checked, and with which result.

python tests/secrecy/check.py            the cases of the tests, with all supports, and more
python tests/secrecy/check.py --full     every L from 2 to 6 and K from 1 to 3: much longer
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from affine import Joint, Witness, coalitions_of, compare, view_of
from cases import (
    DEALINGS,
    FULL,
    MORE,
    MORE_SERIES,
    MORE_SKETCHES,
    QUICK,
    SERIES,
    SKETCHES,
    Case,
    sketch_parameters,
)
from certificate import NotCertified, certify
from lab import Input, Lab
from linear import Setup, SketchLab
from sabotage import HARMLESS, SABOTAGES, TWINS, try_sabotage
from two_rounds import FOUR, SQUARE, SeriesLab, Two, everybody
from two_rounds import SABOTAGES as SERIES_SABOTAGES

CASE = "{!s:<52} {:>10} {:>7} {:>8} {:>8}  {:<6} {:>8}"
HEAD = ("case", "coalitions", "places", "supports", "spaces", "result", "time")
MANY_PLACES = 24


class Outcome(NamedTuple):
    """Of one case: what was checked, and why it failed if it did."""

    coalitions: int
    places: int
    supports: int
    spaces: int
    failure: str


def certified(case: Case) -> Outcome:
    """All coalitions of at most T users, sizes of U1, places, inputs and broadcasts."""
    lab = Lab(case.parameters())
    coalitions = coalitions_of(lab.p, 0, lab.p.colluders)
    supports = lab.supports[:: -(-len(lab.supports) // case.few) if case.few else 1]
    places = math.prod(map(len, lab.place_bounds))
    try:
        spaces = certify(lab, coalitions, supports=supports)
    except NotCertified as error:
        return Outcome(len(coalitions), places, len(supports), 0, str(error))
    return Outcome(len(coalitions), places, len(supports), spaces, "")


def learn_something(lab: Lab, coalition: tuple[int, ...]) -> Witness | None:
    """What T+1 users find out: which of two inputs belongs to which of two honest users; or, if
    only one user is honest, what it selected before it dropped out with its X heard."""
    first, last = (
        Input(lab.supports[0], (1,) * lab.c.entries),
        Input(lab.supports[-1], (2,) * lab.c.entries),
    )
    view = view_of(lab, coalition)
    a, *others = honest = view.honest(lab)
    one = dict.fromkeys(honest, first) | {a: last}
    other = dict.fromkeys(honest, first) | dict.fromkeys(others[:1], last)
    if not others:
        view = view_of(lab, coalition, u1=coalition)
    return compare(lab, view, one, other, Joint(lab, view).played(one, 3))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print six tables; 1 if something is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--full", action="store_true", help="every L from 2 to 6, K from 1 to 3")
    parser.add_argument("--case", type=int, action="append", help="only the case with this number")
    chosen = parser.parse_args(arguments)
    cases = FULL if chosen.full else [replace(case, few=None) for case in QUICK] + MORE
    cases = [cases[i] for i in chosen.case] if chosen.case else cases
    return 1 if any([secrecy(cases), tightness(cases), sketches(), series(), sabotages()]) else 0


def secrecy(cases: Sequence[Case]) -> int:
    """Print what coalitions of at most T users learn: nothing; the number of cases where that is
    not so."""
    print("permutation: at most T users, every place, input, broadcast, U1 and U2\n")
    print(CASE.format(*HEAD))
    failures = 0
    for case in cases:
        start = time.perf_counter()
        done = certified(case)
        result = ("LEAKS" if done.failure else "secret", f"{time.perf_counter() - start:.1f} s")
        print(CASE.format(case, *done[:4], *result), flush=True)
        if done.failure:
            print(f"    {done.failure}")
            failures += 1
    return failures


def tightness(cases: Sequence[Case]) -> int:
    """Print what T+1 users learn: something; the number of coalitions that do not."""
    print("\npermutation: T+1 users, what every such coalition tells apart\n")
    failures = 0
    for case in cases:
        lab = Lab(case.parameters())
        if len(lab.supports) < 2 or math.prod(map(len, lab.place_bounds)) > MANY_PLACES:
            # everything is selected, and nothing is hidden but values; or the same at more cost
            continue
        coalitions = coalitions_of(lab.p, lab.p.colluders + 1, lab.p.colluders + 1)
        found = [learn_something(lab, coalition) for coalition in coalitions]
        failures += found.count(None)
        print(f"{case!s:<52} {len(found)} coalitions, e.g. {found[0] or 'NOTHING'}", flush=True)
    return failures


def sketches() -> int:
    """Print what T and T+1 users learn of a sketch; the number of cases where that is not nothing,
    or is."""
    print("\nsketch: every coalition of at most T users, every U1, all answers\n")
    failures = 0
    for (*users, raw), dealing in product((SKETCHES | MORE_SKETCHES).values(), DEALINGS):
        lab = SketchLab(Setup(sketch_parameters(*users, **raw, dealing=dealing)))
        found = [leak for size in range(lab.p.colluders + 1) for leak in lab.leaks(size)]
        leaks = len(found) - found.count(None)
        failures += leaks
        verdict = f"LEAKS in {leaks}" if leaks else "secret"
        print(f"{lab.p.summary() + ', ' + dealing:<72} {len(found):>4} views {verdict}", flush=True)
        # of a single honest user that cannot drop out the sum says all; and a group that is not
        # full has uniform values that mask nothing, and hides more
        honest = lab.p.users - lab.p.colluders - 1
        is_hidden = honest > 1 or (honest == 1 and lab.p.survivors < lab.p.users)
        if is_hidden and lab.c.buckets >= lab.p.blocks:
            more = next((leak for leak in lab.leaks(lab.p.colluders + 1) if leak), None)
            failures += more is None
            print(f"    T+1 users: {more or 'NOTHING'}", flush=True)
    return failures


def series() -> int:
    """Print what T users learn of two rounds of low rank, and once they are spoilt; the number of
    wrong verdicts."""
    print("\ntwo rounds of low rank: every coalition of at most T users, both U1, all answers\n")
    failures = 0
    for (numbers, raw), dealing in product((SERIES | MORE_SERIES).values(), DEALINGS):
        lab = SeriesLab(Two(*numbers, dealing, **raw))
        views = [view for size in range(lab.p.colluders + 1) for view in lab.views(size)]
        views.append(lab.view(lab.users[: lab.p.colluders], everybody(lab), later=True))
        leaks = sum(view.leak() is not None for view in views)
        loose = sum(not view.is_tight() for view in views)
        failures += leaks + loose
        verdict = f"LEAKS in {leaks}" if leaks else "secret"
        sizes = " and ".join(str(each.length) for each in lab.reductions)
        name = f"{lab.p.summary()}; {sizes} symbols, {dealing}"
        print(f"{name:<72} {len(views):>4} views {verdict}", flush=True)
    print("\ntwo rounds of low rank: sabotage, seen by one user\n")
    for name, (dealing, later, changes) in SERIES_SABOTAGES.items():
        lab = SeriesLab(Two(*FOUR, dealing, shapes=SQUARE, **changes))
        leak = lab.view((1,), everybody(lab), later=later).leak()
        failures += leak is None
        print(f"{name:<42} {leak.change if leak else 'NOT CAUGHT'}", flush=True)
    return failures


def sabotages() -> int:
    """Print whether T users learn something once the scheme is spoilt; the number of wrong
    verdicts."""
    print("\npermutation: sabotage, seen by T = 1 and T = 2 users\n")
    failures = 0
    for sabotage in [*SABOTAGES, *TWINS, *HARMLESS]:
        found = [try_sabotage(sabotage, T) for T in (1, 2)]
        caught = len(found) - found.count(None)
        failures += found.count(None) if sabotage in SABOTAGES else caught
        verdict = (
            f"caught in {caught} of {len(found)}, e.g. {found[0]}"
            if caught
            else "gives nothing away"
        )
        print(f"{sabotage.name:<42} {verdict}", flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(main())
