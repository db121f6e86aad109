"""A series of rounds: keys are dealt once, and follow for every later round on each user's own
machine."""

from __future__ import annotations

import hashlib
import shutil
import stat
from dataclasses import replace
from itertools import combinations, pairwise, product
from pathlib import Path
from unittest import mock

import pytest
from deterministic import drawn_from
from oracle import plain_sum
from played import (
    RECIPES,
    Recipe,
    Round,
    call,
    contents,
    datasets,
    document,
    edit,
    flip,
    judged,
    must,
    placed,
    put,
    rewrite,
)

from topk_secagg.algebra import entropy
from topk_secagg.algebra.field import subtract
from topk_secagg.errors import BadData
from topk_secagg.protocol.constructions import construction as construction_of
from topk_secagg.protocol.deal import Deal, next_key
from topk_secagg.protocol.messages import Masked
from topk_secagg.rounds import offline as offline_step
from topk_secagg.rounds import series as series_step
from topk_secagg.rounds import settle as settle_step
from topk_secagg.storage import artifacts, atomic
from topk_secagg.storage import held as held_file
from topk_secagg.storage import secret as secret_file
from topk_secagg.storage import survivors as survivors_file
from topk_secagg.storage.dealt import Dealt
from topk_secagg.storage.keys import read_identity
from topk_secagg.storage.ledger import Ledger
from topk_secagg.storage.masked import read as read_masked
from topk_secagg.storage.session import Session
from topk_secagg.storage.workspace import Workspace

ALL = (1, 2, 3, 4, 5)
FIVE = {"masking": ALL, "answering": ALL}
plain_and_sealed = pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])


@pytest.fixture
def construction():
    return "sketch"


@pytest.fixture(scope="module")
def played(stages, tmp_path_factory):
    """The rounds of a series with this recipe, each played once; the last one as it was before
    its users prepared a later one."""
    made: dict[Recipe, list[Round]] = {}
    last: dict[Recipe, list[Round]] = {}

    def keep(recipe: Recipe) -> None:
        r = made[recipe][-1]
        copy = r.folder.with_name(f"{r.folder.name}-last")
        last.setdefault(recipe, []).append(r.elsewhere(Path(shutil.copytree(r.folder, copy))))

    def get(recipe: Recipe, later: int) -> list[Round]:
        folder = tmp_path_factory.mktemp("series")
        if recipe not in made:
            made[recipe] = [stages(recipe).copy("decoded", folder / "r0")]
            keep(recipe)
        rounds = made[recipe]
        while len(rounds) <= later:
            rounds.append(following(rounds[-1], folder / f"r{len(rounds)}"))
            keep(recipe)
        return [*rounds[:later], last[recipe][later]]

    return get


@pytest.fixture
def series(played, tmp_path):
    """series(2, sealed=True): copies of the rounds r0, r1 and r2, decoded, of one series."""

    def copies(later: int, copy: str = "r", **changes) -> list[Round]:
        recipe = replace(RECIPES["sketch"], **FIVE, **changes)
        return [
            r.elsewhere(Path(shutil.copytree(r.folder, tmp_path / f"{copy}{i}")))
            for i, r in enumerate(played(recipe, later))
        ]

    return copies


def prepared(before: Round, folder: Path, *more: object, users=ALL) -> Round:
    """The next round of a series, in which these users have their keys."""
    r = before.next_of_series(folder, *more)
    for n in users:
        must(*r.offline(n, "--from", before.folder))
    return r


def following(before: Round, folder: Path, *more: object) -> Round:
    """The next round of a series, decoded."""
    return prepared(before, folder, *more).play(after="offline")


def session_of(r: Round):
    return Workspace(r.folder).session


def held(r: Round, user: int) -> held_file.HeldKeys:
    return held_file.read(Workspace(r.folder), user)


def own_keys(r: Round, user: int) -> tuple[bytes, ...]:
    return secret_file.read(Workspace(r.folder), user).secret.keys


def x_of(r: Round, user: int):
    space = Workspace(r.folder)
    return read_masked(space.session, space.masked_path(user), user)


def files(folder: Path) -> set[str]:
    return {Path(name).parts[0] for name in contents(folder)}


CHANGES = {
    "L": ({"length": 90}, ["--length", 90]),
    "K": ({"top_k": 6}, ["--top-k", 6]),
    "P": ({"picks": 5}, []),
    "field": ({"field": 65521}, ["--field", 65521]),
    "all": (
        {"length": 90, "top_k": 6, "picks": 3, "field": 65521},
        ["--length", 90, "--top-k", 6, "--field", 65521],
    ),
}  # fmt: skip


