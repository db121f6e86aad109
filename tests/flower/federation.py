"""A federation in one process: nodes with folders of their own, and a grid that calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

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
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.supercore.task_identity import TaskIdentity

from topk_secagg.flower import TopKSecAgg, topk_secagg_mod
from topk_secagg.flower.exchange import Courier
from topk_secagg.flower.node import Node
from topk_secagg.flower.parcels import MASK, RECORD, STEP
from topk_secagg.rounds.feedback import carried
from topk_secagg.storage.ledger import Ledger

RUN = 7
SILENT = "silent"  # a fault: no reply at all
FAILING = "failing"  # an error instead of a reply
LOST = "lost"  # the node does its step, and its reply does not arrive

Arrays = dict[str, Any]


class Federation(Grid):
    """A grid whose nodes run `app` in this process, one message after the other.

    `faults(step, user)` says what goes wrong with a message, and `meddle(message)` changes one
    before it is delivered, as a hostile server would. `seen` are all messages with their replies.
    """

    def __init__(self, app: ClientApp, users: int, folder: Path, **config: Any) -> None:
        TaskIdentity.run_id = RUN
        TaskIdentity.task_id = TaskIdentity.node_id = 1  # the server's
        self.app = app
        self.contexts = {
            self.node(n): Context(
                run_id=RUN,
                node_id=self.node(n),
                node_config={
                    "partition-id": n - 1,
                    "topk-secagg-folder": str(folder / f"node-{n}"),
                    **config,
                },
                state=RecordDict(),
                run_config={},
            )
            for n in range(1, users + 1)
        }
        self.seen: list[tuple[int, Message, Message]] = []
        self.faults: Callable[[str, int], str | None] = lambda _step, _user: None
        self.meddle: Callable[[Message], Message] = lambda message: message
        self.replies: dict[str, Message] = {}
        self.count = 0

    def node(self, user: int) -> int:
        return 1000 + 7 * user

    def user(self, node: int) -> int:
        return (node - 1000) // 7

    def config(self, user: int) -> dict[str, Any]:
        return self.contexts[self.node(user)].node_config

    def folder(self, user: int) -> Path:
        return Path(str(self.config(user)["topk-secagg-folder"]))

    def identity(self, user: int) -> Path:
        return self.folder(user) / "secrets" / "user-01.identity"

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            self.count += 1
            message.metadata.__dict__["_message_id"] = str(self.count)
            ids.append(str(self.count))
            reply = self.deliver(message)
            if reply is not None:
                self.replies[str(self.count)] = reply
        return ids

    def deliver(self, message: Message) -> Message | None:
        """One message to one node."""
        node = message.metadata.dst_node_id
        fault = self.faults(step_of(message), self.user(node))
        if fault == SILENT:
            return None
        if fault == FAILING:
            return from_node(message, Message(Error(0, "it failed"), reply_to=message))
        reply = self.ask(self.meddle(message))
        return None if fault == LOST else reply

    def ask(self, message: Message) -> Message:
        """The reply of a node to a message, whoever sends it."""
        node = message.metadata.dst_node_id
        content = RecordDict(dict(message.content.items()))
        try:
            reply = self.app(
                Message(content=content, metadata=message.metadata), self.contexts[node]
            )
        except Exception as error:  # as Flower does
            reply = Message(Error(2, f"raised {error!r}"), reply_to=message)
        self.seen.append((self.user(node), message, reply))
        return from_node(message, reply)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(i) for i in list(message_ids) if i in self.replies]

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,  # noqa: ARG002
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


def from_node(message: Message, reply: Message) -> Message:
    reply.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id
    return reply


def step_of(message: Message) -> str:
    """The step that a message is for; "" if it is for none."""
    record = message.content.config_records.get(RECORD)
    return "" if record is None else str(record[STEP])


def files_of(message: Message) -> dict[str, bytes]:
    """The files in a message or a reply."""
    record = message.content.config_records[RECORD]
    return {name: value for name, value in record.items() if isinstance(value, bytes)}


def record_of(arrays: Mapping[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


class Lab:
    """A small training: users whose updates are random, or what `update(user, round, arrays)`
    gives, and what they were: by round and user, with the residual that was added to each."""

    def __init__(
        self,
        place: Path,
        *,
        users: int = 5,
        survivors: int = 4,
        colluders: int = 1,
        model: Arrays | None = None,
        update: Callable[[int, int, Arrays], Arrays] | None = None,
        weight: Callable[[int], Any] = lambda user: 10 + user,
        strategy: Strategy | None = None,
        node_config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if model is None:
            model = {
                "layer.weight": np.zeros((40, 30), np.float32),
                "layer.bias": np.zeros(40, np.float32),
            }
        self.model = model
        self.update = update or random_update
        self.weight = weight
        self.updates: dict[int, dict[int, Arrays]] = {}
        self.residuals: dict[int, dict[int, Any]] = {}
        self.place = place
        self.grid = Federation(self._app(), users, place, **node_config or {})
        inner = strategy or FedAvg(fraction_evaluate=0.0, min_available_nodes=users)
        self.fresh = dict(inner.__dict__)
        defaults = {
            "density": 0.05,
            "max_weight": 100.0,
            "timeout": 0.2,
            "patience": 0.1,
            "folder": place / "server",
        }
        self.strategy = TopKSecAgg(
            inner, survivors=survivors, colluders=colluders, **defaults | options
        )
        self.strategy._courier = Courier(self.grid)  # as `start` does

    def train(self, rounds: int = 1) -> Arrays:
        """The model after so many rounds."""
        self.result = self.strategy.start(
            self.grid, record_of(self.model), num_rounds=rounds, timeout=0.1
        )
        arrays = self.result.arrays or record_of(self.model)
        return {name: array.numpy() for name, array in arrays.items()}

    def train_alone(self) -> Arrays:
        """The model that the strategy inside makes of the same updates, without masks."""
        arrays = record_of(self.model)
        inner = self.strategy.strategy.__class__.__new__(self.strategy.strategy.__class__)
        inner.__dict__.update(self.fresh)
        for number, updates in sorted(self.updates.items()):
            list(inner.configure_train(number, arrays, ConfigRecord(), self.grid))
            before = {name: array.numpy() for name, array in arrays.items()}
            replies = []
            for user, update in updates.items():
                after = {name: before[name] + update[name] for name in before}
                metrics = MetricRecord({"num-examples": self.weight(user)})
                content = RecordDict({"arrays": record_of(after), "metrics": metrics})
                replies.append(
                    Message(content, dst_node_id=self.grid.node(user), message_type="train")
                )
            arrays, _ = inner.aggregate_train(number, replies)
        return {name: array.numpy() for name, array in arrays.items()}

    def rounds(self) -> list[Path]:
        """The folders of the rounds at the server, as they began; every series has one of its own,
        with a random name."""
        folders = (self.place / "server").glob("*/round-*")
        return sorted(folders, key=lambda path: (path / "session.json").stat().st_mtime_ns)

    def replies(self, step: str, user: int | None = None) -> list[Message]:
        """What nodes replied at a step."""
        return [
            reply
            for node, message, reply in self.grid.seen
            if step_of(message) == step and user in (None, node)
        ]

    def reasons(self) -> list[str]:
        """What nodes refused, in their words."""
        return [str(r.error.reason) for _, _, r in self.grid.seen if r.has_error()]

    def _app(self) -> ClientApp:
        app = ClientApp(mods=[topk_secagg_mod])

        @app.train()
        def train(message: Message, context: Context) -> Message:
            assert list(message.content) == ["arrays", "config"]  # the app sees no trace of it
            arrays = {name: a.numpy() for name, a in message.content["arrays"].items()}
            number = int(message.content["config"]["server-round"])
            user = int(context.node_config["partition-id"]) + 1
            after = self.update(user, number, arrays)
            self._note(user, number, arrays, after, context)
            metrics = MetricRecord({"num-examples": self.weight(user), "loss": float(user)})
            content = RecordDict({"arrays": record_of(after), "metrics": metrics})
            return Message(content, reply_to=message)

        @app.evaluate()
        def evaluate(message: Message, _: Context) -> Message:
            metrics = MetricRecord({"num-examples": 1, "accuracy": 0.5})
            return Message(RecordDict({"metrics": metrics}), reply_to=message)

        return app

    def _note(
        self, user: int, number: int, before: Arrays, after: Arrays, context: Context
    ) -> None:
        if any(after[name].shape != before[name].shape for name in after if name in before):
            return
        update = {
            name: after[name].astype(np.float64) - before[name]
            for name in after
            if name in before and "running" not in name and after[name].dtype.kind == "f"
        }
        self.updates.setdefault(number, {})[user] = update
        self.residuals.setdefault(number, {})[user] = residual_of(context)


def residual_of(context: Context) -> Any:
    """What error feedback has kept for the latest round of a node; the weight is in it."""
    node = Node(context)
    if not node.feedback:
        return None
    training = max(node.trainings(), key=lambda each: each.last_used)
    space = training.latest()
    user = node.user_in(space.session)
    ledger = Ledger.read(space.ledger_path(user), space.session.id, user)
    return carried(space, ledger, space.session.layout.length).value


def random_update(user: int, number: int, arrays: Arrays) -> Arrays:
    """Another update for every user and round."""
    source = np.random.default_rng([user, number])
    return {
        name: (array + source.normal(scale=0.05, size=array.shape)).astype(array.dtype)
        for name, array in arrays.items()
    }


def refuse_at(step: str, *users: int, how: str = SILENT) -> Callable[[str, int], str | None]:
    """A fault of these users at a step."""
    return lambda at, user: how if at == step and user in users else None


__all__ = ["FAILING", "LOST", "MASK", "SILENT", "Federation", "Lab", "refuse_at", "step_of"]
