"""Whatever a parser raises over one party's bytes means that this party's file is bad: the others
go on."""

import pytest
from played import Round, call, must

from topk_secagg.rounds import barrier
from topk_secagg.rounds import decode as decode_step
from topk_secagg.storage import masked
from topk_secagg.storage.share import SharesOfUser

pytestmark = pytest.mark.rule(17)

CHEAT = 4
RAISED = [MemoryError, RecursionError, AttributeError, OverflowError, ValueError, KeyError]
every_kind = pytest.mark.parametrize("kind", RAISED)


def spoil(patch: pytest.MonkeyPatch, what: str, kind: type[Exception]) -> None:
    """The reader of a file of user 4 raises what nobody thought of."""

    def raising(real, place):
        def read(*args, **how):
            if args[place] == CHEAT:
                raise kind("bytes that nobody thought of")
            return real(*args, **how)

        return read

    if what == "X":
        patch.setattr(masked, "read", raising(masked.read, 2))
    elif what == "Y":
        patch.setattr(decode_step, "opened_answer", raising(decode_step.opened_answer, 1))
    else:
        patch.setattr(SharesOfUser, "opened", raising(SharesOfUser.opened, 1))


def mask_of_1(r: Round) -> list[int]:
    return must(*r.mask(1, "--json")).json["holds"]


@every_kind
@pytest.mark.parametrize("construction", ["permutation", "sketch"])
def test_of_a_dealer_whose_share_cannot_be_read_nothing_is_held(
    round_at, monkeypatch, kind, construction
):
    r = round_at("offline")
    spoil(monkeypatch, "share", kind)
    assert mask_of_1(r) == [1, 2, 3, 5]


@every_kind
def test_a_user_whose_x_cannot_be_read_is_left_out(round_at, monkeypatch, kind):
    r = round_at("masked")
    spoil(monkeypatch, "X", kind)
    said = must(*r.freeze("--json"))
    assert said.json["survivors"] == [1, 2, 3]
    assert f"user {CHEAT} is left out: cannot be read ({kind.__name__})" in said.err


@every_kind
def test_an_answer_that_cannot_be_read_counts_as_missing(round_at, monkeypatch, kind):
    r = round_at("answered", answering=(1, 2, 3, 4))
    spoil(monkeypatch, "Y", kind)
    assert must(*r.decode("--json")).json["answering"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("what", "stage"), [("share", "offline"), ("X", "masked"), ("Y", "answered")]
)
def test_without_the_barrier_one_file_ends_the_step_of_everybody(
    round_at, monkeypatch, what, stage
):
    """The twin."""
    r = round_at(stage, answering=(1, 2, 3, 4))
    spoil(monkeypatch, what, RecursionError)
    monkeypatch.setattr(barrier, "SecAggError", Exception)  # so that all goes through
    steps = {"share": r.mask(1), "X": r.freeze(), "Y": r.decode()}
    assert call(*steps[what]).code == 1


def test_a_disk_that_fails_is_not_blamed_on_a_user(round_at, monkeypatch):
    r = round_at("masked")
    spoil(monkeypatch, "X", OSError)
    assert call(*r.freeze()).code != 0
