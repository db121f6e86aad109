"""A store that controls every public file, and T members with keys, against users that follow
`status`.

Honest users have their keys, secrets and residuals on machines of their own, give their pins to
every command (`--session`, `--recipients`), and run the step that `status` names. Before each step
the store decides what lies in the user's folder: old, foreign, damaged and forged files, or none.
The T members sign what they like, and agree on lies in their answers that fit as many honest
answers as a polynomial allows. What must hold:

- no honest user loses its secret while its answer is still needed, or its residual;
- no honest user is named as wrong while at most T lie and D+2T agree;
- `decode` with pins gives no wrong sum with exit 0, as far as it says that it excludes so many
  lying users.

Where shares are keys, a second round of the series follows, with the same users and colluders, and
`--series` as its pin.

`python tests/faults/store_drill.py --rounds 200` runs many; `--start 120` goes on where a run
stopped.
"""

import argparse
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from fault_lab import concluded, scratch
from played import (
    Command,
    Recipe,
    Result,
    Round,
    Violation,
    attributes,
    document,
    judged,
    must,
    rewrite,
)

from topk_secagg.rounds.frozen import rows_of
from topk_secagg.storage import inputs, masked, survivors
from topk_secagg.storage.documents import digest
from topk_secagg.storage.keys import Identity, read_identity
from topk_secagg.storage.workspace import Workspace

TURNS = 9  # that every user has; a round takes about six of them
STEPS = 3  # at most, of a user in a turn
HOSTILE = 0.5  # of the turns
TAMPERED = 0.3  # of the files in a hostile turn
EARLY = 0.8  # of the hostile turns before the freeze show a forged survivors.json
VIEWS = 10  # of the answers, that are decoded at the end
LEDGER_LINES = ("shared", "masked", "frozen", "confirmed", "answered")


def _recipe(name: str, users: int, survivors: int, colluders: int, **others: Any) -> Recipe:
    everybody = tuple(range(1, users + 1))
    return Recipe(
        name, users=users, survivors=survivors, colluders=colluders, sealed=True, homes=True,
        residual=True,
        masking=everybody, answering=everybody, **others,
    )  # fmt: skip


_SKETCH = {"construction": "sketch", "picks": 1, "top_k": 2, "length": 9}
RECIPES = (
    _recipe("two of seven", 7, 3, 2),  # D = 1: five answers must agree, of six or seven
    _recipe("two of seven, shares", 7, 3, 2, dealing="shares", **_SKETCH),
    _recipe("one of five, shares", 5, 3, 1, dealing="shares", **_SKETCH),  # D = 2
    _recipe("one of four, confirmed", 4, 3, 1, confirm=True),
    _recipe("two of eight, confirmed", 8, 6, 2, confirm=True, dealing="shares", **_SKETCH),
    _recipe("two of seven, keys", 7, 3, 2, **_SKETCH),
    _recipe("one of five, keys, confirmed", 5, 4, 1, confirm=True, **_SKETCH),
    _recipe("one of five, keys", 5, 3, 1, **_SKETCH),
)


@dataclass
class Member:
    """A user with a machine of its own: its copy of the round's folder, its secrets and its
    residual."""

    user: int
    round: Round
    home: Path
    pins: list[object]
    session: str
    earlier: Path | None = None  # its folder of the first round, in the second of a series

    @property
    def folder(self) -> Path:
        return self.round.folder

    @property
    def ledger(self) -> dict[str, Any]:
        path = self.private / f"user-{self.user:02}.ledger.json"
        return document(path) if path.exists() else {}

    @property
    def private(self) -> Path:
        return self.home / self.session

    @property
    def has_secret(self) -> bool:
        return (self.private / f"user-{self.user:02}.h5").exists()

    def command(self, step: str, *more: object) -> Command:
        """A step as the documents say, with its pins."""
        words: list[object] = [step, self.folder]
        if step == "mask":
            words += ["--gradient", self.round.gradient(self.user)]
            words += ["--feedback"] * (self.earlier is None)  # the sum of a later one is predicted
        words += ["--secrets", self.home]
        if step == "decode":
            return (*words, *self.pins, *more)
        words += ["--user", self.user]
        if step == "offline" and self.earlier is not None:
            words += ["--from", self.earlier]
        return (*words, *self.pins, *more)

    @property
    def residual(self) -> Path:
        return self.private / f"user-{self.user:02}.residual.h5"


