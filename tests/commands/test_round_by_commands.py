"""A round by single commands, in order, and by `run`: what each leaves on disk, and that the sum is
exact."""

import hashlib
import itertools
import stat
from pathlib import Path

import numpy as np
import pytest
from deterministic import drawn_from
from played import (
    CONFIRMING,
    EXAMPLE,
    RECIPES,
    attributes,
    contents,
    datasets,
    document,
    every,
    leftovers,
    must,
    words,
)

COMMON = {"format", "kind", "version", "session", "user", "sha256"}
OWN = {
    "secret": {"randomness", "sharing"},
    "share": {"sender", "sharing"},
    "masked": {"sharing", "weight"},
    "elimination": {"survivors_sha256"},
    "aggregate": {"survivors_sha256"},
}
PARAMETERS = [
    "users", "survivors", "colluders", "top_k", "length", "whole", "field", "construction",
    "picks", "buckets", "dealing", "max_weight",
]  # fmt: skip
EVERYBODY, MASKING, ANSWERING = range(1, 6), range(1, 5), range(1, 4)


@pytest.fixture
def played(stages, construction):
    """A round with all its stages."""
    whole = stages(RECIPES[construction])
    whole.reach("decoded")
    return whole


@pytest.fixture
def done(played):
    """The folder of a finished round, not to be written to."""
    return played.folder / "decoded"


def files(folder: Path, kind: str) -> dict[tuple[int, int], Path]:
    """The files of a kind by user (and sender)."""
    if kind == "share":
        return {
            (n, m): folder / f"shares/user-{n:02}/from-{m:02}.h5"
            for n in EVERYBODY
            for m in EVERYBODY
        }
    if kind == "aggregate":
        return {(0, 0): folder / "aggregate.h5"}
    place, users = {
        "secret": ("secrets", EVERYBODY), "masked": ("masked", MASKING),
        "elimination": ("elimination", ANSWERING)
    }[kind]  # fmt: skip
    return {(n, 0): folder / f"{place}/user-{n:02}.h5" for n in users}


def expected_names(construction: str) -> dict[str, set[str]]:
    """Which files each stage adds; with keys, a dealer publishes the list of its commitments."""
    lists = {f"dealt/user-{n:02}.json" for n in EVERYBODY if construction == "sketch"}
    return {
        "init": {"session.json"},
        "offline": {str(p) for kind in ("secret", "share") for p in files(Path(), kind).values()}
        | {f"secrets/user-{n:02}.{what}" for n in EVERYBODY for what in ("ledger.json", "chain.h5")}
        | lists,
        "masked": {str(p) for p in files(Path(), "masked").values()}
        | {"secrets/input.key", *(f"secrets/user-{n:02}.sent" for n in MASKING)},
        "frozen": {"survivors.json"},
        "answered": {str(p) for p in files(Path(), "elimination").values()},
        "decoded": {"aggregate.h5", "secrets/decoded.json"},
    }


