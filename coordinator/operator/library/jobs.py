"""Jobs in Python, and what they would cost: the schema and the checks are the job file's."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from hedgerow.boosting import warm_start
from hedgerow.boosting.dataset import Dataset, class_weights, merge, recode
from hedgerow.boosting.errors import FOREIGN, InvalidJob, OfferRejected
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.job import WarmStart
from hedgerow.boosting.ports import JobParameters, Vertical
from hedgerow.boosting.tables import for_job
from hedgerow.boosting.trees.loading import load
from hedgerow.boosting.trees.local import check_device
from hedgerow.boosting.unusual import named_categories, unusual_columns
from hedgerow.boosting.work import Rates, sharing
from hedgerow.coordinator.operator.library import frames
from hedgerow.coordinator.operator.library.arguments import checked
from hedgerow.coordinator.operator.library.frames import Frame, Tabular
from hedgerow.coordinator.operator.progress import paragraphs
from hedgerow.coordinator.operator.run_folder import SCHEMA_FILE
from hedgerow.crypto.threads import usable_cores
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from hedgerow.services.wire import schema as schema_wire
from hedgerow.services.wire.job_view import PlanView

JobLike: TypeAlias = "Job | Mapping[str, Any] | str | os.PathLike[str]"
"""A job, the keys of a job file by name, or the path of a job file."""

XGBOOST_ALIASES = {
    "learning_rate": "eta",
    "min_split_loss": "gamma",
    "reg_lambda": "lambda",
    "reg_alpha": "alpha",
    "random_state": "seed",
    "n_jobs": "nthread",
}
"""XGBoost's second names of its parameters."""


def start_of(folder: Path, file: str) -> WarmStart:
    """Return how a job names the model of a run folder; its rounds are not counted.

    Raises
    ------
    InvalidJob
        The folder has no such file that all silos have in common.
    """
    found = {}
    for name in ("report.json", file, SCHEMA_FILE):
        try:
            found[name] = (folder / name).read_bytes()
        except OSError as error:
            raise InvalidJob(f"{folder}: expected the folder of a run with {name}") from error
    try:
        name = json.loads(found["report.json"])["job"]
        schema = schema_wire.load(found[SCHEMA_FILE]).digest
    except (*FOREIGN, OfferRejected) as error:
        raise InvalidJob(f"{folder}: not the folder of a run") from error
    return WarmStart(str(name), hashlib.sha256(found[file]).hexdigest(), schema)


