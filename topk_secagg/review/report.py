"""The findings of an audit as one page of HTML.

The page loads no other files and no scripts; its figures are SVG. It shows only public values.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from html import escape

from ..protocol.constructions import construction
from ..protocol.parameters import theorem_r1, theorem_r2
from ..storage.session import Session
from ..storage.survivors import Survivors
from .evidence import Evidence, Finding, Verdict, establishes
from .uniformity import LEAST_EXPECTED, Law, histogram, laws

_LISTED = 12  # names in a line
_FEW = 2  # passes of one point that are worth a line each
_FIGURE_BINS = 32
_LINE = 20  # pixels from one line of text in a figure to the next
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


def condensed(
    findings: Sequence[Finding], *, everything: bool = False
) -> list[tuple[str, Verdict, str, str]]:
    """Rows of point, verdict, subjects and reason, grouped by point. Findings with the same reason
    share a row.

    Unless `everything` is set, many passes of one point become a count.
    """
    result: list[tuple[str, Verdict, str, str]] = []
    for point in dict.fromkeys(f.point for f in findings):
        own = [f for f in findings if f.point == point]
        passed = sum(f.verdict == "pass" for f in own)
        if passed > _FEW and not everything:
            result.append((point, "pass", f"{passed} checks", ""))
            own = [f for f in own if f.verdict != "pass"]
        same: dict[tuple[Verdict, str], list[str]] = {}
        for f in own:
            same.setdefault((f.verdict, f.why), []).append(f.subject)
        for (verdict, why), subjects in same.items():
            shown = subjects if everything else subjects[:_LISTED]
            more = f" and {len(subjects) - len(shown)} more" if len(shown) < len(subjects) else ""
            result.append((point, verdict, ", ".join(shown) + more, why))
    return result


def summary(findings: Sequence[Finding]) -> str:
    """The overall verdict in one line."""
    fail, pass_, unknown = (
        sum(f.verdict == v for f in findings) for v in ("fail", "pass", "not checkable")
    )
    rest = f"{pass_} passed, {unknown} could not be checked"
    return f"{fail} FAILED, {rest}" if fail else f"nothing failed: {rest}"


def page(evidence: Evidence, *, program: str = "topk-secagg", at: datetime | None = None) -> bytes:
    """The whole page. `program` is a name and a version."""
    root = evidence.space.root
    session = evidence.session
    u1 = evidence.survivors
    here = (".", str(root))
    findings = [
        replace(f, subject="the round's folder") if f.subject in here else f
        for f in evidence.findings
    ]
    bad = any(f.verdict == "fail" for f in findings)
    parts = [
        f'<p class="banner {"fail" if bad else "pass"}">{escape(summary(findings))}</p>',
        _tag("p", _INTRODUCTION),
    ]
    if remark := unpinned(evidence):
        parts.insert(1, f'<p class="banner not-checkable">{escape(remark)}</p>')
    made = f"{(at or datetime.now(UTC)).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, by {program}"
    if session and session.insecure:
        parts.append(
            '<p class="banner fail">INSECURE: drawn from a public seed, nothing in it is secret</p>'
        )
    no = "not available, or not sound"
    names = {
        "session": session.id if session else no,
        "SHA-256 of survivors.json": u1.digest if u1 else no,
    }
    parts.append(_facts({"date": made, **names}, "long"))
    if session:
        parts += [_tag("h2", "Whose round this is"), _origin(evidence, session)]
        parts += [_tag("h2", "Parameters"), _parameters(session)]
        parts += [_tag("h2", "Survivors and their weights"), _weights(session, u1)]
        parts += [_tag("h2", "Users that lie together"), _tag("p", escape(_liars(evidence)))]
    parts += [_tag("h2", "Verdicts"), _verdicts(findings)]
    if session:
        x = [file.masked for file in evidence.masked.values()]
        histograms = [_bars(law) for law in laws(evidence.p, x)] if x else []
        figures = "".join([*histograms, _bytes(evidence), _grid(evidence)])
        parts += [_tag("h2", "Figures"), _tag("div", figures, "figures")]
    parts += [_tag("h2", "Everything that was checked"), _passes(findings)]
    name = escape(root.absolute().name)
    head = f'<meta charset="utf-8"/><meta name="viewport" content="width=device-width"/>{_POLICY}'
    head += f"<title>Audit of {name}</title><style>{_STYLE}</style>"
    body = f"<main><h1>Audit of {name}</h1>{''.join(parts)}</main>"
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'.encode(
            errors="replace"
        )
    )


def _tag(name: str, content: str, kind: str = "") -> str:
    """An element around content that is already escaped."""
    return f"<{name}{f' class={kind!r}' if kind else ''}>{content}</{name}>"


def _facts(facts: Mapping[str, object], kind: str = "") -> str:
    texts = {k: f"{v:,}" if isinstance(v, int) else str(v) for k, v in facts.items()}
    rows = (_tag("dt", escape(k)) + _tag("dd", escape(v)) for k, v in texts.items())
    return _tag("dl", "".join(_tag("div", row) for row in rows), kind)


def unpinned(evidence: Evidence) -> str:
    """What a reader has yet to compare, as neither session nor keys were pinned; or nothing."""
    if not evidence.session or not evidence.session.recipients:
        return ""
    if evidence.session_pinned or evidence.keys_pinned:
        return ""
    return (
        "neither the session nor the keys were pinned: somebody could have made up the whole round "
        "with keys of their own; compare the fingerprints with the users"
    )


def _origin(evidence: Evidence, session: Session) -> str:
    """The fingerprints of the session and of every user's keys, and whether they were pinned."""
    facts = {
        "fingerprint of the session": session.fingerprint,
        "the session was": "pinned" if evidence.session_pinned else "NOT pinned",
    }
    if session.recipients is None:
        note = "This round has no keys. Nothing in it is signed, and no file shows who made it."
        return _facts(facts) + _tag("p", note)
    facts["the users' keys were"] = "NOT pinned"
    if evidence.keys_pinned:
        facts["the users' keys were"] = "pinned"
    elif evidence.session_pinned:
        facts["the users' keys were"] = "pinned with the session, which holds them"
    title = _tag("p", "Fingerprints of the users' public keys:")
    rows = (_tag("li", f"user {key.user}: {key.fingerprint}") for key in session.recipients)
    return _facts(facts) + title + _tag("ul", "".join(rows))


