"""Compile the kernels beside their sources, by small jobs of the strategies that use them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import hedgerow

JOBS = {
    "binary": """
strategy = "histogram"
[histogram]
rounds = 2
sampling = "mvs"
sampling_rate = 0.5
""",
    "multiclass": """
strategy = "histogram"
[histogram]
rounds = 2
""",
    "regression": """
strategy = "histogram"
[histogram]
rounds = 2
""",
    "genetic": """
strategy = "fedga"
[fedga]
generations = 2
population = 8
""",
}


def main() -> None:
    """Run the jobs; any that fails fails the image's build."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for job, text in JOBS.items():
            silos, tables = [], []
            for silo in "abc":
                X = rng.normal(size=(300, 3))
                margin = X[:, 0] + X[:, 1] * X[:, 2]
                y = margin if job == "regression" else np.digitize(margin, [-0.5, 0.5])
                if job in ("binary", "genetic"):
                    y = (margin > 0).astype(int)
                path = folder / f"{job}-{silo}.parquet"
                kind = [("u", "v", "w")[k] for k in rng.integers(0, 3, 300)]
                columns = {f"x{k}": X[:, k] for k in range(3)} | {"kind": kind, "label": y}
                tables.append(pa.table(columns))
                pq.write_table(tables[-1], path)
                silos += ["--silo", f"{silo}={path}"]
            task = job if job in ("multiclass", "regression") else "binary"
            head = f'name = "{job}"\ntask = "{task}"\nlabel = "label"\nseed = 1\nmin_silos = 3\n'
            (folder / f"{job}.toml").write_text(head + text)
            # First in one process: three agents would each compile what none has yet.
            hedgerow.simulate(folder / f"{job}.toml", pa.concat_tables(tables), 3, test=0.0)
            subprocess.run(
                [sys.executable, "-m", "hedgerow", "local", str(folder / f"{job}.toml"),
                 *silos, "--out", str(folder / "run")],
                check=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
