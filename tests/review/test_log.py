"""`log`: a line for every round, what each file adds to it, and who is absent again and again."""

import csv
import io
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from played import call, must

import topk_secagg as ts
from topk_secagg.errors import InputMissing, Refused
from topk_secagg.review import log as log_module

N = 4
OPTIONS = {"survivors": 2, "colluders": 1, "top_k": 3, "construction": "sketch"}
PRIVATE = ("kept_energy", "rounding_error", "clipped", "seconds")


def play(folder: Path, attendance: list[str]) -> list[Path]:
    """A series in which each round has the users of one word, such as "124"."""
    rounds = [folder / f"r{i}" for i in range(len(attendance))]
    for i, (round_folder, present) in enumerate(zip(rounds, attendance, strict=True)):
        chance = np.random.default_rng(i)
        gradients = [chance.uniform(-1, 1, 40).astype(np.float32) for _ in range(N)]
        absent = [n for n in range(1, N + 1) if str(n) not in present]
        first = {"from_": rounds[i - 1]} if i else OPTIONS
        ts.run(round_folder, gradients, drop_masking=absent, **first)
    return rounds


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    """User 3 comes and goes, user 4 leaves for good."""
    return play(tmp_path_factory.mktemp("series"), ["1234", "124", "123", "12", "123"])


def test_a_row_says_what_the_files_of_a_round_say(series):
    first, second, *_ = ts.log(series).rows
    session = ts.Workspace(series[0]).session
    assert (first.round, first.session, first.series) == (
        series[0],
        session.id,
        session.series_name,
    )
    assert (first.generation, second.generation) == (0, 1)
    assert (first.reduction, first.size, first.users) == ("top-k", 3, N)
    assert (second.survivors, second.answered, second.decoded) == ([1, 2, 4], [1, 2, 4], True)
    assert first.clip == max(session.clips)
    assert first.plain_bytes == 40 * 4
    assert first.offline_bytes > 0
    assert second.offline_bytes == 0
    assert 0 < first.kept_energy <= 1
    assert 0 < first.rounding_error < 1e-6
    assert first.clipped == 0
    assert first.seconds >= 0


def test_the_bytes_are_those_that_each_step_said(tmp_path):
    gradients = [np.random.default_rng(n).random(40, np.float32) for n in range(N)]
    report = ts.run(tmp_path / "r", gradients, **OPTIONS)
    (row,) = ts.log(report.round).rows
    assert row.masked_bytes == report.masked[0].masked_bytes
    assert row.answer_bytes == report.answered[0].answer_bytes
    assert row.plain_bytes == report.plain_bytes
    assert row.kept_energy == min(user.kept_energy for user in report.masked)
    assert row.rounding_error == max(user.rounding_error for user in report.masked)


def test_values_that_were_clipped_are_counted_over_all_users(tmp_path):
    gradients = [np.arange(1, 6) * float(n) for n in range(1, N + 1)]
    report = ts.run(tmp_path / "r", gradients, **OPTIONS, clip=4.5, saturate=True)
    (row,) = ts.log(tmp_path / "r").rows
    assert row.clipped == sum(user.clipped for user in report.masked) > 1


def test_without_ledgers_only_public_facts_are_known(series, tmp_path):
    public = ("session.json", "survivors.json", "aggregate.h5", "masked", "elimination")
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in public:
        (copy / name).symlink_to(series[1] / name)
    (row,) = ts.log(copy).rows
    assert [getattr(row, name) for name in PRIVATE] == [None] * len(PRIVATE)
    (whole,) = ts.log(series[1]).rows
    assert {k: v for k, v in vars(row).items() if k not in (*PRIVATE, "round")} == {
        k: v for k, v in vars(whole).items() if k not in (*PRIVATE, "round")
    }
    assert "energy" not in must("log", copy).out
    assert "energy" in must("log", series[1]).out


def test_a_round_on_its_way_has_a_row(round_at):
    for stage, survivors, answered in (
        ("init", None, []),
        ("masked", None, []),
        ("frozen", [1, 2, 3, 4], []),
    ):
        r = round_at(stage, stage, masking=(1, 2, 3, 4))
        (row,) = ts.log(r.folder).rows
        assert (row.survivors, row.answered, row.decoded) == (survivors, answered, False)
        assert row.seconds is None


def test_rounds_come_by_generation_however_they_are_named(series):
    for given in (series, series[::-1]):
        assert [row.round for row in ts.log(given).rows] == series


def test_independent_rounds_come_in_natural_order(tmp_path):
    for name in ("r10", "r2", "r1"):
        ts.init(tmp_path / name, users=N, length=9, **OPTIONS)
    rows = ts.log(sorted(tmp_path.iterdir())).rows
    assert [row.round.name for row in rows] == ["r1", "r2", "r10"]


