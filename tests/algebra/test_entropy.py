"""Random bytes come through one function, which only code can replace that is not installed."""

import os
from collections import Counter

import pytest
from deterministic import drawn_from, injected, source_of
from played import CONFIRMING, Violation

from topk_secagg.algebra import entropy
from topk_secagg.storage.keys import Identity


def test_by_default_they_are_the_operating_systems(monkeypatch):
    assert entropy.source is entropy.of_system
    monkeypatch.setattr(os, "urandom", lambda count: b"x" * count)
    assert entropy.draw(3, "anything") == b"xxx"


@pytest.fixture
def without_a_system(monkeypatch):
    """The operating system's generator is gone, for keys too."""

    def gone(count):
        raise AssertionError("the operating system was asked")

    monkeypatch.setattr(os, "urandom", gone)


@pytest.mark.usefixtures("without_a_system")
@pytest.mark.parametrize("construction", ["permutation", "sketch"])
def test_a_whole_round_asks_for_nothing_else(new_round, construction):
    asked = Counter()
    drawn = source_of(1)

    def noted(count, purpose):
        asked[purpose.partition(" in session")[0]] += 1
        return drawn(count, purpose)

    with injected(noted):
        new_round(**CONFIRMING).play().check_sum()
    assert asked == {
        "number of a folder of secrets": 1,
        "age identity": 5,
        "Ed25519 key": 5,
        "nonce of a session": 1,
        **{f"secret of user {n}": 1 for n in range(1, 6)},
        "digests of gradients": 1,
        "checks of answers": 1,
    }


@pytest.mark.usefixtures("without_a_system")
@pytest.mark.rule(5)
def test_if_one_step_asked_the_system_itself_the_round_would_end(new_round, monkeypatch):
    """The twin."""
    monkeypatch.setattr(
        Identity, "drawn", lambda number: Identity("", os.urandom(32).hex(), number)
    )
    with drawn_from(1), pytest.raises(Violation, match="the operating system was asked"):
        new_round(**CONFIRMING).play()


def test_the_source_of_tests_does_not_depend_on_the_order_of_threads():
    with drawn_from(1):
        one = [entropy.draw(32, purpose) for purpose in ("a", "b", "a")]
    with drawn_from(1):
        two = [entropy.draw(32, purpose) for purpose in ("b", "a", "a")]
    assert one == [two[1], two[0], two[2]]
    assert len(set(one)) == 3
    assert entropy.source is entropy.of_system
