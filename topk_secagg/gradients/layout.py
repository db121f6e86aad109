"""Names and shapes of a gradient's tensors, and the flat vector that they form."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..brief import Brief
from ..errors import Advice, BadData, UsageError, counted
from .tensors import FLOATING, AnyTensor, Gradient, Tensor, TensorInFile, bytes_of, called, left_out

MOST_TENSORS = 1 << 16  # of a layout, with those that it leaves out
MOST_DIMENSIONS = 8  # of a tensor
MOST_COORDINATES = 1 << 32  # fewer than these, in a tensor and in all
LONGEST_NAME = 1024  # characters
_IN_FLOAT32 = ("float16", "bfloat16", "float32")  # types whose values a float32 holds exactly
NOT_GRADIENTS = ("*running_mean", "*running_var", "*num_batches_tracked")


class Slot(NamedTuple):
    """One tensor's place in the layout; `also` are the other names of a tied tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    also: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All its names."""
        return (self.name, *self.also)

    @property
    def size(self) -> int:
        """Its coordinates."""
        return math.prod(self.shape)

    def check_limits(self) -> None:
        """Refuse more dimensions or coordinates than a tensor of a session may have."""
        if len(self.shape) > MOST_DIMENSIONS:
            raise UsageError(
                f"tensor {called(self.name)} has {len(self.shape)} dimensions",
                f"a session takes at most {MOST_DIMENSIONS}",
            )
        product = 1
        for extent in self.shape:
            product *= max(extent, 1)  # numpy bounds the product of the others even if one is 0
            if product >= MOST_COORDINATES:
                raise UsageError(
                    f"tensor {called(self.name)} has too many coordinates", "keep L < 2^32"
                )


