"""Faults of a coordinator's store, and the alerts that a real Prometheus has of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

from tests.chaos.test_postgresql import Database
from tests.chaos.test_s3 import ObjectStore
from tests.coordinator.server.postgresql import running_postgresql
from tests.federation.processes import Federation, federation, wait_until
from tests.federation.prometheus import Alertmanager, Prometheus, alertmanager, prometheus
from tests.federation.test_faults import job, rounds_done

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy/prometheus/rules.yml"
FAILING = ("on-call", "HedgerowStoreFailing")
DISK_BYTES = 256 << 20


@contextmanager
def observed(fed: Federation) -> Iterator[tuple[Prometheus, Alertmanager]]:
    """Start a job, and what looks at its processes; no alert fires before or after."""
    targets = {
        name: [f"127.0.0.1:{fed.ports[process]['metrics_port']}"]
        for name, process in (("coordinator", "coordinator"), ("agents", "agent-s0"))
    }
    with (
        alertmanager(fed.folder / "alertmanager") as teller,
        prometheus(fed.folder / "prometheus", targets, RULES, [teller.address], "5s") as server,
    ):
        job_id = fed.submit(job(rounds=20_000, timeout=600))
        fed.wait(job_id, rounds_done(2))
        assert server.firing() == set()
        yield server, teller
        wait_until(lambda: not server.firing(), 60, "no alert fires")
        told = {(receiver, name) for receiver, name, _ in teller.told}
        wait_until(lambda: {(*one, "resolved") for one in told} <= {*teller.told}, 60, "it is said")
        assert fed.client.cancel(job_id) == "CANCELLED"


def sees_a_failing_store(
    fed: Federation, fault: Callable[[], AbstractContextManager[None]]
) -> None:
    with observed(fed) as (server, teller), fault():
        wait_until(lambda: bool(server.firing()), 60, "an alert fires")
        assert server.query('hedgerow_waiting_seconds{what="its store"}')[0][1] > 0.0
        assert server.firing() == {"HedgerowStoreFailing"}
        wait_until(lambda: teller.told == [(*FAILING, "firing")], 60, "it is said")


@pytest.mark.parametrize("fault", [Database.refused, Database.stopped])
def test_a_database_that_is_away_is_one_alert_and_no_other(
    tmp_path: Path, fault: Callable[[Database], AbstractContextManager[None]]
) -> None:
    with running_postgresql() as url:
        database = Database(url)
        try:
            with federation(tmp_path, database=database.url, lease_seconds=60.0) as fed:
                sees_a_failing_store(fed, lambda: fault(database))
        finally:
            database.close()


@pytest.mark.parametrize("fault", [ObjectStore.refused, ObjectStore.stopped])
def test_an_object_store_that_hangs_or_is_away_is_one_alert_and_no_other(
    tmp_path: Path, fault: Callable[[ObjectStore], AbstractContextManager[None]]
) -> None:
    store = ObjectStore(tmp_path)
    try:
        with federation(
            tmp_path, start=False, artefacts="s3://office/jobs", lease_seconds=60.0
        ) as fed:
            fed.own["coordinator"] = store.environment
            sees_a_failing_store(fed.start(), lambda: fault(store))
    finally:
        store.close()


def test_a_disk_is_an_alert_while_it_fills_and_another_once_it_is_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f'mount -t tmpfs -o size={DISK_BYTES} none {disk} && exec "$@"'
    with federation(
        tmp_path,
        start=False,
        database=f"sqlite:///{disk / 'state.db'}",
        artefacts=str(disk / "a"),
        lease_seconds=60.0,
    ) as fed:
        # A file system of its own, in a namespace of the coordinator's: nothing outlives it.
        fed.start_coordinator(prefix=["unshare", "-rm", "sh", "-c", mount, "-"])
        for silo in fed.silos:
            fed.start_agent(silo)
        root = Path("/proc") / str(fed.processes["coordinator"].pid) / "root"
        filling = root / str(disk / "filling").lstrip("/")
        with observed(fed) as (server, teller):
            filling.write_bytes(bytes(int(DISK_BYTES * 0.92)))
            filled = {"HedgerowDiskFilling"}
            wait_until(lambda: bool(server.firing()), 240, "the disk's alert fires")
            assert server.firing() == filled
            wait_until(lambda: bool(teller.told), 60, "it is said")
            assert {*teller.told} == {("operators", "HedgerowDiskFilling", "firing")}
            with filling.open("ab", buffering=0) as file, suppress(OSError):
                while file.write(bytes(4096)):
                    pass
            both = {*filled, "HedgerowStoreFailing"}
            wait_until(lambda: server.firing() == both, 120, "the store's alert fires")
            wait_until(lambda: (*FAILING, "firing") in teller.told, 60, "it is said")
            filling.unlink()
