"""What a round costs in bytes and memory."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..algebra.field import ceil_div
from ..algebra.randomness import KEY_BYTES
from ..brief import Brief
from ..errors import Advice, CannotWrite, Refused, UsageError, amount
from ..protocol.constructions import construction
from ..protocol.deal import Block
from ..protocol.family import find_family
from ..protocol.parameters import (
    KEYS,
    SHARES,
    Parameters,
    rate_of_answer,
    rate_of_masked,
)
from ..storage.documents import DIGEST_BYTES
from ..storage.session import Session
from ..storage.share import file_bytes, files_bytes, header_bytes
from ..storage.workspace import Workspace

_LIBRARIES = 190 << 20  # what Python with numba and HDF5 takes before any work
_AGGREGATE_BYTES = 16  # index, symbol and real of one coordinate
# about what these files have besides numbers, and for every user or block
_MASKED_BYTES = 270
_LEDGER_BYTES = 1500
_SURVIVORS_ROW_BYTES = 240
_DIGEST_ROW_BYTES = 80  # of a dealer's list, in ledgers and survivors.json
_LIST_BYTES = 300
_COMMITMENT_ROW_BYTES = 67
_SESSION_BYTES = 1000
_DECODE_BUFFER = 64 << 20
_RESIDUAL_BYTES = 8  # of a coordinate
_CONTAINER_MEMORY = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, repr=False)
class Costs(Brief):
    """Bytes that a user sends: before there are gradients, X and Y; and the rates R1 and R2."""

    offline_bytes: int
    masked_bytes: int
    answer_bytes: int
    r1: float
    r2: float


def offline_bytes(p: Parameters) -> int:
    """What a user sends the others before there are gradients: keys or shares."""
    return construction(p).offline_bytes(family_of(p))


def offline_bytes_in(session: Session) -> int:
    """The same in a round that there is; where keys of a series go on, nothing is sent."""
    if session.keys_go_on:
        return 0
    return construction(session.parameters).offline_bytes(session.family or ())


def family_of(p: Parameters) -> tuple[Block, ...]:
    """A family of blocks for a round with these parameters, if it deals by keys."""
    if p.dealing != KEYS:
        return ()
    return find_family(p, construction(p).points()) or ()


@dataclass(frozen=True)
class Sent:
    """What a user sends in a round in which nobody drops out: before it has a gradient, and with
    it, in bytes."""

    before: int
    online: int

    @property
    def total(self) -> int:
        """In all."""
        return self.before + self.online


def sent(p: Parameters, *, in_series: bool = False) -> Sent:
    """What a user sends with these parameters; nothing before in a later round of a series."""
    c = construction(p)
    online = c.masked_bytes + c.answer_bytes(p.users)
    return Sent(before=0 if in_series else offline_bytes(p), online=online)


def sent_files(p: Parameters) -> Sent:
    """About the same with the headers of the files, which are not sealed: a share for each of the
    others and a list of commitments where keys are dealt, then X and Y."""
    family = family_of(p)
    before = _list_bytes(family) + max(
        sum(file_bytes(p, family, m) for m in range(1, p.users + 1) if m != n)
        for n in (range(1, p.users + 1) if family else (1,))
    )
    return Sent(before=before, online=_masked_file_bytes(p) + _answer_file_bytes(p))


def _list_bytes(family: tuple[Block, ...]) -> int:
    """About what dealt/user-NN.json has, where there is one."""
    return _LIST_BYTES + len(family) * _COMMITMENT_ROW_BYTES if family else 0


def _masked_file_bytes(p: Parameters) -> int:
    """About what masked/user-NN.h5 has: X names whose shares its user holds."""
    c = construction(p)
    datasets = 2 if c.has_indices else 1
    holds = _LIST_BYTES + p.users * DIGEST_BYTES if p.dealing == KEYS else 0
    return c.masked_bytes + header_bytes(datasets) + _MASKED_BYTES + holds


def _answer_file_bytes(p: Parameters) -> int:
    """About what elimination/user-NN.h5 has."""
    return construction(p).answer_bytes(p.users) + header_bytes(1)


def choice_of(p: Parameters, name: str) -> Parameters | None:
    """The same round by this construction, as `init` would choose its other parameters; None where
    that is not possible."""
    names = ("users", "survivors", "colluders", "top_k", "length", "whole", "field", "max_weight")
    same = {name: getattr(p, name) for name in names}
    try:
        chosen = Parameters.choose(**same, construction=name)
        if chosen.dealing == KEYS and not family_of(chosen):
            chosen = Parameters.choose(**same, construction=name, dealing=SHARES)
    except UsageError:
        return None
    return chosen


def costs(p: Parameters, survivor_count: int) -> Costs:
    """What a user sends in a round with |U1| survivors."""
    c = construction(p)
    masked = c.masked_bytes
    answer = c.answer_bytes(survivor_count)
    return Costs(
        offline_bytes=offline_bytes(p),
        masked_bytes=masked,
        answer_bytes=answer,
        r1=rate_of_masked(p, masked).measured,
        r2=rate_of_answer(p, answer).measured,
    )


@dataclass(frozen=True, repr=False)
class Footprint(Brief):
    """Bytes of a round in which nobody drops out: of the share files of a pair of users, of all
    files on a disk, and what a user sends before it has a gradient, as X and as Y; with the headers
    of the files, `file_bytes` in all. And the memory that the largest step takes. What is not known
    of a peer is None."""

    pair_bytes: int
    all_bytes: int
    offline_bytes: int
    masked_bytes: int
    answer_bytes: int
    file_bytes: int | None = None
    memory_bytes: int | None = None

    @property
    def online_bytes(self) -> int:
        """What a user sends with its gradient and after it: a broadcast counts once."""
        return self.masked_bytes + self.answer_bytes

    @property
    def total_bytes(self) -> int:
        """What a user sends in all, without the headers of files."""
        return self.offline_bytes + self.online_bytes


def footprint(p: Parameters) -> Footprint:
    """Bytes and memory of a round with these parameters, if all users survive."""
    c = construction(p)
    family = family_of(p)
    shares = files_bytes(p, family)
    answer = c.answer_bytes(p.users)
    messages = _masked_file_bytes(p) + _answer_file_bytes(p)
    return Footprint(
        pair_bytes=ceil_div(shares, p.users),
        all_bytes=p.users * (shares + _own_bytes(p, family) + messages) + _common_bytes(p, family),
        offline_bytes=c.offline_bytes(family),
        masked_bytes=c.masked_bytes,
        answer_bytes=answer,
        file_bytes=sent_files(p).total,
        memory_bytes=_memory_bytes(p, p.length),
    )


def _memory_bytes(p: Parameters, length: int) -> int:
    """About the memory that the largest step takes, with gradients of this length."""
    c = construction(p)
    chunk = p.users * c.chunk_rows * c.width * 4
    answers = min(p.users * c.answer_bytes(p.users), _DECODE_BUFFER)
    return _LIBRARIES + max(5 * chunk, 16 * length, answers)


def _row_bytes(p: Parameters) -> int:
    """What the digest of a dealer's list takes in each row of a document."""
    return _DIGEST_ROW_BYTES if p.dealing == KEYS else 0


