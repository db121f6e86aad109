"""`decode`: the aggregate from the answers that are there."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Unpack

import numpy as np
import numpy.typing as npt

from ..algebra import entropy
from ..algebra.field import Symbols
from ..algebra.randomness import KEY_BYTES, CipherRandomness
from ..brief import Brief
from ..errors import (
    Advice,
    BadData,
    InputMissing,
    SecAggError,
    TooFewSurvivors,
    counted,
    named_users,
)
from ..gradients.arrays import Given, in_form
from ..gradients.files import check_writable, write_gradient
from ..gradients.quantise import beyond_clip
from ..gradients.tensors import Gradient
from ..progress import Progress, unheard
from ..protocol.constructions import construction
from ..protocol.decoding import decode as decode_answers
from ..protocol.messages import Sparse
from ..protocol.parameters import Parameters
from ..protocol.round import sum_of_masked
from ..storage import aggregate as aggregate_file
from ..storage import decoded as decoded_file
from ..storage import survivors as survivors_file
from ..storage.answer import AnswerFile, opened_answer
from ..storage.artifacts import opened
from ..storage.atomic import OWN, whole_file
from ..storage.basis import of_round
from ..storage.session import Session
from ..storage.survivors import Survivors
from ..storage.workspace import Workspace
from . import barrier
from .access import Decoding, check_pins, taking_part
from .arguments import AnyPath, AnyRound, optional_path
from .costs import check_affordable
from .each import for_each
from .frozen import each_frozen
from .outcome import PUBLISHED
from .sending import Encoding


@dataclass(frozen=True, repr=False)
class DecodeReport(Brief):
    """What `decode` did: U1, U2, who of these answered wrongly, whose files were left out and
    why, what a user sent in the two phases, and how many coordinates are larger than honest users
    can make them.

    `total` is the sum in the form of a gradient, or the mean where that was asked for; `sparse` is
    the sum in the field, as aggregate.h5 has it. It is right if at most `liars_excluded` of the
    users that answered lie together.
    """

    path: Path
    survivors: list[int]
    answering: list[int]
    corrected: list[int]
    left_out: dict[int, str]
    nonzero: int
    beyond_clip: int
    answers_needed: int
    liars_excluded: int
    masked_bytes: int
    answer_bytes: int
    sparse: Sparse = field(repr=False)
    session: Session = field(repr=False)
    encoding: Encoding = field(repr=False)
    divisor: float = field(repr=False)

    @property
    def vector(self) -> npt.NDArray[np.float64]:
        """The sum or the mean as one flat vector, (L,)."""
        return self.encoding.decoded(self.sparse) / self.divisor

    @property
    def tensors(self) -> Gradient:
        """The same in the session's layout, each made when it is asked for: all of them are never
        in memory at once."""
        part = self.encoding.each_decoded(self.sparse)
        return self.session.layout.unflatten_each(lambda at: part(at) / self.divisor)

    @property
    def total(self) -> Given:
        """The sum or the mean in the form of a gradient, made anew each time: an array, a mapping
        of names to arrays, or a list."""
        return in_form(self.session.layout, self.vector)


def decode(
    round: AnyRound,
    output: AnyPath | None = None,
    *,
    mean: bool = False,
    strict: bool = False,
    progress: Progress = unheard,
    **pins: Unpack[Decoding],
) -> DecodeReport:
    """The sum, from enough answers: write aggregate.h5, and the sum in the form of a gradient to
    `output`.

    Arguments:
    round: the folder of the round.
    output: write the sum there too: .pt, .safetensors, .npz or .npy.
    mean: divide what `output` gets, and `total` of the report, by the sum of the survivors'
        weights.
    strict: refuse an answer that cannot be read, or is for another survivor set, instead of leaving
        it out, any sum that T users could have forged (all answers must agree, and be D + 2T), and
        one that is larger than honest users can make it.
    progress: called with the share that is done, 0 to 1.
    secrets: the folder of secrets and ledgers, instead of the round's own.
    session: refuse any other session than this one; at least 16 of its digits.
    series: the same of the series of the round, whose name `init` and `inspect` say.
    recipients: refuse a session that has other keys than this file.
    max_memory: refuse a round that takes more bytes of memory; by default, more than there are.
    max_disk: refuse a round for whose files a user needs more bytes.

    Returns a DecodeReport: the sum as its `total`, U1, U2, and who of these answered wrongly.
    """
    space, access = taking_part(round, **pins)
    check_pins(space, access)
    check_affordable(space, access.max_memory, access.max_disk)
    written_to = optional_path("output", output)
    if written_to is not None:
        check_writable(written_to)
    with space.step_of_account():
        survivors = survivors_file.read(space)
        decoding = partial(
            _decoded,
            space,
            survivors,
            # before anything is decoded: a foreign X or basis here does not mean that it failed
            encoding=Encoding.of(space.session, of_round(space)),
            masked_sum=_masked_sum(space, survivors),
            strict=strict,
            progress=progress,
        )
        try:
            report = decoding(verify=False)
        except (BadData, TooFewSurvivors):  # is a file damaged? it is left out
            with _failing(space, survivors, strict=strict):
                report = decoding(verify=True)
        if strict:
            _check_within_clip(report)
        if not _decoded_by_others(space, survivors, report.sparse):
            aggregate_file.write(
                space,
                survivors,
                report.sparse,
                answering=report.answering,
                corrected=report.corrected,
            )
        if mean:
            report = replace(report, divisor=math.fsum(survivors.weights.values()))
        if written_to is not None:
            with whole_file(written_to, OWN) as stream:
                write_gradient(stream, written_to.suffix, report.tensors)
        _remember(space, survivors, decoded_file.DECODED, _digest_of_sum(space))
    return report


def _check_within_clip(report: DecodeReport) -> None:
    """Refuse a sum that a user made larger than all clips allow."""
    if report.beyond_clip:
        larger = counted(report.beyond_clip, "coordinate is", "coordinates are")
        raise BadData(
            f"{larger} larger than any sum of the survivors' clipped gradients",
            "somebody sent more than the clip; nobody can tell who",
            Advice.STRICT,
        )


def _remember(space: Workspace, survivors: Survivors, outcome: str, sum_digest: str | None) -> None:
    """Keep what this account's own decoding gave."""
    decoded = decoded_file.Decoded(
        session=space.session.id,
        survivors_sha256=survivors.digest,
        aggregate_sha256=sum_digest,
        outcome=outcome,
    )
    decoded_file.record(space, decoded)


