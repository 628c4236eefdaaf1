"""A coordinator that is killed after the last checkpoint, and before it has stored the result."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from hedgerow.boosting.errors import JobStopped, ModelRejected
from hedgerow.boosting.tables import for_job
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from tests.boosting.sums.federation_of_sums import Authority, TestIdentity
from tests.chaos.work import job, tables
from tests.federation.memory import Outcome, run_in_memory

OPTIONS = {
    "interval": "interval = 0.5\nvalidation = 0.3\n",
    "blind": "blind_coordinator = true\n",
    "in clear": "secure = false\n",
}
"""Of a histogram job: what silos know of its model is then another thing."""


class _Job:
    """A job whose coordinator may begin again from its last checkpoint."""

    def __init__(self, folder: Path, name: str, options: str = "") -> None:
        tables(folder)
        text = job(name).replace(f"[{name}]\n", f"[{name}]\n{options}")
        self.opened = opened = job_wire.decode(job_file.parse(text))
        self.data = {
            silo: for_job(
                pq.read_table(folder / f"{silo}.parquet"), opened, silo,
                party=silo if opened.vertical else None,
            )
            for silo in opened.silos
        }  # fmt: skip
        authority = Authority()
        identities = {silo: TestIdentity(authority, silo) for silo in self.data}
        memories: dict[str, dict[str, bytes]] = {silo: {} for silo in self.data}
        self.run = partial(
            run_in_memory, opened, self.data, identities=identities.__getitem__, memories=memories
        )

    def again(self, whole: Outcome, **other: Any) -> Outcome:
        """Run it once more from the checkpoint after the last round."""
        last = {"checkpoint": whole.rounds[-1].checkpoint, "first_round": len(whole.rounds)}
        return self.run(**{**last, "attempt": 2, **other})


def _goes_on(work: _Job) -> None:
    whole = work.run()
    again = work.again(whole)
    assert again.error is None
    assert again.rounds == []
    assert {type(error) for error in again.errors.values()} <= {JobStopped}
    kept = {silo: part for silo, part in whole.kept.items() if part is not None}
    assert {silo: again.kept.get(silo) for silo in kept} == kept
    assert again.checks.keys() == whole.checks.keys()  # each has taken the result as its own


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
    _goes_on(_Job(tmp_path, name))


@pytest.mark.parametrize("option", OPTIONS)
def test_silos_of_a_histogram_job_know_its_model_again(tmp_path: Path, option: str) -> None:
    _goes_on(_Job(tmp_path, "histogram", OPTIONS[option]))


def test_silos_end_without_the_sum_of_covers_that_is_stored(tmp_path: Path) -> None:
    _goes_on(_Job(tmp_path, "bagging", 'scrub = "stats"\n'))


def test_a_model_that_no_silo_has_checked_is_no_silos_own(tmp_path: Path) -> None:
    # A coordinator that says that it was restarted, and has another model than the silos.
    work = _Job(tmp_path, "histogram")
    whole = work.run()
    other = _Job(tmp_path, "histogram", "validation = 0.3\n").run()
    lied = work.again(whole, checkpoint=other.rounds[-1].checkpoint)
    assert not lied.checks
    assert {type(error) for error in lied.errors.values()} == {ModelRejected}
    empty: dict[str, dict[str, bytes]] = {silo: {} for silo in work.data}
    unknown = work.again(whole, memories=empty)
    assert not unknown.checks
    assert not unknown.errors
