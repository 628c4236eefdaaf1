"""The release before this one beside the present code: real processes of both in one federation."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sql

import hedgerow
from hedgerow.coordinator.server.database import SCHEMA_VERSION, VERSION, engine_of
from hedgerow.services.process import ledgers
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from hedgerow.services.wire.job_view import JobState
from tests.federation import forked
from tests.federation.processes import Federation, wait_until, write_table
from tests.federation.released import NoHistory, Release, export
from tests.federation.test_faults import rounds_done, succeeded

BAGGING = """
name = "trees"
strategy = "bagging"
label = "label"
task = "binary"
seed = 3
min_silos = 3
silos = ["s0", "s1", "s2"]
metrics = ["auc", "logloss"]
[bagging]
rounds = 3
evaluate = "none"  # secure sums need all parties of one release
scrub = "none"
[booster]
max_depth = 3
"""
HISTOGRAM = """
name = "sums"
strategy = "histogram"
label = "label"
task = "binary"
seed = 3
min_silos = 3
step_timeout_seconds = 120
silos = ["s0", "s1", "s2"]
metrics = ["logloss"]
[histogram]
rounds = 12
[booster]
max_depth = 2
max_bin = 16
"""


@dataclass(frozen=True, slots=True)
class Mixed:
    """An agent of the release and two of the present code; ``run`` is of the first job."""

    fed: Federation
    old: Release
    first: str
    run: Path
    test: Path

    def as_operator(self, *arguments: str) -> str:
        """Return what a command of the release prints for the operator."""
        login = (
            "--coordinator",
            self.fed.address,
            "--identity",
            str(self.fed.folder / "pki/operator"),
        )
        done = self.old.run("-m", "hedgerow", *arguments, *login, cwd=self.fed.folder)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start_coordinator(self, *, old: bool) -> None:
        self.fed.own["coordinator"] = self.old.environment if old else {}
        self.fed.start_coordinator()


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Release:
    try:
        return export(tmp_path_factory.mktemp("release"))
    except NoHistory as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def mixed(old: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    """A federation with the release's coordinator, which has trained one model."""
    folder = tmp_path_factory.mktemp("mixed")
    tables = {f"s{k}": write_table(folder / f"s{k}.parquet", 300, k) for k in range(3)}
    fed = Federation(folder, tables, lease_seconds=20.0)
    fed.own = dict.fromkeys(("coordinator", "agent-s0"), old.environment)
    test = write_table(folder / "test.parquet", 100, 9)
    try:
        fed.start()
        first = fed.submit(BAGGING)
        succeeded(fed.end(first))
        made = Mixed(fed, old, first, folder / "run", test)
        made.as_operator("download", first, "--out", str(made.run))
        yield made
    finally:
        fed.stop()