@dataclass(frozen=True, repr=False)
class Layout(Brief):
    """The tensors of a gradient in order; their entries in C order make up the flat vector.

    `left_out` names what else a gradient file may hold: buffers, and gradients that were None. In a
    `sequence` (a list of tensors) the names of slots and `left_out` are the positions "0", "1", ...
    Tied tensors have one slot.
    """

    slots: tuple[Slot, ...]
    left_out: tuple[str, ...] = ()
    sequence: bool = False

    @property
    def length(self) -> int:
        """L."""
        return sum(slot.size for slot in self.slots)

    def check_limits(self) -> None:
        """Refuse what no session may have: session.json comes from others, and must not keep us
        busy for long."""
        count = len(self.slots) + len(self.left_out)
        if count > MOST_TENSORS:
            raise UsageError(
                f"a layout of {count} tensors", f"a session takes at most {MOST_TENSORS}"
            )
        for name in (*(slot.name for slot in self.slots), *self.left_out):
            if len(name) > LONGEST_NAME:
                raise UsageError(
                    f"the name of tensor {called(name)} has {len(name)} characters",
                    f"a session takes names of at most {LONGEST_NAME}",
                )
        for slot in self.slots:
            slot.check_limits()
        if self.length >= MOST_COORDINATES:
            raise UsageError(f"a layout of {self.length} coordinates", "keep L < 2^32")

    @staticmethod
    def flat(length: int) -> Layout:
        """The layout of one unnamed vector."""
        return Layout((Slot("", (length,), "float64"),))

    @staticmethod
    def like(
        gradient: Gradient, only: Sequence[str] = (), exclude: Sequence[str] = NOT_GRADIENTS
    ) -> Layout:
        """The layout of a gradient file: its floating-point tensors that match `only` (if any is
        given) and not `exclude`, both shell patterns for names. The gradient gets a note of the
        others. Each name of a tied tensor is wanted or not by itself."""
        slots = []
        others = []
        for t in gradient:
            names = [t.name, *(name for name, first in gradient.ties.items() if first == t.name)]
            wanted = [
                name
                for name in names
                if t.dtype in FLOATING
                and (not only or any(fnmatchcase(name, pattern) for pattern in only))
                and not any(fnmatchcase(name, pattern) for pattern in exclude)
            ]
            others += [name for name in names if name not in wanted]
            if wanted:
                slots.append(Slot(wanted[0], t.shape, t.dtype, also=tuple(wanted[1:])))
        gradient.notes += left_out("not gradients", others)
        layout = Layout(tuple(slots), (*others, *gradient.absent), gradient.sequence)
        if layout.length == 0:
            raise UsageError(
                "nothing is left of the gradient: it has no floating-point coordinates that are "
                "wanted",
                "check the file, and which names are wanted",
                Advice.NAMES,
            )
        return layout

    @staticmethod
    def from_json(slots: list[Any], left_out: list[Any]) -> Layout:
        """The inverse of `as_json`; ValueError for lists that it cannot have given.

        Names are distinct: all of them strings, or, in a sequence, all positions 0, 1, ...
        """
        parsed = tuple(_slot(item) for item in slots)
        names = list(left_out)
        for item in slots:
            names += [item["name"], *item.get("also", [])]
        kinds = {type(name) for name in names}
        sequence = kinds == {int}
        if not (sequence or kinds == {str}) or len(set(names)) < len(names):
            raise ValueError(
                "the names of the layout are neither distinct strings nor distinct positions"
            )
        if sequence and set(names) != set(range(len(names))):
            raise ValueError("the positions of the layout are not 0, 1, ...")
        return Layout(parsed, tuple(map(str, left_out)), sequence=sequence)

    def as_json(self) -> dict[str, list[Any]]:
        """For session.json; only in a sequence, names are integers (positions)."""
        name = int if self.sequence else str
        slots = []
        for s in self.slots:
            item: dict[str, Any] = {"name": name(s.name), "shape": list(s.shape), "dtype": s.dtype}
            if s.also:
                item["also"] = [name(other) for other in s.also]
            slots.append(item)
        return {"layout": slots, "left_out": [name(left) for left in self.left_out]}

    def flatten(self, tensors: Gradient) -> npt.NDArray[Any]:
        """The flat vector, (L,): float32 if that holds every value, else float64. Refuse tensors
        that do not fit the layout, or are not finite.

        The only tensor of a gradient may come back as it is, without a copy. Tensors are read in
        the order of their file.
        """
        chosen = self._chosen(tensors)
        # an array without a name may be of integers, which float32 would round
        wide = any(t.dtype not in _IN_FLOAT32 for t in chosen)
        dtype = np.float64 if wide else np.float32
        with np.errstate(invalid="ignore"):  # a signalling NaN warns; it is refused below
            if len(chosen) == 1:
                flat = np.ascontiguousarray(chosen[0].array, dtype=dtype).reshape(-1)
            else:
                flat = np.empty(self.length, dtype=dtype)
                place = {id(t): position for position, t in enumerate(tensors)}
                parts = zip(chosen, self._parts(flat), strict=True)
                for t, (_, part) in sorted(parts, key=lambda pair: place[id(pair[0])]):
                    part[...] = t.array
        self._refuse_non_finite(flat)
        return flat

    def unused(self, tensors: Gradient) -> list[str]:
        """Names of tensors that the layout leaves out although they may be gradients and not
        buffers."""
        used = {name for slot in self.slots for name in slot.names}
        used |= {first for name, first in tensors.ties.items() if name in used}
        left_out = set(self.left_out) - used
        names = [t.name for t in tensors if t.name in left_out and t.dtype in FLOATING]
        return [
            name
            for name in names
            if not any(fnmatchcase(name, pattern) for pattern in NOT_GRADIENTS)
        ]

    def in_float64(self) -> Layout:
        """The layout of residuals: the same tensors, which keep their precision between rounds."""
        return replace(self, slots=tuple(slot._replace(dtype="float64") for slot in self.slots))

    @property
    def bytes(self) -> int:
        """What a gradient takes as it is, in the types of the layout; a vector without a name has
        none, and counts as float32."""
        return sum(
            bytes_of(slot if slot.name else slot._replace(dtype="float32")) for slot in self.slots
        )

    def plain_bytes(self, tensors: Gradient) -> int:
        """What a gradient takes when it is sent as it is, in its own types."""
        return sum(map(bytes_of, self._chosen(tensors)))

    def unflatten(self, vector: npt.NDArray[np.float64]) -> Gradient:
        """The tensors of a flat vector, each in the layout's type (bfloat16 as float32)."""
        parts = self._parts(vector)
        return self._gradient(
            [Tensor(slot.name, slot.dtype, _fitted(slot, part)) for slot, part in parts]
        )

    def unflatten_each(self, part: Callable[[int], npt.NDArray[np.float64]]) -> Gradient:
        """The same, where `part` gives the flat values of each tensor, by its position: it is made
        whenever its values are asked for."""

        def lazy(position: int, slot: Slot) -> TensorInFile:
            return TensorInFile(
                slot.name,
                slot.dtype,
                slot.shape,
                lambda: _fitted(slot, part(position).reshape(slot.shape)),
            )

        return self._gradient([lazy(*each) for each in enumerate(self.slots)])

    def _gradient(self, tensors: Sequence[AnyTensor]) -> Gradient:
        ties = {other: slot.name for slot in self.slots for other in slot.also}
        return Gradient(tensors, self.left_out, sequence=self.sequence, ties=ties)

    def _parts(self, vector: npt.NDArray[Any]) -> Iterator[tuple[Slot, npt.NDArray[Any]]]:
        """Every slot, and its part of a flat vector, as a view in the slot's shape."""
        ends = np.cumsum([slot.size for slot in self.slots])
        for slot, part in zip(self.slots, np.split(vector, ends[:-1]), strict=True):
            yield slot, part.reshape(slot.shape)

    def _chosen(self, tensors: Gradient) -> list[AnyTensor]:
        """The tensor of every slot; refuse tensors that do not fit the layout."""
        by_name: dict[str, AnyTensor | None] = {t.name: t for t in tensors}
        by_name |= {name: by_name[first] for name, first in tensors.ties.items()}
        if len(self.slots) == len(tensors) == 1 and "" in (tensors[0].name, self.slots[0].name):
            by_name = {self.slots[0].name: tensors[0]}  # one vector needs no name
        by_name |= dict.fromkeys(tensors.absent)
        chosen = [self._fitting(slot, by_name) for slot in self.slots]
        wanted = {name for slot in self.slots for name in slot.names} | set(self.left_out)
        for name, t in by_name.items():
            known = name in wanted or tensors.ties.get(name) in wanted
            if not known and t is not None and t.dtype in FLOATING:
                raise _misfit(f"tensor {called(name)} is not in the session's layout")
        return chosen

    def _fitting(self, slot: Slot, by_name: dict[str, AnyTensor | None]) -> AnyTensor:
        """The tensor of a slot; of a tied one, under whichever of its names the file has it."""
        names = [name for name in slot.names if name in by_name]
        if not names:
            self._refuse_if_only_a_prefix_differs(slot, by_name)
            raise _misfit(f"tensor {called(slot.name)} of the session's layout is missing")
        present = [t for t in map(by_name.get, names) if t is not None]
        t = present[0] if present else None
        if t is None:
            raise BadData(
                f"tensor {called(slot.name)} of the session's layout is None",
                "was it frozen for this user alone? save zeros in its place",
            )
        if t.shape != slot.shape:
            raise _misfit(
                f"tensor {called(slot.name)} has shape {t.shape}, the session {slot.shape}"
            )
        if t.dtype != slot.dtype and slot.name:
            raise _misfit(
                f"tensor {called(slot.name)} has type {t.dtype}, the session {slot.dtype}"
            )
        for other in present[1:]:
            if other is not t and not _same_values(other.array, t.array):
                raise BadData(
                    f"tensors {called(t.name)} and {called(other.name)} differ, "
                    "and the session has them as one tied tensor",
                    "save them tied, or start the round with a gradient in which they are not",
                )
        return t

    def _refuse_if_only_a_prefix_differs(
        self, missing: Slot, tensors: Mapping[str, AnyTensor | None]
    ) -> None:
        """Refuse tensors whose names differ from the session's by one prefix alone, and say which
        to strip; nothing happens if they differ otherwise."""
        for name in tensors:
            tail = _common_tail(name, missing.name)
            in_file = name.removesuffix(tail)  # the prefix that the file has
            in_session = missing.name.removesuffix(tail)
            if not tail or not self._fits(tensors, in_file, in_session):
                continue
            hint = f"strip the prefix {in_file!r} from its names"
            advice, prefix = Advice.PREFIX, in_file
            if in_session:
                hint = f"start the round without the prefix {in_session!r}"
                advice, prefix = Advice.SESSION_PREFIX, in_session
            raise BadData(
                f"it has {called(name)} where the session has {called(missing.name)}",
                hint,
                advice,
                prefix=prefix,
            )

    def _fits(self, tensors: Mapping[str, AnyTensor | None], in_file: str, in_session: str) -> bool:
        """Whether the tensors are those of the layout once the one prefix stands for the other."""
        for slot in self.slots:
            tensor = tensors.get(in_file + slot.name.removeprefix(in_session))
            if not slot.name.startswith(in_session) or tensor is None:
                return False
            if tensor.shape != slot.shape:
                return False
        return True

    def _refuse_non_finite(self, flat: npt.NDArray[Any]) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(flat.sum(dtype=np.float64)):
                return  # one quick pass; a sum that is not finite is looked at more closely
        for slot, part in self._parts(flat):
            bad = int(np.count_nonzero(~np.isfinite(part)))
            if bad:
                raise BadData(
                    f"tensor {called(slot.name)} has "
                    f"{counted(bad, 'value that is', 'values that are')} not finite",
                    "find out where NaN or Inf comes from; it would spoil everybody's sum",
                )


