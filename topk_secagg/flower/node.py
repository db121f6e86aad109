"""The folder of a node: its keys, its secrets and ledgers, and the trainings that it has joined.

    FOLDER/secrets/                the node's keys, made on first use, its chains, and the keyed
                                   digests of what it sent
    FOLDER/secrets/SESSION/        secrets and ledgers of every round that it took part in
    FOLDER/training-SERIES/state.json   its latest round in a series, and whether it has ended
      FOLDER/training-SERIES/round-SESSION/  the public files of a round

Where the folder is follows from what the node itself knows: its configuration, or its account.
Nothing that a server chooses, such as the number of a node or of a run, leads to a fresh one; and
an identity takes part only with the folder in which it was made. Nothing is kept in Flower's
context, which does not outlast a SuperNode.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.supercore import log

from ..errors import BadData, Refused, SecAggError, UsageError
from ..protocol.constructions import construction
from ..rounds.access import keygen
from ..storage import folder as folder_file
from ..storage.atomic import PRIVATE, make_folder, waiting_lock, write_whole
from ..storage.documents import LARGEST, read_bytes
from ..storage.keys import Identity, read_identity
from ..storage.session import Session, parse_session
from ..storage.workspace import Workspace
from . import parcels
from .keys import keys_of, known_keys

# what a node's configuration may have
PREFIX = "topk-secagg-"
FOLDER = "topk-secagg-folder"
IDENTITY = "topk-secagg-identity"
RECIPIENTS = "topk-secagg-recipients"
LEAST_SURVIVORS = "topk-secagg-survivors"
LEAST_COLLUDERS = "topk-secagg-colluders"
FEEDBACK = "topk-secagg-error-feedback"
KEYS = {FOLDER, IDENTITY, RECIPIENTS, LEAST_SURVIVORS, LEAST_COLLUDERS, FEEDBACK}

_PARTITION = "partition-id"  # what simulations call a node, in the node's own configuration
_ROUND = "round-"
_TRAINING = "training-"
_STALE = 24 * 3600  # seconds after which a training of another run was stopped


@dataclass(frozen=True)
class State:
    """`round` names the folder of the latest round of a series, which has the node's keys.

    `run` is Flower's number of the run in which it was joined. `bound`: the node has masked in it.
    `ended`: its secrets are erased.
    """

    run: int
    round: str
    bound: bool = False
    ended: bool = False


class Training:
    """One series that a node has joined."""

    def __init__(self, root: Path, secrets: Path) -> None:
        self.root = root
        self.secrets = secrets

    @property
    def series(self) -> str:
        """The session with which it began."""
        return self.root.name.removeprefix(_TRAINING)

    @property
    def _state_path(self) -> Path:
        return self.root / "state.json"

    def state(self) -> State | None:
        """What the node is bound to; None before it has joined."""
        if not self._state_path.exists():
            return None
        try:
            return State(**json.loads(read_bytes(self._state_path, "")))
        except (ValueError, TypeError) as error:
            raise BadData(
                f"{self._state_path} is damaged", "this node cannot go on in this training"
            ) from error

    def joined(self) -> State:
        """The same, where it has joined."""
        state = self.state()
        if state is None:
            raise Refused(
                "this node dealt no keys when this training began",
                "it takes part in the next training",
            )
        return state

    def write(self, state: State) -> None:
        """Make a change of the state durable."""
        if state != self.state():
            write_whole(self._state_path, json.dumps(asdict(state)).encode(), PRIVATE)

    def record(self, **changes: Any) -> None:
        """The same of some of its words."""
        self.write(replace(self.joined(), **changes))

    def space(self, name: str) -> Workspace:
        """A round by the name of its folder, with the node's secrets."""
        return Workspace(self.root / name, self.secrets)

    def latest(self) -> Workspace:
        """The latest round that the node prepared."""
        return self.space(self.joined().round)

    def dealt_in(self, session: str) -> Workspace:
        """The round in which the keys or shares for a round were dealt."""
        return self.space(_ROUND + session)

    def others(self) -> Iterator[Workspace]:
        """The rounds that are still here, but for the latest."""
        latest = self.joined().round
        for path in sorted(self.root.glob(f"{_ROUND}*")):
            if path.name != latest:
                yield self.space(path.name)

    def discard(self, space: Workspace) -> None:
        """Remove the public files of a round; its ledger stays. The first round stays too: what was
        dealt there may still arrive."""
        if space.root.name != _ROUND + self.series or self.joined().ended:
            shutil.rmtree(space.root, ignore_errors=True)

    @property
    def last_used(self) -> float:
        """When the node last took a step in it."""
        return self._state_path.stat().st_mtime


