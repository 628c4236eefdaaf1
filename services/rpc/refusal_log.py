"""Whose calls were refused, in the log: once a minute each."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog

from hedgerow.services.identity.certificates import IdentityUnusable, subject_of
from hedgerow.services.rpc.errors import reason_of

log = structlog.get_logger()

REFUSALS = ("PERMISSION_DENIED", "UNAUTHENTICATED", "INVALID_ARGUMENT")
"""Codes of calls whose caller is logged."""
REFUSAL_SECONDS = 60.0
"""How long a caller's repeated refusals are counted before they are logged again."""
MAX_REFUSED = 1024
"""Most kinds of refusals that are counted; the one that is longest ago is forgotten."""


class RefusalLog:
    """Logs whose call was refused; an agent that tries again and again does not fill the log.

    Parameters
    ----------
    clock : callable
        Seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[tuple[str, ...], tuple[float, int]] = {}

    def note(self, method: str, code: str, caller: dict[str, str]) -> None:
        """Log a refusal, or count it where the same was logged within the last minute.

        Parameters
        ----------
        caller : dict
            ``role`` and ``name`` by the certificate, or ``peer``, the address; maybe ``reason``.
        """
        # A peer comes back from another port.
        who = caller.get("name") or caller.get("peer", "").rpartition(":")[0]
        key = (method, code, caller.get("role", ""), who, caller.get("reason", ""))
        now = self._clock()
        since, repeats = self._seen.pop(key, (-REFUSAL_SECONDS, 0))
        if now - since < REFUSAL_SECONDS:
            self._seen[key] = (since, repeats + 1)
            return
        self._seen[key] = (now, 0)
        if len(self._seen) > MAX_REFUSED:
            del self._seen[next(iter(self._seen))]
        more = {"repeats": repeats} if repeats else {}
        log.warning("a call was refused", method=method, code=code, **caller, **more)


def caller_of(context: Any) -> dict[str, str]:
    """Return who called, by the certificate, and which of our errors ended the call."""
    found = {"peer": str(context.peer())}
    chain = context.auth_context().get("x509_pem_cert")
    if chain:
        # The TLS handshake has verified the chain; whether it names anybody is another question.
        with suppress(IdentityUnusable):
            subject = subject_of(chain[0])
            found = {"role": str(subject.role), "name": subject.name}
    reason = reason_of(context.trailing_metadata())
    return found | ({"reason": reason} if reason else {})
