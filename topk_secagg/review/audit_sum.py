"""The part of an audit that decodes: whether the answers agree, and whether aggregate.h5 is their
sum."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np

from ..algebra import entropy
from ..algebra.field import Symbols
from ..algebra.randomness import KEY_BYTES, CipherRandomness
from ..errors import BadData, InputMissing, counted, named_users, no_coalition
from ..gradients.quantise import beyond_clip, largest_sum
from ..protocol.constructions import construction
from ..protocol.decoding import Decoded, decode
from ..protocol.messages import AnswerShape
from ..protocol.parameters import rate_of_answer, rate_of_masked
from ..protocol.round import sum_of_masked
from ..storage import aggregate, answer
from ..storage.artifacts import Artifact
from ..storage.survivors import Survivors
from . import points
from .evidence import Evidence


def audit_sum(evidence: Evidence) -> None:
    """Check aggregate.h5, decode the answers, compare both, and compare the bytes with the
    theorem."""
    _examine_aggregate(evidence)
    _sum(evidence, _decoded(evidence))
    _rates(evidence)


def _examine_aggregate(evidence: Evidence) -> None:
    """Check aggregate.h5, and that it is for survivors.json."""

    def read(artifact: Artifact) -> str:
        total = aggregate.parsed(evidence.space, artifact)
        u1 = evidence.survivors
        if u1 and (total.survivors_sha256 != u1.digest or total.survivors != u1.users):
            raise artifact.bad("it is for another survivor set than survivors.json")
        evidence.aggregate = total
        return counted(total.total.index.size, "coordinate")

    path = evidence.space.aggregate_path
    expected = evidence.space.session.header(0)
    evidence.examine(path, aggregate.KIND, expected=expected, read=read)


def _decoded(evidence: Evidence) -> Decoded | None:
    """Decode the answers; name the users whose answers do not agree with the others."""
    u1 = evidence.survivors
    answers = len(evidence.answers)
    if u1 is None or answers < evidence.p.survivors:
        needed = f"more than {evidence.p.survivors}" if u1 else "a sound survivors.json"
        sound = counted(answers, "sound answer is", "sound answers are")
        why = f"{sound} available; needed: {needed}"
        evidence.add_not_checkable(points.AGREE, "elimination", why)
        return None
    result = None
    with evidence.check(points.AGREE, "elimination") as check:
        result = _decoded_answers(evidence, u1)
        evidence.liars_excluded = result.liars_excluded
        if result.corrected:
            check.subjects = [evidence.space.answer_path(n) for n in result.corrected]
        check.why = _agreement(evidence, result)
    return result


def _decoded_answers(evidence: Evidence, u1: Survivors) -> Decoded:
    """The sum that the sound answers give."""
    space = evidence.space
    with ExitStack() as files:
        answers = {
            n: files.enter_context(answer.opened_answer(space, n, u1)) for n in evidence.answers
        }
        shape = construction(evidence.p).answer_shape(len(u1.rows))
        return decode(
            p=evidence.p,
            points=space.session.points,
            shape=shape,
            answers={n: file.read for n, file in answers.items()},
            randomness=CipherRandomness(entropy.draw(KEY_BYTES, "checks of answers")),
            masked_sum=_masked_sum(evidence, u1, shape),
        )


def _masked_sum(evidence: Evidence, u1: Survivors, shape: AnswerShape) -> Symbols | None:
    """The sum of all frozen X, where the answers alone do not give the sum."""
    if not construction(evidence.p).decoding_needs_inputs:
        return None
    if sorted(evidence.frozen) != u1.users:
        raise InputMissing("not every frozen X is available, and a sum takes them all")
    return sum_of_masked(evidence.p, (x.masked for x in evidence.frozen.values()), shape)


def _agreement(evidence: Evidence, result: Decoded) -> str:
    """What the agreement of the answers says; refuse answers that do not agree."""
    answers = len(evidence.answers)
    needed = evidence.p.survivors
    if answers == needed:
        raise InputMissing(
            f"there are only {needed} answers, which always agree: the sum is right if nobody lied"
        )
    if result.corrected:
        guilt = "its user may be innocent, as a bad share has the same effect"
        if evidence.space.session.names_the_guilty:
            guilt = "its user lied, or its machine is faulty"
        raise BadData(f"it is not on the polynomial of the other answers; {guilt}")
    colluders = evidence.p.colluders
    excluded = result.liars_excluded
    rest = f" (T = {colluders})" if excluded == colluders else f", but T = {colluders} could"
    return (
        f"{answers} answers agree, and {needed} suffice:"
        f" {no_coalition(excluded)} can have falsified the sum{rest}"
    )


def _sum(evidence: Evidence, decoded: Decoded | None) -> None:
    """Check that the aggregate is the decoded sum, and no larger than the clip allows."""
    path = evidence.space.aggregate_path
    with evidence.check(points.RECOMPUTED, path) as check:
        check.why = _recomputed(evidence, decoded)
    with evidence.check(points.WITHIN_CLIP, path) as check:
        check.why = _within_clip(evidence, decoded)


def _recomputed(evidence: Evidence, decoded: Decoded | None) -> str:
    """Refuse an aggregate that is not the sum to which the answers decode, or that blames others
    than those who answered wrongly."""
    stored = evidence.aggregate
    if stored is None:
        raise InputMissing("no sound aggregate is available")
    if decoded is None:
        raise InputMissing("the available answers do not decode to a sum")
    index = stored.total.index
    value = stored.total.value
    total = decoded.total
    if not (np.array_equal(index, total.index) and np.array_equal(value, total.value)):
        raise BadData("it is not the sum that the answers decode to")
    known = [n for n in evidence.answers if n in stored.answering]
    wrong = [n for n in decoded.corrected if n in known]
    if [n for n in stored.corrected if n in known] != wrong:
        raise BadData("the users that it says answered wrongly are not those that did")
    if absent := [n for n in stored.corrected if n not in known]:
        raise InputMissing(
            f"it says that {named_users(absent)} answered wrongly, whose Y are not available"
        )
    coordinates = counted(index.size, "coordinate")
    return f"{coordinates}, the same from {counted(len(evidence.answers), 'answer')}"


def _within_clip(evidence: Evidence, decoded: Decoded | None) -> str:
    """Refuse a sum with coordinates that are larger than honest users can make them."""
    stored = evidence.aggregate
    known = stored or decoded
    if known is None or evidence.survivors is None:
        raise InputMissing("no sum is available, or no sound survivors.json")
    fixed_point = evidence.space.session.fixed_point
    weights = evidence.survivors.weights.values()
    beyond = beyond_clip(fixed_point, known.total.index, known.total.value, weights=weights)
    if beyond:
        larger = counted(beyond, "coordinate is larger", "coordinates are larger")
        raise BadData(f"{larger} than in any sum of honest users")
    return f"at most {largest_sum(fixed_point, weights):.6g}"


def _rates(evidence: Evidence) -> None:
    """Compare the bytes of X and Y with the rates of the theorem."""
    for (what, payload), rate_of in zip(
        evidence.payloads().items(), (rate_of_masked, rate_of_answer), strict=True
    ):
        with evidence.check(points.RATES, what) as check:
            if not payload:
                raise InputMissing(f"no sound {what} is available")
            rate = rate_of(evidence.p, payload)
            times = f"{rate.measured / rate.theorem:.3g} times Theorem 1 ({rate.theorem:.6g})"
            check.why = f"{payload} bytes, {rate.name} {rate.measured:.6g}: {times}"
