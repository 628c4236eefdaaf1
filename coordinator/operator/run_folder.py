"""The run folder: what a finished job leaves for people and scripts; see docs/file-formats.md."""

from __future__ import annotations

import functools
import json
import math
import platform
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hedgerow.boosting import warm_start
from hedgerow.boosting.engine.objective import unusual_loss
from hedgerow.boosting.errors import FederationError
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.intervals import PredictionInterval
from hedgerow.boosting.ports import strategy_of
from hedgerow.boosting.registry import STRATEGIES
from hedgerow.boosting.tables import spreadsheet
from hedgerow.boosting.unusual import unusual_columns
from hedgerow.crypto.durable import write_atomically
from hedgerow.services.process.imports import versions_of
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file, provenance, release, signed_job
from hedgerow.services.wire import schema as schema_wire
from hedgerow.services.wire.job_view import JobView, PlanView
from hedgerow.services.wire.results import check_file_names

REPORT_SCHEMA = 2
"""Version of report.json; in the first one rounds counted from 0."""
SCHEMA_FILE = "schema.json"
"""File of a result that has the schema on which the silos agreed."""


@functools.cache
def versions() -> Mapping[str, str]:
    """Return the versions that a result depends on."""
    of = versions_of("hedgerow", "xgboost-cpu", "xgboost", "numpy", "grpcio", "torch")
    return {"python": platform.python_version(), **of}


def report(
    view: JobView, plan: Mapping[str, Any] | None = None, now: float = 0.0
) -> dict[str, Any]:
    """Return report.json of a job; ``up`` is from silos to the coordinator.

    Parameters
    ----------
    plan : Mapping or None
        What :func:`planned` forecast of one silo, where it is known. Steps whose bytes nobody can
        tell without tables are left out.
    now : float
        Until when a job that has not ended has taken its time, seconds since 1970.
    """
    spec = job_wire.parse(view.spec)
    strategy = strategy_of(spec.strategy)
    began, first = spec.warm_start, strategy.first_round
    if plan is not None:
        sized = {call.value for call in strategy.sized_calls}
        steps = {name: step for name, step in plan["steps"].items() if name not in sized}
        plan = {**plan, "steps": steps}
    by_step: dict[str, Counter[str]] = {}
    of_silo: dict[str, dict[str, dict[str, int]]] = {silo.name: {} for silo in view.silos}
    for step in view.steps:
        moved = {
            "up": step.bytes_up,
            "down": step.bytes_down,
            "messages": step.messages_up + step.messages_down,
            "calls": step.calls,
        }
        by_step.setdefault(step.method, Counter(dict.fromkeys(moved, 0))).update(moved)
        of_silo.setdefault(step.silo, {})[step.method] = moved
    silo_bytes = {
        silo: {way: sum(step[way] for step in steps.values()) for way in ("up", "down")}
        for silo, steps in of_silo.items()
    }
    return {
        "schema": REPORT_SCHEMA,
        "job": view.job_id,
        "name": spec.name,
        "strategy": spec.strategy,
        "state": view.state,
        "detail": view.detail,
        "attempts": view.attempt,
        "versions": versions(),
        "silos": [
            {
                "name": silo.name,
                "rows": silo.n_samples,
                "state": silo.state,
                "detail": silo.detail,
                "bytes_up": silo_bytes[silo.name]["up"],
                "bytes_down": silo_bytes[silo.name]["down"],
            }
            for silo in view.silos
        ],
        "rounds": [
            {
                "round": r.round + first,
                "seconds": round(r.seconds, 6),
                "metrics": _finite(r.metrics),
                "bytes_up": r.bytes_up,
                "bytes_down": r.bytes_down,
                "silos": list(r.silos),
            }
            for r in view.rounds
        ],
        "bytes": {
            "up": sum(s.bytes_up for s in view.steps),
            "down": sum(s.bytes_down for s in view.steps),
            "by_step": by_step,
            "by_silo": {
                silo.name: {**silo_bytes[silo.name], "by_step": of_silo[silo.name]}
                for silo in view.silos
            },
            "control": {"up": view.control_bytes_up, "down": view.control_bytes_down},
        },
        "seconds": round(max((view.end_time or now) - view.create_time, 0.0), 3),
        "best_round": view.best_round + first if view.rounds and view.best_round >= 0 else -1,
        "model": view.model,
        "artefacts": list(view.artefacts),
        "reveals": view.reveals,
        "job_digest": view.job_digest,
        "plan": plan,
        "warm_start": {"run": began.run, "model": began.model} if began.run else None,
    }


