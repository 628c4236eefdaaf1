"""The engine as a whole: growth, vector leaves, samples, coarse search, export."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import xgboost as xgb

from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.engine.binning import bin_features
from hedgerow.boosting.engine.cuts import Cuts, local_cuts
from hedgerow.boosting.engine.grower import ColumnSampler, Grower, GrownTree
from hedgerow.boosting.engine.histogram import build_histograms, node_sums
from hedgerow.boosting.engine.objective import objective_of
from hedgerow.boosting.engine.partition import RowPartition
from hedgerow.boosting.engine.quantising import Quantiser
from hedgerow.boosting.engine.sampling import Sample, Sampler
from hedgerow.boosting.engine.splitting import TreeParameters
from hedgerow.boosting.job import Booster
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.trees.ensemble import Ensemble
from tests import oracles
from tests.pooled import Training, train_pooled


def job_of(data: Dataset, booster: Booster) -> JobParameters:
    return JobParameters("job", None, task=data.schema.task, seed=5, booster=booster)  # type: ignore[arg-type]


def mean_loss(ensemble: Ensemble, data: Dataset, booster: Booster) -> float:
    job = job_of(data, booster)
    objective = objective_of(job.objective, job.task, booster)
    margins = ensemble.margins(
        xgb.DMatrix(data.X, feature_types=data.schema.feature_types, enable_categorical=True)
    )
    return float(objective.losses(margins.reshape(data.n_samples, -1), data.labels).mean())


def grow(data: Dataset, cuts: Cuts, booster: Booster, silos: int) -> tuple[GrownTree, list[int]]:
    """Drive one grower by the summed histograms of several silos."""
    objective = objective_of("binary:logistic", Task.BINARY, booster)
    margins = np.zeros((data.n_samples, 1), np.float32)
    g, h = objective.gradients(margins, data.labels)
    quantiser = Quantiser.fitting(data.n_samples, (1.0, 1.0))
    q = quantiser.lossless(g, h, Sample(np.arange(data.n_samples, dtype=np.int32)))
    binned = bin_features(data.X, cuts)
    parts = [
        RowPartition(rows.astype(np.int32))
        for rows in np.array_split(np.arange(data.n_samples), silos)
    ]
    totals = sum(node_sums(part, [0], q)[0] for part in parts)
    grower = Grower(
        cuts, TreeParameters.of(booster, cuts.n_features), quantiser.scale, np.asarray(totals)
    )
    requests = []
    while grower.request:
        requests.append(len(grower.request))
        summed = sum(
            build_histograms(binned, part, grower.request, q, grower.layout) for part in parts
        )
        splits = grower.supply(np.asarray(summed))
        for part in parts:
            part.split_by_bins(binned, splits)
    return grower.finish(), requests


@pytest.mark.parametrize("silos", [1, 3, 8])
@pytest.mark.parametrize("policy", ["depthwise", "lossguide"])
def test_silos_sums_grow_the_pooled_tree_bit_for_bit(silos: int, policy: str) -> None:
    data = oracles.generated(Task.BINARY)
    booster = Booster(max_depth=6, max_leaves=25, grow_policy=policy, base_score=0.5)
    cuts = local_cuts(data, 64)
    pooled = train_pooled(job_of(data, booster), data, 1, Training(cuts=cuts)).trees[0]
    grown, requests = grow(data, cuts, booster, silos)
    tree = grown.trees(cuts, [0])[0]
    for name in ("left", "feature", "threshold", "default_left", "gain", "cover", "weight"):
        assert np.array_equal(getattr(tree, name), getattr(pooled, name)), name
    assert sum(requests) < 25  # one child of each pair is enough


def test_a_tree_may_be_closed_at_any_time() -> None:
    data = oracles.generated(Task.BINARY)
    cuts = local_cuts(data, 32)
    objective = objective_of("bce", Task.BINARY, Booster())
    g, h = objective.gradients(np.zeros((data.n_samples, 1), np.float32), data.labels)
    quantiser = Quantiser.fitting(data.n_samples, (1.0, 1.0))
    q = quantiser.lossless(g, h, Sample(np.arange(data.n_samples, dtype=np.int32)))
    binned = bin_features(data.X, cuts)
    partition = RowPartition(np.arange(data.n_samples, dtype=np.int32))
    parameters = TreeParameters.of(Booster(), cuts.n_features)
    grower = Grower(cuts, parameters, quantiser.scale, node_sums(partition, [0], q)[0])
    for n_supplied in range(3):
        histograms = build_histograms(binned, partition, grower.request, q, grower.layout)
        partition.split_by_bins(binned, grower.supply(histograms))
        assert grower.leaves == tuple(sorted(partition.nodes))
        assert len(grower.leaves) == 2 ** (n_supplied + 1)
    tree = grower.finish()
    assert tree.leaves.tolist() == sorted(partition.nodes)
    exact = node_sums(partition, tree.leaves.tolist(), q)
    assert np.allclose(tree.cover[tree.leaves], exact[:, 1] * quantiser.scale.hess)


@pytest.mark.parametrize("task", list(Task))
@pytest.mark.parametrize("sampler", [Sampler(), Sampler("mvs", 0.3)], ids=["all", "mvs"])
def test_training_margins_are_those_of_the_exported_model(task: Task, sampler: Sampler) -> None:
    data = oracles.generated(task)
    booster = Booster(max_depth=4, eta=0.4, max_bin=32)
    one = train_pooled(job_of(data, booster), data, 3, Training(sampler=sampler))
    objective = objective_of(job_of(data, booster).objective, task, booster)
    rows = xgb.DMatrix(data.X, feature_types=data.schema.feature_types, enable_categorical=True)
    margins = one.margins(rows).reshape(data.n_samples, -1)
    # Trees of a fourth round are grown from the trainer's own margins: equal trees, equal margins.
    g, h = objective.gradients(margins, data.labels)
    four = train_pooled(job_of(data, booster), data, 4, Training(sampler=sampler))
    before = zip(one.trees, four.trees, strict=False)
    assert all(np.array_equal(a.threshold, b.threshold) for a, b in before)
    if sampler.method == "none":
        root = four.trees[len(one.trees)]
        assert root.cover[0] == pytest.approx(float(h[:, 0].astype(np.float64).sum()), rel=1e-6)
        expected = -g[:, 0].astype(np.float64).sum() / (h[:, 0].astype(np.float64).sum() + 1)
        assert root.weight[0] == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_vector_leaves_share_one_shape_and_learn() -> None:
    data = oracles.generated(Task.MULTICLASS)
    booster = Booster(max_depth=4, max_bin=32)
    job = job_of(data, booster)
    ensemble = train_pooled(job, data, 4, Training(multi_output=True))
    assert len(ensemble.trees) == 16
    for step in range(4):
        shapes = ensemble.trees[4 * step : 4 * step + 4]
        assert [t.group for t in shapes] == [0, 1, 2, 3]
        assert all(np.array_equal(t.left, shapes[0].left) for t in shapes)
        assert all(np.array_equal(t.feature, shapes[0].feature) for t in shapes)
    start = mean_loss(train_pooled(job, data, 0), data, booster)
    assert mean_loss(ensemble, data, booster) < 0.9 * start


@pytest.mark.parametrize("method", ["uniform", "goss", "mvs"])
def test_samples_of_blocks_are_drawn_from_each_silos_own_stream(method: str) -> None:
    data = oracles.generated(Task.BINARY)
    booster = Booster(max_depth=4, max_bin=32)
    cuts = local_cuts(data, 32)
    sampler = Sampler(method, 0.4)
    runs = [
        train_pooled(
            job_of(data, booster), data, 3, Training(cuts=cuts, sampler=sampler, blocks=blocks)
        )
        for blocks in ((1000, 2000), (1000, 2000), (2000, 1000))
    ]
    same = [
        all(
            np.array_equal(a.threshold, b.threshold)
            for a, b in zip(runs[0].trees, r.trees, strict=True)
        )
        for r in runs[1:]
    ]
    assert same == [True, False]
    start = mean_loss(runs[0].slice(0), data, booster)
    assert mean_loss(runs[0], data, booster) < 0.9 * start


def test_coarse_gradients_lose_little_and_their_leaves_are_exact() -> None:
    data = oracles.generated(Task.BINARY)
    booster = Booster(max_depth=5, max_bin=32, base_score=0.5)
    cuts = local_cuts(data, 32)
    job = job_of(data, booster)
    exact = train_pooled(job, data, 8, Training(cuts=cuts))
    coarse = train_pooled(job, data, 8, Training(cuts=cuts, coarse_bits=5))
    assert mean_loss(coarse, data, booster) < 1.05 * mean_loss(exact, data, booster)
    tree = coarse.trees[0]
    leaves = tree.is_leaf
    # Squared sums of h: at margin 0 every row has h = 1/4, so an exact cover is a multiple of it.
    assert np.array_equal(tree.cover[leaves] * 4, np.round(tree.cover[leaves] * 4))
    assert tree.cover[leaves].sum() == data.n_samples / 4


@pytest.mark.parametrize("ring_bits", [48, 64])
def test_threads_and_rings_keep_structures(ring_bits: int) -> None:
    data = oracles.generated(Task.BINARY)
    booster = Booster(max_depth=5, max_bin=64)
    cuts = local_cuts(data, 64)
    plain = train_pooled(job_of(data, booster), data, 4, Training(cuts=cuts))
    other = train_pooled(
        job_of(data, booster), data, 4, Training(cuts=cuts, ring_bits=ring_bits, n_threads=2)
    )
    for a, b in zip(plain.trees, other.trees, strict=True):
        assert np.array_equal(a.left, b.left)
        assert np.array_equal(a.feature, b.feature)
        assert np.allclose(a.threshold, b.threshold, atol=1e-6)
        assert ring_bits == 48 or np.array_equal(a.threshold, b.threshold)


def test_column_samples_are_nested_and_repeatable() -> None:
    parameters = TreeParameters.of(
        Booster(colsample_bytree=0.5, colsample_bylevel=0.6, colsample_bynode=0.5), 40
    )
    one, two = (ColumnSampler(40, parameters, np.random.default_rng(3)) for _ in range(2))
    assert one.of_tree.shape == (20,)
    for depth in (0, 1, 1, 2):
        features = one.of_node(depth)
        assert features.shape == (6,)
        assert np.all(np.isin(features, one.of_tree))
        assert np.array_equal(features, two.of_node(depth))


def test_trees_use_only_their_sampled_columns() -> None:
    data = oracles.generated(Task.BINARY)
    booster = Booster(max_depth=4, max_bin=32, colsample_bytree=0.4)
    ensemble = train_pooled(job_of(data, booster), data, 6)
    used = [set(t.feature[~t.is_leaf].tolist()) for t in ensemble.trees]
    assert all(len(u) <= 2 for u in used)
    assert len(set().union(*used)) > 2


def test_a_table_without_signal_gives_single_leaves() -> None:
    data = oracles.generated(Task.REGRESSION)
    flat = replace(data, y=np.full(data.n_samples, 2.5))
    ensemble = train_pooled(job_of(flat, Booster()), flat, 2)
    assert [t.n_nodes for t in ensemble.trees] == [1, 1]
    assert mean_loss(ensemble, flat, Booster()) == pytest.approx(0.0, abs=1e-12)
