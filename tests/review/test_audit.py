"""`audit` passes what was run properly, and names the file when something was tampered with."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import played
import pytest
from played import Recipe, Round, audited, call, claim_terabytes, edit, must, placed, rewrite

import topk_secagg as ts
from topk_secagg.algebra.field import SMALL_FIELD
from topk_secagg.errors import BadData, InputMissing
from topk_secagg.protocol import construction as construction_module
from topk_secagg.protocol import sketch
from topk_secagg.protocol.constructions import construction
from topk_secagg.protocol.messages import Secret
from topk_secagg.protocol.permutation import Permutation
from topk_secagg.protocol.sketch import Sketch
from topk_secagg.review import audit_sum, evidence, folders
from topk_secagg.review.audit import collect_evidence
from topk_secagg.review.report import page
from topk_secagg.review.uniformity import chi_square_tail, uniformity
from topk_secagg.rounds import freeze as freeze_step
from topk_secagg.storage import documents, masked, secret
from topk_secagg.storage import survivors as survivors_file
from topk_secagg.storage.keys import read_identity
from topk_secagg.storage.workspace import Workspace

L, K, N = 240, 20, 5
ALL = (1, 2, 3, 4, 5)
OPTIONS = {"users": N, "survivors": 3, "colluders": 1, "top_k": K}
BOTH = ("permutation", "written")
ROUNDS = {
    "permutation": {"construction": "permutation"},
    "sketch": {"construction": "sketch", "picks": 2},
    "small": {"construction": "sketch", "picks": 2, "field": SMALL_FIELD},
    "written": {"construction": "sketch", "picks": 2, "dealing": "shares"},
    "direct": {"construction": "sketch", "picks": 4, "dealing": "shares"},  # the entries are sent
}
ONE_SET = "one survivor set, one set of X"
AGREE = "Y on one polynomial (Reed-Solomon)"
CONFIRMED = "confirmations of survivors.json"
ONLY = "only files of the round"
FROZEN = ("survivors of this round, from its freezer", "survivors.json")
SHARES = "shares fit together"
RECOMPUTED = ("aggregate recomputed", "aggregate.h5")
SUMMED = ("aggregate is the sum of the inputs", "aggregate.h5")
PRIVATE_POINTS = {"ledgers", "masks and places fit X", SHARES, "Y recomputed", SUMMED[0]}
RATES = {
    "permutation": (1.03, 1),
    "sketch": (8.7, 0.833),
    "small": (7.69, 0.833),
    "written": (8.7, 0.833),
    "direct": (8.7, 1),
}


def new_round(root, kind, **changes):
    """A round whose gradients have their largest values at the front, so that places that hide
    nothing show."""
    options = {**OPTIONS, **ROUNDS[kind], "length": L, "masking": ALL, "answering": ALL, **changes}
    r = Round(Recipe(kind, **options), root, root.with_name("inputs")).prepare()
    for n in ALL:
        values = np.load(r.gradient(n))
        values[: K // 2] = np.abs(values).max()
        np.save(r.gradient(n), values)
    return r


def play(root, kind, **changes):
    """A whole round without drop-outs."""
    return Workspace(new_round(root, kind, **changes).play().folder)


@pytest.fixture(scope="module")
def templates(tmp_path_factory):
    made = {}

    def get(kind):
        if kind not in made:
            made[kind] = play(tmp_path_factory.mktemp("template") / "round", kind).root
        return made[kind]

    return get


@pytest.fixture
def finished(templates, tmp_path):
    def copy(kind="written", *, public=False, shares=True):
        root = tmp_path / "round"
        left_out = ["secrets"] * public + ["shares"] * (public or not shares)
        shutil.copytree(templates(kind), root, ignore=shutil.ignore_patterns(*left_out))
        return Workspace(root)

    return copy


@pytest.fixture(scope="module")
def sealed_template(tmp_path_factory):
    """A sealed round in which all users confirm; four of five have to."""
    folder = tmp_path_factory.mktemp("sealed") / "round"
    r = new_round(folder, "written", survivors=4, sealed=True, confirm=True).play(upto="frozen")
    must(*r.confirm(5))
    return r.play(after="frozen").folder, [r.identity(n) for n in ALL]


@pytest.fixture
def sealed(sealed_template, tmp_path):
    root = tmp_path / "round"
    shutil.copytree(sealed_template[0], root)
    return Workspace(root, root / "secrets"), sealed_template[1]


def of(findings, verdict):
    return [(f.point, f.subject) for f in findings if f.verdict == verdict]


def move_secrets(space, home):
    """What is in the round's own folder, as if its users had a folder of secrets for all rounds."""
    home.mkdir(exist_ok=True)
    away = Workspace(space.root, home)
    for name in ("input.key", *(f"user-{n:02}.sent" for n in space.users())):
        (space.private / name).rename(home / name)
    for n in space.users():
        space.chain_path(n).rename(away.chain_path(n))
    space.private.rename(away.private)


def fails(space, *identities):
    return of(audited(Workspace(space.root, space.secrets), identities), "fail")


