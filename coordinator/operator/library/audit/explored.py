"""Groups of all silos' rows: a table that each silo makes of its own, which an explore job counts.

In that table a row's predictions are in the columns of its groups and missing in those of others:
``said DIGEST COLUMN=VALUE`` (``right`` of several classes), ``yes`` or ``no``; ``score`` beside it,
the probability; of numbers ``error`` and ``absolute``. DIGEST begins the model file's SHA-256, so
that silos which score with different models are no federation. An explore job tells counts of at
least ``min_cell`` rows of all silos, and rates follow from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.coordinator.operator.library.audit.groups import (
    LARGEST,
    LEAST_ROWS,
    MOST_GROUPS,
    Group,
    names_of,
)
from hedgerow.coordinator.operator.library.audit.membership import Estimate
from hedgerow.coordinator.operator.library.audit.subject import (
    AuditRefused,
    auditable,
    digest_of_run,
    labelled,
)

if TYPE_CHECKING:
    from hedgerow.coordinator.operator.library.frames import Tabular
    from hedgerow.coordinator.operator.library.scoring import Model

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
ALL = "all rows"
_Z = 1.96


def group_table(folder: Path, test: Tabular, group: Iterable[str]) -> Any:
    """Return the Arrow table of a silo's rows for an explore job.

    Parameters
    ----------
    folder : Path
        The run whose model predicts.
    test : table
        The silo's rows with labels, best such as it has not trained on.
    group : iterable of str
        Columns of the table; ``COLUMN=A,B`` names the groups of one that is no text feature.

    Raises
    ------
    AuditRefused
        Groups are not known, or too many; the table has no such column.
    """
    import pyarrow as pa

    from hedgerow.coordinator.operator.library import frames

    model, _ = auditable(folder)
    table, where = frames.read(test, "test", model.names)
    rows = labelled(model, table, where)
    predicted, y = model.predictions(model.margins(rows)), rows.labels
    if model.task is Task.BINARY:
        found = {"said": _words(predicted >= 0.5), "score": predicted}
    elif model.task is Task.MULTICLASS:
        found = {"right": _words(predicted.argmax(axis=1) == y), "score": predicted.max(axis=1)}
    else:
        found = {"error": predicted - y, "absolute": np.abs(predicted - y)}
    digest, columns = digest_of_run(folder)[:12], {}

    def add(group: str, others: NDArray[np.bool_] | None = None) -> None:
        for what, values in found.items():
            kind = None if values.dtype.kind == "U" else pa.float32()
            columns[f"{what} {digest}{group}"] = pa.array(values, kind, mask=others)

    add("")
    for one in dict.fromkeys(group):
        whole = one in table.column_names or one in model.features
        column, _, listed = (one, "", "") if whole else one.rpartition("=")
        own, values = _grouped(model, rows, table, column or one, listed)
        for value in values:
            add(f" {column}={value}", own != value)
    if model.classes:
        columns[model.label] = pa.array(np.array(model.classes)[y.astype(np.intp)])
    else:
        columns[model.label] = pa.array(y.astype(np.int64) if model.task.of_classes else y)
    return pa.table(columns)


def _grouped(
    model: Model, rows: Dataset, table: Any, column: str, listed: str
) -> tuple[NDArray[Any], list[str]]:
    """Return the group of each row, and the groups' names; raises AuditRefused."""
    features = () if model.schema is None else model.schema.features
    at = next((j for j, f in enumerate(features) if f.name == column and f.categories), None)
    if at is not None:
        known = features[at].categories or ()
        codes = rows.columns.readers[at]()
        own = np.array([*known, ""])[np.where(np.isnan(codes), -1, codes).astype(np.intp)]
    else:
        known, own = (), names_of(table, column)
    values = list(dict.fromkeys(listed.split(","))) if listed else list(known)
    if not 0 < len(values) <= MOST_GROUPS:
        raise AuditRefused(
            f"group {column}: expected a text feature of the model with at most {MOST_GROUPS} "
            f"categories, or the groups' names, the same in each silo, as {column}=A,B"
        )
    if len(own) != rows.n_samples:
        raise AuditRefused(
            f"group {column}: {len(own) - rows.n_samples} rows of the test table have no label: "
            "leave them out of it"
        )
    if not np.isin(own, values).any():
        raise AuditRefused(
            f"group {column}: no row is of {', '.join(values[:5])}; the first is of {str(own[0])!r}"
        )
    return own, values


def _words(is_so: NDArray[np.bool_]) -> NDArray[Any]:
    return np.where(is_so, "yes", "no")


