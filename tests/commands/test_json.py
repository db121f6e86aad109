"""`--json`: one object on standard output and nothing else there. `-q`: silence. `-v` and
terminals."""

import json
import os
import pty
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from played import (
    CONFIRMING,
    SCRIPT,
    Result,
    Round,
    call,
    datasets,
    document,
    every,
    must,
    process,
    shell,
)

import topk_secagg as ts

# For each command: the stage that it needs, and how it is called there
CALLS: dict[str, tuple[str, Callable[[Round], tuple[object, ...]]]] = {
    "init": ("init", lambda r: r.elsewhere(r.folder.with_name("new")).init()),
    "offline": ("init", lambda r: r.offline(1)),
    "mask": ("offline", lambda r: r.mask(1)),
    "freeze": ("masked", lambda r: r.freeze()),
    "confirm": ("frozen", lambda r: r.confirm(1)),
    "eliminate": ("frozen", lambda r: r.eliminate(1)),
    "decode": ("answered", lambda r: r.decode("--output", r.folder.with_name("sum.npy"))),
    "run": ("init", lambda r: r.elsewhere(r.folder.with_name("new")).run()),
    "forget": ("answered", lambda r: r.forget(1)),
    "status": ("answered", lambda r: ("status", r.folder, "--user", 1)),
    "inspect": (
        "decoded",
        lambda r: ("inspect", *r.folder.rglob("*.json"), *r.folder.rglob("*.h5")),
    ),
    "log": ("decoded", lambda r: ("log", r.folder)),
    "audit": ("decoded", lambda r: ("audit", r.folder)),
    "plan": ("init", lambda r: ("plan", *r.recipe.options())),
    "keygen": (
        "init",
        lambda r: ("keygen", "--user", 1, "--secrets", r.folder.with_name("keys")),
    ),
}
STEPS = [
    name
    for name in CALLS
    if name not in ("inspect", "audit", "plan", "keygen", "status", "log", "forget")
]


@pytest.fixture
def command(name, round_at):
    """A call of the command that succeeds."""
    stage, arguments = CALLS[name]
    return arguments(round_at(stage, **CONFIRMING if name == "confirm" else {}))


def keys_of(value: object) -> Iterator[str]:
    """All keys of objects in a JSON value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner)


@pytest.mark.parametrize("name", ["status", "audit"])
def test_keys_are_words_joined_by_underscores(command):
    said = must(*command, "--json").json
    assert [key for key in keys_of(said) if not re.fullmatch("[a-z0-9]+(_[a-z0-9]+)*", key)] == []


def test_an_audit_counts_what_was_not_checkable_under_such_a_key(round_at):
    r = round_at("decoded")
    shutil.rmtree(r.folder / "secrets")
    said = must("audit", r.folder, "--json").json
    verdicts = [finding["verdict"] for finding in said["findings"]]
    assert verdicts.count("not checkable") > 0
    assert said["counts"] == {
        "pass": verdicts.count("pass"),
        "fail": 0,
        "not_checkable": verdicts.count("not checkable"),
    }


def test_every_command_is_tested_here():
    from topk_secagg_cli.main import cli

    assert set(cli.list_commands()) == set(CALLS)


def strictly(text: str) -> dict[str, object]:
    """JSON without repeated keys, and without the numbers that only Python knows."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        assert len(dict(pairs)) == len(pairs)
        return dict(pairs)

    return json.loads(text, object_pairs_hook=unique, parse_constant=pytest.fail)


@every
@pytest.mark.parametrize("name", CALLS)
def test_json_is_one_object_quiet_prints_nothing_and_lines_have_no_colours(command, name):
    for flags in (("--json",), ("--json", "-q"), ("--json", "-v"), (), ("-q",)):
        result = must(*command, *flags)
        assert "\x1b" not in result.out + result.err
        if "--json" in flags:
            assert (
                result.err == "" or name in ("keygen", "run") or "-v" in flags
            )  # where keys are; progress
            assert result.out.endswith("}\n")
            assert result.out.count("\n") == 1
            found = strictly(result.out)
            assert found["schema"] == f"topk-secagg/{name}/1"
            if name in STEPS:
                assert len(bytes.fromhex(str(found["session"]))) == 32
        elif flags == ("-q",) and name != "keygen":
            assert (result.out, result.err) == ("", "")
        else:
            assert result.out
            assert "topk-secagg: " not in result.err


@pytest.mark.parametrize("name", STEPS)
def test_quiet_still_says_what_went_wrong(round_at, tmp_path, name):
    r = round_at("init").elsewhere(tmp_path / "nowhere")
    more = ("--top-k", 99) if name in ("init", "run") else ()
    for flags in ("-q",), ("--json",), ("-q", "--json"):
        result = call(*CALLS[name][1](r), *more, *flags)
        assert result.code in (2, 66)
        assert result.err.startswith("topk-secagg: ")
        if "--json" in flags:
            assert_failure(result, name)
        else:
            assert result.out == ""


