"""The figures on the page of an audit, as SVG: what looks uniform, what was sent, who dropped out.

A drawing has the full width of its place: x is in per cent and y in pixels, so that text is never
scaled.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from html import escape
from typing import NamedTuple

from ..errors import counted
from ..protocol.constructions import construction
from ..protocol.parameters import theorem_r1, theorem_r2
from .evidence import Evidence
from .markup import tag
from .uniformity import LEAST_EXPECTED, Law, histogram

_FIGURE_BINS = 32
# in pixels
_LINE = 20  # from one line of text to the next
_HISTOGRAM = 180
_BAR = 8
_CELL = 24

_SIGNS = {"yes": "✓", "no": "–", "wrong": "✗"}  # in the table of drop-outs


def bars(law: Law) -> str:
    """A histogram with bins of equal width, and a line at the expected level."""
    count = sum(part.size for part in law.parts)
    most = max(1, min(_FIGURE_BINS, law.bound, count // LEAST_EXPECTED))
    # so that few values are left over
    bins = min(range(most, most // 2, -1), key=lambda bins: law.bound % bins)
    width, left = divmod(law.bound, bins)  # possible values in a bin, and those beyond the last one
    counts, _ = histogram(law.parts, bins * width, bins)
    expected = count * width / law.bound
    drawn = _histogram(counts.tolist(), expected, width=width)
    values = "values" if width > 1 else "value"
    rest = f" (the last {counted(left, 'is', 'are')} not drawn)" if left else ""
    note = (
        f"{count:,} entries in {bins} bins, "
        f"and every bin covers {width:,} possible {values}{rest}. "
        f"Bars: {min(counts)} to {max(counts)} in a bin. "
        f"Line: {expected:.1f}, expected of uniform entries."
    )
    title = f"{law.name.capitalize()} in the X of {counted(len(law.parts), 'user')}"
    return _figure(title, note, drawn, height=_HISTOGRAM + 28)


def _histogram(counts: Sequence[int], expected: float, *, width: int) -> list[str]:
    """Bars for values from 0 on, `width` of them in every bin."""
    step = 100 / len(counts)
    unit = _HISTOGRAM / (max(*counts, expected) * 1.05)  # pixels of one entry
    drawn = []
    for number, count in enumerate(counts):
        first = number * width
        drawn.append(
            _rect(
                x=number * step,
                y=_HISTOGRAM - count * unit,
                width=step,
                height=count * unit,
                kind="bar",
                title=f"{first:,} to {first + width - 1:,}: {count}, expected {expected:.1f}",
            )
        )
    for y, kind in ((_HISTOGRAM, "axis"), (_HISTOGRAM - expected * unit, "level")):
        drawn.append(f'<line x1="0" y1="{y:.1f}" x2="100%" y2="{y:.1f}" class="{kind}"/>')
    last = len(counts) * width - 1
    drawn.append(_text(0, _HISTOGRAM + _LINE, "0"))
    drawn.append(_text(100, _HISTOGRAM + _LINE, f"{last:,}", anchor="end"))
    return drawn


class _Phase(NamedTuple):
    """Bytes that a user sends in a phase, and those that `source` says are needed."""

    name: str
    measured: int
    needed: float
    source: str


def sent_bytes(evidence: Evidence) -> str:
    """What a user sends in each phase, measured and as needed; every pair of bars has its own
    scale."""
    drawn = []
    y = 0.0
    for phase in _phases(evidence):
        drawn.append(_text(0, y + 15, phase.name))
        largest = max(phase.measured, phase.needed)
        lines = ((phase.measured, "bar", "measured"), (phase.needed, "other", phase.source))
        for value, kind, label in lines:
            text = f"{label}: {value:,.0f} bytes" if value else f"{label}: not available"
            drawn.append(_text(4, y + 15 + _LINE, text))
            drawn.append(
                _rect(
                    x=4,
                    y=y + 20 + _LINE,
                    width=96 * value / largest,
                    height=_BAR,
                    kind=kind,
                    title=text,
                )
            )
            y += 32
        y += 32
    note = (
        "The most that a user sent, as far as files are available. "
        "Each pair of bars has its own scale."
    )
    return _figure("What a user sends in each phase", note, drawn, height=y)


def _phases(evidence: Evidence) -> list[_Phase]:
    """What a user sends before X, as X, and as Y: the most of any user, 0 where there is no file.

    X is packed at log2 q bits a symbol, and the theorem's X is counted so. Symbols of Y are stored
    in whole bytes, and so are the theorem's.
    """
    p = evidence.p
    payloads = evidence.payloads()
    before = _Phase(
        name=f"{p.dealing} for all users, before X",
        measured=_share_file_bytes(evidence),
        needed=_needed_before(evidence),
        source=f"{p.construction} needs",
    )
    is_dealt_here = not evidence.space.session.keys_go_on
    return [
        *([before] if is_dealt_here else []),
        _Phase(
            name="masked gradient, X",
            measured=payloads["X"],
            needed=theorem_r1(p) * p.length * math.log2(p.field) / 8,
            source="Theorem 1",
        ),
        _Phase(
            name="answer, Y",
            measured=payloads["Y"],
            needed=theorem_r2(p) * p.length * p.symbol_bytes,
            source="Theorem 1",
        ),
    ]


def _needed_before(evidence: Evidence) -> float:
    """The bytes of what one user deals to all, itself included."""
    space = evidence.space
    c = construction(evidence.p)
    family = space.session.family or ()
    return float(sum(c.held_bytes(m, family) for m in space.users()))


def _share_file_bytes(evidence: Evidence) -> int:
    """The most that the share files of one user take, of users all of whose files are there."""
    space = evidence.space
    most = 0
    for n in space.users():
        with suppress(OSError):
            sizes = (space.share_path(m, n).stat().st_size for m in space.users())
            most = max(most, sum(sizes))
    return most


def drop_outs(evidence: Evidence) -> str:
    """Users by phases: who was there, who dropped out, and whose answer was wrong."""
    users = evidence.space.users()
    wrong = evidence.aggregate.corrected if evidence.aggregate else ()
    columns = _columns(evidence)
    step = 100 / (len(columns) + 1)
    drawn = [_text(0, 15, "user")]
    for column, name in enumerate(columns, 1):
        drawn.append(_text((column + 0.5) * step, 15, name, anchor="middle"))
    for row, n in enumerate(users, 1):
        drawn.append(_text(0, row * _CELL + 16, str(n)))
        for column, (name, there) in enumerate(columns.items(), 1):
            kind = "yes" if n in there else "no"
            if name == "used" and n in wrong:
                kind = "wrong"
            sign = _SIGNS[kind]
            drawn.append(
                _rect(
                    x=column * step,
                    y=row * _CELL,
                    width=step,
                    height=_CELL,
                    kind=kind,
                    title=f"user {n}, {name}: {sign}",
                )
            )
            drawn.append(_text((column + 0.5) * step, row * _CELL + 17, sign, anchor="middle"))
    note = (
        "✓ a sound file is there; – there is none: the user dropped out, or the file is not "
        "available. Frozen: named in survivors.json. Used: its answer was decoded; ✗ it was wrong "
        "and was left out."
    )
    return _figure("Who dropped out", note, drawn, height=(len(users) + 1) * _CELL + 4)


def _columns(evidence: Evidence) -> dict[str, Collection[int]]:
    """The users that were there in each phase."""
    u1 = evidence.survivors
    columns: dict[str, Collection[int]] = {
        "sent X": evidence.masked,
        "frozen": u1.users if u1 else (),
    }
    if evidence.space.session.confirm:
        confirmed = evidence.confirmed.items()
        columns["signed"] = [n for n, digest in confirmed if u1 and digest == u1.digest]
    columns["sent Y"] = evidence.answers
    columns["used"] = evidence.aggregate.answering if evidence.aggregate else ()
    return columns


def _figure(title: str, note: str, content: Iterable[str], *, height: float) -> str:
    """A drawing under its title and a note."""
    caption = f"<figcaption><b>{escape(title)}</b><br/>{escape(note)}</figcaption>"
    size = f'width="100%" height="{height}"'
    label = f'role="img" aria-label="{escape(title)}"'
    drawing = f"<svg {size} {label}>{''.join(content)}</svg>"
    return tag("figure", caption + tag("div", drawing))


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.2f}%" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _rect(*, x: float, y: float, width: float, height: float, kind: str, title: str) -> str:
    shape = f'x="{x:.2f}%" y="{y:.1f}" width="{max(width, 0):.2f}%" height="{max(height, 0):.1f}"'
    return f'<rect {shape} class="{kind}"><title>{escape(title)}</title></rect>'
