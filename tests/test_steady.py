"""What a small round costs, in counts that are the same on every machine: a change here is a change
of costs.

Seconds are measured in benchmarks/. If a count changes for a good reason, change it here, and say
why in the commit.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from deterministic import seeded_key

from topk_secagg.algebra import native
from topk_secagg.algebra.randomness import CipherRandomness
from topk_secagg.protocol.constructions import construction
from topk_secagg.protocol.messages import Sparse
from topk_secagg.protocol.parameters import Parameters
from topk_secagg.protocol.round import run_round

SIZES = {"users": 10, "survivors": 5, "colluders": 3, "length": 10_000, "top_k": 100}
ROUNDS = {
    "sketch": Parameters.choose(**SIZES, construction="sketch", dealing="shares", picks=2),
    "permutation": Parameters.choose(
        **SIZES | {"length": 500, "top_k": 5}, construction="permutation"
    ),
}


# How many products a call of a kernel makes, by the shapes of its arrays
PRODUCTS: dict[str, Callable[[dict[str, Any]], int]] = {
    # T for every symbol of every share
    "encode": lambda given: given["shares"].size * given["noise"].shape[1],
    # one for every symbol of the sketch of every entry
    "sketch": lambda given: given["place"].size * given["out"].shape[1],
    "eliminate": lambda given: given["f"].size,
    # one for every answer that is used, or every value behind a share
    "combine": lambda given: given["out"].size * given["matrix_mm"].shape[1],
    "weigh": lambda given: given["y"].size * len(given["factors"]),
}


class Counted:
    """The products that kernels make, and random words."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.products: Counter[str] = Counter()
        self.words = 0
        for name in PRODUCTS:
            monkeypatch.setattr(native, name, self.counting(name))
        fill = CipherRandomness.fill

        def counting_words(source: CipherRandomness, out: np.ndarray) -> None:
            self.words += out.size // 4
            fill(source, out)

        monkeypatch.setattr(CipherRandomness, "fill", counting_words)

    def counting(self, name: str) -> Callable[..., None]:
        """The function that calls a kernel, and counts its products."""
        kernel = getattr(native, name)
        signature = inspect.signature(kernel)

        def call(*arguments: Any, **named: Any) -> None:
            given = signature.bind(*arguments, **named).arguments
            self.products[name] += PRODUCTS[name](given)
            kernel(*arguments, **named)

        return call


def whole_round(p: Parameters) -> None:
    """All ten users mask, and all answer."""
    inputs = {}
    for n in range(1, p.users + 1):
        gradient = np.random.default_rng(n).standard_normal(p.length)
        index = construction(p).select(gradient)
        inputs[n] = Sparse(index, np.full(index.size, n, np.uint32))
    everyone = range(1, p.users + 1)
    run_round(p, inputs, everyone, everyone, CipherRandomness(seeded_key(0, "steady")))


@pytest.mark.parametrize(
    ("name", "products", "words"),
    [
        (
            "sketch",
            {
                "sketch": 10 * 100 * 40,  # N users, K entries, W symbols
                # N dealers, N receivers, B/D groups, W symbols, D + T values; and the answers
                "combine": 10 * 10 * 25 * 40 * 5 + 50 * 40 * 5,
                "weigh": 10 * 25 * 40 * 3,  # three random combinations of all answers
            },
            # masks of B buckets, and noise of B/D groups; coefficients
            10 * (50 * 40 + 25 * 40 * 3) + (25 * 40 // 64 + 1 + 64) * 3,
        ),
        (
            "permutation",
            {
                "encode": 10
                * 10
                * 500
                * 250
                * 3
                * 2,  # N senders, N receivers, L rows, L/D symbols, T, f and h
                "eliminate": 10 * 10 * 5 * 250,
                "combine": 2 * 250 * 5,
                "weigh": 10 * 250 * 3,
            },
            10 * (500 * 2 + 500 + 500 * 250 * 3 * 2) + (250 // 64 + 1 + 64) * 3,
        ),
    ],
)
def test_products_and_random_words_of_a_round(
    name: str, products: dict[str, int], words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_round(ROUNDS[name])  # kernels answer a question when they are first used
    counted = Counted(monkeypatch)
    whole_round(ROUNDS[name])
    assert {kernel: count for kernel, count in counted.products.items() if count} == products
    assert words <= counted.words <= 1.01 * words, (
        "a third of a per cent is rejected: it is not below q"
    )


@pytest.mark.parametrize(
    ("name", "bytes_"), [("sketch", (4_000, 8_000, 4_000)), ("permutation", (1_000_000, 26, 1_000))]
)
def test_bytes_of_each_phase(name: str, bytes_: tuple[int, int, int]) -> None:
    c = construction(ROUNDS[name])
    assert (c.share_bytes, c.masked_bytes, c.answer_bytes(10)) == bytes_


def test_offline_bytes_and_answers_do_not_grow_with_the_gradient_at_fixed_k() -> None:
    sizes = set()
    for length in (2**14, 2**20, 2**26):
        c = construction(
            Parameters.choose(
                **SIZES | {"length": length, "top_k": 512}, construction="sketch", picks=2
            )
        )
        sizes.add((c.share_bytes, c.answer_bytes(10), c.chunk_rows))
    assert len(sizes) == 1
