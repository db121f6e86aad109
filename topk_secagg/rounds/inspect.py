"""`inspect`: what an artifact holds, without giving a secret away."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..brief import Brief
from ..errors import Advice, BadData, InputMissing, SecAggError
from ..gradients.formats import is_readable
from ..gradients.reduced import LOW_RANK, WHOLE
from ..protocol.constructions import construction
from ..protocol.parameters import SHARES, rate_of_answer, rate_of_masked
from ..storage import chain, dealt, decoded, documents, masked, share, survivors
from ..storage.artifacts import Artifact, opened
from ..storage.atomic import open_regular
from ..storage.hdf5_parser import SIGNATURE
from ..storage.keys import IDENTITY, RECIPIENTS, keys_in
from ..storage.kinds import ARTIFACT_KINDS, check_size
from ..storage.ledger import parse_ledger
from ..storage.session import Session, read_session
from ..storage.workspace import Workspace
from .arguments import AnyPath, path_of

_SHOWN = 8
_NEVER_SHOWN = {"key", "keys", "own"}  # datasets that open more than one file
_AT_ONCE = 1 << 20  # values
_LEVELS_UP = 3
_RECOGNISED_BY = 1 << 12  # bytes of a file
_USER_IN_NAME = re.compile(r"user-(\d{1,9})(?!\d)")
_SENDER_IN_NAME = re.compile(r"from-(\d{1,9})(?!\d)")


@dataclass(repr=False)
class Description(Brief):
    """Facts about one file, in the order in which they are shown."""

    path: Path
    kind: str
    facts: dict[str, Any] = field(default_factory=dict)
    datasets: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)  # about its name, and not about its content

    @property
    def intact(self) -> bool:
        """Whether nothing is wrong with it."""
        return not self.problems


def inspect(file: AnyPath, *, reveal: bool = False) -> Description:
    """Describe a file of a round: kind, session, user, shapes, ranges, and whether it is intact.

    Arguments:
    file: its path.
    reveal: show the values of secret files too, but never keys.

    Returns a Description.
    """
    path = path_of("file", file)
    if path.suffix == ".age":
        raise BadData(
            f"{path} is sealed",
            "its receiver's identity is one of age, and opens it; an audit with it checks it",
            Advice.SEALED,
            path=path,
        )
    _check_of_a_round(path)
    session = _session_near(path)
    if path.suffix == ".json":
        description = _describe_document(path, session)
    else:
        with opened(path, *ARTIFACT_KINDS) as artifact:
            description = _describe_artifact(artifact, session, reveal=reveal)
    description.warnings += _contradictions(description)
    return description


class RoundFiles(NamedTuple):
    """The files in a round's folder: those that anybody can describe who can read them, and sealed
    ones."""

    open: list[Path]
    sealed: list[Path]


def files_of_round(round: AnyPath) -> RoundFiles:
    """What `inspect` describes of a round, in the order in which it comes to be.

    Only the folders that a round has are entered, and no link is followed.
    """
    space = Workspace(path_of("round", round))
    _ = space.session_content  # else it is no round
    steps = [
        [space.session_path, space.basis_path],
        _in_folder(space.dealt_path(1).parent),
        *(_in_folder(folder) for folder in _in_folder(space.root / "shares")),
        _in_folder(space.private),
        _in_folder(space.masked_path(1).parent),
        [space.survivors_path],
        _in_folder(space.confirmation_path(1).parent),
        _in_folder(space.answer_path(1).parent),
        [space.aggregate_path],
    ]
    files = [path for paths in steps for path in paths if path.is_file() and not path.is_symlink()]
    files = [path for path in files if path != space.folder_path]  # which says nothing of a round
    return RoundFiles(
        [path for path in files if path.suffix in (".h5", ".json")],
        [path for path in files if path.suffix == ".age"],
    )


def _in_folder(folder: Path) -> list[Path]:
    """What lies in a folder: user 9 before user 10, and user 99 before user 100."""
    if folder.is_symlink() or not folder.is_dir():
        return []
    shown = (path for path in folder.iterdir() if not path.name.startswith("."))
    return sorted(shown, key=lambda path: (len(path.name), path.name))


def _contradictions(d: Description) -> Iterator[str]:
    """Where the path names another user than the file does: steps would refuse it there."""
    folder = d.path.absolute().parent.name
    of_user = folder if d.kind == "share" else d.path.name
    for fact, name, pattern in (
        ("user", of_user, _USER_IN_NAME),
        ("sender", d.path.name, _SENDER_IN_NAME),
    ):
        match = pattern.match(name)
        if match and fact in d.facts and int(match[1]) != d.facts[fact]:
            yield (
                f"{d.path}: by its name it is of {fact} {int(match[1])}, and by its content of "
                f"{fact} {d.facts[fact]}: steps refuse it here"
            )


def _check_of_a_round(path: Path) -> None:
    """Refuse a file that belongs to a user and not to a round, by what it begins with or, where it
    is not HDF5, by its suffix."""
    with open_regular(path, "check the path") as stream:
        start = stream.read(_RECOGNISED_BY)
    keys = keys_in(start)
    if keys == IDENTITY:
        raise BadData(
            f"{path} is not a file of a round, but an identity: the secret keys of a user",
            "keep it where it is, and share it with nobody",
        )
    if keys == RECIPIENTS:
        raise BadData(
            f"{path} is not a file of a round, but a list of recipients: users' public keys",
            "the session.json of a sealed round says which keys the round has",
        )
    if start.startswith(SIGNATURE):
        return
    if is_readable(path):
        raise BadData(
            f"{path} is not a file of a round, but a gradient, to go by its suffix",
            "give a file of a round, such as session.json",
        )


def _session_near(path: Path) -> Session | None:
    """The session of the round in whose folder the file lies, if it does."""
    beside = (folder / "session.json" for folder in path.absolute().parents[:_LEVELS_UP])
    nearest = next((file for file in beside if file.is_file()), None)
    with suppress(SecAggError):
        return read_session(nearest) if nearest else None
    return None


def _describe_document(path: Path, session: Session | None) -> Description:
    content = documents.read_bytes(path, "check the path")
    kind = documents.kind_of(path, content)
    d = Description(path, kind, facts={"version": documents.VERSION})
    if kind == "session":
        s = read_session(path)
        d.facts |= {"session": s.id, **vars(s.parameters)}
        d.facts |= {
            "summary": s.parameters.summary(),
            "alpha": list(s.points.alpha),
            "beta": list(s.points.beta),
        }
        d.facts |= {
            "keys": len(s.family) if s.family is not None else None,
            "series": s.series_name,
            "generation": s.generation,
            "tensors": len(s.layout.slots),
            "coordinates": s.layout.length,
            "reduction": s.reduction.name,
            "rank": s.reduction.rank,
            "side": s.reduction.side,
            "basis": s.basis,
            "tensors_projected": s.reduction.kinds.count(LOW_RANK),
            "tensors_whole": s.reduction.kinds.count(WHOLE),
            "smallest_clip": min(s.clips),
            "largest_clip": max(s.clips),
            "weight_name": s.weight_name,
            "context": s.context,
            "before": s.before,
            "feedback_decay": s.feedback_decay,
            "freezer": s.freezer,
            "confirmations": s.confirmations,
        }
        d.facts |= {"sealed": s.recipients is not None}
        d.facts["fingerprints"] = {r.user: r.fingerprint for r in s.recipients or ()}
        from .costs import offline_bytes_in  # other files need not load it

        d.facts["offline_bytes"] = offline_bytes_in(s)
        return d
    if kind == "ledger":
        ledger = parse_ledger(path, content)
        names = (
            "user",
            "session",
            "generation",
            "shared",
            "masked",
            "feedback",
            "residual",
            "taken_by",
            "seen",
            "frozen",
            "confirmed",
            "answered",
            "gave_up",
            "forgotten",
        )
        d.facts |= {name: getattr(ledger, name) for name in names}
    elif kind == "survivors":
        listed, body = survivors.parse(path, content)
        d.facts |= {"session": body["session"]}
        d.facts |= {"freezer": listed.freezer, "survivors": listed.users}
        rows = listed.rows.values()
        d.facts |= {
            f"{name}s": [getattr(row, name) for row in rows] for name in ("weight", "sharing")
        }
        d.facts["dealt"] = [row.dealt for row in rows]
        d.facts |= {"signed": listed.signature is not None, "sha256": listed.digest}
    elif kind == "dealt":
        body = dealt.parse(path, content)
        d.facts |= {name: body[name] for name in ("user", "session")}
        d.facts |= {"commitments": len(body["commitments"])}
        d.facts |= {
            "signed": body["signature"] is not None,
            "sha256": documents.digest_unsigned("dealt", body),
        }
    elif kind == "folder":
        raise BadData(
            f"{path} is not a file of a round, but the number of a folder of secrets",
            "keep it where it is",
        )
    elif kind == "decoded":
        d.facts |= vars(decoded.parse(path, content))
    else:
        body = survivors.parse_confirmation(path, content)
        d.facts |= {name: body[name] for name in ("user", "session", "survivors_sha256")}
    _compare_session(d, d.facts["session"], session)
    return d


def _describe_artifact(artifact: Artifact, session: Session | None, *, reveal: bool) -> Description:
    d = Description(artifact.path, artifact.kind.name, facts={"user": artifact.attributes["user"]})
    d.facts |= {
        name: value for name, value in artifact.attributes.items() if name not in ("format", "kind")
    }
    if "weight" in d.facts:
        d.facts["weight"] = _number(d.facts["weight"])
    if session is not None:
        check_size(artifact, session)
    matches = artifact.digest() == artifact.attributes["sha256"]
    d.facts["digest"] = "matches" if matches else "DOES NOT MATCH"
    if not matches:
        d.problems.append("its content does not match its digest")
    if session is not None:
        d.facts["parameters"] = session.parameters.summary()
    if d.kind == chain.KIND.name:  # which goes on, and stays beside the root round's session.json
        _compare_series(d, artifact.attributes["series"], session)
    else:
        _compare_session(d, artifact.attributes["session"], session)
    secret = artifact.kind.secret
    if secret and artifact.mode & 0o077:
        d.facts["warning"] = f"others may read this secret file (mode {artifact.mode:04o})"
    for name, dataset in artifact.datasets.items():
        shown: dict[str, Any] = {
            "type": dataset.dtype.str,
            "shape": list(dataset.shape),
            "bytes": dataset.size,
        }
        if (secret and not reveal) or name in _NEVER_SHOWN:
            shown["values"] = "secret"
        elif dataset.size:
            shown.update(_values(artifact, name))
        d.datasets[name] = shown
    if session is not None and not d.problems:
        _add_rates(d, artifact, session)
    return d


def _number(text: str) -> float | str:
    """The number that a file keeps as text; what is none stays as it is."""
    with suppress(ValueError):
        value = float(text)
        return value if math.isfinite(value) else text
    return text


def _values(artifact: Artifact, name: str) -> dict[str, Any]:
    """The range and the first values of a dataset."""
    size = math.prod(artifact.datasets[name].shape)
    parts = (
        artifact.read_flat(name, start, min(start + _AT_ONCE, size))
        for start in range(0, size, _AT_ONCE)
    )
    ends = np.array([(part.min(), part.max()) for part in parts])
    if not np.isfinite(ends).all():
        raise artifact.bad(f"a value of {name} is not finite")
    first = artifact.read_flat(name, 0, min(size, _SHOWN))
    return {"low": ends.min().item(), "high": ends.max().item(), "values": first.tolist()}


def _compare_session(d: Description, named: object, session: Session | None) -> None:
    if session is None:
        d.facts["session_checked"] = False
    elif named != session.id:
        d.problems.append("it belongs to another session than session.json beside it")


def _compare_series(d: Description, named: object, session: Session | None) -> None:
    if session is None:
        d.facts["session_checked"] = False
    elif named != session.series_root:
        d.problems.append("it belongs to another series than session.json beside it")


def _add_rates(d: Description, artifact: Artifact, session: Session) -> None:
    """Payload and rates of X and Y, the unpacked indices of X, and the rows of a share checked."""
    p = session.parameters
    c = construction(p)
    try:
        if d.kind == "masked":
            x = masked.read(session, artifact.path, artifact.attributes["user"])
            d.facts |= {
                "masked_bytes": c.masked_bytes,
                **rate_of_masked(p, c.masked_bytes).facts(),
            }
            if c.has_indices:
                d.facts[c.index_name.replace(" ", "_")] = x.masked.index[:_SHOWN].tolist()
            d.facts["masked_value"] = x.masked.value[:_SHOWN].tolist()
            d.facts["holds"] = sorted(x.holds)
        elif d.kind == "elimination":
            payload = artifact.datasets["y"].size
            d.facts |= {"answer_bytes": payload, **rate_of_answer(p, payload).facts()}
        elif d.kind == "share":
            attributes = artifact.attributes
            artifact.expect_shapes(share.shapes(session, attributes["user"]))
            d.facts["dealing"] = p.dealing
            if p.dealing == SHARES:
                share.SymbolsFile(p, artifact).check_all()
                d.facts["rows_checked"] = c.rows
    except (BadData, InputMissing) as error:
        d.problems.append(error.said_of(artifact.path))
