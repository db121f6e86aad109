"""Files and links made to do harm: refused before anything is read from them or written through
them."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import h5py
import numpy as np
import pytest
from crashes import Step
from damage import bounded_memory, reseal
from fault_lab import Benches, check_whole, own_copy
from played import (
    TERABYTES,
    Command,
    Round,
    claim_terabytes,
    contents,
    forked,
    in_child,
    judged,
    leftovers,
    waited,
)

LIBVER = ("v110", "v110")
LITTLE = 32 << 20
ANOTHER = 65534


def other_file(folder: Path, name: str, array: np.ndarray) -> str:
    with h5py.File(folder / "other.h5", "w") as other:
        other[name] = array
    (folder / "bytes").write_bytes(array.tobytes())
    return str(folder / "other.h5")


def virtual(file: h5py.File, name: str, array: np.ndarray, folder: Path) -> None:
    layout = h5py.VirtualLayout(array.shape, array.dtype)
    layout[...] = h5py.VirtualSource(other_file(folder, name, array), name, array.shape)
    file.create_virtual_dataset(name, layout)


def stored_in(path: Path) -> dict[str, object]:
    return {"external": [(str(path), 0, h5py.h5f.UNLIMITED)]}


def compact(file: h5py.File, name: str, array: np.ndarray, _folder: Path) -> None:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple(array.shape)
    kind = h5py.h5t.py_create(array.dtype)
    h5py.h5d.create(file.id, name.encode(), kind, space, plist).write(
        h5py.h5s.ALL, h5py.h5s.ALL, array
    )


TYPES = {
    "float": "<f4", "big-endian": ">u4", "signed": "<i4", "wide": "<u8", "opaque": "V4",
    "text": "S4",
    "compound": [("a", "<u4"), ("b", "<f8")], "variable text": h5py.string_dtype(), "bool": "?",
    "variable length": h5py.vlen_dtype("<u4"), "enum": h5py.enum_dtype({"a": 1}, "<u4"),
    "array": np.dtype(("<u4", (3,))), "complex": "<c16", "reference": h5py.ref_dtype,
    "region": h5py.regionref_dtype,
}  # fmt: skip
# what is put in the place of a dataset (file, its name, its array, a folder for other files)
REPLACED: dict[str, Callable[[h5py.File, str, np.ndarray, Path], object]] = {
    "an external link": lambda f, n, a, at: f.__setitem__(
        n, h5py.ExternalLink(other_file(at, n, a), n)
    ),
    "a soft link": lambda f, n, a, _: (
        f.create_dataset("at", data=a),
        f.__setitem__(n, h5py.SoftLink("/at")),
    ),
    "a link to itself": lambda f, n, *_: f.__setitem__(n, h5py.SoftLink(f"/{n}")),
    "the root": lambda f, n, *_: f.__setitem__(n, f["/"]),
    "a virtual one": virtual,
    "one stored outside": lambda f, n, a, at: (
        other_file(at, n, a),
        f.create_dataset(n, a.shape, a.dtype, **stored_in(at / "bytes")),
    ),
    "the password file": lambda f, n, a, _: f.create_dataset(
        n, a.shape, a.dtype, **stored_in(Path("/etc/passwd"))
    ),
    "chunks": lambda f, n, a, _: f.create_dataset(n, data=a, chunks=True),
    "compressed": lambda f, n, a, _: f.create_dataset(n, data=a, chunks=True, compression="gzip"),
    "a bomb": lambda f, n, a, _: f.create_dataset(
        n, (2**31,), a.dtype, chunks=(2**20,), compression="gzip"
    ),
    "a huge one": lambda f, n, a, _: f.create_dataset(n, (2**40,), a.dtype),
    "a huge square": lambda f, n, a, _: f.create_dataset(n, (2**31, 2**29), a.dtype),
    "a compact one": compact,
    "a scalar": lambda f, n, a, _: f.create_dataset(n, (), a.dtype),
    "nothing": lambda f, n, a, _: f.create_dataset(n, data=h5py.Empty(a.dtype)),
    "one that grows": lambda f, n, a, _: f.create_dataset(
        n, data=a, maxshape=(None,) * a.ndim, chunks=True
    ),
    "a type": lambda f, n, *_: f.__setitem__(n, np.dtype("<u4")),
    **{
        f"another type: {what}": lambda f, n, a, _, dtype=dtype: f.create_dataset(n, a.shape, dtype)
        for what, dtype in TYPES.items()
    },
}
# what is done to a file (and the dataset of that name) besides
ADDED: dict[str, Callable[[h5py.File, str], object]] = {
    "a dataset twice": lambda f, n: f.__setitem__("again", f[n]),
    "groups": lambda f, _: f.create_group("more/and/more"),
    "many groups": lambda f, _: [f.create_group(f"g{i}") for i in range(2000)],
    "text of any length": lambda f, _: f.attrs.__setitem__("session", "0" * 64),
    "long text": lambda f, _: f.attrs.__setitem__("session", np.bytes_(b"x" * (1 << 22))),
    "many attributes": lambda f, _: [f.attrs.create(f"a{i}", np.uint64(i)) for i in range(3000)],
    "a reference": lambda f, n: f.attrs.create("session", f[n].ref, dtype=h5py.ref_dtype),
    "an odd name": lambda f, n: f.move(n, "\x1b[31mred\n"),
    "no description": lambda f, n: f[n].attrs.__delitem__("description"),
    "another description": lambda f, n: f[n].attrs.modify("description", np.bytes_(b"secret: 5")),
    "more about a dataset": lambda f, n: f[n].attrs.create("more", np.uint64(5)),
}


def make_hostile(path: Path, name: str, what: str, folder: Path) -> None:
    with h5py.File(path, "r+", libver=LIBVER, locking=False) as file:
        if what in ADDED:
            ADDED[what](file, name)
            return
        array = file[name][...]
        description = file[name].attrs["description"]
        del file[name]
        REPLACED[what](file, name, array, folder)
        if file.get(name, getclass=True, getlink=True) is h5py.HardLink and isinstance(
            file[name], h5py.Dataset
        ):
            file[name].attrs.create("description", description)


# a file of each kind: its round, its path, the dataset that is changed, the stage, and a command
# that reads it
READERS: dict[str, tuple[str, str, str, str, Callable[[Round], Command]]] = {
    "masked": (
        "shares",
        "masked/user-02.h5",
        "value",
        "masked",
        lambda r: r.freeze("--only", "1,2,3,4"),
    ),
    "share": ("permutation", "shares/user-01/from-02.h5", "f", "frozen", lambda r: r.eliminate(1)),
    "share of sketch": (
        "shares",
        "shares/user-01/from-02.h5",
        "f",
        "frozen",
        lambda r: r.eliminate(1),
    ),
    "chain": ("sketch", "secrets/user-01.chain.h5", "keys", "frozen", lambda r: r.eliminate(1)),
    "elimination": (
        # with more than D + 2T answers, so that strict decoding has nothing else against it
        "lying",
        "elimination/user-02.h5",
        "y",
        "answered",
        lambda r: r.decode("--strict"),
    ),
    "secret": ("permutation", "secrets/user-01.h5", "place", "offline", lambda r: r.mask(1)),
}


def _check_refused(benches: Benches, kind: str, make: Callable[[Path], None]) -> None:
    name, path, _, stage, reader = READERS[kind]
    state = benches[name].at(stage)
    target = own_copy(state.folder / path)
    make(target)
    with bounded_memory(LITTLE) as grown:
        for command in (reader(state), ("inspect", target)):
            result = judged(*command)
            assert result.code == 65, (command, result)
        assert not grown()


@pytest.mark.parametrize("what", [*REPLACED, *ADDED])
@pytest.mark.parametrize("kind", ["masked", "share"])
def test_hostile_structure_is_refused(benches, tmp_path, kind, what):
    _check_refused(
        benches, kind, lambda target: make_hostile(target, READERS[kind][2], what, tmp_path)
    )


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("version", [0, 2, 2**64 - 1])
def test_another_version_is_refused_even_with_a_digest_that_fits(benches, kind, version):
    def make(target):
        with h5py.File(target, "r+", libver=LIBVER, locking=False) as file:
            file.attrs.modify("version", np.uint64(version))
            reseal(file)

    _check_refused(benches, kind, make)


def test_nothing_is_opened_besides_the_file(benches, tmp_path):
    """What a hostile file points to stays untouched: a pipe there would block a reader."""
    for what in ("an external link", "a virtual one", "one stored outside"):

        def make(target, what=what):
            make_hostile(target, "value", what, tmp_path)
            for other in list(tmp_path.iterdir()):
                other.unlink()
                os.mkfifo(other)

        _check_refused(benches, "masked", make)
        for pipe in tmp_path.iterdir():
            pipe.unlink()


@pytest.mark.parametrize("kind", READERS)
def test_hdf5_is_never_asked_to_open_a_file(benches, kind):
    """The library would go down over some of it, so it is not asked at all
    (storage/test_hdf5_parser.py)."""
    name, path, _, stage, reader = READERS[kind]
    state = benches[name].at(stage)
    with (
        mock.patch.object(h5py.h5f, "open", side_effect=AssertionError),
        mock.patch.object(h5py, "File", side_effect=AssertionError),
    ):
        assert judged("inspect", state.folder / path).code == 0
        if kind == "masked":
            assert judged(*reader(state)).code == 0


# --- anything in the place of a file --------------------------------------------------------------


def instead(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


THINGS: dict[str, Callable[[Path], object]] = {
    "two terabytes more": lambda path: os.truncate(path, TERABYTES),
    "two terabytes of nothing": lambda path: instead(
        path, lambda p: (p.touch(), os.truncate(p, TERABYTES))
    ),
    "two terabytes that it claims": claim_terabytes,
    "a long line": lambda path: (
        path.write_bytes(b"age-encryption.org/v1\n-> X25519 "),
        os.truncate(path, 1 << 28),
    ),
    "a folder": lambda path: instead(path, Path.mkdir),
    "a pipe": lambda path: instead(path, os.mkfifo),
    "a link to a pipe": lambda path: instead(
        path, lambda p: (os.mkfifo(p.with_name("pipe")), p.symlink_to("pipe"))
    ),
    "a link to nowhere": lambda path: instead(path, lambda p: p.symlink_to("nowhere")),
    "a link to itself": lambda path: instead(path, lambda p: p.symlink_to(p.name)),
    "a link to zeros": lambda path: instead(path, lambda p: p.symlink_to("/dev/zero")),
    "a link to a terminal": lambda path: instead(path, lambda p: p.symlink_to("/dev/tty")),
}
PLACES: list[tuple[str, str, str, Callable[[Round], Command]]] = [
    ("permutation", "init", "session.json", lambda r: r.offline(1)),
    ("permutation", "offline", "secrets/user-01.h5", lambda r: r.offline(1)),
    ("shares", "offline", "secrets/user-01.h5", lambda r: r.mask(1)),
    ("shares", "offline", "secrets/user-01.ledger.json", lambda r: r.mask(1)),
    ("shares", "offline", "secrets/.user-01.lock", lambda r: r.mask(1)),
    ("shares", "offline", "shares/user-02/from-01.h5", lambda r: r.offline(1)),
    ("shares", "offline", "shares/user-01/from-02.h5", lambda r: r.mask(1)),
    ("sketch", "offline", "../inputs/gradients/user-01.safetensors", lambda r: r.mask(1)),
    ("permutation", "offline", "../inputs/gradients/user-01.npy", lambda r: r.mask(1)),
    ("shares", "offline", "../inputs/gradients/user-01.npz", lambda r: r.mask(1)),
    ("residual", "offline", "../inputs/gradients/user-01.pt", lambda r: r.mask(1)),
    ("sketch", "offline", "secrets/user-01.chain.h5", lambda r: r.mask(1)),
    ("sketch", "offline", "dealt/user-02.json", lambda r: r.mask(1)),
    ("residual", "masked", "secrets/user-01.residual.h5", lambda r: r.mask(1)),
    ("shares", "masked", "masked/user-01.h5", lambda r: r.mask(1)),
    ("shares", "masked", "masked/user-02.h5", lambda r: r.freeze()),
    ("shares", "frozen", "survivors.json", lambda r: r.freeze()),
    ("shares", "frozen", "survivors.json", lambda r: r.mask(1)),
    ("shares", "frozen", "survivors.json", lambda r: r.eliminate(1)),
    ("shares", "frozen", "masked/user-02.h5", lambda r: r.eliminate(1)),
    ("shares", "frozen", "shares/user-01/from-02.h5", lambda r: r.eliminate(1)),
    ("sealed", "confirmed", "shares/user-01/from-02.h5.age", lambda r: r.eliminate(1)),
    ("sealed", "offline", "shares/user-02/from-01.h5.age", lambda r: r.offline(1)),
    ("sealed", "confirmed", "confirmed/user-02.json", lambda r: r.confirm(1)),
    ("sealed", "confirmed", "confirmed/user-02.json", lambda r: r.eliminate(1)),
    ("sealed", "confirmed", "secrets/user-01.identity", lambda r: r.eliminate(1)),
    ("sealed", "confirmed", "secrets/folder.json", lambda r: r.eliminate(1)),
    (
        "sealed",
        "confirmed",
        "../inputs/recipients",
        lambda r: r.eliminate(1, "--recipients", r.recipients),
    ),
    ("shares", "answered", "elimination/user-01.h5", lambda r: r.eliminate(1)),
    ("shares", "answered", "elimination/user-02.h5", lambda r: r.decode()),
    ("shares", "answered", f".account-{os.geteuid()}.lock", lambda r: r.decode()),
    ("shares", "decoded", "aggregate.h5", lambda r: r.decode()),
    ("sketch", "decoded", "survivors.json", lambda r: r.forget(1)),
]


@pytest.mark.parametrize(
    ("recipe", "stage", "name", "command"), PLACES, ids=[" ".join(p[:3]) for p in PLACES]
)
def test_anything_in_the_place_of_a_file(benches, recipe, stage, name, command):
    """A command that reads it ends at once, in little memory, and leaves nothing behind."""
    for what, make in THINGS.items():
        if what == "two terabytes that it claims" and not name.endswith(".h5"):
            continue
        state = benches[recipe].at(stage)
        target = own_copy(state.folder / name)
        content = target.read_bytes()
        mode = target.stat().st_mode
        make(target)
        try:
            with bounded_memory(LITTLE) as grown:
                judged(*command(state))
                judged("status", state.folder)
                if target.suffix in (".h5", ".json"):
                    judged("inspect", target)
                assert not grown(), what
            assert leftovers(state.folder) == []
        finally:
            if name.startswith("../"):
                shutil.rmtree(target) if target.is_dir() else target.unlink()
                target.with_name("pipe").unlink(missing_ok=True)
                target.write_bytes(content)
                target.chmod(mode)


# --- links and folders of other accounts ----------------------------------------------------------


def planting(
    number: int, when: str, target: Path, marks: Path, uid: int | None
) -> Callable[[], None]:
    """A link to `target` in the place of the `number`-th temporary file, before it is made or just
    afterwards.

    `marks` then says whether that could be done.
    """

    def plant(path: Path) -> None:
        if uid is not None:
            os.setuid(uid)
        if when == "after":
            path.unlink()
        path.symlink_to(target)

    def hook() -> None:
        original = os.open
        count = 0

        def opening(path: str | Path, flags: int, mode: int = 0o777, **how: object) -> int:
            nonlocal count
            strikes = bool(flags & os.O_EXCL) and str(path).endswith(".tmp")
            count += strikes
            fd = (
                None
                if strikes and count == number and when == "before"
                else original(path, flags, mode, **how)
            )
            if strikes and count == number:
                marks.write_text(
                    "tried" if waited(forked(lambda: plant(Path(path)), silent=True)) else "struck"
                )
            return original(path, flags, mode, **how) if fd is None else fd

        os.open = opening

    return hook


@pytest.mark.parametrize("uid", [None, pytest.param(ANOTHER, marks=pytest.mark.needs_root)])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        ("shares", "offline"),
        ("sealed", "offline"),
        ("residual", "mask"),
        ("shares", "freeze"),
        ("sealed", "confirm"),
        ("residual", "eliminate"),
        ("shares", "decode"),
        ("residual", "forget"),
    ],
)
def test_nothing_is_written_through_a_planted_link(benches, recipe, name, when, uid):
    """By the same user, or by another one where that may write: no byte goes to its file, and the
    step says so."""
    step = Step(benches[recipe], name)
    struck = 0
    for number in range(1, 20):
        state = step.start()
        target = state.folder.with_name("theirs")
        marks = state.folder.with_name("marks")
        if uid is not None:
            for public in ("masked", "elimination"):
                (state.folder / public).mkdir(exist_ok=True)
            for folder in (state.folder, *(p for p in state.folder.rglob("*") if p.is_dir())):
                folder.chmod(0o777)
        target.write_bytes(b"")
        target.chmod(0o666)
        marks.unlink(missing_ok=True)
        result = in_child(*step.command, before=planting(number, when, target, marks, uid))
        assert target.read_bytes() == b"", number
        assert leftovers(state.folder) == []
        if not marks.exists():  # there are no more temporary files
            break
        hit = marks.read_text() == "struck"
        struck += hit
        assert result.code == ((77 if when == "after" else 73) if hit else 0), (number, result)
        check_whole(state.folder)
        step.again(state)
    assert number > 1
    closed = recipe == "sealed" or name in (
        "offline",
        "forget",
    )  # where other accounts cannot put a link
    assert struck >= (uid is None or not closed)
    step.finish(state)


@pytest.mark.needs_root
@pytest.mark.parametrize(
    ("recipe", "place", "mode"),
    [
        ("shares", "shares/user-02", 0o777),
        ("shares", "shares/user-02", 0o700),
        ("shares", "secrets", 0o777),
        ("sealed", "secrets", 0o777),  # sealed shares may lie anywhere
    ],
)
def test_no_secret_goes_into_the_folder_of_another_account(benches, recipe, place, mode):
    state = benches[recipe].at("init")
    folder = state.folder / place
    folder.mkdir(parents=True, exist_ok=True)
    before = contents(folder)  # the keys of a sealed round
    os.chown(folder, ANOTHER, ANOTHER)
    folder.chmod(mode)
    result = judged(*state.offline(1))
    assert result.code == 77, result
    assert "belongs to somebody else" in result.err
    assert contents(folder) == before
    assert not list(state.folder.rglob("from-*"))
    os.chown(folder, os.geteuid(), -1)
    assert judged(*state.offline(1)).code == 0
    assert folder.stat().st_mode & 0o777 == 0o700