class TestGoesOn:
    @plain_and_sealed
    def test_by_single_commands_and_nothing_is_sent(self, series, sealed):
        r0, r1, r2 = series(2, sealed=sealed)
        root = session_of(r0)
        public = {"session.json", "secrets", "masked", "survivors.json", "elimination"}
        for generation, r in enumerate((r1, r2), start=1):
            r.check_sum(answering=ALL)
            assert files(r.folder) == {*public, "aggregate.h5"}
            session = session_of(r)
            assert (session.series_root, session.generation) == (root.id, generation)
            for n in ALL:
                assert x_of(r, n).dealt == x_of(r0, n).dealt
                assert x_of(r, n).lists == x_of(r0, n).lists
        assert {"shares", "dealt"} <= files(r0.folder)
        shown = [
            must("inspect", r.folder / "session.json", "--json").json["files"][0]["offline_bytes"]
            for r in (r0, r1, r2)
        ]
        assert shown[0] > 0
        assert shown[1:] == [0, 0]
        said = must(*r2.offline(1, "--from", r1.folder)).out
        assert f"generation 2 of series {root.series_fingerprint}: nothing is sent" in said

    def test_a_step_reads_the_keys_of_all_dealers_once(self, series, tmp_path, monkeypatch):
        (r0,) = series(0)
        r = prepared(r0, tmp_path / "next")
        read = held_file.read
        users = []

        def counted(space, user):
            users.append(user)
            return read(space, user)

        def readers(*command):
            users.clear()
            must(*command)
            return sorted(users)

        monkeypatch.setattr(held_file, "read", counted)
        assert readers(*r.mask(1)) == [1]
        r.play(after="offline", upto="frozen")
        assert readers(*r.eliminate(1)) == [1]
        assert readers("status", r.folder) == list(ALL)
        assert readers("audit", r.folder) == list(ALL)

    def test_every_key_is_put_through_once_for_each_generation(self, series):
        rounds = series(2)
        for before, after in pairwise(rounds):
            for n in ALL:
                assert own_keys(after, n) == tuple(map(next_key, own_keys(before, n)))
        for m, n in product(ALL, ALL):  # and a user holds what the dealer has
            blocks = session_of(rounds[2]).family or ()
            own = dict(zip(blocks, own_keys(rounds[2], m), strict=True))
            mine = held(rounds[2], n).keys[m]
            assert mine == {block: key for block, key in own.items() if n in block}

    @plain_and_sealed
    def test_by_run(self, round_at, tmp_path, sealed):
        r0 = round_at("decoded", "r0", sealed=sealed, **FIVE)
        keys = ["--identities", r0.inputs] * sealed
        gradients = r0.inputs / "gradients"
        clip = ("--clip", repr(r0.recipe.clip))
        before = r0
        for generation in (1, 2):
            r = r0.elsewhere(tmp_path / f"r{generation}")
            command = ("run", r.folder, "--from", before.folder, "--gradients", gradients)
            must(*command, *clip, *keys)
            must(*command, *clip, *keys)  # again, which changes nothing
            r.check_sum(survivors=ALL, answering=ALL)
            assert not {"shares", "dealt"} & files(r.folder)
            assert session_of(r).generation == generation
            before = r

    @plain_and_sealed
    def test_without_the_earlier_round_once_it_is_prepared(self, series, tmp_path, sealed):
        (r0,) = series(0, sealed=sealed)
        r1 = prepared(r0, tmp_path / "r1")
        shutil.rmtree(r0.folder)
        for n in ALL:
            must(*r1.offline(n))  # once more, which changes nothing
        r1.play(after="offline").check_sum(answering=ALL)

    @plain_and_sealed
    def test_an_audit_passes(self, series, sealed):
        r0, r1 = series(1, sealed=sealed)
        keys = [word for n in ALL for word in ("--identity", r0.identity(n)) if sealed]
        for r in (r0, r1):
            said = must("audit", r.folder, *keys, "--json")
            assert {f["verdict"] for f in said.json["findings"]} == {"pass"}
        for n in ALL:
            must(*r0.forget(n))
            must(*r1.forget(n))
        for r in (r0, r1):
            must("audit", r.folder)

    def test_run_says_which_clip_it_chose(self, series, tmp_path):
        (r0,) = series(0)
        gradients = r0.inputs / "gradients"
        command = ("run", tmp_path / "r1", "--from", r0.folder, "--gradients", gradients)
        assert ", the largest magnitude of all gradients; one step of" in must(*command).err
        assert ", as session.json says; one step of" in must(*command).err
        given = ("run", tmp_path / "r2", *command[2:], "--clip", repr(r0.recipe.clip))
        assert "the clip is" not in must(*given).err

    def test_run_takes_no_randomness_from_the_system(self, series, refuses, tmp_path):
        (r0,) = series(0)
        how = ("--gradients", r0.inputs / "gradients", "--randomness", "os")
        command = ("run", tmp_path / "r1", "--from", r0.folder, *how)
        refuses(2, *command, says="this round deals keys")

    def test_with_secrets_at_home(self, round_at, tmp_path):
        r0 = round_at("init", "r0", homes=True, **FIVE).play(after="init")
        r1 = following(r0, tmp_path / "r1")
        r1.check_sum(answering=ALL)
        assert not (r1.folder / "secrets").exists()

    @plain_and_sealed
    def test_who_missed_generations_catches_up_alone(self, series, sealed, tmp_path):
        r0 = series(0, sealed=sealed)[0]
        others = (1, 2, 3, 4)
        r1 = prepared(r0, tmp_path / "r1", users=others)
        r2 = prepared(r1, tmp_path / "r2", users=others)
        r3 = prepared(r2, tmp_path / "r3", users=others)
        must(*r3.offline(5, "--from", r0.folder))
        assert held(r3, 5).generation == 3
        r3.play(after="offline").check_sum(answering=ALL)

    def test_the_last_generation_can_be_reached_and_no_further(self, series, refuses, tmp_path):
        (r0,) = series(0)
        r = r0.next_of_series(tmp_path / "last")
        put(r.folder / "session.json", 10_000, "series", "generation")
        must(*r.offline(1, "--from", r0.folder))
        key = own_keys(r0, 1)[0]
        for _ in range(10_000):
            key = next_key(key)
        assert own_keys(r, 1)[0] == key
        more = ("init", tmp_path / "more", "--from", r.folder)
        refuses(2, *more, says=("generation 10001", "start a new one"))
        must(*more, "--new-keys")

    def test_new_keys_start_a_new_series(self, series, refuses, tmp_path):
        r0, r1 = series(1)
        anew = r1.next_of_series(tmp_path / "anew", "--new-keys")
        assert document(anew.folder / "session.json")["series"] is None
        refuses(2, *anew.offline(1, "--from", r1.folder), says="its keys are dealt")
        anew.play(after="init").check_sum(answering=ALL)
        assert {"shares", "dealt"} <= files(anew.folder)
        before = {*own_keys(r0, 1), *own_keys(r1, 1)}
        assert not before & set(own_keys(anew, 1))
        assert session_of(anew).series_root == session_of(anew).id

    def test_run_can_start_anew_too(self, series, tmp_path):
        (r0,) = series(0)
        anew = r0.elsewhere(tmp_path / "anew")
        how = ("--gradients", r0.inputs / "gradients", "--clip", repr(r0.recipe.clip))
        must("run", anew.folder, "--from", r0.folder, "--new-keys", *how)
        anew.check_sum(survivors=ALL)
        assert session_of(anew).generation == 0

    @pytest.mark.parametrize("what", CHANGES)
    def test_sizes_and_the_field_may_change(self, series, tmp_path, what):
        (r0,) = series(0)
        changes, options = CHANGES[what]
        recipe = replace(r0.recipe, **changes)
        r1 = Round(recipe, tmp_path / "r1", tmp_path / "inputs").prepare()
        options = [*options, "--picks", recipe.picks, "--clip", repr(recipe.clip)]
        must("init", r1.folder, "--from", r0.folder, *options)
        for n in ALL:
            must(*r1.offline(n, "--from", r0.folder))
        r1.play(after="offline").check_sum(answering=ALL)

    def test_clip_and_largest_weight_may_change(self, series, tmp_path):
        (r0,) = series(0)
        clip = r0.recipe.clip / 2
        r1 = following(r0, tmp_path / "r1", "--clip", repr(clip), "--max-weight", 2)
        r1.check_sum(answering=ALL)
        p = session_of(r1).parameters
        assert (p.clip, p.max_weight) == (clip, 2)

    @pytest.mark.parametrize(
        "option",
        [
            ("--users", 5), ("--survivors", 3), ("--colluders", 1), ("--freezer", 2),
            ("--confirm",), ("--construction", "sketch"), ("--dealing", "seeds"),
            ("--recipients", "keys.txt"),
        ],
    )  # fmt: skip
    def test_nothing_else_may_be_given_anew(self, series, refuses, tmp_path, option):
        (r0,) = series(0)
        says = f"{option[0].removeprefix('--')} comes from the other round"
        refuses(2, "init", tmp_path / "r1", "--from", r0.folder, *option, says=says)


# rounds that are not of this series


def claimed(r: Round, root: Round, generation: object = 1) -> Round:
    """A round whose session.json claims to be a later one of a series."""
    series = {"root": session_of(root).id, "generation": generation}
    put(r.folder / "session.json", series, "series")
    return r


CHANGED = {
    "number of users": {"users": 6},
    "number of survivors": {"survivors": 4},
    "number of colluders": {"colluders": 2},
}


RULES = {
    "set of points": lambda s: s["points"]["alpha"].reverse(),
    "family of blocks": lambda s: s.update(family=every_block()),
    "freezer": lambda s: s.update(freezer=2),
}


def as_if_new(r: Round) -> None:
    """Leave nothing of a finished round but session.json."""
    for part in ("secrets", "masked", "elimination"):
        shutil.rmtree(r.folder / part)
    for name in ("survivors.json", "aggregate.h5"):
        (r.folder / name).unlink()


