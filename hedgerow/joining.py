"""A federation of scripts: the same Python script runs in every organisation, with no operator.

>>> import hedgerow
>>> with hedgerow.join("north", world_size=3) as site:  # doctest: +SKIP
...     run = site.train(hedgerow.Job("histogram", rounds=20), table, {})

Each script states the whole job and signs it with its silo's key. A job that all its silos have
signed needs no operator; the coordinator starts it when the statements are equal byte for byte. The
silo's half runs in the script's process, under the silo's own policy, ledger and records.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import structlog

from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.errors import FederationError, InvalidJob, StaleAttempt, Unreachable
from hedgerow.boosting.ports import JobParameters, Result
from hedgerow.boosting.tables import for_job
from hedgerow.boosting.tables.digests import RowsDigest
from hedgerow.client_agent import results
from hedgerow.client_agent.__main__ import build
from hedgerow.client_agent.config import AgentSettings
from hedgerow.client_agent.loop import Agent
from hedgerow.coordinator.operator import run_folder
from hedgerow.coordinator.operator.library.jobs import Job, JobLike
from hedgerow.coordinator.operator.library.running import Run, RunFailed
from hedgerow.services.process import settings
from hedgerow.services.rpc.federation import Arrival, FederationClient, Gathered
from hedgerow.services.wire.job_view import FinishedRound, JobState, JobView
from hedgerow.services.wire.signed_job import (
    DEFAULT_DAYS,
    NONCE_BYTES,
    VIEW_VERSION,
    JobStatement,
    OpenedJob,
    SignedJob,
    sign_as_site,
)
from hedgerow.services.wire.signed_job import (
    Site as SiteName,
)

if TYPE_CHECKING:
    import pyarrow as pa

KEEP_SECONDS = 60.0
"""How long a site waits for its own half of a job that has ended, until its model is kept."""
_RECORD = "site"


class NotAllHere(FederationError):
    """Sites have not come, or not signed, in the time given; names them where it can."""


@dataclass
class _Tables:
    """The rows of the job under way; they are in this process' memory alone."""

    table: pa.Table | None = None
    test: pa.Table | None = None

    def train(self, job: JobParameters) -> Dataset:
        if self.table is None:
            raise InvalidJob("this silo's script is not at a job")
        return _read(self.table, job, "the script's table")

    def tested(self, job: JobParameters, known: str) -> Dataset | None:
        return None if self.test is None else _read(self.test, job, "the script's test table")


def _read(table: pa.Table, job: JobParameters, where: str) -> Dataset:
    digest = RowsDigest()
    for batch in table.to_batches():
        digest.add(batch)
    return replace(for_job(table, job, where), digest=digest.hexdigest() + digest.order)


def check_gathered(found: Gathered, silo: str, own: Arrival, now: float) -> None:
    """Check what a coordinator says of the sites against what one of them has said.

    Raises
    ------
    InvalidJob
        It would take part in no job of these sites.
    """
    silos = [site.silo for site in found.sites]
    named = ", ".join(silos)
    if len(set(silos)) != len(silos) or len(silos) != (own.world_size or len(silos)):
        raise InvalidJob(f"expected {own.world_size} sites, the coordinator named {named}")
    if SiteName(silo, own.nonce) not in found.sites:
        raise InvalidJob(
            f"the coordinator named {named}: expected {silo} among them, as this run of its script "
            "came"
        )
    if own.rank is not None and silos[own.rank] != silo:
        raise InvalidJob(f"the coordinator gave rank {own.rank}, {silo}'s, to {silos[own.rank]}")
    if not now < (found.not_after or 0.0) <= own.not_after:
        raise InvalidJob("the coordinator named a later end of these sites than this one has said")


