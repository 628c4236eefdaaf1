"""Whose calls were refused, in the log: once a minute each."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog

from hedgerow.services.identity.certificates import IdentityUnusable, subject_of
from hedgerow.services.process.logs import Repeats
from hedgerow.services.process.trail import NOWHERE, Actor, Trail
from hedgerow.services.rpc.doorman import address_of
from hedgerow.services.rpc.errors import reason_of

log = structlog.get_logger()

REFUSALS = ("PERMISSION_DENIED", "UNAUTHENTICATED", "INVALID_ARGUMENT")
"""Codes of calls whose caller is logged."""


class RefusalLog:
    """Logs whose call was refused; an agent that tries again and again does not fill the log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, trail: Trail = NOWHERE) -> None:
        self._repeats, self._trail = Repeats(clock), trail

    def note(
        self, method: str, code: str, caller: dict[str, str], *, on_record: bool = False
    ) -> None:
        """Log a refusal, or count it where the same was logged within the last minute.

        Parameters
        ----------
        caller : dict
            ``role`` and ``name`` by the certificate, or ``peer``, the address; maybe ``reason``.
        on_record : bool
            Whether the audit trail has the call already.
        """
        # A peer comes back from another port.
        who = caller.get("name") or caller.get("peer", "").rpartition(":")[0]
        key = (method, code, caller.get("role", ""), who, caller.get("reason", ""))
        repeats = self._repeats.since(key)
        if repeats is None:
            return
        more = {"repeats": repeats} if repeats else {}
        log.warning("a call was refused", method=method, code=code, **caller, **more)
        if on_record:
            return
        address = address_of(caller.get("peer", ""))[0]
        self._trail.enqueue(
            "call-refused",
            Actor(caller.get("name", ""), caller.get("role", ""), address),
            "failure",
            {"hedgerow.call": method, "error.code": caller.get("reason") or code,
             "hedgerow.repeats": repeats},
        )  # fmt: skip


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
