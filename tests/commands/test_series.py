"""A series of rounds: keys are dealt once, and follow for every later round on each user's own
machine."""

from __future__ import annotations

import random
import shutil
import stat
from dataclasses import replace
from itertools import combinations, pairwise, product
from pathlib import Path

import pytest
from deterministic import drawn_from
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
    must,
    placed,
    put,
    rewrite,
)

from topk_secagg.protocol.deal import next_key
from topk_secagg.protocol.parameters import CONSTRUCTIONS
from topk_secagg.rounds import decode as decode_step
from topk_secagg.rounds import offline as offline_step
from topk_secagg.rounds import series as series_step
from topk_secagg.storage.chain import Chain
from topk_secagg.storage.dealt import Dealt
from topk_secagg.storage.keys import read_identity
from topk_secagg.storage.ledger import Ledger
from topk_secagg.storage.masked import read as read_masked
from topk_secagg.storage.session import Session
from topk_secagg.storage.workspace import Workspace

ALL = (1, 2, 3, 4, 5)
SEEN = ("user-01.ledger.json",)  # which survivors.json user 1 saw first
FIVE = {"masking": ALL, "answering": ALL}
plain_and_sealed = pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])


@pytest.fixture
def construction():
    return "sketch"


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """played(recipe, k): a folder with the rounds r0, ..., rk of a series, each played once, as it
    was before a later round was prepared."""
    made: dict[Recipe, list[Path]] = {}

    def get(recipe: Recipe, later: int) -> list[Round]:
        if recipe not in made:
            folder = tmp_path_factory.mktemp("series") / "0"
            made[recipe] = [folder]
            Round(recipe, folder / "r0", folder.with_name("inputs")).prepare().play()
        folders = made[recipe]
        while len(folders) <= later:
            before = folders[-1]
            folders.append(before.with_name(str(len(folders))))
            last = copied(recipe, before, folders[-1], len(folders) - 1)[-1]
            following(last, folders[-1] / f"r{len(folders) - 1}")
        return made[recipe][later]

    return get


def copied(recipe: Recipe, source: Path, target: Path, count: int) -> list[Round]:
    """So many rounds of a series in another folder, with all secrets; their ledgers say that they
    were prepared there."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    first = Round(recipe, target / "r0", source.with_name("inputs"))
    first.steps = first.write_gradients(random.Random(f"{recipe.length} {recipe.field}"))
    rounds = [first, *(with_gradients(first, target / f"r{i}") for i in range(1, count))]
    for r in rounds:
        for path in target.glob(f"home-*/{session_of(r).id}/user-*.ledger.json"):
            put(path, str(r.folder.resolve()), "folder")
    return rounds


def with_gradients(before: Round, folder: Path) -> Round:
    """A later round of the same users in this folder, which have other gradients there."""
    r = replace(before, folder=folder, inputs=folder.with_name(f"{folder.name}-inputs"))
    r.steps = r.write_gradients(random.Random(folder.name))
    return r


@pytest.fixture
def series(played, tmp_path):
    """series(2, sealed=True): copies of the rounds r0, r1 and r2, decoded, of one series."""

    def copies(later: int, **changes) -> list[Round]:
        changes["homes"] = changes.get("sealed", False)
        recipe = replace(RECIPES["sketch"], **FIVE, **changes)
        return copied(recipe, played(recipe, later), tmp_path, later + 1)

    return copies


def prepared(before: Round, folder: Path, *more: object, users=ALL) -> Round:
    """The next round of a series, in which these users have their keys."""
    before.next_of_series(folder, *more)
    r = with_gradients(before, folder)
    for n in users:
        must(*r.offline(n, "--from", before.folder))
    return r


def following(before: Round, folder: Path, *more: object) -> Round:
    """The next round of a series, decoded."""
    return prepared(before, folder, *more).play(after="offline")


def session_of(r: Round):
    return Workspace(r.folder).session


def held(r: Round, user: int) -> Chain:
    """The user's chain, which is at this round."""
    return series_step.read_chain(r.space(user), user)


