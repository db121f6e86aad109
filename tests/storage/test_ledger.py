"""The ledger by itself: what it remembers, for whom, and what it then refuses."""

import stat
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from played import document, edit

from topk_secagg.errors import BadData, Refused
from topk_secagg.storage import ledger as ledger_file
from topk_secagg.storage.ledger import NOTHING, Ledger, Previous, Report
from topk_secagg.storage.survivors import Row, Survivors

SESSION = "a" * 64
FIRST = "1" * 64
SECOND = "2" * 64
SETS = ("seen", "frozen", "confirmed", "answered")  # the lines that name a survivors.json
ROW = Row(user=1, sha256=FIRST, weight=2.5, sharing=SECOND, dealt=None)
EVERYTHING = {
    "previous": Previous(session=SECOND, folder="../round-1"),
    "folder": "/elsewhere/round",
    "chain": "../../round-1/secrets/user-03.chain.h5",
    "shared": FIRST,
    "dealt": SECOND,
    "masked": SECOND,
    "holds": (1, 2, 5),
    "input": FIRST,
    "name": SECOND,
    "weight": 2.5,
    "select": "top",
    "feedback": NOTHING,
    "residual": FIRST,
    "report": Report(clipped=3, kept_energy=0.75, rounding_error=None),
    "taken_by": SECOND,
    "seen": FIRST,
    "frozen": FIRST,
    "confirmed": FIRST,
    "answered": FIRST,
    "gave_up": True,
    "forgotten": True,
}


def a_ledger(path):
    return Ledger(path, session=SESSION, user=3, series=SECOND, generation=4)


@pytest.fixture
def ledger(tmp_path):
    """The ledger of user 3, which has done nothing yet."""
    fresh = a_ledger(tmp_path / "user-03.ledger.json")
    fresh.write()
    return fresh


def test_a_new_ledger_knows_of_nothing(ledger):
    for line, value in EVERYTHING.items():
        assert not getattr(ledger, line), (line, value)
    assert Ledger.read(ledger.path, SESSION, 3) == ledger


@pytest.mark.parametrize("line", EVERYTHING)
def test_every_line_is_durable_at_once_and_alone(ledger, line):
    recorded = ledger.record(**{line: EVERYTHING[line]})
    assert recorded == replace(ledger, **{line: EVERYTHING[line]})
    assert Ledger.read(ledger.path, SESSION, 3) == recorded


def test_all_lines_together_come_back(ledger):
    recorded = ledger.record(**EVERYTHING, lists=(FIRST, SECOND, FIRST), survivors=(ROW,))
    assert Ledger.read(ledger.path, SESSION, 3) == recorded
    lines = {field.name for field in fields(Ledger)} - {"path", "session", "user"}
    assert lines == {*EVERYTHING, "series", "generation", "lists", "survivors"}


@pytest.mark.parametrize(
    ("holds", "lists"),
    [((1, 2), (FIRST,)), ((1,), (FIRST, SECOND)), ((1, 2), ()), (None, (FIRST,))],
)
def test_there_is_a_list_for_every_user_whose_keys_it_holds(ledger, holds, lists):
    """Otherwise `mask`, repeated, would say other lists of them than its X did."""
    with pytest.raises(BadData, match="does not name a list for every user"):
        Ledger.read(ledger.record(holds=holds, lists=lists).path, SESSION, 3)


