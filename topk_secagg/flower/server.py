"""The strategy: a server's part in a round, around the strategy that aggregates."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterable, Sequence
from logging import INFO
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedYogi,
    Result,
    Strategy,
)
from flwr.supercore import log

from ..algebra import entropy
from ..algebra.randomness import KEY_BYTES
from ..errors import BadData, SecAggError, TooFewSurvivors, UsageError, amount, counted, named_users
from ..rounds.arguments import AnyPath, optional_path
from ..rounds.decode import DecodeReport
from ..storage.keys import Recipient, check_signature
from . import parcels
from .arrays import Arrays, arrays_of, context_of, in_type_of, record_of
from .exchange import Courier, Exchange, Take, pause, warn
from .keys import Keys, admissible, keys_of, known_keys
from .parcels import Parcel
from .rounds import Series, ServedRound

_MEANS = (FedAvg, FedProx, FedAvgM, FedAdagrad, FedAdam, FedYogi)  # their sums are weighted means
_PRIVATE = DifferentialPrivacyClientSideFixedClipping
_WEIGHTED_BY = "num-examples"  # where a strategy does not say
_COLLUDING = 0.3  # T as a share of N, by default
_SURVIVING = 0.7  # U as a share of N, by default
_SETTLING = 1.0  # seconds in which no node has come, before training begins
_FLOAT_BYTES = 4  # of an entry of a plain update
_METRIC = "topk-secagg-"  # how our metrics of a round begin


class TopKSecAgg(Strategy):
    """Secure aggregation of reduced updates around another strategy.

    The nodes mask what they trained; the server learns the weighted sum of the survivors' updates,
    their weights and who took part. The strategy inside sees one reply in every round: the mean of
    the survivors. So it may be any whose aggregation is a weighted mean, such as FedAvg, FedProx,
    FedAvgM, FedAdam. Nodes need `topk_secagg_mod`.

        strategy = TopKSecAgg(FedAvg(), rank=2)
        result = strategy.start(grid, arrays, num_rounds=10)

    Users are the nodes that are there when training starts, or those whose keys are listed. A node
    that fails or is late at any message drops out of the round. With fewer than U left a round is
    skipped: the arrays stay as they are, and training goes on.

    Arguments:
    strategy: the strategy that aggregates.
    density: the share of an update's entries that a node sends, such as 0.01; or
    top_k: how many entries; or
    rank: low rank: every matrix is projected on so many columns; or
    whole: everything is sent.
    whole_tensors: patterns; arrays with such a name are sent whole, as statistics of batch norm
        always are.
    survivors: U, the users that must remain at least, or a share of the users; more than
        (N + T) / 2. By default 0.7.
    colluders: T, the users that together learn nothing but the sum, with the server, or a share of
        the users. By default 0.3.
    users: wait for so many nodes, and take no more; by default those that are there.
    max_weight: the largest number of examples that a node may have; by default 10,000 in the first
        round, and in later ones twice the largest that there was.
    clip: the largest magnitude of an update's values in the first round; 1 by default. Larger
        values are clamped.
    clip_from_sum: in later rounds the clip of each array is so many times the largest magnitude of
        the last sum, divided by the largest weight in it; 2 by default, 1/4 with symbols of one
        byte.
    feedback: error feedback: what a node did not send is added to its next update.
    feedback_decay: what is left of that in the next round, from 0 to 1; 1 by default.
    field, picks, dealing: as in `topk_secagg.init`.
    recipients: a list of public keys. Where it is given its users alone take part.
    folder: where the files of the rounds are kept, for an audit; a temporary folder by default.
    timeout: seconds to wait for the nodes at a step that is not training.
    patience: seconds to wait for late nodes at such a step, once enough have replied.
    waiting: seconds to wait until enough nodes are there.
    strict: refuse a sum that T users could have forged.
    takes_means: the strategy is none of Flower's, and its aggregation is a weighted mean all the
        same.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        density: float | None = None,
        top_k: int | None = None,
        rank: int | None = None,
        whole: bool = False,
        whole_tensors: Sequence[str] | str = (),
        survivors: float | None = None,
        colluders: float | None = None,
        users: int | None = None,
        max_weight: float | None = None,
        clip: float | None = None,
        clip_from_sum: float | None = None,
        feedback: bool = True,
        feedback_decay: float | None = None,
        field: int | None = None,
        picks: int | None = None,
        dealing: str | None = None,
        recipients: AnyPath | None = None,
        folder: AnyPath | None = None,
        timeout: float = 300.0,
        patience: float = 30.0,
        waiting: float = 600.0,
        strict: bool = False,
        takes_means: bool = False,
    ) -> None:
        _check_takes_means(strategy, takes_means=takes_means)
        if sum(given not in (None, False) for given in (density, top_k, rank, whole)) != 1:
            raise UsageError(
                "how updates are reduced is not given, or given twice",
                "give density=0.01, top_k=..., rank=2 or whole=True",
            )
        self.strategy = strategy
        self.survivors = survivors
        self.colluders = colluders
        self.users = users
        self.clip_from_sum = clip_from_sum
        self.feedback = feedback
        self.recipients = optional_path("recipients", recipients)
        self.folder = optional_path("folder", folder)
        self.timeout = timeout
        self.patience = patience
        self.waiting = waiting
        self.strict = strict
        self.options: dict[str, Any] = {
            "density": density,
            "top_k": top_k,
            "rank": rank,
            "whole": whole or None,
            "whole_tensors": [whole_tensors] if isinstance(whole_tensors, str) else whole_tensors,
            "max_weight": max_weight,
            "clip": clip,
            "feedback_decay": feedback_decay,
            "field": field,
            "picks": picks,
            "dealing": dealing,
        }
        if isinstance(strategy, _PRIVATE) and feedback:
            raise UsageError(
                "updates are clipped for differential privacy, and error feedback adds to them "
                "what was not sent before: a node would send more than the bound",
                "give feedback=False",
            )
        if users is not None:
            choose_users(users, survivors, colluders)  # which refuses what does not fit
        self._kept: tempfile.TemporaryDirectory[str] | None = None
        self._courier: Courier | None = None
        self._rounds: int | None = None
        self._reset()

    def _reset(self) -> None:
        """Forget an earlier training."""
        self._series: Series | None = None
        self._round: ServedRound | None = None
        self._exchange: Exchange | None = None
        self._arrays: Arrays = {}
        self._late: ArrayRecord | None = None
        self._strangers: set[int] = set()
        self._warned: set[str] = set()
        self._sums = 0
        self._last_failure = "no node was asked"
        self._began = time.monotonic()
        self._reply: Message | None = None

    def __repr__(self) -> str:
        return f"TopKSecAgg({self.strategy!r})"

    def summary(self) -> None:
        """Log what the rounds are like."""
        given = {name: self.options[name] for name in ("density", "top_k", "rank", "whole")}
        reduced = ", ".join(f"{name} {value}" for name, value in given.items() if value is not None)
        log(INFO, "\t├──> Secure aggregation (topk-secagg):")
        log(INFO, "\t│\t├── Survivors: at least %s", self.survivors or f"{_SURVIVING:.0%}")
        log(INFO, "\t│\t├── Colluders: at most %s", self.colluders or f"{_COLLUDING:.0%}")
        log(INFO, "\t│\t└── Of an update leaves: %s", reduced)
        self.strategy.summary()

    def start(self, grid: Grid, *args: Any, **kwargs: Any) -> Result:
        """Train with the strategy inside; afterwards nodes erase what is left of their secrets."""
        self._reset()
        self._courier = Courier(grid)
        rounds = kwargs.get("num_rounds", args[1] if len(args) > 1 else None)
        self._rounds = 3 if rounds is None else int(rounds)  # Flower's default
        try:
            result = super().start(self._courier, *args, **kwargs)
        finally:
            self._end()
            self._courier = None
        if self._rounds and not self._sums:
            raise TooFewSurvivors(
                f"none of {counted(self._rounds, 'round')} gave a sum: {self._last_failure}",
                "the warnings above say who dropped out, and why",
            )
        return result

    # training

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the strategy inside, each with the session of the round.

        Before the first round the nodes make their keys known and deal.
        """
        courier = self._courier
        if courier is None:
            raise UsageError(
                "another strategy is around TopKSecAgg, and would see masked updates",
                "put TopKSecAgg outside, and call its start: TopKSecAgg(OTHER(FedAvg()), ...)",
            )
        self._began = time.monotonic()
        if self._series is None:
            self._wait_for_nodes(grid)  # first: strategies choose from those that are there
        else:
            arrays = self._answered_late(arrays)
        self._round = None
        self._arrays = arrays_of(arrays)
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        if not messages:
            self._last_failure = "the strategy inside sent no messages"
            return []
        exchange = Exchange(
            courier,
            message_type=messages[0].metadata.message_type,
            timeout=self.timeout,
            patience=self.patience,
            name_of=self._name_of,
        )
        self._exchange = exchange
        present = sorted(grid.get_node_ids())
        if self._series is None:
            self._series = self._joined(present, exchange)
        else:
            self._readmit(present, exchange, self._series)
        series = self._series
        if series is None:
            return []
        this = series.next_round(
            server_round, self._arrays, self._context(messages), self._weighted_by
        )
        if this.deals and not self._deal(exchange, series, this, present):
            return []
        user_of = series.user_of
        chosen = [message for message in messages if self._takes_part(series, user_of, message)]
        this.asked = [user_of[message.metadata.dst_node_id] for message in chosen]
        if len(this.asked) < this.answers_needed:
            warn(
                f"{counted(len(this.asked), 'user is', 'users are')} asked in round "
                f"{server_round}, and {this.answers_needed} must survive: does the strategy inside "
                "sample fewer (fraction_train)?"
            )
        self._round = this
        return [self._with_parcel(series, this, message) for message in chosen]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The sum of what the nodes masked, handed to the strategy inside as one reply."""
        exchange = self._exchange
        series = self._series
        this = self._round
        late, self._late = self._late, None
        received = list(replies)
        if exchange is None or series is None or this is None:
            return late, None
        for reply in received:
            self._take_masked(reply, exchange=exchange, series=series, this=this)
        try:
            self._agree(exchange, series, this)
            self._ask_for_answers(exchange, series, this)
            arrays, metrics = self._summed(this)
        except SecAggError as error:
            self._last_failure = str(error)
            warn(f"round {server_round} is skipped, and the model stays as it is", error)
            return late, None
        finally:
            series.close_round(this)
        return late if arrays is None else arrays, metrics

    def _summed(self, this: ServedRound) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode, and hand the mean to the strategy inside."""
        assert self._reply is not None
        report = this.decode(strict=self.strict)
        if isinstance(self.strategy, _PRIVATE):
            _check_private(self.strategy, this)
        self._sums += 1
        content = this.combined(report, self._arrays)
        combined, metrics = self.strategy.aggregate_train(
            this.number, [Message(content, reply_to=self._reply)]
        )
        metrics = MetricRecord() if metrics is None else metrics
        self._tell(this, report, metrics)
        return None if combined is None else self._in_own_types(combined), metrics

    def _tell(self, this: ServedRound, report: DecodeReport, metrics: MetricRecord) -> None:
        """One line in the log, and the same as metrics of the round."""
        seconds = time.monotonic() - self._began
        sent = this.bytes_of_a_user()
        users = len(this.space.users())
        plain = _FLOAT_BYTES * report.session.layout.length
        late = [n for n in this.asked if n not in report.answering]
        absent = [n for n in this.space.users() if n not in this.asked]
        log(
            INFO,
            "topk-secagg: round %d: %d of %d users, %s each (%.1f %% of plain), %.1f s%s%s%s",
            this.number,
            len(report.survivors),
            users,
            amount(sent),
            100 * sent / plain,
            seconds,
            f"; late: {named_users(late)}" if late else "",
            f"; not asked: {named_users(absent)}" if absent else "",
            f"; wrong answers: {named_users(report.corrected)}" if report.corrected else "",
        )
        metrics[f"{_METRIC}users"] = len(report.survivors)
        metrics[f"{_METRIC}bytes"] = sent
        metrics[f"{_METRIC}seconds"] = seconds
        metrics[f"{_METRIC}beyond-clip"] = report.beyond_clip

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
        inner = self.strategy
        inner = inner.strategy if isinstance(inner, _PRIVATE) else inner
        return str(getattr(inner, "weighted_by_key", _WEIGHTED_BY))

    def _in_own_types(self, record: ArrayRecord) -> ArrayRecord:
        """Arrays in the types that the model has: averaging makes floats of integers."""
        arrays = arrays_of(record)
        return record_of(
            {
                name: in_type_of(self._arrays[name], array) if name in self._arrays else array
                for name, array in arrays.items()
            }
        )

    def _context(self, messages: list[Message]) -> bytes:
        """What all nodes train from, which must be the same for all."""
        texts = {context_of(message.content, str(self.feedback)) for message in messages}
        if len(texts) > 1:
            raise UsageError(
                "the strategy inside sends nodes different arrays or configurations",
                "all users of a round train from the same: what differs says whose update is whose",
            )
        return texts.pop()

    # the users

    def _wait_for_nodes(self, grid: Grid) -> None:
        """Wait until there are enough nodes for a series, and no more come."""
        inner = self.strategy.strategy if isinstance(self.strategy, _PRIVATE) else self.strategy
        available = int(getattr(inner, "min_available_nodes", 0))
        fixed = int(self.survivors) if isinstance(self.survivors, int) else 2
        wanted = self.users or max(fixed, available)
        began = last_change = time.monotonic()
        count = -1
        while True:
            before, count = count, len(list(grid.get_node_ids()))
            now = time.monotonic()
            if count != before:
                last_change = now
                log(INFO, "topk-secagg: %d of at least %d nodes are connected", count, wanted)
            is_exact = self.users is not None or available > 2
            if count >= wanted and (is_exact or now - last_change >= _SETTLING):
                return
            if now - began > self.waiting:
                raise TooFewSurvivors(
                    f"{counted(count, 'node is', 'nodes are')} there after {self.waiting:g} s, and "
                    f"training waits for {wanted} (users, survivors and min_available_nodes, which "
                    "is 2 in Flower's strategies by default)",
                    "start more SuperNodes, or ask for fewer",
                )
            pause(began)

    def _joined(self, nodes: list[int], exchange: Exchange) -> Series | None:
        """The users of a new series: those of a list, or the nodes that are there."""
        nodes_of: dict[int, int] = {}
        if self.recipients is not None:
            lines = known_keys(self.recipients)
            users = tuple(Recipient(n, *pair) for n, pair in enumerate(sorted(lines), start=1))
        else:
            found = self._introduced(nodes[: self.users], exchange)
            users = tuple(
                Recipient(n, *found[node]) for n, node in enumerate(sorted(found), start=1)
            )
            nodes_of = dict(enumerate(sorted(found), start=1))
        least = self.survivors if isinstance(self.survivors, int) else 2
        if len(users) < least:
            self._last_failure = (
                f"{counted(len(users), 'node has', 'nodes have')} keys that can be used, and "
                f"{least} must survive"
            )
            warn(f"{self._last_failure}; training waits for a round in which there are more")
            return None
        survivors, colluders = choose_users(len(users), self.survivors, self.colluders)
        series = Series(
            self._room(),
            users,
            self.options | {"survivors": survivors, "colluders": colluders},
            clip_from_sum=self.clip_from_sum,
            keeps_files=self.folder is not None,
        )
        for user, node in nodes_of.items():
            series.is_at(user, node)
            log(INFO, "topk-secagg: node %d is user %d", node, user)
        return series

    def _introduced(self, nodes: list[int], exchange: Exchange) -> dict[int, Keys]:
        """The keys of nodes, each of which has shown that they are its own."""
        challenge = entropy.draw(KEY_BYTES, "challenge of nodes").hex()
        keys: dict[int, Keys] = {}

        def take(node: int, parcel: Parcel, _: RecordDict) -> None:
            pair = (parcel.word("age"), parcel.word("ed25519"))
            _check_own(Recipient(1, *pair), challenge, parcel)
            keys[node] = pair

        content = parcels.content(parcels.JOIN, {parcels.CHALLENGE: challenge})
        exchange.ask(parcels.JOIN, dict.fromkeys(nodes, content), take, enough=len(nodes))
        users = admissible(keys, None)
        for node in keys.keys() - users.keys():
            warn(
                f"node {node} has keys that are unsound, or those of another node: it is no user. "
                "Nodes of one account each need a folder of their own (topk-secagg-folder)"
            )
        return users

    def _readmit(self, nodes: list[int], exchange: Exchange, series: Series) -> None:
        """Find users at nodes that are new: a SuperNode that was restarted has another number."""
        known = series.user_of.keys() | self._strangers
        new = [node for node in nodes if node not in known]
        if not new:
            return
        users = {keys_of(each): user for user, each in series.recipients.items()}
        for node, pair in self._introduced(new, exchange).items():
            user = users.get(pair)
            if user is None:
                self._strangers.add(node)
                warn(f"node {node} came after training began: it waits for a new series")
            else:
                series.is_at(user, node)
                log(INFO, "topk-secagg: user %d is back, as node %d", user, node)

    def _room(self) -> Path:
        """The folder for the files of the rounds."""
        if self._kept is not None:
            self._kept.cleanup()
        if self.folder is None:
            self._kept = tempfile.TemporaryDirectory(prefix="topk-secagg-")
            return Path(self._kept.name)
        self.folder.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="training-", dir=self.folder))

    def _deal(
        self, exchange: Exchange, series: Series, this: ServedRound, present: list[int]
    ) -> bool:
        """Every user deals; whether enough did. If not, a series that has just begun is over."""
        session = {"session.json": this.space.session_content}
        nodes = list(series.nodes.values()) or present
        user_of = series.user_of
        contents = {}
        for node in nodes:
            words, files = series.before(user_of[node]) if node in user_of else ({}, {})
            contents[node] = parcels.content(parcels.DEAL, words, files | session)

        def take(node: int, parcel: Parcel, _: RecordDict) -> None:
            user = int(parcel.word(parcels.USER))
            if user not in series.recipients or user in series.dealers:
                raise BadData("it says to be a user that it cannot be")
            _check_own(series.recipients[user], this.id, parcel)
            this.store(parcels.DEAL, user, parcel)
            series.is_at(user, node)
            series.dealers.add(user)

        exchange.ask(parcels.DEAL, contents, take, enough=len(series.recipients))
        series.undelivered = set(series.dealers)
        if len(series.dealers) >= this.answers_needed:
            return True
        self._last_failure = (
            f"{counted(len(series.dealers), 'user')} dealt keys or shares, and "
            f"{this.answers_needed} must survive"
        )
        warn(f"{self._last_failure}: the round is skipped, and the next one starts anew")
        if this.space.session.family is not None:
            content = parcels.content(parcels.END, {parcels.SESSION: this.id})
            exchange.tell(parcels.END, dict.fromkeys(series.nodes.values(), content))
            self._series = None
        return False

    def _takes_part(self, series: Series, user_of: dict[int, int], message: Message) -> bool:
        """Whether a node that the strategy inside chose is a user that can mask."""
        node = message.metadata.dst_node_id
        user = user_of.get(node)
        if user is None:
            self._warn_once(f"node {node} came after training began: it waits for a new series")
        elif user not in series.dealers:
            self._warn_once(f"user {user} (node {node}) dealt nothing: it waits for a new series")
        else:
            return True
        return False

    def _warn_once(self, what: str) -> None:
        """A warning that would be the same in every round."""
        if what not in self._warned:
            self._warned.add(what)
            warn(what)

    def _with_parcel(self, series: Series, this: ServedRound, message: Message) -> Message:
        """A train message of the strategy inside, with the session, with what others dealt, and
        with what became of the last round that its user did not answer."""
        user = series.user_of[message.metadata.dst_node_id]
        # in a round that deals, the message that asked for keys or shares said it already
        words, files = ({}, {}) if this.deals else series.before(user)
        dealt_words, dealt_files = series.dealt_for(user)
        parcel = Parcel(
            parcels.MASK,
            words | dealt_words | {parcels.FEEDBACK: str(self.feedback)},
            files | dealt_files | this.to_mask(),
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
        node = exchange.courier.node_of(reply)
        user = series.user_of.get(node)
        if user is None:
            return

        def take(_: int, parcel: Parcel, content: RecordDict) -> None:
            this.take_clear(user, content, self._arrays)
            this.store(parcels.MASK, user, parcel)
            series.undelivered.discard(user)
            self._reply = reply

        exchange.take_reply(parcels.MASK, reply, node=node, take=take)

    def _agree(self, exchange: Exchange, series: Series, this: ServedRound) -> None:
        """Have the users confirm the survivors; those that have not, if it is asked again."""
        if not this.masked():
            raise TooFewSurvivors("no user has masked", "look at the nodes' logs")
        if this.proposed is None:
            for user, reason in this.propose().items():
                warn(f"the X of user {user} is left out: {reason}")
        done = this.confirmed()
        content = parcels.content(parcels.CONFIRM, {parcels.SESSION: this.id}, this.to_confirm())
        exchange.ask(
            parcels.CONFIRM,
            {series.nodes[user]: content for user in this.survivors() if user not in done},
            _storing(series, this, parcels.CONFIRM),
            enough=max(0, this.space.session.confirmations - len(done)),
        )
        if len(this.confirmed()) < this.space.session.confirmations:
            raise TooFewSurvivors(
                f"{counted(len(this.confirmed()), 'user has', 'users have')} confirmed the "
                f"survivors, and {this.space.session.confirmations} must",
                "they are asked again when the next round begins",
            )

    def _ask_for_answers(self, exchange: Exchange, series: Series, this: ServedRound) -> None:
        """Y of every survivor, or of those that have not answered."""
        words = {
            parcels.SESSION: this.id,
            parcels.LAST: str(this.number == self._rounds),
        }
        done = this.answered()
        exchange.ask(
            parcels.ANSWER,
            {
                series.nodes[user]: parcels.content(parcels.ANSWER, words, this.to_answer(user))
                for user in this.survivors()
                if user not in done
            },
            _storing(series, this, parcels.ANSWER),
            enough=max(0, this.answers_needed - len(done)),
        )

    def _answered_late(self, arrays: ArrayRecord) -> ArrayRecord:
        """The arrays to train from, after the last round was asked again for the replies that it
        lacked: they repeat byte for byte, so that lost ones lose nothing."""
        last = self._round
        exchange = self._exchange
        series = self._series
        if last is None or exchange is None or series is None or last.proposed is None:
            return arrays
        if last.space.aggregate_path.exists():
            return arrays
        log(INFO, "topk-secagg: round %d is asked again for what it lacked", last.number)
        try:
            self._agree(exchange, series, last)
            self._ask_for_answers(exchange, series, last)
            self._late, _ = self._summed(last)
        except SecAggError as error:
            warn(f"round {last.number} gives no sum", error)
            return arrays
        finally:
            series.close_round(last)
        return arrays if self._late is None else self._late

    def _end(self) -> None:
        """Let the nodes erase what is left of their secrets: who answered in the last round has
        done so."""
        exchange = self._exchange
        series = self._series
        last = self._round
        if exchange is not None and series is not None and series.dealing_round is not None:
            root = series.dealing_round.space.session.series_root
            done = last.answered() if last is not None and last.number == self._rounds else []
            content = parcels.content(parcels.END, {parcels.SESSION: root})
            nodes = [node for user, node in series.nodes.items() if user not in done]
            if nodes:
                exchange.tell(parcels.END, dict.fromkeys(nodes, content))
        if self._kept is not None:
            self._kept.cleanup()

    def _name_of(self, node: int) -> str:
        """A node in the log."""
        user = self._series.user_of.get(node) if self._series else None
        return f"node {node}" if user is None else f"user {user} (node {node})"


def choose_users(
    users: int, survivors: float | None = None, colluders: float | None = None
) -> tuple[int, int]:
    """U and T for N users: as they are given, as shares of N, or by default."""
    most = _of_users("colluders", colluders, users, _COLLUDING, math.floor)
    most = max(1, most)
    needed = (users + most) // 2 + 1  # confirmations
    least = _of_users("survivors", survivors, users, _SURVIVING, math.ceil)
    if survivors is None:
        least = max(least, needed)
    if not needed <= least <= users:
        raise UsageError(
            f"U = {least} of N = {users} users, with T = {most}: users confirm the survivors, and "
            f"U must be more than (N + T) / 2, so at least {needed}, and at most N",
            "give other survivors and colluders, or leave them out",
        )
    return least, most


def _of_users(name: str, given: float | None, users: int, default: float, rounded: Any) -> int:
    """A number of users, or a share of them."""
    share = default if given is None else given
    if isinstance(share, bool) or not isinstance(share, int | float):
        raise UsageError(f"{name} is neither a number of users nor a share of them")
    if isinstance(share, int):
        return share
    if not 0 < share < 1:
        raise UsageError(f"{name}={share:g} is no share of the users", "0.7 is seven of ten")
    return int(rounded(share * users + (1e-9 if rounded is math.floor else -1e-9)))


def _check_takes_means(strategy: Strategy, *, takes_means: bool) -> None:
    """Refuse a strategy inside that is not known to take a weighted mean."""
    if isinstance(strategy, _PRIVATE):
        strategy = strategy.strategy
    aggregate = getattr(type(strategy), "aggregate_train", None)
    if takes_means or aggregate in [known.aggregate_train for known in _MEANS]:
        return
    if type(strategy).__name__.startswith("DifferentialPrivacy"):
        raise UsageError(
            f"{type(strategy).__name__} would see one mean, and bound nothing in it",
            "use DifferentialPrivacyClientSideFixedClipping, with fixedclipping_mod behind "
            "topk_secagg_mod",
        )
    raise UsageError(
        f"{type(strategy).__name__} does more with single updates than add them up, as far as is "
        "known",
        "wrap a strategy whose aggregation is a weighted mean, such as FedAvg; if this one's is, "
        "give takes_means=True",
    )


def _check_private(strategy: Any, this: ServedRound) -> None:
    """Refuse a mean of fewer users, or of other weights, than the noise is for."""
    if strategy.num_sampled_clients > len(this.survivors()):
        raise UsageError(
            f"noise is for {strategy.num_sampled_clients} clients, and "
            f"{len(this.survivors())} are in the sum",
            "give num_sampled_clients = U, the survivors that there are at least",
        )
    if len(set(this.weights.values())) > 1:
        raise UsageError(
            "the noise is for users of equal weights, and these differ",
            "let every node return the same number of examples",
        )


def _check_own(recipient: Recipient, challenge: str, parcel: Parcel) -> None:
    """Refuse keys that a node does not have."""
    signature = parcel.word(parcels.SIGNATURE)
    check_signature(recipient, kind=parcels.JOIN, digest=challenge, signature=signature)


def _storing(series: Series, this: ServedRound, step: str) -> Take:
    """What is done with a reply that is only stored."""
    user_of = series.user_of

    def take(node: int, parcel: Parcel, _: RecordDict) -> None:
        this.store(step, user_of[node], parcel)

    return take
