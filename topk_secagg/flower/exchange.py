"""Messages to nodes and their replies: who is asked, for how long, and who drops out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import zip_longest
from logging import WARNING

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from ..errors import BadData, SecAggError
from . import parcels
from .parcels import Parcel

_FIRST_PAUSE = 0.05  # seconds between two looks for replies
_LONGEST_PAUSE = 1.0
_LONGEST_REASON = 300  # characters

Take = Callable[[int, Parcel, RecordDict], None]


class Exchange:
    """The messages of a training, one step after the other.

    `take` of every step gets the node, the parcel and the content of a reply, and raises
    SecAggError if it refuses them. A node whose reply is refused, late or an error drops out.

    Arguments:
    message_type: Flower's type of all messages; mods run around registered types only.
    timeout: seconds to wait for enough replies.
    patience: seconds to wait for the others, once there are enough.
    name_of: what a node is called in the log.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        message_type: str,
        timeout: float,
        patience: float,
        name_of: Callable[[int], str],
    ) -> None:
        self._grid = grid
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
        wait = self._timeout if enough else self._patience
        deadline = time.monotonic() + wait
        pause = _FIRST_PAUSE
        is_enough = enough == 0
        while waiting:
            for reply in list(self._grid.pull_messages(list(waiting))):
                if reply.metadata.reply_to_message_id not in waiting:
                    continue
                node = waiting.pop(reply.metadata.reply_to_message_id)
                if self.take_reply(step, reply, node=node, take=take):
                    replied.append(node)
            if not is_enough and len(replied) >= enough:
                is_enough = True
                deadline = min(deadline, time.monotonic() + self._patience)
            if not waiting or time.monotonic() > deadline:
                break
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        for node in waiting.values():
            warn(f"{self._name_of(node)} is late at the step {step}, and drops out")
        return replied

    def take_reply(self, step: str, reply: Message, *, node: int, take: Take) -> bool:
        """Hand a node's reply to `take`; whether it was taken."""
        try:
            if reply.has_error():
                raise BadData(_first_line(reply.error.reason))
            parcel = parcels.opened(reply)
            if parcel.step != step:
                raise BadData(f"it is for the step {parcel.step!r:.40}")
            take(node, parcel, reply.content)
        except SecAggError as error:
            warn(f"{self._name_of(node)} drops out at the step {step}", error)
            return False
        return True

    def _send(self, step: str, contents: Mapping[int, RecordDict]) -> dict[str, int]:
        """Send every node its content; the nodes by the id of the message that they got."""
        if not contents:
            return {}
        messages = [
            Message(
                content,
                dst_node_id=node,
                message_type=self._message_type,
                ttl=self._timeout + self._patience,
            )
            for node, content in contents.items()
        ]
        sent = {}
        for node, message_id in zip_longest(contents, self._grid.push_messages(messages)):
            if message_id:
                sent[message_id] = node
            else:  # Flower did not take it
                warn(f"{self._name_of(node)} cannot be reached at the step {step}, and drops out")
        return sent


def warn(what: str, error: SecAggError | None = None) -> None:
    """A warning in Flower's log."""
    parts = [what] if error is None else [f"{what}: {error}", error.hint]
    log(WARNING, "topk-secagg: %s", "; ".join(filter(None, parts)))


def _first_line(reason: str | None) -> str:
    """What a node or Flower says of an error, which may be a whole traceback."""
    lines = [line.strip() for line in (reason or "").splitlines() if line.strip()]
    return lines[0][:_LONGEST_REASON] if lines else "no reason given"
