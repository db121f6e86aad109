"""A session says how each tensor is reduced. What it says must fit: anything else is refused in one
line, by whoever reads it, before anything is computed from it."""

import json
import shutil
from copy import deepcopy

import numpy as np
import pytest
from played import ROOT, call, document, edit, must, put, words

from topk_secagg.gradients.reduce import Reduction
from topk_secagg.storage.session import Session, read_session

ARCHIVE = ROOT / "fixtures" / "archive" / "v1"
LOW_RANK = "low-rank-keys-plain"
TOP_K = "sketch-keys-plain"
CONV, BIAS, FC, NORM = range(4)  # the tensors of the archived layout; the last one is whole
HUGE = 10**4000  # which the parser of JSON takes for no integer
UNFIT = "not reduced as their shapes ask for"
NOT_TOGETHER = "belong together"
NO_CLIP = "a tensor of the layout has no clip"
NO_JSON = "is not a JSON document"

# where in session.json, what is put there, and what is said of it
WRONG = {
    # the reduction against the shape
    "a vector projected": (("layout", BIAS, "reduction"), "low-rank", UNFIT),
    "a matrix picked from": (("layout", FC, "reduction"), "top-k", UNFIT),
    "a matrix whole": (("layout", FC, "reduction"), "whole", "is reduced to"),
    "a whole matrix projected": (("layout", NORM, "reduction"), "low-rank", "is reduced to"),
    "another shape": (("layout", FC, "shape"), [8, 5], "is reduced to"),
    "a flatter shape": (("layout", FC, "shape"), [2, 20], UNFIT),
    "an unknown reduction": (("layout", FC, "reduction"), "sparse", UNFIT),
    "no reduction": (("layout", FC, "reduction"), None, UNFIT),
    "a list for a reduction": (("layout", FC, "reduction"), ["low-rank"], UNFIT),
    "an object for a reduction": (("layout", FC, "reduction"), {"low-rank": 2}, UNFIT),
    "a text for a tensor": (("layout", FC), "fc.weight", NO_CLIP),
    "another key": (("layout", FC, "rank"), 2, "does not have a name, shape and dtype"),
    "more coordinates": (("parameters", "length"), 10**6, "cannot select 0 of 999960"),
    "fewer whole": (("parameters", "whole"), 0, "cannot select 0"),
    # the rank
    "a larger rank": (("rank",), 3, "is reduced to"),
    "a smaller rank": (("rank",), 1, "is reduced to"),
    "a rank of no matrix": (("rank",), 1000, UNFIT),
    "a huge rank": (("rank",), HUGE, NO_JSON),
    "a rank of 2^64": (("rank",), 2**64, UNFIT),
    "a rank of 0": (("rank",), 0, "a rank of 0"),
    "a negative rank": (("rank",), -2, "a rank of -2"),
    "a rank that is no integer": (("rank",), 2.0, "its rank is not"),
    "a truth for a rank": (("rank",), True, "its rank is not"),
    "a basis without rank": (("rank",), None, NOT_TOGETHER),
    # the side
    "no side": (("side",), None, NOT_TOGETHER),
    "an unknown side": (("side",), "up", "the side of the basis is 'up'"),
    "a side in capitals": (("side",), "LEFT", "the side of the basis"),
    "an endless side": (("side",), "left" * 10**5, "the side of the basis"),
    "a number for a side": (("side",), 1, "its side is not"),
    "the other side": (("side",), "left", "is reduced to"),
    # the basis
    "no basis": (("basis",), None, "there is a basis and nothing is projected, or the reverse"),
    "a short basis": (("basis",), "a" * 63, "its basis is not"),
    "a basis in capitals": (("basis",), "A" * 64, "its basis is not"),
    "a basis of numbers": (("basis",), [0] * 64, "its basis is not"),
    # clips
    "no clip": (("layout", BIAS, "clip"), None, NO_CLIP),
    "an integer for a clip": (("layout", BIAS, "clip"), 1, NO_CLIP),
    "a text for a clip": (("layout", BIAS, "clip"), "1.0", NO_CLIP),
    "NaN": (("layout", BIAS, "clip"), float("nan"), NO_JSON),
    "Infinity": (("layout", BIAS, "clip"), float("inf"), NO_JSON),
    "a negative clip": (("layout", BIAS, "clip"), -1.0, "the clip is -1"),
    "a clip of zero": (("layout", BIAS, "clip"), 0.0, "the clip is 0"),
    "a clip of minus zero": (("layout", BIAS, "clip"), -0.0, "the clip is -0"),
    "a clip beyond 2^53": (("layout", BIAS, "clip"), 2.0**54, "the clip is 1.80144e+16"),
    "a clip without a step": (("layout", BIAS, "clip"), 2.0**53, "no room"),
    "a subnormal clip": (("layout", BIAS, "clip"), 5e-324, "no room"),
    # what users agree on besides
    "a context that is no digest": (("context",), "model.pt", "its context is not"),
    "a context in capitals": (("context",), "A" * 64, "its context is not"),
    "a number for a context": (("context",), 5, "its context is not"),
    "a weight without a name": (("weight_name",), "", "the name of the weight"),
    "a weight with a long name": (("weight_name",), "n" * 1025, "the name of the weight"),
    "a number for a weight's name": (("weight_name",), 1, "its weight_name is not"),
    "a decay of NaN": (("feedback_decay",), float("nan"), NO_JSON),
    "a negative decay": (("feedback_decay",), -0.5, "a decay of -0.5"),
    "a decay beyond 1": (("feedback_decay",), 1.5, "a decay of 1.5"),
}


