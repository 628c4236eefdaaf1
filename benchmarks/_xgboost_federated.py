"""A process of XGBoost's federated plugin: ``_xgboost_federated.py JOB.json [RANK]``.

Runs in the peers' environment and imports nothing of this project. Without a rank it is the server.
A worker trains on its part of the rows, scores its part of the test rows every round as the
coordinator of this project scores all of them, and prints when its rounds ended, as one line of
JSON; the first also writes the margins of all test rows.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import xgboost as xgb
from xgboost import federated


class Clock(xgb.callback.TrainingCallback):
    """Notes when rounds end, on the clock that all processes share."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        self.ends.append(time.monotonic())
        return False


def work(job: dict[str, Any], rank: int) -> None:
    part = np.load(Path(job["folder"]) / f"part-{rank}.npz")
    rows = {"feature_types": job["feature_types"], "enable_categorical": True}
    clock = Clock()
    with xgb.collective.CommunicatorContext(
        dmlc_communicator="federated",
        federated_server_address=f"127.0.0.1:{job['address']}",
        federated_world_size=job["silos"],
        federated_rank=rank,
    ):
        matrix = xgb.QuantileDMatrix(
            part["X"], part["y"], max_bin=job["parameters"]["max_bin"], **rows
        )
        test = xgb.DMatrix(part["test_X"], part["test_y"], **rows)
        booster = xgb.train(
            job["parameters"],
            matrix,
            job["rounds"],
            evals=[(test, "test")],
            callbacks=[clock],
            verbose_eval=False,
        )
    if rank == 0:
        n_parts = range(job["silos"])
        parts = [np.load(Path(job["folder"]) / f"part-{k}.npz")["test_X"] for k in n_parts]
        whole = xgb.DMatrix(np.concatenate(parts), **rows)
        np.save(Path(job["folder"]) / "margins.npy", booster.predict(whole, output_margin=True))
    print(json.dumps(clock.ends))


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    if len(sys.argv) > 2:
        work(job, int(sys.argv[2]))
    else:
        federated.run_federated_server(n_workers=job["silos"], port=job["port"])


if __name__ == "__main__":
    main()