class Node:
    """One node."""

    def __init__(self, context: Context) -> None:
        self.config = context.node_config
        self.run_id = context.run_id
        self._check_names()
        self.home, self.secrets = self._folders()
        self.feedback = self._flag(FEEDBACK)
        make_folder(self.home, private=True)
        make_folder(self.secrets, private=True)

    def _folders(self) -> tuple[Path, Path]:
        """The node's folder, and that of its secrets: where its keys were made."""
        given = self._path(FOLDER)
        identity = self._path(IDENTITY)
        if given is None and identity is not None:
            return identity.parent, identity.parent
        home = given or self._default()
        return home, home / "secrets"

    def _default(self) -> Path:
        """One folder for each account; in a simulation one for each partition."""
        state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
        partition = self.config.get(_PARTITION)
        is_number = isinstance(partition, int) and not isinstance(partition, bool)
        name = f"partition-{partition:02}" if is_number else "node"
        return Path(state).expanduser() / "topk-secagg" / "flower" / name

    # the configuration

    def _check_names(self) -> None:
        """Refuse a key that is none of ours: a misspelt pin would be none."""
        for key in self.config:
            if key.startswith(PREFIX) and key not in KEYS:
                raise UsageError(
                    f"this node's configuration has {key!r:.60}, which means nothing",
                    f"one of {', '.join(sorted(KEYS))}",
                )

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
        """The node's own keys: what the configuration names, or the only identity in its folder."""
        named = self._path(IDENTITY)
        if named is not None:
            return named
        found = sorted(self.secrets.glob("user-*.identity"))
        if len(found) > 1:
            raise UsageError(
                f"{self.secrets} has {len(found)} identities",
                f"name that of this node as {IDENTITY}",
            )
        return found[0] if found else self.secrets / "user-01.identity"

    def identity(self) -> Identity:
        """The same, tied to the folder of secrets. They are made on first use, unless the
        configuration names a file."""
        if not self.identity_path.exists() and self._path(IDENTITY) is None:
            with waiting_lock(self.secrets / ".identity.lock"):
                if not self.identity_path.exists():
                    keygen(1, self.secrets)  # users get their numbers later
        path = self.identity_path
        identity = read_identity(path)
        folder_file.check(Workspace(self.secrets, self.secrets), identity.folder, path.name)
        return identity

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

    def access(self) -> dict[str, Any]:
        """What every step of this node is given."""
        return {"identity": self.identity_path}

    # trainings

    def training(self, series: str) -> Training:
        """A training by the name of its first session."""
        return Training(self.home / f"{_TRAINING}{series}", self.secrets)

    def trainings(self) -> Iterator[Training]:
        """Those that the node has joined."""
        for path in sorted(self.home.glob(f"{_TRAINING}*")):
            if (path / "state.json").exists():
                yield Training(path, self.secrets)

    def current(self, session: str) -> tuple[Training, Workspace]:
        """The training whose latest round is the session that a message is about."""
        for training in self.trainings():
            state = training.joined()
            if state.round == _ROUND + session and not state.ended:
                return training, training.latest()
        raise Refused(
            f"session {session[:16]!r} is not this node's latest one",
            "a round that is over stays over",
        )

    def stale(self) -> Iterator[Training]:
        """Trainings of other runs that did not end, and in which nothing has happened for a
        day."""
        for training in self.trainings():
            with suppress(SecAggError, OSError):
                state = training.joined()
                is_old = training.last_used < time.time() - _STALE
                if not state.ended and state.run != self.run_id and is_old:
                    yield training

    def admit(self, content: bytes) -> tuple[Training, Workspace]:
        """The round of a session.json that came in a message, in a folder of its own, once it is
        one that this node takes part in."""
        if len(content) > LARGEST:
            raise BadData("session.json in a message is too large")
        session = parse_session(Path("session.json"), content)
        training = self.training(session.series_root)
        state = training.state()
        if state is not None and state.ended:
            raise Refused(
                "this node has ended that training, and erased its secrets",
                "start another training",
            )
        self._check_kind(session)
        self._check_keys(session, is_new=state is None)
        self._check_bound(session, training)
        self.user_in(session)
        space = training.space(_ROUND + session.id)
        make_folder(training.root, private=True)
        make_folder(space.root, private=True)
        if not space.session_path.exists():
            places = parcels.places(space, space.session_path)
            parcels.store({"session.json": content}, places)
        vars(space).update(session_content=content, session=session)  # parsed once
        return training, space

    def _check_kind(self, session: Session) -> None:
        """Refuse a session in which the server could do more than see the sum."""
        p = session.parameters
        if session.recipients is None or not session.confirm:
            raise Refused(
                "the session is not sealed, or its users do not confirm the survivors",
                "a server must not see shares, nor choose two survivor sets",
            )
        if construction(p).answer_needs_inputs:
            raise Refused(
                "answers of this session depend on every X, and a node has its own alone",
                "rounds over Flower are by sketches",
            )
        if session.context is None or session.weight_name is None:
            raise Refused(
                "the session does not say what its users train from, or how they are weighted",
                "a server could ask every user for something else",
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

    def _check_keys(self, session: Session, *, is_new: bool) -> None:
        """Refuse keys that are not in the node's own list, if it has one."""
        path = self._path(RECIPIENTS)
        if path is None:
            if is_new:
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

    def _check_bound(self, session: Session, training: Training) -> None:
        """Refuse what the trainings that the node is bound to do not allow."""
        for bound in self.trainings():
            state = bound.joined()
            if state.ended or not state.bound:
                continue
            before = bound.latest().session
            if bound.series == training.series:
                _check_goes_on(session, before)
            elif state.run == self.run_id and session.family is not None:
                raise Refused(
                    f"this is series {session.series_fingerprint}, and this node takes part in "
                    f"series {before.series_fingerprint}",
                    "one training has one series; start another run for another one",
                )
            elif self._path(RECIPIENTS) is None:
                _check_same_users(session, before)


def _check_goes_on(session: Session, before: Session) -> None:
    """Refuse a round with other users or rules than those before it in its training."""
    if _fixed(session) != _fixed(before):
        raise Refused(
            "the session has other users, keys, parameters or another model than the earlier "
            "rounds of this training",
            "start another run for that",
        )


def _check_same_users(session: Session, before: Session) -> None:
    """Refuse users that a training has not which the node joined and which did not end: another
    run alone, which a server can make up, is no reason to trust other keys."""
    known = set(map(keys_of, before.recipients or ()))
    p = session.parameters
    there = before.parameters
    is_weaker = p.survivors < there.survivors or p.colluders < there.colluders
    if is_weaker or not known.issuperset(map(keys_of, session.recipients or ())):
        raise Refused(
            "this node takes part in another training, which has not ended, and this one has other "
            "users or weaker parameters",
            f"give the node a list of keys ({RECIPIENTS}), or have it leave that training: "
            "python -m topk_secagg.flower FOLDER",
        )


def _fixed(session: Session) -> dict[str, Any]:
    """What all rounds of a training have in common."""
    p = session.parameters
    whole = session.reduction.kept_whole()
    return session.kept_in_series() | {
        "layout": session.layout,
        "reduction": (session.reduction.name, session.reduction.rank, whole),
        "top_k": p.top_k,
        "dealing": p.dealing,
        "weight_name": session.weight_name,
        "feedback_decay": session.feedback_decay,
    }
