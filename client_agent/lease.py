"""The silo's lease: a thread registers, renews it, and learns which attempts to stop."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import structlog

from hedgerow.boosting.errors import FederationError, Unauthorised, Unreachable
from hedgerow.client_agent.ledger import LedgerFull
from hedgerow.services.identity.certificates import IdentityUnusable
from hedgerow.services.identity.revocation import RevokedCertificates
from hedgerow.services.process.logs import defect
from hedgerow.services.rpc.errors import LeaseHeld, LeaseLost
from hedgerow.services.rpc.federation import AttemptKey, FederationClient, Heartbeat, Registration

log = structlog.get_logger()

PATIENCE_LEASES = 3.0
"""How many lease times an agent waits for another agent of its name to go."""
PROBE_SECONDS = 10.0
"""How long a coordinator that was there is away at least before an agent looks why."""


class Lease:
    """The lease of one agent.

    Parameters
    ----------
    stop_attempts : callable
        Called with the attempts that the coordinator stops.
    sign : callable
        What the agent tells of itself with each renewal.
    jobs_ended : callable
        Called with those of them that no attempt will continue; returns at once.
    revoked : RevokedCertificates
        Gets the lists that the coordinator has, and the CA has signed.
    leave : callable
        Called when the coordinator cannot be reached: another one may be active.
    """

    def __init__(
        self,
        client: Callable[[], FederationClient],
        registration: Registration,
        stop_attempts: Callable[[tuple[AttemptKey, ...]], None],
        sign: Callable[[], Heartbeat],
        jobs_ended: Callable[[tuple[str, ...]], None],
        revoked: RevokedCertificates,
        leave: Callable[[FederationError], None] = lambda error: None,
    ) -> None:
        self._revoked, self._leave = revoked, leave
        self._client = client
        self._registration = registration
        self._stop_attempts = stop_attempts
        self._sign = sign
        self._jobs_ended = jobs_ended
        self._lease: str | None = None
        self._seconds = 6.0
        self.round_trip_seconds: float | None = None
        self._granted = threading.Condition()
        self._ending, self._wake = threading.Event(), threading.Event()
        self._held_since: float | None = None
        self._away_since: float | None = None
        self._explained = self._known = self._ended = False
        self._patience = PROBE_SECONDS
        self.refused: FederationError | None = None
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    @property
    def lease_id(self) -> str | None:
        """The lease, or None while there is none."""
        return self._lease

    @property
    def held(self) -> bool:
        """Whether there is a lease, at a coordinator that answers."""
        return self._lease is not None and self._away_since is None

    def start(self) -> None:
        """Start the thread that keeps the lease."""
        self._thread.start()

    def wait_for_lease(self, timeout_seconds: float) -> str | None:
        """Return the lease, waiting for it."""
        with self._granted:
            if self._lease is None and self.refused is None:
                self._granted.wait(timeout_seconds)
            return self._lease

    def lost(self, lease_id: str) -> None:
        """Say that the coordinator does not know this lease any more."""
        with self._granted:
            if self._lease == lease_id:
                self._lease = None
                self._wake.set()

    def stop(self) -> None:
        """Give the lease back and end."""
        self._ending.set()
        self._wake.set()
        self._thread.join(3.0)
        lease, self._lease = self._lease, None
        if lease is not None:
            try:
                self._client().release(lease)
            except FederationError as error:
                log.debug("lease not released", why=str(error))

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                pause = self._renew() if self._lease is not None else self._register()
                self._away_since, self._ended = None, False
            except LeaseLost:
                with self._granted:
                    self._lease = None
                pause = 0.05
            except (Unreachable, LedgerFull) as error:
                pause = self._wait_for_coordinator(error)
                if isinstance(error, Unreachable):  # not for this agent's own full disk
                    self._leave(error)
            except LeaseHeld as error:
                pause = self._wait_for_other(error)
            except FederationError as error:
                if not has_ended(error):
                    self._refuse(error)
                    return
                pause = self._wait_for_certificate(error)
            except Exception as error:  # a defect must not end the lease, and with it the agent
                log.error("lease not renewed", **defect(error))
                pause = 1.0
            self._wake.wait(pause)
            self._wake.clear()

    def _wait_for_coordinator(self, error: Unreachable | LedgerFull) -> float:
        """Log once that there is no lease, and once why; return how long to wait for one."""
        now, first = time.monotonic(), self._away_since is None
        since = self._away_since = self._away_since or now
        if first:
            self._explained = isinstance(error, LedgerFull)
            self._patience = random.uniform(PROBE_SECONDS, 2.0 * PROBE_SECONDS)  # noqa: S311
        # The agents of a coordinator that restarts would all knock at once, only to see why.
        late = not self._known or now - since >= self._patience
        probes = late and not self._explained and not isinstance(error, LedgerFull)
        if first or probes:
            said = "not registered" if isinstance(error, LedgerFull) else "coordinator away"
            log.warning(said, why=self._why(error) if probes else str(error))
        self._explained = self._explained or probes
        return random.uniform(0.2, 1.0)  # noqa: S311

    def _why(self, error: FederationError) -> str:
        with suppress(FederationError, OSError):  # of files that are being replaced
            return self._client().why_not() or str(error)
        return str(error)

    def _register(self) -> float:
        grant = self._client().register(self._registration)
        self._held_since, self._known = None, True
        self._seconds = grant.lease_seconds
        with self._granted:
            self._lease = grant.lease_id
            self._granted.notify_all()
        log.info("registered", coordinator_version=grant.version)
        return grant.lease_seconds / 4.0

    def _renew(self) -> float:
        lease = self._lease
        assert lease is not None
        sign, began = self._sign(), time.monotonic()
        told = self._client().renew(lease, sign)
        took = time.monotonic() - began
        self.round_trip_seconds = min(self.round_trip_seconds or took, took)
        stop, ended = told.stop, told.ended
        self._note_revoked(told.revoked)
        if stop:
            self._stop_attempts(stop)
        if ended:
            self._jobs_ended(ended)
        pause = min(told.seconds or min(2.0, self._seconds / 4.0), self._seconds / 3.0)
        return random.uniform(0.75 * pause, pause)  # noqa: S311 - that not all come at once

    def _note_revoked(self, data: bytes) -> None:
        """Keep a list that the coordinator brought, and look for one that the silo was given."""
        self._revoked.look()
        if not data:
            return
        try:
            self._revoked.take(data)
        except IdentityUnusable as error:
            log.warning("list of revoked certificates refused", why=str(error))

    def _wait_for_certificate(self, error: FederationError) -> float:
        """Log once that the certificate has ended; a renewed one makes another channel.

        The agent stays, and so do its metrics, by which its operator is told.
        """
        with self._granted:
            self._lease = None
        self._away_since = self._away_since or time.monotonic()
        if not self._ended:
            self._ended = True
            log.error("certificate ended", why=str(error))
        return 1.0

    def _wait_for_other(self, error: LeaseHeld) -> float:
        now = time.monotonic()
        if self._held_since is None:
            self._held_since = now
            log.warning("waiting for the lease", why=str(error))
        if now - self._held_since > PATIENCE_LEASES * self._seconds:
            self._refuse(error)
            self._ending.set()
        return 0.5

    def _refuse(self, error: FederationError) -> None:
        with self._granted:
            self.refused = error
            self._granted.notify_all()


def has_ended(error: FederationError) -> bool:
    """Return whether a call was refused because the caller's certificate has ended."""
    return isinstance(error, Unauthorised) and "ended" in error.facts
