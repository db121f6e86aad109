"""A sample of the drill."""

from drill import run_rounds
from fault_lab import scratch


def test_random_rounds_go_as_the_model_says():
    with scratch() as folder:
        counts, violations = run_rounds(folder, range(12), seed=7)
    assert violations == []
    assert counts["rounds"] == 12
    assert counts["rounds with the exact sum"] >= 6


def test_keys_and_the_second_round_of_a_series_do_too():
    with scratch() as folder:
        counts, violations = run_rounds(folder, range(8), seed=7, construction="sketch")
    assert violations == []
    assert counts["second rounds of a series"] >= 3
    assert counts["rounds with the exact sum"] >= 8
    assert counts["forget 0"] >= 8
