"""A federation of scripts: the same Python script runs in every organisation, with no operator.

>>> import hedgerow
>>> with hedgerow.join("north", world_size=3) as site:  # doctest: +SKIP
...     run = site.train(hedgerow.Job("histogram", rounds=20), table, {})

Each script states the whole job and signs it with its silo's key. A job that all its silos have
signed needs no operator; the coordinator starts it when the statements are equal byte for byte. The
silo's half runs in the script's process, under the silo's own policy, ledger and records.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Self

import structlog

from hedgerow.boosting.dataset import Dataset, RowGradients, RowMetric
from hedgerow.boosting.errors import FederationError, InvalidJob, StaleAttempt, Unreachable
from hedgerow.boosting.metrics import by_script
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
    LEAST_SITES,
    MOST_SITES,
    NONCE_BYTES,
    VIEW_VERSION,
    JobStatement,
    OpenedJob,
    SignedSite,
    sign_as_site,
)

if TYPE_CHECKING:
    import pyarrow as pa

KEEP_SECONDS = 60.0
"""How long a site waits for its own half of a job that has ended, until its model is kept."""
ASK_SECONDS = 2.0
"""Of these until it asks for the model itself, and asks again."""
PAUSE_SECONDS = 0.1
"""At least so long between two questions about a job."""
FOLLOW_SECONDS = 0.5
"""At most so long while this site's half is at work: each question takes time of all processes."""
_RECORD = "site"
open_sites: list[Site] = []
"""Of this process: a script of ``hedgerow.xgboost`` trains at the one that it has joined as."""


class NotAllHere(FederationError):
    """Sites have not come, or not signed, in the time given; names them where it can."""


class _Signed:
    """A job that this script signs, with its rows, which are in this process' memory alone."""

    def __init__(
        self,
        statement: JobStatement,
        table: pa.Table,
        others: Mapping[str, pa.Table],
        gradients: RowGradients | None,
        metrics: Mapping[str, RowMetric],
    ) -> None:
        self.spec, self.turn, self.job_id = statement.spec, statement.turn, statement.job_id
        self.data = statement.serialise()
        self.digest = sha256(self.data).digest()
        self._tables = {"table": table, **others}
        self._known = {name: _digest(one) for name, one in self._tables.items()}
        self._gradients, self._metrics = gradients, metrics

    @property
    def begun(self) -> dict[str, str]:
        """What another run of this script must begin it with to go on with it."""
        spec = sha256(self.spec).hexdigest()
        return {"job": spec, **self._known}

    def train(self, job: JobParameters) -> Dataset:
        found = self._read("table", job)
        if found is None:
            raise InvalidJob(f"this silo's script has left job {self.job_id}")
        return replace(found, gradients=self._gradients, metric=self._metrics.get("train"))

    def tested(self, job: JobParameters, known: str) -> Dataset | None:
        return self._read("test table", job)

    def validated(self, job: JobParameters) -> Dataset | None:
        found = self._read("validation table", job)
        return found and replace(found, metric=self._metrics.get("valid"))

    def _read(self, name: str, job: JobParameters) -> Dataset | None:
        if name not in self._tables:
            return None
        found = for_job(self._tables[name], job, f"the script's {name}")
        return replace(found, digest=self._known[name], table=self._tables[name])

    def clear(self) -> None:
        self._tables = {}


def _digest(table: pa.Table) -> str:
    digest = RowsDigest()
    for batch in table.to_batches():
        digest.add(batch)
    return digest.hexdigest() + digest.order


def _no_table(job: JobParameters) -> Dataset:
    raise InvalidJob("this silo's table is its script's")


