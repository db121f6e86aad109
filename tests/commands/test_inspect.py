"""`inspect`: every kind of file, secrets hidden unless asked for, damage shown and refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from .cli_helpers import RunCli, attributes, contents, datasets, edit, flip, gradient, must, placed, write_document
from .conftest import Refuses, RoundAt

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
SECRET = ("secret", "share")


def described(run_cli: RunCli, path: Path, *flags: str) -> dict[str, Any]:
    result = run_cli("inspect", path, "--json", *flags)
    assert (result.code, result.err) == (0, "")
    found = result.json["files"]
    assert len(found) == 1
    return dict(found[0])


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_recognised_and_intact(run_cli: RunCli, round_at: RoundAt, kind: str) -> None:
    folder = round_at("decoded")
    path = folder / KINDS[kind]
    before = contents(folder)
    found = described(run_cli, path)
    assert (found["path"], found["kind"], found["intact"]) == (str(path), kind, True)
    assert found["problems"] == []
    assert found["version"] == 1
    session = described(run_cli, folder / "session.json")["session"]
    assert found["session"] == session
    if path.suffix == ".h5":
        assert {**attributes(path), "insecure": False}.items() >= {
            key: found[key] for key in ("user", "session", "sha256", "insecure")
        }.items()
        for name, array in datasets(path).items():
            assert found["datasets"][name]["shape"] == list(array.shape)
            assert found["datasets"][name]["type"] == array.dtype.str
    for_people = run_cli("inspect", path)
    assert for_people.code == 0
    assert f"{path}: {kind}, intact" in for_people.out
    assert contents(folder) == before


def test_many_files_are_described_in_their_order(run_cli: RunCli, round_at: RoundAt) -> None:
    folder = round_at("decoded")
    paths = [folder / name for name in KINDS.values()]
    result = run_cli("inspect", *paths, "--json")
    assert [found["kind"] for found in result.json["files"]] == list(KINDS)
    text = run_cli("inspect", *paths).out
    places = [text.index(f"{path}: {kind}") for kind, path in zip(KINDS, paths, strict=True)]
    assert places == sorted(places)


@pytest.mark.parametrize("kind", SECRET)
def test_values_of_secret_files_are_hidden(run_cli: RunCli, round_at: RoundAt, kind: str) -> None:
    path = round_at("decoded") / KINDS[kind]
    found = described(run_cli, path)
    for shown in found["datasets"].values():
        assert shown["values"] == "secret"
        assert "low" not in shown
        assert "high" not in shown
    text = run_cli("inspect", path, "-v").out
    for name in ("mask", "f", "h"):
        for value in datasets(path).get(name, np.empty(0)).reshape(-1).tolist():
            assert value < 10**6 or str(value) not in text


@pytest.mark.parametrize("kind", SECRET)
def test_reveal_shows_them(run_cli: RunCli, round_at: RoundAt, kind: str) -> None:
    path = round_at("decoded") / KINDS[kind]
    found = described(run_cli, path, "--reveal")
    for name, array in datasets(path).items():
        shown = found["datasets"][name]
        assert shown["values"] == array.reshape(-1)[:8].tolist()
        assert (shown["low"], shown["high"]) == (array.min(), array.max())
    text = run_cli("inspect", path, "--reveal").out
    assert str(datasets(path)["mask" if kind == "secret" else "f"].reshape(-1)[0]) in text


@pytest.mark.parametrize("kind", ["masked", "elimination", "aggregate"])
def test_values_of_public_files_are_shown(run_cli: RunCli, round_at: RoundAt, kind: str) -> None:
    path = round_at("decoded") / KINDS[kind]
    found = described(run_cli, path)
    for name, array in datasets(path).items():
        if array.size:
            assert found["datasets"][name]["values"] == array.reshape(-1)[:8].tolist()


def test_rates_of_x_and_y_stand_beside_the_theorem(run_cli: RunCli, round_at: RoundAt) -> None:
    folder = round_at("decoded")
    masked = described(run_cli, folder / KINDS["masked"])
    assert masked["payload_bytes"] == sum(array.nbytes for array in datasets(folder / KINDS["masked"]).values())
    assert masked["R1"] == pytest.approx(masked["payload_bytes"] * 8 / 32 / 4, rel=1e-6)
    assert masked["R1_theorem"] == pytest.approx((2 + np.log(6) / np.log(2**32 - 5)) / 4)
    answer = described(run_cli, folder / KINDS["elimination"])
    assert (answer["payload_bytes"], answer["R2"], answer["R2_theorem"]) == (8, 0.5, 0.5)


@pytest.mark.parametrize("kind", ARTIFACTS)
def test_a_changed_value_is_shown_as_damage_with_exit_65(run_cli: RunCli, round_at: RoundAt, kind: str) -> None:
    folder = round_at("decoded")
    path = folder / KINDS[kind]
    for name, (start, size) in placed(path).items():
        if not size:
            continue
        flip(path, start + size - 1)
        result = run_cli("inspect", path, "--json")
        assert result.code == 65, name
        found = result.json["files"][0]
        assert found["kind"] == kind
        assert found["intact"] is False
        assert found["problems"]
        assert len(result.err.splitlines()) == 2
        shown = run_cli("inspect", path)
        assert shown.code == 65
        assert "INTACT" in shown.out or "DAMAGED" in shown.out
        assert ", intact" not in shown.out
        flip(path, start + size - 1)
    assert run_cli("inspect", path).code == 0


def test_damage_of_one_file_does_not_hide_the_others(run_cli: RunCli, round_at: RoundAt) -> None:
    folder = round_at("decoded")
    path = folder / KINDS["masked"]
    flip(path, placed(path)["value"][0])
    result = run_cli("inspect", folder / "session.json", path, folder / "aggregate.h5", "--json")
    assert result.code == 65
    assert [found["intact"] for found in result.json["files"]] == [True, False, True]
    assert str(path) in result.err


@pytest.mark.parametrize("kind", ARTIFACTS)
def test_a_file_of_another_session_is_told(
    run_cli: RunCli, round_at: RoundAt, other_round_at: RoundAt, kind: str
) -> None:
    folder = round_at("decoded")
    shutil.copy(other_round_at("decoded") / KINDS[kind], folder / KINDS[kind])
    result = run_cli("inspect", folder / KINDS[kind], "--json")
    assert result.code == 65
    assert any("another session" in problem for problem in result.json["files"][0]["problems"])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "session"])
def test_a_file_away_from_its_round_says_that_the_session_was_not_checked(
    run_cli: RunCli, round_at: RoundAt, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / f"alone{Path(KINDS[kind]).suffix}"
    shutil.copy(round_at("decoded") / KINDS[kind], path)
    path.chmod(0o600)
    assert described(run_cli, path)["session_checked"] is False


@pytest.mark.parametrize("content", [b"", b"rubbish", bytes(5000), b"\x89HDF\r\n\x1a\n", b"{}", b"[1]", b"null"])
@pytest.mark.parametrize("suffix", [".h5", ".json", ""])
def test_a_foreign_file_is_refused(refuses: Refuses, tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"file{suffix}"
    path.write_bytes(content)
    refuses(65, "inspect", path)


@pytest.mark.parametrize("kind", ARTIFACTS)
def test_a_truncated_file_is_refused(refuses: Refuses, round_at: RoundAt, kind: str) -> None:
    path = round_at("decoded") / KINDS[kind]
    whole = path.read_bytes()
    for kept in (8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:kept])
        refuses(65, "inspect", path)


def test_a_folder_is_no_file(refuses: Refuses, round_at: RoundAt) -> None:
    refuses(65, "inspect", round_at("decoded"))


class TestHostileFiles:
    """Files that were made to trouble whoever looks at them."""

    @pytest.mark.parametrize("survivors", [3, None, [1], [None], ["user"], [{}], {"user": 1}], ids=str)
    def test_survivors_that_are_no_list_of_users(self, run_cli: RunCli, round_at: RoundAt, survivors: object) -> None:
        path = round_at("decoded") / "survivors.json"
        edit(path, lambda document: document.update(survivors=survivors))
        result = run_cli("inspect", path)
        assert result.code == 65
        assert "a bug" not in result.err

    @pytest.mark.parametrize("kind", ["survivors", "ledger"])
    def test_a_document_without_its_keys_is_not_intact(self, run_cli: RunCli, round_at: RoundAt, kind: str) -> None:
        path = round_at("decoded") / KINDS[kind]
        edit(path, lambda document: document.pop("masked" if kind == "ledger" else "survivors"))
        assert run_cli("inspect", path).code == 65

    def test_a_document_of_an_unknown_kind(self, run_cli: RunCli, tmp_path: Path) -> None:
        write_document(tmp_path / "x.json", {"format": "topk-secagg", "kind": "banana", "version": 1})
        assert run_cli("inspect", tmp_path / "x.json").code == 65

    def test_a_document_cannot_call_itself_intact(self, run_cli: RunCli, round_at: RoundAt) -> None:
        path = round_at("decoded") / KINDS["ledger"]
        edit(path, lambda document: document.update(session="0" * 64, intact=True, path="/etc/shadow"))
        result = run_cli("inspect", path, "--json")
        assert result.code == 65
        for found in result.json["files"] if result.out else []:
            assert (found["path"], found["intact"]) == (str(path), False)

    def test_a_number_that_json_does_not_have(self, run_cli: RunCli, round_at: RoundAt) -> None:
        path = round_at("decoded") / KINDS["ledger"]
        path.write_text(path.read_text().replace('"user": 2', '"user": NaN'))
        for flags in ((), ("--json",)):
            assert run_cli("inspect", path, *flags).code == 65

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_an_aggregate_with_a_value_that_is_no_number(
        self, run_cli: RunCli, round_at: RoundAt, value: float
    ) -> None:
        from topk_secagg.storage.artifacts import write_artifact

        path = round_at("decoded") / "aggregate.h5"
        arrays = datasets(path)
        arrays["real"][0] = value
        header = {key: attributes(path)[key] for key in ("session", "user", "insecure", "survivors")}
        write_artifact(path, "aggregate", header, arrays)
        for flags in ((), ("--json",)):
            result = run_cli("inspect", path, *flags)
            assert result.code == 65
            assert "a bug" not in result.err

    def test_a_dataset_without_dimensions(self, run_cli: RunCli, round_at: RoundAt) -> None:
        path = round_at("decoded") / KINDS["elimination"]
        with h5py.File(path, "r+") as file:
            del file["y"]
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_layout(h5py.h5d.CONTIGUOUS)
            plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            space = h5py.h5s.create(h5py.h5s.SCALAR)
            h5py.h5d.create(file.id, b"y", h5py.h5t.py_create(np.dtype("<u4")), space, plist)
        result = run_cli("inspect", path)
        assert result.code == 65
        assert "a bug" not in result.err

    def test_text_in_a_file_cannot_steer_the_terminal(self, run_cli: RunCli, round_at: RoundAt) -> None:
        """Escape sequences move the cursor, set the title, or rewrite what was printed before."""
        from topk_secagg.storage.artifacts import write_artifact

        folder = round_at("decoded")
        evil = "\x1b[2J\x1b]0;owned\x07"
        edit(folder / KINDS["ledger"], lambda document: document.update(answered=evil))
        path = folder / KINDS["elimination"]
        header = {key: attributes(path)[key] for key in ("session", "user", "insecure")}
        write_artifact(path, "elimination", {**header, "survivors": evil}, datasets(path))
        for name in (KINDS["ledger"], KINDS["elimination"]):
            result = run_cli("inspect", folder / name)
            assert "\x1b" not in result.out + result.err, name

    def test_text_in_a_session_cannot_steer_the_terminal(self, run_cli: RunCli, round_at: RoundAt) -> None:
        folder = round_at("init")
        edit(folder / "session.json", lambda document: document["layout"][0].update(name="\x1b[2J"))
        for args in (
            ("inspect", folder / "session.json"),
            ("offline", folder, "--user", 1),
            ("mask", folder, "--user", 1, "--gradient", gradient(1)),
        ):
            result = run_cli(*args)
            assert "\x1b" not in result.out + result.err


def test_a_share_is_checked_row_by_row(run_cli: RunCli, round_at: RoundAt) -> None:
    assert described(run_cli, round_at("decoded") / KINDS["share"])["rows_checked"] == 4


def test_the_reported_session_is_the_digest_of_session_json(run_cli: RunCli, round_at: RoundAt) -> None:
    folder = round_at("decoded")
    assert described(run_cli, folder / "session.json")["session"] == attributes(folder / "aggregate.h5")["session"]
    assert (
        json.loads((folder / "survivors.json").read_text())["session"]
        == must("inspect", folder / "survivors.json", "--json").json["files"][0]["session"]
    )
