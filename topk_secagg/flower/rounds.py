"""The rounds of a training in the server's folder: sessions, what has arrived, and the sum."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import MetricRecord, RecordDict

from ..algebra.field import SMALL_FIELD
from ..errors import BadData, Refused
from ..rounds.centralised import propose
from ..rounds.decode import DecodeReport, decode
from ..rounds.init import InitReport, init
from ..storage import dealt as dealt_file
from ..storage import masked as masked_file
from ..storage import survivors as survivors_file
from ..storage.answer import opened_answer
from ..storage.keys import Recipient
from ..storage.survivors import Survivors
from ..storage.workspace import Workspace
from . import parcels
from .arrays import (
    Arrays,
    arrays_of,
    check_sizes,
    clear_of,
    middle,
    moved,
    record_of,
    statistics,
    template,
)
from .parcels import Parcel, Place

FIRST_WEIGHT = 10_000.0  # that a node may have at most, before the weights are known
_LATER_WEIGHTS = 2.0  # times the largest that there was
_CLIP_FACTOR = 2.0
_CLIP_FACTOR_OF_BYTES = 0.25  # where steps are coarse
FIRST_FIELD = 4281076801  # which has room for weights that are not known yet
_FEWEST_STEPS = 4  # of a clip, for the largest weight
_MOST_METRICS = 1000
_NOTHING = "\0"  # a pattern that no name has: all floating-point tensors take part


@dataclass
class ServedRound:
    """One round: its folder, its number, who was asked for X, and what nodes sent in the clear with
    it, by user."""

    space: Workspace
    number: int
    asked: list[int] = field(default_factory=list)
    metrics: dict[int, MetricRecord] = field(default_factory=dict)
    clear: dict[int, Arrays] = field(default_factory=dict)
    proposed: Survivors | None = None

    @property
    def id(self) -> str:
        """The session."""
        return self.space.session.id

    @property
    def deals(self) -> bool:
        """Whether nodes deal in this round: keys in the first of a series, shares in every one."""
        return self.space.session.series is None or self.space.session.family is None

    def expected(self, step: str, user: int) -> dict[str, Place]:
        """The files that a user may send at a step."""
        space = self.space
        if step == parcels.DEAL:
            others = [(m, user) for m in space.users() if m != user]
            return parcels.share_places(space, *others) | parcels.list_places(space, user)
        if step == parcels.MASK:
            return parcels.masked_places(space, user)
        if step == parcels.CONFIRM:
            return parcels.places(space, space.confirmation_path(user))
        if step == parcels.ANSWER:
            return parcels.answer_places(space, user)
        return {}

    def store(self, step: str, user: int, parcel: Parcel) -> None:
        """Store what a user sent at a step, if it is what was asked for; nothing may be missing."""
        expected = self.expected(step, user)
        if missing := sorted(expected.keys() - parcel.files.keys()):
            raise BadData(f"{missing[0]} is missing from its reply")
        new = [place.path for place in expected.values() if not place.path.exists()]
        parcels.store(parcel.files, expected)
        try:
            _CHECKS[step](self, user)
        except BaseException:
            for path in new:
                path.unlink(missing_ok=True)
            raise

    def check_dealt(self, user: int) -> None:
        """Refuse a list of commitments that the dealer did not sign."""
        if self.space.session.family is not None:
            dealt_file.read(self.space, user)

    def check_masked(self, user: int) -> None:
        """Refuse an X that is not sound."""
        masked_file.read(self.space.session, self.space.masked_path(user), user)

    def check_confirmed(self, user: int) -> None:
        """Refuse a confirmation of another set than the one that was proposed."""
        assert self.proposed is not None
        if not survivors_file.confirmed_by(self.space, self.proposed.digest, [user]):
            raise BadData("it did not confirm the survivors that were proposed")

    def check_answered(self, user: int) -> None:
        """Refuse a Y that is damaged, or for other survivors."""
        assert self.proposed is not None
        with opened_answer(self.space, user, self.proposed, verify=True):
            pass

    def take_clear(self, user: int, content: RecordDict, model: Arrays) -> None:
        """Keep what came in the clear with an X: metrics, and the model's integers."""
        if len(content.metric_records) != 1:
            raise BadData("its reply does not have one record of metrics")
        (metrics,) = content.metric_records.values()
        if len(metrics) > _MOST_METRICS:
            raise BadData(f"its reply has {len(metrics)} metrics")
        arrays: Arrays = {}
        for record in content.array_records.values():
            check_sizes(record, clear_of(model))
            arrays |= arrays_of(record)
        if _forms(arrays) != _forms(clear_of(model)):
            raise BadData("its arrays are not those of the model that leave in the clear")
        self.metrics[user] = metrics
        self.clear[user] = arrays

    def dealt_for(self, user: int) -> dict[str, bytes]:
        """The shares for a user, and the lists of their dealers."""
        places = parcels.dealt_places(self.space, user).values()
        return parcels.named(self.space, *(place.path for place in places))

    @property
    def answers_needed(self) -> int:
        """The answers that decode the sum."""
        return self.space.session.parameters.survivors

    def masked(self) -> list[int]:
        """The users whose X is here."""
        return list(self.space.present("masked"))

    def propose(self) -> dict[int, str]:
        """Fix the survivors, for all to confirm; whose X was left out for what reason."""
        content, left_out = propose(self.space)
        path = self.space.survivors_path
        parcels.store({path.name: content}, parcels.places(self.space, path))
        self.proposed = survivors_file.read(self.space)
        return left_out

    def survivors(self) -> list[int]:
        """U1, once it is proposed."""
        return [] if self.proposed is None else self.proposed.users

    def confirmed(self) -> list[int]:
        """Who has confirmed them."""
        return [n for n in self.space.users() if self.space.confirmation_path(n).exists()]

    def answered(self) -> list[int]:
        """Who has answered."""
        return list(self.space.present("elimination"))

    def to_mask(self) -> dict[str, bytes]:
        """What users need to mask."""
        space = self.space
        paths = [space.session_path]
        # nodes compute a first basis from the session's nonce, as everybody can
        paths += [place.path for place in parcels.basis_places(space).values()]
        return parcels.named(space, *paths)

    def to_confirm(self) -> dict[str, bytes]:
        """What users confirm."""
        return parcels.named(self.space, self.space.survivors_path)

    def agreed(self) -> dict[str, bytes]:
        """survivors.json and all confirmations of it."""
        return parcels.named(
            self.space, *(p.path for p in parcels.agreed_places(self.space).values())
        )

    def to_answer(self, user: int) -> dict[str, bytes]:
        """What a user needs to answer: who has confirmed has survivors.json."""
        files = self.agreed()
        if user in self.confirmed():
            del files[parcels.name_of(self.space, self.space.survivors_path)]
        return files

    def decode(self, *, strict: bool) -> DecodeReport:
        """The mean of the survivors' updates."""
        return decode(self.space, mean=True, strict=strict)

    @property
    def weights(self) -> dict[int, float]:
        """Of the survivors."""
        return {} if self.proposed is None else self.proposed.weights

    def combined(self, report: DecodeReport, model: Arrays) -> RecordDict:
        """One reply for all survivors: the model moved by the mean of their updates, its integers,
        the mean of their metrics, and the sum of their weights."""
        weights = self.weights
        users = [n for n in report.survivors if n in self.metrics]
        arrays = moved(model, report.total)
        if clear_of(model):
            arrays |= middle([self.clear[n] for n in users])
        metrics = mean_of_metrics([self.metrics[n] for n in users], [weights[n] for n in users])
        metrics[str(self.space.session.weight_name)] = math.fsum(weights.values())
        return RecordDict({"arrays": record_of(arrays), "metrics": metrics})

    def bytes_of_a_user(self) -> float:
        """What a survivor sends after it has trained, in the mean."""
        space = self.space
        sizes = [
            path.stat().st_size
            for n in self.survivors()
            for path in (space.masked_path(n), space.confirmation_path(n), space.answer_path(n))
            if path.exists()
        ]
        return sum(sizes) / max(1, len(self.survivors()))


