"""Where a silo's time went is told by what it went into."""

from __future__ import annotations

import json
import time

import pytest

from hedgerow.client_agent.timing import TimedVault, summary
from hedgerow.crypto.errors import VaultRefused
from hedgerow.crypto.local_vault import LocalVault
from hedgerow.services.rpc.exchange import LinkTimes


def test_the_parts_add_up_to_the_whole() -> None:
    told = json.loads(summary(2, 10.0, LinkTimes(3.0, 1.0, 0.25), 0.75))
    assert told == {
        "schema": 1, "attempt": 2, "seconds": 10.0,
        "train": 5.0, "wait": 3.0, "encrypt": 0.75, "send": 1.0, "ledger": 0.25,
    }  # fmt: skip


def test_a_timed_vault_does_what_the_vault_does_and_counts_its_seconds() -> None:
    timed = TimedVault(LocalVault())
    vault = timed.as_vault()
    began = time.monotonic()
    assert len(vault.create_mask_key("session")) == 32
    assert 0.0 < timed.seconds <= time.monotonic() - began
    before = timed.seconds
    with pytest.raises(VaultRefused):
        vault.seal_shares("another", 0, 1, ("a", "b", "c"))
    assert timed.seconds > before
