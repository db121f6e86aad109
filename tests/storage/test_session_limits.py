"""session.json comes from somebody else: reading it takes little work, whatever is in it."""

import hashlib
import json
import math
from collections import Counter
from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from played import call, document, must, put, words

from topk_secagg.errors import UsageError
from topk_secagg.gradients import layout as layouts
from topk_secagg.gradients.layout import Layout, Slot
from topk_secagg.gradients.reduced import Reduced
from topk_secagg.storage import documents
from topk_secagg.storage import session as sessions
from topk_secagg.storage.keys import Recipient
from topk_secagg.storage.session import Session, read_session

READERS = {
    "offline": "--user 1",
    "mask": "--user 1 --gradient x.npy",
    "freeze": "",
    "eliminate": "--user all",
    "decode": "",
    "forget": "--user 1",
    "status": "",
    "audit": "",
}
MANY = 60_000


@pytest.fixture
def folder(round_at):
    return round_at("init").folder


@pytest.fixture
def sizes(monkeypatch):
    """The numbers of dimensions whose product was computed."""
    seen = []

    def size(tensor):
        seen.append(len(tensor.shape))
        return math.prod(tensor.shape[:100])  # a twin must end, too

    monkeypatch.setattr(Slot, "size", property(size))
    monkeypatch.setattr(Reduced, "symbols", property(size))
    monkeypatch.setattr(Reduced, "entries", property(size))
    return seen


@pytest.mark.rule(18)
class TestDimensions:
    @pytest.mark.parametrize("command", ["offline", "status", "decode", "audit"])
    def test_sixty_thousand_of_them_are_refused_before_they_are_multiplied(
        self, folder, sizes, command
    ):
        put(folder / "session.json", [2**31] * MANY, "layout", 0, "shape")
        result = call(command, folder, *READERS[command].split())
        assert result.code == 65
        assert "60000 dimensions" in result.err
        assert max(sizes, default=0) <= layouts.MOST_DIMENSIONS

    def test_without_the_limit_they_are_multiplied(self, folder, sizes, monkeypatch):
        """The twin."""
        put(folder / "session.json", [2**31] * MANY, "layout", 0, "shape")
        monkeypatch.setattr(Layout, "check_limits", lambda _: None)
        assert call("offline", folder, "--user", 1).code == 65
        assert max(sizes) == MANY

    @pytest.mark.parametrize(
        "shape", [[2**16, 2**16], [2**31, 2**31, 0], [10**4000], [4] + [1] * 8, [2**32]]
    )
    def test_shapes_that_no_session_has(self, folder, refuses, shape):
        put(folder / "session.json", shape, "layout", 0, "shape")
        said = refuses(65, "offline", folder, "--user", 1).err
        assert "dimensions" in said or "too many coordinates" in said

    @given(st.lists(st.integers(0, 2**40) | st.integers(0, 300), max_size=12))
    def test_a_shape_is_taken_exactly_if_it_is_within_the_limits(self, shape):
        product = math.prod(max(extent, 1) for extent in shape)
        fits = len(shape) <= 8 and product < 2**32
        try:
            Slot("x", tuple(shape), "float32").check_limits()
        except UsageError:
            assert not fits
        else:
            assert fits

    def test_a_gradient_beyond_the_limits_starts_no_round(self, tmp_path, refuses):
        import numpy as np

        np.save(tmp_path / "g.npy", np.ones([2] + [1] * 8))
        options = words("--users 5 --survivors 3 --colluders 1 --top-k 1")
        like = ("--like", tmp_path / "g.npy")
        said = refuses(2, "init", tmp_path / "round", *like, *options).err
        assert "has 9 dimensions" in said
        assert not (tmp_path / "round").exists()


