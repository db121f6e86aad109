"""The next basis of a low-rank series in plain Python integers and fractions. It imports nothing
of the library.

A vector is a list of integers, in units of 2^-24. A double is the fraction that it stands for.
"""

import hmac
from fractions import Fraction
from math import isqrt

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

GRID = 1 << 24
DOUBLE_BITS = 53


def to_double(x):
    """The nearest double of a fraction > 0, ties to even."""
    exponent = x.numerator.bit_length() - x.denominator.bit_length() - DOUBLE_BITS - 1
    while x >= Fraction(2) ** (exponent + DOUBLE_BITS):
        exponent += 1
    return round(x / Fraction(2) ** exponent) * Fraction(2) ** exponent


def root(square):
    """The nearest double of the square root of an integer."""
    digits = 64  # behind the binary point: more than any double has
    floor = isqrt(square << 2 * digits)
    sticky = floor * floor != square << 2 * digits  # never a tie, then
    return to_double(Fraction(2 * floor + sticky, 2 << digits))


def dot(v, b):
    return sum(x * y for x, y in zip(v, b, strict=True))


def divided(values, norm):
    """R(value / norm) of fractions, the quotient a double."""
    signs = [1 if x > 0 else -1 for x in values]
    return [
        sign * round(to_double(abs(x) / norm) * GRID) if x else 0
        for x, sign in zip(values, signs, strict=True)
    ]


def norm_of(v):
    """sqrt(v.v) as a double: v.v is an integer in units of 2^-48."""
    return root(dot(v, v)) / GRID


def unit(y):
    largest = max(abs(x) for x in y)
    s = largest.bit_length() + -(-len(y).bit_length() // 2)
    scaled = [Fraction(x, 1 << s) for x in y]
    v = divided(scaled, norm_of([round(x * GRID) for x in scaled]))
    return normalised(v)


def normalised(v):
    return divided([Fraction(x, GRID) for x in v], norm_of(v))


def drawn(nonce, name, column, attempt, length):
    label = f"basis {column} {attempt} {name}".encode()
    key = hmac.new(nonce, label, "sha256").digest()
    cipher = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    stream = cipher.update(bytes(2 * length))
    words = [stream[2 * i] | stream[2 * i + 1] << 8 | 1 for i in range(length)]
    return unit([w - (w >> 15 << 16) for w in words])


def apart(v, basis):
    """Two passes; None if the column is lacking."""
    for _ in range(2):
        for b in basis:
            c = round(Fraction(dot(v, b), GRID))
            v = [round(x - Fraction(c * y, GRID)) for x, y in zip(v, b, strict=True)]
        if Fraction(dot(v, v), GRID * GRID) < Fraction(1, 1 << 14):
            return None
        v = normalised(v)
    return v


def next_basis(columns, length, rank, nonce, name):
    """The columns of the next basis, as integers in units of 2^-20."""
    basis = []
    for j in range(rank):
        z = drawn(nonce, name, j, 0, length)
        v = z
        if j < len(columns) and any(columns[j]):
            v = [round(x + Fraction(w, 1 << 10)) for x, w in zip(unit(columns[j]), z, strict=True)]
        attempt = 0
        while (column := apart(v, basis)) is None:
            attempt += 1
            v = drawn(nonce, name, j, attempt, length)
        basis.append(column)
    return [[round(Fraction(x, 1 << 4)) for x in column] for column in basis]
