"""``hedgerow predict`` and ``hedgerow evaluate``: score a table with a finished run's model."""

from __future__ import annotations

import difflib
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.tables import spreadsheet
from hedgerow.coordinator.operator.commands.options import FILE, PATH, csv_dialect, ids_option
from hedgerow.services.process.terminal import Refused, command, listing, tell

if TYPE_CHECKING:
    from hedgerow.coordinator.operator.library.scoring import Floats, Model

SILO = click.option(
    "--silo", default="", help="Score with this silo's own model, where each silo has one."
)


@command()
@click.argument("run_or_model", type=PATH)
@click.argument("data", nargs=-1, required=True)
@click.option("--out", type=FILE, required=True, help="File for the predictions, .csv or .parquet.")
@SILO
@click.option(
    "--shap",
    type=click.Choice(["features", "parties"]),
    help="Add what each feature, or each party of a vertical model, adds to the margin.",
)
@ids_option
@csv_dialect
@click.option("--keep", metavar="COLUMNS", help="Columns of DATA to write, too; commas between.")
@click.option(
    "--threshold",
    type=click.FloatRange(0.0, 1.0),
    help="Of two classes, the least probability of the positive one; 0.5 if not given.",
)
def predict(
    run_or_model: Path,
    data: tuple[str, ...],
    out: Path,
    silo: str,
    shap: str | None,
    ids: tuple[str, ...],
    keep: str | None,
    threshold: float | None,
) -> None:
    """Score DATA with a run folder's model, or a stock XGBoost model file.

    The model of a vertical run is in parts: DATA is then PARTY=FILE for every party, whose
    agents score the rows that all of them have together, on this machine.

    Writes one row for each row of DATA, in its order: `_id` (the table's, else the row number),
    `prediction`, where the job asked for an interval `lower` and `upper`, and for classes
    `probability_CLASS` in class order; of two classes first `probability`, that of the positive
    one. Labels and unknown columns are ignored. Where each
    --keep puts columns of DATA after `_id`. Where each
    silo has a model of its own (fedga), --silo says whose; without it, there are such columns for
    each silo, under its name. --shap adds `shap_FEATURE` and `shap_bias`, with more than two
    classes `shap_CLASS_FEATURE`; they sum to the margin.
    """
    from hedgerow.coordinator.operator.commands.options import parse_ids, parse_pairs
    from hedgerow.coordinator.operator.commands.vertical import is_vertical, score_together
    from hedgerow.coordinator.operator.library import frames
    from hedgerow.coordinator.operator.library.models import open_model, owners
    from hedgerow.crypto.durable import write_atomically

    _check_ending(out)
    silos = () if silo else owners(run_or_model)
    kept = [name.strip() for name in keep.split(",")] if keep else []
    if is_vertical(run_or_model):
        scored, _ = score_together(run_or_model, data, ids=ids)
        if threshold is not None:
            scored = _decided(open_model(run_or_model), scored, threshold)
        paths = parse_pairs(data, "DATA")
        columns = parse_ids(ids, paths)
        tables = {
            party: frames.with_id(*frames.read(path, party, id_column=own), own)
            for (party, path), own in zip(paths.items(), columns.values(), strict=True)
        }
    elif silos:
        if shap:
            raise Refused("--shap is of one model: say --silo")
        table, scored = _scored_by_each(run_or_model, silos, _one(data), threshold)
        tables = {"": table}
    else:
        model = open_model(run_or_model, silo)
        model.check_threshold(threshold)
        dataset, table = model.read(_one(data), "")
        scored = _scored(model, model.predictions(model.margins(dataset)), table, threshold)
        tables = {"": table}
    if shap:
        scored = _explained(open_model(run_or_model, silo), data, ids, scored, shap == "parties")
    scored = _with_columns(scored, kept, tables)
    write_atomically(out, encoded(scored, out), mode=0o644)
    tell({"file": str(out), "rows": scored.num_rows}, f"{out}: {scored.num_rows:,} rows")