def assert_failure(result: Result, name: str) -> dict[str, object]:
    """One object on standard output that says what the lines on standard error say."""
    assert result.out.count("\n") == 1
    found = strictly(result.out)
    assert found["schema"] == f"topk-secagg/{name}/1"
    assert found["exit_code"] == result.code
    lines = [line for line in result.err.splitlines() if "warning:" not in line]
    assert lines[0].startswith(f"topk-secagg: {found['error']}") or found["error"] in lines[0]
    assert (f"hint: {found['hint']}" in lines) == (found["hint"] is not None)
    return found


@pytest.mark.parametrize(
    ("arguments", "name", "words"),
    [
        (("plan",), "plan", "missing option '--users'"),
        (("mask", "round", "--nonsense"), "mask", "no such option"),
        (("offline", "round"), "offline", "missing option '--user'"),
        (("init", "round", "--users", "many"), "init", "not a valid integer"),
        (("nosuch",), "error", "no such command"),
    ],
)
def test_a_call_that_makes_no_sense_is_answered_in_json_too(arguments, name, words):
    result = call(*arguments, "--json")
    assert result.code == 2
    assert words in str(assert_failure(result, name)["error"])
    assert call(*arguments).out == ""


def test_the_variable_for_json_counts_when_a_call_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("TOPK_SECAGG_FREEZE_JSON", "1")
    assert_failure(call("freeze", tmp_path / "nowhere"), "freeze")
    assert_failure(call("freeze", tmp_path / "nowhere", "--nonsense"), "freeze")


def test_a_command_that_finds_something_wrong_prints_one_object_with_both(round_at):
    """The findings of an audit, the files that can be shown, the users that succeeded; and the
    error."""
    r = round_at("decoded")
    x = r.folder / "masked" / "user-01.h5"
    content = bytearray(x.read_bytes())
    content[-1] ^= 1
    x.write_bytes(content)
    audit = assert_failure(call("audit", r.folder, "--json"), "audit")
    assert audit["verdict"] == "fail"
    shown = assert_failure(call("inspect", r.folder / "session.json", x, "--json"), "inspect")
    assert shown["exit_code"] == 65
    assert len(shown["files"]) >= 1
    several = round_at("init", "several")
    must(*several.offline(1))
    users = call(
        "mask",
        several.folder,
        "--user",
        "1-2",
        "--gradients",
        several.inputs / "gradients",
        "--json",
    )
    found = assert_failure(users, "mask")
    assert {one["exit_code"] for one in found["failed"]} == {found["exit_code"]}


