"""Damaged files: each case brings a small round to a stage, damages one file, and runs the steps
left.

Every case must end in the exact aggregate or in a documented exit code with one line, within
seconds and little memory.  `python tests/faults/damage.py --cases 20000` runs many; a sample is in
test_damage.py.
"""

import argparse
import contextlib
import copy
import functools
import hashlib
import itertools
import json
import os
import random
import resource
import shutil
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from fault_lab import RECIPES, concluded, drawn_from, fingerprint, scratch
from played import (
    Command,
    Round,
    Stages,
    Violation,
    attributes,
    document,
    forked,
    judged,
    leftovers,
    must,
    waited,
)

from topk_secagg.rounds import series
from topk_secagg.storage.hdf5_parser import lookup3
from topk_secagg.storage.kinds import ARTIFACT_KINDS

ROOM = 2 << 30  # of address space, beyond what is used before the first case
GROWTH = 192 << 20  # that the resident memory may grow by


@dataclass(frozen=True)
class Case:
    """Which file of which stage is damaged, who reads it first, and how it is damaged."""

    recipe: str
    stage: str
    path: str
    reader: Command
    kind: str

    def __str__(self) -> str:
        return f"{self.recipe}, {self.stage}, {self.path}, {self.kind}, {self.reader[0]}"


class Lab:
    """The rounds to damage, each with a twin of another session."""

    def __init__(self, folder: Path, recipes: tuple[str, ...]) -> None:
        with drawn_from(1):
            self.benches = {name: Stages(RECIPES[name], folder / name) for name in recipes}
            for bench in self.benches.values():
                keep_one_left(bench)
        with drawn_from(2):
            self.twins = {
                name: Stages(RECIPES[name], folder / f"{name}-twin").folder for name in recipes
            }
        self.untouched = {name: self._prints(bench) for name, bench in self.benches.items()}

    @staticmethod
    def _prints(bench: Stages) -> dict[str, dict[str, bytes]]:
        return {
            stage.name: fingerprint(stage)
            for stage in sorted(bench.folder.iterdir())
            if stage.is_dir() and stage.name != "round"
        }

    def check_untouched(self) -> None:
        """No command has written into a file that had its name: the stages share them by hard
        links."""
        for name, bench in self.benches.items():
            if self._prints(bench) != self.untouched[name]:
                raise Violation(
                    f"{name}: a command wrote into an existing file instead of replacing it"
                )


def keep_one_left(bench: Stages) -> None:
    """Keep the stage in which only the last user has not answered yet."""
    state = bench.at("confirmed")
    for user in bench.recipe.answering[:-1]:
        must(*state.eliminate(user))
    bench.keep("one-left")


# --- choosing a case -------------------------------------------------------------------------


def choose(lab: Lab, source: random.Random) -> Case:
    """A random case; files that matter more often come up more often."""
    name = source.choice(list(lab.benches))
    bench = lab.benches[name]
    stage = source.choices(
        (
            "init",
            "offline",
            "masked",
            "confirmed",
            "one-left",
            "answered",
            "decoded",
        ),
        (1, 6, 5, 2, 8, 4, 2),
    )[0]
    path, reader = _target(bench.at(stage), stage, source)
    return Case(name, stage, path, reader, source.choice(_kinds(name, stage, path)))


