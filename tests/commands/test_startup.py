"""What a command loads: `--help` must be instant, and `mask` must not wait for a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .cli_helpers import attributes, gradient
from .conftest import RoundAt

HEAVY = {"numpy", "galois", "h5py", "rich", "numba", "cryptography", "safetensors"}
COMMANDS = ("init", "offline", "mask", "freeze", "eliminate", "decode", "run", "inspect")


def loaded(*args: object) -> tuple[int, str, set[str]]:
    """The exit code, the output, and the top-level packages that a command loaded."""
    end = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "topk_secagg_cli", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    names = {
        line.rsplit("|", 1)[1].strip().split(".")[0]
        for line in end.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert "click" in names
    return end.returncode, end.stdout, names


@pytest.mark.parametrize(
    "args", [["--help"], ["--version"], ["mask", "--help"], ["run", "--help"]], ids=" ".join
)
def test_help_loads_no_numeric_library(args: list[str]) -> None:
    code, out, names = loaded(*args)
    assert code == 0
    assert "topk-secagg" in out
    assert names & HEAVY == set()


def test_help_of_every_command_shows_an_example() -> None:
    """In one process: what they load is checked above."""
    from topk_secagg_cli.main import cli

    assert set(COMMANDS) <= set(cli.commands)
    for name, command in cli.commands.items():
        context = command.make_context(name, [], resilient_parsing=True)
        text = command.get_help(context)
        assert f"topk-secagg {name} " in text.split("Example")[1], name


def test_a_usage_error_loads_no_numeric_library() -> None:
    code, _, names = loaded("mask", "round")
    assert code == 2
    assert names & HEAVY == set()


def test_mask_loads_neither_numba_nor_galois(round_at: RoundAt) -> None:
    folder = round_at("offline")
    code, _, names = loaded("mask", folder, "--user", 1, "--gradient", gradient(1))
    assert code == 0
    assert attributes(folder / "masked/user-01.h5")["user"] == 1
    assert {"numpy", "h5py"} <= names
    assert names & {"numba", "galois", "rich"} == set()


def test_freeze_loads_neither_numba_nor_galois(round_at: RoundAt) -> None:
    code, _, names = loaded("freeze", round_at("masked"))
    assert code == 0
    assert names & {"numba", "galois", "rich"} == set()


def test_importing_the_library_loads_nothing_heavy() -> None:
    code = "import sys, topk_secagg; print(sorted({name.split('.')[0] for name in sys.modules}))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not any(repr(name) in out for name in HEAVY)


def test_the_library_offers_its_public_names() -> None:
    import topk_secagg

    for name in topk_secagg.__all__:
        assert getattr(topk_secagg, name).__module__.startswith("topk_secagg.")
    with pytest.raises(AttributeError):
        topk_secagg.nonsense  # noqa: B018


def test_a_machine_where_numba_cannot_store_its_cache_can_still_run_a_round(
    round_at: RoundAt, tmp_path: Path
) -> None:
    """An installation that the user may not write to, and no home: a container, a system package."""
    code = """
import atexit, os, pathlib
real, os.access = os.access, lambda *args, **kwargs: False
import topk_secagg.algebra.compiled
os.access = real
cache = pathlib.Path(os.environ["NUMBA_CACHE_DIR"])
atexit.register(lambda: print(len(list(cache.rglob("*.nbc"))), "kernels in", cache))
from topk_secagg_cli.main import main
main()
"""
    folder = round_at("init")
    end = subprocess.run(
        [sys.executable, "-c", code, "offline", folder, "--user", "1"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert end.returncode == 0, end.stderr
    count, _, _, cache = end.stdout.splitlines()[-1].split()
    assert int(count) > 0
    assert not Path(cache).exists(), "the temporary cache is gone"
