"""Every exit code through the real command: one clear line, no traceback, nothing left half done."""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import signal
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from .cli_helpers import (
    EXAMPLE,
    EXAMPLE_OPTIONS,
    SCRIPT,
    Result,
    RunCli,
    aggregate,
    assert_one_error,
    attributes,
    contents,
    copy_round,
    edit,
    flip,
    gradient,
    is_root,
    leftovers,
    must,
    placed,
    python,
    shell,
    words,
)
from .conftest import Refuses, RoundAt

MASK_1 = ("--user", 1, "--gradient", gradient(1))


def command(step: str, folder: Path) -> tuple[object, ...]:
    """A step of user 1, or of nobody in particular."""
    own = {"offline": ("--user", 1), "mask": MASK_1, "eliminate": ("--user", 1)}
    return (step, folder, *own.get(step, ()))


def save(path: Path, array: object) -> Path:
    np.save(path, np.asarray(array), allow_pickle=True)
    return path


class TestMissingInput66:
    @pytest.mark.parametrize("step", ["offline", "mask", "freeze", "eliminate", "decode"])
    def test_no_session(self, refuses: Refuses, tmp_path: Path, step: str) -> None:
        assert "init" in refuses(66, *command(step, tmp_path / "nowhere")).err

    @pytest.mark.parametrize(
        ("stage", "lost", "step"),
        [
            ("offline", "secrets/user-01.h5", "mask"),
            ("init", "", "mask"),
            ("offline", "secrets/user-01.ledger.json", "mask"),
            ("offline", "secrets/user-01.ledger.json", "offline"),
            ("frozen", "secrets/user-01.ledger.json", "eliminate"),
            ("masked", "", "eliminate"),
            ("answered", "survivors.json", "decode"),
            ("frozen", "masked/user-02.h5", "eliminate"),
            ("frozen", "masked/user-01.h5", "eliminate"),
            ("frozen", "shares/user-01/from-03.h5", "eliminate"),
            ("frozen", "shares/user-01/from-01.h5", "eliminate"),
        ],
    )
    def test_a_file_of_the_round_is_missing(
        self, refuses: Refuses, round_at: RoundAt, stage: str, lost: str, step: str
    ) -> None:
        folder = round_at(stage)
        if lost:
            (folder / lost).unlink()
        result = refuses(66, *command(step, folder))
        assert result.err.count("hint: ") == 1
        assert not lost or Path(lost).name in result.err

    def test_no_gradient(self, refuses: Refuses, round_at: RoundAt, tmp_path: Path) -> None:
        folder = round_at("offline")
        for path in (tmp_path / "gone.npy", tmp_path / "no" / "folder.npz", tmp_path / "gone.pt"):
            assert str(path) in refuses(66, "mask", folder, "--user", 1, "--gradient", path).err

    def test_a_folder_in_place_of_a_gradient(
        self, refuses: Refuses, round_at: RoundAt, tmp_path: Path
    ) -> None:
        for suffix in (".npy", ".npz", ".safetensors"):
            path = tmp_path / f"folder{suffix}"
            path.mkdir()
            refuses(66, "mask", round_at("offline", suffix[1:]), "--user", 1, "--gradient", path)

    def test_a_gradient_below_a_file_in_place_of_a_folder(
        self, refuses: Refuses, round_at: RoundAt, tmp_path: Path
    ) -> None:
        (tmp_path / "file").touch()
        refuses(66, "mask", round_at("offline"), "--user", 1, "--gradient", tmp_path / "file" / "g.npy")

    def test_only_names_a_user_that_has_not_masked(self, refuses: Refuses, round_at: RoundAt) -> None:
        assert "user-05" in refuses(66, "freeze", round_at("masked"), "--only", "1,2,5").err

    def test_no_gradients_to_run_with(self, refuses: Refuses, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        options = words("--survivors 3 --colluders 1 --top-k 2")
        for where in ("empty", "nowhere.npy"):
            refuses(66, "run", tmp_path / "round", "--gradients", tmp_path / where, *options)

    def test_the_folder_of_gradients_is_missing(self, refuses: Refuses, tmp_path: Path) -> None:
        options = words("--survivors 3 --colluders 1 --top-k 2")
        refuses(66, "run", tmp_path / "round", "--gradients", tmp_path / "nowhere", *options)

    def test_init_like_a_missing_file(self, refuses: Refuses, tmp_path: Path) -> None:
        options = words("--users 5 --survivors 3 --colluders 1 --top-k 2 --like")
        refuses(66, "init", tmp_path / "round", *options, tmp_path / "gone.npy")
        assert not (tmp_path / "round").exists()

    def test_inspect_a_missing_file(self, refuses: Refuses, tmp_path: Path) -> None:
        for name in ("gone.h5", "gone.json"):
            refuses(66, "inspect", tmp_path / name)


# Which step reads which file, at which stage of the round
READERS = [
    ("offline", "secrets/user-01.h5", "mask"),
    ("offline", "secrets/user-01.h5", "offline"),
    ("masked", "masked/user-02.h5", "freeze"),
    ("frozen", "masked/user-02.h5", "eliminate"),
    ("frozen", "shares/user-01/from-02.h5", "eliminate"),
    ("answered", "elimination/user-02.h5", "decode"),
    ("offline", "secrets/user-01.ledger.json", "mask"),
    ("offline", "secrets/user-01.ledger.json", "offline"),
    ("frozen", "secrets/user-01.ledger.json", "eliminate"),
    ("frozen", "survivors.json", "eliminate"),
    ("frozen", "survivors.json", "freeze"),
    ("answered", "survivors.json", "decode"),
    ("offline", "session.json", "mask"),
]


def foreign_files() -> dict[str, bytes]:
    """Files that no step can have written."""
    rng = np.random.default_rng(1)
    archive, other = io.BytesIO(), io.BytesIO()
    np.savez(archive, index=np.arange(4), value=np.arange(4))
    with h5py.File(other, "w") as file:
        file["y"] = np.arange(4, dtype="<u4")
        file.attrs["format"] = "somebody else's"
    return {
        "empty": b"",
        "random bytes": rng.bytes(3000),
        "text": b"The quick brown fox jumps over the lazy dog.\n" * 20,
        "binary zeros": bytes(4096),
        "an npz": archive.getvalue(),
        "another HDF5 file": other.getvalue(),
        "only the signature of HDF5": b"\x89HDF\r\n\x1a\n",
        "JSON": b'{"format": "topk-secagg"}',
        "deep JSON": b"[" * 200_000,
        "a JSON number": b"1" * 6000,
        "not a number": b'{"format": "topk-secagg", "kind": NaN, "version": 1}',
    }


class TestBadData65:
    @pytest.mark.parametrize(("stage", "name", "step"), READERS)
    def test_a_foreign_file(
        self, refuses: Refuses, round_at: RoundAt, stage: str, name: str, step: str
    ) -> None:
        folder = round_at(stage)
        for what, content in foreign_files().items():
            (folder / name).write_bytes(content)
            result = refuses(65, *command(step, folder))
            assert Path(name).name in result.err, what

    @pytest.mark.parametrize(("stage", "name", "step"), READERS)
    def test_a_truncated_file(
        self, refuses: Refuses, run_cli: RunCli, round_at: RoundAt, stage: str, name: str, step: str
    ) -> None:
        folder = round_at(stage)
        whole = (folder / name).read_bytes()
        # a ledger is JSON on its own; without its last newline it still is
        last = len(whole) - (2 if "ledger" in name else 1)
        for kept in (1, 7, 8, 50, 96, 100, 500, len(whole) // 2, len(whole) - 50, last):
            if kept < len(whole):
                (folder / name).write_bytes(whole[:kept])
                refuses(65, *command(step, folder))
        (folder / name).write_bytes(whole)
        assert run_cli(*command(step, folder)).code == 0

    @pytest.mark.parametrize(("stage", "name", "step"), READERS[:-1])
    def test_a_file_of_another_session(
        self, refuses: Refuses, round_at: RoundAt, other_round_at: RoundAt, stage: str, name: str, step: str
    ) -> None:
        folder = round_at(stage)
        shutil.copy(other_round_at(stage) / name, folder / name)
        assert "session" in refuses(65, *command(step, folder)).err

    def test_a_session_that_was_replaced_fits_no_file(
        self, refuses: Refuses, round_at: RoundAt, other_round_at: RoundAt
    ) -> None:
        shutil.copy(other_round_at("answered") / "session.json", round_at("answered") / "session.json")
        folder = round_at("answered", "again")
        shutil.copy(folder.parent / "round/session.json", folder / "session.json")
        for step in ("offline", "mask", "eliminate", "freeze", "decode"):
            refuses(65, *command(step, folder))

    @pytest.mark.parametrize(
        ("stage", "source", "target", "step"),
        [
            ("masked", "masked/user-02.h5", "masked/user-03.h5", "freeze"),
            ("frozen", "masked/user-02.h5", "masked/user-03.h5", "eliminate"),
            ("offline", "secrets/user-02.h5", "secrets/user-01.h5", "mask"),
            ("offline", "secrets/user-02.h5", "secrets/user-01.h5", "offline"),
            ("offline", "secrets/user-02.ledger.json", "secrets/user-01.ledger.json", "mask"),
            ("frozen", "secrets/user-02.ledger.json", "secrets/user-01.ledger.json", "eliminate"),
            ("frozen", "shares/user-02/from-03.h5", "shares/user-01/from-03.h5", "eliminate"),
            ("frozen", "shares/user-01/from-02.h5", "shares/user-01/from-03.h5", "eliminate"),
            ("frozen", "masked/user-03.h5", "shares/user-01/from-03.h5", "eliminate"),
            ("frozen", "secrets/user-02.h5", "masked/user-02.h5", "eliminate"),
            ("answered", "elimination/user-02.h5", "elimination/user-03.h5", "decode"),
            ("answered", "masked/user-02.h5", "elimination/user-02.h5", "decode"),
            ("answered", "session.json", "survivors.json", "decode"),
            ("frozen", "survivors.json", "session.json", "eliminate"),
        ],
    )
    def test_the_file_of_another_user_or_kind(
        self, refuses: Refuses, round_at: RoundAt, stage: str, source: str, target: str, step: str
    ) -> None:
        folder = round_at(stage)
        shutil.copy(folder / source, folder / target)
        refuses(65, *command(step, folder))

    def test_another_masked_input_than_the_frozen_one(
        self, refuses: Refuses, round_at: RoundAt, tmp_path: Path
    ) -> None:
        """A valid X of the same user and session, but not the one in survivors.json."""
        folder, twin = round_at("frozen"), round_at("offline", "twin")
        must("mask", twin, "--user", 2, "--gradient", save(tmp_path / "g.npy", [1, 0.5, 0, 0]))
        shutil.copy(twin / "masked/user-02.h5", folder / "masked/user-02.h5")
        assert "frozen" in refuses(65, "eliminate", folder, "--user", 1).err

    def test_a_survivor_refuses_an_x_of_its_own_that_it_did_not_send(
        self, refuses: Refuses, round_at: RoundAt, tmp_path: Path
    ) -> None:
        folder, twin = round_at("masked"), round_at("offline", "twin")
        must("mask", twin, "--user", 1, "--gradient", save(tmp_path / "g.npy", [1, 0.5, 0, 0]))
        shutil.copy(twin / "masked/user-01.h5", folder / "masked/user-01.h5")
        must("freeze", folder)
        assert "did not send" in refuses(65, "eliminate", folder, "--user", 1).err

    def test_answers_for_different_survivor_sets_do_not_mix(
        self, refuses: Refuses, round_at: RoundAt
    ) -> None:
        """Rule 3: they would give a wrong vector with no error."""
        folder, twin = round_at("answered"), round_at("masked", "twin")
        must("freeze", twin, "--only", "1,2,3")
        must("eliminate", twin, "--user", 3)
        shutil.copy(twin / "elimination/user-03.h5", folder / "elimination/user-03.h5")
        assert "another survivor set" in refuses(65, "decode", folder).err

    def test_an_answer_that_does_not_lie_on_the_polynomial_is_noticed(
        self, refuses: Refuses, round_at: RoundAt
    ) -> None:
        """With one answer to spare; the file itself is sound."""
        from topk_secagg.storage.artifacts import write_artifact

        folder = round_at("answered")
        must("eliminate", folder, "--user", 4)
        path = folder / "elimination/user-02.h5"
        with h5py.File(path) as file:
            y = file["y"][...]
        y[0, 0] = (int(y[0, 0]) + 1) % (2**32 - 5)
        header = {
            k: v for k, v in attributes(path).items() if k in ("session", "user", "insecure", "survivors")
        }
        write_artifact(path, "elimination", header, {"y": y})
        refuses(65, "decode", folder)

    @pytest.mark.parametrize("value", [2**32 - 5, 2**32 - 1])
    def test_a_symbol_beyond_the_field_is_refused_in_a_sound_file(
        self, refuses: Refuses, round_at: RoundAt, value: int
    ) -> None:
        from topk_secagg.storage.artifacts import write_artifact

        folder = round_at("answered")
        for name, dataset, step in (
            ("elimination/user-02.h5", "y", "decode"),
            ("masked/user-02.h5", "value", "eliminate"),
            ("secrets/user-01.h5", "mask", "mask"),
        ):
            path = folder / name
            before = path.read_bytes()
            with h5py.File(path) as file:
                arrays = {key: file[key][...] for key in file}
            arrays[dataset].reshape(-1)[-1] = value
            header = attributes(path)
            for key in ("sha256", "format", "kind", "version"):
                header.pop(key)
            write_artifact(path, name.split("/")[0].replace("secrets", "secret"), header, arrays)
            refuses(65, *command(step, folder))
            path.write_bytes(before)

    def test_links_and_filters_in_hdf5_are_not_followed(
        self, refuses: Refuses, round_at: RoundAt, tmp_path: Path
    ) -> None:
        folder = round_at("answered")
        path = folder / "elimination/user-02.h5"
        whole = path.read_bytes()
        (tmp_path / "copy.h5").write_bytes(whole)
        with h5py.File(path) as file:
            y = file["y"][...]

        def external(file: h5py.File) -> None:
            file["y"] = h5py.ExternalLink(str(tmp_path / "copy.h5"), "/y")

        def soft(file: h5py.File) -> None:
            file["y"] = h5py.SoftLink("/z")
            file["z"] = y

        def chunked(file: h5py.File) -> None:
            file.create_dataset("y", data=y, chunks=True, compression="gzip")

        def outside(file: h5py.File) -> None:
            (tmp_path / "raw").write_bytes(y.tobytes())
            file.create_dataset("y", data=y, external=[(str(tmp_path / "raw"), 0, y.nbytes)])

        def extra(file: h5py.File) -> None:
            file["y"] = y
            file["more"] = y

        def group(file: h5py.File) -> None:
            file.create_group("y")

        def wide(file: h5py.File) -> None:
            file["y"] = y.astype("<u8")

        for damage in (external, soft, chunked, outside, extra, group, wide):
            path.write_bytes(whole)
            with h5py.File(path, "r+") as file:
                del file["y"]
                damage(file)
            refuses(65, "decode", folder)

    @pytest.mark.parametrize("key", ["parameters", "points", "layout"])
    @pytest.mark.parametrize("value", [None, 3, "text", [], [1], {}, {"users": 1}], ids=str)
    def test_a_session_with_nonsense_in_it(
        self, refuses: Refuses, round_at: RoundAt, key: str, value: object
    ) -> None:
        folder = round_at("init")
        edit(folder / "session.json", lambda document: document.update({key: value}))
        refuses(65, "offline", folder, "--user", 1)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("users", 6), ("users", True), ("users", 5.0), ("colluders", 3), ("colluders", 0), ("blocks", 3),
            ("top_k", 5), ("length", 5), ("field", 2**32 - 6), ("construction", "magic"), ("picks", 1),
            ("elimination", "none"), ("clip", 0.0), ("clip", "1.0"), ("scale", 1), ("scale", None),
            ("survivors", 2**70), ("users", -5),
        ],
    )  # fmt: skip
    def test_a_session_with_inadmissible_parameters(
        self, refuses: Refuses, round_at: RoundAt, name: str, value: object
    ) -> None:
        folder = round_at("init")
        edit(folder / "session.json", lambda document: document["parameters"].update({name: value}))
        refuses(65, "offline", folder, "--user", 1)

    def test_a_session_whose_parameters_are_a_list_of_the_right_names(
        self, refuses: Refuses, round_at: RoundAt
    ) -> None:
        folder = round_at("init")
        edit(folder / "session.json", lambda doc: doc.update(parameters=list(doc["parameters"])))
        refuses(65, "offline", folder, "--user", 1)

    @pytest.mark.parametrize(
        "survivors",
        [None, 3, "text", {}, {"user": 1}, [None], [1], ["user"], [["user", "sha256", "weight"]], [{}]],
        ids=str,
    )
    def test_a_survivors_json_with_nonsense_in_it(
        self, refuses: Refuses, round_at: RoundAt, survivors: object
    ) -> None:
        folder = round_at("answered")
        edit(folder / "survivors.json", lambda document: document.update(survivors=survivors))
        for step in ("eliminate", "decode", "freeze"):
            refuses(65, *command(step, folder))

    @pytest.mark.parametrize(
        "change",
        [
            pytest.param(lambda rows: rows.reverse(), id="reversed"),
            pytest.param(lambda rows: rows.append(dict(rows[0])), id="twice"),
            pytest.param(lambda rows: rows[0].update(user=9), id="user 9"),
            pytest.param(lambda rows: rows[0].update(user=0), id="user 0"),
            pytest.param(lambda rows: rows[0].update(user=True), id="true"),
            pytest.param(lambda rows: rows[0].update(user="1"), id="text"),
            pytest.param(lambda rows: rows[0].update(sha256=rows[0]["sha256"].upper()), id="upper case"),
            pytest.param(lambda rows: rows[0].update(sha256="0" * 63), id="short digest"),
            pytest.param(lambda rows: rows[0].update(more=1), id="one more key"),
        ],
    )
    def test_a_survivors_json_that_no_freeze_wrote(
        self, refuses: Refuses, round_at: RoundAt, change: Callable[[list[dict[str, object]]], object]
    ) -> None:
        folder = round_at("answered")
        edit(folder / "survivors.json", lambda document: change(document["survivors"]))
        for step in ("eliminate", "decode"):
            refuses(65, *command(step, folder))


