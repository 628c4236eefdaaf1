"""Scored rows, and each metric as sums over them; see :mod:`hedgerow.boosting.metrics`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import RowMetric, Task
from hedgerow.boosting.errors import DataError
from hedgerow.boosting.failure_times import FailureTimes, is_event, within_bounds
from hedgerow.boosting.metrics import survival
from hedgerow.boosting.metrics.curves import (
    area,
    average_precision,
    distance,
    exact_auc,
    exact_ks,
    n_bins_of,
    precision_recall_area,
    score_bins,
    weights_by_score,
)
from hedgerow.boosting.queries import QueryScore, query_starts
from hedgerow.boosting.registry import Registry

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """Scored rows: labels, margins, weights (``None`` is one each).

    Labels of survival are of shape (n_samples, 2): bounds of each row's time; those of a ranking,
    too: relevance and query.
    """

    y: Floats
    margin: Floats
    objective: str
    weights: Floats | None
    center: float
    threshold: float = 0.5
    """Probability from which on a row is of the second of two classes."""
    metric: RowMetric | None = None
    """By which a script scores its rows."""

    @property
    def prediction(self) -> Floats:
        """Predictions on the label's scale."""
        return link(self.objective, self.margin)

    @property
    def weight(self) -> Floats:
        """Weight of each row."""
        return np.ones(len(self.y)) if self.weights is None else self.weights

    @property
    def n_outputs(self) -> int:
        """Margins a row."""
        return int(self.margin.shape[1]) if self.margin.ndim == 2 else 1

    @property
    def decision(self) -> NDArray[np.intp]:
        """Class index of each row: the largest margin, or from ``threshold`` on for binary."""
        if self.margin.ndim == 2:
            return np.asarray(np.argmax(self.margin, axis=1), dtype=np.intp)
        if self.threshold != 0.5:
            return np.asarray(self.prediction >= self.threshold, dtype=np.intp)
        return np.asarray(self.margin >= 0.0, dtype=np.intp)


@dataclass(frozen=True, slots=True)
class Metric:
    """How a metric is summed over rows and read from the sums.

    ``width`` is the length of its sums as a function of the number of outputs. ``weigh`` returns
    sums of row weights, ``terms`` numbers of each row whose sums it takes, losses first; one of the
    two is set.
    """

    tasks: frozenset[Task]
    higher_is_better: bool
    width: Callable[[int], int]
    value: Callable[[Floats, int], float]
    weigh: Callable[[ScoredRows], Floats] | None = None
    terms: Callable[[ScoredRows, Any], tuple[Floats, ...]] | None = None
    exact: Callable[[ScoredRows], float] | None = None
    about: str = ""
    """What one of another package is; of Hedgerow's own ``ABOUT`` says it."""
    compares: bool = False
    """Whether a row's terms are of all rows at hand: a part is of a whole table."""

    @property
    def is_pooled(self) -> bool:
        """Whether it is a mean over rows, which may be over those of several labels."""
        return self.width is _pair and bool(self.tasks - _MULTICLASS)

    def total(
        self, rows: ScoredRows, power: float | tuple[float, ...] | FailureTimes | QueryScore
    ) -> Floats:
        """Return the sums over rows, in float64."""
        if self.terms is None:
            assert self.weigh is not None
            return self.weigh(rows)
        return np.array([float(column.sum()) for column in self.terms(rows, power)])


_BINARY = frozenset({Task.BINARY})
_MULTICLASS = frozenset({Task.MULTICLASS})
_CLASSES = _BINARY | _MULTICLASS
_REGRESSION = frozenset({Task.REGRESSION})
_SURVIVAL = frozenset({Task.SURVIVAL})
_RANKING = frozenset({Task.RANKING})


