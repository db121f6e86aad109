"""What a message carries: the name of a step, and files of the round under their own names.

A parcel is one `ConfigRecord`. Strings in it are words for the step, and bytes are files. Whoever
opens one knows which files may be in it and where each belongs: a name is looked up, and never
becomes a path.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict

from ..errors import BadData, Refused
from ..protocol.constructions import construction
from ..storage.atomic import PUBLIC, make_folder, writing
from ..storage.documents import LARGEST as LARGEST_DOCUMENT
from ..storage.share import largest_bytes as largest_share
from ..storage.workspace import Workspace

RECORD = "topk-secagg"  # the name of the record in a message
STEP = "step"

# words in messages
SESSION = "session"  # the session that a step is about
BEFORE = "before"  # the session whose survivors come with a message
DEALT = "dealt"  # the session whose keys or shares come with it
LAST = "last"  # the training ends with this answer
FEEDBACK = "feedback"  # whether error feedback is wanted
CHALLENGE = "challenge"  # what a node signs to show that its keys are its own
USER = "user"
SIGNATURE = "signature"

# the steps, as messages name them
JOIN = "join"  # the node's public keys
DEAL = "deal"  # its sealed keys or shares for the others
MASK = "mask"  # what others dealt for it; train, and X
CONFIRM = "confirm"  # confirm the survivors
ANSWER = "answer"  # Y
END = "end"  # erase what is left

_OVERHEAD = 1 << 16  # bytes that a file may have besides its symbols
_BASIS_BYTES = 4  # of an entry
_PER_USER = 64  # bytes that it may have for every user


@dataclass(frozen=True)
class Parcel:
    """The step, its words, and its files by name."""

    step: str
    words: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)

    def record(self) -> ConfigRecord:
        """As it is sent."""
        return ConfigRecord({STEP: self.step, **self.words, **self.files})

    def word(self, name: str) -> str:
        """A word that must be there."""
        if name not in self.words:
            raise BadData(f"the message for the step {self.step!r:.40} has no {name}")
        return self.words[name]

    def file(self, name: str) -> bytes:
        """A file that must be there."""
        if name not in self.files:
            raise BadData(f"the message for the step {self.step!r:.40} has no {name}")
        return self.files[name]


def content(
    step: str, words: Mapping[str, str] = {}, files: Mapping[str, bytes] = {}
) -> RecordDict:
    """A message that carries a parcel alone."""
    return RecordDict({RECORD: Parcel(step, words, files).record()})


def opened(message: Message) -> Parcel:
    """The parcel in a message."""
    if not message.has_content() or RECORD not in message.content.config_records:
        raise BadData(
            "a message without a step of a round",
            "wrap the server's strategy in TopKSecAgg, and give every ClientApp topk_secagg_mod",
        )
    record = message.content.config_records[RECORD]
    words = {}
    files = {}
    for name, value in record.items():
        if isinstance(value, bytes):
            files[name] = value
        elif isinstance(value, str):
            words[name] = value
        else:
            raise BadData(f"{name!r:.80} in a message is neither a word nor a file")
    if STEP not in words:
        raise BadData("a message names no step")
    return Parcel(words.pop(STEP), words, files)


@dataclass(frozen=True)
class Place:
    """Where a file belongs, and the most bytes that it may have."""

    path: Path
    largest: int = LARGEST_DOCUMENT


def name_of(space: Workspace, path: Path) -> str:
    """The name of a file of a round in a message: its path in the round's folder."""
    return path.relative_to(space.root).as_posix()


def named(space: Workspace, *paths: Path) -> dict[str, bytes]:
    """Those of these files that are there, by name."""
    return {name_of(space, path): path.read_bytes() for path in paths if path.exists()}


def places(space: Workspace, *paths: Path, largest: int = LARGEST_DOCUMENT) -> dict[str, Place]:
    """Where these files belong, by name."""
    return {name_of(space, path): Place(path, largest) for path in paths}


def basis_places(space: Workspace) -> dict[str, Place]:
    """Where the basis belongs, if the round has one."""
    if not space.session.reduction.has_basis:
        return {}
    largest = _BASIS_BYTES * space.session.layout.length + _OVERHEAD
    return places(space, space.basis_path, largest=largest)


def dealt_places(space: Workspace, user: int) -> dict[str, Place]:
    """Where what the others dealt for a user belongs."""
    others = [m for m in space.users() if m != user]
    return share_places(space, *((user, m) for m in others)) | list_places(space, *others)


def masked_places(space: Workspace, *users: int) -> dict[str, Place]:
    """Where the X of these users belong."""
    p = space.session.parameters
    largest = construction(p).masked_bytes + _PER_USER * p.users + _OVERHEAD
    return places(space, *map(space.masked_path, users), largest=largest)


def answer_places(space: Workspace, *users: int) -> dict[str, Place]:
    """Where the Y of these users belong."""
    p = space.session.parameters
    largest = construction(p).answer_bytes(p.users) + _OVERHEAD
    return places(space, *map(space.answer_path, users), largest=largest)


def share_places(space: Workspace, *pairs: tuple[int, int]) -> dict[str, Place]:
    """Where shares belong, each of a receiver and a sender."""
    most = largest_share(space.session)
    largest = most + most // 1024 + _OVERHEAD  # sealing adds 16 bytes to every 64 KiB
    return places(space, *(space.share_path(*pair) for pair in pairs), largest=largest)


def list_places(space: Workspace, *users: int) -> dict[str, Place]:
    """Where the lists of these dealers belong, if the round has any."""
    return places(space, *map(space.dealt_path, users)) if space.session.family else {}


def agreed_places(space: Workspace) -> dict[str, Place]:
    """Where survivors.json and everybody's confirmation of it belong."""
    confirmations = map(space.confirmation_path, space.users())
    return places(space, space.survivors_path, *confirmations)


def store(files: Mapping[str, bytes], expected: Mapping[str, Place]) -> None:
    """Write files that came in a message, all or none; a file that is there stays as it is."""
    for name, data in files.items():
        if name not in expected:
            raise BadData(f"a message has a file {name!r:.80}, which does not belong there")
        if len(data) > expected[name].largest:
            raise BadData(f"{name} in a message is too large: {len(data)} bytes")
        path = expected[name].path
        if path.exists() and path.read_bytes() != data:
            raise Refused(
                f"a message has another {name} than an earlier one",
                "a file of a round never changes: somebody sends two of them",
            )
    for name, data in files.items():
        path = expected[name].path
        if not path.exists():
            make_folder(path.parent)
            _write(path, data)


def _write(path: Path, data: bytes) -> None:
    """Write a public file as a whole. It can be had again, so that nothing waits for the disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    with writing(path):
        temporary.write_bytes(data)
        temporary.chmod(PUBLIC)
        temporary.replace(path)
