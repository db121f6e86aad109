"""The folder of a node: its keys, its secrets and ledgers, and the rounds of a run.

    FOLDER/secrets/            the node's keys, made on first use, and its chains
    FOLDER/secrets/SESSION/    secrets and ledgers of every round that it took part in
    FOLDER/run-ID/state.json   the series that it is bound to, and its latest round
      FOLDER/run-ID/round-NAME/  the public files of a round, until it is forgotten

Nothing here is kept in Flower's context, which does not outlast a SuperNode.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.supercore import log

from ..errors import BadData, Refused, UsageError
from ..rounds.access import TakingPart, keygen
from ..storage.atomic import PRIVATE, erase, make_folder, write_whole
from ..storage.documents import LARGEST, read_bytes
from ..storage.keys import Identity, read_identity
from ..storage.session import Session, parse_session
from ..storage.workspace import Workspace
from .keys import keys_of, known_keys

# what a node's configuration may have
FOLDER = "topk-secagg-folder"
IDENTITY = "topk-secagg-identity"
RECIPIENTS = "topk-secagg-recipients"
LEAST_SURVIVORS = "topk-secagg-survivors"
LEAST_COLLUDERS = "topk-secagg-colluders"
FEEDBACK = "topk-secagg-error-feedback"

_ROUND = "round-"
_CHANGING = {"clip", "scale"}  # parameters that may differ from round to round


@dataclass(frozen=True)
class State:
    """`series` is the root that the node is bound to since it first masked; `round` names the
    folder of its latest round, which has its keys. `ended`: its secrets are erased."""

    series: str | None = None
    round: str | None = None
    ended: bool = False


class Node:
    """One node in one run."""

    def __init__(self, context: Context) -> None:
        self.config = context.node_config
        self.home = self._home(context)
        self.run = self.home / f"run-{context.run_id}"
        self.feedback = self._flag(FEEDBACK)
        make_folder(self.home, private=True)
        make_folder(self.run, private=True)

    def _home(self, context: Context) -> Path:
        """The folder that the configuration names, or one below the user's state folder."""
        given = self._path(FOLDER)
        if given is not None:
            return given
        state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
        return Path(state).expanduser() / "topk-secagg" / "flower" / f"node-{context.node_id}"

    # the configuration

    def _path(self, key: str) -> Path | None:
        value = self.config.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value:
            raise UsageError(f"{key} of this node is not a path", "give a string")
        return Path(value).expanduser().absolute()

    def _least(self, key: str) -> int:
        value = self.config.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int):
            raise UsageError(f"{key} of this node is not a whole number", "give an integer")
        return value

    def _flag(self, key: str) -> bool:
        value = self.config.get(key, True)
        if not isinstance(value, bool):
            raise UsageError(f"{key} of this node is neither true nor false", "give a boolean")
        return value

    # keys

    @property
    def identity_path(self) -> Path:
        """The node's own keys."""
        return self._path(IDENTITY) or self.home / "secrets" / "user-01.identity"

    def identity(self) -> Identity:
        """The same; they are made on first use, unless the configuration names a file."""
        if not self.identity_path.exists() and self._path(IDENTITY) is None:
            keygen(1, self.home / "secrets")  # users get their numbers later
        return read_identity(self.identity_path)

    def user_in(self, session: Session) -> int:
        """The number of this node in a session, by its keys."""
        own = keys_of(self.identity().public(1))
        for recipient in session.recipients or ():
            if keys_of(recipient) == own:
                return recipient.user
        raise Refused(
            "this node's keys are not in the session",
            "it came after training began, or its identity was replaced: it waits for a new series",
        )

    def access(self) -> TakingPart:
        """What every step of this node is given."""
        return {"identity": self.identity_path}

    # what it is bound to

    @property
    def _state_path(self) -> Path:
        return self.run / "state.json"

    def state(self) -> State:
        """What the node is bound to in this run."""
        if not self._state_path.exists():
            return State()
        try:
            return State(**json.loads(read_bytes(self._state_path, "")))
        except (ValueError, TypeError) as error:
            raise BadData(
                f"{self._state_path} is damaged", "this node cannot go on in this run"
            ) from error

    def record(self, **changes: Any) -> None:
        """Make a change of the state durable."""
        state = replace(self.state(), **changes)
        write_whole(self._state_path, json.dumps(asdict(state)).encode(), PRIVATE)

    # rounds

    def space(self, name: str) -> Workspace:
        """A round by the name of its folder, with the node's secrets."""
        return Workspace(self.run / name, self.home / "secrets")

    def latest(self) -> Workspace | None:
        """The latest round that the node prepared."""
        name = self.state().round
        return None if name is None else self.space(name)

    def current(self, session: str) -> Workspace:
        """The latest round, if that is the session that a message is about."""
        space = self.latest()
        if space is None or space.session.id != session:
            raise Refused(
                f"session {session[:16]!r} is not this node's latest one",
                "a round that is over stays over",
            )
        return space

    def others(self) -> Iterator[Workspace]:
        """The rounds of this run that are still here, but for the latest."""
        latest = self.state().round
        for path in sorted(self.run.glob(f"{_ROUND}*")):
            if path.name != latest:
                yield self.space(path.name)

    def admit(self, content: bytes) -> Workspace:
        """The round of a session.json that came in a message, in a folder of its own, once it is
        one that this node takes part in."""
        if len(content) > LARGEST:
            raise BadData("session.json in a message is too large")
        if self.state().ended:
            raise Refused(
                "this node has ended the training of this run, and erased its secrets",
                "a run has one training; start another run for another one",
            )
        session = parse_session(Path("session.json"), content)
        self._check_kind(session)
        self._check_keys(session)
        self._check_bound(session)
        self.user_in(session)
        space = self.space(_ROUND + session.id)
        make_folder(space.root, private=True)
        if not space.session_path.exists():
            write_whole(space.session_path, content)
        return space

    def erase_residuals(self) -> None:
        """Erase what was not sent: no later training takes it."""
        erase(*(self.home / "secrets").glob("*/user-*.residual.h5"))

    def discard(self, space: Workspace) -> None:
        """Remove the public files of a round that was forgotten; its ledger stays."""
        shutil.rmtree(space.root, ignore_errors=True)

    def _check_kind(self, session: Session) -> None:
        """Refuse a session in which the server could do more than see the sum."""
        p = session.parameters
        if session.recipients is None or not session.confirm:
            raise Refused(
                "the session is not sealed, or its users do not confirm the survivors",
                "a server must not see shares, nor choose two survivor sets",
            )
        if p.survivors < self._least(LEAST_SURVIVORS):
            raise Refused(
                f"the session asks for {p.survivors} survivors, and this node for at least "
                f"{self._least(LEAST_SURVIVORS)}",
                f"start the training with more survivors, or change {LEAST_SURVIVORS}",
            )
        if p.colluders < self._least(LEAST_COLLUDERS):
            raise Refused(
                f"the session bears {p.colluders} colluders, and this node asks for at least "
                f"{self._least(LEAST_COLLUDERS)}",
                f"start the training with more colluders, or change {LEAST_COLLUDERS}",
            )

    def _check_keys(self, session: Session) -> None:
        """Refuse keys that are not in the node's own list, if it has one."""
        path = self._path(RECIPIENTS)
        if path is None:
            if self.state().round is None:
                log(
                    WARNING,
                    "topk-secagg: %s is not set: the server is trusted to hand out the keys of "
                    "the other nodes honestly",
                    RECIPIENTS,
                )
            return
        known = known_keys(path)
        for recipient in session.recipients or ():
            if keys_of(recipient) not in known:
                raise Refused(
                    f"the session has keys for user {recipient.user} that are not in this node's "
                    "list of recipients",
                    "that user may be the server itself: do not take part",
                )

    def _check_bound(self, session: Session) -> None:
        """Refuse another series than the one in which the node has masked, and other parameters
        than those of its rounds."""
        state = self.state()
        latest = self.latest()
        if state.series is None or latest is None:
            return
        before = latest.session
        if session.family is not None and session.series_root != state.series:
            raise Refused(
                f"this is series {session.series_fingerprint}, and this node takes part in series "
                f"{state.series[:16]}",
                "one training has one series; start another run for another one",
            )
        same = session.layout == before.layout and _fixed(session) == _fixed(before)
        if not same:
            raise Refused(
                "the session has other users, keys, parameters or another model than the earlier "
                "rounds of this training",
                "start another run for that",
            )


def _fixed(session: Session) -> dict[str, Any]:
    """What all rounds of a training have in common."""
    parameters = vars(session.parameters)
    common = session.kept_in_series()
    return common | {name: parameters[name] for name in parameters.keys() - _CHANGING}
