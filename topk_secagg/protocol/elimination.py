"""Mask-elimination phase: which shapes an answer Y_n can have, and of which there are enough to decode."""

from __future__ import annotations

from collections.abc import Mapping

from .constructions import construction
from .messages import AnswerShape
from .parameters import Parameters


def answer_shapes(p: Parameters, survivors: int) -> dict[int, AnswerShape]:
    """The shapes that an answer can have, by D: the session's own, and then that of the fallback if it is another."""
    shapes = (
        construction(p).answer_shape(survivors, fallback=fallback) for fallback in (False, True)
    )
    return {shape.blocks: shape for shape in shapes}


def decodable(
    p: Parameters, survivors: int, given: Mapping[int, int | None]
) -> dict[AnswerShape, list[int]]:
    """The shapes of which there are enough answers, and whose these are. `given` is the D of each user's answer."""
    shapes = answer_shapes(p, survivors).values()
    users = {
        shape: [n for n, blocks in given.items() if blocks == shape.blocks] for shape in shapes
    }
    return {shape: own for shape, own in users.items() if len(own) >= shape.quorum}
