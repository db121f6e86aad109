"""The part of `audit` that checks secrets, ledgers and shares, where they are available.

Shares are read a block of rows at a time. No finding contains a secret value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir

import numpy as np

from ..algebra.field import Integers, Symbols, to_signed
from ..algebra.randomness import source_of
from ..errors import BadData, InputMissing, counted, named_users
from ..gradients.quantise import beyond_clip
from ..protocol.constructions import construction
from ..protocol.deal import drawn_key
from ..protocol.messages import Secret, Sparse
from ..rounds import series
from ..storage import chain as chain_file
from ..storage import residual as residual_file
from ..storage import secret as secret_file
from ..storage import share
from ..storage.answer import opened_answer
from ..storage.artifacts import Attributes
from ..storage.chain import Chain
from ..storage.keys import Identity
from ..storage.ledger import Ledger
from ..storage.secret import StoredSecret
from ..storage.share import HeldKeys, OpenShare, SharesOfUser
from . import points
from .evidence import Evidence

_Tables = dict[int, tuple[Symbols, ...]]  # rows of a share by its holder, of every dataset


def audit_private(
    evidence: Evidence, openers: dict[int, Identity], progress: Callable[[float], None]
) -> None:
    """Check the secret, ledger and shares of one user at a time, then the answers."""
    private = _Private(evidence, openers)
    space = evidence.space
    steps = 2 * evidence.p.users
    for n in space.users():
        stored = private.checked_secret(n)
        private.check_residual(n)
        private.ledger(n, stored)
        if n in evidence.masked:
            with evidence.check(points.FIT, space.masked_path(n)) as check:
                check.why = private.fit(n, stored)
        private.shares(n, stored)
        progress(n / steps)
    for n in space.users():
        if n in evidence.answers:
            with evidence.check(points.ANSWERED, space.answer_path(n)) as check:
                check.why = private.recomputed(n)
        progress(0.5 + n / steps)
    with evidence.check(points.SUMMED, space.aggregate_path) as check:
        check.why = private.summed()


class _Private:
    """The checks, and the sound shares and unmasked inputs."""

    def __init__(self, evidence: Evidence, openers: dict[int, Identity]) -> None:
        self.evidence = evidence
        self.space = evidence.space
        self.p = evidence.p
        self.construction = construction(evidence.p)
        scratch = Path(gettempdir())  # the round may not be the auditor's to write to
        self.holders = {
            m: SharesOfUser(self.space, m, identity=openers.get(m), scratch=scratch)
            for m in self.space.users()
        }
        self.chains = {m: chain for m in self.space.users() if (chain := self._chain(m))}
        self.sound: set[tuple[int, int]] = set()
        self.inputs: dict[int, Sparse] = {}

    def checked_secret(self, n: int) -> StoredSecret | None:
        """The secret of a user, if it is available and sound."""
        space = self.space
        stored = list[StoredSecret]()  # one, or none
        self.evidence.examine(
            space.secret_path(n),
            secret_file.KIND,
            expected=space.session.header(n),
            read=lambda _: stored.append(secret_file.read(space, n)),
        )
        return stored[0] if stored else None

    def _chain(self, m: int) -> Chain | None:
        """Where a user is in the series, if that is available and is this round."""
        session = self.space.session
        with suppress(InputMissing):
            path = series.chain_path(self.space, m)
            chains = list[Chain]()  # one, or none

            def read(_: object) -> str:
                chain = chain_file.read(path, session, m)
                if chain.session != session.id:
                    return f"its user has gone on to generation {chain.generation}"
                chains.append(chain)
                return f"it holds keys of {counted(len(chain.lists), 'user')}"

            expected: Attributes = {"user": m, "series": session.series_root}
            self.evidence.examine(path, chain_file.KIND, expected=expected, read=read)
            return chains[0] if chains else None
        return None

    def _secret_of(self, n: int, stored: StoredSecret) -> Secret | None:
        """Places and masks; None if the keys from which they follow are not available."""
        session = self.space.session
        own: tuple[bytes, ...] = ()
        if session.family is not None and session.series is None:
            deal = session.deal(n, stored.sharing)
            source = source_of(stored.randomness, stored.key)
            own = tuple(drawn_key(deal, source, block) for block in session.family)
        elif session.family is not None:
            if n not in self.chains:
                return None
            own = self.chains[n].own
        return stored.secret(session, n, own)

    def check_residual(self, n: int) -> None:
        """Check what the user did not send in this round, if it is there."""
        session = self.space.session
        shapes = residual_file.shapes(session.layout.length)
        self.evidence.examine(
            self.space.residual_path(n),
            residual_file.KIND,
            expected=session.header(n),
            read=lambda artifact: artifact.expect_shapes(shapes),
        )

    def ledger(self, n: int, stored: StoredSecret | None) -> None:
        """Check that the ledger and the files agree."""
        path = self.space.ledger_path(n)
        evidence = self.evidence
        if not evidence.available(path):
            evidence.add_not_checkable(points.LEDGERS, path, "it is not available")
            return
        with evidence.check(points.SCHEMA, path) as schema:
            ledger = Ledger.read(path, self.space.session.id, n)
        if schema.passed:
            with evidence.check(points.LEDGERS, path) as check:
                check.why = self._agreement(ledger, stored)

    def _agreement(self, ledger: Ledger, stored: StoredSecret | None) -> str:
        """What the ledger records, if no file contradicts it."""
        n = ledger.user
        evidence = self.evidence
        u1 = evidence.survivors
        x = evidence.masked.get(n)
        if ledger.forgotten and evidence.available(self.space.secret_path(n)):
            raise BadData("it says that the secret was erased, and the secret is there")
        if (stored and ledger.shared not in (None, stored.sharing)) or (
            x and ledger.shared != x.sharing
        ):
            raise BadData("it names another sharing than the secret or the X")
        digests = {
            "masked": x and x.digest,
            "frozen": u1.digest if u1 and u1.freezer == n else None,
            "confirmed": evidence.confirmed.get(n),
            "answered": evidence.answered.get(n),
        }
        for word, digest in digests.items():
            if digest and getattr(ledger, word) != digest:
                raise BadData(f"the file that is there is not what it says was {word}")
        if x and frozenset(ledger.holds or ()) != x.holds:
            raise BadData("the X that is there claims other shares than it says the user held")
        if u1:
            ledger.check_survivors(u1.digest, "confirmed", "answered")
        if u1 and n in u1.rows and ledger.masked != u1.rows[n].sha256:
            raise BadData("survivors.json names an X that it does not say was sent")
        words = ("shared", *digests, "forgotten")
        return ", ".join(word for word in words if getattr(ledger, word)) or "nothing spent"

    def fit(self, n: int, stored: StoredSecret | None) -> str:
        """Check that X, once unmasked, is a possible input of an honest user."""
        x = self.evidence.masked[n]
        if stored is None:
            raise InputMissing("no sound secret of its user is available")
        if x.sharing != stored.sharing:
            raise BadData("it belongs to another sharing than the secret")
        secret = self._secret_of(n, stored)
        if secret is None:
            raise InputMissing("the keys from which its secret follows are not available")
        sparse = self.construction.unmask(secret, x.masked)
        count = sparse.value.size
        fixed = self.space.session.fixed_point
        beyond = beyond_clip(fixed, sparse.index, sparse.value, weights=[x.weight])
        if beyond:
            are = "is" if beyond == 1 else "are"
            raise BadData(
                f"{beyond} of {counted(count, 'value')} {are} beyond the clip once the masks are "
                "taken off"
            )
        if np.unique(sparse.index).size < sparse.index.size:
            raise BadData("a coordinate appears twice once the places are known")
        if np.any(sparse.index >= self.p.length):
            raise BadData("a place is no coordinate of the gradient")
        self.inputs[n] = sparse
        return f"{counted(count, 'distinct coordinate')}, all values within the clip"

    def shares(self, n: int, stored: StoredSecret | None) -> None:
        """Check each share of one sender, and whether they fit together."""
        x = self.evidence.masked.get(n)
        sharing = stored.sharing if stored else x.sharing if x else None
        with ExitStack() as files:
            shares: dict[int, OpenShare] = {}
            for m in self.space.users():
                if opened := self._opened(files, m, n, sharing=sharing):
                    shares[m] = opened
                    sharing = opened.sharing
            self.sound |= {(m, n) for m in shares}
            self._compare_keys(n, shares)
            self._interpolate(n, shares, self._secret_of(n, stored) if stored else None)

    def _compare_keys(self, n: int, shares: dict[int, OpenShare]) -> None:
        """Check the keys of one sender with its commitments."""
        for m, opened in shares.items():
            if isinstance(opened, HeldKeys):
                with self.evidence.check(points.KEYS, self._path(m, n)) as check:
                    check.why = self._fit_of_keys(m, n, opened)

    def _fit_of_keys(self, m: int, n: int, opened: HeldKeys) -> str:
        """Refuse keys that are not those to which their dealer is committed.

        In a later round of a series their holder compared them, with a list that X must name.
        """
        evidence = self.evidence
        if self.space.session.series is not None:
            x = evidence.masked.get(n)
            if x is not None and x.dealt != self.chains[m].lists[n]:
                raise BadData(f"they were compared with another list than the X of user {n} names")
            return f"{counted(len(opened.keys), 'key')}, as its user says"
        if n not in evidence.dealt:
            raise InputMissing("no sound list of its sender is available")
        evidence.dealt[n].check(opened.keys)
        return counted(len(opened.keys), "key")

    @property
    def _is_carried(self) -> bool:
        """Whether what users hold is in their chains, and not in files of this round."""
        return self.space.session.keys_go_on

    def _path(self, m: int, n: int) -> Path:
        """Where user m has what it holds of user n."""
        if self._is_carried:
            return series.chain_path(self.space, m)
        return self.space.share_path(m, n)

    def _interpolate(self, n: int, shares: dict[int, OpenShare], known: Secret | None) -> None:
        """Check row by row that the shares of one sender determine what an honest user shares."""
        c = self.construction
        one = self.space.share_path(0, n)
        of_all_users = one.parent.with_name("user-*") / one.name
        with self.evidence.check(points.SHARES_FIT, of_all_users) as check:
            if len(shares) < self.p.survivors:
                raise InputMissing(
                    f"{counted(len(shares), 'sound share is', 'sound shares are')} available, and "
                    f"{self.p.survivors} are needed"
                )
            places = np.empty(c.place_count, dtype=np.int64)
            for first in range(0, c.rows, c.chunk_rows):
                rows = np.arange(first, min(first + c.chunk_rows, c.rows))
                tables = self._tables(shares, rows)
                try:
                    determined = self._places(tables, known, first)
                except BadData as error:
                    blamed = self._blamed(tables, known, first)
                    if len(blamed) == 1:
                        check.subjects = [self.space.share_path(blamed[0], n)]
                    raise BadData(
                        f"rows from {first} on, {named_users(sorted(shares))}: {error}"
                    ) from error
                if places.size:
                    places[rows] = determined
            if places.size:
                # sigma_n is a permutation if pi_n is
                c.check_secret(Secret(places.astype(np.uint32), np.ones(c.rows, dtype=np.uint32)))
            of = "of the available secret" if known else "of some secret"
            check.why = f"{counted(c.rows, 'row')} {of}, {counted(len(shares), 'share')}"

    def _tables(self, shares: dict[int, OpenShare], rows: Integers) -> _Tables:
        """The same rows of all shares."""
        return {m: shares[m].read(rows) for m in sorted(shares)}

    def _places(self, tables: _Tables, known: Secret | None, first: int) -> Integers:
        """The places that these users' shares determine in rows first, first+1, ..."""
        names = self.construction.share_names
        # (users, rows, width) each
        stacked = (np.stack(parts) for parts in zip(*tables.values(), strict=True))
        return self.construction.shared_places(
            points=self.space.session.points,
            users=list(tables),
            first=first,
            shares=dict(zip(names, stacked, strict=True)),
            secret=known,
        )

    def _blamed(self, tables: _Tables, known: Secret | None, first: int) -> list[int]:
        """The users without whose share the others fit together."""
        blamed = []
        for m in tables:
            others = {user: table for user, table in tables.items() if user != m}
            with suppress(BadData):
                self._places(others, known, first)
                blamed.append(m)
        return blamed

    def _opened(self, files: ExitStack, m: int, n: int, *, sharing: str | None) -> OpenShare | None:
        """A share with every row checked, left open in `files`; None if it is not available or not
        sound."""
        session = self.space.session
        sound = list[OpenShare]()  # one, or none

        def read(_: object = None) -> None:
            opened = files.enter_context(self._share(m, n, sharing))
            opened.check_all()
            sound.append(opened)

        if self._is_carried:
            if m in self.chains and n in self.chains[m].lists:
                read()
            return sound[0] if sound else None
        path = self._path(m, n)
        if session.recipients is None:
            expected = share.share_header(session, m, n, sharing=sharing)
            self.evidence.examine(path, share.KIND, expected=expected, read=read)
        elif self.evidence.available(path):
            with self.evidence.check(points.SEALED, path):
                read()
        return sound[0] if sound else None

    @contextmanager
    def _share(self, m: int, n: int, sharing: str | None) -> Iterator[OpenShare]:
        """What user m holds of user n."""
        session = self.space.session
        if not self._is_carried:
            with self.holders[m].opened(n, sharing) as opened:
                yield opened
            return
        deal = session.deal(n, sharing or "")
        yield HeldKeys(session, m, deal=deal, keys=self.chains[m].keys[n])

    def recomputed(self, n: int) -> str:
        """Recompute Y_n from the frozen X and the shares that user n holds."""
        evidence = self.evidence
        assert evidence.survivors is not None
        users = evidence.survivors.users
        needs_inputs = self.construction.answer_needs_inputs
        if needs_inputs and len(evidence.frozen) < len(users):
            raise InputMissing("not every frozen X is available")
        senders = [m for m in users if (n, m) in self.sound]
        if len(senders) < len(users):
            one = "sound share for its user is"
            several = "sound shares for its user are"
            raise InputMissing(
                f"{counted(len(senders), one, several)} available, and {len(users)} are needed"
            )
        shape = evidence.answers[n]
        frozen = evidence.frozen
        with ExitStack() as files:
            shares = {
                m: files.enter_context(self._share(n, m, evidence.survivors.rows[m].sharing)).read
                for m in users
            }
            y = files.enter_context(opened_answer(self.space, n, evidence.survivors))
            x = {m: frozen[m].masked for m in users} if needs_inputs else {}
            chunks = self.construction.answer_chunks(masked=x, shares=shares, shape=shape)
            for start, part in chunks:
                if not np.array_equal(part, y.read(start, np.empty_like(part))):
                    raise BadData("it is not what the X and the shares of its user give")
        return f"from the shares of {len(users)} survivors"

    def summed(self) -> str:
        """Check that the aggregate is the plain sum of what the survivors masked."""
        evidence = self.evidence
        if evidence.survivors is None or evidence.aggregate is None:
            raise InputMissing("no sound aggregate or survivors.json is available")
        users = evidence.survivors.users
        if not all(n in self.inputs and n in evidence.frozen for n in users):
            raise InputMissing("not every survivor's secret and X are available")
        inputs = [self.inputs[n] for n in users]
        coordinate, inverse = np.unique(
            np.concatenate([x.index for x in inputs]), return_inverse=True
        )
        total = np.zeros(coordinate.size, dtype=np.int64)
        np.add.at(
            total, inverse, to_signed(np.concatenate([x.value for x in inputs]), self.p.field)
        )
        stored = evidence.aggregate.total
        # what is sent whole is listed where it is zero too
        listed = (total != 0) | (coordinate >= self.p.length - self.p.whole)
        index = coordinate[listed]
        value = total[listed]
        if not (
            np.array_equal(stored.index, index)
            and np.array_equal(to_signed(stored.value, self.p.field), value)
        ):
            raise BadData("it is not the sum of what the survivors masked")
        return f"the plain sum of {len(users)} inputs"
