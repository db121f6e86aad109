"""Colluders who try to have two survivor sets answered, by every pair of sets and every way to
split the honest users.

Answers to two sets reveal an input (test_two_sets.py shows how). Honest users run the commands
only, each with its secrets and ledger in its own folder. The colluders hold their own keys and
secrets and show to every user at every step any public files: survivors.json that they wrote,
signed, copied or had frozen, for these X or those, with confirmations old, new and forged. `python
tests/faults/two_sets.py` goes through all of it; a sample is in test_two_sets.py.
"""

import argparse
import json
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

import numpy as np
from fault_lab import concluded, scratch
from played import (
    Command,
    Recipe,
    Round,
    Violation,
    attributes,
    document,
    judged,
    linked_copy,
    must,
)

from topk_secagg.protocol.messages import Masked
from topk_secagg.rounds.frozen import rows_of
from topk_secagg.storage import masked, survivors
from topk_secagg.storage.documents import digest, dump
from topk_secagg.storage.keys import Identity, read_identity
from topk_secagg.storage.workspace import Workspace


@dataclass(frozen=True)
class Setting:
    """Who colludes, and what kind of round it is."""

    name: str
    trial: Recipe
    colluders: tuple[int, ...]
    freezer: int = 1

    @property
    def honest(self) -> list[int]:
        return [n for n in self.trial.everybody if n not in self.colluders]

    @property
    def protected(self) -> bool:
        """Whether all honest users together answer one set; else each of them does."""
        return self.trial.confirm or (self.trial.sealed and self.freezer not in self.colluders)


_SKETCH = Recipe("sketch", users=4, construction="sketch", picks=1, length=9, masking=(1, 2, 3, 4))
_PAPER = Recipe("permutation", users=4, length=4, masking=(1, 2, 3, 4))
_FIVE = replace(_PAPER, users=5, survivors=4, colluders=2, masking=(1, 2, 3, 4, 5))
SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("plain, honest freezer", _SKETCH, (4,)),
        Setting("plain, corrupt freezer", _PAPER, (1,)),
        Setting("sealed, honest freezer", replace(_PAPER, sealed=True), (4,)),
        Setting(
            "sealed, honest freezer, two colluders", replace(_FIVE, sealed=True), (1, 5), freezer=3
        ),
        Setting("sealed, corrupt freezer", replace(_SKETCH, sealed=True), (1,)),
        Setting("confirmed, honest freezer", replace(_SKETCH, sealed=True, confirm=True), (4,)),
        Setting("confirmed, corrupt freezer", replace(_PAPER, sealed=True, confirm=True), (1,)),
        Setting("confirmed, two colluders", replace(_FIVE, sealed=True, confirm=True), (1, 4)),
    )
}


def in_vault(command: Command, vault: Path) -> Command:
    """A step with the folder of secrets that all users have here."""
    words = list(command)
    if "--secrets" in words:
        at = words.index("--secrets")
        del words[at : at + 2]
    return (*words, "--secrets", vault)


@dataclass(frozen=True)
class Set:
    """A survivor set, with the colluders' first X or their second."""

    users: tuple[int, ...]
    second: bool = False