def link(objective: str, margin: Floats) -> Floats:
    """Return predictions on the label's scale from margins.

    Parameters
    ----------
    objective : str
        XGBoost's name, or one of ours (``bce``, ``softmax``, ``tweedie``, ...).
    margin : ndarray of shape (n_samples,) or (n_samples, n_classes), float64

    Returns
    -------
    ndarray of the shape of ``margin``, float64
        Probabilities for classification, else the predicted number.
    """
    if objective in ("binary:logistic", "binary:logitraw", "reg:logistic", "bce"):
        positive = 1.0 / (1.0 + np.exp(-np.abs(margin)))
        return np.where(margin >= 0.0, positive, 1.0 - positive)
    if objective in ("multi:softprob", "multi:softmax", "softmax"):
        exps = np.exp(margin - margin.max(axis=1, keepdims=True))
        return np.asarray(exps / exps.sum(axis=1, keepdims=True))
    if objective == "binary:hinge":
        return np.asarray(margin > 0.0, dtype=np.float64)
    if objective in ("reg:tweedie", "reg:gamma", "count:poisson", "tweedie", "survival:aft", COX):
        return np.exp(margin)
    return margin


def scored_rows(
    y: Floats,
    margin: NDArray[np.floating],
    objective: str,
    weight: Floats | None,
    center: float,
) -> ScoredRows:
    """Check the shapes of rows and give them predictions; weights of one where there are none."""
    m = np.asarray(margin, dtype=np.float64)
    if m.ndim == 2 and m.shape[1] == 1:
        m = m[:, 0]
    labels = np.asarray(y, dtype=np.float64)
    if labels.ndim == 2 and labels.shape == m.shape:  # of several labels: rows of their own
        weight = None if weight is None else np.repeat(weight, m.shape[1])
        labels, m = labels.reshape(-1), m.reshape(-1)
    if labels.shape not in ((m.shape[0],), (m.shape[0], 2)):
        raise ValueError(f"labels have shape {labels.shape}, margins {m.shape}")
    w = None if weight is None else np.asarray(weight, dtype=np.float64)
    if w is not None and w.shape != labels.shape[:1]:
        raise ValueError(f"weights have shape {w.shape}, labels {labels.shape}")
    return ScoredRows(labels, m, objective, w, center)


Terms = Callable[[ScoredRows, Any], tuple[Floats, ...]]


def _weighted(loss: Callable[[ScoredRows], Floats]) -> Terms:
    """Make the terms (weighted loss, weight) of a loss a row."""
    return lambda rows, power: (rows.weight * loss(rows), rows.weight)


def _mean(total: Floats, n_outputs: int = 1) -> float:
    return float(total[0] / total[1]) if total[1] > 0.0 else math.nan


def _root(total: Floats, n_outputs: int = 1) -> float:
    """Return the square root of the mean; NaN of what is negative, which only false sums are."""
    mean = _mean(total)
    return math.sqrt(mean) if mean >= 0.0 else math.nan


def _logloss(rows: ScoredRows) -> Floats:
    return np.logaddexp(0.0, rows.margin) - rows.y * rows.margin


def _mlogloss(rows: ScoredRows) -> Floats:
    top = rows.margin.max(axis=1)
    log_sum = top + np.log(np.exp(rows.margin - top[:, None]).sum(axis=1))
    own = rows.margin[np.arange(len(rows.y)), rows.y.astype(np.intp)]
    return np.asarray(log_sum - own)


def _wrong(rows: ScoredRows) -> Floats:
    return np.asarray(rows.decision != rows.y, dtype=np.float64)


def _error(rows: ScoredRows) -> Floats:
    """Return XGBoost's error, of labels that are shares, too."""
    if rows.objective in ("binary:logistic", "binary:logitraw", "binary:hinge", "bce"):
        return _wrong(rows)
    return np.where(rows.prediction > rows.threshold, 1.0 - rows.y, rows.y)


def _right(rows: ScoredRows) -> Floats:
    return 1.0 - _wrong(rows)