@pytest.fixture
def folder(tmp_path):
    """A round of low rank that nobody has taken part in."""
    return started(tmp_path, LOW_RANK)


def started(tmp_path, name):
    folder = tmp_path / "round"
    folder.mkdir()
    for file in ("session.json", "basis.h5"):
        if (ARCHIVE / name / file).exists():
            shutil.copy(ARCHIVE / name / file, folder / file)
    return folder


@pytest.mark.rule(14)
@pytest.mark.parametrize("case", WRONG)
def test_a_session_that_does_not_fit_is_refused(folder, refuses, case):
    place, value, said = WRONG[case]
    call("status", folder)  # makes the folders of the round
    written = json_of(folder)
    if isinstance(value, int) and value == HUGE:
        text = (folder / "session.json").read_text()
        assert '"rank": 2,' in text
        (folder / "session.json").write_text(text.replace('"rank": 2,', f'"rank": 1{"0" * 9000},'))
    else:
        at(written, place[:-1])[place[-1]] = value
        (folder / "session.json").write_text(json.dumps(written, indent=2) + "\n")
    assert len(refuses(65, "offline", folder, "--user", 1, says=said).err) < 1000


def json_of(folder):
    return deepcopy(document(folder / "session.json"))


def at(body, place):
    for key in place:
        body = body[key]
    return body


@pytest.mark.parametrize("command", ["status", "audit", "decode", "freeze"])
def test_every_reader_refuses_it(folder, command):
    must("offline", folder, "--user", "all")
    put(folder / "session.json", -1.0, "layout", BIAS, "clip")
    result = call(command, folder)
    assert result.code == 65
    assert "the clip is -1" in result.err


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("clip", NO_CLIP),
        ("reduction", UNFIT),
        ("shape", "does not have a name, shape and dtype"),
    ],
)
def test_a_key_of_a_tensor_that_is_missing_is_noticed(folder, refuses, key, said):
    edit(folder / "session.json", lambda body: body["layout"][FC].pop(key))
    refuses(65, "offline", folder, "--user", 1, says=said)


@pytest.mark.parametrize(
    "key", ["rank", "side", "basis", "context", "weight_name", "before", "feedback_decay"]
)
def test_a_key_that_is_missing_is_noticed(folder, refuses, key):
    edit(folder / "session.json", lambda body: body.pop(key))
    refuses(65, "offline", folder, "--user", 1, says="does not have the keys of a session")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rank": 2, "side": "right"}, UNFIT),
        ({"rank": 2}, NOT_TOGETHER),
        ({"side": "right"}, NOT_TOGETHER),
        ({"basis": "a" * 64}, "there is a basis and nothing is projected"),
        ({"rank": 2, "side": "right", "basis": "a" * 64}, UNFIT),
    ],
)
def test_top_k_has_neither_rank_nor_side_nor_basis(tmp_path, refuses, changes, said):
    folder = started(tmp_path, TOP_K)
    edit(folder / "session.json", lambda body: body.update(changes))
    refuses(65, "offline", folder, "--user", 1, says=said)