@command()
@click.argument("run_or_model", type=PATH)
@click.argument("data", nargs=-1, required=True)
@click.option("--metrics", "names", help="Names set apart by commas; those of the job if not.")
@click.option("--label", help="Label column; that of the job if not.")
@click.option(
    "--threshold",
    type=click.FloatRange(0.0, 1.0),
    help="Of two classes, the least probability of the positive one; 0.5 if not given.",
)
@SILO
@ids_option
@csv_dialect
def evaluate(
    run_or_model: Path,
    data: tuple[str, ...],
    names: str | None,
    label: str | None,
    threshold: float | None,
    silo: str,
    ids: tuple[str, ...],
) -> None:
    """Tell how well a run folder's model, or a stock XGBoost model file, predicts DATA's labels.

    Where each silo has a model of its own (fedga), --silo says whose; without it, all of them
    predict, and their mean. The model of a vertical run is in parts: DATA is then PARTY=FILE for
    every party.
    """
    from hedgerow.boosting import metrics
    from hedgerow.boosting.tables import short_name
    from hedgerow.coordinator.operator.commands.vertical import is_vertical, score_together
    from hedgerow.coordinator.operator.library.models import open_model, owners

    chosen = tuple(n.strip() for n in names.split(",")) if names else ()
    silos = () if silo else owners(run_or_model)
    each: dict[str, dict[str, float]] = {}
    if is_vertical(run_or_model):
        if threshold is not None:
            raise Refused(
                "--threshold: the parties of a vertical run score at 0.5; hedgerow predict has "
                "--threshold for their rows, and Model.evaluate in Python for tables of one machine"
            )
        scored, found = score_together(run_or_model, data, chosen, label, ids=ids, labelled=True)
        n_rows = scored.num_rows
    elif not silos:
        n_rows, found = _evaluated(
            open_model(run_or_model, silo), _one(data), chosen, label, threshold
        )
    else:
        models = {own: open_model(run_or_model, own) for own in silos}
        table = _one(data)
        parts = {
            own: _evaluated(one, table, chosen, label, threshold) for own, one in models.items()
        }
        each = {own: scores for own, (_, scores) in parts.items()}
        n_rows, first = parts[silos[0]]
        found = {n: sum(own[n] for own in each.values()) / len(each) for n in first}
    document: dict[str, Any] = {"rows": n_rows, "metrics": _plain(found)}
    headings = ["metric", "value"]
    rows = [[name, _shown(value)] for name, value in found.items()]
    if each:
        document["silos"] = {own: _plain(scores) for own, scores in each.items()}
        headings = ["silo", *found]
        rows = [[own, *map(_shown, s.values())] for own, s in {**each, "mean": found}.items()]
    title = f"{n_rows:,} rows"
    tell(document, lambda: listing(headings, rows, title=title, right=headings[1:]))
    metrics.check_defined({", ".join(map(short_name, data)): found})


def _one(data: tuple[str, ...]) -> str:
    """Return the only table; raises Refused where there are several."""
    if len(data) != 1:
        raise Refused(f"one table is expected, {len(data)} were given; this run is not vertical")
    return data[0]


def _shown(value: float) -> str:
    return f"{value:.6g}" if math.isfinite(value) else "not defined"


def _plain(found: dict[str, float]) -> dict[str, float | None]:
    """JSON has no NaN: a score that is not defined is null."""
    return {name: value if math.isfinite(value) else None for name, value in found.items()}


def _evaluated(
    model: Model, data: str, chosen: tuple[str, ...], label: str | None, threshold: float | None
) -> tuple[int, dict[str, float]]:
    """Return the number of rows and the model's scores on them."""
    dataset, _ = model.read(data, label or model.label)
    if dataset.is_empty:
        raise Refused(f"{data} has no rows")
    found = model.scores(dataset, chosen, threshold)
    if model.interval is not None and not chosen:
        told = model.predictions(model.margins(dataset))
        low, high = model.interval.ends(told).T
        found["coverage"] = model.interval.coverage(told, dataset.labels)
        found["interval"] = float((high - low).mean())
    return dataset.n_samples, found


