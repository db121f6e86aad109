"""Random rounds against a model that says for every step how it must end.

Parameters, formats, constructions and drop-outs are random, and so is the order of the steps: some
come too early, some twice, some with another input. Where shares are keys, a second round of the
series follows. `python tests/faults/drill.py --rounds 500` runs many, and
`--construction sketch` those of one construction.
"""

import argparse
import random
import shutil
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

from fault_lab import concluded, drawn_from, scratch
from played import Command, Recipe, Round, Violation, datasets, judged, leftovers

from topk_secagg.algebra.field import DEFAULT_FIELD

FORMATS = (".npy", ".npz", ".pt", ".safetensors")
STRAYS = (
    "offline", "mask", "other", "freeze", "only", "confirm", "eliminate", "decode", "init",
    "forget",
)  # fmt: skip
FIELDS = (DEFAULT_FIELD, DEFAULT_FIELD, 65521, 1000003, 257)


@dataclass
class Model:
    """What a round remembers, in plain sets."""

    recipe: Recipe
    started: bool = False
    shared: set[int] = field(default_factory=set)
    # whose shares are there for each user
    arrived: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    masked: dict[int, int] = field(default_factory=dict)  # user to number of the gradient
    holds: dict[int, set[int]] = field(
        default_factory=dict
    )  # whose shares a user had when it masked
    frozen: tuple[int, ...] | None = None
    confirmed: set[int] = field(default_factory=set)
    answered: set[int] = field(default_factory=set)
    decoded: bool = False
    forgotten: set[int] = field(default_factory=set)
    gave_up: set[int] = field(default_factory=set)

    def _of(self, user: int) -> int:
        """What every step of a user checks first."""
        if not self.started:
            return 66
        return 0 if user in self.recipe.everybody else 2

    def init(self, *, other: bool = False) -> int:
        if self.started and other:
            return 77
        self.started = True
        return 0

    def offline(self, user: int) -> int:
        code = self._of(user) or (77 if user in self.forgotten else 0)
        if not code:
            self.shared.add(user)
            for m in self.recipe.everybody:
                self.arrived[m].add(user)
        return code

    def mask(self, user: int, gradient: int) -> int:
        if code := self._of(user):
            return code
        if user not in self.shared:
            return 66
        if user in self.forgotten or self.masked.get(user, gradient) != gradient:
            return 77
        if user not in self.masked and len(self.arrived[user]) < self.recipe.survivors:
            return 66
        self.masked[user] = gradient
        self.holds.setdefault(user, set(self.arrived[user]))
        return 0

    def answerable(self, users: tuple[int, ...]) -> tuple[int, ...]:
        """The users of whom at least U hold the shares of all; the least held user is removed
        first."""
        kept = set(users)
        while len(kept) >= self.recipe.survivors:
            if sum(kept <= self.holds[n] for n in kept) >= self.recipe.survivors:
                return tuple(sorted(kept))
            kept.remove(max(kept, key=lambda m: (sum(m not in self.holds[n] for n in kept), m)))
        return ()

    def freeze(self, only: tuple[int, ...] | None) -> int:
        if not self.started:
            return 66
        if not self.recipe.confirm and 1 not in self.shared:  # the freezer has no ledger
            return 66
        if self.frozen is not None:
            return 0 if only in (None, self.frozen) else 77
        chosen = tuple(sorted(self.masked if only is None else only))
        if any(user not in self.masked for user in chosen):
            return 66
        kept = self.answerable(chosen)
        if not kept or (only is not None and kept != chosen):
            return 69
        self.frozen = kept
        return 0

    def confirm(self, user: int) -> int:
        if code := self._of(user):
            return code
        if not self.recipe.confirm:
            return 2
        if self.frozen is None or user not in self.shared:
            return 66
        self.confirmed.add(user)
        return 0

    def is_confirmed(self) -> bool:
        """Whether so many users have confirmed that others may rely on it."""
        r = self.recipe
        return not r.confirm or 2 * len(self.confirmed) > r.users + r.colluders

    def eliminate(self, user: int) -> int:
        if code := self._of(user):
            return code
        if self.frozen is None:
            return 66
        if user not in self.frozen:
            return 2
        if user in self.forgotten:
            return 77
        if not self.is_confirmed():
            return 66
        held = self.holds[user] if self.recipe.deals_keys else self.arrived[user]
        if user not in self.answered and not set(self.frozen) <= held:
            return 66
        self.answered.add(user)
        return 0

    def answering(self) -> list[int]:
        """Whose answers decode, if they are enough."""
        enough = len(self.answered) >= self.recipe.survivors
        return sorted(self.answered) if enough else []

    def decode(self) -> int:
        if not self.started or self.frozen is None:
            return 66
        return 0 if self.answering() else 69

    def left_out(self, user: int) -> bool:
        """Whether the user knows that its X is not in the sum."""
        binds = self.frozen is not None and len(self.confirmed) >= self._binding
        return binds and user not in self.frozen

    @property
    def _binding(self) -> int:
        """The confirmations that show a user that it was left out."""
        return self.recipe.survivors if self.recipe.confirm else 0

    def saw_sum(self, user: int) -> bool:
        """Whether the user's own decoding gave the sum; user 1 decodes, and in one folder all."""
        return self.decoded and (user == 1 or not self.recipe.homes)

    def is_over(self, user: int) -> bool:
        """Whether the user can go on with the series."""
        done = user not in self.masked or user in self.answered or user in self.gave_up
        return done or self.left_out(user) or self.saw_sum(user)

    def forget(self, user: int, *, give_up: bool = False) -> int:
        if code := self._of(user):
            return code
        if user not in self.shared:
            return 66
        binds = self.frozen is not None and len(self.confirmed) >= self._binding
        over = self.is_over(user) and (user in self.masked or binds)
        if user not in self.forgotten and not over and not give_up:
            return 77
        if give_up and user not in self.forgotten and not self.is_over(user):
            self.gave_up.add(user)
        self.forgotten.add(user)
        self.arrived[user] = set()
        for m in self.recipe.everybody:
            if m != user and not self._needs(m):
                self.arrived[m].discard(user)
        return 0

    def _needs(self, user: int) -> bool:
        """Whether shares for a user stay when others forget the round."""
        here = self.recipe.sealed or user in self.shared
        if user in self.forgotten and here and not self.recipe.homes:
            return False
        if self.recipe.deals_keys:
            return here
        return here and user not in self.answered


