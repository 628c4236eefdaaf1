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

from hedgerow.boosting import spreadsheet
from hedgerow.boosting.dataset import Task
from hedgerow.coordinator.operator.commands import Refused, refusing

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Dataset
    from hedgerow.coordinator.operator.library.scoring import Floats, Model

MODEL = click.Path(path_type=Path)
SILO = click.option(
    "--silo", default="", help="Score with this silo's own model, where each silo has one."
)


@click.command()
@click.argument("run_or_model", type=MODEL)
@click.argument("data", nargs=-1, required=True)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="File for the predictions, .csv or .parquet.",
)
@SILO
def predict(run_or_model: Path, data: tuple[str, ...], out: Path, silo: str) -> None:
    """Score DATA with a run folder's model, or a stock XGBoost model file.

    The model of a vertical run is in parts: DATA is then PARTY=FILE for every party, whose
    agents score the rows that all of them have together, on this machine.

    Writes one row for each row of DATA, in its order: `_id` (the table's, else the row number),
    `prediction`, and for classes `probability_CLASS` in class order; of two classes first
    `probability`, that of the positive one. Labels and unknown columns are ignored. Where each
    silo has a model of its own (fedga), --silo says whose; without it, there are such columns for
    each silo, under its name.
    """
    from hedgerow.coordinator.operator.commands.vertical import is_vertical, score_together
    from hedgerow.coordinator.operator.library.models import open_model, owners
    from hedgerow.crypto.durable import write_atomically

    if out.suffix not in (".csv", ".parquet"):
        raise Refused(f"--out {out}: the ending should be .csv or .parquet")
    with refusing():
        silos = () if silo else owners(run_or_model)
        if is_vertical(run_or_model):
            scored, _ = score_together(run_or_model, data)
        elif silos:
            _, scored = _scored_by_each(run_or_model, silos, _one(data))
        else:
            model = open_model(run_or_model, silo)
            dataset, table = model.read(_one(data), "")
            scored = _scored(model, model.predictions(model.margins(dataset)), table)
        write_atomically(out, _encoded(scored, out.suffix), mode=0o644)
    click.echo(f"{out}: {scored.num_rows:,} rows")


@click.command()
@click.argument("run_or_model", type=MODEL)
@click.argument("data", nargs=-1, required=True)
@click.option("--metrics", "names", help="Names set apart by commas; those of the job if not.")
@click.option("--label", help="Label column; that of the job if not.")
@SILO
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def evaluate(
    run_or_model: Path,
    data: tuple[str, ...],
    names: str | None,
    label: str | None,
    silo: str,
    as_json: bool,
) -> None:
    """Tell how well a run folder's model, or a stock XGBoost model file, predicts DATA's labels.

    Where each silo has a model of its own (fedga), --silo says whose; without it, all of them
    predict, and their mean. The model of a vertical run is in parts: DATA is then PARTY=FILE for
    every party.
    """
    from hedgerow.coordinator.operator.commands.vertical import is_vertical, score_together
    from hedgerow.coordinator.operator.library.models import open_model, owners

    chosen = tuple(n.strip() for n in names.split(",")) if names else ()
    with refusing():
        silos = () if silo else owners(run_or_model)
        each: dict[str, dict[str, float]] = {}
        if is_vertical(run_or_model):
            scored, found = score_together(run_or_model, data, chosen, label, labelled=True)
            n_rows = scored.num_rows
        elif not silos:
            n_rows, found = _evaluated(open_model(run_or_model, silo), _one(data), chosen, label)
        else:
            models = {own: open_model(run_or_model, own) for own in silos}
            parts = {own: _evaluated(one, _one(data), chosen, label) for own, one in models.items()}
            each = {own: scores for own, (_, scores) in parts.items()}
            n_rows, first = parts[silos[0]]
            found = {n: sum(own[n] for own in each.values()) / len(each) for n in first}
    if as_json:
        document = {"rows": n_rows, "metrics": _plain(found)}
        if each:
            document["silos"] = {own: _plain(scores) for own, scores in each.items()}
        click.echo(json.dumps(document))
        return
    shown = Table(title=f"{n_rows:,} rows", title_justify="left")
    if each:
        shown.add_column("silo")
        for name in found:
            shown.add_column(name, justify="right")
        for own, scores in {**each, "mean": found}.items():
            shown.add_row(own, *map(_shown, scores.values()))
    else:
        shown.add_column("metric")
        shown.add_column("value", justify="right")
        for name, value in found.items():
            shown.add_row(name, _shown(value))
    Console().print(shown)


def _one(data: tuple[str, ...]) -> str:
    """Return the only table.

    Raises
    ------
    Refused
        Several were given.
    """
    if len(data) != 1:
        raise Refused(f"one table is expected, {len(data)} were given; this run is not vertical")
    return data[0]


def _shown(value: float) -> str:
    return f"{value:.6g}" if math.isfinite(value) else "not defined"


def _plain(found: dict[str, float]) -> dict[str, float | None]:
    """JSON has no NaN: a score that is not defined is null."""
    return {name: value if math.isfinite(value) else None for name, value in found.items()}


def _evaluated(
    model: Model, data: str, chosen: tuple[str, ...], label: str | None
) -> tuple[int, dict[str, float]]:
    """Return the number of rows and the model's scores on them."""
    from hedgerow.boosting import metrics

    chosen = chosen or model.metrics or metrics.defaults(model.task)
    metrics.check(chosen, model.task)
    dataset, _ = model.read(data, label or model.label)
    if dataset.is_empty:
        raise Refused(f"{data} has no rows")
    margins = model.margins(dataset)
    found = metrics.evaluate(chosen, dataset.labels, margins, objective=model.objective)
    return dataset.n_samples, found


def _scored_by_each(folder: Path, silos: tuple[str, ...], data: str) -> tuple[Dataset, Any]:
    """Return the rows, and the table of every silo's predictions of them."""
    from hedgerow.coordinator.operator.library.models import open_model

    together: Any = None
    for silo in silos:
        model = open_model(folder, silo)
        dataset, table = model.read(data, "")
        scored = _scored(model, model.predictions(model.margins(dataset)), table)
        if together is None:
            together = scored.select(["_id"])
        for name in scored.column_names[1:]:
            kind, _, rest = name.partition("_")
            column = "_".join(part for part in (kind, silo, rest) if part)
            together = together.append_column(column, scored.column(name))
    return dataset, together


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
    names, probabilities = model.classes, {}
    if model.task is Task.BINARY:
        codes = (predictions >= 0.5).astype(np.int64)
        probabilities["probability"] = predictions
        predictions = np.stack([1.0 - predictions, predictions], axis=1)
    else:
        codes = predictions.argmax(axis=1)
    n_classes = predictions.shape[1]
    labels = names if len(names) == n_classes else [str(k) for k in range(n_classes)]
    for k, label in enumerate(labels):
        probabilities[f"probability_{label}"] = predictions[:, k]
    # A binary class that no silo has seen has no name.
    known = len(names) > int(codes.max(initial=0))
    columns["prediction"] = [names[code] for code in codes] if names and known else codes
    return pa.table(columns | probabilities)


def _encoded(table: Any, suffix: str) -> bytes:
    out = io.BytesIO()
    if suffix == ".parquet":
        import pyarrow.parquet as pq

        pq.write_table(table, out, compression="zstd")
        return out.getvalue()
    return spreadsheet.write_table(table)