class TestBadGradient65:
    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("place", [0, 3])
    def test_nan_or_inf(
        self, refuses: Refuses, round_at: RoundAt, tmp_path: Path, bad: float, place: int
    ) -> None:
        vector = np.array([0.5, 0.25, 0.125, 0.1], dtype=np.float32)
        vector[place] = bad
        path = save(tmp_path / "g.npy", vector)
        assert "finite" in refuses(65, "mask", round_at("offline"), "--user", 1, "--gradient", path).err

    @pytest.mark.parametrize("shape", [(3,), (5,), (2, 2), (4, 1), (0,), ()])
    def test_another_shape(
        self, refuses: Refuses, round_at: RoundAt, tmp_path: Path, shape: tuple[int, ...]
    ) -> None:
        path = save(tmp_path / "g.npy", np.zeros(shape, dtype=np.float32))
        assert "shape" in refuses(65, "mask", round_at("offline"), "--user", 1, "--gradient", path).err

    def test_beyond_the_clip(self, refuses: Refuses, round_at: RoundAt, tmp_path: Path) -> None:
        path = save(tmp_path / "g.npy", [1.0001, -3, 0.5, 0])
        result = refuses(65, "mask", round_at("offline"), "--user", 1, "--gradient", path)
        assert "clip" in result.err
        assert "--saturate" in result.err

    def test_beyond_the_clip_is_clamped_and_counted_with_saturate(
        self, run_cli: RunCli, tmp_path: Path, round_at: RoundAt
    ) -> None:
        folder = round_at("offline")
        path = save(tmp_path / "g.npy", [1e300, -3, 0.5, 0])
        result = run_cli("mask", folder, "--user", 1, "--gradient", path, "--saturate", "--json")
        assert (result.code, result.err) == (0, "")
        assert result.json["clipped"] == 2
        for n in (2, 3):
            must("mask", folder, "--user", n, "--gradient", save(tmp_path / f"{n}.npy", np.zeros(4)))
        must("freeze", folder)
        for n in (1, 2, 3):
            must("eliminate", folder, "--user", n)
        must("decode", folder)
        scale = json.loads((folder / "session.json").read_text())["parameters"]["scale"]
        assert aggregate(folder).tolist() == [scale, 2**32 - 5 - scale, 0, 0]

    def test_saturate_counts_in_rotation_too_where_the_energy_overflows(
        self, run_cli: RunCli, tmp_path: Path
    ) -> None:
        folder = tmp_path / "round"
        must("init", folder, *EXAMPLE_OPTIONS, *words("--construction rotation --picks 1"))
        must("offline", folder, "--user", 1)
        path = save(tmp_path / "g.npy", [1e300, -3, 0.5, 0])
        result = run_cli("mask", folder, "--user", 1, "--gradient", path, "--saturate", "--json")
        assert (result.code, result.err) == (0, "")
        assert result.json["clipped"] == 2

    @pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".pt"])
    def test_a_foreign_file(self, refuses: Refuses, round_at: RoundAt, tmp_path: Path, suffix: str) -> None:
        folder = round_at("offline")
        path = tmp_path / f"g{suffix}"
        for what, content in foreign_files().items():
            if (suffix, what) != (".npz", "an npz"):
                path.write_bytes(content)
                refuses(65, "mask", folder, "--user", 1, "--gradient", path)

    @pytest.mark.parametrize(
        "header",
        [
            b"{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000000,)}",
            b"{'descr': '<f4', 'fortran_order': False, 'shape': (1" + b"0" * 40 + b",)}",
            b"{'descr': '<f4', 'fortran_order': False, 'shape': (-4,)}",
            b"{'descr': '<f4', 'fortran_order': False, 'shape': (4,), 'more': 1}",
            b"{'descr': '|O', 'fortran_order': False, 'shape': (4,)}",
            b"{'descr': '<c8', 'fortran_order': False, 'shape': (4,)}",
            b"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (4,)}",
            b"{'descr': ((((((",
            b"{'descr': '''",
            b"  x\n y\n z",
            b"(" * 3000,
            b"\xff\xfe",
        ],
    )
    def test_an_npy_with_a_hostile_header(
        self, refuses: Refuses, round_at: RoundAt, tmp_path: Path, header: bytes
    ) -> None:
        text = header.ljust(118)
        path = tmp_path / "g.npy"
        path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(16))
        refuses(65, "mask", round_at("offline"), "--user", 1, "--gradient", path)

    @pytest.mark.parametrize("damage", ["data", "encrypted", "method", "bomb", "name"])
    def test_an_npz_that_cannot_be_unpacked(self, refuses: Refuses, tmp_path: Path, damage: str) -> None:
        path = tmp_path / "g.npz"
        np.savez_compressed(path, gradient=np.sin(np.arange(1000.0)))
        content = bytearray(path.read_bytes())
        directory = content.find(b"PK\x01\x02")
        if damage == "data":
            content[100] ^= 0xFF
        elif damage == "encrypted":
            content[6] |= 1
            content[directory + 8] |= 1
        elif damage == "method":
            content[8] = content[directory + 10] = 97
        elif damage == "bomb":
            content[directory + 24 : directory + 28] = (2**31).to_bytes(4, "little")
        path.write_bytes(content)
        if damage == "name":
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("readme.txt", "hello")
        options = words("--users 5 --survivors 3 --colluders 1 --top-k 2 --like")
        refuses(65, "init", tmp_path / "round", *options, path)

    def test_two_tensors_of_the_same_name_start_no_round(self, refuses: Refuses, tmp_path: Path) -> None:
        path = tmp_path / "g.npz"
        np.savez(path, a=np.ones(4, dtype=np.float32))
        with zipfile.ZipFile(path) as archive:
            member = archive.read("a.npy")
        with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a.npy", member)
        options = words("--users 5 --survivors 3 --colluders 1 --top-k 2 --like")
        refuses(65, "init", tmp_path / "round", *options, path)