def flip(path, dataset):
    """Flip a bit in the middle of a dataset."""
    offset, size = placed(path)[dataset]
    played.flip(path, offset + size // 2)


def bump(name, at=0):
    """A change of one value of a dataset."""

    def change(*content):
        content[-1][name].flat[at] ^= 1

    return change


def forge_share(space, m, n, change):
    """Change rows of a share and give them valid checksums."""
    c = construction(space.session.parameters)

    def forge(_, datasets):
        change(datasets)
        for at, name in enumerate(c.share_names):
            for i, start in enumerate(range(0, c.rows, c.check_rows)):
                rows = np.ascontiguousarray(datasets[name][start : start + c.check_rows])
                datasets["check"][i, at] = np.frombuffer(hashlib.sha256(rows).digest(), np.uint8)

    rewrite(space.share_path(m, n), forge)


# --- what was run properly ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ROUNDS)
def test_a_clean_round_passes_with_all_files_and_with_public_files_only(finished, kind):
    space = finished(kind)
    findings = audited(space)
    assert of(findings, "fail") == []
    assert of(findings, "not checkable") == []
    assert {f.point for f in findings} >= PRIVATE_POINTS
    rates = [
        re.search(": (.*) times Theorem 1", f.why)[1]
        for f in findings
        if f.point.startswith("rates")
    ]
    assert tuple(map(float, rates)) == RATES[kind]
    for name in ("secrets", "shares"):
        shutil.rmtree(space.root / name)
    findings = audited(Workspace(space.root))
    assert of(findings, "fail") == []
    assert {point for point, _ in of(findings, "not checkable")} == PRIVATE_POINTS
    assert not {f.point for f in findings if f.verdict == "pass"} & PRIVATE_POINTS


def test_sealed_shares_are_checked_with_identities_and_not_checkable_without(sealed):
    space, identities = sealed
    findings = audited(space, identities)
    assert of(findings, "fail") == of(findings, "not checkable") == []
    findings = audited(space, identities[:2])
    assert of(findings, "fail") == []
    closed = [s for point, s in of(findings, "not checkable") if point.startswith("sealed")]
    assert len(closed) == (N - 2) * N
    assert "shares/user-03/from-01.h5.age" in closed
    findings = audited(space)
    assert of(findings, "fail") == []
    assert ("Y recomputed", "elimination/user-01.h5") in of(findings, "not checkable")


def test_a_running_round_and_users_that_drop_out_are_no_fail(tmp_path):
    r = new_round(tmp_path / "round", "written", masking=(1, 2, 3, 4), answering=(1, 2, 4)).play(
        upto="init"
    )
    space = Workspace(r.folder)
    p = space.session.parameters
    rates = {("rates against the theorem", "X"), ("rates against the theorem", "Y")}
    assert rates < set(of(audited(space), "not checkable"))
    for before, stage in (
        ("init", "init"),
        ("init", "masked"),
        ("masked", "answered"),
        ("answered", "decoded"),
    ):
        r.play(before, stage)
        assert fails(space) == []
    findings = audited(space)
    assert (of(findings, "fail"), of(findings, "not checkable")) == ([], [(AGREE, "elimination")])
    shutil.copy(
        space.answer_path(2), space.answer_path(N)
    )  # who has dropped out has nothing to answer
    rewrite(space.answer_path(N), lambda a, _: a.__setitem__("user", N))
    assert (ONE_SET, f"elimination/user-{N:02}.h5") in fails(space)

    def too_large(_, datasets):  # four users with a clip of 1 do not add up to that
        scale = space.session.scales[0]
        datasets["value"][0], datasets["real"][0] = p.field // 2, p.field // 2 / scale

    rewrite(space.aggregate_path, too_large)
    assert ("sums within the clip", "aggregate.h5") in fails(space)


def test_a_user_that_forgot_its_secret(finished):
    space = finished()
    before = space.secret_path(2).read_bytes()
    ts.forget(space, 2)
    findings = audited(space)
    assert of(findings, "fail") == []
    assert ("masks and places fit X", "masked/user-02.h5") in of(findings, "not checkable")
    space.secret_path(2).touch(0o600)
    space.secret_path(2).write_bytes(before)
    assert fails(space) == [("ledgers", "secrets/user-02.ledger.json")]


@pytest.mark.parametrize(("kind", "width"), [("permutation", 120), ("written", 20)])
def test_shares_of_many_blocks_are_streamed(tmp_path, monkeypatch, kind, width):
    monkeypatch.setattr(construction_module, "CHUNK_SYMBOLS", N * width * 3)
    monkeypatch.setattr(sketch, "_CHECK_BYTES", 3 * 4 * width)
    space = play(tmp_path / "round", kind, top_k=K + 2)  # constructions are kept by parameters
    c = construction(space.session.parameters)
    assert c.width == width
    assert c.chunk_rows == 3 < c.rows
    assert fails(space) == []
    forge_share(space, 2, 3, bump(c.share_names[0], -1))
    assert (SHARES, "shares/user-02/from-03.h5") in fails(space)


# --- what was damaged or exchanged ---------------------------------------------------------------


def flipped(dataset):
    return lambda path: flip(path, dataset)


def replaced(content):
    return lambda path: path.write_bytes(content)


def rewritten(change):
    return lambda path: rewrite(path, change)


def edited(change):
    return lambda path: edit(path, change)


def exchanged_with(other):
    def exchange(path):
        twin = next(folder for folder in path.parents if (folder / "session.json").exists()) / other
        first = path.read_bytes()
        path.write_bytes(twin.read_bytes())
        twin.write_bytes(first)

    return exchange


def a_folder(path):
    path.unlink()
    path.mkdir()


def users(*numbers):
    return np.array(numbers, dtype="<u4")


# what is done to which file, and the points that then fail, for this file unless another one is
# named
DAMAGE: list[tuple[str, Callable[[Path], object], str | list[tuple[str, str]]]] = [
    ("masked/user-02.h5", flipped("value"), "digest"),
    ("elimination/user-02.h5", flipped("y"), "digest"),
    ("shares/user-04/from-02.h5", flipped("f"), "ranges"),
    ("shares/user-04/from-02.h5", flipped("check"), "digest"),
    ("secrets/user-02.h5", flipped("mask"), "digest"),
    ("aggregate.h5", flipped("real"), "digest"),
    ("masked/user-02.h5", replaced(b""), "schema"),
    ("masked/user-02.h5", a_folder, "schema"),
    ("elimination/user-02.h5", replaced(b"no HDF5 file"), "schema"),
    ("shares/user-04/from-02.h5", replaced(b"no HDF5 file"), "schema"),
    ("shares/user-04/from-02.h5", a_folder, "schema"),
    ("secrets/user-02.h5", replaced(b""), "schema"),
    ("secrets/user-02.ledger.json", replaced(b"{"), "schema"),
    ("shares/user-03/from-02.h5", rewritten(lambda a, _: a.update(sharing="0" * 64)),
     "session and user"),
    ("aggregate.h5", rewritten(lambda _, d: d["real"].__setitem__(0, 7.0)), "ranges"),
    ("aggregate.h5", rewritten(lambda _, d: d["index"].__setitem__(0, L)), "ranges"),
    ("aggregate.h5", rewritten(lambda _, d: d.update(answering=users(1, 2, 9))), "ranges"),
    ("aggregate.h5", rewritten(lambda _, d: d.update(answering=users())), "ranges"),
    ("aggregate.h5", rewritten(lambda a, _: a.update(survivors_sha256="0" * 64)), "ranges"),
    ("aggregate.h5", rewritten(lambda _, d: d.update(corrected=users(3))), [RECOMPUTED]),
    ("elimination/user-02.h5", rewritten(lambda a, _: a.update(survivors_sha256="0" * 64)),
     [(ONE_SET, "elimination/user-02.h5"), ("ledgers", "secrets/user-02.ledger.json")]),
    ("secrets/user-02.h5", rewritten(lambda a, _: a.update(sharing="0" * 64)),
     [("ledgers", "secrets/user-02.ledger.json"), ("masks and places fit X", "masked/user-02.h5")]),
    *((one, exchanged_with(other), [("session and user", one), ("session and user", other)])
      for one, other in (
        ("masked/user-01.h5", "masked/user-02.h5"),
        ("elimination/user-01.h5", "elimination/user-02.h5"),
        ("secrets/user-01.h5", "secrets/user-02.h5"),
        ("shares/user-03/from-01.h5", "shares/user-03/from-02.h5"),
        ("shares/user-01/from-03.h5", "shares/user-02/from-03.h5"),
    )),
    *(("session.json", edited(change), [(point, "session.json"), ("schema", "session.json")])
      for change, point in (
        (lambda body: body["parameters"].update(colluders=9), "parameters admissible"),
        (lambda body: body["parameters"].update(field=2**31), "parameters admissible"),
        (lambda body: body["points"]["alpha"].__setitem__(0, body["points"]["beta"][0]),
         "points distinct"),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("name", "damage", "expected"), DAMAGE)
def test_damage_is_found_in_its_file_and_does_not_stop_the_rest(finished, name, damage, expected):
    space = finished(
        shares=name.startswith("shares"), public=name in ("aggregate.h5", "session.json")
    )
    damage(space.root / name)
    findings = audited(Workspace(space.root))
    assert of(findings, "fail") == ([(expected, name)] if isinstance(expected, str) else expected)
    if isinstance(expected, str) and name != "aggregate.h5":
        # to decode takes every X
        verdict = "not checkable" if name.startswith("masked") else "pass"
        assert RECOMPUTED in of(findings, verdict)


@pytest.mark.parametrize("name", ["elimination/user-02.h5", "masked/user-02.h5", "aggregate.h5"])
def test_a_file_that_claims_two_terabytes_is_refused_unread(finished, name):
    """With metadata that fits, and a disk that holds nothing of it: an auditor looks at sizes
    before content."""
    space = finished(public=True)
    claim_terabytes(space.root / name)
    assert (space.root / name).stat().st_size > 2e12
    failed = {
        finding.subject: finding.why for finding in audited(space) if finding.verdict == "fail"
    }
    assert failed[name] == "it is larger than any such file of this session"


@pytest.mark.parametrize("kind", BOTH)
def test_another_x_than_was_frozen_and_sent_and_a_forged_aggregate(finished, kind):
    space = finished(kind, shares=False)
    before = space.masked_path(2).read_bytes()
    rewrite(space.masked_path(2), bump("value"))
    assert fails(space)[:2] == [
        (ONE_SET, "masked/user-02.h5"),
        ("ledgers", "secrets/user-02.ledger.json"),
    ]
    space.masked_path(2).write_bytes(before)
    scale = space.session.scales[0]
    rewrite(space.aggregate_path, lambda _, d: (d["value"].put(0, 1), d["real"].put(0, 1 / scale)))
    assert fails(space) == [RECOMPUTED, SUMMED]


def test_without_survivors_json_answers_to_two_sets_are_all_named(finished):
    space = finished(shares=False)
    rewrite(space.answer_path(2), lambda a, _: a.update(survivors_sha256="0" * 64))
    space.survivors_path.unlink()
    named = [s for p, s in fails(space) if p == ONE_SET]
    assert named == [f"elimination/user-{n:02}.h5" for n in space.users()]


def test_a_file_of_another_session(finished, tmp_path):
    space = finished(shares=False)
    other = play(tmp_path / "other", "written")
    shutil.copy(other.answer_path(3), space.answer_path(3))
    shutil.copy(other.ledger_path(3), space.ledger_path(3))
    assert fails(space) == [
        ("session and user", "elimination/user-03.h5"),
        ("schema", "secrets/user-03.ledger.json"),
    ]


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("permutation", lambda _, d: d.__setitem__("index", d["index"][:-1])),
        ("permutation", lambda _, d: d.__setitem__("value", d["value"][:-1])),
        ("permutation", lambda _, d: d["index"].__setitem__(slice(None), 0)),  # they are increasing
        ("permutation", lambda _, d: d["value"].__setitem__(3, 2**32 - 1)),
        ("permutation", lambda a, _: a.__setitem__("weight", "-1.0")),
        ("permutation", lambda _, d: d["holds"].__setitem__(0, 255)),  # there are five users
        ("written", lambda _, d: d.__setitem__("value", d["value"][:-1])),
        ("written", lambda _, d: d["value"].__setitem__(3, 2**32 - 1)),
    ],
)
def test_an_x_that_no_honest_user_can_send(finished, kind, change):
    space = finished(kind, public=True)
    rewrite(space.masked_path(2), change)
    assert [s for p, s in fails(space) if p.startswith("X of the right size")] == [
        "masked/user-02.h5"
    ]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda body: body.update(freezer=2), FROZEN),
        (lambda body: body.update(session="0" * 64), FROZEN),
        (lambda body: body["survivors"].__delitem__(slice(2, None)), FROZEN),  # two are too few
        (lambda body: body["survivors"][-1].update(user=9), FROZEN),
        (lambda body: body["survivors"][0].update(weight=0.5), (ONE_SET, "masked/user-01.h5")),
        (dict.clear, ("schema", "survivors.json")),
    ],
)
def test_a_survivors_json_that_was_not_frozen_in_this_round(finished, change, expected):
    space = finished(public=True)
    edit(space.survivors_path, change)
    assert fails(space)[0] == expected


