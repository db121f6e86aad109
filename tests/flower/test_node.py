"""The folder and the configuration of a node."""

import json
from concurrent.futures import ThreadPoolExecutor

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


@pytest.mark.rule(12)
@pytest.mark.parametrize(("run_id", "node_id"), [(3, 42), (4, 43)])
def test_no_number_of_the_server_leads_to_a_folder(state_home, run_id, node_id):
    context = Context(
        run_id=run_id, node_id=node_id, node_config={}, state=RecordDict(), run_config={}
    )
    home = Node(context).home
    assert home == state_home / "topk-secagg" / "flower" / "node"
    assert home.stat().st_mode & 0o777 == 0o700


def test_in_a_simulation_every_partition_has_a_folder(state_home):
    assert (
        node(**{"partition-id": 7}).home == state_home / "topk-secagg" / "flower" / "partition-07"
    )


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


def test_two_runs_that_start_at_once_make_one_identity():
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: node().identity(), range(8)))
    assert made == [node().identity()] * 8


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


def test_a_key_that_means_nothing_is_refused():
    """A misspelt pin would be none."""
    with pytest.raises(ts.UsageError, match="'topk-secagg-recipient', which means nothing"):
        node(**{"topk-secagg-recipient": "/srv/list"})


@pytest.mark.rule(12)
def test_an_identity_takes_part_only_with_its_folder(tmp_path):
    """Its folder was lost, and with it what was spent; the identity was mounted from elsewhere."""
    ts.keygen(4, tmp_path / "old")
    path = tmp_path / "old" / "user-04.identity"
    lost = {"topk-secagg-identity": str(path), "topk-secagg-folder": str(tmp_path / "new")}
    with pytest.raises(ts.Refused, match="belongs to another folder of secrets"):
        node(**lost).identity()
    assert node(**{"topk-secagg-identity": str(path)}).secrets == tmp_path / "old"


@pytest.mark.rule(12)
def test_without_the_check_it_would_begin_anew(tmp_path, monkeypatch):
    """The twin."""
    ts.keygen(4, tmp_path / "old")
    path = tmp_path / "old" / "user-04.identity"
    lost = {"topk-secagg-identity": str(path), "topk-secagg-folder": str(tmp_path / "new")}
    monkeypatch.setattr("topk_secagg.flower.node.folder_file.check", lambda *_: None)
    node(**lost).identity()


def test_the_only_identity_in_a_folder_is_the_nodes(tmp_path):
    public = ts.keygen(7, tmp_path / "secrets")
    mine = node(**{"topk-secagg-folder": str(tmp_path)})
    assert mine.identity().public(7) == public
    ts.keygen(8, tmp_path / "secrets")
    with pytest.raises(ts.UsageError, match="has 2 identities"):
        mine.identity()


def test_what_a_node_is_bound_to_outlasts_the_process():
    training = node().training("a" * 64)
    training.root.mkdir()
    assert training.state() is None
    training.write(State(run=3, round="round-x"))
    training.record(bound=True)
    assert node().training("a" * 64).state() == State(run=3, round="round-x", bound=True)
    assert [each.series for each in node().trainings()] == ["a" * 64]


@pytest.mark.rule(12)
@pytest.mark.parametrize("content", [b"", b"{", b"[]", json.dumps({"other": 1}).encode()])
def test_a_state_that_is_damaged_binds_all_the_same(content):
    """A node that forgot its series could be led into another one."""
    training = node().training("a" * 64)
    training.root.mkdir()
    (training.root / "state.json").write_bytes(content)
    with pytest.raises(ts.BadData, match="is damaged"):
        training.state()


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