class TestAbsence:
    def test_who_comes_and_goes_is_named(self, series):
        (warning,) = ts.log(series).warnings
        assert "user 3 was absent in 2 of 5 rounds" in warning
        assert "came back 2 times" in warning
        assert warning in must("log", *series).err
        assert warning in call("log", *series, "--csv", "-q").err

    def test_who_leaves_for_good_or_comes_back_once_is_not(self, series):
        assert ts.log(series[:3]).warnings == []
        assert not any("user 4" in warning for warning in ts.log(series).warnings)

    def test_an_audit_warns_of_it_where_the_rounds_before_lie_beside(self, series, tmp_path):
        page = tmp_path / "page.html"
        (warning,) = ts.log(series).warnings
        said = must("audit", series[-1], "--report", page)
        assert warning in said.err
        assert warning in page.read_text()
        assert must("audit", series[-1], "--json").json["warnings"] == [warning]
        assert ts.audit(series[2]).evidence.warnings == []  # what came later does not count
        shutil.copytree(series[-1], tmp_path / "alone")
        assert ts.audit(tmp_path / "alone").evidence.warnings == []

    def test_an_audit_reads_no_rounds_of_other_series(self, series, tmp_path):
        for path in series[:-1]:
            shutil.copytree(path, tmp_path / path.name)
        other = play(tmp_path / "other", ["1234", "124"])
        shutil.copytree(other[-1], tmp_path / "last")
        assert ts.audit(tmp_path / "last").evidence.warnings == []

    def test_rounds_of_other_series_do_not_count(self, series, tmp_path):
        other = play(tmp_path, ["1234", "124"])
        assert ts.log([*series[:3], *other]).warnings == []

    def test_without_the_count_of_returns_nobody_is_named(self, series, monkeypatch):
        """The twin."""
        monkeypatch.setattr(log_module, "pairwise", lambda _: pairwise([True]))
        assert ts.log(series).warnings == []


class TestFilesThatCannotBeUsed:
    def test_a_folder_without_a_round_is_left_out_with_a_word(self, series, tmp_path):
        result = must("log", tmp_path, *series)
        assert f"{tmp_path}" in result.err
        assert len(ts.log([tmp_path, *series]).rows) == len(series)

    def test_no_round_at_all_is_an_error(self, tmp_path, refuses):
        refuses(66, "log", tmp_path, says="session.json")
        with pytest.raises(InputMissing):
            ts.log([])

    def test_a_damaged_session_is_an_error(self, round_at, refuses):
        r = round_at("init")
        (r.folder / "session.json").write_text("{}")
        refuses(65, "log", r.folder, says="session.json")

    def test_a_damaged_file_is_a_problem_and_not_counted(self, round_at):
        r = round_at("decoded")
        (r.folder / "survivors.json").write_text("{}")
        (r.folder / "aggregate.h5").write_bytes(b"nothing")
        report = ts.log(r.folder)
        (row,) = report.rows
        assert (row.survivors, row.answered, row.decoded) == (None, [], False)
        assert [Path(problem.split()[0].rstrip(":")).name for problem in report.problems] == [
            "survivors.json",
            "aggregate.h5",
        ]

    def test_an_answer_of_another_round_does_not_count(self, round_at):
        r, other = round_at("answered"), round_at("answered", "other", name="other")
        path = "elimination/user-01.h5"
        (other.folder / path).replace(r.folder / path)
        report = ts.log(r.folder)
        assert 1 not in report.rows[0].answered
        assert "elimination/user-01.h5" in report.problems[0]

    def test_pins_hold(self, series):
        name = ts.Workspace(series[0]).session.series_name
        assert len(ts.log(series, series=name[:16]).rows) == len(series)
        with pytest.raises(Refused):
            ts.log(series, series="0" * 16)
        with pytest.raises(Refused):
            ts.log(series, recipients=Path(__file__))


class TestPrinted:
    def test_csv_has_every_column_in_a_form_that_others_read(self, series):
        lines = must("log", *series, "--csv").out
        rows = list(csv.DictReader(io.StringIO(lines)))
        assert len(rows) == len(series)
        assert list(rows[0]) == list(vars(ts.log(series).rows[0]))
        assert rows[1]["survivors"] == "1 2 4"
        assert float(rows[1]["masked_bytes"]) > 0

    def test_json_has_the_same_names(self, series):
        said = must("log", *series, "--json").json
        assert list(said["rounds"][0]) == list(vars(ts.log(series).rows[0]))
        assert said["warnings"] == ts.log(series).warnings

    def test_csv_and_json_are_not_both(self, series, refuses):
        refuses(2, "log", series[0], "--csv", "--json", says="either --csv or --json")

    def test_a_line_for_each_round(self, series):
        table = must("log", *series).out.splitlines()
        assert sum(line.startswith(str(series[0])[:8]) for line in table) >= len(series)


def test_a_report_of_a_repeated_mask_is_that_of_the_first(round_at):
    r = round_at("offline")
    first = must(*r.mask(1), "--json").json
    again = must(*r.mask(1), "--json").json
    assert again["kept_energy"] == first["kept_energy"] is not None
    assert again["rounding_error"] == first["rounding_error"]
