"""Errors carry what they are about."""

import copy
import pickle
from pathlib import Path

import pytest

from topk_secagg.errors import Advice, BadData, OfOtherSession, SecAggError, about


def test_an_error_says_what_it_is_about_from_the_outermost():
    with pytest.raises(BadData) as caught, about("the file"), about("its part"):
        raise BadData("is damaged", "fetch it again", subject="row 3")
    error = caught.value
    assert error.message == "is damaged"
    assert str(error) == "the file: its part: row 3 is damaged"
    assert error.said_of("the file") == "its part: row 3 is damaged"
    assert error.said_of("row 3") == "the file: its part: is damaged"
    assert error.said_of("another file") == str(error)


def test_about_keeps_the_kind_the_hint_and_the_advice():
    with pytest.raises(OfOtherSession) as caught, about("the file"):
        raise OfOtherSession("it is foreign", "look", Advice.OF_OTHER_USER, user=3)
    error = caught.value
    assert (error.hint, error.advice, error.values) == ("look", Advice.OF_OTHER_USER, {"user": 3})
    assert error.exit_code == 65


def test_a_changed_copy_leaves_the_error_as_it_is():
    error = BadData("is damaged", "fetch it again", Advice.OF_OTHER_USER, subject="x", user=3)
    other = error.but(hint="delete it", advice=None)
    assert (type(other), str(other), other.hint) == (BadData, "x is damaged", "delete it")
    assert other.advice is None
    assert (error.hint, error.advice) == ("fetch it again", Advice.OF_OTHER_USER)


@pytest.mark.parametrize("clone", [copy.copy, lambda e: pickle.loads(pickle.dumps(e))])
def test_an_error_survives_another_process(clone):
    error = clone(BadData("is damaged", "look", Advice.OF_OTHER_USER, subject=Path("x"), user=3))
    assert (str(error), error.hint, error.values) == ("x is damaged", "look", {"user": 3})


def test_an_error_of_a_bug_exits_with_one():
    assert SecAggError("").exit_code == 1
