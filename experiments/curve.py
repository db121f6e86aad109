"""One curve of a federated training whose updates are added up by the real protocol, whatever is
trained: cifar10/ and text/ each have a task.

Every round is `topk_secagg.aggregate`, and its sum must be bit-equal to the plain sum of what was
quantised; every 50th round goes through files and `topk-secagg run` once more. A curve that was
interrupted goes on from the checkpoint in WORK. Every 10th round, and the last, is a row of
RESULTS/NAME.csv.
"""

from __future__ import annotations

import argparse
import csv
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from projection import Projection, scale_of
from torch import Tensor

import topk_secagg as ts
from topk_secagg.algebra.field import to_signed
from topk_secagg.protocol.messages import Sparse

METHODS = ("plain", "topk", "topk-ef", "random", "random-ef", "rank")
PICKS = 16  # P
CLIP = 1.0  # of the first round, and of all where it does not follow the sum
FOLLOWS = 2.0  # the clip of a round, in terms of the largest magnitude of the last sum
FOLLOWS_ONE_BYTE = 0.25
ONE_BYTE = 251
TWO_BYTES = 65521
FIELD = 4281076801
USUAL_USERS = 10  # and other settings that are part of a curve's name only if they differ
USUAL_STEPS = 5
USUAL_ROUNDS = {"16x16": 800, "32x32": 400, "text": 300}
ROUNDS_OF_MANY_STEPS = 134  # the images of 800 rounds, with 30 steps
ROUNDS_OF_MANY_USERS = 300
MOST_USERS_WITH_KEYS = 20  # more write out their shares in every round
SCALES = (10.0, 30.0, 100.0)
RECORDED = 10  # rounds a row
FEW_ROUNDS = 100  # a shorter curve has a row for each
BY_FILES = 50  # rounds from one that goes through files to the next

Vector = npt.NDArray[np.float64]


class Task(Protocol):
    """What is trained: a model, the users' own data, and a test."""

    weights: Tensor  # of the common model
    statistics: Tensor  # averaged in the clear
    kept: dict[int, Any]  # what each user's optimiser keeps from round to round

    def train(
        self, user: int, *, done: int, steps: int, rate: float
    ) -> tuple[Vector, Tensor, float]:
        """A user's local steps: the difference of its weights, its statistics, and its mean loss.
        The rate is a share of the task's own."""

    def test(self) -> dict[str, float]:
        """The columns that say how good the common model is."""

    def named(self, vector: Vector) -> dict[str, Tensor]:
        """A vector in the form of a state_dict."""


Start = Callable[[], Task]  # the task as it is before the first round


@dataclass(frozen=True)
class Settings:
    """What a curve depends on. `scale` is what the server multiplies the mean by: 1 but for
    random-K. `clip_from_sum` is the clip of a round, in terms of the largest magnitude of the last
    sum; 0 is a fixed clip. `decay` is what is left of a residual in the next round."""

    task: str
    method: str
    density: float
    scale: float
    drop: float
    rounds: int
    seed: int
    field: int = FIELD
    clip_from_sum: float = 0.0
    rank: int = 0
    decay: float = 1.0
    users: int = USUAL_USERS
    steps: int = USUAL_STEPS

    @property
    def survivors(self) -> int:
        """U, half of the users."""
        return self.users // 2

    @property
    def colluders(self) -> int:
        """T, three tenths of the users."""
        return 3 * self.users // 10

    @property
    def dealing(self) -> str:
        """Keys once, or shares in every round."""
        return "keys" if self.users <= MOST_USERS_WITH_KEYS else "shares"

    @property
    def name(self) -> str:
        """Of the result file."""
        parts = [self.task, f"drop{round(100 * self.drop):02}", self.method]
        if self.method == "rank":
            parts += [str(self.rank), *self.numbers]
        elif self.method != "plain":
            parts += [f"{100 * self.density:g}", "sketch", *self.numbers]
        parts += [] if self.steps == USUAL_STEPS else [f"{self.steps}steps"]
        parts += [] if self.users == USUAL_USERS else [f"{self.users}users"]
        usual = usual_rounds(self.task, steps=self.steps, users=self.users)
        parts += [] if self.rounds == usual else [f"{self.rounds}rounds"]
        parts += [f"seed{self.seed}"] if self.seed else []
        return "-".join(parts)

    @property
    def numbers(self) -> list[str]:
        """How numbers are sent and kept, where it is not as usual."""
        follows = usual_follows(self.field)
        parts = [] if self.field == usual_field(self.method) else [f"q{self.field}"]
        if self.method != "rank":
            parts += ["follow"] if self.clip_from_sum else []
        parts += [f"F{self.clip_from_sum:g}"] if self.clip_from_sum not in (0, follows) else []
        parts += [f"decay{self.decay:g}"] if self.decay != 1 else []
        return parts


