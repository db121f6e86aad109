"""Hostile pickles that nobody here wrote are refused at once, and nothing in them is run."""

import contextlib
import io
import json
import pickle
import subprocess
import sys
from pathlib import Path

import hostile_pickles
import pytest

PROMPT = 0.05  # seconds of a core


def read_all(folder: Path, cases: dict[str, tuple[str, bytes]], how: str = "ours") -> dict:
    """What came of reading each case, in a process that is watched."""
    names = {}
    for number, (case, (suffix, content)) in enumerate(cases.items()):
        names[case] = f"{number}{suffix}"
        (folder / names[case]).write_bytes(content)
        (folder / f"first{suffix}").write_bytes(content)
    (folder / "cases.json").write_text(json.dumps(names))
    command = [sys.executable, hostile_pickles.__file__, str(folder), how]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    cases = {case: (suffix, content) for case, suffix, content in hostile_pickles.files()}
    return folder, read_all(folder, cases)


def test_every_hostile_file_is_bad_data(found):
    _, results = found
    assert len(results) > 4000
    assert {case: r["outcome"] for case, r in results.items() if r["outcome"] != "BadData"} == {}


def test_nothing_in_a_hostile_file_is_run_imported_or_opened(found):
    folder, results = found
    assert {case: r["events"] for case, r in results.items() if r["events"]} == {}
    assert not list(folder.glob("*HARM*"))


def test_a_hostile_file_is_refused_at_once(found):
    _, results = found
    late = {case: r["seconds"] for case, r in results.items() if r["seconds"] > PROMPT}
    assert late == {}


HARMFUL = {
    "a call": b"cos\nsystem\n(S'touch HARM'\ntR.",
    "an import": b"ccolorsys\nrgb_to_hsv\n.",
    "a file": b"c__builtin__\nopen\n(S'HARM.txt'\nS'w'\ntR.",
}


@pytest.mark.parametrize("what", HARMFUL)
def test_twin_a_reader_that_unpickles_is_caught(tmp_path, what):
    [result] = read_all(tmp_path, {what: (".pt", HARMFUL[what])}, how="pickle").values()
    assert any("pickle.find_class" in event for event in result["events"])
    assert what == "an import" or list(tmp_path.glob("HARM*"))


CANNOT_BE_CALLED_SO = ("protocol 2, NEWOBJ", "protocol 2, BUILD", "protocol 4, NEWOBJ_EX")


@pytest.mark.parametrize("how", hostile_pickles.SPELLINGS)
def test_a_payload_is_a_pickle_that_would_find_what_it_calls(how):
    """One that pickle itself does not understand would prove nothing."""
    found: list[tuple[str, str]] = []

    class Unpickler(pickle.Unpickler):
        def find_class(self, module, name):
            found.append((module, name))
            return lambda *_: None

    start, spell = hostile_pickles.SPELLINGS[how]
    unpickler = Unpickler(io.BytesIO(start + spell("os", "system", ("touch HARM",)) + b"."))
    fails = pytest.raises((TypeError, AttributeError, pickle.UnpicklingError))
    with fails if how in CANNOT_BE_CALLED_SO else contextlib.nullcontext():
        unpickler.load()
    assert found == [("os", "system")]
