"""The findings of an audit as one page of HTML.

The page needs nothing from elsewhere and no scripts; its figures are SVG. Only public values are shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from html import escape

from ..protocol.constructions import construction
from ..protocol.rates import theorem_r1, theorem_r2
from ..storage import aggregate, masked, survivors
from ..storage.answer import opened_answer
from ..storage.artifacts import opened
from ..storage.survivors import Survivors
from ..storage.workspace import Workspace
from .evidence import Finding, Verdict
from .uniformity import LEAST_EXPECTED, Law, histogram, laws

_LISTED = 12  # names in a line
_FEW = 2  # passes of one point that are worth a line each
_FIGURE_BINS = 32


def condensed(findings: Sequence[Finding], *, everything: bool = False) -> list[tuple[str, Verdict, str, str]]:
    """Point, verdict, on what, and why; by point as first met. Findings that say the same become one, and
    the passes of a point, unless they are few or `everything` is wanted, only a count."""
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
    fail, pass_, unknown = (sum(f.verdict == v for f in findings) for v in ("fail", "pass", "not checkable"))
    rest = f"{pass_} passed, {unknown} could not be checked"
    return f"{fail} FAILED, {rest}" if fail else f"nothing failed: {rest}"


def page(space: Workspace, findings: Sequence[Finding]) -> bytes:
    """The whole page."""
    bad = any(f.verdict == "fail" for f in findings)
    parts = [f'<p class="banner {"fail" if bad else "pass"}">{escape(summary(findings))}</p>']
    session, figures = None, list[str]()
    with suppress(Exception):  # the findings say what is wrong with it
        session = space.session
    if session:
        if session.insecure:
            parts.append('<p class="banner fail">INSECURE: drawn from a public seed, nothing in it is secret</p>')
        parts.append(f"<p>session <code>{session.id}</code></p>")
        facts = {
            **session.parameters.as_dict(),
            "shares": "sealed" if session.recipients else "plain",
            "freezer": "any user" if session.confirm else session.freezer,
            "confirmations": session.confirmations,
        }
        parts.append(_tag("dl", "".join(_tag("div", _tag("dt", k) + _tag("dd", str(v))) for k, v in facts.items())))
        figures = _figures(space)
    parts += [_tag("h2", "Verdicts"), _verdicts(findings)]
    parts += [_tag("h2", "Figures"), f'<div class="figures">{"".join(figures)}</div>'] if figures else []
    parts += [_tag("h2", "Everything that was checked"), _passes(findings)]
    name = escape(space.root.absolute().name)
    head = f'<meta charset="utf-8"/><meta name="viewport" content="width=device-width"/>{_POLICY}'
    head += f"<title>Audit of {name}</title><style>{_STYLE}</style>"
    body = f"<main><h1>Audit of {name}</h1>{''.join(parts)}</main>"
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'.encode(errors="replace")


def _tag(name: str, content: str, kind: str = "") -> str:
    """An element around content that is escaped already, or plain text of ours."""
    return f"<{name}{f' class={kind!r}' if kind else ''}>{content}</{name}>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(_tag("th", escape(cell)) for cell in head)
    body = "".join(_tag("tr", "".join(row)) for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _verdicts(findings: Sequence[Finding]) -> str:
    """What failed, then what could not be checked, then how much passed, point by point."""
    rows = []
    for verdict in ("fail", "not checkable", "pass"):
        for row in (row for row in condensed(findings) if row[1] == verdict):
            cells = (_tag("td", escape(cell)) for cell in (row[0], *row[2:]))
            rows.append([_tag("td", verdict, verdict.replace(" ", "-")), *cells])
    return _table(("verdict", "point", "on", "why"), rows)


def _passes(findings: Sequence[Finding]) -> str:
    """All findings, folded away by point."""
    result = []
    for point in dict.fromkeys(f.point for f in findings):
        own = [f for f in findings if f.point == point]
        rows = [
            [
                _tag("td", f.verdict, f.verdict.replace(" ", "-")),
                _tag("td", escape(f.subject)),
                _tag("td", escape(f.why)),
            ]
            for f in own
        ]
        title = _tag("summary", f"{escape(point)} ({len(own)})")
        result.append(_tag("details", title + _table(("verdict", "on", "why"), rows)))
    return "".join(result)


def _figures(space: Workspace) -> list[str]:
    """Histograms of X, bytes of each phase, and who dropped out: from what is sound among the files."""
    x = {}
    for n in space.users():
        with suppress(Exception):  # the findings say what is wrong with a file
            x[n] = masked.read(space.session, space.masked_path(n), n).masked
    u1 = None
    with suppress(Exception):
        u1 = survivors.read(space)
    answers = {n: size for n in space.present("elimination") if (size := _answer_bytes(space, n, u1))}
    figures = [_bars(law) for law in laws(space.session.parameters, list(x.values()))] if x else []
    return [*figures, _bytes(space, bool(x), answers), _grid(space, set(x), u1, set(answers))]


def _answer_bytes(space: Workspace, n: int, u1: Survivors | None) -> int:
    """The payload of a sound Y."""
    with suppress(Exception):
        if u1:
            with opened_answer(space, n, u1) as answer:
                return answer.payload
    return 0


def _figure(title: str, note: str, width: int, height: int, content: str) -> str:
    caption = f"<figcaption><b>{escape(title)}</b><br/>{escape(note)}</figcaption>"
    box = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    drawn = f'<svg {box} role="img" aria-label="{escape(title)}">{content}</svg>'
    return f'<figure>{caption}<div class="scroll">{drawn}</div></figure>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _rect(x: float, y: float, width: float, height: float, kind: str, title: str) -> str:
    shape = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"'
    return f'<rect {shape} class="{kind}"><title>{escape(title)}</title></rect>'


def _bars(law: Law) -> str:
    """A histogram with the level that is expected."""
    parts, bound = law.parts, law.bound
    count = sum(part.size for part in parts)
    bins = max(1, min(_FIGURE_BINS, bound, count // LEAST_EXPECTED))
    observed, expected = histogram(parts, bound, bins)
    width, height, left, bottom = 520, 220, 44, 24
    top = max(*observed, *expected) * 1.05
    step, unit = (width - left - 8) / bins, (height - bottom - 8) / top
    drawn = []
    for b, (o, e) in enumerate(zip(observed, expected, strict=True)):
        x, base = left + b * step, height - bottom
        drawn.append(_rect(x + 0.5, base - o * unit, step - 1, o * unit, "bar", f"{o}, expected {e:.1f}"))
        y = base - e * unit
        drawn.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x + step:.1f}" y2="{y:.1f}" class="level"/>')
    drawn.append(f'<path d="M{left} 8V{height - bottom}H{width - 8}" class="axis"/>')
    drawn += [_text(left - 6, height - bottom, "0", "end"), _text(left - 6, 18, f"{top:.0f}", "end")]
    last = law.low + bound - 1
    drawn += [_text(left, height - 8, f"{law.low}"), _text(width - 8, height - 8, f"{last:,}", "end")]
    note = f"{count:,} in {bins} ranges from {law.low} to {last:,}; the line is what uniform ones would give"
    return _figure(f"{law.name.capitalize()} in the X of {len(parts)} users", note, width, height, "".join(drawn))


def _bytes(space: Workspace, has_x: bool, answers: dict[int, int]) -> str:
    """What a user sends in each phase, measured and by theory; every pair of bars has a scale of its own."""
    p = space.session.parameters
    c, sent = construction(p), [_share_bytes(space, n) for n in space.users()]
    theorem = (theorem_r1(p) * p.length * math.log2(p.field) / 8, theorem_r2(p) * p.length * p.symbol_bytes)
    offline = f"offline: {' and '.join(c.share_names)} for all users"
    phases = [
        (offline, max(sent), float(p.users * c.share_bytes), p.construction),
        ("X", c.masked_bytes if has_x else 0, theorem[0], "Theorem 1"),
        ("Y", max(answers.values(), default=0), theorem[1], "Theorem 1"),
    ]
    drawn, width = [], 520
    for i, (name, measured, theory, whose) in enumerate(phases):
        at, largest = 16 + i * 72, max(measured, theory)
        drawn.append(_text(0, at, name))
        for row, (value, kind, label) in enumerate(((measured, "bar", "measured"), (theory, "other", whose))):
            long = value / largest * (width - 240)
            text = f"{label}: {value:,.0f} B" if value else f"{label}: not available"
            drawn.append(_rect(0, at + 8 + row * 22, long, 16, kind, text))
            drawn.append(_text(long + 6, at + 20 + row * 22, text))
    note = "largest among the users whose files are available; each pair of bars has its own scale"
    return _figure("What a user sends in each phase", note, width, 220, "".join(drawn))


def _share_bytes(space: Workspace, sender: int) -> int:
    """The size of all share files of one user, if all are there."""
    try:
        return sum(space.share_path(m, sender).stat().st_size for m in space.users())
    except OSError:
        return 0


def _grid(space: Workspace, sent: set[int], u1: Survivors | None, answered: set[int]) -> str:
    """Users by phases: who was there, who dropped out, and whose answer was wrong."""
    used, wrong = set[int](), set[int]()
    with suppress(Exception), opened(space.aggregate_path, aggregate.KIND) as artifact:
        total = aggregate.parsed(space, artifact)
        used, wrong = set(total.answering), set(total.corrected)
    rows = [("sent X", sent), ("survivor, U1", set(u1.users) if u1 else set())]
    if space.session.confirm:
        rows.append(("confirmed", set(survivors.confirmed_by(space, u1.digest if u1 else "", space.users()))))
    rows += [("answered, Y", answered), ("in the decoding", used)]
    cell, left, users = 26, 120, space.users()
    drawn = [_text(left + (n - 0.5) * cell, 14, str(n), "middle") for n in users]
    for r, (name, there) in enumerate(rows):
        drawn.append(_text(0, 22 + (r + 0.65) * cell, name))
        for n in users:
            bad = r == len(rows) - 1 and n in wrong
            kind, sign = ("wrong", "✗") if bad else ("yes", "✓") if n in there else ("no", "–")
            x, y = left + (n - 1) * cell, 22 + r * cell
            drawn.append(_rect(x + 1, y + 1, cell - 2, cell - 2, kind, f"user {n}: {name}: {sign}"))
            drawn.append(_text(x + cell / 2, y + cell * 0.68, sign, "middle"))
    note = "✓ sound file, or named there; – dropped out, or not available; ✗ answered wrongly and was left out"
    width = max(520, left + len(users) * cell)
    return _figure("Who dropped out", note, width, 30 + len(rows) * cell, "".join(drawn))


_POLICY = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>"
_STYLE = """
:root { color-scheme: light dark; --fg: #1c2430; --dim: #5b6675; --bg: #fff; --line: #d5dbe3;
  --panel: #f5f7fa; --pass: #176f3d; --fail: #b3261e; --open: #8a5a00; --bar: #3b6fb5; --other: #a9b8cc;
  --level: #c2410c; }
@media (prefers-color-scheme: dark) { :root { --fg: #e3e8ef; --dim: #9aa7b8; --bg: #14181e;
  --line: #303945; --panel: #1c222b; --pass: #5cc98a; --fail: #ff8a80; --open: #f0b429; --bar: #6ea3ea;
  --other: #56657a; --level: #fb923c; } }
body { margin: 0; background: var(--bg); color: var(--fg); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.6rem; margin: 0 0 .8rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .6rem; }
code { font-size: .85rem; overflow-wrap: anywhere; }
.banner { border-left: 5px solid; padding: .6rem .9rem; background: var(--panel); font-weight: 600; }
.pass { color: var(--pass); } .fail { color: var(--fail); } .not-checkable { color: var(--open); }
dl { display: flex; flex-wrap: wrap; gap: .4rem 1.6rem; margin: 0; }
dt { color: var(--dim); font-size: .8rem; } dd { margin: 0; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; table-layout: fixed; font-size: .88rem; }
th, td { text-align: left; padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; }
th { color: var(--dim); font-weight: 500; } th:first-child { width: 7rem; }
th:last-child { width: 40%; } td:first-child { white-space: nowrap; font-weight: 600; }
details { border-bottom: 1px solid var(--line); padding: .35rem 0; } summary { cursor: pointer; }
.figures { display: grid; gap: 1.2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 500px), 1fr)); }
figure { margin: 0; padding: .9rem; background: var(--panel); border-radius: 6px; min-width: 0; }
figcaption { font-size: .85rem; color: var(--dim); margin-bottom: .6rem; }
figcaption b { color: var(--fg); } svg { font-size: 12px; } svg text { fill: var(--fg); }
.bar { fill: var(--bar); } .other { fill: var(--other); }
.level { stroke: var(--level); stroke-width: 2; } .axis { stroke: var(--dim); fill: none; }
.yes { fill: var(--pass); fill-opacity: .25; } .no { fill: none; stroke: var(--line); }
.wrong { fill: var(--fail); fill-opacity: .35; }
"""
