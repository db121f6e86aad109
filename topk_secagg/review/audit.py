"""`audit`: whether a round, finished or running, was run properly, as far as the available files show.

This half needs public files only; audit_shares.py goes on where secrets and shares are available.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from ..algebra.field import to_signed
from ..algebra.randomness import CipherRandomness, fresh_key
from ..errors import BadData, InputMissing, SecAggError
from ..gradients.quantize import largest_sum
from ..protocol.constructions import construction
from ..protocol.decoding import Decoded, decode
from ..protocol.parameters import Parameters
from ..protocol.rates import measured_r1, measured_r2, theorem_r1, theorem_r2
from ..steps.freeze import answerable
from ..storage import aggregate, answer, documents, masked, survivors
from ..storage.artifacts import Artifact
from ..storage.atomic import allow_open_files
from ..storage.keys import Identity, read_identity
from ..storage.workspace import Workspace
from .audit_folders import audit_folders
from .audit_shares import audit_private
from .evidence import FAIL, NOT_CHECKABLE, Evidence, Finding, available
from .uniformity import FEWEST_BINS, LEAST_EXPECTED, laws, uniformity

_ONE_SET = "one survivor set, one set of X"
_AGREE = "Y on one polynomial (Reed-Solomon)"
_CONFIRMED = "confirmations of survivors.json"
_RATES = "rates against the theorem"


def audit(
    space: Workspace, identities: Sequence[Path] = (), progress: Callable[[float], None] = lambda _: None
) -> list[Finding]:
    """All findings on a round. Damaged files become findings; only a missing session.json raises."""
    found = Evidence(space)
    if not _session(found):
        found.add("everything else", ".", NOT_CHECKABLE, "session.json is not sound")
        return found.findings
    openers = _openers(found, identities)
    allow_open_files(2 * found.p.users)
    audit_folders(found)
    _survivors(found)
    _masked(found)
    _uniform(found)
    _answers(found)
    _confirmations(found)
    _decoding(found)
    found.check(_RATES, "X", _first_rate, found)
    found.check(_RATES, "Y", _second_rate, found)
    audit_private(found, openers, progress)
    return found.findings


def _openers(found: Evidence, identities: Sequence[Path]) -> dict[int, Identity]:
    """Whose keys the identity files hold."""
    recipients = found.space.session.recipients or ()
    openers = {}
    for path in identities if recipients else ():
        identity = read_identity(path)
        users = [r.user for r in recipients if identity.public(r.user) == r]
        if not users:
            raise BadData(f"{path} does not hold the keys of any user of this round", "give another identity")
        openers[users[0]] = identity
    return openers


def _session(found: Evidence) -> bool:
    """Whether session.json is sound; its parameters and points are judged by themselves where they can be."""
    path = found.space.session_path
    body: Any = None
    try:
        body = json.loads(documents.read_bytes(path, "check the path, or start a round"))
    except InputMissing:
        raise
    except (SecAggError, ValueError, RecursionError):
        pass  # `read_session` will say what is wrong

    def points() -> str:
        chosen = [*body["points"]["alpha"], *body["points"]["beta"]]
        if len(set(chosen)) < len(chosen):
            raise BadData(f"{len(set(chosen))} points where {len(chosen)} should be")
        return f"{len(chosen)} points"

    if isinstance(body, dict):
        found.check("parameters admissible", path, lambda: Parameters(**dict(body["parameters"])).summary())
        found.check("points distinct", path, points)
    if not found.check("schema", path, lambda: f"session {found.space.session.fingerprint}"):
        return False
    session = found.space.session
    seeded = (NOT_CHECKABLE, "drawn from a public seed: nothing in it is secret")
    found.add("no public seed", path, *(seeded if session.insecure else ("pass", "")))
    return True


def _survivors(found: Evidence) -> None:
    """survivors.json by itself, and that the right user wrote it."""
    space = found.space
    path = space.survivors_path

    def read() -> str:
        u1 = found.survivors = survivors.read(space)
        signed = "signed" if u1.signature else "not signed, as there are no keys"
        return f"{len(u1.digests)} survivors, frozen by user {u1.freezer}, {signed}"

    def parse() -> None:
        survivors.parse(path, documents.read_bytes(path, "the round is not frozen yet"))

    if found.check("schema", path, parse):
        found.check("survivors of this round, from its freezer", path, read)


def _masked(found: Evidence) -> None:
    """Every X by itself, whether it is the one that was frozen, and whether enough survivors can answer."""
    session, last = found.space.session, "X of the right size, indices and values allowed"

    def read(artifact: Artifact) -> str:
        n = artifact.attributes["user"]
        x = found.masked[n] = masked.read(session, artifact.path, n)
        return f"{x.masked.index.size} entries; its user held the shares of {len(x.holds)} users"

    for n in found.space.users():
        path = found.space.masked_path(n)
        frozen = found.survivors is not None and n in found.survivors.digests
        if available(path):
            found.examine(path, masked.KIND, session.header(n), read, last)
        elif frozen or found.survivors is None:
            found.add(last, path, NOT_CHECKABLE, "it is not available")
        if frozen:
            found.check(_ONE_SET, path, _as_frozen, found, n)
    if found.survivors:
        found.check("enough survivors hold all shares", found.space.survivors_path, _holding, found)


def _as_frozen(found: Evidence, n: int) -> str:
    """X_n is the one in survivors.json, with the weight that is named there."""
    assert found.survivors is not None
    if n not in found.masked:
        raise InputMissing("survivors.json names it, and no sound file is available")
    if found.masked[n].digest != found.survivors.digests[n]:
        raise BadData("it is not the file that was frozen: survivors.json names another digest")
    found.frozen[n] = found.masked[n]
    if found.masked[n].weight != found.survivors.weights[n]:
        raise BadData("its weight is not the one in survivors.json")
    return "as frozen"


def _holding(found: Evidence) -> str:
    """At least U survivors said in their X that they held the shares of all survivors."""
    assert found.survivors is not None
    users, need = found.survivors.users, found.p.survivors
    if sorted(found.frozen) != users:
        raise InputMissing("not every frozen X is available")
    if answerable(found.frozen, need) != users:
        raise BadData(f"fewer than {need} survivors held the shares of all survivors when they masked")
    return f"at least {need}"


def _uniform(found: Evidence) -> None:
    """Masked values, and shifts or permuted indices: of all X, and of each that is long enough."""
    x = {n: file.masked for n, file in sorted(found.masked.items())}
    subjects: list[tuple[Path | str, list[int]]] = [("masked", list(x))]
    if construction(found.p).entries >= FEWEST_BINS * LEAST_EXPECTED:
        subjects += [(found.space.masked_path(n), [n]) for n in x]
    for subject, users in subjects:
        whose = " in one X" if isinstance(subject, Path) else ""
        for law in laws(found.p, [x[n] for n in users]):
            found.check(f"{law.name} uniform{whose}", subject, uniformity, law.parts, law.bound, distinct=law.distinct)


def _answers(found: Evidence) -> None:
    """Every Y by itself, and that all are for one survivors.json."""
    space, u1 = found.space, found.survivors

    def read(artifact: Artifact) -> str:
        n = artifact.attributes["user"]
        found.answered[n] = artifact.attributes["survivors"]
        if u1 is None or found.answered[n] != u1.digest:
            raise InputMissing("its size follows from the survivors.json that it names, which is not available")
        with answer.opened_answer(space, n, u1) as y:
            if n in u1.digests:
                found.answers[n] = y.blocks
            return f"{y.payload} bytes, D = {y.blocks}"

    for n in space.present("elimination"):
        found.examine(space.answer_path(n), answer.KIND, space.session.header(n), read)
    for n in found.answered:
        found.check(_ONE_SET, space.answer_path(n), _for_one_set, found, n)


def _for_one_set(found: Evidence, n: int) -> str:
    if found.survivors is None:
        if len(set(found.answered.values())) > 1:
            raise BadData("the Y name several survivor sets")
        return "all Y name one survivors.json, which is not available or not sound"
    if found.answered[n] != found.survivors.digest:
        raise BadData("it answers another survivor set, or other X, than survivors.json has")
    if n not in found.survivors.digests:
        raise BadData(f"user {n} is not among the survivors, and had nothing to answer")
    return "for survivors.json"


def _confirmations(found: Evidence) -> None:
    """Every confirmation by itself, and that there are enough for the answers that exist."""
    space = found.space
    if not space.session.confirm:
        return
    for n in space.users():
        if available(space.confirmation_path(n)):
            found.check(_CONFIRMED, space.confirmation_path(n), _confirmation, found, n)
    if found.answered:
        found.check(_CONFIRMED, "elimination", _enough, found)


def _confirmation(found: Evidence, n: int) -> str:
    """User n signed the digest of survivors.json, and of no other."""
    path = found.space.confirmation_path(n)
    named = str(survivors.parse_confirmation(path, documents.read_bytes(path, ""))["survivors"])
    if not survivors.confirmed_by(found.space, named, [n]):
        raise BadData(f"user {n} did not sign it in this session: the file is forged")
    found.confirmed[n] = named
    if found.survivors and named != found.survivors.digest:
        raise BadData("it confirms another survivors.json")
    return "signed"


def _enough(found: Evidence) -> str:
    need = found.space.session.confirmations
    for digest in sorted(set(found.answered.values())):
        there = sum(named == digest for named in found.confirmed.values())
        if there < need:
            raise InputMissing(f"{there} valid confirmations are available, and an answer needs {need}")
    return f"at least {need} for every answer"


def _decoding(found: Evidence) -> None:
    """Y as Reed-Solomon codewords, the aggregate decoded once more, and how large it is."""
    path = found.space.aggregate_path
    if available(path):
        header = found.space.session.header(0)
        found.examine(path, aggregate.KIND, header, lambda artifact: _read_sum(found, artifact))
    decoded = {blocks: _decoded(found, blocks) for blocks in _decodable(found)}
    sums = {blocks: result for blocks, result in decoded.items() if result}
    found.check("aggregate recomputed", path, _same_sum, found, sums)
    found.check("sums within the clip", path, _within, found, sums)


def _read_sum(found: Evidence, artifact: Artifact) -> str:
    total, u1 = aggregate.parsed(found.space, artifact), found.survivors
    if u1 and (total.digest != u1.digest or total.survivors != u1.users):
        raise artifact.bad("it is for another survivor set than survivors.json")
    if u1 and total.blocks not in found.fallbacks():
        raise artifact.bad(f"answers of this round do not pack {total.blocks} blocks")
    found.aggregate = total
    return f"{total.total.index.size} coordinates"


def _decodable(found: Evidence) -> list[int]:
    """Every D with which enough users answered."""
    given, colluders = list(found.answers.values()), found.p.colluders
    enough = [d for d in found.fallbacks() if given.count(d) >= d + colluders]
    if not enough:
        needed = " or ".join(f"more than {d + colluders} with D = {d}" for d in found.fallbacks())
        why = f"{len(given)} sound answers are available; needed: {needed or 'a sound survivors.json'}"
        found.add(_AGREE, "elimination", NOT_CHECKABLE, why)
    return enough


def _decoded(found: Evidence, blocks: int) -> Decoded | None:
    """The sum behind the answers with this D, if there is one, and whose answers were left out."""
    space, u1, quorum = found.space, found.survivors, blocks + found.p.colluders
    assert u1 is not None
    users = [n for n, d in found.answers.items() if d == blocks]
    try:
        with ExitStack() as files:
            rows = {n: files.enter_context(answer.opened_answer(space, n, u1)) for n in users}
            result = decode(
                found.p,
                space.session.points,
                len(u1.digests),
                rows,
                CipherRandomness(fresh_key()),
                fallback=found.fallbacks()[blocks],
            )
    except Exception as error:
        found.blame(_AGREE, "elimination", error)
        return None
    for n in result.corrected:
        found.add(_AGREE, space.answer_path(n), FAIL, "it is not on the polynomial of the other answers")
    if len(users) == quorum:
        found.add(_AGREE, "elimination", NOT_CHECKABLE, f"there are only {quorum} answers, which always agree")
    elif not result.corrected:
        found.add(_AGREE, "elimination", "pass", f"{len(users)} answers agree, and {quorum} suffice")
    return result


def _same_sum(found: Evidence, sums: dict[int, Decoded]) -> str:
    stored = found.aggregate
    if stored is None:
        raise InputMissing("no sound aggregate is available")
    if not sums:
        raise InputMissing("the available answers do not decode to a sum")
    for result in sums.values():
        if not (
            np.array_equal(stored.total.index, result.total.index)
            and np.array_equal(stored.total.value, result.total.value)
        ):
            raise BadData("it is not the sum that the answers decode to")
    known = [n for n in stored.answering if found.answers.get(n) == stored.blocks and stored.blocks in sums]
    wrong = sums[stored.blocks].corrected if known else []
    if [n for n in stored.corrected if n in known] != [n for n in wrong if n in known]:
        raise BadData("the users that it says answered wrongly are not those that did")
    absent = [n for n in stored.corrected if n not in known]
    if absent:
        named = ", ".join(map(str, absent))
        raise InputMissing(f"it says that users {named} answered wrongly, whose Y are not available")
    return f"{stored.total.index.size} coordinates, the same from {len(found.answers)} answers"


def _within(found: Evidence, sums: dict[int, Decoded]) -> str:
    """No sum is larger than the clip allows as many honest users as there are survivors."""
    totals = [found.aggregate.total] if found.aggregate else [result.total for result in sums.values()]
    if not totals or found.survivors is None:
        raise InputMissing("no sum is available, or no sound survivors.json")
    largest = largest_sum(found.p, found.survivors.weights.values())
    beyond = max(np.count_nonzero(np.abs(to_signed(t.value, found.p.field)) > largest) for t in totals)
    if beyond:
        raise BadData(f"{beyond} coordinates are larger than honest users can make them")
    return f"at most {largest / found.p.scale:.6g}"


def _first_rate(found: Evidence) -> str:
    if not found.masked:
        raise InputMissing("no sound X is available")
    payload = construction(found.p).masked_bytes
    return _against(payload, "R1", measured_r1(found.p, payload), theorem_r1(found.p))


def _second_rate(found: Evidence) -> str:
    u1 = found.survivors
    if not found.answers or u1 is None:
        raise InputMissing("no sound Y is available")
    fallback = found.fallbacks()[min(found.answers.values())]
    payload = construction(found.p).answer_bytes(len(u1.digests), fallback=fallback)
    return _against(payload, "R2", measured_r2(found.p, payload), theorem_r2(found.p))


def _against(payload: int, name: str, measured: float, theorem: float) -> str:
    times = measured / theorem
    return f"{payload} bytes, {name} {measured:.6g}: {times:.3g} times Theorem 1 ({theorem:.6g})"
