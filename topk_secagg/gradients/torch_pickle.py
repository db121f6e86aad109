"""The program in a torch file's data.pkl, run without importing or calling anything.

`data.pkl` is a program for a stack machine. pickle.Unpickler would run it, but even with no imports allowed
it allocates what the file asks for (a put at memo slot 2^31 takes 32 GiB) and hashes tuples of any depth. The
few opcodes that torch.save emits are run here instead: nothing is imported, a call is written down and not
made, and every step is charged to a budget in proportion to the file's size.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Any

from ..errors import BadData

# What a file unpacks to may take BUDGET_FACTOR bytes for each of its own, and BUDGET_FLOOR bytes in any case.
BUDGET_FACTOR = 16
BUDGET_FLOOR = 4 << 20
STEP_COST = 80  # bytes that an opcode or a visit can leave behind: an empty dict and the slot it lies in
CHARACTER_COST = 4  # bytes
_MAX_QUOTED = 80  # characters of a name in a message

_PROTOCOL = 2  # of pickle
_WIDTH = {b"h": 1, b"j": 4, b"q": 1, b"r": 4, b"K": 1, b"M": 2, b"\x85": 1, b"\x86": 2, b"\x87": 3}
_CONSTANT = {b"N": None, b"\x88": True, b"\x89": False, b")": ()}

# Names that may stand in a file: some of those that torch.load(weights_only=True) accepts.
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
    """A global that the pickle names; it stays a name."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A call that the pickle asks for; it stays a request."""

    function: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Storage:
    """What the pickle says of a storage: `length` numbers of the type `kind` are in the member data/`key`."""

    kind: str
    key: str
    device: str
    length: int


class Budget:
    """How many bytes of memory a file of `size` bytes may still ask for."""

    def __init__(self, size: int) -> None:
        self.left = BUDGET_FACTOR * size + BUDGET_FLOOR

    def spend(self, cost: int) -> None:
        """Take `cost` bytes, or refuse the file."""
        self.left -= cost
        if self.left < 0:
            hint = "if a tensor is expanded, save tensor.contiguous()"
            raise BadData("it would unpack to far more than the file holds", hint)


def run(code: bytes, budget: Budget) -> Any:
    """What the pickle describes: containers (dicts have text keys), numbers, text and the records above."""
    stack: list[Any] = []
    below: list[list[Any]] = []  # the stacks under each mark
    memo: dict[int, Any] = {}
    at = 0

    def take(count: int) -> bytes:
        nonlocal at
        at += count
        if at > len(code):
            raise BadData("its pickle is cut short", AGAIN)
        return code[at - count : at]

    def number(count: int) -> int:
        return int.from_bytes(take(count), "little")

    def line() -> str:
        nonlocal at
        start, at = at, code.index(b"\n", at) + 1
        return code[start : at - 1].decode()

    def pop(count: int) -> list[Any]:
        if len(stack) < count:
            raise BadData("its pickle takes more from the stack than is there", AGAIN)
        items = stack[-count:]
        del stack[-count:]
        return items

    def pop_to_mark() -> list[Any]:
        nonlocal stack
        items, stack = stack, below.pop()
        return items

    while True:
        budget.spend(STEP_COST)
        match take(1):
            case b"h" | b"j" as opcode:  # BINGET, LONG_BINGET
                stack.append(memo[number(_WIDTH[opcode])])
            case b"q" | b"r" as opcode:  # BINPUT, LONG_BINPUT
                memo[number(_WIDTH[opcode])] = stack[-1]
            case b"K" | b"M" as opcode:  # BININT1, BININT2
                stack.append(number(_WIDTH[opcode]))
            case b"J":  # BININT
                stack.append(int.from_bytes(take(4), "little", signed=True))
            case b"\x8a":  # LONG1
                stack.append(int.from_bytes(take(number(1)), "little", signed=True))
            case b"G":  # BINFLOAT
                stack.append(struct.unpack(">d", take(8))[0])
            case b"X":  # BINUNICODE
                stack.append(take(number(4)).decode())
            case b"N" | b"\x88" | b"\x89" | b")" as opcode:  # NONE, NEWTRUE, NEWFALSE, EMPTY_TUPLE
                stack.append(_CONSTANT[opcode])
            case b"(":  # MARK
                below.append(stack)
                stack = []
            case b"\x85" | b"\x86" | b"\x87" as opcode:  # TUPLE1, TUPLE2, TUPLE3
                stack.append(tuple(pop(_WIDTH[opcode])))
            case b"t":  # TUPLE
                items = pop_to_mark()
                stack.append(tuple(items))
            case b"]":  # EMPTY_LIST
                stack.append([])
            case b"a" | b"e" as opcode:  # APPEND, APPENDS
                items = pop(1) if opcode == b"a" else pop_to_mark()
                _extend(stack[-1], items)
            case b"}":  # EMPTY_DICT
                stack.append({})
            case b"s" | b"u" as opcode:  # SETITEM, SETITEMS
                items = pop(2) if opcode == b"s" else pop_to_mark()
                _update(stack[-1], items)
            case b"c":  # GLOBAL
                stack.append(_known(f"{line()}.{line()}"))
            case b"R":  # REDUCE
                stack.append(_recorded(*pop(2)))
            case b"b":  # BUILD: a state_dict's _metadata, which says nothing about its tensors
                pop(1)
                _update(stack[-1], [])
            case b"Q":  # BINPERSID
                stack.append(_reference(*pop(1)))
            case b"\x80":  # PROTO
                if number(1) != _PROTOCOL:
                    raise BadData("its pickle is not of protocol 2", "leave out pickle_protocol= in torch.save")
            case b".":  # STOP
                return pop(1)[0]
            case opcode:
                raise BadData(f"its pickle holds the opcode {opcode!r}, which no tensor needs", ONLY_TENSORS)


def _extend(target: Any, items: list[Any]) -> None:
    if type(target) is not list:
        raise BadData("its pickle appends to something that is not a list", AGAIN)
    target.extend(items)


def _update(target: Any, items: list[Any]) -> None:
    """Set target[str(k)] = v for items k, v, k, v, ...: text is quick to hash, whoever chose it."""
    if type(target) is not dict:
        raise BadData("its pickle sets something in what is not a dict", AGAIN)
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, str | int | float | None):
            raise BadData("a dict in it has a key that is neither text nor a number", ONLY_TENSORS)
        if str(key) in target:
            raise BadData(f"a dict in it has the key {quoted(str(key))} twice", ONLY_TENSORS)
        target[str(key)] = value


def _known(name: str) -> Name:
    if not _KNOWN_NAMES.fullmatch(name):
        raise BadData(f"it holds a pickled {quoted(name)}, not only tensors", ONLY_TENSORS)
    return Name(name)


def _recorded(function: Any, arguments: Any) -> Any:
    match function, arguments:
        case Name("collections.OrderedDict"), ():
            return {}
        case Name(name), tuple():
            return Call(name, arguments)
    raise BadData("its pickle calls something that is not a function", AGAIN)


def _reference(target: Any) -> Storage:
    match target:
        case ("storage", Name(kind), str(key), str(device), int(length)):
            return Storage(kind, key, device, length)
    raise BadData("its pickle refers to something that is not a storage", AGAIN)


def quoted(name: str) -> str:
    """A name from the file in a message, cut short if need be."""
    return repr(name if len(name) <= _MAX_QUOTED else name[:_MAX_QUOTED] + "...")
