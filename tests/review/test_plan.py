"""What `plan` predicts is what a round then takes, and what `init` chooses is what `plan` marks."""

import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
from played import Recipe, Round, call, must

from topk_secagg.errors import CannotWrite
from topk_secagg.gradients.layout import Layout
from topk_secagg.gradients.reduce import Reduction
from topk_secagg.protocol.parameters import CONSTRUCTIONS, Parameters
from topk_secagg.review.plan import DENSE, FLOWER, PLAIN, THEOREM, Plan, plan
from topk_secagg.rounds.costs import check_disk, footprint, sent
from topk_secagg.rounds.init import start_chosen
from topk_secagg.rounds.offline import offline
from topk_secagg.rounds.options import Choice, choose_rounds
from topk_secagg.rounds.run import run
from topk_secagg.storage.workspace import Workspace

OPTIONS = ["--users", "10", "--survivors", "5", "--colluders", "3", "--density", "0.01"]
PAPER = {"users": 10, "survivors": 5, "colluders": 3, "density": 0.01}


def parameters(**options: Any) -> Parameters:
    return Parameters.choose(
        **{"users": 4, "survivors": 3, "colluders": 1, "top_k": 20, "length": 600, **options}
    )


def choice_of(p: Parameters) -> Choice:
    """A round of one flat vector with these parameters."""
    layout = Layout.flat(p.length)
    reduction = Reduction.top_k([(p.length,)])
    return Choice(layout, reduction, p, (1.0,), reason="", gradient=None, notes=())


def start(root: Path, p: Parameters) -> Workspace:
    """A round with these parameters."""
    return start_chosen(root, choice_of(p), {}).round


def planned(gradient: Any = None, length: int = 272_474, **options: Any) -> Plan:
    """What `plan` finds, with K as a density."""
    given = {**PAPER, **options}
    sizes = {"density": [given.pop("density")]}
    like = {"length": length} if gradient is None else {"like": gradient}
    return plan(choose_rounds({**given, **like}, sizes))


SMALL_ROUNDS = [
    {"top_k": 20, "length": 600},
    {"construction": "sketch", "dealing": "keys"},
    {"construction": "sketch", "users": 6, "colluders": 2, "field": 65521, "top_k": 500},
    {"construction": "sketch", "dealing": "shares"},
    {"construction": "sketch", "dealing": "shares", "field": 65521},
]


def dataset_bytes(folder: Path, pattern: str, names: tuple[str, ...]) -> int:
    """What the datasets of these names in these files take."""
    total = 0
    for path in folder.glob(pattern):
        with h5py.File(path) as stored:
            total += sum(stored[name].nbytes for name in names if name in stored)
    return total


def file_bytes(folder: Path, *patterns: str) -> int:
    return sum(path.stat().st_size for pattern in patterns for path in folder.glob(pattern))


@pytest.mark.parametrize("options", SMALL_ROUNDS, ids=str)
def test_a_round_takes_the_bytes_that_were_predicted(tmp_path, options):
    p = parameters(**{"top_k": 2000, "length": 20_000, **options})
    files = []
    for n in range(p.users):
        files.append(tmp_path / f"{n}.npy")
        np.save(files[-1], np.random.default_rng(n).uniform(-1, 1, p.length))
    root = tmp_path / "round"
    space = start(root, p)
    report = run(space, files)
    predicted = footprint(p)

    # content: of the shares and keys for others, of the list of commitments, of X and of Y
    assert predicted.masked_bytes == report.masked[0].masked_bytes
    assert predicted.answer_bytes == report.answered[0].answer_bytes
    before = []
    for n in range(1, p.users + 1):
        shares = f"shares/user-*/from-{n:02}.h5"
        own = f"shares/user-{n:02}/from-{n:02}.h5"
        held = ("f", "h", "keys")
        lists = len(space.session.family or ()) * 64
        before.append(dataset_bytes(root, shares, held) - dataset_bytes(root, own, held) + lists)
    assert max(before) == predicted.offline_bytes == sent(p).before == report_of_plan(p)[0]
    assert predicted.total_bytes == sent(p).total == report_of_plan(p)[1]

    # files with their headers: of one user, and of all on a disk
    one = file_bytes(root, "shares/*/from-01.h5", "*/user-01.json", "[me]*/user-01.h5")
    one -= file_bytes(root, "shares/user-01/from-01.h5")
    assert predicted.file_bytes == pytest.approx(one, rel=0.05)
    used = file_bytes(root, "**/*.*")
    assert used <= predicted.all_bytes <= 1.05 * used