class Job:
    """A job: what a job file says, checked as a job file is.

    Parameters
    ----------
    **settings
        Keys of a job file. ``bagging={"rounds": 20}``, ``booster={"eta": 0.1}`` and
        ``columns={"drop": ["name"]}`` are its tables; their keys may also be given directly,
        ``rounds=20, eta=0.1``. A key that the strategy's table and ``[booster]`` both have is the
        strategy's then.

    Raises
    ------
    InvalidJob
        An unknown key (the nearest known one is named), or a value that is out of range.

    Examples
    --------
    >>> Job("bagging", label="income", rounds=20, eta=0.1).parameters.label
    'income'
    """

    def __init__(self, strategy: str, **settings: Any) -> None:
        self._check(job_file.of_table(nested({"strategy": strategy, **settings})))

    def _check(self, spec: bytes) -> None:
        self.spec = spec
        self.parameters: JobParameters = job_wire.decode(spec)
        self.parameters.parameters.validate(self.parameters)

    @classmethod
    def from_spec(cls, spec: bytes) -> Job:
        """Return the job of a serialised ``JobSpec``."""
        job = cls.__new__(cls)
        job._check(spec)
        return job

    @classmethod
    @checked
    def from_toml(cls, text: str) -> Job:
        """Return the job of a job file's text."""
        return cls.from_spec(job_file.parse(text))

    @classmethod
    @checked
    def load(cls, path: str | os.PathLike[str]) -> Job:
        """Return the job of a job file."""
        return cls.from_spec(job_file.load(Path(path)))

    @classmethod
    def of(cls, job: JobLike) -> Job:
        """Return a job as it is, or that of a job file's keys or path."""
        if isinstance(job, Mapping):
            return cls.from_spec(job_file.of_table(nested(job)))
        if isinstance(job, str | os.PathLike):
            return cls.load(job)
        if not isinstance(job, Job):
            raise InvalidJob(
                "job: expected a Job, a mapping of a job file's keys or the path of one, received "
                f"{type(job).__name__}"
            )
        return job

    @property
    def toml(self) -> str:
        """The text of its job file."""
        return job_file.dump(self.spec)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the job file."""
        Path(path).write_text(self.toml, encoding="utf-8")

    def on(self, silos: Mapping[str, object], *, has_test: bool, all_needed: bool = False) -> Job:
        """Return the job for exactly these silos, on this machine.

        Parameters
        ----------
        all_needed : bool
            Whether a job that does not say ``min_silos`` needs all of them, or as few as it draws
            for a round.

        Raises
        ------
        InvalidJob
            The job cannot run with them.
        """
        check_no_approvers(self.parameters)
        spec = job_wire.parse(self.spec)
        del spec.silos[:]
        spec.silos.extend(sorted(silos))
        if has_test:
            spec.test_data = "test"
        if all_needed and not spec.min_silos:
            named = replace(self.parameters, silos=tuple(spec.silos))
            spec.min_silos = named.parameters.safeguards(named).drawn_silos or len(silos)
        job = Job.from_spec(spec.SerializeToString(deterministic=True))
        check_cohort(job.parameters, tuple(sorted(silos)))
        return job

    def starting_from(self, run: str | os.PathLike[str]) -> Job:
        """Return the job that goes on from the model of a run folder, with its draws, too.

        Raises
        ------
        InvalidJob
            The folder has no model that all silos have in common, the job names another one, or
            its strategy cannot go on from a model.
        """
        folder, file = Path(run), self.parameters.strategy.starts_with
        own = start_of(folder, file)
        told = self.parameters.warm_start
        if told is not None and (told.model, told.schema) != (own.model, own.schema):
            raise InvalidJob(f"[warm_start]: the job names another model than that of {folder}")
        if told is not None:
            return self
        return self.going_on(
            own,
            lambda: warm_start.n_rounds(
                load((folder / file).read_bytes(), sender=str(folder / file))
            ),
        )

    def going_on(self, start: WarmStart, rounds: Callable[[], int]) -> Job:
        """Return the job that goes on from a model.

        Parameters
        ----------
        rounds : callable
            Returns the rounds that the model has; asked where the job draws for each round.
        """
        spec = job_wire.parse(self.spec)
        spec.warm_start.run, spec.warm_start.model = start.run, start.model
        spec.warm_start.schema = start.schema
        if self.parameters.strategy.draws(self.parameters.parameters, self.parameters):
            spec.warm_start.rounds_before = rounds()
        return Job.from_spec(spec.SerializeToString(deterministic=True))

    def check_start(self, model: object) -> None:
        """Raise :class:`InvalidJob` where a run here lacks its starting model, torch or CUDA."""
        self.parameters.check_torch("this environment", "pip install hedgerow[torch]")
        check_device(self.parameters.booster.device, "this environment")
        told = self.parameters.warm_start
        if told is not None and not model:
            raise InvalidJob(
                f"[warm_start]: the job goes on from run {told.run}, whose run folder is needed: "
                "--model RUN, or model= in Python"
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.spec == self.spec

    def __hash__(self) -> int:
        return hash(self.spec)

    def __repr__(self) -> str:
        return f"<Job {self.parameters.name}: {self.parameters.strategy.name}>"

    def _repr_html_(self) -> str:
        """Return the job file, for notebooks."""
        return f"<pre>{escape(self.toml)}</pre>"


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of a job file; keys that only an inner table has move there."""
    top = job_file.keys()
    strategy = settings.get("strategy", "")
    if not isinstance(strategy, str) or not all(isinstance(key, str) for key in settings):
        raise InvalidJob("a job: expected a strategy and other keys of a job file as texts")
    job_wire.check_strategy(strategy)
    inner = [strategy, "booster", "columns"]
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        if value is None:
            continue
        name = key.rstrip("_")
        owner = "" if name in top else next((t for t in inner if name in job_file.keys(t)), "")
        if not owner and name not in top:
            known = sorted({*top, *(key for t in inner for key in job_file.keys(t))})
            raise job_file.unknown(name, known)
        table = nested.setdefault(owner, {}) if owner else nested
        if not isinstance(table, dict):
            raise InvalidJob(f"{owner}: expected a table, received {table!r}")
        if isinstance(value, Mapping):
            table.setdefault(name, {}).update(value)
        else:
            table[name] = list(value) if isinstance(value, tuple) else plain(value)
    return nested