def _parameters(session: Session) -> str:
    facts = {
        **vars(session.parameters),
        "shares": "sealed" if session.recipients else "plain",
        "freezer": "any user" if session.confirm else f"user {session.freezer}",
        "confirmations needed": session.confirmations,
    }
    # 0 is a choice for spare answers only; elsewhere it says that this round has no such thing
    shown = {k: v for k, v in facts.items() if v or (k, v) == ("spare", 0)}
    return _facts({_LABELS.get(k, k.replace("_", " ")): v for k, v in shown.items()})


def _weights(session: Session, u1: Survivors | None) -> str:
    if u1 is None:
        return _tag("p", "There is no survivors.json yet, or it is not sound.")
    users = session.parameters.users
    total = math.fsum(u1.weights.values())
    note = (
        f"{len(u1.users)} of {users} users are in the sum, each gradient times its user's weight."
    )
    rows = (
        _tag("li", f"user {n}: <b>{str(u1.weights[n]).removesuffix('.0')}</b>") for n in u1.users
    )
    return _tag("p", f"{note} The weights add up to {total:.15g}.") + _tag("ul", "".join(rows))


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
            "The agreement of the answers excludes users that lie together:"
            f" the sum is right unless more than T = {colluders} lie."
        )
    return (
        f"The agreement of the answers excludes only {excluded} of T = {colluders} users that lie"
        f" together: if more than {excluded} lie, the sum can be wrong."
    )


def _row(verdict: str, *cells: str) -> str:
    first = _tag("td", verdict, verdict.replace(" ", "-"))
    return _tag("tr", first + "".join(_tag("td", escape(cell)) for cell in cells))


def _table(head: Sequence[str], rows: Iterable[str], kind: str) -> str:
    top = "".join(_tag("th", cell) for cell in head)
    return _tag("table", f"<thead><tr>{top}</tr></thead><tbody>{''.join(rows)}</tbody>", kind)


def _verdicts(findings: Sequence[Finding]) -> str:
    """Failed checks first, then those that were not checkable, then the passes."""
    rows = []
    told = set[str]()
    order = ("fail", "not checkable", "pass")
    for point, verdict, about, why in sorted(
        condensed(findings), key=lambda row: order.index(row[1])
    ):
        meaning = "" if point in told else establishes(point)
        told.add(point)
        rows.append(_row(verdict, point, about, why, meaning))
    return _table(("verdict", "check", "on", "result", "what a pass establishes"), rows, "points")


def _passes(findings: Sequence[Finding]) -> str:
    """All findings, one folded section per point."""
    result = []
    for point in dict.fromkeys(f.point for f in findings):
        own = [f for f in findings if f.point == point]
        rows = [_row(f.verdict, f.subject, f.why) for f in own]
        title = _tag("summary", f"{escape(point)} ({len(own)})")
        result.append(_tag("details", title + _table(("verdict", "on", "result"), rows, "all")))
    return "".join(result)


