"""One user's keys in session.json spoil nobody else's round: they are refused before anything is
sealed to them, or believed that they signed."""

import base64
import re

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from played import Round, call, must, put

from topk_secagg.errors import BadData
from topk_secagg.storage import bech32, keys
from topk_secagg.storage.keys import Recipient, check_recipients

pytestmark = pytest.mark.rule(17)

CHEAT = 5
PRIME = 2**255 - 19
_EIGHTH = "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"
OF_ORDER_8 = int.from_bytes(bytes.fromhex(_EIGHTH), "little")  # y of such a point of Ed25519
U_OF_ORDER_8 = (1 + OF_ORDER_8) * pow(1 - OF_ORDER_8, -1, PRIME) % PRIME
NEUTRAL = (1).to_bytes(32, "little").hex()  # y of the point that any signature fits
ANY_SIGNATURE = NEUTRAL + bytes(32).hex()  # the neutral point, and zero


def age_key(u: int) -> str:
    return bech32.encode("age", u.to_bytes(32, "little"))


AGE_KEYS = {  # what user 5 says its key is, and the program's own word for it
    "zero": age_key(0),
    "order 1": age_key(1),
    "order 2": age_key(PRIME - 1),
    "order 8": age_key(U_OF_ORDER_8),
    "not reduced": age_key(PRIME + 9),
    "too short": bech32.encode("age", bytes(31)),
    "too long": bech32.encode("age", bytes(33)),
    "no prefix": "agf1" + age_key(9)[4:],
    "no bech32": "age1" + "b" * 58,
    "empty": "",
    "not ASCII": "age1é" + age_key(9)[5:],
}
SIGNING_KEYS = {
    "neutral": NEUTRAL,
    "neutral, signed": (1 | 1 << 255).to_bytes(32, "little").hex(),
    "order 2": (PRIME - 1).to_bytes(32, "little").hex(),
    "order 4": bytes(32).hex(),
    "order 8": _EIGHTH,
    "order 8, too": (PRIME - OF_ORDER_8).to_bytes(32, "little").hex(),
    "not reduced": (PRIME + 1).to_bytes(32, "little").hex(),
    "too short": bytes(31).hex(),
    "upper case": "AB" * 32,
    "empty": "",
}


@pytest.fixture
def r(round_at) -> Round:
    return round_at("init", sealed=True)


def accuse(r: Round, **said: str) -> None:
    """The session is issued with these keys of user 5."""
    for name, value in said.items():
        put(r.folder / "session.json", value, "recipients", CHEAT - 1, name)


@pytest.mark.parametrize("what", AGE_KEYS)
def test_a_key_that_nothing_can_be_sealed_to_is_refused_before_anything_is_drawn(r, refuses, what):
    accuse(r, age=AGE_KEYS[what])
    for step in (r.offline(1), r.mask(1), ("status", r.folder)):
        refuses(65, *step, says=f"the keys of user {CHEAT} are not valid")


@pytest.mark.parametrize("what", SIGNING_KEYS)
def test_a_key_that_anybody_can_sign_for_is_refused(r, refuses, what):
    accuse(r, ed25519=SIGNING_KEYS[what])
    refuses(65, *r.offline(1), says=f"the keys of user {CHEAT} are not valid")


@pytest.mark.parametrize("key", [AGE_KEYS["zero"], AGE_KEYS["order 8"]])
def test_without_the_check_every_honest_user_ends_in_a_panic(r, monkeypatch, capfd, key):
    """The twin."""
    accuse(r, age=key)
    monkeypatch.setattr(keys, "_check_order", lambda _: None)
    with pytest.raises(BaseException, match="all-zero"):
        call(*r.offline(1))
    assert "panicked" in capfd.readouterr().err


def test_one_key_in_two_spellings_is_not_two_users(r, refuses):
    """The second spelling sets a bit that nobody who uses the key looks at."""
    real = bech32.decode("age", keys.read_identity(r.identity(1)).public(1).age)
    accuse(r, age=bech32.encode("age", real[:31] + bytes([real[31] | 0x80])))
    refuses(65, *r.offline(2), says=f"the keys of user {CHEAT} are not valid")
    accuse(r, age=bech32.encode("age", real))
    refuses(65, *r.offline(2), says="two users have the same key")


def file_key(sealed: bytes, secret: bytes, public: bytes) -> bytes:
    """What opens a sealed file, by the specification of age, for whoever has a secret key of which
    this is *a* public one."""
    own, wrapped = re.search(rb"-> X25519 (\S+)\n(\S+)\n", sealed).groups()
    half, body = (base64.b64decode(text + b"==") for text in (own, wrapped))
    key = X25519PrivateKey.from_private_bytes(secret)
    shared = key.exchange(X25519PublicKey.from_public_bytes(half))
    derived = HKDF(SHA256(), 32, half + public, b"age-encryption.org/v1/X25519").derive(shared)
    return ChaCha20Poly1305(derived).decrypt(bytes(12), body, None)


def test_without_the_check_one_person_opens_the_shares_of_two_users(r, monkeypatch):
    """The twin: of T = 1 colluder the secret of user 2 was safe; now user 1 alone has two
    shares."""
    identity = keys.read_identity(r.identity(1))
    secret = bech32.decode("age-secret-key-", identity.age.lower())
    real = bech32.decode("age", identity.public(1).age)
    other = real[:31] + bytes([real[31] | 0x80])
    accuse(r, age=bech32.encode("age", other))
    monkeypatch.setattr(keys, "_check_order", lambda _: None)
    must(*r.offline(2))
    for holder, public in ((1, real), (CHEAT, other)):
        sealed = r.space().share_path(holder, 2).read_bytes()
        assert len(file_key(sealed, secret, public)) == 16
    with pytest.raises(InvalidTag):
        file_key(r.space().share_path(3, 2).read_bytes(), secret, real)


def test_without_the_check_anybody_signs_for_that_user(r, monkeypatch):
    """The twin: one signature fits every file."""
    victim = Recipient(CHEAT, keys.read_identity(r.identity(CHEAT)).public(CHEAT).age, NEUTRAL)
    with pytest.raises(BadData, match="not valid"):
        check_recipients((victim,))
    accuse(r, ed25519=NEUTRAL)
    monkeypatch.setattr(keys, "_check_ed25519", lambda _: None)
    for digest in ("0" * 64, "1" * 64):
        keys.check_signature(victim, kind="masked", digest=digest, signature=ANY_SIGNATURE)


def stanza(u: int) -> bytes:
    """A sealed file whose sender's half of the key exchange is this point."""

    def text(value: bytes) -> bytes:
        return base64.b64encode(value).rstrip(b"=")

    half = text(u.to_bytes(32, "little"))
    wrapped = text(bytes(32))
    lines = (b"age-encryption.org/v1", b"-> X25519 " + half, wrapped, b"--- " + wrapped)
    return b"\n".join(lines) + b"\n" + bytes(500)


@pytest.mark.parametrize(
    "share", [stanza(0), stanza(1), stanza(U_OF_ORDER_8), stanza(PRIME), stanza(9), b"", b"age"]
)
def test_a_share_that_does_not_open_spoils_its_dealer_alone(round_at, share):
    r = round_at("offline", sealed=True)
    r.space().share_path(1, CHEAT).write_bytes(share)
    said = must(*r.mask(1, "--json"))
    assert list(said.json["bad_shares"]) == [str(CHEAT)]
    assert said.json["holds"] == [1, 2, 3, 4]
