"""A sample of the damage of damage.py; `make fuzz` runs far more."""

from collections import Counter

from damage import Lab, run_cases
from fault_lab import scratch

CASES = 200


def test_damaged_files_are_refused_or_do_not_matter(monkeypatch):
    endings = Counter()
    violations = []

    def report(_number, ending, what):
        endings[ending] += 1
        if ending == "VIOLATION":
            violations.append(what)

    with scratch() as folder:
        monkeypatch.chdir(folder)
        recipes = (
            "permutation",
            "sketch",
            "shares",
            "later",
            "residual",
            "sealed",
        )
        lab = Lab(folder, recipes)
        run_cases(lab, range(CASES), 2, report)
    assert violations == []
    assert sum(endings.values()) == CASES
    assert endings["exact"] > 0
    assert endings["eliminate exits 65"] > 0