def usual_field(method: str) -> int:
    """Low rank sends symbols of two bytes."""
    return TWO_BYTES if method == "rank" else FIELD


def usual_follows(field: int) -> float:
    """Coarse steps cost more than clamping."""
    return FOLLOWS_ONE_BYTE if field == ONE_BYTE else FOLLOWS


def usual_rounds(task: str, steps: int, users: int) -> int:
    """How many rounds a curve has, if nothing else is said."""
    if users != USUAL_USERS:
        return ROUNDS_OF_MANY_USERS
    return USUAL_ROUNDS[task] if steps == USUAL_STEPS else ROUNDS_OF_MANY_STEPS


@dataclass
class Progress:
    """What a checkpoint holds: the model, what users keep, and what has been counted so far."""

    weights: Tensor
    statistics: Tensor
    kept: dict[int, Any]
    done: int = 0
    residuals: dict[int, Vector] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)  # since the last row
    clip: float = CLIP
    projection: Projection | None = None
    residual_norm: float = 0.0  # the mean of those who sent something in the last round
    moved_norm: float = 0.0  # and of what they had to send besides
    alone: float = 0.0  # of the coordinates that are not zero, those of one user alone
    offline_bytes: int = 0
    online_bytes: int = 0
    training_seconds: float = 0.0
    protocol_seconds: float = 0.0
    clipped: int = 0
    exact_rounds: int = 0
    rounds_by_files: int = 0


class Diverged(Exception):
    """The loss is no longer a number."""


