"""What a command loads: `--help` must be instant, `mask` must not wait for a compiler, and galois
is for rare cases."""

import sys

import pytest
from played import Result, attributes, every, must, process, python, rewrite

HEAVY = {
    "numpy",
    "galois",
    "h5py",
    "rich",
    "numba",
    "cryptography",
    "pyrage",
    "safetensors",
    "matplotlib",
}
COMPILED = {"numba", "galois", "rich"}


def loaded(*args: object) -> tuple[Result, set[str]]:
    """How a command ended, and the top-level packages that it loaded."""
    end = process([sys.executable, "-X", "importtime", "-m", "topk_secagg_cli", *map(str, args)])
    times = [line for line in end.stderr.splitlines() if line.startswith("import time:")]
    names = {line.rsplit("|", 1)[1].strip().split(".")[0] for line in times}
    assert "click" in names
    return Result(end.returncode, end.stdout, end.stderr), names


@pytest.mark.parametrize(
    ("code", "args"), [(0, "--help"), (0, "--version"), (0, "mask --help"), (2, "mask round")]
)
def test_help_and_usage_errors_load_no_numeric_library(code, args):
    result, names = loaded(*args.split())
    assert result.code == code
    assert names & HEAVY == set()


SAYS_MODULES = """
import atexit, sys
atexit.register(lambda: print("modules:", *sys.modules, file=sys.stderr))
from topk_secagg_cli.__main__ import main
main()
"""


def modules(*args: object) -> set[str]:
    """What a command has loaded when it ends; -X importtime does not list what import_module
    loads."""
    end = python(SAYS_MODULES, *args)
    assert end.returncode == 0, end.stderr
    return set(end.stderr.rsplit("modules:", 1)[1].split())


def test_a_command_loads_no_other_commands_and_nothing_that_it_does_not_use(new_round):
    r = new_round()
    names = modules(*r.init())
    assert {"topk_secagg_cli.rounds", "topk_secagg.gradients.files"} <= names
    unused = {
        "topk_secagg.gradients.formats.torch_file",
        "topk_secagg.storage.aggregate",
        "topk_secagg_cli.review",
        "subprocess",  # which compiles kernels
    }
    assert names & unused == set()
    names = modules("inspect", r.folder / "session.json")
    assert "topk_secagg_cli.review" in names
    assert "topk_secagg_cli.rounds" not in names


def test_help_of_every_command_shows_an_example():
    """In one process: what they load is checked above."""
    from topk_secagg_cli.main import cli

    for name in cli.list_commands():
        command = cli.get_command(None, name)
        context = command.make_context(name, [], resilient_parsing=True)
        text = command.get_help(context)
        assert f"topk-secagg {name} " in text.split("Example")[1], name


@every
def test_init_mask_freeze_status_and_inspect_load_neither_numba_nor_galois(round_at, new_round):
    r = round_at("offline", answering=(1, 2, 3, 4))
    for n in (2, 3):
        must(*r.mask(n))
    files = [
        r.folder / name
        for name in ("session.json", "masked/user-02.h5", "shares/user-01/from-02.h5")
    ]
    for command in (
        new_round("new").init(),
        r.mask(1),
        r.freeze(),
        ("status", r.folder, "--json"),
        ("inspect", *files, "--json"),
    ):
        result, names = loaded(*command)
        assert result.code == 0, result
        assert names & COMPILED == set(), command
    assert attributes(r.folder / "masked/user-01.h5")["user"] == 1


@every
def test_offline_eliminate_and_decode_load_neither_once_kernels_are_compiled(
    round_at, construction
):
    """galois is for wrong answers only."""
    everybody = (1, 2, 3, 4, 5)
    new, r = round_at("init", "new"), round_at("answered", masking=everybody, answering=everybody)
    for command in (new.offline(1), r.eliminate(1), r.decode()):
        must(*command)
        result, names = loaded(*command)
        assert result.code == 0, result
        assert names & {"numba", "galois"} == set(), command
    if construction == "moments":  # the same code in both
        return
    rewrite(r.folder / "elimination/user-02.h5", lambda _, found: found["y"].__setitem__((0, 0), 5))
    result, names = loaded(*r.decode())
    assert "WRONG ANSWERS from user 2" in result.out
    assert "galois" in names


def test_importing_the_library_loads_nothing_heavy():
    code = "import sys, topk_secagg; print(sorted({name.split('.')[0] for name in sys.modules}))"
    out = process([sys.executable, "-c", code]).stdout
    assert not any(repr(name) in out for name in HEAVY)


def test_a_machine_that_cannot_store_compiled_kernels_can_still_run_a_round(round_at):
    """An installation that the user may not write to, and no home: a container, a system
    package."""
    code = """
import pathlib, sys
from topk_secagg.algebra import library
found = library.find()
if found is not None:  # the result of compiling; test_terminal compiles really
    library.compile_kernels = lambda: print("compiled", file=sys.stderr) or found[1]
library.folders = lambda: iter([library.Folder(pathlib.Path("/proc/nowhere"), ())])
from topk_secagg_cli.main import main
main()
"""
    r = round_at("init")
    must(*r.offline(2))  # so that this machine has kernels
    end = python(code, *r.offline(1))
    assert end.returncode == 0, end.stderr
    assert end.stderr.count("compiled") == 1  # nothing was kept that it could have found


WRONG = """
from topk_secagg.algebra import library
library.function = lambda name, count: lambda *arguments: None
from topk_secagg_cli.main import main
main()
"""
UNASKED = "from topk_secagg.algebra import calls; calls._ask = lambda name: None" + WRONG


def test_a_kernel_that_computes_wrongly_stops_the_command_before_it_writes_a_share(round_at):
    """A compiler that goes wrong, or versions that do not fit, must not spoil a round silently."""
    r = round_at("init")
    end = python(WRONG, *r.offline(1))
    assert end.returncode == 1
    assert "a bug: RuntimeError: the kernel encode computes wrongly" in end.stderr
    assert "compiled with numba 0." in end.stderr
    assert "and llvmlite 0." in end.stderr
    assert "on the processor" in end.stderr
    assert "hint:" in end.stderr
    assert list(r.folder.rglob("from-*.h5")) == []


def test_twin_without_the_question_the_command_writes_wrong_shares(round_at):
    r = round_at("init")
    end = python(UNASKED, *r.offline(1))
    assert end.returncode == 0, end.stderr
    assert list(r.folder.rglob("from-*.h5"))