def hedgerow_command(*arguments: str, cwd: Path) -> str:
    done = forked.hedgerow(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_release_is_what_its_processes_run(old: Release, tmp_path: Path) -> None:
    said = old.run("-m", "hedgerow", "--version", cwd=tmp_path).stdout
    assert re.search(rf"\(commit {old.commit[:7]}[0-9a-f]*\)", said), said


def test_job_files_of_the_release_are_read(old: Release) -> None:
    texts = [path.read_text() for path in old.source.glob("examples/*.toml")]
    texts += [
        (old.source / f"deploy/compose/{name}.toml").read_text() for name in ("demo", "vertical")
    ]
    for page in old.source.glob("docs/strategies/*.md"):
        blocks = re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        texts += [block for block in blocks if "strategy =" in block and "[search]" not in block]
    jobs = [job_wire.decode(job_file.parse(text)) for text in texts]
    for job in jobs:
        job.parameters.validate(job)
    read = "from hedgerow.boosting.strategies import NAMES; print(*NAMES)"
    names = old.run("-c", read, cwd=old.folder)
    assert {job.strategy.name for job in jobs} >= set(names.stdout.split()) >= {"bagging"}


def test_the_release_declines_draws_that_go_on_and_takes_the_job_without(
    old: Release, tmp_path: Path
) -> None:
    """Its silos would draw from the first round again: a signed key that they lack tells them."""
    spec = job_wire.parse(job_file.parse('strategy = "histogram"\nmin_silos = 3\n'))
    spec.warm_start.run, spec.warm_start.model, spec.warm_start.schema = "r", "0" * 64, "0" * 64
    read = "import sys; from hedgerow.services.wire import job; "
    read += "job.decode_known(bytes.fromhex(sys.argv[1]))"
    assert old.run("-c", read, spec.SerializeToString().hex(), cwd=tmp_path).returncode == 0
    spec.warm_start.rounds_before = 3
    declined = old.run("-c", read, spec.SerializeToString().hex(), cwd=tmp_path)
    assert (
        "InvalidJob: warm_start has parameters that this version does not know" in declined.stderr
    )


def test_a_run_folder_of_the_release_is_read(mixed: Mixed, tmp_path: Path) -> None:
    run, test = str(mixed.run), str(mixed.test)
    done = mixed.old.run(
        "-m", "hedgerow", "predict", run, test, "--out", "then.parquet", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    hedgerow_command("predict", run, test, "--out", "now.parquet", cwd=tmp_path)
    then, now = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("then", "now"))
    assert now == then
    hedgerow_command("report", run, "--out", "report.html", cwd=tmp_path)
    assert "trees" in (tmp_path / "report.html").read_text()
    assert "auc" in hedgerow_command("evaluate", run, test, cwd=tmp_path)
    found = hedgerow.load(mixed.run).predict_proba(pq.read_table(test).to_pandas())
    assert np.allclose(np.asarray(found)[:, 1], now["probability"].to_numpy(), atol=1e-6)


def test_a_federation_is_upgraded_one_process_at_a_time_and_back(mixed: Mixed) -> None:
    fed = mixed.fed
    # Silos keep to groups that the old coordinator does not have: they take no part in its sums.
    refused = fed.end(fed.submit(HISTOGRAM))
    assert refused.state is JobState.FAILED
    assert "it is of an older release than this silo's agent" in str(refused)
    # A silo is frozen while the coordinator is replaced, so that the job cannot end before.
    running = fed.submit(BAGGING.replace("rounds = 3", "rounds = 12"))
    fed.wait(running, rounds_done(1))
    fed.kill("agent-s1", signal.SIGSTOP)
    fed.kill("coordinator")
    fed.kill("agent-s1", signal.SIGCONT)
    mixed.start_coordinator(old=False)
    view = succeeded(fed.end(running))
    assert view.attempt == 2
    assert [r.round for r in view.rounds] == list(range(12))

    # The old agent with the new coordinator, and an old operator's commands.
    refused = fed.end(fed.submit(HISTOGRAM))
    assert refused.state is JobState.FAILED
    assert "s0: expected version 2 of secure sums, received 0" in str(refused)
    (fed.folder / "job.toml").write_text(BAGGING)
    mixed.as_operator("submit", "job.toml", "--watch")
    listed = json.loads(mixed.as_operator("jobs", "--json"))
    assert [job["state"] for job in listed].count("SUCCEEDED") == 3

    # Its silo upgrades, on the state that it has.
    fed.kill("agent-s0", signal.SIGTERM)
    fed.own["agent-s0"] = {}
    fed.start_agent("s0")
    succeeded(fed.end(fed.submit(HISTOGRAM)))
    state = fed.folder / "state-agent-s0"
    hedgerow_command("ledger", "verify", str(state), cwd=fed.folder)
    assert {entry.job for entry in ledgers.read(state / "ledger.jsonl")} >= {mixed.first, running}
    before = {job.job_id: job.state for job in fed.client.list()}
    model = fed.client.download(mixed.first)[1]

    # Back: with the same tables the release goes on; with newer ones it refuses, and says why.
    fed.kill("coordinator", signal.SIGTERM)
    asked = "from hedgerow.coordinator.server.database import SCHEMA_VERSION; print(SCHEMA_VERSION)"
    schema = int(mixed.old.run("-c", asked, cwd=fed.folder).stdout)
    if schema == SCHEMA_VERSION:
        mixed.start_coordinator(old=True)
        assert {job.job_id: job.state for job in fed.client.list()} == before
        assert fed.client.download(mixed.first)[1] == model
        fed.kill("coordinator", signal.SIGTERM)
        engine = engine_of(fed.coordinator_settings["database"])
        with engine.begin() as connection:
            connection.execute(sql.update(VERSION).values(version=SCHEMA_VERSION + 1))
        engine.dispose()
    mixed.start_coordinator(old=True)
    wait_until(lambda: not fed.alive("coordinator"), 30, "the release's coordinator refuses")
    told = fed.log("coordinator").splitlines()[-1]
    assert re.search(rf"newer Hedgerow: expected schema version {schema}, found \d+", told), told