def report_of_plan(p: Parameters) -> tuple[int, int]:
    """What `plan` shows of its choice before and in all."""
    best = plan([choice_of(p)]).best
    return best.offline_bytes, best.total_bytes


def test_a_file_of_keys_has_a_short_header(tmp_path):
    space = start(tmp_path / "round", parameters(construction="sketch"))
    offline(space, 1)
    held = dataset_bytes(space.root, "shares/user-02/*", ("keys",))
    assert 0 < held <= file_bytes(space.root, "shares/user-02/*") <= held + 2500


def test_a_sealed_file_of_keys_has_a_short_header(tmp_path):
    recipe = Recipe("sealed", construction="sketch", top_k=4, sealed=True)
    r = Round(recipe, tmp_path / "round", tmp_path / "inputs").prepare()
    must(*r.init())
    must(*r.offline(1))
    held = 32 * len(Workspace(r.folder).session.blocks_of(2))
    assert 0 < held < file_bytes(r.folder, "shares/user-02/*.age") <= held + 2500


def test_every_column_has_plain_averaging_the_theorem_and_the_peers_beside_it():
    found = planned()
    rows = {row.name: row for row in found.rows}
    ways = [row.parameters for row in found.ways]
    dealt = [("permutation", "shares"), ("sketch", "keys"), ("sketch", "shares")]
    assert [(q.construction, q.field, q.dealing) for q in ways] == [
        (name, field, dealing)
        for name in CONSTRUCTIONS
        for field in (4281076801, 65521)
        for of, dealing in dealt
        if of == name
    ]
    assert rows[PLAIN].total_bytes == rows[PLAIN].later_bytes == 272_474 * 4
    assert rows[DENSE].pair_bytes == 272_474 // 2 * 4  # L / (U - T) symbols
    assert rows[DENSE].all_bytes == 100 * rows[DENSE].pair_bytes
    assert rows[DENSE].offline_bytes == 9 * rows[DENSE].pair_bytes
    assert rows[DENSE].online_bytes == 272_474 * 6
    assert rows[THEOREM].pair_bytes == pytest.approx(2 * 272_474 * 272_474 / 2 * 4, rel=0.001)
    assert rows[THEOREM].online_bytes == pytest.approx(559_000, rel=0.01)
    assert rows[FLOWER].offline_bytes == pytest.approx(6000, rel=0.02)
    assert rows[FLOWER].online_bytes == pytest.approx(1_091_000, rel=0.001)
    for row in found.rows:
        assert row.total_bytes == row.offline_bytes + row.masked_bytes + row.answer_bytes


RESNET = {"w": np.zeros((64, 32, 3, 3), np.float32), "b": np.zeros(64, np.float32)}


def sizes_of(found: Plan) -> list[tuple[str, int | None]]:
    return [(row.reduction, row.size) for row in found.rows if row.parameters]


def test_one_size_is_shown_beside_the_usual_ones():
    assert sizes_of(planned(RESNET)) == [
        ("top-k", 18),
        ("top-k", 185),
        ("top-k", 1850),
        *(("low-rank", rank) for rank in (1, 2, 4, 8)),
        ("whole", None),
    ]
    # one vector has no matrix: its low rank would be the whole
    assert {reduction for reduction, _ in sizes_of(planned(length=5000))} == {"top-k", "whole"}


def test_of_several_sizes_the_first_is_the_choice_and_no_others_are_shown():
    given = {**PAPER, "like": RESNET}
    del given["density"]
    found = plan(choose_rounds(given, {"rank": [4, 2], "top_k": [7]}))
    assert sizes_of(found) == [("top-k", 7), ("low-rank", 2), ("low-rank", 4)]
    assert (found.best.reduction, found.best.size) == ("low-rank", 4)
    assert THEOREM not in {row.name for row in found.rows}, "it is about top-K"


