"""SECRETS/folder.json: a random number that ties identities to the folder of secrets.

`keygen` writes it, and the same number into every identity that it makes there. An identity takes
part only with its folder: whoever has lost the ledgers finds another number, or none, and cannot
begin anew with the old keys.
"""

from __future__ import annotations

import os

from ..algebra import entropy
from ..errors import Advice, InputMissing, Refused
from . import documents
from .atomic import PRIVATE, check_own, make_folder, open_regular, write_whole
from .documents import Sha256
from .workspace import Workspace

_NUMBER_BYTES = 32
_TYPES = {"number": Sha256}
_LARGEST = 1 << 12  # bytes


def read(space: Workspace) -> str:
    """The number of the folder of secrets."""
    path = space.folder_path
    with open_regular(path, "restore the folder of secrets from a backup") as stream:
        check_own(os.fstat(stream.fileno()), path)
        content = stream.read(_LARGEST)
    return str(documents.parse(path, content, kind="folder", types=_TYPES)["number"])


def ensure(space: Workspace) -> str:
    """The same, new in a folder that has none and holds nothing that belongs to one."""
    make_folder(space.home, private=True)
    with space.making_what_is_shared():
        if not os.path.lexists(space.folder_path):
            _make(space)
    return read(space)


def _make(space: Workspace) -> None:
    for path in sorted(space.home.glob("user-*")):
        raise Refused(
            f"{space.folder_path} is gone, and {path} was made with it",
            "restore the folder from a backup; or choose an empty one, and join with new keys",
        )
    number = entropy.draw(_NUMBER_BYTES, "number of a folder of secrets").hex()
    write_whole(space.folder_path, documents.dump("folder", {"number": number}), PRIVATE)


def check(space: Workspace, number: str, owner: str) -> None:
    """Refuse an identity that was made in another folder of secrets than this one."""
    hint = (
        "name the folder in which `keygen` made it; if that is lost, so is what was spent: make "
        "new keys, and ask for a new session"
    )
    try:
        there = read(space)
    except InputMissing:
        raise Refused(
            f"{owner} belongs to another folder of secrets than {space.home}, which is new",
            hint,
            Advice.SECRETS_FOLDER,
        ) from None
    if there != number:
        raise Refused(
            f"{owner} belongs to another folder of secrets than {space.home}",
            hint,
            Advice.SECRETS_FOLDER,
        )