class TestOnlyThisSeries:
    def test_keys_do_not_follow_from_the_same_round(self, series, refuses):
        _, r1 = series(1)
        refuses(2, *r1.offline(1, "--from", r1.folder), says="do not follow from its own")

    def test_keys_never_go_back(self, series, refuses):
        r0, r1, r2 = series(2)
        as_if_new(r1)
        says = ("keys never go back", "init NEXT --from /r2, where")
        refuses(77, *r1.offline(1, "--from", r2.folder), says=says)
        must(*r1.offline(1, "--from", r0.folder))

    def test_if_they_did_the_round_would_be_lost(self, series, monkeypatch):
        """The twin: user 1 masks and answers with keys that nobody else has in this round."""
        _, r1, r2 = series(2)
        as_if_new(r1)

        def unchecked(space, earlier, user, identity):
            before = series_step.latest_keys(earlier, user, identity)
            return before.advanced(space.session.generation)

        monkeypatch.setattr(offline_step, "carried_keys", unchecked)
        for n in ALL:
            must(*r1.offline(n, "--from", r2.folder if n == 1 else r2.folder.with_name("r0")))
        r1.play(after="offline", upto="answered")
        result = judged(*r1.decode())
        assert result.code == 65

    def test_not_even_from_what_a_forgotten_round_left(self, series, refuses):
        _, r1, r2 = series(2)
        as_if_new(r1)
        must(*r2.forget(1))
        refuses(77, *r1.offline(1, "--from", r2.folder), says="keys of generation 3")

    def test_another_series_is_refused(self, series, round_at, refuses, tmp_path):
        (r0,) = series(0)
        other = round_at("decoded", "other", name="other", **FIVE)
        r1 = r0.next_of_series(tmp_path / "r1")
        foreign = "does not belong to the series of this one"
        refuses(65, *r1.offline(1, "--from", other.folder), says=foreign)
        seeds = round_at("offline", "seeds", dealing="seeds", **FIVE)
        refuses(65, *r1.offline(1, "--from", seeds.folder), says=foreign)
        refuses(66, *r1.offline(1), says=("follow from those of an earlier", "--from"))
        must(*r1.offline(1, "--from", r0.folder))
        refuses(65, *r1.offline(1, "--from", other.folder), says=foreign)

    def test_only_keys_make_a_series(self, round_at, tmp_path, refuses):
        for dealing in ("seeds", "shares"):
            r = round_at("decoded", dealing, dealing=dealing, **FIVE)
            after = r.next_of_series(tmp_path / f"after-{dealing}")
            assert document(after.folder / "session.json")["series"] is None
            refuses(2, *after.offline(1, "--from", r.folder), says="its keys are dealt")
            after.play(after="init").check_sum(answering=ALL)

    @pytest.mark.parametrize("generation", [0, -1, 10_001, 1 << 70])
    def test_a_generation_out_of_range_is_refused(self, series, refuses, tmp_path, generation):
        (r0,) = series(0)
        r1 = claimed(r0.next_of_series(tmp_path / "r1"), r0, generation)
        for command in (r1.offline(1, "--from", r0.folder), r1.mask(1), r1.decode()):
            refuses(65, *command, says=f"generation {generation} of a series")

    @pytest.mark.parametrize("generation", ["1", 1.0, True, None, [1]])
    def test_a_generation_that_is_no_number_is_refused(self, series, refuses, tmp_path, generation):
        (r0,) = series(0)
        r1 = claimed(r0.next_of_series(tmp_path / "r1"), r0, generation)
        said = refuses(65, *r1.offline(1, "--from", r0.folder))
        assert "its series.generation is not what a session has there" in said.err

    @pytest.mark.parametrize("what", CHANGED)
    def test_other_numbers_than_the_series_has(self, series, round_at, refuses, what):
        (r0,) = series(0)
        other = round_at("init", "other", **{**FIVE, **CHANGED[what]})
        claimed(other, r0)
        says = (f"this round has another {what} than its series", "do not use it")
        refuses(65, *other.offline(1, "--from", r0.folder), says=says)

    @plain_and_sealed
    @pytest.mark.parametrize("what", RULES)
    def test_other_rules_than_the_series_has(self, series, refuses, tmp_path, what, sealed):
        (r0,) = series(0, sealed=sealed)
        r1 = r0.next_of_series(tmp_path / "r1")
        edit(r1.folder / "session.json", RULES[what])
        says = f"this round has another {what} than its series"
        for n in ALL:
            refuses(65, *r1.offline(n, "--from", r0.folder), says=says)

    def test_another_key_of_one_user(self, series, refuses, tmp_path):
        """Somebody else would sign for user 5."""
        (r0,) = series(0, sealed=True)
        r1 = self.with_a_stranger(r0, tmp_path)
        says = "this round has another list of recipients than its series"
        refuses(65, *r1.offline(1, "--from", r0.folder), says=says)

    def with_a_stranger(self, r0: Round, tmp_path: Path) -> Round:
        """The next round, in which user 5 has the keys of somebody else."""
        stranger = read_identity(self.strangers_file(tmp_path)).public(5)
        r1 = r0.next_of_series(tmp_path / "r1")
        put(r1.folder / "session.json", vars(stranger), "recipients", 4)
        return r1

    def strangers_file(self, tmp_path: Path) -> Path:
        path = tmp_path / "stranger.identity"
        if not path.exists():
            must("keygen", "--user", 5, "--output", path)
        return path

    def test_without_confirmations_although_the_series_has_them(self, series, refuses, tmp_path):
        (r0,) = series(0, sealed=True, confirm=True, survivors=4)
        r1 = r0.next_of_series(tmp_path / "r1")
        put(r1.folder / "session.json", False, "confirm")
        says = "this round has another rule of confirmation than its series"
        refuses(65, *r1.offline(1, "--from", r0.folder), says=says)

    def test_without_the_check_a_stranger_takes_a_users_place(self, series, tmp_path, monkeypatch):
        """The twin: all others go on, and count an X that the stranger signed as user 5's."""
        (r0,) = series(0, sealed=True)
        r1 = self.with_a_stranger(r0, tmp_path)
        monkeypatch.setattr(series_step, "_check_same_series", lambda *_: None)
        for n in (1, 2, 3, 4):
            must(*r1.offline(n, "--from", r0.folder))
            must(*r1.mask(n))
        self.sign_as_user_5(r0, r1, tmp_path)
        assert must(*r1.freeze("--json")).json["survivors"] == list(ALL)
        must(*r1.eliminate(1))

    def sign_as_user_5(self, r0: Round, r1: Round, tmp_path: Path) -> None:
        """An X that nobody can unmask is enough to be counted."""
        path = Workspace(r1.folder).masked_path(5)
        shutil.copy(Workspace(r1.folder).masked_path(1), path)
        own = x_of(r0, 5).dealt
        rewrite(
            path,
            lambda attributes, _: attributes.update(user=5, dealt=own, sharing="ab" * 32),
            read_identity(self.strangers_file(tmp_path)),
        )

    def test_without_the_check_another_user_freezes(self, series, tmp_path, monkeypatch):
        """The twin: whoever issues session.json chooses who fixes the survivors."""
        (r0,) = series(0)
        r1 = r0.next_of_series(tmp_path / "r1")
        put(r1.folder / "session.json", 2, "freezer")
        monkeypatch.setattr(series_step, "_check_same_series", lambda *_: None)
        for n in ALL:
            must(*r1.offline(n, "--from", r0.folder))
            must(*r1.mask(n))
        must("freeze", r1.folder, "--user", 2, "--only", "2,3,4")
        must(*r1.eliminate(3))


def every_block() -> list[list[int]]:
    return [list(block) for block in combinations(ALL, 3)]