class Curve:
    """A training run that can be stopped at any time."""

    def __init__(self, settings: Settings, task: Task, work: Path, checkpoint: str) -> None:
        self.settings = settings
        self.task = task
        self.work = work
        self.path = work / f"{checkpoint}.pt"
        self.at = Progress(weights=task.weights, statistics=task.statistics, kept=task.kept)
        if self.path.exists():
            stored = torch.load(self.path, weights_only=False)  # our own file
            if stored["settings"] != asdict(settings):
                raise SystemExit(f"{self.path} belongs to a curve with other settings")
            self.at = Progress(**stored["progress"])
            task.kept = self.at.kept

    def run(self, until: int, results: Path | None = None) -> list[dict[str, Any]]:
        """Go on up to this round; the rows so far."""
        s = self.settings
        at = self.at
        recorded = RECORDED if s.rounds >= FEW_ROUNDS else 1
        while at.done < until:
            self.round()
            if at.done % recorded == 0 or at.done == s.rounds:
                self.record()
                if results:
                    write_csv(results / f"{s.name}.csv", at.rows)
        if results:
            write_csv(results / f"{s.name}.csv", at.rows)
        return at.rows

    def round(self) -> None:
        """Local training, the sum, and a step of the common model."""
        s = self.settings
        at = self.at
        self.load()
        dropped, silent = drop_outs(s, at.done)
        start = time.process_time()
        trained = {
            user: self.task.train(user, done=at.done, steps=s.steps, rate=cosine(at.done, s.rounds))
            for user in range(1, s.users + 1)
            if user not in dropped  # what a user would have trained is lost when it drops out
        }
        at.training_seconds += time.process_time() - start
        loss = float(np.mean([loss for _, _, loss in trained.values()]))
        if not math.isfinite(loss):
            raise Diverged(f"round {at.done + 1}")
        moved = {user: difference for user, (difference, _, _) in trained.items()}
        total = (
            sum(moved.values()) if s.method == "plain" else self.secure_sum(moved, dropped, silent)
        )
        step = torch.from_numpy(total * (s.scale / len(trained)))
        at.weights = (at.weights.double() + step).float()
        at.statistics = torch.stack([statistics for _, statistics, _ in trained.values()]).mean(0)
        at.losses.append(loss)
        at.online_bytes += 4 * len(total) if s.method == "plain" else 0
        at.done += 1

    def load(self) -> None:
        """Give the task the common model."""
        self.task.weights = self.at.weights
        self.task.statistics = self.at.statistics

    def secure_sum(self, moved: dict[int, Vector], dropped: list[int], silent: list[int]) -> Vector:
        """The sum of what the users send, by the protocol, checked."""
        if self.settings.method == "rank":
            return self.low_rank_sum(moved, dropped, silent)
        s = self.settings
        at = self.at
        kept = {n: s.decay * residual for n, residual in at.residuals.items()}
        start = time.process_time()
        result = self.aggregate(
            moved,
            dropped,
            silent,
            density=s.density,
            clip=at.clip,
            residuals=kept if s.method.endswith("-ef") else None,
            select="random" if s.method.startswith("random") else "top",
        )
        at.protocol_seconds += time.process_time() - start
        chosen = {n: moved[n] + kept.get(n, 0.0) for n in moved}
        if s.method.startswith("random"):  # drawn anew: files hold what was drawn in memory
            chosen = {n: only(vector, result.sent[n].index) for n, vector in chosen.items()}
        self.check(result, chosen, silent, self.task.named)
        at.residuals |= {n: result.residuals[n] for n in result.sent if result.residuals}
        self.count(result, moved)
        largest = float(np.abs(result.total).max())
        if s.clip_from_sum and largest:
            at.clip = s.clip_from_sum * largest
        return result.total

    def low_rank_sum(
        self, moved: dict[int, Vector], dropped: list[int], silent: list[int]
    ) -> Vector:
        """The sum of the projections, in units of their clips, as a dense vector; and what users
        keep."""
        s = self.settings
        at = self.at
        start = time.process_time()
        inputs = {n: moved[n] + s.decay * at.residuals.get(n, 0.0) for n in moved}
        if at.projection is None:
            named = self.task.named(moved[min(moved)])
            at.projection = Projection.first(named, s.rank, s.clip_from_sum, nonce_of(s, at.done))
            at.projection.take_clips(inputs.values())
        projection = at.projection
        reduced = {n: projection.reduce(vector) for n, vector in inputs.items()}
        result = self.aggregate(reduced, dropped, silent, whole=True, clip=1.0)
        at.protocol_seconds += time.process_time() - start
        self.check(result, reduced, silent, lambda y: {"reduced": torch.from_numpy(y)})
        start = time.process_time()
        for n, sparse in result.sent.items():
            at.residuals[n] = inputs[n] - projection.decode(symbols_of(result, [sparse]), result)
        self.count(result, moved)
        total = symbols_of(result, result.sent.values())
        decoded = projection.decode(total, result)
        at.projection = projection.next(total, decoded, nonce=nonce_of(s, at.done + 1))
        at.protocol_seconds += time.process_time() - start
        return decoded

    def aggregate(
        self, vectors: dict[int, Vector], dropped: list[int], silent: list[int], **options: Any
    ) -> ts.AggregateReport:
        """A whole round; those who drop out have zeros, which nobody sees."""
        s = self.settings
        nothing = np.zeros_like(next(iter(vectors.values())))
        return ts.aggregate(
            {user: vectors.get(user, nothing) for user in range(1, s.users + 1)},
            survivors=s.survivors,
            colluders=s.colluders,
            construction="sketch",
            dealing=s.dealing,
            picks=None if options.get("whole") else PICKS,
            field=s.field,
            saturate=True,
            drop_masking=dropped,
            drop_elimination=silent,
            **options,
        )

    def count(self, result: ts.AggregateReport, moved: dict[int, Vector]) -> None:
        """Bytes, what was clamped, and what the users keep and show."""
        at = self.at
        if self.settings.dealing == "shares" or at.exact_rounds == 1:
            at.offline_bytes += result.costs.offline_bytes
        at.online_bytes += result.costs.masked_bytes + result.costs.answer_bytes
        at.clipped += result.clipped
        kept = [at.residuals[n] for n in result.sent if n in at.residuals]
        at.residual_norm = mean_norm(kept)
        at.moved_norm = mean_norm(moved.values())
        users = np.zeros(result.parameters.length, dtype=np.int64)
        for sparse in result.sent.values():
            users[sparse.index] += sparse.value != 0
        at.alone = float((users == 1).sum() / max(1, (users > 0).sum()))

    def check(
        self,
        result: ts.AggregateReport,
        sent: dict[int, Vector],
        silent: list[int],
        named: Callable[[Vector], dict[str, Tensor]],
    ) -> None:
        """The sum is exact; every 50th goes through files too."""
        at = self.at
        check_exact(result)
        at.exact_rounds += 1
        if (at.done + 1) % BY_FILES == 0:
            self.check_by_files(result, sent, silent, named)
            at.rounds_by_files += 1

    def check_by_files(
        self,
        result: ts.AggregateReport,
        sent: dict[int, Vector],
        silent: list[int],
        named: Callable[[Vector], dict[str, Tensor]],
    ) -> None:
        """The same round by `topk-secagg run`, on .pt files, gives the same sum but for the
        rounding: two roundings of a value differ by up to two steps."""
        self.work.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.work) as scratch:
            folder = Path(scratch)
            (folder / "gradients").mkdir()
            for user in range(1, self.settings.users + 1):
                vector = sent.get(user, np.zeros_like(result.total))
                torch.save(named(vector), folder / "gradients" / f"user-{user:02}.pt")
            run_command(folder, result, silent)
            total = flat(torch.load(folder / "sum.pt", weights_only=True))
        largest = float(np.abs(total - result.total).max())
        if largest > 2 * len(result.survivors) / scale_of(result):
            raise SystemExit(f"round {self.at.done + 1}: the commands' sum differs by {largest}")

    def record(self) -> None:
        """A row, and a checkpoint."""
        s = self.settings
        at = self.at
        self.load()
        found = self.task.test()
        row = (
            asdict(s)
            | {"survivors": s.survivors, "colluders": s.colluders, "picks": PICKS, "round": at.done}
            | found
            | {
                "training_loss": round(float(np.mean(at.losses)), 5),
                "offline_bytes": at.offline_bytes,
                "online_bytes": at.online_bytes,
                "training_seconds": round(at.training_seconds, 2),
                "protocol_seconds": round(at.protocol_seconds, 2),
                "clipped": at.clipped,
                "residual_norm": round(at.residual_norm, 5),
                "moved_norm": round(at.moved_norm, 5),
                "alone": round(at.alone, 4),
                "exact_rounds": at.exact_rounds,
                "rounds_by_files": at.rounds_by_files,
            }
        )
        at.rows.append(row)
        at.losses.clear()
        said = ", ".join(f"{name} {value:.4f}" for name, value in found.items())
        print(f"{s.name}: round {at.done}, {said}", flush=True)
        self.work.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        torch.save({"settings": asdict(s), "progress": vars(at)}, new)
        new.replace(self.path)


