"""The mod: a node's part in a round, around the app's own training."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from logging import ERROR, INFO, WARNING
from pathlib import Path

from flwr.app import Context, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode
from flwr.supercore import log
from flwr.supercore.differential_privacy import KEY_CLIPPING_NORM

from ..errors import Advice, BadData, Busy, Refused, SecAggError, UsageError
from ..rounds.centralised import confirm
from ..rounds.eliminate import eliminate
from ..rounds.forget import forget
from ..rounds.mask import mask
from ..rounds.offline import offline
from ..storage.documents import is_sha256
from ..storage.ledger import Ledger
from ..storage.workspace import Workspace
from . import parcels
from .arrays import (
    Arrays,
    arrays_of,
    check_same_model,
    clear_of,
    context_of,
    difference,
    layout_of,
    record_of,
)
from .leaving import drop_evidence, leave, leave_others
from .node import Node, State, Training
from .parcels import Parcel

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
    node = None
    try:
        node = Node(context)
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
    except Exception as error:  # what the server sent may be anything
        log(ERROR, "topk-secagg: a message that cannot be used", exc_info=error)
        what = f"the step failed with {type(error).__name__}"
        return _refusal(message, BadData(what, "look at the node's log"), node)


def _refusal(message: Message, error: SecAggError, node: Node | None) -> Message:
    """An error as a reply: one line, which names no folder of this machine."""
    reason = f"{error}; {error.hint}" if error.hint else str(error)
    log(WARNING, "topk-secagg: %s", reason)
    if node is not None:
        for folder in (node.home, node.secrets):
            reason = reason.replace(str(folder), "FOLDER")
    return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, reason), reply_to=message)


def _without_arrays(message: Message, reply: Message) -> Message:
    """Replies to other messages than "train" carry no arrays."""
    if reply.has_content() and reply.content.array_records:
        error = Refused(
            f"the app's reply to a message {message.metadata.message_type!r:.40} holds arrays",
            "what was trained leaves this node masked, and in no other way",
        )
        return _refusal(message, error, None)
    return reply


# the steps


def _join(node: Node, parcel: Parcel) -> RecordDict:
    """The node's public keys, and a signature that shows that they are its own."""
    challenge = parcel.word(parcels.CHALLENGE)
    if not is_sha256(challenge):
        raise BadData("the challenge is none")
    identity = node.identity()
    public = identity.public(1)
    signature = identity.sign(parcels.JOIN, challenge)
    words = {"age": public.age, "ed25519": public.ed25519, parcels.SIGNATURE: signature}
    return parcels.content(parcels.JOIN, words)


def _deal(node: Node, parcel: Parcel) -> RecordDict:
    """Its sealed keys or shares for the others, and its list of commitments."""
    for stale in list(node.stale()):
        leave(stale)
    training, space = node.admit(parcel.file("session.json"))
    session = space.session
    user = node.user_in(session)
    if session.series is not None and session.family is not None:
        raise Refused("no keys are dealt in a later round of a series")
    state = training.state()
    if state is not None:
        _settle(training, parcel)
    _go_on(node, training, space)
    if state is None:
        training.write(State(run=node.run_id, round=space.root.name))
    else:
        training.record(round=space.root.name)
    shares = [space.share_path(m, user) for m in space.users() if m != user]
    lists = [space.dealt_path(user)] if session.family else []
    words = {
        parcels.USER: str(user),
        parcels.SIGNATURE: node.identity().sign(parcels.JOIN, session.id),
    }
    return parcels.content(parcels.DEAL, words, parcels.named(space, *shares, *lists))


def _mask(
    node: Node, parcel: Parcel, *, message: Message, train: Callable[[Message], Message]
) -> RecordDict | Message:
    """Train, and reply with X, the metrics, and what leaves in the clear; the app's own reply if it
    is an error."""
    training, space = node.admit(parcel.file("session.json"))
    user = _prepared(node, training, space, parcel)
    inner = RecordDict({name: r for name, r in message.content.items() if name != parcels.RECORD})
    before = _only_arrays(inner)
    if layout_of(before) != space.session.layout:
        raise BadData("the session is for another model than the arrays that came with it")
    wants_feedback = parcel.word(parcels.FEEDBACK) == str(True)
    feedback = node.feedback and wants_feedback
    context = _agreed_context(space, context_of(inner, str(wants_feedback)))
    _check_clipping(inner, feedback=feedback)
    message.content = inner
    trained = _trained(message, train)
    if trained.has_error():
        return trained
    after = _only_arrays(trained.content)
    metrics = _only_metrics(trained.content)
    check_same_model(before, after)
    weight = _weight(metrics, space.session.weight_name)
    clear = clear_of(after)
    if clear and not training.joined().bound:
        log(INFO, "topk-secagg: in the clear leave all metrics, and %s", ", ".join(clear))
    training.record(bound=True)
    update = difference(before, after)
    _mask_once(
        node, space, user=user, update=update, weight=weight, feedback=feedback, context=context
    )
    leave_others(training)
    reply = parcels.content(parcels.MASK, files=parcels.named(space, space.masked_path(user)))
    reply[METRICS] = metrics
    if clear:
        reply[ARRAYS] = record_of(clear)
    return reply