@dataclass
class Later(Model):
    """The second round of a series: nothing is sent, and users hold what they entered before."""

    before: Model | None = None

    def offline(self, user: int) -> int:
        assert self.before is not None
        code = self._of(user)
        if code or user not in self.before.shared:
            return code or 66
        if user in self.forgotten:
            return 77
        if user not in self.shared and not self.before.is_over(user):
            return 75
        if user not in self.masked:
            # what had arrived in the first round is entered when its user masks here
            self.arrived[user] |= self.before.holds.get(user, set()) | self.before.arrived[user]
        self.shared.add(user)
        return 0

    def _needs(self, user: int) -> bool:  # noqa: ARG002
        """There is nothing that others could need."""
        return True


def random_recipe(source: random.Random, number: int, construction: str | None) -> Recipe:
    """Admissible parameters of a small round."""
    users = source.randint(2, 6)
    survivors = source.randint(2, users)
    colluders = source.randint(1, survivors - 1)
    length = source.randint(4, 40)
    construction = construction or source.choice(("permutation", "sketch", "sketch"))
    buckets = construction != "permutation"
    top_k = source.randint(1, max(1, length // 3))
    picks = (
        source.choice([p for p in (1, 2, 3) if length // -(-top_k // p) >= p]) if buckets else None
    )
    sealed = source.random() < 0.2
    return Recipe(
        f"drill-{number}",
        users=users,
        survivors=survivors,
        colluders=colluders,
        top_k=top_k,
        length=length,
        picks=picks,
        field=source.choice(FIELDS),
        construction=construction,
        dealing=source.choice((None, None, None, "shares")),
        suffix=source.choice(FORMATS),
        sealed=sealed,
        homes=sealed,
        confirm=sealed and 2 * survivors > users + colluders,
    )


class Drill:
    """One random round."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        number: int,
        counts: Counter[str],
        construction: str | None = None,
    ) -> None:
        self.source = random.Random(f"{seed} {number}")
        self.recipe = random_recipe(self.source, number, construction)
        self.state = Round(self.recipe, folder / "round", folder / "inputs")
        self.state.prepare()
        self.model = Model(self.recipe)
        self.counts = counts
        self.history: list[str] = []
        self.earlier: Path | None = None  # the first round of the series, in the second

    def expect(self, code: int, command: Command) -> None:
        """Run a command, which must end as the model says."""
        self.history.append(" ".join(str(c) for c in command if not isinstance(c, Path)))
        result = judged(*command)
        if result.code != code:
            raise Violation(f"exits {result.code} and not {code}: {result.err}")
        if found := leftovers(self.state.folder):
            raise Violation(f"leaves {found}")
        self.counts[f"{command[0]} {code}"] += 1

    def inside(self, user: int) -> int:
        """A user of the round, whose keys and gradient stand for those of one that there is not."""
        return min(max(user, 1), self.recipe.users)

    def step(self, name: str, user: int, *more: object) -> Command:
        """A step of a user, or of one that is not in the round."""
        earlier = () if self.earlier is None or name != "offline" else ("--from", self.earlier)
        command = list(getattr(self.state, name)(self.inside(user), *more, *earlier))
        command[command.index("--user") + 1] = user
        return tuple(command)

    def mask(self, user: int, *, other: bool = False) -> None:
        which = user
        if other:
            which = user % self.recipe.users + 1
            if self.state.sent(which) == self.state.sent(user):
                return
        command = list(self.step("mask", user))
        command[command.index("--gradient") + 1] = self.state.gradient(self.inside(which))
        self.expect(self.model.mask(user, which), tuple(command))

    def stray(self) -> None:
        """A step out of order, a repeated one, or one with another input."""
        model = self.model
        user = self.source.randint(0, self.recipe.users + 1)
        kind = self.source.choice(STRAYS)
        if kind == "offline":
            self.expect(model.offline(user), self.step("offline", user))
        elif kind == "mask":
            self.mask(user)
        elif kind == "other" and self.inside(user) in model.masked:
            self.mask(self.inside(user), other=True)
        elif kind == "freeze" and (model.frozen or not model.started or self._too_few()):
            self.expect(model.freeze(None), self.state.freeze())
        elif kind == "only" and (model.frozen or self._too_few()):
            count = self.source.randint(1, self.recipe.users)
            only = tuple(sorted(self.source.sample(self.recipe.everybody, count)))
            self.expect(model.freeze(only), self.state.freeze("--only", ",".join(map(str, only))))
        elif kind == "confirm":
            self.expect(model.confirm(user), self.step("confirm", user))
        elif kind == "eliminate":
            self.expect(model.eliminate(user), self.step("eliminate", user))
        elif kind == "decode":
            self.decode()
        elif kind == "init" and model.started:
            other = self.source.random() < 0.5
            changed = ("--clip", self.recipe.clip / 2) if other else ()
            start = self.state.init(*changed)
            if self.earlier is not None:
                start = ("init", self.state.folder, "--from", self.earlier, *changed)
            self.expect(model.init(other=other), start)
        elif kind == "forget" and (model.answered or self.source.random() < 0.3):
            self.expect(model.forget(user), self.step("forget", user))

    def _too_few(self) -> bool:
        return len(self.model.masked) < self.recipe.survivors

    def decode(self) -> None:
        code = self.model.decode()
        self.expect(code, self.state.decode())
        if code == 0:
            self.model.decoded = True
            if self.state.check_aggregate():
                raise Violation("a user was corrected")
            answering = datasets(self.state.folder / "aggregate.h5")["answering"].tolist()
            if answering != self.model.answering():
                raise Violation(f"{answering} answering, and not {self.model.answering()}")

    def some(self, users: range | tuple[int, ...], least: int) -> list[int]:
        """A random subset of at least the given size, in random order."""
        return self.source.sample(
            list(users), self.source.randint(min(least, len(users)), len(users))
        )

    def strays(self) -> None:
        while self.source.random() < 0.35:
            self.stray()

    def run(self) -> None:
        """The round, and where shares are keys the next one of the series."""
        self.strays()
        self.expect(self.model.init(), self.state.init())
        self.play()
        if self.recipe.deals_keys:
            self.earlier = self.state.folder
            self.state = self.state.elsewhere(self.earlier.with_name("later"))
            self.model = Later(self.recipe, before=self.model)
            start = ("init", self.state.folder, "--from", self.earlier)
            self.expect(self.model.init(), start)
            first = self.state.elsewhere(self.earlier)
            self.state = self.with_other_gradients()
            for user in sorted(self.model.before.shared):
                if not self.model.before.is_over(user):
                    self.expect(self.model.offline(user), self.step("offline", user))  # 75
                    code = self.model.before.forget(user, give_up=True)
                    self.expect(code, first.forget(user, "--give-up"))
            self.play()
            for user in self.recipe.everybody:
                self.expect(self.model.forget(user), self.step("forget", user))
            self.counts["second rounds of a series"] += 1

    def with_other_gradients(self) -> Round:
        """The same round, in which every user has another gradient."""
        state = replace(self.state, inputs=self.state.inputs.with_name("other-inputs"))
        state.steps = state.write_gradients(self.source)
        return state

    def play(self) -> None:
        """A round that was started, with strays between its steps; it ends with an aggregate, or
        with too few users."""
        r = self.recipe
        model = self.model
        able = r.everybody if self.earlier is None else tuple(sorted(model.before.shared))
        for user in self.some(able, r.survivors):
            self.strays()
            self.expect(model.offline(user), self.step("offline", user))
        least = r.survivors if self.source.random() < 0.9 else 1
        for user in self.some(tuple(sorted(model.shared)), least):
            self.strays()
            self.mask(user)
        self.strays()
        only = None
        if model.frozen is None and self.source.random() < 0.3:
            only = tuple(sorted(self.some(tuple(model.masked), r.survivors)))
        more = ["--only", ",".join(map(str, only))] if only else []
        self.expect(model.freeze(only or None), self.state.freeze(*more))
        if model.frozen is None:
            self.counts["rounds with too few users"] += 1
            return
        for user in self.some(r.everybody, r.users) if r.confirm else ():
            self.strays()
            self.expect(model.confirm(user), self.step("confirm", user))
        enough = r.survivors if self.source.random() < 0.9 else 0
        for user in self.some(model.frozen, enough):
            self.strays()
            self.expect(model.eliminate(user), self.step("eliminate", user))
        self.strays()
        self.decode()
        self.counts[
            "rounds with the exact sum" if model.answering() else "rounds with too few answers"
        ] += 1


def run_rounds(
    folder: Path,
    numbers: range,
    seed: int,
    seconds: float = 1e9,
    construction: str | None = None,
) -> tuple[Counter[str], list[str]]:
    """Random rounds; how often each step ended how, and what went wrong."""
    counts: Counter[str] = Counter()
    violations = []
    deadline = time.monotonic() + seconds
    for number in numbers:
        if time.monotonic() > deadline:
            break
        place = folder / str(number)
        place.mkdir()
        with drawn_from(number):
            drill = Drill(place, seed, number, counts, construction)
            try:
                drill.run()
            except AssertionError as violation:
                violations.append(
                    f"round {number}: {violation}; {drill.recipe}; {'; '.join(drill.history)}"
                )
        counts["rounds"] += 1
        shutil.rmtree(place)
    return counts, violations


def main() -> int:
    """Run many rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--construction", choices=("permutation", "sketch"))
    args = parser.parse_args()
    started = time.monotonic()
    with scratch() as folder:
        counts, violations = run_rounds(
            folder,
            range(args.rounds),
            seed=args.seed,
            seconds=args.seconds,
            construction=args.construction,
        )
    what = f"{counts['rounds']} rounds in {time.monotonic() - started:.0f} s, seed {args.seed}:"
    return concluded(what, counts, violations, args.rounds - counts["rounds"])


if __name__ == "__main__":
    sys.exit(main())