def own_keys(r: Round, user: int) -> tuple[bytes, ...]:
    return held(r, user).own


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
        public = {"session.json", "masked", "survivors.json", "elimination"}
        public |= set() if sealed else {"secrets"}
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

    def test_every_key_is_put_through_once_for_each_generation(self, played):
        recipe = replace(RECIPES["sketch"], **FIVE)
        folders = [played(recipe, k) for k in range(3)]
        rounds = [
            Round(recipe, folder / f"r{k}", folder.with_name("inputs"))
            for k, folder in enumerate(folders)
        ]
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
        before = r0 = round_at("decoded", "r0", sealed=sealed, **FIVE)
        keys = ["--secrets", r0.secrets(1)] * sealed
        clip = ("--clip", repr(r0.recipe.clip))
        for generation in (1, 2):
            r = with_gradients(r0, tmp_path / f"r{generation}")
            gradients = r.inputs / "gradients"
            command = ("run", r.folder, "--from", before.folder, "--gradients", gradients)
            must(*command, *clip, *keys)
            must(*command, *clip, *keys)  # again, which changes nothing
            r.check_sum(survivors=ALL, answering=ALL)
            assert not {"shares", "dealt"} & files(r.folder)
            assert session_of(r).generation == generation
            before = r

    def test_without_the_earlier_round_once_it_is_prepared(self, series, tmp_path):
        (r0,) = series(0, sealed=True)
        r1 = prepared(r0, tmp_path / "r1")
        shutil.rmtree(r0.folder)
        for n in ALL:
            must(*r1.offline(n))  # once more, which changes nothing
        r1.play(after="offline").check_sum(answering=ALL)

    def test_with_a_folder_of_secrets_the_round_before_is_found(self, series, tmp_path):
        (r0,) = series(0, sealed=True)
        r0.next_of_series(tmp_path / "r1")
        r1 = with_gradients(r0, tmp_path / "r1")
        for n in ALL:
            must(*r1.offline(n))
        r1.play(after="offline").check_sum(answering=ALL)

    @plain_and_sealed
    def test_an_audit_passes(self, series, sealed):
        r0, r1 = series(1, sealed=sealed)
        for r in (r0, r1):
            must("audit", r.folder)
            for n in ALL:
                must(*r.forget(n))
            must("audit", r.folder)

    def test_an_audit_of_the_last_round_checks_all(self, series):
        _, r1 = series(1)
        said = must("audit", r1.folder, "--json")
        assert {f["verdict"] for f in said.json["findings"]} == {"pass"}

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

    def test_with_a_folder_of_secrets_so_does_who_names_no_round(self, series, tmp_path):
        """Whatever each of them was in last: nobody has to know that of the others."""
        r0 = series(0, sealed=True)[0]
        r1 = prepared(r0, tmp_path / "r1", users=(1, 2, 3, 4))
        r2 = prepared(r1, tmp_path / "r2", users=(1, 2, 3))
        r2.next_of_series(tmp_path / "r3")
        r3 = with_gradients(r2, tmp_path / "r3")
        for n in ALL:
            must(*r3.offline(n))
            assert held(r3, n).generation == 3
        r3.play(after="offline").check_sum(answering=ALL)

    def test_the_last_generation_can_be_reached_and_no_further(self, series, refuses, tmp_path):
        (r0,) = series(0)
        r = r0.next_of_series(tmp_path / "last")
        put(r.folder / "session.json", 10_000, "series", "generation")
        key = own_keys(r0, 1)[0]
        must(*r.offline(1, "--from", r0.folder, "--skip-generations"))
        for _ in range(10_000):
            key = next_key(key)
        assert own_keys(r, 1)[0] == key
        more = ("init", tmp_path / "more", "--from", r.folder)
        refuses(2, *more, says=("generation 10001", "start a new one"))
        must(*more, "--new-keys")

    def test_new_keys_start_a_new_series(self, series, tmp_path):
        _, r1 = series(1)
        before = set(own_keys(r1, 1))
        anew = prepared(r1, tmp_path / "anew", "--new-keys")
        assert document(anew.folder / "session.json")["series"] is None
        anew.play(after="offline").check_sum(answering=ALL)
        assert {"shares", "dealt"} <= files(anew.folder)
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
        assert set(session_of(r1).clips) == {clip}
        assert session_of(r1).parameters.max_weight == 2

    @pytest.mark.parametrize(
        "option",
        [
            ("--users", 5), ("--survivors", 3), ("--colluders", 1), ("--freezer", 2),
            ("--confirm",), ("--construction", "sketch"), ("--dealing", "shares"),
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


@pytest.mark.rule(14, 15)
class TestOnlyThisSeries:
    def test_keys_do_not_follow_from_the_same_round(self, series, refuses):
        _, r1 = series(1)
        refuses(2, *r1.offline(1, "--from", r1.folder), says="does not go on from itself")

    def test_keys_never_go_back(self, series, refuses):
        r0, r1, r2 = series(2)
        as_if_new(r1)
        refuses(65, *r1.offline(1, "--from", r2.folder), says="it is not an earlier one")
        refuses(77, *r1.offline(1, "--from", r0.folder), says="keys never go back", besides=SEEN)

    def test_another_series_is_refused(self, series, round_at, refuses, tmp_path):
        (r0,) = series(0)
        other = round_at("decoded", "other", name="other", **FIVE)
        r1 = r0.next_of_series(tmp_path / "r1")
        foreign = "does not belong to the series of this one"
        refuses(65, *r1.offline(1, "--from", other.folder), says=foreign)
        shares = round_at("offline", "shares", dealing="shares", **FIVE)
        refuses(65, *r1.offline(1, "--from", shares.folder), says=foreign)
        refuses(66, *r1.offline(1), says=("it goes on from an earlier round", "--from"))
        must(*r1.offline(1, "--from", r0.folder))
        refuses(65, *r1.offline(1, "--from", other.folder), says=foreign)

    @pytest.mark.parametrize("construction", CONSTRUCTIONS)
    def test_where_shares_are_written_out_they_are_dealt_anew(self, round_at, tmp_path):
        r0 = round_at("decoded", "r0", dealing="shares", **FIVE)
        r1 = following(r0, tmp_path / "r1")
        assert session_of(r1).generation == 1
        assert "shares" in files(r1.folder)
        r1.check_sum(answering=ALL)

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
        r0.next_of_series(tmp_path / "r1")
        put(tmp_path / "r1/session.json", vars(stranger), "recipients", 4)
        return with_gradients(r0, tmp_path / "r1")

    def strangers_file(self, tmp_path: Path) -> Path:
        must("keygen", "--user", 5, "--secrets", tmp_path / "stranger")
        return tmp_path / "stranger/user-05.identity"

    def test_without_confirmations_although_the_series_has_them(self, series, refuses, tmp_path):
        (r0,) = series(0, sealed=True, confirm=True, survivors=4)
        r1 = r0.next_of_series(tmp_path / "r1")
        edit(r1.folder / "session.json", lambda s: s.update(confirm=False, freezer=1))
        says = "this round has another freezer than its series"
        refuses(65, *r1.offline(1, "--from", r0.folder), says=says)

    def test_without_the_check_a_stranger_takes_a_users_place(self, series, tmp_path, monkeypatch):
        """The twin: all others go on, and count an X that the stranger signed as user 5's."""
        (r0,) = series(0, sealed=True)
        r1 = self.with_a_stranger(r0, tmp_path)
        monkeypatch.setattr(series_step, "check_same_series", lambda *_: None)
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
        monkeypatch.setattr(series_step, "check_same_series", lambda *_: None)
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
            ("status", r.folder), ("audit", r.folder),
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
        root = Round(r0.recipe, tmp_path / "theirs/root", tmp_path / "their-keys").prepare()
        root.play(upto="decoded")
        fake = claimed(root.next_of_series(tmp_path / "theirs/impostor"), r0)
        for path in (tmp_path / "theirs").glob("home-*/user-*.chain-*.h5"):
            named = path.name.replace(session_of(root).id[:16], session_of(r0).id[:16])
            own = shutil.copy(path, path.with_name(named))
            rewrite(own, lambda a, _: a.__setitem__("series", session_of(r0).id))
        for n in ALL:
            must(*fake.offline(n, "--from", root.folder))
        for path in (tmp_path / "theirs").glob("home-*/user-*.sent"):
            path.unlink()  # they may send again what they like
        return fake.play(after="offline")

    def test_nobody_is_fooled_by_a_round_of_strangers_that_names_the_root(
        self, series, refuses, tmp_path, monkeypatch
    ):
        (r0,) = series(0, sealed=True)
        name = session_of(r0).series_name
        with monkeypatch.context() as impostors:
            impostors.setattr(series_step, "check_same_series", lambda *_: None)
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
        monkeypatch.setattr(series_step, "check_same_series", lambda *_: None)
        monkeypatch.setattr(Session, "series_name", property(lambda s: s.series_root))
        fake = self.impostor(r0, tmp_path)
        must(*fake.decode(), "--series", session_of(r0).id)


class TestLate:
    """A share of the root round that a user receives later."""

    @pytest.fixture
    def share(self, new_round):
        """A round up to the shares; that of user 4 for user 1."""
        self.r0 = new_round("r0", **FIVE).play(upto="offline")
        return self.r0.space().share_path(1, 4)

    def without_an_answer_of_user_1(self, r: Round, refuses) -> None:
        """From the X on; user 1 lacks keys of user 4."""
        for n in ALL:
            must(*r.mask(n))
        must(*r.freeze())
        refuses(66, *r.eliminate(1), says="user 1 has not entered the keys of user 4")
        for n in (2, 3, 4, 5):
            must(*r.eliminate(n))
        assert must(*r.decode("--json")).json["corrected"] == []
        r.check_sum(answering=(2, 3, 4, 5))

    def test_it_is_entered_until_the_user_masks(self, share, refuses, tmp_path):
        share.rename(tmp_path / "late")
        self.without_an_answer_of_user_1(self.r0, refuses)
        r1 = prepared(self.r0, tmp_path / "r1")
        assert sorted(held(r1, 1).lists) == [1, 2, 3, 5]
        (tmp_path / "late").rename(share)
        assert must(*r1.mask(1, "--json")).json["holds"] == list(ALL)
        assert sorted(held(r1, 1).lists) == list(ALL)
        r1.play(after="offline").check_sum(answering=ALL)

    def test_and_no_longer(self, share, refuses, tmp_path):
        share.rename(tmp_path / "late")
        self.without_an_answer_of_user_1(self.r0, refuses)
        r1 = prepared(self.r0, tmp_path / "r1")
        said = must(*r1.mask(1, "--json"))
        assert (said.json["holds"], said.json["missing_shares"]) == ([1, 2, 3, 5], [4])
        (tmp_path / "late").rename(share)
        self.without_an_answer_of_user_1(r1, refuses)

    def test_wrong_keys_are_not_carried_on(self, share, refuses, tmp_path):
        """They are compared with the dealer's list before they are put through."""
        rewrite(share, wrong)
        self.without_an_answer_of_user_1(self.r0, refuses)
        r1 = prepared(self.r0, tmp_path / "r1")
        assert sorted(held(r1, 1).lists) == [1, 2, 3, 5]
        assert list(must(*r1.mask(1, "--json")).json["bad_shares"]) == ["4"]

    def test_if_they_were_an_honest_user_would_be_named(self, share, tmp_path, monkeypatch):
        """The twin."""
        rewrite(share, wrong)
        monkeypatch.setattr(Dealt, "check", lambda *_: None)
        self.r0.play(after="offline")
        r1 = following(self.r0, tmp_path / "r1")
        for r in (self.r0, r1):
            assert must(*r.decode("--json")).json["corrected"] == [1]


def wrong(_, found) -> None:
    found["keys"][0, 0] ^= 1


@pytest.mark.parametrize("dealing", ["keys", "shares"])
def test_what_a_later_round_sends_before_is_said(tmp_path, dealing):
    """Keys go on; shares are written out anew."""
    sizes = "--users 5 --survivors 4 --colluders 1 --length 40 --top-k 4 --construction sketch"
    must("init", tmp_path / "r0", *sizes.split(" "), "--dealing", dealing)
    said = must("init", tmp_path / "r1", "--from", tmp_path / "r0", "--json").json
    first = must("inspect", tmp_path / "r0" / "session.json", "--json").json["files"][0]
    assert first["offline_bytes"] > 0
    assert said["offline_bytes"] == (0 if dealing == "keys" else first["offline_bytes"])


def test_with_the_same_random_bytes_everything_is_the_same(new_round, tmp_path):
    found = []
    for name in ("one", "two"):
        with drawn_from(7):
            r0 = new_round(f"{name}/r0", **FIVE).play()
            r1 = following(r0, tmp_path / f"{name}/r1")
        r1.check_sum(answering=ALL)
        found.append([contents(r.folder) for r in (r0, r1)])
        assert x_of(r0, 1).sharing != x_of(r1, 1).sharing
    assert found[0] == found[1]


# one chain for each user


class TestChain:
    """It goes forwards only, and nothing that others say moves it back or aside."""

    @pytest.fixture
    def rounds(self, series):
        return series(1)

    def chain(self, r: Round, user: int = 1) -> Path:
        return series_step.chain_path(r.space(user), user)

    def test_it_is_one_private_file_that_names_where_its_user_is(self, rounds):
        r0, r1 = rounds
        for r in rounds:
            assert self.chain(r) == r0.folder / "secrets/user-01.chain.h5"
        assert len(list(r0.folder.parent.rglob("user-01.chain*"))) == 1
        assert stat.S_IMODE(self.chain(r1).stat().st_mode) == 0o600
        said = must("inspect", self.chain(r1), "--json")
        (shown,) = said.json["files"]
        assert (shown["kind"], shown["session"]) == ("chain", session_of(r1).id)
        keys = {key.hex() for key in own_keys(r1, 1)}
        assert not [key for key in keys if key in said.out]
        assert not [key for key in keys if key in repr(held(r1, 1))]

    def test_who_has_gone_on_cannot_open_the_round_before(self, rounds, refuses):
        r0, r1 = rounds
        for command in (r0.mask(1), r0.eliminate(1)):
            (r0.folder / "masked/user-01.h5").unlink(missing_ok=True)
            (r0.folder / "elimination/user-01.h5").unlink(missing_ok=True)
            says = ("user 1 has gone on to generation 1", "its part in this round is over")
            refuses(77, *command, says=says)
        before = set(own_keys(r1, 1))
        for path in r0.folder.rglob("secrets/*.h5"):
            found = datasets(path)
            rows = [row.tobytes() for name in ("own", "keys") if name in found
                    for row in found[name].reshape(-1, 32)]  # fmt: skip
            assert not before & {next_key(row) for row in rows}, path

    def test_two_rounds_of_a_generation_are_not_both_masked(self, rounds, refuses, tmp_path):
        r0, _ = rounds
        sibling = r0.elsewhere(tmp_path / "sibling")
        must("init", sibling.folder, "--from", r0.folder, "--generation", 1)
        says = ("user 1 has masked in another session of generation 1", "keys serve one session")
        refuses(77, *sibling.offline(1, "--from", r0.folder), says=says, besides=SEEN)

    def test_if_they_were_the_same_keys_would_serve_two_sessions(
        self, rounds, tmp_path, monkeypatch
    ):
        """The twin."""
        r0, r1 = rounds
        keys = own_keys(r1, 1)
        sibling = r0.elsewhere(tmp_path / "sibling")
        must("init", sibling.folder, "--from", r0.folder, "--generation", 1)
        monkeypatch.setattr(offline_step.series, "check_may_go_on", lambda *_, **__: None)
        must(*sibling.offline(1, "--from", r0.folder))
        assert own_keys(sibling, 1) == keys

    def test_a_round_that_was_prepared_and_abandoned_is_replaced(self, rounds, tmp_path):
        """Somebody's `init` came to nothing, or its folder was removed."""
        _, r1 = rounds
        for name in ("abandoned", "kept"):
            r2 = r1.elsewhere(tmp_path / name)
            must("init", r2.folder, "--from", r1.folder, "--generation", 2)
            for n in ALL:
                must(*r2.offline(n, "--from", r1.folder))
        r2.play(after="offline").check_sum(answering=ALL)

    def test_a_folder_that_was_removed_is_made_again_as_a_later_generation(self, rounds, tmp_path):
        _, r1 = rounds
        r2 = prepared(r1, tmp_path / "r2").play(after="offline", upto="masked")
        shutil.rmtree(r2.folder)
        again = prepared(r1, tmp_path / "r2")
        assert session_of(again).generation == 3
        again.play(after="offline").check_sum(answering=ALL)

    def test_init_takes_the_generation_after_the_highest_that_its_chains_know(
        self, rounds, tmp_path
    ):
        r0, r1 = rounds
        r2 = prepared(r1, tmp_path / "r2", users=(3,))
        more = r0.next_of_series(tmp_path / "more")
        assert session_of(more).generation == session_of(r2).generation + 1 == 3

    def test_nobody_goes_on_while_its_answer_is_needed(self, rounds, refuses, tmp_path):
        _, r1 = rounds
        r2 = prepared(r1, tmp_path / "r2").play(after="offline", upto="frozen")
        r3 = r2.next_of_series(tmp_path / "r3")
        says = ("the X of user 1 is out", "it has not answered there", "forget with --give-up")
        refuses(75, *r3.offline(1, "--from", r2.folder), says=says, besides=SEEN)
        for n in ALL:
            must(*r2.eliminate(n))
            must(*r3.offline(n, "--from", r2.folder))

    def test_if_it_did_the_others_would_lack_its_answer(self, rounds, monkeypatch, tmp_path):
        """The twin: the next `init` of a fast freezer."""
        _, r1 = rounds
        r2 = prepared(r1, tmp_path / "r2").play(after="offline", upto="frozen")
        r3 = r2.next_of_series(tmp_path / "r3")
        monkeypatch.setattr(offline_step.series, "check_may_go_on", lambda *_, **__: None)
        must(*r3.offline(1, "--from", r2.folder))
        assert call(*r2.eliminate(1)).code == 77

    def test_a_long_way_needs_the_users_word(self, rounds, refuses, tmp_path):
        _, r1 = rounds
        far = r1.elsewhere(tmp_path / "far")
        must("init", far.folder, "--from", r1.folder, "--generation", 102)
        says = "this round is 101 generations after the one that user 1 is at"
        refuses(77, *far.offline(1, "--from", r1.folder), says=says, besides=SEEN)
        must(*far.offline(1, "--from", r1.folder, "--skip-generations"))
        assert held(far, 1).generation == 102

    def test_every_byte_of_it_counts(self, rounds, tmp_path):
        _, r1 = rounds
        path = self.chain(r1)
        sound = path.read_bytes()
        r2 = r1.next_of_series(tmp_path / "r2")
        for name, (offset, size) in placed(path).items():
            for at in (offset, offset + size // 2, offset + size - 1):
                flip(path, at)
                assert call(*r2.offline(1, "--from", r1.folder)).code == 65, name
                path.write_bytes(sound)
        must(*r2.offline(1, "--from", r1.folder))

    def test_that_of_another_user_is_refused(self, rounds, refuses, tmp_path):
        _, r1 = rounds
        shutil.copy(self.chain(r1, 2), self.chain(r1))
        r2 = r1.next_of_series(tmp_path / "r2")
        refuses(65, *r2.offline(1, "--from", r1.folder), says="its user is 2, not 1")

    def test_one_that_is_lost_is_no_fresh_start(self, rounds, refuses, tmp_path):
        _, r1 = rounds
        self.chain(r1).unlink()
        r2 = r1.next_of_series(tmp_path / "r2")
        offline = r2.offline(1, "--from", r1.folder)
        said = refuses(66, *offline, says="user-01.chain.h5 is not there").err
        assert "run offline" not in said
        assert "the others go on without user 1 while 3 of them remain" in said
        assert "it takes part again once a series with new keys is started" in said

    def test_one_that_is_lost_later_is_said_by_mask_and_by_status(self, rounds, refuses, tmp_path):
        _, r1 = rounds
        r2 = prepared(r1, tmp_path / "r2")
        self.chain(r2).unlink()
        said = refuses(66, *r2.mask(1), says="user-01.chain.h5 is not there").err
        assert "run offline" not in said
        (problem,) = must(*r2.status("--user", 1, "--json")).json["problems"]
        assert "user-01.chain.h5 is not there, which has the keys of user 1" in problem
        assert must(*r2.status("--user", 2, "--json")).json["problems"] == []

    def test_ending_the_series_erases_it(self, rounds, refuses, tmp_path):
        _, r1 = rounds
        path = self.chain(r1)
        said = must(*r1.forget(1, "--end-series"), "--json").json
        assert str(path) in said["erased"]
        assert not path.exists()
        r2 = r1.next_of_series(tmp_path / "r2")
        refuses(66, *r2.offline(1, "--from", r1.folder), says="user-01.chain.h5 is not there")

    def test_after_forgetting_both_rounds_the_series_goes_on(self, rounds, tmp_path):
        for r in rounds:
            for n in ALL:
                must(*r.forget(n))
        following(rounds[1], tmp_path / "r2").check_sum(answering=ALL)


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
        monkeypatch.setattr(Ledger, "check_own_row", lambda *_, **__: None)
        monkeypatch.setattr(decode_step, "each_frozen", each_as_it_is)
        for n in (2, 3, 4, 5):
            must(*frozen.eliminate(n))
        result = refuses(65, *frozen.decode(), besides=("decoded.json",))
        assert "is not the file that was frozen" not in result.err


def each_as_it_is(space, survivors):
    for n in survivors.users:
        yield n, read_masked(space.session, space.masked_path(n), n)