def test_survivors_who_do_not_hold_each_others_shares(tmp_path, monkeypatch):
    r = new_round(tmp_path / "round", "written").play(upto="init")
    # the shares of user 5 come too late for what the others say in their X
    for step, several in (
        (r.offline, (1, 2, 3, 4)),
        (r.mask, (1, 2, 3, 4)),
        (r.offline, (5,)),
        (r.mask, (5,)),
    ):
        for n in several:
            must(*step(n))
    monkeypatch.setattr(freeze_step, "answerable", lambda files, _: sorted(files))
    r.play(after="masked")
    assert fails(Workspace(r.folder)) == [("enough survivors hold all shares", "survivors.json")]


@pytest.mark.parametrize("kind", BOTH)
def test_a_forged_answer_is_named_by_the_others_and_by_the_shares(finished, kind):
    space = finished(kind)
    rewrite(space.answer_path(2), bump("y"))
    name = "elimination/user-02.h5"
    wrong = [(AGREE, name), ("Y recomputed", name)]
    assert fails(space) == [wrong[0], RECOMPUTED, wrong[1]]
    ts.decode(space)  # now the aggregate says that user 2 answered wrongly
    assert fails(space) == wrong
    shutil.rmtree(space.root / "shares")
    space.answer_path(
        5
    ).unlink()  # one answer to spare: one is wrong, and the audit cannot identify it
    assert fails(space) == [(AGREE, "elimination")]