def _squared(rows: ScoredRows) -> Floats:
    return np.square(rows.prediction - rows.y)


def _absolute(rows: ScoredRows) -> Floats:
    return np.abs(rows.prediction - rows.y)


def _deviance_terms(rows: ScoredRows, power: float) -> tuple[Floats, ...]:
    """Return the Tweedie deviance (Jørgensen 1987); Poisson's at power 1, gamma's at 2."""
    y, mu = rows.y, rows.prediction
    with np.errstate(divide="ignore", invalid="ignore"):
        if power == 1.0:
            unit = np.where(y > 0.0, y * np.log(y / mu), 0.0) - y + mu
        elif power == 2.0:
            unit = np.log(mu / y) + y / mu - 1.0
        else:
            unit = (
                y ** (2.0 - power) / ((1.0 - power) * (2.0 - power))
                - y * mu ** (1.0 - power) / (1.0 - power)
                + mu ** (2.0 - power) / (2.0 - power)
            )
    return rows.weight * (2.0 * unit), rows.weight


def _deviance(power: float) -> Metric:
    def terms(rows: ScoredRows, _: float) -> tuple[Floats, ...]:
        return _deviance_terms(rows, power)

    return Metric(_REGRESSION, False, _pair, _mean, terms=terms)


_log_gamma = np.frompyfunc(math.lgamma, 1, 1)


def _poisson_nloglik(rows: ScoredRows) -> Floats:
    mu = np.maximum(rows.prediction, 1e-16)
    counts = np.where(rows.y >= 0.0, rows.y, math.nan)
    constant: Floats = np.asarray(_log_gamma(counts + 1.0), np.float64)
    return np.asarray(constant + mu - counts * np.log(mu))


def _gamma_nloglik(rows: ScoredRows) -> Floats:
    mu = np.maximum(rows.prediction, 1e-6)
    return rows.y / mu + np.log(mu)


def _tweedie_nloglik_terms(rows: ScoredRows, power: float) -> tuple[Floats, ...]:
    mu = np.maximum(rows.prediction, 1e-16)
    loss = mu ** (2.0 - power) / (2.0 - power) - rows.y * mu ** (1.0 - power) / (1.0 - power)
    return rows.weight * loss, rows.weight


def _squared_log(rows: ScoredRows) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.square(np.log1p(rows.prediction) - np.log1p(rows.y)))


def _r2_terms(rows: ScoredRows, power: float) -> tuple[Floats, ...]:
    w, shifted = rows.weight, rows.y - rows.center
    return w * _squared(rows), w, w * shifted, w * shifted**2


def _r2(total: Floats, n_outputs: int) -> float:
    residual, weight, first, second = (float(v) for v in total)
    if weight <= 0.0:
        return math.nan
    spread = second - first * first / weight
    if spread <= 0.0:
        return math.nan
    return 1.0 - residual / spread


def _outcome_sums(rows: ScoredRows) -> Floats:
    """Sum true positives, false positives, false negatives of the positive or of every class."""
    decision, y = rows.decision, rows.y.astype(np.intp)
    classes = [1] if rows.n_outputs == 1 else list(range(rows.n_outputs))
    parts = [
        (
            float(rows.weight @ ((decision == c) & (y == c))),
            float(rows.weight @ ((decision == c) & (y != c))),
            float(rows.weight @ ((decision != c) & (y == c))),
        )
        for c in classes
    ]
    return np.array(parts).reshape(-1)


def _outcomes(share: Callable[[float, float, float], tuple[float, float]]) -> Metric:
    """Make a metric of hits, false alarms and misses, each class's a share (part, whole).

    Over several classes it is scikit-learn's macro average: the mean over classes that a row has
    or is given; a class whose whole is 0 counts as 0.
    """

    def value(total: Floats, n_outputs: int) -> float:
        shares = [
            share(*outcome)
            for outcome in total.reshape(-1, 3)
            if n_outputs == 1 or outcome.sum() > 0.0
        ]
        scores = [part / whole if whole > 0.0 else 0.0 for part, whole in shares]
        return float(np.mean(scores)) if scores else math.nan

    return Metric(_CLASSES, True, lambda n_outputs: 3 * n_outputs, value, _outcome_sums)


