"""Membership inference: whether the model tells a silo's training rows from rows it never saw.

Each attack gives every row a number that is larger where the row was probably trained on. What is
told of it is the AUC of members against other rows (0.5: a random guess) and the share of members
that are caught where one in a hundred others is caught by mistake (0.01: a random guess), each with
a 95 % interval by bootstrap. No row's number leaves this module.

- **loss threshold**: rows that the model predicts well are members (Yeom and others, 2018). The
  adversary's threshold is the best one, so this is the worst case of all thresholds.
- **likelihood ratio** (Carlini and others, *Membership inference attacks from first principles*,
  2022): shadow models, trained with and without a row, say how much the row moves the score of its
  own label, and where that lies without it; with one variance for all rows, as is right for few
  shadows. A silo's rows move a federation's model by about the silo's share of all rows.
- **own trees** (bagging, whose trees are in order of the silos): a silo's own trees against those
  of all others, which never saw its rows and so say how hard each row is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.metrics import exact_auc, link

Floats = NDArray[np.float64]
MOST_TARGETS = 2_000
"""Members of a silo that are attacked, and as many other rows."""
SHADOWS = 32
FALSE_ALARMS = 0.01
_RESAMPLES = 200


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float


def estimated(values: Floats, seed: int) -> Estimate:
    """Return the mean of a number of each row, or of each leaf."""
    rng = np.random.default_rng(seed)
    drawn = [rng.choice(values, len(values)).mean() for _ in range(_RESAMPLES)]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Estimate(float(values.mean()), float(low), float(high))


@dataclass(frozen=True, slots=True)
class Told:
    """How well an attack tells members from others."""

    auc: Estimate
    caught: Estimate
    """Share of members above the threshold that :data:`FALSE_ALARMS` of the others are above."""
    members: int
    others: int


def certainty(margin: Floats, y: Floats, objective: str, task: Task) -> Floats:
    """Return how sure a model is of each row's own label: larger is surer.

    For classes the logarithm of p / (1 - p), whose distribution over models is about normal; for
    numbers the error's size, negative.
    """
    if task is Task.BINARY:
        return np.where(y > 0.5, margin, -margin)
    if task is Task.MULTICLASS:
        own = y.astype(np.intp)[:, None]
        others = np.array(margin, dtype=np.float64)
        np.put_along_axis(others, own, -np.inf, axis=1)
        most = others.max(axis=1, keepdims=True)
        rest = np.log(np.exp(others - most).sum(axis=1)) + most[:, 0]
        return np.asarray(np.take_along_axis(margin, own, axis=1)[:, 0] - rest, dtype=np.float64)
    return np.asarray(-np.abs(link(objective, margin) - y), dtype=np.float64)


def told(score: Floats, member: NDArray[np.bool_], seed: int) -> Told:
    """Return how well numbers of rows tell members from others."""
    rng = np.random.default_rng(seed)
    inside, outside = score[member], score[~member]
    values = _both(inside, outside)
    drawn = np.array(
        [
            _both(rng.choice(inside, len(inside)), rng.choice(outside, len(outside)))
            for _ in range(_RESAMPLES)
        ]
    )
    low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
    auc, caught = (Estimate(*map(float, each)) for each in zip(values, low, high, strict=True))
    return Told(auc, caught, len(inside), len(outside))


def _both(inside: Floats, outside: Floats) -> tuple[float, float]:
    limit = np.quantile(outside, 1.0 - FALSE_ALARMS, method="higher")
    member = np.repeat([True, False], [len(inside), len(outside)])
    auc = exact_auc(member, np.concatenate([inside, outside]))
    return auc, float((inside > limit).mean())


@dataclass(frozen=True, slots=True)
class Targets:
    """Rows of a silo, and as many others, that an attack is to tell apart.

    ``member`` says which of ``rows`` are the silo's; ``context`` are further rows of the silo.
    """

    rows: Dataset
    member: NDArray[np.bool_]
    context: Dataset


def targets(silo: Dataset, others: Dataset, seed: int) -> Targets:
    """Draw equally many rows of both tables."""
    rng = np.random.default_rng(seed)
    n = min(silo.n_samples, others.n_samples, MOST_TARGETS)
    own, far = rng.permutation(silo.n_samples), rng.permutation(others.n_samples)[:n]
    both = joined(silo.take(own[:n]), others.take(far))
    return Targets(both, np.repeat([True, False], n), silo.take(own[n:]))


def joined(first: Dataset, second: Dataset) -> Dataset:
    """Return two tables' rows under the first one's schema, without weights."""
    X = np.concatenate([first.X, second.X])
    return Dataset(first.schema, X, np.concatenate([first.labels, second.labels]))


Trained = Callable[[Dataset, Dataset, int], Floats]
"""A shadow: trains on the first table with a seed, and returns margins of the second one."""


def shadows(of: Targets, train: Trained, sure: Callable[[Floats], Floats], seed: int) -> Floats:
    """Return how sure each shadow is of the targets, NaN-free, and which it was trained on.

    Returns
    -------
    ndarray of shape (2, n_shadows, n_targets)
        Certainty; 1 where the row is among the shadow's. Each row is in half of the shadows.
    """
    rng = np.random.default_rng(seed)
    n = len(of.member)
    # In pairs of complements: every row is in exactly half of the shadows.
    found = np.zeros((2, SHADOWS, n))
    for k in range(0, SHADOWS, 2):
        half = rng.permutation(n) < n // 2
        for at, inside in ((k, half), (k + 1, ~half)):
            rows = joined(of.context, of.rows.take(np.flatnonzero(inside)))
            found[:, at] = sure(train(rows, of.rows, seed + at)), inside
    return found


def likelihood_ratio(certain: Floats, seen: Floats, share: float) -> Floats:
    """Return the logarithm of each row's likelihood ratio, but for a factor.

    Parameters
    ----------
    certain : ndarray of shape (n_targets,)
        How sure the attacked model is.
    seen : ndarray
        Of :func:`shadows`.
    share : float
        By which part of a shadow's shift a row of the silo moves the attacked model.
    """
    sure, inside = seen
    within = (sure * inside).sum(axis=0) / inside.sum(axis=0)
    without = (sure * (1.0 - inside)).sum(axis=0) / (1.0 - inside).sum(axis=0)
    # The attacked model is surer or less sure of all rows than a shadow: a line makes up for it.
    apart = without - without.mean()
    size = float(apart @ apart)
    slope = float(apart @ certain) / size if size > 0.0 else 0.0
    start = certain.mean() - slope * without.mean()
    shift = share * slope * (within - without)
    return np.asarray((certain - slope * without - start - shift / 2.0) * shift, np.float64)