def upgraded(document: Any) -> Any:
    """Return a report.json as this version writes it; what is no report comes back as it is.

    Rounds counted from 0 in the first schema.
    """
    try:
        known = document["strategy"] in STRATEGIES.installed()
        if document["schema"] >= REPORT_SCHEMA or not known:
            return document
        first, best = strategy_of(document["strategy"]).first_round, document["best_round"]
        return {
            **document,
            "schema": REPORT_SCHEMA,
            "rounds": [{**one, "round": one["round"] + first} for one in document["rounds"]],
            "best_round": best + first if best >= 0 else best,
        }
    except (KeyError, TypeError):
        return document


def planned(view: JobView, files: Mapping[str, bytes]) -> dict[str, Any] | None:
    """Return the forecast of one silo of a finished job, under the schema its silos agreed on.

    Returns
    -------
    dict or None
        None where the result does not have the schema: vertical jobs have none in common.
    """
    if SCHEMA_FILE not in files:
        return None
    job = job_wire.decode(view.spec)
    rows = {Silo(silo.name): silo.n_samples for silo in view.silos}
    forecast = warm_start.forecast(job, schema_wire.load(files[SCHEMA_FILE]), rows)
    return {
        "rounds": forecast.rounds,
        "steps": {
            method: {"exchanges": exchanges, "up": up, "down": down}
            for method, (exchanges, up, down) in forecast.steps.items()
        },
        "cpu_class": forecast.cpu_class,
        "notes": list(forecast.notes),
    }


def unusual(files: Mapping[str, bytes], view: JobView) -> dict[str, Any]:
    """Return a result's interval, what it lacks that the job asked for, and what is unusual.

    Raises
    ------
    ModelRejected
        The model, or its interval, cannot be read.
    """
    from hedgerow.boosting.trees.loading import load

    schema = schema_wire.load(files[SCHEMA_FILE]) if SCHEMA_FILE in files else None
    rows = [silo.n_samples for silo in view.silos]  # 0: not known here
    found = unusual_columns(schema, sum(rows) if all(rows) else 0) if schema else []
    model = load(files["model.ubj"]) if files.get("model.ubj") else None
    if model is not None and all(tree.n_nodes == 1 for tree in model.trees):
        found.append(
            "no tree divides the rows, so all predictions are one number: has the label one value "
            "only, are gamma and min_child_weight too large for its scale, or all features "
            "constant?"
        )
    job = job_wire.decode(view.spec)
    found += unusual_loss(job.objective, job.booster)
    interval = None if model is None else PredictionInterval.of(model.attributes)
    share: float = getattr(job.parameters, "interval", 0.0)
    lacks = ["interval"] * bool(share and model is not None and interval is None)
    if lacks:
        found.append(
            f"the job asked for an interval of {share:g}, and there is none: too few rows held "
            "back have larger errors (docs: how-to/quantiles), or a silo was lost while it was "
            "searched"
        )
    told = None if interval is None else asdict(interval)
    return {"interval": told, "lacks": lacks, "warnings": found}


def as_asked(report: Mapping[str, Any]) -> bool:
    """Return whether a job has succeeded with all that it asked for."""
    return report["state"] == "SUCCEEDED" and not report.get("lacks")


def amend(folder: Path, **facts: Any) -> dict[str, Any]:
    """Add fields to the report.json of a folder and return it."""
    path = folder / "report.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) | facts
    write_atomically(path, json.dumps(found, indent=1, allow_nan=False).encode(), 0o644)
    return found


def plan_by_silo(found: PlanView) -> dict[str, Any]:
    """Return a plan's mean silo, and where silos move different things, each one's own."""
    by_silo: dict[str, dict[str, dict[str, int]]] = {}
    for step in found.steps:
        own = {"exchanges": step.exchanges, "up": step.bytes_up, "down": step.bytes_down}
        by_silo.setdefault(step.silo, {})[step.method] = own
    one = next(iter(by_silo.values()), None)
    methods = dict.fromkeys(step.method for step in found.steps)
    nothing = {"exchanges": 0, "up": 0, "down": 0}
    return {
        "rounds": found.rounds,
        "steps": {
            method: {
                key: round(
                    sum(own.get(method, nothing)[key] for own in by_silo.values()) / len(by_silo)
                )
                for key in nothing
            }
            for method in methods
        },
        "by_silo": by_silo if any(own != one for own in by_silo.values()) else {},
        "cpu_class": found.cpu_class,
        "notes": list(found.notes),
    }


