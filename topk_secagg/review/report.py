"""The findings of an audit as one page of HTML.

The page loads no other files and no scripts; its figures are SVG. It shows only public values.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from html import escape

from ..errors import no_coalition
from ..storage.session import Session
from ..storage.survivors import Survivors
from .evidence import Evidence, Finding, Verdict
from .figures import bars, drop_outs, sent_bytes
from .markup import tag
from .points import ELSE, SECRETS, SHARES, Point
from .style_sheet import STYLE
from .uniformity import laws

_LISTED = 12  # names in a line
_FEW = 2  # passes of one point that are worth a line each, and names where nothing was checked
_LABELS = {
    "users": "users (N)",
    "survivors": "survivors needed (U)",
    "colluders": "colluders tolerated (T)",
    "blocks": "blocks (D)",
    "top_k": "entries to send (K)",
    "length": "coordinates (L)",
    "field": "field size (q)",
    "picks": "picks of a bucket (P)",
    "buckets": "buckets (B)",
}


def checked(findings: Sequence[Finding]) -> list[Finding]:
    """What holds or fails."""
    return [finding for finding in findings if finding.verdict is not Verdict.NOT_CHECKABLE]


def unchecked(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    """What could not be checked, by what an auditor lacks for it."""
    lacking = [finding for finding in findings if finding.verdict is Verdict.NOT_CHECKABLE]
    groups = {
        what: [finding for finding in lacking if finding.point.without == what]
        for what in (ELSE, SECRETS, SHARES)
    }
    return {what: own for what, own in groups.items() if own}


def condensed(
    findings: Sequence[Finding], *, everything: bool = False
) -> list[tuple[Point, Verdict, str, str]]:
    """Rows of point, verdict, subjects and reason, grouped by point. Findings with the same reason
    share a row.

    Unless `everything` is set, many passes of one point become a count.
    """
    result: list[tuple[Point, Verdict, str, str]] = []
    for point in dict.fromkeys(f.point for f in findings):
        own = [f for f in findings if f.point == point]
        passed = sum(f.verdict is Verdict.PASS for f in own)
        if passed > _FEW and not everything:
            result.append((point, Verdict.PASS, f"{passed} checks", ""))
            own = [f for f in own if f.verdict is not Verdict.PASS]
        same: dict[tuple[Verdict, str], list[str]] = {}
        for f in own:
            same.setdefault((f.verdict, f.why), []).append(f.subject)
        for (verdict, why), subjects in same.items():
            listed = _FEW if verdict is Verdict.NOT_CHECKABLE else _LISTED
            shown = subjects if everything else subjects[:listed]
            more = f" and {len(subjects) - len(shown)} more" if len(shown) < len(subjects) else ""
            result.append((point, verdict, ", ".join(shown) + more, why))
    return result


def summary(findings: Sequence[Finding]) -> str:
    """The overall verdict in one line."""
    counts = Counter(f.verdict for f in findings)
    failed = counts[Verdict.FAIL]
    rest = f"{counts[Verdict.PASS]} passed"
    if lacking := counts[Verdict.NOT_CHECKABLE]:
        rest += f"; {lacking} could not be checked here"
    return f"{failed} FAILED, {rest}" if failed else f"nothing failed: {rest}"


def page(evidence: Evidence, *, program: str = "topk-secagg", at: datetime | None = None) -> bytes:
    """The whole page. `program` is a name and a version."""
    here = (".", str(evidence.space.root))
    findings = [
        replace(f, subject="the round's folder") if f.subject in here else f
        for f in evidence.findings
    ]
    session = evidence.session
    parts = [*_banners(evidence, findings), _names(evidence, program=program, at=at)]
    if session:
        parts += _about_session(evidence, session)
    parts += [tag("h2", "Verdicts"), _verdicts(checked(findings))]
    if lacking := unchecked(findings):
        parts += [tag("h2", "What could not be checked here"), _without(lacking)]
    if session:
        parts += [tag("h2", "Figures"), _figures(evidence)]
    parts += [tag("h2", "Everything that was checked"), _passes(findings)]
    return _document(escape(evidence.space.root.absolute().name), "".join(parts))


def _document(name: str, content: str) -> bytes:
    """The page about the round of this name."""
    meta = '<meta charset="utf-8"/><meta name="viewport" content="width=device-width"/>'
    head = f"{meta}{_POLICY}<title>Audit of {name}</title><style>{STYLE}</style>"
    body = f"<main><h1>Audit of {name}</h1>{content}</main>"
    html = f'<html lang="en"><head>{head}</head><body>{body}</body></html>'
    return f"<!DOCTYPE html>\n{html}\n".encode(errors="replace")


def _banners(evidence: Evidence, findings: Sequence[Finding]) -> list[str]:
    """The overall verdict, what a reader must know beside it, and what the page is."""
    failed = any(f.verdict is Verdict.FAIL for f in findings)
    parts = [_banner("fail" if failed else "pass", summary(findings))]
    if remark := unpinned(evidence):
        parts.append(_banner("not-checkable", remark))
    parts += [_banner("not-checkable", warning) for warning in evidence.warnings]
    parts.append(tag("p", _INTRODUCTION))
    return parts


def _banner(kind: str, text: str) -> str:
    return f'<p class="banner {kind}">{escape(text)}</p>'


def _names(evidence: Evidence, *, program: str, at: datetime | None) -> str:
    """When the page was made, and what it is about."""
    time = (at or datetime.now(UTC)).astimezone(UTC)
    u1 = evidence.survivors
    absent = "not available, or not sound"
    facts = {
        "date": f"{time:%Y-%m-%d %H:%M:%S} UTC, by {program}",
        "session": evidence.session.id if evidence.session else absent,
        "SHA-256 of survivors.json": u1.digest if u1 else absent,
    }
    if evidence.session and evidence.session.family is not None:
        facts["series"] = (
            f"{evidence.session.series_name}, generation {evidence.session.generation}"
        )
    return _facts(facts, "long")


def _about_session(evidence: Evidence, session: Session) -> list[str]:
    """Whose round it is, with which parameters and survivors, and what its answers exclude."""
    sections = {
        "Whose round this is": _origin(evidence, session),
        "Parameters": _parameters(session),
        "Survivors and their weights": _weights(session, evidence.survivors),
        "Users that lie together": tag("p", escape(_liars(evidence))),
    }
    return [tag("h2", title) + content for title, content in sections.items()]


def _figures(evidence: Evidence) -> str:
    masked = [file.masked for file in evidence.masked.values()]
    histograms = [bars(law) for law in laws(evidence.p, masked)] if masked else []
    figures = [*histograms, sent_bytes(evidence), drop_outs(evidence)]
    return tag("div", "".join(figures), "figures")


def _facts(facts: Mapping[str, object], kind: str = "") -> str:
    texts = {k: f"{v:,}" if isinstance(v, int) else str(v) for k, v in facts.items()}
    rows = (tag("dt", escape(k)) + tag("dd", escape(v)) for k, v in texts.items())
    return tag("dl", "".join(tag("div", row) for row in rows), kind)


def unpinned(evidence: Evidence) -> str:
    """What a reader has yet to compare, as neither session nor keys were pinned; or nothing."""
    if not evidence.session or not evidence.session.recipients:
        return ""
    if evidence.session_pinned or evidence.series_pinned or evidence.keys_pinned:
        return ""
    return (
        "neither the session nor the keys were pinned: somebody could have made up the whole round "
        "with keys of their own; compare the fingerprints with the users"
    )


def _origin(evidence: Evidence, session: Session) -> str:
    """The fingerprints of the session and of every user's keys, and whether they were pinned."""
    facts = {
        "fingerprint of the session": session.fingerprint,
        "the session was": _pinned(evidence),
    }
    if session.recipients is None:
        note = "This round has no keys. Nothing in it is signed, and no file shows who made it."
        return _facts(facts) + tag("p", note)
    facts["the users' keys were"] = "NOT pinned"
    if evidence.keys_pinned:
        facts["the users' keys were"] = "pinned"
    elif evidence.session_pinned:
        facts["the users' keys were"] = "pinned with the session, which holds them"
    elif evidence.series_pinned:
        facts["the users' keys were"] = "pinned with the series, whose name covers them"
    title = tag("p", "Fingerprints of the users' public keys:")
    rows = (tag("li", f"user {key.user}: {key.fingerprint}") for key in session.recipients)
    return _facts(facts) + title + tag("ul", "".join(rows))