class TestPins:
    def commands(self, r: Round) -> list[tuple[object, ...]]:
        return [
            r.offline(1), r.mask(1), r.freeze(), r.eliminate(1), r.decode(), r.forget(1),
            ("settle", r.folder, "--user", 1), ("status", r.folder), ("audit", r.folder),
        ]  # fmt: skip

    def test_every_command_refuses_another_series(self, series, round_at, refuses):
        r0, r1 = series(1)
        other = session_of(round_at("offline", "other", name="other", **FIVE)).series_name
        name = session_of(r0).series_name
        assert session_of(r1).series_name == name
        for r in (r0, r1):
            for command in self.commands(r):
                says = f"this is series {name[:16]}, not {other[:16]}"
                refuses(77, *command, "--series", other, says=says)

    def test_one_name_or_the_root_pins_all_rounds_and_a_later_session_none(self, series, refuses):
        r0, r1 = series(1)
        name = session_of(r0).series_name
        root = session_of(r0).id
        for r in (r0, r1):
            must(*r.mask(1), "--series", name)
            must(*r.mask(1), "--series", name[:16].upper())
            assert must("status", r.folder, "--series", name, "--json").json["series"] == name
            must(*r.mask(1), "--series", root)
            must(*r.mask(1), "--series", root[:16].upper())
            refuses(77, *r.mask(1), "--series", session_of(r1).id, says="this is series")
        refuses(2, *r1.mask(1), "--series", name[:15], says="does not name a series")
        refuses(2, *r1.mask(1), "--series", "x" * 16, says="does not name a series")

    def test_init_and_inspect_say_the_name(self, series, tmp_path):
        (r0,) = series(0)
        name = session_of(r0).series_name
        said = must("init", tmp_path / "r1", "--from", r0.folder)
        assert f"generation 1 of series {name[:16]}" in said.out
        for r in (r0.folder, tmp_path / "r1"):
            (shown,) = must("inspect", r / "session.json", "--json").json["files"]
            assert shown["series"] == name

    def impostor(self, r0: Round, tmp_path: Path) -> Round:
        """Somebody plays two rounds with other keys, and writes the name of this root into the
        second session.json."""
        root = Round(r0.recipe, tmp_path / "their-root", tmp_path / "their-keys").prepare()
        root.play(upto="offline")
        fake = claimed(root.next_of_series(tmp_path / "impostor"), r0)
        for n in ALL:
            must(*fake.offline(n, "--from", root.folder))
        return fake.play(after="offline")

    def test_nobody_is_fooled_by_a_round_of_strangers_that_names_the_root(
        self, series, refuses, tmp_path, monkeypatch
    ):
        (r0,) = series(0, sealed=True)
        name = session_of(r0).series_name
        with monkeypatch.context() as impostors:
            impostors.setattr(series_step, "_check_same_series", lambda *_: None)
            fake = self.impostor(r0, tmp_path)
        assert session_of(fake).series_root == session_of(r0).id
        reading = (fake.decode(), ("status", fake.folder), ("audit", fake.folder))
        for command in reading:
            must(*command)
            refuses(77, *command, "--series", name, says=f"not {name[:16]}")

    def test_if_the_root_alone_were_the_name_their_sum_would_be_taken_for_the_users(
        self, series, tmp_path, monkeypatch
    ):
        """The twin."""
        (r0,) = series(0, sealed=True)
        monkeypatch.setattr(series_step, "_check_same_series", lambda *_: None)
        monkeypatch.setattr(Session, "series_name", property(lambda s: s.series_root))
        fake = self.impostor(r0, tmp_path)
        must(*fake.decode(), "--series", session_of(r0).id)


class TestLate:
    """A share of the root round that a user receives later."""

    @pytest.fixture
    def early(self, series, tmp_path):
        """User 1 prepares r1 before the share of user 4 has come."""
        (r0,) = series(0)
        share = Workspace(r0.folder).share_path(1, 4)
        share.rename(tmp_path / "late")
        r1 = r0.next_of_series(tmp_path / "r1")
        for n in ALL:
            said = must(*r1.offline(n, "--from", r0.folder)).out
            assert f"user {n} has the keys of {4 if n == 1 else 5} users" in said
        return r0, r1, lambda: (tmp_path / "late").rename(share)

    def test_a_damaged_file_of_held_keys_is_a_problem(self, early):
        _, r1, _ = early
        path = Workspace(r1.folder).held_path(2)
        assert must("status", r1.folder, "--user", 2, "--json").json["problems"] == []
        path.write_bytes(path.read_bytes()[:-1])
        (problem,) = must("status", r1.folder, "--user", 2, "--json").json["problems"]
        assert str(path) in problem

    def test_it_is_added_until_the_user_masks(self, early):
        r0, r1, arrives = early
        arrives()
        secret = Workspace(r1.folder).secret_path(1)
        before = secret.read_bytes()
        must(*r1.offline(1))  # without --from nothing is added
        assert 4 not in held(r1, 1).lists
        assert "the keys of 5 users" in must(*r1.offline(1, "--from", r0.folder)).out
        assert secret.read_bytes() == before
        assert must(*r1.mask(1, "--json")).json["holds"] == list(ALL)
        r1.play(after="offline").check_sum(answering=ALL)

    def test_and_no_longer(self, early, refuses):
        r0, r1, arrives = early
        said = must(*r1.mask(1, "--json"))
        assert (said.json["holds"], said.json["missing_shares"]) == ([1, 2, 3, 5], [4])
        arrives()
        before = Workspace(r1.folder).held_path(1).read_bytes()
        must(*r1.offline(1, "--from", r0.folder))
        assert Workspace(r1.folder).held_path(1).read_bytes() == before
        for n in (2, 3, 4, 5):
            must(*r1.mask(n))
        must(*r1.freeze())
        refuses(66, *r1.eliminate(1), says="has no keys of user 4")
        for n in (2, 3, 4, 5):
            must(*r1.eliminate(n))
        assert must(*r1.decode("--json")).json["corrected"] == []
        r1.check_sum(answering=(2, 3, 4, 5))

    def test_wrong_keys_of_the_root_round_are_not_carried_on(self, series, tmp_path):
        """They are compared with the dealer's list before they are put through."""
        (r0,) = series(0)
        space = Workspace(r0.folder)

        def wrong(_, found):
            found["keys"][0, 0] ^= 1

        rewrite(space.share_path(1, 4), wrong)
        r1 = prepared(r0, tmp_path / "r1")
        assert sorted(held(r1, 1).lists) == [1, 2, 3, 5]
        assert must(*r1.mask(1, "--json")).json["missing_shares"] == [4]

    def test_if_they_were_an_honest_user_would_be_named(self, series, tmp_path, monkeypatch):
        """The twin."""
        (r0,) = series(0)

        def wrong(_, found):
            found["keys"][0, 0] ^= 1

        rewrite(Workspace(r0.folder).share_path(1, 4), wrong)
        monkeypatch.setattr(Dealt, "check", lambda *_: None)
        r1 = following(r0, tmp_path / "r1")
        assert must(*r1.decode("--json")).json["corrected"] == [1]


# one session prepared twice


