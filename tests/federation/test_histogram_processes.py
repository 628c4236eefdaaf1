"""Histogram boosting with secure sums between real processes that are killed."""

from __future__ import annotations

from pathlib import Path

from tests.federation.processes import federation
from tests.federation.test_faults import rounds_done, succeeded

JOB = """
name = "histogram"
strategy = "histogram"
seed = 3
min_silos = 3
step_timeout_seconds = 60
start_timeout_seconds = 30
silos = ["s0", "s1", "s2"]
metrics = ["logloss"]
[histogram]
rounds = 8
sampling = "mvs"
[booster]
max_depth = 3
max_bin = 32
"""


def test_a_killed_coordinator_goes_on_from_the_last_round_to_the_identical_model(
    tmp_path: Path,
) -> None:
    with federation(tmp_path) as fed:
        whole = fed.submit(JOB)
        succeeded(fed.end(whole, 180))
        job_id = fed.submit(JOB)
        fed.wait(job_id, rounds_done(2), 120)
        fed.kill("coordinator")
        fed.start_coordinator()
        view = succeeded(fed.end(job_id, 180))
        assert [r.round for r in view.rounds] == list(range(8))
        assert fed.client.download(job_id)[1] == fed.client.download(whole)[1]
