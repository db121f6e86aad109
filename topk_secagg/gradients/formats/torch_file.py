"""Gradients from files of `torch.save`, read without torch and without unpickling.

`torch_archive` reads the zip and its arrays, `torch_pickle` what says how they are named. Here the
entry of a checkpoint is chosen that holds the tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ...errors import Advice, BadData, Hint
from ..tensors import Gradient, Tensor, called
from .malformed import refusing
from .torch_archive import Archive
from .torch_pickle import CHARACTER_COST, ONLY_TENSORS, Budget, Call, Name, run

_LEAF_COST = 240  # bytes of a leaf
_KEY_COST = 16  # bytes of each key that leads to a leaf
_MAX_PICKLE = 16 << 20  # bytes; a tensor takes some 150
_MAX_DEPTH = 32  # of containers in containers
_MAX_LISTED = 12  # entries in a hint
# what the entry of a checkpoint with the model is usually called
_MODELS = (
    "state_dict",
    "model_state_dict",
)

_Keys = tuple[str | int, ...]  # the keys of dicts and the positions in lists that lead to a value
_Leaves = list[tuple[_Keys, Any]]


def read(path: Path, entry: str = "") -> Gradient:
    """The tensors at `entry` of a torch file, in the file's order, without those that are None.

    A file that holds one tensor gives one Tensor with the name ""; a state_dict keeps its names; a
    list or tuple gives "0", "1", ...; the names of nested containers are joined with ".". `entry`
    is such a name, of a container or a tensor; if several have it because keys contain dots, the
    one with the longest keys is taken. Without `entry`, the entry of a checkpoint that is obviously
    its model is read.

    Tied tensors, which are the same view (storage, offset, size and stride), are listed once, under
    the name that comes first. Views that overlap in another way are tensors of their own.
    """
    with path.open("rb") as file, refusing(path):
        archive = Archive(file)
        if archive.members["data.pkl"][1] > _MAX_PICKLE:
            raise BadData("its pickle is too large to describe only tensors", ONLY_TENSORS)
        content = run(archive.member("data.pkl").tobytes(), archive.budget)
        leaves = list(_leaves(content, archive.budget))
        start = _named(leaves, entry) if entry else _obvious(leaves)
        notes = (
            [f"took the entry {called(_name(start))} of the checkpoint"]
            if start and not entry
            else []
        )
        chosen = [
            (keys[len(start) :], leaf) for keys, leaf in leaves if keys[: len(start)] == start
        ]
        by_name: dict[str, Tensor | None] = {}
        ties: dict[str, str] = {}
        names: dict[int, str] = {}  # an array's first name, by its id: `by_name` keeps it alive
        for keys, leaf in chosen:
            name = _name(keys)
            archive.budget.spend(CHARACTER_COST * len(name))
            if name in by_name or name in ties:
                raise BadData(f"two of its tensors are called {called(name)}", ONLY_TENSORS)
            if not _is_tensor(leaf) and (leaf is not None or not name):
                where = (
                    f"its entry {called(_name((*start, *keys)))}"
                    if start or keys
                    else "its content"
                )
                raise BadData(f"{where} is {_kind(leaf)}, not a tensor", *_choices_hint(leaves))
            if leaf is None:
                by_name[name] = None
                continue
            with refusing(f"its tensor {called(name)}" if name else "its tensor"):
                tensor = Tensor(name, *archive.array(leaf))
            first = names.setdefault(id(tensor.array), name)
            if first == name:
                by_name[name] = tensor
            else:
                ties[name] = first
        if not by_name:
            raise BadData("there is no tensor in it", *_choices_hint(leaves))
        tensors = [t for t in by_name.values() if t is not None]
        if not tensors:
            raise BadData("all that it holds is None", "save the gradients after loss.backward()")
        absent = [name for name, t in by_name.items() if t is None]
        return Gradient(
            tensors,
            absent,
            notes,
            sequence=all(len(k) == 1 and type(k[0]) is int for k, _ in chosen),
            ties=ties,
        )


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Call) and "._rebuild_" in value.function


def _kind(value: Any) -> str:
    match value:
        case Call(name, _) | Name(name):
            return f"a {name}"
    return "None" if value is None else f"of the type {type(value).__name__.strip('_').lower()}"


def _name(keys: _Keys) -> str:
    return ".".join(map(str, keys))


def _leaves(value: Any, budget: Budget, keys: _Keys = ()) -> Iterator[tuple[_Keys, Any]]:
    """Everything in `value` that is not a container, with the keys (text) and positions (numbers)
    that lead there."""
    budget.spend(_LEAF_COST + _KEY_COST * len(keys))
    if type(value) not in (dict, list, tuple):
        yield keys, value
        return
    if len(keys) == _MAX_DEPTH:
        raise BadData(
            f"its containers are nested over {_MAX_DEPTH} deep, or in themselves", ONLY_TENSORS
        )
    for key, item in value.items() if type(value) is dict else enumerate(value):
        yield from _leaves(item, budget, (*keys, key))


def _only_tensors(leaves: Iterable[Any]) -> bool:
    """Whether there are tensors, and no other values except None."""
    return {True} == {_is_tensor(leaf) for leaf in leaves if leaf is not None}


def _named(leaves: _Leaves, entry: str) -> _Keys:
    """The path that `entry` names; of several the one with the longest keys, which are the
    fewest."""
    fitting = [keys[:n] for keys, _ in leaves if (n := _reach(keys, entry))]
    if not fitting:
        raise BadData(f"there is no entry {called(entry)} in it", *_choices_hint(leaves))
    return min(fitting, key=len)


def _reach(keys: _Keys, entry: str) -> int:
    """The n for which `entry` is the name of keys[:n]; 0 if there is none.

    No name is put together: of a hostile file's, all could be long.
    """
    at = 0  # in `entry`, where the next key begins
    for n, key in enumerate(map(str, keys), start=1):
        if not entry.startswith(key, at):
            return 0
        at += len(key)
        if at == len(entry):
            return n
        if entry[at] != ".":
            return 0
        at += 1
    return 0


def _obvious(leaves: _Leaves) -> _Keys:
    """The only flat container of tensors in a dict, or the only one with a usual name.

    () if there is no such entry, or if everything beside it is tensors too.
    """
    below: dict[str, _Leaves] = {}
    for keys, leaf in leaves:
        if keys and type(keys[0]) is str:
            below.setdefault(keys[0], []).append((keys, leaf))
    flat = [
        key
        for key, own in below.items()
        if _only_tensors(x for _, x in own) and all(len(k) == 2 for k, _ in own)
    ]
    candidates = [key for key in flat if key in _MODELS] or flat
    if len(candidates) != 1:
        return ()
    (chosen,) = candidates
    beside = [leaf for keys, leaf in leaves if keys[0] != chosen]
    return () if _only_tensors(beside) else (chosen,)


def _choices_hint(leaves: _Leaves) -> Hint:
    """A hint with the largest entries that contain only tensors."""
    other = [keys for keys, leaf in leaves if leaf is not None and not _is_tensor(leaf)]
    mixed = {keys[:n] for keys in other for n in range(len(keys) + 1)}
    tensors = (keys for keys, leaf in leaves if _is_tensor(leaf))
    choices = list(
        dict.fromkeys(next(k[:n] for n in range(len(k) + 1) if k[:n] not in mixed) for k in tensors)
    )
    if choices == [()]:
        return "the file holds nothing but tensors", Advice.NO_ENTRY
    if not choices:
        return ONLY_TENSORS, None
    more = f", ... ({len(choices)} in all)" if len(choices) > _MAX_LISTED else ""
    names = ", ".join(called(_name(keys)) for keys in choices[:_MAX_LISTED])
    return f"entries with tensors are {names}{more}", Advice.ENTRY