_CHECKS: dict[str, Callable[[ServedRound, int], None]] = {
    parcels.DEAL: ServedRound.check_dealt,
    parcels.MASK: ServedRound.check_masked,
    parcels.CONFIRM: ServedRound.check_confirmed,
    parcels.ANSWER: ServedRound.check_answered,
}


def _forms(arrays: Arrays) -> dict[str, tuple[tuple[int, ...], str]]:
    """What arrays are like: shapes and types."""
    return {name: (array.shape, array.dtype.str) for name, array in arrays.items()}


def mean_of_metrics(records: Iterable[MetricRecord], weights: Iterable[float]) -> MetricRecord:
    """The weighted mean of every metric that all records have, as a number or a list of them.
    Values that are not finite do not count."""
    pairs = list(zip(records, weights, strict=True))
    combined = MetricRecord()
    if not pairs:
        return combined
    first, _ = pairs[0]
    for key, example in first.items():
        values = [record.get(key) for record, _ in pairs]
        shape = len(example) if isinstance(example, list) else None
        if any((len(v) if isinstance(v, list) else None) != shape or v is None for v in values):
            continue
        columns = [v if isinstance(v, list) else [v] for v in values]
        finite = [
            (column, weight)
            for column, (_, weight) in zip(columns, pairs, strict=True)
            if all(map(_is_finite, column))
        ]
        if not finite:
            continue
        total = sum(weight for _, weight in finite)
        means = [
            sum(weight / total * float(column[at]) for column, weight in finite)
            for at in range(len(columns[0]))
        ]
        combined[key] = means[0] if shape is None else means
    return combined


