"""The page of an audit: what it says, and how it looks in a browser on a phone and on a desk."""

import hashlib
import re
import shutil
from datetime import UTC, datetime, timedelta, timezone
from xml.etree import ElementTree

import played
import pytest
from browser import WIDTHS, measured
from played import Recipe, Round, audited, must

import topk_secagg
from topk_secagg.protocol.constructions import construction
from topk_secagg.review.audit import collect_evidence
from topk_secagg.review.points import ELSE, SECRETS, SHARES
from topk_secagg.review.report import checked, page, unchecked
from topk_secagg.storage.workspace import Workspace

L, K, N = (
    241,
    60,
    5,
)  # a prime: the indices of `permutation` do not fall into equal bins by themselves
WEIGHTS = {1: 1.0, 2: 0.25, 3: 2.0, 4: 1.0}
LEAST_TEXT = 14  # pixels


def play(folder, **options):
    """A round with weights, in which user 5 drops out."""
    shape = {
        "length": L,
        "top_k": K,
        "picks": 4,
        "masking": tuple(WEIGHTS),
        "answering": tuple(WEIGHTS),
        **options,
    }
    r = Round(Recipe("page", **shape), folder / "round", folder).prepare()
    must(*r.init("--max-weight", 2))
    r.play(after="init", upto="offline")
    for user, weight in WEIGHTS.items():
        must(*r.mask(user, "--weight", weight))
    return Workspace(r.play(after="masked").folder)


@pytest.fixture(scope="module")
def spaces(tmp_path_factory):
    """A round that passes, one with public files only, and a sealed one with all that may be wrong
    and long."""
    clean = play(tmp_path_factory.mktemp("clean"), construction="sketch", picks=2)
    public = play(tmp_path_factory.mktemp("public"), picks=None)
    for name in ("secrets", "shares"):
        shutil.rmtree(public.root / name)
    bad = play(
        tmp_path_factory.mktemp("bad"),
        survivors=4,
        construction="sketch",
        sealed=True,
        confirm=True,
    )
    played.flip(bad.answer_path(2), bad.answer_path(2).stat().st_size - 9)
    (bad.root / "masked" / ("a-name-without-an-end" * 9 + ".h5")).touch()
    (bad.root / "masked" / "user-77.h5").touch()
    return {"clean": clean, "public": public, "bad": bad}


@pytest.fixture(scope="module")
def reports(spaces, tmp_path_factory):
    """The pages, as the command writes them."""
    folder = tmp_path_factory.mktemp("reports")
    for name, space in spaces.items():
        code = played.call("audit", space.root, "--report", folder / f"{name}.html").code
        assert code == (65 if name == "bad" else 0)
    return {name: folder / f"{name}.html" for name in spaces}


# --- what it says ---------------------------------------------------------------------------------


def parsed(path):
    return ElementTree.fromstring(path.read_text().removeprefix("<!DOCTYPE html>"))


def text_of(path):
    return " ".join(" ".join(parsed(path).find("body").itertext()).split())


def test_what_could_not_be_checked_comes_after_what_was_by_what_an_auditor_lacks(spaces, reports):
    text = text_of(reports["public"])
    verdicts, lacking, everything = (
        text.index(title)
        for title in ("Verdicts", "What could not be checked here", "Everything that was checked")
    )
    assert verdicts < lacking < everything
    assert "not checkable" not in text[verdicts:lacking]
    secrets, shares = text.index(SECRETS), text.index(SHARES)
    assert lacking < secrets < text.index("ledgers", secrets) < shares
    assert shares < text.index("Y recomputed", shares) < everything
    said = must("audit", spaces["public"].root).out
    assert said.rindex(" pass ") < said.index(SECRETS) < said.index(SHARES)
    assert re.search(r"nothing failed: \d+ passed; \d+ could not be checked here\n", said)


def test_where_all_was_checked_nothing_is_said_of_the_rest(spaces, reports):
    assert "could not be checked" not in text_of(reports["clean"])
    assert "could not be checked" not in must("audit", spaces["clean"].root).out


def test_every_check_that_takes_private_files_is_told_from_the_others(spaces):
    """Of the sealed round too, whose shares an auditor cannot open."""
    shutil.rmtree(spaces["bad"].root / "masked")
    for name in ("public", "bad"):
        findings = collect_evidence(spaces[name]).findings
        groups = unchecked(findings)
        assert sum(map(len, groups.values())) + len(checked(findings)) == len(findings)
        points = {what: {finding.point for finding in own} for what, own in groups.items()}
        assert "ledgers" in points[SECRETS]
        assert "shares fit together" in points[SHARES]
    assert "X of the right size, indices and values allowed" in points[ELSE]


