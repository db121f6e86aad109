"""Models as they are, through the commands: what is said about them, and errors that name the
option that helps."""

import json
from pathlib import Path

import numpy as np
import pytest
from played import assert_one_error, call, must, words, write_tensors

from topk_secagg.gradients.files import read_gradient

TORCH = Path(__file__).parents[2] / "fixtures" / "torch-files"
ROUND = words("--survivors 3 --colluders 1 --density 0.5 --clip 8")
FOUR = ["--users", "4", *ROUND]


def copies(folder: Path, *names: str) -> Path:
    """A folder with a gradient for each of four users, the last file for all that remain."""
    folder.mkdir()
    for n in range(4):
        source = TORCH / names[min(n, len(names) - 1)]
        (folder / f"user-{n + 1}{source.suffix}").write_bytes(source.read_bytes())
    return folder


def refused(code: int, *args: object) -> str:
    """The message and the hint of a command that fails with this exit code."""
    result = call(*args)
    assert result.code == code, result
    assert_one_error(result)
    return result.err


def test_a_checkpoint_is_read_and_a_line_says_what_of_it(tmp_path):
    folder = copies(tmp_path / "in", "lightning.ckpt")
    line = "took the entry 'state_dict' of the checkpoint"
    for command in ("init", "plan"):
        where = [tmp_path / "a"] if command == "init" else []
        said = must(command, *where, *FOUR, "--like", folder / "user-1.ckpt", "--json").err
        assert said.splitlines().count(line) == 1
    said = must(
        "run", tmp_path / "b", "--gradients", folder, *ROUND, "--output", tmp_path / "sum.pt"
    ).err
    assert said.splitlines().count(line) == 1
    assert f"users 1, 2, 3, 4: {line}" in said
    assert (
        line
        not in must(
            "run", tmp_path / "c", "--gradients", folder, *ROUND, "--entry", "state_dict"
        ).err
    )
    assert [t.name for t in read_gradient(tmp_path / "sum.pt")] == ["net.weight", "net.bias"]


def test_what_is_none_is_left_out_and_a_line_says_so(tmp_path):
    folder = copies(tmp_path / "in", "frozen.pt")
    line = "left out, None: 0.weight, 0.bias, 1.bias"
    said = must(
        "run", tmp_path / "round", "--gradients", folder, *ROUND, "--output", tmp_path / "sum.pt"
    ).err
    assert line in said.splitlines()
    assert f"users 1, 2, 3, 4: {line}" in said
    assert [t.name for t in read_gradient(tmp_path / "sum.pt")] == [
        "1.weight",
        "3.weight",
        "3.bias",
    ]
    session = json.loads((tmp_path / "round/session.json").read_text())
    assert session["left_out"] == ["0.weight", "0.bias", "1.bias"]


def test_what_one_user_has_beside_the_round_is_left_out_with_a_line(tmp_path):
    must("init", tmp_path / "round", *FOUR, "--like", TORCH / "frozen.pt")
    must("offline", tmp_path / "round", "--user", "all")
    parameters = write_tensors(
        tmp_path / "all.pt",
        [t for t in read_gradient(TORCH / "state_dict.pt") if "_" not in t.name],
    )
    said = must("mask", tmp_path / "round", "--user", 2, "--gradient", parameters).err
    assert "user 2: left out, not in this round: 0.weight, 0.bias, 1.bias" in said.splitlines()


def test_a_tensor_of_the_round_that_is_none_in_one_file_is_an_error(tmp_path):
    folder = copies(tmp_path / "in", "state_dict.pt", "frozen.pt")
    error = refused(65, "run", tmp_path / "round", "--gradients", folder, *ROUND)
    assert f"{folder / 'user-2.pt'}: tensor '0.weight' of the session's layout is None" in error
    assert "hint: was it frozen for this user alone? save zeros in its place" in error


