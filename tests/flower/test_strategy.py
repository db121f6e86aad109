"""The strategy before and around rounds: which others it takes, its defaults, and what it says."""

import time

import numpy as np
import pytest
from federation import record_of
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    MultiKrum,
    QFedAvg,
)

import topk_secagg as ts
from topk_secagg.flower import TopKSecAgg
from topk_secagg.flower.server import choose_users
from topk_secagg.storage.workspace import Workspace


@pytest.mark.parametrize("users", range(2, 60))
def test_by_default_survivors_and_colluders_fit_any_number_of_users(users):
    survivors, colluders = choose_users(users)
    assert 1 <= colluders < survivors <= users
    assert 2 * survivors > users + colluders


def test_they_may_be_numbers_or_shares():
    assert choose_users(10) == (7, 3)
    assert choose_users(5) == (4, 1)
    assert choose_users(20, 0.8, 0.2) == (16, 4)
    assert choose_users(10, 8, 0.3) == (8, 3)
    assert choose_users(10, 0.9, 3) == (9, 3)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((12, 7, 3), r"U = 7 of N = 12 users, with T = 3: .* so at least 8"),
        ((10, 11, 3), "at most N"),
        ((1, None, None), "at most N"),
        ((10, 1.5, 3), "survivors=1.5 is no share of the users"),
        ((10, True, 3), "neither a number of users nor a share"),
    ],
)
def test_numbers_that_do_not_fit_are_refused_before_anybody_joins(given, words):
    with pytest.raises(ts.UsageError, match=words):
        choose_users(*given)
    named = dict(zip(("users", "survivors", "colluders"), given, strict=True))
    with pytest.raises(ts.UsageError, match=words):
        TopKSecAgg(FedAvg(), rank=2, **named)


@pytest.mark.parametrize("given", [{}, {"density": 0.1, "rank": 2}, {"rank": 2, "whole": True}])
def test_one_way_to_reduce_is_given(given):
    with pytest.raises(ts.UsageError, match="not given, or given twice"):
        TopKSecAgg(FedAvg(), **given)


class Saving(FedAvg):
    """What people make of FedAvg: it does more around the mean, and takes the same."""

    def configure_train(self, *arguments):
        return super().configure_train(*arguments)


class Clever(FedAvg):
    def aggregate_train(self, server_round, replies):
        return super().aggregate_train(server_round, replies)


MEANS = [FedAvg, FedProx, FedAvgM, FedAdagrad, FedAdam, FedYogi, Saving]
OTHERS = [FedMedian, FedTrimmedAvg, Krum, MultiKrum, Bulyan, QFedAvg, Clever]


def made(kind):
    return kind(proximal_mu=0.1) if kind is FedProx else kind()


@pytest.mark.parametrize("kind", MEANS)
def test_strategies_that_take_means_are_taken(kind):
    TopKSecAgg(made(kind), rank=2)


@pytest.mark.parametrize("kind", OTHERS)
def test_others_are_refused_until_their_user_says_so(kind):
    if kind is QFedAvg:
        kind = type("QFedAvg", (QFedAvg,), {"__init__": lambda _: None})
    with pytest.raises(ts.UsageError, match="does more with single updates"):
        TopKSecAgg(kind(), rank=2)
    TopKSecAgg(kind(), rank=2, takes_means=True)


def private(kind, **changes):
    given = {"noise_multiplier": 1.0, "clipping_norm": 1.0, "num_sampled_clients": 4}
    return kind(FedAvg(fraction_evaluate=0.0, min_available_nodes=5), **given | changes)


def test_clipping_at_the_server_bounds_nothing_and_is_refused():
    with pytest.raises(ts.UsageError, match="would see one mean, and bound nothing"):
        TopKSecAgg(private(DifferentialPrivacyServerSideFixedClipping), rank=2, feedback=False)


def test_adaptive_clipping_is_refused():
    inner = DifferentialPrivacyClientSideAdaptiveClipping(
        FedAvg(), noise_multiplier=1.0, num_sampled_clients=100
    )
    with pytest.raises(ts.UsageError, match="would see one mean"):
        TopKSecAgg(inner, rank=2, feedback=False)


def test_clipping_at_the_nodes_does_not_go_with_error_feedback():
    with pytest.raises(ts.UsageError, match="a node would send more than the bound"):
        TopKSecAgg(private(DifferentialPrivacyClientSideFixedClipping), rank=2)


def test_clipping_at_the_nodes_holds_without_it(lab):
    inner = private(DifferentialPrivacyClientSideFixedClipping, noise_multiplier=0.0)
    training = lab(strategy=inner, feedback=False, weight=lambda _: 10)
    training.train(rounds=1)
    assert ts.decode(training.rounds()[0]).survivors == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("changes", "weight", "words"),
    [
        ({"num_sampled_clients": 9}, lambda _: 10, "noise is for 9 clients, and 5 are in the sum"),
        ({}, lambda user: 10 + user, "the noise is for users of equal weights"),
    ],
)
def test_noise_for_others_than_are_in_the_sum_is_refused(lab, changes, weight, words):
    inner = private(DifferentialPrivacyClientSideFixedClipping, **changes)
    training = lab(strategy=inner, feedback=False, weight=weight)
    with pytest.raises(ts.TooFewSurvivors, match=words):
        training.train(rounds=1)


