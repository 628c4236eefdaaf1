"""Models as files, ready to score a table: a run folder, or a stock XGBoost model on its own."""

from __future__ import annotations

import copyreg
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hedgerow.boosting.dataset import Dataset, Schema, Task
from hedgerow.boosting.errors import DataError, FederationError, ModelRejected
from hedgerow.boosting.job import ColumnRules
from hedgerow.boosting.ports import JobParameters, Result, strategy_of
from hedgerow.boosting.registry import STRATEGIES
from hedgerow.boosting.trees.ensemble import Ensemble
from hedgerow.coordinator.operator.library.arguments import checked
from hedgerow.coordinator.operator.library.scoring import Floats, Model, ModelUnusable
from hedgerow.coordinator.operator.run_folder import REPORT_SCHEMA, upgraded
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from hedgerow.services.wire import schema as schema_wire

_ABOUT = ("schema.json", "job.toml")
"""Files beside a model's own that say how its tables are read."""
_OWN = ("model.ubj", "schema.json", "part.json")
"""Files of a silo that its own model, or its part of one, is made of."""


def owners(path: Path) -> tuple[str, ...]:
    """Return the silos of a run whose result is a model of each silo's own; else nobody.

    Raises
    ------
    ModelUnusable
        A run of such a strategy in whose folder no silo's model is.
    """
    if not path.is_dir():
        return ()
    report = report_of(path)
    strategy = str(report["strategy"])
    if not report["model"] or strategy not in STRATEGIES.installed():
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


@checked
def load(path: str | os.PathLike[str], silo: str = "") -> Model:
    """Return the model of a run folder, or of an XGBoost model file; see :func:`open_model`."""
    return open_model(Path(path), silo)


def open_model(path: Path, silo: str = "") -> Model:
    """Return the model of a run folder, or of an XGBoost model file (``.ubj`` or ``.json``).

    Beside a model file ``schema.json`` and ``job.toml`` are used when they are there.

    Parameters
    ----------
    silo : str
        Whose own model of the run to take; empty takes the model that all have in common.

    Raises
    ------
    ModelUnusable
    """
    if silo:
        return replace(_of_silo(path, silo), files=_files(path), owner=silo)
    if path.is_dir():
        return replace(_of_run(path), files=_files(path))
    if not path.is_file():
        raise ModelUnusable(f"{path}: there is no such run folder or model file")
    beside = path.with_name("job.toml")
    job = job_wire.decode(job_file.load(beside)) if beside.is_file() else None
    found = _stock(path, _bytes(path), _schema_beside(path), job)
    about = [p for p in (path.with_name(name) for name in _ABOUT) if p.is_file()]
    return replace(found, files={file.name: _bytes(file) for file in (path, *about)})


def _files(folder: Path) -> dict[str, bytes]:
    """Return what a run's model is made of, by path in its folder."""
    report = report_of(folder)
    names = dict.fromkeys(["report.json", *_ABOUT, report["model"], *report["artefacts"]])
    own = [p.relative_to(folder).as_posix() for p in folder.glob("silos/*/*") if p.name in _OWN]
    return {n: _bytes(folder / n) for n in (*names, *own) if (folder / n).is_file()}


def of_saved(files: Mapping[str, bytes], silo: str = "") -> Model:
    """Return the model of files as :attr:`Model.files` has them; what unpickling calls."""
    with tempfile.TemporaryDirectory(prefix="hedgerow-") as name:
        for file, data in files.items():
            (Path(name) / file).parent.mkdir(parents=True, exist_ok=True)
            (Path(name) / file).write_bytes(data)
        alone = next((file for file in files if file not in _ABOUT), "")
        return open_model(Path(name) / ("" if "report.json" in files else alone), silo)


def _pickled(model: Model) -> tuple[Any, ...]:
    return of_saved, (dict(model.files), model.owner)


copyreg.pickle(Model, _pickled)


