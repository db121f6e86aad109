"""Which file belongs to which user: gradients and weights of a whole round."""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from glob import glob
from itertools import takewhile
from pathlib import Path
from typing import Any

from ..errors import BadData, InputMissing, UsageError, named_users
from ..gradients.arrays import Given
from ..gradients.files import check_writable
from ..gradients.formats import any_of, is_readable, saved_in, suffixes_read
from ..gradients.tensors import is_path
from .arguments import by_user, path_of, real_number

_SIGNS = "*?["  # of a pattern


def natural(path: Path) -> list[tuple[int, str]]:
    """A key that sorts user_2 before user_10, in every part of a path."""
    parts = re.split(r"(\d+)", str(path))
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def gradient_files(paths: Sequence[Path]) -> list[Path]:
    """One gradient file per user: files in the order given; those of a folder, and what a pattern
    finds, in natural order of their names. A folder that save_pretrained wrote is one gradient."""
    files: list[Path] = []
    for path in paths:
        if not path.exists() and is_pattern(path):
            files += _found(path)
        elif not path.exists():
            raise InputMissing(f"{path} does not exist", "check the paths of the gradients")
        elif path.is_dir():
            saved = saved_in(path)
            files += _files_in(path) if saved is None else [saved]
        else:
            files.append(path)
    if not files:
        raise InputMissing(f"there are no gradients in {paths[0]}", _hint_for(paths[0]))
    return files


def in_natural_order(paths: Sequence[Path]) -> list[Path]:
    """Paths as a shell has expanded a pattern: user_10 before user_2 is nobody's choice, and every
    other order is."""
    return sorted(paths, key=natural) if list(paths) == sorted(paths, key=str) else list(paths)


def is_pattern(path: Path) -> bool:
    """Whether a path is meant for several files."""
    return any(sign in str(path) for sign in _SIGNS)


def _found(pattern: Path) -> list[Path]:
    """The gradients that a pattern finds, each a file or a folder that save_pretrained wrote."""
    files = []
    found = glob(str(pattern), recursive=True)  # noqa: PTH207 - Path.glob finds hidden files too
    for path in sorted(map(Path, found), key=natural):
        saved = saved_in(path) if path.is_dir() else path
        if saved is None:
            raise BadData(
                f"{pattern} finds the folder {path}, in which save_pretrained wrote nothing",
                "let the pattern end in the name of the file, such as 'DIR/*/grad.pt'",
            )
        files.append(saved)
    if not files:
        raise InputMissing(f"{pattern} finds nothing", "check the pattern")
    return files


def _files_in(folder: Path) -> list[Path]:
    """The gradients in a folder, in natural order; they must have names of one kind, or all
    different ones."""
    readable = [
        file for file in folder.iterdir() if is_readable(file) and not file.name.startswith(".")
    ]
    patterns = {file: re.sub(r"\d+", "#", file.name) for file in sorted(readable, key=natural)}
    # if all names differ, they have no pattern
    if 1 < len(set(patterns.values())) < len(readable):
        usual = Counter(patterns.values()).most_common(1)[0][0]
        # probably no gradients of a user
        strays = ", ".join(file.name for file, pattern in patterns.items() if pattern != usual)
        raise BadData(
            f"{folder} holds files that do not fit the pattern {usual}: {strays}",
            "move them elsewhere, or list the gradients one by one",
        )
    return list(patterns)


def _hint_for(path: Path) -> str:
    """Which files are gradients; where there are folders alone, how to name those in them."""
    endings = f"they end in {any_of(suffixes_read())}"
    if any(inner.is_dir() for inner in path.iterdir()):
        return f"{endings}; for a folder of each user give a pattern, such as '{path}/*/grad.pt'"
    return endings


def names_of(gradients: Mapping[int, Given]) -> dict[int, str]:
    """How people call the users: by the names of their files, or where these do not differ by the
    part of the paths that does. Users whose gradients are in memory have no names."""
    files = {user: path for user, path in gradients.items() if isinstance(path, Path)}
    if len({path.name for path in files.values()}) == len(files):
        return {user: path.name for user, path in files.items()}
    parts = {user: path.absolute().parts for user, path in files.items()}
    before = _common(list(parts.values()))
    behind = _common([own[:before:-1] for own in parts.values()])
    names = {user: "/".join(own[before : len(own) - behind]) for user, own in parts.items()}
    return {user: name or str(files[user]) for user, name in names.items()}


def _common(paths: Sequence[Sequence[str]]) -> int:
    """How many parts at the beginning are those of all."""
    return len(list(takewhile(lambda column: len(set(column)) == 1, zip(*paths, strict=False))))


