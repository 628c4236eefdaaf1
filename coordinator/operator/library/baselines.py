"""What others than a federation reach with the same rows: each silo alone, all pooled, their mean.

Of a vertical job: the active party with its own columns, and all parties' columns pooled.

For operators who have the silos' tables at hand, as ``hedgerow compare`` does. Stock XGBoost, the
job's ``[booster]`` (and a histogram job's ``etas``, the last of which goes on, and the booster of
fedxgbllr's ``paper``), scored on the test rows after every boosting step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import xgboost
from numpy.typing import NDArray
from xgboost.callback import LearningRateScheduler, TrainingCallback

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Dataset, Schema, Task, merge, recode, stacked, weighed
from hedgerow.boosting.engine.objective import objective_of
from hedgerow.boosting.engine.start import start_score
from hedgerow.boosting.errors import DataError, ModelRejected
from hedgerow.boosting.ports import JobParameters, Result
from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.tables import for_job, read_table, short_name
from hedgerow.boosting.trees import loading
from hedgerow.boosting.trees.local import constrained, label_arguments
from hedgerow.coordinator.operator.library.jobs import table_of
from hedgerow.coordinator.operator.report.runs import Curve, RunUnusable

SCORED_STEPS = 100
"""Most boosting steps of a baseline that are scored; of longer trainings some are left out."""
_STOCK = {"bce": "binary:logistic", "softmax": "multi:softprob", "tweedie": "reg:tweedie"}
"""Objectives of ours that stock XGBoost knows under another name."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Cohort:
    """The tables of all silos and the test rows, under the schema on which the silos agree."""

    schema: Schema
    silos: dict[str, Dataset]
    test: Dataset


def cohort(
    job: JobParameters,
    silos: Mapping[str, str],
    test: str,
    ids: Mapping[str, str] = MappingProxyType({}),
) -> Cohort:
    """Read the tables of a horizontal job.

    Parameters
    ----------
    silos : Mapping
        Name to file or URL.
    ids : Mapping
        By silo, a column of identifiers, which is no feature, where that is not ``_id``.

    Raises
    ------
    DataError, SchemaMismatch
        A table cannot be used, or the silos' tables differ.
    """
    own = {
        name: table_of(job, name, path, id_column=ids.get(name, "_id"))
        for name, path in silos.items()
    }
    empty = {name for name, table in own.items() if table.is_empty}
    schema = merge({name: table.schema for name, table in own.items()}, empty, job.columns.positive)
    rows = recode(for_job(read_table(test), job, short_name(test)), schema)
    factors = job.columns.class_weight
    tables = {name: weighed(recode(table, schema), factors) for name, table in own.items()}
    return Cohort(schema, tables, rows)


def baselines(
    job: JobParameters, tables: Cohort, n_steps: int, n_threads: int = 1
) -> tuple[Curve, ...]:
    """Train each silo alone and all rows pooled; score them, and the mean of the silos' models.

    Returns
    -------
    tuple of Curve
        On the test rows: one of each silo with rows, of the mean of their margins, and of the
        pooled rows, which no federation may have.
    """
    test, matrix = tables.test, matrix_of(tables.test)
    with_rows = {name: table for name, table in tables.silos.items() if not table.is_empty}
    found: list[Curve] = []
    mean: dict[int, Floats] = {}
    for name, table in sorted(with_rows.items()):
        alone = _margins(job, table, matrix, n_steps, n_threads)
        found.append(_curve(job, f"{name} alone", "local", test, alone, n_steps))
        for k, margin in alone.items():
            mean[k] = mean.get(k, np.zeros_like(margin)) + margin / len(with_rows)
    found.append(_curve(job, "mean of the silos' models", "mean", test, mean, n_steps))
    pooled = stacked(with_rows.values(), tables.schema)
    every = _margins(job, pooled, matrix, n_steps, n_threads)
    return (*found, _curve(job, "all rows pooled", "pooled", test, every, n_steps))


