"""A coordinator that is killed after the last checkpoint, and before it has stored the result."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from hedgerow.boosting.errors import JobStopped
from hedgerow.boosting.tables import for_job
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from tests.boosting.sums.federation_of_sums import Authority, TestIdentity
from tests.chaos.work import job, tables
from tests.federation.memory import run_in_memory


@pytest.mark.parametrize(
    "name",
    [
        "bagging",
        "histogram",
        "fedga",
        "fedxgbllr",
        "dp_tree",
        "private_boost",
        "secureboost",
        "simfl",
        "explore",
    ],
)
def test_nothing_is_asked_again_after_the_last_checkpoint(tmp_path: Path, name: str) -> None:
    tables(tmp_path)
    opened = job_wire.decode(job_file.parse(job(name)))
    data = {
        silo: for_job(
            pq.read_table(tmp_path / f"{silo}.parquet"), opened, silo,
            party=silo if opened.vertical else None,
        )
        for silo in opened.silos
    }  # fmt: skip
    authority = Authority()
    identities = {silo: TestIdentity(authority, silo) for silo in data}
    memories: dict[str, dict[str, bytes]] = {silo: {} for silo in data}
    whole = run_in_memory(opened, data, identities=identities.__getitem__, memories=memories)
    again = run_in_memory(
        opened, data, identities=identities.__getitem__, memories=memories,
        checkpoint=whole.rounds[-1].checkpoint, first_round=len(whole.rounds), attempt=2,
    )  # fmt: skip
    assert again.error is None
    assert again.rounds == []
    assert {type(error) for error in again.errors.values()} <= {JobStopped}
    kept = {silo: part for silo, part in whole.kept.items() if part is not None}
    assert {silo: again.kept.get(silo) for silo in kept} == kept
