"""Sessions of the silo's vault: noted before the vault holds a secret of them, erased at their end.

A job's own session, which has the job's identifier, keeps the key of ciphers: a later attempt needs
it, so it ends when no attempt follows. All other sessions end with their attempt; their names
continue the job's, so that one call also erases what a damaged note does not name any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, cast

import structlog

from hedgerow.boosting.errors import FederationError
from hedgerow.client_agent.state import StateFolder
from hedgerow.client_agent.timing import Stopwatch
from hedgerow.crypto.vault.interface import Vault

log = structlog.get_logger()

Pause = Callable[[], None]
"""Waits a moment before a call to the crypto process is repeated; raises to give up."""


class AttemptVault:
    """A vault that notes each session before the first call with its name, and times the calls.

    Parameters
    ----------
    note : callable
        Called with a session's name; the vault is not called where this raises.
    """

    def __init__(self, vault: Vault, note: Callable[[str], None], stopwatch: Stopwatch) -> None:
        self._vault = vault
        self._note = note
        self._stopwatch = stopwatch
        self.sessions: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._vault, name)

        def noted(*arguments: Any, **named: Any) -> Any:
            session = named.get("session", arguments[0] if arguments else None)
            if isinstance(session, str) and session not in self.sessions:
                self._note(session)
                self.sessions.add(session)
            with self._stopwatch.running():
                return call(*arguments, **named)

        return noted


class VaultSessions:
    """Owns what the jobs of a silo hold in its vault.

    Parameters
    ----------
    state : StateFolder
        Notes sessions durably.
    """

    def __init__(self, state: StateFolder, vault: Callable[[Pause], Vault]) -> None:
        self._state = state
        self._vault = vault
        self._erasing: set[str] = set()

    @contextmanager
    def attempt(self, job_id: str, pause: Pause, stopwatch: Stopwatch) -> Iterator[Vault]:
        """Give an attempt the vault; erase the sessions of the attempt afterwards."""
        vault = self._vault(pause)
        noting = AttemptVault(vault, lambda name: self._state.note_session(job_id, name), stopwatch)
        try:
            yield cast(Vault, noting)
        finally:
            self._erase(job_id, vault, noting.sessions - {job_id})

    def jobs(self, busy: Collection[str]) -> tuple[str, ...]:
        """Return the jobs with secrets in the vault that are neither ``busy`` nor being erased."""
        idle = set(self._state.jobs_with_sessions()) - set(busy) - self._erasing
        return tuple(sorted(idle))

    def end(self, job_id: str) -> None:
        """Erase all secrets of a job, in a thread: the crypto process may be away."""
        self._erasing.add(job_id)
        threading.Thread(
            target=self._end, args=(job_id,), name=f"forget {job_id}", daemon=True
        ).start()

    def _end(self, job_id: str) -> None:
        try:
            vault = self._vault(lambda: None)
            # The job's own name too: with it go sessions that no note names any more.
            self._erase(job_id, vault, {*self._state.sessions(job_id), job_id})
        except FederationError as error:  # the coordinator will name the job again
            log.warning("keys not erased yet", job=job_id, why=str(error))
        finally:
            self._erasing.discard(job_id)

    def _erase(self, job_id: str, vault: Vault, sessions: set[str]) -> None:
        try:
            for session in sorted(sessions):
                vault.forget_session(session)
            self._state.let_go(job_id, sessions)
        except Exception as error:  # they stay noted, and are erased when the job has ended
            log.warning("keys not erased yet", job=job_id, why=type(error).__name__)
