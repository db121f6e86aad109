"""secrets/user-NN.ledger.json: what a user shared, sent, froze, confirmed and answered.

A line is durable before the file that it covers appears; material that is spent stays spent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_type_hints

from ..errors import Advice, BadData, Refused
from . import documents
from .atomic import PRIVATE, write_whole
from .documents import Sha256
from .residual import Residual
from .survivors import Row

DECODED = "decoded"
FAILED = "failed"


@dataclass(frozen=True)
class Ledger:
    """`shared` names the sharing whose shares are all written, and `dealt` the list of its keys.
    `masked` is the digest of X_n, `holds` whose shares it says the user had, and `lists` the lists
    of their keys. `frozen`, `confirmed` and `answered` are the digests of the survivors.json that
    this user wrote, signed, and answered. `forgotten`: the secret is gone.

    `survivors` is what the frozen survivors.json lists: whoever froze it can write it again.
    `carried` is the latest generation of a series that its user prepared from this round: then the
    series goes on there, and nothing for it is kept here.
    `folder` is the round's folder, where the ledger itself is elsewhere. `input` is a keyed digest
    of the gradient (storage/inputs.py), and `outcome` what became of the round, as far as its user
    knows.
    """

    path: Path
    session: Sha256
    user: int
    shared: Sha256 | None = None
    masked: Sha256 | None = None
    holds: tuple[int, ...] | None = None
    lists: tuple[Sha256, ...] | None = None
    dealt: Sha256 | None = None
    frozen: Sha256 | None = None
    survivors: tuple[Row, ...] | None = None
    confirmed: Sha256 | None = None
    answered: Sha256 | None = None
    forgotten: bool = False
    carried: int | None = None
    residual: Residual | None = None
    folder: Annotated[str, lambda path: "\0" not in path] | None = None
    input: Sha256 | None = None
    outcome: Annotated[str, (DECODED, FAILED).__contains__] | None = None

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
        """Refuse to go on without the secret."""
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
