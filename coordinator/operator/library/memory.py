"""A federation in one process: the real halves, barrier, codecs and masks, without gRPC.

Silos are threads, of which only as many compute as there are workers; a hundred or more compute in
processes (:mod:`hedgerow.coordinator.operator.library.silo_processes`). The result is that of
``hedgerow local`` on the same tables, to the byte, but where silos draw over their rows.
"""

from __future__ import annotations

import asyncio
import math
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path

from hedgerow.boosting import warm_start
from hedgerow.boosting.dataset import Dataset, RowMetric, merge, recode, stacked, weighed
from hedgerow.boosting.errors import FederationError, InvalidJob, JobStopped
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import Artefact, CoordinatorStart, Horizontal, Result, RoundResult
from hedgerow.boosting.rounds.best import BestRound
from hedgerow.coordinator.operator import run_folder
from hedgerow.coordinator.operator.library.jobs import Job, check_cohort
from hedgerow.coordinator.operator.library.running import RunFailed
from hedgerow.coordinator.operator.library.silo_processes import (
    JOB_ID,
    SHARED_FROM,
    SiloProcesses,
    SiloWork,
)
from hedgerow.coordinator.server.barrier import Barrier
from hedgerow.coordinator.server.gathering import nameless
from hedgerow.coordinator.server.waiting import by_reason
from hedgerow.crypto.errors import Refusal
from hedgerow.services.identity.authority import throwaway
from hedgerow.services.rpc.in_memory import INSTANT, LineSpeed, MemoryLink, MemoryPlane, SiloAway
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import schema as schema_wire
from hedgerow.services.wire.job_view import (
    FinishedRound,
    JobSilo,
    JobState,
    JobView,
    SiloState,
    scores_of,
)

FAREWELL_SECONDS = 20.0
"""How long silos have after the last round."""

Away = Callable[[Silo, int], bool]
Late = Callable[[Silo, int], float]
Participate = Callable[[MemoryLink], Artefact | None]


@dataclass(frozen=True)
class EarlyStop:
    """An end of training by the scores of a set, whose best round is the result."""

    data: str
    metric: str
    patience: int
    """Rounds without a better score before training ends."""


@dataclass(frozen=True)
class Conditions:
    """How a federation in memory runs."""

    crypto: bool = True
    """Whether all is masked and encrypted that the job says. Without, what a job can leave out is
    left out; bagging's sum of covers is masked, and counts of differential privacy have their
    noise. The model is the same."""
    codecs: bool = True
    """Whether payloads pass through their codecs, and bytes are counted."""
    workers: int = 0
    """Silos that compute at the same time; 0 for one a core. With codecs, a hundred silos or more
    are dealt to as many processes."""
    away: Away = lambda silo, round: False
    """Whether a silo is away in a round; it is back in the next one."""
    late: Late | None = None
    """Seconds by which a silo is late with its first offer of a round; one that is later than the
    job's ``step_timeout_seconds`` is away in it."""
    lines: Sequence[LineSpeed] = ()
    """Lines of the silos, dealt in turn in the order of their names. With them, or with ``late``,
    the seconds of rounds are simulated."""
    watch: Callable[[FinishedRound], object] = lambda finished: None
    """Called with each finished round; training ends where it returns true."""
    early_stop: EarlyStop | None = None
    starting_model: bytes = b""
    """``model.ubj`` from which the job continues; empty where it starts without a model."""


@dataclass(frozen=True)
class MemoryResult:
    """What a federation in memory leaves."""

    view: JobView
    files: Mapping[str, bytes]
    """Of the result, by name."""
    kept: Mapping[str, Mapping[str, bytes]]
    """By silo, what stays there."""

    def write(self, folder: Path) -> None:
        """Write the run folder."""
        run_folder.write(folder, self.view, self.files)
        for silo, files in self.kept.items():
            for name, data in files.items():
                target = folder / "silos" / silo / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)