class Site:
    """A script while it is joined with the others; a context manager, made by :func:`join`.

    Attributes
    ----------
    silo : str
        This silo.
    rank : int
        Its rank, from zero.
    silos : tuple of str
        All silos, in the order of their ranks.
    """

    def __init__(
        self, config: AgentSettings, world_size: int | None, rank: int | None, wait: float
    ) -> None:
        self._wait = wait
        self._tables = _Tables()
        self._signed: set[bytes] = set()
        built, self._close, _ = build(config)
        try:
            self._parts = parts = replace(
                built.parts,
                load=self._tables.train,
                load_test=self._tables.tested,
                load_validation=lambda job: None,
                has_signed=self._has_signed,
                registration=replace(built.parts.registration, row_count_class=0, n_columns=0),
            )
            self.silo = str(parts.silo)
            self._agent = Agent(parts)
            self._failure: BaseException | None = None
            self._thread = threading.Thread(target=self._work, name="silo", daemon=True)
            self._records = parts.state.records("joint")
            self._own = self._known_own() or self._new_own()
            self._thread.start()
            self._gather(world_size, rank)
        except BaseException as error:
            self.close(error)
            raise
        self._turn = 0

    @property
    def world_size(self) -> int:
        """How many sites there are."""
        return len(self.silos)

    def _work(self) -> None:
        try:
            self._agent.run()
        except BaseException as error:
            self._failure = error

    def _has_signed(self, opened: OpenedJob) -> bool | None:
        """Say whether this run has signed a job; None of one that it may sign yet, or again."""
        if opened.signed.digest in self._signed:
            return True
        return None if SiteName(self.silo, self._own.nonce) in opened.statement.sites else False

    # --- who is there ---

    def _known_own(self) -> Arrival | None:
        """Return what this script said before it died, if it did."""
        kept = self._records.read(_RECORD)
        if not kept:
            return None
        found = json.loads(kept)
        own = Arrival(0, None, bytes.fromhex(found["nonce"]), found["not_after"])
        return own if own.not_after > time.time() else None

    def _new_own(self) -> Arrival:
        identity = self._parts.identity()
        ends = int(min(identity.now() + DEFAULT_DAYS * 86400.0, identity.subject.not_after))
        own = Arrival(0, None, secrets.token_bytes(NONCE_BYTES), ends)
        kept = {"nonce": own.nonce.hex(), "not_after": ends}
        self._records.write(_RECORD, json.dumps(kept).encode())
        return own

    def _gather(self, world_size: int | None, rank: int | None) -> None:
        own = replace(self._own, world_size=world_size or 0, rank=rank)
        here: tuple[str, ...] = ()

        def asked(client: FederationClient, lease: str) -> Gathered | None:
            nonlocal here
            found = client.gather(lease, own)
            here = found.here
            return found if found.sites else None

        found = self._agent.ask(asked, time.monotonic() + self._wait)
        if found is None:
            self._raise_failure()
            missing = f"{world_size - len(here)} more" if world_size else "others"
            raise NotAllHere(
                f"waited {self._wait:g} s for {missing}: here {'are' if len(here) > 1 else 'is'} "
                f"{', '.join(here) or 'nobody that a coordinator knows'}"
            )
        check_gathered(found, self.silo, own, time.time())
        self._sites, self._ends = found.sites, int(found.not_after or 0)
        self.silos = tuple(site.silo for site in found.sites)
        self.rank = self.silos.index(self.silo)

    # --- jobs ---

    def train(
        self,
        job: JobLike,
        table: pa.Table,
        tests: Mapping[str, pa.Table] | None = None,
        *,
        on_round: Callable[[FinishedRound], bool | None] | None = None,
    ) -> Run:
        """Run a job with the other sites, whose scripts call this with the same one.

        Parameters
        ----------
        job : Job, mapping or path
            Its silos are the sites; it needs all of them where it does not say ``min_silos``.
        table : pyarrow.Table
            This silo's rows. Nothing of them is told before all sites have signed the same job.
        tests : Mapping, optional
            One table of this silo's own test rows, which score the finished model.
        on_round : callable
            Called with each finished round. Where it returns true at every site, the job is
            cancelled, and the run comes back without a model, as of :func:`hedgerow.local`.

        Returns
        -------
        Run
            With the model, the same at every site.

        Raises
        ------
        InvalidJob
            The job cannot run, or the scripts differ: names the key and both values.
        NotAllHere
            Sites have not signed in the time given.
        RunFailed
            The job did not succeed.
        """
        self._turn += 1
        found = self._fit(Job.of(job))
        self._tables.table, self._tables.test = table, next(iter((tests or {}).values()), None)
        if len(tests or {}) > 1:
            raise InvalidJob("tests: expected one table of test rows")
        job_id = self._agreed(found.spec)
        view, stopped = self._followed(job_id, found.spec, on_round)
        run = self._run(view)
        if view.state is JobState.SUCCEEDED or (stopped and view.state is JobState.CANCELLED):
            return run
        raise RunFailed(view.detail or view.state.lower(), run)

    def _fit(self, job: Job) -> Job:
        strategy = job.parameters.strategy
        if job.parameters.vertical or strategy.result is Result.PERSONAL:
            raise InvalidJob(
                f"{strategy.name}: expected a strategy whose model all silos have in common"
            )
        if not job.parameters.keep_model:
            raise InvalidJob("keep_model: every site of a job of scripts has its model")
        return job.on(dict.fromkeys(self.silos), has_test=False, all_needed=True)

    def _agreed(self, spec: bytes) -> str:
        """Sign a job and return its identifier once all sites have signed it."""
        identity, here = self._parts.identity(), tuple[str, ...]()
        plain = JobStatement(
            identity.subject.federation,
            b"",
            spec,
            self._ends,
            VIEW_VERSION,
            self._sites,
            self._turn,
        )
        statement = plain.of_sites
        data = statement.serialise()
        signed, digest = sign_as_site(data, identity), SignedJob(data, b"", b"").digest
        self._signed.add(digest)

        def asked(client: FederationClient, lease: str) -> str | None:
            nonlocal here
            try:
                found = client.propose(lease, data, signed)
            except StaleAttempt:  # it has restarted
                client.gather(lease, replace(self._own, world_size=self.world_size, rank=self.rank))
                return None
            here = found.here
            return found.job_id or None

        try:
            job_id = self._agent.ask(asked, time.monotonic() + self._wait)
            self._raise_failure()
            if job_id is None:
                missing = sorted(set(self.silos) - set(here))
                raise NotAllHere(
                    f"waited {self._wait:g} s: {', '.join(missing)} "
                    f"{'has' if len(missing) == 1 else 'have'} not signed job {self._turn} of this "
                    "script"
                )
            if job_id != statement.job_id:
                raise InvalidJob(
                    f"the coordinator started job {job_id}; the sites signed {statement.job_id}"
                )
        except BaseException:
            self._signed.discard(digest)
            raise
        return job_id

    def _followed(
        self, job_id: str, spec: bytes, on_round: Callable[[FinishedRound], bool | None] | None
    ) -> tuple[JobView, bool]:
        """Return the job once it has ended, with all rounds, and whether this site wanted that."""
        rounds: dict[int, FinishedRound] = {}
        stop = False

        def asked(client: FederationClient, lease: str) -> JobView:
            return client.follow(lease, job_id, len(rounds), stop=stop)

        while True:
            view = self._agent.ask(asked)
            self._raise_failure()
            if view is None:
                raise Unreachable("the coordinator has gone")
            if view.job_id != job_id or view.spec != spec:
                raise InvalidJob(f"the coordinator shows another job than {job_id}")
            for done in view.rounds:
                new = done.round not in rounds
                rounds[done.round] = done
                if new and not stop and on_round is not None:
                    stop = bool(on_round(done))
            if view.ended:
                return replace(view, rounds=tuple(rounds[key] for key in sorted(rounds))), stop

    def _run(self, view: JobView) -> Run:
        """Return the run of a job that has ended, with the model that this silo has checked."""
        state, files = self._parts.state, dict[str, bytes]()
        if view.state is JobState.SUCCEEDED:
            deadline = time.monotonic() + KEEP_SECONDS
            while state.kept(view.job_id, results.SCHEMA) is None:
                self._raise_failure()
                if time.monotonic() > deadline and not self._agent.bring(view.job_id):
                    raise RunFailed(f"the model of job {view.job_id} has not come")
                time.sleep(0.05)
            for name in view.artefacts:
                kept = state.kept(view.job_id, name)
                if kept is not None:
                    files[name] = kept
        folder = Path(tempfile.mkdtemp(prefix="hedgerow-run-"))
        view = replace(view, artefacts=tuple(files))
        rows = next((one.n_samples for one in view.silos if one.name == self.silo), 1)
        alike = replace(view, silos=tuple(replace(one, n_samples=rows) for one in view.silos))
        run_folder.write(folder, view, files, run_folder.planned(alike, files))
        return Run(folder, temporary=True)

    # --- the end ---

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        if not self._thread.is_alive():
            raise Unreachable("this silo's half has ended")

    def close(self, error: BaseException | None = None) -> None:
        """Leave the others; a script that is started again after it died joins them again."""
        self._agent.stop()
        self._thread.join(15.0)
        dies = isinstance(error, Unreachable) or not isinstance(
            error, FederationError | KeyboardInterrupt | SystemExit | None
        )
        if not dies:
            with suppress(OSError):
                self._records.write(_RECORD, b"")
        self._close()

    def __enter__(self) -> Self:
        """Return the site."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the others."""
        self.close(error)

    def __repr__(self) -> str:
        return f"<Site {self.silo}: {self.rank} of {self.world_size}>"