def test_an_aggregate_that_corrects_an_answer_that_is_missing_is_not_checkable(finished):
    space = finished(public=True)
    rewrite(space.aggregate_path, lambda _, d: d.__setitem__("corrected", users(3)))
    space.answer_path(3).unlink()
    assert RECOMPUTED in of(audited(space), "not checkable")


# --- secrets, shares and ledgers -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "dataset", "with_secret"),
    [
        ("permutation", "f", False),
        ("permutation", "h", True),
        ("written", "f", True),
        ("written", "f", False),
    ],
)
def test_a_share_from_other_noise_is_named(finished, kind, dataset, with_secret):
    space = finished(kind)
    q = space.session.parameters.field

    def other_noise(datasets):
        noise = np.random.default_rng(3).integers(0, q, datasets[dataset].shape)
        datasets[dataset][:] = (datasets[dataset].astype(np.int64) + noise) % q

    forge_share(space, 4, 2, other_noise)
    if not with_secret:
        shutil.rmtree(space.root / "secrets")
    found = fails(space)
    assert found[0] == (SHARES, "shares/user-04/from-02.h5")
    assert ("Y recomputed", "elimination/user-04.h5") in found


@pytest.mark.parametrize("kind", ["permutation", "written"])
def test_wrong_shares_whose_holder_cannot_be_identified(finished, kind):
    space = finished(kind)
    q = space.session.parameters.field
    name = construction(space.session.parameters).share_names[0]

    def wrong():
        return [f for f in audited(space) if (f.point, f.verdict) == (SHARES, "fail")]

    def one(datasets):
        datasets[name][0, 0] = (int(datasets[name][0, 0]) + 1) % q

    for m in space.users():
        forge_share(
            space, m, 3, one
        )  # all of them: a polynomial of degree 0, so that they still agree
    for m in (1, 2, 3):
        forge_share(space, m, 4, one)
    assert [f.subject for f in wrong()] == ["shares/user-*/from-03.h5", "shares/user-*/from-04.h5"]
    assert re.search("exactly one 1|not those of the sender's secret", wrong()[0].why)
    assert "do not lie on one polynomial" in wrong()[1].why
    if kind == "permutation":
        shutil.rmtree(space.root / "secrets")
        for m in space.users():  # the same row twice
            forge_share(
                space,
                m,
                5,
                lambda datasets: [datasets[n].__setitem__(1, datasets[n][0]) for n in "fh"],
            )
        assert [f.why for f in wrong() if f.subject == "shares/user-*/from-05.h5"] == [
            "its places are not a permutation"
        ]


@pytest.mark.parametrize("kind", BOTH)
def test_a_secret_that_is_not_the_one_that_was_shared(finished, kind):
    space = finished(kind)
    rewrite(space.secret_path(2), lambda _, d: d.__setitem__("mask", np.roll(d["mask"], 1)))
    assert fails(space) == [
        ("masks and places fit X", "masked/user-02.h5"),
        (SHARES, "shares/user-*/from-02.h5"),
    ]


SPENT = ("masked", "confirmed", "answered")


@pytest.mark.parametrize(
    ("key", "values"),
    [
        *((key, (None, "0" * 64)) for key in (*SPENT, "shared")),
        ("holds", (None, [1, 2])),
        ("forgotten", (True,)),
    ],
)
def test_a_ledger_that_contradicts_what_was_sent(sealed, key, values):
    space, _ = sealed
    path = space.ledger_path(1)
    before = json.loads(path.read_text())
    for value in values:
        assert before[key] != value
        edit(path, lambda body, value=value: body.update({**before, key: value}))
        assert fails(space) == [("ledgers", "SECRETS/user-01.ledger.json")]
    if key in SPENT:  # survivors.json says it too
        for file in (space.masked_path, space.confirmation_path, space.answer_path):
            file(1).unlink()
        assert fails(space) == [("ledgers", "SECRETS/user-01.ledger.json")]


