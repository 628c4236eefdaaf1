"""How often a coordinator that stands by looks; tests/chaos has two of them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from hedgerow.coordinator.server.artefacts import StorageFailed
from hedgerow.coordinator.server.standby import LOOK_SECONDS, ActiveLease, LeaseRecord


def test_looks_at_a_database_that_is_away_for_long_are_no_more_frequent(tmp_path: Path) -> None:
    """They were ten a second, each with a line in the log."""
    (tmp_path / "state.db").write_bytes(b"no database" * 100)
    lease = ActiveLease(f"sqlite:///{tmp_path / 'state.db'}")
    lease._seen = LeaseRecord(1, 1, "elsewhere|1"), -math.inf
    with pytest.raises(StorageFailed):
        lease.take()
    assert lease.pause == LOOK_SECONDS