def _explained(
    model: Model, data: tuple[str, ...], ids: tuple[str, ...], scored: Any, by_party: bool
) -> Any:
    """Return the table of predictions with contributions."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from hedgerow.coordinator.operator.commands import options
    from hedgerow.coordinator.operator.library import frames

    names = model.features
    if model.parties:
        tables = options.parse_pairs(data, "a vertical model's DATA")
        columns = options.parse_ids(ids, tables)
        joined = frames.joined(tables, model.label, model.columns, columns)
        # The parties' own scores are in the order of the active party's table.
        order = scored.column("_id").cast(pa.string()).combine_chunks()
        table = joined.take(pc.index_in(order, joined.column("_id").combine_chunks()))
        rows = model.coded(table, "the parties' tables")
        names = tuple(dict.fromkeys(model.parties)) if by_party else names
    else:
        rows, _ = model.read(_one(data), "")
    values = model.contributions(rows, rows, by_party=by_party)
    values = values[:, np.newaxis] if values.ndim == 2 else values
    numbers = tuple(str(k) for k in range(values.shape[1]))
    labels = model.outputs if len(model.outputs) > 1 else model.classes or numbers
    for k in range(values.shape[1]):
        prefix = f"shap_{labels[k]}_" if values.shape[1] > 1 else "shap_"
        for j, name in enumerate((*names, "bias")):
            scored = scored.append_column(prefix + name, pa.array(values[:, k, j]))
    return scored


def _scored_by_each(
    folder: Path, silos: tuple[str, ...], data: str, threshold: float | None
) -> tuple[Any, Any]:
    """Return the table, and that of every silo's predictions of its rows."""
    from hedgerow.coordinator.operator.library.models import open_model

    together: Any = None
    for silo in silos:
        model = open_model(folder, silo)
        model.check_threshold(threshold)
        dataset, table = model.read(data, "")
        scored = _scored(model, model.predictions(model.margins(dataset)), table, threshold)
        if together is None:
            together = scored.select(["_id"])
        for name in scored.column_names[1:]:
            kind, _, rest = name.partition("_")
            column = "_".join(part for part in (kind, silo, rest) if part)
            together = together.append_column(column, scored.column(name))
    return table, together


def _with_columns(scored: Any, names: list[str], tables: Mapping[str, Any]) -> Any:
    """Return predictions with columns of the tables that were scored behind their ``_id``.

    Parameters
    ----------
    tables : Mapping
        By party; under "" one table, whose rows are those of the predictions.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for at, name in enumerate(names, start=1):
        holder = next((own for own in tables.values() if name in own.column_names), None)
        if holder is None:
            known = sorted({each for own in tables.values() for each in own.column_names})
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise Refused(f"--keep: there is no column {name!r}{hint}")
        if name in scored.column_names:
            raise Refused(f"--keep: the predictions have a column {name!r} of their own")
        column = holder.column(name)
        if "" not in tables:
            ids, own = (
                t.column("_id").cast(pa.string()).combine_chunks() for t in (scored, holder)
            )
            column = column.take(pc.index_in(ids, own))
        scored = scored.add_column(at, name, column)
    return scored


def _decided(model: Model, scored: Any, threshold: float) -> Any:
    """Return the parties' predictions with the classes from a threshold on."""
    import pyarrow as pa

    model.check_threshold(threshold)
    classes = model.decided(scored.column("probability").to_numpy(), threshold)
    at = scored.column_names.index("prediction")
    return scored.set_column(at, "prediction", pa.array(classes))


def _scored(model: Model, predictions: Floats, table: Any, threshold: float | None = None) -> Any:
    """Return the table of predictions."""
    import numpy as np
    import pyarrow as pa

    n_rows = table.num_rows
    has_id = "_id" in table.column_names
    columns: dict[str, Any] = {"_id": table.column("_id") if has_id else np.arange(n_rows)}
    decided, several = model.decided(predictions, threshold), len(model.outputs) > 1
    for k, label in enumerate(model.outputs if several else ()):
        columns[f"prediction_{label}"] = decided[:, k]
    if not several:
        columns["prediction"] = decided
    if model.interval is not None:
        ends = model.interval.ends(predictions)
        columns["lower"], columns["upper"] = ends.T
    if model.task is Task.BINARY and not several:
        columns["probability"] = predictions
    if model.task.of_classes:
        for label, probabilities in model.by_class(predictions).items():
            columns[f"probability_{label}"] = probabilities
    return pa.table(columns)


def _check_ending(out: Path) -> None:
    if out.suffix not in (".csv", ".parquet"):
        raise Refused(f"{out}: the ending should be .csv or .parquet")


def encoded(table: Any, path: Path) -> bytes:
    """Return a table as the bytes of a file; raises Refused for another ending."""
    _check_ending(path)
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        out = io.BytesIO()
        try:
            pq.write_table(table, out, compression="zstd")
        except NotImplementedError as error:  # Arrow's own; it names the type
            raise Refused(f"{path}: it cannot be written as Parquet: {error}") from None
        return out.getvalue()
    return spreadsheet.write_table(table)
