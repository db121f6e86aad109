"""The mod: a node's part in a round, around the app's own training."""

from __future__ import annotations

from collections.abc import Callable
from logging import ERROR, INFO, WARNING

from flwr.app import Context, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode
from flwr.supercore import log

from ..errors import BadData, Busy, InputMissing, Refused, SecAggError
from ..rounds.centralised import confirm as confirm_unseen
from ..rounds.eliminate import eliminate
from ..rounds.forget import forget
from ..rounds.mask import mask
from ..rounds.offline import offline
from ..storage.ledger import Ledger
from ..storage.workspace import Workspace
from . import parcels
from .arrays import Arrays, arrays_of, buffers, check_same_model, difference, layout_of, record_of
from .node import Node
from .parcels import Parcel

_TWICE = "the server asks a second time: look at its log"

ARRAYS = "arrays"  # what leaves in the clear, in the reply with X
METRICS = "metrics"


class AppFailed(SecAggError):
    """The app raised an error of its own."""


def topk_secagg_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Take part in secure aggregation: mask what the app has trained, and answer for the sum.

    It comes first among the mods of a `ClientApp`. Every message of the kind "train" must be a step
    of a round from a server with `TopKSecAgg`. Messages of other kinds go to the app, whose replies
    may hold no arrays. A step that is refused is answered with an error, which says why.
    """
    if message.metadata.message_type.split(".")[0] != MessageType.TRAIN:
        return _without_arrays(message, call_next(message, context))
    try:
        node = Node(context)
    except SecAggError as error:
        return _refusal(message, error)
    try:
        parcel = parcels.opened(message)
        if parcel.step == parcels.MASK:
            reply = _mask(
                node,
                parcel,
                message=message,
                train=lambda inner: call_next(inner, context),
            )
            if isinstance(reply, Message):
                return reply
        elif parcel.step in _STEPS:
            reply = _STEPS[parcel.step](node, parcel)
        else:
            raise BadData(f"there is no step {parcel.step!r:.40}")
        return Message(reply, reply_to=message)
    except SecAggError as error:
        return _refusal(message, error, node)


def _refusal(message: Message, error: SecAggError, node: Node | None = None) -> Message:
    """An error as a reply: one line, which names no folder of this machine."""
    reason = f"{error}; {error.hint}" if error.hint else str(error)
    log(WARNING, "topk-secagg: %s", reason)
    if node is not None:
        reason = reason.replace(str(node.home), "FOLDER")
    return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, reason), reply_to=message)


def _without_arrays(message: Message, reply: Message) -> Message:
    """Replies to other messages than "train" carry no arrays."""
    if reply.has_content() and reply.content.array_records:
        error = Refused(
            f"the app's reply to a message {message.metadata.message_type!r:.40} holds arrays",
            "what was trained leaves this node masked, and in no other way",
        )
        return _refusal(message, error)
    return reply


# the steps


def _join(node: Node, _: Parcel) -> RecordDict:
    """The node's public keys."""
    public = node.identity().public(1)
    return parcels.content(parcels.JOIN, {"age": public.age, "ed25519": public.ed25519})


def _deal(node: Node, parcel: Parcel) -> RecordDict:
    """Its sealed shares for the others, and its list."""
    space = node.admit(parcel.file("session.json"))
    user = node.user_in(space.session)
    if space.session.series is not None and space.session.family is not None:
        raise Refused("no keys are dealt in a later round of a series")
    latest = node.latest()
    if latest is not None and latest.session.id != space.session.id:
        _settle(latest, parcel)
    offline(space, user, **node.access())
    node.record(round=space.root.name)
    shares = [space.share_path(m, user) for m in space.users() if m != user]
    lists = [space.dealt_path(user)] if space.session.family else []
    return parcels.content(parcels.DEAL, files=parcels.named(space, *shares, *lists))


def _collect(node: Node, parcel: Parcel) -> RecordDict:
    """Store what others dealt for this node, until it prepares a later round."""
    space = node.current(parcel.word("session"))
    user = node.user_in(space.session)
    others = [m for m in space.users() if m != user]
    expected = parcels.share_places(space, *((user, m) for m in others))
    parcels.store(parcel.files, expected | parcels.list_places(space, *others))
    return parcels.content(parcels.COLLECT)


def _mask(
    node: Node, parcel: Parcel, *, message: Message, train: Callable[[Message], Message]
) -> RecordDict | Message:
    """Train, and reply with X, the metrics, and what is averaged in the clear; the app's own reply
    if it is an error."""
    space = _prepare(node, parcel)
    user = node.user_in(space.session)
    inner = RecordDict({name: r for name, r in message.content.items() if name != parcels.RECORD})
    before = _only_arrays(inner)
    if layout_of(before) != space.session.layout:
        raise BadData("the session is for another model than the arrays that came with it")
    message.content = inner
    trained = _trained(message, train)
    if trained.has_error():
        return trained
    after = _only_arrays(trained.content)
    metrics = _only_metrics(trained.content)
    check_same_model(before, after)
    weight = _weight(metrics, parcel.word("weighted-by"))
    clear = buffers(after)
    if clear and node.state().series is None:
        log(INFO, "topk-secagg: in the clear leave all metrics, and %s", ", ".join(clear))
    node.record(series=space.session.series_root)
    _mask_once(node, space, user=user, update=difference(before, after), weight=weight)
    _leave_others(node)
    reply = parcels.content(parcels.MASK, files=parcels.named(space, space.masked_path(user)))
    reply[METRICS] = metrics
    if clear:
        reply[ARRAYS] = record_of(clear)
    return reply