class TestLists:
    def test_too_many_tensors(self, folder, refuses):
        more = [f"t{n}" for n in range(layouts.MOST_TENSORS)]
        put(folder / "session.json", more, "left_out")
        assert "65537 tensors" in refuses(65, "offline", folder, "--user", 1).err
        put(folder / "session.json", more[1:], "left_out")
        must("offline", folder, "--user", 1)

    def test_a_long_name(self, folder, refuses):
        put(folder / "session.json", "a." * 10**6, "layout", 0, "name")
        said = refuses(65, "offline", folder, "--user", 1).err
        assert "has 2000000 characters" in said
        assert len(said) < 1000

    def test_too_many_users_start_no_round(self, tmp_path, refuses):
        options = words("--survivors 3 --colluders 1 --top-k 1 --length 4 --users")
        assert "at most 1024" in refuses(2, "init", tmp_path / "round", *options, 1025).err

    def test_too_many_users_are_refused_before_keys_and_tensors_are_checked(
        self, folder, refuses, monkeypatch
    ):
        path = folder / "session.json"
        users = sessions.MOST_USERS + 1
        first = document(path)["points"]["beta"][-1] + 1
        put(path, users, "parameters", "users")
        put(path, list(range(first, first + users)), "points", "alpha")
        for check in ("_check_reduction", "_check_keys"):
            monkeypatch.setattr(Session, check, mock.Mock(side_effect=AssertionError))
        assert "1025 users" in refuses(65, "offline", folder, "--user", 1).err

    def test_an_endless_list_is_refused_before_its_entries_are_looked_at(self, folder, monkeypatch):
        count = Counter()
        typed = documents.typed

        def counted(value, wanted, name):
            count[name] += 1
            return typed(value, wanted, name)

        put(folder / "session.json", list(range(10**6)), "points", "alpha")
        monkeypatch.setattr(documents, "typed", counted)
        assert call("offline", folder, "--user", 1).code == 65
        assert count["points.alpha"] == 1
        monkeypatch.setattr(documents, "LONGEST_LIST", 10**7)  # the twin
        assert call("offline", folder, "--user", 1).code == 65
        assert count["points.alpha"] > 10**6

    def test_the_types_of_a_row_are_found_out_once(self, monkeypatch):
        hints = mock.Mock(wraps=documents.get_type_hints)
        monkeypatch.setattr(documents, "get_type_hints", hints)
        documents._fields.cache_clear()
        rows = [{"user": n, "age": "a", "ed25519": "b"} for n in range(500)]
        assert len(documents.typed(rows, tuple[Recipient, ...], "recipients")) == 500
        assert hints.call_count == 1


class TestThePinComesFirst:
    """Whatever is in session.json, a wrong one is refused without a look at its content."""

    @pytest.fixture
    def parsed(self, monkeypatch):
        """How often a JSON document was parsed."""
        loads = mock.Mock(wraps=json.loads)
        monkeypatch.setattr(json, "loads", loads)
        return loads

    @pytest.mark.parametrize("command", READERS)
    def test_nothing_of_another_session_is_parsed(self, folder, refuses, parsed, command):
        put(folder / "session.json", [2**31] * MANY, "layout", 0, "shape")
        parsed.reset_mock()
        args = (command, folder, *READERS[command].split(), "--session", "0" * 16)
        assert "this is session" in refuses(77, *args).err
        assert parsed.call_count == 0

    @pytest.mark.parametrize("command", READERS)
    def test_without_a_pin_it_is_parsed(self, folder, parsed, command):
        """The twin."""
        put(folder / "session.json", [2**31] * MANY, "layout", 0, "shape")
        parsed.reset_mock()
        assert call(command, folder, *READERS[command].split()).code == 65
        assert parsed.call_count > 0

    def test_what_was_compared_is_what_is_used(self, folder, monkeypatch):
        """session.json is read once: it cannot be another one after the comparison."""
        name = hashlib.sha256((folder / "session.json").read_bytes()).hexdigest()
        reads = mock.Mock(wraps=sessions.read_bytes)
        monkeypatch.setattr("topk_secagg.storage.workspace.read_bytes", reads)
        must("offline", folder, "--user", 1, "--session", name)
        assert reads.call_count == 1


class TestTheNonce:
    BAD = ("", "0" * 31, "0" * 33, "x" * 32, "A" * 32, "0" * 32 + "\n")

    @pytest.mark.parametrize("nonce", BAD)
    def test_a_file_has_thirty_two_hexadecimal_digits(self, folder, refuses, nonce):
        put(folder / "session.json", nonce, "nonce")
        assert "nonce" in refuses(65, "offline", folder, "--user", 1).err

    @pytest.mark.parametrize("nonce", BAD)
    def test_without_the_check_two_rounds_can_be_the_same_session(
        self, folder, tmp_path, monkeypatch, nonce
    ):
        """The twin."""
        put(folder / "session.json", nonce, "nonce")
        monkeypatch.setitem(sessions._TYPES, "nonce", str)
        other = tmp_path / "other"
        other.mkdir()
        (other / "session.json").write_bytes((folder / "session.json").read_bytes())
        for place in (folder, other):
            must("offline", place, "--user", 1)

    @pytest.mark.parametrize("nonce", BAD)
    def test_no_other_file_is_written(self, folder, nonce):
        session = read_session(folder / "session.json")
        assert session.content() == (folder / "session.json").read_bytes()
        with pytest.raises(ValueError, match="nonce"):
            replace(session, nonce=nonce).content()

    def test_in_memory_a_session_needs_none(self, folder):
        session = read_session(folder / "session.json")
        bare = Session(
            session.parameters,
            session.points,
            layout=session.layout,
            reduction=session.reduction,
            clips=session.clips,
        )
        assert (bare.nonce, bare.id) == ("", "")
