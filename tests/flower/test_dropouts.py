"""A node that fails or is late at any message drops out; with too few the round is skipped, and
training goes on."""

import random

import numpy as np
import pytest
from federation import FAILING, LOST, SILENT, random_update, refuse_at, step_of
from flwr.serverapp.strategy import FedAvg
from test_training import assert_sum_is_that_of_aggregate

import topk_secagg as ts
from topk_secagg.flower.parcels import LAST, RECORD
from topk_secagg.storage.ledger import Ledger
from topk_secagg.storage.workspace import Workspace


def in_round(lab, number, faults):
    """Faults in one round alone; the server has started as many rounds as there are folders."""
    lab.grid.faults = lambda step, user: faults(step, user) if len(lab.rounds()) == number else None


@pytest.mark.parametrize(
    ("step", "how"),
    [
        ("mask", SILENT),
        ("mask", FAILING),
        ("mask", LOST),
        ("confirm", FAILING),
        ("confirm", LOST),
        ("answer", FAILING),
        ("answer", LOST),
    ],
)
def test_a_node_that_drops_out_of_a_round_is_back_in_the_next(lab, step, how):
    training = lab()
    dropped = 1
    in_round(training, 2, refuse_at(step, dropped, how=how))
    training.train(rounds=3)
    survivors = [2, 3, 4, 5] if step == "mask" else [1, 2, 3, 4, 5]
    assert_sum_is_that_of_aggregate(training, 1, [1, 2, 3, 4, 5])
    assert_sum_is_that_of_aggregate(training, 2, survivors)
    assert_sum_is_that_of_aggregate(training, 3, [1, 2, 3, 4, 5])
    answering = ts.decode(training.rounds()[1]).answering
    assert (1 in answering) == (step == "confirm")
    # what was not sent is kept: the X of a survivor counts as sent, that of a drop-out does not
    assert training.reasons() == []


def test_who_is_not_there_when_keys_are_made_known_is_no_user(lab):
    training = lab(survivors=3)
    training.grid.faults = refuse_at("join", 5)
    training.train(rounds=2)
    for number, folder in enumerate(training.rounds(), start=1):
        assert Workspace(folder).session.parameters.users == 4
        assert_sum_is_that_of_aggregate(training, number, [1, 2, 3, 4])


@pytest.mark.parametrize("how", [SILENT, LOST])
def test_who_deals_nothing_is_out_of_the_series(lab, how, caplog):
    training = lab()
    training.grid.faults = refuse_at("deal", 2, how=how)
    training.train(rounds=2)
    for number in (1, 2):
        assert_sum_is_that_of_aggregate(training, number, [1, 3, 4, 5])
    assert "user 2 (node 1014) dealt nothing: it waits for a new series" in caplog.text


@pytest.mark.parametrize("ids", [[], [None, "x", "y", "z", "w"]], ids=["none", "all but one"])
def test_messages_that_flower_does_not_take_are_drop_outs(lab, caplog, ids):
    """As its grid does with messages that are too large, or cannot be sent."""
    training = lab()
    push = training.grid.push_messages

    def pushing(messages):
        messages = list(messages)
        is_confirming = messages and step_of(messages[0]) == "confirm"
        return ids if is_confirming else push(messages)

    training.grid.push_messages = pushing
    with pytest.raises(ts.TooFewSurvivors, match="none of 1 round gave a sum: 0 users have conf"):
        training.train(rounds=1)
    assert "user 1 (node 1007) cannot be reached at the step confirm" in caplog.text
    assert "round 1 is skipped" in caplog.text


@pytest.mark.parametrize("how", [SILENT, LOST])
def test_who_misses_its_shares_gets_them_in_the_next_round(lab, how):
    training = lab()
    in_round(training, 1, refuse_at("mask", 2, how=how))
    training.train(rounds=2)
    assert_sum_is_that_of_aggregate(training, 1, [1, 3, 4, 5])
    assert_sum_is_that_of_aggregate(training, 2, [1, 2, 3, 4, 5])


def test_an_app_that_raises_is_a_drop_out_and_keeps_its_words_to_itself(lab):
    def update(user, number, arrays):
        if (user, number) == (3, 2):
            raise ValueError(f"secret numbers {arrays}")
        return random_update(user, number, arrays)

    training = lab(update=update)
    training.train(rounds=3)
    assert_sum_is_that_of_aggregate(training, 2, [1, 2, 4, 5])
    assert_sum_is_that_of_aggregate(training, 3, [1, 2, 3, 4, 5])
    assert training.reasons() == ["the app failed with ValueError; look at its log"]