def files_of(files: Mapping[str, bytes], model: str, spec: bytes) -> dict[str, bytes]:
    """Return :attr:`Model.files` of a job's result that is in no folder."""
    strategy = job_wire.parse(spec).strategy
    report = {"schema": REPORT_SCHEMA, "strategy": strategy, "state": "SUCCEEDED", "model": model,
              "artefacts": sorted(files), "rounds": [], "best_round": -1}  # fmt: skip
    return {**files, "job.toml": job_file.dump(spec).encode(),
            "report.json": json.dumps(report).encode()}  # fmt: skip


def report_of(folder: Path) -> dict[str, Any]:
    """Return what a run's report.json tells, with strategy, model and artefacts at least."""
    try:
        found = upgraded(json.loads((folder / "report.json").read_text(encoding="utf-8")))
        return {"artefacts": [found["model"]], **found, "strategy": found["strategy"]}
    except FileNotFoundError:
        raise ModelUnusable(f"{folder} is no run folder: it has no report.json") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelUnusable(f"{folder / 'report.json'} cannot be read") from error


def _of_silo(folder: Path, silo: str) -> Model:
    known = sorted(own.parent.name for own in folder.glob("silos/*/model.ubj"))
    if silo not in known:
        there = f"there are those of {', '.join(known)}" if known else "no silo's model is there"
        raise ModelUnusable(f"{folder}: no model of silo {silo}; {there}")
    path = folder / "silos" / silo / "model.ubj"
    job = job_wire.decode(job_file.load(folder / "job.toml"))
    schema = _schema_beside(path) or _schema_beside(folder / "model.ubj")
    return _stock(path, _bytes(path), schema, job)


def _of_run(folder: Path) -> Model:
    report = report_of(folder)
    model = str(report["model"])
    if not model:
        raise ModelUnusable(f"{folder}: the run ended without a model ({report.get('state')})")
    job = job_wire.decode(job_file.load(folder / "job.toml"))
    if job.strategy.result is Result.TABLE:
        raise ModelUnusable(f"{folder}: its job has statistics and no model; see Run.statistics")
    if job.strategy.result is Result.PARTS:
        return _of_parts(folder, job)
    if job.strategy.result is Result.PERSONAL and (own := owners(folder)):
        raise ModelUnusable(
            f"{folder}: each silo has a model of its own; say whose: {', '.join(own)}"
        )
    names = dict.fromkeys([model, *map(str, report["artefacts"])])
    if isinstance(job.strategy.result, Result):
        names = dict.fromkeys([model])
    files = {name: _bytes(folder / name) for name in names}
    return of_files(files, model, job, _schema_beside(folder / model), str(folder))


def of_files(
    files: Mapping[str, bytes], model: str, job: JobParameters, schema: Schema | None, where: str
) -> Model:
    """Return the model of a horizontal job's result; raises ModelUnusable.

    Parameters
    ----------
    model : str
        The file that is the model.
    where : str
        Of the files, for messages.
    """
    strategy, score = job.strategy.name, job.strategy.result
    # A strategy whose result is no stock XGBoost model scores its files itself.
    if isinstance(score, Result):
        if Path(model).suffix not in (".ubj", ".json") or score is Result.PARTS:
            raise ModelUnusable(
                f"{where}: the result of strategy {strategy} is not one model: the silos have it"
            )
        return _stock(f"{where}/{model}", files[model], schema, job)
    if schema is None:
        raise ModelUnusable(f"{where}: schema.json is missing")
    stock = next((name for name in ("model.ubj", "ensemble.ubj") if name in files), model)
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
        _trees(f"{where}/{stock}", files[stock]),
        strategy,
        is_stock=stock == "model.ubj",
        columns=job.columns,
    )


