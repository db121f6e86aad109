"""How many lies the agreement of the answers excludes, and when a wrong answer may be left out.

T users that lie together can move their answers to another polynomial of degree < D+T, one that
meets the polynomial of the honest users at D+T-1 of their points. They need not even see an honest
answer for that. So D+2T-1 answers can agree on a wrong sum. D+2T answers cannot: at least D+T of
them are honest, and these determine the polynomial.
"""

from __future__ import annotations

from ..errors import Advice, Hint, counted
from .parameters import Parameters

_CAUSE = "look for the cause with an audit, and start a new round"


def certain_quorum(p: Parameters) -> int:
    """D + 2T: as many answers agree only on the sum, unless more than T users lie."""
    return p.blocks + 2 * p.colluders


def liars_excluded(p: Parameters, agreeing: int) -> int:
    """min(T, agreeing - D - T): so many users that lie together cannot have made the sum wrong."""
    return min(p.colluders, agreeing - p.blocks - p.colluders)


def is_correctable(p: Parameters, answers: int, wrong: int) -> bool:
    """Whether `wrong` of the answers may be left out: at most T, so that D + 2T agree.

    Each correction uses up detection: a correction with fewer that agree would let T liars have an
    honest user corrected to their sum.
    """
    return wrong <= p.colluders and answers - wrong >= certain_quorum(p)


def with_more_answers(p: Parameters, survivor_count: int, answers: int, wrong: int) -> Hint:
    """What could still give D + 2T answers that agree if `wrong` do not."""
    if wrong > p.colluders:
        return (
            f"more than T = {p.colluders} are wrong, and no further answer can help; {_CAUSE}",
            None,
        )
    needed = certain_quorum(p) + wrong
    if needed <= survivor_count:
        missing = needed - answers
        return f"wait for at least {counted(missing, 'more user')} to answer", None
    hopeless = (
        f"no number of answers of this round is enough: it takes {needed},"
        f" and there are {survivor_count} survivors"
    )
    return (f"{hopeless}; {_CAUSE}", None) if wrong else (hopeless, Advice.STRICT)
