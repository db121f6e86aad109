"""The exact secrecy check as a command: what it checked, and with which result.

python tests/secrecy/check.py            the cases of the tests, with all supports, and more: some
minutes python tests/secrecy/check.py --full     every L from 2 to 6 and K from 1 to 3, and larger
n: much longer
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
from cases import DEALINGS, FULL, MORE, MORE_SKETCHES, QUICK, SKETCHES, Case, sketch_parameters
from certificate import NotCertified, certify_masks, certify_picks
from lab import Input, Lab
from linear import Setup, SketchLab
from sabotage import HARMLESS, SABOTAGES, TWINS, try_sabotage

from topk_secagg.protocol.constructions import construction

CASE = "{!s:<66} {:>4} {:>2} {:>10} {:>7} {:>8} {:>8}  {:<6} {:>8}"
HEAD = ("case", "D", "W", "coalitions", "places", "inputs", "spaces", "result", "time")
MANY_PLACES = {"permutation": 24, "moments": 10_000}


class Outcome(NamedTuple):
    """Of one case: what was checked, and why it failed if it did. Places and inputs are those of a
    user; in `moments` those of a pick, unless all are taken together; in `permutation`, inputs are
    supports."""

    coalitions: int
    places: int
    inputs: int
    spaces: int
    failure: str


def certified(case: Case) -> Outcome:
    """All coalitions of at most T users, sizes of U1, places, inputs and broadcasts."""
    lab = Lab(case.parameters())
    coalitions = coalitions_of(lab.p, 0, lab.p.colluders)
    supports = lab.supports[:: -(-len(lab.supports) // case.few) if case.few else 1]
    places = math.prod(map(len, lab.place_bounds))
    inputs = len(supports)
    picks = lab.c.rows if case.together else 1
    try:
        if lab.moments:
            places, inputs = ((n * (lab.q - 1)) ** picks for n in (lab.c.order, lab.c.p.places))
            spaces = certify_picks(lab, coalitions, together=case.together)
        else:
            spaces = certify_masks(lab, coalitions, supports=supports)
    except NotCertified as error:
        return Outcome(len(coalitions), places, inputs, 0, str(error))
    return Outcome(len(coalitions), places, inputs, spaces, "")


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
    """Print four tables; 1 if something is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--full", action="store_true", help="every L from 2 to 6, K from 1 to 3, and larger n"
    )
    parser.add_argument("--case", type=int, action="append", help="only the case with this number")
    chosen = parser.parse_args(arguments)
    cases = FULL if chosen.full else [replace(case, few=None) for case in QUICK] + MORE
    cases = [cases[i] for i in chosen.case] if chosen.case else cases
    return 1 if sum([secrecy(cases), tightness(cases), sketches(), sabotages()]) else 0


def secrecy(cases: Sequence[Case]) -> int:
    """Print what coalitions of at most T users learn: nothing; the number of cases where that is
    not so."""
    print("At most T users: every place, input, broadcast, U1, U2 and D\n")
    print(CASE.format(*HEAD))
    failures = 0
    for case in cases:
        start = time.perf_counter()
        done = certified(case)
        result = ("LEAKS" if done.failure else "secret", f"{time.perf_counter() - start:.1f} s")
        c = construction(case.parameters())
        blocks = {
            c.answer_shape(case.N, fallback=fallback).blocks: None for fallback in (False, True)
        }
        print(
            CASE.format(case, ", ".join(map(str, blocks)), c.width, *done[:4], *result), flush=True
        )
        if done.failure:
            print(f"    {done.failure}")
            failures += 1
    return failures


def tightness(cases: Sequence[Case]) -> int:
    """Print what T+1 users learn: something; the number of coalitions that do not."""
    print("\nT+1 users: what every such coalition tells apart\n")
    failures = 0
    for case in cases:
        lab = Lab(case.parameters())
        if (
            len(lab.supports) < 2
            or math.prod(map(len, lab.place_bounds)) > MANY_PLACES[case.construction]
        ):
            # everything is selected, and nothing is hidden but values; or the same at more cost
            continue
        coalitions = coalitions_of(lab.p, lab.p.colluders + 1, lab.p.colluders + 1)
        found = [learn_something(lab, coalition) for coalition in coalitions]
        failures += found.count(None)
        print(f"{case!s:<66} {len(found)} coalitions, e.g. {found[0] or 'NOTHING'}", flush=True)
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
        print(f"{lab.p.summary() + ', ' + dealing:<74} {len(found):>4} views {verdict}", flush=True)
        # a group that is not full has uniform values that mask nothing, and hides more
        if lab.p.colluders + 1 < lab.p.users and lab.p.buckets >= lab.p.blocks:
            more = next((leak for leak in lab.leaks(lab.p.colluders + 1) if leak), None)
            failures += more is None
            print(f"    T+1 users: {more or 'NOTHING'}", flush=True)
    return failures


def sabotages() -> int:
    """Print whether T users learn something once the scheme is spoilt; the number of wrong
    verdicts."""
    print("\nSabotage, seen by T = 1 and T = 2 users\n")
    failures = 0
    for sabotage in [*SABOTAGES, *TWINS, *HARMLESS]:
        for name in sabotage.constructions:
            found = [try_sabotage(sabotage, name, T) for T in (1, 2)]
            caught = len(found) - found.count(None)
            failures += found.count(None) if sabotage in SABOTAGES else caught
            verdict = (
                f"caught in {caught} of {len(found)}, e.g. {found[0]}"
                if caught
                else "gives nothing away"
            )
            print(f"{sabotage.name:<42} {name:<11} {verdict}", flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(main())
