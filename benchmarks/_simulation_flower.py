"""Flower's simulation engine on the job of ``benchmarks.simulation``; runs in ``.venv-peers``.

``python benchmarks/_simulation_flower.py SILOS ROUNDS DATA``, where ``DATA`` is a Parquet file with
a column ``label`` of 0 and 1: FedXgbBagging, stumps, a core a client. Writes a line of JSON. The
client is that of Flower's own example of XGBoost, without its evaluation in the silos, which
:mod:`hedgerow` leaves out as well: the server scores the test rows after each round.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import xgboost as xgb
from _flower_trees import added_tree
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedXgbBagging
from flwr.simulation import run_simulation

N_SILOS, N_ROUNDS, PATH = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
PARAMETERS = {
    "objective": "binary:logistic", "max_depth": 1, "eta": 0.3 / N_SILOS, "nthread": 1,
    "base_score": 0.5,
}  # fmt: skip
TEST_SHARE = 0.2


def rows() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return features and labels in a random order that every process knows."""
    table = pq.read_table(PATH)
    numeric = [f.name for f in table.schema if f.name != "label" and str(f.type) != "string"]
    numeric = [name for name in numeric if "dictionary" not in str(table.schema.field(name).type)]
    x = np.stack([table.column(n).to_numpy().astype(np.float32) for n in numeric], axis=1)
    order = np.random.default_rng(0).permutation(len(x))
    return x[order], table.column("label").to_numpy()[order]


client_app = ClientApp()
server_app = ServerApp()
_silos: dict[int, xgb.DMatrix] = {}
_tables: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Add a tree to the common model, and send it."""
    silo = int(context.node_config["partition-id"])
    if silo not in _silos:
        if not _tables:
            _tables.append(rows())
        x, y = (part[int(TEST_SHARE * len(part)) :] for part in _tables[0])
        mine = np.array_split(np.arange(len(x)), N_SILOS)[silo]
        _silos[silo] = xgb.DMatrix(x[mine], label=y[mine], nthread=1)
    own = _silos[silo]
    made = added_tree(PARAMETERS, own, message.content["arrays"]["0"].numpy().tobytes())
    content = RecordDict(
        {
            "arrays": ArrayRecord([made]),
            "metrics": MetricRecord({"num-examples": own.num_row()}),
        }
    )
    return Message(content=content, reply_to=message)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Play the rounds."""
    x, y = (part[: int(TEST_SHARE * len(part))] for part in rows())
    test, scores, began = xgb.DMatrix(x, label=y), [], time.perf_counter()
    seconds: list[float] = []

    def score(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        seconds.append(time.perf_counter() - began)
        raw = arrays["0"].numpy().tobytes()
        if not raw:
            return MetricRecord({"auc": 0.5})
        booster = xgb.Booster({"nthread": 1, "eval_metric": "auc"}, model_file=bytearray(raw))
        scores.append(float(booster.eval(test).split(":")[1]))
        return MetricRecord({"auc": scores[-1]})

    strategy = FedXgbBagging(
        fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=N_SILOS,
        min_available_nodes=N_SILOS,
    )  # fmt: skip
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord([np.frombuffer(b"", dtype=np.uint8)]),
        num_rounds=N_ROUNDS,
        train_config=ConfigRecord({}),
        evaluate_fn=score,
        timeout=3600,
    )
    print("rounds", json.dumps({"auc": scores, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    begun = time.perf_counter()
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=N_SILOS,
        backend_config={
            "init_args": {"num_cpus": os.cpu_count(), "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    wall = time.perf_counter() - begun
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(each.ru_utime + each.ru_stime for each in spent)
    print("run", json.dumps({"silos": N_SILOS, "wall_seconds": wall, "cpu_seconds": cpu}))
