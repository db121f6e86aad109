"""The rounds of a training in the server's folder: sessions, what has arrived, and the sum."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import MetricRecord, RecordDict

from ..errors import BadData, UsageError
from ..gradients.quantise import dequantise, magnitude
from ..rounds.decode import DecodeReport, decode
from ..rounds.freeze import freeze
from ..rounds.init import InitReport, init
from ..storage import survivors as survivors_file
from ..storage.keys import Recipient
from ..storage.workspace import Workspace
from . import parcels
from .arrays import Arrays, arrays_of, buffers, mean, moved, record_of, template
from .keys import Keys
from .parcels import Parcel, Place


@dataclass
class ServedRound:
    """One round: its folder, and what nodes sent in the clear with their X, by user."""

    space: Workspace
    metrics: dict[int, MetricRecord] = field(default_factory=dict)
    clear: dict[int, Arrays] = field(default_factory=dict)

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
        """Store what a user sent at a step; nothing may be missing."""
        expected = self.expected(step, user)
        if missing := sorted(expected.keys() - parcel.files.keys()):
            raise BadData(f"{missing[0]} is missing from its reply")
        parcels.store(parcel.files, expected)

    def take_clear(self, user: int, content: RecordDict, model: Arrays) -> None:
        """Keep what came in the clear with an X: metrics, and the model's buffers."""
        if len(content.metric_records) != 1:
            raise BadData("its reply does not have one record of metrics")
        (metrics,) = content.metric_records.values()
        arrays: Arrays = {}
        for record in content.array_records.values():
            arrays |= arrays_of(record)
        if _forms(arrays) != _forms(buffers(model)):
            raise BadData("its buffers are not those of the model")
        self.metrics[user] = metrics
        self.clear[user] = arrays

    def dealt_for(self, user: int) -> dict[str, bytes]:
        """The shares for a user, and the lists of their dealers."""
        space = self.space
        others = [m for m in space.users() if m != user]
        paths = [space.share_path(user, m) for m in others]
        if space.session.family is not None:
            paths += [space.dealt_path(m) for m in others]
        return parcels.named(space, *paths)

    @property
    def answers_needed(self) -> int:
        """The answers that decode the sum."""
        return self.space.session.parameters.survivors

    def masked(self) -> list[int]:
        """The users whose X is here."""
        return list(self.space.present("masked"))

    def propose(self) -> dict[int, str]:
        """Fix the survivors, for all to confirm; whose X was left out for what reason."""
        return freeze(self.space).left_out

    def survivors(self) -> list[int]:
        """U1, once it is proposed."""
        return survivors_file.read(self.space).users

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
        if self.space.confirmation_path(user).exists():
            del files[parcels.name_of(self.space, self.space.survivors_path)]
        return files

    def decode(self) -> DecodeReport:
        """The mean of the survivors' updates."""
        return decode(self.space, mean=True)

    def combined(self, report: DecodeReport, model: Arrays, *, weighted_by: str) -> RecordDict:
        """One reply for all survivors: the model moved by the mean of their updates, the mean of
        its buffers and of their metrics, and the sum of their weights."""
        weights = survivors_file.read(self.space).weights
        users = [n for n in report.survivors if n in self.metrics]
        parts = [weights[n] for n in users]
        arrays = moved(model, report.total)
        if buffers(model):
            arrays |= mean([self.clear[n] for n in users], parts)
        metrics = mean_of_metrics([self.metrics[n] for n in users], parts)
        metrics[weighted_by] = math.fsum(weights.values())
        return RecordDict({"arrays": record_of(arrays), "metrics": metrics})


def _forms(arrays: Arrays) -> dict[str, tuple[tuple[int, ...], str]]:
    """What arrays are like: shapes, and whether they are floats or integers."""
    return {name: (array.shape, array.dtype.kind) for name, array in arrays.items()}


