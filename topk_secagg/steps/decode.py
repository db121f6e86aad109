"""`decode`: the aggregate from the answers that are there."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..algebra.randomness import CipherRandomness, fresh_key
from ..gradients.files import check_writable, write_gradient
from ..gradients.quantize import dequantise
from ..protocol.decoding import decode as decode_answers
from ..storage.artifacts import write_artifact
from ..storage.atomic import whole_file
from ..storage.public import answer_rows, masked_bytes, read_survivors
from ..storage.workspace import Workspace
from .offline import Progress


@dataclass(frozen=True)
class DecodeReport:
    """What `decode` found: U1, U2, who of these answered wrongly, and what a user sent in the two phases."""

    path: Path
    survivors: list[int]
    answering: list[int]
    corrected: list[int]
    nonzero: int
    masked_payload: int
    answer_payload: int


def decode(
    space: Workspace,
    output: Path | None = None,
    *,
    mean: bool = False,
    strict: bool = False,
    progress: Progress = lambda _: None,
) -> DecodeReport:
    """Write aggregate.h5, and the sum (or mean) in the layout of the gradient to `output`."""
    session = space.session
    p = session.parameters
    if output is not None:
        check_writable(output)
    with space.step_of_all(), ExitStack() as files:
        survivors = read_survivors(space)
        users = [n for n in space.present("elimination") if n in survivors.digests]
        answers = {n: files.enter_context(answer_rows(space, n, survivors)) for n in users}
        found = decode_answers(
            p,
            session.points,
            len(survivors.digests),
            answers,
            CipherRandomness(fresh_key()),
            strict=strict,
            progress=progress,
        )
        index, value = found.total.index, found.total.value
        real = dequantise(p, value)
        with whole_file(space.aggregate_path) as temporary:
            write_artifact(
                temporary,
                "aggregate",
                session.header(0, survivors=survivors.digest),
                {
                    "index": index.astype("<u4"),
                    "value": value,
                    "real": real,
                    "survivors": np.array(sorted(survivors.digests), dtype="<u4"),
                    "answering": np.array(users, dtype="<u4"),
                    "corrected": np.array(found.corrected, dtype="<u4"),
                },
            )
        if output is not None:
            vector = np.zeros(p.length)
            vector[index] = real / math.fsum(survivors.weights.values()) if mean else real
            with whole_file(output) as temporary, temporary.open("wb") as stream:
                write_gradient(stream, output.suffix, session.layout.unflatten(vector))
    payload = answers[users[0]].payload
    return DecodeReport(
        space.aggregate_path,
        sorted(survivors.digests),
        users,
        found.corrected,
        index.size,
        masked_bytes(p),
        payload,
    )