def explored_groups(statistics: Mapping[str, Any], model: Model, digest: str) -> list[Group]:
    """Return how the model does on each group, by what an explore job has told.

    Intervals are of sampling, of the counts' rounding and, of areas, of rows in one bin. A group
    that is too small, or told with the rows of others, has no measure, and its column no largest
    difference.

    Parameters
    ----------
    digest : str
        SHA-256 (hex) of the model's file.

    Raises
    ------
    AuditRefused
        The job has not explored tables of groups, or ones of another model or label.
    """
    label, least = statistics["label"], statistics["min_cell"]
    of: dict[str, dict[str, Any]] = {}
    for one in [*statistics["columns"], *([label["column"]] if "column" in label else [])]:
        what, _, rest = one["name"].partition(" ")
        made_by, _, name = rest.partition(" ")
        if what not in ("said", "right", "score", "error", "absolute") or len(made_by) != 12:
            continue
        if made_by != digest[:12]:
            raise AuditRefused(
                f"the exploration is of a model with {made_by}…, the run's has {digest[:12]}…"
            )
        of.setdefault(name, {})[what] = one
    if not of:
        raise AuditRefused(
            "expected the exploration of tables of `hedgerow audit --to-explore`, received one of "
            "other tables"
        )
    if (label["name"], label["task"]) != (model.label, model.task.value):
        raise AuditRefused(
            f"the exploration is of the label {label['name']} ({label['task']}), the run of "
            f"{model.label} ({model.task.value})"
        )
    needed = {Task.BINARY: ("said", "score"), Task.MULTICLASS: ("right", "score")}.get(
        model.task, ("error", "absolute")
    )
    found: list[Group] = []
    for name, told in of.items():
        if lacking := [what for what in needed if what not in told]:
            raise AuditRefused(
                f"the exploration lacks the column '{lacking[0]} {digest[:12]} {name}': expected "
                "all of the tables' columns"
            )
        column, _, value = name.rpartition("=")
        n, measures = (
            _classes(told, least, model) if model.task.of_classes else _numbers(told)
        ) or (0, {})
        few = n < LEAST_ROWS
        note = "too few rows, or told with those of others" if few else ""
        found.append(Group(column or ALL, value or ALL, n, {} if few else measures, note))
    for column in dict.fromkeys(one.column for one in found if one.column != ALL):
        of_column = [one for one in found if one.column == column]
        if apart := dict(_apart([one.measures for one in of_column])):
            found.append(Group(column, LARGEST, sum(one.rows for one in of_column), apart))
    return found


def _apart(groups: list[dict[str, Estimate]]) -> Iterator[tuple[str, Estimate]]:
    """Yield the largest difference between groups of each measure that is known of all."""
    for what in groups[0] if len(groups) > 1 else ():
        if all(what in one for one in groups):
            known = [one[what] for one in groups]
            values = [one.value for one in known]
            least = max(one.low for one in known) - min(one.high for one in known)
            most = max(one.high for one in known) - min(one.low for one in known)
            yield what, Estimate(max(values) - min(values), max(least, 0.0), most)


def _numbers(told: Mapping[str, Any]) -> tuple[int, dict[str, Estimate]] | None:
    error = told["error"]
    if error["missing"] is None:  # told with the rows of others
        return None
    n: int = error["rows"] - error["missing"]
    found: dict[str, Estimate] = {}
    mean, spread, absolute = error.get("mean"), error.get("deviation"), told["absolute"].get("mean")
    if mean is None or spread is None or n < LEAST_ROWS:
        return n, found
    known = {"mean error": (mean, spread)}
    if absolute is not None:
        around = math.sqrt(max(spread**2 + mean**2 - absolute**2, 0.0))
        known["mean absolute error"] = (absolute, around or spread)
    for name, (value, deviation) in known.items():
        half = _Z * deviation / math.sqrt(n) + min(_step(value), spread) / 2
        found[name] = Estimate(value, value - half, value + half)
    return n, found


def _step(mean: float) -> float:
    """Return the largest power of two of which a mean that is told to 6 digits is a multiple."""
    if not mean:
        return math.inf
    digit = 10.0 ** (math.floor(math.log10(abs(mean))) - 5)
    steps = (2.0**e for e in range(math.frexp(mean)[1], -1100, -1))
    return max(digit, next(s for s in steps if abs(mean - round(mean / s) * s) <= digit / 2))