# What turning one bit may do: nothing, or a documented refusal
FLIPPED = [
    ("masked/user-02.h5", "freeze", "survivors.json"),
    ("masked/user-02.h5", "eliminate", "elimination/user-01.h5"),
    ("elimination/user-02.h5", "decode", "aggregate.h5"),
    ("secrets/user-01.h5", "mask", "masked/user-01.h5"),
    ("shares/user-01/from-02.h5", "eliminate", "elimination/user-01.h5"),
    ("survivors.json", "eliminate", "elimination/user-01.h5"),
    ("survivors.json", "decode", "aggregate.h5"),
    ("session.json", "decode", "aggregate.h5"),
    ("secrets/user-01.ledger.json", "mask", "masked/user-01.h5"),
    ("secrets/user-01.ledger.json", "eliminate", "elimination/user-01.h5"),
]
STRIDE = int(os.environ.get("FLIP_STRIDE", "67"))  # 1 tries every byte, and takes some minutes


@pytest.mark.parametrize(("name", "step", "output"), FLIPPED)
def test_one_flipped_bit_is_noticed_or_changes_nothing(
    run_cli: RunCli, seeded_round_at: RoundAt, name: str, step: str, output: str
) -> None:
    folder = seeded_round_at("decoded")
    whole = contents(folder)
    path = folder / name
    positions = set(range(0, path.stat().st_size, STRIDE))  # structure and attributes
    if path.suffix == ".h5":  # and, of the datasets, every byte or every few
        for start, size in placed(path).values():
            positions |= set(range(start, start + size, 1 + size // 16))
    refused = 0
    for position in sorted(positions):
        flip(path, position, bit=(position * 5 + position // 8) % 8)
        result = run_cli(*command(step, folder))
        path.write_bytes(whole[name][0])
        assert (folder / output).read_bytes() == whole[output][0], (position, result)
        if result.code != 0:
            assert_one_error(result.code, result.out, result.err)
            assert result.code in (65, 66, 69, 77), (position, result)
            refused += 1
    assert contents(folder) == whole
    assert leftovers(folder) == []
    assert refused > len(positions) // 10


class TestTooFewSurvivors69:
    def test_freeze(self, refuses: Refuses, round_at: RoundAt) -> None:
        folder = round_at("masked")
        refuses(69, "freeze", folder, "--only", "1,2")
        for n in (1, 2):
            (folder / f"masked/user-{n:02}.h5").unlink()
        assert "2 users" in refuses(69, "freeze", folder).err

    def test_freeze_before_anybody_masked(self, refuses: Refuses, round_at: RoundAt) -> None:
        refuses(69, "freeze", round_at("init"))

    @pytest.mark.parametrize("kept", [0, 1, 2])
    def test_eliminate_refuses_a_survivor_set_below_u(
        self, refuses: Refuses, round_at: RoundAt, kept: int
    ) -> None:
        folder = round_at("frozen")
        edit(
            folder / "survivors.json",
            lambda document: document.update(survivors=document["survivors"][:kept]),
        )
        refuses(69, "eliminate", folder, "--user", 1)

    @pytest.mark.parametrize("answers", [0, 1, 2])
    def test_decode(self, refuses: Refuses, round_at: RoundAt, answers: int) -> None:
        folder = round_at("answered")
        for n in range(answers + 1, 4):
            (folder / f"elimination/user-{n:02}.h5").unlink()
        assert f"{answers} answers" in refuses(69, "decode", folder).err

    def test_run_with_too_many_drop_outs(self, run_cli: RunCli, tmp_path: Path) -> None:
        options = words("--survivors 3 --colluders 1 --top-k 2 --drop-masking")
        for name, drops in (("a", ["1,2,3"]), ("b", ["1,2", "--drop-elimination", "3"])):
            result = run_cli("run", tmp_path / name, "--gradients", EXAMPLE, *options, *drops)
            assert result.code == 69
            assert_one_error(result.code, result.out, result.err)


class TestRefused77:
    @pytest.mark.parametrize("other", ["--drop-masking 5", "--drop-elimination 4,5", "--randomness os"])
    def test_another_run_of_the_same_round(self, refuses: Refuses, tmp_path: Path, other: str) -> None:
        call = (
            "run",
            tmp_path / "round",
            "--gradients",
            EXAMPLE,
            *words("--survivors 3 --colluders 1 --top-k 2"),
        )
        must(*call)
        refuses(77, *call, *words(other))

    def test_a_round_of_other_parameters(self, refuses: Refuses, round_at: RoundAt) -> None:
        for stage in ("init", "decoded"):
            folder = round_at(stage, stage)
            for other in ("--clip 2", "--elimination dense", "--insecure-seed 1", "--field 4294967279"):
                said = refuses(77, "init", folder, *EXAMPLE_OPTIONS, *words(other)).err
                assert "with other parameters" in said
            options = words("--survivors 3 --colluders 1 --top-k 1")
            refuses(77, "run", folder, "--gradients", EXAMPLE, *options)

    def test_a_second_gradient(self, refuses: Refuses, round_at: RoundAt) -> None:
        folder = round_at("masked")
        result = refuses(77, "mask", folder, "--user", 1, "--gradient", gradient(2))
        assert "already masked" in result.err

    def test_the_same_gradient_with_another_weight(self, refuses: Refuses, round_at: RoundAt) -> None:
        refuses(77, "mask", round_at("masked"), *MASK_1, "--weight", "0.5")

    def test_the_same_gradient_selected_otherwise(self, run_cli: RunCli, tmp_path: Path) -> None:
        """Random places may be the largest by chance, so among eight of them."""
        folder = tmp_path / "round"
        must("init", folder, *words("--users 5 --survivors 3 --colluders 1 --top-k 8 --length 64"))
        must("offline", folder, "--user", 1)
        path = save(tmp_path / "g.npy", np.linspace(-1, 1, 64))
        must("mask", folder, "--user", 1, "--gradient", path)
        result = run_cli("mask", folder, "--user", 1, "--gradient", path, "--select", "random")
        assert result.code == 77

    def test_a_second_gradient_after_the_round(self, refuses: Refuses, round_at: RoundAt) -> None:
        folder = round_at("decoded")
        (folder / "masked/user-01.h5").unlink()
        (folder / "survivors.json").unlink()
        refuses(77, "mask", folder, "--user", 1, "--gradient", gradient(2))

    def test_freezing_another_set(self, refuses: Refuses, round_at: RoundAt) -> None:
        folder = round_at("frozen")
        refuses(77, "freeze", folder, "--only", "1,2,3")
        assert "1, 2, 3, 4" in refuses(77, "freeze", folder, "--only", "2,3,4").err

    def test_freezing_again_when_a_user_came_late(self, refuses: Refuses, round_at: RoundAt) -> None:
        folder = round_at("frozen")
        must("mask", folder, "--user", 5, "--gradient", gradient(5))
        refuses(77, "freeze", folder)

    @pytest.mark.parametrize("dropped", [1, 2, 3])
    def test_answering_another_survivor_set(self, refuses: Refuses, round_at: RoundAt, dropped: int) -> None:
        """Rule 2: two answers decode to exactly one user's input."""
        folder = round_at("answered")
        edit(folder / "survivors.json", lambda document: document["survivors"].pop(dropped))
        assert "already answered" in refuses(77, "eliminate", folder, "--user", 1).err
        (folder / "elimination/user-01.h5").unlink()
        refuses(77, "eliminate", folder, "--user", 1)


class TestCannotWrite73:
    def test_a_file_where_the_round_should_be(self, refuses: Refuses, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        refuses(73, "init", tmp_path / "file", *EXAMPLE_OPTIONS)
        refuses(73, "init", tmp_path / "file" / "round", *EXAMPLE_OPTIONS)

    def test_output_in_a_folder_that_is_not_there(
        self, refuses: Refuses, round_at: RoundAt, tmp_path: Path
    ) -> None:
        output = tmp_path / "nowhere" / "sum.npy"
        assert str(output) in refuses(73, "decode", round_at("decoded"), "--output", output).err

    def test_output_that_is_a_folder(self, refuses: Refuses, round_at: RoundAt, tmp_path: Path) -> None:
        (tmp_path / "sum.npy").mkdir()
        refuses(73, "decode", round_at("decoded"), "--output", tmp_path / "sum.npy")

    def test_a_file_where_a_folder_of_the_round_should_be(self, refuses: Refuses, round_at: RoundAt) -> None:
        folder = round_at("offline")
        (folder / "masked").touch()
        refuses(73, "mask", folder, *MASK_1)

    def test_a_folder_that_may_not_be_written(self, stages: Path, shared_folder: Path) -> None:
        """As an ordinary user: nothing is read or written through root's rights."""
        closed = copy_round(stages / "answered", shared_folder / "closed")
        frozen = copy_round(stages / "answered", shared_folder / "frozen")
        output = shared_folder / "closed-output"
        output.mkdir()
        give_to_nobody(frozen)
        close(closed)
        close(output)
        calls = [
            ["init", str(shared_folder / "closed" / "new"), *EXAMPLE_OPTIONS],
            ["offline", str(closed), "--user", "1"],
            ["mask", str(closed), "--user", "1", "--gradient", str(gradient(1))],
            ["eliminate", str(closed), "--user", "1"],
            ["decode", str(closed)],
            ["decode", str(frozen), "--output", str(output / "sum.npy")],
        ]
        before = contents(shared_folder) if is_root() else {}
        for call, result in zip(calls, as_nobody(shared_folder, calls), strict=True):
            assert_one_error(result.code, result.out, result.err)
            assert result.code == 73, (call, result)
        assert leftovers(shared_folder) == []
        if is_root():
            after = contents(shared_folder)
            after.pop("frozen/aggregate.h5", None)  # that much of the last call was in order
            assert after == before

    @pytest.mark.parametrize("limit", [0, 1024, 3000])
    def test_a_full_disk(self, round_at: RoundAt, limit: int) -> None:
        """Files that may not grow beyond a limit stand for a full disk. The ledger comes first, so it may
        be written already; the same gradient can still be masked."""
        folder = round_at("offline")
        ledger = "secrets/user-01.ledger.json"
        before = contents(folder)
        code = f"""
import resource, sys
from topk_secagg_cli.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
sys.argv[0] = "topk-secagg"
main()
"""
        end = python(code, "mask", folder, *MASK_1)
        assert_one_error(end.returncode, end.stdout, end.stderr)
        assert end.returncode == 73
        assert leftovers(folder) == []
        assert {**contents(folder), ledger: None} == {**before, ledger: None}
        must("mask", folder, *MASK_1)

    def test_results_that_cannot_be_printed(self, round_at: RoundAt) -> None:
        folder = round_at("frozen")
        with Path("/dev/full").open("w") as full:
            end = subprocess.run(
                [SCRIPT, "freeze", folder], stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
        assert_one_error(end.returncode, "", end.stderr)
        assert end.returncode == 73

    @pytest.mark.parametrize("step", ["freeze", "inspect"])
    def test_a_closed_standard_output_is_no_bug_of_the_program(self, round_at: RoundAt, step: str) -> None:
        folder = round_at("frozen")
        what = folder if step == "freeze" else folder / "session.json"
        end = subprocess.run(
            ["sh", "-c", f'exec "{SCRIPT}" {step} "{what}" >&-'], capture_output=True, text=True, check=False
        )
        assert "a bug" not in end.stderr
        assert end.returncode in (0, 73)

    @pytest.mark.parametrize("step", ["offline", "decode", "audit"])
    def test_a_closed_standard_error_is_no_bug_of_the_program(self, round_at: RoundAt, step: str) -> None:
        user = "--user 1" if step == "offline" else ""
        call = f'exec "{SCRIPT}" {step} "{round_at("decoded")}" {user} 2>&-'
        assert subprocess.run(["sh", "-c", call], stdout=subprocess.DEVNULL, check=False).returncode == 0

    @pytest.mark.parametrize("step", ["freeze", "inspect"])
    def test_a_pipe_that_nobody_reads_ends_the_command_silently(self, round_at: RoundAt, step: str) -> None:
        folder = round_at("frozen")
        reader, writer = os.pipe()
        os.close(reader)
        end = subprocess.run(
            [SCRIPT, step, folder if step == "freeze" else folder / "session.json"],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        os.close(writer)
        assert (end.returncode, end.stderr) == (141, "")


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that every user of the machine can reach, unlike pytest's."""
    folder = Path(tempfile.mkdtemp(prefix="topk-secagg-test-"))
    folder.chmod(0o755)
    yield folder
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(folder)


NOBODY = 65534


def give_to_nobody(folder: Path) -> None:
    if is_root():
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY)


def close(folder: Path) -> None:
    """Nobody may write: by the owner when root, by the mode otherwise."""
    if not is_root():
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)


def as_nobody(scratch: Path, calls: list[list[str]]) -> list[Result]:
    """Run commands as an ordinary user; all that they import is loaded before root's rights are dropped."""
    code = f"""
import contextlib, io, json, os, sys, tempfile
from topk_secagg_cli.main import main

def call(args):
    sys.argv = ["topk-secagg", *args]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            return [end.code or 0, out.getvalue(), err.getvalue()]

with tempfile.TemporaryDirectory() as folder:
    options = "--survivors 3 --colluders 1 --top-k 2 --length 4 --json".split()
    output = ["--output", folder + "/sum.npy"]
    warm = call(["run", folder + "/warm", "--gradients", {str(EXAMPLE)!r}, *options, *output])
    assert warm[0] == 0, warm
    call(["init", folder + "/init", "--users", "5", *options])
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
results = [call(args) for args in json.loads({json.dumps(json.dumps(calls))})]
print(json.dumps(results))
"""
    end = python(code, cwd=scratch)
    assert end.returncode == 0, end.stderr
    return [Result(*result) for result in json.loads(end.stdout)]


def test_files_that_may_not_be_read_are_missing_input(stages: Path, shared_folder: Path) -> None:
    folder = copy_round(stages / "answered", shared_folder / "round")
    give_to_nobody(folder)
    mine = shutil.copy(gradient(1), shared_folder / "g.npy")
    hidden = [
        ("secrets/user-01.h5", ["mask", str(folder), "--user", "1", "--gradient", str(mine)]),
        ("masked/user-02.h5", ["eliminate", str(folder), "--user", "1"]),
        ("shares/user-02/from-03.h5", ["eliminate", str(folder), "--user", "2"]),
        ("elimination/user-03.h5", ["decode", str(folder)]),
    ]
    for name, _ in hidden:
        path = folder / name
        path.chmod(0)
        if is_root():
            os.chown(path, 0, 0)
    # the X of user 2 stands in the way of both answers
    for (_, call), result in zip(hidden, as_nobody(shared_folder, [call for _, call in hidden]), strict=True):
        assert_one_error(result.code, result.out, result.err)
        assert result.code == 66, (call, result)
        assert "permission denied" in result.err


@pytest.fixture
def held() -> Iterator[Callable[[Path], None]]:
    """held(path): another process is at work (locks are per open file, so this one will do)."""
    open_files = []

    def hold(path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        stream = path.open("w")
        fcntl.flock(stream, fcntl.LOCK_EX)
        open_files.append(stream)

    yield hold
    for stream in open_files:
        stream.close()


class TestBusy75:
    @pytest.mark.parametrize("step", ["offline", "mask", "eliminate"])
    def test_a_step_of_the_same_user_is_running(
        self, refuses: Refuses, run_cli: RunCli, round_at: RoundAt, held: Callable[[Path], None], step: str
    ) -> None:
        folder = round_at("frozen")
        held(folder / "secrets/.user-01.lock")
        refuses(75, *command(step, folder))
        assert run_cli(step, folder, *("--user", 2), *MASK_1[2:] if step == "mask" else ()).code in (0, 77)

    @pytest.mark.parametrize("step", ["freeze", "decode"])
    def test_a_step_of_the_round_is_running(
        self, refuses: Refuses, round_at: RoundAt, held: Callable[[Path], None], step: str
    ) -> None:
        folder = round_at("answered")
        held(folder / ".lock")
        assert "again" in refuses(75, step, folder).err

    def test_somebody_else_is_starting_this_round(
        self, refuses: Refuses, held: Callable[[Path], None], tmp_path: Path
    ) -> None:
        held(tmp_path / "round" / ".lock")
        refuses(75, "init", tmp_path / "round", *EXAMPLE_OPTIONS)

    def test_two_processes_never_mask_two_gradients(self, round_at: RoundAt) -> None:
        """One of them wins; the others are busy or refused, and the ledger names the X that is there."""
        folder = round_at("offline")
        racers = [
            subprocess.Popen(
                [SCRIPT, "mask", folder, "--user", "1", "--gradient", gradient(n), "-q"],
                stderr=subprocess.DEVNULL,
            )
            for n in (1, 2, 3, 4)
        ]
        codes = sorted(racer.wait(timeout=60) for racer in racers)
        assert codes[0] == 0
        assert set(codes[1:]) <= {75, 77}
        ledger = json.loads((folder / "secrets/user-01.ledger.json").read_text())
        assert ledger["masked"] == attributes(folder / "masked/user-01.h5")["sha256"]


class TestUsage2:
    @pytest.mark.parametrize(
        "options",
        [
            "--users 5 --survivors 3 --colluders 3 --top-k 2 --length 4",
            "--users 5 --survivors 3 --colluders 0 --top-k 2 --length 4",
            "--users 5 --survivors 3 --colluders -1 --top-k 2 --length 4",
            "--users 2 --survivors 3 --colluders 1 --top-k 2 --length 4",
            "--users 0 --survivors 0 --colluders 0 --top-k 2 --length 4",
            "--users 5 --survivors 3 --colluders 1 --top-k 0 --length 4",
            "--users 5 --survivors 3 --colluders 1 --top-k 5 --length 4",
            "--users 5 --survivors 3 --colluders 1 --top-k 2 --length 0",
            "--users 5 --survivors 3 --colluders 1 --top-k 2 --length -4",
            "--users 5 --survivors 3 --colluders 1 --top-k 2 --length 4 --blocks 3",
            "--users 5 --survivors 3 --colluders 1 --top-k 2 --length 4 --blocks 0",
            "--users 5 --survivors 3 --colluders 1 --top-k 2 --length 4 --blocks -1 --construction rotation",
            "--users 5 --survivors 3 --colluders 1 --top-k 2 --length 4 --field 12",
            "--users 5 --survivors 3 --colluders 1 --top-k 2 --length 4 --field 7",
            "--users 5 --survivors 3 --colluders 1 --top-k 2 --length 4 --field 4294967311",
            "--users 5 --survivors 3 --colluders 1 --top-k 2 --length 4 --field -7",
            "--users 5 --survivors 3 --colluders 1 --top-k 2 --length 4 --clip 0",
            "--users 5 --survivors 3 --colluders 1 --top-k 2 --length 4 --clip -1",
            "--users 5 --survivors 3 --colluders 1 --top-k 2 --length 4 --clip nan",
            "--users 5 --survivors 3 --colluders 1 --top-k 2 --length 4 --clip inf",
            "--users 5 --survivors 3 --colluders 1 --top-k 2 --length 4 --clip 1e20",
            "--users 5 --survivors 3 --colluders 1 --top-k 2 --length 4 --picks 2",
            "--users 5 --survivors 3 --colluders 1 --top-k 2 --length 4 --picks 0 --construction rotation",
            "--users 5 --survivors 3 --colluders 1 --top-k 4 --length 4 --picks 4 --construction rotation",
            "--users 5 --survivors 3 --colluders 1 --top-k 2 --length 4 --construction magic",
            "--users 5 --survivors 3 --colluders 1 --top-k 2 --length 4 --elimination magic",
            "--users 5 --survivors 3 --colluders 1 --top-k 100 --length 272474",
            "--users 5 --survivors 3 --colluders 1 --density 0 --length 4",
            "--users 5 --survivors 3 --colluders 1 --density 1.5 --length 4",
            "--users 5 --survivors 3 --colluders 1 --density nan --length 4",
            "--users 5 --survivors 3 --colluders 1 --density 0.5 --top-k 2 --length 4",
            "--users 5 --survivors 3 --colluders 1 --length 4",
            "--users 5 --survivors 3 --colluders 1 --top-k 2",
            "--users 5 --survivors 3 --colluders 1 --top-k 2 --length 4 --like x.npy",
            "--users 5 --survivors 3 --colluders 1 --top-k 2 --like x.txt",
            "--survivors 3 --colluders 1 --top-k 2 --length 4",
            "--users 5 --colluders 1 --top-k 2 --length 4",
            "--users five --survivors 3 --colluders 1 --top-k 2 --length 4",
            "--users 5 --survivors 3 --colluders 1 --top-k 2 --length 1e3",
            "--users 5 --survivors 3 --colluders 1 --top-k 2 --length 4 --nonsense",
        ],
    )
    def test_inadmissible_options_of_init(self, refuses: Refuses, tmp_path: Path, options: str) -> None:
        result = refuses(2, "init", tmp_path / "round", *words(options))
        assert "hint: " in result.err
        assert not (tmp_path / "round").exists()

    @pytest.mark.parametrize("step", ["offline", "mask", "eliminate"])
    @pytest.mark.parametrize("user", ["9", "6", "0", "-1", "1.5", "one", "99999999999999999999"])
    def test_a_user_that_does_not_exist(
        self, refuses: Refuses, round_at: RoundAt, step: str, user: str
    ) -> None:
        more = ("--gradient", gradient(1)) if step == "mask" else ()
        refuses(2, step, round_at("frozen"), "--user", user, *more)

    def test_freezing_a_user_that_does_not_exist(self, refuses: Refuses, round_at: RoundAt) -> None:
        folder = round_at("masked")
        for only in ("1,2,9", "0,1,2", "1,2,x", "1;2;3"):
            refuses(2, "freeze", folder, "--only", only)

    def test_a_user_that_dropped_out_has_nothing_to_answer(self, refuses: Refuses, round_at: RoundAt) -> None:
        assert "survivors" in refuses(2, "eliminate", round_at("frozen"), "--user", 5).err

    @pytest.mark.parametrize(
        "call",
        ["mask ROUND", "mask ROUND --user 1", "offline ROUND", "offline --user 1", "eliminate", "freeze",
         "decode", "inspect", "run ROUND", "nonsense", "mask ROUND --user", "freeze ROUND extra"],
    )  # fmt: skip
    def test_missing_and_unknown_options(self, refuses: Refuses, round_at: RoundAt, call: str) -> None:
        folder = round_at("frozen")
        refuses(2, *(folder if word == "ROUND" else word for word in words(call)))

    def test_no_command_at_all_shows_the_help_as_it_is(self, run_cli: RunCli) -> None:
        result = run_cli()
        shown = result.out + result.err
        assert result.code in (0, 2)
        assert shown.startswith("Usage: topk-secagg ")
        assert run_cli("--help").out.strip() in shown

    @pytest.mark.parametrize("name", ["sum.txt", "sum", "sum.h5", "sum.NPY", ".npy"])
    def test_an_output_nobody_can_write_is_refused_before_any_work(
        self, refuses: Refuses, round_at: RoundAt, name: str
    ) -> None:
        folder = round_at("answered")
        refuses(2, "decode", folder, "--output", folder.parent / name)
        assert not (folder / "aggregate.h5").exists()

    @pytest.mark.parametrize(
        "bad",
        [
            ("--output", "sum.txt"),
            ("--drop-masking", "9"),
            ("--drop-elimination", "0"),
            ("--users", "4"),
            ("--top-k", "9"),
        ],
        ids=lambda bad: " ".join(bad),
    )
    def test_run_refuses_before_any_work(
        self, refuses: Refuses, tmp_path: Path, bad: tuple[str, str]
    ) -> None:
        options = words("--survivors 3 --colluders 1 --top-k 2")
        refuses(2, "run", tmp_path / "round", "--gradients", EXAMPLE, *options, *bad)
        assert not (tmp_path / "round").exists()

    @pytest.mark.parametrize("weight", ["0", "-1", "nan", "inf", "heavy"])
    def test_a_weight_that_is_no_positive_number(
        self, refuses: Refuses, round_at: RoundAt, weight: str
    ) -> None:
        refuses(2, "mask", round_at("offline"), *MASK_1, "--weight", weight)

    def test_a_gradient_of_an_unknown_type(self, refuses: Refuses, round_at: RoundAt, tmp_path: Path) -> None:
        (tmp_path / "g.csv").write_text("1,2,3,4\n")
        refuses(2, "mask", round_at("offline"), "--user", 1, "--gradient", tmp_path / "g.csv")

    def test_nonsense_in_the_environment(
        self, refuses: Refuses, round_at: RoundAt, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TOPK_SECAGG_OFFLINE_USER", "one")
        refuses(2, "offline", round_at("init"))


# In a process of its own: strikes at the k-th write to a file, in whatever thread it happens
STRIKING = """
import os, sys
from topk_secagg_cli.main import main
left, number, pwrite = {writes}, {number}, os.pwrite

def counted(*args):
    global left
    left -= 1
    if left == -1:
        os.kill(os.getpid(), number)
    return pwrite(*args)

os.pwrite = counted
sys.argv[0] = "topk-secagg"
main()
"""


class TestInterrupted:
    @pytest.mark.parametrize("writes", [3, 4, 9, 17])
    @pytest.mark.parametrize(
        ("number", "code", "said"),
        [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
    )
    def test_a_signal_leaves_no_half_file_and_the_step_can_be_repeated(
        self, tmp_path: Path, number: signal.Signals, code: int, said: str, writes: int
    ) -> None:
        folder = tmp_path / "round"
        must("init", folder, *EXAMPLE_OPTIONS)
        end = python(STRIKING.format(writes=writes, number=int(number)), "offline", folder, "--user", 1)
        assert end.returncode == code, end
        assert_one_error(code, end.stdout, end.stderr.removeprefix("\n"))  # after the ^C of a terminal
        assert said in end.stderr
        assert leftovers(folder) == []
        assert list(folder.glob("shares/*/*")) == []
        secret = (folder / "secrets/user-01.h5").read_bytes()
        must("offline", folder, "--user", 1)
        assert (folder / "secrets/user-01.h5").read_bytes() == secret
        assert len(list(folder.glob("shares/*/from-01.h5"))) == 5
        assert leftovers(folder) == []

    @pytest.mark.parametrize("writes", [0, 2, 3, 4, 9, 17])
    def test_a_killed_offline_goes_on_with_the_same_sharing_and_the_round_is_exact(
        self, tmp_path: Path, writes: int
    ) -> None:
        folder = tmp_path / "round"
        must("init", folder, *EXAMPLE_OPTIONS, "--clip", "409.5998")
        code = STRIKING.format(writes=writes, number=int(signal.SIGKILL))  # no clean-up of any kind
        end = python(code, "offline", folder, "--user", 1)
        assert end.returncode == -signal.SIGKILL, end
        assert list(folder.glob("shares/*/from-01.h5")) == []
        secret = folder / "secrets/user-01.h5"
        sharing = attributes(secret)["sharing"] if secret.exists() else None
        assert (sharing is not None) == (writes >= 3)
        must("offline", folder, "--user", 1)
        assert leftovers(folder) == []
        if sharing:
            assert attributes(secret)["sharing"] == sharing
        for path in folder.glob("shares/*/from-01.h5"):
            assert attributes(path)["sharing"] == attributes(secret)["sharing"]
        finish(folder)
        expected = [-0.875, 1.25, 0.75, -0.25]
        assert aggregate(folder).tolist() == [round(x * 2**20) % (2**32 - 5) for x in expected]


def finish(folder: Path) -> None:
    """All steps after the offline step of user 1."""
    for n in (2, 3, 4, 5):
        must("offline", folder, "--user", n)
    for n in (1, 2, 3, 4):
        must("mask", folder, "--user", n, "--gradient", gradient(n))
    must("freeze", folder)
    for n in (1, 2, 3):
        must("eliminate", folder, "--user", n)
    must("decode", folder)


def test_an_unexpected_error_is_called_a_bug_and_shows_no_traceback(
    run_cli: RunCli, round_at: RoundAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    import topk_secagg.steps.freeze as module

    def broken(*_: object) -> None:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(module, "freeze", broken)
    result = run_cli("freeze", round_at("masked"))
    assert result.code == 1
    assert result.err.splitlines()[0] == "topk-secagg: a bug: ZeroDivisionError: on purpose"
    assert "Traceback" not in result.err


def test_the_installed_command_answers_with_the_same_codes(round_at: RoundAt, tmp_path: Path) -> None:
    folder = round_at("masked")
    for code, args in (
        (0, ("freeze", folder)),
        (2, ("freeze",)),
        (66, ("freeze", tmp_path / "nowhere")),
        (69, ("decode", folder)),
        (77, ("freeze", folder, "--only", "1,2,3")),
    ):
        end = shell(*args)
        assert end.returncode == code, end
        if code:
            assert_one_error(code, end.stdout, end.stderr)
