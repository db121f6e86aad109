"""Rounds over Flower: ours beside Flower's own SecAgg+ workflow, and beside plain FedAvg.

Usage: flower_rounds.py [--rounds 4] [--turns 3] [--output FILE]; it needs `topk-secagg[flower]` and
`flwr[simulation]` (`make bench-flower` installs both).

All three run in Flower's simulation engine (`run_simulation`, ten nodes, one Ray actor for each
core), with the same model of 272,474 parameters in one float32 array, and the same updates: a node
does not train, but adds a heavy-tailed random vector to the model that it got. Nobody drops out.
The systems take turns: a simulation of each, several rounds long, and this several times.

- plain: the Message API's FedAvg without any protection, the floor of this engine.
- secagg+: the legacy API's `SecAggPlusWorkflow` with `secaggplus_mod`; ten shares of which seven
  reconstruct, and otherwise its defaults.
- ours: `TopKSecAgg(FedAvg(...))` with `topk_secagg_mod`; U = 7, T = 3, K = 1 %.

Seconds of a round: from the strategy's choice of nodes to the new model on the server, everything
that the engine does between included. Before the first round a query to every node loads the app
and its libraries in all actors, off the clock. Seconds of CPU are those of the server, the engine
and all nodes together. Counting bytes is in neither.

Bytes that a node sends: the protobuf of each of its replies, serialised, all phases of the round
added up, and the mean over the ten nodes. What the server sends to nodes is not counted: it is the
model, which is the same for all, and what it forwards. HTTP and TLS would come on top, and are not
there in a simulation.

SecAgg+ sums models, ours sums what was selected of the updates, so that the means differ by what
waits for a later round. The mean of SecAgg+ is compared with the plain one, and the sum of our
first round with that of `topk_secagg.aggregate`.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from measuring import machine, scratch

LENGTH = 272_474
NODES = 10
SURVIVORS = 7
COLLUDERS = 3
DENSITY = 0.01
WEIGHT = 100  # of every node, in examples
MAX_WEIGHT = 1_000.0
CLIP = 1.0
SYSTEMS = ("plain", "secagg+", "ours")


@dataclass
class Round:
    """What one round took, and what a node sent in it on average."""

    seconds: float
    cpu_seconds: float
    bytes_sent: float
    replies: int


@dataclass
class Simulation:
    """The rounds of one simulation, and the model after each."""

    rounds: list[Round] = field(default_factory=list)
    models: list[np.ndarray] = field(default_factory=list)


def first_model() -> np.ndarray:
    """All zero, so that the mean of the first updates is the model after the first round."""
    return np.zeros(LENGTH, np.float32)


def update(node: int) -> np.ndarray:
    """Cubes of normal numbers; every node has its own, the same in every round."""
    values = np.random.default_rng(node).standard_normal(LENGTH, dtype=np.float32)
    return np.clip(values**3 * np.float32(1e-3), -1, 1)


def cpu_seconds() -> float:
    """Of this process and all that it started: the server, the engine and the actors."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        pid = int(path.parent.name)
        parents[pid] = int(fields[1])
        ticks[pid] = int(fields[11]) + int(fields[12])
    own = os.getpid()

    def is_own(pid: int) -> bool:
        while pid not in (0, own):
            pid = parents.get(pid, 0)
        return pid == own

    return sum(ticks[pid] for pid in ticks if is_own(pid)) / os.sysconf("SC_CLK_TCK")


class CountingGrid:
    """A grid that counts what comes back; everything else is the grid's."""

    def __init__(self, grid: Any) -> None:
        self.grid = grid
        self.bytes_received = 0
        self.replies = 0
        self.seconds = 0.0  # that counting took: they are not the system's
        self.cpu_seconds = 0.0  # the same

    def __getattr__(self, name: str) -> Any:
        return getattr(self.grid, name)

    def _counted(self, replies: Iterable[Any]) -> list[Any]:
        from flwr.common.serde import message_to_proto

        received = list(replies)
        start = time.perf_counter()
        start_cpu = time.thread_time()
        for reply in received:
            if reply.has_error():
                raise SystemExit(f"a node failed: {reply.error}")
            self.bytes_received += message_to_proto(reply).ByteSize()
            self.replies += 1
        self.seconds += time.perf_counter() - start
        self.cpu_seconds += time.thread_time() - start_cpu
        return received

    def pull_messages(self, message_ids: Iterable[str]) -> list[Any]:
        """Those that have come, counted."""
        return self._counted(self.grid.pull_messages(message_ids))

    def send_and_receive(
        self, messages: Iterable[Any], *, timeout: float | None = None
    ) -> list[Any]:
        """All replies, counted."""
        return self._counted(self.grid.send_and_receive(messages, timeout=timeout))


