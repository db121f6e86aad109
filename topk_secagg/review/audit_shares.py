"""The half of `audit` that looks into secrets, ledgers and shares, where they are at hand.

Shares are read a block of rows at a time. Nothing that is found here says what a secret value is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import lru_cache
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np
import numpy.typing as npt

from ..algebra.field import Integers, Symbols, add, to_signed
from ..errors import BadData, InputMissing
from ..protocol.constructions import construction
from ..protocol.elimination import answer_blocks
from ..protocol.messages import Masked, Secret, Selectors
from ..protocol.parameters import Parameters
from ..storage.artifacts import Artifact, Attributes
from ..storage.keys import Identity
from ..storage.ledger import Ledger
from ..storage.public import answer_rows
from ..storage.sealing import sealed_share_rows
from ..storage.secrets import StoredSecret, read_secret
from ..storage.shares import ShareFile, share_rows
from .evidence import FAIL, NOT_CHECKABLE, Evidence, at_hand

Coordinates = npt.NDArray[np.int64]


def audit_private(found: Evidence, openers: dict[int, Identity], progress: Callable[[float], None]) -> None:
    """Users' own files: the secret, ledger and shares of one user at a time, then the answers."""
    private, steps = _Private(found, openers), 2 * found.p.users
    for n in found.space.users():
        stored = private.secret(n)
        private.ledger(n, stored)
        if n in found.masked:
            found.check("masks and places fit X", found.space.masked_path(n), private.fit, n, stored)
        private.shares(n, stored)
        progress(n / steps)
    for n in found.space.users():
        if n in found.answers:
            found.check("Y recomputed", found.space.answer_path(n), private.recomputed, n)
        progress(0.5 + n / steps)
    found.check("aggregate is the sum of the inputs", found.space.aggregate_path, private.summed)