def join(
    identity: str | os.PathLike[str],
    *,
    server: str | None = None,
    world_size: int | None = None,
    rank: int | None = None,
    wait: float = 600.0,
) -> Site:
    """Join the scripts of other silos; returns when all are there.

    Parameters
    ----------
    identity : path
        A silo's folder, as ``hedgerow init`` or ``hedgerow join`` makes it. Its policy, ledger and
        records are obeyed and kept; its table is not read. Keys of jobs are kept in this process.
    server : str, optional
        ``HOST:PORT`` of the coordinator, where it is not the folder's.
    world_size : int, optional
        How many sites there will be; as many as the federation's roster has if not given.
    rank : int, optional
        This site's rank, from zero; by name among those that say none.
    wait : float
        How long to wait for the others, here and at each job, seconds.

    Raises
    ------
    InvalidJob
        Two sites say another world size, or the same rank; names both.
    NotAllHere
        Not all have come in time; names those that have.
    """
    if not structlog.is_configured():  # a script's output is its own
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
            logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        )
    folder = Path(identity)
    config = settings.load(AgentSettings, folder / "agent.toml")
    own = {"crypto": "", "metrics": "", "answers": None, "calibrate": False, "dask": "",
           "hold_back": 0.0, "test": None, "validation": None}  # fmt: skip
    config = config.model_copy(update=own | ({"coordinator": server} if server else {}))
    return Site(config, world_size, rank, wait)