class Clock:
    """Measures rounds: seconds between start and stop, and bytes since the last stop."""

    def __init__(self, grid: CountingGrid, simulation: Simulation) -> None:
        self.grid = grid
        self.simulation = simulation
        self.bytes_before = 0
        self.replies_before = 0
        self.started = 0.0
        self.cpu_before = 0.0

    def start(self) -> None:
        """Of a round."""
        self.cpu_before = cpu_seconds() - self.grid.cpu_seconds
        self.started = time.perf_counter() - self.grid.seconds

    def stop(self) -> None:
        """Of the same round."""
        seconds = time.perf_counter() - self.grid.seconds - self.started
        cpu = cpu_seconds() - self.grid.cpu_seconds - self.cpu_before
        sent = (self.grid.bytes_received - self.bytes_before) / NODES
        replies = self.grid.replies - self.replies_before
        self.simulation.rounds.append(
            Round(seconds=seconds, cpu_seconds=cpu, bytes_sent=sent, replies=replies)
        )
        self.bytes_before = self.grid.bytes_received
        self.replies_before = self.grid.replies


def warm_up(grid: Any) -> None:
    """Every actor loads the app and its libraries."""
    from flwr.app import Message, RecordDict

    while len(nodes := list(grid.get_node_ids())) < NODES:
        time.sleep(0.1)
    messages = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in nodes]
    replies = list(grid.send_and_receive(messages))
    assert not any(reply.has_error() for reply in replies)


def message_client(mods: list[Any]) -> Any:
    """The app of a node in the Message API."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Any) -> Message:
        (model,) = message.content["arrays"].to_numpy_ndarrays()
        arrays = ArrayRecord([model + update(int(context.node_config["partition-id"]))])
        metrics = MetricRecord({"num-examples": WEIGHT})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.query()
    def query(message: Message, context: Any) -> Message:
        del context
        return Message(RecordDict(), reply_to=message)

    return app


def message_server(
    rounds: int, simulation: Simulation, protected: Callable[[Any], Any] | None
) -> Any:
    """The app of the server in the Message API."""
    from flwr.app import ArrayRecord, MetricRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg

    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        del context
        warm_up(grid)
        counting = CountingGrid(grid)
        clock = Clock(counting, simulation)
        strategy: Any = FedAvg(fraction_evaluate=0.0, min_available_nodes=NODES)
        strategy = protected(strategy) if protected else strategy
        configure = strategy.configure_train
        aggregate = strategy.aggregate_train

        def configure_train(*arguments: Any, **named: Any) -> Any:
            clock.start()
            return configure(*arguments, **named)

        def aggregate_train(*arguments: Any, **named: Any) -> Any:
            aggregated = aggregate(*arguments, **named)
            clock.stop()
            return aggregated

        strategy.configure_train = configure_train
        strategy.aggregate_train = aggregate_train

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
            if server_round:
                simulation.models.append(arrays.to_numpy_ndarrays()[0])
            return MetricRecord({"round": server_round})

        strategy.start(
            grid=counting,
            initial_arrays=ArrayRecord([first_model()]),
            num_rounds=rounds,
            evaluate_fn=evaluate,
        )

    return app


def legacy_client() -> Any:
    """The app of a node in the legacy API, with SecAgg+."""
    from flwr.app import Message, RecordDict
    from flwr.client import NumPyClient
    from flwr.client.mod import secaggplus_mod
    from flwr.clientapp import ClientApp

    class Client(NumPyClient):
        def __init__(self, partition: int) -> None:
            self.partition = partition

        def fit(self, parameters: list[np.ndarray], config: Any) -> Any:
            del config
            return [parameters[0] + update(self.partition)], WEIGHT, {}

    def client(context: Any) -> Any:
        return Client(int(context.node_config["partition-id"])).to_client()

    def only_train(message: Message, context: Any, call_next: Any) -> Message:
        if message.metadata.message_type == "query":  # the legacy API has no such function
            return Message(RecordDict(), reply_to=message)
        return call_next(message, context)

    return ClientApp(client_fn=client, mods=[only_train, secaggplus_mod])


def legacy_server(rounds: int, simulation: Simulation) -> Any:
    """The app of the server in the legacy API, with SecAgg+."""
    from flwr.common import ndarrays_to_parameters
    from flwr.server import LegacyContext, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        warm_up(grid)
        counting = CountingGrid(grid)
        clock = Clock(counting, simulation)
        secagg = SecAggPlusWorkflow(
            num_shares=NODES,
            reconstruction_threshold=SURVIVORS,
            max_weight=MAX_WEIGHT,
        )

        def fit(grid: Any, context: Any) -> None:
            clock.start()
            secagg(grid, context)
            clock.stop()

        def evaluate(server_round: int, parameters: Any, config: Any) -> Any:
            del config
            if server_round:
                simulation.models.append(parameters[0])
            return 0.0, {}

        strategy = FedAvg(
            fraction_evaluate=0.0,
            min_available_clients=NODES,
            initial_parameters=ndarrays_to_parameters([first_model()]),
            evaluate_fn=evaluate,
        )
        legacy = LegacyContext(
            context=context, config=ServerConfig(num_rounds=rounds), strategy=strategy
        )
        DefaultWorkflow(fit_workflow=fit)(counting, legacy)

    return app


def apps(system: str, rounds: int, simulation: Simulation) -> tuple[Any, Any]:
    """The apps of server and node."""
    if system == "secagg+":
        return legacy_server(rounds, simulation), legacy_client()
    if system == "plain":
        return message_server(rounds, simulation, None), message_client([])
    from topk_secagg.flower import TopKSecAgg, topk_secagg_mod

    def protected(strategy: Any) -> Any:
        return TopKSecAgg(
            strategy,
            survivors=SURVIVORS,
            colluders=COLLUDERS,
            density=DENSITY,
            clip=CLIP,
            max_weight=MAX_WEIGHT,
        )

    return message_server(rounds, simulation, protected), message_client([topk_secagg_mod])


def simulate(system: str, rounds: int) -> Simulation:
    """One simulation of a system."""
    from flwr.simulation import run_simulation

    simulation = Simulation()
    server, client = apps(system, rounds, simulation)
    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=NODES,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    if len(simulation.rounds) != rounds:
        raise SystemExit(f"{system}: {len(simulation.rounds)} of {rounds} rounds")
    check(system, simulation)
    return simulation


def check(system: str, simulation: Simulation) -> None:
    """Every model is what the updates give: of ours the first, since later ones have residuals."""
    updates = [update(node) for node in range(NODES)]
    if system == "ours":
        import topk_secagg

        expected = topk_secagg.aggregate(
            updates,
            survivors=SURVIVORS,
            colluders=COLLUDERS,
            density=DENSITY,
            clip=CLIP,
            mean=True,
        ).total
        means = simulation.models[:1]
        allowed = 1e-6
        for before, after in pairwise(simulation.models):
            if np.array_equal(before, after):
                raise SystemExit("ours: a round was skipped")
    else:
        expected = np.mean(updates, axis=0)
        means = np.diff([first_model(), *simulation.models], axis=0)
        allowed = 1e-6 if system == "plain" else 8 * 8 / 2**22 * MAX_WEIGHT / WEIGHT
    for mean in means:
        furthest = float(np.abs(mean - expected).max())
        if furthest > allowed:
            raise SystemExit(f"{system}: the mean is wrong by {furthest}")


def measure(rounds: int, turns: int) -> dict[str, Any]:
    """All systems in turns; the rounds of each simulation."""
    import flwr

    load = os.getloadavg()[0]
    logging.disable(logging.INFO)  # Flower writes several lines a round
    measured: dict[str, list[list[Round]]] = {system: [] for system in SYSTEMS}
    for turn in range(turns):
        for system in SYSTEMS:
            simulation = simulate(system, rounds)
            measured[system].append(simulation.rounds)
            shown = ", ".join(
                f"{r.seconds:.2f} s ({r.cpu_seconds:.2f} of CPU) {r.bytes_sent:,.0f} B"
                for r in simulation.rounds
            )
            print(f"turn {turn + 1}, {system}: {shown}", flush=True)
    return {
        "machine": {**machine(), "flwr": flwr.__version__, "load": load},
        "parameters": {
            "length": LENGTH,
            "nodes": NODES,
            "survivors": SURVIVORS,
            "colluders": COLLUDERS,
            "density": DENSITY,
        },
        "rounds": {
            system: [[asdict(each) for each in turn] for turn in measured[system]]
            for system in SYSTEMS
        },
    }


NAMES = {
    "plain": "FedAvg, unprotected",
    "secagg+": "SecAgg+ (legacy API)",
    "ours": "`TopKSecAgg(FedAvg)`",
}


def spread(values: list[float]) -> str:
    """The median, and the smallest and the largest."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}..{max(values):.2f})"


