"""Metrics by name: exact on rows at hand, and pooled from sums that silos add up.

A metric is computed from margins (raw scores), so that one prediction serves all of them. Every
metric is a function of an additive vector: :func:`sums` of two row sets added together are the
sums of their union, from which :func:`combine` gives the metric of rows in different silos. All are
exact except AUC, whose sums are a histogram of scores with fixed bins.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.auc import area, exact_auc, n_bins_of, score_bins
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import InvalidJob

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _ScoredRows:
    """Scored rows: labels, margins, weights (``None`` is one each)."""

    y: Floats
    margin: Floats
    objective: str
    weights: Floats | None
    center: float

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
        return int(self.margin.shape[1]) if self.margin.ndim == 2 else 1

    @property
    def decision(self) -> NDArray[np.intp]:
        """Class index of each row: the largest margin, or margin >= 0 for binary."""
        if self.margin.ndim == 2:
            return np.asarray(np.argmax(self.margin, axis=1), dtype=np.intp)
        return np.asarray(self.margin >= 0.0, dtype=np.intp)


@dataclass(frozen=True, slots=True)
class _Metric:
    """How a metric is summed over rows and read from the sums.

    ``width`` is the length of its sums as a function of the number of outputs.
    """

    tasks: frozenset[Task]
    higher_is_better: bool
    width: Callable[[int], int]
    total: Callable[[_ScoredRows, float], Floats]
    value: Callable[[Floats, int], float]
    exact: Callable[[_ScoredRows], float] | None = None


_BINARY = frozenset({Task.BINARY})
_MULTICLASS = frozenset({Task.MULTICLASS})
_CLASSES = _BINARY | _MULTICLASS
_REGRESSION = frozenset({Task.REGRESSION})


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
    if objective in ("reg:tweedie", "reg:gamma", "count:poisson", "tweedie"):
        return np.exp(margin)
    return margin


def defaults(task: Task) -> tuple[str, ...]:
    """Return the metrics of a job that names none; the first one selects the best round."""
    return {
        Task.BINARY: ("auc", "logloss"),
        Task.MULTICLASS: ("merror", "mlogloss"),
        Task.REGRESSION: ("rmse", "r2"),
    }[task]


def known(task: Task | None = None) -> tuple[str, ...]:
    """Return the names of all metrics, or of those that a task has."""
    return tuple(name for name, m in _METRICS.items() if task is None or task in m.tasks)


def check(names: Sequence[str], task: Task) -> None:
    """Raise :class:`InvalidJob` for a name that does not exist or does not suit the task."""
    for name in names:
        metric = _METRICS.get(_family(name))
        if metric is None:
            near = difflib.get_close_matches(name, _METRICS, n=1, cutoff=0.4)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise InvalidJob(f"metrics: there is no metric '{name}'{hint}")
        if task not in metric.tasks:
            raise InvalidJob(
                f"metrics: '{name}' does not suit a {task.value} job; choose from "
                + ", ".join(known(task))
            )
        _power(name)


def higher_is_better(name: str) -> bool:
    """Whether a larger value of the metric is the better one."""
    return _metric(name).higher_is_better


def better(name: str, value: float, than: float) -> bool:
    """Whether ``value`` is strictly better than ``than``; any number beats NaN, NaN none."""
    if math.isnan(value):
        return False
    if math.isnan(than):
        return True
    return value > than if higher_is_better(name) else value < than


def evaluate(
    names: Sequence[str],
    y: Floats,
    margin: NDArray[np.floating],
    *,
    objective: str,
    weight: Floats | None = None,
) -> dict[str, float]:
    """Return each metric over the rows of one place; AUC is exact.

    Parameters
    ----------
    names : sequence of str
    y : ndarray of shape (n_samples,), float64
        Class index or number.
    margin : ndarray of shape (n_samples,) or (n_samples, n_classes)
    objective : str
        Decides the link, see :func:`link`.
    weight : ndarray of shape (n_samples,), float64, optional

    Returns
    -------
    dict
        A metric without a value (no rows; AUC of a single class) is NaN.
    """
    rows = _rows(y, margin, objective, weight, 0.0)
    values = {}
    for name in names:
        metric = _metric(name)
        if metric.exact is not None:
            values[name] = metric.exact(rows)
        else:
            values[name] = metric.value(metric.total(rows, _power(name)), rows.n_outputs)
    return values


def width(names: Sequence[str], n_outputs: int = 1) -> int:
    """Return the length of :func:`sums` for these metrics."""
    return sum(_metric(name).width(n_outputs) for name in names)


def sums(
    names: Sequence[str],
    y: Floats,
    margin: NDArray[np.floating],
    *,
    objective: str,
    weight: Floats | None = None,
    center: float = 0.0,
) -> Floats:
    """Return the additive form of the metrics over one silo's rows.

    Parameters
    ----------
    names : sequence of str
    y : ndarray of shape (n_samples,), float64
    margin : ndarray of shape (n_samples,) or (n_samples, n_classes)
    objective : str
    weight : ndarray of shape (n_samples,), float64, optional
    center : float
        The job's base margin, the same in every silo: bins of the score histogram are finest
        around it, and sums of squares are taken about it. The result does not otherwise
        depend on it.

    Returns
    -------
    ndarray of shape (width(names, n_outputs),), float64
        Zeros for no rows. Counts where rows are unweighted.
    """
    rows = _rows(y, margin, objective, weight, center)
    if not names:
        return np.zeros(0)
    return np.concatenate([_metric(name).total(rows, _power(name)) for name in names])


def combine(names: Sequence[str], total: Floats, *, n_outputs: int = 1) -> dict[str, float]:
    """Return the metrics from sums of all silos, added up.

    Parameters
    ----------
    names : sequence of str
        As given to :func:`sums`.
    total : ndarray of shape (width(names, n_outputs),), float64
    n_outputs : int
        Margins a row: the class count of a multi-class job, else 1.
    """
    if total.shape != (width(names, n_outputs),):
        raise ValueError(
            f"sums of {', '.join(names)} have shape ({width(names, n_outputs)},), "
            f"received {total.shape}"
        )
    values, at = {}, 0
    for name in names:
        metric = _metric(name)
        end = at + metric.width(n_outputs)
        values[name] = metric.value(np.asarray(total[at:end], dtype=np.float64), n_outputs)
        at = end
    return values


def _rows(
    y: Floats,
    margin: NDArray[np.floating],
    objective: str,
    weight: Floats | None,
    center: float,
) -> _ScoredRows:
    m = np.asarray(margin, dtype=np.float64)
    if m.ndim == 2 and m.shape[1] == 1:
        m = m[:, 0]
    labels = np.asarray(y, dtype=np.float64)
    if labels.shape != (m.shape[0],):
        raise ValueError(f"labels have shape {labels.shape}, margins {m.shape}")
    w = None if weight is None else np.asarray(weight, dtype=np.float64)
    if w is not None and w.shape != labels.shape:
        raise ValueError(f"weights have shape {w.shape}, labels {labels.shape}")
    return _ScoredRows(labels, m, objective, w, center)


def _family(name: str) -> str:
    return name.split("@", 1)[0]


def _metric(name: str) -> _Metric:
    try:
        return _METRICS[_family(name)]
    except KeyError:
        raise InvalidJob(f"metrics: there is no metric '{name}'") from None


def _power(name: str) -> float:
    """Read the variance power of ``tweedie_deviance@1.3``; 1.5 where none is given."""
    family, at, text = name.partition("@")
    if not at:
        return 1.5
    if family != "tweedie_deviance":
        raise InvalidJob(f"metrics: '{family}' takes no '@' parameter")
    try:
        power = float(text)
    except ValueError:
        power = math.nan
    if not 1.0 <= power <= 2.0:
        raise InvalidJob(f"metrics: '{name}': the variance power must be in [1, 2]")
    return power


def _weighted(loss: Callable[[_ScoredRows], Floats]) -> Callable[[_ScoredRows, float], Floats]:
    """Make the sums (weighted loss, weight) of a loss a row."""

    def total(rows: _ScoredRows, power: float) -> Floats:
        return np.array([float(rows.weight @ loss(rows)), float(rows.weight.sum())])

    return total


def _mean(total: Floats, n_outputs: int = 1) -> float:
    return float(total[0] / total[1]) if total[1] > 0.0 else math.nan


def _logloss(rows: _ScoredRows) -> Floats:
    return np.logaddexp(0.0, rows.margin) - rows.y * rows.margin


def _mlogloss(rows: _ScoredRows) -> Floats:
    top = rows.margin.max(axis=1)
    log_sum = top + np.log(np.exp(rows.margin - top[:, None]).sum(axis=1))
    own = rows.margin[np.arange(len(rows.y)), rows.y.astype(np.intp)]
    return np.asarray(log_sum - own)


def _wrong(rows: _ScoredRows) -> Floats:
    return np.asarray(rows.decision != rows.y, dtype=np.float64)


def _right(rows: _ScoredRows) -> Floats:
    return 1.0 - _wrong(rows)


def _squared(rows: _ScoredRows) -> Floats:
    return np.square(rows.prediction - rows.y)


def _absolute(rows: _ScoredRows) -> Floats:
    return np.abs(rows.prediction - rows.y)


def _deviance_sums(rows: _ScoredRows, power: float) -> Floats:
    """Sum the unit Tweedie deviance (Jørgensen 1987); Poisson's at power 1, gamma's at 2."""
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
    return np.array([float(rows.weight @ (2.0 * unit)), float(rows.weight.sum())])


def _r2_sums(rows: _ScoredRows, power: float) -> Floats:
    w, shifted = rows.weight, rows.y - rows.center
    return np.array(
        [
            float(w @ _squared(rows)),
            float(w.sum()),
            float(w @ shifted),
            float(w @ shifted**2),
        ]
    )


def _r2(total: Floats, n_outputs: int) -> float:
    residual, weight, first, second = (float(v) for v in total)
    if weight <= 0.0:
        return math.nan
    spread = second - first * first / weight
    if spread <= 0.0:
        return math.nan
    return 1.0 - residual / spread


def _f1_sums(rows: _ScoredRows, power: float) -> Floats:
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


def _f1(total: Floats, n_outputs: int) -> float:
    scores = []
    for hits, false_alarms, misses in total.reshape(-1, 3):
        below = 2.0 * hits + false_alarms + misses
        scores.append(2.0 * hits / below if below > 0.0 else 0.0)
    return float(np.mean(scores))


def _class_scores(rows: _ScoredRows) -> list[tuple[NDArray[np.bool_], Floats, float]]:
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


def _auc_sums(rows: _ScoredRows, power: float) -> Floats:
    n_bins = n_bins_of(rows.n_outputs)
    parts = []
    for positive, score, center in _class_scores(rows):
        bins = score_bins(score, center, n_bins)
        for side in (positive, ~positive):
            parts.append(np.bincount(bins[side], weights=rows.weight[side], minlength=n_bins))
    return np.concatenate(parts).astype(np.float64)


def _auc(total: Floats, n_outputs: int) -> float:
    halves = total.reshape(n_outputs, 2, n_bins_of(n_outputs))
    return float(np.mean([area(positive, negative) for positive, negative in halves]))


def _exact_auc(rows: _ScoredRows) -> float:
    return float(
        np.mean([exact_auc(hit, score, rows.weights) for hit, score, _ in _class_scores(rows)])
    )


def _pair(n_outputs: int) -> int:
    return 2


def _loss(
    tasks: frozenset[Task], loss: Callable[[_ScoredRows], Floats], up: bool = False
) -> _Metric:
    return _Metric(tasks, up, _pair, _weighted(loss), _mean)


_METRICS: dict[str, _Metric] = {
    "auc": _Metric(
        _CLASSES,
        True,
        lambda n_outputs: n_outputs * 2 * n_bins_of(n_outputs),
        _auc_sums,
        _auc,
        _exact_auc,
    ),
    "logloss": _loss(_BINARY, _logloss),
    "mlogloss": _loss(_MULTICLASS, _mlogloss),
    "error": _loss(_BINARY, _wrong),
    "merror": _loss(_MULTICLASS, _wrong),
    "accuracy": _loss(_CLASSES, _right, up=True),
    "f1": _Metric(_CLASSES, True, lambda n_outputs: 3 * n_outputs, _f1_sums, _f1),
    "mse": _loss(_REGRESSION, _squared),
    "rmse": _Metric(
        _REGRESSION,
        False,
        _pair,
        _weighted(_squared),
        lambda total, n_outputs: math.sqrt(_mean(total)),
    ),
    "mae": _loss(_REGRESSION, _absolute),
    "r2": _Metric(_REGRESSION, True, lambda n_outputs: 4, _r2_sums, _r2),
    "tweedie_deviance": _Metric(_REGRESSION, False, _pair, _deviance_sums, _mean),
}
