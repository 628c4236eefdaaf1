"""Rows on a Dask cluster: the sums, margins and models of one process, byte for byte."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pytest

from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.engine.cuts import local_cuts
from hedgerow.boosting.engine.grower import Grower
from hedgerow.boosting.engine.histogram import layout_of
from hedgerow.boosting.engine.splitting import Scale, TreeParameters
from hedgerow.boosting.engine.table import Rows, Table, TreeIntegers
from hedgerow.boosting.errors import DataError, FederationError
from hedgerow.boosting.exchange import Place, Step
from hedgerow.boosting.job import Booster
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.storage import Storage
from hedgerow.boosting.strategies.histogram import participate
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.client_agent import dask_cluster
from hedgerow.client_agent.dask_cluster import DaskCluster
from hedgerow.client_agent.dask_tables import DaskTable
from hedgerow.client_agent.memory import MappedFiles, MemoryLimit
from tests import oracles
from tests.federation.memory import MemoryLink, run_in_memory

ROOT = Path(__file__).resolve().parents[2]
BOOSTER = Booster(max_depth=3, max_bin=16)


class Workers:
    """A scheduler in this process and workers in processes of their own, to be killed."""

    def __init__(self) -> None:
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


def grown(rows: Rows, data: Dataset, workers: Workers | None) -> list[bytes]:
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
    seen.append(division.leaf_sums([grower.leaves for grower in growers]).tobytes())
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

    def exchange(self, step: Step[Any, Any], at: Place, offer: Any) -> Any:
        if self.silo == "b" and step.name == "histograms-plain" and at == Place(1, 1):
            self.workers.kill()
        return super().exchange(step, at, offer)


@pytest.mark.parametrize(
    ("task", "options"),
    [
        (Task.BINARY, {"validation": 0.2}),
        (Task.MULTICLASS, {"coarse_bits": 5, "sampling": "mvs", "sampling_rate": 0.6}),
    ],
)
def test_the_model_of_a_job_is_that_without_a_cluster_also_when_a_worker_dies(
    cluster: DaskCluster, workers: Workers, task: Task, options: dict[str, Any]
) -> None:
    strategy = Histogram(rounds=3, binning="summary", secure=False, **options)
    job = JobParameters("d", strategy, task=task, seed=7, booster=BOOSTER)
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
