"""What a message carries: words and files, each under a name that is known."""

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import topk_secagg as ts
from topk_secagg.flower import parcels
from topk_secagg.flower.parcels import Place


def message(record):
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    return Message(RecordDict(record), dst_node_id=2, message_type="train")


def test_a_parcel_comes_out_as_it_went_in():
    content = parcels.content("deal", {"session": "abc"}, {"session.json": b"{}", "a/b.h5": b""})
    parcel = parcels.opened(message(content))
    assert parcel == parcels.Parcel(
        "deal", {"session": "abc"}, {"session.json": b"{}", "a/b.h5": b""}
    )
    assert (parcel.word("session"), parcel.file("session.json")) == ("abc", b"{}")


def test_what_is_missing_is_named():
    parcel = parcels.Parcel("deal")
    with pytest.raises(ts.BadData, match=r"step 'deal' has no session\.json"):
        parcel.file("session.json")
    with pytest.raises(ts.BadData, match="step 'deal' has no session"):
        parcel.word("session")


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({}, "a message without a step"),
        ({"config": ConfigRecord({"step": "deal"})}, "a message without a step"),
        ({"topk-secagg": ConfigRecord({"session": "x"})}, "names no step"),
        ({"topk-secagg": ConfigRecord({"step": b"deal"})}, "names no step"),
        ({"topk-secagg": ConfigRecord({"step": "deal", "n": 3})}, "neither a word nor a file"),
        ({"topk-secagg": ConfigRecord({"step": "deal", "n": ["a"]})}, "neither a word nor a file"),
    ],
)
def test_a_record_that_is_no_parcel_is_refused(record, words):
    with pytest.raises(ts.BadData, match=words):
        parcels.opened(message(record))


def test_files_are_stored_where_they_belong_and_stay(tmp_path):
    expected = {"a/x.json": Place(tmp_path / "a" / "x.json"), "y.h5": Place(tmp_path / "y", 3)}
    parcels.store({"a/x.json": b"one", "y.h5": b"two"}, expected)
    parcels.store({"a/x.json": b"one"}, expected)
    assert (tmp_path / "a" / "x.json").read_bytes() == b"one"
    with pytest.raises(ts.Refused, match=r"another a/x\.json than an earlier one"):
        parcels.store({"a/x.json": b"other"}, expected)
    assert (tmp_path / "a" / "x.json").read_bytes() == b"one"


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("z", b"", "which does not belong there"),
        ("../z", b"", "which does not belong there"),
        ("a/../x", b"", "which does not belong there"),
        ("y", b"four", "y in a message is too large: 4 bytes"),
    ],
)
def test_all_files_of_a_message_are_stored_or_none(tmp_path, name, data, words):
    expected = {"x": Place(tmp_path / "x"), "y": Place(tmp_path / "y", 3)}
    with pytest.raises(ts.BadData, match=words):
        parcels.store({"x": b"sound", name: data}, expected)
    assert list(tmp_path.iterdir()) == []