def _recall_sums(rows: ScoredRows) -> Floats:
    """Sum the weight of rows that are right, and of all, of every class."""
    n_classes, y = max(rows.n_outputs, 2), rows.y.astype(np.intp)
    right = rows.weight * (rows.decision == y)
    return np.concatenate(
        [np.bincount(y, weights, minlength=n_classes) for weights in (right, rows.weight)]
    )


def _balanced(total: Floats, n_outputs: int) -> float:
    right, whole = total.reshape(2, -1)
    return float(np.mean(right[whole > 0.0] / whole[whole > 0.0])) if whole.any() else math.nan


def _brier(rows: ScoredRows) -> Floats:
    if rows.n_outputs == 1:
        return np.square(rows.prediction - rows.y)
    truth = np.arange(rows.n_outputs) == rows.y[:, None]
    return np.asarray(np.square(rows.prediction - truth).sum(axis=1))


def _relative(rows: ScoredRows) -> Floats:
    return _absolute(rows) / np.maximum(np.abs(rows.y), np.finfo(np.float64).eps)


def _pinball_terms(rows: ScoredRows, quantile: float | tuple[float, ...]) -> tuple[Floats, ...]:
    """Return the loss of a quantile; the mean over several, which are the outputs."""
    ranks = np.array(quantile)
    below = (rows.y - rows.prediction.T).T
    loss = np.maximum(ranks * below, (ranks - 1.0) * below)
    return rows.weight * (loss.mean(axis=1) if ranks.ndim else loss), rows.weight


def _pseudo_huber_terms(rows: ScoredRows, slope: float) -> tuple[Floats, ...]:
    away = (rows.y - rows.prediction) / slope
    return rows.weight * slope**2 * (np.sqrt(1.0 + away**2) - 1.0), rows.weight


def _aft_terms(rows: ScoredRows, of: FailureTimes) -> tuple[Floats, ...]:
    return rows.weight * of.losses(rows.margin, rows.y), rows.weight


def _query_terms(rows: ScoredRows, of: QueryScore) -> tuple[Floats, ...]:
    values = of.values(rows.margin, rows.y)
    return values, np.ones(len(values))


def _query_area_terms(rows: ScoredRows, power: float) -> tuple[Floats, ...]:
    """Return the area of each query that has rows of both kinds."""
    y, starts = rows.y[:, 0] > 0.0, query_starts(rows.y[:, 1])
    areas = [
        precision_recall_area(*weights_by_score(y[own], rows.margin[own], None))
        for own in map(slice, starts[:-1], starts[1:])
        if y[own].any() and not y[own].all()
    ]
    return np.array(areas), np.ones(len(areas))


def _within(rows: ScoredRows) -> Floats:
    return within_bounds(rows.prediction, rows.y)


def _pair_terms(rows: ScoredRows, power: float) -> tuple[Floats, ...]:
    """Return what is an event, twice the pairs that are in the right order, and all pairs."""
    later = -rows.margin if rows.objective == COX else rows.margin
    right, pairs = survival.pairs_by_row(rows.y, later)
    seen = is_event(rows.y).astype(np.float64)
    return seen, right.astype(np.float64), pairs.astype(np.float64)


def _brier_terms(rows: ScoredRows, of: FailureTimes) -> tuple[Floats, ...]:
    chance: Callable[[float], Floats] = partial(of.survival, margin=rows.margin)
    if rows.objective == COX:
        chance = survival.breslow(rows.y, rows.margin)
    losses, used = survival.integrated_brier(rows.y, chance)
    return losses, used.astype(np.float64)