@pytest.mark.parametrize(
    ("step", "users"),
    [("mask", (1, 2)), ("confirm", (1, 2)), ("answer", (3, 4))],
)
def test_with_too_few_a_round_is_skipped_and_training_goes_on(lab, caplog, step, users):
    training = lab()
    models = {}

    def update(user, number, arrays):
        models[number] = arrays
        return random_update(user, number, arrays)

    training.update = update
    in_round(training, 2, refuse_at(step, *users, how=FAILING))
    training.train(rounds=3)
    assert "round 2 is skipped, and the model stays as it is" in caplog.text
    assert list(training.result.train_metrics_clientapp) == [1, 3]
    assert np.count_nonzero(models[2]["layer.weight"])
    np.testing.assert_array_equal(models[3]["layer.weight"], models[2]["layer.weight"])
    assert_sum_is_that_of_aggregate(training, 3, [1, 2, 3, 4, 5])


def test_too_few_dealers_and_the_next_round_begins_anew(lab, caplog):
    training = lab()
    in_round(training, 1, refuse_at("deal", 2, 3))
    training.train(rounds=2)
    assert "3 users dealt keys or shares, and 4 must survive" in caplog.text
    first, second = training.rounds()
    assert Workspace(second).session.series is None
    assert Workspace(second).session.id != Workspace(first).session.id
    assert ts.decode(second).survivors == [1, 2, 3, 4, 5]


def test_too_few_nodes_with_keys_and_the_next_round_begins_anew(lab, caplog):
    training = lab()
    training.grid.faults = lambda step, user: (
        FAILING if step == "join" and user < 3 and len(training.grid.seen) < 3 else None
    )
    training.train(rounds=2)
    assert "3 nodes have keys that can be used, and 4 must survive" in caplog.text
    assert [ts.decode(folder).survivors for folder in training.rounds()] == [[1, 2, 3, 4, 5]]


def test_who_is_not_sampled_is_a_drop_out_and_catches_up(lab):
    sampling = FedAvg(fraction_train=0.8, fraction_evaluate=0.0, min_available_nodes=5)
    training = lab(strategy=sampling)
    random.seed(4)
    training.train(rounds=4)
    assert training.reasons() == []
    sampled = [sorted(training.updates[number]) for number in range(1, 5)]
    assert len({*map(tuple, sampled)}) > 1
    assert all(len(users) == 4 for users in sampled)
    for number, users in enumerate(sampled, start=1):
        assert_sum_is_that_of_aggregate(training, number, users)


@pytest.mark.rule(13)
@pytest.mark.parametrize("step", ["confirm", "answer"])
def test_replies_that_were_lost_lose_nothing(lab, step, caplog):
    """At the start of the next round the server asks again, and the same bytes come."""
    training = lab()
    lost = set()

    def faults(at, user):
        if at != step or user > 2 or len(training.rounds()) != 2 or user in lost:
            return None
        lost.add(user)
        return LOST

    models = {}

    def update(user, number, arrays):
        models[number] = arrays
        return random_update(user, number, arrays)

    training.update = update
    training.grid.faults = faults
    training.train(rounds=3)
    assert lost == {1, 2}
    assert "round 2 is skipped" in caplog.text
    assert training.reasons() == []
    for number in (1, 2, 3):
        assert_sum_is_that_of_aggregate(training, number, [1, 2, 3, 4, 5])
    mean = ts.decode(training.rounds()[1], mean=True).total
    for name, before in models[2].items():
        np.testing.assert_allclose(models[3][name], before + mean[name], atol=1e-6)


def test_a_late_sum_is_not_lost_with_the_round_after_it(lab):
    training = lab()
    lost = set()

    def faults(at, user):
        if at == "answer" and user < 3 and len(training.rounds()) == 1 and user not in lost:
            lost.add(user)
            return LOST
        return SILENT if at == "mask" and len(training.rounds()) == 2 else None

    training.grid.faults = faults
    after = training.train(rounds=2)
    mean = ts.decode(training.rounds()[0], mean=True).total
    for name, part in after.items():
        np.testing.assert_allclose(part, mean[name], atol=1e-6)


# error feedback: rule 10 of scheme.md, section 7


