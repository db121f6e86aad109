"""`--json`: one object on standard output and nothing else there. `-q`: silence."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .cli_helpers import EXAMPLE, EXAMPLE_OPTIONS, SCRIPT, RunCli, gradient, shell, words
from .conftest import RoundAt

# For each command: the stage that it needs, and how it is called there
CALLS: dict[str, tuple[str, Callable[[Path], list[object]]]] = {
    "init": ("init", lambda folder: [folder.with_name("new"), *EXAMPLE_OPTIONS]),
    "offline": ("init", lambda folder: [folder, "--user", 1]),
    "mask": ("offline", lambda folder: [folder, "--user", 1, "--gradient", gradient(1)]),
    "freeze": ("masked", lambda folder: [folder]),
    "eliminate": ("frozen", lambda folder: [folder, "--user", 1]),
    "decode": ("answered", lambda folder: [folder, "--output", folder.with_name("sum.npy")]),
    "run": (
        "init",
        lambda folder: [
            folder.with_name("new"),
            "--gradients",
            EXAMPLE,
            *words("--survivors 3 --colluders 1 --top-k 2"),
        ],
    ),
    "inspect": ("decoded", lambda folder: sorted(folder.rglob("*.json")) + sorted(folder.rglob("*.h5"))),
    "audit": ("decoded", lambda folder: [folder]),
    "plan": ("init", lambda _: list(EXAMPLE_OPTIONS)),
    "keygen": ("init", lambda folder: ["--user", 1, "--output", folder.with_name("user-01.identity")]),
}
STEPS = [name for name in CALLS if name not in ("inspect", "audit", "plan", "keygen")]


def call(name: str, round_at: RoundAt) -> list[object]:
    stage, arguments = CALLS[name]
    return [name, *arguments(round_at(stage))]


def test_no_command_is_forgotten_here() -> None:
    from topk_secagg_cli.main import cli

    assert set(cli.commands) == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_json_is_exactly_one_object_with_a_schema(run_cli: RunCli, round_at: RoundAt, name: str) -> None:
    result = run_cli(*call(name, round_at), "--json")
    assert result.code == 0
    assert result.err == "" or name == "keygen"  # which says where the secret keys are
    assert result.out.endswith("}\n")
    assert result.out.count("\n") == 1
    assert "\x1b" not in result.out

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        assert len(dict(pairs)) == len(pairs)
        return dict(pairs)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    found = json.loads(result.out, object_pairs_hook=unique, parse_constant=refuse)
    assert found["schema"] == f"topk-secagg/{name}/1"


@pytest.mark.parametrize("name", STEPS)
def test_json_names_the_session_and_says_whether_it_is_insecure(run_cli: RunCli, round_at: RoundAt, name: str) -> None:
    found = run_cli(*call(name, round_at), "--json").json
    assert len(bytes.fromhex(found["session"])) == 32
    assert found["insecure"] is False


@pytest.mark.parametrize("name", CALLS)
def test_json_and_quiet_together_still_print_the_object(run_cli: RunCli, round_at: RoundAt, name: str) -> None:
    result = run_cli(*call(name, round_at), "--json", "-q")
    assert result.json["schema"] == f"topk-secagg/{name}/1"


@pytest.mark.parametrize("name", CALLS)
def test_verbose_adds_nothing_to_the_json(run_cli: RunCli, round_at: RoundAt, name: str) -> None:
    result = run_cli(*call(name, round_at), "--json", "-v")
    assert result.json["schema"] == f"topk-secagg/{name}/1"
    assert result.out.count("\n") == 1


@pytest.mark.parametrize("name", [*STEPS, "inspect"])
def test_quiet_prints_nothing_on_success(run_cli: RunCli, round_at: RoundAt, name: str) -> None:
    result = run_cli(*call(name, round_at), "-q")
    assert (result.code, result.out, result.err) == (0, "", "")


@pytest.mark.parametrize("name", STEPS)
def test_quiet_still_says_what_went_wrong(run_cli: RunCli, tmp_path: Path, name: str) -> None:
    arguments = CALLS[name][1](tmp_path / "nowhere")
    if name in ("init", "run"):
        arguments = [*arguments, "--top-k", 99]
    for flags in ("-q",), ("--json",), ("-q", "--json"):
        result = run_cli(name, *arguments, *flags)
        assert result.code != 0
        assert result.out == ""
        assert result.err.startswith("topk-secagg: ")


@pytest.mark.parametrize("name", CALLS)
def test_without_json_people_get_lines_without_colours(run_cli: RunCli, round_at: RoundAt, name: str) -> None:
    result = run_cli(*call(name, round_at))
    assert result.code == 0
    assert result.out
    assert "\x1b" not in result.out + result.err
    assert "topk-secagg: " not in result.err


def on_a_terminal(*args: object) -> tuple[int, str]:
    """Both outputs on a pseudo-terminal: the exit code, and all that appears there."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "FORCE_COLOR": "1"}
    process = subprocess.Popen([SCRIPT, *map(str, args)], stdout=theirs, stderr=theirs, stdin=theirs, env=environment)
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
    return process.wait(timeout=60), seen.decode()