def _target(state: Round, stage: str, source: random.Random) -> tuple[str, Command]:
    """A file that is there at this stage, and a command that reads it."""
    r = state.recipe
    n = source.choice(r.masking)
    last = r.answering[-1]
    share = f"shares/user-{last:02}/from-{n:02}.h5" + ".age" * r.sealed
    if stage == "init":
        return "session.json", state.offline(1)
    if stage == "offline":
        reader = state.mask(n) if source.random() < 0.7 else state.offline(n)
        choices = {
            "session.json": reader,
            own(state, n, "h5"): reader,
            own(state, n, "ledger.json"): reader,
            share: source.choice((state.offline(n), state.mask(last))),
            f"../inputs/gradients/{state.gradient(n).name}": state.mask(n),
        }
        if r.later:
            choices.pop(share)
            choices[chain(state, n)] = reader
        elif r.deals_keys:
            # whose keys they are publishes it again; whoever holds some compares
            choices[f"dealt/user-{n:02}.json"] = source.choice((state.offline(n), state.mask(last)))
        if r.sealed:
            choices[f"secrets/{state.identity(n).name}"] = state.offline(n)
    elif stage == "masked":
        choices = {
            "session.json": state.freeze(),
            f"masked/user-{n:02}.h5": source.choice((state.freeze(), state.mask(n))),
            own(state, n, "h5"): state.mask(n),
            own(state, n, "ledger.json"): state.mask(n),
            own(state, 1, "ledger.json"): state.freeze(),
        }
    elif stage in ("confirmed", "one-left"):
        answer = state.eliminate(last)
        choices = {
            "session.json": answer,
            "survivors.json": source.choice((answer, answer, state.freeze())),
            f"masked/user-{n:02}.h5": answer,
            own(state, last, "ledger.json"): answer,
            share: answer,
        }
        if r.construction == "sketch":
            choices[f"masked/user-{n:02}.h5"] = state.decode()
        if r.deals_keys:
            choices.pop(share)  # which was entered when its holder masked
            choices[chain(state, last)] = answer
        if r.residual:
            choices[own(state, last, "residual.h5")] = state.forget(last, "--give-up")
        if r.sealed:
            choices[f"secrets/{state.identity(last).name}"] = answer
            choices["confirmed/user-02.json"] = source.choice((answer, state.confirm(2)))
    elif stage == "answered":
        again = state.eliminate(last)
        choices = {
            "session.json": state.decode(),
            "survivors.json": state.decode(),
            f"elimination/user-{source.choice(r.answering):02}.h5": state.decode(),
            f"elimination/user-{last:02}.h5": again,
        }
        if r.construction == "sketch":
            choices[f"masked/user-{n:02}.h5"] = state.decode()
    else:
        kept = state.folder.with_name(stage)
        files = sorted(
            str(p.relative_to(kept)) for p in kept.rglob("*") if p.is_file() and p.name[0] != "."
        )
        path = source.choice([*(p for p in files if p.endswith((".h5", ".json"))), "aggregate.h5"])
        return path, ("inspect", state.folder / path)
    path = source.choice(list(choices))
    return path, choices[path]


def own(state: Round, user: int, what: str) -> str:
    """A file of a user's secrets of this round, seen from the round's folder."""
    return str((state.private(user) / f"user-{user:02}.{what}").relative_to(state.folder))


def chain(state: Round, user: int) -> str:
    """The file of a user's chain."""
    space = state.space(user)
    path = series.chain_path(space, user)
    return os.path.relpath(path, state.folder)


_BLIND = (
    "flip", "flip", "flip", "flips", "zero", "noise", "cut", "cut", "grow", "empty", "garbage",
    "double"
)  # fmt: skip


def _kinds(recipe: str, stage: str, path: str) -> list[str]:
    """What can be done to this file."""
    kinds = [*_BLIND, *_BLIND, "gone"]
    if path.startswith("../"):
        return kinds
    kinds += ["other user", "other session", "other session", "other kind", "other stage"]
    if path.endswith(".json"):
        kinds += ["json"] * 12
    if path.endswith(".h5"):
        kinds += (
            ["attribute"] * 6
            + ["resealed"] * 6
            + ["dataset"] * 3
            + ["reshaped"] * 2
            + ["metadata"] * 4
        )
        if recipe == "lying" and stage == "answered" and path.startswith("elimination"):
            kinds += ["lie"] * 12
    return kinds


# --- damage ----------------------------------------------------------------------------------


def damage(lab: Lab, case: Case, target: Path, source: random.Random) -> None:
    """Damage the file; what is shared by hard links is replaced, never written into."""
    content = target.read_bytes()
    target.unlink()
    if case.kind == "gone":
        return
    if case.kind in _BLIND:
        target.write_bytes(blind(content, case.kind, source))
    elif case.kind == "json":
        target.write_bytes(edited_json(content, source))
    elif case.kind.startswith("other"):
        shutil.copyfile(_other(lab, case, source), target)
    else:
        target.write_bytes(content)
        edit_hdf5(target, case.kind, source)