class _Private:
    """The checks, and the shares that they found sound."""

    def __init__(self, found: Evidence, openers: dict[int, Identity]) -> None:
        self.found, self.space, self.p = found, found.space, found.p
        self.openers = openers
        self.sound: set[tuple[int, int]] = set()
        self.inputs: dict[int, tuple[Coordinates, Coordinates]] = {}

    def secret(self, n: int) -> StoredSecret | None:
        """The secret of a user, if it is at hand and sound; a residual that waits is looked at too."""
        header, kept = self.space.session.header(n), []
        readers: list[tuple[Path, str, Callable[[Artifact], None]]] = [
            (self.space.secret_path(n), "secret", lambda _: kept.append(read_secret(self.space, n))),
            (self.space.residual_path(n), "residual", lambda a: a.expect_shape("value", self.p.length)),
        ]
        for path, kind, read in readers:
            if at_hand(path):
                with ExitStack() as files:
                    self.found.examine(path, kind, header, read, files)
        return kept[0] if kept else None

    def ledger(self, n: int, stored: StoredSecret | None) -> None:
        """What the ledger says was done is what lies there, and the other way round."""
        path, kept, session = self.space.ledger_path(n), [], self.space.session
        if not at_hand(path):
            self.found.add("ledgers", path, NOT_CHECKABLE, "it is not at hand")
            return
        if self.found.check("schema", path, lambda: kept.append(Ledger.read(path, session.id, n))):
            self.found.check("ledgers", path, lambda: self._contradiction(kept[0], stored))

    def _contradiction(self, ledger: Ledger, stored: StoredSecret | None) -> str:
        n, found = ledger.user, self.found
        survivors, x = found.survivors, found.masked.get(n)
        if ledger.insecure != self.space.session.insecure:
            raise BadData("its mark for a public seed is not the session's")
        if stored and ledger.shared not in (None, stored.sharing):
            raise BadData("it names another sharing than the secret")
        if x and (ledger.masked != x.digest or ledger.shared != x.sharing):
            raise BadData("the X that lies there is not the one that it says was sent")
        if n in found.answered and ledger.answered != found.answered[n]:
            raise BadData("the Y that lies there is not for the survivor set that it says was answered")
        if survivors and ledger.answered not in (None, survivors.digest):
            raise BadData("it says that another survivor set was answered than survivors.json has")
        if survivors and n in survivors.digests and ledger.masked != survivors.digests[n]:
            raise BadData("survivors.json names an X that it does not say was sent")
        told = [word for word in ("shared", "masked", "answered") if getattr(ledger, word)]
        return ", ".join(told) or "nothing spent"

    def fit(self, n: int, stored: StoredSecret | None) -> str:
        """Without masks and places, X is what an honest user could have had as input."""
        p, x = self.p, self.found.masked[n]
        if stored is None:
            raise InputMissing("no sound secret of its user is at hand")
        if x.sharing != stored.sharing:
            raise BadData("it belongs to another sharing than the secret")
        index, value = unmasked(p, stored.secret, x.masked)
        beyond = int(np.count_nonzero(np.abs(value) > p.largest))
        if beyond:
            raise BadData(f"{beyond} of {value.size} values are out of range once the masks are taken off")
        if np.unique(index).size < index.size:
            raise BadData("a coordinate appears twice once the places are known")
        if np.any(value[index >= p.length]):
            raise BadData("a value lies beyond the gradient's end")
        self.inputs[n] = index, value
        return f"{index.size} distinct coordinates, all values within the bound"

    def shares(self, n: int, stored: StoredSecret | None) -> None:
        """All shares of one sender: each by itself, and together."""
        x = self.found.masked.get(n)
        sharing = stored.sharing if stored else x.sharing if x else None
        with ExitStack() as files:
            shares: dict[int, ShareFile] = {}
            for m in self.space.users():
                share = self._opened(files, m, n, sharing) if at_hand(self.space.share_path(m, n)) else None
                if share:
                    shares[m] = share
                    sharing = str(share.artifact.attributes["sharing"])
            self.sound |= {(m, n) for m in shares}
            selectors = construction(self.p).selectors(self.p, stored.secret) if stored else None
            self._interpolate(n, shares, selectors)

    def _interpolate(self, n: int, shares: dict[int, ShareFile], expected: Selectors | None) -> None:
        """f and h of one sender determine, row by row, one selector and the same times a mask."""
        point = "shares interpolate to selectors"
        subject = self.space.share_path(0, n)
        subject = subject.parent.with_name("user-*") / subject.name
        try:
            self._check_rows(shares, expected)
        except _Wrong as wrong:
            for place in [self.space.share_path(m, n) for m in wrong.users] or [subject]:
                self.found.add(point, place, FAIL, wrong.message)
        except Exception as error:
            self.found.blame(point, subject, error)
        else:
            known = "of the secret at hand" if expected else "of a secret not at hand"
            self.found.add(point, subject, "pass", f"{self.p.rows} selectors {known}, {len(shares)} shares")

    def _check_rows(self, shares: dict[int, ShareFile], expected: Selectors | None) -> None:
        p, users = self.p, sorted(shares)
        if len(users) < p.quorum:
            raise InputMissing(f"{len(users)} sound shares are at hand, and it takes {p.quorum}")
        seen = np.zeros(p.length, dtype=bool)
        for first in range(0, p.rows, p.block_rows):
            rows = np.arange(first, min(first + p.block_rows, p.rows))
            f, h = (self._block(shares, name, rows) for name in "fh")
            try:
                selectors = self._selectors(users, f, h, rows, expected)
                if not p.buckets:
                    coordinate = selectors.slot * p.width + selectors.place
                    if np.any(coordinate >= p.length) or np.any(seen[coordinate]):
                        raise BadData("its selectors are not those of a permutation")
                    seen[coordinate] = True
            except BadData as error:
                spare = enumerate(users) if len(users) > p.quorum else ()
                blamed = [m for i, m in spare if self._good_without(i, users, f, h, rows, expected)]
                where = f"rows from {first} on, users {', '.join(map(str, users))}: {error.message}"
                raise _Wrong(where, blamed if len(blamed) == 1 else []) from error

    def _block(self, shares: dict[int, ShareFile], name: str, rows: Coordinates) -> Symbols:
        """The same rows of all shares, (users, rows * width); every row has been checked before."""
        parts = [shares[m].artifact.read_rows(name, rows[0], rows[-1] + 1) for m in sorted(shares)]
        return np.stack(parts).reshape(len(parts), -1)

    def _good_without(self, i: int, users: list[int], f: Symbols, h: Symbols, *rest: Any) -> bool:
        """Whether leaving out one receiver's share leaves nothing wrong."""
        try:
            left = [m for m in users if m != users[i]]
            self._selectors(left, np.delete(f, i, axis=0), np.delete(h, i, axis=0), *rest)
        except BadData:
            return False
        return True

    def _selectors(
        self, users: list[int], f: Symbols, h: Symbols, rows: Coordinates, expected: Selectors | None
    ) -> Selectors:
        """The selectors and masks behind the shares of `users`, f and h (users, rows * width) each."""
        from ..algebra.kernels import matmul

        p, points = self.p, self.space.session.points
        decoding, foretell = _matrices(p, tuple(points.alpha[m - 1] for m in users), points.beta)
        blocks = []
        for shares in (f, h):
            if not np.array_equal(matmul(foretell, shares[: p.quorum], p.field), shares[p.quorum :]):
                raise BadData("the shares do not lie on one polynomial")
            decoded = matmul(decoding, shares[: p.quorum], p.field)
            blocks.append(decoded.reshape(p.blocks, rows.size, p.width).transpose(1, 0, 2))
        row, slot, place = np.nonzero(blocks[0])
        if not np.array_equal(row, np.arange(rows.size)) or np.any(blocks[0][row, slot, place] != 1):
            raise BadData("f does not hold exactly one 1 in every row")
        mask = blocks[1][row, slot, place]
        if np.count_nonzero(mask) != np.count_nonzero(blocks[1]):
            raise BadData("h is not the selector times a mask")
        if p.buckets and np.any(slot != rows // p.picks % p.blocks):
            raise BadData("a selector is not in the slot of its bucket")
        found = Selectors(slot, place, mask)
        if expected and not all(np.array_equal(a, b[rows]) for a, b in zip(found, expected, strict=True)):
            raise BadData("the selectors or masks are not those of the sender's secret")
        return found

    def _opened(self, files: ExitStack, m: int, n: int, sharing: str | None) -> ShareFile | None:
        """A share with every row checked, left open in `files`."""
        found, path, kept = self.found, self.space.share_path(m, n), []
        expected = self.space.session.header(m, sender=n) | ({"sharing": sharing} if sharing else {})
        if not self.space.session.recipients:

            def read(artifact: Artifact) -> None:
                share = ShareFile(self.p, artifact)
                share.check_all()
                kept.append(share)

            found.examine(path, "share", expected, read, files)
            return kept[0] if kept else None

        def unseal() -> None:
            kept.append(files.enter_context(self._share(m, n, expected)))

        if not found.check("sealed shares open, and are signed", path, unseal):
            return None
        return kept[0] if found.check("ranges", path, lambda: kept[0].check_all()) else None

    def _share(self, m: int, n: int, expected: Attributes) -> AbstractContextManager[ShareFile]:
        path, recipients = self.space.share_path(m, n), self.space.session.recipients
        if not recipients:
            return share_rows(self.p, path, expected)
        if m not in self.openers:
            raise InputMissing(f"it is sealed, and no identity of user {m} was given")
        # the round may not be the auditor's to write to
        return sealed_share_rows(
            self.p, path, expected, recipients[n - 1], self.openers[m], Path(gettempdir())
        )

    def recomputed(self, n: int) -> str:
        """Y_n once more, from the frozen X and the shares that user n holds."""
        found, p = self.found, self.p
        assert found.survivors is not None
        users = sorted(found.survivors.digests)
        if len(found.frozen) < len(users):
            raise InputMissing("not every X that was frozen is at hand")
        held = [m for m in users if (n, m) in self.sound]
        if len(held) < len(users):
            raise InputMissing(
                f"{len(held)} sound shares for its user are at hand, and it takes {len(users)}"
            )
        with ExitStack() as files:
            shares = {}
            for m in users:
                expected = self.space.session.header(n, sender=m, sharing=found.frozen[m].sharing)
                shares[m] = files.enter_context(self._share(n, m, expected))
            y = files.enter_context(answer_rows(self.space, n, found.survivors))
            for start, answer in answer_blocks(p, {m: found.frozen[m].masked for m in users}, shares):
                if not np.array_equal(answer, y.read(start, start + len(answer))):
                    raise BadData("it is not what the X and the shares of its user give")
        return f"from the shares of {len(users)} survivors"

    def summed(self) -> str:
        """The aggregate is the plain sum of what the survivors masked."""
        found = self.found
        users = sorted(found.survivors.digests) if found.survivors else []
        if not users or not found.aggregate:
            raise InputMissing("no sound aggregate or survivors.json is at hand")
        if not all(n in self.inputs and n in found.frozen for n in users):
            raise InputMissing("not every survivor's secret and X are at hand")
        index, value = (np.concatenate([self.inputs[n][i] for n in users]) for i in range(2))
        coordinate, inverse = np.unique(index, return_inverse=True)
        total = np.zeros(coordinate.size, dtype=np.int64)
        np.add.at(total, inverse, value)
        stored = found.aggregate
        if not (
            np.array_equal(stored["index"], coordinate[total != 0])
            and np.array_equal(to_signed(stored["value"], self.p.field), total[total != 0])
        ):
            raise BadData("it is not the sum of what the survivors masked")
        return f"the plain sum of {len(users)} inputs"


class _Wrong(BadData):
    """Shares that do not fit, and the receivers whose files are to blame, if that can be told."""

    def __init__(self, message: str, users: list[int]) -> None:
        super().__init__(message)
        self.users = users


@lru_cache(maxsize=64)
def _matrices(p: Parameters, alpha: tuple[int, ...], beta: tuple[int, ...]) -> tuple[Integers, Integers]:
    """From the first D+T shares to the blocks, and to the other shares."""
    from ..algebra.lagrange import decoding_matrix, lagrange_matrix

    first, others = alpha[: p.quorum], alpha[p.quorum :]
    return decoding_matrix(first, beta, p.blocks, p.field), lagrange_matrix(first, others, p.field)


def unmasked(p: Parameters, secret: Secret, x: Masked) -> tuple[Coordinates, Coordinates]:
    """The coordinates and signed values behind X."""
    if p.buckets:
        bucket = np.arange(p.rows) // p.picks
        index = (secret.place.astype(np.int64) + x.index) % p.width * p.buckets + bucket
        mask = secret.mask
    else:
        index = np.argsort(secret.place)[x.index]
        mask = secret.mask[index]
    negative = ((p.field - mask.astype(np.int64)) % p.field).astype(np.uint32)
    return index, to_signed(add(x.value, negative, p.field), p.field)