def _pinned(evidence: Evidence) -> str:
    """Whether this is known to be the right session, or one of the right series."""
    if evidence.session_pinned:
        return "pinned"
    return "NOT pinned, but its series was" if evidence.series_pinned else "NOT pinned"


def _parameters(session: Session) -> str:
    reduction = session.reduction
    facts = {
        **vars(session.parameters),
        "reduction": reduction.name,
        "rank": reduction.rank or 0,
        "clip": _range(session.clips),
        "shares": "sealed" if session.recipients else "plain",
        "freezer": "any user" if session.confirm else f"user {session.freezer}",
        "confirmations needed": session.confirmations,
    }
    # 0 says that this round has no such thing
    shown = {k: v for k, v in facts.items() if v}
    return _facts({_LABELS.get(k, k.replace("_", " ")): v for k, v in shown.items()})


def _range(values: Sequence[float]) -> str:
    """The least and the largest of some numbers, once where they are the same."""
    ends = dict.fromkeys((f"{min(values):.6g}", f"{max(values):.6g}"))
    return " to ".join(ends)


def _weights(session: Session, u1: Survivors | None) -> str:
    if u1 is None:
        return tag("p", "There is no survivors.json yet, or it is not sound.")
    users = session.parameters.users
    total = math.fsum(u1.weights.values())
    note = (
        f"{len(u1.users)} of {users} users are in the sum, each gradient times its user's weight."
    )
    rows = (
        tag("li", f"user {n}: <b>{str(u1.weights[n]).removesuffix('.0')}</b>") for n in u1.users
    )
    return tag("p", f"{note} The weights add up to {total:.15g}.") + tag("ul", "".join(rows))