def test_a_later_round_costs_the_mean_of_both_sides_and_no_keys():
    given = {**PAPER, "like": {"w": np.zeros((90, 40), np.float32)}}
    del given["density"]
    low = plan(choose_rounds(given, {"rank": [2]})).best
    symbols = {"right": 2 * 90, "left": 2 * 40}
    assert low.offline_bytes > 0
    expected = [2 * n + 2 * n / 2 for n in symbols.values()]  # X, and Y = X / D
    assert low.later_bytes == pytest.approx(sum(expected) / 2, abs=8)
    del given["like"]
    written = {**given, "length": 600, "construction": "sketch", "dealing": "shares"}
    dealt_anew = plan(choose_rounds(written, {"top_k": [20]})).best
    assert dealt_anew.later_bytes == dealt_anew.total_bytes


def test_top_k_stops_to_pay_at_some_number_of_users():
    found = planned(np.zeros(272_474, np.float32))
    assert found.plain_users == 50
    few, many = (
        planned(np.zeros(272_474, np.float32), users=n, survivors=n, colluders=1) for n in (40, 60)
    )
    assert few.best.masked_bytes < 4 * 272_474 <= many.best.masked_bytes


@pytest.mark.parametrize(
    ("survivors", "before", "written", "online"),
    [(5, 14_200, 991_000, 329_000), (7, 5250, 495_000, 274_000)],
)
def test_what_the_documents_say_of_the_size_of_the_paper(survivors, before, written, online):
    rows = {
        row.parameters.dealing: row
        for row in planned(survivors=survivors).ways
        if (row.name, row.parameters.field) == ("sketch", 4281076801)
    }
    assert rows["keys"].offline_bytes == pytest.approx(before, rel=0.05)
    assert rows["shares"].offline_bytes == pytest.approx(written, rel=0.01)
    assert rows["keys"].online_bytes == pytest.approx(online, rel=0.01)


def test_a_scheme_that_needs_less_is_named():
    def remarks(**options):
        return planned(**options).remarks

    (flower,) = remarks()
    assert flower.startswith("SecAgg+ sends less before (")
    assert "in all" not in flower
    theorem, flower = remarks(users=40, survivors=21, colluders=8)
    assert theorem.startswith("Theorem 1 sends less with the gradient (97.5 kB instead of ")
    assert "before" not in theorem
    assert "in all" in flower
    assert remarks(survivors=7) == []


def test_more_picks_keep_more_energy():
    crowded = np.zeros(100_000)
    crowded[::1000] = np.linspace(1, 2, 100)  # all in few buckets for every B near 1000 / P

    def energy(picks):
        options = {"density": 0.001, "construction": "sketch", "picks": picks}
        return planned(crowded, **options).best.energy

    assert energy(1) < energy(2) < energy(4) < 0.99 < energy(16)


def test_the_command_can_be_pasted_and_starts_the_very_round_that_is_marked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("a b.npy", np.random.default_rng(0).standard_t(2, 50_000) * 1e-4)
    facts = must("plan", *OPTIONS, "--clip", "0.5", "--like", "a b.npy", "--json").json
    words = shlex.split(facts["command"].replace("ROUND", "round"))
    assert words[0] == "topk-secagg"
    must(*words[1:])
    marked = facts["best"]
    assert marked in facts["rows"]
    session = Workspace(tmp_path / "round").session
    p = session.parameters
    assert (p.construction, p.picks, session.clips) == (marked["name"], marked["picks"], (0.5,))
    assert footprint(p).all_bytes == marked["all_bytes"]
    ours = [c for c in facts["rows"] if c["field"]]
    assert all(c["seconds"] > 0 and 0 <= c["energy"] <= 1 and c["step"] > 0 for c in ours)


def test_the_answer_comes_first_and_notes_behind_v():
    call_of = ("plan", *OPTIONS, "--length", "272474")
    short = must(*call_of).out
    for words in ("SecAgg+ sends less before", "init chooses (*) sketch", "visible with top-k"):
        assert words in short
    assert short.splitlines()[-1].startswith("to start: ")
    assert "a user sends 14.2 kB before and 329 kB with its gradient" in short
    long = must(*call_of, "-v").out
    for words in (
        "time is an estimate",
        "the resolution",
        "counts once",
        "sent once for a series",
        "SecAgg+ rests on key agreement besides",
        "the secrecy is then information-theoretic",
        "from about 50 users on it is more than its plain gradient",
        "docs/training.md says which K, rank, field and clip",
    ):
        assert words in long
        assert words not in short