def test_a_rank_beyond_exactness_is_refused(tmp_path, refuses):
    """In a field below 2^32 sums are decoded exactly up to rank 16."""
    np.save(tmp_path / "g.npy", np.ones((60, 40)))
    options = words("--users 5 --survivors 3 --colluders 1 --field 4281076801 --rank")
    like = ("--like", tmp_path / "g.npy")
    refuses(2, "init", tmp_path / "no", *like, *options, 17, says="a rank of 17 in a field")
    must("init", tmp_path / "round", *like, *options, 16)

    def with_more(body):
        body["rank"] = 17
        body["parameters"] |= {"length": 60 * 17, "whole": 60 * 17}

    edit(tmp_path / "round" / "session.json", with_more)
    refuses(65, "offline", tmp_path / "round", "--user", 1, says="a rank of 17 in a field")


def test_a_hundred_thousand_tensors_are_refused_without_computing(folder, refuses, monkeypatch):
    """In two spellings: the program's own is larger than any document."""

    def many(body):
        body["layout"] = [
            body["layout"][FC] | {"name": f"layers.{n}.attention.weight"} for n in range(100_000)
        ]

    monkeypatch.setattr(Reduction, "of_kinds", lambda *_, **__: pytest.fail("it was computed"))
    edit(folder / "session.json", many)
    assert (folder / "session.json").stat().st_size > 16 << 20
    refuses(65, "offline", folder, "--user", 1, says="is too large to be what its name says")
    compact = json.dumps(json_of(folder), separators=(",", ":"))
    (folder / "session.json").write_text(compact)
    refuses(65, "offline", folder, "--user", 1, says="100000 tensors")


def test_more_coordinates_than_any_gradient_has_are_refused(folder, refuses):
    """Although hardly any of them are sent."""

    def large(body):
        body["layout"] = [
            body["layout"][FC] | {"name": name, "shape": [2**15, 2**16 + 1]} for name in "ab"
        ]
        symbols = 2 * 2 * 2**15
        body["parameters"] |= {"length": symbols, "whole": symbols}

    edit(folder / "session.json", large)
    refuses(65, "offline", folder, "--user", 1, says="a layout of 4295032832 coordinates")


def test_as_many_as_a_session_may_have_are_read(folder):
    """Each with a clip of its own."""
    count = (1 << 16) - 1

    def many(body):
        body["layout"] = [
            {**body["layout"][BIAS], "name": f"t{n}", "clip": 1 + n / count, "shape": [1]}
            for n in range(count)
        ] + [body["layout"][FC]]
        symbols = count + 10
        body["parameters"] |= {"length": symbols, "whole": symbols}

    edit(folder / "session.json", many)
    session = read_session(folder / "session.json")
    assert len(session.fixed_point.runs) == count + 1
    assert session.content() == (folder / "session.json").read_bytes()


@pytest.mark.parametrize("name", ["weight\nof a user", "\x1b[31mred", "a\u202eb"])
def test_the_name_of_the_weight_cannot_write_to_a_terminal(folder, name):
    """It is somebody else's text."""
    put(folder / "session.json", name, "weight_name")
    assert read_session(folder / "session.json").weight_name == name
    for command, path in (("inspect", folder / "session.json"), ("status", folder)):
        result = must(command, path)
        assert name not in result.out + result.err


@pytest.mark.rule(14)
class TestTwins:
    """Without its check, each of these sessions would be taken."""

    @pytest.mark.parametrize(
        "case",
        ["more coordinates", "no basis", "a negative clip", "a weight with a long name"],
    )
    def test_without_the_check_it_is_read(self, folder, monkeypatch, case):
        monkeypatch.setattr(Session, "_check_reduction", lambda _: None)
        place, value, _ = WRONG[case]
        put(folder / "session.json", value, *place)
        if place == ("parameters", "length"):
            put(folder / "session.json", value, "parameters", "whole")
        read_session(folder / "session.json")
