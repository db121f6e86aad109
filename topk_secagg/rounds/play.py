"""All steps of all users of a round, each for the users that do it, through the same files.

`run` decides what is played, and starts the round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from ..errors import Refused, SecAggError, about
from ..gradients.arrays import Given, Vector
from ..gradients.layout import Layout
from ..gradients.quantise import check_clips
from ..progress import UserProgress
from ..storage import survivors as survivors_file
from ..storage.ledger import Ledger
from ..storage.workspace import Workspace
from .arguments import AnyPath
from .dropouts import Remaining
from .each import Report, for_each
from .eliminate import EliminateReport, eliminate
from .feedback import carried_from
from .following import Following
from .freeze import confirm, freeze
from .mask import MaskReport, mask
from .offline import offline
from .sending import read_gradient_of, subject_of
from .user_files import names_of


@dataclass(frozen=True)
class Survey:
    """What the gradients of a round are like before it starts: the largest magnitudes that each
    user would send of each tensor, its residual included, and the bytes of the largest gradient as
    it is."""

    largest: dict[int, list[float]]
    plain_bytes: int


@dataclass(frozen=True)
class Play:
    """Who does what in a round, and how: all steps, each for the users that do it."""

    gradients: Mapping[int, Given]
    left: Remaining
    weights: Mapping[int, float]
    feedback: bool
    entry: str
    strip_prefix: str
    select: str
    saturate: bool
    again: bool
    context: AnyPath | None
    randomness: str
    earlier: Workspace | None
    jobs: int | None
    progress: UserProgress

    def survey(
        self, layout: Layout, following: Following, *, session: str = "", decay: float = 1.0
    ) -> Survey:
        """Read the gradients of the users that mask, and their residuals; nothing is written.

        `session` is that of a round that was started already.
        """
        look = partial(self._look, layout, following, session, decay)
        looks = self._phase("check", self.left.masking, look)
        return Survey(
            largest={user: largest for user, (largest, _) in looks.items()},
            plain_bytes=max((plain_bytes for _, plain_bytes in looks.values()), default=0),
        )

    def _look(
        self, layout: Layout, following: Following, session: str, decay: float, user: int
    ) -> tuple[list[float], int]:
        """The largest magnitudes that a user would send, and the bytes of its gradient as it
        is."""
        flat, plain_bytes = self._read(layout, user)
        if self.feedback and self.earlier is not None:
            taken = carried_from(self.earlier, user, session, layout.length)
            flat = taken.added_to(flat, self.weights[user], decay)
        reduction = following.reduction
        return reduction.largest(reduction.reduce(flat, following.bases)), plain_bytes

    def _read(self, layout: Layout, user: int) -> tuple[Vector, int]:
        """A gradient as a flat vector, and the bytes that it has as it is."""
        gradient = self.gradients[user]
        tensors = read_gradient_of(user, gradient, entry=self.entry, strip_prefix=self.strip_prefix)
        with about(subject_of(user, gradient)):
            return layout.flatten(tensors), layout.plain_bytes(tensors)

    def check(self, space: Workspace, survey: Survey) -> None:
        """Refuse what could only fail later, before anything secret is drawn."""
        p = space.session.parameters
        self.left.check_enough(p)
        frozen = space.survivors_path.exists()
        if frozen and survivors_file.read(space).users != self.left.masking:
            raise Refused(
                "the survivors of this round are fixed already, and differ", "choose another folder"
            )
        for user in space.users():
            masked = user not in self.left.masking and space.masked_path(user).exists()
            answered = user not in self.left.answering and space.answer_path(user).exists()
            if masked or answered:
                what = "masked" if masked else "answered"
                raise Refused(
                    f"user {user} has {what} in this round already", "choose another folder"
                )
        if not self.saturate and not self.feedback:
            open_users = [user for user in self.left.masking if not _has_masked(space, user)]
            clips = space.session.clips
            check_clips(clips, {self._name(user): survey.largest[user] for user in open_users})

    def _name(self, user: int) -> str:
        """A user in a message, with the name of its file."""
        name = names_of(self.gradients).get(user)
        return str(user) if name is None else f"{user} ({name})"

    def steps(self, space: Workspace) -> tuple[list[MaskReport], list[EliminateReport]]:
        """Every step up to decoding: the reports of masking and answering."""
        everybody = list(space.users())
        draw = partial(offline, space, randomness=self.randomness, from_=self.earlier)
        self._phase("offline", everybody, draw)
        masked = self._phase("mask", self.left.masking, partial(self._mask, space))
        freeze(space, self.left.masking)
        if space.session.confirm:
            self._phase("confirm", everybody, partial(confirm, space))
        answered = self._phase("eliminate", self.left.answering, partial(eliminate, space))
        return list(masked.values()), list(answered.values())

    def _mask(self, space: Workspace, user: int) -> MaskReport:
        return mask(
            space,
            user,
            self.gradients[user],
            entry=self.entry,
            strip_prefix=self.strip_prefix,
            weight=self.weights[user],
            feedback=self.feedback,
            select=self.select,
            saturate=self.saturate,
            again=self.again,
            context=self.context,
        )

    def _phase(
        self, name: str, who: Sequence[int], step: Callable[[int], Report]
    ) -> dict[int, Report]:
        """A step of several users, of whom the first failure is raised; `progress` hears of
        each."""
        self.progress(name, 0, len(who))
        outcome = for_each(
            who, step, jobs=self.jobs, done=lambda user: self.progress(name, user, len(who))
        )
        return outcome.every_report()


def _has_masked(space: Workspace, user: int) -> bool:
    """Whether an interrupted `run` went that far."""
    with suppress(SecAggError):
        ledger = Ledger.read(space.ledger_path(user), space.session.id, user)
        return ledger.masked is not None
    return False