def rows(results: dict[str, Any]) -> list[list[str]]:
    """The table: first and later rounds of each system."""
    table = [
        [
            "",
            "round",
            "messages a node sends",
            "kB a node sends",
            "seconds (least..most)",
            "seconds of CPU (least..most)",
        ]
    ]
    for system in SYSTEMS:
        turns = results["rounds"][system]
        for name, chosen in (
            ("first", [turn[0] for turn in turns]),
            ("later", [each for turn in turns for each in turn[1:]]),
        ):
            sent = statistics.median(each["bytes_sent"] for each in chosen) / 1000
            replies = statistics.median(each["replies"] for each in chosen) / NODES
            table.append(
                [
                    NAMES[system],
                    name,
                    f"{replies:.0f}",
                    f"{sent:,.1f}",
                    spread([each["seconds"] for each in chosen]),
                    spread([each["cpu_seconds"] for each in chosen]),
                ]
            )
    return table


def main() -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # without a warning
    # else everything else that the machine does comes first (Ray's own spelling)
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    with scratch() as folder:
        os.environ["XDG_STATE_HOME"] = str(folder.resolve())  # where nodes keep their files
        results = measure(arguments.rounds, arguments.turns)
    for row in rows(results):
        print(" | ".join(row))
    if arguments.output:
        arguments.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