def _partial_terms(rows: ScoredRows, power: float) -> tuple[Floats, ...]:
    return survival.partial_losses(rows.y, rows.margin)


def _class_scores(rows: ScoredRows) -> list[tuple[NDArray[np.bool_], Floats, float]]:
    """Of each one-versus-rest question: who is positive, log odds, centre of the bins."""
    if rows.n_outputs == 1:
        return [(rows.y == 1.0, rows.margin, rows.center)]
    scores = []
    for c in range(rows.n_outputs):
        others = np.delete(rows.margin, c, axis=1)
        top = others.max(axis=1)
        rest = top + np.log(np.exp(others - top[:, None]).sum(axis=1))
        odds = rows.margin[:, c] - rest
        scores.append((rows.y == c, odds, -math.log(rows.n_outputs - 1)))
    return scores


def _auc_sums(rows: ScoredRows) -> Floats:
    n_bins = n_bins_of(rows.n_outputs)
    parts = []
    for positive, score, center in _class_scores(rows):
        bins = score_bins(score, center, n_bins)
        for side in (positive, ~positive):
            parts.append(np.bincount(bins[side], weights=rows.weight[side], minlength=n_bins))
    return np.concatenate(parts).astype(np.float64)


def _pair(n_outputs: int) -> int:
    return 2


def _script_terms(rows: ScoredRows, power: float) -> tuple[Floats, ...]:
    """Return a script's score of all its rows, as often as they weigh; 0 where none scores them."""
    weight = rows.weight.sum(keepdims=True)
    if rows.metric is None or not weight[0] > 0.0:
        return np.zeros(1), np.zeros(1)
    try:
        value = float(rows.metric(rows.margin))
    except Exception as error:  # its words may have labels in them
        raise DataError(f"metrics: the script's function raised {type(error).__name__}") from error
    if not math.isfinite(value):
        raise DataError("metrics: expected a finite number, received another of the script")
    return value * weight, weight


def _ranked(
    of_weights: Callable[[Floats, Floats], float],
    of_rows: Callable[[NDArray[np.bool_], Floats, Floats | None], float] | None = None,
) -> Metric:
    """Make a metric of the weights of both classes by rising score, each class against the rest.

    Parameters
    ----------
    of_weights : callable
        The metric from weights of positive and of other rows in bins of rising score.
    of_rows : callable, optional
        A faster form from rows: who is positive, score, weight.
    """

    def exact(hit: NDArray[np.bool_], score: Floats, weight: Floats | None) -> float:
        return of_weights(*weights_by_score(hit, score, weight))

    of_class = of_rows or exact

    def value(total: Floats, n_outputs: int) -> float:
        halves = total.reshape(n_outputs, 2, n_bins_of(n_outputs))
        return float(np.mean([of_weights(positive, others) for positive, others in halves]))

    def of_all(rows: ScoredRows) -> float:
        return float(np.mean([of_class(h, s, rows.weights) for h, s, _ in _class_scores(rows)]))

    def width(n_outputs: int) -> int:
        return n_outputs * 2 * n_bins_of(n_outputs)

    return Metric(_CLASSES, True, width, value, _auc_sums, exact=of_all)


def _loss(
    tasks: frozenset[Task],
    loss: Callable[[ScoredRows], Floats],
    up: bool = False,
    value: Callable[[Floats, int], float] = _mean,
) -> Metric:
    return Metric(tasks, up, _pair, value, terms=_weighted(loss))


NUMBERS = {
    "tweedie_deviance": (1.5, "variance power", 1.0, 2.0),
    "tweedie-nloglik": (1.5, "variance power", 1.001, 1.999),
    "pinball": (0.5, "quantile", 0.0, 1.0),
    "mphe": (1.0, "slope", 1e-6, 1e6),
}