def federate(
    job: Job,
    tables: Mapping[str, Dataset],
    conditions: Conditions,
    test: Dataset | Mapping[str, Dataset] | None = None,
    tests: Mapping[str, Dataset] | None = None,
) -> MemoryResult:
    """Run a job over tables of this process and return its result.

    Parameters
    ----------
    tables : Mapping
        Each silo's rows under its own schema.
    test : Dataset, or Mapping of them by name, optional
        Rows that the coordinator scores.
    tests : Mapping, optional
        Each party's evaluation rows.

    Raises
    ------
    FederationError
        The job cannot run with these tables.
    RunFailed
        It did not succeed.
    """
    if not conditions.crypto:
        job = _unmasked(job)
    check_cohort(job.parameters, tuple(sorted(tables)))
    scored = test.values() if isinstance(test, Mapping) else ()
    if not any(one.gradients or one.metric for one in (*tables.values(), *scored)):
        job.parameters.check_tables()
    job.check_start(conditions.starting_model)
    run = _MemoryRun(job, tables, conditions, test, tests or {})
    found: list[MemoryResult] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            with asyncio.Runner() as runner:
                found.append(runner.run(run.main()))
        except BaseException as error:  # raised again where the caller waits
            failed.append(error)

    # A thread of its own: notebooks have a loop already.
    thread = threading.Thread(target=work, name="federation", daemon=True)
    thread.start()
    try:
        thread.join()
    except KeyboardInterrupt:
        run.stop("interrupted")
        thread.join()
        raise
    if failed:
        raise failed[0]
    return found[0]


def _unmasked(job: Job) -> Job:
    """Return the job without masks and encryption; what it trains is the same."""
    for name, value in {"secure": False, "secure_mean": False, "encryption": "plain"}.items():
        spec = job_wire.parse(job.spec)
        given = job_wire.parameters_of(spec)
        if name in given.DESCRIPTOR.fields_by_name:
            setattr(given, name, value)
            if name == "encryption":
                given.allow_insecure = True
            job_wire.give_parameters(spec, given)
            with suppress(InvalidJob):  # where it would have no effect
                job = Job.from_spec(spec.SerializeToString(deterministic=True))
    return job


