"""`audit`: check from the available files whether a round was run properly.

This module needs only public files; audit_shares.py checks secrets and shares where they are
available.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..algebra.randomness import CipherRandomness, fresh_key
from ..errors import BadData, InputMissing
from ..gradients.quantise import beyond_clip, largest_sum
from ..progress import Progress
from ..protocol.constructions import construction
from ..protocol.decoding import Decoded, decode
from ..protocol.messages import Points
from ..protocol.parameters import Parameters, rate_of_answer, rate_of_masked
from ..steps.access import PLAIN, Access, check_keys, check_session
from ..steps.freeze import answerable
from ..storage import aggregate, answer, documents, masked, survivors
from ..storage.artifacts import Artifact
from ..storage.atomic import allow_open_files
from ..storage.keys import Identity, read_identity
from ..storage.workspace import Workspace
from .audit_shares import audit_private
from .evidence import Evidence, Finding
from .folders import check_folders
from .uniformity import FEWEST_BINS, LEAST_EXPECTED, laws, uniformity

_Part = TypeVar("_Part")
_ONE_SET = "one survivor set, one set of X"
_AGREE = "Y on one polynomial (Reed-Solomon)"
_CONFIRMED = "confirmations of survivors.json"


def audit(
    space: Workspace,
    identities: Sequence[Path] = (),
    progress: Progress = lambda _: None,
    *,
    access: Access = PLAIN,
) -> list[Finding]:
    """Check a round point by point. Damaged files become findings; only a missing session.json
    raises, and one that is not the pinned one.

    Arguments:
    space: the round (`Workspace`).
    identities: identity files, to open the sealed shares for these users.
    progress: called with the share that is done, 0 to 1.
    access: the session and the keys that are expected (`Access`).

    Returns the findings: each has a `verdict` ("pass", "fail" or "not checkable"), and says on what
    and why.
    """
    return gather(space, identities, progress, access=access).findings


def gather(
    space: Workspace,
    identities: Sequence[Path] = (),
    progress: Progress = lambda _: None,
    *,
    access: Access = PLAIN,
) -> Evidence:
    """All findings on a round, and the sound data behind them."""
    check_session(space, access)
    found = Evidence(space, session_pinned=access.session is not None)
    _session(found)
    if found.session is None:
        found.add("everything else", ".", "not checkable", "session.json is not sound")
        return found
    check_keys(space, access)
    found.keys_pinned = access.recipients is not None
    openers = _openers(found, identities)
    allow_open_files(2 * found.p.users)
    check_folders(found)
    _survivors(found)
    _masked(found)
    _uniform(found)
    _answers(found)
    _confirmations(found)
    _aggregate(found)
    _sum(found, _decoded(found))
    _rates(found)
    audit_private(found, openers, progress)
    return found


def _openers(found: Evidence, identities: Sequence[Path]) -> dict[int, Identity]:
    """The identities by user."""
    recipients = found.space.session.recipients or ()
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


def _session(found: Evidence) -> None:
    """Check session.json; where possible, its parameters and points get separate verdicts."""
    path = found.space.session_path
    found.check_not_linked(path)
    body: Any = None
    with suppress(BadData, ValueError, RecursionError):  # `parse_session` will say what is wrong
        body = json.loads(found.space.session_content)
    if isinstance(body, dict):
        with found.check("parameters admissible", path) as check:
            check.why = _part_of_session(body, "parameters", Parameters).summary()
        with found.check("points distinct", path) as check:
            parsed = _part_of_session(body, "points", Points)
            points = [*parsed.alpha, *parsed.beta]
            check.why = f"{len(points)} points"
            if len(set(points)) < len(points):
                raise BadData(f"{len(set(points))} points where {len(points)} should be")
    with found.check("schema", path) as check:
        found.session = found.space.session
        check.why = f"session {found.session.fingerprint}"
    if found.session:
        with found.check("no public seed", path):
            if found.session.insecure:
                raise InputMissing("drawn from a public seed: nothing in it is secret")


def _part_of_session(body: dict[str, Any], name: str, kind: type[_Part]) -> _Part:
    """One part of a session.json whose other parts may be damaged."""
    try:
        part: _Part = documents.typed(body.get(name), kind, name)
    except TypeError as error:  # which names what is not of its type
        raise BadData(f"its {error} is not what a session has there") from error
    return part


def _survivors(found: Evidence) -> None:
    """Check survivors.json, and that the right user wrote it."""
    path = found.space.survivors_path
    with found.check("schema", path) as schema:
        found.check_not_linked(path)
        survivors.parse(path, documents.read_bytes(path, "the round is not frozen yet"))
    if schema.passed:
        with found.check("survivors of this round, from its freezer", path) as check:
            u1 = found.survivors = survivors.read(found.space)
            signed = "signed" if u1.signature else "not signed, as there are no keys"
            check.why = f"{len(u1.digests)} survivors, frozen by user {u1.freezer}, {signed}"


def _masked(found: Evidence) -> None:
    """Check every X, whether it is the one that was frozen, and whether enough survivors can
    answer."""
    session = found.space.session
    u1 = found.survivors
    last = "X of the right size, indices and values allowed"

    def read(artifact: Artifact) -> str:
        n = artifact.attributes["user"]
        x = found.masked[n] = masked.read(session, artifact.path, n)
        return f"{x.masked.index.size} entries; its user held the shares of {len(x.holds)} users"

    for n in found.space.users():
        path = found.space.masked_path(n)
        found.examine(path, masked.KIND, session.header(n), read, last)
        if not found.available(path) and (u1 is None or n in u1.digests):
            found.add(last, path, "not checkable", "it is not available")
        if u1 and n in u1.digests:
            with found.check(_ONE_SET, path) as check:
                if n not in found.masked:
                    raise InputMissing("survivors.json names it, and no sound file is available")
                if found.masked[n].digest != u1.digests[n]:
                    raise BadData(
                        "it is not the file that was frozen: survivors.json names another digest"
                    )
                found.frozen[n] = found.masked[n]
                if found.masked[n].weight != u1.weights[n]:
                    raise BadData("its weight is not the one in survivors.json")
                check.why = "as frozen"
    if u1:
        with found.check("enough survivors hold all shares", found.space.survivors_path) as check:
            need = found.p.survivors
            if sorted(found.frozen) != u1.users:
                raise InputMissing("not every frozen X is available")
            if answerable(found.frozen, need) != u1.users:
                raise BadData(
                    f"fewer than {need} survivors held the shares of all survivors when they masked"
                )
            check.why = f"at least {need}"


def _uniform(found: Evidence) -> None:
    """Check that masked values, and shifts or permuted indices, look uniform: in all X, and in each
    long one."""
    x = {n: file.masked for n, file in sorted(found.masked.items())}
    subjects: list[tuple[Path | str, list[int]]] = [("masked", list(x))]
    if construction(found.p).entries >= FEWEST_BINS * LEAST_EXPECTED:
        subjects += [(found.space.masked_path(n), [n]) for n in x]
    for subject, users in subjects:
        whose = " in one X" if isinstance(subject, Path) else ""
        for law in laws(found.p, [x[n] for n in users]):
            with found.check(f"{law.name} uniform{whose}", subject) as check:
                check.why = uniformity(law.parts, law.bound, distinct=law.distinct)


def _answers(found: Evidence) -> None:
    """Check every Y, and that all are for one survivors.json."""
    space = found.space
    u1 = found.survivors

    def read(artifact: Artifact) -> str:
        n = artifact.attributes["user"]
        found.answered[n] = artifact.attributes["survivors"]
        if u1 is None or found.answered[n] != u1.digest:
            raise InputMissing(
                "its size follows from the survivors.json that it names, which is not available"
            )
        with answer.opened_answer(space, n, u1) as y:
            if n in u1.digests:
                found.answers[n] = y.shape
            return f"{y.payload} bytes, D = {y.shape.blocks}"

    for n in space.users():
        found.examine(space.answer_path(n), answer.KIND, space.session.header(n), read)
    for n, digest in found.answered.items():
        with found.check(_ONE_SET, space.answer_path(n)) as check:
            absent = "all Y name one survivors.json, which is not available or not sound"
            check.why = "for survivors.json" if u1 else absent
            if u1 is None and len(set(found.answered.values())) > 1:
                raise BadData("the Y name several survivor sets")
            if u1 and digest != u1.digest:
                raise BadData(
                    "it answers another survivor set, or other X, than survivors.json has"
                )
            if u1 and n not in u1.digests:
                raise BadData(f"user {n} is not among the survivors, and had nothing to answer")


def _confirmations(found: Evidence) -> None:
    """Check every confirmation, and that there are enough for the answers that exist."""
    space = found.space
    need = found.space.session.confirmations
    for n in space.users() if space.session.confirm else ():
        path = space.confirmation_path(n)
        if found.available(path):
            with found.check(_CONFIRMED, path) as check:
                named = str(
                    survivors.parse_confirmation(path, documents.read_bytes(path, ""))["survivors"]
                )
                if not survivors.confirmed_by(space, named, [n]):
                    raise BadData(f"user {n} did not sign it in this session: the file is forged")
                found.confirmed[n] = named
                if found.survivors and named != found.survivors.digest:
                    raise BadData("it confirms another survivors.json")
                check.why = "signed"
    if space.session.confirm and found.answered:
        with found.check(_CONFIRMED, "elimination") as check:
            confirmed = list(found.confirmed.values())
            for digest in sorted(set(found.answered.values())):
                if (there := confirmed.count(digest)) < need:
                    raise InputMissing(
                        f"{there} valid confirmations are available, and an answer needs {need}"
                    )
            check.why = f"at least {need} for every answer"


def _aggregate(found: Evidence) -> None:
    """Check aggregate.h5, and that it is for survivors.json."""

    def read(artifact: Artifact) -> str:
        total = aggregate.parsed(found.space, artifact)
        u1 = found.survivors
        if u1 and (total.digest != u1.digest or total.survivors != u1.users):
            raise artifact.bad("it is for another survivor set than survivors.json")
        if u1 and total.blocks not in construction(found.p).answer_shapes(len(u1.digests)):
            raise artifact.bad(f"answers of this round do not pack {total.blocks} blocks")
        found.aggregate = total
        return f"{total.total.index.size} coordinates"

    found.examine(found.space.aggregate_path, aggregate.KIND, found.space.session.header(0), read)


def _decoded(found: Evidence) -> dict[int, Decoded]:
    """Decode the answers with each D; name the users whose answers do not agree with the others."""
    space = found.space
    u1 = found.survivors
    sums = dict[int, Decoded]()
    count = len(u1.digests) if u1 else 0
    given = {n: y.blocks for n, y in found.answers.items()}
    enough = construction(found.p).decodable(count, given)
    if u1 is None or not enough:
        kinds = (
            f"more than {y.quorum} with D = {y.blocks}"
            for y in construction(found.p).answer_shapes(count).values()
        )
        needed = " or ".join(kinds) if u1 else "a sound survivors.json"
        why = f"{len(found.answers)} sound answers are available; needed: {needed}"
        found.add(_AGREE, "elimination", "not checkable", why)
        return {}
    for shape, users in enough.items():
        with found.check(_AGREE, "elimination") as check, ExitStack() as files:
            rows = {n: files.enter_context(answer.opened_answer(space, n, u1)).read for n in users}
            result = decode(
                found.p, space.session.points, shape, rows, CipherRandomness(fresh_key())
            )
            sums[shape.blocks] = result
            excluded = result.liars_excluded
            found.liars_excluded = max(excluded, found.liars_excluded or 0)
            if len(users) == shape.quorum:
                raise InputMissing(
                    f"there are only {shape.quorum} answers, which always agree:"
                    " the sum is right if nobody lied"
                )
            if result.corrected:
                check.subjects = [space.answer_path(n) for n in result.corrected]
                raise BadData(
                    "it is not on the polynomial of the other answers; its user may be innocent,"
                    " as a bad share has the same effect"
                )
            check.why = (
                f"{len(users)} answers agree, and {shape.quorum} suffice: this excludes"
                f" {excluded} of at most T = {found.p.colluders} users that lie together"
            )
    return sums


def _sum(found: Evidence, sums: dict[int, Decoded]) -> None:
    """Check that the aggregate is the decoded sum, and no larger than the clip allows."""
    stored = found.aggregate
    path = found.space.aggregate_path
    with found.check("aggregate recomputed", path) as check:
        if stored is None:
            raise InputMissing("no sound aggregate is available")
        if not sums:
            raise InputMissing("the available answers do not decode to a sum")
        index = stored.total.index
        value = stored.total.value
        totals = [result.total for result in sums.values()]
        if not all(
            np.array_equal(index, t.index) and np.array_equal(value, t.value) for t in totals
        ):
            raise BadData("it is not the sum that the answers decode to")
        used = [
            n
            for n, y in found.answers.items()
            if y.blocks == stored.blocks and n in stored.answering
        ]
        known = used if stored.blocks in sums else []
        wrong = sums[stored.blocks].corrected if known else []
        if [n for n in stored.corrected if n in known] != [n for n in wrong if n in known]:
            raise BadData("the users that it says answered wrongly are not those that did")
        if absent := [str(n) for n in stored.corrected if n not in known]:
            raise InputMissing(
                f"it says that users {', '.join(absent)} answered wrongly, whose Y are not "
                "available"
            )
        check.why = f"{index.size} coordinates, the same from {len(found.answers)} answers"
    with found.check("sums within the clip", path) as check:
        totals = [stored.total] if stored else [result.total for result in sums.values()]
        if not totals or found.survivors is None:
            raise InputMissing("no sum is available, or no sound survivors.json")
        largest = largest_sum(found.p.fixed_point, found.survivors.weights.values())
        beyond = max(
            beyond_clip(found.p.fixed_point, t.value, found.survivors.weights.values())
            for t in totals
        )
        if beyond:
            raise BadData(f"{beyond} coordinates are larger than honest users can make them")
        check.why = f"at most {largest / found.p.scale:.6g}"


def _rates(found: Evidence) -> None:
    """Compare the bytes of X and Y with the rates of the theorem."""
    for (what, payload), rate_of in zip(
        found.payloads().items(), (rate_of_masked, rate_of_answer), strict=True
    ):
        with found.check("rates against the theorem", what) as check:
            if not payload:
                raise InputMissing(f"no sound {what} is available")
            rate = rate_of(found.p, payload)
            times = f"{rate.measured / rate.theorem:.3g} times Theorem 1 ({rate.theorem:.6g})"
            check.why = f"{payload} bytes, {rate.name} {rate.measured:.6g}: {times}"