def _digest_of_sum(space: Workspace) -> str:
    with opened(space.aggregate_path, aggregate_file.KIND) as artifact:
        return str(artifact.attributes["sha256"])


_CORRUPT = (
    "a user sent what no honest user sends, or a file is not what was sent: start a new round"
)


@contextmanager
def _failing(space: Workspace, survivors: Survivors, *, strict: bool) -> Iterator[None]:
    """If there are answers enough, and they give no sum, then this round has failed.

    `strict` refuses what could be decoded otherwise, and says nothing about that.
    """
    try:
        yield
    except BadData as error:
        error = error if error.hint else error.but(hint=_CORRUPT)
        if strict:
            raise error from None
        _remember(space, survivors, decoded_file.FAILED, None)
        raise error.but(hint=f"{error.hint}; {PUBLISHED}") from error


def _decoded(
    space: Workspace,
    survivors: Survivors,
    *,
    encoding: Encoding,
    masked_sum: Symbols | None,
    verify: bool,
    strict: bool,
    progress: Progress,
) -> DecodeReport:
    """The sum, and who contributed to it.

    Answers are hashed while they are read for decoding; with `verify`, damaged ones are left out
    before. Only in a round without keys, and unless `strict`, answers beyond those that determine
    the sum are not hashed: they agree with these, or else it is BadData. If they are signed, one
    could be changed so that it agrees with a wrong one.
    """
    s = space.session
    p = space.session.parameters
    users = [n for n in space.present("elimination") if n in survivors.rows]
    with ExitStack() as files:

        def open_answer(n: int) -> AnswerFile:
            with barrier.around(space.answer_path(n)):
                return files.enter_context(opened_answer(space, n, survivors, verify=verify))

        attempts = for_each(users, open_answer)
        answers = attempts.every_report() if strict else attempts.reports
        _check_enough(p, survivors, answers, attempts.left_out(space.answer_path))
        every = verify or strict or s.recipients is not None
        hashed = list(answers.values())[: None if every else p.survivors]
        for answer in hashed:
            answer.hashing = True
        decoded = decode_answers(
            p,
            points=s.points,
            shape=construction(p).answer_shape(len(survivors.rows)),
            answers={n: answer.read for n, answer in answers.items()},
            randomness=CipherRandomness(entropy.draw(KEY_BYTES, "checks of answers")),
            masked_sum=masked_sum,
            strict=strict,
            progress=progress,
        )
        if not all(answer.is_intact() for answer in hashed) or (decoded.corrected and not every):
            raise BadData(
                "an answer is damaged, or was changed while it was read",
                "let no other program write to it",
            )
    return DecodeReport(
        path=space.aggregate_path,
        survivors=survivors.users,
        answering=list(answers),
        corrected=decoded.corrected,
        left_out=attempts.left_out(space.answer_path),
        nonzero=decoded.total.index.size,
        beyond_clip=beyond_clip(
            s.fixed_point, decoded.total.index, decoded.total.value, survivors.weights.values()
        ),
        answers_needed=p.survivors,
        liars_excluded=decoded.liars_excluded,
        masked_bytes=construction(p).masked_bytes,
        answer_bytes=next(iter(answers.values())).payload,
        sparse=decoded.total,
        session=s,
        encoding=encoding,
        divisor=1.0,
    )


