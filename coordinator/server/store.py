"""Jobs, attempts, rosters, rounds and byte totals in a SQL database.

SQLite (write-ahead log) by default, PostgreSQL by URL. Calls block for a few milliseconds, so a
loop makes them through a thread. Time is an argument everywhere: seconds since 1970.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

import sqlalchemy as sql
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Connection

from hedgerow.boosting.errors import InvalidJob, JobStopped, LimitReached
from hedgerow.boosting.exchange import Silo
from hedgerow.coordinator.server.database import (
    ATTEMPTS,
    DELETED,
    JOB_SILOS,
    JOBS,
    LONG_SECONDS,
    ROUNDS,
    SCORES,
    SENT,
    SILOS,
    STEP_BYTES,
    engine_of,
    failures,
    hold_token,
)
from hedgerow.coordinator.server.migrations import prepare
from hedgerow.services.process.texts import one_line
from hedgerow.services.rpc.errors import JobUnderWay
from hedgerow.services.rpc.federation import Registration
from hedgerow.services.wire.bounds import cut
from hedgerow.services.wire.job_view import (
    ENDED,
    FinishedRound,
    JobSilo,
    JobState,
    Score,
    SentPayloads,
    SiloState,
    StepTotal,
)
from hedgerow.services.wire.signed_job import JobApproval, OpenedJob, SignedJob

OF_JOB = (ATTEMPTS, JOB_SILOS, ROUNDS, SCORES, STEP_BYTES, SENT)
"""Tables with rows of jobs, beside that of the jobs themselves."""


def delete_rows(connection: Connection, job_id: str) -> int:
    """Delete a job with all rows of it, but for its identifier; return how many there were."""
    for table in (*OF_JOB, JOBS):
        done = connection.execute(table.delete().where(table.c.job_id == job_id))
    connection.execute(DELETED.insert().values(job_id=job_id))
    return done.rowcount


PerStep = TypeVar("PerStep", StepTotal, SentPayloads)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job's row."""

    job_id: str
    name: str
    operator: str
    signed: SignedJob
    """The job as its operator signed it."""
    state: JobState
    detail: str
    attempt: int
    """Attempts started so far; 0 before the first."""
    created: float
    ended: float
    """``created`` and ``ended``: seconds since 1970; ``ended`` is 0 before."""
    best_round: int
    artefacts: Mapping[str, str]
    """Files of the result and the SHA-256 of each in hex, empty until there is one; ``model`` is
    one of them. A digest is empty where a version before 0.1 stored none."""
    model: str
    control_bytes_up: int
    control_bytes_down: int

    @property
    def spec(self) -> bytes:
        """Serialised ``JobSpec``, a part of what the operator signed."""
        return self.signed.spec


@dataclass(frozen=True, slots=True)
class RegisteredSilo:
    """A silo that has registered, as its agent last described it."""

    name: str
    instance_id: str
    version: str
    strategies: tuple[str, ...]
    row_count_class: int
    first_seen: float
    last_seen: float


