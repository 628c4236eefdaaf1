"""Faults of a coordinator's store, and the alerts that a real Prometheus has of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.chaos.test_postgresql import Database
from tests.coordinator.server.postgresql import running_postgresql
from tests.federation.processes import federation, wait_until
from tests.federation.prometheus import alertmanager, prometheus
from tests.federation.test_faults import job, rounds_done

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy/prometheus/rules.yml"


@pytest.mark.slow
@pytest.mark.parametrize("fault", [Database.refused, Database.stopped])
def test_a_database_that_is_away_is_one_alert_and_no_other(
    tmp_path: Path, fault: Callable[[Database], AbstractContextManager[None]]
) -> None:
    with running_postgresql() as url:
        database = Database(url)
        try:
            with federation(tmp_path, database=database.url, lease_seconds=60.0) as fed:
                targets = {
                    name: [f"127.0.0.1:{fed.ports[process]['metrics_port']}"]
                    for name, process in (("coordinator", "coordinator"), ("agents", "agent-s0"))
                }
                with (
                    alertmanager(tmp_path / "alertmanager") as teller,
                    prometheus(tmp_path / "prometheus", targets, RULES, [teller.address]) as server,
                ):
                    job_id = fed.submit(job(rounds=2000, timeout=600))
                    fed.wait(job_id, rounds_done(2))
                    assert server.firing() == set()
                    waits = 'hedgerow_waiting_seconds{what="its store"}'
                    with fault(database):
                        wait_until(server.firing, 60, "an alert fires")
                        assert server.query(waits)[0][1] > 0.0
                        assert server.firing() == {"HedgerowStoreFailing"}
                        told = ("on-call", "HedgerowStoreFailing")
                        wait_until(lambda: teller.told == [(*told, "firing")], 60, "it is said")
                    wait_until(lambda: not server.firing(), 60, "no alert fires")
                    wait_until(lambda: (*told, "resolved") in teller.told, 60, "its end is said")
                    fed.client.cancel(job_id)
        finally:
            database.close()
