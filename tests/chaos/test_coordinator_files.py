"""Every file of a coordinator, damaged: one line that says so, or what was stored; no other model.

A folder is filled as a job that has ended and one that has not fill it. One file of it is damaged,
and the coordinator is started with it and asked for all that it has.
"""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hedgerow.boosting.errors import FederationError
from hedgerow.coordinator.__main__ import run
from hedgerow.coordinator.config import CoordinatorSettings
from hedgerow.coordinator.operator.library.clients import client_for
from hedgerow.coordinator.server.artefacts import Artefacts
from hedgerow.coordinator.server.gathering import AGREED_SCHEMA
from hedgerow.coordinator.server.journal import JobJournal
from hedgerow.coordinator.server.store import Store
from hedgerow.services.identity.authority import throwaway
from hedgerow.services.process import settings
from hedgerow.services.rpc.jobs import JobClient
from hedgerow.services.wire.job_view import FinishedRound, JobState, scores_of
from tests.chaos.test_state_files import DAMAGES, damage
from tests.chaos.work import SEEDS
from tests.coordinator.server.bench import job_of, opened
from tests.federation.processes import toml, wait_until

DONE, OPEN = "job-done", "job-open"
FILES = {"model.ubj": bytes(range(256)) * 8, "metrics.csv": b"round,logloss\n0,0.5\n"}
RESTORED = "restored"
"""Name of the folder that each trial damages."""


def fill(folder: Path, n_rounds: int) -> None:
    """Store what runs store; the log of the database stays, as when the process was killed."""
    store, artefacts = Store(f"sqlite:///{folder / 'state.db'}"), Artefacts(f"{folder}/artefacts")
    for job_id in (DONE, OPEN):
        spec = job_of("a", "b", patience=600.0)
        store.create_job(opened(job_id, spec=spec, operator="local"), job_id, 1.0)
        store.start_attempt(job_id, ("a", "b"), 2.0)
        schema = artefacts.write(job_id, AGREED_SCHEMA, b"{}")
        JobJournal(artefacts, job_id).remember("schema", schema.encode())
        for k in range(n_rounds):
            scores = scores_of({"train": {"logloss": 0.5}})
            store.add_round(job_id, FinishedRound(k, 1, 1.0, scores, 5, 6, ("a", "b")))
            artefacts.write_checkpoint(job_id, k, b"%d" % k * 64)
    if n_rounds > 1:
        digests = {name: artefacts.write(DONE, name, data) for name, data in FILES.items()}
        store.set_result(DONE, digests, "model.ubj", 0)
        store.set_state(DONE, JobState.SUCCEEDED, "", 3.0)
    (folder / "log").mkdir(exist_ok=True)
    for file in folder.glob("state.db*"):  # closing would remove the log
        shutil.copy2(file, folder / "log" / file.name)
    store.close()
    for file in (folder / "log").iterdir():
        shutil.copy2(file, folder / file.name)
    shutil.rmtree(folder / "log")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that has an older copy of all its files beside it."""
    top = tmp_path_factory.mktemp("coordinator")
    throwaway(top / "pki", ["a", "b"], time.time())
    folder = top / "whole"
    shutil.copytree(top / "pki/coordinator", folder / "identity")
    restored = top / RESTORED
    config = {
        "listen": "127.0.0.1:0",
        "identity": str(restored / "identity"),
        "silos": ["a", "b"],
        "database": f"sqlite:///{restored / 'state.db'}",
        "artefacts": str(restored / "artefacts"),
        "metrics": "",
    }
    (folder / "coordinator.toml").write_text(toml(config))
    fill(folder, 1)
    shutil.copytree(folder, top / "older")
    shutil.rmtree(folder / "artefacts")
    for file in folder.glob("state.db*"):
        file.unlink()
    fill(folder, 3)
    return folder


@pytest.fixture(autouse=True)
def _ready(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the file of the ports, also where the settings are damaged."""
    monkeypatch.setenv("HEDGEROW_COORDINATOR_READY_FILE", str(whole.parent / "ready"))


