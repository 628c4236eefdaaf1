"""Where a silo's time goes in a job: training, waiting, cryptography, sending, the ledger."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any, cast

from hedgerow.crypto.vault import Vault
from hedgerow.services.rpc.exchange import LinkTimes


class TimedVault:
    """A vault whose calls are timed; passes everything on.

    Parameters
    ----------
    vault : Vault
    note : callable
        Called with the name of a session before the vault first has anything of it.
    seconds : float
        Time spent in it so far; calls of several threads add up.
    """

    def __init__(self, vault: Vault, note: Callable[[str], None] = lambda session: None) -> None:
        self._vault = vault
        self._note = note
        self._noted: set[str] = set()
        self._lock = threading.Lock()
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._vault, name)
        return self._timed(found) if callable(found) else found

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            session = named.get("session", arguments[0] if arguments else None)
            if isinstance(session, str) and session not in self._noted:
                self._note(session)
                self._noted.add(session)
            began = time.monotonic()
            try:
                return call(*arguments, **named)
            finally:
                with self._lock:
                    self.seconds += time.monotonic() - began

        return timed

    @property
    def sessions(self) -> frozenset[str]:
        """Names under which calls so far made or used secrets."""
        return frozenset(self._noted)

    def as_vault(self) -> Vault:
        """Return this as what it stands in for."""
        return cast(Vault, self)


def summary(attempt: int, total: float, link: LinkTimes, crypto: float) -> bytes:
    """Return ``times.json``: seconds of a silo's half by what they went into; see file-formats.md.

    Parameters
    ----------
    total : float
        Seconds from the agreement to the end of the silo's half.
    link : LinkTimes
    crypto : float
        Seconds in the vault: keys, masks, encryption.
    """
    training = max(total - link.waiting - link.sending - link.recording - crypto, 0.0)
    split = {
        "train": training,
        "wait": link.waiting,
        "encrypt": crypto,
        "send": link.sending,
        "ledger": link.recording,
    }
    told = {"schema": 1, "attempt": attempt, "seconds": round(total, 6)}
    told |= {name: round(seconds, 6) for name, seconds in split.items()}
    return json.dumps(told, indent=1).encode()