QUERIES = ("ndcg", "map", "pre")
"""Metrics of queries, which may take a number of ranks, and ``-``."""
COX = "survival:cox"
AFT, BRIER = "aft-nloglik", "integrated-brier"
OF_TIMES = (AFT, BRIER)
"""The metrics that take a distribution and its scale."""
METRICS: dict[str, Metric] = {
    "auc": _ranked(area, exact_auc),
    "aucpr": _ranked(precision_recall_area),
    "average_precision": _ranked(average_precision),
    "query-aucpr": Metric(_RANKING, True, _pair, _mean, terms=_query_area_terms),
    "logloss": _loss(_BINARY, _logloss),
    "mlogloss": _loss(_MULTICLASS, _mlogloss),
    "error": _loss(_BINARY | _REGRESSION, _error),
    "merror": _loss(_MULTICLASS, _wrong),
    "accuracy": _loss(_CLASSES, _right, up=True),
    "balanced_accuracy": Metric(
        _CLASSES, True, lambda n_outputs: 2 * max(n_outputs, 2), _balanced, _recall_sums
    ),
    "f1": _outcomes(lambda hits, alarms, misses: (2.0 * hits, 2.0 * hits + alarms + misses)),
    "precision": _outcomes(lambda hits, alarms, misses: (hits, hits + alarms)),
    "recall": _outcomes(lambda hits, alarms, misses: (hits, hits + misses)),
    "brier": _loss(_CLASSES, _brier),
    "ks": Metric(
        _BINARY,
        True,
        lambda n_outputs: 2 * n_bins_of(n_outputs),
        lambda total, n_outputs: distance(*total.reshape(2, -1)),
        _auc_sums,
        exact=lambda rows: exact_ks(rows.y == 1.0, rows.margin, rows.weights),
    ),
    "mse": _loss(_REGRESSION, _squared),
    "rmse": _loss(_REGRESSION, _squared, value=_root),
    "rmsle": _loss(_REGRESSION, _squared_log, value=_root),
    "mae": _loss(_REGRESSION, _absolute),
    "mape": _loss(_REGRESSION, _relative),
    "pinball": Metric(_REGRESSION, False, _pair, _mean, terms=_pinball_terms),
    "mphe": Metric(_REGRESSION, False, _pair, _mean, terms=_pseudo_huber_terms),
    "r2": Metric(_REGRESSION, True, lambda n_outputs: 4, _r2, terms=_r2_terms),
    "poisson-nloglik": _loss(_REGRESSION, _poisson_nloglik),
    "poisson-deviance": _deviance(1.0),
    "gamma-nloglik": _loss(_REGRESSION, _gamma_nloglik),
    "gamma-deviance": _deviance(2.0),
    "tweedie-nloglik": Metric(_REGRESSION, False, _pair, _mean, terms=_tweedie_nloglik_terms),
    "tweedie_deviance": Metric(_REGRESSION, False, _pair, _mean, terms=_deviance_terms),
    AFT: Metric(_SURVIVAL, False, _pair, _mean, terms=_aft_terms),
    BRIER: Metric(_SURVIVAL, False, _pair, _mean, terms=_brier_terms, compares=True),
    "interval-regression-accuracy": _loss(_SURVIVAL, _within, up=True),
    **{name: Metric(_RANKING, True, _pair, _mean, terms=_query_terms) for name in QUERIES},
    "cox-nloglik": Metric(_SURVIVAL, False, _pair, _mean, terms=_partial_terms, compares=True),
    "c-index": Metric(
        _SURVIVAL, True, lambda _: 3, survival.share_of_pairs, terms=_pair_terms, compares=True
    ),
}
_BY_SCRIPT = Metric(frozenset(Task), False, _pair, _mean, terms=_script_terms, compares=True)
SCRIPTED = {"script": _BY_SCRIPT, "script-high": replace(_BY_SCRIPT, higher_is_better=True)}
"""Of which ``@`` names the function by which each script of a federation of scripts scores its
rows; the mean over silos, by the weight of their rows."""

