"""The folder and the configuration of a node."""

import json

import pytest
from flwr.app import Context, RecordDict

import topk_secagg as ts
from topk_secagg.flower.keys import admissible, keys_of, known_keys
from topk_secagg.flower.node import Node, State
from topk_secagg.storage.keys import Identity


def node(**config):
    context = Context(run_id=3, node_id=42, node_config=config, state=RecordDict(), run_config={})
    return Node(context)


@pytest.fixture(autouse=True)
def state_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_a_node_has_a_folder_of_its_own_below_the_users_state(state_home):
    home = node().home
    assert home == state_home / "topk-secagg" / "flower" / "node-42"
    assert home.stat().st_mode & 0o777 == 0o700
    assert node().run.name == "run-3"


def test_without_the_variable_it_is_below_the_users_home(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert node().home.is_relative_to(tmp_path / ".local" / "state" / "topk-secagg")


def test_the_configuration_may_name_another(tmp_path):
    home = node(**{"topk-secagg-folder": str(tmp_path / "mine")}).home
    assert home == tmp_path / "mine"
    assert home.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_can_read_is_closed(tmp_path):
    (tmp_path / "mine").mkdir(mode=0o755)
    node(**{"topk-secagg-folder": str(tmp_path / "mine")})
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o700


def test_keys_are_made_once_and_closed_to_others():
    first = node().identity()
    assert node().identity() == first
    assert node().identity_path.stat().st_mode & 0o777 == 0o600


def test_keys_may_come_from_the_configuration(tmp_path):
    public = ts.keygen(4, tmp_path)
    mine = node(**{"topk-secagg-identity": str(tmp_path / "user-04.identity")})
    assert mine.identity().public(4) == public
    assert not (mine.home / "secrets").exists()


def test_keys_that_the_configuration_names_are_not_made(tmp_path):
    mine = node(**{"topk-secagg-identity": str(tmp_path / "missing")})
    with pytest.raises(ts.InputMissing, match="missing"):
        mine.identity()
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"topk-secagg-folder": 3}, "topk-secagg-folder of this node is not a path"),
        ({"topk-secagg-folder": ""}, "topk-secagg-folder of this node is not a path"),
        ({"topk-secagg-error-feedback": "no"}, "is neither true nor false"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(config, words):
    with pytest.raises(ts.UsageError, match=words):
        node(**config)


def test_what_a_node_is_bound_to_outlasts_the_process():
    assert node().state() == State()
    node().record(series="a" * 64)
    node().record(round="round-x")
    assert node().state() == State(series="a" * 64, round="round-x")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", json.dumps({"other": 1}).encode()])
def test_a_state_that_is_damaged_binds_all_the_same(content):
    """A node that forgot its series could be led into another one."""
    mine = node()
    (mine.run / "state.json").write_bytes(content)
    with pytest.raises(ts.BadData, match="is damaged"):
        mine.state()


def test_the_numbers_in_a_list_of_keys_say_nothing(tmp_path):
    identities = [Identity.drawn("0" * 64) for _ in range(3)]
    path = tmp_path / "known"
    path.write_text("# us\n\n" + "\n".join(each.public(1).line() for each in identities))
    assert known_keys(path) == {keys_of(each.public(7)) for each in identities}


@pytest.mark.parametrize("line", ["1 age1x", "x age1x ed25519:00", "1 age1x ed25519:00"])
def test_a_list_with_a_line_that_has_no_keys_is_refused(tmp_path, line):
    path = tmp_path / "known"
    path.write_text(line)
    with pytest.raises(ts.BadData, match=r"a line is not NUMBER|are not valid"):
        known_keys(path)


def test_users_have_sound_keys_that_nobody_else_has():
    one, two, three = (keys_of(Identity.drawn("0" * 64).public(1)) for _ in range(3))
    half = (one[0], two[1])  # age of the one, Ed25519 of the other
    given = {11: one, 12: ("age1", "00"), 13: half, 14: two, 15: one, 16: three}
    assert admissible(given, None) == {11: one, 14: two, 16: three}
    assert admissible(given, {one, two}) == {11: one, 14: two}