class _MemoryRun:
    """One run; made for one call of :func:`federate`."""

    def __init__(
        self,
        job: Job,
        tables: Mapping[str, Dataset],
        conditions: Conditions,
        test: Dataset | Mapping[str, Dataset] | None,
        tests: Mapping[str, Dataset],
    ) -> None:
        self._spec = job.spec
        self._job = job.parameters
        self._conditions = conditions
        self._silos = tuple(Silo(name) for name in sorted(tables))
        layout = self._job.strategy.layout
        self._test_parts: tuple[tuple[str, int, RowMetric | None], ...] = ()
        if isinstance(layout, Horizontal):
            self._schema = merge(
                {silo: tables[silo].schema for silo in self._silos},
                positive=self._job.columns.positive,
            )
            layout.validate_for(self._job.parameters, self._job, self._schema)
            if self._job.validates:
                raise InvalidJob(
                    "validation_tables: silos of one process have none; score rounds on test rows, "
                    "or on rows held back, by validation = 0.1"
                )
            self._tables = {
                silo: weighed(recode(tables[silo], self._schema), self._job.columns.class_weight)
                for silo in self._silos
            }
            if isinstance(test, Mapping):
                self._test_parts = tuple(
                    (name, rows.n_samples, rows.metric) for name, rows in test.items()
                )
                test = stacked(test.values(), self._schema)
            self._test = None if test is None else recode(test, self._schema)
            if self._job.strategy.result is Result.PERSONAL and test is not None:
                tests = dict.fromkeys(self._silos, test)
            self._tests = {Silo(s): recode(own, self._schema) for s, own in tests.items()}
        else:
            self._tables = {silo: tables[silo] for silo in self._silos}
            self._schema = nameless(tables[str(self._job.active)].schema)
            self._test, self._tests = None, {Silo(s): own for s, own in tests.items()}
        self._kept: dict[str, dict[str, bytes]] = {}
        self._links: dict[Silo, MemoryLink] = {}
        self._errors: dict[Silo, str] = {}
        self._rounds: list[FinishedRound] = []
        self._progress = threading.Condition()
        self._through = -1.0  # the last round that is over; all are once the coordinator is done
        self._over = False
        self._plane: MemoryPlane | None = None
        self._lines = conditions.lines or ((INSTANT,) if conditions.late else ())

    def stop(self, reason: str) -> None:
        """End the run soon; safe from any thread."""
        plane = self._plane
        if plane is not None:
            plane.stopped = reason
            hub = plane.intake
            assert isinstance(hub, Barrier)
            plane.loop.call_soon_threadsafe(hub.end, JobStopped(reason))

    async def main(self) -> MemoryResult:
        """Run both halves until the job ends."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(8))
        job, conditions = self._job, self._conditions
        # Who is late by the schedule is dropped; this machine may take as long as it takes.
        hub = Barrier(self._silos, self._silos, math.inf)
        cores, workers = os.cpu_count() or 1, conditions.workers
        if workers <= 0:  # as joblib counts: -1 are all cores, -2 all but one
            workers = max(1, cores + 1 + workers) if workers else cores
        shared = conditions.codecs and len(self._silos) >= SHARED_FROM
        n_processes = workers if shared else 1
        self._plane = plane = MemoryPlane(
            JOB_ID, hub, loop, len(self._silos) if n_processes > 1 else workers,
            conditions.codecs, conditions.away, conditions.late or (lambda silo, round: 0.0),
            job.step_timeout_seconds,
            dict(zip(self._silos, cycle(self._lines), strict=False)),
        )  # fmt: skip
        self._links = {silo: MemoryLink(plane, silo) for silo in self._silos}
        rows = {silo: self._shown_rows(table.n_samples) for silo, table in self._tables.items()}
        start = CoordinatorStart(
            job=job, job_id=JOB_ID, attempt=1, silos=self._silos, schema=self._schema,
            n_samples=rows, test=self._test, starting_model=conditions.starting_model,
            test_parts=self._test_parts,
        )  # fmt: skip
        began = time.time()
        with tempfile.TemporaryDirectory(prefix="hedgerow-") as folder, ExitStack() as ending:
            participate = self._halves(Path(folder), n_processes, ending)
            threads = [
                threading.Thread(target=self._silo_main, args=(silo, hub, participate), daemon=True)
                for silo in self._silos
            ]
            for thread in threads:
                thread.start()
            try:
                last, over = await self._coordinate(hub, start, plane)
                plane.close()
                if not over:
                    hub.end(JobStopped("training was stopped"))
                    if self._job.vertical or self._job.strategy.result is Result.PERSONAL:
                        raise JobStopped(
                            f"training was stopped after {len(self._rounds)} rounds: a job of "
                            f"{self._job.strategy.name} has its models at its end only"
                        )
                self._note_through(math.inf)
                await asyncio.to_thread(_join, threads, FAREWELL_SECONDS)
            except FederationError as error:
                why = "; ".join(map(": ".join, by_reason(self._errors)))
                raise RunFailed(f"{error}" + (f" ({why})" if why else "")) from error
            finally:
                self._note_over()
                hub.end(JobStopped("the job has ended"))
                await asyncio.to_thread(_join, threads, FAREWELL_SECONDS)
        return self._result(last, rows, began)

    async def _coordinate(
        self, hub: Barrier, start: CoordinatorStart, plane: MemoryPlane
    ) -> tuple[RoundResult, bool]:
        """Return the round whose model is the result, and whether the strategy has ended."""
        last: RoundResult | None = None
        best: RoundResult | None = None
        early, scored, stopped = self._conditions.early_stop, BestRound(), False
        stream = warm_start.coordinate(hub, start)
        began, before = self._now(plane), (0, 0)
        try:
            async for last in stream:
                if self._lines:  # replies have the seconds in which this round has ended
                    await hub.all_delivered(FAREWELL_SECONDS)
                now = self._now(plane)
                moved = _bytes(plane)
                done = FinishedRound(
                    last.round, 1, now - began, scores_of(last.metrics),
                    moved[0] - before[0], moved[1] - before[1], last.silos,
                )  # fmt: skip
                with self._progress:
                    self._rounds.append(done)
                self._note_through(done.round)
                stopped = bool(self._conditions.watch(done))
                if early is not None:
                    score = last.metrics[early.data][early.metric]
                    if scored.note(early.metric, last.round, score) or best is None:
                        best, scored.best_round = replace(last, best_round=last.round), last.round
                    stopped = stopped or scored.ends(last.round, early.patience)
                if last.final or stopped:
                    break
                for link in self._links.values():  # the next round is with those that return
                    if link.round == last.round and not link.here:
                        await asyncio.to_thread(link.wait_here, last.round)
                began, before = self._now(plane), moved
        finally:
            await stream.aclose()  # type: ignore[attr-defined]
        if last is None:
            raise JobStopped("the strategy ended without a round")
        return best or last, last.final

    def _now(self, plane: MemoryPlane) -> float:
        """Return the seconds of the clock that rounds are measured by."""
        if self._lines:
            return plane.answered
        return time.monotonic()

    def _note_through(self, round: float) -> None:
        with self._progress:
            self._through = round
            self._progress.notify_all()

    def _note_over(self) -> None:
        with self._progress:
            self._over = True
            self._progress.notify_all()

    # --- silos ---

    def _halves(self, folder: Path, n_processes: int, ending: ExitStack) -> Participate:
        """Return what runs a silo's half, here or in a process."""
        work = SiloWork(
            self._spec, self._silos, self._schema, self._tables, self._tests, {}, bool(self._lines)
        )
        if work.signed:
            paths = throwaway(folder, self._silos, time.time())
            work = replace(work, identities={s: paths[f"silo/{s}"] for s in self._silos})
        if n_processes == 1:
            return lambda link: work.participate(link.silo, link)
        processes = SiloProcesses(work, n_processes)
        ending.callback(processes.close)
        return processes.participate

    def _silo_main(self, silo: Silo, hub: Barrier, participate: Participate) -> None:
        plane = self._plane
        assert plane is not None
        link = self._links[silo]
        with plane.slots:
            try:
                while not self._over:
                    try:
                        self._keep(silo, participate(link))
                        return
                    except SiloAway:
                        plane.loop.call_soon_threadsafe(hub.drop, silo, "is away")
                        plane.slots.release()
                        with self._progress:
                            self._progress.wait_for(lambda: self._back(link))
                        plane.slots.acquire()
            except JobStopped:
                return
            except (FederationError, Refusal) as error:
                self._errors[silo] = str(error)
            except Exception as error:  # as an agent reports it, so that the job can end
                self._errors[silo] = f"{type(error).__name__}: {error}"
            finally:
                link.note_here()
        plane.loop.call_soon_threadsafe(hub.drop, silo, self._errors.get(silo, ""))

    def _back(self, link: MemoryLink) -> bool:
        return self._over or self._through >= link.round

    def _keep(self, silo: Silo, kept: Artefact | None) -> None:
        if kept is not None:
            files = dict(kept.files)
            if not self._job.vertical:
                files[run_folder.SCHEMA_FILE] = schema_wire.dump(self._schema)
            self._kept[silo] = files

    def _shown_rows(self, n_samples: int) -> int:
        if self._job.exact_rows or not n_samples:
            return n_samples
        return 1 << (n_samples - 1).bit_length()

    # --- the end ---

    def _result(self, last: RoundResult, rows: Mapping[Silo, int], began: float) -> MemoryResult:
        job = self._job
        artefact = warm_start.artefact(
            job, self._schema, last.checkpoint, self._conditions.starting_model
        )
        files = dict(sorted(artefact.files.items()))
        if not job.vertical:
            files[run_folder.SCHEMA_FILE] = schema_wire.dump(self._schema)
        assert self._plane is not None
        steps = tuple(self._plane.traffic[key] for key in sorted(self._plane.traffic))
        if self._rounds:  # replies that were on their way when the last round ended
            up, down = _bytes(self._plane)
            others = self._rounds[:-1]
            whole = replace(
                self._rounds[-1],
                bytes_up=up - sum(r.bytes_up for r in others),
                bytes_down=down - sum(r.bytes_down for r in others),
            )
            self._rounds[-1] = whole
        silos = tuple(
            JobSilo(
                silo, rows[silo], SiloState.LOST if silo in self._errors else SiloState.PRESENT,
                self._errors.get(silo, ""),
            )
            for silo in self._silos
        )  # fmt: skip
        view = JobView(
            job_id=JOB_ID, spec=self._spec, state=JobState.SUCCEEDED, detail="", attempt=1,
            silos=silos, rounds=tuple(self._rounds), steps=steps, create_time=began,
            end_time=time.time(), operator="", best_round=last.best_round,
            artefacts=tuple(files), model=artefact.model, reveals=warm_start.reveals(job),
            control_bytes_up=0, control_bytes_down=0, job_digest="",
        )  # fmt: skip
        return MemoryResult(view, files, self._kept)


def _bytes(plane: MemoryPlane) -> tuple[int, int]:
    totals = list(plane.traffic.values())
    return sum(t.bytes_up for t in totals), sum(t.bytes_down for t in totals)


def _join(threads: list[threading.Thread], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0.0))