@every
class TestFiles:
    def test_each_step_adds_exactly_its_files_and_changes_no_earlier_one_but_ledger_and_chain(
        self, played, construction
    ):
        expected = expected_names(construction)
        there = set()
        for stage in expected:
            there |= expected[stage]
            assert set(contents(played.folder / stage)) == there, stage
            assert leftovers(played.folder / stage) == []
        for earlier, later in itertools.pairwise(expected):
            after = contents(played.folder / later)
            for name, before in contents(played.folder / earlier).items():
                assert name.endswith(("ledger.json", ".chain.h5")) or after[name] == before, name

    def test_only_the_owner_can_read_secrets_ledgers_and_shares(self, done):
        for name, (_, mode) in contents(done).items():
            assert mode == (0o600 if name.startswith(("secrets/", "shares/")) else 0o644), name
        for folder in (done / "secrets", *done.glob("shares/user-*")):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    def test_session_json_has_the_documented_keys_and_its_digest_names_the_session(
        self, done, construction
    ):
        session = document(done / "session.json")
        r = RECIPES[construction]
        assert list(session)[:3] == ["format", "kind", "version"]
        assert (session["format"], session["kind"], session["version"]) == (
            "topk-secagg",
            "session",
            1,
        )
        assert list(session["parameters"]) == PARAMETERS
        expected = {
            "users": 5,
            "survivors": 3,
            "colluders": 1,
            "top_k": r.top_k,
            "length": r.length,
        }
        expected |= {
            "construction": construction,
            "field": 4281076801,
            "dealing": {"permutation": "shares", "sketch": "keys"}[construction],
        }
        expected |= (
            {"picks": 0, "buckets": 0}
            if construction == "permutation"
            else {"picks": 2, "buckets": 5}
        )
        assert {name: session["parameters"][name] for name in expected} == expected
        points = session["points"]["alpha"] + session["points"]["beta"]
        betas = {"permutation": 3, "sketch": 2}[construction]  # U, U - T
        assert len(set(points)) == len(points) == 5 + betas
        assert session["series"] is None
        assert (session["family"] is not None) == (construction == "sketch")
        assert [slot["shape"] for slot in session["layout"]] == [[r.length]]
        assert (session["freezer"], session["confirm"]) == (1, False)
        assert len(session["nonce"]) == 32
        name = hashlib.sha256((done / "session.json").read_bytes()).hexdigest()
        for path in done.rglob("*.h5"):
            assert attributes(path)["session"] == name

    @pytest.mark.parametrize("kind", OWN)
    def test_each_file_names_its_user_and_has_the_documented_digest(self, done, kind, construction):
        by_keys = {"dealt"} if construction == "sketch" and kind == "masked" else set()
        for (user, sender), path in files(done, kind).items():
            found = attributes(path)
            assert set(found) == COMMON | OWN[kind] | by_keys
            assert (found["format"], found["version"], found["kind"]) == ("topk-secagg", 1, kind)
            assert (found["user"], found.get("sender", 0)) == (user, sender)
            digest = hashlib.sha256()
            for name in sorted(set(found) - {"sha256"}):
                digest.update(f"attribute {name} {found[name]}\n".encode())
            for name, array in sorted(datasets(path).items()):
                if name not in ("f", "h"):  # whose rows have checksums of their own
                    shape = ",".join(map(str, array.shape))
                    digest.update(
                        f"dataset {name} {array.dtype.str} {shape}\n".encode() + array.tobytes()
                    )
            assert digest.hexdigest() == found["sha256"]

    def test_survivors_answers_and_ledgers_name_the_digests_they_refer_to(self, done):
        rows = document(done / "survivors.json")["survivors"]
        assert [row["user"] for row in rows] == list(MASKING)
        masked = {n: attributes(path)["sha256"] for (n, _), path in files(done, "masked").items()}
        assert {row["user"]: row["sha256"] for row in rows} == masked
        digest = hashlib.sha256((done / "survivors.json").read_bytes()).hexdigest()
        for path in (*files(done, "elimination").values(), done / "aggregate.h5"):
            assert attributes(path)["survivors_sha256"] == digest
        for n in EVERYBODY:
            ledger = document(done / f"secrets/user-{n:02}.ledger.json")
            assert (ledger["user"], ledger["masked"]) == (n, masked.get(n))
            assert ledger["shared"] == attributes(files(done, "secret")[n, 0])["sharing"]
            assert ledger["frozen"] == (digest if n == 1 else None)
            assert ledger["answered"] == (digest if n in ANSWERING else None)
            assert (ledger["gave_up"], ledger["forgotten"]) == (False, False)

    @pytest.mark.parametrize("stage", ["offline", "masked", "frozen", "answered", "decoded"])
    def test_repeating_a_step_at_once_or_at_the_end_of_the_round_changes_nothing(
        self, round_at, stage
    ):
        for now in {stage, "decoded"}:
            r = round_at(now, now)
            before = contents(r.folder)
            for command in r.commands()[stage]:
                must(*command)
                assert contents(r.folder) == before, command

    @pytest.mark.parametrize(
        "lost",
        [
            "masked/user-01.h5",
            "elimination/user-02.h5",
            "aggregate.h5",
            "shares/user-02/from-01.h5",
            "survivors.json",
        ],
    )
    def test_a_lost_file_is_made_again_with_the_same_bytes(self, round_at, lost):
        r = round_at("decoded")
        before = contents(r.folder)
        (r.folder / lost).unlink()
        r.play(after="init")
        ledgers = {name for name in before if name.endswith("ledger.json")}
        after = contents(r.folder)
        assert {n: c for n, c in after.items() if n not in ledgers} == {
            n: c for n, c in before.items() if n not in ledgers
        }


