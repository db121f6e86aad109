"""A sample of the damage of damage.py; `make fuzz` runs far more."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest
from damage import SPECIAL, Lab, blind, run_cases
from fault_lab import RECIPES, Bench, judged, scratch

CASES = 110


def test_damaged_files_are_refused_or_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    endings: Counter[str] = Counter()
    violations = []

    def report(_number: int, ending: str, what: str) -> None:
        endings[ending] += 1
        if ending == "VIOLATION":
            violations.append(what)

    with scratch() as folder:
        monkeypatch.chdir(folder)
        lab = Lab(folder, ("permutation", "rotation", "residual"))
        run_cases(lab, range(CASES), 2, report)
    assert violations == []
    assert sum(endings.values()) == CASES
    assert endings["exact"] > 0
    assert endings["eliminate exits 65"] > 0


def test_blind_damage_changes_something() -> None:
    import random

    source = random.Random(1)
    content = bytes(range(1, 256)) * 4
    for kind in ("flip", "flips", "zero", "noise", "cut", "grow", "empty", "garbage", "double"):
        assert any(blind(content, kind, source) != content for _ in range(3)), kind
    assert len(set(SPECIAL)) == len(SPECIAL)


ODD_VALUES = [
    ("permutation", "init", "session.json", ("insecure_seed",), 10**400),
    ("permutation", "init", "session.json", ("parameters", "users"), 10**30),
    ("permutation", "init", "session.json", ("parameters", "clip"), 1e308),
    ("permutation", "init", "session.json", ("layout", 0, "shape"), [2**31, 2**31]),
    ("permutation", "frozen", "survivors.json", ("survivors", 0, "weight"), 1000.0),
    ("permutation", "frozen", "survivors.json", ("survivors", 0, "user"), 10**30),
    ("permutation", "frozen", "secrets/user-01.ledger.json", ("user",), [1]),
    ("residual", "frozen", "secrets/user-01.ledger.json", ("residual", "path"), "x" * 5000),
]
KNOWN = [
    ("residual", "frozen", "secrets/user-01.ledger.json", ("residual", "path"), "\0"),
    ("sealed", "init", "session.json", ("recipients", 1, "age"), 5),
    ("sealed", "init", "session.json", ("recipients", 1, "age"), "age1x"),
    ("sealed", "init", "session.json", ("recipients", 1, "ed25519"), []),
]


@pytest.fixture(scope="module")
def benches() -> Iterator[dict[str, Bench]]:
    with scratch() as folder:
        yield {name: Bench(RECIPES[name], folder / name) for name in ("permutation", "residual", "sealed")}


@pytest.mark.parametrize(
    ("recipe", "stage", "path", "place", "value"), [*ODD_VALUES, *(pytest.param(*known) for known in KNOWN)]
)
def test_values_that_no_document_has(
    benches: dict[str, Bench], recipe: str, stage: str, path: str, place: tuple[object, ...], value: object
) -> None:
    state = benches[recipe].at(stage)
    target = state.folder / path
    document = json.loads(target.read_text())
    holder = document
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    target.unlink()
    target.write_text(json.dumps(document, indent=2) + "\n")
    result = judged(*(state.offline(1) if stage == "init" else state.eliminate(1)))
    if place != ("insecure_seed",):
        assert result.code in (65, 73), result
