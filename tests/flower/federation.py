"""A federation in one process: nodes with folders of their own, and a grid that calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from topk_secagg.flower import topk_secagg_mod
from topk_secagg.flower.parcels import RECORD, STEP

RUN = 7
SILENT = "silent"  # a fault: no reply at all
FAILING = "failing"  # an error instead of a reply

Fault = str | None


class Federation(Grid):
    """A grid whose nodes run `app` in this process, one message after the other.

    `fault(step, user, round)` says what goes wrong; `seen` are all messages, as (node, message,
    reply). `meddle` may change a message before it is delivered, as a hostile server would.
    """

    def __init__(self, app: ClientApp, users: int, folder: Path, **config: Any) -> None:
        TaskIdentity.run_id = RUN
        TaskIdentity.task_id = TaskIdentity.node_id = 1  # the server's
        self.app = app
        self.contexts = {
            1000 + 7 * n: Context(
                run_id=RUN,
                node_id=1000 + 7 * n,
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
        self.faults: Callable[[str, int], Fault] = lambda _step, _user: None
        self.replies: dict[str, Message] = {}
        self.count = 0

    def user(self, node: int) -> int:
        return (node - 1000) // 7

    def node(self, user: int) -> int:
        return 1000 + 7 * user

    def folder(self, user: int) -> Path:
        return Path(str(self.contexts[self.node(user)].node_config["topk-secagg-folder"]))

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
        """One message to one node, as it is on the wire."""
        node = message.metadata.dst_node_id
        fault = self.faults(step_of(message), self.user(node))
        if fault == SILENT:
            return None
        if fault == FAILING:
            return replying(message, error=Error(0, "it failed"))
        copied = copy_of(message)
        try:
            reply = self.app(copied, self.contexts[node])
        except Exception as error:  # as Flower does
            reply = replying(message, error=Error(2, str(error)))
        reply.metadata.__dict__["_src_node_id"] = node
        self.seen.append((node, message, reply))
        return reply

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(i) for i in list(message_ids) if i in self.replies]

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,  # noqa: ARG002
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


def copy_of(message: Message) -> Message:
    """A message as its receiver gets it, with records of its own."""
    content = RecordDict(dict(message.content.items()))
    return Message(content=content, metadata=message.metadata)


def replying(message: Message, **content: Any) -> Message:
    reply = Message(reply_to=message, **content)
    reply.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id
    return reply


def step_of(message: Message) -> str:
    """The step that a message is for; "" if it is for none."""
    record = message.content.config_records.get(RECORD)
    return "" if record is None else str(record[STEP])


def app_of(
    train: Callable[[dict[str, Any], Context, int], tuple[dict[str, Any], dict[str, Any]]],
) -> ClientApp:
    """An app with the mod around an ordinary train function: arrays, context and round to arrays
    and metrics."""
    app = ClientApp(mods=[topk_secagg_mod])

    @app.train()
    def _train(message: Message, context: Context) -> Message:
        (record,) = message.content.array_records.values()
        (config,) = message.content.config_records.values()
        arrays = {name: array.numpy() for name, array in record.items()}
        after, metrics = train(arrays, context, int(config["server-round"]))
        content = RecordDict(
            {
                "arrays": ArrayRecord({name: Array(array) for name, array in after.items()}),
                "metrics": MetricRecord(metrics),
            }
        )
        return Message(content, reply_to=message)

    return app