class TestTwoFolders:
    """Somebody has a user prepare one session in two folders, and send two gradients."""

    def two_x(self, r0: Round, tmp_path: Path, *, sibling: bool) -> list[Masked]:
        """X of user 2 for its own gradient, and for that of user 3 in a copy of the round, or in
        another round of the same generation."""
        first = r0.next_of_series(tmp_path / "first")
        second = r0.elsewhere(tmp_path / "second")
        if sibling:
            r0.next_of_series(second.folder)
        else:
            second.folder.mkdir()
            shutil.copy(first.folder / "session.json", second.folder)
        for r, whose in ((first, 2), (second, 3)):
            must(*r.offline(2, "--from", r0.folder))
            must(*r.mask(2, gradient=r0.gradient(whose)))
        assert own_keys(first, 2) == own_keys(second, 2)
        return [x_of(first, 2).masked, x_of(second, 2).masked]

    def difference(self, r0: Round, one: Masked, other: Masked) -> list[tuple[int, int]]:
        """The entries of which the difference of two X is the sketch, if it is one."""
        p = session_of(r0).parameters
        c = construction_of(p)
        moments = subtract(one.value, other.value, p.field).reshape(p.buckets, c.width)
        found = c.join_groups([c.recovered(0, moments[:, : c.moment_count(2)], survivor_count=2)])
        return list(zip(found.index.tolist(), found.value.tolist(), strict=True))

    def check_difference_shows(self, r0: Round, found: list[tuple[int, int]]) -> None:
        q = r0.recipe.field
        negative = [(k, -v % q) for k, v in r0.sent(3)]
        total = plain_sum([r0.sent(2), negative], r0.recipe.length, q)
        assert sorted(found) == [(k, v) for k, v in enumerate(total) if v]

    @pytest.mark.parametrize("sibling", [False, True], ids=["copy", "sibling"])
    def test_the_masks_differ(self, series, tmp_path, sibling):
        (r0,) = series(0)
        with pytest.raises(BadData):
            self.difference(r0, *self.two_x(r0, tmp_path, sibling=sibling))

    def test_if_the_sharing_followed_from_the_session_the_difference_would_show(
        self, series, tmp_path, monkeypatch
    ):
        """The twin."""
        (r0,) = series(0)
        always = hashlib.sha256(b"r1").digest()
        monkeypatch.setattr(entropy, "source", lambda count, _: always[:count])
        two = self.two_x(r0, tmp_path, sibling=False)
        self.check_difference_shows(r0, self.difference(r0, *two))

    def test_if_labels_had_neither_session_nor_sharing_it_would_too(
        self, series, tmp_path, monkeypatch
    ):
        """The twin for two rounds of one generation, which have the same keys."""
        (r0,) = series(0)
        monkeypatch.setattr(Deal, "symbols_label", lambda deal, users: f"{deal.dealer} {users}")
        two = self.two_x(r0, tmp_path, sibling=True)
        self.check_difference_shows(r0, self.difference(r0, *two))


def test_with_the_same_random_bytes_everything_is_the_same(new_round, tmp_path):
    found = []
    for name in ("one", "two"):
        with drawn_from(7):
            r0 = new_round(f"{name}-r0", **FIVE).play()
            r1 = following(r0, tmp_path / f"{name}-r1")
        r1.check_sum(answering=ALL)
        found.append([contents(r.folder) for r in (r0, r1)])
        assert x_of(r0, 1).sharing != x_of(r1, 1).sharing
    assert found[0] == found[1]


# forgetting


def left_keys(*rounds: Round) -> list[tuple[bytes, ...]]:
    """Every full set of keys of one dealer that the files left in these rounds give."""
    sets = []
    for r in rounds:
        space = Workspace(r.folder)
        family = space.session.family or ()
        pooled: dict[int, dict[object, bytes]] = {m: {} for m in ALL}
        for path in sorted(space.private.glob("user-*.h5")):
            found = datasets(path)
            for name in ("keys", "own"):
                if name in found and found[name].shape == (len(family), 32):
                    sets.append(tuple(row.tobytes() for row in found[name]))
        for n in ALL:
            if space.held_path(n).exists():
                for m, keys in held(r, n).keys.items():
                    pooled[m] |= keys
        sets += [
            tuple(keys[block] for block in family)
            for keys in pooled.values()
            if len(keys) == len(family)
        ]
    return sets


def opens(target: Round, *rounds: Round) -> list[int]:
    """The users whose X of the target the keys in these rounds' files open, as they are or put
    through `next_key`."""
    s = session_of(target)
    c = construction_of(s.parameters)
    opened = []
    candidates = left_keys(*rounds)
    candidates += [tuple(map(next_key, keys)) for keys in candidates]
    for n in ALL:
        x = x_of(target, n)
        for keys in candidates:
            try:
                found = c.unmask(c.secret_of_keys(s.deal(n, x.sharing), keys), x.masked)
            except BadData:
                continue
            entries = sorted(zip(found.index.tolist(), found.value.tolist(), strict=True))
            assert entries == sorted(target.sent(n))
            opened.append(n)
            break
    return opened