def _masked_sum(space: Workspace, survivors: Survivors) -> Symbols | None:
    """The sum of all X of U1, where the sum of the inputs is not in the answers alone."""
    p = space.session.parameters
    c = construction(p)
    if not c.decoding_needs_inputs:
        return None
    shape = c.answer_shape(len(survivors.rows))
    try:
        each = each_frozen(space, survivors)
        return sum_of_masked(p, (x.masked for _, x in each), shape)
    except InputMissing as error:
        raise InputMissing(
            f"{error}: a sketch cannot be decoded without every X of the survivors",
            error.hint,
        ) from error


def _decoded_by_others(space: Workspace, survivors: Survivors, total: Sparse) -> bool:
    """Whether another account has put the same sum into a folder that several share, where its file
    stays."""
    with suppress(SecAggError), opened(space.aggregate_path, aggregate_file.KIND) as artifact:
        if os.fstat(artifact.fd).st_uid != os.geteuid():
            before = aggregate_file.parsed(space, artifact)
            same = np.array_equal(before.total.index, total.index) and np.array_equal(
                before.total.value, total.value
            )
            return same and before.survivors_sha256 == survivors.digest
    return False


def _check_enough(
    p: Parameters,
    survivors: Survivors,
    answers: Mapping[int, AnswerFile],
    unsound: Mapping[int, str],
) -> None:
    """Refuse to decode from fewer than U answers; say which are missing, and what is wrong with
    those that are there."""
    if len(answers) >= p.survivors:
        return
    silent = [n for n in survivors.users if n not in answers and n not in unsound]
    missing = named_users(silent) if silent else "none"
    parts = [
        f"{counted(len(answers), 'sound answer')}, and {p.survivors} are needed"
        f" (missing: {missing})"
    ]
    parts += [f"the answer of user {n} does not count: {why}" for n, why in unsound.items()]
    hint = "wait for more users to answer"
    if unsound:
        hint = f"fetch the answer of {named_users(unsound)} again, or {hint}"
    raise TooFewSurvivors("; ".join(parts), hint)