def test_on_a_terminal_json_is_still_one_plain_object(round_at: RoundAt) -> None:
    folder = round_at("decoded")
    for args in (("inspect", folder / "aggregate.h5"), ("eliminate", folder, "--user", 1)):
        code, seen = on_a_terminal(*args, "--json")
        assert code == 0
        assert "\x1b" not in seen
        assert json.loads(seen)["schema"] == f"topk-secagg/{args[0]}/1"


def test_on_a_terminal_an_error_is_still_plain(tmp_path: Path) -> None:
    code, seen = on_a_terminal("freeze", tmp_path / "nowhere")
    assert code == 66
    assert "\x1b" not in seen
    assert seen.startswith("topk-secagg: ")


def test_progress_goes_to_standard_error_and_only_to_a_terminal(round_at: RoundAt) -> None:
    end = shell("eliminate", round_at("frozen"), "--user", 1)
    assert end.returncode == 0
    assert end.stderr == ""
    assert "%" not in end.stdout


def test_a_folder_whose_name_is_no_text_can_be_used(round_at: RoundAt) -> None:
    folder = round_at("masked")
    target = Path(os.fsdecode(os.fsencode(folder.parent) + b"/r\xff\xfe"))
    folder.rename(target)
    for args in (["freeze", target], ["inspect", target / "session.json"]):
        end = subprocess.run([SCRIPT, *args], capture_output=True, check=False)
        assert (end.returncode, end.stderr) == (0, b""), end


@pytest.mark.parametrize("name", ["[red] [b", "x[", "two  words", "per%cent", "-", "*", "user-01.h5"])
def test_a_folder_whose_name_means_something_elsewhere_is_just_a_folder(
    round_at: RoundAt, run_cli: RunCli, name: str
) -> None:
    folder = round_at("masked", name)
    assert run_cli("freeze", folder).code == 0
    assert run_cli("inspect", folder / "session.json").out.startswith(f"{folder}/session.json: session, intact")
    assert run_cli("eliminate", folder, "--user", 1).code == 0


def test_the_environment_can_stand_for_options(
    run_cli: RunCli, round_at: RoundAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = round_at("init")
    monkeypatch.setenv("TOPK_SECAGG_OFFLINE_USER", "2")
    monkeypatch.setenv("TOPK_SECAGG_OFFLINE_JSON", "1")
    assert run_cli("offline", folder).json["user"] == 2


def test_every_option_has_the_variable_that_its_name_promises() -> None:
    """click makes the variable from the name of the parameter, which is not always that of the option."""
    from topk_secagg_cli.main import cli

    for name, command in cli.commands.items():
        for option in command.params:
            if option.param_type_name == "option":
                longest = max(option.opts, key=len)
                assert longest == "--" + str(option.name).replace("_", "-"), (name, option.opts)


def test_everybody_in_a_round_of_a_public_seed_is_told(run_cli: RunCli, tmp_path: Path) -> None:
    folder = tmp_path / "round"
    options = words("--users 3 --survivors 2 --colluders 1 --top-k 2 --length 4 --insecure-seed 7 --clip 2")
    calls = [("init", folder, *options)]
    calls += [("offline", folder, "--user", n) for n in (1, 2, 3)]
    calls += [("mask", folder, "--user", n, "--gradient", gradient(n)) for n in (1, 2, 3)]
    calls += [("freeze", folder), *(("eliminate", folder, "--user", n) for n in (1, 2)), ("decode", folder)]
    for call in (*calls, ("audit", folder), ("audit", folder, "--json")):
        result = run_cli(*call)
        assert result.code == 0, result
        assert result.err.count("drawn from a public seed: anyone can unmask it") == 1, call
