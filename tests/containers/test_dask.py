"""`docker compose --profile dask up`: a silo's rows on its cluster, the model of one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.containers.compose import ROOT, Project, docker, eventually, project
from tests.containers.test_faults import JOB, digest

pytestmark = [pytest.mark.timeout(1200), pytest.mark.quick]

CLUSTER = ("dask-scheduler", "dask-worker")
COUNT = """
import distributed
client = distributed.Client("tcp://localhost:8786")
print(client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.transition_counter))
"""


def tasks_done(made: Project) -> int:
    """Return how often a task of the cluster has changed its state."""
    command = ("exec", made.container("dask-scheduler"), "python3", "-c", COUNT)
    return int(docker(*command).splitlines()[-1])


def test_the_model_of_a_job_is_that_without_the_cluster_also_when_a_worker_is_killed(
    tmp_path: Path,
) -> None:
    with project(tmp_path) as made:
        made.up(
            *(f"{part}-{k}" for part in ("agent", "crypto") for k in range(3)),
            "coordinator",
            "prometheus",
        )
        eventually(made.healthy, 120, "the federation is healthy")
        alone = made.end(made.submit(JOB), 200)
        made.compose(
            *("--profile", "dask", "--env-file", str(ROOT / "deploy/compose/dask.env")),
            *("up", "--detach", "--no-build", "--pull", "never", "--no-deps", *CLUSTER, "agent-0"),
        )
        eventually(made.healthy, 120, "the agent with a cluster is healthy")
        before = tasks_done(made)
        job = made.submit(JOB)
        made.wait(job, lambda view: len(view.rounds) >= 4, 120)
        docker("kill", made.container("dask-worker"))
        assert digest(made, made.end(job, 200)) == digest(made, alone)
        assert tasks_done(made) > before
