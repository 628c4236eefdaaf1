"""Two strategies and the baselines on Adult: what ``hedgerow compare`` says of one split.

``python -m benchmarks.adult [--quick] [--json FILE]``. ``hedgerow split`` deals the rows of the
examples to five silos and a test table, ``hedgerow compare`` runs the jobs below with all processes
and TLS. Rows are those of its ``--json``, less the seconds, which others' work changes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks._fedxgbllr_played import ADULT

SILOS = 5
JOBS = {
    "bagging": 'lr_mode = "uniform"\n[booster]', "histogram": "[booster]\nmax_bin = 64",
}  # fmt: skip


def job(strategy: str, rounds: int) -> str:
    """Return a job file."""
    return (
        f'strategy = "{strategy}"\nlabel = "label"\nseed = 7\nmin_silos = {SILOS}\n'
        'metrics = ["accuracy", "auc", "logloss"]\n'
        f"[{strategy}]\nrounds = {rounds}\n{JOBS[strategy]}\neta = 0.3\nmax_depth = 6\n"
    )


def hedgerow(*words: str) -> str:
    """Run a command and return what it prints."""
    whole = [sys.executable, "-m", "hedgerow", *words]
    return subprocess.run(whole, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    """Print what the comparison says; write its rows to a file where one is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="two rounds")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hedgerow(
            "split", str(ADULT), f"--silos={SILOS}", "--test=0.25", "--seed=7",
            f"--out={folder}",
        )  # fmt: skip
        for strategy in JOBS:
            (folder / f"{strategy}.toml").write_text(job(strategy, 2 if given.quick else 10))
        said = hedgerow(
            "compare", *(str(folder / f"{strategy}.toml") for strategy in JOBS), "--json",
            *(f"--silo=silo-{k}={folder / f'silo-{k}.parquet'}" for k in range(SILOS)),
            f"--test={folder / 'test.parquet'}", f"--out={folder / 'comparison'}", "--threads=1",
        )  # fmt: skip
    kept = ("name", "metrics", "bytes_up", "bytes_down", "rounds")
    rows = [{key: row[key] for key in kept} for row in json.loads(said)["rows"]]
    for row in rows:
        print(row["name"], row["metrics"], row["bytes_up"], row["bytes_down"])
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
