"""``hedgerow demo``: five silos train one model on the Adult data, next to each alone and pooled.

It splits ``data/adult.parquet`` into five silos and a test table, runs ``hedgerow local`` on
``adult-histogram.toml`` and trains two baselines with plain XGBoost: one model for each silo alone,
and one on all rows together, which no federation could make.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click

from hedgerow.services.process.terminal import Refused, command

HERE = Path(__file__).resolve().parent
N_SILOS = 5


@command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("hedgerow-demo"),
    show_default=True,
    help="Folder of tables and run; a new one, or that of an earlier demo.",
)
def demo(out: Path) -> None:
    """Train a federation of five silos on real data, on this machine."""
    mark = out / ".hedgerow-demo"
    if out.exists() and any(out.iterdir()) and not mark.exists():
        raise Refused(f"--out: expected a new folder, or that of an earlier demo; {out} has others")
    out.mkdir(parents=True, exist_ok=True)
    mark.touch()
    data, job = HERE / "data/adult.parquet", HERE / "adult-histogram.toml"
    print(f"$ hedgerow split {data.name} --silos {N_SILOS} --test 0.25 --seed 7", flush=True)
    _hedgerow("split", data, "--silos", N_SILOS, "--test", 0.25, "--seed", 7, "--out", out / "data")
    silos = {f"silo-{k}": out / f"data/silo-{k}.parquet" for k in range(N_SILOS)}
    print(f"\n$ hedgerow local {job.name} --silo silo-0=… --test …", flush=True)
    tables = [part for name, path in silos.items() for part in ("--silo", f"{name}={path}")]
    test, run = out / "data/test.parquet", out / "run"
    _hedgerow("local", job, *tables, "--test", test, "--out", run, "--overwrite")
    _compare(silos, out, job)


def _hedgerow(*words: object) -> None:
    ended = subprocess.run([sys.executable, "-m", "hedgerow", *map(str, words)], check=False)
    if ended.returncode:
        sys.exit(ended.returncode)


def _compare(silos: dict[str, Path], runs: Path, job: Path) -> None:
    import numpy as np
    import xgboost as xgb

    from hedgerow.boosting.dataset import Dataset, merge, recode
    from hedgerow.boosting.metrics import evaluate
    from hedgerow.boosting.tables import for_job, read_table
    from hedgerow.services.wire import job as job_wire
    from hedgerow.services.wire import job_file

    parameters = job_wire.decode(job_file.load(job))
    tables = {
        name: for_job(read_table(str(path)), parameters, name) for name, path in silos.items()
    }
    schema = merge({name: table.schema for name, table in tables.items()})
    tables = {name: recode(table, schema) for name, table in tables.items()}
    test = recode(for_job(read_table(str(runs / "data/test.parquet")), parameters, "test"), schema)
    settings = {
        "objective": "binary:logistic", "eta": 0.3, "max_depth": 6, "base_score": 0.5,
        "tree_method": "hist", "nthread": os.cpu_count(),
    }  # fmt: skip

    def matrix(table: Dataset) -> xgb.DMatrix:
        return xgb.DMatrix(
            table.X, table.y, feature_types=schema.feature_types, enable_categorical=True,
            feature_names=list(schema.names),
        )  # fmt: skip

    def scores(booster: xgb.Booster) -> dict[str, float]:
        margin = booster.predict(matrix(test), output_margin=True).astype(np.float64)
        return evaluate(("accuracy", "auc"), test.labels, margin, objective="binary:logistic")

    rounds = parameters.parameters.n_steps
    print("\nWith stock XGBoost, no Hedgerow, on the test table:")
    print(f"{'':28}{'accuracy':>10}{'auc':>10}")

    def line(name: str, found: dict[str, float]) -> None:
        print(f"{name:28}{found['accuracy']:10.4f}{found['auc']:10.4f}", flush=True)

    for name, table in tables.items():
        line(f"{name} alone", scores(xgb.train(settings, matrix(table), rounds)))
    federated = xgb.Booster(model_file=str(runs / "run/model.ubj"))
    line("federated (model.ubj)", scores(federated))
    pooled = Dataset(
        schema,
        np.concatenate([t.X for t in tables.values()]),
        np.concatenate([t.labels for t in tables.values()]),
    )
    line("pooled, all rows at one site", scores(xgb.train(settings, matrix(pooled), rounds)))
    report = json.loads((runs / "run/report.json").read_text())
    moved = report["bytes"]["up"] + report["bytes"]["down"]
    print(
        f"\n{moved / len(report['rounds']) / 1000:.1f} kB a round for all {N_SILOS} silos, up and "
        f"down; {moved / 1e6:.2f} MB for the job. Everything is in {runs / 'run'}."
    )
