"""What an agent's memory holds while it trains: bytes a value, above what it holds anyway.

``python -m benchmarks.memory [--quick] [--rows N] [--json FILE]``. A coordinator and three agents,
processes of their own, run a histogram job with secure sums. One agent has the table, the others a
thousand rows each. Its peak of resident memory (``VmHWM``; no control group is needed) is read
after the job, and compared with that of the same job where it too has a thousand rows. 24 bytes a
row are for labels, margins, gradients, integers and order; the rest is put on the values.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.many_agents import ROOT, start_coordinator
from hedgerow.coordinator.operator.library.clients import client_for
from hedgerow.services.identity.authority import throwaway
from hedgerow.services.wire import job_file

N_FEATURES = 28
ROW_BYTES = 24
SILOS = ("large", "small-1", "small-2")
JOB = """
name = "memory"
strategy = "histogram"
seed = 7
min_silos = 3
start_timeout_seconds = 300
step_timeout_seconds = 300
[histogram]
rounds = 2
[booster]
max_depth = 8
"""


def write_table(path: Path, n_rows: int, seed: int) -> None:
    """Write a table, a part at a time."""
    names = [f"f{j}" for j in range(N_FEATURES)]
    schema = pa.schema([*((name, pa.float32()) for name in names), ("label", pa.int8())])
    rng = np.random.default_rng(seed)
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, n_rows, 250_000):
            n = min(250_000, n_rows - start)
            X = rng.standard_normal((N_FEATURES, n)).astype(np.float32)
            label = (X[0] + X[1] * X[2] + rng.standard_normal(n) > 0).astype(np.int8)
            writer.write_table(pa.table([*X, label], schema=schema))


def peak(folder: Path, n_rows: int) -> int:
    """Run the job; return the peak of the large silo's agent in bytes."""
    throwaway(folder / "pki", sorted(SILOS), time.time())
    coordinator, address = start_coordinator(folder)
    agents = []
    try:
        for k, silo in enumerate(SILOS):
            table = folder / f"{silo}.parquet"
            write_table(table, 1000 if k else n_rows, k)
            settings: dict[str, Any] = {
                "coordinator": address,
                "identity": str(folder / "pki/silo" / silo),
                "state": str(folder / f"state-{silo}"),
                "metrics": "",
            }
            lines = [f"{k} = {json.dumps(v)}\n" for k, v in settings.items()]
            config = folder / f"{silo}.toml"
            config.write_text("".join(lines) + f"[data]\npath = {json.dumps(str(table))}\n")
            with (folder / f"{silo}.log").open("wb") as log:
                command = [sys.executable, "-m", "hedgerow.client_agent", "--config", str(config)]
                agents.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT))
        client = client_for(address, folder / "pki/operator", None)
        for view in client.watch(client.create(job_file.parse(JOB))):
            if view.ended and view.state != "SUCCEEDED":
                raise RuntimeError(f"the job has {view.state.lower()}: {view.detail}")
        status = Path(f"/proc/{agents[0].pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) << 10
    finally:
        for process in [*agents, coordinator]:
            process.terminate()
            process.wait(20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="500,000 rows")
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    n_rows = 500_000 if given.quick else given.rows
    shown: list[dict[str, Any]] = []

    def show(metric: str, value: float, unit: str) -> None:
        variant = f"{n_rows} x {N_FEATURES}"
        row = {"metric": metric, "who": "hedgerow", "variant": variant, "value": value}
        shown.append(row | {"unit": unit})
        print(f"{metric:<24} {variant:<28} {value:>10.4g} {unit}", flush=True)

    peaks = []
    for n in (1000, n_rows):
        with tempfile.TemporaryDirectory() as name:
            peaks.append(peak(Path(name), n))
    above = peaks[1] - peaks[0]
    show("agent_base", peaks[0] / 1e6, "MB")
    show("agent_peak", peaks[1] / 1e6, "MB")
    show("bytes_a_row_in_all", above / n_rows, "B")
    values = above - ROW_BYTES * n_rows
    show("bytes_a_value_histogram", values / n_rows / N_FEATURES, "B")
    if given.json:
        given.json.write_text(json.dumps(shown, indent=1))


if __name__ == "__main__":
    main()
