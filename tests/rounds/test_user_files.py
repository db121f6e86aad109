"""Names and tables that people give to `run` and `mask`: odd ones are refused or sorted, never a
traceback."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from played import call, must

from topk_secagg.errors import BadData, InputMissing, UsageError
from topk_secagg.gradients.files import read_gradient, write_gradient
from topk_secagg.gradients.tensors import Gradient, Tensor
from topk_secagg.rounds.user_files import (
    check_output,
    gradient_files,
    in_natural_order,
    names_of,
    read_weights,
)

TABLES = {
    "a field that csv does not take": ("weights.csv", "1," + "9" * 200_000),
    "JSON without end": ("weights.json", '{"1":' + "[" * 100_000),
    "no weight": ("weights.csv", "1"),
    "no object": ("weights.json", "[[1, 2]]"),
    "true as a weight": ("weights.json", '{"1": true}'),
    "a header in JSON, which needs none": ("weights.json", '{"user": "weight", "1": 2}'),
}


@pytest.mark.parametrize("case", TABLES)
def test_a_table_that_cannot_be_read_is_bad_data(tmp_path: Path, case: str) -> None:
    name, text = TABLES[case]
    (tmp_path / name).write_text(text)
    with pytest.raises(BadData, match="is not a table of users and weights"):
        read_weights(tmp_path / name, [Path("user-01.npy")])


@pytest.mark.parametrize("table", ["weights.json", "weights.csv"])
def test_a_user_that_is_listed_twice_is_bad_data(tmp_path: Path, table: str) -> None:
    (tmp_path / table).write_text(
        '{"1": 2, "1": 3}' if table.endswith("json") else "user,weight\n1,2\n1,3"
    )
    with pytest.raises(BadData, match="'1' appears twice"):
        read_weights(tmp_path / table, [Path("user-01.npy")])


def test_names_sort_naturally_even_with_digits_that_are_no_numbers(tmp_path: Path) -> None:
    names = ["m²-user-2.npy", "m²-user-10.npy"]
    for name in names:
        (tmp_path / name).touch()
    assert [path.name for path in gradient_files([tmp_path])] == names


@pytest.mark.parametrize("where", ["sum.npy", "../gradients/sum.npy", "../link/sum.npy"])
def test_the_sum_is_not_written_among_the_gradients(tmp_path: Path, where: str) -> None:
    folder = tmp_path / "gradients"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(UsageError, match="among the gradients"):
        check_output(folder / where, [folder])


# a folder for each user


def put(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


CLIENTS = [f"client-{n}/grad.pt" for n in (1, 2, 10)]


def test_a_pattern_finds_a_file_in_each_folder_in_natural_order(tmp_path: Path) -> None:
    put(tmp_path, *CLIENTS, "client-1/notes.txt", ".hidden/grad.pt")
    files = gradient_files([tmp_path / "*" / "grad.pt"])
    assert files == [tmp_path / name for name in CLIENTS]


def test_expanded_by_a_shell_it_is_the_same(tmp_path: Path) -> None:
    files = [tmp_path / name for name in CLIENTS]
    as_shells_do = sorted(files, key=str)
    assert as_shells_do != files
    assert in_natural_order(as_shells_do) == files


def test_an_order_that_somebody_chose_stays(tmp_path: Path) -> None:
    chosen = [tmp_path / name for name in ("b.pt", "a.pt", "c.pt")]
    assert in_natural_order(chosen) == chosen


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(tmp_path: Path) -> None:
    put(tmp_path, "a[1].pt", "a1.pt")
    assert gradient_files([tmp_path / "a[1].pt"]) == [tmp_path / "a[1].pt"]


def test_folders_that_save_pretrained_wrote_are_gradients(tmp_path: Path) -> None:
    put(tmp_path, *(f"c{n}/{name}" for n in (2, 10) for name in ADAPTER))
    expected = [tmp_path / f"c{n}" / ADAPTER[0] for n in (2, 10)]
    assert gradient_files([tmp_path / "*"]) == expected
    assert gradient_files([tmp_path / "c2", tmp_path / "c10"]) == expected


ADAPTER = ("adapter_model.safetensors", "adapter_config.json", "training_args.bin", "README.md")


def test_what_a_pattern_must_not_find_is_refused(tmp_path: Path) -> None:
    put(tmp_path, *CLIENTS)
    with pytest.raises(InputMissing, match="finds nothing"):
        gradient_files([tmp_path / "*" / "gradient.pt"])
    with pytest.raises(BadData, match=r"finds the folder .*client-1, in which save_pretrained"):
        gradient_files([tmp_path / "*"])


def test_a_folder_of_folders_leads_to_a_pattern(tmp_path: Path) -> None:
    put(tmp_path, *CLIENTS)
    with pytest.raises(InputMissing) as caught:
        gradient_files([tmp_path])
    assert f"'{tmp_path}/*/grad.pt'" in caught.value.hint


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["g/u1.pt", "g/u2.pt"], ["u1.pt", "u2.pt"]),
        (["g/a/grad.pt", "g/b/grad.pt"], ["a", "b"]),
        (["g/a/run/grad.pt", "g/b/run/grad.pt"], ["a", "b"]),
        (["g/a/1/grad.pt", "g/a/2/grad.pt", "g/b/1/grad.pt"], ["a/1", "a/2", "b/1"]),
        (["g/a/x.pt", "g/b/x.pt", "g/b/y.pt"], ["a/x.pt", "b/x.pt", "b/y.pt"]),
        (["g/grad.pt", "g/a/grad.pt"], ["grad.pt", "a/grad.pt"]),
        (["g/grad.pt", "g/grad.pt"], ["g/grad.pt", "g/grad.pt"]),
    ],
)
def test_users_are_called_by_the_part_that_differs(paths: list[str], names: list[str]) -> None:
    called = names_of(dict(enumerate(map(Path, paths), start=1)))
    assert list(called.values()) == names


def test_gradients_in_memory_have_no_names() -> None:
    assert names_of({1: [1.0], 2: [2.0]}) == {}


@pytest.mark.parametrize("row", ["client-2,7", "2,7"])
def test_a_table_of_weights_uses_these_names(tmp_path: Path, row: str) -> None:
    table = tmp_path / "weights.csv"
    table.write_text(f"client-1,5\n{row}\nclient-10,9\n")
    files = [tmp_path / name for name in CLIENTS]
    assert read_weights(table, files) == [5, 7, 9]


def test_a_name_that_all_files_have_names_nobody(tmp_path: Path) -> None:
    table = tmp_path / "weights.csv"
    table.write_text("grad,5\n")
    with pytest.raises(BadData, match="'grad' names no user"):
        read_weights(table, [tmp_path / name for name in CLIENTS])


def test_the_sum_is_not_written_where_the_pattern_finds_it(tmp_path: Path) -> None:
    put(tmp_path, *CLIENTS, "sum/readme")
    pattern = tmp_path / "*" / "grad.pt"
    with pytest.raises(UsageError, match="among the gradients"):
        check_output(tmp_path / "sum" / "grad.pt", [pattern])
    check_output(tmp_path / "sum" / "sum.pt", [pattern])


def test_a_run_with_a_pattern_names_the_clients(tmp_path: Path) -> None:
    for n in (1, 2, 10):
        put(tmp_path, f"client-{n}/grad.npy")
        np.save(tmp_path / f"client-{n}" / "grad.npy", np.full(5, float(n)))
    options = ("--survivors", 2, "--colluders", 1, "--top-k", 5, "--output", tmp_path / "sum.npy")
    pattern = tmp_path / "client-*" / "grad.npy"
    said = must("run", tmp_path / "r", "--gradients", pattern, *options).out
    assert "users: 1 client-1, 2 client-2, 3 client-10\n" in said
    assert np.load(tmp_path / "sum.npy") == pytest.approx(np.full(5, 13.0))
    clipped = call("run", tmp_path / "s", "--gradients", pattern, *options, "--clip", 3)
    assert "3 (client-10)" in clipped.err
    expanded = sorted(tmp_path.glob("client-*/grad.npy"), key=str)
    again = must("run", tmp_path / "t", "--gradients", *expanded, *options[:-2]).out
    assert "users: 1 client-1, 2 client-2, 3 client-10\n" in again


def test_a_user_masks_the_folder_that_save_pretrained_wrote(tmp_path: Path) -> None:
    for n in range(1, 4):
        tensors = [Tensor("lora_B.weight", "float32", np.full((2, 3), n, np.float32))]
        put(tmp_path, f"client-{n}/adapter_config.json")
        with (tmp_path / f"client-{n}" / ADAPTER[0]).open("wb") as stream:
            write_gradient(stream, ".safetensors", Gradient(tensors))
    folder = tmp_path / "r"
    must("init", folder, "--users", 3, "--survivors", 2, "--colluders", 1, "--top-k", 6,
         "--clip", 4, "--like", tmp_path / "client-1")  # fmt: skip
    must("offline", folder, "--user", "all")
    must("mask", folder, "--user", 1, "--gradient", tmp_path / "client-1")
    must("mask", folder, "--user", "2,3", "--gradients", tmp_path / "client-*")
    must("freeze", folder)
    must("eliminate", folder, "--user", "all")
    must("decode", folder, "--mean", "--output", tmp_path / ADAPTER[0])
    (tensor,) = read_gradient(tmp_path / ADAPTER[0])
    assert (tensor.name, tensor.shape) == ("lora_B.weight", (2, 3))
    assert tensor.array == pytest.approx(np.full((2, 3), 2.0))


def test_any_other_folder_is_no_gradient(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not one that save_pretrained wrote"):
        read_gradient(tmp_path)
