"""Names and tables that people give to `run` and `mask`: odd ones are refused or sorted, never a
traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from topk_secagg.errors import BadData, UsageError
from topk_secagg.rounds.user_files import check_output, gradient_files, read_weights

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
