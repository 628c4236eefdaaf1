"""Gradients as integers: bounds, exactness, unbiased coarse rounding."""

from __future__ import annotations

import numpy as np
import pytest

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.engine.objective import objective_of
from hedgerow.boosting.engine.quantising import (
    Quantiser,
    bound_of_exponents,
    exponents,
    static_bound,
)
from hedgerow.boosting.engine.sampling import Sample, Sampler
from hedgerow.boosting.job import Booster

N = 400


def gradients(seed: int = 0, n_outputs: int = 2):  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)
    g = rng.normal(size=(N, n_outputs)).astype(np.float32)
    return g, np.abs(g) / 3


def test_lossless_integers_are_those_of_the_fixed_point() -> None:
    g, h = gradients()
    sample = Sample(np.arange(N, dtype=np.int32))
    quantiser = Quantiser.fitting(N, (8.0, 4.0))
    q = quantiser.lossless(g, h, sample)
    assert np.array_equal(q[:, ::2], quantiser.grad.quantise(g))
    assert np.array_equal(q[:, 1::2], quantiser.hess.quantise(h))


def test_only_kept_rows_are_weighted_and_rounded() -> None:
    g, h = gradients()
    rows = np.arange(0, N, 7, dtype=np.int32)
    weight = np.linspace(1, 3, rows.shape[0], dtype=np.float32)
    quantiser = Quantiser.fitting(N, (64.0, 64.0))
    q = quantiser.lossless(g, h, Sample(rows, weight))
    expected = quantiser.grad.quantise(g[rows] * weight[:, None])
    assert np.array_equal(q[rows][:, ::2], expected)


@pytest.mark.parametrize(
    ("bad", "kept"), [(np.nan, 0.0), (np.inf, 8.0), (-np.inf, -8.0), (9.0, 8.0), (-9.0, -8.0)]
)
def test_a_row_outside_the_bounds_is_clipped_and_nothing_else(bad: float, kept: float) -> None:
    """A silo that refused would tell that one of its rows is outside a bound it was told."""
    g, h = gradients()
    sample = Sample(np.arange(N, dtype=np.int32))
    quantiser = Quantiser.fitting(N, (8.0, 8.0))
    pairs = np.stack([g, h], axis=2).reshape(N, -1)
    inside = g.copy()
    g[3, 1] = pairs[3, 2] = bad
    inside[3, 1] = kept
    assert np.array_equal(quantiser.lossless(g, h, sample), quantiser.lossless(inside, h, sample))
    quantiser.weigh(pairs, sample)
    assert np.array_equal(pairs[:, 0::2], inside)
    if not np.isfinite(bad):
        assert exponents(g, h, sample)[0] == 128


def test_exponents_bound_the_kept_rows() -> None:
    g, h = gradients()
    sample = Sample(np.arange(5, dtype=np.int32), np.full(5, 2.0, np.float32))
    bound = bound_of_exponents(*exponents(g, h, sample))
    assert bound[0] / 2 < 2 * np.abs(g[:5]).max() <= bound[0]
    empty = Sample(np.empty(0, np.int32))
    assert bound_of_exponents(*exponents(g, h, empty))[0] < 1e-20


def test_coarse_levels_are_few_and_unbiased() -> None:
    g, h = gradients(n_outputs=1)
    sample = Sample(np.arange(N, dtype=np.int32))
    quantiser = Quantiser.fitting(N, (8.0, 4.0), coarse_bits=4)
    rng = np.random.default_rng(1)
    drawn = np.stack([quantiser.coarse(g, h, sample, rng) for _ in range(600)])
    assert np.abs(drawn[..., 0]).max() <= 7
    assert drawn[..., 1].min() >= 0
    assert drawn[..., 1].max() <= 15
    scale = quantiser.coarse_scale
    assert np.allclose(drawn[..., 0].mean(axis=0) * scale.grad, g[:, 0], atol=0.12)
    assert np.allclose(drawn[..., 1].mean(axis=0) * scale.hess, h[:, 0], atol=0.03)


@pytest.mark.parametrize(
    "sampler",
    [
        Sampler(),
        Sampler("uniform", 0.2),
        Sampler("goss"),
        Sampler("mvs", 0.1),
        Sampler("mvs", 0.4, mvs_lambda=0.01),
    ],
)
@pytest.mark.parametrize("name", ["binary:logistic", "softmax", "fair"])
def test_static_bounds_hold_for_every_sampler(sampler: Sampler, name: str) -> None:
    task = {"binary:logistic": Task.BINARY, "softmax": Task.MULTICLASS}.get(name, Task.REGRESSION)
    n_outputs = 3 if task is Task.MULTICLASS else 1
    objective = objective_of(name, task, Booster(scale_pos_weight=2.0))
    rng = np.random.default_rng(4)
    y = rng.integers(0, 2, N).astype(np.float64)
    weight = rng.uniform(0.1, 5.0, N)
    bound = static_bound(objective, sampler, n_outputs, float(weight.max()))
    assert bound is not None
    for scale in (1e-3, 1.0, 20.0):
        margins = (scale * rng.normal(size=(N, n_outputs))).astype(np.float32)
        g, h = objective.gradients(margins, y, weight)
        sample = sampler.draw(g, h, rng)
        kept = np.float32(1) if sample.weight is None else sample.weight[:, None]
        assert (np.abs(g[sample.rows] * kept) <= bound[0]).all()
        assert (h[sample.rows] * kept <= bound[1]).all()


def test_losses_without_a_bound_have_no_static_one() -> None:
    squared = objective_of("reg:squarederror", Task.REGRESSION, Booster())
    assert static_bound(squared, Sampler(), 1, 1.0) is None
    logistic = objective_of("bce", Task.BINARY, Booster())
    assert static_bound(logistic, Sampler("mvs", 0.5, mvs_lambda=0.0), 1, 1.0) is None