def cosine(done: int, rounds: int) -> float:
    """From 1 to 0: what a round's learning rate is of the first one's."""
    return (1 + math.cos(math.pi * done / rounds)) / 2


def drop_outs(s: Settings, done: int) -> tuple[list[int], list[int]]:
    """Who drops out before masking, and who after it: as many more as leave U. The same for every
    method."""
    order = [
        int(user) + 1 for user in np.random.default_rng([s.seed, 2, done]).permutation(s.users)
    ]
    first = round(s.drop * s.users)
    return sorted(order[:first]), sorted(order[first : s.users - s.survivors])


def nonce_of(s: Settings, done: int) -> bytes:
    """A round's public nonce, 16 bytes: the same for every rank."""
    return np.random.default_rng([s.seed, 3, done]).bytes(16)


def mean_norm(vectors: Iterable[Vector]) -> float:
    """Their Euclidean norms, on average."""
    norms = [float(np.linalg.norm(vector)) for vector in vectors]
    return float(np.mean(norms)) if norms else 0.0


def symbols_of(result: ts.AggregateReport, every: Iterable[Sparse]) -> npt.NDArray[np.int64]:
    """The sum of what users sent, as signed integers."""
    plain = np.zeros(result.parameters.length, dtype=np.int64)
    for sparse in every:
        plain[sparse.index] += to_signed(sparse.value, result.parameters.field)
    return plain


def check_exact(result: ts.AggregateReport) -> None:
    """The sum is bit-equal to that of the users' quantised entries."""
    plain = symbols_of(result, result.sent.values())
    if not np.array_equal(result.total, plain / float(scale_of(result))):
        raise SystemExit("the sum is not the plain sum of what was quantised")


