"""How many rows somebody may ask about, and the ledger's lines of them.

A line is on disk before the first of its rows is sent. It is for a block of rows, so that a
request does not wait for the disk; the bytes and the digest in it are of what was sent since the
line before. A block that was not used up when the process ends counts as used.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from hedgerow.boosting.errors import LimitReached
from hedgerow.client_agent.config import RowLimits
from hedgerow.client_agent.ledger import Sent, SiloLedger

LEAST_BLOCK, MOST_BLOCK = 256, 65_536
"""Rows of a line."""


def renew(
    meters: dict[str, RowMeter],
    ledger: SiloLedger,
    kind: str,
    reveals: str,
    limits: Mapping[str, RowLimits],
) -> None:
    """Give peers whose limits have changed another meter, in place of theirs."""
    for peer, own in limits.items():
        earlier = meters.get(peer)
        if earlier is None or earlier.limits != own:
            meters[peer] = RowMeter(ledger, peer, kind, reveals, own)
            if earlier is not None:
                earlier.close()


class RowMeter:
    """Counts the rows that one peer asks about.

    Parameters
    ----------
    peer : str
        Who asks, or who is asked.
    kind : str
        What is sent, as the ledger names it.
    reveals : str
        What that tells the peer.
    """

    def __init__(
        self, ledger: SiloLedger, peer: str, kind: str, reveals: str, limits: RowLimits
    ) -> None:
        self._ledger, self._peer, self._kind, self._reveals = ledger, peer, kind, reveals
        self.limits = limits
        self._lock = threading.Lock()
        self._tokens, self._filled = float(limits.rows_per_minute), time.monotonic()
        self._left: dict[str, int] = {}
        self._block: dict[str, int] = {}
        self._sent: dict[str, Sent] = {}

    def admit(self, model: str, n_rows: int) -> None:
        """Count rows, and make their line durable where the last one's are used up.

        Raises
        ------
        LimitReached
            More rows than the limits allow; says which.
        LedgerFull
            The line cannot be written: the rows must not be sent.
        """
        limits = self.limits
        if n_rows > limits.max_rows:
            raise LimitReached(f"max_rows: {n_rows} rows, {self._peer} has {limits.max_rows}")
        with self._lock:
            now = time.monotonic()
            self._tokens = min(
                float(limits.rows_per_minute),
                self._tokens + (now - self._filled) * limits.rows_per_minute / 60.0,
            )
            self._filled = now
            if n_rows > self._tokens:
                raise LimitReached(
                    f"rows_per_minute: {self._peer} has {limits.rows_per_minute}", seconds="60"
                )
            if n_rows > self._left.get(model, 0):
                self._extend(model, n_rows)
            self._left[model] -= n_rows
            self._tokens -= n_rows

    def _extend(self, model: str, n_rows: int) -> None:
        day = self._ledger.rows_of_day(self._peer, self._kind, time.time())
        most = self.limits.rows_per_day - day
        left = self._left.get(model, 0)
        if n_rows - left > most:
            raise LimitReached(
                f"rows_per_day: {self._peer} has {self.limits.rows_per_day}", seconds="3600"
            )
        block = min(max(LEAST_BLOCK, 2 * self._block.get(model, 0)), MOST_BLOCK)
        block = min(max(block, n_rows - left), most)
        self._line(model, block)
        self._block[model], self._left[model] = block, left + block

    def _line(self, model: str, n_rows: int) -> None:
        self._ledger.record_rows(
            peer=self._peer,
            model=model,
            kind=self._kind,
            n_rows=n_rows,
            sent=self._sent.pop(model, Sent()),
            reveals=self._reveals,
        )

    def sent(self, model: str, data: bytes) -> None:
        """Note what is sent of rows that were admitted."""
        with self._lock:
            self._sent.setdefault(model, Sent()).add(data)

    def close(self) -> None:
        """Write the lines of what was sent since the last ones."""
        with self._lock:
            for model in list(self._sent):
                self._line(model, 0)