@contextmanager
def serving(folder: Path) -> Iterator[JobClient]:
    """Run a coordinator with a folder; raises what its command would print in one line."""
    ready = folder.parent / "ready"
    ready.unlink(missing_ok=True)
    failed: list[BaseException] = []
    stopping: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def main() -> None:
        stop = asyncio.Event()
        stopping.append((asyncio.get_running_loop(), stop))
        file = folder / "coordinator.toml"
        await run(settings.load(CoordinatorSettings, file), stop, file)

    def work() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        wait_until(lambda: ready.exists() or bool(failed), 60, "the coordinator serves")
        if not failed:
            port = re.findall(r'"port": (\d+)', ready.read_text())[0]
            yield client_for(f"127.0.0.1:{port}", folder.parent / "pki/operator", None)
    finally:
        if not failed:
            loop, stop = stopping[0]
            loop.call_soon_threadsafe(stop.set)
        thread.join(60)
        assert not thread.is_alive()
    if failed:
        raise failed[0]


def answers(client: JobClient) -> tuple[dict[str, str], list[str]]:
    """Return the state of each job that is there, and all refusals; checks every file."""
    states, refusals = {}, []
    for job_id in (DONE, OPEN):
        try:
            view = client.get(job_id)
            states[job_id] = view.state.value
            assert [r.round for r in view.rounds] == list(range(len(view.rounds)))
        except FederationError as error:
            refusals.append(str(error))
            continue
        for name in view.artefacts if view.state == "SUCCEEDED" else ():
            try:
                assert client.download(job_id, name)[1] == {**FILES, AGREED_SCHEMA: b"{}"}[name]
            except FederationError as error:
                refusals.append(str(error))
    try:
        list(client.list())
    except FederationError as error:
        refusals.append(str(error))
    return states, refusals


def trial(whole: Path, name: Path | None, kind: str, seed: int) -> tuple[dict[str, str], list[str]]:
    folder = whole.parent / RESTORED
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    if name is not None:
        damage(folder / name, whole.parent / "older" / name, kind, random.Random(seed))
    found: tuple[dict[str, str], list[str]] = ({}, [])
    try:
        with serving(folder) as client:
            found = answers(client)
    except (FederationError, OSError) as error:
        return {}, [str(error)]
    return found


def test_a_whole_folder_has_everything(whole: Path) -> None:
    assert trial(whole, None, "", 0) == ({DONE: "SUCCEEDED", OPEN: "RUNNING"}, [])


@pytest.mark.parametrize("first", SEEDS[::20])
@pytest.mark.parametrize("kind", DAMAGES)
def test_no_damage_of_one_file_passes_for_another_model(
    whole: Path, kind: str, first: int, capfd: pytest.CaptureFixture[str]
) -> None:
    files = sorted(f.relative_to(whole) for f in whole.rglob("*") if f.is_file())
    files = [f for f in files if f.name != "state.db-shm"]  # the database makes it anew
    assert {"state.db", "state.db-wal", "tls.key", "coordinator.toml"} <= {f.name for f in files}
    for seed, name in enumerate(files, 1000 * first):
        states, refusals = trial(whole, name, kind, seed)
        for line in refusals:
            assert line, name
            assert len(line) < 600, (name, line)
            assert "internal error" not in line, (name, line)
            assert "\n" not in line.strip(), (name, line)
        out = "".join(capfd.readouterr())
        assert "Traceback" not in out, (name, kind, out)
        if states.get(DONE) != "SUCCEEDED" and not refusals:
            # An older copy of the database has the job as it was.
            assert name.name.startswith("state.db"), (name, kind, states)
        if name.name in FILES and kind != "older":
            assert any("model" in line or "metrics" in line for line in refusals), (name, kind)