def test_only_its_user_may_read_it(ledger):
    for path in (ledger.path, ledger.record(masked=FIRST).path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_is_known_already_is_not_written_again(ledger):
    recorded = ledger.record(masked=FIRST)
    before = recorded.path.stat().st_ino
    assert recorded.record(masked=FIRST) == recorded
    assert recorded.path.stat().st_ino == before
    assert recorded.record(masked=SECOND).path.stat().st_ino != before  # the twin: a new file


@pytest.mark.parametrize(("session", "user"), [("b" * 64, 3), (SESSION, 4), ("b" * 64, 4)])
def test_a_ledger_is_read_for_its_own_session_and_user_alone(ledger, session, user):
    with pytest.raises(BadData, match="belongs to another session or user"):
        Ledger.read(ledger.path, session, user)


@pytest.mark.parametrize("line", SETS)
@pytest.mark.parametrize("others", [(), SETS])
def test_a_second_survivor_set_is_refused_whichever_line_knows_the_first(ledger, line, others):
    recorded = ledger.record(**{line: FIRST})
    asked = others or (line,)
    recorded.check_survivors(FIRST, *asked)
    with pytest.raises(Refused, match=f"user 3 has already {line} another survivor set"):
        recorded.check_survivors(SECOND, *asked)


def test_only_the_lines_that_are_asked_count(ledger):
    """A user that froze one set may not answer another: so the steps ask for every line."""
    recorded = ledger.record(frozen=FIRST)
    recorded.check_survivors(SECOND, "confirmed", "answered")
    with pytest.raises(Refused):
        recorded.check_survivors(SECOND, "confirmed", "answered", "frozen")


@given(st.lists(st.sampled_from([FIRST, SECOND]), min_size=1, max_size=6))
def test_masks_are_good_for_the_first_input_only(digests):
    """Whatever is asked in whatever order: the first X may be repeated, and no other follows."""
    used = a_ledger(Path("unused"))
    for digest in digests:
        if digest == digests[0]:
            used.check_masks(digest)
            used = replace(used, masked=digest)
        else:
            with pytest.raises(Refused, match="user 3 has already masked another input"):
                used.check_masks(digest)
    assert used.masked == digests[0]


def test_a_secret_that_was_erased_is_not_used(ledger):
    ledger.check_kept()
    with pytest.raises(Refused, match="user 3 has erased its secret"):
        ledger.record(forgotten=True).check_kept()


def test_a_round_that_was_given_up_stays_so(ledger):
    with pytest.raises(Refused, match="user 3 has given this round up"):
        ledger.record(gave_up=True).check_kept()


@pytest.mark.parametrize("line", ["sha256", "weight", "sharing", "dealt"])
def test_a_row_of_this_user_that_is_not_its_own_is_refused(ledger, line):
    recorded = ledger.record(masked=FIRST, weight=2.5, shared=SECOND, dealt=FIRST)
    own = Row(user=3, sha256=FIRST, weight=2.5, sharing=SECOND, dealt=FIRST)
    other = replace(own, **{line: 1.0 if line == "weight" else "3" * 64})
    recorded.check_own_row(survivors_with(own))
    recorded.check_own_row(survivors_with(replace(other, user=4)))  # where it dropped out
    with pytest.raises(BadData, match="an X of user 3 that this user did not send"):
        recorded.check_own_row(survivors_with(other))


def survivors_with(row):
    return Survivors(rows={row.user: row}, freezer=1, signature=None, digest=FIRST)


def test_the_path_is_no_part_of_the_file(ledger, tmp_path):
    copy = tmp_path / "elsewhere.json"
    copy.write_bytes(ledger.path.read_bytes())
    assert str(tmp_path) not in copy.read_text()
    assert ledger_file.parse_ledger(copy, copy.read_bytes()) == replace(ledger, path=copy)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        *((line, value) for line in ("shared", "masked", *SETS) for value in ("A" * 64, "1" * 63)),
        ("session", "A" * 64),
        ("user", "3"),
        ("generation", True),
        ("feedback", "all"),
        ("previous", SECOND),
        ("folder", "a\0b"),
        ("gave_up", 1),
        ("forgotten", None),
        ("holds", 5),
    ],
)
def test_a_line_that_is_not_what_a_step_records_is_refused(ledger, line, value):
    """A digest in other letters would never be equal to that of a file, and refuse what is
    right."""
    edit(ledger.path, lambda content: content.update({line: value}))
    with pytest.raises(BadData, match=f"its {line} is not what a ledger has there"):
        Ledger.read(ledger.path, SESSION, 3)


def test_lines_are_in_order_so_that_the_same_ledger_has_the_same_bytes(ledger):
    lines = list(document(ledger.record(**EVERYTHING).path))
    own = [line for line in lines if line not in ("format", "kind", "version")]
    assert own == sorted(own)


def test_a_line_changes_only_by_being_recorded(ledger):
    with pytest.raises(FrozenInstanceError):
        ledger.masked = FIRST