def plain(value: Any) -> Any:
    """Return a number of NumPy as Python's."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value


class Plan(Frame):
    """What a job would cost and reveal, one row for each silo and step.

    Attributes
    ----------
    view : PlanView
        All that is known, ``reveals`` and ``notes`` too.
    """

    def __init__(self, view: PlanView) -> None:
        names = {"silo": "silo", "step": "method"}
        names |= {name: name for name in ("exchanges", "bytes_up", "bytes_down")}
        columns = {key: [getattr(one, name) for one in view.steps] for key, name in names.items()}
        super().__init__(
            columns, f"plan of {view.rounds} rounds, CPU time a silo: {view.cpu_class}"
        )
        self.view = view

    @property
    def reveals(self) -> str:
        """What each party would learn."""
        return self.view.reveals

    def _repr_html_(self) -> str:
        """Return the plan as HTML, for notebooks."""
        notes = "".join(f"<p>note: {escape(note)}</p>" for note in self.view.notes)
        learns = "".join(f"<p>{escape(part)}</p>" for part in paragraphs(self.reveals))
        shown = f"<details><summary>What each party learns</summary>{learns}</details>"
        return super()._repr_html_() + notes + shown


@checked
def plan(
    job: JobLike,
    silos: Mapping[str, Tabular],
    *,
    test: object = None,
    model: str | os.PathLike[str] | None = None,
    ids: Mapping[str, str] = MappingProxyType({}),
) -> Plan:
    """Return what a job would cost and reveal for tables of this machine; nobody trains.

    Parameters
    ----------
    silos : Mapping
        Each silo's table.
    test : object
        Anything but None: there will be test rows.
    model : Run or path, optional
        The run whose model the job goes on from.
    ids : Mapping
        By party, the column that names its rows where that is not ``_id``.

    Raises
    ------
    InvalidJob, DataError, SchemaMismatch
        The job or a table cannot be used.
    """
    found = Job.of(job)
    shared = test is not None and not found.parameters.vertical
    return Plan(plan_here(found.on(silos, has_test=shared).spec, silos, model=model, ids=ids))


def plan_here(
    spec: bytes,
    silos: Mapping[str, Tabular],
    rates: Rates | None = None,
    model: str | os.PathLike[str] | None = None,
    ids: Mapping[str, str] = MappingProxyType({}),
) -> PlanView:
    """Return the plan of a serialised job for tables on this machine, which has these rates.

    Each silo receives the model of the run folder ``model``, if the job is to go on from one.
    """
    asked, start = Job.from_spec(spec), None
    if model is not None:
        asked = asked.starting_from(model)
        file = asked.parameters.strategy.starts_with
        start = warm_start.KnownStart((Path(model) / file).stat().st_size)
    job = asked.parameters
    job.check_tables()
    check_cohort(job, tuple(silos))
    whole = job.strategy.sizes is not None
    tables = {
        name: table_of(job, name, table, whole=whole, id_column=ids.get(name, "_id"))
        for name, table in silos.items()
    }
    return plan_tables(job, tables, rates, start)


def plan_tables(
    job: JobParameters,
    silos: Mapping[str, Dataset],
    rates: Rates | None = None,
    start: warm_start.KnownStart | None = None,
    *,
    grows: bool = True,
) -> PlanView:
    """Return the plan of a job for tables as it reads them.

    Parameters
    ----------
    rates : Rates, optional
        Of the machine that all silos are on.
    start : KnownStart, optional
        The model that the job goes on from.
    grows : bool
        Whether some trees are grown, for their size; the tables were read whole.
    """
    layout = job.strategy.layout
    tables = {Silo(name): table for name, table in silos.items()}
    schemas = {silo: table.schema for silo, table in tables.items()}
    rows = {silo: table.n_samples for silo, table in tables.items()}
    if isinstance(layout, Vertical):
        active = layout.active(job.parameters)
        if active not in schemas:
            near = difflib.get_close_matches(active, schemas, 1, 0.0)
            raise InvalidJob(
                f"the active party {active!r} has no table here; did you mean {near[0]}?"
            )
        plans = layout.forecasts(job.parameters, job, schemas, rows)
        notes = plans[active].notes
    else:
        empty = {str(silo) for silo, n in rows.items() if not n}
        schema = merge(
            {str(silo): own for silo, own in schemas.items()}, empty, job.columns.positive
        )
        class_weights(schema, job.columns.class_weight)
        layout.validate_for(job.parameters, job, schema)
        job = replace(job, silos=tuple(sorted(silos)))  # as `hedgerow local` runs it
        sizes = None
        if grows and job.strategy.sizes is not None:
            agreed = [recode(table, schema) for table in tables.values() if table.n_samples]
            sizes = job.strategy.sizes(job.parameters, job, agreed)
        own = warm_start.forecasts(job, schema, rows, start, sizes)
        plans = {silo: own[silo] for silo in tables}
        notes = (*next(iter(own.values())).notes, *unusual_columns(schema, sum(rows.values())))
        notes += named_categories(schema)
    if rates:
        notes = (*notes, "seconds: on this machine, measured now, all silos at work on it at once")
    found = PlanView.of(
        {str(silo): plans[silo] for silo in sorted(tables)},
        {s: sharing(rates, _at_once(job, s, len(tables)), usable_cores()) for s in tables}
        if rates
        else {},
        job.active,
    )
    return replace(found, notes=notes)


def _at_once(job: JobParameters, silo: str, n_silos: int) -> int:
    """Return how many silos work when one does: an active party works while the others wait."""
    return (
        max(n_silos - 1, 1) if job.active and silo != job.active else 1 if job.active else n_silos
    )


def table_of(
    job: JobParameters, silo: str, table: Tabular, *, whole: bool = True, id_column: str = "_id"
) -> Dataset:
    """Return a silo's table as the job reads it; a file of it need not be read whole."""
    arrow, where = frames.read(table, silo, whole=whole, id_column=id_column)
    party = silo if job.vertical else None
    return for_job(arrow, job, where, party=party, id_column=id_column)


def check_no_approvers(job: JobParameters) -> None:
    """Raise :class:`InvalidJob` where somebody must sign what runs on one machine."""
    key = "approvers" if job.approvals.approvers else "[audit]" if job.audit is not None else ""
    if key:
        raise InvalidJob(
            f"{key}: nobody signs a job whose silos are on one machine: submit it to a "
            "coordinator, or leave the key out; `hedgerow audit --limits` takes limits alone"
        )


def check_cohort(job: JobParameters, silos: tuple[str, ...]) -> None:
    """Raise :class:`InvalidJob` where a job cannot run with these silos; names the nearest."""
    for name in job.silos:
        if name not in silos:
            near = difflib.get_close_matches(name, silos, 1, 0.0)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InvalidJob(f"silos: the job needs {name}, which has no table here{hint}")
    if len(silos) < job.min_silos:
        raise InvalidJob(
            f"min_silos: the job needs {job.min_silos} silos and {len(silos)} are given; it could "
            f"run with min_silos = {len(silos)}"
        )
    job.check_cohort(len(silos))
