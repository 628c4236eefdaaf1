"""Keys of a job are there as long as the job may go on, and no longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.federation.processes import federation, wait_until
from tests.federation.test_secureboost_faults import JOB, check_result, restart_coordinator
from tests.federation.test_secureboost_faults import federation as vertical_federation
from tests.federation.test_secureboost_faults import rounds_done as rounds_reached

pytestmark = pytest.mark.process

SECURE = """
strategy = "histogram"
min_silos = 3
[histogram]
rounds = 4
[booster]
max_depth = 2
max_bin = 8
"""


def test_private_keys_outlive_a_coordinator_that_is_killed_and_end_with_the_job(
    tmp_path: Path,
) -> None:
    with vertical_federation(tmp_path, crypto=True) as fed:

        def keys() -> dict[str, bytes]:
            return {f.name: f.read_bytes() for f in (tmp_path / "keys-guest").rglob("*.key")}

        before = set(keys())
        job_id = fed.submit(JOB.format(patience=60))
        rounds_reached(fed, job_id, 2)
        of_job = {name: data for name, data in keys().items() if name not in before}
        assert len(of_job) == 2, "the job's key, and the secret that all the silo's jobs draw from"
        restart_coordinator(fed)
        rounds_reached(fed, job_id, 3)
        assert of_job.items() <= keys().items(), "the job goes on with the same key"
        check_result(fed, job_id)
        wait_until(lambda: len(of_job.keys() & keys().keys()) == 1, 30, "the key is erased")
        for silo in fed.silos:
            noted = tmp_path / f"state-agent-{silo}/jobs/{job_id}/memory/sessions"
            wait_until(lambda noted=noted: not noted.exists(), 30, "nothing is noted")  # type: ignore[misc]


def test_no_session_of_masks_is_left_when_a_job_is_over_or_cancelled(tmp_path: Path) -> None:
    with federation(tmp_path) as fed:
        for cancelled in (False, True):
            text = SECURE.replace("rounds = 4", "rounds = 400") if cancelled else SECURE
            job_id = fed.submit(text)
            noted = [
                tmp_path / f"state-agent-{silo}/jobs/{job_id}/memory/sessions" for silo in fed.silos
            ]
            wait_until(lambda noted=noted: all(n.exists() for n in noted), 60, "masks")  # type: ignore[misc]
            if cancelled:
                fed.client.cancel(job_id)
            assert fed.end(job_id).state == ("CANCELLED" if cancelled else "SUCCEEDED")
            wait_until(lambda noted=noted: not any(n.exists() for n in noted), 30, "all erased")  # type: ignore[misc]
