"""A sample of the damage of damage.py; `make fuzz` runs far more."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from damage import Lab, run_cases
from fault_lab import RECIPES, Bench, judged, must, own_copy, scratch
from rounds import datasets, edit, rewrite

CASES = 150


def test_damaged_files_are_refused_or_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    endings: Counter[str] = Counter()
    violations = []

    def report(_number: int, ending: str, what: str) -> None:
        endings[ending] += 1
        if ending == "VIOLATION":
            violations.append(what)

    with scratch() as folder:
        monkeypatch.chdir(folder)
        lab = Lab(folder, ("permutation", "moments", "spare", "residual", "sealed"))
        run_cases(lab, range(CASES), 2, report)
    assert violations == []
    assert sum(endings.values()) == CASES
    assert endings["exact"] > 0
    assert endings["eliminate exits 65"] > 0


ODD_VALUES = [
    ("permutation", "init", "session.json", ("insecure_seed",), 10**400),
    ("permutation", "init", "session.json", ("parameters", "users"), 10**30),
    ("permutation", "init", "session.json", ("parameters", "clip"), 1e308),
    ("permutation", "init", "session.json", ("layout", 0, "shape"), [2**31, 2**31]),
    ("permutation", "init", "session.json", ("freezer",), 5),
    ("permutation", "init", "session.json", ("confirm",), True),
    ("permutation", "frozen", "survivors.json", ("survivors", 0, "weight"), 1000.0),
    ("permutation", "frozen", "survivors.json", ("survivors", 0, "user"), 10**30),
    ("permutation", "frozen", "survivors.json", ("freezer",), 2),
    ("permutation", "frozen", "survivors.json", ("signature",), 7),
    ("permutation", "frozen", "secrets/user-01.ledger.json", ("user",), [1]),
    ("permutation", "frozen", "secrets/user-01.ledger.json", ("holds",), 5),
    ("permutation", "frozen", "secrets/user-01.ledger.json", ("residual",), 0),
    ("residual", "frozen", "secrets/user-01.ledger.json", ("residual", "path"), "x" * 5000),
    ("residual", "frozen", "secrets/user-01.ledger.json", ("residual", "path"), "\0"),
    ("sealed", "confirmed", "survivors.json", ("signature",), "f" * 128),
    ("sealed", "confirmed", "survivors.json", ("freezer",), 2),
    ("sealed", "confirmed", "confirmed/user-02.json", ("signature",), ["f" * 128]),
    ("sealed", "init", "session.json", ("recipients", 1, "age"), 5),
    ("sealed", "init", "session.json", ("recipients", 1, "age"), "age1x"),
    ("sealed", "init", "session.json", ("recipients", 1, "ed25519"), []),
]


@pytest.fixture(scope="module")
def benches() -> Iterator[dict[str, Bench]]:
    with scratch() as folder:
        names = ("permutation", "residual", "sealed", "lying")
        yield {name: Bench(RECIPES[name], folder / name) for name in names}


@pytest.mark.parametrize(
    ("recipe", "stage", "path", "place", "value"), ODD_VALUES, ids=[f"{odd[2]} {odd[3]}" for odd in ODD_VALUES]
)
def test_values_that_no_document_has(
    benches: dict[str, Bench], recipe: str, stage: str, path: str, place: tuple[object, ...], value: object
) -> None:
    state = benches[recipe].at(stage)
    target = state.folder / path

    def change(document: object) -> None:
        for key in place[:-1]:
            document = document[key]
        document[place[-1]] = value

    edit(own_copy(target), change)
    result = judged(*(state.offline(1) if stage == "init" else state.eliminate(1)))
    if place != ("insecure_seed",):
        assert result.code in (65, 66, 73), result


def another_set(path: Path) -> None:
    rewrite(path, lambda attributes, _: attributes.update(survivors="0" * 64))


def another_d(path: Path) -> None:
    rewrite(path, lambda attributes, _: attributes.update(blocks=1))


def symbols_beyond(path: Path) -> None:
    rewrite(path, lambda _, found: found["y"].fill(2**32 - 1))


JUNK: dict[str, Callable[[Path], object]] = {
    "noise": lambda path: path.write_bytes(random.Random(1).randbytes(3000)),
    "nothing": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[:700]),
    "huge": lambda path: os.truncate(path, 1 << 41),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "zeros": lambda path: (path.unlink(), path.symlink_to("/dev/zero")),
    "X": lambda path: shutil.copy(path.parents[1] / "masked" / path.name, path),
    "of somebody else": lambda path: shutil.copy(path.with_name("user-01.h5"), path),
    "another set": another_set,
    "another D": another_d,
    "no symbols": symbols_beyond,
}


@pytest.mark.parametrize("what", JUNK)
def test_a_junk_answer_counts_as_missing(benches: dict[str, Bench], what: str) -> None:
    """Two of five answers are junk, and three suffice; unless `decode` is strict. With three it is one too many."""
    state = benches["lying"].at("answered")
    for number, user in enumerate((3, 5, 2)):
        path = state.folder / f"elimination/user-{user:02}.h5"
        JUNK[what](own_copy(path))
        result = judged(*state.decode())
        assert result.code == (0 if number < 2 else 69), result
        if not result.code:
            assert state.check_aggregate() == []
            assert set(datasets(state.folder / "aggregate.h5")["answering"]) == {1, 2, 3, 4, 5} - {3, user}
            assert result.err.count("is left out") == number + 1
            assert judged(*state.decode("--strict")).code in (65, 66)
    must(*benches["lying"].at("answered").decode("--strict"))
