"""Random rounds against a model that says for every step how it must end.

Parameters, formats, constructions and drop-outs are random, and so is the order of the steps: some come too
early, some twice, some with another input. `python tests/faults/drill.py --rounds 500` runs many.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import h5py
from fault_lab import FIELD, Recipe, Round, Violation, counted, judged, leftovers, scratch

FORMATS = (".npy", ".npz", ".pt", ".safetensors")
FIELDS = (FIELD, FIELD, FIELD, 65521, 1000003, 257)


@dataclass
class Model:
    """What a round remembers, in plain sets."""

    recipe: Recipe
    started: bool = False
    shared: set[int] = field(default_factory=set)
    masked: dict[int, int] = field(default_factory=dict)  # user to number of the gradient
    frozen: tuple[int, ...] | None = None
    answered: set[int] = field(default_factory=set)

    def init(self, *, other: bool = False) -> int:
        if self.started and other:
            return 77
        self.started = True
        return 0

    def offline(self, user: int) -> int:
        if not self.started:
            return 66
        if not 1 <= user <= self.recipe.users:
            return 2
        self.shared.add(user)
        return 0

    def mask(self, user: int, gradient: int) -> int:
        if not self.started:
            return 66
        if not 1 <= user <= self.recipe.users:
            return 2
        if user not in self.shared:
            return 66
        if self.masked.get(user, gradient) != gradient:
            return 77
        self.masked[user] = gradient
        return 0

    def freeze(self, only: tuple[int, ...] | None) -> int:
        if not self.started:
            return 66
        chosen = tuple(sorted(self.masked if only is None else only))
        if any(user not in self.masked for user in chosen):
            return 66
        if len(chosen) < self.recipe.survivors:
            return 69
        if self.frozen not in (None, chosen):
            return 77
        self.frozen = chosen
        return 0

    def eliminate(self, user: int) -> int:
        if not self.started:
            return 66
        if not 1 <= user <= self.recipe.users:
            return 2
        if self.frozen is None:
            return 66
        if user not in self.frozen:
            return 2
        self.answered.add(user)
        return 0

    def decode(self) -> int:
        if not self.started or self.frozen is None:
            return 66
        return 0 if len(self.answered) >= self.recipe.blocks + self.recipe.colluders else 69


def random_recipe(source: random.Random, number: int) -> Recipe:
    """Admissible parameters of a small round."""
    users = source.randint(2, 6)
    survivors = source.randint(2, users)
    colluders = source.randint(1, survivors - 1)
    blocks = source.randint(1, survivors - colluders)
    length = source.randint(4, 40)
    q = source.choice(FIELDS)
    rotation = source.random() < 0.5
    picks, top_k = 0, source.randint(1, max(1, length // 3))
    if rotation:
        picks = source.randint(1, 3)
        top_k = source.randint(1, length)
        while picks > 1 and -(-length // (-(-top_k // (picks * blocks)) * blocks)) < picks:
            picks -= 1
    return Recipe(
        f"drill-{number}",
        users=users,
        survivors=survivors,
        colluders=colluders,
        blocks=blocks,
        top_k=top_k,
        length=length,
        field=q,
        construction="rotation" if rotation else "permutation",
        picks=picks,
        elimination=source.choice(("dense", "auto", "syndrome", "syndrome")),
        suffix=source.choice(FORMATS),
        seed=source.randrange(10**6),
    )


class Drill:
    """One random round."""

    def __init__(self, folder: Path, seed: int, number: int, counts: Counter[str]) -> None:
        self.source = random.Random(f"{seed} {number}")
        self.recipe = random_recipe(self.source, number)
        self.state = Round(self.recipe, folder / "round", folder / "inputs")
        self.state.prepare()
        self.model = Model(self.recipe)
        self.counts = counts
        self.history: list[str] = []

    def expect(self, code: int, *command: object) -> None:
        """Run a command, which must end as the model says."""
        self.history.append(" ".join(str(c) for c in command if not isinstance(c, Path)))
        result = judged(*command)
        if result.code != code:
            raise Violation(f"exits {result.code} and not {code}: {result.err}")
        if found := leftovers(self.state.folder):
            raise Violation(f"leaves {found}")
        self.counts[f"{command[0]} {code}"] += 1

    def mask(self, user: int, other: bool = False) -> None:
        gradient = self.state.mask(user if 1 <= user <= self.recipe.users else 1)
        which = user
        if other:
            which = user % self.recipe.users + 1
            if self.state.sent(which) == self.state.sent(user):
                return
        command = list(gradient)
        command[3], command[5] = user, self.state.gradient(which if 1 <= which <= self.recipe.users else 1)
        self.expect(self.model.mask(user, which), *command)
        if other and self.model.masked.get(user) == which:  # it was the first: that is now the user's input
            self.state.steps[user] = self.state.steps[which]
            shutil.copyfile(self.state.gradient(which), self.state.gradient(user))
            self.model.masked[user] = user

    def stray(self) -> None:
        """A step out of order, a repeated one, or one with another input."""
        user = self.source.randint(0, self.recipe.users + 1)
        inside = min(max(user, 1), self.recipe.users)
        kind = self.source.choice(["offline", "mask", "other", "freeze", "only", "eliminate", "decode", "init"])
        if kind == "offline" and (self.model.started or inside == user):
            self.expect(self.model.offline(user), "offline", self.state.folder, "--user", user)
        elif kind == "mask":
            self.mask(user)
        elif kind == "other" and inside in self.model.masked:
            self.mask(inside, other=True)
        elif kind == "freeze" and (self.model.frozen or not self.model.started or self._too_few()):
            self.expect(self.model.freeze(None), *self.state.freeze())
        elif kind == "only" and (self.model.frozen or self._too_few()):
            count = self.source.randint(1, self.recipe.users)
            only = tuple(sorted(self.source.sample(range(1, self.recipe.users + 1), count)))
            self.expect(self.model.freeze(only), *self.state.freeze(), "--only", ",".join(map(str, only)))
        elif kind == "eliminate":
            self.expect(self.model.eliminate(user), "eliminate", self.state.folder, "--user", user)
        elif kind == "decode":
            self.decode()
        elif kind == "init" and self.model.started:
            other = self.source.random() < 0.5
            changed = ("--clip", self.recipe.clip / 2) if other else ()
            self.expect(self.model.init(other=other), *self.state.init(), *changed)

    def _too_few(self) -> bool:
        return len(self.model.masked) < self.recipe.survivors

    def decode(self) -> None:
        code = self.model.decode()
        self.expect(code, *self.state.decode())
        if code == 0:
            if self.state.check_aggregate():
                raise Violation("somebody was corrected")
            with h5py.File(self.state.folder / "aggregate.h5", "r") as file:
                answering = file["answering"][...].tolist()
            if answering != sorted(self.model.answered):
                raise Violation(f"{answering} answering, and not {sorted(self.model.answered)}")

    def some(self, users: range | tuple[int, ...], least: int) -> list[int]:
        """A random subset with at least so many, in random order."""
        return self.source.sample(list(users), self.source.randint(min(least, len(users)), len(users)))

    def strays(self) -> None:
        while self.source.random() < 0.35:
            self.stray()

    def run(self) -> None:
        """The round, with strays between its steps; ends with an aggregate, or with too few users."""
        r, everybody = self.recipe, range(1, self.recipe.users + 1)
        self.strays()
        self.expect(self.model.init(), *self.state.init())
        offline = self.some(everybody, r.survivors)
        for user in offline:
            self.strays()
            self.expect(self.model.offline(user), *self.state.offline(user))
        least = r.survivors if self.source.random() < 0.9 else 1
        for user in self.some(tuple(sorted(self.model.shared)), least):
            self.strays()
            self.mask(user)
        self.strays()
        only = None
        if self.model.frozen is None and self.source.random() < 0.3:
            only = tuple(sorted(self.some(tuple(self.model.masked), r.survivors)))
        more = ["--only", ",".join(map(str, only))] if only else []
        self.expect(self.model.freeze(only or None), *self.state.freeze(), *more)
        if self.model.frozen is None:
            self.counts["rounds with too few users"] += 1
            return
        quorum = r.blocks + r.colluders
        for user in self.some(self.model.frozen, quorum if self.source.random() < 0.9 else 0):
            self.strays()
            self.expect(self.model.eliminate(user), *self.state.eliminate(user))
        self.strays()
        self.decode()
        ended = len(self.model.answered) >= quorum
        self.counts["rounds with the exact sum" if ended else "rounds with too few answers"] += 1


def run_rounds(folder: Path, numbers: range, seed: int, seconds: float = 1e9) -> tuple[Counter[str], list[str]]:
    """Random rounds; how often each step ended how, and what went wrong."""
    counts: Counter[str] = Counter()
    violations = []
    deadline = time.monotonic() + seconds
    for number in numbers:
        if time.monotonic() > deadline:
            break
        place = folder / str(number)
        place.mkdir()
        drill = Drill(place, seed, number, counts)
        try:
            drill.run()
        except Violation as violation:
            violations.append(f"round {number}: {violation}; {drill.recipe}; {'; '.join(drill.history)}")
        counts["rounds"] += 1
        shutil.rmtree(place)
    return counts, violations


def main() -> int:
    """Run many rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=900)
    args = parser.parse_args()
    started = time.monotonic()
    with scratch() as folder:
        counts, violations = run_rounds(folder, range(args.rounds), args.seed, args.seconds)
    took = time.monotonic() - started
    print(f"{counts['rounds']} rounds in {took:.0f} s, seed {args.seed}:\n{counted(counts)}")
    for violation in violations:
        print(f"VIOLATION {violation}")
    print(f"{len(violations)} violations")
    if counts["rounds"] < args.rounds:
        print(f"FAILED: {args.rounds} rounds were asked for; give --seconds more")
    return bool(violations) or counts["rounds"] < args.rounds


if __name__ == "__main__":
    sys.exit(main())
