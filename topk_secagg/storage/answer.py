"""elimination/user-NN.h5: Y_n, public, with the digest of the survivors.json that it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from ..algebra.field import Symbols, stored_type
from ..errors import BadData, InputMissing
from ..protocol.constructions import construction
from ..protocol.messages import AnswerChunk, AnswerShape
from ..protocol.parameters import Parameters
from .artifacts import SYMBOLS, Artifact, Digest, Draft, Kind, opened
from .atomic import Array, pread_into, whole_file
from .hdf5_writer import Shapes, new_file
from .keys import Identity
from .survivors import Survivors
from .workspace import Workspace

KIND = Kind(
    "elimination",
    {"y": (SYMBOLS, "the answer Y: a row for each group of D blocks")},
    "it has not arrived, or its user has not answered",
    attributes=("survivors_sha256",),
    signed=True,
)


def shapes(p: Parameters, shape: AnswerShape) -> Shapes:
    """Type and shape of the dataset."""
    return {"y": (stored_type(p.field).str, (shape.groups, shape.width))}


def write(
    space: Workspace,
    user: int,
    *,
    survivors: Survivors,
    shape: AnswerShape,
    chunks: Iterable[AnswerChunk],
    signer: Identity | None,
    path: Path,
    mode: int,
    progress: Callable[[float], None],
) -> None:
    """Write Y_n, whose groups come in order, into a file."""
    s = space.session
    layout = shapes(s.parameters, shape)
    dtype, size = layout["y"]
    draft = Draft(KIND, s.header(user, survivors_sha256=survivors.digest), signer)
    digest = draft.new_digest()
    with whole_file(path, mode) as stream, new_file(stream, layout, KIND.datasets) as file:
        for start, rows in chunks:
            stored = np.ascontiguousarray(rows, dtype=dtype)
            digest.add("y", size, start=start, rows=stored)
            file.put("y", start, stored)
            progress((start + len(rows)) / shape.groups)
        file.finish(draft.completed(digest.hexdigest()))


class AnswerFile:
    """Y_n in an open file, read group by group."""

    def __init__(self, p: Parameters, artifact: Artifact, shape: AnswerShape) -> None:
        self.artifact = artifact
        self.field = p.field
        self.shape = shape
        self._y = artifact.datasets["y"]
        self.payload = construction(p).bytes_of_answer(shape)
        # of what is read from now on, for `is_intact`: all groups, in order, perhaps several times
        self.hashing = False
        self._digests: list[Digest] = []  # one for each time that it was read

    def read(self, start: int, out: Symbols) -> Symbols:
        """Fill `out` with groups start, start+1, ..."""
        y = out if self._y.dtype == out.dtype else np.empty(out.shape, self._y.dtype)
        pread_into(self.artifact.fd, y, self._y.offset + start * y[0].nbytes)
        if self.hashing:
            if not start:
                self._digests.append(Digest(self.artifact.attributes))
            self._digests[-1].add("y", self._y.shape, start=start, rows=y)
        self.check_symbols(y)
        if y is not out:
            out[:] = y
        return out

    def is_intact(self) -> bool:
        """Whether it was hashed, and is what its digest says."""
        read = {digest.hexdigest() for digest in self._digests}
        return read == {self.artifact.attributes["sha256"]}

    def check_symbols(self, y: Array) -> None:
        """Refuse symbols that are none."""
        if y.size and y.max() >= self.field:
            raise self.artifact.bad("a symbol is not below the field's size")


@contextmanager
def opened_answer(
    space: Workspace,
    user: int,
    survivors: Survivors,
    *,
    verify: bool = True,
    path: Path | None = None,
) -> Iterator[AnswerFile]:
    """Open Y_n, in its place or in another file, and check that it was made for this survivor set
    and these X.

    Without `verify`, its digest has not been checked.
    """
    s = space.session
    p = s.parameters
    shape = construction(p).answer_shape(len(survivors.rows))
    with opened(path or space.answer_path(user), KIND) as artifact:
        # first, because an answer of another session is for other survivors too
        artifact.expect_attributes(s.header(user))
        if artifact.attributes["survivors_sha256"] != survivors.digest:
            raise artifact.bad(
                "it answers another survivor set, or other masked inputs",
                "all answers must be for one survivors.json; ask the user which one was answered",
            )
        artifact.expect_shapes(shapes(p, shape))
        answer = AnswerFile(p, artifact, shape)
        if verify:
            artifact.verify(answer.check_symbols)
        artifact.expect(s.header(user), s.recipient(user))
        yield answer


def check_origin(space: Workspace, user: int) -> None:
    """Refuse a Y of another session or user, whatever survivors it is for."""
    with opened(space.answer_path(user), KIND) as artifact:
        artifact.expect_attributes(space.session.header(user))


def answered_before(space: Workspace, user: int) -> str | None:
    """The digest of the survivors.json that this user's Y in the round answers."""
    s = space.session
    with suppress(InputMissing, BadData), opened(space.answer_path(user), KIND) as artifact:
        if artifact.datasets["y"].size <= largest_bytes(s.parameters):
            artifact.verify()
            artifact.expect(s.header(user), s.recipient(user))
            return str(artifact.attributes["survivors_sha256"])
    return None


def largest_bytes(p: Parameters) -> int:
    """The most bytes that Y takes: for all users."""
    return construction(p).answer_bytes(p.users)
