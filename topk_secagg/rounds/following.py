"""What a round takes from the last sum: the basis on which it projects, and the clips."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..algebra.bases import Basis, SignedIntegers, digest
from ..errors import Advice, InputMissing, UsageError
from ..gradients.layout import Layout
from ..gradients.reduce import CLIP_FACTOR, CLIP_FACTOR_OF_BYTES, Reduction
from ..gradients.reduced import Reals
from ..protocol.messages import Sparse
from ..protocol.parameters import Parameters
from ..storage.basis import of_round
from ..storage.workspace import Workspace
from .sending import Encoding

FIRST_OF_LOW_RANK = (
    "a first round of low rank only finds the basis: the next rounds of the series hold the "
    "gradient"
)


@dataclass(frozen=True)
class LastSum:
    """The sum of an earlier round, as everybody has it: symbols of its reduced vector, and what
    they mean. `name` is that of its session."""

    name: bytes
    layout: Layout
    encoding: Encoding
    total: Sparse

    @property
    def symbols(self) -> SignedIntegers:
        """(n,), with zeros where nothing was sent."""
        return self.encoding.symbols(self.total)

    @property
    def flat(self) -> Reals:
        """The decoded sum, (L,)."""
        return self.encoding.decoded(self.total)


def last_sum(before: Workspace) -> LastSum | None:
    """The sum of a round, if it has one here."""
    if not before.aggregate_path.exists():
        return None
    # a round that starts a series need not load what reads a sum
    from ..storage import aggregate as aggregate_file
    from ..storage.artifacts import opened

    with opened(before.aggregate_path, aggregate_file.KIND) as artifact:
        total = aggregate_file.parsed(before, artifact).total
    s = before.session
    return LastSum(
        name=bytes.fromhex(s.id),
        layout=s.layout,
        encoding=Encoding.of(s, of_round(before)),
        total=total,
    )


@dataclass(frozen=True)
class Following:
    """How a round reduces that follows another one: the reduction with its side, and the bases."""

    reduction: Reduction
    bases: list[Basis]

    @property
    def digest(self) -> str | None:
        """Of the bases, as session.json has it; None where nothing is projected."""
        return digest(self.bases) if self.reduction.has_basis else None


def first(reduction: Reduction, layout: Layout, nonce: str) -> Following:
    """Of a round that no sum came before."""
    return Following(reduction, reduction.first_bases(_names(layout), bytes.fromhex(nonce)))


def after_sum(reduction: Reduction, layout: Layout, nonce: str, last: LastSum) -> Following:
    """Of a round that goes on from a sum: on the other side, and on the basis of its symbols."""
    before = last.encoding.reduction
    if not _goes_on(reduction, layout, before, last.layout):
        return first(reduction, layout, nonce)
    turned = _on_side(reduction, before.next_side())
    bases = turned.next_bases(before, last.symbols, _names(layout), last.name)
    return Following(turned, bases)


def after_no_sum(reduction: Reduction, layout: Layout, nonce: str, before: Workspace) -> Following:
    """Of a round that goes on from one without a sum: side and basis stay."""
    s = before.session
    if not _goes_on(reduction, layout, s.reduction, s.layout):
        return first(reduction, layout, nonce)
    same = _on_side(reduction, s.reduction.side)
    bases = same.same_bases(of_round(before), _names(layout), bytes.fromhex(nonce))
    return Following(same, bases)


def _goes_on(reduction: Reduction, layout: Layout, last: Reduction, last_layout: Layout) -> bool:
    """Whether the last basis is of any use."""
    return reduction.has_basis and last.has_basis and layout == last_layout


def _on_side(reduction: Reduction, side: str | None) -> Reduction:
    """The same reduction with its basis on the other side, or on this one."""
    if reduction.rank is None or side is None or side == reduction.side:
        return reduction
    return Reduction.of(reduction.shapes, reduction.rank, side, reduction.kept_whole())


def _names(layout: Layout) -> list[str]:
    return [slot.name for slot in layout.slots]


# clips


def default_factor(p: Parameters, reduction: Reduction) -> float | None:
    """What `clip_from_sum` is by default: with low rank 2, or 1/4 where symbols have one byte."""
    if reduction.rank is None:
        return None
    return CLIP_FACTOR_OF_BYTES if p.symbol_bytes == 1 else CLIP_FACTOR


def clips_after(
    last: LastSum, following: Following, layout: Layout, factor: float
) -> tuple[float, ...]:
    """Clips that everybody can compute: of each tensor `factor` times the largest magnitude of the
    last sum on the new basis, divided by the largest weight; at least 1/16 of the last ones."""
    if not 0 < factor < math.inf:
        raise UsageError(
            f"a factor of {factor:g} for the clip", "give a positive number, such as 2"
        )
    if layout.length != last.layout.length or len(layout.slots) != len(last.encoding.clips):
        raise UsageError(
            "the clip comes from a sum of other tensors", "choose a clip", Advice.CHOOSE_CLIP
        )
    by_weight = factor / last.encoding.parameters.max_weight
    clips = following.reduction.clips(last.flat, following.bases, last.encoding.clips, by_weight)
    return tuple(clips)


def sum_for_clip(last: LastSum | None, before: Workspace) -> LastSum:
    """Refuse a clip that is to come from a sum that is not there."""
    if last is None:
        raise InputMissing(
            f"{before.aggregate_path} is not there, and the clip comes from the sum in it",
            "decode that round first; if it has no sum, choose a clip",
            Advice.CHOOSE_CLIP,
        )
    return last