@pytest.mark.parametrize("file", ["list.pt", "frozen_list.pt"])
def test_the_sum_of_lists_is_a_list(tmp_path, file):
    folder = copies(tmp_path / "in", file)
    options = words("--survivors 3 --colluders 1 --density 1.0 --clip 8")
    must(
        "run", tmp_path / "round", "--gradients", folder, *options, "--output", tmp_path / "sum.pt"
    )
    one, total = read_gradient(TORCH / file), read_gradient(tmp_path / "sum.pt")
    assert total.sequence
    assert total.absent == one.absent
    for a, b in zip(one, total, strict=True):
        assert a.name == b.name
        assert np.allclose(4 * a.array, b.array, atol=1e-5)
    again = must("init", tmp_path / "next", "--from", tmp_path / "round", "--json").json
    assert again["written"]


def test_names_with_another_prefix_are_shown_with_the_option_that_maps_them(tmp_path):
    folder = copies(tmp_path / "in", "state_dict.pt", "prefixed.pt")
    round_folder = tmp_path / "round"
    error = refused(65, "run", round_folder, "--gradients", folder, *ROUND)
    assert "it has 'module.0.weight' where the session has '0.weight'" in error
    assert "hint: strip the prefix 'module.' from its names: add --strip-prefix module." in error
    more = ("--strip-prefix", "module.", "--output", tmp_path / "sum.pt")
    must("run", round_folder, "--gradients", folder, *ROUND, *more)
    assert "0.weight" in {t.name for t in read_gradient(tmp_path / "sum.pt")}


def test_a_round_with_a_prefix_is_restarted_without_it(tmp_path):
    must("init", tmp_path / "a", *FOUR, "--like", TORCH / "prefixed.pt")
    must(
        "init", tmp_path / "b", *FOUR, "--like", TORCH / "prefixed.pt", "--strip-prefix", "module."
    )
    for name in "ab":
        must("offline", tmp_path / name, "--user", "all")
    error = refused(65, "mask", tmp_path / "a", "--user", 1, "--gradient", TORCH / "state_dict.pt")
    assert "it has '0.weight' where the session has 'module.0.weight'" in error
    assert (
        "hint: start the round without the prefix 'module.': init with --strip-prefix module."
        in error
    )
    must("mask", tmp_path / "b", "--user", 1, "--gradient", TORCH / "state_dict.pt")
    must(
        "mask",
        tmp_path / "b",
        "--user",
        2,
        "--gradient",
        TORCH / "prefixed.pt",
        "--strip-prefix",
        "module.",
    )


def test_plan_passes_the_prefix_on_to_init():
    planned = must(
        "plan", *FOUR, "--like", TORCH / "prefixed.pt", "--strip-prefix", "module.", "--json"
    ).json
    assert "--strip-prefix module." in planned["command"]


def test_a_prefix_is_quoted_for_the_shell(tmp_path):
    tensors = read_gradient(TORCH / "state_dict.pt")
    odd = write_tensors(
        tmp_path / "odd.pt", [t._replace(name=f"a b {{hint}}.{t.name}") for t in tensors]
    )
    must("init", tmp_path / "round", *FOUR, "--like", TORCH / "state_dict.pt")
    must("offline", tmp_path / "round", "--user", 1)
    error = refused(65, "mask", tmp_path / "round", "--user", 1, "--gradient", odd)
    assert error.endswith("add --strip-prefix 'a b {hint}.'\n")


@pytest.mark.parametrize(
    ("code", "options", "hint"),
    [
        (
            65,
            "--like checkpoint.pt",
            "hint: choose one with --entry; entries with tensors are 'model', 'model.best'",
        ),
        (
            65,
            "--like state_dict.pt --entry model",
            "hint: leave out --entry; the file holds nothing but tensors",
        ),
        (
            2,
            "--like gradient.npy --entry model",
            "hint: leave out --entry; only PyTorch checkpoints have entries",
        ),
        (2, "--like state_dict.pt --only nothing", "hint: check the file, --only and --exclude"),
        (
            2,
            "--length 3 --strip-prefix module.",
            "--strip-prefix, --only and --exclude go with --like",
        ),
    ],
)
def test_hints_name_the_options(tmp_path, monkeypatch, code, options, hint):
    monkeypatch.chdir(TORCH)
    assert hint in refused(code, "init", tmp_path / "round", *FOUR, *words(options))
    assert not (tmp_path / "round").exists()
