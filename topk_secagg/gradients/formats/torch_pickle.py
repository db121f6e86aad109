"""The program in a torch file's data.pkl, run without importing or calling anything.

`data.pkl` is a program for a stack machine. pickle.Unpickler would run it, but even without imports
it allocates what the file asks for (a put at memo slot 2^31 takes 32 GiB) and hashes tuples of any
depth. This module runs only the few opcodes that torch.save emits, which `pickletools` decodes. It
imports nothing, records calls instead of making them, and charges every step to a budget that is
proportional to the size of the file.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...errors import BadData
from ..tensors import called

# The content may take BUDGET_FACTOR bytes of memory for each byte of the file, plus BUDGET_FLOOR
# bytes.
BUDGET_FACTOR = 16
BUDGET_FLOOR = 4 << 20
STEP_COST = (
    80  # bytes that an opcode or a visit can leave behind: an empty dict and the slot it lies in
)
CHARACTER_COST = 4  # bytes

# How many items an opcode takes from the stack; those of the second table take all down to the last
# mark.
_TAKES = {
    "TUPLE1": 1,
    "TUPLE2": 2,
    "TUPLE3": 3,
    "APPEND": 1,
    "SETITEM": 2,
    "REDUCE": 2,
    "BUILD": 1,
    "BINPERSID": 1,
}
_TAKE_TO_MARK = ("TUPLE", "APPENDS", "SETITEMS")
_NEW: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict,
}  # fmt: skip

# Names that a file may contain: some of those that torch.load(weights_only=True) accepts.
_KNOWN_NAMES = re.compile(
    r"collections\.(OrderedDict|Counter)|_codecs\.encode|(__builtin__|builtins)\.(set|bytearray|complex)"
    r"|torch\.(Tensor|Size|device|nn\.parameter\.Parameter|serialization\._get_layout"
    r"|(storage\.)?\w+Storage|per_(tensor|channel)_\w+|(bool|u?int|b?float|complex|qu?int|bits)\w*"
    r"|_utils\._rebuild_\w+|_tensor\._rebuild_from_type_v2)"
)

ONLY_TENSORS = "save only tensors: torch.save(model.state_dict(), path)"
AGAIN = "save or copy the file again"


@dataclass(frozen=True, slots=True)
class Name:
    """A global that the pickle names; it is never imported."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A call that the pickle asks for; it is never made."""

    function: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Storage:
    """A storage in the pickle: `length` numbers of the type `kind` are in the member data/`key`."""

    kind: str
    key: str
    device: str
    length: int


class Budget:
    """How many more bytes of memory a file of `size` bytes may use."""

    def __init__(self, size: int) -> None:
        self.left = BUDGET_FACTOR * size + BUDGET_FLOOR

    def spend(self, cost: int) -> None:
        """Take `cost` bytes, or refuse the file."""
        self.left -= cost
        if self.left < 0:
            hint = "if a tensor is expanded, save tensor.contiguous()"
            raise BadData("it would unpack to far more than the file holds", hint)


def run(code: bytes, budget: Budget) -> Any:
    """What the pickle describes: containers (dicts have text keys), numbers, text and the records
    above."""
    stack: list[Any] = []
    below: list[list[Any]] = []  # the stacks under each mark
    memo: dict[int, Any] = {}
    argument: Any
    for opcode, argument, _ in pickletools.genops(code):
        budget.spend(STEP_COST)
        items = [stack.pop() for _ in range(_TAKES.get(opcode.name, 0))][::-1]
        if opcode.name in _TAKE_TO_MARK:
            items = stack
            stack = below.pop()
        match [opcode.name, *items]:
            case ["BINGET" | "LONG_BINGET"]:
                stack.append(memo[argument])
            case ["BINPUT" | "LONG_BINPUT"]:
                memo[argument] = stack[-1]
            case ["BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT"]:
                stack.append(argument)
            case ["BINUNICODE"]:
                # pickletools lets surrogates through, and this does not
                stack.append(argument.encode().decode())
            case [name] if name in _NEW:
                stack.append(_NEW[name]())
            case ["MARK"]:
                below.append(stack)
                stack = []
            case ["TUPLE1" | "TUPLE2" | "TUPLE3" | "TUPLE", *_]:
                stack.append(tuple(items))
            case ["APPEND" | "APPENDS", *_]:
                if type(stack[-1]) is not list:
                    raise BadData("its pickle appends to something that is not a list", AGAIN)
                stack[-1].extend(items)
            case ["SETITEM" | "SETITEMS", *_]:
                _update(stack[-1], items)
            case ["GLOBAL"]:
                name = argument.replace(" ", ".", 1)
                if not _KNOWN_NAMES.fullmatch(name):
                    raise BadData(
                        f"it holds a pickled {called(name)}, not only tensors", ONLY_TENSORS
                    )
                stack.append(Name(name))
            case ["REDUCE", Name("collections.OrderedDict"), ()]:
                stack.append({})
            case ["REDUCE", Name(function), tuple(arguments)]:
                stack.append(Call(function, arguments))
            case ["REDUCE", _, _]:
                raise BadData("its pickle calls something that is not a function", AGAIN)
            case ["BUILD", _]:  # a state_dict's _metadata, which says nothing about its tensors
                _update(stack[-1], [])
            case ["BINPERSID", ("storage", Name(kind), str(key), str(device), int(length))]:
                stack.append(Storage(kind, key, device=device, length=length))
            case ["BINPERSID", _]:
                raise BadData("its pickle refers to something that is not a storage", AGAIN)
            case ["PROTO"]:
                if argument != 2:
                    raise BadData(
                        "its pickle is not of protocol 2",
                        "leave out pickle_protocol= in torch.save",
                    )
            case ["STOP"]:
                break
            case _:
                raise BadData(
                    f"its pickle holds the opcode {opcode.name}, which no tensor needs",
                    ONLY_TENSORS,
                )
    return stack.pop()


def _update(target: Any, items: list[Any]) -> None:
    """Set target[str(k)] = v for items k, v, k, v, ...: hashing text is always fast."""
    if type(target) is not dict:
        raise BadData("its pickle sets something in what is not a dict", AGAIN)
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, str | int | float | None):
            raise BadData("a dict in it has a key that is neither text nor a number", ONLY_TENSORS)
        if str(key) in target:
            raise BadData(f"a dict in it has the key {called(str(key))} twice", ONLY_TENSORS)
        target[str(key)] = value