def _figure(title: str, note: str, height: float, content: Iterable[str]) -> str:
    """A drawing of full width: x is in per cent and y in pixels, so that text is never scaled."""
    caption = f"<figcaption><b>{escape(title)}</b><br/>{escape(note)}</figcaption>"
    drawn = f'<svg width="100%" height="{height}" role="img" aria-label="{escape(title)}">{"".join(content)}</svg>'
    return _tag("figure", caption + _tag("div", drawn))


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.2f}%" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _rect(x: float, y: float, width: float, height: float, kind: str, title: str) -> str:
    shape = f'x="{x:.2f}%" y="{y:.1f}" width="{max(width, 0):.2f}%" height="{max(height, 0):.1f}"'
    return f'<rect {shape} class="{kind}"><title>{escape(title)}</title></rect>'


def _bars(law: Law) -> str:
    """A histogram with bins of equal width, and a line at the expected level."""
    count = sum(part.size for part in law.parts)
    height = 180
    most = max(1, min(_FIGURE_BINS, law.bound, count // LEAST_EXPECTED))
    # so that few values are left over
    bins = min(range(most, most // 2, -1), key=lambda b: law.bound % b)
    width, left = divmod(law.bound, bins)
    observed, _ = histogram(law.parts, bins * width, bins)
    expected = count * width / law.bound
    step = 100 / bins
    unit = height / (max(*observed, expected) * 1.05)
    drawn = []
    for b, count_in_bin in enumerate(observed):
        low = law.low + b * width
        title = f"{low:,} to {low + width - 1:,}: {count_in_bin}, expected {expected:.1f}"
        drawn.append(
            _rect(b * step, height - count_in_bin * unit, step, count_in_bin * unit, "bar", title)
        )
    for y, kind in ((height, "axis"), (height - expected * unit, "level")):
        drawn.append(f'<line x1="0" y1="{y:.1f}" x2="100%" y2="{y:.1f}" class="{kind}"/>')
    drawn.append(_text(0, height + _LINE, f"{law.low:,}"))
    drawn.append(_text(100, height + _LINE, f"{law.low + bins * width - 1:,}", "end"))
    note = f"{count:,} entries in {bins} bins, and every bin covers {width:,} possible value{'s' * (width > 1)}"
    note += f" (the last {left:,} are not drawn)" if left else ""
    note += f". Bars: {min(observed)} to {max(observed)} in a bin. Line: {expected:.1f}, expected of uniform entries."
    return _figure(
        f"{law.name.capitalize()} in the X of {len(law.parts)} users", note, height + 28, drawn
    )


def _bytes(evidence: Evidence) -> str:
    """What a user sends in each phase, measured and in theory; every pair of bars has its own
    scale."""
    space = evidence.space
    p = evidence.p
    c = construction(evidence.p)
    shares = 0
    sent = evidence.payloads()
    for n in space.users():
        with suppress(OSError):  # if not all share files of a user are there
            shares = max(shares, sum(space.share_path(m, n).stat().st_size for m in space.users()))
    theorem = (
        theorem_r1(p) * p.length * math.log2(p.field) / 8,
        theorem_r2(p) * p.length * p.symbol_bytes,
    )
    phases = [
        (
            "shares for all users, before X",
            shares,
            float(p.users * c.share_bytes),
            f"{p.construction} needs",
        ),
        ("masked gradient, X", sent["X"], theorem[0], "Theorem 1"),
        ("answer, Y", sent["Y"], theorem[1], "Theorem 1"),
    ]
    drawn = []
    y = 0.0
    for name, measured, theory, whose in phases:
        drawn.append(_text(0, y + 15, name))
        for value, kind, label in ((measured, "bar", "measured"), (theory, "other", whose)):
            text = f"{label}: {value:,.0f} bytes" if value else f"{label}: not available"
            drawn.append(_text(4, y + 15 + _LINE, text))
            drawn.append(
                _rect(4, y + 20 + _LINE, 96 * value / max(measured, theory), 8, kind, text)
            )
            y += 32
        y += 32
    note = "The most that a user sent, as far as files are available. Each pair of bars has its own scale."
    return _figure("What a user sends in each phase", note, y, drawn)


def _grid(evidence: Evidence) -> str:
    """Users by phases: who was there, who dropped out, and whose answer was wrong."""
    users = evidence.space.users()
    u1 = evidence.survivors
    total = evidence.aggregate
    columns: list[tuple[str, Collection[int]]] = [
        ("sent X", evidence.masked),
        ("frozen", u1.users if u1 else ()),
    ]
    if evidence.space.session.confirm:
        columns.append(
            (
                "signed",
                [n for n, digest in evidence.confirmed.items() if u1 and digest == u1.digest],
            )
        )
    columns += [("sent Y", evidence.answers), ("used", total.answering if total else ())]
    step = 100 / (len(columns) + 1)
    drawn = [_text(0, 15, "user")]
    drawn += [_text((c + 1.5) * step, 15, name, "middle") for c, (name, _) in enumerate(columns)]
    for row, n in enumerate(users, 1):
        drawn.append(_text(0, row * 24 + 16, str(n)))
        for c, (name, there) in enumerate(columns, 1):
            bad = name == "used" and total and n in total.corrected
            kind, sign = ("wrong", "✗") if bad else ("yes", "✓") if n in there else ("no", "–")
            drawn.append(_rect(c * step, row * 24, step, 24, kind, f"user {n}, {name}: {sign}"))
            drawn.append(_text((c + 0.5) * step, row * 24 + 17, sign, "middle"))
    note = "✓ a sound file is there; – there is none: the user dropped out, or the file is not available. "
    note += "Frozen: named in survivors.json. Used: its answer was decoded; ✗ it was wrong and was left out."
    return _figure("Who dropped out", note, (len(users) + 1) * 24 + 4, drawn)


_POLICY = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>"
_INTRODUCTION = """The files of one round of secure aggregation were checked point by point. <b>pass</b>: the check was
made, and it holds. <b>fail</b>: it was made, and it does not hold. <b>not checkable</b>: it needs files that are not
available. X is the masked gradient that a user sends, and Y its answer once the survivors are fixed. A signature
shows that somebody with a user's key made a file; whose key it is, the fingerprints below tell. This page shows public
values only."""
_STYLE = """
:root { color-scheme: light dark; --fg: #1c2430; --dim: #556070; --bg: #fff; --line: #d5dbe3; --panel: #f5f7fa;
  --pass: #176f3d; --fail: #b3261e; --open: #8a5a00; --bar: #3b6fb5; --other: #a9b8cc; --level: #c2410c; }
@media (prefers-color-scheme: dark) { :root { --fg: #e3e8ef; --dim: #9aa7b8; --bg: #14181e; --line: #303945;
  --panel: #1c222b; --pass: #5cc98a; --fail: #ff8a80; --open: #f0b429; --bar: #6ea3ea; --other: #56657a;
  --level: #fb923c; } }
body { margin: 0; background: var(--bg); color: var(--fg); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 1.5rem 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: 0 0 .8rem; } h2 { font-size: 1.2rem; margin: 2rem 0 .6rem; }
.banner { border-left: 5px solid; padding: .6rem .9rem; background: var(--panel); font-weight: 600; }
.pass { color: var(--pass); } .fail { color: var(--fail); } .not-checkable { color: var(--open); }
dl { display: grid; gap: .5rem 1.2rem; margin: 0; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); }
dl.long { grid-template-columns: 1fr; } dt { color: var(--dim); font-size: .9rem; } dd { margin: 0; }
ul { list-style: none; display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; margin: 0; padding: 0; }
table, tbody { display: block; font-size: .95rem; } thead { display: none; } td:empty { display: none; }
tr { display: grid; grid-template-columns: auto 1fr; gap: .1rem .8rem; padding: .5rem 0;
  border-bottom: 1px solid var(--line); }
th, td { padding: 0; text-align: left; } th { color: var(--dim); font-weight: 400; }
td:first-child, .points td:nth-child(2) { font-weight: 600; } td:nth-child(n + 3) { grid-column: 1 / -1; }
.points td:nth-child(5) { color: var(--dim); } .points td:is(:nth-child(3), :nth-child(4)) { order: 1; }
@media (min-width: 760px) { thead { display: block; } tr { grid-template-columns: 8rem 1fr 2fr; }
  :is(th, td):nth-child(n + 3) { grid-column: 3; } .points :is(th, td):nth-child(3) { grid-area: 2 / 2; }
  .points :is(th, td):nth-child(4) { grid-area: 2 / 3; } .points :is(th, td):nth-child(5) { grid-area: 1 / 3; } }
details { border-bottom: 1px solid var(--line); padding: .35rem 0; } summary { cursor: pointer; }
.figures { display: grid; gap: 1.2rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); }
figure { margin: 0; padding: .8rem; background: var(--panel); border-radius: 6px; min-width: 0; }
figure div { overflow: auto; max-height: 34rem; } @media print { figure div { max-height: none; } }
figcaption { font-size: .9rem; color: var(--dim); margin-bottom: .6rem; } figcaption b { color: var(--fg); }
svg { display: block; font-size: 14px; fill: var(--fg); } rect { stroke: var(--panel); stroke-width: 1.5; }
.bar { fill: var(--bar); } .other { fill: var(--other); } .level { stroke: var(--level); stroke-width: 2; }
.axis { stroke: var(--dim); } .yes { fill: var(--pass); fill-opacity: .25; } .no { fill: var(--bg); }
.wrong { fill: var(--fail); fill-opacity: .35; }
"""
