from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow.crypto.ciphers.key_files import KeyFolder, SealingSecret
from hedgerow.crypto.errors import KeyRejected
from hedgerow.crypto.masking.noise import (
    Poisson,
    Polya,
    discrete_laplace_epsilon,
    discrete_laplace_part,
    discrete_laplace_variance,
    skellam_part,
    skellam_rho,
)
from hedgerow.crypto.vault.noise_keys import NoiseKey
from tests.late import Late

stats: Any = Late("scipy.stats")
special: Any = Late("scipy.special")


def entropy(seed: int) -> Callable[[int], bytes]:
    return np.random.default_rng(seed).bytes


def agreement(sample: np.ndarray, probability: Callable[[np.ndarray], np.ndarray]) -> float:
    """Return the p-value of a chi-squared test, with cells of at least ten expected."""
    values = np.arange(sample.min() - 50, sample.max() + 51)
    expected = probability(values) * len(sample)
    keep = values[expected >= 10]
    observed = np.array([(sample == v).sum() for v in keep])
    wanted = expected[expected >= 10]
    observed = np.append(observed, len(sample) - observed.sum())
    wanted = np.append(wanted, len(sample) - wanted.sum())
    return float(stats.chisquare(observed, wanted, sum_check=False).pvalue)


def laplace(epsilon: float) -> Callable[[np.ndarray], np.ndarray]:
    q = np.exp(-epsilon)
    return lambda k: (1 - q) / (1 + q) * q ** np.abs(k.astype(float))


@pytest.mark.parametrize("parts", [1, 3, 20])
@pytest.mark.parametrize("exponent", [Fraction(1, 3), Fraction(2)])
def test_polya_variables_have_their_distribution(parts: int, exponent: Fraction) -> None:
    sample = Polya(exponent, parts).sample(60_000, entropy(parts))
    q = float(np.exp(-float(exponent)))
    assert agreement(sample, lambda k: stats.nbinom.pmf(k, 1 / parts, 1 - q)) > 1e-3


@pytest.mark.parametrize("honest", [1, 4])
@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_the_honest_silos_parts_add_up_to_discrete_laplace(honest: int, epsilon: float) -> None:
    source = entropy(7)
    sample = sum(
        discrete_laplace_part(50_000, epsilon, honest=honest, entropy=source) for _ in range(honest)
    )
    assert agreement(np.asarray(sample), laplace(epsilon)) > 1e-3


def test_neighbouring_counts_differ_by_a_factor_of_at_most_exp_epsilon() -> None:
    """The definition of differential privacy, on the exact probabilities of the sampler."""
    epsilon, sensitivity = 0.7, 3
    _, table = Polya(Fraction(epsilon) / sensitivity, 1)._table(128)
    geometric = np.diff(np.array([0, *table[:60]], dtype=object)) / 2**128
    ratios = np.array(geometric[1:] / geometric[:-1], dtype=float)
    np.testing.assert_allclose(ratios, np.exp(-epsilon / sensitivity), rtol=1e-12)


def test_undecided_draws_get_more_bits_and_the_same_distribution() -> None:
    """With five bits at first, nearly every draw is decided by the bits drawn later."""
    exponent = Fraction(1, 2)
    coarse = Polya(exponent, 2, word_bits=5).sample(40_000, entropy(3))
    q = float(np.exp(-0.5))
    assert agreement(coarse, lambda k: stats.nbinom.pmf(k, 0.5, 1 - q)) > 1e-3


def test_a_draw_on_the_edge_of_the_table_is_decided_by_later_bits() -> None:
    polya = Polya(Fraction(1, 2), 1)
    edge = int(polya._words[3])
    for later, outcome in ((0, 3), (2**64 - 1, 4)):
        draws = [edge.to_bytes(8, "little"), later.to_bytes(8, "little")]
        assert polya.sample(1, lambda n, draws=draws: draws.pop(0))[0] == outcome


def test_the_last_draw_there_is_reaches_beyond_the_table() -> None:
    polya = Polya(Fraction(1, 2), 1)
    draws = [b"\xff" * 8, b"\xff" * 8, bytes(8)]
    assert polya.sample(1, lambda n: draws.pop(0))[0] > len(polya._words)


def test_variance_is_as_stated_for_more_parts_than_needed() -> None:
    source = entropy(11)
    parts = [discrete_laplace_part(100_000, 0.5, honest=4, entropy=source) for _ in range(6)]
    variance = np.sum(parts, axis=0).var()
    stated = discrete_laplace_variance(0.5, parts=6, honest=4)
    assert variance == pytest.approx(stated, rel=0.05)
    assert stated == pytest.approx(1.5 * discrete_laplace_variance(0.5))


