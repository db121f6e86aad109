"""`audit`: whether a round, finished or running, was run properly, as far as the files at hand can tell.

This half needs public files only; audit_shares.py goes on where secrets and shares are at hand.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadData, InputMissing, SecAggError
from ..gradients.quantize import dequantise
from ..protocol.messages import Sparse
from ..protocol.parameters import SYMBOL_BYTES, Parameters
from ..protocol.rates import measured_r1, measured_r2, theorem_r1, theorem_r2
from ..storage import documents, wire
from ..storage.artifacts import Artifact
from ..storage.keys import Identity, check_recipients, read_identity
from ..storage.public import AnswerFile, answer_rows, read_masked, read_survivors
from ..storage.workspace import Workspace
from .audit_folders import audit_folders
from .audit_shares import audit_private
from .evidence import FAIL, NOT_CHECKABLE, Evidence, Finding, at_hand
from .uniformity import FEWEST_BINS, LEAST_EXPECTED, uniformity

_ONE_SET = "one survivor set, one set of X"
_AGREE = "Y on one polynomial (Reed-Solomon)"
_READ_GROUPS = 256


def audit(
    space: Workspace, identities: Sequence[Path] = (), progress: Callable[[float], None] = lambda _: None
) -> list[Finding]:
    """All findings on a round. Damaged files become findings; only a missing session.json raises."""
    found = Evidence(space)
    if not _session(found):
        found.add("everything else", ".", NOT_CHECKABLE, "it takes a sound session.json")
        return found.findings
    openers = _openers(found, identities)
    audit_folders(found)
    found.check("schema", space.survivors_path, _survivors, found)
    _masked(found)
    _uniform(found)
    _answers(found)
    _decoding(found)
    found.check("rates against the theorem", "X", _first_rate, found)
    found.check("rates against the theorem", "Y", _second_rate, found)
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
            raise BadData(f"{path} does not hold the keys of any user of this round", "check --identity")
        openers[users[0]] = identity
    return openers


def _session(found: Evidence) -> bool:
    """Whether session.json is sound; its parameters and points are judged by themselves where they can be."""
    path = found.space.session_path
    body: Any = None
    try:
        body = json.loads(documents.read_bytes(path, "run `topk-secagg init` first, or check the path"))
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
    if not found.check("schema", path, lambda: f"session {found.space.session.id[:16]}"):
        return False
    session = found.space.session
    seeded = (NOT_CHECKABLE, "drawn from a public seed: nothing in it is secret")
    found.add("no public seed", path, *(seeded if session.insecure else ("pass", "")))
    if session.recipients:
        found.check("keys valid and distinct", path, check_recipients, session.recipients)
    return True


def _survivors(found: Evidence) -> str:
    found.survivors = read_survivors(found.space)
    return f"{len(found.survivors.digests)} survivors"


def _masked(found: Evidence) -> None:
    """Every X by itself, and whether it is the one that was frozen."""
    session, last = found.space.session, "X of the right size, indices distinct and sorted"

    def read(artifact: Artifact) -> str:
        n = artifact.attributes["user"]
        found.masked[n] = read_masked(session, artifact.path, n)
        return f"{found.p.entries} entries"

    for n in found.space.users():
        path = found.space.masked_path(n)
        frozen = found.survivors is not None and n in found.survivors.digests
        if at_hand(path):
            with ExitStack() as files:
                found.examine(path, "masked", session.header(n), read, files, last)
        elif frozen or found.survivors is None:
            found.add(last, path, NOT_CHECKABLE, "it is not at hand")
        if frozen:
            found.check(_ONE_SET, path, _as_frozen, found, n)


def _as_frozen(found: Evidence, n: int) -> str:
    """X_n is the one in survivors.json, with the weight that is said there."""
    assert found.survivors is not None
    if n not in found.masked:
        raise InputMissing("survivors.json names it, and no sound file is at hand")
    if found.masked[n].digest != found.survivors.digests[n]:
        raise BadData("it is not the file that was frozen: survivors.json names another digest")
    found.frozen[n] = found.masked[n]
    if found.masked[n].weight != found.survivors.weights[n]:
        raise BadData("its weight is not the one in survivors.json")
    return "as frozen"


def _uniform(found: Evidence) -> None:
    """Masked values, and rotations or permuted indices: of all X, and of each that is long enough."""
    p, x = found.p, found.masked
    subjects: list[tuple[Path | str, list[int]]] = [("masked", sorted(x))]
    if p.entries >= FEWEST_BINS * LEAST_EXPECTED:
        subjects += [(found.space.masked_path(n), [n]) for n in sorted(x)]
    for subject, users in subjects:
        whose = " in one X" if isinstance(subject, Path) else ""
        values, index = ([getattr(x[n].masked, name) for n in users] for name in ("value", "index"))
        found.check(f"masked values uniform{whose}", subject, uniformity, values, p.field)
        if p.buckets:
            found.check(f"rotations uniform{whose}", subject, uniformity, index, p.width)
        else:
            point = f"permuted indices uniform{whose}"
            found.check(point, subject, uniformity, index, p.length, distinct=True)


def _answers(found: Evidence) -> None:
    """Every Y by itself, and that all are for one survivors.json."""
    space, survivors = found.space, found.survivors

    def read(artifact: Artifact) -> str:
        n = artifact.attributes["user"]
        found.answered[n] = artifact.attributes["survivors"]
        if survivors is None or found.answered[n] != survivors.digest:
            raise InputMissing("its size follows from the survivor set that it names, which is not at hand")
        answer = AnswerFile(found.p, artifact, len(survivors.digests))
        for first in range(0, found.p.groups, _READ_GROUPS):
            answer.read(first, min(first + _READ_GROUPS, found.p.groups))
        if n in survivors.digests:
            found.answers.append(n)
        return f"{answer.payload} bytes"

    for n in space.present("elimination"):
        with ExitStack() as files:
            found.examine(space.answer_path(n), "elimination", space.session.header(n), read, files)
    for n in found.answered:
        found.check(_ONE_SET, space.answer_path(n), _for_one_set, found, n)


def _for_one_set(found: Evidence, n: int) -> str:
    if found.survivors is None:
        if len(set(found.answered.values())) > 1:
            raise BadData("the Y name several survivor sets")
        return "all Y name one survivors.json, which is not at hand"
    if found.answered[n] != found.survivors.digest:
        raise BadData("it answers another survivor set, or other X, than survivors.json has")
    if n not in found.survivors.digests:
        raise BadData(f"user {n} is not among the survivors, and had nothing to answer")
    return "for survivors.json"


def _decoding(found: Evidence) -> None:
    """Y as Reed-Solomon codewords, and the aggregate decoded once more."""
    path = found.space.aggregate_path
    with ExitStack() as files:
        if at_hand(path):
            header = found.space.session.header(0)
            found.examine(path, "aggregate", header, lambda artifact: _read_sum(found, artifact), files)
    total, wrong = _decoded(found)
    found.check("aggregate recomputed", path, _same_sum, found, total, wrong)


def _read_sum(found: Evidence, artifact: Artifact) -> str:
    p, survivors = found.p, found.survivors
    for name, d in artifact.datasets.items():
        if len(d.shape) != 1 or d.shape[0] > (p.length if name in ("index", "value", "real") else p.users):
            raise artifact.bad(f"its {name} is too large")
    content = {name: artifact.read(name) for name in artifact.datasets}
    index, value, real = content["index"].astype(np.int64), content["value"], content["real"]
    if not index.size == value.size == real.size:
        raise artifact.bad("its datasets are not of one length")
    if np.any(np.diff(index) <= 0) or np.any(index >= p.length) or np.any(value >= np.uint32(p.field)):
        raise artifact.bad("its coordinates are not increasing and below L, or a value is not below q")
    if np.any(value == 0) or not np.array_equal(real, dequantise(p, value)):
        raise artifact.bad("its reals are not its values divided by the scale, or it lists zeros")
    u1, u2, wrong = (content[name].tolist() for name in ("survivors", "answering", "corrected"))
    if any(users != sorted(set(users)) for users in (u1, u2, wrong)) or not set(wrong) <= set(u2) <= set(u1):
        raise artifact.bad("its lists of users do not lie within each other")
    if len(u2) - len(wrong) < p.quorum:
        raise artifact.bad(f"it says that {len(u2) - len(wrong)} users answered, and it takes {p.quorum}")
    if survivors and (
        artifact.attributes["survivors"] != survivors.digest or u1 != sorted(survivors.digests)
    ):
        raise artifact.bad("it is for another survivor set than survivors.json")
    found.aggregate = content
    return f"{index.size} coordinates"


def _decoded(found: Evidence) -> tuple[Sparse | None, list[int]]:
    """The sum behind the answers, if there is one, and whose answers were left out."""
    from ..algebra.randomness import CipherRandomness, fresh_key
    from ..protocol.decoding import decode

    space, users, survivors, quorum = found.space, found.answers, found.survivors, found.p.quorum
    if survivors is None or len(users) < quorum:
        why = f"{len(users)} sound answers are at hand, and it takes more than {quorum}"
        found.add(_AGREE, "elimination", NOT_CHECKABLE, why)
        return None, []
    try:
        with ExitStack() as files:
            rows = {n: files.enter_context(answer_rows(space, n, survivors)) for n in users}
            source = CipherRandomness(fresh_key())
            result = decode(found.p, space.session.points, len(survivors.digests), rows, source)
    except Exception as error:
        found.blame(_AGREE, "elimination", error)
        return None, []
    for n in result.corrected:
        found.add(_AGREE, space.answer_path(n), FAIL, "it is not on the polynomial of the other answers")
    if len(users) == quorum:
        found.add(_AGREE, "elimination", NOT_CHECKABLE, f"{quorum} answers, and so many always agree")
    elif not result.corrected:
        found.add(_AGREE, "elimination", "pass", f"{len(users)} answers agree, where {quorum} would do")
    return result.total, result.corrected


def _same_sum(found: Evidence, total: Sparse | None, wrong: list[int]) -> str:
    stored = found.aggregate
    if not stored:
        raise InputMissing("no sound aggregate is at hand")
    if total is None:
        raise InputMissing("the answers at hand do not decode to a sum")
    if not (np.array_equal(stored["index"], total.index) and np.array_equal(stored["value"], total.value)):
        raise BadData("it is not the sum that the answers decode to")
    corrected = stored["corrected"].tolist()
    said = [n for n in corrected if n in found.answers]
    if said != [n for n in wrong if n in stored["answering"]]:
        raise BadData("the users that it says answered wrongly are not those that did")
    if said != corrected:
        absent = ", ".join(str(n) for n in corrected if n not in said)
        raise InputMissing(f"it says that users {absent} answered wrongly, whose Y are not at hand")
    return f"{total.index.size} coordinates, the same from {len(found.answers)} answers"


def _first_rate(found: Evidence) -> str:
    p = found.p
    if not found.masked:
        raise InputMissing("no sound X is at hand")
    payload = max(x.payload for x in found.masked.values())
    # Elias-Fano takes at most two bits more than log2(L/K) for an index, and log2 C(L,K) >= K log2(L/K)
    place = wire.bits_below(p.width) if p.buckets else 2 + math.log2(p.length / p.top_k)
    if 8 * payload > p.entries * (wire.bits_below(p.field) + place) + 14:  # both parts end in whole bytes
        raise BadData(f"{payload} bytes are more than {p.construction} needs")
    return _against(payload, "R1", measured_r1(p, payload), theorem_r1(p))


def _second_rate(found: Evidence) -> str:
    if not found.answers or found.survivors is None:
        raise InputMissing("no sound Y is at hand")
    payload = found.p.groups * found.p.answer_width(len(found.survivors.digests)) * SYMBOL_BYTES
    return _against(payload, "R2", measured_r2(found.p, payload), theorem_r2(found.p))


def _against(payload: int, name: str, measured: float, theorem: float) -> str:
    times = measured / theorem
    return f"{payload} bytes, {name} {measured:.6g}: {times:.3g} times Theorem 1 ({theorem:.6g})"
