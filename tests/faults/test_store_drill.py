"""A sample of the drill against a store: three kinds of rounds, one with confirmations."""

from fault_lab import scratch
from store_drill import run_rounds


def test_honest_users_lose_nothing_and_are_not_named_and_no_wrong_sum_is_certain():
    with scratch() as folder:
        counts, violations = run_rounds(folder, range(1, 4), seed=1)
    assert violations == []
    assert counts["rounds with a set"] >= 1
    assert counts["sums that are certain"] >= 1


def test_nor_where_shares_are_keys_in_two_rounds_of_a_series():
    with scratch() as folder:
        counts, violations = run_rounds(folder, range(5, 7), seed=1)
    assert violations == []
    assert counts["second rounds of a series"] == 2
    assert counts["rounds with a set"] >= 3
    assert counts["sums that are certain"] >= 1
