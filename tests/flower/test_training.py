"""Whole trainings in one process: the sum is that of `aggregate`, and the strategy inside sees one
reply."""

import numpy as np
import pytest
from federation import FAILING, Lab, files_of, random_update, refuse_at
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, FedProx

import topk_secagg as ts
from topk_secagg.flower import TopKSecAgg
from topk_secagg.storage.workspace import Workspace


def shaped(flat, example):
    """A flat vector in the form of an update."""
    ends = np.cumsum([part.size for part in example.values()])
    parts = np.split(flat, ends[:-1])
    return {
        name: part.reshape(example[name].shape) for name, part in zip(example, parts, strict=True)
    }


def assert_sum_is_that_of_aggregate(training: Lab, number: int, survivors: list[int]) -> None:
    """The sum that the server decoded, against a round in memory with the same inputs."""
    folder = training.rounds()[number - 1]
    s = Workspace(folder).session
    p = s.parameters
    updates = training.updates[number]
    example = next(iter(updates.values()))
    users = range(1, p.users + 1)
    expected = ts.aggregate(
        {user: updates.get(user, example) for user in users},
        survivors=p.survivors,
        colluders=p.colluders,
        top_k=p.top_k,
        picks=p.picks,
        construction=p.construction,
        clip=max(s.clips),
        saturate=True,
        weights={user: float(training.weight(user)) for user in users},
        residuals={
            user: shaped(flat, example)
            for user, flat in training.residuals[number].items()
            if flat is not None
        },
        drop_masking=[user for user in users if user not in survivors],
    )
    report = ts.decode(folder)
    assert report.survivors == survivors
    steps = 4 * len(survivors) / min(s.scales)
    assert steps < 0.01 * max(np.abs(part).max() for part in report.total.values())
    for name, part in report.total.items():
        np.testing.assert_allclose(part, expected.total[name], rtol=0, atol=steps)


@pytest.mark.parametrize(
    "options", [{}, {"picks": 2}, {"dealing": "shares"}], ids=["keys", "two picks", "shares"]
)
def test_the_sum_of_every_round_is_that_of_aggregate(lab, options):
    training = lab(**options)
    training.train(rounds=3)
    assert training.reasons() == []
    for number in (1, 2, 3):
        assert_sum_is_that_of_aggregate(training, number, [1, 2, 3, 4, 5])


def test_what_aggregate_is_compared_with_is_not_anything(lab):
    training = lab()
    training.train(rounds=1)
    training.updates[1][2]["layer.weight"] += 0.5
    with pytest.raises(AssertionError, match="Not equal"):
        assert_sum_is_that_of_aggregate(training, 1, [1, 2, 3, 4, 5])


def test_the_model_moves_by_the_mean_of_the_survivors(lab):
    training = lab()
    training.grid.faults = refuse_at("mask", 4, how=FAILING)
    after = training.train(rounds=1)
    total = ts.decode(training.rounds()[0]).total
    weight = sum(training.weight(user) for user in (1, 2, 3, 5))
    for name, part in after.items():
        assert part.dtype == np.float32
        np.testing.assert_allclose(part, total[name] / weight, rtol=1e-6)
    assert training.result.train_metrics_clientapp[1]["loss"] == pytest.approx(
        sum(training.weight(user) * user for user in (1, 2, 3, 5)) / weight
    )


def test_after_the_first_round_nodes_send_x_and_y_and_a_confirmation(lab):
    training = lab()
    training.train(rounds=2)
    names = [
        sorted(files_of(reply))
        for user, _, reply in training.grid.seen
        if user == 3 and files_of(reply)
    ]
    shares = [f"shares/user-{m:02}/from-03.h5.age" for m in (1, 2, 4, 5)]
    a_round = [["masked/user-03.h5"], ["confirmed/user-03.json"], ["elimination/user-03.h5"]]
    assert names == [["dealt/user-03.json", *shares], *a_round, *a_round]


@pytest.mark.parametrize(
    "inner",
    [
        FedProx(proximal_mu=0.1, fraction_evaluate=0.0, min_available_nodes=5),
        FedAvgM(server_learning_rate=0.5, fraction_evaluate=0.0, min_available_nodes=5),
        FedAdam(fraction_evaluate=0.0, min_available_nodes=5),
    ],
    ids=lambda inner: type(inner).__name__,
)
def test_the_strategy_inside_does_with_the_mean_what_it_does_alone(lab, inner):
    training = lab(strategy=inner, density=1.0, picks=None)
    training.train(rounds=2)
    moved = training.train_alone()
    for name, part in training.result.arrays.items():
        np.testing.assert_allclose(part.numpy(), moved[name], rtol=0, atol=2e-3)


def test_a_strategy_that_needs_single_updates_is_refused():
    with pytest.raises(ts.UsageError, match="FedMedian does more with single updates"):
        TopKSecAgg(FedMedian(), density=0.1)