def test_a_node_refuses_clipped_updates_with_feedback(lab):
    """Whatever the server says of feedback, it is the same for all, and in the session."""
    training = lab()
    inner = training.strategy.strategy
    configure = inner.configure_train

    def clipping(number, arrays, config, grid):
        return configure(number, arrays, ConfigRecord({**config, "clipping_norm": 1.0}), grid)

    inner.configure_train = clipping
    with pytest.raises(ts.TooFewSurvivors, match="no user has masked"):
        training.train(rounds=1)
    assert ["error feedback adds to them" in each for each in training.reasons()] == [True] * 5


def test_it_is_the_outermost_strategy(lab):
    training = lab()
    training.strategy._courier = None
    with pytest.raises(ts.UsageError, match="another strategy is around TopKSecAgg"):
        training.strategy.configure_train(
            1, record_of(training.model), ConfigRecord(), training.grid
        )


def test_training_does_not_wait_for_ever(lab):
    training = lab(users=2, survivors=None, colluders=None, waiting=0.2)
    training.strategy.users = 3
    began = time.monotonic()
    with pytest.raises(ts.TooFewSurvivors, match=r"2 nodes are there after 0\.2 s, and training"):
        training.train(rounds=1)
    assert time.monotonic() - began < 5


def test_without_numbers_it_works_with_the_nodes_that_are_there(lab):
    training = lab(users=5, survivors=None, colluders=None, density=None, rank=2, max_weight=None)
    training.train(rounds=2)
    p = Workspace(training.rounds()[0]).session.parameters
    assert (p.users, p.survivors, p.colluders) == (5, 4, 1)


def test_one_line_a_round_and_its_metrics(lab, caplog):
    caplog.set_level("INFO")
    training = lab()
    training.train(rounds=1)
    (line,) = (r.getMessage() for r in caplog.records if "round 1: " in r.getMessage())
    assert line.startswith("topk-secagg: round 1: 5 of 5 users, ")
    metrics = training.result.train_metrics_clientapp[1]
    assert metrics["topk-secagg-users"] == 5
    assert metrics["topk-secagg-bytes"] > 1000
    assert metrics["topk-secagg-seconds"] > 0
    assert metrics["topk-secagg-beyond-clip"] == 0


def test_a_strategy_that_samples_too_few_is_warned_of(lab, caplog):
    sampling = FedAvg(fraction_train=0.4, fraction_evaluate=0.0, min_available_nodes=5)
    with pytest.raises(ts.TooFewSurvivors):
        lab(strategy=sampling).train(rounds=1)
    assert "2 users are asked in round 1, and 4 must survive: does the strategy" in caplog.text


def test_known_recipients_need_no_round_of_introductions(lab):
    training = lab(survivors=3)
    nodes = training.place / "known.txt"
    lines = []
    for user in range(1, 5):
        folder = training.grid.folder(user) / "secrets"
        lines.append(ts.keygen(1, folder).line())
    nodes.write_text("\n".join(lines) + "\n")
    training.strategy.recipients = nodes
    training.train(rounds=2)
    steps = [message.content["topk-secagg"]["step"] for _, message, _ in training.grid.seen]
    assert steps[:17] == ["deal"] * 5 + ["mask"] * 4 + ["confirm"] * 4 + ["answer"] * 4
    p = Workspace(training.rounds()[0]).session.parameters
    assert p.users == 4
    total = ts.decode(training.rounds()[1])
    assert total.survivors == [1, 2, 3, 4]
    assert np.count_nonzero(total.vector)


# leaving


def test_a_node_leaves_what_did_not_end_by_a_command(lab):
    import subprocess
    import sys

    training = lab()
    training.strategy._end = lambda: None
    training.grid.faults = lambda step, _user: "silent" if step == "answer" else None
    with pytest.raises(ts.TooFewSurvivors):
        training.train(rounds=1)
    folder = training.grid.folder(2)
    assert list(folder.glob("secrets/**/*.h5"))
    command = [sys.executable, "-m", "topk_secagg.flower", str(folder)]
    for left in (1, 0):
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        assert (ended.stdout + ended.stderr).count("left training") == left
    assert list(folder.glob("secrets/**/*.h5")) == []
    assert not list(folder.glob("training-*/round-*"))
    assert list(folder.glob("secrets/*/user-*.ledger.json"))


def test_what_was_stopped_is_left_at_the_next_training_a_day_later(lab, monkeypatch):
    training = lab()
    training.strategy._end = lambda: None
    training.grid.faults = lambda step, _user: "silent" if step == "answer" else None
    with pytest.raises(ts.TooFewSurvivors):
        training.train(rounds=1)
    for context in training.grid.contexts.values():
        context.run_id = 8
    training.grid.faults = lambda _step, _user: None
    update = training.update
    training.update = lambda user, number, arrays: update(user, number + 5, arrays)
    now = time.time()
    monkeypatch.setattr("topk_secagg.flower.node.time.time", lambda: now + 25 * 3600)
    training.train(rounds=1)
    for user in range(1, 6):
        states = training.grid.folder(user).glob("training-*/state.json")
        assert ['"ended": true' in path.read_text() for path in states] == [True] * 2