def test_a_bug_and_an_interruption_are_answered_in_json_too(round_at, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by zero")

    r = round_at("init")
    monkeypatch.setattr("topk_secagg.status", broken, raising=False)
    result = call("status", r.folder, "--json")
    assert result.code == 1
    assert "a bug: ZeroDivisionError" in str(assert_failure(result, "status")["error"])


@pytest.mark.parametrize("name", CALLS)
def test_a_command_calls_the_function_of_its_name(command, name, monkeypatch):
    """And fails as that does."""

    def busy(*_: object, **__: object) -> None:
        raise ts.Busy("the function was called", "as it should be")

    monkeypatch.setattr(f"topk_secagg.{name}", busy, raising=False)
    result = call(*command)
    assert result.code == 75
    assert "the function was called" in result.err


def on_a_terminal(*args: object) -> tuple[int, str]:
    """Both outputs on a pseudo-terminal: the exit code, and all that appears there."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "FORCE_COLOR": "1"}
    process = subprocess.Popen(
        [SCRIPT, *map(str, args)], stdout=theirs, stderr=theirs, stdin=theirs, env=environment
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
    return process.wait(timeout=60), seen.decode()


def test_on_a_terminal_json_and_errors_are_still_plain(round_at, tmp_path):
    r = round_at("decoded")
    for args in (("inspect", r.folder / "aggregate.h5"), r.eliminate(1)):
        code, seen = on_a_terminal(*args, "--json")
        assert code == 0
        assert "\x1b" not in seen
        assert json.loads(seen)["schema"] == f"topk-secagg/{args[0]}/1"
    code, seen = on_a_terminal("freeze", tmp_path / "nowhere")
    assert code == 66
    assert "\x1b" not in seen
    assert seen.startswith("topk-secagg: ")


def test_progress_goes_to_standard_error_and_only_to_a_terminal(round_at):
    end = shell(*round_at("frozen").eliminate(1))
    assert (end.returncode, end.stderr) == (0, "")
    assert "%" not in end.stdout


def test_a_folder_whose_name_is_not_utf8_can_be_used(round_at):
    r = round_at("masked")
    target = r.elsewhere(Path(os.fsdecode(os.fsencode(r.folder.parent) + b"/r\xff\xfe")))
    r.folder.rename(target.folder)
    for args in (target.freeze(), ("inspect", target.folder / "session.json")):
        end = process([SCRIPT, *args], errors="surrogateescape")
        assert (end.returncode, end.stderr) == (0, ""), end


@pytest.mark.parametrize(
    "name", ["[red] [b", "x[", "two  words", "per%cent", "-", "*", "user-01.h5"]
)
def test_a_folder_with_special_characters_in_its_name_is_used_as_it_is(round_at, name):
    r = round_at("masked", name)
    must(*r.freeze())
    shown = must("inspect", r.folder / "session.json").out
    assert shown.startswith(f"{r.folder}/session.json: session, intact")
    must(*r.eliminate(1))


def test_the_environment_can_stand_for_options(round_at, monkeypatch):
    monkeypatch.setenv("TOPK_SECAGG_OFFLINE_USER", "2")
    monkeypatch.setenv("TOPK_SECAGG_OFFLINE_JSON", "1")
    assert must("offline", round_at("init").folder).json["user"] == 2


def test_every_option_has_the_variable_that_its_name_promises():
    """click makes the variable from the name of the parameter, which is not always that of the
    option."""
    from topk_secagg_cli.main import cli

    for name in cli.list_commands():
        command = cli.get_command(None, name)
        for option in command.params:
            if option.param_type_name == "option":
                longest = max(option.opts, key=len)
                assert longest == "--" + str(option.name).replace("_", "-"), (name, option.opts)


@pytest.mark.parametrize("how", [("--json",), ()])
def test_a_command_whose_output_nobody_reads_ends_as_one_in_a_pipe_does(round_at, how):
    r = round_at("init")
    ours, theirs = os.pipe()
    os.close(ours)
    for args in (
        ("--help",),
        ("status", r.folder, *how),
        ("inspect", r.folder / "session.json", *how),
    ):
        end = subprocess.run(
            [SCRIPT, *map(str, args)], stdout=theirs, stderr=subprocess.PIPE, check=False
        )
        assert (end.returncode, end.stderr) == (141, b""), args
    os.close(theirs)


@every
@pytest.mark.parametrize("name", CALLS)
def test_json_keys_are_snake_case_and_one_quantity_has_one_name(command, name):
    """Users are keys too, by their numbers."""
    keys = set(keys_of(must(*command, "--json").json))
    assert [key for key in keys if not re.fullmatch(r"[a-z][a-z0-9_]*|\d+", key)] == []
    assert not keys & {"payload_bytes", "masked_payload_bytes", "answer_payload_bytes"}
    expected = {
        "mask": {"masked_bytes", "r1"},
        "eliminate": {"answer_bytes", "r2"},
        "decode": {"masked_bytes", "answer_bytes", "r1", "r2"},
        "run": {"offline_bytes", "masked_bytes", "answer_bytes", "r1", "r2"},
        "init": {"offline_bytes"},
        "plan": {"masked_bytes", "answer_bytes"},
        "inspect": {"offline_bytes", "masked_bytes", "answer_bytes", "holds"},
    }
    assert expected.get(name, set()) <= keys


@every
def test_the_bytes_of_a_phase_are_the_same_in_every_command(round_at):
    r = round_at("answered")
    decoded = must(*r.decode(), "--json").json
    masked = must(*r.mask(1), "--json").json
    answered = must(*r.eliminate(1), "--json").json
    shown = must("inspect", r.folder / "session.json", "--json").json["files"][0]
    assert decoded["masked_bytes"] == masked["masked_bytes"]
    assert decoded["answer_bytes"] == answered["answer_bytes"]
    users = r.recipe.everybody
    sent = {n: [bytes_for(r, m, n) for m in users if m != n] for n in users}
    assert must(*r.offline(1), "--json").json["share_bytes"] == max(sent[1])
    lists = len(document(r.folder / "session.json")["family"] or ()) * 64  # of commitments
    assert shown["offline_bytes"] == lists + max(sum(each) for each in sent.values())
    assert must(*r.init(), "--json").json["offline_bytes"] == shown["offline_bytes"]


def bytes_for(r: Round, user: int, sender: int) -> int:
    """The payload of a share as it is on disk: symbols, or keys."""
    share = datasets(r.folder / f"shares/user-{user:02}/from-{sender:02}.h5")
    return sum(array.nbytes for name, array in share.items() if name != "check")
