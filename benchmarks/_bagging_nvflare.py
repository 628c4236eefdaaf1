"""NVIDIA FLARE's federated bagging on the rows of ``benchmarks.bagging_peers``, in ``.venv-peers``.

``python benchmarks/_bagging_nvflare.py FOLDER SILOS ROUNDS DEPTH STEP``, where ``FOLDER`` has
``site-K/train.csv`` with the label first. FLARE's own recipe and simulator, a process a client, one
thread each. Writes ``FOLDER/nvflare.json``: CPU seconds of all processes, megabytes up and down by
the server's own statistics of its streams, and where the model is.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from _flare import simulated
from nvflare.app_opt.xgboost.histogram_based_v2.csv_data_loader import CSVDataLoader
from nvflare.app_opt.xgboost.recipes import XGBBaggingRecipe
from nvflare.recipe import set_per_site_config


def main() -> None:
    """Run the job and say what it took."""
    folder, silos, rounds, depth = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    sites = [f"site-{k + 1}" for k in range(silos)]
    recipe = XGBBaggingRecipe(
        name="bagging", min_clients=silos, num_rounds=rounds, num_client_bagging=silos,
        local_subsample=1.0, learning_rate=float(sys.argv[5]), max_depth=depth, nthread=1,
    )  # fmt: skip
    loader = {"data_loader": CSVDataLoader(folder=str(folder))}
    set_per_site_config(recipe, dict.fromkeys(sites, loader))
    server, cpu, megabytes = simulated(recipe, "bagging", sites, folder)
    found = {
        "cpu_seconds": cpu,
        "megabytes": megabytes,
        "model": str(server / "simulate_job/app_server/xgboost_model.json"),
    }
    (folder / "nvflare.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
