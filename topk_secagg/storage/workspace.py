"""Where the files of a round are, and the locks of its steps."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from pathlib import Path

from ..brief import laid_out
from ..errors import InputMissing, SecAggError, UsageError
from .atomic import lock, lock_unless_foreign, make_folder, waiting_lock
from .documents import digest
from .session import START, Session, parse_session, read_bytes

LOCK_NAME = re.compile(
    r"\.(user-\d+(\.chain(-[0-9a-f]{16})?)?|account-\d+|run|input)\.lock"
)  # of the locks below
_OTHERS = 0o077
_MAY_WRITE = 0o022


class Workspace:
    """The folder of a round, and where its secrets are. User numbers have at least two digits in
    file names.

    With `secrets`, secrets and ledgers are in a folder of that folder, named by the session: then
    whatever is in the round's folder may be copied, and a copy of it brings no fresh ledger along.
    """

    decoded_name = "decoded.json"  # in the folder of a session's secrets

    def __init__(self, root: str | Path, secrets: str | Path | None = None) -> None:
        self.root = root = Path(root)
        self.secrets = None if secrets is None else Path(secrets)
        self.session_path = root / "session.json"  # the parameters; these files are public
        self.survivors_path = root / "survivors.json"  # U1, with the digest of each X
        self.aggregate_path = root / "aggregate.h5"  # the sum
        self.basis_path = root / "basis.h5"  # on which gradients are projected, with low rank

    def __repr__(self) -> str:
        parts = [repr(str(self.root))]
        if self.secrets is not None:
            parts.append(f"secrets={str(self.secrets)!r}")
        with suppress(SecAggError, OSError):  # a folder without a session has a repr too
            parts.append(f"session={self.session.fingerprint!r}")
            parts.append(self.session.parameters.summary())
        return laid_out("Workspace", parts)

    @cached_property
    def session_content(self) -> bytes:
        """The bytes of session.json, read once: what was compared with a pin is then used."""
        try:
            return read_bytes(self.session_path)
        except InputMissing as error:
            raise self._explained(error) from None

    def _explained(self, error: InputMissing) -> InputMissing:
        """Why there is no session.json, where there is no folder of a round."""
        try:
            mode = self.root.stat().st_mode
        except FileNotFoundError:
            hint = f"check the name of the folder, or {START}"
            return InputMissing(f"there is no folder {self.root}", hint)
        except OSError:  # of which the error says more
            return error
        if stat.S_ISDIR(mode):
            return error
        return InputMissing(
            f"{self.root} is not a folder, as a round is",
            f"give the folder of the round, such as {self.root.parent}",
        )

    @property
    def session_id(self) -> str:
        """The name of the session, from its bytes alone: nothing of session.json is parsed."""
        return digest(self.session_content)

    @cached_property
    def session(self) -> Session:
        """The session that all files of this round belong to."""
        return parse_session(self.session_path, self.session_content)

    @property
    def private(self) -> Path:
        """The folder of secrets, ledgers and residuals."""
        return self.private_of(self.session.id)

    def private_of(self, session: str) -> Path:
        """That of any session whose secrets are kept like those of this one: with `secrets`, in the
        same folder; else in the folder of its round, which must be this one."""
        return self.secrets / session if self.secrets else self.root / "secrets"

    @property
    def home(self) -> Path:
        """What is kept over all rounds: in the folder of secrets, if there is one."""
        return self.secrets or self.private

    @property
    def folder_path(self) -> Path:
        """The number of the folder of secrets, which identities that were made in it have too."""
        return self.home / "folder.json"

    @property
    def input_key_path(self) -> Path:
        """The key of the digests of gradients, for all rounds whose secrets are in one folder."""
        return self.home / "input.key"

    def sent_path(self, user: int) -> Path:
        """User n alone: the keyed digests of all inputs whose X left."""
        return self.home / f"user-{user:02}.sent"

    def identity_path(self, user: int) -> Path:
        """User n alone: its keys in sealed rounds, unless they are elsewhere."""
        return self.home / f"user-{user:02}.identity"

    def chain_path(self, user: int) -> Path | None:
        """User n alone: where it is in a series, and its keys. None in a later round without a
        folder of secrets: there it is in the root round, whose folder nothing here names."""
        if self.secrets:
            return self.secrets / self.chain_name(user)
        return self.private / f"user-{user:02}.chain.h5" if self.session.series is None else None

    def chain_name(self, user: int) -> str:
        """The name of the chain of this series in a folder of secrets."""
        return f"user-{user:02}.chain-{self.session.series_root[:16]}.h5"

    @property
    def decoded_path(self) -> Path:
        """What this account's own decoding gave."""
        return self.private / self.decoded_name

    def staged_path(self, user: int, what: str) -> Path:
        """User n alone: a file that is about to leave ("masked", "survivors", "confirmed",
        "elimination")."""
        return self.private / f"user-{user:02}.{what}.staged"

    def secret_path(self, user: int) -> Path:
        """User n alone."""
        return self.private / f"user-{user:02}.h5"

    def ledger_path(self, user: int) -> Path:
        """User n alone."""
        return self.private / self.ledger_name(user)

    @staticmethod
    def ledger_name(user: int) -> str:
        """The name of a ledger in the folder of a session's secrets."""
        return f"user-{user:02}.ledger.json"

    def residual_path(self, user: int) -> Path:
        """User n alone: what it did not send in this round."""
        return self.private / f"user-{user:02}.residual.h5"

    def share_path(self, user: int, sender: int) -> Path:
        """The share of user `sender` for user `user`: these two alone. Sealed when the session has
        keys."""
        suffix = ".h5.age" if self.session.recipients else ".h5"
        return self.root / "shares" / f"user-{user:02}" / f"from-{sender:02}{suffix}"

    def dealt_path(self, user: int) -> Path:
        """Public: user n's commitments to its keys, in rounds where shares are dealt by keys."""
        return self.root / "dealt" / f"user-{user:02}.json"

    def masked_path(self, user: int) -> Path:
        """Public: X_n."""
        return self.root / "masked" / f"user-{user:02}.h5"

    def confirmation_path(self, user: int) -> Path:
        """Public: user n's signature of survivors.json, in rounds with confirmations."""
        return self.root / "confirmed" / f"user-{user:02}.json"

    def answer_path(self, user: int) -> Path:
        """Public: Y_n."""
        return self.root / "elimination" / f"user-{user:02}.h5"

    def users(self) -> range:
        """All users of the round."""
        return range(1, self.session.parameters.users + 1)

    def check_user(self, user: int) -> None:
        """Refuse a number that no user of this round has."""
        if user not in self.users():
            raise UsageError(
                f"there is no user {user!r} in this round", f"users are 1 to {len(self.users())}"
            )

    def present(self, folder: str) -> Iterator[int]:
        """The users that have a file in masked/ or elimination/, in order."""
        names = {path.name for path in (self.root / folder).glob("user-*.h5")}
        return (n for n in self.users() if f"user-{n:02}.h5" in names)

    def make_room(self, path: Path, *, private: bool = False) -> None:
        """Make the folder for a file of the round, or for a plain share, which is private.

        A folder in a sealed round is open to whom the round's folder is open to, whatever the
        umask. Where every account may write there, nobody can replace a file of another (the sticky
        bit); a folder of a group has that bit if whoever made it wanted it.
        """
        if self.session.recipients is None:
            make_folder(path.parent, private=private)
            return
        mode_of_root = stat.S_IMODE(self.root.stat().st_mode)
        open_to = mode_of_root & _OTHERS
        sticky = stat.S_ISVTX if open_to & stat.S_IWOTH else mode_of_root & stat.S_ISVTX
        for folder in reversed(path.relative_to(self.root).parents[:-1]):
            place = self.root / folder
            if not place.exists():
                make_folder(place)
                mode = stat.S_IMODE(place.stat().st_mode)
                if mode | open_to | sticky != mode:
                    place.chmod(mode | open_to | sticky)

    def make_rooms(self) -> None:
        """Make all folders of a sealed round that several accounts share, before two of them can do
        it at once."""
        if self.session.recipients and self.root.stat().st_mode & _MAY_WRITE:
            public = [
                self.masked_path(1),
                self.answer_path(1),
                *([self.confirmation_path(1)] * self.session.confirm),
                *([self.dealt_path(1)] * (self.session.family is not None)),
            ]
            for path in (*(self.share_path(n, 1) for n in self.users()), *public):
                self.make_room(path)

    def runs_here(self, user: int) -> bool:
        """Whether a user runs its steps with this folder of secrets: its ledger is there, and not
        in a closed folder of another account."""
        return os.path.lexists(self.ledger_path(user))

    def foreign_secrets(self, user: int | None = None) -> list[Path]:
        """Secrets of other users in the round's folder, which should never have come here.

        Where all users have left a secret or a ledger, one person runs the whole round; a single
        secret is that of the user who asks.
        """
        folder = Workspace(self.root)
        secrets = {
            n: folder.secret_path(n) for n in self.users() if os.path.lexists(folder.secret_path(n))
        }
        if all(n in secrets or folder.runs_here(n) for n in self.users()) or (
            user is None and len(secrets) < 2
        ):
            return []
        return [path for n, path in secrets.items() if n != user]

    def step_of(self, user: int) -> AbstractContextManager[None]:
        """The lock under which a step of one user runs."""
        self._make_private()
        return lock(self.private / f".user-{user:02}.lock")

    def _make_private(self) -> None:
        """Make the folder of secrets of this session; nothing in a folder of another account."""
        make_folder(self.home, private=True)
        make_folder(self.private, private=True)

    def chain_of(self, path: Path) -> AbstractContextManager[None]:
        """The lock under which a user's chain, and what depends on where it is, changes."""
        make_folder(path.parent, private=True)
        return lock(path.with_name(f".{path.stem}.lock"))

    def run_of_all(self) -> AbstractContextManager[None]:
        """The lock under which `run` goes through all steps: a second one would stop both in the
        middle."""
        self._make_private()
        return lock(self.private / ".run.lock")

    def making_what_is_shared(self) -> AbstractContextManager[None]:
        """The lock under which the first of several users makes what their folder has once; the
        others wait for it."""
        return waiting_lock(self.input_key_path.with_name(".input.lock"))

    def step_of_account(self) -> AbstractContextManager[None]:
        """The lock under which a step runs that belongs to no user: init and decode.

        Every account has its own, so that no account can keep another one from decoding.
        """
        return lock_unless_foreign(self.root / f".account-{os.geteuid()}.lock")
