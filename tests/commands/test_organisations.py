"""Four organisations in four folders, each with its own keys and with the script that the documents
recommend, and a store in the middle that has public files and sealed shares only."""

import os
import random
import re
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from played import ROOT, SCRIPT, Recipe, Round, call, contents, must

from topk_secagg.storage.workspace import Workspace

WORKFLOWS = ROOT / "workflows"
FIRST_FETCH = "waits for a first fetch"  # if that takes longer than a pause
STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ "
FOUR = Recipe(
    "organisations",
    users=4,
    survivors=3,
    top_k=4,
    length=8,
    construction="sketch",  # whose lists of commitments travel too
    picks=2,
    sealed=True,
    homes=True,
    confirm=True,
    masking=(1, 2, 3),
    answering=(1, 2, 3),
)
COPY = """#!/bin/sh
# push and pull with nothing but cp: for machines without rsync
set -eu
put() { # a file into another folder, whole
  mkdir -p "$1/$(dirname "$2")"
  cp "$2" "$1/$2.part"
  mv "$1/$2.part" "$1/$2"
}
cd "$ROUND"
if [ "$1" = push ]; then
  while read -r name; do put "$STORE" "$name"; done
else
  cd "$STORE"
  own=$(printf 'user-%02d' "$NUMBER")
  for name in basis.h5 session.json survivors.json dealt/*.json masked/*.h5 confirmed/*.json \\
    elimination/*.h5 "shares/$own"/*.age; do
    case $name in */$own.*) continue ;; esac
    if [ -e "$name" ]; then put "$ROUND" "$name"; fi
  done
fi
"""


