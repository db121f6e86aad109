"""The exact secrecy check as a command: what was gone through, and what came of it.

python tests/secrecy/check.py            the cases of the test suite, with all supports: some minutes
python tests/secrecy/check.py --full     every L from 2 to 6 and K from 1 to 3: much longer
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from affine import Joint, NotCertified, Witness, certify, coalitions_of, compare, view_of
from cases import ELIMINATIONS, FULL, QUICK, Case
from fq import Array
from lab import Input, Lab
from sabotage import HARMLESS, SABOTAGES, try_sabotage

CASE = "{:<11} {:<8} {:>7} {:>2} {:>2} {:>2} {:>2} {:>3} {:>10} {:>7} {:>9} {:>8}  {:<6} {:>8}"
HEAD = (
    "construct.", "elimin.", "N,U,T", "D", "L", "K", "P", "q",
    "coalitions", "places", "supports", "spaces", "result", "time",
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """Of one case: what was gone through, and why it failed if it did."""

    coalitions: int
    places: int
    supports: int
    spaces: int
    failure: str


def certified(case: Case, elimination: str) -> Outcome:
    """All coalitions of at most T users, sizes of U1, places, inputs and broadcasts (see `certify`)."""
    lab = Lab(case.parameters(elimination))
    coalitions = coalitions_of(lab.p, 0, lab.p.colluders)
    step = -(-len(lab.supports) // case.few) if case.few else 1
    supports, spaces, failure = lab.supports[::step], 0, ""
    done: list[dict[tuple[int, ...], Array]] = []
    for survivors in range(lab.p.survivors, lab.p.users + 1):
        indices = {
            lab.masking_of_support(place, support)[0].index for place in lab.places for support in supports
        }
        terms = {index: lab.terms(index, survivors) for index in indices}
        if any(all(np.array_equal(terms[i], before[i]) for i in indices) for before in done):
            continue  # dense answers are the same function of the shares for every |U1|
        try:
            spaces += certify(lab, coalitions, survivors, supports=supports)
        except NotCertified as error:
            failure = str(error)
        done.append(terms)
    return Outcome(len(coalitions), len(lab.places), len(supports), spaces, failure)


def learn_something(lab: Lab, coalition: tuple[int, ...]) -> Witness | None:
    """What T+1 users find out: which of two inputs belongs to which of two honest users; or, if only one
    user is honest, what it selected before it dropped out with its X heard."""
    joint = Joint(lab, view_of(lab, coalition))
    a, *others = joint.honest
    first, last = Input(lab.supports[0], (1,) * lab.p.entries), Input(lab.supports[-1], (2,) * lab.p.entries)
    if others:
        view = view_of(lab, coalition, late=False)
        one = dict.fromkeys(joint.honest, first) | {a: last}
        other = dict.fromkeys(joint.honest, first) | {others[0]: last}
    else:
        view, one, other = view_of(lab, coalition, u1=coalition), {a: first}, {a: last}
    return compare(lab, view, one, other, Joint(lab, view).played(one, 3))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print three tables; 1 if something is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--full", action="store_true", help="every L from 2 to 6 and K from 1 to 3")
    parser.add_argument("--case", type=int, action="append", help="only the case with this number")
    chosen = parser.parse_args(arguments)
    cases = FULL if chosen.full else [replace(case, few=None) for case in QUICK]
    cases = [cases[i] for i in chosen.case] if chosen.case else cases
    return 1 if sum([secrecy(cases), tightness(cases), sabotages()]) else 0


def secrecy(cases: Sequence[Case]) -> int:
    """Print what coalitions of at most T users learn: nothing; the number of cases where that is not so."""
    print("At most T users: every place, input, broadcast, U1 and U2\n")
    print(CASE.format(*HEAD))
    failures = 0
    for case in cases:
        for elimination in ELIMINATIONS:
            start = time.perf_counter()
            done = certified(case, elimination)
            p = case.parameters(elimination)
            sizes = (
                f"{p.users},{p.survivors},{p.colluders}",
                p.blocks,
                p.length,
                p.top_k,
                p.picks or "",
                p.field,
            )
            work = (done.coalitions, done.places, done.supports, done.spaces)
            result = ("LEAKS" if done.failure else "secret", f"{time.perf_counter() - start:.1f} s")
            print(CASE.format(case.construction, elimination, *sizes, *work, *result), flush=True)
            if done.failure:
                print(f"    {done.failure}")
                failures += 1
    return failures


def tightness(cases: Sequence[Case]) -> int:
    """Print what T+1 users learn: something; the number of cases where they do not."""
    print("\nT+1 users: what every such coalition tells apart\n")
    failures = 0
    for case in cases:
        if case.construction == "permutation" and case.L > 4:
            continue  # the same at more cost
        for elimination in ELIMINATIONS:
            lab = Lab(case.parameters(elimination))
            if len(lab.supports) < 2:
                continue  # everything is selected: nothing is hidden but values
            coalitions = coalitions_of(lab.p, lab.p.colluders + 1, lab.p.colluders + 1)
            found = [learn_something(lab, coalition) for coalition in coalitions]
            failures += found.count(None)
            print(f"{case!s:<36} {elimination:<9} {len(found)} coalitions, e.g. {found[0] or 'NOTHING'}")
    return failures


def sabotages() -> int:
    """Print whether T users learn something once the scheme is spoilt; the number of wrong verdicts."""
    print("\nSabotage, seen by T = 1 and T = 2 users, with both eliminations\n")
    failures = 0
    for sabotage in [*SABOTAGES, *HARMLESS]:
        for construction in sabotage.constructions:
            found = [try_sabotage(sabotage, construction, e, T) for e in ELIMINATIONS for T in (1, 2)]
            caught = len(found) - found.count(None)
            failures += found.count(None) if sabotage in SABOTAGES else caught
            verdict = (
                f"caught in {caught} of {len(found)}, e.g. {found[0]}" if caught else "gives nothing away"
            )
            print(f"{sabotage.name:<42} {construction:<11} {verdict}", flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(main())