def test_secrets_elsewhere_are_named_without_the_digits_of_the_session(finished, tmp_path):
    space = finished()
    away = Workspace(space.root, tmp_path / "away")
    away.private.parent.mkdir()
    (space.root / "secrets").rename(away.private)
    found = list(audited(away))
    subjects = {finding.subject for finding in found if finding.point == "ledgers"}
    assert subjects == {f"SECRETS/user-{n:02}.ledger.json" for n in space.users()}
    assert not any(space.session.id in f"{f.subject} {f.why}" for f in found)


def test_secrets_that_are_open_to_others(finished):
    space = finished()
    names = (
        "secrets",
        "secrets/user-02.h5",
        "secrets/user-02.ledger.json",
        "shares/user-03",
        "shares/user-01/from-02.h5",
    )
    for name in names:
        (space.root / name).chmod(0o750)
    assert set(fails(space)) == {("permissions", name) for name in names}


def test_modes_of_public_files_are_noted_and_no_fail(finished):
    """A checkout or a copy has modes of its own, such as those of a file system without any."""
    space = finished(public=True)
    for path in [space.root, *space.root.rglob("*")]:
        path.chmod(0o777)
    result = must("audit", space.root, "--json")
    noted = [f for f in result.json["findings"] if f["point"] == "permissions"]
    assert {f["verdict"] for f in noted} == {"not checkable"}
    assert {"masked", "masked/user-01.h5", "survivors.json"} < {f["subject"] for f in noted}
    shown = " ".join(must("audit", space.root).out.split())  # however wide the table is
    assert "mode 0777: here everybody may write to it" in shown


def test_a_copy_with_other_modes_still_fails_where_others_can_read_secrets(finished):
    space = finished()
    for path in space.root.rglob("*"):
        path.chmod(0o777 if path.is_dir() else 0o644)  # as `cp -r` or an archive may leave them
    result = call("audit", space.root, "--json")
    failed = {f["subject"] for f in result.json["findings"] if f["verdict"] == "fail"}
    private = {
        str(path.relative_to(space.root))
        for folder in ("secrets", "shares")
        for path in (space.root / folder).rglob("*")
        if path.suffix != ".lock"
    }
    assert (result.code, failed) == (65, {"secrets", *private})
    assert "others than its owner may use it, and it is a secret" in result.err


class TestItStaysInTheFolder:
    """Others can put links and folders into a round; they must not lead the audit elsewhere."""

    @pytest.fixture
    def outside(self, tmp_path):
        """Files of the auditor's machine that have nothing to do with the round."""
        folder = tmp_path / "outside"
        (folder / "deeper").mkdir(parents=True)
        for name in ("private-name.json", "user-01.h5", "deeper/private-name.h5"):
            (folder / name).write_text("{}")
        return folder

    @staticmethod
    def shown(space, tmp_path):
        """Everything that the command says about a round, and its exit code."""
        page = tmp_path / "page.html"
        printed = call("audit", space.root, "--report", page, "--verbose")
        as_json = call("audit", space.root, "--json")
        assert printed.code == as_json.code
        return printed.code, printed.out + printed.err + as_json.out + page.read_text()

    @pytest.mark.parametrize(
        "name", ["masked/all", "shares/user-03", "extra", "confirmed", "secrets"]
    )
    def test_a_link_is_named_and_not_followed(self, finished, tmp_path, outside, name):
        space = finished()
        shutil.rmtree(space.root / name, ignore_errors=True)
        (space.root / name).symlink_to(outside)
        code, text = self.shown(space, tmp_path)
        assert (code, "private-name" in text) == (0, False)
        left_out = [(f.subject, f.why) for f in audited(space) if f.point == ONLY]
        assert left_out == [(name, "a link, which was not followed")]

    def test_without_the_check_a_link_leads_the_audit_through_the_machine(
        self, finished, tmp_path, outside, monkeypatch
    ):
        space = finished()
        shutil.rmtree(space.root / "shares/user-03")
        (space.root / "shares/user-03").symlink_to(outside)
        monkeypatch.setattr(evidence.Evidence, "is_link", staticmethod(lambda _: False))
        assert "shares/user-03/private-name.json" in self.shown(space, tmp_path)[1]

    def test_a_folder_that_no_round_has_is_named_and_not_entered(
        self, finished, tmp_path, outside, monkeypatch
    ):
        space = finished()
        outside.rename(space.root / "masked/extra")
        code, text = self.shown(space, tmp_path)
        assert (code, "private-name" in text) == (0, False)
        left_out = [(f.subject, f.why) for f in audited(space) if f.point == ONLY]
        why = "a folder that this round does not have; it was not opened"
        assert left_out == [("masked/extra", why)]
        monkeypatch.setattr(folders._Folders, "has_folder", lambda *_, **__: True)  # the twin
        assert "masked/extra/deeper/private-name.h5" in self.shown(space, tmp_path)[1]

    @pytest.mark.parametrize(
        ("name", "point"),
        [
            ("masked/user-02.h5", "X of the right size, indices and values allowed"),
            ("survivors.json", "schema"),
            ("elimination", AGREE),
            ("secrets", "ledgers"),
        ],
    )
    def test_what_is_behind_a_link_is_not_read(self, finished, tmp_path, monkeypatch, name, point):
        space = finished()
        real = (space.root / name).rename(tmp_path / "elsewhere")
        (space.root / name).symlink_to(real)

        def of_point():
            findings = audited(Workspace(space.root))
            about = [f.verdict for f in findings if f.point == point and name in f.subject]
            return set(about), of(findings, "fail")

        assert of_point() == ({"not checkable"}, [])
        monkeypatch.setattr(evidence.Evidence, "is_link", staticmethod(lambda _: False))  # the twin
        assert of_point() == ({"pass"}, [])

    def test_a_session_behind_a_link_is_not_read(self, finished, tmp_path, refuses):
        space = finished(public=True)
        real = space.session_path.rename(tmp_path / "session.json")
        space.session_path.symlink_to(real)
        assert "session.json is a link" in refuses(66, "audit", space.root).err

    def test_the_round_and_its_secrets_may_be_given_by_links(self, finished, tmp_path):
        space = finished()
        move_secrets(space, tmp_path / "own")
        (tmp_path / "round-by-link").symlink_to(space.root)
        (tmp_path / "own-by-link").symlink_to(tmp_path / "own")
        given = (tmp_path / "round-by-link", "--secrets", tmp_path / "own-by-link")
        found = must("audit", *given, "--json").json
        assert {f["verdict"] for f in found["findings"]} == {"pass"}
        assert "ledgers" in {f["point"] for f in found["findings"]}
        (tmp_path / "own" / space.session.id / "user-02.h5").chmod(0o644)
        failed = call("audit", *given)
        assert failed.code == 65
        assert "user-02.h5: mode 0644: others than its owner may use it" in failed.err

    @pytest.mark.parametrize("place", ["round/own", "round", "."])
    def test_secrets_may_be_in_the_round_or_around_it(self, finished, tmp_path, place):
        space = finished()
        move_secrets(space, tmp_path / place)
        (tmp_path / "by-link").symlink_to(space.root)
        given = (tmp_path / "by-link", "--secrets", tmp_path / place, "--json")
        found = must("audit", *given).json["findings"]
        assert {f["verdict"] for f in found if f["point"] != ONLY} == {"pass"}
        path = tmp_path / place / space.session.id / "user-02.h5"
        path.chmod(0o644)
        failed = [f for f in call("audit", *given).json["findings"] if f["verdict"] == "fail"]
        assert [f["point"] for f in failed] == ["permissions"]

    def test_links_in_circles_end(self, finished):
        space = finished()
        (space.root / "shares/user-03/again").symlink_to(space.root / "shares")
        (space.root / "masked/self").symlink_to("self")
        findings = audited(space)
        assert of(findings, "fail") == []
        assert set(of(findings, "not checkable")) == {
            (ONLY, "shares/user-03/again"),
            (ONLY, "masked/self"),
        }

    def test_a_folder_that_cannot_be_listed_is_named(self, finished, monkeypatch):
        space = finished(public=True)
        really = Path.iterdir

        def closed(path):
            if path.name == "masked":
                raise PermissionError(13, "Permission denied", str(path))
            return really(path)

        monkeypatch.setattr(Path, "iterdir", closed)
        found = {f.subject: f.why for f in audited(space) if f.point == ONLY}
        assert found == {"masked": "it cannot be listed: permission denied"}


