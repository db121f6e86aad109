"""What users gave is what was sent plus what they keep: by `run`, by commands and by `aggregate`.

Over series of random rounds with drop-outs of both kinds and weights, top-K and low rank. What one
command does with a residual is in tests/commands/test_feedback.py.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from played import contents, datasets, must

import topk_secagg as ts
from topk_secagg.rounds import feedback

USERS, SURVIVORS, COLLUDERS = 5, 3, 1
EVERYBODY = range(1, USERS + 1)
FIELD = 4281076801


@dataclass(frozen=True)
class Step:
    """One round: who never masks, who masks and never answers, and the gradients."""

    dropped: frozenset[int]
    silent: frozenset[int]
    gradients: np.ndarray

    @property
    def survivors(self) -> list[int]:
        return [n for n in EVERYBODY if n not in self.dropped]


@st.composite
def steps(draw, shape):
    out = draw(st.lists(st.sampled_from(EVERYBODY), unique=True, max_size=USERS - SURVIVORS))
    first = draw(st.integers(0, len(out)))
    seed = draw(st.integers(0, 2**32 - 1))
    size = draw(st.sampled_from([1.0, 1e-4, 300.0]))
    gradients = size * np.random.default_rng(seed).standard_t(2, (USERS, *shape))
    return Step(frozenset(out[:first]), frozenset(out[first:]), gradients)


@st.composite
def stories(draw):
    """The options of a series, users' weights, what is left of a residual, and several rounds."""
    shape = draw(st.tuples(st.integers(4, 6), st.integers(3, 5)))
    kind = draw(st.sampled_from(["permutation", "sketch", "sketch", "low rank"]))
    options: dict[str, Any] = {"field": FIELD}
    if kind == "low rank":
        options["rank"] = draw(st.integers(1, 2))
    else:
        options |= {"top_k": draw(st.integers(1, 4)), "construction": kind}
    if kind == "sketch":
        options["picks"] = draw(st.integers(1, 4))
    if kind != "permutation":
        options["dealing"] = draw(st.sampled_from(["keys", "shares"]))
    weights = draw(st.lists(st.sampled_from([1.0, 0.5, 3.0, 2.25]), min_size=USERS, max_size=USERS))
    decay = draw(st.sampled_from([1.0, 1.0, 0.5]))
    return options, weights, decay, draw(st.lists(steps(shape), min_size=2, max_size=3))


@dataclass
class Way:
    """One way to run a series in a folder; `totals` are its sums."""

    folder: Path
    options: dict[str, Any]
    weights: list[float]
    decay: float
    number: int = 0
    clip: float = 0.0
    totals: list[np.ndarray] = field(default_factory=list)

    def words(self) -> list[object]:
        """The options of a round: later ones take over those of the first."""
        if self.number > 1:
            return ["--from", self.folder / f"round-{self.number - 1}"]
        given = {"survivors": SURVIVORS, "colluders": COLLUDERS, **self.options}
        given |= {"feedback_decay": self.decay, "max_weight": max(1.0, *self.weights)}
        return [
            word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)
        ]

    def save(self, step: Step) -> Path:
        into = self.folder / f"gradients-{self.number}"
        into.mkdir(parents=True, exist_ok=True)
        for n in EVERYBODY:
            np.save(into / f"user-{n}.npy", step.gradients[n - 1])
        return into

    def add_total(self, shape: tuple[int, ...]) -> None:
        written = self.folder / f"sum-{self.number}.npy"
        must("decode", self.folder / f"round-{self.number}", "--output", written)
        self.totals.append(np.load(written).reshape(shape))

    def kept_of(self, user: int, shape: tuple[int, ...]) -> np.ndarray:
        """That of the last round with an X of the user, times its weight."""
        for number in range(self.number, 0, -1):
            secrets = self.folder / f"round-{number}/secrets"
            path = secrets / f"user-{user:02}.residual.h5"
            if path.exists():
                return datasets(path)["value"].reshape(shape)
        return np.zeros(shape)


class ByRun(Way):
    def round(self, step: Step) -> None:
        self.number += 1
        gradients = self.save(step)
        table = self.folder / "weights.csv"
        table.write_text("".join(f"{n},{w}\n" for n, w in enumerate(self.weights, start=1)))
        drops = {"masking": step.dropped, "elimination": step.silent}
        must(
            "run", self.folder / f"round-{self.number}", "--gradients", gradients, *self.words(),
            "--weights", table, "--feedback",
            *(f"--drop-{name}={','.join(map(str, users))}" for name, users in drops.items()),
        )  # fmt: skip
        self.add_total(step.gradients.shape[1:])


class ByCommands(Way):
    def round(self, step: Step) -> None:
        self.number += 1
        gradients = self.save(step)
        folder = self.folder / f"round-{self.number}"
        first = ["--users", USERS, "--like", gradients / "user-1.npy"]
        of_round = first if self.number == 1 else []
        must("init", folder, *of_round, *self.words(), "--clip", repr(self.clip))
        before = self.words() if self.number > 1 else []
        must("offline", folder, "--user", "all", *before)
        for n in step.survivors:
            own = ("--gradient", gradients / f"user-{n}.npy", "--weight", self.weights[n - 1])
            must("mask", folder, "--user", n, *own, "--feedback")
        must("freeze", folder)
        answering = ",".join(str(n) for n in step.survivors if n not in step.silent)
        must("eliminate", folder, "--user", answering)
        self.add_total(step.gradients.shape[1:])


