"""Ten nodes learn scikit-learn's digits over Flower's simulation engine, with drop-outs in every
phase. Usage: python digits.py FOLDER

FOLDER gets the rounds of the server, every update and residual as they were, and accuracy.json.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from sklearn.datasets import load_digits

from topk_secagg.flower import TopKSecAgg, topk_secagg_mod

NODES = 10
ROUNDS = 6
PATIENCE = 8.0  # seconds, of the server
LATE = 12.0
FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
# who fails at which step of which round, as (partition, round, step)
FAULTS = {
    (9, 1, "deal"),
    (8, 1, "mask"),
    (7, 2, "mask"),
    (5, 3, "confirm"),
    (4, 4, "answer"),
}
LATE_AT = {(3, 5, "answer")}

server = ServerApp()


def faulty_mod(message, context, call_next):
    """Fail as planned, once each; the round is that of the last message to train."""
    record = message.content.config_records.get("topk-secagg")
    step = str(record["step"]) if record else ""
    done = context.state.config_records.setdefault("done", ConfigRecord({"round": 1}))
    if step == "mask":
        done["round"] = int(message.content["config"]["server-round"])
    this = (int(context.node_config["partition-id"]), int(done["round"]), step)
    if this in FAULTS and step not in done:
        done[step] = True
        return Message(Error(0, f"planned to fail at {step}"), reply_to=message)
    reply = call_next(message, context)
    if this in LATE_AT:
        time.sleep(LATE)
    return reply


def data(partition: int | None) -> tuple[np.ndarray, np.ndarray]:
    """The examples of a node, or those that are held back for testing."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    part = order[:300] if partition is None else order[300:][partition::NODES]
    return images[part] / 16, labels[part]


def logits(arrays, images):
    hidden = np.maximum(images @ arrays["hidden.weight"] + arrays["hidden.bias"], 0)
    return hidden, hidden @ arrays["out.weight"] + arrays["out.bias"]


def descend(arrays, images, labels, source, steps=30, rate=0.3):
    """A few steps of stochastic gradient descent."""
    a = {name: array.astype(np.float64) for name, array in arrays.items()}
    for _ in range(steps):
        batch = source.integers(len(labels), size=32)
        x = images[batch]
        hidden, scores = logits(a, x)
        wrong = np.exp(scores - scores.max(1, keepdims=True))
        wrong /= wrong.sum(1, keepdims=True)
        wrong[np.arange(len(batch)), labels[batch]] -= 1
        wrong /= len(batch)
        back = (wrong @ a["out.weight"].T) * (hidden > 0)
        a["out.weight"] -= rate * hidden.T @ wrong
        a["out.bias"] -= rate * wrong.sum(0)
        a["hidden.weight"] -= rate * x.T @ back
        a["hidden.bias"] -= rate * back.sum(0)
    return {name: a[name].astype(np.float32) for name in a}


def accuracy(arrays) -> float:
    images, labels = data(None)
    return float((logits(arrays, images)[1].argmax(1) == labels).mean())


app = ClientApp(mods=[faulty_mod, topk_secagg_mod])


@app.train()
def train(message: Message, context: Context) -> Message:
    """An ordinary train function."""
    partition = int(context.node_config["partition-id"])
    number = int(message.content["config"]["server-round"])
    arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
    images, labels = data(partition)
    after = descend(arrays, images, labels, np.random.default_rng([partition, number]))
    update = {name: after[name].astype(np.float64) - arrays[name] for name in after}
    keep(context, number, update)
    record = ArrayRecord({name: Array(array) for name, array in after.items()})
    metrics = MetricRecord({"num-examples": len(labels), "accuracy": accuracy(after)})
    return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)


def keep(context: Context, number: int, update) -> None:
    """For the test: the update of this node, and the residual that is added to it."""
    from federation import residual_of

    residual = residual_of(context)
    residual = np.zeros(0) if residual is None else residual
    kept = Path(os.environ["XDG_STATE_HOME"]).parent / "updates"
    kept.mkdir(exist_ok=True)
    np.savez(kept / f"{number}-{context.node_id}.npz", residual=residual, **update)


@server.main()
def main(grid: Grid, _: Context) -> None:
    """An ordinary server, with its strategy wrapped."""
    source = np.random.default_rng(1)
    model = {
        "hidden.weight": source.normal(scale=0.1, size=(64, 24)),
        "hidden.bias": np.zeros(24),
        "out.weight": source.normal(scale=0.1, size=(24, 10)),
        "out.bias": np.zeros(10),
    }
    reached = []

    def evaluate(_: int, record: ArrayRecord) -> MetricRecord:
        reached.append(accuracy({name: array.numpy() for name, array in record.items()}))
        return MetricRecord({"accuracy": reached[-1]})

    strategy = TopKSecAgg(
        FedAvg(fraction_evaluate=0.0, min_available_nodes=NODES),
        survivors=7,
        colluders=3,
        density=0.1,
        clip=1.0,
        max_weight=200.0,
        folder=FOLDER / "server",
        timeout=60.0,
        patience=PATIENCE,
    )
    arrays = {name: Array(array.astype(np.float32)) for name, array in model.items()}
    strategy.start(grid, ArrayRecord(arrays), num_rounds=ROUNDS, evaluate_fn=evaluate)
    (FOLDER / "accuracy.json").write_text(json.dumps(reached))
    (FOLDER / "nodes.json").write_text(json.dumps(sorted(grid.get_node_ids())))


if __name__ == "__main__":
    os.environ["XDG_STATE_HOME"] = str(FOLDER.absolute() / "state")
    run_simulation(
        server,
        app,
        NODES,
        backend_config={
            "client_resources": {"num_cpus": 1},
            "init_args": {"num_cpus": 2, "include_dashboard": False, "logging_level": "error"},
        },
    )