def _prepared(node: Node, training: Training, space: Workspace, parcel: Parcel) -> int:
    """Have the keys of a round, and all that came with it; the node's number. Earlier rounds are
    settled first."""
    session = space.session
    user = node.user_in(session)
    _settle(training, parcel)
    if training.latest().session.id != session.id:
        if session.family is None:
            raise Refused(f"user {user} dealt no shares in this round")
        _go_on(node, training, space)
        training.record(round=space.root.name)
    elif Ledger.read(space.ledger_path(user), session.id, user).masked is not None:
        raise Refused(
            f"user {user} has masked in this round already",
            "the server asks a second time: look at its log",
        )
    dealing = space
    if parcel.words.get(parcels.DEALT, session.id) != session.id:
        dealing = training.dealt_in(session.series_root)
    _store(parcel, parcels.dealt_places(dealing, user))
    _store(parcel, parcels.basis_places(space))
    return user


def _store(parcel: Parcel, expected: dict[str, parcels.Place]) -> None:
    """Store those of the files of a message that belong to these places."""
    parcels.store({n: data for n, data in parcel.files.items() if n in expected}, expected)


def _agreed_context(space: Workspace, text: bytes) -> Path:
    """What this node trains from, which must be what all users agreed on, as a file."""
    if hashlib.sha256(text).hexdigest() != space.session.context:
        raise Refused(
            "what the server sent to train from is not what the session names: the others were "
            "sent something else",
            "a strategy must send every node the same arrays and the same configuration",
        )
    path = space.root / "context"
    parcels.store({path.name: text}, parcels.places(space, path, largest=len(text)))
    return path


def _check_clipping(records: RecordDict, *, feedback: bool) -> None:
    """Refuse to call something private that is not."""
    if feedback and any(KEY_CLIPPING_NORM in record for record in records.config_records.values()):
        raise Refused(
            "the server has updates clipped for differential privacy, and error feedback adds to "
            "them what was not sent before: a node would send more than the bound",
            "turn error feedback off: TopKSecAgg(..., feedback=False)",
        )


def _trained(message: Message, train: Callable[[Message], Message]) -> Message:
    """The app's reply. What it raises stays on this node: it may quote what was trained."""
    try:
        return train(message)
    except Exception as error:
        log(ERROR, "topk-secagg: the app failed while training", exc_info=error)
        raise AppFailed(f"the app failed with {type(error).__name__}", "look at its log") from error


def _mask_once(
    node: Node,
    space: Workspace,
    *,
    user: int,
    update: Arrays,
    weight: float,
    feedback: bool,
    context: Path,
) -> None:
    """`mask`; the very update of an earlier round is not sent again: then this node drops out."""
    try:
        report = mask(
            space,
            user,
            update,
            weight=weight,
            feedback=feedback,
            saturate=True,
            context=context,
            **node.access(),
        )
    except UsageError as error:
        if error.advice is not Advice.WEIGHT:
            raise
        raise error.but(hint="start the training with a larger max_weight") from error
    except Refused as error:
        if error.advice is not Advice.AGAIN:
            raise
        hint = f"{error.hint}; training must depend on the round, such as on its number"
        raise error.but(hint=hint) from error
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
    _, space = node.current(parcel.word(parcels.SESSION))
    user = node.user_in(space.session)
    confirm(space, user, parcel.file("survivors.json"), **node.access())
    own = space.confirmation_path(user)
    return parcels.content(parcels.CONFIRM, files=parcels.named(space, own))


def _answer(node: Node, parcel: Parcel) -> RecordDict:
    """Y for the survivors of the message; `eliminate` refuses if too few users confirmed them. A
    second question gets the same Y."""
    training, space = node.current(parcel.word(parcels.SESSION))
    user = node.user_in(space.session)
    parcels.store(parcel.files, parcels.agreed_places(space))
    eliminate(space, user, **node.access())
    reply = parcels.content(parcels.ANSWER, files=parcels.named(space, space.answer_path(user)))
    drop_evidence(training)
    if parcel.words.get(parcels.LAST) == str(True):
        leave(training)
    return reply


def _end(node: Node, parcel: Parcel) -> RecordDict:
    """Training is over: erase all its secrets."""
    training = node.training(parcel.word(parcels.SESSION))
    state = training.state()
    if state is not None and not state.ended:
        leave(training)
    return parcels.content(parcels.END)


_STEPS = {
    parcels.JOIN: _join,
    parcels.DEAL: _deal,
    parcels.CONFIRM: _confirm,
    parcels.ANSWER: _answer,
    parcels.END: _end,
}


# between rounds


def _settle(training: Training, parcel: Parcel) -> None:
    """Store who survived the latest round, for a node that did not answer: survivors.json and
    confirmations, under the names that they have in that round."""
    latest = training.latest()
    if parcel.words.get(parcels.BEFORE) == latest.session.id:
        _store(parcel, parcels.agreed_places(latest))


def _go_on(node: Node, training: Training, space: Workspace) -> None:
    """`offline`; a round whose answer is still out is given up first."""
    user = node.user_in(space.session)
    try:
        offline(space, user, **node.access())
    except Busy:
        if training.state() is None:
            raise
        forget(training.latest(), user, give_up=True)
        offline(space, user, **node.access())


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


def _weight(metrics: MetricRecord, key: str | None) -> float:
    """The weight of this node's update: the metric that the session names."""
    weight = metrics.get(str(key))
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise BadData(f"the app returns no number {key!r:.40} among its metrics", "return one")
    if weight == 0:
        raise BadData(f"the app returns 0 as {key!r:.40}: this node has nothing to send")
    return float(weight)
