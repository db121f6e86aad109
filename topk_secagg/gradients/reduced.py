"""How one tensor is reduced to what is sent: `Picked` or `Whole` here, projected in `low_rank`.

A tensor becomes symbols: an array of `symbols_shape`. The basis of a tensor that needs none is
empty, (0, 0).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..algebra.bases import Basis, SignedIntegers

Array = npt.NDArray[Any]
Reals = npt.NDArray[np.float64]
Shape = tuple[int, ...]

TOP_K = "top-k"
WHOLE = "whole"
LOW_RANK = "low-rank"


@dataclass(frozen=True)
class Reduced(ABC):
    """How one tensor is reduced."""

    kind: ClassVar[str]
    shape: Shape

    @property
    @abstractmethod
    def basis_shape(self) -> tuple[int, int]:
        """(k or m, r)."""

    @property
    @abstractmethod
    def symbols_shape(self) -> tuple[int, ...]:
        """(m, r) on the right, (r, k) on the left; else the tensor's own."""

    @abstractmethod
    def reduce(self, tensor: Array, basis: Basis) -> Reals:
        """y: the tensor (its shape) becomes an array of `symbols_shape`."""

    @abstractmethod
    def decode(self, symbols: SignedIntegers, basis: Basis, scale: float, out: Reals) -> None:
        """y B' or B y, divided by the symbols' steps per unit, into `out` (the tensor's shape)."""

    @abstractmethod
    def columns(self, symbols: SignedIntegers) -> SignedIntegers:
        """The columns whose space is the basis of the other side: (m, r), or (k, r)."""

    @property
    def entries(self) -> int:
        """Of the tensor."""
        return math.prod(self.shape)

    @property
    def symbols(self) -> int:
        """Of the reduced tensor."""
        return math.prod(self.symbols_shape)


@dataclass(frozen=True)
class _AsItIs(Reduced):
    """A tensor whose entries are its symbols."""

    @property
    def basis_shape(self) -> tuple[int, int]:
        """None."""
        return 0, 0

    @property
    def symbols_shape(self) -> tuple[int, ...]:
        """One symbol for each entry."""
        return self.shape

    def reduce(self, tensor: Array, basis: Basis) -> Reals:  # noqa: ARG002 - it has none
        """The tensor itself."""
        return tensor.astype(np.float64)

    def decode(
        self,
        symbols: SignedIntegers,
        basis: Basis,  # noqa: ARG002 - it has none
        scale: float,
        out: Reals,
    ) -> None:
        """symbols / scale."""
        np.divide(symbols, scale, out=out)

    def columns(self, symbols: SignedIntegers) -> SignedIntegers:
        """None: a basis for this tensor comes from the nonce."""
        return symbols.reshape(-1)[:0].reshape(0, 0)


@dataclass(frozen=True)
class Whole(_AsItIs):
    """A tensor that every user sends as it is."""

    kind: ClassVar[str] = WHOLE


@dataclass(frozen=True)
class Picked(_AsItIs):
    """A tensor of whose entries a user sends some."""

    kind: ClassVar[str] = TOP_K
