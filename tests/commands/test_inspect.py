"""`inspect`: every kind of file, secrets hidden unless asked for, damage shown and refused."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from played import (
    CONFIRMING,
    ROOT,
    attributes,
    call,
    contents,
    datasets,
    edit,
    every,
    flip,
    must,
    placed,
    rewrite,
)

from topk_secagg.gradients.formats import suffixes_read

KINDS = {
    "session": "session.json",
    "survivors": "survivors.json",
    "ledger": "secrets/user-02.ledger.json",
    "secret": "secrets/user-02.h5",
    "share": "shares/user-02/from-03.h5",
    "masked": "masked/user-02.h5",
    "elimination": "elimination/user-02.h5",
    "aggregate": "aggregate.h5",
}
ARTIFACTS = [kind for kind, name in KINDS.items() if name.endswith(".h5")]


def described(path: Path, *flags: str) -> dict[str, Any]:
    result = must("inspect", path, "--json", *flags)
    assert result.err == ""
    (found,) = result.json["files"]
    return dict(found)


@every
def test_each_kind_is_recognised_and_intact(round_at):
    r = round_at("decoded")
    before = contents(r.folder)
    paths = {kind: r.folder / name for kind, name in KINDS.items()}
    everything = must("inspect", *paths.values(), "--json").json["files"]
    assert [found["kind"] for found in everything] == list(KINDS)  # in their order
    text = must("inspect", *paths.values()).out
    for found, (kind, path) in zip(everything, paths.items(), strict=True):
        assert (found["path"], found["intact"], found["problems"]) == (str(path), True, [])
        assert found["version"] == 1
        assert found["session"] == attributes(r.folder / "aggregate.h5")["session"]
        assert f"{path}: {kind}, intact" in text
        if path.suffix == ".h5":
            assert (
                attributes(path).items()
                >= {key: found[key] for key in ("user", "session", "sha256")}.items()
            )
            for name, array in datasets(path).items():
                assert found["datasets"][name]["shape"] == list(array.shape)
                assert found["datasets"][name]["type"] == array.dtype.str
    assert contents(r.folder) == before


def test_a_session_says_how_tensors_are_reduced():
    """Of the archived series of low rank."""
    folder = ROOT / "fixtures" / "archive" / "v1" / "low-rank-keys-plain-next"
    session = described(folder / "session.json")
    assert (session["reduction"], session["rank"], session["side"]) == ("low-rank", 2, "left")
    assert (session["coordinates"], session["length"]) == (102, 42)
    tensors = [session[name] for name in ("tensors", "tensors_projected", "tensors_whole")]
    assert tensors == [4, 2, 2]
    assert 0 < session["smallest_clip"] < session["largest_clip"]
    assert (session["weight_name"], session["context"]) == (None, None)
    basis = described(folder / "basis.h5")
    assert (basis["kind"], basis["user"], basis["intact"]) == ("basis", 0, True)
    assert basis["datasets"]["value"]["type"] == "<i4"
    assert len(session["basis"]) == 64


def test_files_of_a_sealed_round_with_residuals_and_confirmations(round_at, refuses):
    r = round_at("offline", **CONFIRMING)
    must(*r.mask(1, "--feedback"))
    residual = described(r.residual(1))
    assert (residual["kind"], residual["datasets"]["value"]["values"]) == ("residual", "secret")
    done = round_at("decoded", "done", **CONFIRMING)
    confirmed = described(done.folder / "confirmed/user-02.json")
    assert (confirmed["kind"], confirmed["user"]) == ("confirmation", 2)
    assert confirmed["survivors_sha256"] == described(done.folder / "survivors.json")["sha256"]
    session = described(done.folder / "session.json")
    keys = must("keygen", "--user", 9, "--secrets", r.folder.with_name("new"), "--json").json[
        "fingerprint"
    ]
    assert len(session["fingerprints"]["3"]) == len(keys) == 16
    assert (session["sealed"], session["confirmations"]) == (True, 4)
    sealed = done.folder / "shares/user-02/from-03.h5.age"
    said = refuses(65, "inspect", sealed, says=("is sealed", "audit ROUND --identity FILE")).err
    assert f"age -d -i FILE -o share.h5 {sealed}" in said


@every
@pytest.mark.parametrize("kind", ["secret", "share"])
def test_values_of_secret_files_are_hidden_unless_asked_for(round_at, kind):
    path = round_at("decoded").folder / KINDS[kind]
    for shown in described(path)["datasets"].values():
        assert shown["values"] == "secret"
        assert not {"low", "high"} & set(shown)
    text = must("inspect", path, "-v").out
    found = described(path, "--reveal")["datasets"]
    revealed = must("inspect", path, "--reveal").out
    for name, array in datasets(path).items():
        values = array.reshape(-1).tolist()
        assert len(values) >= 4
        assert [v for v in values if v >= 10**6 and str(v) in text] == []
        if name in ("key", "keys"):  # which open more than this file, and are never shown
            assert found[name]["values"] == "secret"
            assert not {"low", "high"} & set(found[name])
            assert str(values[:4])[1:-1] not in revealed
        else:
            assert found[name]["values"] == values[:8]
            assert (found[name]["low"], found[name]["high"]) == (array.min(), array.max())
            assert str(values[0]) in revealed


@every
@pytest.mark.parametrize("kind", ["masked", "elimination", "aggregate"])
def test_values_of_public_files_are_shown(round_at, kind):
    path = round_at("decoded").folder / KINDS[kind]
    found = described(path)
    for name, array in datasets(path).items():
        if array.size:
            assert found["datasets"][name]["values"] == array.reshape(-1)[:8].tolist()


def test_rates_of_x_and_y_stand_beside_the_theorem(round_at):
    folder = round_at("decoded").folder
    masked = described(folder / KINDS["masked"])
    q = 4281076801
    payload = sum(
        array.nbytes
        for name, array in datasets(folder / KINDS["masked"]).items()
        if name != "holds"
    )
    assert masked["masked_bytes"] == payload
    assert masked["r1"] == pytest.approx(payload * 8 / np.log2(q) / 4)
    assert masked["r1_theorem"] == pytest.approx((2 + np.log(6) / np.log(q)) / 4)
    assert masked["holds"] == [1, 2, 3, 4, 5]
    answer = described(folder / KINDS["elimination"])
    assert (answer["answer_bytes"], answer["r2"], answer["r2_theorem"]) == (8, 0.5, 0.5)
    assert described(folder / KINDS["share"])["rows_checked"] == 4


@every
@pytest.mark.parametrize("kind", ARTIFACTS)
def test_a_changed_value_is_shown_as_damage_with_exit_65(round_at, kind):
    r = round_at("decoded")
    path = r.folder / KINDS[kind]
    for name, (start, size) in placed(path).items():
        if not size:
            continue
        flip(path, start + size - 1)
        result = call("inspect", r.folder / "session.json", path, "--json")
        assert result.code == 65, name
        fine, found = result.json["files"]  # damage of one file does not hide the others
        assert (fine["intact"], found["intact"], found["kind"]) == (True, False, kind)
        assert found["problems"]
        assert str(path) in result.err
        assert len(result.err.splitlines()) == 2
        assert f"{path}: {kind}, NOT INTACT" in call("inspect", path).out
        flip(path, start + size - 1)
    must("inspect", path)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "session"])
def test_a_file_of_another_session_or_outside_of_a_round_is_reported(round_at, tmp_path, kind):
    r, other = round_at("decoded"), round_at("decoded", "other", name="other")
    shutil.copy(other.folder / KINDS[kind], r.folder / KINDS[kind])
    result = call("inspect", r.folder / KINDS[kind], "--json")
    assert result.code == 65
    assert any("another session" in problem for problem in result.json["files"][0]["problems"])
    path = tmp_path / f"alone{Path(KINDS[kind]).suffix}"
    shutil.copy(other.folder / KINDS[kind], path)
    assert described(path)["session_checked"] is False


@pytest.mark.parametrize(
    "content", [b"", b"rubbish", bytes(5000), b"\x89HDF\r\n\x1a\n", b"{}", b"[1]", b"null"]
)
@pytest.mark.parametrize("suffix", [".h5", ".json", ""])
def test_a_foreign_file_is_refused(refuses, tmp_path, content, suffix):
    path = tmp_path / f"file{suffix}"
    path.write_bytes(content)
    says = "is not a topk-secagg file" if suffix == ".json" else "it is damaged, or not a file of"
    refuses(65, "inspect", path, says=says)


@every
@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("masked", "masked/user-03.h5", "of user 3, and by its content of user 2"),
        ("secret", "secrets/user-03.h5", "of user 3, and by its content of user 2"),
        ("ledger", "secrets/user-03.ledger.json", "of user 3, and by its content of user 2"),
        ("share", "shares/user-01/from-03.h5", "of user 1, and by its content of user 2"),
        ("share", "shares/user-02/from-01.h5", "of sender 1, and by its content of sender 3"),
    ],
)
def test_a_file_under_the_name_of_another_user_is_pointed_out(round_at, kind, name, said):
    folder = round_at("decoded").folder
    assert must("inspect", folder / KINDS[kind]).err == ""
    shutil.copy(folder / KINDS[kind], folder / name)
    result = must("inspect", folder / name)
    assert f"warning: {folder / name}: by its name it is {said}" in result.err
    assert f"{folder / name}: {kind}, intact" in result.out


def test_files_that_are_not_of_a_round_are_called_what_they_are(refuses, round_at, tmp_path):
    r = round_at("init", sealed=True)
    never = "fetch or make the file again"
    named = {
        r.identity(1): ("an identity: the secret keys", "share it with nobody"),
        r.recipients: ("a list of recipients", "session.json"),
    }
    for suffix in suffixes_read():
        path = tmp_path / f"gradient{suffix}"
        path.write_bytes(b"tensors")
        named[path] = ("but a gradient", "give a file of a round")
    for path, says in named.items():
        assert never not in refuses(65, "inspect", path, says=says).err
    secret = r.identity(1).read_text().splitlines()[-1]
    assert secret not in call("inspect", r.identity(1)).err


def test_truncated_files_and_folders_are_refused(refuses, round_at):
    r = round_at("decoded")
    for kind in ARTIFACTS:
        path = r.folder / KINDS[kind]
        whole = path.read_bytes()
        for kept in (8, 100, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:kept])
            refuses(65, "inspect", path, says=f"{path.name}: it is damaged, or not a file of")
    refuses(65, "inspect", r.folder, r.folder, says="/round is not a file")  # only one alone


class TestAFolder:
    """inspect ROUND"""

    @every
    def test_every_file_of_a_round_has_a_row(self, round_at):
        r = round_at("decoded")
        shown = must("inspect", r.folder)
        rows = [line.split() for line in shown.out.splitlines()[2:] if line.strip()]
        wanted = [path for path in r.folder.rglob("*.*") if path.suffix in (".h5", ".json")]
        assert sorted(row[0] for row in rows) == sorted(
            str(path.relative_to(r.folder)) for path in wanted if not path.name.startswith(".")
        )
        assert {row[-1] for row in rows} == {"intact"}
        assert rows[0][:2] == ["session.json", "session"]
        assert rows[-1][:2] == ["aggregate.h5", "aggregate"]
        (own,) = [row for row in rows if row[0] == "shares/user-02/from-03.h5"]
        size = (r.folder / own[0]).stat().st_size
        assert own[1:4] == ["share", "2", f"{size:,}"]
        found = must("inspect", r.folder, "--json").json
        assert [Path(one["path"]).relative_to(r.folder) for one in found["files"]] == [
            Path(row[0]) for row in rows
        ]
        assert found["sealed"] == []
        assert "first values" in must("inspect", r.folder, "-v").out

    def test_damaged_files_have_a_row_and_fail(self, round_at):
        r = round_at("decoded")
        x = r.folder / "masked/user-02.h5"
        flip(x, placed(x)["value"][0])
        (r.folder / "elimination/user-03.h5").write_bytes(b"rubbish")
        result = call("inspect", r.folder)
        assert result.code == 65
        rows = {line.split()[0]: line for line in result.out.splitlines() if line.strip()}
        assert "its content does not match its digest" in rows["masked/user-02.h5"]
        assert "it is damaged" in rows["elimination/user-03.h5"]
        assert rows["masked/user-01.h5"].endswith("intact")

    def test_sealed_shares_are_named_and_keys_are_not(self, round_at):
        r = round_at("decoded", sealed=True)
        found = must("inspect", r.folder, "--json").json
        assert len(found["sealed"]) == 25
        names = {Path(one["path"]).name for one in found["files"]}
        assert not names & {"folder.json", "user-01.identity"}
        assert must("inspect", r.folder).out.count(" sealed") == 25

    def test_links_and_what_the_round_does_not_have_are_left_alone(self, round_at, tmp_path):
        r = round_at("decoded")
        before = must("inspect", r.folder).out
        (r.folder / "masked/user-05.h5").symlink_to(r.folder / "masked/user-01.h5")
        (tmp_path / "elsewhere").mkdir()
        shutil.copy(r.folder / "session.json", tmp_path / "elsewhere")
        (r.folder / "dealt").symlink_to(tmp_path / "elsewhere")
        shutil.copytree(tmp_path / "elsewhere", r.folder / "more")
        assert must("inspect", r.folder).out == before

    def test_a_folder_that_is_no_round_is_refused(self, refuses, tmp_path):
        refuses(66, "inspect", tmp_path, says="session.json is not there")


def test_the_weight_of_an_x_is_a_number(round_at, tmp_path):
    r = round_at("offline")
    must(*r.mask(1, "--weight", "0.5"))
    assert described(r.folder / "masked/user-01.h5")["weight"] == 0.5
    shutil.copy(r.folder / "masked/user-01.h5", tmp_path / "alone.h5")
    assert described(tmp_path / "alone.h5")["weight"] == 0.5
    for text in ("nan", "heavy"):  # a file made to do harm
        rewrite(tmp_path / "alone.h5", lambda found, _, text=text: found.update(weight=text))
        assert described(tmp_path / "alone.h5")["weight"] == text


class TestHostileFiles:
    """Files made to do harm when they are shown; HDF5 structures are in
    tests/faults/test_hostile.py."""

    @pytest.fixture
    def done(self, round_at):
        return round_at("decoded")

    @pytest.mark.parametrize(
        ("kind", "change", "says"),
        [
            *(
                (
                    "survivors",
                    lambda content, value=value: content.update(survivors=value),
                    "its survivors is not what a survivors has there",
                )
                for value in (3, None, [1], [None], ["user"], [{}], {"user": 1})
            ),
            ("survivors", lambda content: content.pop("survivors"), "the keys of a survivors"),
            ("ledger", lambda content: content.pop("masked"), "the keys of a ledger"),
            ("session", lambda content: content.pop("nonce"), "the keys of a session"),
            *(
                (kind, lambda content: content.update(kind="banana"), "not a topk-secagg file")
                for kind in ("survivors", "ledger", "session")
            ),
            (
                "ledger",
                lambda content: content.update(session="0" * 64, intact=True, path="/etc/shadow"),
                "the keys of a ledger",
            ),
            (
                "ledger",
                lambda content: content.update(user=float("nan")),
                "is not a topk-secagg file",
            ),
        ],
    )
    def test_impossible_documents(self, done, refuses, kind, change, says):
        path = done.folder / KINDS[kind]
        edit(path, change)
        for flags in ((), ("--json",)):
            refuses(65, "inspect", path, *flags, says=(path.name, says))

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_an_aggregate_that_is_not_finite(self, done, refuses, value):
        rewrite(done.folder / "aggregate.h5", lambda _, found: found["real"].__setitem__(0, value))
        for flags in ((), ("--json",)):
            says = "aggregate.h5: a value of real is not finite"
            refuses(65, "inspect", done.folder / "aggregate.h5", *flags, says=says)

    def test_text_in_a_file_cannot_steer_the_terminal(self, done):
        """Escape sequences move the cursor, set the title, or rewrite what was printed before."""
        evil = "\x1b[2J\x1b]0;owned\x07"
        edit(done.folder / KINDS["ledger"], lambda content: content.update(answered=evil))
        edit(done.folder / "session.json", lambda content: content["layout"][0].update(name=evil))
        rewrite(
            done.folder / KINDS["elimination"], lambda found, _: found.update(survivors_sha256=evil)
        )
        inspected = [
            ("inspect", done.folder / KINDS[kind]) for kind in ("ledger", "session", "elimination")
        ]
        for command in (
            *inspected,
            done.offline(1),
            done.mask(1),
            done.decode(),
            ("status", done.folder),
        ):
            result = call(*command)
            assert "\x1b" not in result.out + result.err, command
