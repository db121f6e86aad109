"""Mask-elimination phase: Y_n from the X of all survivors and the shares that user n holds."""

from __future__ import annotations

from collections.abc import Iterator

from .constructions import construction
from .messages import AnswerBlock, AnswerShape, Held, Inputs, Points
from .parameters import Parameters


def answer_shapes(p: Parameters, survivors: int) -> dict[int, tuple[AnswerShape, bool]]:
    """The shapes that an answer can have, by D, and whether it is the fallback: the session's own D first."""
    shapes = {construction(p).answer_shape(survivors, fallback=fallback): fallback for fallback in (True, False)}
    return {shape.blocks: (shape, fallback) for shape, fallback in reversed(shapes.items())}


def answer_blocks(
    p: Parameters, points: Points, user: int, masked: Inputs, shares: Held, *, fallback: bool = False
) -> Iterator[AnswerBlock]:
    """Y_n for the survivors in `masked` (eq. second:message), a few groups at a time."""
    c = construction(p)
    shape = c.answer_shape(len(masked), fallback=fallback)
    return c.answer_blocks(points, user, masked, shares, shape)