def of_parties(
    job: JobParameters,
    active: str,
    tables: Mapping[str, str],
    tests: Mapping[str, str],
    n_steps: int,
    n_threads: int = 1,
    ids: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Curve, ...]:
    """Train the active party alone, and all parties' columns pooled; score both on the test rows.

    Parameters
    ----------
    active : str
        The party with the labels.
    tables, tests : Mapping
        Party to file or URL.
    ids : Mapping
        By party, its column of identifiers where that is not ``_id``.

    Returns
    -------
    tuple of Curve
        Of the active party on all its rows and its own columns, and of one table of all columns
        on the rows that all parties have; on the test rows that all parties have.

    Raises
    ------
    DataError
        A table cannot be used, or no test row is in all of them.
    """
    own = {
        party: table_of(job, party, path, id_column=ids.get(party, "_id"))
        for party, path in tables.items()
    }
    given = {
        party: recode(
            table_of(job, party, path, id_column=ids.get(party, "_id")), own[party].schema
        )
        for party, path in tests.items()
    }
    order = [active, *sorted(set(own) - {active})]
    test = _joined({party: given[party] for party in order}, active)
    if test.is_empty:
        raise DataError("no row of the test tables is in those of all parties")
    pooled = _joined({party: own[party] for party in order}, active)
    n_own = own[active].schema.n_features
    alone = replace(test, schema=own[active].schema, features=test.X[:, :n_own])
    return tuple(
        _curve(
            job, who, kind, rows, _margins(job, table, matrix_of(rows), n_steps, n_threads), n_steps
        )
        for who, kind, table, rows in (
            (f"{active} alone", "local", own[active], alone),
            ("all columns pooled", "pooled", pooled, test),
        )
    )


def _joined(tables: Mapping[str, Dataset], active: str) -> Dataset:
    """Return the rows that all parties have, in one table, columns in the order of ``tables``."""
    rows = {party: _rows_by_id(table) for party, table in tables.items()}
    common = [i for i in rows[active] if all(i in known for known in rows.values())]
    order = {p: np.array([known[i] for i in common], np.int64) for p, known in rows.items()}
    features = tuple(
        replace(feature, name=f"{party}: {feature.name}")
        for party, table in tables.items()
        for feature in table.schema.features
    )
    return Dataset(
        replace(tables[active].schema, features=features),
        np.concatenate([table.X[order[party]] for party, table in tables.items()], axis=1),
        tables[active].labels[order[active]],
        _taken(tables[active].weight, order[active]),
        base_margin=_taken(tables[active].base_margin, order[active]),
    )


def _taken(values: NDArray[Any] | None, rows: NDArray[np.int64]) -> Any:
    return None if values is None else values[rows]


def _rows_by_id(table: Dataset) -> dict[object, int]:
    """Return the first row of each identifier; rows without one are left out, as in a job."""
    found: dict[object, int] = {}
    for row, name in enumerate(() if table.ids is None else table.ids):
        if name is not None:
            found.setdefault(name, row)
    return found


def _curve(
    job: JobParameters,
    who: str,
    kind: str,
    test: Dataset,
    margins: Mapping[int, Floats],
    n_steps: int,
) -> Curve:
    """Return the scores of the test rows after each step of which their margins are known."""
    names, objective = job.metrics or metrics.defaults(job.task), _objective(job)
    rounds = tuple(
        _scores(names, test, margins[k], objective) if k in margins else {} for k in range(n_steps)
    )
    return Curve(who=who, kind=kind, data="test", rounds=rounds)


def by_silo(folder: Path, job: JobParameters, tables: Cohort) -> tuple[Curve, ...]:
    """Score a run's model on each silo's own rows, after each of its rounds.

    Returns
    -------
    tuple of Curve
        Empty where the result is no stock XGBoost model, or the model does not say which trees
        are of which round.

    Raises
    ------
    RunUnusable
        The model file is damaged.
    """
    path = folder / "model.ubj"
    if not path.is_file() or not isinstance(job.strategy.result, Result):
        return ()
    try:
        model = loading.load(path.read_bytes())
    except ModelRejected as error:
        raise RunUnusable(f"{path} is no XGBoost model of trees: {error}") from error
    n_rounds = len(model.round_ends)
    scored = _scored_steps(n_rounds)
    names = job.metrics or metrics.defaults(job.task)
    found = []
    for name, table in sorted(tables.silos.items()):
        if table.is_empty:
            continue
        rows = matrix_of(table)
        rounds: list[dict[str, float | None]] = [{} for _ in range(n_rounds)]
        for k in sorted(scored):
            margin = model.slice(k + 1).margins(rows).astype(np.float64)
            rounds[k] = _scores(names, table, margin, model.about.objective)
        if rounds:
            found.append(Curve(who="model", kind="federated", data=name, rounds=tuple(rounds)))
    return tuple(found)


