"""Models as files, ready to score a table: a run folder, or a stock XGBoost model on its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Dataset, Schema, Task, recode
from hedgerow.boosting.errors import DataError, FederationError, ModelRejected
from hedgerow.boosting.ports import Result, strategy_of
from hedgerow.boosting.strategies import NAMES
from hedgerow.boosting.tables import is_feature, read_table, short_name, to_dataset
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from hedgerow.services.wire import schema as schema_wire

Floats = NDArray[np.float64]


class ModelUnusable(FederationError):
    """A run folder or model file from which nothing can be scored; says which file and why."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model that scores rows.

    Parameters
    ----------
    schema : Schema or None
        The schema of its silos; None when only the model file is at hand.
    names : tuple of str
        Features in the model's order; empty when the file does not say.
    objective : str
    label : str
    metrics : tuple of str
        Those of its job.
    margins : callable
        Data set (coded by ``schema``) to margins, one or one a class for each row.
    """

    schema: Schema | None
    names: tuple[str, ...]
    n_features: int
    n_classes: int
    task: Task
    objective: str
    label: str
    metrics: tuple[str, ...]
    margins: Callable[[Dataset], Floats]

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, empty where labels are numbers."""
        return () if self.schema is None else self.schema.classes

    def read(self, path: str, label: str) -> tuple[Dataset, Any]:
        """Return a table under the model's schema, and the Arrow table that it is from.

        Parameters
        ----------
        path : str
            File or URL.
        label : str
            Label column, empty to leave labels aside.

        Raises
        ------
        DataError
            A feature of the model is not there, or is of another type.
        """
        table = read_table(path, self.names)
        where = short_name(path)
        names = self.names or tuple(n for n in table.column_names if is_feature(n, self.label))
        if len(names) != self.n_features:
            raise DataError(
                f"{where}: the model has {self.n_features} features, the table {len(names)}"
            )
        dataset = to_dataset(
            table,
            where,
            task=self.task,
            label=label,
            features=names,
            # With text labels the number of classes is checked when they are recoded.
            classes=self.n_classes,
            objective=self.objective,
        )
        if self.schema is not None:
            return recode(dataset, self.schema), table
        text = [f.name for f in dataset.schema.features if f.categories]
        if text:
            raise DataError(
                f"{where}: column '{text[0]}' holds text, and the model file has no category "
                "lists; score with its run folder, where schema.json has them"
            )
        return dataset, table

    def predictions(self, margins: Floats) -> Floats:
        """Return probabilities (of class 1, or of each class) or predicted numbers."""
        return metrics.link(self.objective, margins)


def owners(path: Path) -> tuple[str, ...]:
    """Return the silos of a run whose result is a model of each silo's own; else nobody.

    Raises
    ------
    ModelUnusable
        A run of such a strategy in whose folder no silo's model is.
    """
    if not path.is_dir():
        return ()
    report = _report(path)
    strategy = str(report["strategy"])
    if not report["model"] or strategy not in NAMES:
        return ()
    if strategy_of(strategy).result is not Result.PERSONAL:
        return ()
    found = tuple(sorted(own.parent.name for own in path.glob("silos/*/model.ubj")))
    if not found:
        raise ModelUnusable(
            f"{path}: the models of strategy {strategy} stay in the silos; score in a silo, with "
            "the model.ubj of its own state folder"
        )
    return found


def open_model(path: Path, silo: str = "") -> Model:
    """Return the model of a run folder, or of an XGBoost model file (``.ubj`` or ``.json``).

    Beside a model file a ``schema.json`` is used when there is one.

    Parameters
    ----------
    path : Path
    silo : str
        Whose own model of the run to take; empty takes the model that all have in common.

    Raises
    ------
    ModelUnusable
    """
    if silo:
        return _of_silo(path, silo)
    if path.is_dir():
        return _of_run(path)
    if not path.is_file():
        raise ModelUnusable(f"{path}: there is no such run folder or model file")
    return _stock(path, _schema_beside(path), "label", ())


