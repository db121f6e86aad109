"""Where every random byte of this package comes from: keys, nonces, identities, names of sharings.

There are two exceptions. What pyrage draws while it seals a file stays in its native code: the
sealed bytes differ from run to run, and what is inside does not. And the search for a family of
blocks (protocol/family.py) takes its choices from a generator that everybody knows, as a family is
public.

Test vectors and documents must come out the same in every run. For them code that is not installed
puts another function in the place of `source`; no option and no environment variable can.
"""

from __future__ import annotations

import os
from collections.abc import Callable


def of_system(count: int, purpose: str) -> bytes:  # noqa: ARG001 - all purposes are alike
    """So many bytes from the operating system."""
    return os.urandom(count)


source: Callable[[int, str], bytes] = of_system


def draw(count: int, purpose: str) -> bytes:
    """So many uniform bytes, never given before; `purpose` says what they are for."""
    return source(count, purpose)