class TestForget:
    @plain_and_sealed
    def test_the_series_goes_on_after_it(self, series, tmp_path, sealed):
        (r0,) = series(0, sealed=sealed)
        for n in ALL:
            must(*r0.forget(n))
        assert not list(r0.folder.rglob("from-*"))
        r1 = following(r0, tmp_path / "again")
        r1.check_sum(answering=ALL)
        for n in ALL:
            assert not Workspace(r0.folder).held_path(n).exists()  # the keys are in r1 now
            must(*r1.offline(n, "--from", r0.folder))  # and repeating it changes nothing
            must(*r1.forget(n))
            assert held(r1, n).generation == 2
            assert len(held(r1, n).own) == len(session_of(r1).family)
            assert not Workspace(r1.folder).secret_path(n).exists()
        following(r1, tmp_path / "r2").check_sum(answering=ALL)

    def test_in_a_sealed_root_round_it_takes_the_identity(self, series, refuses):
        (r0,) = series(0, sealed=True)
        refuses(2, "forget", r0.folder, "--user", 1, says="no identity was given")
        must("forget", r0.folder, "--user", 1, "--end-series")

    def test_ending_the_series_erases_all(self, series, refuses, tmp_path):
        r0, r1 = series(1)
        r2 = r1.next_of_series(tmp_path / "r2")
        ended = "user 1 has ended the series with this round"
        must(*r1.forget(1, "--end-series"))
        assert [p.name for p in (r1.folder / "secrets").glob("user-01*")] == ["user-01.ledger.json"]
        refuses(77, *r2.offline(1, "--from", r1.folder), says=ended)
        must(*r1.forget(2))
        must(*r1.forget(2, "--end-series"))  # also of what was kept at first
        assert not Workspace(r1.folder).held_path(2).exists()
        must(*r0.forget(1, "--end-series"))
        carried = "user 1 has forgotten this round, and carried its keys on to generation 1"
        refuses(77, *r2.offline(1, "--from", r0.folder), says=carried)

    @plain_and_sealed
    def test_a_round_that_was_given_up_opens_no_later_one(self, series, refuses, tmp_path, sealed):
        """It was never frozen: nobody can answer, and its keys lead to those of later rounds."""
        (r0,) = series(0, sealed=sealed)
        lost = prepared(r0, tmp_path / "lost")
        for n in ALL[:-1]:
            must(*lost.mask(n))
        target = following(lost, tmp_path / "target")
        assert opens(target, lost) == list(ALL)
        for n in ALL:
            refuses(77, *lost.forget(n, "--end-series"), says=("still needed", "--give-up"))
            must(*lost.forget(n, "--end-series", "--give-up"))
            left = [path.name for path in (lost.folder / "secrets").glob(f"user-{n:02}*")]
            assert left == [f"user-{n:02}.ledger.json"]
            refuses(77, *lost.mask(n), says="has erased its secret of this round")
            shown = must("status", lost.folder, "--user", n, "--json").json
            assert shown["next"]["step"] is None
            assert shown["send"] == []
        assert opens(target, lost) == []

    def test_a_series_does_not_end_unnoticed_with_the_keys_of_too_few(
        self, stages, refuses, tmp_path
    ):
        """A round is given up before the shares of the others have come."""
        r = stages(replace(RECIPES["sketch"], **FIVE)).copy("offline", tmp_path / "r")
        for m in (1, 3, 4, 5):
            (r.folder / f"shares/user-02/from-{m:02}.h5").unlink()
        says = ("keys of 1 user", "the series would end here", "forget with --end-series")
        refuses(66, *r.forget(2, "--give-up"), says=says)
        must(*r.forget(2, "--give-up", "--end-series"))
        assert not Workspace(r.folder).held_path(2).exists()

    @pytest.mark.parametrize("generation", [0, 1])
    def test_stopped_in_the_middle_nothing_is_lost(
        self, series, refuses, tmp_path, monkeypatch, generation
    ):
        """After the next keys are stored, and before the ledger says that these are gone."""
        r = series(generation)[generation]
        with monkeypatch.context() as crash:
            crash.setattr(Ledger, "record", stopped)
            with pytest.raises(Stop):
                call(*r.forget(1))
        assert held(r, 1).generation == generation + 1
        assert Workspace(r.folder).secret_path(1).exists()
        if generation:  # the keys of this round are gone from the file from which users answer
            refuses(65, *r.eliminate(1), says=("was forgetting this one", "forget it again"))
        must(*r.forget(1))
        assert held(r, 1).generation == generation + 1
        assert not Workspace(r.folder).secret_path(1).exists()
        following(r, tmp_path / "next").check_sum(answering=ALL)

    @pytest.mark.parametrize("generation", [0, 1])
    def test_stopped_so_the_next_round_can_be_prepared_too(
        self, series, tmp_path, monkeypatch, generation
    ):
        r = series(generation)[generation]
        with monkeypatch.context() as crash:
            crash.setattr(Ledger, "record", stopped)
            with pytest.raises(Stop):
                call(*r.forget(1))
        following(r, tmp_path / "next").check_sum(answering=ALL)

    @pytest.mark.parametrize("generation", [0, 1])
    def test_stopped_while_erasing_it_goes_on(self, series, tmp_path, monkeypatch, generation):
        r = series(generation)[generation]
        with monkeypatch.context() as crash:
            crash.setattr(Path, "unlink", stopped)
            with pytest.raises(Stop):
                call(*r.forget(1))
        assert Workspace(r.folder).secret_path(1).exists()
        must(*r.forget(1))
        assert not Workspace(r.folder).secret_path(1).exists()
        following(r, tmp_path / "next").check_sum(answering=ALL)

    @pytest.mark.parametrize("generation", [0, 1])
    def test_if_the_ledger_came_first_a_crash_would_end_the_series(
        self, series, refuses, tmp_path, monkeypatch, generation
    ):
        """The twin: the next keys were never stored."""
        r = series(generation)[generation]
        monkeypatch.setattr(settle_step, "_keep_next_generation", lambda *_: None)
        must(*r.forget(1))
        after = r.next_of_series(tmp_path / "next")
        refuses(77, *after.offline(1, "--from", r.folder), says="has ended the series")

    def test_without_its_own_list_a_user_can_neither_go_on_nor_forget(
        self, series, refuses, tmp_path
    ):
        """It could never send an X again: so nothing is erased before the list is back."""
        (r0,) = series(0)
        r1 = r0.next_of_series(tmp_path / "r1")
        path = Workspace(r0.folder).dealt_path(1)
        path.rename(tmp_path / "list")
        lacks = "user 1 lacks its own list of keys of the root round"
        refuses(66, *r1.offline(1, "--from", r0.folder), says=lacks)
        refuses(66, *r0.forget(1), says=(lacks, "dealt/user-01.json"))
        (tmp_path / "list").rename(path)
        must(*r0.forget(1))
        must(*r1.offline(1, "--from", r0.folder))

    def other_list(self, r0: Round) -> None:
        """Somebody changes a commitment of user 1 to a key that user 1 does not hold itself."""
        space = Workspace(r0.folder)
        family = space.session.family or ()
        at = next(at for at, block in enumerate(family) if 1 not in block)
        put(space.dealt_path(1), "ab" * 32, "commitments", at)

    def test_a_list_that_somebody_changed_is_not_taken_for_the_users_own(
        self, series, refuses, tmp_path
    ):
        """In a plain round anybody can: user 1's own share fits it all the same."""
        (r0,) = series(0)
        r1 = r0.next_of_series(tmp_path / "r1")
        self.other_list(r0)
        says = ("user 1 lacks its own list of keys", "do not fit its keys")
        refuses(66, *r1.offline(1, "--from", r0.folder), says=says)
        refuses(66, *r0.forget(1), says=says)

    def test_else_an_honest_user_would_be_left_out_of_every_later_round(
        self, series, tmp_path, monkeypatch
    ):
        """The twin: those who have the right list hold nothing that user 1's X names."""
        (r0,) = series(0)
        r1 = prepared(r0, tmp_path / "r1", users=(2, 3, 4, 5))
        self.other_list(r0)
        check = Dealt.check
        monkeypatch.setattr(
            Dealt, "check", lambda dealt, keys: dealt.user == 1 or check(dealt, keys)
        )
        must(*r1.offline(1, "--from", r0.folder))
        monkeypatch.undo()
        for n in ALL:
            must(*r1.mask(n))
        assert list(must(*r1.freeze("--json")).json["left_out"]) == ["1"]

    def test_if_it_forgot_all_the_same_the_series_would_end(
        self, series, refuses, tmp_path, monkeypatch
    ):
        """The twin."""
        (r0,) = series(0)
        r1 = r0.next_of_series(tmp_path / "r1")
        path = Workspace(r0.folder).dealt_path(1)
        path.rename(tmp_path / "list")
        monkeypatch.setattr(settle_step, "check_own_list", lambda *_: None)
        must(*r0.forget(1))
        (tmp_path / "list").rename(path)
        refuses(66, *r1.offline(1, "--from", r0.folder), says="lacks its own list")

    def test_ending_the_series_stopped_while_erasing(self, series, tmp_path, monkeypatch):
        """What is not the next generation's is erased by any `forget` afterwards."""
        _, r1 = series(1)
        with monkeypatch.context() as crash:
            crash.setattr(Path, "unlink", stopped)
            with pytest.raises(Stop):
                call(*r1.forget(1, "--end-series"))
        assert Workspace(r1.folder).held_path(1).exists()
        after = r1.next_of_series(tmp_path / "next")
        refused = judged(*after.offline(1, "--from", r1.folder))
        assert (refused.code, "has ended the series" in refused.err) == (77, True)
        must(*r1.forget(1))
        assert not Workspace(r1.folder).held_path(1).exists()

    def half_written(self, r: Round) -> list[Path]:
        """What a process leaves that was killed while it wrote keys of user 1."""
        space = Workspace(r.folder)
        paths = [space.secret_path(1), space.held_path(1), space.share_path(1, 2)]
        whole = space.secret_path(1).read_bytes()
        abandoned = [path.with_name(f".{path.name}.4194305.tmp") for path in paths]
        for path in abandoned:
            path.write_bytes(whole)
        return abandoned

    def test_what_killed_processes_left_of_keys_is_erased_too(self, series):
        (r0,) = series(0)
        abandoned = self.half_written(r0)
        must(*r0.forget(1, "--end-series"))
        assert [path for path in abandoned if path.exists()] == []

    def test_else_it_would_open_the_round_after_that(self, series, monkeypatch):
        """The twin."""
        (r0,) = series(0)
        (draft, *_) = self.half_written(r0)
        monkeypatch.setattr(atomic, "_remove_abandoned", lambda _: False)
        must(*r0.forget(1, "--end-series"))
        draft.rename(Workspace(r0.folder).secret_path(1))
        for n in (2, 3, 4, 5):
            Workspace(r0.folder).secret_path(n).unlink()
        assert opens(r0, r0) == [1]

    def test_what_is_erased_stays_erased_after_a_power_cut(self, series, monkeypatch):
        """The names in every folder from which something was erased are made durable."""
        (r0,) = series(0)
        done: list[tuple[str, Path]] = []
        erase = Path.unlink
        synced = atomic.sync_folder

        def unlink(path, **how):
            erase(path, **how)
            done.append(("erased", path.parent))

        def sync(folder):
            synced(folder)
            done.append(("durable", folder))

        monkeypatch.setattr(Path, "unlink", unlink)
        monkeypatch.setattr(atomic, "sync_folder", sync)
        must(*r0.forget(1))
        erased = {folder for what, folder in done if what == "erased"}
        assert {r0.folder / "secrets", r0.folder / "shares/user-01"} <= erased
        for folder in erased:
            assert [what for what, where in done if where == folder][-1] == "durable"

    def test_after_the_last_generation_nothing_is_kept(self, series, monkeypatch):
        _, r1 = series(1)
        monkeypatch.setattr(settle_step, "MOST_GENERATIONS", 1)
        must(*r1.forget(1))
        assert not Workspace(r1.folder).held_path(1).exists()

    def test_what_is_left_of_later_rounds_does_not_open_an_earlier_one(self, series):
        """All users' files, without identities: and the twin, in which they have not forgotten."""
        r0, r1, r2 = series(2)
        assert opens(r1, r1) == list(ALL)
        assert opens(r1, r0) == list(ALL)
        for n in ALL:
            must(*r0.forget(n, "--end-series"))
            must(*r1.forget(n))
        assert opens(r1, r0, r1, r2) == []
        assert opens(r0, r0, r1, r2) == []
        assert opens(r2, r1) == []
        assert opens(r2, r2) == list(ALL)  # the attack works where keys are kept
        for n in ALL:
            must(*r2.forget(n))
        assert opens(r2, r0, r1, r2) == []

    def test_a_round_that_was_forgotten_before_does_not_open_the_next_one(self, series, tmp_path):
        """Whether it is forgotten after the next one was prepared, or before."""
        r0, r1 = series(1)
        (before,) = series(0, copy="before")
        for n in ALL:
            said = must(*before.forget(n)).out
            assert f"{Workspace(before.folder).held_path(n)} has the keys of the next round" in said
        after = following(before, tmp_path / "after")
        for n in ALL:
            assert "next round" not in must(*r0.forget(n)).out  # they are in r1
            must(*r1.forget(n))
            must(*after.forget(n))
        assert opens(r1, r0, r1) == []
        assert opens(after, before, after) == []

    @pytest.mark.parametrize("forgotten", [False, True], ids=["before", "forgotten"])
    def test_wherever_offline_is_stopped_the_earlier_round_does_not_open_the_next(
        self, series, refuses, tmp_path, forgotten
    ):
        """After each change on the disk: no user can go on before `offline` is repeated, and then
        nothing is left behind."""
        (r0,) = series(0)
        for n in ALL if forgotten else ():
            must(*r0.forget(n))
        r1 = r0.next_of_series(tmp_path / "next")
        # its ledger, secret, keys; the ledger there, keys that are erased there; its ledger again
        changes = 5 + forgotten
        for n in ALL:  # user n stops after n changes
            assert stopped_after(n, *r1.offline(n, "--from", r0.folder))
            if n < changes:
                lacks = "user-01.h5 is not there" if n == 1 else "are not complete"
                refuses(66, *r1.mask(n), says=lacks)
                refuses(66, *r1.offline(n), says="name that round")
            must(*r1.offline(n, "--from", r0.folder))
        r1.play(after="offline").check_sum(answering=ALL)
        for n in ALL:
            must(*r0.forget(n))
            must(*r1.forget(n))
        assert opens(r1, r0, r1) == []
        following(r1, tmp_path / "third").check_sum(answering=ALL)

    def test_if_a_round_could_be_used_before_the_earlier_one_is_left_it_would_open_it(
        self, series, tmp_path, monkeypatch
    ):
        """The twin: stopped before the earlier round is left, and nobody repeats `offline`."""
        (r0,) = series(0)
        r1 = r0.next_of_series(tmp_path / "next")
        monkeypatch.setattr(offline_step, "leave", lambda *_: None)
        for n in ALL:
            must(*r1.offline(n, "--from", r0.folder))
        monkeypatch.undo()
        r1.play(after="offline")
        for n in ALL:
            must(*r0.forget(n))
            must(*r1.forget(n))
        assert opens(r1, r0) == list(ALL)

    def test_if_earlier_rounds_kept_what_later_ones_have_they_would_open_them(
        self, series, tmp_path, monkeypatch
    ):
        """The twin: nobody notes that the keys were carried on."""
        (r0,) = series(0)
        monkeypatch.setattr(offline_step, "leave", lambda *_: None)
        r1 = following(r0, tmp_path / "next")
        for n in ALL:
            must(*r0.forget(n))
            must(*r1.forget(n))
        assert opens(r1, r0) == list(ALL)