class TestABugIsNoFindingAboutAUser:
    """An audit blames files only for what files can cause."""

    BUGS = (NameError, AttributeError, TypeError, KeyError, AssertionError)

    @pytest.mark.parametrize("bug", BUGS)
    @pytest.mark.parametrize(
        ("module", "function"),
        [(masked, "read"), (folders, "_pretended_kind"), (audit_sum, "beyond_clip")],
    )
    def test_it_gets_out(self, finished, monkeypatch, bug, module, function):
        space = finished(public=True)
        (space.root / "notes.json").write_text("{}")

        def broken(*_, **__):
            raise bug("ours")

        monkeypatch.setattr(module, function, broken)
        with pytest.raises(bug, match="ours"):
            audited(space)
        result = call("audit", space.root)
        assert result.code == 1
        assert "a bug" in result.err
        assert "FAIL" not in result.out

    def test_a_kind_that_cannot_be_told_is_one_thing_and_a_bug_in_telling_another(
        self, finished, monkeypatch
    ):
        space = finished(public=True)
        (space.root / "notes.json").write_text("{}")
        assert (ONLY, "notes.json") in of(audited(space), "not checkable")

        def broken(*_):
            raise NameError("ours")

        monkeypatch.setattr(documents, "kind_of", broken)
        with pytest.raises(NameError, match="ours"):
            audited(space)

    def test_a_disk_that_fails_is_not_the_fault_of_the_file(self, finished, monkeypatch):
        space = finished(public=True)

        def failing(*_, **__):
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(masked, "read", failing)
        findings = audited(space)
        assert of(findings, "fail") == []
        assert (
            "X of the right size, indices and values allowed",
            "masked/user-01.h5",
        ) in of(findings, "not checkable")

    @pytest.mark.parametrize("value", [None, [], 3, "x", {}, {"users": []}, {"alpha": 3}])
    @pytest.mark.parametrize("part", ["parameters", "points"])
    def test_a_part_of_a_session_of_another_type_is_a_fail(self, finished, part, value):
        space = finished(public=True)
        edit(space.session_path, lambda body: body.update({part: value}))
        findings = audited(Workspace(space.root))
        assert ("schema", "session.json") in of(findings, "fail")


def test_what_is_missing_is_not_checkable(finished):
    space = finished()
    space.masked_path(1).unlink()
    space.secret_path(2).unlink()
    space.ledger_path(2).unlink()
    for m in range(2, 6):
        space.share_path(m, 3).unlink()
    for n in (3, 4, 5):
        space.answer_path(n).unlink()
    findings = audited(space)
    assert of(findings, "fail") == []
    unknown = of(findings, "not checkable")
    for expected in (
        ("X of the right size, indices and values allowed", "masked/user-01.h5"),
        (ONE_SET, "masked/user-01.h5"),
        ("masks and places fit X", "masked/user-02.h5"),
        ("ledgers", "secrets/user-02.ledger.json"),
        (SHARES, "shares/user-*/from-03.h5"),
        ("enough survivors hold all shares", "survivors.json"),
        (AGREE, "elimination"),
        RECOMPUTED,
        ("Y recomputed", "elimination/user-02.h5"),
    ):
        assert expected in unknown


