"""Of two coordinators on one PostgreSQL the active one is killed: the other finishes its job."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.containers.compose import docker, eventually, project
from tests.containers.test_faults import ROUNDS, digest

pytestmark = [pytest.mark.timeout(600), pytest.mark.quick]
JOB = f"""
name = "taken-over"
strategy = "histogram"
label = "label"
task = "binary"
seed = 7
min_silos = 3
[histogram]
rounds = {ROUNDS}
secure = true
[booster]
max_depth = 3
max_bin = 32
"""
BOTH = ("coordinator", "coordinator-standby")


def test_the_other_coordinator_takes_over_to_the_same_model(tmp_path: Path) -> None:
    silos = [f"{part}-{k}" for part in ("agent", "crypto") for k in range(3)]
    with project(tmp_path, standby=True) as made:
        made.up(*BOTH, *silos)

        def active() -> list[str]:
            return [name for name in BOTH if '"event": "active"' in made.log(name)]

        eventually(lambda: len(active()) == 1, 90, "one is active")
        (first,) = active()
        whole = digest(made, made.end(made.submit(JOB), 120))
        job_id = made.submit(JOB)
        done = len(made.wait(job_id, lambda view: len(view.rounds) >= 4, 60).rounds)
        docker("kill", "--signal", "KILL", made.container(first))
        began = time.monotonic()
        made.wait(job_id, lambda view: len(view.rounds) > done + 1, 60)
        print(f"next round after {time.monotonic() - began:.1f} s")
        view = made.end(job_id, 120)
        assert (digest(made, view), view.attempt) == (whole, 2)
        assert set(active()) == set(BOTH)
        stood_by = made.log(first).count('"event": "standing by"')
        docker("start", made.container(first))
        eventually(
            lambda: made.log(first).count('"event": "standing by"') > stood_by, 60, "it stands by"
        )
