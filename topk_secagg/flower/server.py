"""The strategy: a server's part in a round, around the strategy that aggregates."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from logging import INFO
from pathlib import Path
from typing import Any, Unpack

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    Bulyan,
    FedMedian,
    FedTrimmedAvg,
    FedXgbBagging,
    FedXgbCyclic,
    Krum,
    MultiKrum,
    QFedAvg,
    Result,
    Strategy,
)
from flwr.supercore import log

from ..errors import SecAggError, TooFewSurvivors, UsageError, counted
from ..rounds.arguments import AnyPath, optional_path
from ..rounds.options import RoundOptions
from . import parcels
from .arrays import Arrays, arrays_of, in_type_of, record_of
from .exchange import Exchange, Take, warn
from .keys import Keys, admissible, known_keys
from .parcels import Parcel
from .rounds import Series, ServedRound

_NO_MEAN = (Bulyan, FedMedian, FedTrimmedAvg, FedXgbBagging, FedXgbCyclic, Krum, QFedAvg, MultiKrum)
_WEIGHTED_BY = "num-examples"  # where a strategy does not say


class TopKSecAgg(Strategy):
    """Secure aggregation of top-K sparsified updates around another strategy.

    The nodes mask what they trained; the server learns the weighted sum of the survivors' updates,
    their weights and who took part. The strategy inside sees one reply in every round: the mean of
    the survivors. So it may be any whose aggregation is a weighted mean, such as FedAvg, FedProx,
    FedAvgM, FedAdam. Nodes need `topk_secagg_mod`.

    Users are the nodes that are there when training starts, numbered in the order of their ids. A
    node that fails or is late at any message drops out of the round. With fewer than U left a round
    is skipped: the arrays stay as they are, and training goes on.

    Arguments:
    strategy: the strategy that aggregates.
    survivors: U, the users that must remain at least; more than (N + T) / 2.
    colluders: T, the users that together learn nothing but the sum, with the server.
    max_weight: the largest number of examples that a node may have.
    clip_from_sum: in later rounds the clip is so many times the largest magnitude of the last sum,
        divided by the largest weight in it. Larger values are clamped.
    users: wait for so many nodes, and take no more; by default those that are there.
    recipients: a list of public keys; nodes with other keys do not take part.
    folder: where the files of the rounds are kept, for an audit; a temporary folder by default.
    timeout: seconds to wait for the nodes at a step that is not training.
    patience: seconds to wait for late nodes at such a step, once enough have replied.
    clip: the largest magnitude of an update's values in the first round; 1 by default.
    top_k, density, field, picks, construction, ...: as in `topk_secagg.init`; "sketch" by default,
        by which keys are dealt once for all rounds.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        survivors: int,
        colluders: int,
        max_weight: float = 10_000.0,
        clip_from_sum: float = 2.0,
        users: int | None = None,
        recipients: AnyPath | None = None,
        folder: AnyPath | None = None,
        timeout: float = 300.0,
        patience: float = 30.0,
        **options: Unpack[RoundOptions],
    ) -> None:
        if isinstance(strategy, _NO_MEAN):
            raise UsageError(
                f"{type(strategy).__name__} does more with single updates than add them up",
                "wrap a strategy whose aggregation is a weighted mean, such as FedAvg",
            )
        self.strategy = strategy
        self.survivors = survivors
        self.colluders = colluders
        self.clip_from_sum = clip_from_sum
        self.users = users
        self.recipients = optional_path("recipients", recipients)
        self.folder = optional_path("folder", folder)
        self.timeout = timeout
        self.patience = patience
        self.options: dict[str, Any] = {
            "construction": "sketch",
            **options,
            "survivors": survivors,
            "colluders": colluders,
            "max_weight": max_weight,
        }
        self._kept: tempfile.TemporaryDirectory[str] | None = None
        self._series: Series | None = None
        self._round: ServedRound | None = None
        self._asked: list[int] = []
        self._warned: set[str] = set()
        self._arrays: Arrays = {}
        self._exchange: Exchange | None = None

    def __repr__(self) -> str:
        return f"TopKSecAgg({self.strategy!r})"

    def summary(self) -> None:
        """Log what the rounds are like."""
        log(INFO, "\t├──> Secure aggregation (topk-secagg):")
        log(INFO, "\t│\t├── Survivors: at least %d", self.survivors)
        log(INFO, "\t│\t├── Colluders: at most %d", self.colluders)
        size = self.options.get("top_k") or self.options.get("density")
        log(INFO, "\t│\t└── Coordinates of an update: %s", size)
        self.strategy.summary()

    def start(self, grid: Grid, *args: Any, **kwargs: Any) -> Result:
        """Train with the strategy inside; afterwards nodes erase what is left of their secrets."""
        self._series = None
        try:
            return super().start(grid, *args, **kwargs)
        finally:
            self._end()

    # training

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the strategy inside, each with the session of the round.

        Before the first round the nodes make their keys known and deal.
        """
        self._round = None
        self._arrays = arrays_of(arrays)
        if self._series is None:
            self._wait_for_nodes(grid)  # first: strategies choose from those that are there
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        if not messages:
            return []
        exchange = Exchange(
            grid,
            message_type=messages[0].metadata.message_type,
            timeout=self.timeout,
            patience=self.patience,
            name_of=self._name_of,
        )
        self._exchange = exchange
        if self._series is None:
            self._series = self._joined(sorted(grid.get_node_ids()), exchange)
        if self._series is None:
            return []
        series = self._series
        this = series.next_round(self._arrays)
        if this.deals and not self._deal(exchange, series, this):
            return []
        self._deliver(exchange, series)
        chosen = [message for message in messages if self._takes_part(series, message)]
        self._round = this
        self._asked = [series.user_of[message.metadata.dst_node_id] for message in chosen]
        return [self._with_parcel(series, this, message) for message in chosen]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The sum of what the nodes masked, handed to the strategy inside as one reply."""
        exchange = self._exchange
        series = self._series
        this = self._round
        received = list(replies)
        if exchange is None or series is None or this is None:
            return None, None
        for reply in received:
            self._take_masked(reply, exchange=exchange, series=series, this=this)
        try:
            _agree(exchange, series, this)
            _ask_for_answers(exchange, series, this)
            report = this.decode()
        except SecAggError as error:
            warn(f"round {server_round} is skipped, and the model stays as it is", error)
            return None, None
        finally:
            series.close_round(this, self._asked)
        series.follow(report)
        log(
            INFO,
            "topk-secagg: the sum of %d users, from %d answers",
            len(report.survivors),
            len(report.answering),
        )
        content = this.combined(report, self._arrays, weighted_by=self._weighted_by)
        combined, metrics = self.strategy.aggregate_train(
            server_round, [Message(content, reply_to=received[0])]
        )
        return None if combined is None else self._in_own_types(combined), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the strategy inside does."""
        messages: Iterable[Message] = self.strategy.configure_evaluate(
            server_round, arrays, config, grid
        )
        return messages

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """As the strategy inside does."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    @property
    def _weighted_by(self) -> str:
        """The metric by which updates are weighted."""
        return str(getattr(self.strategy, "weighted_by_key", _WEIGHTED_BY))

    def _in_own_types(self, record: ArrayRecord) -> ArrayRecord:
        """Arrays in the types that the model has: averaging makes floats of integers."""
        arrays = arrays_of(record)
        return record_of(
            {
                name: in_type_of(self._arrays[name], array) if name in self._arrays else array
                for name, array in arrays.items()
            }
        )

    # before training

    def _wait_for_nodes(self, grid: Grid) -> None:
        """Wait until there are enough nodes for a series."""
        available = int(getattr(self.strategy, "min_available_nodes", 0))
        wanted = max(self.users or self.survivors, available)
        while (count := len(list(grid.get_node_ids()))) < wanted:
            log(INFO, "topk-secagg: %d of at least %d nodes are connected", count, wanted)
            time.sleep(1)

    def _joined(self, nodes: list[int], exchange: Exchange) -> Series | None:
        """The users of a new series: the nodes that are there, and their keys."""
        keys: dict[int, Keys] = {}

        def take(node: int, parcel: Parcel, _: RecordDict) -> None:
            keys[node] = (parcel.word("age"), parcel.word("ed25519"))

        asked = nodes[: self.users]
        exchange.ask(
            parcels.JOIN,
            dict.fromkeys(asked, parcels.content(parcels.JOIN)),
            take,
            enough=len(asked),
        )
        known = None if self.recipients is None else known_keys(self.recipients)
        users = admissible(keys, known)
        for node in keys.keys() - users.keys():
            warn(f"node {node} has keys that are unknown, unsound or another node's: it is no user")
        if len(users) < self.survivors:
            warn(
                f"{len(users)} nodes have keys that can be used, and {self.survivors} must "
                "survive; training waits for a round in which there are more"
            )
            return None
        series = Series(
            self._room(),
            users,
            self.options,
            clip_from_sum=self.clip_from_sum,
            keeps_files=self.folder is not None,
        )
        for user, node in series.nodes.items():
            log(INFO, "topk-secagg: node %d is user %d", node, user)
        return series

    def _room(self) -> Path:
        """The folder for the files of the rounds."""
        if self._kept is not None:
            self._kept.cleanup()
        if self.folder is None:
            self._kept = tempfile.TemporaryDirectory(prefix="topk-secagg-")
            return Path(self._kept.name)
        self.folder.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="training-", dir=self.folder))

    def _deal(self, exchange: Exchange, series: Series, this: ServedRound) -> bool:
        """Every user deals; whether enough did. If not, a series that has just begun is over."""
        session = {"session.json": this.space.session_content}
        contents = {}
        for user, node in series.nodes.items():
            words, files = series.before(user)
            contents[node] = parcels.content(parcels.DEAL, words, files | session)

        def take(node: int, parcel: Parcel, _: RecordDict) -> None:
            this.store(parcels.DEAL, series.user_of[node], parcel)
            series.dealers.add(series.user_of[node])

        exchange.ask(parcels.DEAL, contents, take, enough=len(contents))
        series.undelivered = set(series.dealers)
        if len(series.dealers) >= self.survivors:
            return True
        warn(
            f"{counted(len(series.dealers), 'user')} dealt keys or shares, and {self.survivors} "
            "must survive: the round is skipped, and the next one starts anew"
        )
        if this.space.session.family is not None:
            self._series = None
        return False

    def _deliver(self, exchange: Exchange, series: Series) -> None:
        """Hand every dealer what the others dealt for it, if it does not have it yet."""
        dealt_in = series.dealing_round
        if dealt_in is None or not series.undelivered:
            return
        words = {"session": dealt_in.space.session.id}
        contents = {
            series.nodes[user]: parcels.content(parcels.COLLECT, words, dealt_in.dealt_for(user))
            for user in sorted(series.undelivered)
        }

        def take(node: int, _: Parcel, __: RecordDict) -> None:
            series.undelivered.discard(series.user_of[node])

        exchange.ask(parcels.COLLECT, contents, take, enough=min(len(contents), self.survivors))

    def _takes_part(self, series: Series, message: Message) -> bool:
        """Whether a node that the strategy inside chose is a user that can mask."""
        node = message.metadata.dst_node_id
        user = series.user_of.get(node)
        if user is None:
            self._warn_once(f"node {node} came after training began: it waits for a new series")
        elif user not in series.dealers:
            self._warn_once(f"user {user} (node {node}) dealt nothing: it waits for a new series")
        elif user in series.undelivered:
            warn(f"user {user} (node {node}) does not have the others' shares yet")
        else:
            return True
        return False

    def _warn_once(self, what: str) -> None:
        """A warning that would be the same in every round."""
        if what not in self._warned:
            self._warned.add(what)
            warn(what)

    def _with_parcel(self, series: Series, this: ServedRound, message: Message) -> Message:
        """A train message of the strategy inside, with the session, and with what became of the
        last round that its user did not answer."""
        user = series.user_of[message.metadata.dst_node_id]
        # in a round that deals, the message that asked for keys or shares said it already
        words, files = ({}, {}) if this.deals else series.before(user)
        parcel = Parcel(
            parcels.MASK,
            words | {"weighted-by": self._weighted_by},
            files | {"session.json": this.space.session_content},
        )
        return Message(
            RecordDict({**message.content, parcels.RECORD: parcel.record()}),
            dst_node_id=message.metadata.dst_node_id,
            message_type=message.metadata.message_type,
            ttl=message.metadata.ttl,
            group_id=message.metadata.group_id,
        )

    # after training

    def _take_masked(
        self, reply: Message, *, exchange: Exchange, series: Series, this: ServedRound
    ) -> None:
        """Store an X, and what came with it in the clear."""
        node = reply.metadata.src_node_id

        def take(node: int, parcel: Parcel, content: RecordDict) -> None:
            user = series.user_of[node]
            this.take_clear(user, content, self._arrays)
            this.store(parcels.MASK, user, parcel)

        if node in series.user_of or reply.has_error():
            exchange.take_reply(parcels.MASK, reply, node=node, take=take)

    def _end(self) -> None:
        """Let the nodes erase what is left of their secrets."""
        exchange = self._exchange
        series = self._series
        if exchange is None or series is None:
            return
        contents = {
            node: parcels.content(parcels.END, *series.before(user))
            for user, node in series.nodes.items()
        }
        exchange.ask(parcels.END, contents, lambda *_: None, enough=0)
        if self._kept is not None:
            self._kept.cleanup()

    def _name_of(self, node: int) -> str:
        """A node in the log."""
        user = self._series.user_of.get(node) if self._series else None
        return f"node {node}" if user is None else f"user {user} (node {node})"