ABOUT = {
    "auc": "area under the ROC curve; of several classes the mean of each against the rest",
    "aucpr": "area under the precision-recall curve, interpolated as XGBoost's; as auc of classes",
    "average_precision": "precision-recall in steps, as scikit-learn's; as auc of classes",
    "query-aucpr": "mean over queries with both of their aucpr, labels above 0 being positive",
    "logloss": "mean negative log-likelihood of two classes",
    "mlogloss": "mean negative log-likelihood of several classes",
    "error": "share of wrong rows, at a probability of 0.5; of shares as labels their weight",
    "merror": "share of wrong rows",
    "accuracy": "share of right rows",
    "balanced_accuracy": "mean over classes of their recall",
    "f1": "of the positive class; of several classes the mean over them",
    "precision": "of the positive class; of several classes the mean over them",
    "recall": "of the positive class; of several classes the mean over them",
    "brier": "mean squared error of probabilities, summed over several classes",
    "ks": "greatest distance of both classes' score distributions (Kolmogorov-Smirnov)",
    "mse": "mean squared error",
    "rmse": "root of the mean squared error",
    "rmsle": "root of the mean squared error of log(1 + value)",
    "mae": "mean absolute error",
    "mape": "mean absolute error relative to the label",
    "pinball": "mean pinball loss of the quantile q (0.5), or over several, q1:q2",
    "mphe": "mean pseudo-Huber error of slope s (1)",
    "r2": "share of the labels' variance that is explained",
    "poisson-nloglik": "mean negative log-likelihood of counts",
    "poisson-deviance": "mean deviance of counts",
    "gamma-nloglik": "mean negative log-likelihood, gamma with shape 1",
    "gamma-deviance": "mean deviance, gamma",
    "tweedie-nloglik": "mean negative log-likelihood, Tweedie with variance power p (1.5)",
    "tweedie_deviance": "mean deviance, Tweedie with variance power p (1.5; 1 Poisson, 2 gamma)",
    AFT: "mean negative log-likelihood of times, @distribution:scale as the job's where not given",
    BRIER: "mean squared error of the chance of no event, over times; @distribution:scale as above",
    "interval-regression-accuracy": "share of rows whose predicted time is between its bounds",
    "ndcg": "mean over queries of the discounted gain 2^label - 1, relative to the best order; of "
    "the first n ranks with @n; a query without a relevant row is 1, with - at the end 0",
    "map": "mean over queries of their average precision, labels above 0 being relevant; as ndcg",
    "pre": "mean over queries of the share of relevant rows; as ndcg",
    "cox-nloglik": "mean negative log partial likelihood of events; risk sets are within a silo",
    "c-index": "share of pairs of rows in the order of their times (Harrell); within a silo",
}
"""What a metric is, by its name."""
REGISTRY = Registry("hedgerow.metrics", "metric", METRICS)
"""Those of other packages, too."""


def mean_loss(
    tasks: Iterable[Task],
    loss: Callable[[ScoredRows], Floats],
    about: str,
    *,
    higher_is_better: bool = False,
) -> Metric:
    """Return the metric that is the weighted mean of a loss, for a package of its own.

    Parameters
    ----------
    loss : callable
        Returns an ndarray of shape (n_samples,), float64.
    about : str
        What it is, as people read it.
    """

    def checked(rows: ScoredRows) -> Floats:
        try:
            found = np.asarray(loss(rows), np.float64)
        except Exception as error:  # its text may quote a label
            kind = type(error).__name__
            raise DataError(f"metric '{about}' of a package failed: {kind}") from error
        if found.shape != rows.weight.shape or not np.isfinite(found).all():
            raise DataError(
                f"metric '{about}' of a package: expected a finite number of each of "
                f"{len(rows.weight)} rows, received others"
            )
        return found

    return replace(_loss(frozenset(tasks), checked, higher_is_better), about=about)
