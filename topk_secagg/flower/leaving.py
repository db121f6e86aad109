"""What a node erases: the secrets of rounds that are over, and all of a training that is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from logging import WARNING
from pathlib import Path

from flwr.supercore import log

from ..errors import SecAggError
from ..rounds.forget import forget
from ..storage.atomic import erase
from ..storage.ledger import Ledger, parse_ledger
from ..storage.workspace import Workspace
from .node import Training


def leave_others(training: Training) -> None:
    """Erase the secrets of all rounds but the latest, and their public files where nothing in them
    says what became of an X."""
    for space in list(training.others()):
        try:
            ledger = _forgotten(space, ends=False)
        except (SecAggError, OSError) as error:  # X has been made: it leaves all the same
            log(WARNING, "topk-secagg: an earlier round is not forgotten yet: %s", error)
            continue
        if ledger is None or ledger.masked is None or ledger.answered is not None:
            training.discard(space)


def drop_evidence(training: Training) -> None:
    """Remove the public files of earlier rounds: a user that has answered goes on from there."""
    for space in list(training.others()):
        training.discard(space)


def leave(training: Training) -> None:
    """End a training: erase all its secrets, and what was not sent. Ledgers stay, and the digests
    of what was sent."""
    training.record(ended=True)
    for path in sorted(training.root.glob("round-*")):
        try:
            _forgotten(training.space(path.name), ends=True)
        except (SecAggError, OSError) as error:
            log(WARNING, "topk-secagg: a round is not forgotten: %s", error)
    erase(*_residuals(training), *training.secrets.glob(f"user-*.chain-{training.series[:16]}.h5"))
    for path in training.root.glob("round-*"):
        shutil.rmtree(path, ignore_errors=True)


def _forgotten(space: Workspace, *, ends: bool) -> Ledger | None:
    """Erase what the node has of a round, if it took part; its ledger."""
    for path in space.private.glob("user-*.ledger.json"):
        user = int(path.name.split("-")[1].partition(".")[0])
        forget(space, user, give_up=True, end_series=ends)
        return Ledger.read(path, space.session.id, user)
    return None


def _residuals(training: Training) -> Iterator[Path]:
    """What was not sent in the rounds of a training."""
    for path in training.secrets.glob("*/user-*.ledger.json"):
        with suppress(SecAggError, OSError):
            ledger = parse_ledger(path, path.read_bytes())
            if ledger.series == training.series:
                yield path.with_name(path.name.replace(".ledger.json", ".residual.h5"))
