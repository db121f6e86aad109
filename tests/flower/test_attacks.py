"""A server that does not keep to the protocol gets an error from honest nodes, and nothing else."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from federation import Lab, files_of, random_update, record_of, step_of
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict

import topk_secagg as ts
from topk_secagg.flower import client, parcels
from topk_secagg.flower import node as node_module
from topk_secagg.flower.exchange import Exchange
from topk_secagg.flower.rounds import ServedRound
from topk_secagg.rounds import eliminate as eliminate_step
from topk_secagg.rounds.freeze import chosen_masked
from topk_secagg.rounds.frozen import rows_of
from topk_secagg.storage import survivors as survivors_file
from topk_secagg.storage.keys import Identity, read_identity
from topk_secagg.storage.workspace import Workspace

NONCE = "0123456789abcdef" * 2


def ask(training: Lab, user: int, step: str, words=(), files=(), arrays=None) -> Message:
    """What a node replies to a message that the server makes up."""
    content = parcels.content(step, dict(words), dict(files))
    if arrays is not None:
        content["arrays"] = record_of(arrays)
        content["config"] = ConfigRecord({"server-round": 9})
    return training.grid.ask(
        Message(content, dst_node_id=training.grid.node(user), message_type="train")
    )


def assert_refused(reply: Message, words: str) -> None:
    """An error, with these words and no content."""
    assert reply.has_error(), reply.content
    assert words in str(reply.error.reason)
    assert "pytest-of" not in str(reply.error.reason)  # the folders of this machine
    assert not reply.has_content()


def masked(training: Lab, rounds: int = 1) -> Workspace:
    """Train, up to a last round in which every X is at the server and nothing is frozen."""
    strategy = training.strategy
    arrays = record_of(training.model)
    for number in range(1, rounds + 1):
        messages = strategy.configure_train(number, arrays, ConfigRecord(), training.grid)
        replies = list(training.grid.send_and_receive(messages))
        if number < rounds:
            arrays, _ = strategy.aggregate_train(number, replies)
    training.arrays = {name: array.numpy() for name, array in arrays.items()}
    for reply in replies:
        strategy._take_masked(
            reply,
            exchange=strategy._exchange,
            series=strategy._series,
            this=strategy._round,
        )
    return strategy._round.space


def agree(training: Lab) -> None:
    """The step after `masked`: survivors, proposed and confirmed."""
    strategy = training.strategy
    strategy._agree(strategy._exchange, strategy._series, strategy._round)


def ask_for_answers(training: Lab) -> None:
    """The step after `agree`: Y of every survivor."""
    strategy = training.strategy
    strategy._ask_for_answers(strategy._exchange, strategy._series, strategy._round)


def session_words(space: Workspace) -> dict[str, str]:
    return {"session": space.session.id}


def mask_message(space_or_content) -> dict[str, bytes]:
    content = getattr(space_or_content, "session_content", space_or_content)
    return {"session.json": content}


WORDS = {"feedback": "True"}


def changed(space: Workspace, **changes) -> bytes:
    """session.json with something changed in it, as a new session."""
    return replace(space.session, id="", nonce=NONCE, **changes).content()


def identity_of(training: Lab, user: int) -> Identity:
    """The keys of a user that plays along with the server."""
    return read_identity(training.grid.identity(user))


# messages that are no step


def test_a_train_message_without_a_step_is_not_trained(lab):
    training = lab()
    content = RecordDict({"arrays": record_of(training.model), "config": ConfigRecord()})
    reply = training.grid.ask(
        Message(content, dst_node_id=training.grid.node(1), message_type="train")
    )
    assert_refused(reply, "a message without a step of a round")
    assert training.updates == {}


def test_an_unknown_step_is_refused(lab):
    assert_refused(ask(lab(), 1, "decode"), "there is no step 'decode'")


@pytest.mark.parametrize("step", ["evaluate", "query"])
def test_no_other_message_brings_arrays_out(lab, step):
    training = lab()
    app = training.grid.app

    def tell(message, _context):
        return Message(RecordDict({"arrays": record_of(training.model)}), reply_to=message)

    app._registered_funcs.pop("evaluate.default", None)
    getattr(app, step)()(tell)
    reply = training.grid.ask(
        Message(RecordDict(), dst_node_id=training.grid.node(1), message_type=step)
    )
    assert_refused(reply, "holds arrays")


@pytest.mark.parametrize(
    "name",
    ["../../stolen", "/tmp/stolen", "secrets/user-02.h5", "masked/user-02.h5", "session.json"],
)
def test_only_files_that_a_step_knows_are_stored(lab, name):
    training = lab()
    space = masked(training)
    before = sorted(training.place.rglob("*"))
    reply = ask(training, 2, "answer", session_words(space), {name: b"x"})
    assert reply.has_error()
    assert "does not belong there" in str(reply.error.reason)
    assert sorted(training.place.rglob("*")) == before


def test_a_file_that_is_too_large_is_not_stored(lab):
    training = lab()
    space = masked(training)
    files = {"confirmed/user-01.json": bytes(1 << 25)}
    assert_refused(ask(training, 2, "answer", session_words(space), files), "too large")


def test_a_file_never_changes(lab):
    training = lab()
    space = masked(training)
    agree(training)
    ask_for_answers(training)
    files = {"confirmed/user-01.json": b"other"}
    reply = ask(training, 2, "answer", session_words(space), files)
    assert_refused(reply, "another confirmed/user-01.json than an earlier one")


# sessions

PLAIN = {"confirm": False, "freezer": 1}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({**PLAIN, "recipients": None}, "not sealed, or its users do not confirm"),
        (PLAIN, "not sealed, or its users do not confirm"),
    ],
)
@pytest.mark.parametrize("step", ["deal", "mask"])
def test_a_session_without_seals_or_confirmations_is_refused(lab, changes, words, step):
    training = lab()
    space = masked(training)
    files = mask_message(changed(space, **changes))
    assert_refused(ask(training, 2, step, WORDS, files, training.arrays), words)


def with_key_of_server(space: Workspace, user: int, keys: Identity):
    recipients = list(space.session.recipients)
    recipients[user - 1] = keys.public(user)
    return tuple(recipients)


def test_after_the_first_round_users_keep_their_keys(lab):
    training = lab()
    space = masked(training, rounds=2)
    recipients = with_key_of_server(space, 4, Identity.drawn("0" * 64))
    following = replace(space.session.series, generation=2)
    files = mask_message(changed(space, recipients=recipients, series=following))
    reply = ask(training, 2, "mask", WORDS, files, training.arrays)
    assert_refused(reply, "other users, keys, parameters or another model")


def test_after_the_first_round_there_is_no_other_series(lab):
    training = lab()
    space = masked(training)
    for step in ("deal", "mask"):
        files = mask_message(changed(space))
        reply = ask(training, 2, step, WORDS, files, training.arrays)
        assert_refused(reply, "and this node takes part in series")


@pytest.mark.rule(14)
def test_parameters_stay_as_they_were(lab):
    training = lab()
    space = masked(training, rounds=2)
    p = space.session.parameters
    following = replace(space.session.series, generation=2)
    files = mask_message(changed(space, parameters=p.changed(top_k=p.top_k + 16), series=following))
    reply = ask(training, 2, "mask", WORDS, files, training.arrays)
    assert_refused(reply, "other users, keys, parameters or another model")


def known(training: Lab, users) -> str:
    """A list of the keys of these users, in the order of a list that was made before."""
    path = training.place / "known.txt"
    lines = []
    for number, user in enumerate(users, start=1):
        ask(training, user, "join", {"challenge": "0" * 64})
        lines.append(identity_of(training, user).public(number).line())
    path.write_text("# all of us\n" + "\n".join(lines) + "\n")
    return str(path)


def test_a_list_of_recipients_pins_the_keys(lab):
    training = lab()
    path = known(training, (5, 4, 3, 2, 1))
    for user in range(1, 6):
        training.grid.config(user)["topk-secagg-recipients"] = path
    training.train(rounds=1)
    assert training.reasons() == []


def test_keys_that_are_not_in_the_list_are_refused(lab):
    training = lab()
    path = known(training, (1, 2, 3, 4))
    for user in (1, 2):
        training.grid.config(user)["topk-secagg-recipients"] = path
    with pytest.raises(ts.TooFewSurvivors, match="none of 1 round gave a sum: 3 users dealt keys"):
        training.train(rounds=1)
    words = "keys for user 5 that are not in this node's list of recipients"
    assert [words in reason for reason in training.reasons()] == [True, True]


def test_a_server_with_a_list_takes_only_nodes_with_these_keys(lab, caplog):
    training = lab(survivors=3)
    training.strategy.recipients = Path(known(training, (1, 2, 4, 5)))
    training.train(rounds=1)
    assert "node 1021 drops out at the step deal: this node's keys are not in" in caplog.text
    assert len(Workspace(training.rounds()[0]).session.recipients) == 4


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("topk-secagg-survivors", "the session asks for 4 survivors, and this node for at least 5"),
        ("topk-secagg-colluders", "bears 1 colluders, and this node asks for at least 5"),
    ],
)
def test_a_node_may_ask_for_more_survivors_or_colluders(lab, key, words):
    training = lab()
    training.grid.config(3)[key] = 5
    training.train(rounds=1)
    assert [words in reason for reason in training.reasons()] == [True]
    assert ts.decode(training.rounds()[0]).survivors == [1, 2, 4, 5]


def test_who_is_not_in_the_session_does_not_take_part(lab):
    training = lab()
    space = masked(training)
    ask(training, 5, "join", {"challenge": "0" * 64})
    training.grid.identity(5).unlink()
    (state,) = training.grid.folder(5).glob("training-*/state.json")
    state.unlink()
    reply = ask(training, 5, "deal", (), mask_message(space))
    assert_refused(reply, "this node's keys are not in the session")


# who decides what is fresh


def restarted(training: Lab, user: int, **changes: int) -> int:
    """A node under another number, as a SuperLink may give it one; its folder stays."""
    old = training.grid.contexts.pop(training.grid.node(user))
    new = training.grid.node(user) + 7 * 100
    training.grid.contexts[new] = Context(
        run_id=changes.get("run_id", old.run_id),
        node_id=new,
        node_config=old.node_config,
        state=RecordDict(),
        run_config={},
    )
    return new


@pytest.mark.rule(12)
def test_a_node_that_was_restarted_is_readmitted_by_its_keys(lab, caplog):
    training = lab()
    end_round = training.strategy.aggregate_train

    def then_restart(number, replies):
        result = end_round(number, replies)
        if number == 1:
            restarted(training, 3)
        return result

    training.strategy.aggregate_train = then_restart
    training.train(rounds=3)
    assert "user 3 is back, as node 1721" in caplog.text
    for folder in training.rounds():
        assert ts.decode(folder).survivors == [1, 2, 3, 4, 5]


@pytest.mark.rule(12)
def test_a_new_number_gives_a_node_no_empty_ledger(lab):
    training, space, _, without_1, _ = two_sets(lab)
    node = restarted(training, 2)
    training.grid.contexts[training.grid.node(2)] = training.grid.contexts[node]
    files = {"survivors.json": without_1}
    assert_refused(ask(training, 2, "confirm", session_words(space), files), "other survivors")


@pytest.mark.rule(12)
def test_a_new_run_brings_no_users_that_the_server_made_up(lab):
    training = lab()
    space = masked(training)
    training.grid.contexts[training.grid.node(2)].run_id = 8
    recipients = with_key_of_server(space, 4, Identity.drawn("0" * 64))
    reply = ask(training, 2, "deal", (), mask_message(changed(space, recipients=recipients)))
    assert_refused(reply, "another training, which has not ended")


@pytest.mark.rule(12)
def test_without_the_rule_it_would(lab, monkeypatch):
    """The twin."""
    training = lab()
    space = masked(training)
    training.grid.contexts[training.grid.node(2)].run_id = 8
    recipients = with_key_of_server(space, 4, Identity.drawn("0" * 64))
    monkeypatch.setattr(node_module, "_check_same_users", lambda *_: None)
    reply = ask(training, 2, "deal", (), mask_message(changed(space, recipients=recipients)))
    assert not reply.has_error()


def test_a_run_that_was_stopped_may_be_started_again(lab):
    training = lab()
    masked(training)
    for context in training.grid.contexts.values():
        context.run_id = 8
    training.update = lambda user, number, arrays: random_update(user, number + 1, arrays)
    training.train(rounds=1)
    assert training.reasons() == []


# who decides what is asked


@pytest.mark.rule(14)
def test_nodes_that_are_sent_something_else_drop_out(lab):
    """A crafted model for one node, whose update the others would not hide."""
    training = lab()

    def meddle(message):
        if step_of(message) == "mask" and training.grid.user(message.metadata.dst_node_id) == 2:
            message.content["arrays"] = record_of(random_update(9, 9, training.model))
        return message

    training.grid.meddle = meddle
    training.train(rounds=1)
    assert ["is not what the session names" in reason for reason in training.reasons()] == [True]
    assert ts.decode(training.rounds()[0]).survivors == [1, 3, 4, 5]
    assert 2 not in training.updates[1]  # it was not even trained


@pytest.mark.rule(14)
def test_without_the_rule_a_crafted_model_is_trained(lab, monkeypatch):
    """The twin."""
    training = lab()
    monkeypatch.setattr(client, "_agreed_context", lambda space, _: space.root / "nothing")
    monkeypatch.setattr("topk_secagg.rounds.mask._check_context", lambda *_: None)

    def meddle(message):
        if step_of(message) == "mask" and training.grid.user(message.metadata.dst_node_id) == 2:
            message.content["config"]["lr"] = 100.0
        return message

    training.grid.meddle = meddle
    training.train(rounds=1)
    assert ts.decode(training.rounds()[0]).survivors == [1, 2, 3, 4, 5]


@pytest.mark.rule(14)
@pytest.mark.parametrize("missing", ["context", "weight_name"])
def test_a_session_that_does_not_say_what_is_asked_is_refused(lab, missing):
    training = lab()
    space = masked(training)
    reply = ask(training, 2, "deal", (), mask_message(changed(space, **{missing: None})))
    assert_refused(reply, "does not say what its users train from, or how they are weighted")


@pytest.mark.rule(14)
def test_a_strategy_that_asks_nodes_for_different_things_is_refused(lab):
    training = lab()
    inner = training.strategy.strategy
    configure = inner.configure_train

    def configure_train(*arguments):
        messages = list(configure(*arguments))
        config = ConfigRecord({"server-round": 1, "lr": 3.0})
        messages[0].content = RecordDict({**messages[0].content, "config": config})
        return messages

    inner.configure_train = configure_train
    with pytest.raises(ts.UsageError, match="different arrays or configurations"):
        training.train(rounds=1)


# models


def test_a_session_for_a_part_of_the_model_is_refused(lab):
    """What its layout leaves out would leave in the clear."""
    training = lab()
    part = {"layer.bias": training.model["layer.bias"]}
    training.strategy.options["density"] = 0.5
    whole = dict(training.model)
    joined = training.strategy._joined

    def smaller(nodes, exchange):
        training.strategy._arrays = part
        return joined(nodes, exchange)

    training.strategy._joined = smaller
    messages = training.strategy.configure_train(1, record_of(whole), ConfigRecord(), training.grid)
    for reply in training.grid.send_and_receive(messages):
        assert_refused(reply, "the session is for another model than the arrays")
    assert training.updates == {}


def test_what_came_as_integers_and_was_trained_does_not_leave_in_the_clear(lab):
    """A server that sends weights as integers would have them counted among the buffers."""
    model = {"a": np.zeros((40, 30), np.float32), "b": np.zeros(7, np.int64)}

    def update(user, number, arrays):
        floats = {name: array.astype(np.float32) for name, array in arrays.items()}
        return random_update(user, number, floats)

    training = lab(model=model, update=update)
    with pytest.raises(ts.TooFewSurvivors, match="no user has masked"):
        training.train(rounds=1)
    words = "array 'b' had type int64, and comes back as float32"
    assert [words in reason for reason in training.reasons()] == [True] * 5
    for _, _, reply in training.grid.seen:
        assert reply.has_error() or not reply.content.array_records


def renamed(user, number, arrays):
    return {f"other.{name}": array for name, array in random_update(user, number, arrays).items()}


def reshaped(user, number, arrays):
    return {name: array.reshape(-1) for name, array in random_update(user, number, arrays).items()}


def not_a_number(user, number, arrays):
    after = random_update(user, number, arrays)
    after["layer.bias"][3] = np.nan
    return after


@pytest.mark.parametrize(
    ("update", "words"),
    [
        (renamed, "have other names than those that it got"),
        (reshaped, "had shape (40, 30), and comes back as (1200,)"),
        (not_a_number, "has 1 value that is not finite"),
    ],
)
def test_an_update_that_is_none_is_a_drop_out(lab, update, words):
    training = lab(update=lambda user, *rest: (update if user == 2 else random_update)(user, *rest))
    training.train(rounds=1)
    assert [words in reason for reason in training.reasons()] == [True]
    assert ts.decode(training.rounds()[0]).survivors == [1, 3, 4, 5]


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        (101, "a weight of 101, and this round takes weights above 0 up to 100"),
        (0, "the app returns 0 as 'num-examples'"),
        (-1, "a weight of -1, and this round takes weights above 0 up to 100"),
        (float("nan"), "a weight of nan"),
        ([1, 2], "no number 'num-examples' among its metrics"),
    ],
)
def test_a_weight_that_is_not_admissible_is_a_drop_out(lab, weight, words):
    training = lab(weight=lambda user: weight if user == 2 else 10)
    training.train(rounds=1)
    assert [words in reason for reason in training.reasons()] == [True]
    assert ts.decode(training.rounds()[0]).survivors == [1, 3, 4, 5]


# rounds that are over, and steps that are asked for twice


@pytest.mark.rule(15)
def test_old_rounds_stay_over(lab):
    training = lab()
    masked(training, rounds=3)
    first, second, third = (Workspace(folder) for folder in training.rounds())
    for old in (first, second):
        reply = ask(training, 2, "mask", WORDS, mask_message(old), training.arrays)
        assert reply.has_error()
        assert any(
            words in str(reply.error.reason)
            for words in (
                "keys never go back",
                "it is not an earlier one",
                "has erased its secret",
                "takes part in series",
            )
        )
        for step in ("confirm", "answer"):
            files = {"survivors.json": old.survivors_path.read_bytes()}
            reply = ask(training, 2, step, session_words(old), files)
            assert_refused(reply, "is not this node's latest one")
    # and the latest one is as it was
    agree(training)
    ask_for_answers(training)
    assert ts.decode(third).survivors == [1, 2, 3, 4, 5]


def test_a_node_masks_once_in_a_round(lab):
    training = lab()
    space = masked(training)
    other = {name: array + np.float32(1) for name, array in training.arrays.items()}
    reply = ask(training, 2, "mask", WORDS, mask_message(space), other)
    assert_refused(reply, "user 2 has masked in this round already")


def test_a_second_question_gets_the_same_bytes(lab):
    training = lab()
    space = masked(training)
    agree(training)
    ask_for_answers(training)
    files = training.strategy._round.agreed()
    survivors = {"survivors.json": files["survivors.json"]}
    confirmed = ask(training, 2, "confirm", session_words(space), survivors)
    assert files_of(confirmed) == files_of(training.replies("confirm", 2)[0])
    answered = ask(training, 2, "answer", session_words(space), files)
    assert files_of(answered) == files_of(training.replies("answer", 2)[0])


def test_a_training_that_has_ended_stays_ended(lab):
    training = lab()
    training.train(rounds=1)
    space = Workspace(training.rounds()[0])
    reply = ask(training, 2, "deal", (), mask_message(space))
    assert_refused(reply, "has ended that training")


# survivors


def survivor_set(space: Workspace, users) -> bytes:
    """survivors.json of these users."""
    files, _ = chosen_masked(space)
    rows = rows_of({n: files[n] for n in users})
    return survivors_file.content(space.session, rows, signer=None)


def confirmation(training: Lab, space: Workspace, user: int, survivors: bytes, signer) -> bytes:
    """A confirmation by these keys, whoever has them."""
    from topk_secagg.storage import documents

    body = survivors_file._confirmation(space.session, user, documents.digest(survivors))
    return documents.signed("confirmation", body, signer)


def two_sets(lab, others=(3, 4)):
    """User 5 plays along with the server: one set goes to users 1 and 2, another to the others."""
    training = lab()
    space = masked(training)
    all_users = survivor_set(space, (1, 2, 3, 4, 5))
    without_1 = survivor_set(space, (2, 3, 4, 5))
    confirmed = {}
    for users, survivors in (((1, 2), all_users), (others, without_1)):
        for user in users:
            reply = ask(
                training, user, "confirm", session_words(space), {"survivors.json": survivors}
            )
            confirmed[user] = files_of(reply)
    return training, space, all_users, without_1, confirmed


def confirmations_for(training, space, survivors, confirmed, users):
    files = {name: data for user in users for name, data in confirmed[user].items()}
    files["confirmed/user-05.json"] = confirmation(
        training, space, 5, survivors, identity_of(training, 5)
    )
    return files


@pytest.mark.rule(2)
def test_two_survivor_sets_get_no_answer(lab):
    training, space, all_users, without_1, confirmed = two_sets(lab)
    for survivors, users in ((all_users, (1, 2)), (without_1, (3, 4))):
        files = confirmations_for(training, space, survivors, confirmed, users)
        for user in users:
            reply = ask(training, user, "answer", session_words(space), files)
            assert_refused(reply, "3 users have confirmed these survivors, and 4 must")


@pytest.mark.rule(2)
def test_a_node_confirms_one_survivor_set(lab):
    training, space, _, without_1, _ = two_sets(lab)
    reply = ask(training, 2, "confirm", session_words(space), {"survivors.json": without_1})
    assert_refused(reply, "with other survivors")
    # not even if the first one is gone
    for path in training.grid.folder(2).rglob("survivors.json"):
        path.unlink()
    reply = ask(training, 2, "confirm", session_words(space), {"survivors.json": without_1})
    assert_refused(reply, "user 2 has already confirmed another survivor set")


@pytest.mark.rule(2)
def test_a_server_cannot_confirm_for_nodes(lab):
    training, space, all_users, _, confirmed = two_sets(lab)
    files = confirmations_for(training, space, all_users, confirmed, (1, 2))
    for user in (3, 4):
        files[f"confirmed/user-{user:02}.json"] = confirmation(
            training, space, user, all_users, Identity.drawn("0" * 64)
        )
    reply = ask(training, 1, "answer", session_words(space), files)
    assert_refused(reply, "3 users have confirmed these survivors, and 4 must")


@pytest.mark.rule(2)
def test_without_the_check_two_sets_would_be_answered(lab, monkeypatch):
    """The twin: nodes that do not count confirmations answer both sets."""
    training, space, all_users, without_1, confirmed = two_sets(lab)
    monkeypatch.setattr(
        eliminate_step.survivors_file, "check_confirmed", lambda _space, _survivors: None
    )
    for survivors, users in ((all_users, (1, 2)), (without_1, (3, 4))):
        files = confirmations_for(training, space, survivors, confirmed, users)
        for user in users:
            reply = ask(training, user, "answer", session_words(space), files)
            assert list(files_of(reply)) == [f"elimination/user-{user:02}.h5"]


def test_a_node_confirms_only_its_own_x(lab):
    training = lab()
    space = masked(training)
    survivors = survivor_set(space, (1, 2, 3, 4, 5))
    _, body = survivors_file.parse(space.survivors_path, survivors)
    rows = [replace(row, sha256="0" * 64) if row.user == 2 else row for row in body["survivors"]]
    forged = survivors_file.content(space.session, rows, signer=None)
    reply = ask(training, 2, "confirm", session_words(space), {"survivors.json": forged})
    assert_refused(reply, "names an X of user 2 that this user did not send")


def test_fewer_survivors_than_agreed_are_refused(lab):
    training = lab()
    space = masked(training)
    three = survivor_set(space, (1, 2, 5))
    reply = ask(training, 2, "confirm", session_words(space), {"survivors.json": three})
    assert reply.has_error()
    assert "names 3 survivors, and 4 are needed" in str(reply.error.reason)


# nodes that do not keep to the protocol


def test_an_x_of_somebody_else_is_left_out(lab, caplog):
    training = lab()
    space = masked(training)
    space.masked_path(2).write_bytes(space.masked_path(3).read_bytes())
    agree(training)
    assert "the X of user 2 is left out" in caplog.text
    assert training.strategy._round.survivors() == [1, 3, 4, 5]


def test_replies_with_foreign_files_or_other_steps_are_refused(lab, caplog):
    training = lab()
    ask_node = training.grid.ask

    def lying(message):
        reply = ask_node(message)
        if message.metadata.dst_node_id != training.grid.node(2) or reply.has_error():
            return reply
        record = reply.content.config_records[parcels.RECORD]
        if record["step"] == "mask":
            record["masked/user-03.h5"] = b"x"
        return reply

    training.grid.ask = lying
    training.train(rounds=1)
    assert "a message has a file 'masked/user-03.h5', which does not belong there" in caplog.text
    assert ts.decode(training.rounds()[0]).survivors == [1, 3, 4, 5]


def test_a_node_cannot_have_trained_arrays_averaged_in_the_clear(lab, caplog):
    training = lab()
    ask_node = training.grid.ask

    def telling(message):
        reply = ask_node(message)
        if message.metadata.dst_node_id == training.grid.node(2) and not reply.has_error():
            reply.content["arrays"] = record_of(training.model)
        return reply

    training.grid.ask = telling
    training.train(rounds=1)
    assert "is not one of the model's, or is too large" in caplog.text
    assert ts.decode(training.rounds()[0]).survivors == [1, 3, 4, 5]


def test_metrics_are_averaged_by_the_weights_in_x(lab):
    """What a node says of its weight beside X does not count."""
    training = lab()
    ask_node = training.grid.ask

    def lying(message):
        reply = ask_node(message)
        if not reply.has_error() and "metrics" in reply.content:
            reply.content["metrics"] = MetricRecord({"num-examples": 10**9, "loss": 1.0})
        return reply

    training.grid.ask = lying
    training.train(rounds=1)
    assert training.result.train_metrics_clientapp[1]["loss"] == pytest.approx(1.0)
    assert ts.decode(training.rounds()[0]).survivors == [1, 2, 3, 4, 5]


class Broken(Exception):
    """What no parser of ours is known to raise."""


@pytest.mark.rule(17)
@pytest.mark.parametrize("error", [Broken, MemoryError, OverflowError, RecursionError])
@pytest.mark.parametrize("step", ["deal", "mask", "confirm", "answer"])
def test_whatever_a_reply_makes_a_parser_raise_drops_one_node(
    lab, monkeypatch, step, error, caplog
):
    training = lab()
    store = ServedRound.store

    def parsing(this, at, user, parcel):
        if at == step and user == 2:
            raise error("from a parser")
        store(this, at, user, parcel)

    monkeypatch.setattr(ServedRound, "store", parsing)
    training.train(rounds=1)
    assert (
        f"drops out at the step {step}: its reply cannot be read ({error.__name__})" in caplog.text
    )
    survivors = [1, 3, 4, 5] if step in ("deal", "mask") else [1, 2, 3, 4, 5]
    assert ts.decode(training.rounds()[0]).survivors == survivors


@pytest.mark.rule(17)
def test_without_the_barrier_one_reply_ends_the_training(lab, monkeypatch):
    """The twin."""

    def taking(_exchange, _step, reply, *, node, take):
        take(node, parcels.opened(reply), reply.content)
        return True

    def parsing(_this, _step, user, _parcel):
        if user == 2:
            raise Broken("from a parser")

    monkeypatch.setattr(Exchange, "take_reply", taking)
    monkeypatch.setattr(ServedRound, "store", parsing)
    with pytest.raises(Broken):
        lab().train(rounds=1)


@pytest.mark.rule(17)
@pytest.mark.parametrize("step", ["confirm", "answer"])
def test_a_reply_is_compared_with_what_was_asked(lab, step, caplog):
    """Another user's file, under its own name."""
    training = lab()
    ask_node = training.grid.ask
    first = {}

    def lying(message):
        reply = ask_node(message)
        if step_of(message) == step and not reply.has_error():
            record = reply.content.config_records[parcels.RECORD]
            (name,) = files_of(reply)
            first.setdefault("data", record[name])
            if training.grid.user(message.metadata.dst_node_id) == 2:
                record[name] = first["data"]
        return reply

    training.grid.ask = lying
    training.train(rounds=1)
    assert f"user 2 (node 1014) drops out at the step {step}" in caplog.text
    report = ts.decode(training.rounds()[0])
    assert report.survivors == [1, 2, 3, 4, 5]
    assert report.left_out == {}


@pytest.mark.rule(17)
def test_one_metric_that_is_no_number_does_not_count(lab):
    training = lab()
    ask_node = training.grid.ask

    def telling(message):
        reply = ask_node(message)
        if training.grid.user(message.metadata.dst_node_id) == 2 and "metrics" in reply.content:
            reply.content["metrics"] = MetricRecord({"num-examples": 1, "loss": float("nan")})
        return reply

    training.grid.ask = telling
    training.train(rounds=1)
    weights = {user: training.weight(user) for user in (1, 3, 4, 5)}
    mean = sum(user * weights[user] for user in weights) / sum(weights.values())
    assert training.result.train_metrics_clientapp[1]["loss"] == pytest.approx(mean)
