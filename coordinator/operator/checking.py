"""What a table's columns are, what becomes of them in a job, and what is unusual about them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import DataError
from hedgerow.boosting.tables import is_feature, is_number, is_text

RARE_ROWS = 5
"""Rows of a category below which a warning is due: it may identify people."""
_EXACT_INTEGERS = 1 << 24
_LEAST_ROWS = 20
_DATE = r"^\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}.*)?$|^\d{1,2}[./]\d{1,2}[./]\d{2,4}$"
_MOST_CLASSES = 20


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """A column of a table.

    Parameters
    ----------
    gaps, distinct : int
        Rows without a value, and different values of the others.
    range : str
        Smallest and largest number, or the commonest values with their rows.
    use : str
        What a job makes of it.
    suggested : bool
        Whether it is a feature of the suggested job.
    """

    name: str
    type: str
    gaps: int
    distinct: int
    range: str
    use: str
    suggested: bool
    warnings: list[str] = field(default_factory=list)


def facts_of(table: Any, label: str) -> tuple[list[ColumnFacts], Task]:
    """Return what is known of each column, and the task that suits the label.

    Parameters
    ----------
    table : pyarrow.Table

    Raises
    ------
    DataError
        There is no such label.
    """
    if label not in table.column_names:
        raise DataError(f"there is no label column '{label}': {', '.join(table.column_names)}")
    columns = [_facts(table.column(name), name, label) for name in table.column_names]
    return columns, _task(table.column(label), next(c for c in columns if c.name == label))


def _facts(column: Any, name: str, label: str) -> ColumnFacts:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), None, column)
    text, number = is_text(column.type), is_number(column.type)
    n_rows, gaps = len(column), column.null_count
    countable = text or number
    distinct = pc.count_distinct(column).as_py() if countable else 0
    feature, usable = is_feature(name, label), countable or pa.types.is_null(column.type)
    counts = _counts(column) if text else []
    warnings = list(_warnings(column, distinct, counts)) if feature or name == label else []
    if feature and not usable:
        warnings.append("a job refuses this type: leave it out, or turn it into numbers or text")
    if name == label:
        use = "label"
        warnings = _of_label(distinct, gaps, n_rows)
    elif not feature:
        use = "left out, by its name"
    elif not usable:
        use = "refused"
    else:
        use = f"{distinct} categories" if text else "number"
    alone = any(w.startswith(("likely", "constant", "dates")) for w in warnings)
    shown = ", ".join(f"{word} ({n})" for n, word in counts[:3])
    if number and distinct:
        ends = pc.min_max(column).as_py()
        shown = f"{_short(ends['min'])} to {_short(ends['max'])}"
    suggested = feature and usable and not alone
    kind = "text" if text else str(column.type)
    return ColumnFacts(name, kind, gaps, distinct, shown, use, suggested, warnings)


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _counts(column: Any) -> list[tuple[int, str]]:
    """Return (rows, value) of a text column, the commonest first."""
    import pyarrow.compute as pc

    found = (entry.values() for entry in pc.value_counts(column).to_pylist())
    return sorted(((n, v) for v, n in found if v is not None), key=lambda e: (-e[0], e[1]))


def _warnings(column: Any, distinct: int, counts: list[tuple[int, str]]) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind, known = column.type, len(column) - column.null_count
    whole = pa.types.is_integer(kind)
    if not known:
        yield "constant: it has no value at all"
    elif distinct == 1 and not column.null_count:
        yield "constant: it has one value only"
    elif distinct == known >= _LEAST_ROWS and (whole or counts):
        yield "likely an identifier: every row has a value of its own"
    if counts and pc.all(pc.match_substring_regex(column, _DATE)).as_py():
        yield "dates as text: each day would be a category"
    if pa.types.is_temporal(kind):
        yield "dates: a job takes numbers and text"
    if whole and known:
        ends = pc.min_max(column).as_py()
        if max(-ends["min"], ends["max"]) > _EXACT_INTEGERS:
            yield "integers beyond 2^24: float32 does not tell all of them apart"
    if pa.types.is_floating(kind) and pc.any(pc.is_inf(column)).as_py():
        yield "infinite values: a job refuses them"
    rare = sum(n < RARE_ROWS for n, _ in counts)
    if rare and distinct < known:
        yield f"{rare} rare categories with fewer than {RARE_ROWS} rows: all silos learn of them"


def _of_label(distinct: int, gaps: int, n_rows: int) -> list[str]:
    found = [f"{gaps} of {n_rows} labels are missing: a job refuses the table"] if gaps else []
    return [*found, "one class only: nothing can be learnt"] if distinct < 2 else found


def _task(column: Any, facts: ColumnFacts) -> Task:
    import pyarrow as pa
    import pyarrow.compute as pc

    if facts.type == "text" or pa.types.is_dictionary(column.type):
        return Task.BINARY if facts.distinct <= 2 else Task.MULTICLASS
    values = set(pc.unique(column).to_pylist()[: _MOST_CLASSES + 1]) - {None}
    if values <= {0, 1} or values <= {-1, 1}:
        return Task.BINARY
    whole = pa.types.is_integer(column.type) and values == set(range(len(values)))
    return Task.MULTICLASS if whole and len(values) <= _MOST_CLASSES else Task.REGRESSION


def job_file(name: str, label: str, task: Task, columns: list[ColumnFacts]) -> str:
    """Return the text of a job to start from."""
    import json

    chosen = [column.name for column in columns if column.suggested]
    left = [json.dumps(c.name) for c in columns if is_feature(c.name, label) and not c.suggested]
    features = f"features = {json.dumps(chosen, ensure_ascii=False)}   # not {', '.join(left)}\n"
    return (
        f"# A job to start from: hedgerow plan, hedgerow local, hedgerow submit.\n"
        f"name = {json.dumps(name, ensure_ascii=False)}\n"
        'strategy = "bagging"   # also histogram, fedxgbllr, fedga, dp_tree; docs/strategies\n'
        f"label = {json.dumps(label, ensure_ascii=False)}\n"
        f'task = "{task.value}"   # binary, multiclass or regression\n'
        + (features if left else "# features = [...]   # all columns; or name those to use\n")
        + f"metrics = {json.dumps(list(metrics.defaults(task)))}   # the first selects the best\n"
        "seed = 1\n# min_silos = 3   # silos with rows, without which the job does not start\n\n"
        "[bagging]\nrounds = 20   # federated rounds; in each every silo adds its trees\n\n"
        "[booster]   # XGBoost's parameters, with its defaults\neta = 0.3\nmax_depth = 6\n"
    )