def mean_of_metrics(records: Iterable[MetricRecord], weights: Iterable[float]) -> MetricRecord:
    """The weighted mean of every metric that all records have, as a number or a list of them."""
    pairs = list(zip(records, weights, strict=True))
    total = sum(weight for _, weight in pairs)
    combined = MetricRecord()
    first, _ = pairs[0]
    for key, example in first.items():
        values = [record.get(key) for record, _ in pairs]
        shape = len(example) if isinstance(example, list) else None
        if any((len(v) if isinstance(v, list) else None) != shape or v is None for v in values):
            continue
        columns = [v if isinstance(v, list) else [v] for v in values]
        means = [
            sum(weight / total * x for x, (_, weight) in zip(column, pairs, strict=True))
            for column in zip(*columns, strict=True)
        ]
        combined[key] = means[0] if shape is None else means
    return combined


class Series:
    """The rounds of one training, whose users are fixed.

    `nodes` are their nodes by user. `dealers` have dealt, and `undelivered` are those of them that
    do not have the shares of the others yet. `unanswered` is the latest round of a user in which it
    was asked for X and gave no Y: it does not know what became of its X. `dealing_round` is the one
    in which the keys or shares of the latest round were dealt.
    """

    def __init__(
        self,
        folder: Path,
        keys: Mapping[int, Keys],
        options: Mapping[str, Any],
        *,
        clip_from_sum: float,
        keeps_files: bool,
    ) -> None:
        self.folder = folder
        self.nodes = dict(enumerate(sorted(keys), start=1))
        self.user_of = {node: user for user, node in self.nodes.items()}
        self.dealers: set[int] = set()
        self.undelivered: set[int] = set()
        self.unanswered: dict[int, ServedRound] = {}
        self.dealing_round: ServedRound | None = None
        self.latest: ServedRound | None = None
        self._options = dict(options)
        self._clip_from_sum = clip_from_sum
        self._clip: float | None = None
        self._keeps_files = keeps_files
        self._number = 0
        self._recipients = folder / "recipients.txt"
        lines = [Recipient(user, *keys[node]).line() for user, node in self.nodes.items()]
        self._recipients.write_text("\n".join(lines) + "\n")

    def next_round(self, model: Arrays) -> ServedRound:
        """Start the next round; its keys follow from those of the first where these are dealt."""
        self._number += 1
        root = self.folder / f"round-{self._number:04}"
        if self.latest is None:
            report = init(
                root,
                users=len(self.nodes),
                like=template(model),
                recipients=self._recipients,
                confirm=True,
                distributed=True,
                **self._options,
            )
        else:
            report = self._following(root, self.latest)
        self.latest = ServedRound(report.round)
        if self.latest.deals:
            self.dealing_round = self.latest
            self.dealers.clear()
            self.undelivered.clear()
        return self.latest

    def _following(self, root: Path, latest: ServedRound) -> InitReport:
        """A round like the latest, with the clip that follows from the latest sum if there can be
        such a clip."""
        try:
            return init(root, from_=latest.space, clip=self._clip)
        except UsageError:
            return init(root, from_=latest.space)

    def before(self, user: int) -> tuple[dict[str, str], dict[str, bytes]]:
        """What a user should know of the latest round that it did not answer."""
        last = self.unanswered.get(user)
        if last is None or survivors_file.fixed(last.space) is None:
            return {}, {}
        return {"before": last.space.session.id}, last.agreed()

    def close_round(self, this: ServedRound, asked: Iterable[int]) -> None:
        """Note who of those that were asked for X gave no Y, and drop the files of rounds that
        nobody needs."""
        answered = set(this.space.present("elimination"))
        for user in asked:
            self.unanswered[user] = this
        for user in answered:
            self.unanswered.pop(user, None)
        if self._keeps_files:
            return
        # the next round starts from this one, and nodes may still ask for what was dealt
        rounds = (this, self.dealing_round, *self.unanswered.values())
        needed = {each.space.root for each in rounds if each}
        for path in self.folder.glob("round-*"):
            if path not in needed:
                shutil.rmtree(path, ignore_errors=True)

    def follow(self, report: DecodeReport) -> None:
        """Take the clip of the next round from this sum."""
        total = report.sparse
        fixed = report.session.fixed_point
        largest = magnitude(dequantise(fixed, total.index, total.value))
        weight = max(survivors_file.read(Workspace(report.path.parent)).weights.values())
        if largest:
            self._clip = self._clip_from_sum * largest / weight