class Scene:
    """A round in which everybody has masked, and what the colluders can make of its files."""

    def __init__(self, setting: Setting, folder: Path) -> None:
        self.setting = setting
        self.folder = folder
        self.round = Round(setting.trial, folder / "public", folder / "inputs").prepare()
        self.vault = folder / "vault"
        if setting.trial.sealed:
            shutil.copytree(self.round.inputs / "keys", self.vault)
        everybody = setting.trial.everybody
        freezer = [] if setting.trial.confirm else ["--freezer", setting.freezer]
        must(*self.round.init(*freezer))
        for step in (self.round.offline, self.round.mask):
            for n in everybody:
                must(*in_vault(step(n), self.vault))
        self.space = Workspace(self.round.folder)
        self.keys: dict[int, Identity] = {}
        if setting.trial.sealed:
            paths = {n: self.vault / f"user-{n:02}.identity" for n in setting.colluders}
            self.keys = {n: read_identity(path) for n, path in paths.items()}
        self.x = {
            n: masked.read(self.space.session, self.space.masked_path(n), n) for n in everybody
        }
        self.second = folder / "second"  # other X of the colluders
        self.second.mkdir()
        for n in setting.colluders:
            x = self.x[n]
            changed = Masked(x.masked.index, np.maximum(1, x.masked.value // 2).astype(np.uint32))
            own = masked.content(
                self.space.session,
                user=n,
                sharing=x.sharing,
                masked=changed,
                weight=x.weight,
                holds={m: x.lists.get(m) for m in x.holds},
                dealt=x.dealt,
                signer=self.keys.get(n),
            )
            own.write(self.second / f"user-{n:02}.h5")

    def sets(self) -> list[Set]:
        """All survivor sets."""
        trial = self.setting.trial
        sizes = range(trial.survivors, trial.users + 1)
        users = [users for size in sizes for users in combinations(trial.everybody, size)]
        return [*map(Set, users), Set(users[-1], second=True)]

    def files(self, chosen: Set) -> dict[int, masked.MaskedFile]:
        """The X that a set consists of."""
        swapped = set(self.setting.colluders) if chosen.second else set()
        other = {
            n: masked.read(self.space.session, self.second / f"user-{n:02}.h5", n) for n in swapped
        }
        return {n: other.get(n, self.x[n]) for n in chosen.users}

    def forgeries(self, chosen: Set, genuine: list[bytes]) -> Iterator[bytes]:
        """survivors.json as the colluders can write it: signed by them, in their own name or the
        freezer's, unsigned, or under a signature from elsewhere."""
        s = self.space.session
        rows = rows_of(self.files(chosen))
        yield survivors.content(s, rows, None)
        if s.confirm:  # nobody signs a proposal
            return
        for identity in self.keys.values():
            yield survivors.content(s, rows, identity)
        unsigned = json.loads(survivors.content(s, rows, None))
        for signature in (json.loads(content)["signature"] for content in genuine):
            body = {
                key: value
                for key, value in unsigned.items()
                if key not in ("format", "kind", "version")
            }
            yield dump("survivors", {**body, "signature": signature})


@dataclass
class Attempt:
    """One attack: the public files that the colluders show to each honest user, and the outcome."""

    scene: Scene
    folder: Path
    answered: dict[int, set[str]] = field(default_factory=dict)
    confirmations: dict[int, dict[str, bytes]] = field(default_factory=dict)
    ended: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.vault = linked_copy(self.scene.vault, self.folder / "vault")
        self.round = self.scene.round.elsewhere(
            linked_copy(self.scene.round.folder, self.folder / "view")
        )
        self.view = self.round.folder
        self.setting = self.scene.setting

    def command(self, name: str, user: int, *more: object) -> int:
        """A step of an honest user."""
        result = judged(name, self.view, "--user", user, "--secrets", self.vault, *more)
        self.ended[f"{name} {result.code}"] += 1
        return result.code

    def show(self, content: bytes | None, chosen: Set) -> None:
        """survivors.json and the X that go with it, and no answers."""
        path = self.view / "survivors.json"
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        shutil.rmtree(self.view / "elimination", ignore_errors=True)
        shutil.rmtree(self.view / "masked")
        (self.view / "masked").mkdir()
        for n in chosen.users:
            swapped = chosen.second and n in self.setting.colluders
            place = self.scene.second if swapped else self.scene.round.folder / "masked"
            (self.view / "masked" / f"user-{n:02}.h5").hardlink_to(place / f"user-{n:02}.h5")

    def frozen(self, chosen: Set, planted: bytes) -> list[bytes]:
        """What an honest user freezes when it sees only these X; before that, when a forgery lies
        there already."""
        setting = self.setting
        freezer = setting.freezer
        if freezer in setting.colluders:
            if not setting.trial.confirm:
                return []
            freezer = setting.honest[0]  # any user may
        for before in (planted, None):
            self.show(before, chosen)
            code = self.command("freeze", freezer)
        content = (self.view / "survivors.json").read_bytes() if code == 0 else b""
        return [content] if content else []

    def confirm(self, user: int, content: bytes) -> None:
        """Have a user confirm what it is shown, and keep what it signs."""
        path = self.view / "confirmed" / f"user-{user:02}.json"
        path.unlink(missing_ok=True)
        if self.command("confirm", user) == 0:
            self.confirmations.setdefault(user, {})[digest(content)] = path.read_bytes()

    def spread_confirmations(self, content: bytes) -> None:
        """All confirmations of this survivors.json that there are, and forged or old ones for the
        others."""
        space = Workspace(self.view)
        about = digest(content)
        shutil.rmtree(self.view / "confirmed", ignore_errors=True)
        for n, identity in self.scene.keys.items():
            self.write_confirmation(n, about, identity)
        for n in self.setting.honest:
            path = space.confirmation_path(n)
            old = self.confirmations.get(n, {})
            if about in old:
                path.write_bytes(old[about])
            elif old:
                body = json.loads(next(iter(old.values()))) | {
                    "survivors_sha256": about
                }  # signed for another set
                path.write_bytes((json.dumps(body, indent=2) + "\n").encode())
            else:
                # signed by another user
                self.write_confirmation(n, about, next(iter(self.scene.keys.values())))

    def write_confirmation(self, user: int, about: str, signer: Identity) -> None:
        space = Workspace(self.view)
        path = space.confirmation_path(user)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(survivors.confirmation(space.session, user, about, signer))

    def answer(self, user: int, content: bytes, *more: object) -> None:
        """Have a user answer what it is shown. What leaves it must name just that, and nothing else
        before or after."""
        if self.command("eliminate", user, *more):
            return
        about = attributes(self.view / "elimination" / f"user-{user:02}.h5")["survivors_sha256"]
        ledger = document(self.vault / self.scene.space.session.id / f"user-{user:02}.ledger.json")
        if not about == ledger["answered"] == digest(content):
            raise Violation(
                f"user {user} answers {about}, shown {digest(content)}, "
                f"recorded {ledger['answered']}"
            )
        self.answered.setdefault(user, set()).add(about)

    def check(self) -> int:
        """How many sets the honest users answered."""
        sets = {about for answers in self.answered.values() for about in answers}
        signed = {n: len(old) for n, old in self.confirmations.items() if len(old) > 1}
        if signed or any(len(answers) > 1 for answers in self.answered.values()):
            raise Violation(f"a user confirms or answers two sets: {signed}, {self.answered}")
        if self.setting.protected and len(sets) > 1:
            raise Violation(f"two sets are answered: {self.answered}")
        return len(sets)


def attack(scene: Scene, folder: Path, a: Set, b: Set, first: frozenset[int]) -> Attempt:
    """Offer set A to some honest users and B to the others, in every disguise, and then the other
    way round."""
    attempt = Attempt(scene, folder)
    setting = scene.setting
    offers: dict[Set, list[bytes]] = {}
    genuine: list[bytes] = []
    for chosen, other in ((a, b), (b, a)):
        own = attempt.frozen(chosen, next(scene.forgeries(other, genuine)))
        genuine += own
        offers[chosen] = [*own, *scene.forgeries(chosen, genuine)]
    for turn in (True, False):
        shown = [
            (n, chosen, content)
            for n in setting.honest
            for chosen in [a if (n in first) == turn else b]
            for content in offers[chosen]
        ]
        for n, chosen, content in shown if setting.trial.confirm else ():
            attempt.show(content, chosen)
            attempt.confirm(n, content)
        for n, chosen, content in shown:
            attempt.show(content, chosen)
            if setting.trial.confirm:
                attempt.spread_confirmations(content)
            attempt.answer(n, content)
    if setting.freezer in setting.honest and not setting.trial.confirm and genuine:
        own = attempt.answered.get(setting.freezer, set())
        if not own <= {digest(genuine[0])}:
            raise Violation(f"the freezer froze {digest(genuine[0])} and answers {own}")
    return attempt


def attacks(scene: Scene) -> list[tuple[Set, Set, frozenset[int]]]:
    """Every ordered pair of sets, with every way to split the honest users."""
    honest = scene.setting.honest
    splits = [
        frozenset(users)
        for size in range(1, len(honest) + 1)
        for users in combinations(honest, size)
    ]
    return [(a, b, first) for a in scene.sets() for b in scene.sets() if a != b for first in splits]


def run_attacks(
    folder: Path, setting: Setting, number: int | None, seed: int = 1
) -> tuple[Counter[str], list[str]]:
    """Some attacks, or all; how many sets were answered how often, how commands ended, and what
    went wrong."""
    scene = Scene(setting, folder)
    chosen = attacks(scene)
    if number is not None:
        chosen = random.Random(seed).sample(chosen, number)
    counts: Counter[str] = Counter()
    violations = []
    for a, b, first in chosen:
        place = folder / "attempt"
        try:
            attempt = attack(scene, place, a, b, first)
            counts[f"{attempt.check()} sets answered"] += 1
            counts.update(attempt.ended)
        except AssertionError as violation:
            violations.append(f"{setting.name}, {a} or {b}, {sorted(first)} first: {violation}")
        shutil.rmtree(place)
    counts["attacks"] = len(chosen)
    return counts, violations


def main() -> int:
    """Run all attacks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="settings, such as 'sealed, honest freezer'")
    parser.add_argument("--attacks", type=int, help="how many for each setting, chosen at random")
    args = parser.parse_args()
    failed = 0
    for name, setting in SETTINGS.items():
        if args.only and name not in args.only:
            continue
        started = time.monotonic()
        with scratch() as folder:
            counts, violations = run_attacks(folder, setting, args.attacks)
        failed |= concluded(f"{name}: {time.monotonic() - started:.0f} s", counts, violations)
    return failed


if __name__ == "__main__":
    sys.exit(main())