class Stop(BaseException):
    """The machine stops here."""


def stopped(*_, **__):
    raise Stop


def stopped_after(changes: int, *command: object) -> bool:
    """Run a command on a machine that stops after so many changes on the disk; whether it did."""
    left = changes
    synced = atomic.sync_folder

    def stop(folder: Path) -> None:
        nonlocal left
        synced(folder)
        left -= 1
        if not left:
            raise Stop

    with mock.patch.object(atomic, "sync_folder", stop):
        try:
            must(*command)
        except Stop:
            return True
    return False


# files


def test_held_keys_are_for_their_owner_alone_and_never_shown(series):
    _, r1 = series(1)
    path = Workspace(r1.folder).held_path(2)
    for forgotten in (False, True):
        if forgotten:
            must(*r1.forget(2))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        found = datasets(path)
        for reveal in ((), ("--reveal",)):
            said = must("inspect", path, "--json", *reveal)
            shown = said.json["files"][0]
            assert shown["kind"] == "held"
            assert shown["datasets"]["keys"]["values"] == "secret"
            everything = said.out + must("inspect", path, *reveal).out
            for name in {"keys", "own"} & set(found):
                first = found[name].reshape(-1, 32)[0]
                assert first[:4].tobytes().hex() not in everything
                assert ", ".join(map(str, first[:4].tolist())) not in everything