@dataclass
class InMemory(Way):
    last: ts.AggregateReport | None = None

    def round(self, step: Step) -> None:
        self.number += 1
        first = {"survivors": SURVIVORS, "colluders": COLLUDERS, **self.options, "residuals": {}}
        self.last = ts.aggregate(
            list(step.gradients),
            drop_masking=step.dropped,
            drop_elimination=step.silent,
            weights=self.weights,
            feedback_decay=self.decay,
            **({"after": self.last} if self.last else first),
        )
        self.clip = self.last.fixed_point.clip
        self.totals.append(self.last.total)

    def kept_of(self, user: int, shape: tuple[int, ...]) -> np.ndarray:
        assert self.last is not None
        return self.last.residuals.get(user, np.zeros(shape))


def check_nothing_is_lost(way: Way, step: Step, before: list[np.ndarray]) -> None:
    """After a round: what survivors gave, and what is left of what they kept before, is the sum and
    what they keep now; the others keep what they had."""
    shape = step.gradients.shape[1:]
    given_to_it = np.zeros(shape)
    for n in step.survivors:
        given_to_it += way.weights[n - 1] * step.gradients[n - 1] + way.decay * before[n - 1]
    after = [way.kept_of(n, shape) for n in EVERYBODY]
    kept = sum(after[n - 1] for n in step.survivors)
    lost = np.abs(way.totals[-1] + kept - given_to_it).max()
    size = max(np.abs(each).max() for each in (step.gradients, *before))
    assert lost < 1e-12 * size * max(way.weights) * USERS, f"{lost:g} is lost"
    for n in step.dropped:
        assert np.array_equal(after[n - 1], before[n - 1])


def play(way: Way, step: Step) -> None:
    """A round in which nothing may get lost."""
    shape = step.gradients.shape[1:]
    before = [way.kept_of(n, shape) if way.number else np.zeros(shape) for n in EVERYBODY]
    way.round(step)
    check_nothing_is_lost(way, step, before)


@settings(max_examples=12)
@given(stories())
def test_given_is_sent_plus_kept_in_all_three_ways_and_they_agree(story):
    options, weights, decay, rounds = story
    with tempfile.TemporaryDirectory() as scratch:
        ways = [
            kind(Path(scratch) / kind.__name__, options, weights, decay)
            for kind in (InMemory, ByRun, ByCommands)
        ]
        for step in rounds:
            for way in ways:
                way.clip = ways[0].clip
                play(way, step)
        if "rank" not in options:  # a first basis is drawn
            check_first_sums_agree(ways, rounds[0])


def check_first_sums_agree(ways: list[Way], first: Step) -> None:
    """But for the rounding: two steps for each survivor. (Later rounds start from residuals that
    differ by that much, and two coordinates that are as close may then change places.)"""
    clip = max(np.abs(first.gradients[n - 1]).max() for n in first.survivors)
    steps_per_unit = (FIELD - 1) // 2 // (USERS * clip * max(1.0, *ways[0].weights))
    for way in ways[1:]:
        apart = np.abs(way.totals[0] - ways[0].totals[0]).max()
        assert apart <= 2 * len(first.survivors) / steps_per_unit


SILENT = [
    Step(frozenset({5}), frozenset({2}), np.random.default_rng(seed).normal(size=(USERS, 4, 5)))
    for seed in range(2)
]


def by_run(folder: Path) -> ByRun:
    return ByRun(folder, {"top_k": 3, "construction": "permutation"}, [1.0] * USERS, 1.0)


@pytest.mark.rule(8, 10)
def test_a_residual_that_is_not_taken_is_lost(tmp_path, monkeypatch):
    """The twin: users that did not answer are taken for users that did not send."""
    way = by_run(tmp_path)
    play(way, SILENT[0])
    monkeypatch.setattr(feedback, "counted", lambda ledger, _: ledger.answered is not None)
    with pytest.raises(AssertionError, match="is lost"):
        play(way, SILENT[1])


def test_the_same_run_again_changes_nothing(tmp_path):
    way = by_run(tmp_path)
    for step in SILENT:
        play(way, step)
    before = contents(tmp_path)
    way.number = 1
    way.round(SILENT[1])
    assert contents(tmp_path) == before


def test_what_is_clamped_stays_in_the_residual(tmp_path):
    way = ByCommands(tmp_path, {"top_k": 3, "construction": "sketch"}, [1.0] * USERS, 1.0, clip=1.0)
    gradients = np.zeros((USERS, 4, 5))
    gradients[:, 1, 2] = 5.0
    play(way, Step(frozenset(), frozenset(), gradients))
    for n in EVERYBODY:
        assert way.kept_of(n, (4, 5))[1, 2] == pytest.approx(4.0, abs=1e-6)
