"""Random bytes come through one function: no other code draws any, or replaces it."""

import ast
from collections.abc import Iterator

import pytest
from played import ROOT

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