def _report(folder: Path) -> dict[str, Any]:
    """Return what a run's report.json tells, with strategy, model and artefacts at least."""
    try:
        found = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        return {"artefacts": [found["model"]], **found, "strategy": found["strategy"]}
    except FileNotFoundError:
        raise ModelUnusable(f"{folder} is no run folder: it has no report.json") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelUnusable(f"{folder / 'report.json'} cannot be read") from error


def _of_silo(folder: Path, silo: str) -> Model:
    known = sorted(own.parent.name for own in folder.glob("silos/*/model.ubj"))
    if silo not in known:
        there = f"there are those of {', '.join(known)}" if known else "no silo's model is there"
        raise ModelUnusable(f"{folder}: no model of silo {silo}; {there}")
    path = folder / "silos" / silo / "model.ubj"
    job = job_wire.decode(job_file.load(folder / "job.toml"))
    schema = _schema_beside(path) or _schema_beside(folder / "model.ubj")
    return _stock(path, schema, job.label, job.metrics)


def _of_run(folder: Path) -> Model:
    report = _report(folder)
    strategy, model = str(report["strategy"]), str(report["model"])
    names = [str(name) for name in report["artefacts"]]
    if not model:
        raise ModelUnusable(f"{folder}: the run ended without a model ({report.get('state')})")
    job = job_wire.decode(job_file.load(folder / "job.toml"))
    # A strategy whose result is no stock XGBoost model scores its files itself.
    score = job.strategy.result
    if isinstance(score, Result):
        if Path(model).suffix not in (".ubj", ".json") or score is Result.PARTS:
            raise ModelUnusable(
                f"{folder}: the result of strategy {strategy} is not one model of one party; "
                "its parties score together, or each with its own part"
            )
        return _stock(folder / model, _schema_beside(folder / model), job.label, job.metrics)
    schema = _schema_beside(folder / model)
    if schema is None:
        raise ModelUnusable(f"{folder}: schema.json is missing")
    files = {name: _bytes(folder / name) for name in names}
    return Model(
        schema,
        schema.names,
        schema.n_features,
        schema.n_classes,
        schema.task,
        job.objective,
        job.label,
        job.metrics,
        lambda dataset: np.asarray(score(files, dataset), dtype=np.float64),
    )


def _stock(path: Path, schema: Schema | None, label: str, names: tuple[str, ...]) -> Model:
    import xgboost

    from hedgerow.boosting.trees.loading import load

    try:
        # XGBoost's own loader trusts a file's numbers: it gets what was checked and written anew.
        found = load(_bytes(path))
        booster = found.booster(n_threads=0)
    except ModelRejected as error:
        raise ModelUnusable(f"{path} is no XGBoost model of trees: {error}") from error
    about = found.about
    task = Task.REGRESSION
    if about.objective.startswith("binary:"):
        task = Task.BINARY
    elif about.objective.startswith("multi:"):
        task = Task.MULTICLASS
    features = tuple(booster.feature_names or ())
    if schema is not None:
        if schema.n_features != about.n_features:
            raise ModelUnusable(
                f"{path} has {about.n_features} features, schema.json beside it {schema.n_features}"
            )
        features = schema.names
    types = schema.feature_types if schema is not None else booster.feature_types

    def margins(dataset: Dataset) -> Floats:
        if dataset.is_empty:  # XGBoost forgets the classes of no rows
            return np.zeros((0, about.n_outputs) if about.n_outputs > 1 else 0)
        rows = xgboost.DMatrix(dataset.X, feature_types=types, enable_categorical=True)
        found = booster.predict(rows, output_margin=True, validate_features=False)
        return np.asarray(found, dtype=np.float64)

    return Model(
        schema,
        features,
        about.n_features,
        about.n_outputs if task is Task.MULTICLASS else 0,
        task,
        about.objective,
        label,
        names,
        margins,
    )


def _schema_beside(model: Path) -> Schema | None:
    path = model.with_name("schema.json")
    if not path.is_file():
        return None
    try:
        return schema_wire.load(_bytes(path))
    except FederationError as error:
        raise ModelUnusable(f"{path}: {error}") from error


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelUnusable(f"{path} cannot be read: {error.strerror}") from error
