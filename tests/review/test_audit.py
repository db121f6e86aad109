"""`audit` passes what was run properly, and names the file when something was tampered with."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner
from topk_secagg_cli.main import cli

sys.path.insert(0, str(Path(__file__).parents[1] / "steps"))
import rounds

from topk_secagg.errors import BadData, CannotWrite, InputMissing, SecAggError
from topk_secagg.gradients.layout import Layout
from topk_secagg.protocol import parameters, permutation, rotation
from topk_secagg.protocol.messages import Secret
from topk_secagg.protocol.parameters import Parameters
from topk_secagg.review.audit import audit
from topk_secagg.review.report import page
from topk_secagg.review.uniformity import chi_square_tail, uniformity
from topk_secagg.steps.decode import decode
from topk_secagg.steps.eliminate import eliminate
from topk_secagg.steps.freeze import freeze
from topk_secagg.steps.init import init
from topk_secagg.steps.keygen import keygen
from topk_secagg.steps.mask import mask
from topk_secagg.steps.offline import offline
from topk_secagg.storage import wire
from topk_secagg.storage.artifacts import opened, write_artifact
from topk_secagg.storage.keys import read_identity
from topk_secagg.storage.public import read_masked
from topk_secagg.storage.secrets import read_secret
from topk_secagg.storage.workspace import Workspace

L, K, N = 120, 20, 5
OPTIONS = {"users": N, "survivors": 3, "colluders": 1, "top_k": K}
KINDS = [
    pytest.param(construction, elimination, id=f"{construction}-{elimination}")
    for construction in ("permutation", "rotation")
    for elimination in ("dense", "syndrome")
]
BOTH = ["permutation", "rotation"]
PRIVATE_POINTS = {
    "ledgers",
    "masks and places fit X",
    "shares interpolate to selectors",
    "Y recomputed",
    "aggregate is the sum of the inputs",
}


@pytest.fixture(scope="module", autouse=True)
def _no_waiting_for_the_disk():
    with mock.patch.object(os, "fsync", return_value=None):
        yield


@pytest.fixture(scope="module")
def gradients(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gradients")
    values = np.random.default_rng(1).uniform(-0.9, 0.9, (N, L))
    values[:, : K // 2] = 1  # large entries at the front, so that unhidden places show
    paths = [folder / f"{n + 1}.npy" for n in range(N)]
    for path, row in zip(paths, values, strict=True):
        np.save(path, row)
    return paths


def play(root, gradients, construction, elimination="auto", **options):
    """A whole round, in which nobody drops out."""
    picks = 2 if construction == "rotation" else None
    chosen = {**OPTIONS, "construction": construction, "elimination": elimination, "picks": picks}
    space = rounds.start(root, Layout.flat(L), **{**chosen, **options})
    rounds.mask_all(space, gradients)
    rounds.finish(space)
    return space


@pytest.fixture(scope="module")
def templates(tmp_path_factory, gradients):
    made = {}

    def get(construction, elimination="dense"):
        if (construction, elimination) not in made:
            root = tmp_path_factory.mktemp("template") / "round"
            made[construction, elimination] = play(root, gradients, construction, elimination).root
        return made[construction, elimination]

    return get


@pytest.fixture
def finished(templates, tmp_path):
    def copy(construction="rotation", elimination="dense", *, public=False, shares=True):
        root = tmp_path / "round"
        left_out = ["secrets"] * public + ["shares"] * (public or not shares)
        shutil.copytree(templates(construction, elimination), root, ignore=shutil.ignore_patterns(*left_out))
        return Workspace(root)

    return copy


@pytest.fixture(scope="module")
def sealed_template(tmp_path_factory, gradients):
    folder = tmp_path_factory.mktemp("sealed")
    identities = [folder / f"{n}.identity" for n in range(1, N + 1)]
    recipients = tuple(keygen(n + 1, path) for n, path in enumerate(identities))
    p = Parameters.choose(**OPTIONS, length=L, construction="rotation", picks=2)
    space = init(folder / "round", p, Layout.flat(L), recipients=recipients)
    for n in space.users():
        offline(space, n, identity=identities[n - 1])
        mask(space, n, gradients[n - 1], identity=identities[n - 1])
    for n in freeze(space).survivors:
        eliminate(space, n, identity=identities[n - 1])
    decode(space)
    return space.root, identities


@pytest.fixture
def sealed(sealed_template, tmp_path):
    root = tmp_path / "round"
    shutil.copytree(sealed_template[0], root)
    return Workspace(root), sealed_template[1]


def of(findings, verdict):
    return [(f.point, f.subject) for f in findings if f.verdict == verdict]


def fails(space, *identities):
    return of(audit(Workspace(space.root), identities), "fail")


def rewrite(path, change):
    """Change an artifact and give it a valid digest."""
    with opened(path, verify=False) as artifact:
        attributes, kind = dict(artifact.attributes), artifact.kind.name
        datasets = {name: artifact.read(name) for name in artifact.datasets}
    attributes.pop("sha256")
    change(attributes, datasets)
    write_artifact(path, kind, attributes, datasets)


def flip(path, dataset):
    """Flip a bit in the middle of a dataset."""
    with opened(path, verify=False) as artifact:
        d = artifact.datasets[dataset]
    content = bytearray(path.read_bytes())
    content[d.offset + d.size // 2] ^= 1
    path.write_bytes(content)


def forge_share(space, m, n, change):
    """Change rows of a share and give them valid checksums."""
    p = space.session.parameters

    def forge(_, datasets):
        change(datasets)
        for at, name in enumerate("fh"):
            for i, start in enumerate(range(0, p.rows, p.check_rows)):
                rows = np.ascontiguousarray(datasets[name][start : start + p.check_rows])
                datasets["check"][i, at] = np.frombuffer(hashlib.sha256(rows).digest(), np.uint8)

    rewrite(space.share_path(m, n), forge)


# --- what was run properly ---------------------------------------------------------------------


@pytest.mark.parametrize(("construction", "elimination"), KINDS)
def test_a_clean_round_passes_every_point_with_everything_at_hand(finished, construction, elimination):
    findings = audit(finished(construction, elimination))
    assert of(findings, "fail") == []
    assert of(findings, "not checkable") == []
    assert {f.point for f in findings} >= PRIVATE_POINTS


@pytest.mark.parametrize(("construction", "elimination"), KINDS)
def test_a_clean_round_passes_with_public_files_only(finished, construction, elimination):
    findings = audit(finished(construction, elimination, public=True))
    assert of(findings, "fail") == []
    assert {point for point, _ in of(findings, "not checkable")} == PRIVATE_POINTS
    assert not {f.point for f in findings if f.verdict == "pass"} & PRIVATE_POINTS


def test_sealed_shares_are_checked_with_identities_and_not_checkable_without(sealed):
    space, identities = sealed
    findings = audit(space, identities)
    assert of(findings, "fail") == of(findings, "not checkable") == []
    findings = audit(space, identities[:2])
    assert of(findings, "fail") == []
    closed = [s for point, s in of(findings, "not checkable") if point.startswith("sealed")]
    assert len(closed) == (N - 2) * N
    assert "shares/user-03/from-01.h5.age" in closed
    findings = audit(space)
    assert of(findings, "fail") == []
    assert ("Y recomputed", "elimination/user-01.h5") in of(findings, "not checkable")


def test_a_running_round_and_users_that_drop_out_are_no_fail(tmp_path, gradients):
    p = Parameters.choose(**OPTIONS, length=L, construction="rotation", picks=2)
    space = init(tmp_path / "round", p, Layout.flat(L))
    assert fails(space) == []
    for user in space.users():
        offline(space, user)
        if user < N:
            mask(space, user, gradients[user - 1])
    assert fails(space) == []
    freeze(space)
    for user in (1, 2, 4):
        eliminate(space, user)
    assert fails(space) == []
    decode(space)
    findings = audit(space)
    assert of(findings, "fail") == []
    assert of(findings, "not checkable") == [("Y on one polynomial (Reed-Solomon)", "elimination")]
    shutil.copy(space.answer_path(2), space.answer_path(N))  # who has dropped out has nothing to answer
    rewrite(space.answer_path(N), lambda a, _: a.__setitem__("user", N))
    assert ("one survivor set, one set of X", f"elimination/user-{N:02}.h5") in fails(space)


@pytest.mark.parametrize(("construction", "width"), [("permutation", 60), ("rotation", 12)])
def test_shares_of_many_blocks_are_streamed(tmp_path, gradients, monkeypatch, construction, width):
    monkeypatch.setattr(parameters, "_BLOCK_SYMBOLS", N * width * 9)
    space = play(tmp_path / "round", gradients, construction)
    p = space.session.parameters
    assert p.block_rows < p.rows
    assert fails(space) == []

    def last_row(datasets):
        datasets["f"][-1, -1] ^= 1

    forge_share(space, 2, 3, last_row)
    assert ("shares interpolate to selectors", "shares/user-02/from-03.h5") in fails(space)


# --- what was damaged or exchanged ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dataset", "point"),
    [
        ("masked/user-02.h5", "value", "digest"),
        ("elimination/user-02.h5", "y", "digest"),
        ("shares/user-04/from-02.h5", "f", "ranges"),
        ("shares/user-04/from-02.h5", "check", "digest"),
        ("secrets/user-02.h5", "mask", "digest"),
        ("aggregate.h5", "real", "digest"),
    ],
)
def test_a_flipped_bit_is_found_in_its_file_and_nowhere_else(finished, name, dataset, point):
    space = finished(shares=name.startswith("shares"))
    flip(space.root / name, dataset)
    assert fails(space) == [(point, name)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("masked/user-02.h5", b""),
        ("masked/user-02.h5", None),
        ("elimination/user-02.h5", b"no HDF5 file"),
        ("shares/user-04/from-02.h5", b"no HDF5 file"),
        ("shares/user-04/from-02.h5", None),
        ("secrets/user-02.h5", b""),
        ("secrets/user-02.ledger.json", b"{"),
    ],
)
def test_a_file_that_cannot_be_parsed_does_not_stop_the_rest(finished, name, content):
    space = finished(shares=name.startswith("shares"))
    path = space.root / name
    if content is None:
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(content)
    findings = audit(space)
    assert of(findings, "fail") == [("schema", name)]
    assert ("aggregate recomputed", "aggregate.h5") in of(findings, "pass")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("masked/user-01.h5", "masked/user-02.h5"),
        ("elimination/user-01.h5", "elimination/user-02.h5"),
        ("secrets/user-01.h5", "secrets/user-02.h5"),
        ("shares/user-03/from-01.h5", "shares/user-03/from-02.h5"),
        ("shares/user-01/from-03.h5", "shares/user-02/from-03.h5"),
    ],
)
def test_files_of_two_users_exchanged(finished, one, other):
    space = finished(shares=one.startswith("shares"))
    a, b = space.root / one, space.root / other
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second)
    b.write_bytes(first)
    assert fails(space) == [("session and user", one), ("session and user", other)]


def test_a_file_of_another_session(finished, templates, gradients, tmp_path):
    space = finished(shares=False)
    other = play(tmp_path / "other", gradients, "rotation", "dense")
    shutil.copy(other.answer_path(3), space.answer_path(3))
    shutil.copy(other.ledger_path(3), space.ledger_path(3))
    assert fails(space) == [
        ("session and user", "elimination/user-03.h5"),
        ("schema", "secrets/user-03.ledger.json"),
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda _, d: d.__setitem__("index", d["index"][:-1]),
        lambda _, d: d.__setitem__("value", d["value"][:-1]),
        lambda _, d: d["value"].__setitem__(3, 2**32 - 1),
        lambda a, _: a.__setitem__("weight", "-1.0"),
    ],
)
def test_an_x_that_no_honest_user_sends(finished, change):
    space = finished("permutation", public=True)
    rewrite(space.masked_path(2), change)
    found = fails(space)
    assert [s for p, s in found if p.startswith("X of the right size")] == ["masked/user-02.h5"]


def test_indices_that_are_not_distinct_and_sorted(finished):
    space = finished("permutation", public=True)
    p = space.session.parameters
    index = np.arange(p.entries, dtype=np.uint32)
    for wrong in (0, 2):  # twice the same, or in the wrong order; both have the high parts of a good code
        index[1] = wrong
        code = wire.elias_fano(index, p.length)
        rewrite(space.masked_path(2), lambda _, d, code=code: d.__setitem__("index", code))
        assert ("X of the right size, indices distinct and sorted", "masked/user-02.h5") in fails(space)


@pytest.mark.parametrize("construction", BOTH)
def test_another_x_than_was_frozen_and_sent(finished, construction):
    space = finished(construction, shares=False)

    def other_value(_, datasets):
        datasets["value"][0] ^= 1

    rewrite(space.masked_path(2), other_value)
    assert fails(space)[:2] == [
        ("one survivor set, one set of X", "masked/user-02.h5"),
        ("ledgers", "secrets/user-02.ledger.json"),
    ]


def test_a_weight_in_survivors_json_that_is_not_that_of_the_x(finished):
    space = finished(public=True)
    text = space.survivors_path.read_text()
    space.survivors_path.write_text(text.replace('"weight": 1.0', '"weight": 9.0', 1))
    assert ("one survivor set, one set of X", "masked/user-01.h5") in fails(space)


def test_an_answer_for_another_survivor_set(finished):
    space = finished(shares=False)
    rewrite(space.answer_path(2), lambda a, _: a.__setitem__("survivors", "0" * 64))
    assert fails(space) == [
        ("one survivor set, one set of X", "elimination/user-02.h5"),
        ("ledgers", "secrets/user-02.ledger.json"),
    ]
    space.survivors_path.unlink()
    named = [s for p, s in fails(space) if p.startswith("one survivor set")]
    assert named == [f"elimination/user-{n:02}.h5" for n in space.users()]


@pytest.mark.parametrize(
    ("construction", "elimination"), [("permutation", "dense"), ("rotation", "syndrome")]
)
def test_a_forged_answer_is_named_by_the_others_and_by_the_shares(finished, construction, elimination):
    space = finished(construction, elimination)

    def forge(_, datasets):
        datasets["y"][0, 0] ^= 1

    rewrite(space.answer_path(2), forge)
    name = "elimination/user-02.h5"
    wrong = [("Y on one polynomial (Reed-Solomon)", name), ("Y recomputed", name)]
    assert fails(space) == [wrong[0], ("aggregate recomputed", "aggregate.h5"), wrong[1]]
    decode(space)  # now the aggregate says that user 2 answered wrongly
    assert fails(space) == wrong
    shutil.rmtree(space.root / "shares")
    space.answer_path(5).unlink()  # one answer to spare: a wrong one shows, and which cannot be told
    assert fails(space) == [("Y on one polynomial (Reed-Solomon)", "elimination")]


@pytest.mark.parametrize("construction", BOTH)
def test_a_forged_aggregate(finished, construction):
    space = finished(construction, shares=False)
    p = space.session.parameters

    def forge(_, datasets):
        datasets["value"][0] = 1
        datasets["real"][0] = 1 / p.scale

    rewrite(space.aggregate_path, forge)
    assert fails(space) == [
        ("aggregate recomputed", "aggregate.h5"),
        ("aggregate is the sum of the inputs", "aggregate.h5"),
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda _, d: d["real"].__setitem__(0, 7.0),
        lambda _, d: d["index"].__setitem__(0, L),
        lambda _, d: d.__setitem__("answering", np.array([1, 2, 9], dtype="<u4")),
        lambda a, _: a.__setitem__("survivors", "0" * 64),
    ],
)
def test_an_aggregate_that_contradicts_itself(finished, change):
    space = finished(public=True)
    rewrite(space.aggregate_path, change)
    assert fails(space) == [("ranges", "aggregate.h5")]


def test_an_aggregate_that_blames_the_wrong_user(finished):
    space = finished(public=True)
    rewrite(space.aggregate_path, lambda _, d: d.__setitem__("corrected", np.array([3], dtype="<u4")))
    assert fails(space) == [("aggregate recomputed", "aggregate.h5")]


# --- secrets, shares and ledgers -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("construction", "dataset", "with_secret"),
    [
        ("permutation", "f", False),
        ("permutation", "h", True),
        ("rotation", "f", True),
        ("rotation", "h", False),
    ],
)
def test_a_share_from_other_noise_is_named(finished, construction, dataset, with_secret):
    space = finished(construction)
    q = space.session.parameters.field

    def other_noise(datasets):
        noise = np.random.default_rng(3).integers(0, q, datasets[dataset].shape)
        datasets[dataset][:] = (datasets[dataset].astype(np.int64) + noise) % q

    forge_share(space, 4, 2, other_noise)
    if not with_secret:
        shutil.rmtree(space.root / "secrets")
    found = fails(space)
    assert found[0] == ("shares interpolate to selectors", "shares/user-04/from-02.h5")
    assert ("Y recomputed", "elimination/user-04.h5") in found


def test_two_wrong_shares_are_seen_and_cannot_be_told(finished):
    space = finished()

    def one(datasets):
        datasets["f"][0, 0] ^= 1

    for m in (1, 2):
        forge_share(space, m, 3, one)
    assert ("shares interpolate to selectors", "shares/user-*/from-03.h5") in fails(space)


def test_selectors_with_two_ones_are_found_though_the_shares_agree(finished):
    space = finished()
    q = space.session.parameters.field

    def add_a_constant(datasets):  # a polynomial of degree 0: the shares still lie on one polynomial
        datasets["f"][0] = (datasets["f"][0].astype(np.int64) + 1) % q

    for m in space.users():
        forge_share(space, m, 3, add_a_constant)
    findings = audit(space)
    wrong = [f for f in findings if (f.point, f.verdict) == ("shares interpolate to selectors", "fail")]
    assert [f.subject for f in wrong] == ["shares/user-*/from-03.h5"]
    assert "exactly one 1" in wrong[0].why


@pytest.mark.parametrize("construction", BOTH)
def test_a_secret_that_is_not_the_one_that_was_shared(finished, construction):
    space = finished(construction)
    q = space.session.parameters.field

    def other_masks(_, datasets):
        datasets["mask"][:] = (datasets["mask"].astype(np.int64) + q // 2) % q

    rewrite(space.secret_path(2), other_masks)
    assert fails(space) == [
        ("masks and places fit X", "masked/user-02.h5"),
        ("shares interpolate to selectors", "shares/user-*/from-02.h5"),
    ]


def test_places_that_do_not_fit_x(finished):
    space = finished("rotation")
    rotations = read_masked(space.session, space.masked_path(2), 2).masked.index.astype(np.int64)

    def same_coordinate(_, datasets):
        place = datasets["place"]
        place[1] = (int(place[0]) + rotations[0] - rotations[1]) % space.session.parameters.width

    rewrite(space.secret_path(2), same_coordinate)
    assert fails(space) == [
        ("masks and places fit X", "masked/user-02.h5"),
        ("shares interpolate to selectors", "shares/user-*/from-02.h5"),
    ]


def test_shares_of_another_run_of_offline(finished):
    space = finished()
    rewrite(space.share_path(3, 2), lambda a, _: a.__setitem__("sharing", "0" * 64))
    assert fails(space) == [("session and user", "shares/user-03/from-02.h5")]


@pytest.mark.parametrize("key", ["masked", "answered", "shared"])
@pytest.mark.parametrize("value", [None, "0" * 64])
def test_a_ledger_that_contradicts_what_was_sent(finished, key, value):
    space = finished(shares=False)
    path = space.ledger_path(2)
    body = json.loads(path.read_text())
    assert body[key]
    path.write_text(json.dumps({**body, key: value}))
    assert fails(space) == [("ledgers", "secrets/user-02.ledger.json")]


@pytest.mark.parametrize(
    "name", ["secrets/user-02.h5", "secrets/user-02.ledger.json", "shares/user-01/from-02.h5"]
)
def test_secrets_that_others_may_read(finished, name):
    space = finished(shares=name.startswith("shares"))
    (space.root / name).chmod(0o644)
    assert fails(space) == [("permissions", name)]


def test_public_files_that_anybody_may_write(finished):
    space = finished(public=True)
    space.survivors_path.chmod(0o666)
    assert fails(space) == [("permissions", "survivors.json")]


@pytest.mark.parametrize(
    ("name", "mode"),
    [(".", 0o777), ("secrets", 0o750), ("shares", 0o777), ("shares/user-03", 0o755), ("masked", 0o777)],
)
def test_folders_that_are_open(finished, name, mode):
    space = finished()
    (space.root / name).chmod(mode)
    assert fails(space) == [("permissions", str(space.root) if name == "." else name)]


def test_links_to_folders_are_followed_but_not_in_circles(finished, tmp_path):
    space = finished()
    (space.root / "shares/user-03").rename(tmp_path / "elsewhere")
    (space.root / "shares/user-03").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/again").symlink_to(space.root / "shares")
    (tmp_path / "elsewhere/from-02.h5").chmod(0o644)
    assert fails(space) == [("permissions", "shares/user-03/from-02.h5")]


def test_a_folder_of_which_nothing_is_known(finished):
    space = finished(shares=False)
    (space.root / "backup").mkdir()
    shutil.copy(space.secret_path(1), space.root / "backup")
    assert ("only files of the round", "backup") in of(audit(space), "not checkable")


def test_an_aggregate_that_blames_a_user_whose_answer_is_gone(finished):
    space = finished(public=True)
    space.answer_path(4).unlink()
    rewrite(space.aggregate_path, lambda _, d: d.__setitem__("corrected", np.array([4], dtype="<u4")))
    assert ("aggregate recomputed", "aggregate.h5") in of(audit(space), "not checkable")


def test_an_aggregate_of_nobodys_answers(finished):
    space = finished(public=True)
    rewrite(space.aggregate_path, lambda _, d: d.__setitem__("answering", np.array([], dtype="<u4")))
    assert ("ranges", "aggregate.h5") in fails(space)


def test_what_is_missing_is_not_checkable(finished):
    space = finished()
    space.masked_path(1).unlink()
    space.secret_path(2).unlink()
    space.ledger_path(2).unlink()
    for m in range(1, 4):
        space.share_path(m, 3).unlink()
    for n in (3, 4, 5):
        space.answer_path(n).unlink()
    findings = audit(space)
    assert of(findings, "fail") == []
    unknown = of(findings, "not checkable")
    for expected in (
        ("X of the right size, indices distinct and sorted", "masked/user-01.h5"),
        ("one survivor set, one set of X", "masked/user-01.h5"),
        ("masks and places fit X", "masked/user-02.h5"),
        ("ledgers", "secrets/user-02.ledger.json"),
        ("shares interpolate to selectors", "shares/user-*/from-03.h5"),
        ("Y on one polynomial (Reed-Solomon)", "elimination"),
        ("aggregate recomputed", "aggregate.h5"),
        ("Y recomputed", "elimination/user-01.h5"),
    ):
        assert expected in unknown


def test_files_that_the_auditor_may_not_read_are_not_checkable(finished, monkeypatch):
    space, really = finished(), os.open

    def closed(path, *args, **kwargs):
        if "secrets" in str(path) or "shares" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return really(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", closed)
    findings = audit(space)
    assert of(findings, "fail") == []
    assert ("schema", "secrets/user-01.h5") in of(findings, "not checkable")
    assert ("schema", "shares/user-01/from-02.h5") in of(findings, "not checkable")
    assert ("aggregate recomputed", "aggregate.h5") in of(findings, "pass")


def test_a_damaged_or_forged_sealed_share(sealed):
    space, identities = sealed
    path = space.share_path(2, 1)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    shutil.copy(space.share_path(3, 4), space.share_path(3, 5))
    assert fails(space, *identities) == [
        ("sealed shares open, and are signed", "shares/user-02/from-01.h5.age"),
        ("sealed shares open, and are signed", "shares/user-03/from-05.h5.age"),
    ]


def test_a_forged_signature(sealed):
    space, identities = sealed
    other = read_identity(identities[0])

    def sign_for_another(attributes, _):
        attributes["signature"] = other.sign("elimination", "0" * 64)

    rewrite(space.answer_path(2), sign_for_another)
    rewrite(space.masked_path(3), lambda _, d: d["value"].__setitem__(0, 5))
    assert fails(space) == [("signature", "masked/user-03.h5"), ("signature", "elimination/user-02.h5")]


def test_an_identity_of_nobody_in_the_round(sealed, tmp_path):
    space, _ = sealed
    keygen(1, tmp_path / "stranger")
    with pytest.raises(BadData, match="any user of this round"):
        audit(space, [tmp_path / "stranger"])


# --- the folder and the session ------------------------------------------------------------------


def test_files_under_names_that_they_must_not_have(finished):
    space = finished()
    shutil.copy(space.share_path(2, 1), space.root / "copy.h5")
    shutil.copy(space.ledger_path(1), space.root / "secrets" / "old.json")
    shutil.copy(space.masked_path(1), space.root / "masked" / "user-07.h5")
    (space.root / "masked" / "user-99.h5").write_bytes(b"x")
    assert {s for p, s in fails(space) if p == "only files of the round"} == {
        "copy.h5",
        "secrets/old.json",
        "masked/user-07.h5",
        "masked/user-99.h5",
    }


def test_a_share_in_the_clear_in_a_sealed_round(sealed, templates):
    space, _ = sealed
    plain = Workspace(templates("rotation")).share_path(1, 2)
    shutil.copy(plain, space.root / "shares" / "user-01" / "from-02.h5")
    assert fails(space) == [("only files of the round", "shares/user-01/from-02.h5")]


def test_leftovers_and_foreign_files_are_no_fail(finished):
    space = finished(shares=False)
    leftover = space.root / "secrets" / ".user-01.h5.77.tmp"
    leftover.touch(0o600)
    (space.root / "notes.json").write_text("{}")
    (space.root / "sum.npz").write_bytes(b"")
    findings = [f for f in audit(space) if f.point == "only files of the round"]
    assert [(f.subject, f.verdict) for f in findings] == [
        ("notes.json", "not checkable"),
        ("secrets/.user-01.h5.77.tmp", "pass"),
    ]
    leftover.chmod(0o640)
    assert fails(space) == [("permissions", "secrets/.user-01.h5.77.tmp")]


def test_a_missing_session_is_input_missing(tmp_path):
    with pytest.raises(InputMissing):
        audit(Workspace(tmp_path))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": "topk-secagg"}', "[" * 100_000])
def test_a_damaged_session_is_a_fail(finished, content):
    space = finished(public=True)
    space.session_path.write_text(content)
    findings = audit(Workspace(space.root))
    assert ("schema", "session.json") in of(findings, "fail")
    assert ("everything else", ".") in of(findings, "not checkable")
    page(Workspace(space.root), findings)


@pytest.mark.parametrize(
    ("change", "point"),
    [
        (lambda body: body["parameters"].update(colluders=9), "parameters admissible"),
        (lambda body: body["parameters"].update(field=2**31), "parameters admissible"),
        (lambda body: body["points"]["alpha"].__setitem__(0, body["points"]["beta"][0]), "points distinct"),
    ],
)
def test_inadmissible_parameters_and_equal_points(finished, change, point):
    space = finished(public=True)
    body = json.loads(space.session_path.read_text())
    change(body)
    space.session_path.write_text(json.dumps(body, indent=2) + "\n")
    assert fails(space) == [(point, "session.json"), ("schema", "session.json")]


def test_a_public_seed_is_not_passed_over(tmp_path):
    p = Parameters.choose(**OPTIONS, length=L)
    space = init(tmp_path / "round", p, Layout.flat(L), insecure_seed=3)
    assert ("no public seed", "session.json") in of(audit(space), "not checkable")
    assert b"INSECURE" in page(space, audit(space))


# --- statistics ----------------------------------------------------------------------------------


@pytest.mark.parametrize("freedom", [1, 2, 3, 10, 15, 31, 63])
def test_the_tail_of_chi_square_is_the_integral_of_its_density(freedom):
    from math import lgamma

    x = np.linspace(1e-9, 400, 2_000_001)
    log = (freedom / 2 - 1) * np.log(x) - x / 2 - freedom / 2 * np.log(2) - lgamma(freedom / 2)
    density = np.exp(log)
    for start in (0.5 * freedom, freedom, 2.0 * freedom + 10, 3.0 * freedom + 30):
        above = x >= start
        integral = np.trapezoid(density[above], x[above])
        assert chi_square_tail(start, freedom) == pytest.approx(integral, rel=1e-3)
    assert chi_square_tail(0, freedom) == 1


def test_known_quantiles_of_chi_square():
    for quantile, freedom, tail in (
        (3.8415, 1, 0.05),
        (18.307, 10, 0.05),
        (30.578, 15, 0.01),
        (103.44, 63, 0.001),
    ):
        assert chi_square_tail(quantile, freedom) == pytest.approx(tail, rel=2e-3)


def test_uniform_values_pass_and_biased_ones_do_not():
    source = np.random.default_rng(5)
    for bound, count in ((2**32 - 5, 80), (97, 300), (12, 100), (2, 50)):
        for _ in range(200):
            uniformity([source.integers(0, bound, count, dtype=np.uint32)], bound)
    with pytest.raises(BadData, match="1e-06"):
        uniformity([source.integers(0, 2**31, 320, dtype=np.uint32)], 2**32 - 5)
    with pytest.raises(InputMissing, match="too few"):
        uniformity([source.integers(0, 2**31, 79, dtype=np.uint32)], 2**32 - 5)


def test_subsets_pass_with_the_smaller_variance_that_they_have():
    source = np.random.default_rng(6)
    tails = []
    for _ in range(300):
        parts = [source.permutation(400)[:200].astype(np.uint32) for _ in range(4)]
        tails.append(float(re.search(r"tail ([\d.e-]+)", uniformity(parts, 400, distinct=True))[1]))
    assert 0.4 < np.mean(tails) < 0.6  # without the factor, nearly all would be close to 1
    with pytest.raises(InputMissing):
        uniformity([np.arange(400, dtype=np.uint32)], 400, distinct=True)


def not_hidden(module, monkeypatch, *, masks):
    """Break the code: masks of zero, or places that hide nothing."""
    drawn = module.draw

    def broken(p, source):
        secret = drawn(p, source)
        if masks:
            return Secret(secret.place, np.zeros_like(secret.mask))
        return Secret(
            np.arange(p.rows, dtype=np.uint32) if module is permutation else secret.place * 0, secret.mask
        )

    monkeypatch.setattr(module, "draw", broken)


@pytest.mark.parametrize("module", [permutation, rotation])
def test_masks_of_zero_show_in_the_masked_values(tmp_path, gradients, monkeypatch, module):
    not_hidden(module, monkeypatch, masks=True)
    space = play(tmp_path / "round", gradients, module.__name__.rsplit(".")[-1])
    assert fails(space) == [("masked values uniform", "masked")]


@pytest.mark.parametrize("module", [permutation, rotation])
def test_places_that_hide_nothing_show_in_the_indices(tmp_path, gradients, monkeypatch, module):
    not_hidden(module, monkeypatch, masks=False)
    space = play(tmp_path / "round", gradients, module.__name__.rsplit(".")[-1])
    name = "rotations uniform" if module is rotation else "permuted indices uniform"
    assert fails(space) == [(name, "masked")]


def test_one_user_without_masks_is_named_when_x_is_long(tmp_path, gradients, monkeypatch):
    drawn, calls = rotation.draw, []

    def broken(p, source):
        calls.append(p)
        secret = drawn(p, source)
        return Secret(secret.place, secret.mask * np.uint32(len(calls) != 2))

    monkeypatch.setattr(rotation, "draw", broken)
    space = play(tmp_path / "round", gradients, "rotation", top_k=80)
    assert ("masked values uniform in one X", "masked/user-02.h5") in fails(space)


# --- the command and the page --------------------------------------------------------------------


def invoke(*arguments):
    result = CliRunner().invoke(cli, ["audit", *map(str, arguments)])
    if result.exception and not isinstance(result.exception, SystemExit | SecAggError):
        raise result.exception
    return result


def test_the_command_prints_verdicts_and_exits_with_0_or_65(finished):
    space = finished(shares=False)
    result = invoke(space.root)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].startswith("nothing failed: ")
    assert "secrets/user-02.h5" not in result.stdout
    assert "secrets/user-02.h5" in invoke(space.root, "-v").stdout
    assert invoke(space.root, "-q").stdout == ""
    flip(space.masked_path(2), "value")
    result = invoke(space.root)
    assert isinstance(result.exception, BadData)
    assert result.exception.exit_code == 65
    assert "masked/user-02.h5" in result.exception.message
    assert re.search(r"digest.*\n.*FAIL +masked/user-02.h5: its content", result.stdout)
    assert re.fullmatch(r"\d+ FAILED, .*", result.stdout.splitlines()[-1])


def test_json_is_one_object(finished):
    space = finished(public=True)
    body = json.loads(invoke(space.root, "--json").stdout)
    assert body["schema"] == "topk-secagg/audit/1"
    assert (body["verdict"], body["session"]) == ("pass", space.session.id)
    assert sum(body["counts"].values()) == len(body["findings"])
    flip(space.masked_path(2), "value")
    result = invoke(space.root, "--json")
    assert json.loads(result.stdout)["verdict"] == "fail"
    assert isinstance(result.exception, BadData)


def test_usage_of_the_command(finished, tmp_path):
    space = finished(public=True)
    assert isinstance(invoke(tmp_path / "nothing").exception, InputMissing)
    assert isinstance(invoke(space.root, "--report", tmp_path / "no" / "page.html").exception, CannotWrite)
    assert invoke(space.root, "--report", space.session_path).exit_code == 2


def secret_values(space):
    """Everything in the secret files as it could appear in a text."""
    values = set()
    for n in space.users():
        stored = read_secret(space, n)
        values |= {str(mask) for mask in stored.secret.mask.tolist() if mask >= 1_000_000}
        values |= {stored.key.hex(), ", ".join(map(str, stored.secret.place[:4].tolist()))}
    return values


def test_the_page_is_whole_by_itself_and_shows_no_secret(sealed, tmp_path):
    space, identities = sealed
    (space.root / "masked" / "<img src=x onerror=alert(1)>.h5").touch()
    flip(space.answer_path(2), "y")
    options = [part for path in identities for part in ("--identity", path)]
    result = invoke(space.root, *options, "--report", tmp_path / "page.html", "-v")
    text = (tmp_path / "page.html").read_text()
    tree = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>"))
    assert len(list(tree.iter("svg"))) == 4
    assert not {"script", "link", "img", "iframe", "object"} & {element.tag for element in tree.iter()}
    assert not re.search(r"https?:|url\(|@import|\b(src|href)=\"", text)
    cells = ["".join(cell.itertext()) for cell in tree.iter("td")]
    assert cells[:4] == [
        "fail",
        "digest",
        "elimination/user-02.h5",
        "its content does not match its digest: the file is damaged",
    ]
    assert {"pass", "not checkable"} <= set(cells)
    assert any("<img src=x" in cell for cell in cells)
    assert space.session.id in text
    shown = text + result.stdout + str(result.exception)
    assert not [value for value in secret_values(space) if value in shown]
    for path in identities:
        assert not [line for line in path.read_text().splitlines() if "SECRET" in line and line in shown]


def test_control_characters_in_a_name_do_not_reach_the_terminal(finished):
    space = finished(public=True)
    (space.root / "masked" / "a\x1b[31m\nb.h5").touch()
    assert "\x1b" not in invoke(space.root).stdout
    assert "\x1b" not in json.loads(invoke(space.root, "--json").stdout)["findings"].__repr__()
