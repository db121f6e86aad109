"""Mask-elimination phase: Y_n from the X of all survivors and the shares that user n holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from .constructions import construction
from .messages import AnswerBlock, Masked, ShareRows
from .parameters import Parameters


def answer_blocks(
    p: Parameters, masked: Mapping[int, Masked], shares: Mapping[int, ShareRows]
) -> Iterator[AnswerBlock]:
    """Y_n = sum over m in U1 and entries of X_m of rotate(x f_m - h_m, delta), a few groups at a time.

    This is eq. second:message (where nothing is rotated and there is one group). Only the rows that
    some X names are read. Where the round takes syndromes, each group is reduced to them.
    """
    from ..algebra.kernels import eliminate

    verbs = construction(p)
    terms = {m: verbs.terms(p, x) for m, x in masked.items()}
    syndromes = p.answer_width(len(masked)) if p.by_syndromes(len(masked)) else 0
    step = max(1, p.block_rows // (p.picks * p.blocks)) if p.buckets else 1
    for first in range(0, p.groups, step):
        last = min(first + step, p.groups)
        total = np.zeros((last - first, p.width), dtype=np.uint32)
        for m, (row, rotation, group) in terms.items():
            low, high = np.searchsorted(group, (first, last))
            for start in range(low, high, p.block_rows):
                part = slice(start, min(start + p.block_rows, high))
                f, h = shares[m].read(row[part])
                eliminate(f, h, masked[m].value[part], rotation[part], group[part] - first, p.field, total)
        if syndromes:
            from ..algebra.syndrome import syndromes as reduce_to_syndromes

            total = reduce_to_syndromes(total, syndromes, p.field)
        yield AnswerBlock(first, total)
