"""The JSON files of a round: written one way only, read strictly."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin, get_type_hints

from ..errors import Advice, BadData, UsageError
from .atomic import open_regular

if TYPE_CHECKING:
    from .keys import Identity

FORMAT = "topk-secagg"
VERSION = 1
DOCUMENT_KINDS = (
    "session", "dealt", "survivors", "confirmation", "ledger", "folder", "decoded"
)  # fmt: skip
DIGEST_BYTES = 32  # of a SHA-256
LARGEST = 16 << 20  # bytes of a document
LONGEST_LIST = 1 << 16  # entries
AGAIN = "fetch or make the file again"


def dump(kind: str, body: dict[str, Any]) -> bytes:
    """The bytes of a document; equal bodies give equal bytes. A dataclass is an object with its
    fields."""
    document = {"format": FORMAT, "kind": kind, "version": VERSION, **body}
    return (
        json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False, default=vars) + "\n"
    ).encode()


def signed(kind: str, body: dict[str, Any], signer: Identity | None) -> bytes:
    """The bytes of a document with its signature, or with null if nobody signs."""
    signature = signer and signer.sign(kind, digest_unsigned(kind, body))
    return dump(kind, body | {"signature": signature})


def digest_unsigned(kind: str, body: dict[str, Any]) -> str:
    """The digest of a document without its signature: what is signed."""
    return digest(dump(kind, body | {"signature": None}))


def digest(content: bytes) -> str:
    """SHA-256 of a document's bytes: how other files refer to it."""
    return hashlib.sha256(content).hexdigest()


def read_bytes(
    path: Path, hint: str, *, advice: Advice | None = None, largest: int = LARGEST
) -> bytes:
    """The bytes of a document, or an error that says which step is missing."""
    with open_regular(path, hint, advice) as stream:
        content = stream.read(largest + 1)
    if len(content) > largest:
        raise BadData("is too large to be what its name says", AGAIN, subject=path)
    return content


def kind_of(path: Path, content: bytes) -> str:
    """The kind that a document says it is, if that is one of those that there are."""
    try:
        kind = json.loads(content.decode("ascii"), parse_constant=_refuse)["kind"]
    except (ValueError, RecursionError, TypeError, KeyError):
        kind = None
    if kind not in DOCUMENT_KINDS:
        raise BadData("is not a topk-secagg file", "check the path", subject=path)
    return str(kind)


def parse(
    path: Path, content: bytes, *, kind: str, types: Mapping[str, Any], hint: str = AGAIN
) -> dict[str, Any]:
    """The body of a document of the given kind: with exactly these keys, and values of these types
    (see `typed`)."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        body = dict(pairs)
        if len(body) != len(pairs):
            raise ValueError("a key appears twice")
        return body

    try:
        document = json.loads(
            content.decode("ascii"), object_pairs_hook=unique, parse_constant=_refuse
        )
    except (ValueError, RecursionError) as error:
        raise BadData("is not a JSON document of this program", hint, subject=path) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BadData("is not a topk-secagg file", hint, subject=path)
    if type(document.get("version")) is not int or document["version"] != VERSION:
        raise BadData(
            f"has format version {document.get('version')!r:.40}, not {VERSION}", hint, subject=path
        )
    if document.get("kind") != kind:
        raise BadData(f"is of kind {document.get('kind')!r:.40}, not {kind!r}", hint, subject=path)
    if set(document) != {"format", "kind", "version", *types}:
        raise BadData(f"does not have the keys of a {kind}", hint, subject=path)
    try:
        return {key: typed(document[key], wanted, key) for key, wanted in types.items()}
    except TypeError as error:
        raise BadData(f"its {error} is not what a {kind} has there", hint).within(path) from error
    except UsageError as error:
        raise BadData(str(error), hint).within(path) from error


def typed(value: Any, wanted: Any, name: str) -> Any:
    """A JSON value as the wanted type; a TypeError names the first part of it that is not of its
    type.

    A dataclass is an object with exactly its fields, and a tuple a list; Annotated adds a test, and
    X | None is null. A list that is too long is refused before any of its entries is looked at.
    """
    origin = get_origin(wanted)
    parts = get_args(wanted)
    if origin in (Union, UnionType):
        return None if value is None else typed(value, parts[0], name)
    if origin is Annotated and parts[1](typed(value, parts[0], name)):
        return value
    if origin is tuple and type(value) is list:
        if len(value) > LONGEST_LIST:
            raise TypeError(name)
        return tuple(typed(item, parts[0], name) for item in value)
    types = _fields(wanted) if isinstance(wanted, type) and is_dataclass(wanted) else {}
    if types and type(value) is dict and set(value) == set(types):
        return wanted(**{key: typed(value[key], types[key], f"{name}.{key}") for key in types})
    if type(value) is not wanted:
        raise TypeError(name)
    return value


@cache
def _fields(wanted: type) -> dict[str, Any]:
    """The types of a dataclass's fields by name; found out once, not for every row of a list."""
    return get_type_hints(wanted, include_extras=True)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


_SHA256 = re.compile(r"[0-9a-f]{64}")


def is_sha256(text: str) -> bool:
    """Whether it is a digest, or a `sharing`, as this program writes them."""
    return _SHA256.fullmatch(text) is not None


Sha256 = Annotated[str, is_sha256]
