"""JSON documents are read strictly: exactly the keys of their kind, and values of exactly the right
types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from topk_secagg.errors import BadData
from topk_secagg.storage import documents
from topk_secagg.storage.documents import Sha256


@dataclass
class _Item:
    number: int
    share: float | None


TYPES = {"flag": bool, "name": Sha256 | None, "items": tuple[_Item, ...]}
GOOD: dict[str, Any] = {
    "flag": True,
    "name": "a" * 64,
    "items": [{"number": 1, "share": 0.5}],
}
WRONG: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "a number for a flag": ("flag", lambda body: body.update(flag=1)),
    "a short digest": ("name", lambda body: body.update(name="a" * 63)),
    "an upper-case digest": ("name", lambda body: body.update(name="A" * 64)),
    "an object for a list": ("items", lambda body: body.update(items={})),
    "a list for an object": ("items", lambda body: body.update(items=[[]])),
    "a key too few": ("items", lambda body: body["items"][0].pop("share")),
    "a key too many": ("items", lambda body: body["items"][0].update(more=1)),
    "a real for an integer": ("items.number", lambda body: body["items"][0].update(number=1.0)),
    "an integer for a real": ("items.share", lambda body: body["items"][0].update(share=1)),
}


def _parsed(body: dict[str, Any]) -> dict[str, Any]:
    return documents.parse(
        Path("it.json"), documents.dump("ledger", body), kind="ledger", types=TYPES
    )


@pytest.mark.parametrize(
    "change", [{}, {"name": None}, {"items": []}, {"items": [{"number": 2, "share": None}]}]
)
def test_a_document_of_the_right_types_is_read(change: dict[str, Any]) -> None:
    body = GOOD | change
    items = tuple(_Item(**item) for item in body["items"])
    assert _parsed(body) == body | {"items": items}


@pytest.mark.parametrize("case", WRONG)
def test_a_value_of_another_type_is_refused_by_its_name(case: str) -> None:
    name, spoil = WRONG[case]
    body = {**GOOD, "items": [dict(item) for item in GOOD["items"]]}
    spoil(body)
    with pytest.raises(BadData, match=rf"it\.json: its {name} is not what a ledger has there"):
        _parsed(body)
