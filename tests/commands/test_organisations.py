"""Four organisations in four folders, each with its own keys and with the script that the documents recommend, and a
store in the middle that has public files and sealed shares only."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from rounds import ROOT, SCRIPT, Recipe, Round, call, contents, must

WORKFLOWS = ROOT / "workflows"
FOUR = Recipe(
    "organisations",
    users=4,
    survivors=3,
    sealed=True,
    confirm=True,
    masking=(1, 2, 3),
    answering=(1, 2, 3),
)
COPY = """#!/bin/sh
# push and pull with nothing but cp: for machines without rsync
set -eu
cd "$ROUND"
if [ "$1" = push ]; then
  while read -r name; do mkdir -p "$STORE/$(dirname "$name")"; cp "$name" "$STORE/$name.part"; mv "$STORE/$name.part" "$STORE/$name"; done
else
  cd "$STORE"; own=$(printf 'user-%02d' "$NUMBER")
  for name in session.json survivors.json masked/*.h5 confirmed/*.json elimination/*.h5 "shares/$own"/*.age; do
    case $name in */$own.*) continue ;; esac
    if [ -e "$name" ]; then mkdir -p "$ROUND/$(dirname "$name")"; cp "$name" "$ROUND/$name.part"; mv "$ROUND/$name.part" "$ROUND/$name"; fi
  done
fi
"""  # noqa: E501


class Organisations:
    """The machines of the organisations, and the store."""

    def __init__(self, base: Path) -> None:
        self.base, self.store = base, base / "store"
        self.round = Round(FOUR, self.store, base / "inputs").prepare()
        self.session = must(*self.round.init("--json")).json["session"]
        self.sync = WORKFLOWS / "sync-rsync.sh"
        if shutil.which("rsync") is None:
            self.sync = base / "sync.sh"
            self.sync.write_text(COPY)
            self.sync.chmod(0o755)

    def machine(self, user: int) -> Round:
        return self.round.elsewhere(self.base / f"machine-{user}" / "round")

    def start(self, user: int, **settings: str) -> subprocess.Popen[str]:
        """The script of an organisation, as a new process."""
        here, r = self.machine(user), self.round
        here.folder.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {
            "PATH": f"{SCRIPT.parent}:{os.environ['PATH']}", "STORE": str(self.store), "PAUSE": "0.5",
            "PATIENCE": "2", "LIMIT": "90", "TOPK_SECAGG_RECIPIENTS": str(r.recipients),
            "TOPK_SECAGG_SESSION": self.session, **settings,
        }  # fmt: skip
        sums = here.folder.with_name("sum.npy")
        words = [here.folder, user, r.identity(user), r.gradient(user), self.sync, sums]
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
    said = {user: process.communicate(timeout=100)[1] for user, process in running.items()}
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
        names = set(contents(four.machine(user).folder))
        own = f"user-{user:02}"
        assert {name for name in names if name.startswith("secrets/")} == {
            f"secrets/{own}.ledger.json",
            "secrets/input.key",
        }  # forgotten
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
        *(f"confirmed/user-{n:02}.json" for n in users),
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


def test_an_organisation_after_the_freeze_has_nothing_to_do(finished):
    process = finished[0].start(4)
    assert process.communicate(timeout=100)[1] == "organisation 4: nothing is left to do\n"
    assert process.returncode == 0
    assert not list(finished[0].machine(4).folder.glob("secrets/*"))


@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        ({"LIMIT": "0"}, 75, "gave up: mask still waits for shares of user 2, 3, 4 for user 1"),
        ({"TOPK_SECAGG_RECIPIENTS": "mine"}, 77, "other keys for user 2"),
        ({"TOPK_SECAGG_RECIPIENTS": "", "RECIPIENTS": "mine"}, 77, "other keys for user 2"),
        ({"TOPK_SECAGG_SESSION": "0" * 16}, 77, "not 0000000000000000"),
        ({"TOPK_SECAGG_RECIPIENTS": ""}, 2, "set TOPK_SECAGG_RECIPIENTS"),
    ],
)
def test_it_ends_with_the_code_and_the_reason_of_the_command(tmp_path, settings, code, said):
    four = Organisations(tmp_path)
    lines = four.round.recipients.read_text().splitlines()
    other = must("keygen", "--user", 2, "--output", tmp_path / "other.identity").out
    (tmp_path / "mine").write_text("\n".join([lines[0], other.strip(), *lines[2:]]) + "\n")
    given = {key: str(tmp_path / v) if v == "mine" else v for key, v in settings.items()}
    process = four.start(1, **given)
    printed = process.communicate(timeout=100)[1]
    assert (process.returncode, said in printed) == (code, True), printed
    if code != 75:  # it has drawn nothing
        assert not (four.machine(1).folder / "secrets").exists()


def test_the_script_says_how_it_is_called():
    end = subprocess.run(
        [WORKFLOWS / "organisation.sh"], capture_output=True, text=True, check=False
    )
    assert end.returncode == 2
    assert "organisation.sh ROUND NUMBER IDENTITY GRADIENT SYNC OUTPUT" in end.stderr