def test_it_names_the_date_the_program_the_session_and_the_survivors(spaces, reports):
    space = spaces["clean"]
    text = text_of(reports["clean"])
    made = re.search(
        rf"(\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d) UTC, by topk-secagg {topk_secagg.__version__} ", text
    )
    assert abs(datetime.fromisoformat(f"{made[1]}+00:00") - datetime.now(UTC)) < timedelta(hours=1)
    assert space.session.id in text
    assert hashlib.sha256(space.survivors_path.read_bytes()).hexdigest() in text
    assert "4 of 5 users are in the sum" in text
    assert "user 1: 1 user 2: 0.25 user 3: 2 user 4: 1 Users that lie together" in text
    assert "no user alone can have falsified the sum (T = 1). Verdicts" in text
    assert "The weights add up to 4.25." in text


def test_its_date_is_utc_wherever_it_is_made(spaces):
    at = datetime(2026, 1, 1, 1, 30, tzinfo=timezone(timedelta(hours=2)))
    assert b"2025-12-31 23:30:00 UTC" in page(collect_evidence(spaces["public"]), at=at)


def test_without_survivors_it_says_so(spaces, tmp_path):
    shutil.copytree(spaces["public"].root, tmp_path / "round")
    space = Workspace(tmp_path / "round")
    space.survivors_path.unlink()
    (tmp_path / "page.html").write_bytes(page(collect_evidence(space)))
    assert "SHA-256 of survivors.json not available, or not sound" in text_of(
        tmp_path / "page.html"
    )


def test_every_point_says_in_a_sentence_what_it_establishes(spaces, reports):
    for name, space in spaces.items():
        text = text_of(reports[name])
        for point in {finding.point for finding in audited(space)}:
            assert re.fullmatch(r"[A-Zs].*\.", point.establishes), point
            assert point.establishes in text


def test_all_bins_of_a_histogram_cover_equally_many_values(spaces, reports):
    for name in ("clean", "public"):
        p = spaces[name].session.parameters
        figures = list(parsed(reports[name]).iter("figure"))
        c = construction(p)
        bounds = (p.field, c.index_bound) if c.index_name else (p.field,)
        for figure, bound in zip(figures[: len(bounds)], bounds, strict=True):
            titles = [rect.find("title").text.replace(",", "") for rect in figure.iter("rect")]
            bins = [
                tuple(map(int, re.match(r"(\d+) to (\d+): (\d+)", title).groups()))
                for title in titles
            ]
            note = "".join(figure.find("figcaption").itertext()).replace(",", "")
            count, said, covered = map(
                int, re.search(r"(\d+) entries in (\d+) bins.* covers (\d+) ", note).groups()
            )
            said_left = re.search(r"the last (\d+) (?:is|are) not drawn", note)
            left = int(said_left[1]) if said_left else 0
            assert said == len(bins) >= min(16, bound)
            assert {high - low + 1 for low, high, _ in bins} == {covered}
            assert covered * said + left == bound
            assert count == c.entries * len(WEIGHTS)
            assert 0 <= count - sum(found for _, _, found in bins) <= left * len(WEIGHTS)


# --- how it looks ---------------------------------------------------------------------------------

BROKEN = """<!DOCTYPE html><body style="margin: 0"><p style="font-size: 13px">small</p>
<svg viewBox="0 0 800 20" width="390" font-size="20">
<text y="15">scaled</text><text y="15">over</text></svg>
<div style="width: 2000px">wide</div></body>"""


@pytest.fixture(scope="module")
def looks(reports, tmp_path_factory):
    """What a browser measures, by report and width."""
    folder = tmp_path_factory.mktemp("browser")
    (folder / "broken.html").write_text(BROKEN)
    shown = {(name, width): (path, width) for name, path in reports.items() for width in WIDTHS}
    shown["broken", 390] = (folder / "broken.html", 390)
    return measured(shown, folder)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["clean", "public", "bad"])
def test_it_fits_the_screen_and_can_be_read(looks, name, width):
    look = looks[name, width]
    assert look["bad"] == []
    assert look["width"] == width
    assert look["smallest"] >= LEAST_TEXT


def test_a_page_that_does_not_fit_is_noticed(looks):
    look = looks["broken", 390]
    assert look["width"] == 2000
    assert look["smallest"] == pytest.approx(20 * 390 / 800)
    assert [text.split(":")[0] for text in look["bad"]] == ["DIV", "over"]