def test_a_peer_that_sends_as_much_as_it_can_be_read_is_not_said_to_send_less():
    for remark in planned(users=40, survivors=21, colluders=8).remarks:
        for less, more in re.findall(r"\(([^()]*) instead of ([^()]*)\)", remark):
            assert less != more


def test_the_tables_fit_80_columns(tmp_path):
    np.save(tmp_path / "g.npy", np.random.default_rng(0).standard_t(2, 50_000) * 1e-4)
    lines = must("plan", *OPTIONS, "--like", tmp_path / "g.npy", "-v").out.splitlines()
    end = next(at for at, line in enumerate(lines) if line.startswith("SecAgg+ "))
    assert max(map(len, lines[: end + 1])) <= 80
    assert lines[0].split() == ["field", "before", "X", "Y", "in", "all", "later", "energy"]
    assert any(line.startswith("top-k 500 * ") for line in lines)
    assert any(line.startswith("sketch keys * ") for line in lines)


def test_the_names_of_sizes_are_those_of_the_columns():
    found = must("plan", *OPTIONS, "--length", "5000", "--json").json
    for row in found["rows"]:
        assert row["in_all"] == row["before"] + row["with"]
        assert row["with"] == row["masked_bytes"] + row["answer_bytes"]
        assert row["plain"] == 5000 * 4
    assert [row["name"] for row in found["rows"]][-3:] == [THEOREM, DENSE, FLOWER]
    assert {row["dealing"] for row in found["ways"]} == {"shares", "keys"}


def test_several_densities_and_ranks_are_one_table(tmp_path):
    np.savez(tmp_path / "g.npz", w=np.random.default_rng(0).normal(size=(60, 50)))
    given = ("--users", 10, "--survivors", 5, "--colluders", 3, "--like", tmp_path / "g.npz")
    found = must("plan", *given, "--density", "0.01,0.1", "--rank", "1,4", "--json").json
    sizes = [(row["reduction"], row["size"]) for row in found["rows"] if row["field"]]
    assert sizes == [("top-k", 30), ("top-k", 300), ("low-rank", 1), ("low-rank", 4)]
    assert (found["best"]["reduction"], found["best"]["size"]) == ("top-k", 30)
    energies = [row["energy"] for row in found["rows"] if row["field"]]
    assert energies[0] < energies[1]
    assert energies[2] < energies[3]
    assert "is not a rank" in call("plan", *given, "--rank", "1,x").err


def test_the_marked_dealing_is_the_one_that_is_started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ("--length", 5000, "--construction", "sketch", "--dealing", "shares")
    facts = must("plan", *OPTIONS, *given, "--json").json
    words = shlex.split(facts["command"].replace("ROUND", "round"))
    must(*words[1:])
    assert Workspace(tmp_path / "round").session.parameters.dealing == "shares"


@pytest.mark.parametrize(
    ("survivors", "facts", "words"),
    [
        (7, (10, 3), "takes 10 answers that agree (D + 2T), which no 3 users together can falsify"),
        (8, (11, 2), "and there are 10 users: no 2 users together can falsify their agreement"),
        (10, (13, 0), "no liar is excluded; it needs U + T <= N"),
    ],
)
def test_it_says_what_it_takes_to_exclude_liars(survivors, facts, words):
    options = ["--users", 10, "--survivors", survivors, "--colluders", 3, "--top-k", 20]
    call_of = ("plan", *options, "--length", 5000)
    found = must(*call_of, "--json").json
    assert (found["certain_answers"], found["liars_excluded"]) == facts
    assert words in must(*call_of, "-v").out


def test_plot_draws_a_picture_and_notices_a_missing_matplotlib_first(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    must("plan", *OPTIONS, "--length", "50000", "--plot", tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    like = ("--like", tmp_path / "missing.pt")
    assert "needs matplotlib" in call("plan", *OPTIONS, *like, "--plot", tmp_path / "q.png").err


def test_a_round_that_the_disk_cannot_hold_is_refused(tmp_path, monkeypatch):
    p = planned(construction="sketch", dealing="shares").best.parameters
    monkeypatch.setattr("os.statvfs", lambda _: SimpleNamespace(f_bavail=5000, f_frsize=1000))
    check_disk(tmp_path, p, distributed=True)  # what one user sends and receives fits
    with pytest.raises(CannotWrite, match=r"need 17\.1 MB, and the disk has 5 MB free"):
        check_disk(tmp_path, p, distributed=False)
