"""`--spare r`: answers that pack more when more users survive, and the fallback when too few of
them come."""

import itertools
import shlex

import pytest
from played import Round, attributes, contents, document, edit, every, flip, must, placed

from topk_secagg.protocol.decoding import decode as decode_answers
from topk_secagg.rounds import decode as steps

ALL = (1, 2, 3, 4, 5)


@pytest.fixture
def construction():
    return "moments"


@pytest.fixture
def short(round_at):
    """Five survivors and one spare: D = 3, four answers are needed, and three have come."""
    r = round_at("frozen", spare=1, masking=ALL, answering=ALL)
    for n in (1, 2, 4):
        must(*r.eliminate(n))
    return r


def fall_back(r: Round, *users: int) -> None:
    for n in users:
        must(*r.eliminate(n))
        must(*r.eliminate(n, "--fallback"))


@pytest.mark.parametrize(
    ("masking", "spare", "blocks"),
    [
        (ALL, 0, 4),
        (ALL, 1, 3),
        (ALL, 2, 2),
        (ALL, 9, 2),
        (ALL[:4], 0, 3),
        (ALL[:4], 1, 2),
        (ALL[:3], 0, 2),
    ],
)
def test_an_answer_packs_as_many_blocks_as_survivors_allow(new_round, masking, spare, blocks):
    """D = max(U - T, |U1| - T - r), and D + T answers are enough."""
    r = new_round(spare=spare, masking=masking, answering=masking)
    r.play(upto="frozen")
    for n in masking[: blocks + 1]:
        said = must(*r.eliminate(n, "--json")).json
        assert (said["blocks"], said["answers_needed"], said["fallback"]) == (
            blocks,
            blocks + 1,
            False,
        )
        assert attributes(r.folder / f"elimination/user-{n:02}.h5")["blocks"] == blocks
    must(*r.decode())
    r.check_sum(answering=masking[: blocks + 1])
    assert attributes(r.folder / "aggregate.h5")["blocks"] == blocks


def test_with_too_few_answers_the_error_names_the_command_that_helps(short, refuses):
    renamed = short.elsewhere(short.folder.rename(short.folder.with_name("a round")))
    said = refuses(69, *renamed.decode()).err
    assert "3 sound answers, and 4 are needed (missing: users 3, 5)" in said
    assert "at least 3 users" in said
    command = shlex.split(said.splitlines()[1].split(": ", 2)[2])
    assert command == ["topk-secagg", "eliminate", str(renamed.folder), "--user", "n", "--fallback"]
    must(*command[1:4], "1,2", *command[5:])
    assert "2 fallback answers, of which 3 would suffice" in refuses(69, *renamed.decode()).err
    must(*command[1:4], "4", *command[5:])
    must(*renamed.decode())
    renamed.check_sum(answering=(1, 2, 4))


def test_any_u_of_the_fallback_answers_give_the_same_sum(short):
    fall_back(short, *ALL)
    files = {n: short.folder / f"elimination/user-{n:02}.h5" for n in ALL}
    kept = {n: path.read_bytes() for n, path in files.items()}
    for chosen in itertools.combinations(ALL, 3):
        for n, path in files.items():
            path.unlink(missing_ok=True)
            if n in chosen:
                path.write_bytes(kept[n])
        must(*short.decode())
        short.check_sum(answering=chosen)


def test_enough_first_answers_decode_even_if_a_user_fell_back(short):
    fall_back(short, 5)
    must(*short.eliminate(3))
    must(*short.decode())
    short.check_sum(answering=(1, 2, 3, 4))
    assert attributes(short.folder / "aggregate.h5")["blocks"] == 3


def test_status_knows_that_answers_of_two_kinds_do_not_decode_together(short, refuses):
    fall_back(short, 3, 5)
    refuses(69, *short.decode(), says="2 fallback answers, of which 3 would suffice")
    found = must("status", short.folder, "--json").json["next"]
    assert (found["step"], found["ready"], found["possible"]) == ("decode", False, False)
    assert found["waits_for"] == "enough answers of one kind"
    assert "can be run" not in must("status", short.folder).out


def test_repeating_the_plain_step_after_a_fallback_keeps_the_fallback(short):
    fall_back(short, 1)
    assert document(short.folder / "secrets/user-01.ledger.json")["fallback"] is True
    before = contents(short.folder)
    for more in ((), ("--fallback",)):
        said = must(*short.eliminate(1, *more, "--json")).json
        assert (said["blocks"], said["fallback"]) == (2, True)
        assert contents(short.folder) == before


def test_a_fallback_is_for_the_second_time_and_for_the_same_survivors(short, refuses):
    assert "has not answered yet" in refuses(2, *short.eliminate(3, "--fallback")).err
    edit(short.folder / "survivors.json", lambda content: content["survivors"].pop())
    for more in ((), ("--fallback",)):
        assert "another survivor set" in refuses(77, *short.eliminate(1, *more)).err


def test_after_forget_a_user_cannot_fall_back_but_the_others_can(short, refuses):
    must(*short.eliminate(3))
    assert must(*short.forget(1), "--json").json["needed_by"] == [2, 3, 4, 5]
    assert "erased its secret" in refuses(77, *short.eliminate(1, "--fallback")).err
    (short.folder / "elimination/user-01.h5").unlink()  # lost
    fall_back(short, 2, 3, 4)
    must(*short.decode())
    short.check_sum(answering=(2, 3, 4))


@every
def test_without_spare_answers_there_is_nothing_to_fall_back_to(round_at, refuses):
    r = round_at("answered")
    refuses(2, *r.eliminate(1, "--fallback"), says="there is nothing to fall back to")
    (r.folder / "elimination/user-01.h5").unlink()
    said = refuses(69, *r.decode()).err
    assert "2 sound answers, and 3 are needed (missing: users 1, 4)" in said
    assert "--fallback" not in said


def test_run_falls_back_by_itself(new_round):
    r = new_round(spare=0, masking=ALL, answering=(2, 3, 5))
    must(*r.run())
    r.check_sum(answering=(2, 3, 5))
    assert document(r.folder / "secrets/user-02.ledger.json")["fallback"] is True


def test_answers_of_another_size_are_checked_but_not_decoded_twice(short, monkeypatch):
    fall_back(short, 1, 2, 3)  # the answer of user 4 still packs three blocks
    passes = []
    monkeypatch.setattr(
        steps, "decode_answers", lambda *a, **k: passes.append(a) or decode_answers(*a, **k)
    )
    must(*short.decode())
    assert len(passes) == 1
    short.check_sum(answering=(1, 2, 3))
    path = short.folder / "elimination/user-04.h5"
    flip(path, placed(path)["y"][0])
    said = must(*short.decode("--json")).json
    assert (said["answering"], list(said["left_out"])) == ([1, 2, 3], ["4"])