class Store:
    """The coordinator's database.

    Parameters
    ----------
    url : str
        ``sqlite:///PATH``, a bare file path (SQLite), or ``postgresql://USER@HOST/DATABASE``.
        The tables are created on first use; those of an older version are migrated.
    prepared : bool
        Take not ``prepared`` where :meth:`prepare` is called later.

    Raises
    ------
    StorageFailed
        The database cannot be reached, is damaged, or a newer version has made it.
    """

    def __init__(self, url: str, *, prepared: bool = True) -> None:
        self._engine = engine_of(url)
        self._url = url
        self.token: int | None = None
        """Of the active coordinator, where there may be several: nobody else writes."""
        if prepared:
            self.prepare()

    def prepare(self) -> None:
        """Check what is stored, and migrate it; raises StorageFailed."""
        patient = engine_of(self._url, LONG_SECONDS)
        try:
            with failures("opening the database"):
                prepare(patient)
        finally:
            patient.dispose()

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def create_job(self, job: OpenedJob, name: str, created: float, most: int = 0) -> bool:
        """Store a job as pending; False where the same one is stored already.

        Parameters
        ----------
        most : int
            How many unfinished jobs its operator, or each silo that signed it with the others,
            may have with it; 0 for any number.

        Raises
        ------
        InvalidJob
            Another job has its identifier, or had it and was deleted.
        LimitReached
            One of them has as many unfinished jobs; names them.
        """
        job_id, signed = job.statement.job_id, job.signed.serialise()
        with self._writing("storing a job") as connection:
            same = sql.select(JOBS.c.signed).where(JOBS.c.job_id == job_id)
            gone = sql.select(DELETED).where(DELETED.c.job_id == job_id)
            if connection.execute(gone).first() is not None:
                raise InvalidJob(f"job {job_id} was deleted; sign it again")
            earlier = connection.execute(same).scalar()
            if earlier is not None:
                if SignedJob.parse(earlier).statement != job.signed.statement:
                    raise InvalidJob(f"another job has the nonce of job {job_id}")
                return False
            if most:
                theirs = (JOBS.c.operator == job.operator, JOBS.c.state.not_in(sorted(ENDED)))
                queue = sql.select(JOBS.c.job_id, JOBS.c.signed).where(*theirs)
                rows = connection.execute(queue.order_by(JOBS.c.created)).all()
                of: dict[str, list[str]] = {silo: [] for silo in job.statement.silos}
                for row in rows if of else ():
                    for silo in of.keys() & SignedJob.parse(row.signed).silos:
                        of[silo].append(row.job_id)
                signers = of or {job.operator: [row.job_id for row in rows]}
                who, unfinished = max(signers.items(), key=lambda one: len(one[1]))
                if len(unfinished) >= most:
                    raise LimitReached(
                        f"{who} has {len(unfinished)} unfinished jobs, the coordinator's "
                        f"max_unfinished_jobs is {most}: wait for one of "
                        f"{', '.join(unfinished[:most][:8])}, or cancel it"
                    )
            connection.execute(
                JOBS.insert().values(
                    job_id=job_id,
                    name=name,
                    operator=job.operator,
                    signed=signed,
                    state=JobState.PENDING,
                    created=created,
                )
            )
        return True

    def job(self, job_id: str) -> JobRecord | None:
        """Return a job, or None."""
        with self._reading() as connection:
            row = connection.execute(
                sql.select(*_columns(JobRecord, JOBS)).where(JOBS.c.job_id == job_id)
            ).one_or_none()
            return None if row is None else _job_record(row)

    def jobs(
        self,
        limit: int = 100,
        after: str = "",
        operator: str | None = None,
        states: Sequence[JobState] = (),
    ) -> tuple[JobRecord, ...] | None:
        """Return the jobs of an operator, or of all, newest first.

        Parameters
        ----------
        after : str
            The job behind which to begin; from the newest one if empty.
        states : sequence of JobState
            Only jobs in one of these; in any if empty.

        Returns
        -------
        tuple of JobRecord or None
            None where there is no job ``after`` among them.
        """
        created, job_id = JOBS.c.created, JOBS.c.job_id
        whose = [] if operator is None else [JOBS.c.operator == operator]
        query = (
            sql.select(*_columns(JobRecord, JOBS))
            .where(*whose, *([JOBS.c.state.in_(states)] if states else []))
            .order_by(created.desc(), job_id)
            .limit(limit)
        )
        with self._reading() as connection:
            if after:
                at = connection.execute(sql.select(created).where(job_id == after, *whose)).scalar()
                if at is None:
                    return None
                # The first condition is what an index finds, the second one divides equal times.
                query = query.where(created <= at, sql.or_(created < at, job_id > after))
            return tuple(_job_record(row) for row in connection.execute(query))

    def states(self) -> dict[JobState, int]:
        """Return how many jobs are in each state."""
        query = sql.select(JOBS.c.state, sql.func.count()).group_by(JOBS.c.state)
        with self._reading() as connection:
            found = {JobState(state): n for state, n in connection.execute(query)}
        return {state: found.get(state, 0) for state in JobState}

    def unfinished_jobs(self) -> tuple[JobRecord, ...]:
        """Return the jobs that a restarted coordinator continues, oldest first."""
        query = (
            sql.select(*_columns(JobRecord, JOBS))
            .where(JOBS.c.state.not_in(sorted(ENDED)))
            .order_by(JOBS.c.created, JOBS.c.job_id)
        )
        with self._reading() as connection:
            return tuple(_job_record(row) for row in connection.execute(query))

    def ended(self, job_ids: Sequence[str]) -> tuple[str, ...]:
        """Return those of some jobs that have ended, deleted ones among them."""
        ended = sql.select(JOBS.c.job_id).where(JOBS.c.state.in_(sorted(ENDED)))
        every = sql.union(ended, sql.select(DELETED.c.job_id)).subquery()
        with self._reading() as connection:
            found = connection.execute(sql.select(every).where(every.c.job_id.in_(job_ids)))
            return tuple(found.scalars())

    def ended_before(self, at: float) -> tuple[str, ...]:
        """Return the jobs that ended before a time, the oldest first."""
        query = sql.select(JOBS.c.job_id).where(JOBS.c.state.in_(sorted(ENDED)), JOBS.c.ended < at)
        with self._reading() as connection:
            return tuple(connection.execute(query.order_by(JOBS.c.ended)).scalars())

    def delete_job(self, job_id: str) -> None:
        """Delete a job with all rows of it, but for its identifier.

        Raises
        ------
        JobUnderWay
            It has not ended.
        """
        with self._writing("deleting a job") as connection:
            state = sql.select(JOBS.c.state).where(JOBS.c.job_id == job_id)
            found = connection.execute(state).scalar()
            if found is None:
                return
            if not JobState(found).ended:
                raise JobUnderWay(f"job {job_id} is {found.lower()}: cancel it first")
            delete_rows(connection, job_id)

    def approve(self, job_id: str, approval: JobApproval) -> SignedJob | None:
        """Add an approval to a job and return the job; None where there is none.

        Raises
        ------
        JobStopped
            It has ended.
        """
        with self._writing("storing an approval") as connection:
            found = connection.execute(
                sql.select(JOBS.c.signed, JOBS.c.state).where(JOBS.c.job_id == job_id)
            ).one_or_none()
            if found is None:
                return None
            if JobState(found.state).ended:
                raise JobStopped(
                    f"job {job_id} is {found.state.lower()}: there is nothing to approve"
                )
            signed = SignedJob.parse(found.signed).approved_by(approval)
            connection.execute(
                JOBS.update().where(JOBS.c.job_id == job_id).values(signed=signed.serialise())
            )
            return signed

    def set_state(self, job_id: str, state: JobState, detail: str, at: float) -> bool:
        """Set a job's state; False where it has ended already and stays as it was."""
        values: dict[str, Any] = {"state": state, "detail": cut(detail)}
        if state.ended:
            values["ended"] = at
        with self._writing("storing a job's state") as connection:
            done = connection.execute(
                JOBS.update()
                .where(JOBS.c.job_id == job_id, JOBS.c.state.not_in(sorted(ENDED)))
                .values(**values)
            )
            return bool(done.rowcount)

    def set_result(
        self, job_id: str, artefacts: Mapping[str, str], model: str, best_round: int
    ) -> None:
        """Record the files of a job's result, by name with their SHA-256 in hex."""
        with self._writing("storing a job's result") as connection:
            connection.execute(
                JOBS.update()
                .where(JOBS.c.job_id == job_id)
                .values(artefacts=dict(artefacts), model=model, best_round=best_round)
            )

    def start_attempt(self, job_id: str, roster: Iterable[str], at: float, after: int = 0) -> int:
        """Record the next attempt of a job and set the job running; return its number.

        Parameters
        ----------
        after : int
            A number that is known to have been used.

        Raises
        ------
        JobStopped
            The job has ended.
        """
        with self._writing("starting an attempt") as connection:
            done = connection.execute(
                JOBS.update()
                .where(JOBS.c.job_id == job_id, JOBS.c.state.not_in(sorted(ENDED)))
                .values(attempt=JOBS.c.attempt + 1, state=JobState.RUNNING, detail="")
            )
            if not done.rowcount:
                raise JobStopped(f"job {job_id} has ended")
            attempt = connection.execute(
                sql.select(JOBS.c.attempt).where(JOBS.c.job_id == job_id)
            ).scalar_one()
            if attempt <= after:
                attempt = after + 1
                number = JOBS.update().where(JOBS.c.job_id == job_id).values(attempt=attempt)
                connection.execute(number)
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

    def set_job_silos(self, job_id: str, silos: Iterable[JobSilo]) -> None:
        """Record what silos do in a job."""
        with self._writing("storing silos' states") as connection:
            rows = [
                {"job_id": job_id, "silo": one.name, "n_samples": one.n_samples}
                | {"state": one.state, "detail": cut(one.detail)}
                for one in silos
            ]
            self._upsert(connection, JOB_SILOS, rows)

    def job_silos(self, job_id: str) -> tuple[JobSilo, ...]:
        """Return the silos of a job, sorted by name."""
        return self.silos_of([job_id])[job_id]

    def silo_state(self, job_id: str, silo: str) -> SiloState | None:
        """Return what a silo does in a job; None where it has no part in it."""
        mine = (JOB_SILOS.c.job_id == job_id, JOB_SILOS.c.silo == silo)
        with self._reading() as connection:
            found = connection.execute(sql.select(JOB_SILOS.c.state).where(*mine)).scalar()
        return None if found is None else SiloState(found)

    def silos_of(self, job_ids: Sequence[str]) -> dict[str, tuple[JobSilo, ...]]:
        """Return the silos of each of some jobs, sorted by name."""
        found: dict[str, list[JobSilo]] = {job_id: [] for job_id in job_ids}
        query = sql.select(JOB_SILOS).where(JOB_SILOS.c.job_id.in_(job_ids))
        with self._reading() as connection:
            for r in connection.execute(query).all():
                # An older version stored texts of any length.
                silo = JobSilo(r.silo, r.n_samples, SiloState(r.state), cut(one_line(r.detail)))
                found[r.job_id].append(silo)
        return {
            job_id: tuple(sorted(silos, key=lambda silo: silo.name))
            for job_id, silos in found.items()
        }

    def add_round(self, job_id: str, done: FinishedRound, best_round: int | None = None) -> None:
        """Record a finished round.

        A round that a later attempt repeats replaces its record, so write the record before the
        round's checkpoint: then a crash between the two repeats a round and loses none.
        """
        key = {"job_id": job_id, "round": done.round}
        with self._writing("storing a round") as connection:
            values = {
                "attempt": done.attempt,
                "seconds": done.seconds,
                "bytes_up": done.bytes_up,
                "bytes_down": done.bytes_down,
                "silos": sorted(done.silos),
            }
            self._upsert(connection, ROUNDS, [key | values])
            connection.execute(
                SCORES.delete().where(SCORES.c.job_id == job_id, SCORES.c.round == done.round)
            )
            scores = [
                key | asdict(score) | {"value": None if math.isnan(score.value) else score.value}
                for score in done.scores
            ]
            if scores:
                connection.execute(SCORES.insert(), scores)
            if best_round is not None:
                connection.execute(
                    JOBS.update().where(JOBS.c.job_id == job_id).values(best_round=best_round)
                )

    def rounds(self, job_id: str, since: int = 0) -> tuple[FinishedRound, ...]:
        """Return a job's finished rounds from number ``since`` on, in order."""

        def of(table: sql.Table) -> sql.Select[Any]:
            return sql.select(table).where(table.c.job_id == job_id, table.c.round >= since)

        with self._reading() as connection:
            rows = connection.execute(of(ROUNDS).order_by(ROUNDS.c.round)).all()
            found = connection.execute(of(SCORES)).all()
            scores: dict[int, list[Score]] = {}
            for score in sorted(found, key=lambda s: (s.round, s.data, s.metric)):
                value = math.nan if score.value is None else score.value
                scores.setdefault(score.round, []).append(Score(score.data, score.metric, value))
            return tuple(
                FinishedRound(
                    row.round,
                    row.attempt,
                    row.seconds,
                    tuple(scores.get(row.round, ())),
                    row.bytes_up,
                    row.bytes_down,
                    tuple(row.silos),
                )
                for row in rows
            )

    def set_traffic(
        self, job_id: str, steps: Iterable[StepTotal], control_up: int, control_down: int
    ) -> None:
        """Replace what a job's steps and its control plane moved, all in one transaction."""
        with self._writing("storing byte totals") as connection:
            rows = [_of_job(job_id, total) for total in steps]
            self._upsert(connection, STEP_BYTES, rows)
            connection.execute(
                JOBS.update()
                .where(JOBS.c.job_id == job_id)
                .values(control_bytes_up=control_up, control_bytes_down=control_down)
            )

    def byte_totals(self, job_id: str) -> tuple[StepTotal, ...]:
        """Return a job's data-plane totals, sorted by silo and method."""
        return self._by_step(job_id, StepTotal, STEP_BYTES)

    def set_sent(self, job_id: str, sent: Iterable[SentPayloads]) -> None:
        """Record what silos say that they sent; of a silo that is not in the job, nothing."""
        sent = tuple(sent)
        named = JOB_SILOS.c.silo.in_({one.silo for one in sent})
        query = sql.select(JOB_SILOS.c.silo).where(JOB_SILOS.c.job_id == job_id, named)
        with self._writing("storing what silos sent") as connection:
            among = set(connection.execute(query).scalars())
            rows = [_of_job(job_id, one) for one in sent if one.silo in among]
            self._upsert(connection, SENT, rows)

    def sent(self, job_id: str) -> tuple[SentPayloads, ...]:
        """Return what silos say that they sent, sorted by silo and method."""
        return self._by_step(job_id, SentPayloads, SENT)

    def _by_step(self, job_id: str, kind: type[PerStep], table: sql.Table) -> tuple[PerStep, ...]:
        query = sql.select(*_columns(kind, table)).where(table.c.job_id == job_id)
        with self._reading() as connection:
            found = (kind(*row) for row in connection.execute(query).all())
            return tuple(sorted(found, key=lambda one: (one.silo, one.method)))

    def register_silos(self, registered: Mapping[Silo, Registration], at: float) -> None:
        """Record that silos' agents have registered."""
        with self._writing("registering silos") as connection:
            rows = [
                {
                    "name": name,
                    "instance_id": registration.instance_id,
                    "version": registration.version,
                    "strategies": sorted(registration.strategies),
                    "row_count_class": registration.row_count_class,
                    "first_seen": at,
                    "last_seen": at,
                }
                for name, registration in registered.items()
            ]
            self._upsert(connection, SILOS, rows, once=("first_seen",))

    def seen(self, last: Mapping[Silo, float]) -> None:
        """Record when silos that have registered were last heard."""
        with self._writing("storing signs of life") as connection:
            mine = SILOS.c.name == sql.bindparam("silo")
            later = SILOS.update().where(mine).values(last_seen=sql.bindparam("at"))
            connection.execute(later, [{"silo": name, "at": at} for name, at in last.items()])

    def silos(self) -> tuple[RegisteredSilo, ...]:
        """Return all silos that ever registered, sorted by name."""
        with self._reading() as connection:
            rows = connection.execute(sql.select(*_columns(RegisteredSilo, SILOS))).all()
            records = (
                RegisteredSilo(**(dict(row._mapping) | {"strategies": tuple(row.strategies)}))
                for row in rows
            )
            return tuple(sorted(records, key=lambda r: r.name))

    def silo_names(self) -> frozenset[str]:
        """Return the silos that ever registered, and are not forgotten."""
        with self._reading() as connection:
            return frozenset(connection.execute(sql.select(SILOS.c.name)).scalars())

    def forget_silo(self, name: str) -> bool:
        """Remove that a silo has registered; return whether it had."""
        with self._writing("forgetting a silo") as connection:
            found = connection.execute(sql.delete(SILOS).where(SILOS.c.name == name))
            return bool(found.rowcount)

    def _insert(self, table: sql.Table) -> Any:
        """Return the dialect's insert that can also update."""
        if self._engine.dialect.name == "postgresql":
            from sqlalchemy.dialects import postgresql

            return postgresql.insert(table)
        return sqlite.insert(table)

    def _upsert(
        self,
        connection: Connection,
        table: sql.Table,
        rows: Sequence[Mapping[str, Any]],
        once: Sequence[str] = (),
    ) -> None:
        """Insert rows, or replace those of their keys but for the columns ``once``."""
        insert, key = self._insert(table), [column.name for column in table.primary_key]
        kept = {*key, *once}
        values = {c.name: insert.excluded[c.name] for c in table.c if c.name not in kept}
        if rows:
            insert = insert.on_conflict_do_update(index_elements=key, set_=values)
            connection.execute(insert, rows)

    @contextmanager
    def _writing(self, doing: str) -> Iterator[Connection]:
        with failures(doing), self._engine.begin() as connection:
            hold_token(connection, self.token, doing)
            yield connection

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with failures("reading the database"), self._engine.connect() as connection:
            yield connection.execution_options(hedgerow_reads=True)


def _of_job(job_id: str, record: StepTotal | SentPayloads) -> dict[str, Any]:
    names = record.__dataclass_fields__  # not asdict, which copies: there may be thousands
    return {"job_id": job_id} | {name: getattr(record, name) for name in names}


def _columns(record: type, table: sql.Table) -> list[sql.Column[Any]]:
    return [table.c[field.name] for field in fields(record)]


def _job_record(row: sql.Row[Any]) -> JobRecord:
    values = dict(row._mapping)
    values["state"] = JobState(values["state"])
    values["signed"] = SignedJob.parse(values["signed"])
    values["detail"] = cut(one_line(values["detail"]))
    return JobRecord(**values)
