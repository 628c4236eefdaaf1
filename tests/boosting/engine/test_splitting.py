"""Split search against a naive loop over all ways to divide a node."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Feature, Schema, Task
from hedgerow.boosting.engine.cuts import cuts_from_thresholds
from hedgerow.boosting.engine.histogram import layout_of
from hedgerow.boosting.engine.splitting import (
    Scale,
    TreeParameters,
    find_splits,
    gains_of_candidates,
    node_weights,
)
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.job import Booster

SCALE = Scale(2.0**-10, 2.0**-10)
SIZES = (5, 1, 7)
CATEGORIES = 4


def make(n_outputs: int, seed: int, missing: bool = True):  # type: ignore[no-untyped-def]
    """Make histograms of features with 5, 1 and 7 bins and one of 4 categories, for 6 nodes."""
    rng = np.random.default_rng(seed)
    features = [Feature(f"f{j}") for j in range(len(SIZES))]
    features.append(Feature("c", tuple("abcd")))
    schema = Schema(tuple(features), "y", Task.REGRESSION, 0)
    cuts = cuts_from_thresholds(schema, [np.arange(n - 1, dtype=np.float32) for n in SIZES])
    n_rows = 60
    histograms = np.zeros((6, int(cuts.n_bins.sum()), 2 * n_outputs), np.int64)
    totals = np.zeros((6, 2 * n_outputs), np.int64)
    for s in range(6):
        q = rng.integers(-3000, 3000, (n_rows, 2 * n_outputs))
        q[:, 1::2] = np.abs(q[:, 1::2]) // 3
        totals[s] = q.sum(axis=0)
        for j, n_bins in enumerate(cuts.n_bins):
            bins = rng.integers(0, n_bins + (1 if missing else 0), n_rows)
            for b in range(n_bins):
                histograms[s, cuts.offsets[j] + b] = q[bins == b].sum(axis=0)
    return histograms, totals, layout_of(cuts), cuts


def value(sums: NDArray[np.int64], p: TreeParameters) -> float:
    total = 0.0
    for g, h in sums.reshape(-1, 2):
        g, h = g * SCALE.grad, h * SCALE.hess
        t = np.sign(g) * max(abs(g) - p.alpha, 0.0)
        total += t * t / (h + p.lambda_) if h > 0 else 0.0
    return total


def naive_best(histogram, total, cuts, p, allowed):  # type: ignore[no-untyped-def]
    """Try every division, categories as subsets where scanning them sorted is optimal too."""
    best = 0.0
    for j in np.flatnonzero(allowed):
        bins = histogram[cuts.offsets[j] : cuts.offsets[j + 1]]
        gone = total - bins.sum(axis=0)
        if cuts.categorical[j]:
            sides = [np.array([b]) for b in range(len(bins))]
        else:
            sides = [np.arange(b, len(bins)) for b in range(len(bins) + 1)]
        for side, with_missing in itertools.product(sides, (False, True)):
            right = bins[side].sum(axis=0) + (gone if with_missing else 0)
            left = total - right
            if min(left[1::2].sum(), right[1::2].sum()) * SCALE.hess < p.min_child_weight:
                continue
            best = max(best, value(left, p) + value(right, p) - value(total, p))
    return best


@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize(
    "booster",
    [
        Booster(max_cat_to_onehot=9),
        Booster(max_cat_to_onehot=9, lambda_=0.0, alpha=2.0, min_child_weight=5.0),
        Booster(max_cat_to_onehot=9, min_child_weight=0.0),
    ],
    ids=["plain", "regularised", "no minimum"],
)
def test_the_best_split_is_that_of_a_naive_search(n_outputs: int, booster: Booster) -> None:
    p = TreeParameters.of(booster, 4)
    for seed in range(4):
        histograms, totals, layout, cuts = make(n_outputs, seed)
        allowed = np.random.default_rng(seed).random((6, 4)) < 0.7
        found = find_splits(histograms, totals, layout, cuts, p, SCALE, allowed=allowed)
        for s in range(6):
            best = naive_best(histograms[s], totals[s], cuts, p, allowed[s])
            assert found.gain[s] == pytest.approx(best, rel=1e-5, abs=1e-4)
            if found.feature[s] >= 0:
                assert allowed[s, found.feature[s]]
                left, right = found.left[s], totals[s] - found.left[s]
                change = value(left, p) + value(right, p) - value(totals[s], p)
                assert found.gain[s] == pytest.approx(change, rel=1e-5, abs=1e-4)


def test_sorted_categories_reach_the_best_of_all_subsets() -> None:
    p = TreeParameters.of(Booster(lambda_=0.0, min_child_weight=0.0, max_cat_to_onehot=1), 4)
    for seed in range(6):
        histograms, totals, layout, cuts = make(1, seed, missing=False)
        only = np.zeros((6, 4), bool)
        only[:, 3] = True
        found = find_splits(histograms, totals, layout, cuts, p, SCALE, allowed=only)
        for s in range(6):
            bins = histograms[s, cuts.offsets[3] :]
            best = max(
                value(bins[list(c)].sum(axis=0), p)
                + value(totals[s] - bins[list(c)].sum(axis=0), p)
                - value(totals[s], p)
                for n in range(1, CATEGORIES)
                for c in itertools.combinations(range(CATEGORIES), n)
            )
            assert found.gain[s] == pytest.approx(best, rel=1e-5)


def test_of_equal_splits_the_first_feature_and_lowest_bin_win() -> None:
    schema = Schema((Feature("a"), Feature("b")), "y", Task.REGRESSION, 0)
    cuts = cuts_from_thresholds(schema, [np.arange(3, dtype=np.float32)] * 2)
    one = np.array([[-9, 9], [0, 0], [0, 0], [9, 9]]) * 1024
    histograms = np.concatenate([one, one])[None].astype(np.int64)
    p = TreeParameters.of(Booster(), 2)
    found = find_splits(
        histograms, one.sum(axis=0)[None].astype(np.int64), layout_of(cuts), cuts, p, SCALE
    )
    assert (found.feature[0], found.bin[0], found.default_left[0]) == (0, 0, False)


def test_monotone_children_are_in_order() -> None:
    for direction in (-1, 1):
        p = TreeParameters.of(Booster(monotone_constraints=(direction,) * 3), 4)
        for seed in range(4):
            histograms, totals, layout, cuts = make(1, seed)
            found = find_splits(histograms, totals, layout, cuts, p, SCALE)
            for s in np.flatnonzero((found.feature >= 0) & (found.feature < 3)):
                left = node_weights(found.left[s][None], p, SCALE)[0, 0]
                right = node_weights((totals[s] - found.left[s])[None], p, SCALE)[0, 0]
                assert direction * (right - left) >= 0


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_anonymous_candidates_are_rated_as_the_search_rates_them(n_outputs: int) -> None:
    for booster in (Booster(alpha=0.5), Booster(max_delta_step=0.4 if n_outputs == 1 else 0.0)):
        p = TreeParameters.of(booster, 4)
        histograms, totals, layout, cuts = make(n_outputs, 3)
        found = find_splits(histograms, totals, layout, cuts, p, SCALE)
        for s in range(6):
            bins = histograms[s, cuts.offsets[2] : cuts.offsets[3]]
            candidates = np.concatenate([np.cumsum(bins, axis=0), found.left[s][None]])
            gains = gains_of_candidates(candidates, totals[s], p, SCALE)
            assert gains[-1] == found.gain[s]
            assert gains.max() == found.gain[s]


@pytest.mark.parametrize("n_threads", [2, 4])
def test_threads_find_the_same_splits(n_threads: int) -> None:
    histograms, totals, layout, cuts = make(1, 1)
    p = TreeParameters.of(Booster(), 4)
    one = find_splits(histograms, totals, layout, cuts, p, SCALE)
    many = find_splits(histograms, totals, layout, cuts, p, SCALE, n_threads=n_threads)
    for name in ("gain", "feature", "bin", "default_left", "left"):
        assert np.array_equal(getattr(one, name), getattr(many, name))


@pytest.mark.parametrize(
    "fields",
    [
        {"grow_policy": "breadth"},
        {"max_depth": 0},
        {"eta": 0.0},
        {"colsample_bynode": 1.5},
        {"lambda_": -1.0},
        {"monotone_constraints": (2,)},
    ],
)
def test_bad_parameters_are_named(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidJob, match=next(iter(fields)).rstrip("_")):
        TreeParameters.of(replace(Booster(), **fields), 4)  # type: ignore[arg-type]