def check_gathered(
    found: Gathered, silo: str, own: Arrival, now: float, expected: Sequence[str] = ()
) -> None:
    """Check what a coordinator says of the sites against what one of them has said.

    Parameters
    ----------
    expected : sequence of str
        Names of all sites, where they are known.

    Raises
    ------
    InvalidJob
        It would take part in no job of these sites.
    """
    silos = [site.silo for site in found.sites]
    named = ", ".join(silos)
    if len(set(silos)) != len(silos) or len(silos) != own.world_size:
        raise InvalidJob(f"expected {own.world_size} sites, the coordinator named {named}")
    if expected and set(silos) != set(expected):
        raise InvalidJob(f"expected {', '.join(expected)}, the coordinator named {named}")
    if SignedSite(silo, own.nonce) not in found.sites:
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
        self,
        config: AgentSettings,
        world_size: int,
        rank: int | None,
        wait: float,
        silos: Sequence[str] = (),
    ) -> None:
        self._wait = wait
        self._closed = False
        self._turn = 0
        self._begun: list[dict[str, str]] = []
        self._current: _Signed | None = None
        self._training = threading.Lock()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="silo", daemon=True)
        built, self._close, _ = build(config)
        self._parts = parts = replace(
            built.parts,
            load=_no_table,
            load_test=lambda job, known: None,
            load_validation=lambda job: None,
            script=self._tables_of,
            registration=replace(built.parts.registration, row_count_class=0, n_columns=0),
        )
        self.silo = str(parts.silo)
        self._agent = Agent(parts)
        self._records = parts.state.records("joint")
        atexit.register(self.close)
        try:
            if silos and self.silo not in silos:
                raise InvalidJob(f"silos: expected {self.silo} among {', '.join(silos)}")
            own = self._known_own() or self._new_own()
            self._own = replace(own, world_size=world_size, rank=rank)
            self._thread.start()
            self._gather(silos)
        except BaseException:
            self.close()
            raise
        open_sites.append(self)

    @property
    def world_size(self) -> int:
        """How many sites there are."""
        return len(self.silos)

    def _work(self) -> None:
        try:
            self._agent.run()
        except BaseException as error:
            self._failure = error

    def _tables_of(self, opened: OpenedJob) -> _Signed | None:
        """Return the tables of the job under way; None of a job that this run may sign yet."""
        statement, current = opened.statement, self._current
        if current is not None and current.digest == opened.signed.digest:
            return current
        last = self._turn if current is None else current.turn
        if SignedSite(self.silo, self._own.nonce) in statement.sites and statement.turn > last:
            return None
        raise InvalidJob(
            f"job {statement.job_id} is of scripts, and this run of this silo's has not signed it, "
            "or is at another job"
        )

    # --- who is there ---

    def _known_own(self) -> Arrival | None:
        """Return what this script said before it was killed, if it was."""
        kept = self._records.read(_RECORD)
        if not kept:
            return None
        found = json.loads(kept)
        own = Arrival(0, None, bytes.fromhex(found["nonce"]), found["not_after"])
        self._begun = found.get("begun", [])
        return own if own.not_after > time.time() else None

    def _new_own(self) -> Arrival:
        identity = self._parts.identity()
        ends = int(min(identity.now() + DEFAULT_DAYS * 86400.0, identity.subject.not_after))
        own = Arrival(0, None, secrets.token_bytes(NONCE_BYTES), ends)
        self._begun = []
        self._keep(own)
        return own

    def _keep(self, own: Arrival) -> None:
        kept = {"nonce": own.nonce.hex(), "not_after": own.not_after, "begun": self._begun}
        self._records.write(_RECORD, json.dumps(kept).encode())

    def _begin(self, job: _Signed) -> None:
        """Note a job before it is signed; the same again after a kill has the same identifier.

        With other rows it would end at once, with the model of the earlier ones.
        """
        if job.turn > len(self._begun):
            self._begun.append(job.begun)
            self._keep(self._own)
            return
        before, now = self._begun[job.turn - 1], job.begun
        others = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        if others:
            self._records.write(_RECORD, b"")
            raise InvalidJob(
                f"before it was killed, this script had begun job {job.turn} with another "
                f"{others[0]}: run the scripts of all sites again, which then sign new jobs"
            )

    def _gather(self, silos: Sequence[str]) -> None:
        own = self._own
        here: tuple[str, ...] = ()

        def asked(client: FederationClient, lease: str) -> Gathered | None:
            nonlocal here
            found = client.gather(lease, own)
            here = found.here
            return found if found.sites else None

        found = self._agent.ask(asked, time.monotonic() + self._wait)
        if found is None:
            self._raise_failure()
            raise NotAllHere(
                f"waited {self._wait:g} s for {own.world_size - len(here)} more: here "
                f"{'are' if len(here) > 1 else 'is'} "
                f"{', '.join(here) or 'nobody that a coordinator knows'}"
            )
        check_gathered(found, self.silo, own, time.time(), silos)
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
        validation: pa.Table | None = None,
        on_round: Callable[[FinishedRound], bool | None] | None = None,
        gradients: RowGradients | None = None,
        metrics: Mapping[str, RowMetric] | None = None,
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
        validation : pyarrow.Table, optional
            This silo's validation rows, in a job with ``validation_tables``: each round is scored
            on those of all sites together, by secure sums.
        on_round : callable
            Called with each finished round. Where it returns true at every site, the job is
            cancelled, and the run comes back without a model, as of :func:`hedgerow.local`. An
            exception ends the job for this site.
        gradients : callable, optional
            Of a ``histogram`` job whose ``gradients`` names it: returns g and h of this silo's rows
            in place of the objective's, both of the shape of their margins, which it is given with
            the number of the round, from 0. Nothing of it leaves but in the sums of histograms and
            the power of two above the largest gradient of any silo.
        metrics : Mapping, optional
            Of a job with a metric ``script@NAME`` (``script-high@NAME`` where higher is better):
            returns the score of this silo's rows of ``train`` or ``valid`` for their margins. The
            mean over silos, by the weight of their rows, is a secure sum.

        Returns
        -------
        Run
            With the model, the same at every site.

        Raises
        ------
        InvalidJob
            The job cannot run, another one is under way, or the scripts differ: names the key and
            both values.
        NotAllHere
            Sites have not signed in the time given.
        RunFailed
            The job did not succeed.
        """
        if not self._training.acquire(blocking=False):
            raise InvalidJob("train: a job of this script is under way; its jobs are one by one")
        turn, signed = self._turn + 1, None
        try:
            found = self._fit(Job.of(job))
            if len(tests or {}) > 1:
                raise InvalidJob("tests: expected one table of test rows")
            others = dict(zip(("test table",), (tests or {}).values(), strict=False))
            if (validation is not None) != found.parameters.validates:
                raise InvalidJob(
                    "validation: expected a table where the job has validation_tables, and only "
                    "there"
                )
            if validation is not None:
                others["validation table"] = validation
            named = bool(getattr(found.parameters.parameters, "gradients", ""))
            if named != (gradients is not None):
                raise InvalidJob(
                    "gradients: expected a function where the job names one, and only there"
                )
            if any(map(by_script, found.parameters.metrics)) != bool(metrics):
                raise InvalidJob(
                    "metrics: expected functions where the job names one, and only there"
                )
            statement = self._statement(found.spec, turn)
            signed = _Signed(statement, table, others, gradients, metrics or {})
            self._begin(signed)
            self._agreed(signed)
            view, stopped = self._followed(signed, on_round)
            run = self._run(view)
        finally:
            # A coordinator may name a job as ended and assign it again.
            self._turn, self._current = turn, None
            if signed is not None:
                signed.clear()
                self._agent.abandon(signed.job_id, "this silo's script has left the job")
            self._training.release()
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

    def _statement(self, spec: bytes, turn: int) -> JobStatement:
        federation = self._parts.identity().subject.federation
        return JobStatement(
            federation, b"", spec, self._ends, VIEW_VERSION, self._sites, turn
        ).of_sites

    def _agreed(self, job: _Signed) -> None:
        """Sign a job; return once all sites have signed it."""
        here = tuple[str, ...]()
        signature = sign_as_site(job.data, self._parts.identity())
        self._current = job

        def asked(client: FederationClient, lease: str) -> str | None:
            nonlocal here
            try:
                found = client.propose(lease, job.data, signature)
            except StaleAttempt:  # it has restarted
                client.gather(lease, self._own)
                return None
            here = found.here
            return found.job_id or None

        job_id = self._agent.ask(asked, time.monotonic() + self._wait)
        self._raise_failure()
        if job_id is None:
            missing = sorted(set(self.silos) - set(here))
            raise NotAllHere(
                f"waited {self._wait:g} s: {', '.join(missing)} "
                f"{'has' if len(missing) == 1 else 'have'} not signed job {job.turn} of this "
                "script"
            )
        if job_id != job.job_id:
            raise InvalidJob(f"the coordinator started job {job_id}; the sites signed {job.job_id}")

    def _followed(
        self, job: _Signed, on_round: Callable[[FinishedRound], bool | None] | None
    ) -> tuple[JobView, bool]:
        """Return the job once it has ended, with all rounds, and whether this site wanted that."""
        rounds: dict[int, FinishedRound] = {}
        stop = False

        def asked(client: FederationClient, lease: str) -> JobView:
            return client.follow(lease, job.job_id, max(rounds, default=-1) + 1, stop=stop)

        while True:
            view = self._agent.ask(asked)
            self._raise_failure()
            if view is None:
                raise Unreachable("the coordinator has gone")
            if view.job_id != job.job_id or view.spec != job.spec:
                raise InvalidJob(f"the coordinator shows another job than {job.job_id}")
            for done in view.rounds:
                new = done.round not in rounds
                rounds[done.round] = done
                if new and not stop and on_round is not None:
                    stop = bool(on_round(done))
            if view.ended:
                return replace(view, rounds=tuple(rounds[key] for key in sorted(rounds))), stop
            time.sleep(PAUSE_SECONDS)
            self._agent.wait(job.job_id, FOLLOW_SECONDS - PAUSE_SECONDS)

    def _run(self, view: JobView) -> Run:
        """Return the run of a job that has ended, with the model that this silo has checked."""
        state, files = self._parts.state, dict[str, bytes]()
        if view.state is JobState.SUCCEEDED:
            deadline = time.monotonic() + KEEP_SECONDS
            ask = time.monotonic() + ASK_SECONDS  # a coordinator that was restarted sends none
            while state.kept(view.job_id, results.SCHEMA) is None:
                self._raise_failure()
                if time.monotonic() > deadline:
                    raise RunFailed(f"the model of job {view.job_id} has not come")
                if time.monotonic() > ask:
                    self._agent.bring(view.job_id)
                    ask = time.monotonic() + ASK_SECONDS
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
        return Run.ended(folder, temporary=True)

    # --- the end ---

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        if not self._thread.is_alive():
            raise Unreachable("this silo's half has ended")

    def close(self) -> None:
        """Leave the others; only a script that was killed joins them again when it is started."""
        if self._closed:
            return
        self._closed = True
        if self in open_sites:
            open_sites.remove(self)
        atexit.unregister(self.close)
        try:
            self._agent.stop()
            if self._thread.ident is not None:
                self._thread.join(15.0)
            with suppress(OSError, FederationError):
                self._records.write(_RECORD, b"")
        finally:
            self._close()

    def __enter__(self) -> Self:
        """Return the site."""
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the others."""
        self.close()

    def __repr__(self) -> str:
        return f"<Site {self.silo}: {self.rank} of {self.world_size}>"


