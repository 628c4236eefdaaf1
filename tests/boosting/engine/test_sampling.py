"""Samplers: exact thresholds, unbiased sums, sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.boosting.engine.sampling import (
    Sampler,
    ThresholdSearch,
    goss,
    mvs,
    mvs_scores,
    mvs_threshold,
    uniform,
)
from hedgerow.boosting.errors import InvalidJob


@pytest.mark.parametrize(
    ("rate", "mu", "p"),
    [(0.5, 5.0, [0.8, 0.6, 0.4, 0.2]), (0.75, 3.0, [1.0, 1.0, 2 / 3, 1 / 3])],
)
def test_mvs_thresholds_meet_the_printed_vectors(rate: float, mu: float, p: list[float]) -> None:
    scores = np.array([4.0, 3.0, 2.0, 1.0])
    assert mvs_threshold(scores, rate) == pytest.approx(mu, rel=1e-12)
    assert np.minimum(1, scores / mu).tolist() == pytest.approx(p)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(0, 1e3).map(lambda v: round(v, 2)), min_size=1, max_size=60),
    st.floats(0.02, 0.98),
)
def test_the_threshold_is_the_root_of_the_expected_count(values: list[float], rate: float) -> None:
    scores = np.array(values)
    mu = mvs_threshold(scores, rate)
    target = max(1.0, rate * scores.shape[0])
    if mu == 0.0:
        assert target >= np.count_nonzero(scores)
    else:
        assert np.minimum(1, scores / mu).sum() == pytest.approx(target, rel=1e-9)


def test_equal_scores_are_kept_at_the_rate() -> None:
    assert 1.0 / mvs_threshold(np.ones(1000), 0.3) == pytest.approx(0.3)


def test_mvs_sums_are_unbiased_and_certain_rows_have_weight_one() -> None:
    rng = np.random.default_rng(0)
    scores = rng.exponential(size=4000)
    mu = mvs_threshold(scores, 0.2)
    drawn = [mvs(scores, mu, rng) for _ in range(200)]
    sums = [float((scores[s.rows] * s.weight).sum()) for s in drawn]
    assert np.mean(sums) == pytest.approx(scores.sum(), rel=0.01)
    assert np.mean([s.rows.shape[0] for s in drawn]) == pytest.approx(800, rel=0.02)
    for sample in drawn[:5]:
        assert np.all(np.diff(sample.rows) > 0)
        certain = scores[sample.rows] >= mu
        assert np.all(sample.weight[certain] == 1.0)


def test_mvs_keeps_at_least_the_largest_row() -> None:
    class Never:
        def random(self, n: int, dtype: type) -> np.ndarray:  # type: ignore[type-arg]
            return np.full(n, 0.999999, dtype)

    sample = mvs(np.array([0.1, 0.3, 0.2]), 1.0, Never())  # type: ignore[arg-type]
    assert sample.rows.tolist() == [1]
    assert sample.weight == pytest.approx([1 / 0.3])


def test_mvs_drops_rows_without_gradient_when_the_rate_covers_the_others() -> None:
    scores = np.array([0.0, 1.0, 0.0, 2.0])
    assert mvs_threshold(scores, 0.6) == 0.0
    sample = mvs(scores, 0.0, np.random.default_rng(0))
    assert sample.rows.tolist() == [1, 3]
    assert sample.weight is None


def test_scores_are_norms_over_outputs() -> None:
    g = np.array([[3.0, 4.0]], np.float32)
    h = np.array([[1.0, 2.0]], np.float32)
    assert mvs_scores(g, h, 0.5)[0] == pytest.approx(np.sqrt(25 + 0.5 * 5))


def test_goss_keeps_the_top_and_weights_the_rest_up() -> None:
    rng = np.random.default_rng(1)
    scores = np.round(rng.random(1000), 2).astype(np.float32)
    sample = goss(scores, 0.2, 0.1, rng)
    assert sample.rows.shape[0] == 300
    assert np.all(np.diff(sample.rows) > 0)
    top = np.argsort(-scores, kind="stable")[:200]
    assert np.all(np.isin(top, sample.rows[sample.weight == 1.0]))
    assert np.unique(sample.weight).tolist() == [1.0, 8.0]


@pytest.mark.parametrize("n", [0, 1, 4, 9])
def test_goss_keeps_all_of_too_few_rows(n: int) -> None:
    sampler = Sampler("goss")
    g = np.linspace(-1, 1, n, dtype=np.float32)[:, None]
    sample = sampler.draw(g, np.ones_like(g), np.random.default_rng(1))
    assert sample.rows.tolist() == list(range(n))
    assert sample.weight is None
    assert sampler.fewest(n) == n
    assert not sampler.keeps_all(10)


def test_uniform_keeps_the_rate_and_reweights_only_when_asked() -> None:
    rng = np.random.default_rng(2)
    sample = uniform(20000, 0.25, True, rng)
    assert sample.rows.shape[0] == pytest.approx(5000, rel=0.05)
    assert sample.weight is not None
    assert np.all(sample.weight == 4.0)
    assert uniform(100, 0.5, False, rng).weight is None


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.8])
def test_a_global_threshold_from_summed_histograms_is_close_to_the_exact_one(rate: float) -> None:
    rng = np.random.default_rng(3)
    silos = [rng.exponential(s, n) for s, n in ((1.0, 3000), (20.0, 500), (1e-3, 800))]
    pooled = np.concatenate(silos)
    search = ThresholdSearch(pooled.shape[0], rate, float(pooled.max()) * 1.7)
    for _ in range(search.N_PASSES):
        search.take(np.sum([search.own(s) for s in silos], axis=0))
    assert search.mu == pytest.approx(mvs_threshold(pooled, rate), rel=1e-3)


def test_every_row_is_kept_without_sampling() -> None:
    g = np.ones((5, 1), np.float32)
    sample = Sampler().draw(g, g, np.random.default_rng(0))
    assert sample.rows.tolist() == [0, 1, 2, 3, 4]
    assert sample.weight is None


def test_the_same_stream_draws_the_same_rows() -> None:
    g = np.random.default_rng(0).normal(size=(500, 2)).astype(np.float32)
    h = np.abs(g)
    for method in ("uniform", "mvs", "goss"):
        sampler = Sampler(method, 0.3)
        one, two = (sampler.draw(g, h, np.random.default_rng(7)) for _ in range(2))
        assert np.array_equal(one.rows, two.rows)


@pytest.mark.parametrize("bad", [{"method": "best"}, {"rate": 0.0}, {"top_rate": 0.95}])
def test_bad_parameters_are_named(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidJob):
        Sampler(**bad)  # type: ignore[arg-type]
