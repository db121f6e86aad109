"""Bech32 by the vectors of BIP 173, and by what age itself takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topk_secagg.storage import bech32
from topk_secagg.storage.keys import Identity, _pyrage


def by_words(text: str) -> bytes:
    """The payload of a valid string, in whole bytes."""
    letters = text.lower().rpartition("1")[2][:-6]
    bits = "".join(f"{'qpzry9x8gf2tvdw0s3jn54khce6mua7l'.index(c):05b}" for c in letters)
    return bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits) - 7, 8))


@pytest.mark.parametrize(
    "valid",
    [
        "A12UEL5L",
        "an83characterlonghumanreadablepartthatcontainsthenumber1andtheexcludedcharactersbio1tt5tgs",
        "11qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqc8247j",
        "?1ezyfcl",
    ],
)
def test_strings_of_the_standard(valid):
    prefix = valid.lower().rpartition("1")[0]
    assert bech32.encode(prefix, by_words(valid)) == valid.lower()


@given(st.binary(min_size=32, max_size=32))
def test_age_reads_it_as_the_same_key(secret):
    text = bech32.encode("age-secret-key-", secret).upper()
    assert str(_pyrage().x25519.Identity.from_str(text)) == text
    assert by_words(text) == secret


def test_one_wrong_letter_is_no_key():
    key = Identity.drawn("2" * 64).age
    for at in range(len("age-secret-key-1"), len(key)):
        wrong = key[:at] + ("Q" if key[at] != "Q" else "P") + key[at + 1 :]
        with pytest.raises(_pyrage().IdentityError):
            _pyrage().x25519.Identity.from_str(wrong)
