"""Jobs, attempts, rosters, rounds and byte totals in a SQL database.

SQLite (write-ahead log) by default, PostgreSQL by URL. Calls block for a few milliseconds, so a
loop makes them through a thread. Time is an argument everywhere: seconds since 1970.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

import sqlalchemy as sql
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from hedgerow.boosting.errors import JobStopped
from hedgerow.coordinator.server.artefacts import StorageFailed
from hedgerow.coordinator.server.database import (
    ATTEMPTS,
    JOB_SILOS,
    JOBS,
    META,
    ROUNDS,
    SCHEMA_VERSION,
    SCORES,
    SILOS,
    STEP_BYTES,
    VERSION,
    engine_of,
    failures,
)


class JobState(StrEnum):
    """State of a job; the names are those of the protobuf enum without its prefix."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def ended(self) -> bool:
        """Whether nothing follows this state."""
        return self in _ENDED


_ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as it is stored.

    Parameters
    ----------
    spec : bytes
        Serialised ``JobSpec``, as the silos signed it.
    attempt : int
        Attempts started so far; 0 before the first.
    artefacts : tuple of str
        Files of the result, empty until there is one; ``model`` is one of them.
    """

    job_id: str
    name: str
    operator: str
    spec: bytes
    state: JobState
    detail: str
    attempt: int
    created: float
    ended: float
    best_round: int
    artefacts: tuple[str, ...]
    model: str
    control_bytes_up: int
    control_bytes_down: int


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """A finished round; ``metrics`` maps data set, then metric name, to the score."""

    round: int
    attempt: int
    seconds: float
    metrics: Mapping[str, Mapping[str, float]]
    bytes_up: int
    bytes_down: int
    silos: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepTotal:
    """What one RPC moved between the coordinator and one silo for one job."""

    silo: str
    method: str
    calls: int = 0
    messages_up: int = 0
    messages_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(frozen=True, slots=True)
class JobSiloRecord:
    """A silo's standing in a job: ``present``, ``lost``, ``declined`` or ``skipped``."""

    silo: str
    n_samples: int
    state: str
    detail: str


@dataclass(frozen=True, slots=True)
class SiloRecord:
    """A silo that has registered, with what it said of itself."""

    name: str
    instance_id: str
    version: str
    strategies: tuple[str, ...]
    row_count_class: int
    first_seen: float
    last_seen: float


