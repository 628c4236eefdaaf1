"""Two coordinators on one database: one is active, the other takes over, to the same model."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from hedgerow.boosting.errors import FederationError
from hedgerow.boosting.exchange import Silo
from hedgerow.coordinator.operator.library.clients import client_for
from hedgerow.coordinator.server import standby
from hedgerow.coordinator.server.artefacts import Artefacts, StorageFailed
from hedgerow.coordinator.server.backup import back_up, restore
from hedgerow.coordinator.server.database import LEASE, engine_of
from hedgerow.coordinator.server.results import provenance
from hedgerow.coordinator.server.standby import ActiveLease
from hedgerow.coordinator.server.store import JobRecord, Store
from hedgerow.services.rpc.federation import Registration
from hedgerow.services.wire.job_view import JobState
from tests.chaos.test_postgresql import Database
from tests.coordinator.server.postgresql import programs, running_postgresql
from tests.federation.processes import PATIENCE_SECONDS, Federation, federation, wait_until
from tests.federation.test_faults import rounds_done, succeeded
from tests.federation.test_histogram_processes import JOB

pytestmark = pytest.mark.slow
LONG_JOB = JOB.replace("rounds = 8", "rounds = 24")


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'state.db'}"
        return
    if programs() is None:
        pytest.skip("PostgreSQL is not installed")
    with running_postgresql() as url:
        yield url


class Pair(Federation):
    """A federation with a second coordinator; the client and the agents know both."""

    @property
    def address(self) -> str:
        names = ("coordinator", "coordinator-2")
        return ",".join(f"127.0.0.1:{self.ports[name]['port']}" for name in names)

    def start(self) -> Pair:
        self.start_one("coordinator")
        self.start_one("coordinator-2")
        for silo in self.silos:
            self.start_agent(silo)
        return self

    def start_one(self, name: str) -> None:
        port = self.ports.get(name, {}).get("port", 0)
        own = {"listen": f"127.0.0.1:{port}", "metrics": "127.0.0.1:0"}
        identity = {"identity": str(self.folder / "pki/coordinator")}
        self._spawn(name, "coordinator", {**own, **identity, **self.coordinator_settings})


@contextmanager
def pair(folder: Path, database: str) -> Iterator[Pair]:
    with federation(folder, start=False, database=database) as plain:
        made = Pair(folder, plain.silos, make_certificates=False, database=database)
        try:
            yield made.start()
        finally:
            made.stop()


def wrote(fed: Pair, job_id: str) -> dict[str, bytes]:
    """Return all files of a job; one that is stopped may have one without its name, and drop it."""
    folder = fed.folder / "artefacts" / job_id
    found = (p for p in sorted(folder.rglob("*")) if p.is_file() and not p.name.startswith("."))
    return {str(p): p.read_bytes() for p in found}


def outcome(store: Store, job_id: str) -> JobRecord:
    """Return a job's row but for the bytes of late calls, which the active one still counts."""
    job = store.job(job_id)
    assert job is not None
    return replace(job, control_bytes_up=0, control_bytes_down=0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_the_other_coordinator_takes_over_to_the_same_model(
    tmp_path: Path, database: str, number: int
) -> None:
    with pair(tmp_path, database) as fed:
        whole = fed.submit(LONG_JOB)
        succeeded(fed.end(whole, 180))
        job_id = fed.submit(LONG_JOB)
        fed.wait(job_id, rounds_done(2), 120)
        _stop(fed, number, database)
        began, store = time.monotonic(), Store(database)
        done = len(store.rounds(job_id))
        wait_until(lambda: len(store.rounds(job_id)) > done, 60, "a round")
        print(f"next round after {time.monotonic() - began:.1f} s")
        view = succeeded(fed.end(job_id, 180))
        assert "active" in fed.log("coordinator-2")
        assert fed.client.download(job_id)[1] == fed.client.download(whole)[1]
        artefacts = Artefacts(str(tmp_path / "artefacts"))

        def signed() -> bool:
            return len(provenance(artefacts, job_id).splitlines()) == len(fed.silos)

        if number == signal.SIGSTOP:
            wait_until(signed, 60, "all silos have signed: the last that is written")
            before = wrote(fed, job_id), outcome(store, job_id)
            fed.processes["coordinator"].send_signal(signal.SIGCONT)
            wait_until(lambda: not fed.alive("coordinator"), 60, "the other one ends")
            assert (wrote(fed, job_id), outcome(store, job_id)) == before
        store.close()
        assert view.attempt == 2
        fed.start_one("coordinator")
        alone = client_for(
            f"127.0.0.1:{fed.ports['coordinator']['port']}", tmp_path / "pki/operator", None
        )
        with pytest.raises(FederationError, match="this coordinator stands by"):
            alone.get(job_id)
        # The first that it asks stands by.
        either = client_for(fed.address, tmp_path / "pki/operator", None)
        assert either.download(job_id)[1] == fed.client.download(whole)[1]


def _stop(fed: Pair, number: int, database: str) -> None:
    """Kill or stop the active coordinator; a stopped one that locks SQLite's file goes on first."""
    fed.kill("coordinator", number)
    while number == signal.SIGSTOP and database.startswith("sqlite"):
        engine = engine_of(database, 0.1)
        try:
            with engine.begin():
                return
        except Exception:
            fed.processes["coordinator"].send_signal(signal.SIGCONT)
            time.sleep(0.05)
            fed.processes["coordinator"].send_signal(signal.SIGSTOP)
        finally:
            engine.dispose()


def test_two_first_starts_make_one_row(database: str) -> None:
    engine = engine_of(database, 5.0)
    standby.read_lease(engine)
    with pytest.raises(Exception, match=r"UNIQUE|unique"), engine.begin() as connection:
        connection.execute(LEASE.insert().values(one=1, token=7, beats=0, holder="another"))
    assert standby.read_lease(engine, made=True) == (0, 0, "")
    engine.dispose()


def test_who_has_taken_over_serves_when_all_is_read(database: str) -> None:
    lease = ActiveLease(database)
    assert lease.take()
    assert "it is starting" in lease.refusal
    lease.ready = True
    assert lease.refusal == ""
    lease.release()


class TakenOver(BytesIO):
    """A backup at whose second reading another coordinator takes over, known to us or not yet."""

    database, known, reads = "", False, 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self.reads += self.database != ""
        if self.reads == 1:
            engine = engine_of(self.database, 5.0)
            with engine.begin() as connection:
                connection.execute(LEASE.update().values(token=LEASE.c.token + 1, holder="other"))
            engine.dispose()
            if self.known:
                wait_until(lambda: all(t.name != "active" for t in threading.enumerate()), 30, "")
        return super().seek(offset, whence)


@pytest.mark.timeout(method="thread")
@pytest.mark.parametrize("known", [False, True])
def test_a_restore_that_another_overtakes_ends(database: str, known: bool, tmp_path: Path) -> None:
    store, files = Store(database), Artefacts(str(tmp_path / "files"))
    files.write("job", "a", b"1")
    backup = TakenOver()
    back_up(database, files, backup, 0.0)
    backup.seek(0)
    backup.database, backup.known = database, known
    store.register_silos({Silo("north"): Registration("one", "1", (), 1)}, 0.0)
    with pytest.raises(StorageFailed, match=r"lease of the active|another .* has taken over"):
        restore(backup, database, files, replace=True)
    assert store.silo_names() == {"north"}, "the database is as it was"
    assert files.exists("job", "a") is not known, "the files' store is left when that is seen"
    store.close()


HALF_WRITTEN = """
import sys, time
from hedgerow.coordinator.server.standby import ActiveLease
from hedgerow.services.process import logs
logs.configure(json=True, level="info")
lease = ActiveLease(sys.argv[1])
assert lease.take()
with lease.writing():
    print("writing", flush=True)
    time.sleep(300)
"""


def test_a_file_half_written_when_the_database_is_away_ends_the_process() -> None:
    if programs() is None:
        pytest.skip("PostgreSQL is not installed")
    with running_postgresql() as url:
        database = Database(url)
        Store(database.url).close()
        process = subprocess.Popen(
            [sys.executable, "-c", HALF_WRITTEN, database.url],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        with database.refused():
            _, said = process.communicate(timeout=PATIENCE_SECONDS)
        database.close()
    assert process.returncode == -signal.SIGALRM
    assert "ends with a file half written" in said
    assert "Traceback" not in said


@pytest.mark.timeout(method="thread")  # the lease has the timer that signals need
def test_who_has_lost_its_token_writes_nothing(database: str, tmp_path: Path) -> None:
    first, second = ActiveLease(database), ActiveLease(database)
    assert first.take()
    old, files = Store(database), Artefacts(str(tmp_path / "files"))
    old.token, files.guard = first.token, first.writing
    files.write("job", "a", b"1")
    assert not second.take(), "it is renewed, by a process that lives"
    assert second.refusal.startswith("this coordinator stands by")
    with (tmp_path / "backup").open("w+b") as backup:
        back_up(database, files, backup, 0.0)
        backup.seek(0)
        with pytest.raises(StorageFailed, match="is active: stop it first"):
            restore(backup, database, files, replace=True)
    first._ended.set()  # as if it were stopped
    wait_until(second.take, 30, "the other takes over")
    assert second.token == (first.token or 0) + 1
    with pytest.raises(StorageFailed, match="another coordinator has taken over"):
        old.set_state("job", JobState.FAILED, "", 0.0)
    with pytest.raises(StorageFailed, match="lease of the active coordinator"):
        files.write("job", "a", b"2")
    assert files.read("job", "a") == b"1"
    second.release()
    with pytest.raises(StorageFailed, match="lease of the active coordinator"):
        files.write("job", "a", b"3")
    with standby.exclusive_lease(database):  # as a restore does
        assert not ActiveLease(database).take()
    first.release()
    old.close()
