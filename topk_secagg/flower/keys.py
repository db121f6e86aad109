"""Public keys of nodes: a list of those that are known, and which nodes can be users."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..errors import BadData, SecAggError
from ..storage.documents import read_bytes
from ..storage.keys import Recipient, check_recipients

Keys = tuple[str, str]  # of age, and of Ed25519


def keys_of(recipient: Recipient) -> Keys:
    """The keys of a user, without its number: nodes get that when a training begins."""
    return recipient.age, recipient.ed25519


def known_keys(path: Path) -> set[Keys]:
    """The keys in a list of recipients; the numbers in it say nothing, and may repeat."""
    text = read_bytes(path, "collect the lines that `topk-secagg keygen` prints").decode(
        "ascii", "replace"
    )
    known: list[Recipient] = []
    for line in map(str.strip, text.splitlines()):
        if line and not line.startswith("#"):
            match line.replace("ed25519:", "").split():
                case [number, age, ed25519] if number.isdecimal():
                    known.append(Recipient(len(known) + 1, age, ed25519))
                case _:
                    raise BadData(
                        f"{path}: a line is not NUMBER age1... ed25519:HEX",
                        "take it from `topk-secagg keygen`",
                    )
    check_recipients(tuple(known))
    return set(map(keys_of, known))


def admissible(keys: Mapping[int, Keys], known: set[Keys] | None) -> dict[int, Keys]:
    """The keys of nodes that can be users: sound, no other node's, and known if there is a
    list."""
    result: dict[int, Keys] = {}
    for node, pair in sorted(keys.items()):
        try:
            check_recipients((Recipient(1, *pair),))
        except SecAggError:
            continue
        is_new = not any(set(pair) & set(other) for other in result.values())
        if is_new and (known is None or pair in known):
            result[node] = pair
    return result