def test_files_that_the_auditor_may_not_read_are_not_checkable(finished, monkeypatch):
    space = finished()
    really = os.open

    def closed(path, *args, **kwargs):
        if "secrets" in str(path) or "shares" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return really(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", closed)
    findings = audited(space)
    assert of(findings, "fail") == []
    assert ("schema", "secrets/user-01.h5") in of(findings, "not checkable")
    assert ("schema", "shares/user-01/from-02.h5") in of(findings, "not checkable")
    assert RECOMPUTED in of(findings, "pass")


def test_a_damaged_forged_or_plain_share_of_a_sealed_round_and_an_identity_of_another(
    sealed, templates, tmp_path
):
    space, identities = sealed
    played.flip(space.share_path(2, 1), -1)
    shutil.copy(space.share_path(3, 4), space.share_path(3, 5))
    shutil.copy(
        Workspace(templates("written")).share_path(1, 2), space.root / "shares/user-01/from-02.h5"
    )
    assert set(fails(space, *identities)) == {
        ("sealed shares open, signed and whole", "shares/user-02/from-01.h5.age"),
        ("sealed shares open, signed and whole", "shares/user-03/from-05.h5.age"),
        ("only files of the round", "shares/user-01/from-02.h5"),
    }
    ts.keygen(1, tmp_path / "stranger")
    with pytest.raises(BadData, match="any user of this round"):
        audited(space, [tmp_path / "stranger/user-01.identity"])


def test_a_forged_signature(sealed):
    space, identities = sealed
    rewrite(space.answer_path(2), bump("y"), read_identity(identities[0]))
    rewrite(space.masked_path(3), bump("value"))
    point = "session, user and signature"
    assert fails(space) == [(point, "masked/user-03.h5"), (point, "elimination/user-02.h5")]
    edit(space.survivors_path, lambda body: body["survivors"].pop())  # nobody signs a proposal
    assert (ONE_SET, "elimination/user-05.h5") in fails(space)


def test_survivors_that_the_freezer_did_not_sign(tmp_path):
    r = new_round(tmp_path / "round", "written", sealed=True).play(upto="frozen")
    assert fails(r.space()) == []
    edit(r.folder / "survivors.json", lambda body: body["survivors"].pop())
    assert FROZEN in fails(r.space())


def test_confirmations_that_are_missing_forged_or_of_another_survivors_json(sealed):
    space, identities = sealed
    survivors = survivors_file.read(space)
    space.confirmation_path(5).unlink()
    findings = audited(space)
    assert of(findings, "fail") == []
    assert (CONFIRMED, "elimination") in of(findings, "pass")
    space.confirmation_path(4).unlink()
    assert (CONFIRMED, "elimination") in of(audited(space), "not checkable")
    edit(space.confirmation_path(3), lambda body: body.update(user=4))
    shutil.copy(space.confirmation_path(2), space.confirmation_path(4))
    for user, digest, signer in ((2, "0" * 64, 2), (5, survivors.digest, 1)):
        signer = read_identity(identities[signer - 1])
        content = survivors_file.confirmation(space.session, user, digest, signer)
        space.confirmation_path(user).write_bytes(content)
    assert fails(space) == [
        *((CONFIRMED, f"confirmed/user-{n:02}.json") for n in (2, 3, 4, 5)),
        ("ledgers", "SECRETS/user-02.ledger.json"),
    ]
    space.confirmation_path(1).write_text("[]")
    assert (CONFIRMED, "confirmed/user-01.json") in fails(space)


def test_the_folders_of_a_sealed_round_may_be_shared(sealed):
    space, _ = sealed
    for name, mode in (
        ("masked", 0o1777),
        ("shares/user-02", 0o1777),
        ("elimination", 0o777),
        ("secrets", 0o1777),
    ):
        (space.root / name).chmod(mode)  # in the first two, users cannot replace files of others
    findings = audited(space)
    assert of(findings, "fail") == [("permissions", "secrets")]
    assert ("permissions", "elimination") in of(findings, "not checkable")
    assert ("permissions", "masked") in of(findings, "pass")


def test_temporary_files_and_foreign_files_are_no_fail_but_files_of_the_round_under_wrong_names_are(
    finished,
):
    space = finished()
    leftover = space.root / "secrets" / ".user-01.h5.77.tmp"
    leftover.touch(0o600)
    (space.root / "secrets" / ".run.lock").touch()
    (space.root / "notes.json").write_text("{}")
    (space.root / "sum.npz").write_bytes(b"")
    (space.root / "backup").mkdir()
    shutil.copy(space.secret_path(1), space.root / "backup")
    findings = [f for f in audited(space) if f.point == "only files of the round"]
    assert [(f.subject, f.verdict) for f in findings] == [
        ("backup", "not checkable"),
        ("notes.json", "not checkable"),
        ("secrets/.user-01.h5.77.tmp", "pass"),
    ]
    leftover.chmod(0o640)
    assert fails(space) == [("permissions", "secrets/.user-01.h5.77.tmp")]
    shutil.copy(space.share_path(2, 1), space.root / "copy.h5")
    shutil.copy(space.ledger_path(1), space.root / "secrets" / "old.json")
    shutil.copy(space.masked_path(1), space.masked_path(7))
    space.masked_path(99).write_bytes(b"x")
    names = {"copy.h5", "secrets/old.json", "masked/user-07.h5", "masked/user-99.h5"}
    assert {s for p, s in fails(space) if p == "only files of the round"} == names


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": "topk-secagg"}', "[" * 100_000])
def test_a_damaged_session_is_a_fail(finished, content):
    space = finished(public=True)
    space.session_path.write_text(content)
    found = collect_evidence(Workspace(space.root))
    assert ("schema", "session.json") in of(found.findings, "fail")
    assert ("everything else", ".") in of(found.findings, "not checkable")
    page(found)


# --- statistics ----------------------------------------------------------------------------------


def test_known_quantiles_of_chi_square():
    known = {
        (3.8415, 1): 0.05,
        (18.307, 10): 0.05,
        (30.578, 15): 0.01,
        (80, 15): 6.98466e-11,
        (160, 63): 2.1703e-10,
    }
    for (quantile, freedom), tail in known.items():
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
    # subsets have a smaller variance: without the factor for it, nearly all tails would be close
    # to 1
    tails = []
    for _ in range(300):
        parts = [source.permutation(400)[:200].astype(np.uint32) for _ in range(4)]
        tails.append(float(re.search(r"tail ([\d.e-]+)", uniformity(parts, 400, distinct=True))[1]))
    assert 0.4 < np.mean(tails) < 0.6
    with pytest.raises(InputMissing):
        uniformity([np.arange(400, dtype=np.uint32)], 400, distinct=True)


def draw_badly(kind, monkeypatch, change):
    """Break the code: `change` sees every secret that is drawn, and the number of those before
    it."""
    cls = {"permutation": Permutation, "direct": Sketch}[kind]
    drawn = cls.draw_secret
    made = []

    def broken(self, deal, source):
        made.append(self)
        return change(drawn(self, deal, source), len(made))

    monkeypatch.setattr(cls, "draw_secret", broken)


def unmasked(secret):
    """Masks that add nothing."""
    return Secret(secret.place, np.zeros_like(secret.mask))


@pytest.mark.parametrize("kind", ["permutation", "direct"])
def test_masks_that_hide_nothing_are_found_in_the_masked_values(tmp_path, monkeypatch, kind):
    draw_badly(kind, monkeypatch, lambda secret, _: unmasked(secret))
    assert fails(play(tmp_path / "round", kind)) == [("masked value uniform", "masked")]


def test_places_that_hide_nothing_are_found_in_the_indices(tmp_path, monkeypatch):
    draw_badly(
        "permutation",
        monkeypatch,
        lambda secret, _: Secret(np.arange(L, dtype=np.uint32), secret.mask),
    )
    name = Permutation.index_name
    assert fails(play(tmp_path / "round", "permutation")) == [(f"{name} uniform", "masked")]


def test_one_user_without_masks_is_named_when_x_is_long(tmp_path, monkeypatch):
    draw_badly("direct", monkeypatch, lambda s, user: unmasked(s) if user == 2 else s)
    space = play(tmp_path / "round", "direct", top_k=80)
    assert ("masked value uniform in one X", "masked/user-02.h5") in fails(space)


# --- the command and the page --------------------------------------------------------------------


def test_the_command_prints_verdicts_and_exits_with_0_or_65(finished):
    space = finished(shares=False)
    command = ("audit", space.root)
    result = must(*command)
    assert result.out.splitlines()[-1].startswith("nothing failed: ")
    assert "secrets/user-02.h5" not in result.out
    assert "secrets/user-02.h5" in must(*command, "-v").out
    body = must(*command, "--json").json
    assert (body["verdict"], body["session"]) == ("pass", space.session.id)
    assert sum(body["counts"].values()) == len(body["findings"])
    flip(space.masked_path(2), "value")
    (space.root / "masked" / "a\x1b[31m\nb.h5").touch()
    result, as_json = call(*command), call(*command, "--json")
    for one in (result, as_json):
        assert one.code == 65
        assert "masked/user-02.h5" in one.err
        assert "\x1b" not in one.out + one.err
    assert as_json.json["verdict"] == "fail"
    assert re.search(r"digest.*\n.*FAIL +masked/user-02.h5: its content", result.out)
    assert re.fullmatch(r"\d+ FAILED, .*", result.out.splitlines()[-1])


def test_usage_of_the_command(finished, tmp_path):
    space = finished(public=True)
    assert call("audit", tmp_path / "nothing").code == 66
    assert call("audit", space.root, "--report", tmp_path / "no" / "page.html").code == 73
    assert call("audit", space.root, "--report", space.session_path).code == 2


def secret_values(space):
    """Everything in the secret files as it could appear in a text."""
    values = set()
    for n in space.users():
        stored = secret.read(space, n)
        values |= {str(mask) for mask in stored.drawn.mask.tolist() if mask >= 1_000_000}
        values.add(stored.key.hex())
    return values


def test_the_page_is_whole_by_itself_and_shows_no_secret(sealed, tmp_path):
    space, identities = sealed
    (space.root / "masked" / "<img src=x onerror=alert(1)>.h5").touch()
    flip(space.answer_path(2), "y")
    options = [part for path in identities for part in ("--identity", path)]
    result = call("audit", space.root, *options, "--report", tmp_path / "page.html", "-v")
    text = (tmp_path / "page.html").read_text()
    tree = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>"))
    assert len(list(tree.iter("svg"))) == 3
    assert not {"script", "link", "img", "iframe", "object"} & {
        element.tag for element in tree.iter()
    }
    assert not re.search(r"https?:|url\(|@import|\b(src|href)=\"", text)
    cells = ["".join(cell.itertext()) for cell in tree.iter("td")]
    assert cells[:3] == ["fail", "digest", "elimination/user-02.h5"]
    assert {"pass", "not checkable"} <= set(cells)
    assert any("<img src=x" in cell for cell in cells)
    assert space.session.id in text
    shown = text + result.out + result.err
    assert not [value for value in secret_values(space) if value in shown]
    for path in identities:
        assert not [
            line for line in path.read_text().splitlines() if "SECRET" in line and line in shown
        ]
