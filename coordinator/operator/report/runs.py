"""Run folders as values: read, checked, and compared with the ledgers in them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hedgerow.boosting.errors import FederationError
from hedgerow.boosting.selection import file_of, statistics_of
from hedgerow.boosting.strategies.histogram.artefact import SURVIVAL
from hedgerow.coordinator.operator.run_folder import REPORT_SCHEMA, upgraded
from hedgerow.services.process import ledgers
from hedgerow.services.process.ledgers import LedgerBroken, VerifiedLedger

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0.0)]


class RunUnusable(FederationError):
    """A run folder from which no report can be made; says which file and why."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Traffic(_Part):
    """Protobuf bytes and messages; ``up`` is from silos."""

    up: Count
    down: Count
    messages: Count = 0
    calls: Count = 0


class SiloTraffic(Traffic):
    """Traffic of one silo."""

    by_step: dict[str, Traffic] = {}


class Moved(Traffic):
    """Traffic of a job."""

    control: Traffic
    by_step: dict[str, Traffic]
    by_silo: dict[str, SiloTraffic] = {}


class SiloPart(_Part):
    """A silo's part in a job."""

    name: str
    rows: Count
    state: str = ""
    detail: str = ""
    bytes_up: Count = 0
    bytes_down: Count = 0


class RoundPart(_Part):
    """A finished round."""

    round: Count
    seconds: Seconds
    metrics: dict[str, dict[str, float | None]]
    bytes_up: Count
    bytes_down: Count
    silos: tuple[str, ...] = ()


class PlannedStep(_Part):
    """What the plan expects of one silo for one step, over the whole job."""

    exchanges: Count
    up: Count
    down: Count


class StoredPlan(_Part):
    """What the plan expected before anyone trained.

    ``by_silo`` is there where silos move different things: the parties of a vertical job.
    """

    rounds: Count
    steps: dict[str, PlannedStep]
    by_silo: dict[str, dict[str, PlannedStep]] = {}
    cpu_class: str = ""
    notes: tuple[str, ...] = ()


class StartedFrom(_Part):
    """The run whose model a job went on from."""

    run: str
    model: str = ""


class StoredInterval(_Part):
    """By how much predictions are widened on either side, to hold a share of rows held back."""

    share: float
    width: float
    rows: Count


class Report(_Part):
    """``report.json``; see docs/file-formats.md."""

    version: int = Field(alias="schema")
    job: str
    name: str = ""
    strategy: str
    state: str
    detail: str = ""
    attempts: Count = 1
    versions: dict[str, str] = {}
    silos: tuple[SiloPart, ...]
    rounds: tuple[RoundPart, ...]
    bytes: Moved
    seconds: Seconds
    best_round: int
    model: str = ""
    artefacts: tuple[str, ...] = ()
    reveals: str = ""
    job_digest: str = ""
    plan: StoredPlan | None = None
    warm_start: StartedFrom | None = None
    interval: StoredInterval | None = None
    lacks: tuple[str, ...] = ()
    """What the job asked for and has not found."""

    @model_validator(mode="before")
    @classmethod
    def _now(cls, document: Any) -> Any:
        return upgraded(document)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics of its rounds, in the order in which they come."""
        found = (m for r in self.rounds for scores in r.metrics.values() for m in scores)
        return tuple(dict.fromkeys(found))

    @property
    def data_sets(self) -> tuple[str, ...]:
        """Names of the scored data sets, test rows first."""
        found = dict.fromkeys(data for r in self.rounds for data in r.metrics)
        return tuple(sorted(found, key=lambda data: (data != "test", data)))

    @property
    def best(self) -> RoundPart | None:
        """The round that the selection rule preferred, or the last one."""
        chosen = [r for r in self.rounds if r.round == self.best_round]
        return chosen[0] if chosen else self.rounds[-1] if self.rounds else None


class Times(_Part):
    """``times.json`` of a silo: seconds by what they went into."""

    seconds: Seconds
    train: Seconds
    wait: Seconds
    encrypt: Seconds
    send: Seconds
    ledger: Seconds


class Curve(_Part):
    """Scores over rounds of one model on one data set."""

    who: str
    kind: str
    data: str
    rounds: tuple[dict[str, float | None], ...]


class ExplainedFeature(_Part):
    """What a feature adds to the margin, as means over rows."""

    feature: str
    mean: float
    low: float | None = None
    high: float | None = None


class EvaluatedTable(_Part):
    """How a model does on a table; see docs/file-formats.md."""

    data: str
    silo: str = ""
    rows: Count
    task: str
    classes: tuple[str, ...] = ()
    groups: tuple[Any, ...]
    confusion: tuple[tuple[Count, ...], ...] = ()
    shap: tuple[ExplainedFeature, ...] = ()


class Evaluation(_Part):
    """``evaluation.json``: predictions in groups of rows."""

    version: int = Field(alias="schema")
    least_rows: Count
    sets: tuple[EvaluatedTable, ...]


class TimeCell(_Part):
    """Rows of all silos whose times are in a range."""

    start: Annotated[float, Field(alias="from", allow_inf_nan=False)]
    until: Annotated[float, Field(allow_inf_nan=False)] | None
    events: Count
    rows: Count
    survival: Annotated[float, Field(ge=0, le=1)]
    low: Annotated[float, Field(ge=0, le=1)]
    high: Annotated[float, Field(ge=0, le=1)]


class Survival(_Part):
    """``survival.json``: the Kaplan-Meier curve of a job of hazards."""

    version: int = Field(alias="schema")
    min_cell: Count
    cells: tuple[TimeCell, ...]


class Audit(_Part):
    """``audit.json``; see docs/file-formats.md."""

    version: int = Field(alias="schema")
    model_sha256: str
    attacks: tuple[dict[str, Any], ...]
    groups: tuple[dict[str, Any], ...] = ()
    contributions: tuple[dict[str, Any], ...] = ()
    limits: tuple[dict[str, Any], ...]


class Baselines(_Part):
    """``baselines.json``: what others than the federation reach; ``hedgerow compare`` writes it."""

    version: int = Field(alias="schema")
    curves: tuple[Curve, ...]


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run folder that holds together."""

    folder: Path
    label: str
    """Short and unique among the runs of a page."""
    report: Report
    job_text: str
    ledgers: dict[str, VerifiedLedger]
    """By silo; verified, and with as many bytes as the report says, or more (sent again)."""
    times: dict[str, Times]
    """By silo, where the run folder has them."""
    baselines: Baselines | None
    evaluation: Evaluation | None = None
    audit: Audit | None = None
    survival: Survival | None = None
    statistics: dict[str, Any] | None = None
    """Of a job of strategy ``explore``."""