def run_command(folder: Path, result: ts.AggregateReport, silent: Iterable[int]) -> None:
    """`topk-secagg run` with the parameters of a round in memory; writes folder/sum.pt."""
    p = result.parameters
    dropped = [user for user in range(1, p.users + 1) if user not in result.survivors]
    options = {
        "gradients": folder / "gradients",
        "survivors": p.survivors,
        "colluders": p.colluders,
        "construction": p.construction,
        "dealing": p.dealing,
        "field": p.field,
        "clip": result.fixed_point.clip,
        "drop-masking": ",".join(map(str, dropped)),
        "drop-elimination": ",".join(map(str, silent)),
        "output": folder / "sum.pt",
        "jobs": 1,
    }
    if result.reduction.is_top_k:
        options |= {"top-k": p.top_k, "picks": p.picks}
    arguments = [
        part for name, value in options.items() if str(value) for part in (f"--{name}", str(value))
    ]
    command = [
        sys.executable,
        "-m",
        "topk_secagg_cli",
        "run",
        str(folder / "round"),
        *arguments,
        *([] if result.reduction.is_top_k else ["--whole"]),
        "--saturate",
        "--quiet",
    ]
    subprocess.run(command, check=True)  # noqa: S603


def only(vector: Vector, index: npt.NDArray[np.int64]) -> Vector:
    """The vector at these coordinates, and 0 elsewhere."""
    kept = np.zeros_like(vector)
    kept[index] = vector[index]
    return kept


def flat(named: dict[str, Tensor]) -> Vector:
    """The inverse of a task's `named`."""
    return torch.cat([tensor.reshape(-1) for tensor in named.values()]).numpy()


def train(s: Settings, start: Start, args: argparse.Namespace) -> None:
    """A curve to its end; random-K without feedback at the best scale."""
    checkpoint = s.name
    if s.method == "random":
        scale = args.scale or best_scale(s, start, work=args.work, results=args.results)
        s = replace(s, scale=scale)
        checkpoint = f"{s.name}-x{s.scale:g}"
    Curve(s, start(), work=args.work, checkpoint=checkpoint).run(s.rounds, args.results)


def best_scale(s: Settings, start: Start, work: Path, results: Path) -> float:
    """The scale with the smallest training loss after a tenth of the rounds (the mean of the last
    two rows)."""
    trial = max(s.rounds // 10, RECORDED)
    losses = {
        scale: trial_loss(replace(s, scale=scale), start(), work=work, trial=trial)
        for scale in SCALES
    }
    rows = [
        {"scale": scale, "rounds": trial, "training_loss": loss} for scale, loss in losses.items()
    ]
    write_csv(results / f"{s.name}.scales.csv", rows)
    return min(losses, key=lambda scale: losses[scale])


def trial_loss(s: Settings, task: Task, work: Path, trial: int) -> float:
    """The training loss around the end of the first `trial` rounds."""
    try:
        rows = Curve(s, task, work=work, checkpoint=f"{s.name}-x{s.scale:g}").run(trial)
    except Diverged:
        return math.inf
    return float(np.mean([row["training_loss"] for row in rows if row["round"] <= trial][-2:]))


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """The whole file, at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    with new.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0] if rows else ["round"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    new.replace(path)


def add_options(parser: argparse.ArgumentParser, results: Path) -> None:
    """The options of every task."""
    parser.add_argument("--method", choices=METHODS, required=True)
    parser.add_argument("--density", type=float, default=0.01, help="K as a share of L")
    parser.add_argument("--rank", type=int, default=0, help="of the method rank")
    parser.add_argument("--field", type=int)
    parser.add_argument("--one-byte", action="store_const", const=ONE_BYTE, dest="field")
    parser.add_argument(
        "--clip-from-sum", type=float, help="the clip, in terms of the largest of the last sum"
    )
    parser.add_argument("--decay", type=float, default=1.0, help="of what users did not send")
    parser.add_argument("--scale", type=float, help="of random-K; without it, three are tried")
    parser.add_argument(
        "--drop", type=float, default=0.3, help="share of the users that drop out before masking"
    )
    parser.add_argument("--steps", type=int, default=USUAL_STEPS, help="local steps of a round")
    parser.add_argument("--users", type=int, default=USUAL_USERS)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--results", type=Path, default=results)


def settings_of(args: argparse.Namespace, task: str) -> Settings:
    """What the options ask for."""
    field = args.field or usual_field(args.method)
    follows = usual_follows(field) if args.method == "rank" else 0.0
    return Settings(
        task=task,
        method=args.method,
        density=args.density,
        scale=args.scale or 1.0,
        drop=args.drop,
        rounds=args.rounds or usual_rounds(task, steps=args.steps, users=args.users),
        seed=args.seed,
        field=field,
        clip_from_sum=follows if args.clip_from_sum is None else args.clip_from_sum,
        rank=args.rank,
        decay=args.decay,
        users=args.users,
        steps=args.steps,
    )
