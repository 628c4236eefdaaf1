"""A finished run at an MLflow tracking server; needs the extra ``mlflow``."""

from __future__ import annotations

import math
import re
import tomllib
import warnings
from importlib.metadata import version
from typing import Any

from hedgerow.boosting.errors import FederationError
from hedgerow.coordinator.operator.library import running
from hedgerow.coordinator.operator.library.evaluation import FILE as EVALUATION
from hedgerow.coordinator.operator.library.running import Run
from hedgerow.coordinator.operator.library.scoring import Model, ModelUnusable

LONGEST = 500
"""Characters of a parameter that every version of MLflow keeps."""


def log_run(run: Run, *, experiment: str | None = None) -> str:
    """Log a run to MLflow and return the identifier of its MLflow run.

    Where an MLflow run is active, it is logged there. What silos keep in the run folder, such as
    ledgers and parts of vertical models, is not sent.

    Parameters
    ----------
    run : Run
        As of :func:`hedgerow.local`, :func:`hedgerow.simulate` or a client's ``download``.
    experiment : str, optional
        Name of the experiment; MLflow's current one where it is not given.

    Raises
    ------
    FederationError
        MLflow is not installed.
    """
    try:
        import mlflow
    except ImportError as error:
        raise FederationError(
            "hedgerow.mlflow needs mlflow-skinny: pip install hedgerow[mlflow]"
        ) from error
    if experiment is not None:
        mlflow.set_experiment(experiment)
    active = mlflow.active_run()
    if active is not None:
        _log(run)
        return str(active.info.run_id)
    with mlflow.start_run(run_name=run.name) as started:
        _log(run)
        return str(started.info.run_id)


def autolog(*, disable: bool = False) -> None:
    """Log every run of this process as :func:`log_run` does, from now on.

    Runs are those that ``local``, ``simulate``, ``join`` and a client's ``download`` return; a job
    that fails is one of them. What MLflow does not take is a warning, and the run is returned.

    Parameters
    ----------
    disable : bool
        Whether to end it.
    """
    running.on_end[:] = [each for each in running.on_end if each is not _logged]
    if not disable:
        running.on_end.append(_logged)


def _logged(run: Run) -> None:
    try:
        log_run(run)
    except FederationError:
        raise
    except Exception as error:  # a server that is away costs the log, not the training
        warnings.warn(
            f"MLflow has not logged {run.name} ({type(error).__name__}); log_run(run) tries again",
            stacklevel=4,
        )


def _log(run: Run) -> None:
    import mlflow

    document = run.document
    mlflow.log_params(_flat(tomllib.loads(run.job.toml)))
    mlflow.set_tags(
        {
            "hedgerow.version": version("hedgerow"),
            "hedgerow.job": document["job"],
            "hedgerow.state": run.state,
            "hedgerow.best_round": document["best_round"],
        }
    )
    for row in run.metrics.rows():
        step = row.pop("round")
        known = {_name(key): value for key, value in row.items() if value is not None}
        mlflow.log_metrics({k: v for k, v in known.items() if math.isfinite(v)}, step=step)
    moved = {f"total_bytes_{way}": document["bytes"][way] for way in ("up", "down")}
    mlflow.log_metrics(moved)
    names = dict.fromkeys(["job.toml", "metrics.csv", EVALUATION, *document["artefacts"]])
    for name in names:
        if (run.folder / name).is_file():
            mlflow.log_artifact(str(run.folder / name))
    report = {key: value for key, value in document.items() if key != "unfit"}
    mlflow.log_dict(report, "report.json")
    try:
        model = run.model
    except ModelUnusable:  # it has failed, or each silo has a part or a model of its own
        return
    if model.is_stock and not model.parties:
        _log_model(model)


def _log_model(model: Model) -> None:
    import mlflow.xgboost
    import numpy as np
    import xgboost
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema, TensorSpec

    n_outputs = max(model.n_classes if model.n_classes > 2 else 1, len(model.outputs))
    outputs = (-1,) if n_outputs == 1 else (-1, n_outputs)
    signature = ModelSignature(
        Schema([ColSpec(DataType.double, name, required=False) for name in model.features]),
        Schema([TensorSpec(np.dtype(np.float32), outputs)]),
    )
    mlflow.xgboost.log_model(
        model.to_xgboost(),
        name="model",
        model_format="ubj",
        signature=signature,
        pip_requirements=[f"xgboost=={xgboost.__version__}"],
    )


def _flat(table: dict[str, Any], where: str = "") -> dict[str, str]:
    """Return the values of a job file by dotted key."""
    found: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{where}{_name(key)}.")
        else:
            found[where + _name(key)] = str(value)[:LONGEST]
    return found


def _name(text: str) -> str:
    """Return a name of the characters that MLflow takes."""
    return re.sub(r"[^\w\-. /]", "_", text)
