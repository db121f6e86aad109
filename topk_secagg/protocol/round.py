"""A whole round in memory, in the order of the paper's section III."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from .. import labels
from ..algebra.field import Integers, Symbols
from ..algebra.parallel import of_each
from ..algebra.randomness import KEY_BYTES, Randomness
from ..errors import TooFewSurvivors, UsageError
from .construction import stacked
from .constructions import construction
from .deal import Deal
from .decoding import decode
from .family import find_family
from .held import KeyShares, WrittenShares
from .messages import (
    AnswerReader,
    AnswerShape,
    HeldShares,
    Masked,
    MaskedInputs,
    Points,
    Secret,
    Sparse,
)
from .parameters import KEYS, Parameters


def run_round(
    p: Parameters,
    inputs: Mapping[int, Sparse],
    survivors: Iterable[int],
    answering: Iterable[int],
    randomness: Randomness,
) -> Sparse:
    """The sum over `survivors` (U1) of the sparse inputs, decoded from the `answering` users (U2).

    Arguments:
    p: the parameters of the round.
    inputs: the sparse quantised input of every user that masks.
    survivors: U1, the users whose inputs are summed.
    answering: U2, those of them that answer.
    randomness: the source of all secrets and noise.
    """
    users = range(1, p.users + 1)
    u1 = sorted(survivors)
    u2 = sorted(answering)
    if len(u1) < p.survivors:
        raise TooFewSurvivors(f"{len(u1)} survivors, and {p.survivors} are needed")
    if not set(u2) <= set(u1):
        raise ValueError("U2 is not within U1")
    c = construction(p)

    # Offline phase: Z_n for every user
    points = c.points()
    sources = {n: randomness.child(labels.user(n)) for n in users}
    deals = {n: new_deal(p, points, dealer=n, source=sources[n]) for n in users}
    secrets = of_each(users, lambda n: c.draw_secret(deals[n], sources[n]), c.entries)
    dealt = {n: deal_shares(p, deals[n], secret=secrets[n], source=sources[n]) for n in users}
    shares = {m: {n: dealt[n][m - 1] for n in u1} for m in u1}

    # Masked-input phase: X_n
    masked = of_each(u1, lambda n: c.mask(secrets[n], inputs[n]), c.entries)

    # Mask-elimination phase: Y_n
    shape = c.answer_shape(len(u1))
    answers = of_each(
        u2,
        lambda n: reader_of(answer(p, masked=masked, shares=shares[n], shape=shape)),
        c.entries,
    )

    # Decoding
    return decode(
        p,
        points,
        shape=shape,
        answers=answers,
        randomness=randomness.child(labels.DECODING),
        masked_sum=sum_of_masked(p, masked.values(), shape),
    ).total


def new_deal(p: Parameters, points: Points, dealer: int, source: Randomness) -> Deal:
    """A dealing of a round that has no files, and so no session."""
    family = find_family(p, points) if p.dealing == KEYS else ()
    if family is None:
        raise UsageError(
            f"no family of keys was found for N = {p.users}, U = {p.survivors}, T = {p.colluders}",
            "deal by shares",
        )
    sharing = source.child(labels.SHARING).bytes(KEY_BYTES).hex()
    return Deal(points=points, session="", dealer=dealer, sharing=sharing, family=family)


def deal_shares(
    p: Parameters, deal: Deal, secret: Secret, source: Randomness
) -> list[Callable[[Integers], tuple[Symbols, ...]]]:
    """What users 1..N hold of one dealer."""
    c = construction(p)
    if p.dealing == KEYS:
        keys = dict(zip(deal.family, secret.keys, strict=True))
        return [
            KeyShares(
                c, deal, user=m, keys={block: key for block, key in keys.items() if m in block}
            )
            for m in range(1, p.users + 1)
        ]
    tables = {name: np.empty((p.users, c.rows, c.width), dtype=np.uint32) for name in c.share_names}
    for chunk in c.share_chunks(deal, secret, source):
        for name, shares in chunk.shares.items():
            tables[name][:, chunk.start : chunk.stop] = shares
    return [WrittenShares(tuple(rows)) for rows in zip(*tables.values(), strict=True)]


def sum_of_masked(p: Parameters, masked: Iterable[Masked], shape: AnswerShape) -> Symbols | None:
    """The sum of all X as far as an answer of this shape reaches, (B, W1), where decoding needs
    it."""
    c = construction(p)
    if not c.decoding_needs_inputs:
        return None
    total = np.zeros((c.entries // c.width, shape.width), dtype=np.uint64)  # fits 2^32 symbols
    for x in masked:
        total += x.value.reshape(-1, c.width)[:, : shape.width]
    return (total % np.uint64(p.field)).astype(np.uint32)


def answer(p: Parameters, masked: MaskedInputs, shares: HeldShares, shape: AnswerShape) -> Symbols:
    """The whole Y of one user for the survivors in `masked` (eq. second:message),
    (groups, width)."""
    chunks = construction(p).answer_chunks(masked=masked, shares=shares, shape=shape)
    return stacked([chunk.groups for chunk in chunks])


def reader_of(y: Symbols) -> AnswerReader:
    """How `decode` reads a Y that is in memory."""
    return lambda start, out: np.copyto(out, y[start : start + len(out)])