def _classes(
    told: Mapping[str, Any], least: int, model: Model
) -> tuple[int, dict[str, Estimate]] | None:
    """Return a group's rows and measures; None where it is told with the rows of others."""
    is_two = model.task is Task.BINARY
    answer, score = told["said" if is_two else "right"], told["score"]
    rows: dict[str, int] = {}
    for cell in answer["cells"]:
        names = ("missing",) * bool(cell.get("missing")) + tuple(cell.get("categories", ()))
        rows["+".join(sorted(names))] = cell["rows"]
    if any("missing" in name and name != "missing" for name in rows):
        return None
    n = sum(count for name, count in rows.items() if name != "missing")
    if n < LEAST_ROWS:
        return None
    found = {}
    if "no+yes" not in rows:
        first = "positive rate" if is_two else "accuracy"
        found[first] = _rate(rows.get("yes", 0), n, least)
    mean = score["mean"]
    if not is_two:
        if mean is not None and "accuracy" in found:
            found["calibration"] = _less(mean, found["accuracy"], least, n)
        return n, found
    by_class = {"+".join(sorted(names)): cells for names, cells in _by_class(answer, model)}
    own = [cells for name, cells in by_class.items() if "missing" not in name]
    if not own or any("missing" in name and name != "missing" for name in by_class):
        return n, found
    others, ones = np.sum(own, axis=0).tolist()
    if ones >= LEAST_ROWS and "yes" in by_class:
        found["true positive rate"] = _rate(int(by_class["yes"][1]), ones, least)
    if others >= LEAST_ROWS and "yes" in by_class:
        found["false positive rate"] = _rate(int(by_class["yes"][0]), others, least)
    if min(ones, others) < LEAST_ROWS:
        return n, found
    found["label rate"] = _rate(ones, ones + others, least, cells=len(own))
    if mean is not None:
        found["calibration"] = _less(mean, found["label rate"], least, n)
    binned = list(_by_class(score, model))
    bins = [cells for names, cells in binned if "missing" not in names]
    if len(bins) > 1 and all(names == ["missing"] for names, _ in binned if "missing" in names):
        found["auc"] = _area(np.array(bins, np.float64), least)
    return n, found


def _by_class(one: Mapping[str, Any], model: Model) -> Iterator[tuple[list[str], Counts]]:
    """Yield the names of a column's cells that are told together, and their rows by class.

    Those of the positive class are last, as in the model; none where classes are told together.
    """
    classes = model.classes or ("0", "1")
    for group in one.get("against_label", {}).get("groups", ()):
        if set(group["by_class"]) == set(classes):
            names = group["name"].replace("; ", ", ").split(", ")
            yield names, np.array([group["by_class"][name] for name in classes])


def _rate(part: int, n: int, least: int, *, cells: int = 1) -> Estimate:
    """Return a share; it, and the rest, are of some cells, each within half of ``least``."""
    p = part / n
    half = _Z * math.sqrt(max(p * (1 - p), 1 / n) / n) + cells * least / (2 * n)
    return Estimate(p, max(p - half, 0.0), min(p + half, 1.0))


def _less(mean: float, rate: Estimate, least: int, n: int) -> Estimate:
    """Return a mean probability, told to a step of at most ``4 * least / n``, less a rate."""
    half = min(_step(mean) / 2, 2 * least / n)
    return Estimate(mean - rate.value, mean - rate.high - half, mean - rate.low + half)


def _area(bins: Floats, least: int) -> Estimate:
    """Return the area under the ROC of binned scores, of shape (n_bins, 2), in their order."""
    others, ones = bins.sum(axis=0)
    below = (np.cumsum(bins[:, 0]) - bins[:, 0] / 2) / others
    above = 1 - (np.cumsum(bins[:, 1]) - bins[:, 1] / 2) / ones
    area = float((bins[:, 1] * below).sum() / ones)
    tied = float((bins[:, 0] * bins[:, 1]).sum() / (2 * others * ones))
    # Hanley and McNeil (1982); rounding of counts as if it were uniform.
    q, r = area / (2 - area), 2 * area * area / (1 + area)
    spread = area * (1 - area) + (ones - 1) * (q - area**2) + (others - 1) * (r - area**2)
    rounding = (
        least**2
        / 12
        * (((below - area) ** 2).sum() / ones**2 + ((above - area) ** 2).sum() / others**2)
    )
    half = tied + _Z * math.sqrt(max(spread, 0.0) / (ones * others) + float(rounding))
    return Estimate(area, max(area - half, 0.0), min(area + half, 1.0))