def gradients_by_user(given: Any) -> dict[int, Given]:
    """The gradients of users 1 to N: a folder, a pattern, files (in the order of the users, or in
    folders), gradients in memory, or a mapping of users to any of these but folders."""
    if is_path(given):
        return _numbered(gradient_files([path_of("gradients", given)]))
    gradients = by_user("gradients", given)
    users = sorted(gradients)
    if not users:
        raise UsageError("there are no gradients", "give one for every user")
    if users != list(range(1, len(users) + 1)):
        raise UsageError(f"the users are {users}, not 1 to {len(users)}", "number them from 1")
    in_order = [gradients[user] for user in users]
    if all(map(is_path, in_order)):
        return _numbered(gradient_files([path_of("gradients", path) for path in in_order]))
    return _numbered(in_order)


def _numbered(gradients: Sequence[Given]) -> dict[int, Given]:
    return dict(enumerate(gradients, start=1))


def weights_by_user(given: Any, gradients: Mapping[int, Given]) -> dict[int, float]:
    """A weight for every user: from a table, a list or a mapping; 1 each where nothing is given."""
    if given is None:
        return dict.fromkeys(gradients, 1.0)
    if is_path(given):
        files = [
            gradient if isinstance(gradient, Path) else Path(str(user))
            for user, gradient in gradients.items()
        ]
        return dict(enumerate(read_weights(path_of("weights", given), files), start=1))
    weights = {
        user: real_number(f"the weight of user {user}", weight)
        for user, weight in by_user("weights", given).items()
    }
    positive = all(0 < weight < math.inf for weight in weights.values())
    if sorted(weights) != sorted(gradients) or not positive:
        raise UsageError("every user needs a positive weight", "give one for each user")
    return weights


def read_weights(path: Path, files: Sequence[Path]) -> list[float]:
    """A weight for every user, from a CSV or JSON file that names users or their files."""
    try:
        text = path.read_text()
        if path.suffix == ".json":
            # a dict would drop a key that is there twice
            pairs = json.loads(text, object_pairs_hook=tuple)
            if not isinstance(pairs, tuple) or any(isinstance(value, bool) for _, value in pairs):
                raise TypeError("no object, or true and false as weights")
        else:
            pairs = [
                (row[0], row[1]) for row in csv.reader(text.splitlines()) if row and row[0].strip()
            ]
            if pairs:
                try:
                    float(pairs[0][1])
                except ValueError:
                    del pairs[0]  # a header
        named = [(str(key).strip(), float(value)) for key, value in pairs]
    except FileNotFoundError:
        raise InputMissing(f"{path} does not exist", "check the path of the weights") from None
    except (
        OSError,
        ValueError,
        IndexError,
        AttributeError,
        TypeError,
        RecursionError,
        csv.Error,
    ) as error:
        hint = (
            'one object, such as: {"3": 120}'
            if path.suffix == ".json"
            else "a line each, such as: 3,120"
        )
        raise BadData(f"{path} is not a table of users and weights", hint) from error
    names = _known_names(files)
    weights: dict[int, float] = {}
    for key, weight in named:
        user = names.get(key)
        if user is None or user in weights:
            what = "names no user or gradient" if user is None else "appears twice"
            raise BadData(f"{path}: {key!r} {what}", "use user numbers or names of gradient files")
        if not 0 < weight < math.inf:
            raise BadData(
                f"{path}: the weight of {key!r} is {weight:g}", "weights are positive numbers"
            )
        weights[user] = weight
    missing = [n for n in range(1, len(files) + 1) if n not in weights]
    if missing:
        raise BadData(f"{path} has no weight for {named_users(missing)}", "add a line for each")
    return [weights[n] for n in range(1, len(files) + 1)]


def _known_names(files: Sequence[Path]) -> dict[str, int]:
    """What a table of weights may call each user: its number, or as `names_of` does, with a suffix
    or without."""
    called = names_of(dict(enumerate(files, start=1)))
    stems = {user: Path(name).stem for user, name in called.items()}
    names = {str(user): user for user in called}
    for several in (stems, called):
        users = Counter(several.values())
        names |= {name: user for user, name in several.items() if users[name] == 1}
    return names


def check_output(output: Path, gradients: Iterable[Given]) -> None:
    """Refuse to write the sum where it cannot be, or among the gradients: the next round would take
    it for one."""
    check_writable(output)
    for path in (path_of("gradients", one) for one in gradients if is_path(one)):
        if _would_find(path, output.resolve()):
            raise UsageError(
                f"{output} would lie among the gradients", "write the sum to another folder"
            )


def _would_find(gradients: Path, output: Path) -> bool:
    """Whether a folder or a pattern of gradients finds what lies there."""
    if gradients.is_dir():
        return output.parent == gradients.resolve()
    return is_pattern(gradients) and output.match(str(gradients.absolute()))