def _trained(message: Message, train: Callable[[Message], Message]) -> Message:
    """The app's reply. What it raises stays on this node: it may quote what was trained."""
    try:
        return train(message)
    except Exception as error:
        log(ERROR, "topk-secagg: the app failed while training", exc_info=error)
        raise AppFailed(f"the app failed with {type(error).__name__}", "look at its log") from error


def _prepare(node: Node, parcel: Parcel) -> Workspace:
    """The round of a message, with its keys; earlier rounds are settled first."""
    space = node.admit(parcel.file("session.json"))
    user = node.user_in(space.session)
    latest = node.latest()
    if latest is None:
        raise InputMissing(
            f"user {user} dealt no keys when this training began",
            "it takes part in the next training",
        )
    if latest.session.id == space.session.id:
        ledger = Ledger.read(space.ledger_path(user), space.session.id, user)
        if ledger.masked is not None:
            raise Refused(f"user {user} has masked in this round already", _TWICE)
        return space
    _settle(latest, parcel)
    _go_on(node, space, latest)
    node.record(round=space.root.name)
    return space


def _mask_once(node: Node, space: Workspace, *, user: int, update: Arrays, weight: float) -> None:
    """`mask`; the very update of an earlier round is not sent again: then this node drops out."""
    report = mask(
        space,
        user,
        update,
        weight=weight,
        feedback=node.feedback,
        saturate=True,
        **node.access(),
    )
    log(
        INFO,
        "topk-secagg: user %d sends %d bytes masked, weight %g, %d values clipped",
        user,
        report.masked_bytes,
        weight,
        report.clipped,
    )


def _confirm(node: Node, parcel: Parcel) -> RecordDict:
    """Confirm the survivors that the server proposes: one set in a round."""
    space = node.current(parcel.word("session"))
    user = node.user_in(space.session)
    confirm_unseen(space, user, parcel.file("survivors.json"), **node.access())
    own = space.confirmation_path(user)
    return parcels.content(parcels.CONFIRM, files=parcels.named(space, own))


def _answer(node: Node, parcel: Parcel) -> RecordDict:
    """Y for the survivors of the message; `eliminate` refuses if too few users confirmed them."""
    space = node.current(parcel.word("session"))
    user = node.user_in(space.session)
    if Ledger.read(space.ledger_path(user), space.session.id, user).answered:
        raise Refused(f"user {user} has answered in this round already", _TWICE)
    parcels.store(parcel.files, parcels.agreed_places(space))
    eliminate(space, user, **node.access())
    return parcels.content(parcels.ANSWER, files=parcels.named(space, space.answer_path(user)))


def _end(node: Node, parcel: Parcel) -> RecordDict:
    """Training is over: settle, and erase all secrets of the run."""
    latest = node.latest()
    if latest is not None:
        _settle(latest, parcel)
        _leave_others(node)
        _leave(node, latest, ends=True)
        node.record(ended=True)
    return parcels.content(parcels.END)


_STEPS = {
    parcels.JOIN: _join,
    parcels.DEAL: _deal,
    parcels.COLLECT: _collect,
    parcels.CONFIRM: _confirm,
    parcels.ANSWER: _answer,
    parcels.END: _end,
}


# leaving a round


def _settle(space: Workspace, parcel: Parcel) -> None:
    """Store who survived the latest round, for a node that did not answer: survivors.json and
    confirmations, under the names that they have in that round."""
    if parcel.words.get("before") == space.session.id:
        files = {name: data for name, data in parcel.files.items() if name != "session.json"}
        parcels.store(files, parcels.agreed_places(space))


def _go_on(node: Node, space: Workspace, latest: Workspace) -> None:
    """`offline`; a round whose answer is still out is given up first."""
    user = node.user_in(space.session)
    try:
        offline(space, user, from_=latest, **node.access())
    except Busy:
        forget(latest, user, give_up=True, **node.access())
        offline(space, user, from_=latest, **node.access())


def _leave_others(node: Node) -> None:
    """Erase the secrets of all rounds but the latest."""
    for space in node.others():
        try:
            _leave(node, space, ends=False)
        except (SecAggError, OSError) as error:  # X has been made: it leaves all the same
            log(WARNING, "topk-secagg: an earlier round is not forgotten yet: %s", error)


def _leave(node: Node, space: Workspace, *, ends: bool) -> None:
    """Erase the secrets of a round that is over, and its files."""
    user = node.user_in(space.session)
    if space.runs_here(user):
        forget(space, user, give_up=True, end_series=ends, **node.access())
    if ends:
        node.erase_residuals()
    node.discard(space)


# what the app trains with, and returns


def _only_arrays(records: RecordDict) -> Arrays:
    """The arrays of the one record of them."""
    if len(records.array_records) != 1:
        raise BadData(
            f"{len(records.array_records)} records of arrays where there must be one",
            "send and return one ArrayRecord",
        )
    (record,) = records.array_records.values()
    return arrays_of(record)


def _only_metrics(records: RecordDict) -> MetricRecord:
    if len(records.metric_records) != 1:
        raise BadData(
            f"the app returns {len(records.metric_records)} records of metrics, not one",
            "return one MetricRecord, with the number of examples",
        )
    (record,) = records.metric_records.values()
    return record


def _weight(metrics: MetricRecord, key: str) -> float:
    """The weight of this node's update."""
    weight = metrics.get(key)
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise BadData(f"the app returns no number {key!r:.40} among its metrics", "return one")
    return float(weight)