def test_keys_are_not_in_the_repr_of_what_holds_them(series):
    """Nor, so, in a traceback that shows variables, or in a log."""
    _, r1 = series(1)
    space = Workspace(r1.folder)
    stored = secret_file.read(space, 2)
    theirs = held(r1, 2)
    secret = [*stored.secret.keys, stored.key, *theirs.keys[3].values()]
    shown = repr(stored) + repr(stored.secret) + repr(theirs) + repr(space)
    assert stored.sharing in shown
    for key in secret:
        assert key.hex() not in shown
        assert repr(key)[2:20] not in shown


class TestDamagedKeys:
    """secrets/user-NN.held.h5, whose keys nobody can compare with a list any more."""

    USER = 2

    @pytest.fixture
    def before_mask(self, series, tmp_path):
        (r0,) = series(0)
        return r0, prepared(r0, tmp_path / "r1")

    def path(self, r: Round) -> Path:
        return Workspace(r.folder).held_path(self.USER)

    @pytest.mark.parametrize("forgotten", [False, True], ids=["of this round", "of the next"])
    def test_every_byte_counts(self, series, forgotten):
        """One bit of each byte: it is refused, or, in the few places that HDF5 leaves free, gives
        the very same keys."""
        _, r1 = series(1)
        if forgotten:
            must(*r1.forget(self.USER))
        path = self.path(r1)
        whole = path.read_bytes()
        sound = held(r1, self.USER)
        refused = 0
        for at in range(len(whole)):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << at % 8
            path.write_bytes(damaged)
            try:
                assert held(r1, self.USER) == sound
            except BadData:
                refused += 1
        assert refused > 0.98 * len(whole)
        for size in range(0, len(whole), 7):
            path.write_bytes(whole[:size])
            with pytest.raises(BadData):
                held(r1, self.USER)

    ATTRIBUTES = {  # noqa: RUF012 - what each test changes
        "user": 3,
        "session": "ab" * 32,
        "generation": 2,
        "kind": "secret",
    }

    @pytest.mark.parametrize("name", ATTRIBUTES)
    def test_keys_of_another_user_round_or_generation_are_refused(self, before_mask, refuses, name):
        r0, r1 = before_mask
        rewrite(self.path(r1), lambda found, _: found.update({name: self.ATTRIBUTES[name]}))
        if name == "kind":  # which is written anew with the file
            shutil.copy(Workspace(r1.folder).secret_path(self.USER), self.path(r1))
        refuses(65, *r1.offline(self.USER), says="user-02.held.h5")
        refuses(65, *r1.offline(self.USER, "--from", r0.folder), says="user-02.held.h5")
        refuses(66, *r1.mask(self.USER), says=("user 2 holds the keys of 0 users", "--from"))

    def test_nobody_answers_with_them(self, before_mask, refuses):
        _, r1 = before_mask
        r1.play(after="offline", upto="frozen")
        path = self.path(r1)
        flip(path, placed(path)["keys"][0])
        refuses(65, *r1.eliminate(self.USER), says="does not match its digest")
        for n in ALL:
            if n != self.USER:
                must(*r1.eliminate(n))
        assert must(*r1.decode("--json")).json["corrected"] == []

    def test_if_the_digest_were_not_checked_their_user_would_be_named(
        self, before_mask, monkeypatch
    ):
        """The twin."""
        _, r1 = before_mask
        r1.play(after="offline", upto="frozen")
        path = self.path(r1)
        flip(path, placed(path)["keys"][0])
        monkeypatch.setattr(artifacts.Artifact, "verify", lambda *_: None)
        r1.play(after="frozen")
        assert must(*r1.decode("--json")).json["corrected"] == [self.USER]

    @pytest.mark.parametrize("stage", ["offline", "masked", "frozen"])
    def test_a_lost_file_is_made_again_from_the_earlier_round(self, before_mask, refuses, stage):
        r0, r1 = before_mask
        r1.play(after="offline", upto=stage)
        path = self.path(r1)
        whole = path.read_bytes()
        path.unlink()
        refuses(66, *r1.offline(self.USER), says="user-02.held.h5 is not there")
        must(*r1.offline(self.USER, "--from", r0.folder))
        assert path.read_bytes() == whole
        r1.play(after=stage).check_sum(answering=ALL)

    def test_but_with_the_keys_that_x_says_and_no_others(self, series, tmp_path):
        (r0,) = series(0)
        share = Workspace(r0.folder).share_path(self.USER, 4)
        share.rename(tmp_path / "late")
        r1 = prepared(r0, tmp_path / "r1").play(after="offline", upto="masked")
        (tmp_path / "late").rename(share)
        self.path(r1).unlink()
        must(*r1.offline(self.USER, "--from", r0.folder))
        assert sorted(held(r1, self.USER).lists) == [1, 2, 3, 5]

    def test_keys_of_the_next_round_are_not_mixed_with_those_of_this_one(
        self, series, refuses, tmp_path, monkeypatch
    ):
        """A user that dropped out was stopped while it forgot, and prepares the round again."""
        (r0,) = series(0)
        r1 = prepared(r0, tmp_path / "r1")
        r1 = replace(r1, recipe=replace(r1.recipe, masking=(1, 3, 4, 5)))
        r1.play(after="offline", upto="frozen")
        with monkeypatch.context() as crash:
            crash.setattr(Ledger, "record", stopped)
            with pytest.raises(Stop):
                call(*r1.forget(self.USER))
        assert held(r1, self.USER).own
        says = ("was forgetting this one", "forget it again")
        refuses(65, *r1.offline(self.USER, "--from", r0.folder), says=says)


# a freezer that lies


@plain_and_sealed
class TestLyingFreezer:
    @pytest.fixture
    def frozen(self, series, tmp_path, sealed):
        (r0,) = series(0, sealed=sealed)
        r1 = prepared(r0, tmp_path / "r1")
        return r1.play(after="offline", upto="frozen")

    @pytest.mark.parametrize("name", ["sharing", "dealt"])
    def test_own_row_is_checked(self, frozen, refuses, name):
        frozen.lie(2, **{name: "ab" * 32})
        refuses(65, *frozen.eliminate(2), says="X of user 2 that this user did not send")

    def test_another_list_of_others_is_not_answered(self, frozen, refuses):
        frozen.lie(2, dealt="ab" * 32)
        for n in (3, 4, 5):
            refuses(65, *frozen.eliminate(n), says="user 2 gave this user another list of keys")
        refuses(65, *frozen.decode(), says="is not the file that was frozen")

    def test_another_sharing_of_others_opens_nothing(self, frozen, refuses):
        """The answers are about masks that nobody used."""
        frozen.lie(2, sharing="ab" * 32)
        for n in (3, 4, 5):
            must(*frozen.eliminate(n))
        refuses(
            65, *frozen.decode(), says="is not the file that was frozen", besides=("decoded.json",)
        )

    def test_not_even_where_nobody_compares_x_or_its_own_row(self, frozen, refuses, monkeypatch):
        """The twin: without the checks the round is lost all the same, and all have answered."""
        frozen.lie(2, sharing="ab" * 32)
        monkeypatch.setattr(survivors_file, "check_own_row", lambda *_, **__: None)
        monkeypatch.setattr(survivors_file, "each_frozen", each_as_it_is)
        for n in (2, 3, 4, 5):
            must(*frozen.eliminate(n))
        result = refuses(65, *frozen.decode(), besides=("decoded.json",))
        assert "is not the file that was frozen" not in result.err


def each_as_it_is(space, survivors):
    for n in survivors.users:
        yield n, read_masked(space.session, space.masked_path(n), n)
