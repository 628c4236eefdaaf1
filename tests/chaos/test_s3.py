"""A job whose artefacts are at a real S3 server, which hangs or refuses while it runs."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from tests.chaos.proxy import Proxy
from tests.coordinator.server.postgresql import running_postgresql
from tests.federation.processes import Federation, federation, wait_until
from tests.federation.test_faults import rounds_done, succeeded
from tests.federation.test_histogram_processes import JOB

pytestmark = pytest.mark.slow


class ObjectStore:
    """A moto server, of which the coordinator sees only what passes a proxy."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        with (folder / "moto.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
                stdout=log,
                stderr=log,
            )
        wait_until(self._makes_bucket, 60, "the S3 server is ready")
        self.proxy = Proxy(self.port)
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.proxy.port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def _makes_bucket(self) -> bool:
        asked = urllib.request.Request(f"http://127.0.0.1:{self.port}/office", method="PUT")
        with suppress(OSError), urllib.request.urlopen(asked, timeout=10) as answer:
            return bool(answer.status == 200)
        return False

    def folders(self, below: str) -> list[str]:
        """Return the folders of which objects are below a prefix."""
        asked = f"http://127.0.0.1:{self.port}/office?list-type=2&prefix={below}/"
        with urllib.request.urlopen(asked, timeout=60) as answer:
            keys = re.findall(rf"<Key>{below}/([^/<]*)", answer.read().decode())
        return sorted(set(keys))

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self.process.send_signal(signal.SIGSTOP)
        yield
        self.process.send_signal(signal.SIGCONT)

    @contextmanager
    def refused(self) -> Iterator[None]:
        self.proxy.refuse(True)
        yield
        self.proxy.refuse(False)

    def close(self) -> None:
        self.proxy.close()
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    made = ObjectStore(tmp_path_factory.mktemp("s3"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def fed(
    tmp_path_factory: pytest.TempPathFactory, store: ObjectStore
) -> Iterator[tuple[Federation, bytes]]:
    folder = tmp_path_factory.mktemp("federation")
    with federation(folder, start=False, artefacts="s3://office/jobs") as made:
        made.own["coordinator"] = store.environment
        job_id = made.start().submit(JOB)
        succeeded(made.end(job_id, 180))
        yield made, made.client.download(job_id)[1]
        assert "Traceback" not in made.log("coordinator")


FAULTS: dict[str, tuple[Callable[[ObjectStore], AbstractContextManager[None]], str]] = {
    "stopped": (ObjectStore.stopped, "no answer within 10 s"),
    "refused": (ObjectStore.refused, "Could not connect to the endpoint"),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_job_waits_for_its_object_store_and_gives_the_same_model(
    fed: tuple[Federation, bytes], store: ObjectStore, kind: str
) -> None:
    processes, undisturbed = fed
    fault, said = FAULTS[kind]
    job_id = processes.submit(JOB)
    processes.wait(job_id, rounds_done(2))
    with fault(store):
        view = processes.wait(
            job_id, lambda v: v.ended or ("for its store" in v.detail and said in v.detail)
        )
        assert view.state == "RUNNING", view.detail
    view = succeeded(processes.end(job_id, 180))
    assert view.attempt == 1
    assert processes.client.download(job_id)[1] == undisturbed


def test_a_job_ends_when_its_object_store_hangs_for_longer_than_a_step_may(
    fed: tuple[Federation, bytes], store: ObjectStore
) -> None:
    processes, _ = fed
    job_id = processes.submit(JOB.replace("_timeout_seconds = 60", "_timeout_seconds = 15"))
    processes.wait(job_id, rounds_done(2))
    with store.stopped():
        view = processes.end(job_id, 120)
    assert view.state == "FAILED"
    assert "no answer within 10 s" in view.detail


def test_with_a_database_and_an_object_store_jobs_are_deleted_and_a_backup_goes_elsewhere(
    store: ObjectStore, tmp_path: Path
) -> None:
    file, settings = tmp_path / "backup.tar", tmp_path / "coordinator.toml"

    def hedgerow(*words: str | Path, fails: bool = False) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "hedgerow", *map(str, words)],
            env={**os.environ, **store.environment}, capture_output=True, text=True,
        )  # fmt: skip
        assert (done.returncode != 0) == fails, done.stderr
        return done.stderr + done.stdout

    with ExitStack() as stack:
        here, there = (stack.enter_context(running_postgresql()) for _ in range(2))
        office = federation(tmp_path, start=False, database=here, artefacts="s3://office/first")
        made = stack.enter_context(office)
        made.own["coordinator"] = store.environment
        made.start()
        gone, old, kept = (made.submit(JOB) for _ in range(3))
        for job_id in (gone, old, kept):
            succeeded(made.end(job_id, 180))
        assert {gone, old, kept} <= set(store.folders("first"))
        undisturbed = made.client.download(kept)[1]
        made.client.delete(gone)
        assert gone not in store.folders("first")

        made.kill("coordinator")
        with psycopg.connect(here) as database:
            done = database.execute(
                "update jobs set ended = ended - 31 * 86400 where job_id = %s", (old,)
            )
            assert done.rowcount == 1
        made.coordinator_settings["retention"] = {"days": 30}
        made.start_coordinator()
        wait_until(lambda: [v.job_id for v in made.client.list()] == [kept], 60, "retention")
        wait_until(lambda: old not in store.folders("first"), 60, "its files are gone")

        running = made.submit(JOB)
        made.wait(running, rounds_done(2))
        hedgerow("backup", "--config", settings, file)
        made.kill("coordinator")
        # Another machine: an empty database, an empty part of a bucket.
        made.coordinator_settings |= {"database": there, "artefacts": "s3://office/second"}
        made.start_coordinator()
        assert "is active: stop it first" in hedgerow(
            "restore", "--config", settings, file, fails=True
        )
        made.kill("coordinator", signal.SIGTERM)
        hedgerow("restore", "--config", settings, file)
        made.start_coordinator()
        succeeded(made.end(running, 180))
        for job_id in (kept, running):
            assert made.client.download(job_id)[1] == undisturbed
        assert set(store.folders("second")) == {kept, running}
        assert "Traceback" not in made.log("coordinator")
