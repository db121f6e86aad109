"""Elements of HTML, as text."""

from __future__ import annotations


def tag(name: str, content: str, kind: str = "") -> str:
    """An element around content that is already escaped."""
    return f"<{name}{f' class={kind!r}' if kind else ''}>{content}</{name}>"
