"""secrets/user-NN.ledger.json: the state machine of one user in one round.

What is spent stays spent: a line is durable before the file that it covers leaves. A ledger only
gains lines, and only `rounds/spend.py` writes those that let something out. In this order:

    shared      the sharing of the secret, once all shares of it, or the keys that follow from the
                chain, are in their places; `dealt` is the digest of the own list of keys.
    masked      the digest of X. With it, what a repetition must find again: `input` (keyed, see
                inputs.py), `weight`, `select`, `feedback`, `holds` and `lists`; and `residual`, the
                digest of what was not sent, keyed too. `check_masks` refuses a second X: 77.
                `report` says, for the user's own eyes, how much of its gradient left.
    seen        the first survivors.json that a step of this user read; plain rounds alone, where
                nothing is signed. It binds like a line of the user's own.
    frozen      the survivors.json that this user wrote, with its rows: it writes no other. Not
                where users confirm: there a proposal binds nobody.
    confirmed   the survivors.json that this user signed.
    answered    the survivors.json for which Y was made. `check_survivors` refuses a second one
                (77), whatever line knows the first; `check_own_row` one that does not name this
                user's own X, sharing and list (65).
    gave_up     the user will neither mask nor answer.
    forgotten   the secret is erased: `check_kept` refuses every further step (77).

`taken_by` is the only line that another round writes: the session whose X took this session's
residual. `previous` and `chain` say where the user came from.

Example, a user that drops out: shared, masked, then survivors.json comes without it, and it
forgets. Whether its X counts as sent is decided by `rounds/outcome.py: counted`, and by nothing
else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_type_hints

from ..errors import Advice, BadData, Refused
from . import documents
from .atomic import PRIVATE, write_whole
from .documents import Sha256
from .survivors import Row, Survivors

NOTHING = "none"  # the feedback of an X for which there was no residual
_Taken = Annotated[str, lambda text: text == NOTHING or documents.is_sha256(text)]
_PathText = Annotated[str, lambda path: "\0" not in path]


@dataclass(frozen=True)
class Previous:
    """The round before: its session, and its folder, seen from that of this round."""

    session: Sha256
    folder: _PathText


@dataclass(frozen=True)
class Report:
    """How much of a gradient left as X: how many values were clipped, the share of the energy that
    is kept, and what rounding is expected to add (None if only zeros were sent)."""

    clipped: int
    kept_energy: float
    rounding_error: float | None


@dataclass(frozen=True)
class Ledger:
    """What one user did in one session; the module says what each line means.

    `folder` is the round's folder where the ledger itself is elsewhere; `chain` is the file of the
    chain, seen from the ledger's folder, where no folder of secrets has it. `series` is the root of
    the series, and `name` a keyed digest of the name of the gradient's file.
    """

    path: Path
    session: Sha256
    user: int
    series: Sha256
    generation: int
    previous: Previous | None = None
    folder: _PathText | None = None
    chain: _PathText | None = None
    shared: Sha256 | None = None
    dealt: Sha256 | None = None
    masked: Sha256 | None = None
    holds: tuple[int, ...] | None = None
    lists: tuple[Sha256, ...] | None = None
    input: Sha256 | None = None
    name: Sha256 | None = None
    weight: float | None = None
    select: str | None = None
    feedback: _Taken | None = None
    residual: Sha256 | None = None
    report: Report | None = None
    taken_by: Sha256 | None = None
    seen: Sha256 | None = None
    frozen: Sha256 | None = None
    survivors: tuple[Row, ...] | None = None
    confirmed: Sha256 | None = None
    answered: Sha256 | None = None
    gave_up: bool = False
    forgotten: bool = False

    @staticmethod
    def read(path: Path, session: str, user: int) -> Ledger:
        """The ledger on disk, which must be of this session and user."""
        hint = (
            f"without its ledger user {user} cannot take part; run offline first, or "
            "name the folder of its secrets"
        )
        content = documents.read_bytes(path, hint, advice=Advice.SECRETS_FOLDER)
        ledger = parse_ledger(path, content)
        if ledger.session != session or ledger.user != user:
            raise BadData(
                "belongs to another session or user",
                "was it copied from elsewhere?",
                subject=path,
            )
        return ledger

    def write(self) -> None:
        """Make the ledger durable."""
        body = {key: value for key, value in sorted(vars(self).items()) if key != "path"}
        write_whole(self.path, documents.dump("ledger", body), PRIVATE)

    def record(self, **changes: Any) -> Ledger:
        """A ledger with these changes, durable if there are any."""
        changed = replace(self, **changes)
        if changed != self:
            changed.write()
        return changed

    def check_kept(self) -> None:
        """Refuse to go on without the secret, or after giving up."""
        if self.gave_up:
            raise Refused(
                f"user {self.user} has given this round up", "its part in this round is over"
            )
        if self.forgotten:
            raise Refused(
                f"user {self.user} has erased its secret of this round",
                "its part in this round is over",
            )

    def check_masks(self, digest: str) -> None:
        """Refuse another X than the one with this digest."""
        if self.masked not in (None, digest):
            self.refuse_second_x()

    def refuse_second_x(self) -> NoReturn:
        """Two X from the same masks reveal how their inputs differ."""
        raise Refused(
            f"user {self.user} has already masked another input in this round",
            "masks are good for one input only; start a new round for another gradient",
        )

    def check_survivors(self, digest: str, *lines: str) -> None:
        """Refuse a second survivor set, as far as these lines know one. Answers to two sets reveal
        one user's input."""
        for line in lines:
            if getattr(self, line) not in (None, digest):
                raise Refused(
                    f"user {self.user} has already {line} another survivor set in this round",
                    "a user takes part in one survivor set per round; start a new round",
                )

    def check_own_row(self, survivors: Survivors) -> None:
        """Refuse survivors whose row of this user is not what this ledger has: the digest of its X,
        its weight, the sharing of its secret and the digest of its list.

        A user without a row passes: it dropped out.
        """
        row = survivors.rows.get(self.user)
        if row is None:
            return
        sent = (self.masked, self.weight, self.shared, self.dealt)
        if (row.sha256, row.weight, row.sharing, row.dealt) != sent:
            raise BadData(
                f"survivors.json names an X of user {self.user} that this user did not send",
                "somebody replaced X or survivors.json; do not confirm or answer it",
            )


_TYPES = {
    key: kind for key, kind in get_type_hints(Ledger, include_extras=True).items() if key != "path"
}


def parse_ledger(path: Path, content: bytes) -> Ledger:
    """The ledger of any user, from its bytes."""
    hint = "take part in a new round"
    body = documents.parse(path, content, kind="ledger", types=_TYPES, hint=hint)
    if body["lists"] is not None and len(body["lists"]) != len(body["holds"] or ()):
        raise BadData("does not name a list for every user whose keys it holds", hint, subject=path)
    return Ledger(path, **body)
