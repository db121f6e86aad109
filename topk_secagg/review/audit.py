"""`audit`: check from the available files whether a round was run properly.

This module needs only public files: the session, every X and every Y. audit_sum.py decodes them,
and audit_shares.py checks secrets and shares where they are available.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from ..algebra.bases import Basis, digest
from ..errors import BadData, InputMissing, SecAggError, counted, no_coalition
from ..progress import Progress
from ..protocol.constructions import construction
from ..protocol.family import check_family
from ..protocol.messages import Points
from ..protocol.parameters import Parameters
from ..rounds.access import (
    PLAIN,
    Access,
    check_keys,
    check_series,
    check_session,
    names_series,
)
from ..rounds.bases import following
from ..rounds.following import first
from ..rounds.freeze import answerable, with_agreed_lists
from ..storage import answer, basis, dealt, documents, masked, survivors
from ..storage.artifacts import Artifact
from ..storage.atomic import allow_open_files
from ..storage.keys import Identity, read_identity
from ..storage.session import Session
from ..storage.survivors import Survivors
from ..storage.workspace import Workspace
from . import points
from .audit_shares import audit_private
from .audit_sum import audit_sum
from .evidence import Evidence
from .folders import audit_folders
from .log import Attendance, absent_again
from .uniformity import FEWEST_BINS, LEAST_EXPECTED, laws, uniformity

_Part = TypeVar("_Part")


def collect_evidence(
    space: Workspace,
    identities: Sequence[Path] = (),
    progress: Progress = lambda _: None,
    *,
    access: Access = PLAIN,
) -> Evidence:
    """Check a round point by point: all findings, and the sound data behind them.

    Damaged files become findings; only a missing session.json raises, and one that is not the
    pinned one. `identities` are files, to open the sealed shares for these users.
    """
    check_session(space, access)
    evidence = Evidence(space, session_pinned=access.session is not None)
    _session(evidence)
    if evidence.session is None:
        evidence.add_not_checkable(points.EVERYTHING_ELSE, ".", "session.json is not sound")
        return evidence
    check_series(space, access)
    check_keys(space, access)
    evidence.series_pinned = names_series(access, evidence.session)
    evidence.keys_pinned = access.recipients is not None
    openers = _openers(evidence, identities)
    allow_open_files(2 * evidence.p.users)
    audit_folders(evidence)
    _basis(evidence)
    _dealt(evidence)
    _survivors(evidence)
    _masked(evidence)
    _uniform(evidence)
    _answers(evidence)
    _confirmations(evidence)
    audit_sum(evidence)
    audit_private(evidence, openers, progress)
    evidence.warnings += absent_again(_series_beside(space))
    return evidence


def _openers(evidence: Evidence, identities: Sequence[Path]) -> dict[int, Identity]:
    """The identities by user."""
    recipients = evidence.space.session.recipients or ()
    openers = {}
    for path in identities if recipients else ():
        identity = read_identity(path)
        users = [r.user for r in recipients if identity.public(r.user) == r]
        if not users:
            raise BadData(
                f"{path} does not hold the keys of any user of this round", "give another identity"
            )
        openers[users[0]] = identity
    return openers


def _session(evidence: Evidence) -> None:
    """Check session.json; where possible, its parameters and points get separate verdicts."""
    path = evidence.space.session_path
    evidence.check_not_linked(path)
    body: Any = None
    with suppress(BadData, ValueError, RecursionError):  # `parse_session` will say what is wrong
        body = json.loads(evidence.space.session_content)
    if isinstance(body, dict):
        with evidence.check(points.PARAMETERS, path) as check:
            check.why = _part_of_session(body, "parameters", Parameters).summary()
        with evidence.check(points.POINTS, path) as check:
            parsed = _part_of_session(body, "points", Points)
            numbers = [*parsed.alpha, *parsed.beta]
            check.why = f"{len(numbers)} points"
            if len(set(numbers)) < len(numbers):
                raise BadData(f"{len(set(numbers))} points where {len(numbers)} should be")
    with evidence.check(points.SCHEMA, path) as check:
        evidence.session = evidence.space.session
        check.why = f"session {evidence.session.fingerprint}"
    if evidence.session and evidence.session.family is not None:
        with evidence.check(points.FAMILY, path) as check:
            check.why = _family(evidence.session)


def _family(session: Session) -> str:
    """Refuse a family of blocks with which T users would learn more than the sum."""
    family = session.family or ()
    check_family(session.parameters, session.points, family)
    T = session.parameters.colluders
    return f"{counted(len(family), 'key')} of each user: {no_coalition(T)} can hold too many"


def _basis(evidence: Evidence) -> None:
    """Check basis.h5, and that everybody would have computed it."""
    space = evidence.space
    path = space.basis_path
    if not space.session.reduction.has_basis:
        return
    if not evidence.available(path):
        evidence.add_not_checkable(points.BASIS, path, "it is not available")
        return
    with evidence.check(points.SCHEMA, path) as schema:
        evidence.check_not_linked(path)
        basis.read(space)
    if schema.passed:
        with evidence.check(points.BASIS, path) as check:
            check.why = _recomputed(space)


def _recomputed(space: Workspace) -> str:
    """From where the basis follows, once it has been computed again."""
    s = space.session
    if s.before is None:
        known: list[Basis] | None = first(s.reduction, s.layout, s.nonce).bases
        origin = "drawn from the nonce of this session"
    else:
        before = _beside(space, s.before)
        if before is None:
            raise InputMissing(f"no folder beside this one has session {s.before[:16]}")
        known = following(s, before)
        origin = f"computed again from the sum in {before.root.name}"
    if known is None:
        raise InputMissing("the sum from which it follows is not available")
    if digest(known) != s.basis:
        raise BadData("it is not the one that follows from the last sum")
    return origin


def _beside(space: Workspace, session: str) -> Workspace | None:
    """The round of this session, in a folder beside this one."""
    for other in _rounds_beside(space):
        with suppress(SecAggError, OSError):
            if other.session_id == session:
                return other
    return None


def _rounds_beside(space: Workspace) -> list[Workspace]:
    """The folders beside this one that may have a round, and this one, by their names."""
    paths = space.root.resolve().parent.glob("*/session.json")
    return [Workspace(path.parent) for path in sorted(paths)]


def _series_beside(space: Workspace) -> list[Attendance]:
    """Who took part in this round, and in those before it whose folders lie beside this one."""
    rounds: dict[int, Attendance] = {}
    for other in _rounds_beside(space):
        with suppress(SecAggError, OSError):
            s = other.session
            own = other.root == space.root.resolve()
            is_before = s.generation < space.session.generation
            if own or (is_before and s.series_name == space.session.series_name):
                u1 = survivors.read(other)
                rounds[s.generation] = Attendance(s.series_name, s.parameters.users, u1.users)
    return [rounds[generation] for generation in sorted(rounds)]


def _dealt(evidence: Evidence) -> None:
    """Check every list of commitments."""
    space = evidence.space
    if space.session.family is None or space.session.series is not None:
        return
    for n in space.users():
        path = space.dealt_path(n)
        if not evidence.available(path):
            evidence.add_not_checkable(points.LISTS, path, "it is not available")
            continue
        with evidence.check(points.LISTS, path) as check:
            evidence.check_not_linked(path)
            evidence.dealt[n] = dealt.read(space, n)
            signed = "signed" if space.session.recipients else "not signed, as there are no keys"
            check.why = f"{counted(len(evidence.dealt[n].commitments), 'commitment')}, {signed}"


def _part_of_session(body: dict[str, Any], name: str, kind: type[_Part]) -> _Part:
    """One part of a session.json whose other parts may be damaged."""
    try:
        part: _Part = documents.typed(body.get(name), kind, name)
    except TypeError as error:  # which names what is not of its type
        raise BadData(f"its {error} is not what a session has there") from error
    return part


def _survivors(evidence: Evidence) -> None:
    """Check survivors.json, and that the right user wrote it."""
    path = evidence.space.survivors_path
    with evidence.check(points.SCHEMA, path) as schema:
        evidence.check_not_linked(path)
        survivors.parse(path, documents.read_bytes(path, "the round is not frozen yet"))
    if schema.passed:
        with evidence.check(points.SURVIVORS, path) as check:
            u1 = evidence.survivors = survivors.read(evidence.space)
            signed = "signed" if u1.signature else "not signed, as there are no keys"
            whose = "proposed for all to confirm"
            if u1.freezer is not None:
                whose = f"frozen by user {u1.freezer}, {signed}"
            check.why = f"{len(u1.rows)} survivors, {whose}"


def _masked(evidence: Evidence) -> None:
    """Check every X, whether it is the one that was frozen, and whether enough survivors can
    answer."""
    session = evidence.space.session
    u1 = evidence.survivors

    def read(artifact: Artifact) -> str:
        n = artifact.attributes["user"]
        x = evidence.masked[n] = masked.read(session, artifact.path, n)
        entries = counted(x.masked.value.size, "entry", "entries")
        return f"{entries}; its user held the shares of {counted(len(x.holds), 'user')}"

    for n in evidence.space.users():
        path = evidence.space.masked_path(n)
        evidence.examine(
            path, masked.KIND, expected=session.header(n), read=read, last=points.MASKED_ALLOWED
        )
        if not evidence.available(path) and (u1 is None or n in u1.rows):
            evidence.add_not_checkable(points.MASKED_ALLOWED, path, "it is not available")
        if u1 and n in u1.rows:
            with evidence.check(points.ONE_SET, path) as check:
                check.why = _frozen(evidence, u1, n)
    if u1:
        with evidence.check(points.ENOUGH_HOLDERS, evidence.space.survivors_path) as check:
            check.why = _enough_holders(evidence, u1)


def _frozen(evidence: Evidence, u1: Survivors, n: int) -> str:
    """Refuse an X that is not the one in survivors.json, or has another weight there."""
    if n not in evidence.masked:
        raise InputMissing("survivors.json names it, and no sound file is available")
    x = evidence.masked[n]
    row = u1.rows[n]
    if x.digest != row.sha256:
        raise BadData("it is not the file that was frozen: survivors.json names another digest")
    evidence.frozen[n] = x
    if x.weight != row.weight:
        raise BadData("its weight is not the one in survivors.json")
    if (x.sharing, x.dealt) != (row.sharing, row.dealt):
        raise BadData("survivors.json names another sharing, or another list of keys, than this X")
    if n in evidence.dealt and evidence.dealt[n].digest != x.dealt:
        raise BadData("it names another list of keys than the one that its user published")
    return "as frozen"


def _enough_holders(evidence: Evidence, u1: Survivors) -> str:
    """Refuse survivors of whom too few held the shares of all."""
    need = evidence.p.survivors
    if sorted(evidence.frozen) != u1.users:
        raise InputMissing("not every frozen X is available")
    holds = {n: x.holds for n, x in with_agreed_lists(evidence.frozen).items()}
    if answerable(holds, need) != u1.users:
        raise BadData(
            f"fewer than {need} survivors held the shares of all survivors when they masked"
        )
    return f"at least {need}"


def _uniform(evidence: Evidence) -> None:
    """Check that masked values, and shifts or permuted indices, look uniform: in all X, and in each
    long one."""
    x = {n: file.masked for n, file in sorted(evidence.masked.items())}
    subjects: list[tuple[Path | str, list[int]]] = [("masked", list(x))]
    if construction(evidence.p).entries >= FEWEST_BINS * LEAST_EXPECTED:
        subjects += [(evidence.space.masked_path(n), [n]) for n in x]
    for subject, users in subjects:
        point = points.uniform_in_one if isinstance(subject, Path) else points.uniform
        for law in laws(evidence.p, [x[n] for n in users]):
            with evidence.check(point(law), subject) as check:
                check.why = uniformity(law.parts, law.bound, distinct=law.distinct)


def _answers(evidence: Evidence) -> None:
    """Check every Y, and that all are for one survivors.json."""
    space = evidence.space
    u1 = evidence.survivors

    def read(artifact: Artifact) -> str:
        n = artifact.attributes["user"]
        evidence.answered[n] = artifact.attributes["survivors_sha256"]
        if u1 is None or evidence.answered[n] != u1.digest:
            raise InputMissing(
                "its size follows from the survivors.json that it names, which is not available"
            )
        with answer.opened_answer(space, n, u1) as y:
            if n in u1.rows:
                evidence.answers[n] = y.shape
            return f"{y.payload} bytes"

    for n in space.users():
        expected = space.session.header(n)
        evidence.examine(space.answer_path(n), answer.KIND, expected=expected, read=read)
    for n, survivors_digest in evidence.answered.items():
        with evidence.check(points.ONE_SET, space.answer_path(n)) as check:
            check.why = _answers_survivors(evidence, n, survivors_digest)


def _answers_survivors(evidence: Evidence, n: int, digest: str) -> str:
    """Refuse a Y for another survivors.json, or of a user that is not in it."""
    u1 = evidence.survivors
    if u1 is None:
        if len(set(evidence.answered.values())) > 1:
            raise BadData("the Y name several survivor sets")
        return "all Y name one survivors.json, which is not available or not sound"
    if digest != u1.digest:
        raise BadData("it answers another survivor set, or other X, than survivors.json has")
    if n not in u1.rows:
        raise BadData(f"user {n} is not among the survivors, and had nothing to answer")
    return "for survivors.json"


def _confirmations(evidence: Evidence) -> None:
    """Check every confirmation, and that there are enough for the answers that exist."""
    space = evidence.space
    if not space.session.confirm:
        return
    for n in space.users():
        path = space.confirmation_path(n)
        if evidence.available(path):
            with evidence.check(points.CONFIRMED, path) as check:
                check.why = _confirmed(evidence, n, path)
    if evidence.answered:
        with evidence.check(points.CONFIRMED, "elimination") as check:
            need = space.session.confirmations
            confirmed = list(evidence.confirmed.values())
            for digest in sorted(set(evidence.answered.values())):
                if (there := confirmed.count(digest)) < need:
                    raise InputMissing(
                        f"{counted(there, 'valid confirmation is', 'valid confirmations are')} "
                        f"available, and an answer needs {need}"
                    )
            check.why = f"at least {need} for every answer"


def _confirmed(evidence: Evidence, n: int, path: Path) -> str:
    """Refuse a confirmation that user n did not sign, or that is of another survivors.json."""
    body = survivors.parse_confirmation(path, documents.read_bytes(path, ""))
    digest = str(body["survivors_sha256"])
    if not survivors.confirmed_by(evidence.space, digest, [n]):
        raise BadData(f"user {n} did not sign it in this session: the file is forged")
    evidence.confirmed[n] = digest
    if evidence.survivors and digest != evidence.survivors.digest:
        raise BadData("it confirms another survivors.json")
    return "signed"