def blind(content: bytes, kind: str, source: random.Random) -> bytes:
    """Damage that knows nothing of formats."""
    data = bytearray(content)
    size = max(len(content), 1)
    start, length = source.randrange(size), source.choice((1, 4, 8, 64, 512))
    if kind in ("flip", "flips"):
        for _ in range(1 if kind == "flip" else source.randint(2, 20)):
            if data:
                data[source.randrange(len(data))] ^= 1 << source.randrange(8)
    elif kind == "zero":
        data[start : start + length] = bytes(len(data[start : start + length]))
    elif kind == "noise":
        data[start : start + length] = source.randbytes(len(data[start : start + length]))
    elif kind == "cut":
        del data[source.choice((start, size - 1, size // 2, 8, 48, 512)) :]
    elif kind == "grow":
        data += source.choice((b"\0", b"\n", b" ", source.randbytes(length), bytes(length)))
    elif kind == "empty":
        data.clear()
    elif kind == "garbage":
        data[:] = source.randbytes(length)
    elif kind == "double":
        data += bytes(data)
    return bytes(data)


def _other(lab: Lab, case: Case, source: random.Random) -> Path:
    """A sound file from another place."""
    bench = lab.benches[case.recipe]
    here = (bench.folder / case.stage) / case.path
    suffix = "".join(here.suffixes[-2:]) if here.name.endswith(".age") else here.suffix
    if case.kind == "other session":
        there = (
            lab.twins[case.recipe]
            / ("answered" if case.stage == "one-left" else case.stage)
            / case.path
        )
        return there if there.exists() else here
    if case.kind == "other stage":
        found = [
            (bench.folder / stage) / case.path
            for stage in ("offline", "masked", "answered", "decoded")
        ]
    elif case.kind == "other user":
        found = list(here.parent.glob(f"*{suffix}"))
        if here.parent.parent.name == "shares":
            found += here.parent.parent.glob(f"*/*{suffix}")
    else:
        found = list((bench.folder / case.stage).rglob(f"*{suffix}"))
    found = sorted(p for p in found if p.is_file() and not p.name.startswith("."))
    return source.choice(found) if found else here


_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, 2, 3, 5, 7, -1, 255, 2**31, 4281076801, 2**32, 2**63, 2**64, 10**30,
    0.0, 1.0, 1.5, -1.0, 1e308, "", "0", "x", "\u0000", "\u001b[31m", "é", "a" * 5000,
    "0" * 64, "f" * 64, "topk-secagg", "permutation", "sketch", "keys",
    "shares",
    [], [1], [[]], {}, {"x": 1}, [1, 2, 3],
)  # fmt: skip


def edited_json(content: bytes, source: random.Random) -> bytes:
    """A JSON document with one thing changed, and usually written as the program writes it."""
    document = json.loads(content)
    kind = source.choice(
        [
            "value",
            "value",
            "value",
            "value",
            "drop",
            "add",
            "order",
            "text",
            "deep",
            "digits",
            "twice",
        ]
    )
    if kind == "deep":
        return b"[" * 100_000
    if kind == "digits":
        return content.replace(b": 1", b": " + b"1" * source.choice((20, 400, 5000)), 1)
    if kind == "twice":
        return content.replace(b'"version": 1', b'"version": 1,\n  "version": 1', 1)
    if kind == "text":
        text = content.decode()
        return source.choice(
            (text.replace("\n", "\r\n"), text + "{}", text.replace("1", "NaN", 1), "\ufeff" + text,
             text.upper(), text.replace("  ", "\t"), json.dumps(document), text.rstrip())
        ).encode()  # fmt: skip
    places = list(_places(document))
    holder, key = source.choice(places)
    if kind == "value":
        old = holder[key]
        near = [old + 1, old - 1, old * 2] if type(old) in (int, float) else []
        values = [*near, *near, *_VALUES, source.choice([h[k] for h, k in places])]
        holder[key] = copy.deepcopy(source.choice(values))
    elif kind == "drop":
        del holder[key]
    elif kind == "add" and isinstance(holder, dict):
        holder["more"] = copy.deepcopy(source.choice(_VALUES))
    elif kind == "add":
        holder.append(copy.deepcopy(source.choice([*holder, *_VALUES])))
    elif kind == "order" and isinstance(holder, dict):
        items = list(holder.items())
        holder.clear()
        holder.update(reversed(items))
    elif kind == "order":
        holder.reverse()
    return (json.dumps(document, indent=2) + "\n").encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a document that holds a value."""
    keys = (
        list(value)
        if isinstance(value, dict)
        else range(len(value))
        if isinstance(value, list)
        else ()
    )
    for key in keys:
        yield value, key
        yield from _places(value[key])


def edit_hdf5(path: Path, kind: str, source: random.Random) -> None:
    """Damage that knows HDF5; `resealed` gives the file a digest that fits what it holds now."""
    if kind == "metadata":
        path.write_bytes(with_sound_checksum(path.read_bytes(), source))
        return
    with h5py.File(path, "r+", libver=("v110", "v110"), locking=False) as file:
        if kind in ("attribute", "resealed"):
            _edit_attribute(file, source)
            if kind == "resealed":
                reseal(file)
        elif kind in ("dataset", "lie"):
            name = source.choice([n for n in file if file[n].size])
            flat = file[name][...].reshape(-1)
            at = source.randrange(flat.size)
            flat[at] = flat[at] + 1 if flat.dtype.kind == "f" else (int(flat[at]) + 1) % 200
            file[name][...] = flat.reshape(file[name].shape)
            if kind == "lie":
                reseal(file)
        elif kind == "reshaped":
            _reshape(file, source)
            reseal(file)


def _edit_attribute(file: h5py.File, source: random.Random) -> None:
    name = source.choice([n for n in file.attrs if n != "sha256"])
    old = file.attrs[name]
    how = source.choice(("value", "value", "value", "drop", "add", "type"))
    if how == "drop":
        del file.attrs[name]
    elif how == "add":
        file.attrs.create("more", source.choice((np.uint64(1), np.bytes_("x"), np.zeros(100))))
    elif how == "type":
        odd = (np.int64(1), np.float64(1.0), np.zeros(3, dtype="<u8"), "variable length",
               np.bytes_(b"x" * 1000), np.bytes_(b"\xff\xfe"), np.bool_(True), np.uint64(2**63),
               h5py.Empty("<u8"))  # fmt: skip
        del file.attrs[name]
        file.attrs.create(name, source.choice(odd))
    elif isinstance(old, bytes):
        words = (b"x", b"1e400", b"-1.0", b"nan", b"os", b"2.0", b"0" * 64)
        texts = (*words, old[::-1], old.upper(), *KINDS_BYTES)
        del file.attrs[name]
        file.attrs.create(name, np.bytes_(source.choice(texts)))
    else:
        numbers = [int(old) + 1, max(0, int(old) - 1), 0, 2, 2**32, 2**64 - 1]
        file.attrs.modify(name, np.uint64(source.choice(numbers)))


KINDS_BYTES = tuple(kind.name.encode() for kind in ARTIFACT_KINDS)


def _reshape(file: h5py.File, source: random.Random) -> None:
    """Another shape or type for one dataset."""
    name = source.choice(list(file))
    old = file[name][...]
    description = file[name].attrs["description"]
    new = source.choice(
        (
            old[:-1],
            np.concatenate([old, old]),
            old.reshape(1, *old.shape),
            old.reshape(-1),
            old.astype(">u4"),
            old.astype("<u8"),
            old.astype("<f4"),
            old[:0],
            np.zeros((0, 2**40), old.dtype),
        )
    )
    del file[name]
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5py.h5d.CONTIGUOUS)
    plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    kind = h5py.h5t.py_create(new.dtype)
    space = h5py.h5s.create_simple(new.shape)
    made = h5py.h5d.create(file.id, name.encode(), kind, space, plist)
    h5py.Dataset(made).attrs.create("description", description)
    if new.size:
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(new))


def reseal(file: h5py.File) -> None:
    """Give the file the digest of what it holds."""
    kind = _plain(file.attrs.get("kind", b""))
    skipped = next((k.undigested for k in ARTIFACT_KINDS if k.name == kind), ())
    digest = hashlib.sha256()
    for name in sorted(set(file.attrs) - {"sha256", "signature"}):
        digest.update(f"attribute {name} {_plain(file.attrs[name])}\n".encode())
    for name in sorted(set(file) - set(skipped)):
        array = file[name][...]
        digest.update(
            f"dataset {name} {array.dtype.str} {','.join(map(str, array.shape))}\n".encode()
        )
        digest.update(array.tobytes())
    if "sha256" in file.attrs:
        del file.attrs["sha256"]
    file.attrs.create("sha256", np.bytes_(digest.hexdigest()))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return int(value) if isinstance(value, np.integer) else str(value)


def with_sound_checksum(content: bytes, source: random.Random) -> bytes:
    """Damage in the metadata of HDF5 that its checksums do not show: they are computed again."""
    blocks = guarded(content)
    if not blocks:
        return blind(content, "flip", source)
    start, end = source.choice(blocks)
    data = bytearray(content)
    at = source.randrange(start + 4, end)
    if source.random() < 0.5:
        data[at] ^= 1 << source.randrange(8)
    else:
        data[at] = source.choice((0, 1, 0x7F, 0x80, 0xFF))
    data[end : end + 4] = struct.pack("<I", lookup3(bytes(data[start:end])))
    return bytes(data)


@functools.lru_cache(maxsize=512)
def guarded(content: bytes) -> tuple[tuple[int, int], ...]:
    """Start and end of the pieces of metadata that a checksum follows: found by trying."""
    found = []
    for signature in b"\x89HDF OHDR OCHK FRHP FHDB BTHD BTLF BTIN FSHD FSSE".split():
        start = content.find(signature)
        while start >= 0:
            for end in range(start + 8, min(start + 700, len(content) - 3)):
                if struct.unpack_from("<I", content, end)[0] == lookup3(content[start:end]):
                    found.append((start, end))
                    break
            start = content.find(signature, start + 1)
    return tuple(found)


# --- running and judging ---------------------------------------------------------------------


def run_case(lab: Lab, number: int, seed: int) -> tuple[str, str]:
    """One case: what it was, and how it ended. Raises Violation if it must not end so."""
    source = random.Random(f"{seed} {number}")
    case = choose(lab, source)
    bench = lab.benches[case.recipe]
    state = bench.at(case.stage)
    target = state.folder / case.path
    original = target.read_bytes()
    mode = target.stat().st_mode
    try:
        damage(lab, case, target, source)
        try:
            ending = _ending(state, case)
            refused = ending.startswith(f"{case.reader[0]} exits")
            if refused and case.kind in (*_BLIND, "gone") and source.random() < 0.05:
                _put_back(target, original, mode)
                _restored(state, case)
        except AssertionError as violation:
            raise Violation(f"case {number} ({case}): {violation}") from violation
    finally:
        if case.path.startswith("../"):  # which the next case needs
            _put_back(target, original, mode)
    return str(case), ending


def _put_back(path: Path, content: bytes, mode: int) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    path.chmod(mode)


def _left(state: Round, stage: str) -> list[Command]:
    """The commands from this stage to the end of the round."""
    if stage == "one-left":
        return [state.eliminate(state.recipe.answering[-1]), *state.left("answered")]
    return state.left(stage)


def _ending(state: Round, case: Case) -> str:
    """Run what reads the file, then the rest; the exit code that ended it, or that all was
    exact."""
    left = [c for c in _left(state, case.stage) if c != case.reader]
    if case.stage == "decoded":
        left = [state.decode()] if case.path == "aggregate.h5" else []
    for command in (case.reader, *left):
        result = judged(*command)
        if found := leftovers(state.folder):
            raise Violation(f"{command[0]} left {found}")
        if result.code and (command[0] != "inspect" or not left):
            return f"{command[0]} exits {result.code}"
    if not left:
        return f"inspect exits {result.code}"
    if case.path.startswith("../inputs/gradients"):
        return "another gradient"
    corrected = _as_the_session_says(state).check_aggregate()
    if case.kind == "lie" and case.reader[0] == "decode" and not corrected:
        raise Violation("a wrong answer was not named")
    for row in document(state.folder / "survivors.json")[
        "survivors"
    ]:  # by whose weights `decode --mean` divides
        weight = attributes(state.folder / f"masked/user-{row['user']:02}.h5")["weight"]
        if float(weight) != row["weight"]:
            raise Violation(f"weight {row['weight']} for an X with {weight}")
    return "exact, corrected" if corrected else "exact"


def _as_the_session_says(state: Round) -> Round:
    """The round with the parameters in session.json, in case the damage is a legitimate other
    choice."""
    p = document(state.folder / "session.json")["parameters"]
    names = ("survivors", "colluders", "top_k", "picks", "construction", "dealing")
    return replace(state, recipe=replace(state.recipe, **{name: p[name] for name in names}))


def _restored(state: Round, case: Case) -> None:
    """With the file back as it was, the round goes on to the exact aggregate: nothing was lost."""
    for command in _left(state, case.stage):
        must(*command)
    state.check_aggregate()


@contextlib.contextmanager
def bounded_memory(growth: int = GROWTH) -> Iterator[Callable[[], int]]:
    """A limit on the address space, and a check that the resident memory does not grow much."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used + ROOM if hard == resource.RLIM_INFINITY else min(hard, used + ROOM)
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def check() -> int:
        nonlocal start
        now = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if now - start <= growth:
            return 0
        grown = now - start
        start = now
        return grown

    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield check
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def run_cases(
    lab: Lab, numbers: Iterable[int], seed: int, report: Callable[[int, str, str], None]
) -> None:
    """Run cases; `report` gets the number, the kind of ending, and the case or violation."""
    with bounded_memory() as check:
        for number in numbers:
            try:
                with drawn_from(3):
                    what, ending = run_case(lab, number, seed)
            except AssertionError as violation:
                what = str(violation)
                ending = "VIOLATION"
            if grown := check():
                what = f"case {number} ({what}): memory grew by {grown >> 20} MiB"
                ending = "VIOLATION"
            report(number, ending, what)
    lab.check_untouched()


def worker(folder: Path, job: int, args: argparse.Namespace) -> None:
    """Cases job, job + jobs, ...; a line for each in a file."""
    os.chdir(folder)
    deadline = time.monotonic() + args.seconds
    numbers = itertools.takewhile(
        lambda _: time.monotonic() < deadline, range(job, args.cases, args.jobs)
    )
    with (folder / f"log-{job}").open("w", buffering=1) as log:

        def report(number: int, ending: str, what: str) -> None:
            print(number, ending, what.replace("\n", " | "), sep="\t", file=log)

        run_cases(Lab(folder / f"lab-{job}", tuple(args.recipes)), numbers, args.seed, report)


def main() -> int:
    """Run many cases in a few processes, and say how they ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--recipes", nargs="*", default=list(RECIPES))
    parser.add_argument("--log", type=Path, help="keep a line for every case here")
    args = parser.parse_args()
    started = time.monotonic()
    violations: list[str] = []
    counts: Counter[str] = Counter()
    with scratch() as folder:
        running = [forked(lambda job=job: worker(folder, job, args)) for job in range(args.jobs)]
        violations += [f"a process ended with {code}" for code in map(waited, running) if code]
        lines = [
            line for log in sorted(folder.glob("log-*")) for line in log.read_text().splitlines()
        ]
    for line in lines:
        _, ending, what = line.split("\t", 2)
        counts[ending] += 1
        if ending == "VIOLATION":
            violations.append(what)
        else:
            counts[f"by {what.split(', ')[3]}"] += 1
    if args.log:
        args.log.write_text("\n".join(lines) + "\n")
    what = f"{len(lines)} cases in {time.monotonic() - started:.0f} s, seed {args.seed}:"
    return concluded(what, counts, violations, args.cases - len(lines))


if __name__ == "__main__":
    sys.exit(main())
