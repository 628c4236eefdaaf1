"""``hedgerow.connect``: a coordinator from Python."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import hedgerow
from hedgerow.boosting.errors import InvalidJob
from tests.federation.processes import Federation, federation, wait_until, write_table


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation(tmp_path_factory.mktemp("client"), fresh=True, lease_seconds=10.0) as made:
        yield made


def test_a_client_plans_submits_watches_and_downloads(fed: Federation, tmp_path: Path) -> None:
    client = hedgerow.connect(fed.address, fed.folder / "pki/operator")
    job = hedgerow.Job("bagging", rounds=3, max_depth=3, min_silos=3, name="from Python")
    wait_until(lambda: len(client.silos()) == 3, 60.0, "three silos")
    assert set(client.plan(job)["silo"]) == set(fed.silos)
    job_id = client.submit(job)
    views = list(client.watch(job_id))
    assert views[-1].ended
    assert [r.round for view in views for r in view.rounds] == [0, 1, 2]
    assert client.jobs()["job"][0] == job_id
    assert "from Python" in client.jobs()._repr_html_()
    run = client.download(job_id, tmp_path / "run")
    assert run.state == "SUCCEEDED"
    assert len(run.metrics) == 3
    new = write_table(tmp_path / "new.parquet", 50, 8)
    assert run.model.predict(new).shape == (50,)
    assert client.cancel(job_id) == "SUCCEEDED"
    with pytest.raises(hedgerow.FederationError, match="has no job"):
        client.cancel("nobody's")


def test_a_follower_is_told_each_round_and_may_stop_the_job(fed: Federation) -> None:
    client = hedgerow.connect(fed.address, fed.folder / "pki/operator")
    wait_until(lambda: len(client.silos()) == 3, 60.0, "three silos")
    seen = []
    job_id = client.submit(hedgerow.Job("bagging", rounds=2, max_depth=2, min_silos=3))
    assert client.follow(job_id, seen.append) == "SUCCEEDED"
    assert [done.round for done in seen] == [0, 1]
    assert all(done.bytes_up and done.metrics for done in seen)
    job_id = client.submit(hedgerow.Job("bagging", rounds=5000, max_depth=2, min_silos=3))
    assert client.follow(job_id, lambda done: True) == "CANCELLED"


def test_processes_load_no_scikit_learn_for_xgboost(fed: Federation) -> None:
    """It is installed here, and XGBoost imports it and pandas where nothing keeps it from it."""
    for name, process in fed.processes.items():
        loaded = Path(f"/proc/{process.pid}/maps").read_text()
        assert "xgboost" in loaded, name
        assert "sklearn" not in loaded, name
        assert "pandas" not in loaded, name


def test_a_coordinator_that_is_away_is_one_error(fed: Federation) -> None:
    client = hedgerow.connect("127.0.0.1:1", fed.folder / "pki/operator")
    with pytest.raises(hedgerow.FederationError, match=r"127\.0\.0\.1:1"):
        client.jobs()


def test_a_client_explores_and_has_frames(fed: Federation, tmp_path: Path) -> None:
    client = hedgerow.connect(fed.address, fed.folder / "pki/operator")
    wait_until(lambda: len(client.silos()) == 3, 60.0, "three silos")
    with pytest.raises(hedgerow.RunFailed, match="may_send"):
        client.explore(min_silos=3, silos=list(fed.silos))
    sent = ["schema", "keys", "masked", "counts"]
    for silo in fed.silos:
        fed.kill(f"agent-{silo}", signal.SIGTERM)
        fed.start_agent(silo, policy={"may_send": sent})
    found = client.explore(min_silos=3, silos=list(fed.silos), out=tmp_path / "look")
    assert found.columns["rows"][0] == found.statistics["rows"] == 1200
    assert hedgerow.Exploration(tmp_path / "look").cells.rows() == found.cells.rows()
    with pytest.raises(InvalidJob, match='expected "explore"'):
        client.explore(strategy="bagging")
