"""The app of the server: average what the nodes have trained, and test it."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from pytorch_app import task
from topk_secagg.flower import TopKSecAgg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds."""
    config = context.run_config
    strategy = TopKSecAgg(
        FedAvg(fraction_evaluate=0.0),
        users=int(config["users"]),
        survivors=int(config["survivors"]),
        colluders=int(config["colluders"]),
        density=float(config["density"]),
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(task.new_model().state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        timeout=float(config["timeout"]),
        evaluate_fn=evaluate,
    )


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """The accuracy on the server's own digits, after each round."""
    model = task.Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    accuracy = task.accuracy(model, task.load_test())
    print(f"round {server_round}: accuracy {accuracy:.3f}")
    return MetricRecord({"accuracy": accuracy})
