"""Nothing secret is in any message of a whole training: every byte of every message is looked at,
and a node that leaks is caught."""

import base64

import h5py
import numpy as np
import pytest
from federation import LOST, record_of, refuse_at
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import recorddict_to_proto

from topk_secagg.flower import client
from topk_secagg.storage.keys import read_identity

KEY_BYTES = 32
_PUBLIC = ("dealt", "folder")  # tables of a chain that are no secret: digests, and a name
WINDOW = 8  # bytes: a float64, or two float32


def bytes_of(message) -> bytes:
    """Everything that a message says."""
    if message.has_error():
        return str(message.error.reason).encode()
    return recorddict_to_proto(message.content).SerializeToString()


class Secrets:
    """What the nodes keep to themselves, collected whenever a node has run."""

    def __init__(self, training):
        self.training = training
        self.texts = set()  # sought as they are
        self.values = set()  # of 8 bytes, sought anywhere
        ask = training.grid.ask

        def looking(message):
            reply = ask(message)
            self.collect(training.grid.user(message.metadata.dst_node_id))
            return reply

        training.grid.ask = looking

    def collect(self, user):
        folder = self.training.grid.folder(user)
        identity = read_identity(self.training.grid.identity(user))
        self.add_key(bytes.fromhex(identity.ed25519))
        self.texts |= {identity.age.encode(), identity.age.lower().encode()}
        if (folder / "secrets" / "input.key").exists():
            self.add_key((folder / "secrets" / "input.key").read_bytes())
        for path in folder.rglob("secrets/**/*.h5"):
            with h5py.File(path) as file:
                for name, table in file.items():
                    content = table[...]
                    if content.dtype.kind == "f":
                        self.add_reals(content)
                    elif name not in _PUBLIC and content.dtype == np.uint8:
                        for key in content.reshape(-1, content.shape[-1]):
                            self.add_key(key.tobytes())

    def add_key(self, key):
        if len(key) >= KEY_BYTES and any(key):
            self.texts |= {key, key.hex().encode(), base64.b64encode(key).rstrip(b"=")}

    def add_reals(self, values):
        flat = np.asarray(values).reshape(-1)
        flat = flat[flat != 0]
        wide = flat.astype("<f8")
        narrow = flat.astype("<f4").tobytes()
        pairs = {narrow[i : i + WINDOW] for i in range(0, len(narrow) - WINDOW + 1, WINDOW // 2)}
        self.values |= {*wide.view("<u8").tolist(), *(int.from_bytes(p, "little") for p in pairs)}
        self.texts |= {repr(value).encode() for value in wide[:50].tolist()}

    def found(self):
        """What was sent although it is secret."""
        for updates in self.training.updates.values():
            for update in updates.values():
                for part in update.values():
                    self.add_reals(part)
        sent = b"\0".join(bytes_of(each) for _, *pair in self.training.grid.seen for each in pair)
        windows = np.concatenate(
            [
                np.frombuffer(sent[shift : shift + (len(sent) - shift) // WINDOW * WINDOW], "<u8")
                for shift in range(WINDOW)
            ]
        )
        hits = np.isin(np.fromiter(self.values, np.uint64), windows)
        return [text for text in self.texts if text in sent] + np.flatnonzero(hits).tolist()


def test_no_message_of_a_training_holds_a_secret(lab):
    training = lab()
    training.grid.faults = lambda step, user: (
        refuse_at("answer", 2, how=LOST)(step, user) if len(training.rounds()) == 2 else None
    )
    secrets = Secrets(training)
    training.train(rounds=3)
    assert len(secrets.values) > 10_000
    assert len(secrets.texts) > 500
    assert len(training.grid.seen) > 50
    assert secrets.found() == []
    assert all(not context.state for context in training.grid.contexts.values())


def chain(node, _space, _update):
    return next(node.home.rglob("*.chain-*.h5")).read_bytes()


def identity(node, _space, _update):
    return b"see " + node.identity_path.read_bytes()


def own_key_in_hex(node, _space, _update):
    with h5py.File(next(node.home.rglob("secrets/*/user-0?.h5"))) as file:
        return file["key"][...].tobytes().hex().encode()


def residual(node, _space, _update):
    return next(node.home.rglob("*.residual.h5")).read_bytes()


def two_values(_node, _space, update):
    return b"x" + update["layer.weight"].reshape(-1)[100:102].astype(np.float32).tobytes()


def one_value(_node, _space, update):
    return b"xyz" + update["layer.bias"].reshape(-1)[7:8].tobytes()


@pytest.mark.parametrize("leak", [chain, identity, own_key_in_hex, residual, two_values, one_value])
def test_a_node_that_leaks_is_caught(lab, monkeypatch, leak):
    """The twin: user 3 adds a secret to its X in the second round."""
    training = lab()
    secrets = Secrets(training)
    mask_once = client._mask_once
    leaked = []

    def leaking(node, space, *, user, update, **others):
        if user == 3 and space.session.generation == 1:
            leaked.append(leak(node, space, update))
        mask_once(node, space, user=user, update=update, **others)

    named = client.parcels.named

    def with_leak(space, *paths):
        return named(space, *paths) | ({"note": leaked.pop()} if leaked else {})

    monkeypatch.setattr(client, "_mask_once", leaking)
    monkeypatch.setattr(client.parcels, "named", with_leak)
    training.train(rounds=2)
    assert leaked == []
    assert secrets.found() != []


def test_what_is_compared_is_all_that_a_message_has():

    content = RecordDict(
        {
            "a": record_of({"name-of-array": np.array([1.25])}),
            "m": MetricRecord({"name-of-metric": 2.5}),
            "c": ConfigRecord({"name-of-word": "word", "name-of-file": b"file"}),
        }
    )
    sent = bytes_of(Message(content, dst_node_id=1, message_type="train"))
    for text in (b"name-of-array", b"name-of-metric", b"name-of-word", b"word", b"name-of-file"):
        assert text in sent
    assert np.float64(1.25).tobytes() in sent
    assert np.float64(2.5).tobytes() in sent
