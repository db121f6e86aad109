"""Random bytes come through one function, which only code can replace that is not installed."""

import ast
import os
from collections import Counter
from collections.abc import Iterator

import pytest
from deterministic import drawn_from, injected, source_of
from played import CONFIRMING, ROOT, Violation

from topk_secagg.algebra import entropy
from topk_secagg.storage.keys import Identity

MODULES = sorted(
    path for package in ("topk_secagg", "cli") for path in ROOT.glob(f"{package}/**/*.py")
)
GENERATORS = {"random", "secrets", "uuid"}  # modules
DRAWING = {  # functions and classes, of whatever module
    "urandom", "getrandom", "SystemRandom", "default_rng", "token_bytes", "token_hex", "uuid4",
    "generate", "generate_key", "generate_private_key",
}  # fmt: skip
ALLOWED = {
    ("topk_secagg/algebra/entropy.py", "urandom"),
    ("topk_secagg/protocol/family.py", "random"),  # public choices, of a fixed seed
}


def sources_of(code: str) -> Iterator[str]:
    """What in this code could draw random bytes, or replace their source."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Import(names=names):
                yield from GENERATORS & {part for name in names for part in name.name.split(".")}
            case ast.ImportFrom(module=module, names=names, level=0):
                parts = {*(module or "").split("."), *(name.name for name in names)}
                yield from (GENERATORS | DRAWING) & parts
            case ast.Attribute(value=ast.Name(id="np" | "numpy"), attr="random"):
                yield "numpy.random"
            case ast.Attribute(value=ast.Name(id="entropy"), attr="source"):
                yield "entropy.source"
            case ast.Attribute(attr=name) if name in DRAWING:
                yield name
            case ast.Constant(value=str(text)) if text.strip() in {
                "urandom", "source", "/dev/random", "/dev/urandom"
            }:  # fmt: skip
                yield text.strip()


def test_nothing_else_draws_any():
    found = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in MODULES
        for name in sources_of(path.read_text())
    }
    assert found == ALLOWED


@pytest.mark.parametrize(
    "code",
    [
        "import secrets",
        "import random as r",
        "import numpy.random",
        "from random import Random",
        "from os import urandom as u",
        "from numpy import random",
        "os.urandom(8)",
        "np.random.default_rng()",
        "np.random.seed(1)",
        "getattr(os, 'urandom')(8)",
        "open('/dev/urandom', 'rb')",
        "Ed25519PrivateKey.generate()",
        "_pyrage().x25519.Identity.generate()",
        "AESGCM.generate_key(256)",
        "from .algebra import entropy\nentropy.source = bytes",
        "setattr(entropy, 'source', bytes)",
    ],
)
def test_the_search_would_see_it(code):
    assert list(sources_of(code))


def test_the_search_for_a_family_starts_from_a_number_that_everybody_knows():
    path = ROOT / "topk_secagg/protocol/family.py"
    made = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("random.")
    ]
    assert [ast.unparse(call) for call in made] == ["random.Random(_FIRST_SEED + attempt)"]


def test_no_variable_of_the_environment_has_a_say():
    tree = ast.parse((ROOT / "topk_secagg/algebra/entropy.py").read_text())
    uses = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert uses == {"os.urandom"}


def test_by_default_they_are_the_operating_systems(monkeypatch):
    assert entropy.source is entropy.of_system
    monkeypatch.setattr(os, "urandom", lambda count: b"x" * count)
    assert entropy.draw(3, "anything") == b"xxx"


@pytest.fixture
def without_a_system(monkeypatch):
    """The operating system's generator is gone, for keys too."""

    def gone(count):
        raise AssertionError("the operating system was asked")

    monkeypatch.setattr(os, "urandom", gone)


@pytest.mark.usefixtures("without_a_system")
@pytest.mark.parametrize("construction", ["permutation", "sketch"])
def test_a_whole_round_asks_for_nothing_else(new_round, construction):
    asked = Counter()
    drawn = source_of(1)

    def noted(count, purpose):
        asked[purpose.partition(" in session")[0]] += 1
        return drawn(count, purpose)

    with injected(noted):
        new_round(**CONFIRMING).play().check_sum()
    assert asked == {
        "number of a folder of secrets": 1,
        "age identity": 5,
        "Ed25519 key": 5,
        "nonce of a session": 1,
        **{f"secret of user {n}": 1 for n in range(1, 6)},
        "digests of gradients": 1,
        "checks of answers": 1,
    }


@pytest.mark.usefixtures("without_a_system")
@pytest.mark.rule(5)
def test_if_one_step_asked_the_system_itself_the_round_would_end(new_round, monkeypatch):
    """The twin."""
    monkeypatch.setattr(
        Identity, "drawn", lambda number: Identity("", os.urandom(32).hex(), number)
    )
    with drawn_from(1), pytest.raises(Violation, match="the operating system was asked"):
        new_round(**CONFIRMING).play()


def test_the_source_of_tests_does_not_depend_on_the_order_of_threads():
    with drawn_from(1):
        one = [entropy.draw(32, purpose) for purpose in ("a", "b", "a")]
    with drawn_from(1):
        two = [entropy.draw(32, purpose) for purpose in ("b", "a", "a")]
    assert one == [two[1], two[0], two[2]]
    assert len(set(one)) == 3
    assert entropy.source is entropy.of_system