def join(
    identity: str | os.PathLike[str],
    *,
    server: str | None = None,
    world_size: int | None = None,
    silos: Sequence[str] | None = None,
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
        How many sites there will be. This, ``silos`` or both are needed: a coordinator could leave
        sites out of those that it names by itself.
    silos : sequence of str, optional
        Names of all sites, in any order; of no others is a job signed.
    rank : int, optional
        This site's rank, from zero; by name among those that say none.
    wait : float
        How long to wait for the others, here and at each job, seconds.

    Raises
    ------
    InvalidJob
        An argument cannot be, or two sites say another world size, or the same rank; names both.
    NotAllHere
        Not all have come in time; names those that have.
    """
    world_size, names = _expected(world_size, silos)
    if rank is not None and (type(rank) is not int or not 0 <= rank < world_size):
        raise InvalidJob(f"rank: expected a number from 0 to {world_size - 1}, received {rank!r}")
    if type(wait) not in (int, float) or not wait > 0:
        raise InvalidJob(f"wait: expected seconds, above 0, received {wait!r}")
    if server is not None and type(server) is not str:
        raise InvalidJob(f"server: expected 'HOST:PORT', received {server!r}")
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
    return Site(config, world_size, rank, wait, names)


def _expected(world_size: int | None, silos: Sequence[str] | None) -> tuple[int, tuple[str, ...]]:
    """Return how many sites there will be, and their names where they are given."""
    names = () if silos is None else tuple(silos)
    texts = {name for name in names if isinstance(name, str)}
    if silos is not None and (isinstance(silos, str) or not texts or len(texts) != len(names)):
        raise InvalidJob(f"silos: expected names of sites, each once, received {silos!r}")
    if world_size is None and not names:
        raise InvalidJob(
            "world_size: expected how many sites there will be, or silos with their names: a "
            "coordinator could leave sites out of those that it names by itself"
        )
    size = len(names) if world_size is None else world_size
    if type(size) is not int or not LEAST_SITES <= size <= MOST_SITES:
        raise InvalidJob(
            f"world_size: expected a number from {LEAST_SITES} to {MOST_SITES}, received {size!r}"
        )
    if names and len(names) != size:
        raise InvalidJob(f"world_size: {size} sites, and silos names {len(names)}")
    return size, names
