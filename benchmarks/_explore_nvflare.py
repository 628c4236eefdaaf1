"""NVIDIA FLARE's federated statistics of the rows of ``benchmarks.explore``, in ``.venv-peers``.

``python benchmarks/_explore_nvflare.py FOLDER SILOS``, where ``FOLDER`` has ``site-K.parquet``.
FLARE's own recipe, its statistics of data frames and its simulator, a process a client: count, sum,
mean, deviation and histograms of 20 bins; its quantiles need a release of fastdigest that no longer
builds. Writes ``FOLDER/nvflare.json``:
CPU seconds of all processes, and megabytes of a client by the server's statistics of its streams.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd
from _flare import simulated
from nvflare.app_opt.statistics.df.df_core_statistics import DFStatisticsCore
from nvflare.recipe.fedstats import FedStatsRecipe


class Rows(DFStatisticsCore):
    """The statistics of one client's rows."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def initialize(self, fl_ctx) -> None:
        """Read the client's table."""
        self.data = {"rows": pd.read_parquet(f"{self.folder}/{fl_ctx.get_identity_name()}.parquet")}


def main() -> None:
    """Run the job and say what it took."""
    folder, silos = Path(sys.argv[1]).resolve(), int(sys.argv[2])
    sites = [f"site-{k + 1}" for k in range(silos)]
    recipe = FedStatsRecipe(
        name="stats", stats_output_path="statistics.json", sites=sites,
        statistic_configs={
            "count": {}, "sum": {}, "mean": {}, "stddev": {},
            "histogram": {"*": {"bins": 20}},
        },
        stats_generator=Rows(str(folder)),
    )  # fmt: skip
    server, cpu, megabytes = simulated(recipe, "stats", sites, folder)
    told = {
        "cpu": cpu,
        "mb": megabytes / silos,
        "file": str(next(server.rglob("statistics.json"))),
    }
    (folder / "nvflare.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