class Store:
    """All public files and sealed shares that were ever sent, and what the colluders can make of
    them."""

    def __init__(self, source: random.Random, base: Round, keys: dict[int, Identity]) -> None:
        self.source = source
        self.base = base
        self.keys = keys
        self.space = Workspace(base.folder)
        self.sent: dict[str, bytes] = {"session.json": self.space.session_path.read_bytes()}
        self.stale: dict[str, list[bytes]] = {}

    def take(self, member: Member, step: str) -> None:
        """What a step of a member has just made."""
        own = f"user-{member.user:02}"
        patterns = {
            "offline": (f"shares/*/from-{member.user:02}.h5.age", f"dealt/{own}.json"),
            "mask": (f"masked/{own}.h5",),
            "freeze": ("survivors.json",),
            "confirm": (f"confirmed/{own}.json",),
            "eliminate": (f"elimination/{own}.h5",),
        }
        made = [path for each in patterns.get(step, ()) for path in member.folder.glob(each)]
        for path in made:
            name = str(path.relative_to(member.folder))
            content = path.read_bytes()
            before = self.sent.setdefault(name, content)
            if before != content:
                self.stale.setdefault(name, []).append(content)

    def wanted(self, user: int) -> list[str]:
        """The files that a user fetches."""
        shares = f"shares/user-{user:02}/"
        return [n for n in sorted(self.sent) if not n.startswith("shares/") or n.startswith(shares)]

    def show(self, folder: Path, user: int, *, hostile: bool) -> None:
        """Put files into a user's folder, as the store likes, also in the place of those that the
        user made."""
        for name in ("survivors.json", "aggregate.h5"):
            (folder / name).unlink(missing_ok=True)
        for name in self.wanted(user):
            content: bytes | None = self.sent[name]
            if hostile and self.source.random() < TAMPERED:
                content = self.source.choice(list(self.forgeries(name)))
            path = folder / name
            path.unlink(missing_ok=True)
            if content is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        if hostile and "survivors.json" not in self.sent and self.source.random() < EARLY:
            # as if the user had dropped out: would it erase what it still needs?
            forged = list(self.survivor_sets(without=user))
            if forged:
                (folder / "survivors.json").write_bytes(self.source.choice(forged))
        if hostile and self.source.random() < TAMPERED:
            (folder / "aggregate.h5").write_bytes(b"rubbish")

    def forgeries(self, name: str) -> Iterator[bytes | None]:
        """What the store can show instead of a file."""
        content = self.sent[name]
        yield None
        yield b"rubbish"
        yield content[: len(content) // 2]
        flipped = bytearray(content)
        flipped[self.source.randrange(len(flipped))] ^= 1 << self.source.randrange(8)
        yield bytes(flipped)
        yield from self.stale.get(name, [])
        folder, _, _ = name.rpartition("/")
        others = [n for n in self.sent if n != name and n.rpartition("/")[0] == folder and folder]
        if others:
            yield self.sent[self.source.choice(others)]
        if name == "survivors.json":
            yield from self.survivor_sets()
        if name == "session.json":
            yield content.replace(b'"freezer": 1', b'"freezer": 2')

    def survivor_sets(self, without: int | None = None) -> Iterator[bytes]:
        """survivors.json for sets that leave out one user, signed by each of the colluders."""
        session = self.space.session
        files = {}
        for n in self.base.recipe.everybody:
            name = f"masked/user-{n:02}.h5"
            if name in self.sent:
                path = self.base.folder / name
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(self.sent[name])
                files[n] = masked.read(session, path, n)
        for left_out in self.base.recipe.everybody if without is None else (without,):
            if len(files.keys() - {left_out}) < self.base.recipe.survivors:
                continue
            fewer = {n: x for n, x in files.items() if n != left_out}
            rows = rows_of(fewer)
            # answers in `sketch` rest on what is said here: other symbols, or another list
            wrong = {"sharing": "ab" * 32} if self.source.random() < 0.5 else {"dealt": "cd" * 32}
            at = self.source.randrange(len(rows))
            lied = (*rows[:at], replace(rows[at], **wrong), *rows[at + 1 :])
            for identity in self.keys.values():
                yield survivors.content(session, rows, identity)
                if session.family is not None:
                    yield survivors.content(session, lied, identity)


class StoreDrill:
    """One round."""

    def __init__(self, folder: Path, seed: int, number: int, counts: Counter[str]) -> None:
        self.source = random.Random(f"store {seed} {number}")
        self.recipe = replace(RECIPES[number % len(RECIPES)], name=f"store-{number}")
        self.counts = counts
        self.history: list[str] = []
        base = Round(self.recipe, folder / "store" / "round", folder / "inputs").prepare()
        must(*base.init())
        # without confirmations the freezer, user 1, is trusted to freeze one set
        possible = self.recipe.everybody[0 if self.recipe.confirm else 1 :]
        self.colluders = sorted(self.source.sample(possible, self.recipe.colluders))
        self.keys = {n: read_identity(base.identity(n)) for n in self.colluders}
        self.folder = folder
        self.first = base
        session = Workspace(base.folder).session
        self.begin(base, ["--session", session.id, "--recipients", base.recipients])

    def begin(self, base: Round, pins: list[object], *, later: bool = False) -> None:
        """A round of the store; all users have a folder for it on their machines."""
        self.store = Store(self.source, base, self.keys)
        self.pins = pins
        self.members = {}
        for n in self.recipe.everybody:
            machine = self.folder / f"machine-{n}"
            own = base.elsewhere(machine / ("later" if later else "round"))
            own.prepare_folder()
            self.members[n] = Member(
                n,
                own,
                self.first.home(n),
                pins,
                session=self.store.space.session.id,
                earlier=machine / "round" if later else None,
            )

    @property
    def honest(self) -> list[int]:
        return [n for n in self.recipe.everybody if n not in self.colluders]

    def say(self, user: int | str, command: Command, result: Result) -> None:
        self.history.append(f"{user}: {command[0]} {result.code}")
        self.counts[f"{command[0]} {result.code}"] += 1

    def turn(self, member: Member, *, hostile: bool, late: bool) -> None:
        """Fetch, and do what `status` says until there is nothing more to do."""
        self.store.show(member.folder, member.user, hostile=hostile)
        for _ in range(STEPS):
            if not self.followed(member, late=late):
                break

    def followed(self, member: Member, *, late: bool) -> bool:
        """Ask `status` and run the step that it names; whether one was run and did not fail."""
        asked = member.command("status", "--json")
        found = judged(*asked)
        self.say(member.user, asked, found)
        if found.code:
            return False
        following = found.json["next"]
        step = following["step"]
        if step in (None, "decode") or not (following["ready"] or (late and following["possible"])):
            return False
        before = member.ledger
        command = member.command(step)
        result = judged(*command)
        self.say(member.user, command, result)
        if result.code == 2:
            raise Violation(f"{step} does not take what the documents say: {result.err}")
        self.check_kept(member, before)
        if result.code == 0:
            self.store.take(member, step)
        return result.code == 0

    def check_kept(self, member: Member, before: dict[str, Any]) -> None:
        """The ledger forgets nothing, the secret is there until it is forgotten, and the residual
        is one of two."""
        ledger = member.ledger
        for line in LEDGER_LINES:
            if before.get(line) not in (None, ledger.get(line)):
                raise Violation(f"the ledger of user {member.user} forgets what it {line}")
        if ledger.get("shared") and not ledger["forgotten"] and not member.has_secret:
            raise Violation(f"the secret of user {member.user} is gone")
        self.check_residual(member)

    def check_residual(self, member: Member) -> None:
        """What was not sent is there, unchanged, until it is known that nobody takes it."""
        digest = member.ledger.get("residual")
        if digest is None or (member.ledger["forgotten"] and not member.residual.exists()):
            return
        key = (member.home / "input.key").read_bytes()
        there = member.residual.exists() and attributes(member.residual)["sha256"]
        if not there or inputs.residual_digest(key, there) != digest:
            raise Violation(f"the residual of user {member.user} is not the one that was kept")

    def run(self) -> None:
        """The round, and where shares are keys the next one of the series."""
        self.play()
        if self.recipe.deals_keys:
            first = self.store.base
            later = first.next_of_series(first.folder.with_name("later"))
            later = replace(later, steps=later.write_gradients(self.source))
            name = Workspace(later.folder).session.series_name
            self.begin(later, ["--series", name], later=True)
            self.play()
            self.counts["second rounds of a series"] += 1

    def play(self) -> None:
        """All turns, the last ones with all files as they are; then the sum, from many views of the
        answers."""
        for number in range(TURNS):
            late = number >= TURNS // 2
            for n in self.source.sample(self.recipe.everybody, self.recipe.users):
                hostile = n in self.honest and number < TURNS - 4 and self.source.random() < HOSTILE
                self.turn(self.members[n], hostile=hostile, late=late)
        self.check_nothing_lost()
        self.decode_views()

    def agreed(self) -> dict[int, str]:
        """The X of the survivor set that honest users answered, by user."""
        sets = {self.members[n].ledger.get("answered") for n in self.honest} - {None}
        if len(sets) > 1:
            raise Violation(f"honest users answered {len(sets)} survivor sets")
        content = self.store.sent.get("survivors.json", b"")
        if not sets or {digest(content)} != sets:
            return {}
        return {
            n: row.sha256
            for n, row in survivors.parse(Path("survivors.json"), content)[0].rows.items()
        }

    def check_nothing_lost(self) -> None:
        """Who is in the agreed set has answered or still can; its residual is the new one, or it
        waits."""
        agreed = self.agreed()
        self.counts["rounds with a set" if agreed else "rounds without a set"] += 1
        for n in self.honest:
            member = self.members[n]
            ledger = member.ledger
            if ledger.get("masked") is None or agreed.get(n) != ledger["masked"]:
                continue
            if ledger["answered"] is None and not member.has_secret:
                raise Violation(f"user {n} lost its secret before it answered")
            if ledger["residual"] and not member.residual.exists():
                raise Violation(f"user {n} lost its residual")

    # --- decoding -------------------------------------------------------------------------------

    def decode_views(self) -> None:
        """Decode what the store shows of honest answers and lies."""
        answers = {
            n: self.store.sent[f"elimination/user-{n:02}.h5"]
            for n in self.agreed()
            if f"elimination/user-{n:02}.h5" in self.store.sent
        }
        honest = [n for n in answers if n in self.honest]
        for view in range(VIEWS):
            place = self.folder / f"decoder-{view}"
            shown = sorted(self.source.sample(honest, self.source.randint(0, len(honest))))
            self.decode_view(place, answers, shown, strict=self.source.random() < 0.3)
            shutil.rmtree(place)

    def decode_view(
        self, place: Path, answers: dict[int, bytes], shown: list[int], *, strict: bool
    ) -> None:
        """One view: the lies of some colluders fit as many of the honest answers as a polynomial
        allows."""
        decoder = self.store.base.elsewhere(place / "round")
        for name, content in self.store.sent.items():
            if not name.startswith(("shares/", "elimination/")):
                path = decoder.folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        liars = [n for n in self.colluders if n in answers and self.source.random() < 0.8]
        present = [*shown, *(n for n in self.colluders if n in answers)]
        (decoder.folder / "elimination").mkdir()
        for n in present:
            (decoder.folder / f"elimination/user-{n:02}.h5").write_bytes(answers[n])
        self.lie(decoder.folder, liars, shown)
        command: Command = ("decode", decoder.folder, *self.pins, *["--strict"] * strict, "--json")
        result = judged(*command)
        self.say("decoder", command, result)
        if result.code == 2:
            raise Violation(f"decode does not take its pins: {result.err}")
        if result.code:
            return
        found = result.json
        named = found["corrected"]
        agreeing = len(found["answering"]) - len(named)
        if agreeing >= self.recipe.survivors + self.recipe.colluders and not set(named) <= set(
            liars
        ):
            raise Violation(f"decode names {named}, and {liars} lie")
        if not set(named) <= set(liars):
            raise Violation(f"decode accepts a correction of {named} by {agreeing} that agree")
        if found["liars_excluded"] >= len(liars):
            self.counts["sums that are certain"] += 1
            try:
                decoder.check_sum(survivors=self.agreed())
            except AssertionError as error:
                said = f"it excludes {found['liars_excluded']} liars of {liars}"
                raise Violation(f"decode gives a wrong sum and says that {said}") from error

    def lie(self, folder: Path, liars: list[int], shown: list[int]) -> None:
        """Move the liars' answers to another polynomial, through D+T-1 of the honest answers."""
        session = self.store.space.session
        q = session.parameters.field
        alpha = session.points.alpha
        through = shown[: self.recipe.survivors - 1]
        noise = random.Random(self.source.random())

        def move(n: int) -> None:
            factor = 1
            for m in through:
                factor = factor * (alpha[n - 1] - alpha[m - 1]) % q

            def change(_: Any, datasets: Any) -> None:
                y = datasets["y"]
                row = [noise_row.randrange(q) for _ in range(y.size)]
                moved = (y.reshape(-1).astype(object) + factor * np.array(row, dtype=object)) % q
                datasets["y"] = moved.astype(y.dtype).reshape(y.shape)

            noise_row = random.Random(seed)  # the same for all liars: one other polynomial
            rewrite(folder / f"elimination/user-{n:02}.h5", change, self.store.keys[n])

        seed = noise.random()
        for n in liars:
            move(n)


def run_rounds(
    folder: Path, numbers: range, seed: int, seconds: float = 1e9
) -> tuple[Counter[str], list[str]]:
    """Rounds; how often each step ended how, and what went wrong."""
    counts: Counter[str] = Counter()
    violations = []
    deadline = time.monotonic() + seconds
    for number in numbers:
        if time.monotonic() > deadline:
            break
        place = folder / str(number)
        place.mkdir()
        drill = StoreDrill(place, seed, number, counts)
        try:
            drill.run()
        except AssertionError as violation:
            last = "; ".join(drill.history[-40:])
            who = f"{drill.recipe}, colluders {drill.colluders}"
            violations.append(f"round {number}: {violation}; {who}; {last}")
        counts["rounds"] += 1
        shutil.rmtree(place)
    return counts, violations


def main() -> int:
    """Run many rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--start", type=int, default=0, help="the first round, to go on")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=900)
    args = parser.parse_args()
    started = time.monotonic()
    numbers = range(args.start, args.rounds)
    with scratch() as folder:
        counts, violations = run_rounds(folder, numbers, args.seed, args.seconds)
    what = f"{counts['rounds']} rounds in {time.monotonic() - started:.0f} s, seed {args.seed}:"
    return concluded(what, counts, violations, len(numbers) - counts["rounds"])


if __name__ == "__main__":
    sys.exit(main())