@pytest.mark.parametrize(("parts", "honest"), [(2, 3), (4, 5), (1, 2), (1, 3), (3, 3), (5, 4)])
@pytest.mark.parametrize("epsilon", [0.05, 0.4, 3.0])
def test_epsilon_against_who_knows_parts_is_the_largest_ratio_there_is(
    parts: int, honest: int, epsilon: float
) -> None:
    sensitivity = 2
    step = epsilon / sensitivity
    own = stats.nbinom.pmf(np.arange(int(40 / step)), parts / honest, 1 - np.exp(-step))
    noise = np.correlate(own, own, "full")  # of the difference of two
    middle = noise[abs(np.arange(noise.size) - noise.size // 2) < 12 / step]
    worst = float(np.abs(np.diff(np.log(middle))).max())
    stated = discrete_laplace_epsilon(epsilon, sensitivity=sensitivity, parts=parts, honest=honest)
    if parts > honest:  # the ratio nears that of whole noise far out only
        assert worst < step == stated / sensitivity
    else:
        assert stated == pytest.approx(sensitivity * worst, rel=1e-6)


def test_epsilon_against_who_knows_parts_is_far_from_in_proportion() -> None:
    found = [discrete_laplace_epsilon(e, parts=2, honest=3) for e in (0.1, 0.01, 1e9)]
    assert found == pytest.approx([0.3429, 0.12499, 1e9], rel=1e-3)
    assert discrete_laplace_epsilon(1e-3, parts=1, honest=3) > np.log(2)  # whatever is stated
    assert discrete_laplace_epsilon(1.0, parts=0, honest=3) == np.inf
    assert discrete_laplace_epsilon(np.inf, parts=1, honest=3) == np.inf


def test_scales_that_no_table_holds_and_senseless_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="too large a table"):
        Polya(Fraction(1, 10**7))
    with pytest.raises(ValueError, match="exponent > 0"):
        discrete_laplace_part(1, 0.0)
    with pytest.raises(ValueError, match="parts >= 1"):
        discrete_laplace_part(1, 1.0, honest=0)
    with pytest.raises(ValueError, match="sensitivity"):
        discrete_laplace_part(1, 1.0, sensitivity=0)


def test_a_kept_key_needs_the_secret_that_it_was_sealed_with(tmp_path: Path) -> None:
    folders = [
        KeyFolder(tmp_path, SealingSecret("key file", bytes(31) + end)) for end in (b"1", b"2")
    ]
    seed = NoiseKey(folders[0]).derive(b"query")
    assert NoiseKey(folders[0]).derive(b"query") == seed
    with pytest.raises(KeyRejected, match="wrong key file"):
        NoiseKey(folders[1]).derive(b"query")
    folders[0].check()
    with pytest.raises(KeyRejected, match=r"\.key: wrong key file"):
        folders[1].check()


@pytest.mark.parametrize("mean", [Fraction(1, 7), Fraction(5, 2), Fraction(400)])
def test_poisson_variables_have_their_distribution(mean: Fraction) -> None:
    sample = Poisson(mean).sample(60_000, entropy(3))
    assert agreement(sample, lambda k: stats.poisson.pmf(k, float(mean))) > 1e-3


@pytest.mark.parametrize("mean", [Fraction(3), Fraction(5000)])
def test_poisson_variables_of_few_bits_are_decided_by_more(mean: Fraction) -> None:
    coarse, fine = (Poisson(mean, word_bits=bits) for bits in (6, 64))
    sample = coarse.sample(20_000, entropy(9))
    assert agreement(sample, lambda k: stats.poisson.pmf(k, float(mean))) > 1e-3
    assert abs(sample.mean() - fine.sample(20_000, entropy(4)).mean()) < 0.1 * float(mean) ** 0.5


@pytest.mark.parametrize(("variance", "honest"), [(1, 1), (40, 3), (3_000_000, 7)])
def test_parts_of_honest_silos_are_skellam_noise_of_the_stated_variance(
    variance: int, honest: int
) -> None:
    size, source = 40_000, entropy(variance)
    parts = [skellam_part(size, variance, honest=honest, entropy=source) for _ in range(honest)]
    whole = np.sum(parts, axis=0)
    assert all(abs(part.var() * honest / variance - 1) < 0.05 for part in parts)
    assert abs(whole.var() / variance - 1) < 0.05
    assert abs(whole.mean()) < 4 * (variance / size) ** 0.5
    if variance < 1000:
        half = variance / 2
        assert agreement(whole, lambda k: stats.skellam.pmf(k, half, half)) > 1e-3


def renyi(variance: float, shift: int, order: int) -> float:
    """Return the Renyi divergence of Skellam noise and the same, shifted, by adding it up."""
    reach = int(12 * variance**0.5) + order * abs(shift) + 60
    k = np.arange(-reach, reach + 1).astype(float)

    def log_probability(at: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.log(special.ive(np.abs(at), variance))
        return found

    p, q = log_probability(k), log_probability(k - shift)
    kept = np.isfinite(p) & np.isfinite(q)
    terms = order * p[kept] - (order - 1) * q[kept]
    return float(special.logsumexp(terms) / (order - 1))


@pytest.mark.parametrize("variance", [30.0, 200.0, 2_000.0])
@pytest.mark.parametrize("change", [(1,), (3,), (2, -1, 1), (1, 1, 1, 1)])
def test_skellam_rho_bounds_the_divergences_that_the_probabilities_add_up_to(
    variance: float, change: tuple[int, ...]
) -> None:
    square, absolute = sum(c * c for c in change), sum(map(abs, change))
    rho = skellam_rho(variance, square=square, absolute=absolute)
    for order in (2, 3, 5, 9):
        exact = sum(renyi(variance, c, order) for c in change)
        assert exact <= rho * order * (1 + 1e-9)
        if variance > 1000:  # not much more than that of a Gaussian
            assert rho * order < 1.01 * exact