def test_what_a_drop_out_did_not_send_it_sends_later(lab):
    """Its X did not arrive, and survivors.json without it says so: the old residual holds."""
    training = lab()
    in_round(training, 2, refuse_at("mask", 3, how=LOST))
    training.train(rounds=3)
    first = training.residuals[2][3]
    np.testing.assert_array_equal(training.residuals[3][3], first)
    assert np.count_nonzero(first)


def test_what_a_survivor_sent_counts_as_sent_though_it_did_not_answer(lab):
    training = lab()
    in_round(training, 2, refuse_at("answer", 3, how=SILENT))
    training.train(rounds=3)
    before = training.residuals[2][3] + given(training, 2, 3)
    sent = before - training.residuals[3][3]
    assert 0 < np.count_nonzero(sent) <= before.size // 4


@pytest.mark.rule(10)
@pytest.mark.parametrize("step", ["mask", "answer"])
def test_an_x_in_a_round_that_was_skipped_counts_as_sent(lab, step):
    training = lab()
    in_round(training, 2, refuse_at(step, 1, 2, how=SILENT))
    training.train(rounds=3)
    before = training.residuals[2][5] + given(training, 2, 5)
    sent = before - training.residuals[3][5]
    assert 0 < np.count_nonzero(sent) <= before.size // 4


@pytest.mark.rule(13)
def test_the_same_update_is_not_sent_twice_after_a_round_without_a_sum(lab):
    """A server could say that a round failed, and ask for the same updates without one user."""

    def update(user, number, arrays):
        return random_update(user, 2 if number == 3 else number, arrays)

    training = lab(update=update)
    in_round(training, 2, refuse_at("answer", 1, 2, how=LOST))
    training.train(rounds=4)
    words = "has sent this gradient already"
    assert [words in reason for reason in training.reasons()] == [True] * 5
    assert not training.rounds()[2].joinpath("masked").exists()
    assert_sum_is_that_of_aggregate(training, 4, [1, 2, 3, 4, 5])


@pytest.mark.rule(13)
def test_without_the_rule_it_would_be_sent_again(lab, monkeypatch):
    """The twin."""

    def update(user, number, arrays):
        return random_update(user, 2 if number == 3 else number, arrays)

    monkeypatch.setattr("topk_secagg.rounds.mask._sent_elsewhere", lambda *_, **__: [])
    training = lab(update=update)
    in_round(training, 2, refuse_at("answer", 1, 2, how=LOST))
    training.train(rounds=3)
    assert ts.decode(training.rounds()[2]).survivors == [1, 2, 3, 4, 5]


def test_error_feedback_can_be_turned_off(lab):
    training = lab(node_config={"topk-secagg-error-feedback": False})
    training.train(rounds=2)
    assert training.residuals[2] == dict.fromkeys(range(1, 6))
    assert_sum_is_that_of_aggregate(training, 2, [1, 2, 3, 4, 5])


# what a node erases


def without_last(message):
    """A server that does not say which round is the last."""
    record = message.content.config_records[RECORD]
    if LAST in record:
        record[LAST] = str(False)
    return message


def secrets_of(training, user):
    return sorted(
        path.name.split("-")[1].partition(".")[2]
        for path in (training.grid.folder(user) / "secrets").rglob("*.h5")
    )


def test_a_node_has_the_secrets_of_its_latest_round_alone(lab):
    training = lab()
    in_round(training, 2, refuse_at("mask", 1, 2, how=LOST))  # skipped: never has survivors
    training.strategy._end = lambda: None
    training.grid.meddle = without_last
    training.train(rounds=3)
    for user in range(1, 6):
        # of rounds of which it is not known whether their X counts, what was not sent is kept
        assert secrets_of(training, user) == ["chain", "h5", *["residual.h5"] * 3]
        # the first, in which keys may still arrive, and the latest
        assert len(list(training.grid.folder(user).glob("training-*/round-*"))) == 2


def test_when_training_is_over_only_ledgers_and_keys_are_left(lab):
    training = lab()
    in_round(training, 3, refuse_at("answer", 2, how=SILENT))
    training.train(rounds=3)
    for user in range(1, 6):
        assert secrets_of(training, user) == []
        assert not list(training.grid.folder(user).glob("training-*/round-*"))
        for path in (training.grid.folder(user) / "secrets").rglob("*.ledger.json"):
            assert Ledger.read(path, path.parent.name, user).forgotten


def given(training, number, user):
    """An update with its weight, as one vector."""
    parts = [part.reshape(-1) for part in training.updates[number][user].values()]
    return training.weight(user) * np.concatenate(parts)
