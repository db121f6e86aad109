"""The digits app in a real deployment: a SuperLink and five SuperNodes, processes on loopback.

One SuperNode is killed between masking and answering: its app notes that it was asked for its
answer, and waits for its end. It is started again, under another number, and takes part again.
"""

import shutil
import urllib.request
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from processes import FLOWER, Processes, free_ports

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower" / "digits"
NODES = 5
KILLED = 4  # the partition of the node
SURVIVORS = 4
COLLUDERS = 1
ROUNDS = 4
DENSITY = 0.1

# mods around the one of the example: the first waits to be killed, the last notes what is trained
MODS = '''
"""Mods of a test."""

import time
from pathlib import Path

import numpy as np
from topk_secagg.flower import parcels


def folder_of(context):
    return Path(context.node_config["topk-secagg-folder"])


def wait_to_be_killed(message, context, call_next):
    if context.node_config["partition-id"] == KILLED:
        asked = folder_of(context) / "asked"
        if parcels.opened(message).step == parcels.ANSWER and not asked.exists():
            asked.touch()
            time.sleep(3600)
    return call_next(message, context)


def note(message, context, call_next):
    before = message.content["arrays"].to_numpy_ndarrays()
    reply = call_next(message, context)
    after = reply.content["arrays"].to_numpy_ndarrays()
    folder = folder_of(context)
    count = len(list(folder.glob("trained-*.npz")))
    with (folder / f"trained-{count + 1}.npz").open("wb") as stream:
        np.savez(
            stream,
            before=np.concatenate([a.ravel() for a in before]),
            after=np.concatenate([a.ravel() for a in after]),
            weight=reply.content["metrics"]["num-examples"],
        )
    return reply
'''


def app_of_the_test(folder: Path) -> Path:
    """The example with the mods above."""
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    package = folder / "digits_app"
    (package / "mods.py").write_text(MODS.lstrip().replace("KILLED", str(KILLED)))
    client = package / "client_app.py"
    text = client.read_text()
    assert text.count("mods=[topk_secagg_mod]") == 1
    text = text.replace("mods=[topk_secagg_mod]", "mods=[wait_to_be_killed, topk_secagg_mod, note]")
    text = text.replace(
        "from digits_app import task\n",
        "from digits_app import task\nfrom digits_app.mods import note, wait_to_be_killed\n",
    )
    client.write_text(text)
    return folder


def answers(address: str) -> bool:
    """Whether the SuperLink is up."""
    with suppress(OSError), urllib.request.urlopen(f"http://{address}/health", timeout=5) as reply:
        return reply.status == 200
    return False


def node_id(log: Path) -> str | None:
    """What the SuperLink calls a SuperNode, once it is connected."""
    for line in log.read_text(errors="replace").splitlines():
        if "SuperNode ID:" in line:
            return line.split()[-1]
    return None


def test_a_node_that_is_killed_before_it_answers_is_part_of_the_sum_and_comes_back(tmp_path):
    import topk_secagg as ts

    app = app_of_the_test(tmp_path / "app")
    ports = free_ports(2 + NODES)
    address = f"127.0.0.1:{ports[0]}"
    folders = [tmp_path / f"node-{n}" for n in range(NODES)]
    with Processes(tmp_path) as processes:
        link = processes.start(
            "link",
            FLOWER / "flower-superlink",
            "--insecure",
            "--disable-runtime-dependency-installation",
            "--port",
            ports[0],
        )
        link.wait_for(lambda: answers(address), "SuperLink")

        def start_node(n, name, port):
            return processes.start(
                name,
                FLOWER / "flower-supernode",
                "--insecure",
                "--superlink",
                address,
                "--port",
                port,
                "--node-config",
                f'partition-id={n} num-partitions={NODES} topk-secagg-folder="{folders[n]}"',
            )

        nodes = [start_node(n, f"node-{n}", ports[1 + n]) for n in range(NODES)]
        for node in nodes:
            node.wait_for(lambda node=node: node_id(node.log) is not None, "connection")
        processes.connect_to(address)
        run = processes.start(
            "run",
            FLOWER / "flwr",
            "run",
            app,
            "here",
            "--stream",
            "--run-config",
            f"num-server-rounds={ROUNDS} users={NODES} survivors={SURVIVORS} colluders={COLLUDERS} "
            f"density={DENSITY} timeout=300.0",
        )
        asked = folders[KILLED] / "asked"
        run.wait_for(asked.exists, "question for the answer")
        nodes[KILLED].kill()
        # its heartbeat would be missed only after a minute; an operator need not wait for that
        gone = processes.start(
            "gone", FLOWER / "flwr", "supernode", "unregister", node_id(nodes[KILLED].log), "here"
        )
        assert gone.wait() == 0, gone.text()
        start_node(KILLED, "again", ports[1 + NODES])
        assert run.wait() == 0, run.text()
        text = run.text()

    accuracies = [float(line.split()[-1]) for line in text.splitlines() if "accuracy 0." in line]
    assert len(accuracies) == 1 + ROUNDS, text
    assert accuracies[0] < 0.3 < accuracies[1] < 1
    assert accuracies[-1] > accuracies[0]
    assert text.count("drops out at the step") == text.count("drops out at the step answer") == 1
    assert f"round 1: {NODES} of {NODES} users, " in text
    assert text.count(" is back, as node ") == 1
    assert f"round {ROUNDS}: {NODES} of {NODES} users, " in text

    first = [np.load(folder / "trained-1.npz") for folder in folders]
    second = [np.load(folders[n] / "trained-2.npz") for n in range(NODES) if n != KILLED]
    step = second[0]["before"].astype(float) - first[0]["before"]

    def mean(which: list[int]) -> np.ndarray:
        return ts.aggregate(
            [first[n]["after"].astype(float) - first[n]["before"] for n in which],
            survivors=SURVIVORS,
            colluders=COLLUDERS,
            density=DENSITY,
            clip=1.0,
            construction="sketch",
            weights=[float(first[n]["weight"]) for n in which],
            mean=True,
        ).total

    everybody = list(range(NODES))
    assert np.abs(step - mean(everybody)).max() < 1e-6
    assert np.abs(step - mean(everybody[:KILLED])).max() > 1e-3  # its own part is in there