class Store:
    """The coordinator's memory of jobs.

    Parameters
    ----------
    url : str
        ``sqlite:///PATH``, a bare file path (SQLite), or ``postgresql://USER@HOST/DATABASE``.
        The tables are made on first use.

    Raises
    ------
    StorageFailed
        The database cannot be reached, or was made by another version.
    """

    def __init__(self, url: str) -> None:
        self._engine = engine_of(url)
        with self._writing("opening the database") as connection:
            META.create_all(connection)
            found = connection.execute(sql.select(VERSION.c.version)).scalar()
            if found is None:
                connection.execute(VERSION.insert().values(version=SCHEMA_VERSION))
            elif found != SCHEMA_VERSION:
                raise StorageFailed(
                    f"the database has schema version {found}, this program {SCHEMA_VERSION}"
                )

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def create_job(
        self,
        job_id: str,
        name: str,
        operator: str,
        spec: bytes,
        created: float,
        request_id: str | None = None,
    ) -> str:
        """Store a job as pending and return its identifier.

        A repeated ``request_id`` of the same operator stores nothing: the identifier of the
        first job comes back.
        """
        with self._writing("storing a job") as connection:
            if request_id:
                same = sql.select(JOBS.c.job_id).where(
                    JOBS.c.operator == operator, JOBS.c.request_id == request_id
                )
                earlier = connection.execute(same).scalar()
                if earlier is not None:
                    return str(earlier)
            connection.execute(
                JOBS.insert().values(
                    job_id=job_id,
                    request_id=request_id or None,
                    name=name,
                    operator=operator,
                    spec=spec,
                    state=JobState.PENDING,
                    created=created,
                )
            )
        return job_id

    def job(self, job_id: str) -> JobRecord | None:
        """Return a job, or None."""
        with self._reading() as connection:
            row = connection.execute(
                sql.select(*_columns(JobRecord, JOBS)).where(JOBS.c.job_id == job_id)
            ).one_or_none()
        return None if row is None else _job_record(row)

    def jobs(self, limit: int = 100, offset: int = 0) -> tuple[JobRecord, ...]:
        """Return jobs, newest first."""
        query = (
            sql.select(*_columns(JobRecord, JOBS))
            .order_by(JOBS.c.created.desc(), JOBS.c.job_id)
            .limit(limit)
            .offset(offset)
        )
        with self._reading() as connection:
            return tuple(_job_record(row) for row in connection.execute(query))

    def unfinished_jobs(self) -> tuple[JobRecord, ...]:
        """Return the jobs that a restarted coordinator goes on with, oldest first."""
        query = (
            sql.select(*_columns(JobRecord, JOBS))
            .where(JOBS.c.state.not_in(_ENDED))
            .order_by(JOBS.c.created, JOBS.c.job_id)
        )
        with self._reading() as connection:
            return tuple(_job_record(row) for row in connection.execute(query))

    def set_state(self, job_id: str, state: JobState, detail: str, at: float) -> bool:
        """Move a job to a state; False when it has ended already and stays as it was."""
        values: dict[str, Any] = {"state": state, "detail": detail}
        if state.ended:
            values["ended"] = at
        with self._writing("storing a job's state") as connection:
            done = connection.execute(
                JOBS.update()
                .where(JOBS.c.job_id == job_id, JOBS.c.state.not_in(_ENDED))
                .values(**values)
            )
            return bool(done.rowcount)

    def set_result(
        self, job_id: str, artefacts: Sequence[str], model: str, best_round: int
    ) -> None:
        """Record the files of a job's result."""
        with self._writing("storing a job's result") as connection:
            connection.execute(
                JOBS.update()
                .where(JOBS.c.job_id == job_id)
                .values(artefacts=list(artefacts), model=model, best_round=best_round)
            )

    def start_attempt(self, job_id: str, roster: Iterable[str], at: float) -> int:
        """Begin the next attempt of a job: number it, record it, set the job running.

        Raises
        ------
        JobStopped
            The job has ended.
        """
        with self._writing("starting an attempt") as connection:
            done = connection.execute(
                JOBS.update()
                .where(JOBS.c.job_id == job_id, JOBS.c.state.not_in(_ENDED))
                .values(attempt=JOBS.c.attempt + 1, state=JobState.RUNNING, detail="")
            )
            if not done.rowcount:
                raise JobStopped(f"job {job_id} has ended")
            attempt = connection.execute(
                sql.select(JOBS.c.attempt).where(JOBS.c.job_id == job_id)
            ).scalar_one()
            connection.execute(
                ATTEMPTS.insert().values(
                    job_id=job_id, attempt=attempt, roster=sorted(roster), started=at
                )
            )
        return int(attempt)

    def roster(self, job_id: str, attempt: int) -> tuple[str, ...]:
        """Return the silos that an attempt was started with."""
        query = sql.select(ATTEMPTS.c.roster).where(
            ATTEMPTS.c.job_id == job_id, ATTEMPTS.c.attempt == attempt
        )
        with self._reading() as connection:
            return tuple(connection.execute(query).scalar() or ())

    def set_job_silo(
        self, job_id: str, silo: str, state: str, n_samples: int = 0, detail: str = ""
    ) -> None:
        """Record a silo's standing in a job."""
        with self._writing("storing a silo's standing") as connection:
            self._upsert(
                connection,
                JOB_SILOS,
                {"job_id": job_id, "silo": silo},
                {"n_samples": n_samples, "state": state, "detail": detail},
            )

    def job_silos(self, job_id: str) -> tuple[JobSiloRecord, ...]:
        """Return the silos of a job, sorted."""
        query = (
            sql.select(*_columns(JobSiloRecord, JOB_SILOS))
            .where(JOB_SILOS.c.job_id == job_id)
            .order_by(JOB_SILOS.c.silo)
        )
        with self._reading() as connection:
            rows = connection.execute(query).all()
        return tuple(sorted((JobSiloRecord(*row) for row in rows), key=lambda r: r.silo))

    def add_round(
        self,
        job_id: str,
        round: int,
        attempt: int,
        seconds: float,
        metrics: Mapping[str, Mapping[str, float]],
        bytes_up: int,
        bytes_down: int,
        silos: Iterable[str],
        best_round: int | None = None,
    ) -> None:
        """Record a finished round.

        A round that a later attempt does again replaces its record, so write this before the
        round's checkpoint: then a crash between the two repeats a round and loses none.
        """
        key = {"job_id": job_id, "round": round}
        with self._writing("storing a round") as connection:
            self._upsert(
                connection,
                ROUNDS,
                key,
                {
                    "attempt": attempt,
                    "seconds": seconds,
                    "bytes_up": bytes_up,
                    "bytes_down": bytes_down,
                    "silos": sorted(silos),
                },
            )
            connection.execute(
                SCORES.delete().where(SCORES.c.job_id == job_id, SCORES.c.round == round)
            )
            scores = [
                key
                | {
                    "data": data,
                    "metric": metric,
                    "value": None if math.isnan(value) else float(value),
                }
                for data, values in metrics.items()
                for metric, value in values.items()
            ]
            if scores:
                connection.execute(SCORES.insert(), scores)
            if best_round is not None:
                connection.execute(
                    JOBS.update().where(JOBS.c.job_id == job_id).values(best_round=best_round)
                )

    def rounds(self, job_id: str, since: int = 0) -> tuple[RoundRecord, ...]:
        """Return a job's finished rounds from ``since`` on, in order."""
        with self._reading() as connection:
            rows = connection.execute(
                sql.select(ROUNDS)
                .where(ROUNDS.c.job_id == job_id, ROUNDS.c.round >= since)
                .order_by(ROUNDS.c.round)
            ).all()
            scores = connection.execute(
                sql.select(SCORES).where(SCORES.c.job_id == job_id, SCORES.c.round >= since)
            ).all()
        metrics: dict[int, dict[str, dict[str, float]]] = {}
        for score in sorted(scores, key=lambda s: (s.round, s.data, s.metric)):
            value = math.nan if score.value is None else score.value
            metrics.setdefault(score.round, {}).setdefault(score.data, {})[score.metric] = value
        return tuple(
            RoundRecord(
                row.round,
                row.attempt,
                row.seconds,
                metrics.get(row.round, {}),
                row.bytes_up,
                row.bytes_down,
                tuple(row.silos),
            )
            for row in rows
        )

    def add_bytes(self, job_id: str, moved: Iterable[StepTotal]) -> None:
        """Add what steps moved to the job's totals, all in one transaction."""
        rows = [asdict(total) | {"job_id": job_id} for total in moved]
        if not rows:
            return
        key = ["job_id", "silo", "method"]
        insert = self._insert(STEP_BYTES)
        add = insert.on_conflict_do_update(
            index_elements=key,
            set_={
                name: STEP_BYTES.c[name] + insert.excluded[name]
                for name in rows[0]
                if name not in key
            },
        )
        with self._writing("storing byte totals") as connection:
            connection.execute(add, rows)

    def byte_totals(self, job_id: str) -> tuple[StepTotal, ...]:
        """Return a job's data-plane totals, sorted by silo and method."""
        query = sql.select(*_columns(StepTotal, STEP_BYTES)).where(STEP_BYTES.c.job_id == job_id)
        with self._reading() as connection:
            rows = connection.execute(query).all()
        return tuple(sorted((StepTotal(*row) for row in rows), key=lambda t: (t.silo, t.method)))

    def add_control_bytes(self, job_id: str, up: int, down: int) -> None:
        """Add to what the control plane moved on a job's account."""
        with self._writing("storing byte totals") as connection:
            connection.execute(
                JOBS.update()
                .where(JOBS.c.job_id == job_id)
                .values(
                    control_bytes_up=JOBS.c.control_bytes_up + up,
                    control_bytes_down=JOBS.c.control_bytes_down + down,
                )
            )

    def register_silo(
        self,
        name: str,
        instance_id: str,
        version: str,
        strategies: Iterable[str],
        row_count_class: int,
        at: float,
    ) -> None:
        """Record that a silo's agent has registered, or has done so again."""
        with self._writing("registering a silo") as connection:
            self._upsert(
                connection,
                SILOS,
                {"name": name},
                {
                    "instance_id": instance_id,
                    "version": version,
                    "strategies": sorted(strategies),
                    "row_count_class": row_count_class,
                    "last_seen": at,
                },
                first={"first_seen": at},
            )

    def silos(self) -> tuple[SiloRecord, ...]:
        """Return all silos that ever registered, sorted by name."""
        with self._reading() as connection:
            rows = connection.execute(sql.select(*_columns(SiloRecord, SILOS))).all()
        records = (
            SiloRecord(**(dict(row._mapping) | {"strategies": tuple(row.strategies)}))
            for row in rows
        )
        return tuple(sorted(records, key=lambda r: r.name))

    def _insert(self, table: sql.Table) -> Any:
        """Return an insert that can also update; both dialects have the same form."""
        if self._engine.dialect.name == "postgresql":
            return postgresql.insert(table)
        return sqlite.insert(table)

    def _upsert(
        self,
        connection: Connection,
        table: sql.Table,
        key: dict[str, Any],
        values: dict[str, Any],
        first: Mapping[str, Any] | None = None,
    ) -> None:
        insert = self._insert(table).values(**key, **values, **(first or {}))
        connection.execute(insert.on_conflict_do_update(index_elements=list(key), set_=values))

    @contextmanager
    def _writing(self, doing: str) -> Iterator[Connection]:
        with failures(doing), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with failures("reading the database"), self._engine.connect() as connection:
            yield connection.execution_options(hedgerow_reads=True)


def _columns(record: type, table: sql.Table) -> list[sql.Column[Any]]:
    return [table.c[field.name] for field in fields(record)]


def _job_record(row: sql.Row[Any]) -> JobRecord:
    values = dict(row._mapping)
    values["state"] = JobState(values["state"])
    values["artefacts"] = tuple(values["artefacts"])
    return JobRecord(**values)
