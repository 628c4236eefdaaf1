"""Rows on a Dask cluster: the sums, margins and models of one process, byte for byte."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.engine.cuts import local_cuts
from hedgerow.boosting.engine.grower import Grower
from hedgerow.boosting.engine.histogram import layout_of
from hedgerow.boosting.engine.splitting import Scale, TreeParameters
from hedgerow.boosting.engine.table import PartyRows, Table, TreeIntegers
from hedgerow.boosting.errors import DataError, FederationError
from hedgerow.boosting.exchange import ExchangeKey, Step
from hedgerow.boosting.job import Booster
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.storage import Storage
from hedgerow.boosting.strategies.fedxgbllr import participate as stacked
from hedgerow.boosting.strategies.fedxgbllr.stacked_model import StackedModel
from hedgerow.boosting.strategies.histogram import participate
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.secureboost.refusals import REFUSED
from hedgerow.client_agent import dask_cluster
from hedgerow.client_agent.dask_ciphers import DaskCiphers
from hedgerow.client_agent.dask_cluster import DaskCluster
from hedgerow.client_agent.dask_tables import DaskTable
from hedgerow.client_agent.dask_training import DaskTrainer
from hedgerow.client_agent.memory import MappedFiles, MemoryLimit
from hedgerow.crypto.arithmetic.engine import Engine
from hedgerow.crypto.ciphers.packing import PairLayout
from hedgerow.crypto.errors import HistogramRefused, NothingHeld
from hedgerow.crypto.vault.local_vault import LocalVault
from tests import oracles
from tests.federation import stacking, vertical
from tests.federation.memory import MemoryLink, run_in_memory

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
BOOSTER = Booster(max_depth=3, max_bin=16)


class Workers:
    """A scheduler in this process and workers in processes of their own, to be killed."""

    def __init__(self) -> None:
        import distributed

        self._made = distributed.LocalCluster(
            n_workers=0, dashboard_address="127.0.0.1:0", host="127.0.0.1"
        )
        self.cluster = DaskCluster(self._made.scheduler_address)
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, folder: Path, *paths: Path) -> None:
        """Start a worker that finds packages in some folders first."""
        main = "from distributed.cli.dask_worker import main; main()"
        command = [sys.executable, "-c", main, self._made.scheduler_address, "--no-nanny"]
        options = ["--no-dashboard", "--nthreads", "1", "--local-directory", str(folder)]
        path = os.pathsep.join(map(str, (*paths, ROOT)))
        self._processes.append(
            subprocess.Popen(
                [*command, *options],
                env={**os.environ, "PYTHONPATH": path},
                stderr=subprocess.DEVNULL,
            )
        )

    def kill(self) -> None:
        """End the process of the worker that has the most."""
        client = self.cluster.client()
        held, pids = client.has_what(), client.run(os.getpid)
        pid = pids[max(pids, key=lambda worker: len(held[worker]))]
        for process in self._processes:
            if process.pid == pid:
                process.kill()
                process.wait()

    def two(self, folder: Path) -> DaskCluster:
        """Return the cluster with two workers."""
        for process in [each for each in self._processes if each.poll() is not None]:
            self._processes.remove(process)
        while len(self._processes) < 2:
            self.start(folder)
        self.cluster.client().wait_for_workers(2, timeout=120)
        return self.cluster

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self.cluster.close()
        self._made.close()


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    made = Workers()
    yield made
    made.close()


@pytest.fixture
def cluster(workers: Workers, tmp_path: Path) -> DaskCluster:
    return workers.two(tmp_path)


def grown(rows: PartyRows, data: Dataset, workers: Workers | None) -> list[bytes]:
    """Return the sums and margins of a tree of each output; a worker dies in the middle."""
    rng = np.random.default_rng(3)
    cuts = local_cuts(data, BOOSTER.max_bin)
    sample = np.flatnonzero(rng.random(data.n_samples) < 0.8).astype(np.int32)
    integers = rng.integers(0, 1 << 40, size=(data.n_samples, 2))
    small = rng.integers(0, 9, size=(data.n_samples, 2))
    layout = layout_of(cuts)
    division = rows.divide(sample, [TreeIntegers(layout, small, integers)] * 2)
    n_values = layout.n_bins * 2
    growers, seen = [], []
    request: list[tuple[int, ...]] = [(0,), (0,)]
    while any(request):
        sums = division.sums(request, totals=not growers)
        seen.append(sums.tobytes())
        if not growers:
            scale = Scale(1.0, 1.0, 1 << 40, 1 << 40)
            parameters = TreeParameters.of(BOOSTER, data.schema.n_features)
            parts = np.split(sums, 2)
            growers = [Grower(cuts, parameters, scale, part[:2].copy()) for part in parts]
            sums = np.concatenate([part[2:] for part in parts])
        if workers is not None and len(seen) == 2:
            workers.kill()
        ends = np.cumsum([len(nodes) * n_values for nodes in request])
        splits = []
        for grower, part in zip(growers, np.split(sums, ends[:-1]), strict=True):
            shape = len(grower.request), layout.n_bins, 2
            splits.append(grower.supply(part.reshape(shape)))
        division.split(splits)
        request = [grower.request for grower in growers]
    leaves = [grower.leaves for grower in growers]
    seen += [division.node_sums(leaves, exact=exact).tobytes() for exact in (True, False)]
    trees = [(grower.finish(), [c]) for c, grower in enumerate(growers)]
    assert all(tree.n_nodes == 15 for tree, _ in trees)
    division.add(trees)
    rows.add(trees[:1])
    every = rows.values(cuts, slice(0, data.n_samples))
    return [*seen, rows.margins.tobytes(), rows.missing.tobytes(), every.tobytes()]


@pytest.mark.parametrize("n_parts", [None, 1, 5])
def test_parts_on_workers_sum_and_divide_as_one_table_does_also_when_one_dies(
    cluster: DaskCluster, workers: Workers, n_parts: int | None
) -> None:
    data = oracles.generated(Task.MULTICLASS, 900)
    cuts = local_cuts(data, BOOSTER.max_bin)
    alone = grown(Table.of(data, cuts, 0.25, 1), data, None)
    table = DaskTable(cluster, data, cuts, 0.25, n_parts)
    assert len(table.spans) == (n_parts or 2)
    assert grown(table, data, workers) == alone
    some = slice(250, 700)
    assert np.array_equal(
        table.values(cuts, some), Table.of(data, cuts, 0.25, 1).values(cuts, some), equal_nan=True
    )


def test_more_parts_than_rows_leave_none_empty(cluster: DaskCluster) -> None:
    data = oracles.generated(Task.BINARY, 100).take(np.arange(3))
    table = DaskTable(cluster, data, local_cuts(data, 4), 0.0, 7)
    assert len(table.spans) == 3


def test_what_cannot_be_binned_is_said_as_in_one_process(cluster: DaskCluster) -> None:
    data = oracles.generated(Task.BINARY, 100).take(np.arange(100))  # a copy of what tests share
    cuts = local_cuts(data, 4)
    data.X[77, 0] = np.inf
    with pytest.raises(DataError, match="feature 0 has values outside its bins"):
        DaskTable(cluster, data, cuts, 0.0)


class KillingLink(MemoryLink):
    """A silo's end, at which one of its cluster's workers is killed in the middle of a tree."""

    workers: Workers

    def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
        if self.silo == "b" and step.name == "histograms-plain" and at == ExchangeKey(1, 1):
            self.workers.kill()
        return super().exchange(step, at, offer)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "options"),
    [
        (Task.BINARY, {"validation": 0.2}),
        (Task.REGRESSION, {"min_cell": 5}),
        (Task.MULTICLASS, {"coarse_bits": 5, "sampling": "mvs", "sampling_rate": 0.6}),
    ],
)
def test_the_model_of_a_job_is_that_without_a_cluster_also_when_a_worker_dies(
    cluster: DaskCluster, workers: Workers, task: Task, options: dict[str, Any]
) -> None:
    strategy = Histogram(rounds=3, binning="summary", secure=False, **options)
    booster = BOOSTER
    if task is Task.REGRESSION:  # leaves of quantiles ask which leaf each row is in
        booster = replace(BOOSTER, objective="reg:absoluteerror", min_child_weight=5.0)
    job = JobParameters("d", strategy, task=task, seed=7, booster=booster)
    job.parameters.validate(job)
    data = oracles.generated(task, 1200)
    silos = {"a": data.take(np.arange(500)), "b": data.take(np.arange(500, 1200))}
    KillingLink.workers = workers
    made: list[DaskTable] = []

    def spread(*given: Any) -> DaskTable:
        made.append(DaskTable(cluster, *given, n_parts=3))
        return made[-1]

    def on_cluster(parameters: Any, link: Any, vault: Any, start: Any) -> Any:
        if start.silo == "b":
            start = replace(start, storage=Storage(elsewhere=spread))
        return participate(parameters, link, vault, start)

    models = []
    for other in ({}, {"participate_as": on_cluster, "make_link": KillingLink}):
        outcome = run_in_memory(job, silos, **other)  # type: ignore[arg-type]
        assert outcome.error is None, outcome.error
        assert not outcome.errors
        assert outcome.artefact is not None
        models.append(outcome.artefact.files["model.ubj"])
    assert models[0] == models[1]
    assert len(made) == (2 if options.get("validation") else 1)


def histogram_job() -> tuple[JobParameters, Dataset]:
    return JobParameters("d", Histogram(rounds=1)), oracles.generated(Task.BINARY, 30)


def test_a_cluster_that_is_not_there_is_said_before_a_job_is_accepted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dask_cluster, "CONNECT_SECONDS", 0.5)
    gone = DaskCluster("tcp://127.0.0.1:9")
    limit = MemoryLimit(None, MappedFiles(tmp_path), cluster=gone)
    with pytest.raises(FederationError, match="no Dask scheduler responds at tcp://127"):
        limit.check(*histogram_job())


def test_workers_that_are_none_or_of_another_version_are_said_before_a_job_is_accepted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dask_cluster, "CONNECT_SECONDS", 0.5)
    about = tmp_path / "other" / "hedgerow-9.9.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: hedgerow\nVersion: 9.9\n")
    workers = Workers()
    try:
        limit = MemoryLimit(None, MappedFiles(tmp_path), cluster=workers.cluster)
        with pytest.raises(FederationError, match="the Dask cluster has no workers"):
            limit.check(*histogram_job())
        monkeypatch.setattr(dask_cluster, "CONNECT_SECONDS", 60.0)
        workers.start(tmp_path, about.parent)
        with pytest.raises(FederationError, match="in the agent, received version 9"):
            limit.check(*histogram_job())
    finally:
        workers.close()


def vaults(silo: str) -> LocalVault:
    return LocalVault(engine=Engine(workers=1), insecure_test_keys=True)


@pytest.mark.parametrize("scheme", ["paillier", "elgamal"])
def test_ciphertexts_on_workers_sum_as_in_one_vault_also_when_one_dies(
    cluster: DaskCluster, workers: Workers, scheme: Any
) -> None:
    active, passive = vaults("a"), DaskCiphers(cluster, vaults("b"), 3, insecure_test_keys=True)
    rng = np.random.default_rng(4)
    n, n_bins = 61, [3, 4]
    bins = rng.integers(0, n_bins, size=(n, 2)).astype(np.uint8)
    grad, hess = rng.uniform(-1, 1, (n, 1)), rng.uniform(0, 1, (n, 1))
    layout = PairLayout.fit(n_rows=n, max_abs_grad=1.0, max_hess=1.0, fraction_bits=20)
    key = active.create_cipher_key("job", 512, scheme)
    rows = active.encrypt_gradients("job", layout, grad, hess)
    alone = vaults("c")
    nodes = [np.arange(n), np.flatnonzero(rng.random(n) < 0.3), np.array([0])]
    order = rng.permutation(3 * 8)[:9]
    for vault in (alone, passive):
        vault.hold_rows("job", key, layout, rows, bins, n_bins)
    for options in ({}, {"cumulative": True, "missing": [False, True], "order": order}):
        n_sums = len(order) if options else 3 * 7
        read = [
            active.decrypt_histograms(
                "job", layout, vault.sum_bins("job", nodes, **options), n_sums
            )
            for vault in (alone, passive)
        ]
        assert all(np.array_equal(one, other) for one, other in zip(*read, strict=True))
        if not options:
            workers.kill()
    one, two = (passive.sum_bins("job", nodes[:1])[0] for _ in range(2))
    assert not np.array_equal(one, two), "what leaves the party is re-randomised"
    passive.hold_rows("job", key, layout, rows, bins, n_bins, 40)
    with pytest.raises(HistogramRefused, match="differ by 40 rows"):
        passive.sum_bins("job", nodes[1:2])
    bad = [np.full_like(part, 255) for part in rows]
    with pytest.raises(REFUSED):
        passive.hold_rows("job", key, layout, bad, bins, n_bins)
    passive.forget_session("job")
    with pytest.raises(NothingHeld):
        passive.sum_bins("job", nodes)


def test_a_vertical_job_whose_ciphertexts_are_on_workers_makes_the_same_trees(
    cluster: DaskCluster, workers: Workers
) -> None:
    class Killing(DaskCiphers):
        calls = 0

        def sum_bins(self, *given: Any, **options: Any) -> Any:
            Killing.calls += 1
            if Killing.calls == 3:
                workers.kill()
            return super().sum_bins(*given, **options)

    made = {silo: vaults(silo) for silo in ("guest", "host-1")}
    spread = made | {"host-1": Killing(cluster, made["host-1"], 3, insecure_test_keys=True)}
    job = vertical.job(rounds=2)
    parties = vertical.cut_by_columns(vertical.table(300, 4, missing=0.1), [2, 2])
    found = []
    for of_silo in (made, spread):
        outcome = run_in_memory(
            job, parties, schema=parties["guest"].schema, vaults=of_silo.__getitem__
        )
        assert outcome.error is None, outcome.error
        active, passive = vertical.parts(outcome.kept)
        own = [(t.left, t.owner, t.threshold, t.value, t.gain, t.cover) for t in active.trees]
        found.append((own, passive["host-1"].nodes))
    assert found[0] == found[1]
    assert Killing.calls > 3


def test_a_passive_partys_cluster_is_looked_at_before_a_vertical_job_is_accepted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dask_cluster, "CONNECT_SECONDS", 0.5)
    limit = MemoryLimit(None, MappedFiles(tmp_path), cluster=DaskCluster("tcp://127.0.0.1:9"))
    parties = vertical.cut_by_columns(vertical.table(60, 4), [2, 2])
    limit.check(vertical.job(), parties["guest"])
    with pytest.raises(FederationError, match="no Dask scheduler responds"):
        limit.check(vertical.job(), parties["host-1"])


def test_a_silo_with_a_cluster_grows_the_trees_of_fedxgbllr_there(cluster: DaskCluster) -> None:
    rng = np.random.default_rng(5)
    X = rng.integers(0, 20, size=(300, 3)).astype(np.float32)
    schema = Schema(tuple(Feature(f"x{j}") for j in range(3)), "label", Task.BINARY, 2)
    data = Dataset(schema, X, (X[:, 0] + rng.normal(0, 3, 300) > 10).astype(np.float64))
    silos = {"a": data.take(np.arange(100)), "b": data.take(np.arange(100, 300))}
    parameters = stacking.small(trees=4, rounds=1, combiner="mean", secure=False)
    job = JobParameters("d", parameters, task=Task.BINARY, seed=7, booster=Booster(max_depth=3))
    used: list[int] = []

    class Trainer(DaskTrainer):
        def __call__(self, *given: Any) -> Any:
            used.append(given[3])
            return super().__call__(*given)

    def on_cluster(given: Any, link: Any, vault: Any, start: Any) -> Any:
        if start.silo == "b":
            start = replace(start, trainer=Trainer(cluster))
        return stacked(given, link, vault, start)

    shapes = []
    for other in ({}, {"participate_as": on_cluster}):
        outcome = run_in_memory(job, silos, **other)  # type: ignore[arg-type]
        assert outcome.error is None, outcome.error
        assert not outcome.errors
        assert outcome.artefact is not None
        trees = StackedModel.load(outcome.artefact.files).ensemble.trees
        shapes.append([(tree.left.tolist(), tree.feature.tolist()) for tree in trees])
    assert shapes[0] == shapes[1]
    assert used == [2]  # of both silos' four