@every
class TestTheSum:
    @pytest.mark.parametrize(
        "changes", [{}, {"field": 65521}, {"field": 12289, "survivors": 4, "colluders": 2}], ids=str
    )
    def test_run_gives_the_plain_sum_bit_by_bit(self, new_round, tmp_path, changes):
        """The single commands do too: every round that these tests copy was checked when it was
        made."""
        r = new_round(answering=(1, 2, 3, 4), **changes)
        result = must(*r.run("--output", tmp_path / "sum.npy"))
        assert "sum of users 1, 2, 3, 4, decoded from 1, 2, 3, 4" in result.out
        assert f"the sum in the form of a gradient: {tmp_path / 'sum.npy'}\n" in result.out
        mean = must(*r.decode("--output", tmp_path / "mean.npy", "--mean")).out
        assert f"the mean in the form of a gradient: {tmp_path / 'mean.npy'}\n" in mean
        r.check_sum(answering=r.recipe.answering)
        reals = np.zeros(r.recipe.length)
        found = datasets(r.folder / "aggregate.h5")
        reals[found["index"]] = found["real"]
        assert np.array_equal(np.load(tmp_path / "sum.npy"), reals)

    def test_run_writes_the_same_files_as_the_single_commands(self, round_at, new_round):
        r = new_round("run")
        with drawn_from(7):
            must(*r.run())
        with drawn_from(7):
            expected = contents(round_at("decoded", name="drawn").folder)
        assert contents(r.folder) == expected

    def test_run_again_changes_nothing_and_another_run_is_refused_before_it_spends_anything(
        self, new_round, refuses, tmp_path, construction
    ):
        r = new_round()
        os_means_shares = "is 'keys' there"
        if construction == "permutation":
            os_means_shares = "not every byte of it is from the operating system"
        must(*r.run("--select", "random"))
        before = contents(r.folder)
        must(*r.run("--select", "random"))
        assert must(*r.init("--json")).json["written"] is False
        assert contents(r.folder) == before
        for code, more, says in (
            (77, ["--drop-masking=", "--drop-elimination="], "are fixed already, and differ"),
            (77, ["--drop-elimination=3,5"], "user 3 has answered in this round already"),
            (77, ["--randomness=os"], os_means_shares),
            (69, ["--drop-masking=1,2,3"], "2 users would mask, and 3 are needed"),
            (69, ["--drop-elimination=2,3,4"], "1 user would answer, and 3 are needed"),
            (73, ["--output", tmp_path / "nowhere" / "sum.npy"], "/nowhere/sum.npy: its folder"),
        ):
            refuses(code, *r.run("--select", "random", *more), says=says)

    def test_decoding_again_with_one_more_answer_gives_the_same_sum(self, round_at):
        r = round_at("decoded")
        must(*r.eliminate(4))
        assert must(*r.decode("--json")).json["checked_answers"] == 1
        r.check_sum(answering=(1, 2, 3, 4))

    def test_freezing_fewer_than_masked_sums_only_those(self, round_at):
        r = round_at("masked")
        must(*r.freeze("--only", "1,2,4"))
        for n in (1, 2, 4):
            must(*r.eliminate(n))
        must(*r.decode())
        r.check_sum(survivors=(1, 2, 4), answering=(1, 2, 4))


def test_the_worked_example_of_the_paper(tmp_path):
    options = words("--survivors 3 --colluders 1 --top-k 2 --drop-masking 5 --drop-elimination 4")
    must(
        "run",
        tmp_path / "round",
        "--gradients",
        EXAMPLE,
        *options,
        "--output",
        tmp_path / "sum.npy",
    )
    assert np.allclose(np.load(tmp_path / "sum.npy"), [-0.875, 1.25, 0.75, -0.25], atol=1e-6)


class TestRandomBytes:
    @every
    def test_the_same_ones_give_byte_identical_rounds_and_others_others(self, round_at, new_round):
        with drawn_from(7):
            before = contents(round_at("masked", name="drawn").folder)
        with drawn_from(7):
            assert contents(new_round("again").play(upto="masked").folder) == before
        with drawn_from(8):
            other = contents(new_round("other").play(upto="masked").folder)
        assert [name for name in other if before[name] == other[name]] == []

    def test_no_two_files_of_two_rounds_agree(self, round_at):
        one, two = (
            contents(round_at("decoded").folder),
            contents(round_at("decoded", "other", name="other").folder),
        )
        assert set(one) == set(two)
        assert [name for name in one if one[name] == two[name]] == []


def test_users_are_in_order_of_their_numbers_beyond_a_hundred(tmp_path):
    """user-100 comes after user-11, though its file name does not."""
    folder = tmp_path / "round"
    np.save(tmp_path / "two.npy", np.array([0.5, 0.25]))
    must("init", folder, *words("--users 100 --survivors 3 --colluders 1 --top-k 1 --length 2"))
    must("offline", folder, "--user", "9,11,100")
    for n in (9, 11, 100):
        must("mask", folder, "--user", n, "--gradient", tmp_path / "two.npy")
    must("offline", folder, "--user", 1)
    assert must("freeze", folder, "--json").json["survivors"] == [9, 11, 100]
    must("eliminate", folder, "--user", "all")
    assert must("decode", folder, "--json").json["answering"] == [9, 11, 100]
    assert datasets(folder / "aggregate.h5")["answering"].tolist() == [9, 11, 100]


def test_writing_an_output_removes_no_file_of_another_name(round_at, tmp_path):
    """Left-overs of the same name are removed; a star in that name is a star."""
    r = round_at("answered")
    theirs = [tmp_path / ".sum.npy.1.tmp", tmp_path / ".s1.npy.1.tmp", tmp_path / "sum.npy"]
    for path in theirs:
        path.touch()
    for name in ("s*.npy", "s[0-9].npy", "s?m.npy"):
        must(*r.decode("--output", tmp_path / name))
        assert (tmp_path / name).exists()
    assert [path for path in theirs if not path.exists()] == []


def test_a_warning_says_that_an_x_after_the_freeze_is_too_late(round_at):
    r = round_at("frozen")
    assert "comes too late" in must(*r.mask(5)).err
    assert "comes too late" not in must(*r.mask(1)).err
    assert must(*r.freeze("--json")).json["survivors"] == [1, 2, 3, 4]


def test_so_it_does_where_the_survivors_are_only_proposed(round_at):
    r = round_at("masked", **{**CONFIRMING, "masking": (1, 2, 3, 4)})
    must(*r.freeze("--user", 3))
    said = must(*r.mask(5)).err
    assert "survivors.json is proposed without this X of user 5" in said
    assert "survivors.json is proposed" not in must(*r.mask(1)).err
