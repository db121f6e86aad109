"""Communication rates: symbols sent per input symbol, as in Theorem 1 and as measured."""

from __future__ import annotations

import math

from .parameters import Parameters


def theorem_r1(p: Parameters) -> float:
    """R1 = (K + log_q C(L, K)) / L."""
    L, K = p.length, p.top_k
    choices = math.lgamma(L + 1) - math.lgamma(K + 1) - math.lgamma(L - K + 1)
    return (K + choices / math.log(p.field)) / L


def theorem_r2(p: Parameters) -> float:
    """R2 = 1 / (U - T)."""
    return 1 / (p.survivors - p.colluders)


def measured_r1(p: Parameters, payload: int) -> float:
    """R1 of an X with this payload, in symbols of log2 q bits."""
    return payload * 8 / math.log2(p.field) / p.length


def measured_r2(p: Parameters, payload: int) -> float:
    """R2 of a Y with this payload, which stores every symbol in two or four bytes."""
    return payload / p.symbol_bytes / p.length
