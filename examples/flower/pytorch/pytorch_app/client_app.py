"""The app of a node: train on the digits that it has."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from pytorch_app import task
from topk_secagg.flower import topk_secagg_mod

app = ClientApp(mods=[topk_secagg_mod])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model that came, and send it back."""
    data = task.load_partition(
        int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    )
    model = task.Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loss = task.train(
        model,
        data,
        epochs=int(context.run_config["local-epochs"]),
        learning_rate=float(context.run_config["learning-rate"]),
    )
    metrics = MetricRecord({"num-examples": len(data), "train-loss": loss})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