Kind = TypeVar("Kind", bound=_Part)


def read_runs(folders: Sequence[Path]) -> tuple[FinishedRun, ...]:
    """Return run folders, each under a name of its own.

    Raises
    ------
    RunUnusable
        A folder is none of a run, a file in it is damaged or belongs to another run, or the runs
        have no metric in common.
    """
    runs = tuple(
        _read(folder, label) for folder, label in zip(folders, _labels(folders), strict=True)
    )
    scored = [run for run in runs if run.report.metrics]
    common = [set(run.report.metrics) for run in scored]
    if common and not set.intersection(*common):
        listed = "; ".join(f"{run.label} has {', '.join(run.report.metrics)}" for run in scored)
        raise RunUnusable(f"these runs have no metric in common: {listed}")
    return runs


def _labels(folders: Sequence[Path]) -> list[str]:
    """Return the shortest ends of paths that tell all folders apart."""
    parts = [Path(os.path.realpath(folder)).parts for folder in folders]
    if len(set(parts)) < len(parts):
        raise RunUnusable("the same run folder is given twice")
    for n in range(1, max(map(len, parts)) + 1):
        labels = ["/".join(part[-n:]) for part in parts]
        if len(set(labels)) == len(labels):
            return labels
    raise AssertionError("different paths differ somewhere")


def _read(folder: Path, label: str) -> FinishedRun:
    path = folder / "report.json"
    if not path.is_file():
        what = "is no run folder: it has no report.json" if folder.is_dir() else "is not there"
        if folder.is_file():
            what = "is a file, no run folder"
        raise RunUnusable(f"{folder} {what}")
    report = _parsed(path, Report)
    if report.version > REPORT_SCHEMA:
        raise RunUnusable(
            f"{path}: schema {report.version}; this version reads up to {REPORT_SCHEMA}"
        )
    job = folder / "job.toml"
    baselines = folder / "baselines.json"
    evaluation = folder / "evaluation.json"
    audit, survival = folder / "audit.json", folder / SURVIVAL
    return FinishedRun(
        folder,
        label,
        report,
        job.read_text(encoding="utf-8", errors="replace") if job.is_file() else "",
        {silo.name: found for silo in report.silos if (found := _ledger(folder, silo, report))},
        {
            silo.name: _parsed(times, Times)
            for silo in report.silos
            if (times := folder / "silos" / silo.name / "times.json").is_file()
        },
        _parsed(baselines, Baselines) if baselines.is_file() else None,
        _parsed(evaluation, Evaluation) if evaluation.is_file() else None,
        _audit(audit, folder / report.model) if audit.is_file() else None,
        _parsed(survival, Survival) if survival.is_file() else None,
        _statistics(folder) if file_of(folder) else None,
    )


def _statistics(folder: Path) -> dict[str, Any]:
    try:
        return statistics_of(folder)
    except FederationError as error:
        raise RunUnusable(str(error)) from error


def _audit(path: Path, model: Path) -> Audit:
    found = _parsed(path, Audit)
    digest = hashlib.sha256(model.read_bytes()).hexdigest() if model.is_file() else "no model"
    if found.model_sha256 != digest:
        raise RunUnusable(f"{path} is of another model: audit the run again, or take the file away")
    return found


def _ledger(folder: Path, silo: SiloPart, report: Report) -> VerifiedLedger | None:
    path = folder / f"ledger-{silo.name}.jsonl"
    if not path.is_file():
        return None
    try:
        found = ledgers.verify(path, silo=silo.name)
    except LedgerBroken as error:
        raise RunUnusable(f"ledger of another silo, or damaged: {error}") from error
    if found.sent(report.job) < silo.bytes_up:
        raise RunUnusable(
            f"{path}: lines are missing: the coordinator received {silo.bytes_up} bytes for job "
            f"{report.job}, the ledger has {found.sent(report.job)}"
        )
    return found


def _parsed(path: Path, kind: type[Kind]) -> Kind:
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunUnusable(f"{path} cannot be read as JSON") from error
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise RunUnusable(f"{path}: {where}: {first['msg']}") from error
