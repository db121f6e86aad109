"""Messages to nodes and their replies: who is asked, for how long, and who drops out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from itertools import zip_longest
from logging import DEBUG, WARNING
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from ..errors import BadData, SecAggError
from . import parcels
from .parcels import Parcel

_SHORTEST_PAUSE = 0.01  # seconds between two looks for replies
_LONGEST_PAUSE = 0.5
_PART_OF_WAIT = 0.05  # a pause is never longer than this part of the time since the question
_LONGEST_REASON = 300  # characters
_FIRST_MOD = "is topk_secagg_mod the first of the mods of its ClientApp?"

Take = Callable[[int, Parcel, RecordDict], None]


class Courier:
    """A grid that knows to which node each message went, and looks for replies as soon as they can
    be there. Everything else is the grid's."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._node_of: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send(self, messages: Iterable[Message]) -> tuple[dict[str, int], list[int]]:
        """Send messages; the nodes by the id of their message, and those that cannot be reached."""
        sent = list(messages)
        ids = zip_longest(sent, self._grid.push_messages(sent) if sent else [])
        waiting: dict[str, int] = {}
        lost: list[int] = []
        for message, message_id in ids:
            node = message.metadata.dst_node_id
            if message_id:
                waiting[message_id] = node
            else:  # Flower did not take it
                lost.append(node)
        return waiting, lost

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """As the grid does, without its pauses of some seconds."""
        waiting, _ = self.send(messages)
        self._node_of = dict(waiting)
        replies = []
        began = time.monotonic()
        while waiting and (timeout is None or time.monotonic() < began + timeout):
            for reply in list(self._grid.pull_messages(list(waiting))):
                if waiting.pop(reply.metadata.reply_to_message_id, None) is not None:
                    replies.append(reply)
            if waiting:
                pause(began)
        return replies

    def node_of(self, reply: Message) -> int:
        """Who was asked. An error that the SuperLink makes has the SuperLink as its source."""
        asked = self._node_of.get(reply.metadata.reply_to_message_id)
        return int(reply.metadata.src_node_id if asked is None else asked)


def pause(began: float) -> None:
    """Wait a moment, which is short beside the time since the question."""
    waited = time.monotonic() - began
    time.sleep(min(max(_SHORTEST_PAUSE, _PART_OF_WAIT * waited), _LONGEST_PAUSE))


class Exchange:
    """The messages of a training, one step after the other.

    `take` of every step gets the node, the parcel and the content of a reply. Whatever it raises
    drops that node, and the others go on: a reply is made of another party's bytes.

    Arguments:
    message_type: Flower's type of all messages; mods run around registered types only.
    timeout: seconds to wait for enough replies.
    patience: seconds to wait for the others, once there are enough.
    name_of: what a node is called in the log.
    """

    def __init__(
        self,
        courier: Courier,
        *,
        message_type: str,
        timeout: float,
        patience: float,
        name_of: Callable[[int], str],
    ) -> None:
        self.courier = courier
        self._message_type = message_type
        self._timeout = timeout
        self._patience = patience
        self._name_of = name_of

    def ask(
        self, step: str, contents: Mapping[int, RecordDict], take: Take, *, enough: int
    ) -> list[int]:
        """Send every node its content, and hand `take` the replies as they come; the nodes whose
        reply was taken."""
        waiting = self._send(step, contents)
        replied: list[int] = []
        began = time.monotonic()
        deadline = began + (self._timeout if enough else self._patience)
        is_enough = enough == 0
        while waiting:
            for reply in list(self.courier.pull_messages(list(waiting))):
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None and self.take_reply(step, reply, node=node, take=take):
                    replied.append(node)
            if not is_enough and len(replied) >= enough:
                is_enough = True
                deadline = min(deadline, time.monotonic() + self._patience)
            if not waiting or time.monotonic() > deadline:
                break
            pause(began)
        for node in waiting.values():
            warn(f"{self._name_of(node)} is late at the step {step}, and drops out")
        return replied

    def tell(self, step: str, contents: Mapping[int, RecordDict]) -> None:
        """Send every node its content, and wait for nobody."""
        self._send(step, contents)

    def take_reply(self, step: str, reply: Message, *, node: int, take: Take) -> bool:
        """Hand a node's reply to `take`; whether it was taken. Whoever wrote it, only that node
        drops out."""
        try:
            if reply.has_error():
                raise BadData(_first_line(reply.error.reason))
            parcel = parcels.opened(reply)
            if parcel.step != step:
                raise BadData(f"it is for the step {parcel.step!r:.40}", _FIRST_MOD)
            take(node, parcel, reply.content)
        except SecAggError as error:
            warn(f"{self._name_of(node)} drops out at the step {step}", error)
            return False
        except Exception as error:
            warn(
                f"{self._name_of(node)} drops out at the step {step}: its reply cannot be read "
                f"({type(error).__name__})"
            )
            log(DEBUG, "topk-secagg: a reply that cannot be read", exc_info=error)
            return False
        return True

    def _send(self, step: str, contents: Mapping[int, RecordDict]) -> dict[str, int]:
        """Send every node its content; the nodes by the id of the message that they got."""
        waiting, lost = self.courier.send(
            Message(
                content,
                dst_node_id=node,
                message_type=self._message_type,
                ttl=self._timeout + self._patience,
            )
            for node, content in contents.items()
        )
        for node in lost:
            warn(f"{self._name_of(node)} cannot be reached at the step {step}, and drops out")
        return waiting


def warn(what: str, error: SecAggError | None = None) -> None:
    """A warning in Flower's log."""
    parts = [what] if error is None else [f"{what}: {error}", error.hint]
    log(WARNING, "topk-secagg: %s", "; ".join(filter(None, parts)))


def _first_line(reason: str | None) -> str:
    """What a node or Flower says of an error, which may be a whole traceback."""
    lines = [line.strip() for line in (reason or "").splitlines() if line.strip()]
    return lines[0][:_LONGEST_REASON] if lines else "no reason given"
