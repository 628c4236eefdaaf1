"""Flower's federated bagging on the rows of ``benchmarks.bagging_peers``, in ``.venv-peers``.

``python benchmarks/_bagging_flower.py FOLDER SILOS ROUNDS DEPTH STEP``, where ``FOLDER`` has
``site-K/train.csv`` with the label first. FedXgbBagging and the client of Flower's own example of
XGBoost in its simulation engine, a core a client and one thread each. Writes
``FOLDER/flower.json``: megabytes of the models in its messages up and down, CPU seconds of the
simulation's actors, which are not this process's children, and where the model is.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path

import numpy as np
import xgboost as xgb
from _flower_trees import added_tree
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedXgbBagging
from flwr.simulation import run_simulation

FOLDER, SILOS, ROUNDS, DEPTH = Path(sys.argv[1]), *map(int, sys.argv[2:5])
PARAMETERS = {
    "objective": "binary:logistic", "max_depth": DEPTH, "eta": float(sys.argv[5]) / SILOS,
    "nthread": 1, "base_score": 0.5,
}  # fmt: skip
client_app = ClientApp()
server_app = ServerApp()
_silos: dict[int, xgb.DMatrix] = {}


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Add a tree to the common model, and send it."""
    silo = int(context.node_config["partition-id"])
    if silo not in _silos:
        rows = np.loadtxt(FOLDER / f"site-{silo + 1}/train.csv", delimiter=",", dtype=np.float32)
        _silos[silo] = xgb.DMatrix(rows[:, 1:], label=rows[:, 0], nthread=1)
    own = _silos[silo]
    received = message.content["arrays"]["0"].numpy().tobytes()
    made = added_tree(PARAMETERS, own, received)
    used = resource.getrusage(resource.RUSAGE_SELF)
    counted = MetricRecord({
        "num-examples": own.num_row(), "process": os.getpid(),
        "cpu": used.ru_utime + used.ru_stime, "down": len(received),
    })  # fmt: skip
    content = RecordDict({"arrays": ArrayRecord([made]), "metrics": counted})
    return Message(content=content, reply_to=message)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Play the rounds, and write what they took."""
    moved: list[int] = []
    actors: dict[int, float] = {}

    def count(replies: list[RecordDict], weighted_by: str) -> MetricRecord:
        for content in replies:
            told = content["metrics"]
            moved.append(told["down"] + sum(len(each.data) for each in content["arrays"].values()))
            actors[told["process"]] = max(told["cpu"], actors.get(told["process"], 0.0))
        return MetricRecord({"n": len(replies)})

    strategy = FedXgbBagging(
        fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=SILOS,
        min_available_nodes=SILOS, train_metrics_aggr_fn=count,
    )  # fmt: skip
    found = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord([np.frombuffer(b"", dtype=np.uint8)]),
        num_rounds=ROUNDS,
        train_config=ConfigRecord({}),
        timeout=3600,
    )
    model = FOLDER / "flower-model.json"
    model.write_bytes(found.arrays["0"].numpy().tobytes())
    told = {"megabytes": sum(moved) / 1e6, "cpu_seconds_apart": sum(actors.values())}
    (FOLDER / "flower.json").write_text(json.dumps(told | {"model": str(model)}))


if __name__ == "__main__":
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=SILOS,
        backend_config={
            "init_args": {"num_cpus": os.cpu_count(), "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
