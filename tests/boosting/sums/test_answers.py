"""Noise is the same for the same query, independent for another, and of the stated size."""

import math
import os

import numpy as np
import pytest

from hedgerow.boosting.budget import Spending
from hedgerow.boosting.sums.answers import noisy, stream
from hedgerow.crypto.masking.noise import discrete_laplace_variance
from hedgerow.crypto.vault.noise_keys import NoiseKey


def spending(epsilon: float) -> Spending:
    return Spending("counts", epsilon, 1, 10)


def test_same_query_has_the_same_noise_and_another_one_has_not() -> None:
    key = NoiseKey(None)
    counts = np.zeros(200, dtype=np.int64)

    def answer(context: bytes, number: int = 0) -> list[int]:
        entropy = stream(key.derive(context).seed, number)
        found = noisy(counts, spending(0.1), honest=1, entropy=entropy)
        return found.tolist()

    assert answer(b"root") == answer(b"root")
    assert answer(b"root") != answer(b"left")
    assert answer(b"root") != answer(b"root", 1)
    assert NoiseKey(None).derive(b"root").seed != key.derive(b"root").seed


@pytest.mark.parametrize(("sensitivity", "honest"), [(1, 1), (3, 1), (1, 4), (2, 5)])
def test_parts_of_honest_silos_add_up_to_the_stated_noise(sensitivity: int, honest: int) -> None:
    epsilon, size = 0.4, 40_000
    total = np.zeros(size, dtype=np.int64)
    for silo in range(honest):
        entropy = stream(b"%032d" % silo, 0)
        cost = Spending("counts", epsilon, sensitivity, size)
        total = noisy(total, cost, honest=honest, entropy=entropy)
    expected = discrete_laplace_variance(epsilon, sensitivity=sensitivity)
    assert abs(total.var() / expected - 1) < 0.06
    assert abs(total.mean()) < 4 * math.sqrt(expected / size)
    # P(0) of the discrete Laplace distribution is (1 - q) / (1 + q).
    q = math.exp(-epsilon / sensitivity)
    assert abs((total == 0).mean() - (1 - q) / (1 + q)) < 0.01


def test_infinite_budget_adds_no_noise() -> None:
    counts = np.arange(10)
    assert noisy(counts, spending(math.inf), honest=1, entropy=os.urandom) is counts