def _fitted(slot: Slot, part: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
    """The values of a tensor in its type; refuse those that it cannot hold."""
    kind = "float32" if slot.dtype == "bfloat16" else slot.dtype
    with np.errstate(over="ignore"):
        array = part.astype(kind)
    if not np.isfinite(array).all():
        raise BadData(
            f"the sum of tensor {called(slot.name)} does not fit {slot.dtype}",
            "aggregate.h5 has it; start the next round with gradients in float32",
        )
    return array


def _slot(item: Any) -> Slot:
    match item:
        case {"name": name, "shape": list(shape), "dtype": dtype, **others} if dtype in FLOATING:
            also: Any = others.pop("also", [None])  # which is absent where there is nothing to say
            fits = not others and isinstance(also, list) and also
            if fits and all(type(n) is int and n >= 0 for n in shape):
                names = tuple(str(other) for other in also if other is not None)
                return Slot(str(name), tuple(shape), dtype, also=names)
    raise ValueError("a tensor of the layout does not have a name, shape and dtype")


def _same_values(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    """Whether two tensors have the same shape, type and values; a NaN equals itself."""
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=True)


def _common_tail(first: str, second: str) -> str:
    """The longest end that both names have: the whole of one, or what follows a dot in it."""
    tail = min(first, second, key=len)
    while not (first.endswith(tail) and second.endswith(tail)):
        tail = tail.partition(".")[2]
    return tail


def _misfit(what: str) -> BadData:
    return BadData(what, "is it a gradient of the same model, saved in the same way?")