def _finite(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float | None]]:
    """JSON has no NaN: a score that is not defined is null."""
    return {
        data: {name: value if math.isfinite(value) else None for name, value in scores.items()}
        for data, scores in metrics.items()
    }


def metrics_table(view: JobView) -> bytes:
    """Return metrics.csv: one row a round, one column a data set and metric."""
    columns = sorted(
        {(d, m) for r in view.rounds for d, scores in r.metrics.items() for m in scores}
    )
    names = ["round", "seconds", "bytes_up", "bytes_down", *(f"{d}.{m}" for d, m in columns)]
    first = strategy_of(job_wire.parse(view.spec).strategy).first_round
    rows: list[list[object]] = [
        [r.round + first, f"{r.seconds:.6f}", r.bytes_up, r.bytes_down]
        + [r.metrics.get(d, {}).get(m, "") for d, m in columns]
        for r in view.rounds
    ]
    return spreadsheet.write_rows(names, rows)


_KEPT = (".json", ".ubj", ".safetensors", ".toml")
"""Endings of what silos keep of a run; tables have others."""
_SCORED = "predictions.csv"


def claim(folder: Path, *, overwrite: bool = False, job_id: str = "") -> None:
    """Refuse a folder that has another run's result, or take that run out of it.

    A run that left no file, as one that failed, is taken out in any case. Of ``silos`` and ``logs``
    only what a run writes goes: the silos' tables may lie there, too.

    Parameters
    ----------
    overwrite : bool
        Whether the result may go.
    job_id : str
        The job whose result is written; its own earlier one may go.

    Raises
    ------
    FederationError
        The folder has a result, and ``overwrite`` is not set.
    """
    path = folder / "report.json"
    if not path.exists():
        return
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        job, state, left = found["job"], found["state"], list(map(str, found["artefacts"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        job, state, left = "", "unreadable", []
    if job_id and job_id == job:
        return
    if not overwrite and (left or state not in ("FAILED", "CANCELLED")):
        raise FederationError(
            f"{folder} has the run {job or path.name} ({state.lower()}) already: give --overwrite "
            "(in Python overwrite=True), or another folder"
        )
    own = {"report.json", "report.html", "metrics.csv", "job.toml", "evaluation.json"}
    own |= {release.AUDIT, "audit.html", provenance.FILE, release.FILE, signed_job.FILE}
    own |= {"baselines.json", *(name for name in left if Path(name).name == name)}
    copies = (p for p in folder.glob("silos/*/*") if p.suffix in _KEPT or p.name == _SCORED)
    written = (*folder.glob("ledger-*.jsonl"), *folder.glob("logs/*.log"), *copies)
    for file in (*(folder / name for name in sorted(own)), *written):
        if file.is_file():
            file.unlink()
    for inner in (*folder.glob("silos/*"), folder / "silos", folder / "logs"):
        with suppress(OSError):  # it has something else, such as the silos' tables
            inner.rmdir()


def write(
    folder: Path, view: JobView, files: Mapping[str, bytes], plan: Mapping[str, Any] | None = None
) -> None:
    """Write the run folder: report, metrics, job file and the files of the result.

    Parameters
    ----------
    plan : Mapping, optional
        What was expected; made of the result's schema where it has one, if not given.

    Raises
    ------
    ModelRejected
        A file's name has a path: a coordinator may send any names.
    """
    check_file_names(files, f"the result of job {view.job_id}")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, data in files.items():
        write_atomically(folder / name, data, 0o644)
    write_atomically(folder / "job.toml", job_file.dump(view.spec).encode(), 0o644)
    write_atomically(folder / "metrics.csv", metrics_table(view), 0o644)
    found = report(view, plan or planned(view, files)) | unusual(files, view)
    text = json.dumps(found, indent=1, allow_nan=False)
    write_atomically(folder / "report.json", text.encode(), 0o644)