def _own_bytes(p: Parameters, family: tuple[Block, ...]) -> int:
    """About what a user's secret, chain and ledger have, and its list of commitments."""
    c = construction(p)
    drawn = 0 if family else p.symbol_bytes * (c.place_count + c.mask_count)
    held = len(family) * (p.users - p.survivors + 1)  # of all dealers, the mean of the users
    chain = KEY_BYTES * (len(family) + held) + p.users * DIGEST_BYTES if family else 0
    ledger = _LEDGER_BYTES + p.users * _row_bytes(p)
    return drawn + header_bytes(2) + chain + header_bytes(1) + ledger + _list_bytes(family)


def _common_bytes(p: Parameters, family: tuple[Block, ...]) -> int:
    """About what session.json, survivors.json with its copy in a ledger, and the sum have."""
    session = _SESSION_BYTES + sum(2 + 4 * len(block) for block in family)
    survivors = _LIST_BYTES + p.users * (_SURVIVORS_ROW_BYTES + _row_bytes(p))
    coordinates = min(p.length, p.users * construction(p).coordinate_count)
    total = _AGGREGATE_BYTES * coordinates + header_bytes(3)
    return session + 2 * survivors + total


@dataclass(frozen=True)
class Price:
    """What a round costs one user at most, in bytes: the memory of its largest step, and its files
    with those that it fetches. It follows from session.json, and time follows from it."""

    memory: int
    disk: int


def price(session: Session) -> Price:
    """The price of a round that there is."""
    p = session.parameters
    family = session.family or ()
    fetched = p.users * (_masked_file_bytes(p) + _answer_file_bytes(p))
    shares = 0 if session.series is not None and family else 2 * files_bytes(p, family)
    residual = _RESIDUAL_BYTES * session.layout.length
    own = _own_bytes(p, family) + residual + _common_bytes(p, family)
    memory = _memory_bytes(p, session.layout.length)
    return Price(memory=memory, disk=shares + own + fetched)


def check_affordable(space: Workspace, max_memory: int | None, max_disk: int | None) -> None:
    """Refuse a round that costs more than its user allows; without a word, more memory than the
    machine has. Nothing is read or drawn before."""
    cost = price(space.session)
    most = machine_memory() if max_memory is None else max_memory
    if cost.memory > most:
        raise Refused(
            f"this round takes about {amount(cost.memory)} of memory, and the limit is "
            f"{amount(most)}",
            "ask who started it whether its size is right, or allow more",
            Advice.MAX_MEMORY,
        )
    if max_disk is not None and cost.disk > max_disk:
        raise Refused(
            f"the files of this round take about {amount(cost.disk)}, and the limit is "
            f"{amount(max_disk)}",
            "ask who started it whether its size is right, or allow more",
            Advice.MAX_DISK,
        )


def machine_memory() -> int:
    """The memory of this machine, or of the container."""
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError, ValueError):  # no container, or none with a limit
        sizes.append(int(_CONTAINER_MEMORY.read_text()))
    return min(sizes)


def check_room(session: Session, folder: Path) -> None:
    """Refuse to deal what the disk cannot hold."""
    p = session.parameters
    family = session.family or ()
    _check_free(folder, files_bytes(p, family) + _own_bytes(p, family), "this user's files")


def check_disk(folder: Path, p: Parameters, *, distributed: bool) -> None:
    """Refuse to start a round whose offline files the disk cannot hold."""
    files = footprint(p)
    # what one user sends and receives, or all
    needed = 2 * p.users * files.pair_bytes if distributed else files.all_bytes
    whose = "this user's files" if distributed else "the offline files of all users"
    _check_free(folder, needed, whose)


def _check_free(folder: Path, needed: int, whose: str) -> None:
    place = folder.absolute()  # which need not be there yet
    disk = os.statvfs(next(there for there in (place, *place.parents) if there.exists()))
    free = disk.f_bavail * disk.f_frsize
    if needed > free:
        raise CannotWrite(
            f"{whose} need {amount(needed)}, and the disk has {amount(free)} free",
            "free some space, or choose parameters that need less",
            Advice.DISK,
        )
