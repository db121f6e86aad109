"""session.json: what all users agree on before anything else. Its SHA-256 is the session's name."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from ..brief import Brief
from ..errors import Advice, BadData, UsageError
from ..gradients.layout import LONGEST_NAME, Layout
from ..gradients.quantise import FixedPoint
from ..gradients.reduce import Reduction
from ..protocol.constructions import construction
from ..protocol.deal import Block, Deal
from ..protocol.family import check_blocks
from ..protocol.messages import Points
from ..protocol.parameters import KEYS, Parameters
from . import documents
from .keys import Recipient, check_recipients

FINGERPRINT_DIGITS = 16  # of a session's name, in hexadecimal
MOST_GENERATIONS = 10_000
MOST_USERS = 1024  # a round of so many has a million shares; commands look for each of them
_NONCE = re.compile(r"[0-9a-f]{32}")
_AGAIN = "fetch session.json again"
START = "start a round, or copy session.json from the user that started it"


@dataclass(frozen=True)
class Series:
    """Which later round of a series this is. Keys are those of the root, put `generation` times
    through `next_key`; generations need not follow each other without gaps."""

    root: documents.Sha256
    generation: int


@dataclass(frozen=True, repr=False)
class Session(Brief):
    """What all users agree on: parameters, points, layout of the gradient and how it is reduced,
    keys, and who freezes.

    Each tensor of the layout has its clip. `basis` is the digest of basis.h5, where tensors are
    projected. `weight_name` says what weights are, and `context` is the digest of what users train
    from; each may be None.

    `family` are the blocks of users that hold a key together, where shares are dealt by keys.
    `series` is None in a root round, however it deals. `before` names the last session that gave a
    sum. `feedback_decay` is what is left of a residual when the next round takes it. Where users
    confirm the survivors there is no `freezer`.

    Whether these fit together is checked when it is made. `nonce` and `id` belong to a file: a
    session that is only compared, or not written yet, has neither.
    """

    parameters: Parameters
    points: Points
    layout: Layout
    reduction: Reduction
    clips: tuple[float, ...]
    basis: documents.Sha256 | None = None
    weight_name: str | None = None
    context: documents.Sha256 | None = None
    family: tuple[Block, ...] | None = None
    series: Series | None = None
    before: documents.Sha256 | None = None
    feedback_decay: float = 1.0
    recipients: tuple[Recipient, ...] | None = None
    freezer: int | None = 1
    confirm: bool = False
    nonce: str = ""
    id: str = ""

    @property
    def fingerprint(self) -> str:
        """The start of the session's name, to compare by eye or over the telephone."""
        return self.id[:FINGERPRINT_DIGITS]

    @cached_property
    def fixed_point(self) -> FixedPoint:
        """How the round writes reals in its field."""
        return self.parameters.fixed_point(self.reduction.clip_runs(self.clips))

    @property
    def scales(self) -> list[int]:
        """Steps per unit, of each tensor."""
        return [self.parameters.scale(clip) for clip in self.clips]

    @property
    def names(self) -> list[str]:
        """Of the tensors."""
        return [slot.name for slot in self.layout.slots]

    @property
    def confirmations(self) -> int:
        """Confirmations that an answer needs: more than (N+T)/2, so that any two such sets share an
        honest user."""
        return (self.parameters.users + self.parameters.colluders) // 2 + 1 if self.confirm else 0

    @property
    def series_root(self) -> str:
        """The session with which the series began."""
        return self.id if self.series is None else self.series.root

    @property
    def series_name(self) -> str:
        """The name of the series: a digest of the root's name and of what its rounds have in
        common.

        Anybody can write the root's name into a session. One with other recipients or rules is of
        a series with another name.
        """
        kept = self.kept_in_series()
        return documents.digest(documents.dump("series", {"root": self.series_root, **kept}))

    @property
    def series_fingerprint(self) -> str:
        """The start of that name."""
        return self.series_name[:FINGERPRINT_DIGITS]

    @property
    def generation(self) -> int:
        """How late in its series the round is: how often keys are put through `next_key`."""
        return 0 if self.series is None else self.series.generation

    @property
    def keys_go_on(self) -> bool:
        """Whether the keys follow from those of the series; shares are written out anew."""
        return self.series is not None and self.parameters.dealing == KEYS

    def kept_in_series(self) -> dict[str, Any]:
        """What all rounds of a series have in common."""
        p = self.parameters
        return {
            "users": p.users,
            "survivors": p.survivors,
            "colluders": p.colluders,
            "points": self.points,
            "family": self.family,
            "recipients": self.recipients,
            "freezer": self.freezer,
            "confirm": self.confirm,
        }

    def blocks_of(self, user: int) -> list[Block]:
        """The blocks of the family that have this user."""
        return [block for block in self.family or () if user in block]

    @property
    def names_the_guilty(self) -> bool:
        """Whether a user that decoding names must have lied, or have a faulty machine.

        Elsewhere a bad share has the same effect on its holder's answer. Keys that are signed and
        compared with the dealer's commitments cannot have it.
        """
        return self.recipients is not None and self.family is not None

    def recipient(self, user: int) -> Recipient | None:
        """The keys of a user, in a sealed round."""
        return self.recipients[user - 1] if self.recipients else None

    def deal(self, dealer: int, sharing: str) -> Deal:
        """One user's dealing in this round."""
        return Deal(
            points=self.points,
            session=self.id,
            dealer=dealer,
            sharing=sharing,
            family=self.family or (),
        )

    def header(self, user: int, **others: str | int) -> dict[str, str | int]:
        """The attributes of a file of this session."""
        return {"session": self.id, "user": user, **others}

    def content(self) -> bytes:
        """The bytes of session.json. Without a nonce two rounds could be the same session."""
        if not _NONCE.fullmatch(self.nonce):
            raise ValueError("a session is written with a nonce of 32 hexadecimal digits")
        body = {
            "nonce": self.nonce,
            "parameters": self.parameters,
            "points": self.points,
            "family": self.family,
            "series": self.series,
            "before": self.before,
            "feedback_decay": self.feedback_decay,
            "weight_name": self.weight_name,
            "context": self.context,
            "rank": self.reduction.rank,
            "side": self.reduction.side,
            "basis": self.basis,
            **self._layout_as_json(),
            "recipients": self.recipients,
            "freezer": self.freezer,
            "confirm": self.confirm,
        }
        return documents.dump("session", body)

    def _layout_as_json(self) -> dict[str, list[Any]]:
        """Of each tensor also its reduction and its clip."""
        body = self.layout.as_json()
        for item, kind, clip in zip(body["layout"], self.reduction.kinds, self.clips, strict=True):
            item |= {"reduction": kind, "clip": clip}
        return body

    def __post_init__(self) -> None:
        p = self.parameters
        if p.users > MOST_USERS:
            raise UsageError(f"{p.users} users", f"a round has at most {MOST_USERS}")
        self.layout.check_limits()  # before anything is computed from it
        self._check_points()
        self._check_reduction()
        self._check_series()
        self._check_keys()
        self._check_freezer()

    def _check_points(self) -> None:
        """Distinct ones, as many as the construction has."""
        p = self.parameters
        points = [*self.points.alpha, *self.points.beta]
        if len(self.points.alpha) != p.users or len(self.points.beta) != construction(p).beta_count:
            raise UsageError("there are too few or too many points")
        if any(not 0 <= x < p.field for x in points) or len(set(points)) < len(points):
            raise UsageError("the points are not distinct elements of the field")

    def _check_reduction(self) -> None:
        """Of the same tensors as the layout, and as long as the parameters say."""
        p = self.parameters
        if self.reduction.shapes != [slot.shape for slot in self.layout.slots]:
            raise UsageError("the reduction is of other tensors than the layout")
        if self.reduction.length != p.length:
            raise UsageError(
                f"the layout is reduced to {self.reduction.length} coordinates, not {p.length}"
            )
        if self.reduction.sent_whole != p.whole:
            raise UsageError(
                f"the layout sends {self.reduction.sent_whole} coordinates whole, not {p.whole}"
            )
        if len(self.clips) != len(self.layout.slots):
            raise UsageError("there is not one clip for each tensor")
        if (self.basis is not None) != self.reduction.has_basis:
            raise UsageError("there is a basis and nothing is projected, or the reverse")
        self.reduction.check(p.field)
        if self.weight_name is not None and not 1 <= len(self.weight_name) <= LONGEST_NAME:
            raise UsageError(
                "the name of the weight is empty or too long",
                f"give at most {LONGEST_NAME} characters",
            )
        _ = self.fixed_point  # which checks the clips

    def _check_series(self) -> None:
        """How rounds follow each other, and what is left of a residual."""
        if not 0 <= self.feedback_decay <= 1:
            raise UsageError(
                f"a decay of {self.feedback_decay:g} for residuals", "it is from 0 to 1"
            )
        if self.series is not None and not 1 <= self.series.generation <= MOST_GENERATIONS:
            raise UsageError(
                f"generation {self.series.generation} of a series",
                f"a series has at most {MOST_GENERATIONS}: start a new one",
            )

    def _check_keys(self) -> None:
        """Who holds a key together, and who every user is."""
        p = self.parameters
        if (self.family is not None) != (p.dealing == KEYS):
            raise UsageError("there is a family of blocks, or none, against the parameters")
        if self.family is not None:
            check_blocks(p, self.family)
        if self.recipients is not None:
            if [r.user for r in self.recipients] != list(range(1, p.users + 1)):
                raise UsageError("there are not the keys of users 1 to N")
            check_recipients(self.recipients)

    def _check_freezer(self) -> None:
        """Either one user freezes, or more than half of all confirm."""
        p = self.parameters
        if self.confirm != (self.freezer is None):
            raise UsageError("either users confirm the survivors, or one user freezes them")
        if self.freezer is not None and not 1 <= self.freezer <= p.users:
            raise UsageError(
                f"there is no user {self.freezer} to freeze", f"users are 1 to {p.users}"
            )
        if self.confirm and self.recipients is None:
            raise UsageError(
                "confirmations are signatures, and there are no keys",
                "give the users' public keys",
                Advice.RECIPIENTS,
            )
        if self.confirm and self.confirmations > p.survivors:
            raise UsageError(
                f"{self.confirmations} users would have to confirm, and only {p.survivors} need to "
                "remain",
                f"keep U > (N + T) / 2: at least {self.confirmations}",
            )