def _is_finite(value: Any) -> bool:
    """Whether a metric is a number that a mean can be taken of."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


class Series:
    """The rounds of one training, whose users are fixed.

    `keys` are the users' public keys, and `nodes` their nodes, as far as they are known. `dealers`
    have dealt, and `undelivered` are those of them that do not have the shares of the others yet.
    `unanswered` is the latest round of a user in which it was asked for X and gave no Y: it does
    not know what became of its X. `dealing_round` is the one in which the keys or shares of the
    latest round were dealt, and `latest_sum` the last that gave a sum.
    """

    def __init__(
        self,
        folder: Path,
        recipients: Iterable[Recipient],
        options: Mapping[str, Any],
        *,
        clip_from_sum: float | None,
        keeps_files: bool,
    ) -> None:
        self.folder = folder
        self.recipients = {each.user: each for each in recipients}
        self.nodes: dict[int, int] = {}
        self.dealers: set[int] = set()
        self.undelivered: set[int] = set()
        self.unanswered: dict[int, ServedRound] = {}
        self.dealing_round: ServedRound | None = None
        self.latest: ServedRound | None = None
        self._options = dict(options)
        self._clip_from_sum = clip_from_sum
        self._keeps_files = keeps_files
        self._number = 0
        self._list = folder / "recipients.txt"
        self._list.write_text("".join(f"{each.line()}\n" for each in self.recipients.values()))

    @property
    def user_of(self) -> dict[int, int]:
        """The users by their nodes."""
        return {node: user for user, node in self.nodes.items()}

    def is_at(self, user: int, node: int) -> None:
        """Note where a user is, once it has shown that it is that user."""
        for other in [n for n, there in self.nodes.items() if there == node and n != user]:
            raise Refused(f"it is user {other} already")
        self.nodes[user] = node

    def next_round(self, number: int, model: Arrays, context: bytes, weight: str) -> ServedRound:
        """Start the next round; its keys follow from those of the first where these are dealt."""
        self._number += 1
        root = self.folder / f"round-{self._number:04}"
        path = self.folder / "context"
        path.write_bytes(context)
        said: dict[str, Any] = {"context": path, "weight_name": weight}
        if self.latest is None:
            report = self._first(root, model, said)
        else:
            report = self._following(root, self.latest, said)
        self.latest = ServedRound(report.round, number)
        if self.latest.deals:
            self.dealing_round = self.latest
            self.dealers.clear()
            self.undelivered.clear()
        return self.latest

    def _first(self, root: Path, model: Arrays, said: Mapping[str, Any]) -> InitReport:
        """The first round. Weights are not known yet, and need room."""
        options = {name: value for name, value in self._options.items() if value is not None}
        options.setdefault("max_weight", FIRST_WEIGHT)
        if self._options.get("max_weight") is None:
            options.setdefault("field", FIRST_FIELD)
        if not options.get("whole") and (names := statistics(model)):
            options["whole_tensors"] = [*options.get("whole_tensors", ()), *names]
        return init(
            root,
            users=len(self.recipients),
            like=template(model),
            exclude=(_NOTHING,),
            recipients=self._list,
            confirm=True,
            distributed=True,
            construction="sketch",
            **options,
            **said,
        )

    def _following(self, root: Path, latest: ServedRound, said: Mapping[str, Any]) -> InitReport:
        """A round like the latest; after a sum with the clips, and the largest weight, that follow
        from it."""
        if not latest.space.aggregate_path.exists() or not latest.weights:
            return init(root, from_=latest.space, **said)
        p = latest.space.session.parameters
        largest = max(latest.weights.values())
        factor = self._clip_from_sum
        if factor is None:
            factor = _CLIP_FACTOR_OF_BYTES if p.symbol_bytes == 1 else _CLIP_FACTOR
        changed: dict[str, Any] = {}
        if self._options.get("max_weight") is None:
            most = changed["max_weight"] = _LATER_WEIGHTS * largest
            is_roomy = _FEWEST_STEPS * p.users * most <= SMALL_FIELD // 2
            if self._options.get("rank") and self._options.get("field") is None and is_roomy:
                changed["field"] = SMALL_FIELD
        return init(
            root,
            from_=latest.space,
            clip_from_sum=factor * p.max_weight / largest,
            **changed,
            **said,
        )

    def before(self, user: int) -> tuple[dict[str, str], dict[str, bytes]]:
        """What a user should know of the latest round that it did not answer."""
        last = self.unanswered.get(user)
        if last is None or survivors_file.fixed(last.space) is None:
            return {}, {}
        return {parcels.BEFORE: last.id}, last.agreed()

    def dealt_for(self, user: int) -> tuple[dict[str, str], dict[str, bytes]]:
        """What the others dealt for a user, if it does not have it yet."""
        dealt_in = self.dealing_round
        if dealt_in is None or user not in self.undelivered:
            return {}, {}
        return {parcels.DEALT: dealt_in.id}, dealt_in.dealt_for(user)

    def close_round(self, this: ServedRound) -> None:
        """Note who of those that were asked for X gave no Y, and drop the files of rounds that
        nobody needs."""
        for user in this.asked:
            self.unanswered[user] = this
        for user in this.answered():
            self.unanswered.pop(user, None)
        if self._keeps_files:
            return
        # the next round starts from this one, and nodes may still ask for what was dealt
        rounds = (this, self.dealing_round, *self.unanswered.values())
        needed = {each.space.root for each in rounds if each}
        for path in self.folder.glob("round-*"):
            if path not in needed:
                shutil.rmtree(path, ignore_errors=True)
