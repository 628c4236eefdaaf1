"""The agent's outer loop: hold the lease, wait for assignments, run each in a thread of its own."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

import structlog

from hedgerow.boosting.errors import (
    FederationError,
    JobStopped,
    StaleAttempt,
    StateUnwritable,
    Unauthorised,
    Unreachable,
)
from hedgerow.boosting.work import Rates, Work
from hedgerow.client_agent.admission import PreflightAnswers
from hedgerow.client_agent.attempt import ROOM_SECONDS, Attempt
from hedgerow.client_agent.lease import Lease, has_ended
from hedgerow.client_agent.parts import AgentParts
from hedgerow.client_agent.results import LateResults
from hedgerow.crypto.errors import Refusal
from hedgerow.services.process.logs import where
from hedgerow.services.rpc.errors import LeaseLost, NotFound
from hedgerow.services.rpc.federation import (
    Agreement,
    AttemptKey,
    FederationClient,
    Heartbeat,
    Preflight,
)
from hedgerow.services.rpc.metering import MeteredChannel
from hedgerow.services.wire.acceptance import Answer
from hedgerow.services.wire.results import JobResult, Outcome

T = TypeVar("T")

log = structlog.get_logger()

MOST_KNOWN = 64
"""Attempts that the agent reports as its own when it waits for assignments."""
MOST_ASKED = 16
"""Jobs about which the agent asks with one renewal whether they have ended."""


@dataclass
class Agent:
    """A running agent."""

    parts: AgentParts
    once: bool = False
    """Whether to end after the first job."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _attempts: dict[AttemptKey, Attempt] = field(default_factory=dict)
    _threads: dict[AttemptKey, threading.Thread] = field(default_factory=dict)
    _known: dict[AttemptKey, None] = field(default_factory=dict)
    _lease: Lease | None = None
    _ask_again: threading.Event = field(default_factory=threading.Event)
    _ending: threading.Lock = field(default_factory=threading.Lock)
    _unkept: dict[str, str] = field(default_factory=dict)
    _made: tuple[MeteredChannel, FederationClient] | None = None
    _preflights: PreflightAnswers = field(init=False)

    def __post_init__(self) -> None:
        self._preflights = PreflightAnswers(self.parts)

    @property
    def leased(self) -> bool:
        """Whether the agent holds its lease, at a coordinator that answers."""
        return self._lease is not None and self._lease.held

    def run(self) -> None:
        """Work until :meth:`stop`.

        Raises
        ------
        FederationError
            The coordinator refused this agent permanently, with its reason.
        """
        self._lease = lease = Lease(
            self._client,
            self.parts.registration,
            self._stop_attempts,
            self._sign,
            self._jobs_ended,
            self.parts.revoked,
            self._leave,
        )
        lease.start()
        try:
            while not self._stop.is_set():
                lease_id = lease.wait_for_lease(1.0)
                if lease.refused is not None:
                    raise lease.refused
                if lease_id is None:
                    continue
                try:
                    self._poll(lease_id, lease)
                except LeaseLost:
                    lease.lost(lease_id)
                except Unauthorised as error:
                    if not has_ended(error):
                        raise
                    lease.lost(lease_id)
                except Unreachable as error:
                    log.debug("coordinator away", why=str(error))
                    self._stop.wait(random.uniform(0.1, 0.5))  # noqa: S311
                if self.once and self._known and not self._working():
                    return
        finally:
            self._stop_all("the agent is stopping")
            lease.stop()

    def stop(self) -> None:
        """Make :meth:`run` return soon; safe in a signal handler."""
        self._stop.set()

    def _client(self) -> FederationClient:
        parts, channel = self.parts, self.parts.channel()
        if self._made is None or self._made[0] is not channel:  # new certificates
            client = FederationClient(channel, parts.address, parts.ledger.record_call)
            self._made = (channel, client)
        return self._made[1]

    def _leave(self, why: FederationError) -> None:
        if self._made is not None:
            self.parts.leave(self._made[0], why)

    def _poll(self, lease_id: str, lease: Lease) -> None:
        client = self._client()
        self._ask_again.clear()
        assignment = client.await_assignment(
            lease_id, tuple(self._known), lambda: self._stop.is_set() or self._ask_again.is_set()
        )
        if assignment is None or self._stop.is_set():
            return
        if isinstance(assignment, Preflight):
            threading.Thread(
                target=self._preflight, args=(assignment, lease_id), name="preflight", daemon=True
            ).start()
            return
        key = assignment.key
        self._known[key] = None
        for other in list(self._attempts.values()):
            if other.key.job_id == key.job_id:
                other.stop("a newer attempt has started")
        attempt = Attempt(
            self.parts,
            assignment,
            lambda answer: self._answer(assignment.key, answer),
            lambda _: self._result(key.job_id),
        )
        thread = threading.Thread(
            target=self._work, args=(attempt, lease), name=f"job {key.job_id}", daemon=True
        )
        self._attempts[key], self._threads[key] = attempt, thread
        thread.start()
        while len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def _preflight(self, asked: Preflight, lease_id: str) -> None:
        answer = self._preflights.answer(asked)
        if answer is None:
            return
        try:
            self._client().answer_preflight(lease_id, answer)
        except FederationError as failure:
            log.debug("preflight not answered", why=str(failure))

    def _sign(self) -> Heartbeat:
        parts = self.parts
        return Heartbeat(
            self._working(),
            self._idle_jobs(),
            parts.revoked.number,
            parts.crypto_answers(False),
            self._rates(),
        )

    def _rates(self) -> Rates:
        """Return how fast the silo is, once that is measured; the shortest way there and back."""
        rates, took = self.parts.rates(), self._lease and self._lease.round_trip_seconds
        return {**rates, Work.ROUND_TRIP: 1 / max(took, 1e-6)} if rates and took else rates

    def _working(self) -> tuple[AttemptKey, ...]:
        return tuple(key for key, t in list(self._threads.items()) if t.is_alive())

    def wait(self, job_id: str, seconds: float) -> None:
        """Return once no attempt at a job is under way here, after some seconds at the latest."""
        deadline = time.monotonic() + seconds
        for key, thread in list(self._threads.items()):
            if key.job_id == job_id and thread.is_alive():  # one that has not begun has no end
                thread.join(max(deadline - time.monotonic(), 0.0))

    def _idle(self) -> set[str]:
        """Return the jobs that have not ended for the silo, and no attempt is under way."""
        busy = {key.job_id for key in self._working()}
        return set(self.parts.secrets.jobs(busy)) | (self.parts.accepted.open - busy)

    def _idle_jobs(self) -> tuple[str, ...]:
        """Return some of those jobs, to ask about: at random, so that each has its turn."""
        idle = sorted(self._idle())
        return tuple(random.sample(idle, min(len(idle), MOST_ASKED)))

    def _jobs_ended(self, job_ids: tuple[str, ...]) -> None:
        """Bring the models of jobs that have ended, and then forget the jobs, in the background."""
        ended = set(job_ids) & self._idle()
        if ended and self._ending.acquire(blocking=False):
            threading.Thread(
                target=self._end_jobs, args=(ended,), name="ended", daemon=True
            ).start()

    def _end_jobs(self, job_ids: set[str]) -> None:
        try:
            for job_id in job_ids & set(self.parts.secrets.jobs(())):
                self.parts.secrets.end(job_id)
            with suppress(StateUnwritable):  # the coordinator will name them again
                self.parts.accepted.end({one for one in job_ids if self.bring(one)})
        finally:
            self._ending.release()

    def bring(self, job_id: str) -> bool:
        """Keep the model of a job that has ended; False where it is to be retried."""
        late = LateResults(self.parts, self._fetched)
        try:
            known = late.bring(job_id)
        except (FederationError, OSError) as error:  # the coordinator will name the job again
            if self._unkept.get(job_id) != str(error):
                self._unkept[job_id] = str(error)
                log.warning("model not kept yet", job=job_id, why=str(error))
            return False
        self._unkept.pop(job_id, None)
        return known

    def _stop_attempts(self, keys: tuple[AttemptKey, ...]) -> None:
        for key in keys:
            attempt = self._attempts.get(key)
            if attempt is not None:
                attempt.stop("the coordinator has ended this attempt")

    def abandon(self, job_id: str, reason: str) -> None:
        """End the attempts at a job that are under way, and report them as failed."""
        for attempt in list(self._attempts.values()):
            if attempt.key.job_id == job_id:
                attempt.abandoned = reason
                attempt.stop(reason)

    def _stop_all(self, reason: str) -> None:
        self._stop.set()
        for attempt in list(self._attempts.values()):
            attempt.stop(reason)
        deadline = time.monotonic() + 5.0
        for thread in list(self._threads.values()):
            thread.join(max(deadline - time.monotonic(), 0.0))

    def _work(self, attempt: Attempt, lease: Lease) -> None:
        key = attempt.key
        own = log.bind(job=key.job_id, attempt=key.attempt)
        error, full, unfinished = "", False, False
        try:
            attempt.run()
        except StateUnwritable as failure:
            error, full = str(failure), True
            own.error("declined for now", why=error)
        except (JobStopped, StaleAttempt) as stopped:
            own.info("stopped", why=str(stopped))
            error = attempt.abandoned
            unfinished = self._stop.is_set()  # that the lease is given back says so
        except (FederationError, Refusal) as failure:
            error = str(failure)
            # A cause of our own may name columns: it is for this silo's log alone.
            mine = failure.__cause__ if isinstance(failure.__cause__, FederationError) else failure
            own.error("failed", why=str(mine))
        except MemoryError:
            error = "out of memory"
            own.error("failed", why=error)
        except Exception as failure:  # a defect in one attempt must not end the agent
            # The text of a foreign exception may hold values: only its type leaves the silo.
            error = f"internal error of the agent: {type(failure).__name__}"
            # Nor are logs for the silo's eyes only: they often go to a collector.
            own.error("failed", why=error, where=where(failure))
        try:
            try:
                self._report(lease, key, error, attempt, unfinished=unfinished)
            except FederationError as failure:
                log.debug("outcome not reported", job=key.job_id, why=str(failure))
            if full:  # also where that was not reported: nobody else forgets the attempt
                self._wait_for_room(attempt)
        finally:
            self.parts.ledger.settle(key.job_id)
            self.parts.memory.sweep()
            if self._attempts.get(key) is attempt:  # else it has been assigned again
                del self._attempts[key], self._threads[key]

    def _report(
        self, lease: Lease, key: AttemptKey, error: str, attempt: Attempt, *, unfinished: bool
    ) -> None:
        client, lease_id = self._client(), lease.lease_id
        if lease_id is not None and not unfinished:
            outcome = Outcome(error) if error else attempt.outcome
            sent = self.parts.ledger.sent(key.job_id)
            client.report(lease_id, key, replace(outcome, sent=sent))

    def _wait_for_room(self, attempt: Attempt) -> None:
        """Wait for room on the disk, then forget the attempt: the coordinator assigns it again."""
        while not attempt.stopped and not self._stop.wait(ROOM_SECONDS):
            if self.parts.state.has_room():
                log.info("there is room again", job=attempt.key.job_id)
                self._known.pop(attempt.key, None)
                self._ask_again.set()
                return

    def _result(self, job_id: str) -> JobResult | None:
        """Do :meth:`_fetched`; None where the job has no result, too."""
        try:
            return self._fetched(job_id)
        except NotFound:
            return None

    def _fetched(self, job_id: str) -> JobResult | None:
        """Wait for a job's result, across restarts of the coordinator; None where we stop.

        Raises
        ------
        NotFound
            The job has ended without one, or is deleted.
        """
        return self.ask(lambda client, lease_id: client.fetch_result(lease_id, job_id))

    def _answer(self, key: AttemptKey, answer: Answer) -> Agreement:
        """Send the answer until there is an agreement, across restarts of the coordinator."""
        found = self.ask(lambda client, lease_id: client.accept(lease_id, key, answer))
        if found is None:
            raise JobStopped("the agent is stopping")
        return found

    def ask(
        self, ask: Callable[[FederationClient, str], T | None], deadline: float = math.inf
    ) -> T | None:
        """Call with the lease until there is an answer, across restarts of the coordinator.

        Returns
        -------
        object or None
            None where the agent stops, or time is over.
        """
        while not self._stop.is_set() and time.monotonic() < deadline:
            lease = self._lease
            lease_id = None if lease is None else lease.wait_for_lease(1.0)
            if lease_id is not None:
                try:
                    found = ask(self._client(), lease_id)
                except (Unreachable, LeaseLost) as error:
                    log.debug("no answer yet", why=str(error))
                else:
                    if found is not None:
                        return found
            self._stop.wait(0.1)  # it may answer at once
        return None