def dump(curves: tuple[Curve, ...]) -> bytes:
    """Return ``baselines.json``; see docs/file-formats.md."""
    stored = {"schema": 1, "curves": [curve.model_dump() for curve in curves]}
    return json.dumps(stored, allow_nan=False).encode()


def _objective(job: JobParameters) -> str:
    return _STOCK.get(job.objective, job.objective)


def parameters_of(job: JobParameters, schema: Schema, n_threads: int) -> dict[str, Any]:
    """Return stock XGBoost's parameters of a job's ``[booster]``."""
    own = job.parameters
    if isinstance(own, FedXGBllr):
        job = own.silo_job(job, 1)
    found = constrained(job.booster, schema).native() | {
        "objective": _objective(job),
        "seed": job.seed,
        "nthread": n_threads,
        "verbosity": 0,
    }
    if schema.task is Task.MULTICLASS:
        found["num_class"] = schema.n_outputs
    if job.booster.base_score is not None:
        found["base_score"] = job.booster.base_score
    return found


def trained(
    job: JobParameters,
    table: Dataset,
    n_steps: int,
    parameters: dict[str, Any],
    callbacks: Sequence[TrainingCallback] | None = None,
) -> xgboost.Booster:
    """Return what stock XGBoost trains on a table, by the job's own loss where it has one."""
    if not job.booster.loss:
        return xgboost.train(parameters, matrix_of(table), n_steps, callbacks=callbacks)
    objective = objective_of(job.objective, table.schema.task, job.booster)
    base = start_score(objective, job.booster, table.labels, table.weight)

    def pairs(margins: Floats, _: xgboost.DMatrix) -> tuple[Floats, Floats]:
        given = margins.reshape(table.n_samples, -1).astype(np.float32)
        g, h = objective.gradients(given, table.labels, table.weight)
        return g.astype(np.float64), h.astype(np.float64)

    own = parameters | {"objective": objective.model_name, "base_score": base}
    return xgboost.train(own, matrix_of(table), n_steps, obj=pairs, callbacks=callbacks)


def matrix_of(table: Dataset) -> xgboost.DMatrix:
    """Return a table's rows as XGBoost takes them."""
    return xgboost.DMatrix(
        table.X,
        **label_arguments(table.labels, table.schema.task),
        weight=table.weight,
        base_margin=table.base_margin,
        feature_types=table.schema.feature_types,
        enable_categorical=True,
    )


def _scored_steps(n_steps: int) -> frozenset[int]:
    stride = math.ceil(n_steps / SCORED_STEPS)
    return frozenset([*range(stride - 1, n_steps, stride), n_steps - 1]) if n_steps else frozenset()


def _margins(
    job: JobParameters, table: Dataset, test: xgboost.DMatrix, n_steps: int, n_threads: int
) -> dict[int, Floats]:
    """Train on a table; return margins of the test rows after each scored step."""
    parameters = parameters_of(job, table.schema, n_threads)
    etas = job.parameters.etas if isinstance(job.parameters, Histogram) else ()
    schedule = None
    if etas:  # XGBoost asks for a round's after the round before it
        parameters["eta"], *later = *etas, *etas[-1:] * n_steps
        schedule = [LearningRateScheduler(later)]
    booster = trained(job, table, n_steps, parameters, schedule)
    found = {}
    for k in sorted(_scored_steps(n_steps)):
        margin = booster.predict(test, output_margin=True, iteration_range=(0, k + 1))
        found[k] = np.asarray(margin, dtype=np.float64)
    return found


def _scores(
    names: tuple[str, ...], rows: Dataset, margin: Floats, objective: str
) -> dict[str, float | None]:
    found = metrics.evaluate(names, rows.labels, margin, objective=objective, weight=rows.weight)
    return {name: value if math.isfinite(value) else None for name, value in found.items()}
