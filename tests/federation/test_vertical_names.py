"""What a vertical job tells of the parties' tables: nothing that names a column or a class."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hedgerow.coordinator.__main__ import run
from hedgerow.coordinator.config import CoordinatorSettings
from hedgerow.services.rpc.federation import FederationServicer
from tests.federation.processes import Federation, wait_until

NAMES = {
    "guest": (b"guestly_income", b"guestly_town", b"Umbria", b"Liguria", b"churned", b"stayed"),
    "host": (b"hostly_pulse", b"hostly_blood", b"rhesus_plus", b"rhesus_minus"),
}
JOB = """
name = "vertical"
strategy = "secureboost"
min_silos = 2
label = "label"
start_timeout_seconds = 30
{more}
[secureboost]
active = "guest"
rounds = 1
min_leaf = 1
[booster]
max_depth = 2
max_bin = 4
"""


def write_parties(folder: Path) -> dict[str, Path]:
    rng = np.random.default_rng(1)
    ids = [f"id{k}" for k in range(60)]
    town = rng.integers(0, 2, 60)
    guest = {
        "_id": ids,
        "guestly_income": rng.normal(size=60).astype(np.float32),
        "guestly_town": np.array(["Liguria", "Umbria"])[town].tolist(),
        "label": np.array(["churned", "stayed"])[rng.integers(0, 2, 60)].tolist(),
    }
    host = {
        "_id": ids,
        "hostly_pulse": rng.normal(size=60).astype(np.float32),
        "hostly_blood": np.array(["rhesus_minus", "rhesus_plus"])[1 - town].tolist(),
    }
    paths = {}
    for name, table in (("guest", guest), ("host", host)):
        paths[name] = folder / f"{name}.parquet"
        pq.write_table(pa.table(table), paths[name])
    return paths


class _Recorded(Federation):
    """A federation whose coordinator runs in this process, where its messages can be read."""

    @contextmanager
    def coordinator(self) -> Iterator[None]:
        loop = asyncio.new_event_loop()
        stop = asyncio.Event()
        ready = self.folder / "coordinator.ready"
        config = CoordinatorSettings(
            listen="127.0.0.1:0",
            identity=self.folder / "pki/coordinator",
            metrics="",
            ready_file=ready,
            **self.coordinator_settings,
        )
        thread = threading.Thread(target=lambda: loop.run_until_complete(run(config, stop)))
        thread.start()
        try:
            wait_until(lambda: ready.exists() and bool(ready.read_text()), 30, "coordinator")
            self.ports["coordinator"] = json.loads(ready.read_text())
            yield
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(200)
            loop.close()


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bytes]]:
    """Requests and responses of the control plane, as they are on the wire."""
    seen: list[tuple[str, bytes]] = []
    for name in ("RegisterSilo", "AwaitAssignment", "AcceptAssignment", "ReportOutcome"):
        inner = getattr(FederationServicer, name)

        async def outer(
            self: Any, request: Any, context: Any, name: str = name, inner: Any = inner
        ) -> Any:
            seen.append((f"{name} up", request.SerializeToString()))
            response = await inner(self, request, context)
            seen.append((f"{name} down", response.SerializeToString()))
            return response

        monkeypatch.setattr(FederationServicer, name, outer)
    return seen


@contextmanager
def parties(folder: Path, **policy: Any) -> Iterator[_Recorded]:
    made = _Recorded(folder, write_parties(folder))
    try:
        with made.coordinator():
            made.start_agent("guest")
            made.start_agent("host", policy=policy)
            yield made
            made.stop()
    finally:
        made.stop()


def files_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_no_name_of_a_column_a_category_or_a_class_reaches_the_coordinator_or_the_other_party(
    tmp_path: Path, messages: list[tuple[str, bytes]]
) -> None:
    with parties(tmp_path) as fed:
        job_id = fed.submit(JOB.format(more=""))
        view = fed.end(job_id, 60)
        assert view.state == "SUCCEEDED", view.detail
        kept = files_of(tmp_path / "artefacts") + (tmp_path / "state.db").read_bytes()
    assert {name for name, _ in messages} >= {"AcceptAssignment up", "AcceptAssignment down"}
    for party, names in NAMES.items():
        other = "host" if party == "guest" else "guest"
        theirs = files_of(tmp_path / f"state-agent-{other}")
        own = files_of(tmp_path / f"state-agent-{party}")
        for name in names:
            assert [told for told, data in messages if name in data] == []
            assert name not in kept
            assert name not in theirs
        assert names[0] in own, "what is looked for can be found where it belongs"


def test_a_party_that_declines_does_not_name_the_column_for_which_it_does(
    tmp_path: Path, messages: list[tuple[str, bytes]]
) -> None:
    with parties(tmp_path, features=["hostly_blood"]) as fed:
        view = fed.end(fed.submit(JOB.format(more="")), 60)
        assert view.state == "FAILED"
        declined = {s.name: s.detail for s in view.silos}["host"]
        assert declined.startswith("policy rule features")
        assert "hostly_pulse" in fed.log("agent-host")
    assert [told for told, data in messages if b"hostly" in data] == []


@pytest.mark.parametrize("table", ["to be scored", "of evaluation rows"])
def test_a_party_whose_table_lacks_a_column_names_it_in_its_own_log_only(
    tmp_path: Path, messages: list[tuple[str, bytes]], table: str
) -> None:
    paths = write_parties(tmp_path)
    unfit = tmp_path / "unfit.parquet"
    pq.write_table(pq.read_table(paths["host"]).drop_columns(["hostly_pulse"]), unfit)
    evaluation = table == "of evaluation rows"
    tests = {
        "guest": {"test": {"path": str(paths["guest"])}},
        "host": {"test": {"path": str(unfit)}},
    }
    made = _Recorded(tmp_path, paths)
    try:
        with made.coordinator():
            for silo in paths:
                made.start_agent(silo, **(tests[silo] if evaluation else {}))
            text = JOB.format(more="")
            job_id = made.submit(text)
            if not evaluation:
                assert made.end(job_id, 60).state == "SUCCEEDED"
                made.kill("agent-host", signal.SIGTERM)
                made.silos["host"] = unfit
                made.start_agent("host")
                scoring = f'[secureboost]\npredict_from = "{job_id}"\n'
                job_id = made.submit(text.replace("[secureboost]\n", scoring))
            view = made.end(job_id, 60)
            assert view.state == "FAILED"
            assert "its table cannot be used for this job" in view.detail
            assert "host" in view.detail
            made.stop()
            kept = files_of(tmp_path / "artefacts") + (tmp_path / "state.db").read_bytes()
            theirs = files_of(tmp_path / "state-agent-guest") + made.log("agent-guest").encode()
    finally:
        made.stop()
    assert "hostly_pulse" in made.log("agent-host")
    assert "hostly" not in view.detail
    assert b"hostly" not in kept + theirs
    assert [told for told, data in messages if b"hostly" in data] == []
