"""JSON of other people, in which no name is there twice."""

from __future__ import annotations

import json
from typing import Any


def parse(content: bytes) -> Any:
    """What it says; ValueError for what is no JSON, repeats a name or spells half a character,
    which nobody could print."""
    return json.loads(content.decode(), object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    for name in found:
        name.encode()
    return found
