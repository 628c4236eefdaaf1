"""A PostgreSQL that is away, silent, read-only or locked while a job runs: the same model."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest
import sqlalchemy as sql

from hedgerow.boosting.errors import FederationError
from tests.chaos.arena import Arena, arena
from tests.chaos.oracle import check_logs
from tests.chaos.proxy import Proxy
from tests.chaos.work import job
from tests.coordinator.server.postgresql import programs, running_postgresql
from tests.federation.processes import wait_until
from tests.federation.test_faults import rounds_done

pytestmark = pytest.mark.skipif(programs() is None, reason="PostgreSQL is not installed")


class Database:
    """A database of which the coordinator sees only what passes a proxy."""

    def __init__(self, url: str) -> None:
        here = sql.make_url(url)
        assert here.port is not None
        self.proxy = Proxy(here.port)
        self.url = url.replace(f":{here.port}/", f":{self.proxy.port}/")
        self._engine = sql.create_engine(here.set(drivername="postgresql+psycopg"))

    def set(self, setting: str) -> None:
        """Change a setting of the server, for all sessions."""
        with self._engine.connect() as connection:
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.exec_driver_sql("SET default_transaction_read_only = off")
            connection.exec_driver_sql(f"ALTER SYSTEM {setting}")
            connection.exec_driver_sql("SELECT pg_reload_conf()")

    @contextmanager
    def refused(self) -> Iterator[None]:
        self.proxy.refuse(True)
        yield
        self.proxy.refuse(False)

    @contextmanager
    def held(self) -> Iterator[None]:
        self.proxy.hold(True)
        yield
        self.proxy.hold(False)

    @contextmanager
    def read_only(self) -> Iterator[None]:
        self.set("SET default_transaction_read_only = on")
        yield
        self.set("RESET default_transaction_read_only")

    @contextmanager
    def locked(self) -> Iterator[None]:
        with self._engine.begin() as connection:
            connection.exec_driver_sql("LOCK TABLE jobs, rounds IN ACCESS EXCLUSIVE MODE")
            yield

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop all processes of the server: TCP connects, and nothing is answered."""
        with self._engine.connect() as connection:
            read = "SELECT pg_read_file('postmaster.pid')"
            server = int(str(connection.exec_driver_sql(read).scalar()).split()[0])
        self._engine.dispose()
        stopped: list[int] = []

        def of_server() -> list[int]:
            return [server, *(one for one in map(int, _children(server)) if one not in stopped)]

        try:
            while len(pids := of_server()) > 1 or not stopped:  # one may have started another
                for pid in pids:
                    stopped.append(pid)
                    with suppress(ProcessLookupError):  # a session that has ended meanwhile
                        os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in stopped:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        self._engine.dispose()
        self.proxy.close()


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    with running_postgresql() as url:
        made = Database(url)
        yield made
        made.close()


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory, database: Database) -> Iterator[Arena]:
    with arena(tmp_path_factory.mktemp("postgresql"), database=database.url) as made:
        yield made
    check_logs(made)


FAULTS: dict[str, tuple[Callable[[Database], AbstractContextManager[None]], str]] = {
    "refused": (Database.refused, "for its store"),
    "read-only": (Database.read_only, "read-only transaction"),
    "held": (Database.held, "no answer within"),
    "stopped": (Database.stopped, "no answer within"),
    "locked": (Database.locked, "lock timeout"),
}
"""Faults, and what a job says meanwhile."""


@pytest.mark.parametrize("kind", FAULTS)
def test_a_job_waits_for_its_database_and_gives_the_same_model(
    fed: Arena, database: Database, kind: str
) -> None:
    undisturbed = fed.undisturbed("bagging")
    rng = random.Random(kind)
    fault, said = FAULTS[kind]
    job_id = fed.submit(job("bagging"))
    fed.wait(job_id, rounds_done(rng.randrange(1, 20)))
    with fault(database):
        stopped = [0, 0]

        def stands() -> bool:
            offers = fed.exchanges("s0", job_id)
            stopped[:] = [offers, stopped[1] + 1 if offers == stopped[0] else 0]
            return stopped[1] > 40

        wait_until(stands, 60, "nothing is offered any more")
        wait_until(
            lambda: any(
                said in entry["why"] for entry in fed.events("coordinator", job_id, "waiting")
            ),
            60,
            f"the log says {said!r}",
        )
        fed.wait(job_id, lambda view: "for its store" in view.detail)  # it can still be looked at
    view = fed.end(job_id)
    assert (view.state, view.attempt) == ("SUCCEEDED", 1), view.detail
    assert fed.digests(view) == undisturbed.digests


def test_commands_and_a_start_say_that_the_database_is_away(fed: Arena, database: Database) -> None:
    settings = fed.folder / "coordinator.toml"
    start = [sys.executable, "-m", "hedgerow.coordinator", "--config", str(settings)]
    there = [(one.name, one.alive) for one in fed.client.silos()]
    with database.refused():
        assert [(one.name, one.alive) for one in fed.client.silos()] == there
        with pytest.raises(FederationError, match=r"reading the database failed"):
            list(fed.client.list())
        words = ["--coordinator", fed.address, "--identity", str(fed.folder / "pki/operator")]
        told = subprocess.run(
            [sys.executable, "-m", "hedgerow", "status", *words],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert told.returncode == 1, told.stderr
        assert f"{len(there)} of {len(there)} silos are connected" in told.stdout
        assert "jobs cannot be read: " in told.stdout
        started = subprocess.run(start, capture_output=True, text=True, check=False, timeout=120)
    assert started.returncode == 2
    assert "looking for the active coordinator failed" in started.stderr
    assert "Traceback" not in started.stderr
    wait_until(lambda: _answers(fed), 60, "the coordinator that ran reads it again")


def _answers(fed: Arena) -> bool:
    try:
        return list(fed.client.list()) is not None
    except FederationError:
        return False