def _of_parts(folder: Path, job: JobParameters) -> Model:
    """Return the model of a vertical run whose folder has the parts of all parties."""
    from hedgerow.boosting.strategies.secureboost.joined import joined
    from hedgerow.boosting.strategies.secureboost.model import ActivePart, PassivePart, load_part

    parts = [load_part(_bytes(path)) for path in sorted(folder.glob("silos/*/part.json"))]
    active = next((part for part in parts if isinstance(part, ActivePart)), None)
    if active is None:
        raise ModelUnusable(
            f"{folder}: the model of a vertical run is in parts, and that of the active party "
            f"{job.active} is not there; its parties score together"
        )
    try:
        passive = {part.party: part for part in parts if isinstance(part, PassivePart)}
        ensemble, schema = joined(active, passive)
    except DataError as error:
        raise ModelUnusable(f"{folder}: {error}; its parties score together") from error
    owners: list[ActivePart | PassivePart] = [
        active,
        *(passive[party] for party in active.parties[1:]),
    ]
    parties = tuple(own.party for own in owners for _ in own.features)
    sets = any(tree.categories for tree in ensemble.trees)
    found = _scoring(ensemble, schema, job, None if sets else ["q"] * schema.n_features)
    own = tuple(active.base_margins)
    return replace(
        found,
        parties=parties,
        base_margins=own,
        margins=_begun(found.margins) if own else found.margins,
    )


def _begun(of_trees: Callable[[Dataset], Floats]) -> Callable[[Dataset], Floats]:
    """Return margins that begin with the rows' own."""

    def margins(dataset: Dataset) -> Floats:
        assert dataset.base_margin is not None
        found = of_trees(dataset)
        return np.asarray(found + dataset.base_margin.reshape(found.shape), np.float64)

    return margins


def _trees(path: object, data: bytes) -> Ensemble:
    from hedgerow.boosting.trees.loading import load as load_trees

    try:
        # XGBoost's own loader trusts a file's numbers: it gets what was checked here.
        return load_trees(data)
    except ModelRejected as error:
        raise ModelUnusable(f"{path} is no XGBoost model of trees: {error}") from error


def _stock(path: object, data: bytes, schema: Schema | None, job: JobParameters | None) -> Model:
    """Return the model of a stock file; without its job there are trees only."""
    found = _trees(path, data)
    about = found.about
    if schema is not None and schema.n_features != about.n_features:
        raise ModelUnusable(
            f"{path} has {about.n_features} features, schema.json beside it {schema.n_features}"
        )
    try:
        return _scoring(found, schema, job)
    except ModelRejected as error:
        raise ModelUnusable(f"{path} is no XGBoost model of trees: {error}") from error


def _scoring(
    found: Ensemble,
    schema: Schema | None,
    job: JobParameters | None,
    types: list[str] | None = None,
) -> Model:
    """Return a model whose margins are the sum of its trees."""
    booster, about = found.booster(n_threads=0), found.about
    task = Task.REGRESSION
    if about.objective.startswith("binary:"):
        task = Task.BINARY
    elif about.objective.startswith("multi:"):
        task = Task.MULTICLASS
    elif about.objective.startswith("survival:"):
        task = Task.SURVIVAL
    elif about.objective.startswith("rank:"):
        task = Task.RANKING
    features = schema.names if schema is not None else tuple(booster.feature_names or ())
    if types is None:
        types = schema.feature_types if schema is not None else booster.feature_types

    def margins(dataset: Dataset) -> Floats:
        if dataset.is_empty:  # XGBoost forgets the classes of no rows
            return np.zeros((0, about.n_outputs) if about.n_outputs > 1 else 0)
        import xgboost

        rows = xgboost.DMatrix(dataset.X, feature_types=types, enable_categorical=True)
        scored = booster.predict(rows, output_margin=True, validate_features=False)
        return np.asarray(scored, dtype=np.float64)

    return Model(
        schema,
        features,
        about.n_features,
        about.n_outputs if task is Task.MULTICLASS else 0,
        task,
        about.objective,
        "label" if job is None else job.label,
        () if job is None else job.metrics,
        margins,
        found,
        "" if job is None else job.strategy.name,
        columns=ColumnRules() if job is None else job.columns,
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
