"""Reprs that fit on a few lines, for people who try things out in a notebook."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

_WIDTH = 88  # columns of a repr
_LONGEST = 70  # characters of one value: a digest fits
_DIGITS = 8  # of a number that is not whole
_FEW = 12  # entries of a list that are shown


class Brief:
    """Gives a dataclass, made with repr=False, a repr in which arrays and long values are
    abbreviated."""

    def __repr__(self) -> str:
        parts = [
            f"{field.name}={shown(getattr(self, field.name))}"
            for field in fields(self)  # type: ignore[arg-type]  # every subclass is a dataclass
            if field.repr
        ]
        return laid_out(type(self).__name__, parts)


def laid_out(name: str, parts: list[str]) -> str:
    """`name(part, part, ...)` in lines that break between parts."""
    line = f"{name}({', '.join(parts)})"
    if len(line) <= _WIDTH and "\n" not in line:
        return line
    lines = [f"{name}("]
    for part in parts:
        fits = len(lines) > 1 and len(lines[-1]) + len(part) + 2 <= _WIDTH
        if fits and "\n" not in part:
            lines[-1] += f" {part},"
        else:
            lines.append(textwrap.indent(f"{part},", "    "))
    return "\n".join([*lines, ")"])


def shown(value: Any) -> str:
    """A value in a repr: of an array its type and shape, of a long list or mapping its beginning,
    of a number its first digits."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"<{str(value.dtype).removeprefix('torch.')} array {tuple(value.shape)}>"
    if isinstance(value, float):
        return repr(float(f"{value:.{_DIGITS}g}"))
    if isinstance(value, Path):
        return repr(str(value))
    if isinstance(value, Mapping):
        items = [f"{key!r}: {shown(item)}" for key, item in list(value.items())[:3]]
        return _joined("{}", items, count=len(value))
    if isinstance(value, list | tuple | range):
        if any(is_dataclass(item) or hasattr(item, "_fields") for item in value):
            return f"[{len(value)} x {type(value[0]).__name__}]"
        items = [shown(item) for item in value[:_FEW]]
        return _joined("[]", items, count=len(value))
    if isinstance(value, str) and len(value) > _LONGEST:
        return repr(f"{value[:_LONGEST]}...")
    text = repr(value)
    if is_dataclass(value) or len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}..."


def _joined(brackets: str, items: list[str], *, count: int) -> str:
    """A list or mapping of `count` entries, of which these are shown."""
    start = brackets[0]
    end = brackets[1]
    text = ", ".join(items)
    if len(text) > _LONGEST:
        return f"{start}{count} entries{end}"
    more = f", ... {count} in all" if count > len(items) else ""
    return f"{start}{text}{more}{end}"
