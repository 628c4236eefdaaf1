"""NVIDIA FLARE's simulator, run by a script in ``.venv-peers``, and what a job in it took."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

from nvflare.recipe import SimEnv


def simulated(recipe: Any, name: str, sites: list[str], folder: Path) -> tuple[Path, float, float]:
    """Run a recipe, a process a client and one thread each.

    Returns
    -------
    Path
        The server's folder.
    float
        CPU seconds of all processes.
    float
        Megabytes up and down by the server's own statistics of its streams.
    """
    workspace = folder / "flare"
    recipe.execute(SimEnv(clients=sites, num_threads=len(sites), workspace_root=str(workspace)))
    server = workspace / name / "server"
    pools = json.loads((server / "pool_stats/simulator_cell_stats.json").read_text())
    mebibytes = sum(
        part["total"]
        for way in ("received_stream_sizes", "sent_stream_sizes")
        for parts in pools[way]["pool"]["cat_data"].values()
        for part in parts
        if part
    )
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return server, sum(each.ru_utime + each.ru_stime for each in spent), mebibytes * 2**20 / 1e6
