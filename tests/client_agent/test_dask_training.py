from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.errors import DataError, FederationError
from hedgerow.boosting.job import Booster
from hedgerow.boosting.trees.ensemble import blank
from hedgerow.boosting.trees.local import MarginRows
from hedgerow.client_agent import dask_cluster
from hedgerow.client_agent.dask_cluster import DaskCluster
from hedgerow.client_agent.dask_training import DaskTrainer
from tests import oracles
from tests.federation.processes import Federation, write_table

pytestmark = pytest.mark.process

if TYPE_CHECKING:
    import distributed

PARAMETERS = {
    "objective": "binary:logistic",
    "tree_method": "hist",
    "max_depth": 4,
    "eta": 0.3,
    "seed": 3,
    "nthread": 1,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[distributed.LocalCluster]:
    import distributed

    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
    ) as made:
        yield made


@pytest.fixture
def trainer(cluster: distributed.LocalCluster) -> Iterator[DaskTrainer]:
    connection = DaskCluster(cluster.scheduler_address)
    yield DaskTrainer(connection)
    connection.close()


def table(n: int = 600, *, weighted: bool = False) -> Dataset:
    """Rows whose features have fewer values than bins, so that cuts do not depend on the split."""
    rng = np.random.default_rng(5)
    X = rng.integers(0, 40, size=(n, 3)).astype(np.float32)
    X[rng.random(n) < 0.1, 1] = np.nan
    y = (X[:, 0] + rng.normal(scale=5, size=n) > 20).astype(np.float64)
    schema = Schema(tuple(Feature(f"x{j}") for j in range(3)), "label", Task.BINARY, ("0", "1"))
    return Dataset(schema, X, y, rng.uniform(0.5, 2.0, n) if weighted else None)


def rows_of(dataset: Dataset) -> MarginRows:
    start = blank(dataset.schema, "binary:logistic", Booster(), 0.5)
    return MarginRows(dataset, start, 1)


def work_of(cluster: distributed.LocalCluster) -> int:
    """Return how often a task of the cluster has changed its state."""
    import distributed

    with distributed.Client(cluster, set_as_default=False) as client:
        return client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.transition_counter)


@pytest.mark.parametrize(("weighted", "n_labels"), [(False, 1), (True, 1), (True, 3)])
def test_trees_on_the_cluster_are_those_of_one_machine(
    trainer: DaskTrainer, weighted: bool, n_labels: int
) -> None:
    dataset = table(weighted=weighted)
    if n_labels > 1:
        dataset = oracles.several(dataset, n_labels)
    rows = rows_of(dataset)
    # A second round begins at margins that are not all the same.
    first = rows.train(PARAMETERS, 1)
    start = blank(dataset.schema, "binary:logistic", Booster(), 0.5)
    rows.add(start.extend(first, n_steps=1))
    alone = rows.train(PARAMETERS, 2)
    together = trainer(dataset, rows.margins, PARAMETERS, 2)
    assert len(together) == len(alone) == 2 * n_labels
    for ours, theirs in zip(together, alone, strict=True):
        np.testing.assert_array_equal(ours.left, theirs.left)
        np.testing.assert_array_equal(ours.feature, theirs.feature)
        np.testing.assert_allclose(ours.threshold, theirs.threshold, rtol=1e-4, atol=1e-6)


def test_rows_are_sent_once_a_job(trainer: DaskTrainer) -> None:
    dataset = table()
    margins = np.zeros(dataset.n_samples, np.float32)
    trainer(dataset, margins, PARAMETERS, 1)
    sent = trainer._sent
    trainer(dataset, margins, PARAMETERS, 1)
    assert trainer._sent is sent
    other = table(300)
    trainer(other, np.zeros(300, np.float32), PARAMETERS, 1)
    assert trainer._sent is not None
    assert trainer._sent[0] is other


def test_fewer_rows_than_workers_are_enough(trainer: DaskTrainer) -> None:
    (tree,) = trainer(table(1), np.zeros(1, np.float32), PARAMETERS, 1)
    assert tree.n_nodes == 1


def test_what_xgboost_refuses_is_told_in_its_words(trainer: DaskTrainer) -> None:
    dataset = table()
    with pytest.raises(DataError, match="XGBoost cannot train on these rows"):
        trainer(dataset, np.zeros(7, np.float32), PARAMETERS | {"tree_method": "exact"}, 1)


def test_absent_scheduler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_cluster, "CONNECT_SECONDS", 0.5)
    trainer = DaskTrainer(DaskCluster("tcp://127.0.0.1:9"))
    with pytest.raises(FederationError, match="no Dask scheduler responds at tcp://127"):
        trainer(table(), np.zeros(600, np.float32), PARAMETERS, 1)


def test_silo_with_a_cluster_trains_in_a_federation(
    cluster: distributed.LocalCluster, tmp_path: Path
) -> None:
    ids = [f"p{k}" for k in range(200)]
    tables = {f"s{k}": write_table(tmp_path / f"s{k}.parquet", 200, k, _id=ids) for k in range(3)}
    federation = Federation(tmp_path, tables)
    try:
        federation.start_coordinator()
        for silo in ("s0", "s2"):
            federation.start_agent(silo)
        federation.fresh = True  # with pandas, which others do without
        federation.start_agent("s1", dask=cluster.scheduler_address)
        for strategy, more in {
            "bagging": "rounds = 1",
            "histogram": "rounds = 1",
            "secureboost": 'active = "s0"\nrounds = 1\nencryption = "elgamal"',
        }.items():
            before = work_of(cluster)
            job_id = federation.submit(
                f'name = "d"\nstrategy = "{strategy}"\nlabel = "label"\ntask = "binary"\n'
                f'seed = 1\nmin_silos = 3\nsilos = ["s0", "s1", "s2"]\n[{strategy}]\n'
                f"{more}\n[booster]\nmax_depth = 3\n"
            )
            view = federation.end(job_id, 200)
            assert view.state == "SUCCEEDED", view.detail
            assert work_of(cluster) > before
    finally:
        federation.stop()
