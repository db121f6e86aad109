"""The README for a package index, which shows it outside of the repository: there, relative links
lead nowhere.

Usage: index_readme.py FOLDER [REPOSITORY REF]

Rewrites FOLDER/README.md, in a copy of the sources from which a release is built. With the address
of the repository and a tag, such as https://example.org/group/topk-secagg v0.1.0, links and
pictures lead there. Without, pictures are left out, and links become plain text.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

# a link or a picture with a relative target: not https://, mailto:, nor a place on the same page
_RELATIVE = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")


def for_index(text: str, repository: str = "", ref: str = "") -> str:
    """The text with absolute links and pictures, or without any where there is no address."""

    def replaced(match: re.Match[str]) -> str:
        picture, words, target = match.groups()
        if not repository:
            return "" if picture else words
        view = "raw" if picture else "blob"
        return f"{picture}[{words}]({repository.rstrip('/')}/{view}/{ref}/{target})"

    return _RELATIVE.sub(replaced, text)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 4):
        sys.exit("usage: index_readme.py FOLDER [REPOSITORY REF]")
    readme = Path(sys.argv[1]) / "README.md"
    readme.write_text(for_index(readme.read_text(), *sys.argv[2:]))
