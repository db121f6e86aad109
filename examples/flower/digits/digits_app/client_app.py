"""The app of a node: train on the digits that it has."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_app import task
from topk_secagg.flower import topk_secagg_mod

app = ClientApp(mods=[topk_secagg_mod])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model that came, and send it back."""
    images, labels = task.load_partition(
        int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    )
    model = message.content["arrays"].to_numpy_ndarrays()
    model = [array.copy() for array in model]  # what came may be read-only
    loss = task.train(
        model,
        images,
        labels,
        epochs=int(context.run_config["local-epochs"]),
        learning_rate=float(context.run_config["learning-rate"]),
    )
    metrics = MetricRecord({"num-examples": len(labels), "train-loss": loss})
    content = RecordDict({"arrays": ArrayRecord(model), "metrics": metrics})
    return Message(content=content, reply_to=message)
