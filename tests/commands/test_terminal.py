"""What a person sees: tables and sentences that fit 80 columns, and a first run that says what it
does."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path

import numpy as np
import pytest
from played import COMPILING, SCRIPT, call, must, words

from topk_secagg.algebra import library
from topk_secagg.errors import amount, counted, named_users, no_coalition

COLUMNS = 80
SMALL = words("--users 10 --survivors 5 --colluders 3 --density 0.01 --length 272474")
HUGE = words("--users 1000 --survivors 700 --colluders 300 --density 0.0001 --length 1000000000")


def on_a_terminal(*args: object, **environment: str) -> tuple[int, str]:
    """The exit code and all that appears on a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    own = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    running = subprocess.Popen(
        [SCRIPT, *map(str, args)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**own, "TERM": "xterm-256color", **environment},
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        seen += part
    os.close(ours)
    return running.wait(timeout=120), seen.decode()


@pytest.mark.parametrize("options", [SMALL, HUGE], ids=["ten users", "a thousand users"])
def test_plan_fits_80_columns_and_breaks_no_word(options):
    code, seen = on_a_terminal("plan", *options)
    assert code == 0
    lines = seen.replace("\r", "").splitlines()
    assert max(map(len, lines)) <= COLUMNS
    assert not re.search(r"\de\+\d", seen)  # no 4e+04 TB, no 1.55e+07 d
    table, _, rest = "\n".join(lines).partition("a user sends ")
    head, *rows = [line for line in table.splitlines() if line.strip() and "─" not in line]
    assert head.split() == ["field", "before", "X", "Y", "in", "all", "later"]
    names = ("plain", "permutation", "top-k ", "whole", "Theorem 1", "LightSecAgg", "SecAgg+")
    assert [row for row in rows if not row.startswith(names)] == []  # no row is broken
    # the words are those of the same text without a terminal
    elsewhere = must("plan", *options).out.partition("a user sends ")[2]
    assert [word for word in rest.split() if word != "\\"] == elsewhere.split()


@pytest.mark.parametrize("columns", [70, 100])
def test_columns_counts_for_tables_in_a_pipe_and_sentences_stay_whole(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = must("plan", *SMALL).out.splitlines()
    end = next(at for at, line in enumerate(lines) if line.startswith("SecAgg+ "))
    assert columns // 2 < max(map(len, lines[: end + 1])) <= columns
    assert any(len(line) > columns for line in lines[end + 1 :])


@pytest.mark.parametrize("nonsense", ["", "0", "-1", "wide"])
def test_columns_that_are_no_number_do_not_count(monkeypatch, nonsense):
    monkeypatch.delenv("COLUMNS", raising=False)
    before = must("plan", *SMALL).out
    monkeypatch.setenv("COLUMNS", nonsense)
    assert must("plan", *SMALL).out == before


def test_the_command_that_plan_shows_on_a_terminal_can_be_pasted(tmp_path):
    _, seen = on_a_terminal("plan", *SMALL)
    command = seen.replace("\r", "").partition("to start: topk-secagg ")[2]
    assert " \\\n    " in command
    script = f"{SCRIPT} {command}".replace("ROUND", str(tmp_path / "round"))
    assert subprocess.run(["sh", "-c", script], check=False, capture_output=True).returncode == 0
    assert (tmp_path / "round" / "session.json").exists()


def test_what_is_counted_and_listed_is_in_the_singular_or_the_plural():
    assert [counted(n, "user") for n in (0, 1, 2)] == ["0 users", "1 user", "2 users"]
    assert [counted(n, "entry", "entries") for n in (1, 3)] == ["1 entry", "3 entries"]
    assert [named_users(users) for users in ([3], (1, 2, 4))] == ["user 3", "users 1, 2, 4"]
    assert [no_coalition(n) for n in (1, 3)] == ["no user alone", "no 3 users together"]


def test_amounts_have_three_digits_and_never_an_exponent():
    assert [amount(count) for count in (0, 999, 1000, 999_499, 999_600, 2.67e12, 4e16, 2e22)] == [
        "0 B", "999 B", "1 kB", "999 kB", "1 MB", "2.67 TB", "40 PB", "20 ZB",
    ]  # fmt: skip
    assert amount(1e40) == ">999 ZB"


def test_amounts_and_times_fit_their_columns_of_a_narrow_table():
    from topk_secagg_cli.plan import _duration

    for exponent in range(25):
        for factor in (1, 1.2345, 3, 9.994, 9.996):
            assert len(amount(factor * 10**exponent)) <= 7
            for sign in (1, -1):
                assert len(_duration(factor * 10.0 ** (sign * exponent))) <= 6
    for seconds in range(0, 200_000, 7):
        assert len(_duration(seconds)) <= 6


def test_plan_with_the_energy_of_a_gradient_fits_too(tmp_path):
    np.save(tmp_path / "g.npy", np.random.default_rng(0).uniform(-0.5, 0.5, 25_866))
    code, seen = on_a_terminal("plan", *SMALL[:8], "--like", tmp_path / "g.npy")
    assert code == 0
    lines = seen.replace("\r", "").splitlines()
    own_words = [line for line in lines if "g.npy" not in line]  # a path may be longer
    assert max(map(len, own_words)) <= COLUMNS
    assert [line for line in lines if line.startswith("top-k ") and " * " in line]
    assert "energy" in next(line for line in lines if " before " in line)


def test_times_are_in_a_unit_that_suits_them():
    from topk_secagg_cli.plan import _duration

    shown = {
        0.0123: "<0.1 s",
        0.25: "0.25 s",
        1.6: "1.6 s",
        119: "119 s",
        5400: "90 min",
        31 * 3600: "31 h",
    }
    shown |= {3 * 86_400: "3 d", 1000 * 86_400: "2.7 y", 1e18: ">999 y"}
    assert {seconds: _duration(seconds) for seconds in shown} == shown


def test_a_thousand_users_are_measured_with_few_products(monkeypatch, tmp_path):
    """As many as for ten users, and not a thousand times as many."""
    from topk_secagg.review import plan
    from topk_secagg.rounds.options import choose_round

    products = []

    def encode(*, encoding, noise, **_):
        products.append(encoding.shape[0] * noise.size)

    monkeypatch.setattr(plan, "encode", encode)
    options = {"users": 1000, "survivors": 700, "colluders": 300, "density": 0.0001}
    choice = choose_round({**options, "length": 10**9})
    plan.measure_speed(choice.parameters, tmp_path)
    assert 0 < max(products) <= plan._PRODUCTS


def test_a_note_on_a_terminal_breaks_between_words(tmp_path):
    names = {f"a.rather.long.name.of.a.layer.{i}.running_mean": np.ones(2) for i in range(4)}
    np.savez(tmp_path / "g.npz", weight=np.ones(40), **names)
    code, seen = on_a_terminal(
        "init", tmp_path / "r", *SMALL[:8], "--like", tmp_path / "g.npz", "--clip", "2"
    )
    assert code == 0
    for name in names:
        assert name in seen


def test_init_is_not_silent_while_it_reads_an_example(tmp_path):
    np.save(tmp_path / "g.npy", np.ones(40))
    more = ("--like", tmp_path / "g.npy", "--clip", "2")
    code, seen = on_a_terminal("init", tmp_path / "r", *SMALL[:8], *more)
    assert (code, "starting" in seen) == (0, True)
    assert "starting" not in must("init", tmp_path / "other", *SMALL[:8], *more).err


# a compiler that has the result already: what is said meanwhile does not depend on how long it
# takes
READY = """
import sys
with open({kept!r}, "rb") as kept, open(1, "wb") as out:
    out.write(kept.read())
"""


@pytest.fixture
def cold(tmp_path):
    """A copy of the program whose kernels were never compiled, and no cache of this user."""
    import shutil

    root = Path(__file__).parents[2]
    home = tmp_path / "program"
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(root / "topk_secagg", home / "topk_secagg", ignore=skipped)
    shutil.copytree(root / "cli", home / "topk_secagg_cli", ignore=skipped)
    (tmp_path / "cache").mkdir()
    return {"PYTHONPATH": str(home), "XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def cool(cold, tmp_path):
    """The same, but it compiles at once: its compiler gives out the code that is kept for us."""
    found = library.find()
    code = found[1] if found else library.compile_kernels()
    kept = tmp_path / "kernels"
    kept.write_bytes(code.compilers.encode() + b"\n" + code.machine_code)
    compiler = tmp_path / "program/topk_secagg/algebra/machine_code.py"
    compiler.write_text(READY.format(kept=str(kept)))
    return cold


def prepared(folder: Path) -> tuple[object, ...]:
    options = words("--users 3 --survivors 2 --colluders 1 --top-k 2 --length 4")
    must("init", folder, *options)
    return ("offline", str(folder), "--user", "1")


def in_a_pipe(cold: dict[str, str], *command: object) -> subprocess.CompletedProcess[str]:
    """A command without a terminal, with all that it prints."""
    return subprocess.run(
        [SCRIPT, *map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **cold},
    )


def test_the_first_run_says_on_standard_error_that_it_compiles(tmp_path, cold):
    command = prepared(tmp_path / "round")
    first = in_a_pipe(cold, *command, "--json")
    assert first.returncode == 0, first
    assert first.stderr == COMPILING
    assert first.stdout.count("\n") == 1  # the object alone
    second = in_a_pipe(cold, *prepared(tmp_path / "again"))
    assert (second.returncode, second.stderr) == (0, "")


def test_quiet_keeps_the_first_run_silent(tmp_path, cool):
    first = in_a_pipe(cool, *prepared(tmp_path / "round"), "-q")
    assert (first.returncode, first.stderr, first.stdout) == (0, "", "")


def test_on_a_terminal_the_line_stands_above_the_bar(tmp_path, cool):
    """Whatever is on the line that the bar was drawn on is erased before the message is written."""
    code, seen = on_a_terminal(*prepared(tmp_path / "round"), **cool)
    assert code == 0
    start = seen.index(COMPILING[:20])
    line = re.split(r"\r?\n|\r|\x1b\[2K", seen[:start])[-1]
    assert re.sub(r"\x1b\[[\d;?]*\w", "", line) == ""  # nothing before it on its line
    rest = seen[start:].split("\n")[0]
    assert re.sub(r"\x1b\[[\d;?]*\w", "", rest).strip() == COMPILING.strip()  # and nothing after it


def test_a_failed_command_leaves_no_bar_that_hides_the_error(tmp_path):
    result = call("offline", tmp_path / "nowhere", "--user", 1)
    assert result.code == 66
    assert result.err.startswith("topk-secagg: ")