def _liars(evidence: Evidence) -> str:
    """How many lying users the agreement of the answers excludes."""
    excluded = evidence.liars_excluded
    colluders = evidence.p.colluders
    if excluded is None:
        return "The available answers give no sum, or do not agree on one."
    if excluded == 0:
        return "The answers are just as many as are needed: the sum is right if nobody lied."
    if excluded == colluders:
        return (
            f"The answers agree: {no_coalition(colluders)} can have falsified the sum"
            f" (T = {colluders})."
        )
    return (
        f"The answers agree: {no_coalition(excluded)} can have falsified the sum,"
        f" but T = {colluders} could."
    )


def _row(verdict: Verdict, cells: Sequence[str]) -> str:
    first = tag("td", verdict, verdict.replace(" ", "-"))
    return tag("tr", first + "".join(tag("td", escape(cell)) for cell in cells))


def _table(head: Sequence[str], rows: Iterable[str], kind: str) -> str:
    top = "".join(tag("th", cell) for cell in head)
    return tag("table", f"<thead><tr>{top}</tr></thead><tbody>{''.join(rows)}</tbody>", kind)


def _verdicts(findings: Sequence[Finding]) -> str:
    """Failed checks first, then the passes."""
    rows = []
    explained = set[str]()
    for point, verdict, about, why in sorted(
        condensed(findings), key=lambda row: row[1] is not Verdict.FAIL
    ):
        meaning = "" if point in explained else point.establishes
        explained.add(point)
        rows.append(_row(verdict, [point, about, why, meaning]))
    return _table(("verdict", "check", "on", "result", "what a pass establishes"), rows, "points")


def _without(groups: Mapping[str, Sequence[Finding]]) -> str:
    """What could not be checked: a table for each kind of files that is not here."""
    parts = []
    for what, findings in groups.items():
        parts.append(tag("p", f"Without <b>{escape(what)}</b>:"))
        parts.append(_verdicts(findings))
    return "".join(parts)


def _passes(findings: Sequence[Finding]) -> str:
    """All findings, one folded section per point."""
    result = []
    for point in dict.fromkeys(f.point for f in findings):
        own = [f for f in findings if f.point == point]
        rows = [_row(f.verdict, [f.subject, f.why]) for f in own]
        title = tag("summary", f"{escape(point)} ({len(own)})")
        result.append(tag("details", title + _table(("verdict", "on", "result"), rows, "all")))
    return "".join(result)


_POLICY = (
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'\"/>"
)
_INTRODUCTION = """The files of one round of secure aggregation were checked point by point.
<b>pass</b>: the check was made, and it holds. <b>fail</b>: it was made, and it does not hold.
<b>not checkable</b>: it needs files that are not available. X is the masked gradient that a user
sends, and Y its answer once the survivors are fixed. A signature shows that somebody with a user's
key made a file; whose key it is, the fingerprints below tell. This page shows public values
only. Whoever does not trust the program that made it can add up X and Y with docs/recipe.py of its
source, a hundred lines that share no code with it; docs/recipe.md beside it says each step."""