def _agree(exchange: Exchange, series: Series, this: ServedRound) -> None:
    """Have the users confirm the survivors."""
    session = {"session": this.space.session.id}
    if not this.masked():
        raise TooFewSurvivors("no user has masked", "look at the nodes' logs")
    for user, reason in this.propose().items():
        warn(f"the X of user {user} is left out: {reason}")
    content = parcels.content(parcels.CONFIRM, session, this.to_confirm())
    exchange.ask(
        parcels.CONFIRM,
        {series.nodes[user]: content for user in this.survivors()},
        _storing(series, this, parcels.CONFIRM),
        enough=this.space.session.confirmations,
    )


def _ask_for_answers(exchange: Exchange, series: Series, this: ServedRound) -> None:
    """Y of every survivor."""
    session = {"session": this.space.session.id}
    exchange.ask(
        parcels.ANSWER,
        {
            series.nodes[user]: parcels.content(parcels.ANSWER, session, this.to_answer(user))
            for user in this.survivors()
        },
        _storing(series, this, parcels.ANSWER),
        enough=this.answers_needed,
    )


def _storing(series: Series, this: ServedRound, step: str) -> Take:
    """What is done with a reply that is only stored."""

    def take(node: int, parcel: Parcel, _: RecordDict) -> None:
        this.store(step, series.user_of[node], parcel)

    return take