_TYPES = get_type_hints(Session, include_extras=True) | {
    "nonce": Annotated[str, _NONCE.fullmatch],
    "layout": list,  # this and the next are for Layout.from_json
    "left_out": list,
    "rank": int | None,
    "side": str | None,
}
# the digest, and what the layout says
for _name in ("id", "reduction", "clips"):
    del _TYPES[_name]


def read_bytes(path: Path) -> bytes:
    """The bytes of session.json, nothing of which is looked at yet."""
    return documents.read_bytes(path, START)


def parse_session(path: Path, content: bytes) -> Session:
    """Check session.json: types, constraints on the parameters, distinct points, the layout."""
    body = documents.parse(path, content, kind="session", types=_TYPES, hint=_AGAIN)
    try:
        return Session(**_reduced(body), id=documents.digest(content))
    except (UsageError, BadData, ValueError) as error:  # whose text says what is wrong
        raise BadData(str(error), _AGAIN).within(path) from error


def _reduced(body: dict[str, Any]) -> dict[str, Any]:
    """The layout, the reduction and the clips of what session.json says, and all else."""
    slots = [dict(item) if isinstance(item, dict) else {} for item in body.pop("layout")]
    kinds = [item.pop("reduction", None) for item in slots]
    clips = [item.pop("clip", None) for item in slots]
    if not all(type(clip) is float and math.isfinite(clip) for clip in clips):
        raise ValueError("a tensor of the layout has no clip")
    layout = Layout.from_json(slots, body.pop("left_out"))
    layout.check_limits()  # before anything is computed from it
    shapes = [slot.shape for slot in layout.slots]
    reduction = Reduction.of_kinds(shapes, kinds, rank=body.pop("rank"), side=body.pop("side"))
    return {**body, "layout": layout, "reduction": reduction, "clips": tuple(clips)}


def read_session(path: Path) -> Session:
    """Read and check session.json."""
    return parse_session(path, read_bytes(path))
