"""Compile the kernels into ``NUMBA_CACHE_DIR`` by small jobs of the strategies that use them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

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
            silos = []
            for silo in "abc":
                X = rng.normal(size=(300, 3))
                margin = X[:, 0] + X[:, 1] * X[:, 2]
                y = margin if job == "regression" else np.digitize(margin, [-0.5, 0.5])
                if job in ("binary", "genetic"):
                    y = (margin > 0).astype(int)
                path = folder / f"{job}-{silo}.parquet"
                kind = [("u", "v", "w")[k] for k in rng.integers(0, 3, 300)]
                columns = {f"x{k}": X[:, k] for k in range(3)} | {"kind": kind, "label": y}
                pq.write_table(pa.table(columns), path)
                silos += ["--silo", f"{silo}={path}"]
            task = job if job in ("multiclass", "regression") else "binary"
            head = f'name = "{job}"\ntask = "{task}"\nlabel = "label"\nseed = 1\nmin_silos = 3\n'
            (folder / f"{job}.toml").write_text(head + text)
            subprocess.run(
                [sys.executable, "-m", "hedgerow", "local", str(folder / f"{job}.toml"),
                 *silos, "--out", str(folder / "run")],
                check=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
