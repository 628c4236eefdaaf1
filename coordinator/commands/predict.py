"""``hedgerow predict`` and ``hedgerow evaluate``: score a table with a finished run's model."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from boosting.dataset import Task
from coordinator.commands import Refused, refusing

if TYPE_CHECKING:
    from coordinator.models import Floats, Model

MODEL = click.Path(path_type=Path)


@click.command()
@click.argument("run_or_model", type=MODEL)
@click.argument("data")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="File for the predictions, .csv or .parquet.",
)
def predict(run_or_model: Path, data: str, out: Path) -> None:
    """Score DATA with a run folder's model, or a stock XGBoost model file.

    Writes one row for each row of DATA, in its order: `_id` (the table's, else the row number),
    `prediction`, and for classes their probabilities.
    """
    from coordinator.models import open_model
    from services.durable import write_atomically

    if out.suffix not in (".csv", ".parquet"):
        raise Refused(f"--out {out}: the ending should be .csv or .parquet")
    with refusing():
        model = open_model(run_or_model)
        dataset, table = model.read(data, "")
        scored = _scored(model, model.predictions(model.margins(dataset)), table)
        write_atomically(out, _encoded(scored, out.suffix), mode=0o644)
    click.echo(f"{out}: {dataset.n_samples:,} rows")


@click.command()
@click.argument("run_or_model", type=MODEL)
@click.argument("data")
@click.option("--metrics", "names", help="Names set apart by commas; those of the job if not.")
@click.option("--label", help="Label column; that of the job if not.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def evaluate(
    run_or_model: Path, data: str, names: str | None, label: str | None, as_json: bool
) -> None:
    """Tell how well a run folder's model, or a stock XGBoost model file, predicts DATA's labels."""
    from boosting import metrics
    from coordinator.models import open_model

    with refusing():
        model = open_model(run_or_model)
        chosen = tuple(n.strip() for n in names.split(",")) if names else model.metrics
        chosen = chosen or metrics.defaults(model.task)
        metrics.check(chosen, model.task)
        dataset, _ = model.read(data, label or model.label)
        if dataset.is_empty:
            raise Refused(f"{data} has no rows")
        found = metrics.evaluate(
            chosen, dataset.labels, model.margins(dataset), objective=model.objective
        )
    if as_json:
        values = {n: v if math.isfinite(v) else None for n, v in found.items()}
        click.echo(json.dumps({"rows": dataset.n_samples, "metrics": values}))
        return
    shown = Table(title=f"{dataset.n_samples:,} rows", title_justify="left")
    shown.add_column("metric")
    shown.add_column("value", justify="right")
    for name, value in found.items():
        shown.add_row(name, f"{value:.6g}" if math.isfinite(value) else "not defined")
    Console().print(shown)


def _scored(model: Model, predictions: Floats, table: Any) -> Any:
    """Return the table of predictions."""
    import numpy as np
    import pyarrow as pa

    n_rows = table.num_rows
    has_id = "_id" in table.column_names
    columns: dict[str, Any] = {"_id": table.column("_id") if has_id else np.arange(n_rows)}
    if model.task is Task.REGRESSION:
        columns["prediction"] = predictions
        return pa.table(columns)
    names = model.classes
    if model.task is Task.BINARY:
        codes = (predictions >= 0.5).astype(np.int64)
        probabilities = {"probability": predictions}
    else:
        codes = predictions.argmax(axis=1)
        labels = names or [str(k) for k in range(predictions.shape[1])]
        probabilities = {
            f"probability_{label}": predictions[:, k]
            for k, label in enumerate(labels)
            if k < predictions.shape[1]
        }
    # A binary class that no silo has seen has no name.
    known = len(names) > int(codes.max(initial=0))
    columns["prediction"] = [names[code] for code in codes] if names and known else codes
    return pa.table(columns | probabilities)


def _encoded(table: Any, suffix: str) -> bytes:
    import pyarrow as pa

    out = io.BytesIO()
    if suffix == ".parquet":
        import pyarrow.parquet as pq

        pq.write_table(table, out, compression="zstd")
        return out.getvalue()
    from pyarrow import csv

    sink = pa.BufferOutputStream()
    csv.write_csv(table, sink)
    return bytes(sink.getvalue().to_pybytes())