class Organisations:
    """The machines of the organisations, and the store."""

    def __init__(self, base: Path, recipe: Recipe = FOUR) -> None:
        self.base = base
        self.store = base / "store"
        self.round = Round(recipe, self.store, base / "inputs").prepare()
        self.session = must(*self.round.init("--json")).json["session"]
        self.sync = WORKFLOWS / "sync-rsync.sh"
        if shutil.which("rsync") is None:
            self.sync = base / "sync.sh"
            self.sync.write_text(COPY)
            self.sync.chmod(0o755)

    def machine(self, user: int) -> Round:
        return self.round.elsewhere(self.base / f"machine-{user}" / "round")

    def start(
        self, user: int, here: Path | None = None, home: Path | None = None, **settings: str | None
    ) -> subprocess.Popen[str]:
        """The script of an organisation, as a new process; a setting of None is left out."""
        r = self.round
        here = here or self.machine(user).folder
        home = home or r.home(user)
        here.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {
            "PATH": f"{SCRIPT.parent}:{os.environ['PATH']}", "STORE": str(self.store),
            "PAUSE": "0.5",
            "PATIENCE": "2", "LIMIT": "900", "TOPK_SECAGG_RECIPIENTS": str(r.recipients),
            "TOPK_SECAGG_SESSION": self.session, **settings,
        }  # fmt: skip
        environment = {name: value for name, value in environment.items() if value is not None}
        sums = here.with_name("sum.npy")
        words = [here, user, home, r.gradient(user), self.sync, sums]
        return subprocess.Popen(
            [WORKFLOWS / "organisation.sh", *map(str, words)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A round of four: the third is late, and the others wait for it; the fourth never appears."""
    four = Organisations(tmp_path_factory.mktemp("organisations"))
    running = {user: four.start(user) for user in (1, 2)}
    while not list(four.store.glob("shares/*/from-02.*")) or not list(
        four.store.glob("shares/*/from-01.*")
    ):
        assert all(process.poll() is None for process in running.values())
        time.sleep(0.1)
    running[3] = four.start(3)
    said = {user: process.communicate(timeout=1000)[1] for user, process in running.items()}
    assert [process.returncode for process in running.values()] == [0, 0, 0], said
    return four, said


def test_all_get_the_sum_without_the_absent_one(finished):
    four, said = finished
    for user in (1, 2, 3):
        four.machine(user).check_sum(survivors=(1, 2, 3))
        assert (four.machine(user).folder.with_name("sum.npy")).exists()
    assert "mask waits for shares of user" in said[1]
    assert "freeze waits for X of user" in said[1]


def test_each_has_its_own_files_and_those_for_it_only(finished):
    four, _ = finished
    for user in (1, 2, 3):
        # (fetching is stopped at the end, and may leave half a copy)
        names = {n for n in contents(four.machine(user).folder) if not n.endswith(".part")}
        own = f"user-{user:02}"
        assert not any(name.startswith("secrets/") for name in names)
        name = Workspace(four.store).session
        assert set(contents(four.round.home(user))) == {
            "folder.json",
            "input.key",
            f"{own}.identity",
            f"{own}.sent",
            f"{own}.chain-{name.id[:16]}.h5",  # from which a series can go on
            f"{name.id}/{own}.ledger.json",  # the secret is forgotten
            f"{name.id}/decoded.json",
        }
        assert {name for name in names if name.startswith(f"shares/{own}/")} == set()
        made = {name for name in names if name.startswith("shares/")}
        assert made <= {f"shares/user-{m:02}/from-{user:02}.h5.age" for m in (1, 2, 3, 4)}


def test_the_store_has_public_files_and_sealed_shares_only_and_can_decode(finished, tmp_path):
    """The server of centralised learning: it stores, and decodes without the shares."""
    four, _ = finished
    names = set(contents(four.store))
    users = (1, 2, 3)
    public = {
        *(f"{folder}/user-{n:02}.h5" for folder in ("masked", "elimination") for n in users),
        *(f"{folder}/user-{n:02}.json" for folder in ("confirmed", "dealt") for n in users),
    }
    shares = {
        f"shares/user-{m:02}/from-{n:02}.h5.age" for m in (1, 2, 3, 4) for n in users if m != n
    }
    assert names - {"aggregate.h5"} == {"session.json", "survivors.json", *public, *shares}
    server = four.round.elsewhere(tmp_path / "server")
    shutil.copytree(
        four.store, server.folder, ignore=shutil.ignore_patterns("shares", "aggregate.h5", ".*")
    )
    assert must("status", server.folder, "--json").json["next"]["step"] == "decode"
    assert must(*server.decode("--output", tmp_path / "sum.npy")).err == ""
    server.check_sum(survivors=users)
    own = four.machine(1).folder.with_name("sum.npy")
    assert (tmp_path / "sum.npy").read_bytes() == own.read_bytes()
    assert call("audit", server.folder).code == 0


def test_an_organisation_after_the_freeze_gets_the_sum(finished):
    """Else its model would not be that of the others."""
    four, _ = finished
    process = four.start(4)
    *before, line = process.communicate(timeout=1000)[1].splitlines()
    assert re.fullmatch(STAMP + "organisation 4: nothing is left to do", line)
    assert [text for text in before if FIRST_FETCH not in text][-1].endswith(": decode")
    assert process.returncode == 0
    sums = [four.machine(user).folder.with_name("sum.npy").read_bytes() for user in (1, 4)]
    assert sums[0] == sums[1]
    assert not list(four.round.home(4).glob("*/*.h5"))


def test_another_freezes_where_the_first_is_silent(tmp_path):
    """Where users confirm, no one user can stop the round."""
    four = Organisations(tmp_path)
    assert Workspace(four.store).session.freezer is None
    play([four.start(user) for user in (2, 3, 4)])
    for user in (2, 3, 4):
        four.machine(user).check_sum(survivors=(2, 3, 4))


TWO = Recipe(
    "series",
    users=2,
    survivors=2,
    top_k=4,
    construction="sketch",
    sealed=True,
    homes=True,
    masking=(1, 2),
    answering=(1, 2),
)


def folder_of_later(two: Organisations, user: int) -> Path:
    return two.base / f"machine-{user}" / "later" / "round"


def play(processes: list[subprocess.Popen[str]]) -> None:
    said = [process.communicate(timeout=1000)[1] for process in processes]
    assert {process.returncode for process in processes} == {0}, said


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    """Two organisations, and two rounds with the same keys, of which the script is run for the
    second."""
    two = Organisations(tmp_path_factory.mktemp("series"), TWO)
    two.round.play(after="init", upto="forgotten")
    later = two.base / "later-store"
    must("init", later, "--from", two.store)
    two.round = replace(two.round, inputs=two.base / "later-inputs")
    two.round.steps = two.round.write_gradients(random.Random(2))
    shutil.copy(two.base / "inputs/recipients", two.round.recipients)
    settings = {
        "STORE": str(later),
        "TOPK_SECAGG_SERIES": Workspace(two.store).session.series_name,
        "TOPK_SECAGG_SESSION": None,
    }
    users = two.round.recipe.everybody
    play([two.start(user, folder_of_later(two, user), **settings) for user in users])
    return two


class TestSeries:
    """The second round goes on with the keys of the first, which all have forgotten."""

    def test_the_later_round_gives_the_sum(self, series):
        two = series
        plain = sum(np.load(two.round.gradient(user)) for user in (1, 2))
        for user in (1, 2):
            found = np.load(folder_of_later(two, user).with_name("sum.npy"))
            assert np.array_equal(found, plain)

    def test_lists_and_keys_do_not_travel_again(self, series):
        two = series
        later = set(contents(two.base / "later-store"))
        assert not [name for name in later if name.startswith(("shares/", "dealt/"))]
        assert [name for name in later if name.startswith("elimination/")]


@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        ({"LIMIT": "10"}, 75, "gave up: mask still waits for shares of users 2, 3, 4 for user 1"),
        ({"TOPK_SECAGG_RECIPIENTS": "mine"}, 77, "other keys for user 2"),
        ({"TOPK_SECAGG_RECIPIENTS": "", "RECIPIENTS": "mine"}, 77, "other keys for user 2"),
        ({"TOPK_SECAGG_SESSION": "0" * 16}, 77, "not 0000000000000000"),
        ({"TOPK_SECAGG_RECIPIENTS": ""}, 2, "set TOPK_SECAGG_RECIPIENTS"),
        ({"TOPK_SECAGG_RECIPIENTS": None}, 2, "set TOPK_SECAGG_RECIPIENTS"),
        ({"TOPK_SECAGG_SESSION": ""}, 2, "TOPK_SECAGG_SESSION is set but empty"),
        ({"TOPK_SECAGG_SERIES": ""}, 2, "TOPK_SECAGG_SERIES is set but empty"),
        ({"STORE": None}, 2, "set STORE to the address of the store"),
        ({"STORE": "/nowhere/at/all"}, 66, "cannot be read: is that the address of the store?"),
    ],
)
def test_it_ends_with_the_code_and_the_reason_of_the_command(tmp_path, settings, code, said):
    four = Organisations(tmp_path)
    lines = four.round.recipients.read_text().splitlines()
    other = must("keygen", "--user", 2, "--secrets", tmp_path / "other").out
    (tmp_path / "mine").write_text("\n".join([lines[0], other.strip(), *lines[2:]]) + "\n")
    given = {key: str(tmp_path / v) if v == "mine" else v for key, v in settings.items()}
    process = four.start(1, **given)
    printed = process.communicate(timeout=1000)[1]
    assert (process.returncode, said in printed) == (code, True), printed
    if code != 75:  # it has drawn nothing
        assert not list(four.round.home(1).glob("*/*.h5"))


def test_a_lost_secret_is_an_error_and_not_the_end_of_its_work(tmp_path):
    four = Organisations(tmp_path)
    moved = four.base / "lost"
    for code, said in (
        (75, "gave up: mask still waits for"),
        (77, "user 3 has dealt in this round already, and its secret is not in"),
    ):
        process = four.start(3, LIMIT="6")
        printed = process.communicate(timeout=1000)[1]
        assert (process.returncode, said in printed) == (code, True), printed
        if not moved.exists():
            (four.round.home(3) / four.session).rename(moved)


@pytest.mark.parametrize("script", ["sync-rclone.sh", "sync-rsync.sh"])
def test_whatever_init_writes_is_fetched(script, tmp_path):
    """With low rank that is the basis too."""
    like = tmp_path / "like.npz"
    np.savez(like, matrix=np.zeros((8, 8)))
    numbers = ["--users", 2, "--survivors", 2, "--colluders", 1, "--rank", 2]
    must("init", tmp_path / "round", *numbers, "--like", like)
    written = {path.name for path in (tmp_path / "round").iterdir() if path.is_file()}
    assert {name for name in written if not name.startswith(".")} == {"session.json", "basis.h5"}
    pull = (WORKFLOWS / script).read_text().partition("\npull)")[2]
    assert all(f"/{name}" in pull for name in ("session.json", "basis.h5"))


def test_the_script_says_how_it_is_called():
    end = subprocess.run(
        [WORKFLOWS / "organisation.sh"], capture_output=True, text=True, check=False
    )
    assert end.returncode == 2
    assert "organisation.sh ROUND NUMBER SECRETS GRADIENT SYNC OUTPUT" in end.stderr


# --- the script alone, with a program in the place of topk-secagg that notes how it is called ---

PRETENDED = """#!/bin/sh
# status names one step after the other; a step is done once it was called
set -eu
echo "$* | ${TOPK_SECAGG_SESSION:-} | ${TOPK_SECAGG_RECIPIENTS:-}" >> "$NOTES/calls"
done=$(grep -vc '^status' "$NOTES/calls" || true)
if [ "$1" = decode ] && [ -e "$NOTES/no-sum" ]; then exit 69; fi
if [ "$1" = decode ]; then : > sum.pt; fi
if [ "$1" != status ]; then exit 0; fi
if [ -e "$NOTES/waits" ]; then
  sleep 0.5
  echo '{"next": {"step": "mask", "ready": false, "possible": false, "waits_for": "a share"},'
  echo '"send": []}'
  exit 75
fi
if [ -e "$NOTES/late" ] && [ ! -e "$NOTES/waited" ]; then
  while [ $# -gt 1 ] && [ "$1" != --wait ]; do shift; done
  echo "$2" >> "$NOTES/waits-for-late"
  if [ "$2" != 0 ]; then : > "$NOTES/waited"; fi
  echo '{"next": {"step": "offline", "ready": false, "possible": true, "waits_for": "late files"},'
  echo '"send": []}'
  exit 75
fi
step=$(echo offline mask freeze confirm eliminate decode forget | cut -d ' ' -f $((done + 1)))
if [ "$step" ]; then step='"'$step'"'; else step=null; fi
echo '{"next": {"step": '$step', "ready": true, "possible": true, "waits_for": null},'
echo '"send": [{"path": "'$ROUND'/masked/user-03.h5"}]}'
"""
FETCHES = """if [ "$1" = pull ]; then
  mkdir -p "$ROUND"
  echo '{}' > "$ROUND/new"
  mv "$ROUND/new" "$ROUND/session.json"
else
  cat >/dev/null
fi"""
HANGS = 'echo $$ >> "$NOTES/hanging"; sleep 1000'
TWICE = f'if [ "$1" = pull ] && [ -e "$ROUND/session.json" ]; then {HANGS}; else {FETCHES}; fi'


class Alone:
    """The script with a pretended program and a SYNC of one line of shell."""

    def __init__(self, folder: Path, sync: str, **settings: str | None) -> None:
        self.folder = folder
        self._program("topk-secagg", PRETENDED)
        self._program("sync", f"#!/bin/sh\n{sync}\n")
        environment = os.environ | {
            "PATH": f"{folder}:{os.environ['PATH']}", "NOTES": str(folder), "PAUSE": "0.5",
            "RECIPIENTS": "keys", "TOPK_SECAGG_SESSION": "0123456789abcdef", **settings,
        }  # fmt: skip
        environment = {name: value for name, value in environment.items() if value is not None}
        words = ["round", "3", "secrets", "gradient.pt", str(folder / "sync"), "sum.pt"]
        self.process = subprocess.Popen(
            [WORKFLOWS / "organisation.sh", *words],
            cwd=folder,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _program(self, name: str, content: str) -> None:
        (self.folder / name).write_text(content)
        (self.folder / name).chmod(0o755)

    def ends(self) -> tuple[int, list[str]]:
        """Its exit code, and what it said after the time; but not that the first fetch took
        long."""
        lines = self.process.communicate(timeout=1000)[1].splitlines()
        assert all(re.match(STAMP, line) for line in lines), lines
        self.said = [re.sub(STAMP + "organisation 3: ", "", line) for line in lines]
        return self.process.returncode, [line for line in self.said if line != FIRST_FETCH]

    def calls(self) -> dict[str, list[str]]:
        """How each command was called: its words, the session and the recipients."""
        lines = (self.folder / "calls").read_text().splitlines()
        return {line.split()[0]: line.split(" | ") for line in lines}

    def hanging(self) -> list[int]:
        """The processes of SYNC that hang."""
        noted = self.folder / "hanging"
        pids = map(int, noted.read_text().split()) if noted.exists() else ()
        return [pid for pid in pids if is_running(pid)]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(holds) -> None:
    for _ in range(600):
        if holds():
            return
        time.sleep(0.1)
    raise AssertionError("it never happens")


def test_weight_feedback_mean_strict_and_pins_reach_the_commands(tmp_path):
    settings = {"WEIGHT": "2.5", "FEEDBACK": "yes", "MEAN": "yes", "STRICT": "yes"}
    alone = Alone(tmp_path, FETCHES, **settings)
    steps = ["offline", "mask", "freeze", "confirm", "eliminate", "decode", "forget"]
    assert alone.ends() == (0, [*steps, "nothing is left to do"])
    calls = alone.calls()
    assert set(calls) == {"status", *steps}
    for name, (_, session, recipients) in calls.items():
        assert (name, session, recipients) == (name, "0123456789abcdef", "keys")
        assert " --secrets secrets" in calls[name][0]
    assert "--gradient gradient.pt --weight 2.5 --feedback" in calls["mask"][0]
    assert "--output sum.pt --mean --strict" in calls["decode"][0]


def test_a_sum_that_was_decoded_and_not_written_is_written(tmp_path):
    (tmp_path / "calls").write_text("offline\nmask\nfreeze\nconfirm\neliminate\ndecode\nforget\n")
    alone = Alone(tmp_path, FETCHES)
    assert alone.ends() == (0, ["decode", "nothing is left to do"])


@pytest.mark.parametrize(("patience", "limit", "waits"), [("7", "60", "7"), ("60", "9", "9")])
def test_late_files_are_waited_for_as_long_as_patience_says(tmp_path, patience, limit, waits):
    """And then the step is run without them; LIMIT holds too."""
    (tmp_path / "late").touch()
    alone = Alone(tmp_path, FETCHES, PATIENCE=patience, LIMIT=limit)
    code, said = alone.ends()
    assert (code, said[:2]) == (0, ["offline waits for late files", "offline"])
    now, then = (tmp_path / "waits-for-late").read_text().split()
    assert now == "0"
    assert int(waits) - 3 <= int(then) <= int(waits)  # LIMIT counts from the start


def test_no_sum_is_no_success(tmp_path):
    (tmp_path / "no-sum").touch()
    code, said = Alone(tmp_path, FETCHES).ends()
    assert (code, said[-1]) == (69, "decode")


@pytest.mark.parametrize("code", [2, 66, 126, 127])
def test_a_first_fetch_that_can_never_work_ends_it_at_once(tmp_path, code):
    alone = Alone(tmp_path, f"exit {code}")
    ended, said = alone.ends()
    assert (ended, said[-1]) == (
        code,
        f"nothing can be fetched: {tmp_path}/sync pull ends with {code}",
    )


def test_a_command_that_is_not_found_ends_it_at_once(tmp_path):
    alone = Alone(tmp_path, FETCHES, PATH="/usr/bin:/bin")
    assert alone.ends() == (127, ["topk-secagg: command not found"])


def test_without_a_session_it_says_so_and_the_weight_is_1(tmp_path):
    alone = Alone(tmp_path, FETCHES, TOPK_SECAGG_SESSION=None)
    code, said = alone.ends()
    assert (code, "TOPK_SECAGG_SESSION is not set" in said[0]) == (0, True)
    calls = alone.calls()
    assert "--weight 1" in calls["mask"][0]
    assert "--feedback" not in calls["mask"][0]
    assert "--mean" not in calls["decode"][0]


def test_limit_holds_for_session_json_with_one_line_for_the_wait(tmp_path):
    alone = Alone(tmp_path, "exit 0", LIMIT="6")
    said = ["waits for session.json", "gave up: session.json is still missing"]
    assert alone.ends() == (75, said)


def test_a_pull_that_fails_again_and_again_is_one_line(tmp_path):
    alone = Alone(tmp_path, "exit 1", LIMIT="6")
    failing = ["nothing could be fetched; trying again", "gave up: nothing could be fetched"]
    assert alone.ends() == (75, failing)
    assert alone.said.count(FIRST_FETCH) == 1


def test_limit_holds_for_a_first_pull_that_hangs(tmp_path):
    alone = Alone(tmp_path, HANGS, LIMIT="6")
    code, said = alone.ends()
    assert (code, said[-1]) == (75, "gave up: nothing could be fetched")
    wait_until(lambda: not alone.hanging())


def test_limit_holds_while_a_later_pull_hangs(tmp_path):
    (tmp_path / "waits").touch()
    alone = Alone(tmp_path, TWICE, LIMIT="8", PATIENCE="600")
    code, said = alone.ends()
    assert (code, said[0]) == (75, "mask waits for a share")
    assert said[-1] == "gave up: mask still waits for a share"
    wait_until(lambda: not alone.hanging())


def test_limit_holds_for_a_push_that_hangs(tmp_path):
    alone = Alone(tmp_path, f'if [ "$1" = push ]; then {HANGS}; else {FETCHES}; fi', LIMIT="6")
    assert alone.ends() == (75, ["gave up: nothing could be sent"])
    wait_until(lambda: not alone.hanging())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["KILL", "TERM"])
def test_fetching_ends_with_the_script_even_if_it_is_killed(tmp_path, number):
    (tmp_path / "waits").touch()
    alone = Alone(tmp_path, TWICE)
    wait_until(alone.hanging)
    alone.process.send_signal(number)
    wait_until(lambda: not alone.hanging())
    alone.process.communicate(timeout=1000)
    pulls = len((tmp_path / "hanging").read_text().split())
    time.sleep(2)  # several pauses: nothing is fetched any more
    assert len((tmp_path / "hanging").read_text().split()) == pulls
