"""Which file belongs to which user: gradients and weights of a whole round."""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import BadData, InputMissing, UsageError, named_users
from ..gradients.arrays import Given
from ..gradients.files import check_writable
from ..gradients.formats import any_of, is_readable, suffixes_read
from ..gradients.tensors import is_path
from .arguments import by_user, path_of, real_number


def natural(path: Path) -> tuple[list[tuple[int, str]], str]:
    """A key that sorts user_2 before user_10."""
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts], str(path)


def gradient_files(paths: Sequence[Path]) -> list[Path]:
    """One gradient file per user: files in the order given, those of a folder in natural order of
    their names."""
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise InputMissing(f"{path} does not exist", "check the paths of the gradients")
        if not path.is_dir():
            files.append(path)
            continue
        readable = [
            file for file in path.iterdir() if is_readable(file) and not file.name.startswith(".")
        ]
        patterns = {file: re.sub(r"\d+", "#", file.name) for file in sorted(readable, key=natural)}
        # if all names differ, they have no pattern
        if 1 < len(set(patterns.values())) < len(readable):
            usual = Counter(patterns.values()).most_common(1)[0][0]
            # probably no gradients of a user
            strays = ", ".join(file.name for file, pattern in patterns.items() if pattern != usual)
            raise BadData(
                f"{path} holds files that do not fit the pattern {usual}: {strays}",
                "move them elsewhere, or list the gradients one by one",
            )
        files += patterns
    if not files:
        raise InputMissing(
            f"there are no gradients in {paths[0]}", f"they end in {any_of(suffixes_read())}"
        )
    return files


def gradients_by_user(given: Any) -> dict[int, Given]:
    """The gradients of users 1 to N: a folder, files (in the order of the users, or in folders),
    gradients in memory, or a mapping of users to any of these but folders."""
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
    names = {str(n): n for n in range(1, len(files) + 1)}
    for n, file in enumerate(files, start=1):
        names |= {file.name: n, file.stem: n}
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


def check_output(output: Path, gradients: Iterable[Given]) -> None:
    """Refuse to write the sum where it cannot be, or among the gradients: the next round would take
    it for one."""
    check_writable(output)
    for path in (path_of("gradients", one) for one in gradients if is_path(one)):
        if path.is_dir() and output.resolve().parent == path.resolve():
            raise UsageError(
                f"{output} would lie among the gradients", "write the sum to another folder"
            )
