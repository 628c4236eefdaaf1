"""What it costs to look at a table that nobody may see whole, beside looking at it whole.

``python -m benchmarks.explore [--rows 1000000] [--columns 100] [--silos 5] [--data FILE]``, with
``--nvflare .venv-peers/bin/python`` beside NVIDIA FLARE's statistics of the same rows (``make
peers``). ``--vertical`` deals columns to two parties instead, 100,000 rows of 60 unless others are
given, and compares the information of each with a tree of depth 1.

A made table (half of its columns correlated, some values missing), or FILE's; its rows are dealt to
silos, each with a vault of its own, in one process. Exchanges and bytes are those of one silo, CPU
seconds those of all silos and the coordinator together. Beside it what one who has all rows pays
with pandas for ``describe``, ``corr`` and counts of 20 bins by class: a part of what explore tells.
Set ``OPENBLAS_NUM_THREADS=1``, as images and command line do.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import hedgerow
from hedgerow.coordinator.operator.library.jobs import table_of
from hedgerow.coordinator.operator.library.memory import Conditions, federate


def made(n_rows: int, n_columns: int, seed: int = 0) -> pd.DataFrame:
    """Return normal columns, of which each second one goes with the one before."""
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for k in range(n_columns):
        own = rng.normal(size=n_rows).astype(np.float32)
        if k % 2:
            own = own + found[f"x{k - 1}"]
        if k % 10 == 3:
            own[rng.random(n_rows) < 0.05] = np.nan
        found[f"x{k}"] = own
    found["label"] = (found["x0"] + rng.normal(size=n_rows) > 0).astype(np.int64)
    return pd.DataFrame(found)


def measured(of: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return a call's result, CPU seconds of the process, and seconds."""
    cpu, began = time.process_time(), time.perf_counter()
    found = of()
    return found, time.process_time() - cpu, time.perf_counter() - began


def pooled(table: pd.DataFrame, label: str) -> None:
    """Count and describe with all rows at hand."""
    table.describe()
    table.corr(numeric_only=True)
    for name in table.columns:
        if name != label and table[name].dtype.kind == "f":
            bins = pd.qcut(table[name], 20, duplicates="drop")
            pd.crosstab(bins, table[label])


def flare(python: Path, dealt: list[pd.DataFrame]) -> dict[str, float]:
    """Return what NVIDIA FLARE takes in an environment of its own."""
    with tempfile.TemporaryDirectory() as folder:
        for k, own in enumerate(dealt):
            own.to_parquet(f"{folder}/site-{k + 1}.parquet")
        script = Path(__file__).with_name("_explore_nvflare.py")
        command = [python, script, folder, str(len(dealt))]
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - began
        return {**json.loads(Path(folder, "nvflare.json").read_text()), "seconds": seconds}


def vertical(rows: int, columns: int, encryption: str) -> None:
    """Print what the information of two parties' columns costs, and a tree of depth 1."""
    table = made(rows, columns).assign(_id=[f"p{k}" for k in range(rows)])
    names = [f"x{k}" for k in range(columns)]
    parts = {"active": [*names[: columns // 2], "label"], "passive": names[columns // 2 :]}
    common = {"label": "label", "active": "active", "encryption": encryption, "max_bin": 20}
    for what, own in (
        ("information", {"information": True}),
        ("a tree of depth 1", {"rounds": 1, "max_depth": 1}),
    ):
        job = hedgerow.Job("secureboost", silos=[*parts], min_silos=2, **common, **own)
        held = {
            name: table_of(job.parameters, name, table[["_id", *own]])
            for name, own in parts.items()
        }
        result, cpu, seconds = measured(
            lambda job=job, held=held: federate(job, held, Conditions())
        )
        megabytes = sum(sum(result.view.bytes_of(name)) for name in parts) / 2e6
        calls = sum(one.calls for one in result.view.steps if one.silo == "active")
        print(f"{what:22}{calls:10}{megabytes:11.2f}{cpu:8.1f}{seconds:8.1f}")


def main() -> None:
    """Print a row for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--columns", type=int, default=0)
    parser.add_argument("--silos", type=int, default=5)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--label", default="label")
    parser.add_argument("--nvflare", type=Path, help="Python of .venv-peers")
    parser.add_argument("--vertical", action="store_true")
    parser.add_argument("--encryption", default="paillier", choices=("paillier", "elgamal"))
    given = parser.parse_args()
    if given.vertical:
        print(f"{'':22}{'exchanges':>10}{'MB a party':>11}{'CPU s':>8}{'s':>8}")
        vertical(given.rows or 100_000, given.columns or 60, given.encryption)
        return
    given.rows, given.columns = given.rows or 1_000_000, given.columns or 100
    table = pd.read_parquet(given.data) if given.data else made(given.rows, given.columns)
    names = [f"silo-{k}" for k in range(given.silos)]
    job = hedgerow.Job("explore", label=given.label, silos=names, min_silos=given.silos)
    dealt = {
        name: table_of(job.parameters, name, table.iloc[k :: given.silos])
        for k, name in enumerate(names)
    }
    few = {name: own.take(np.arange(200)) for name, own in dealt.items()}
    federate(job, few, Conditions())  # imports and kernels, once
    result, cpu, seconds = measured(lambda: federate(job, dealt, Conditions()))
    steps = [one for one in result.view.steps if one.silo == names[0]]
    print(f"{'':22}{'exchanges':>10}{'MB a silo':>11}{'CPU s':>8}{'s':>8}")
    print(
        f"{'hedgerow explore':22}{sum(one.calls for one in steps):10}"
        f"{sum(result.view.bytes_of(names[0])) / 1e6:11.2f}{cpu:8.1f}{seconds:8.1f}"
    )
    _, cpu, seconds = measured(lambda: pooled(table, given.label))
    print(f"{'pandas, all rows':22}{'-':>10}{'-':>11}{cpu:8.1f}{seconds:8.1f}")
    if given.nvflare:
        found = flare(given.nvflare, [table.iloc[k :: given.silos] for k in range(given.silos)])
        print(
            f"{'NVFlare statistics':22}{'-':>10}{found['mb']:11.2f}{found['cpu']:8.1f}"
            f"{found['seconds']:8.1f}"
        )


if __name__ == "__main__":
    main()