def with_batch_norm(user, number, arrays):
    after = random_update(user, number, arrays)
    after["norm.running_mean"] = arrays["norm.running_mean"] + np.float32(user / 10)
    after["norm.num_batches_tracked"] = arrays["norm.num_batches_tracked"] + user
    after["table"] = arrays["table"] + 2 * user
    return after


def test_statistics_are_masked_whole_and_integers_are_the_middle_of_all(lab):
    model = {
        "fc.weight": np.zeros((40, 30), np.float32),
        "norm.running_mean": np.zeros(3, np.float32),
        "norm.num_batches_tracked": np.int64(0),
        "table": np.zeros((2, 2), np.int32),
    }
    training = lab(model=model, update=with_batch_norm)
    after = training.train(rounds=2)
    weights = np.array([training.weight(user) for user in range(1, 6)])
    mean = float(weights @ np.arange(1, 6) / weights.sum())
    assert after["norm.running_mean"] == pytest.approx([2 * mean / 10] * 3, rel=1e-4)
    assert after["norm.num_batches_tracked"] == 2 * 3
    assert (after["table"] == 2 * 6).all()
    kinds = {name: part.dtype for name, part in after.items()}
    assert kinds == {name: np.asarray(part).dtype for name, part in model.items()}
    for reply in training.replies("mask"):
        (clear,) = reply.content.array_records.values()
        assert set(clear) == {"norm.num_batches_tracked", "table"}
    for reply in training.replies("confirm") + training.replies("answer"):
        assert not reply.content.array_records
    assert np.count_nonzero(after["fc.weight"])


def test_nodes_that_come_later_wait_for_a_new_series(lab, caplog):
    training = lab(users=6, survivors=4)
    late = training.grid.contexts.pop(training.grid.node(6))
    training.strategy.strategy.min_available_nodes = 5
    begin = training.strategy.aggregate_train

    def with_a_late_node(number, replies):
        training.grid.contexts[late.node_id] = late
        return begin(number, replies)

    training.strategy.aggregate_train = with_a_late_node
    training.train(rounds=2)
    assert (
        f"node {late.node_id} came after training began: it waits for a new series" in caplog.text
    )
    assert ts.decode(training.rounds()[1]).survivors == [1, 2, 3, 4, 5]


def test_the_clip_follows_the_sum_and_the_weights_of_the_survivors(lab):
    training = lab(clip=1.0, clip_from_sum=3.0)
    training.train(rounds=2)
    first, second = training.rounds()
    largest = max(np.abs(part).max() for part in ts.decode(first).total.values())
    assert Workspace(first).session.clips == (1.0, 1.0)
    clips = Workspace(second).session.clips
    assert max(clips) == pytest.approx(3 * largest / 15)


def test_the_largest_weight_follows_the_weights(lab):
    training = lab(max_weight=None)
    training.train(rounds=2)
    weights = [Workspace(folder).session.parameters.max_weight for folder in training.rounds()]
    assert weights == [10_000, 30]


@pytest.mark.parametrize("options", [{"rank": 2}, {"whole": True}], ids=["rank", "whole"])
def test_low_rank_and_whole_sums_move_the_model(lab, options):
    """Updates of rank one are found by low rank: after some rounds nothing is left to send."""

    def update(user, number, arrays):
        if number > 1:
            return arrays
        left = np.random.default_rng(user).normal(size=(40, 1)) / 10
        right = np.random.default_rng(99).normal(size=(1, 30)) / 10
        return {
            "layer.weight": (arrays["layer.weight"] + left @ right).astype(np.float32),
            "layer.bias": arrays["layer.bias"] + np.float32(0.01 * user),
        }

    training = lab(density=None, max_weight=None, update=update, **options)
    after = training.train(rounds=4)
    assert training.reasons() == []
    weights = {user: training.weight(user) for user in range(1, 6)}
    for name, part in after.items():
        mean = sum(weights[n] * training.updates[1][n][name] for n in weights)
        np.testing.assert_allclose(part, mean / sum(weights.values()), atol=2e-3)
    last = Workspace(training.rounds()[-1]).session
    assert last.reduction.name == {"rank": "low-rank", "whole": "whole"}[next(iter(options))]


def test_the_rounds_that_a_server_keeps_pass_an_audit(lab):
    training = lab()
    training.train(rounds=2)
    for folder in training.rounds():
        assert ts.audit(folder).failed == []


def test_without_a_folder_nothing_of_a_training_stays_at_the_server(lab, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    training = lab(folder=None)
    training.train(rounds=2)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_evaluation_is_that_of_the_strategy_inside(lab):
    training = lab(strategy=FedAvg(min_available_nodes=5))
    training.train(rounds=1)
    assert training.result.evaluate_metrics_clientapp[1]["accuracy"] == 0.5
