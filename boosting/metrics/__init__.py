"""Metrics by name: exact on rows at hand, and pooled from sums that silos add up.

A metric is computed from margins (raw scores), so that one prediction serves all of them. Every
metric is a function of an additive vector: :func:`sums` of two row sets added together are the
sums of their union, from which :func:`combine` gives the metric of rows in different silos. All are
exact except AUC and KS, whose sums are a histogram of scores with fixed bins. A script's own
function is the mean of its silos' scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import RowMetric, Task
from hedgerow.boosting.errors import DataError, InvalidJob
from hedgerow.boosting.failure_times import FailureTimes
from hedgerow.boosting.metrics import names
from hedgerow.boosting.metrics.curves import exact_auc
from hedgerow.boosting.metrics.names import canonical
from hedgerow.boosting.metrics.scores import (
    AFT,
    BRIER,
    COX,
    METRICS,
    NUMBERS,
    OF_TIMES,
    QUERIES,
    REGISTRY,
    SCRIPTED,
    Floats,
    Metric,
    link,
    mean_loss,
    scored_rows,
)
from hedgerow.boosting.queries import QueryScore

__all__ = [
    "better",
    "by_script",
    "canonical",
    "check",
    "check_defined",
    "combine",
    "defaults",
    "evaluate",
    "exact_auc",
    "higher_is_better",
    "known",
    "link",
    "mean_loss",
    "metric_of",
    "of_job",
    "power_of",
    "rounded",
    "sums",
    "width",
]


_OF_COX, _OF_TIMES = ("cox-nloglik", "c-index"), (AFT, "interval-regression-accuracy")


def defaults(task: Task, n_labels: int = 1) -> tuple[str, ...]:
    """Return the metrics of a job that names none; the first one selects the best round."""
    if n_labels > 1:
        return ("rmse", "mae") if task is Task.REGRESSION else ("logloss", "error")
    return {
        Task.BINARY: ("auc", "logloss"),
        Task.MULTICLASS: ("merror", "mlogloss"),
        Task.REGRESSION: ("rmse", "r2"),
        Task.SURVIVAL: _OF_TIMES,
        Task.RANKING: ("ndcg", "map"),
    }[task]


def known(task: Task | None = None) -> tuple[str, ...]:
    """Return the names of all metrics, or of those that a task has."""
    return tuple(name for name, m in METRICS.items() if task is None or task in m.tasks)


def check(
    asked: Sequence[str], task: Task, n_labels: int = 1, objective: str | None = None
) -> None:
    """Raise :class:`InvalidJob` for a name that does not exist or does not suit the task.

    Nor, of survival, what the objective predicts. As in XGBoost a metric of several labels is one
    over all of them, which only a mean over rows can be.
    """
    for name in asked:
        metric = _found(name)
        if metric is None:
            raise InvalidJob(f"metrics: there is no metric '{name}'; {names.hint(name, task)}")
        if task not in metric.tasks:
            raise InvalidJob(
                f"metrics: '{name}' does not suit a {task.value} job; choose from "
                + ", ".join(known(task))
            )
        power_of(name)
        if task is Task.SURVIVAL and objective:
            _check_predicted(name, objective)
        if n_labels > 1 and not metric.is_pooled:
            others = (own for own in known(task) if metric_of(own).is_pooled)
            raise InvalidJob(
                f"metrics: '{name}' is of one label, received {n_labels}; choose from "
                + ", ".join(others)
            )


def check_defined(scores: Mapping[str, Mapping[str, float]]) -> None:
    """Raise :class:`DataError` where the rows of an AUC are of one class.

    Parameters
    ----------
    scores : Mapping[str, Mapping[str, float]]
        By data set, then by metric name.
    """
    for data, found in scores.items():
        if math.isnan(found.get("auc", 0.0)):
            raise DataError(f"auc of {data} is not defined: all of its rows are of one class")


def higher_is_better(name: str) -> bool:
    """Whether a larger value of the metric is the better one."""
    return metric_of(name).higher_is_better


def better(name: str, value: float, than: float, by: float = 0.0) -> bool:
    """Whether ``value`` is better than ``than`` by more than ``by``; NaN is worse than numbers."""
    if math.isnan(value):
        return False
    if math.isnan(than):
        return True
    return value > than + by if higher_is_better(name) else value < than - by


def evaluate(
    names: Sequence[str],
    y: Floats,
    margin: NDArray[np.floating],
    *,
    objective: str,
    weight: Floats | None = None,
    threshold: float = 0.5,
    metric: RowMetric | None = None,
) -> dict[str, float]:
    """Return each metric over the rows of one place; AUC and KS are exact.

    Parameters
    ----------
    y : ndarray of shape (n_samples,), float64
        Class index or number; of several labels of shape (n_samples, n_labels), each a row's own;
        of survival of shape (n_samples, 2), both bounds; of a ranking relevance and query.
    margin : ndarray of shape (n_samples,) or (n_samples, n_classes)
    objective : str
        Decides the link, see :func:`link`.
    weight : ndarray of shape (n_samples,), float64, optional
    threshold : float
        Probability from which on a row counts as of the second of two classes.
    metric : callable, optional
        Of a script, for a metric that names one.

    Returns
    -------
    dict
        A metric without a value (no rows; AUC of a single class) is NaN.
    """
    rows = scored_rows(y, margin, objective, weight, 0.0)
    rows = replace(rows, threshold=threshold, metric=metric)
    values = {}
    for name in names:
        found = metric_of(name)
        if found.exact is not None:
            values[name] = found.exact(rows)
        else:
            values[name] = found.value(found.total(rows, power_of(name)), rows.n_outputs)
    return values


def rounded(value: float) -> float:
    """Return a metric of a silo's own rows as it may leave the silo: four significant digits."""
    return float(f"{value:.4g}")


def width(names: Sequence[str], n_outputs: int = 1) -> int:
    """Return the length of :func:`sums` for these metrics."""
    return sum(metric_of(name).width(n_outputs) for name in names)


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
    y : ndarray of shape (n_samples,), float64
    margin : ndarray of shape (n_samples,) or (n_samples, n_classes)
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
    rows = scored_rows(y, margin, objective, weight, center)
    if not names:
        return np.zeros(0)
    return np.concatenate([metric_of(name).total(rows, power_of(name)) for name in names])


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
        metric = metric_of(name)
        end = at + metric.width(n_outputs)
        values[name] = metric.value(np.asarray(total[at:end], dtype=np.float64), n_outputs)
        at = end
    return values


def _family(name: str) -> str:
    family = name.split("@", 1)[0]
    own = name.removesuffix("-").split("@", 1)[0]
    return own if own in QUERIES else family


def by_script(name: str) -> bool:
    """Whether a script's function is the metric, which no table has."""
    return _family(name) in SCRIPTED


def metric_of(name: str) -> Metric:
    """Return a metric, with or without its number."""
    found = _found(name)
    if found is None:
        raise InvalidJob(f"metrics: there is no metric '{name}'")
    return found


def _found(name: str) -> Metric | None:
    family = _family(name)
    if family in SCRIPTED:
        return SCRIPTED[family]
    return REGISTRY.load(family, Metric) if family in REGISTRY.installed() else None


def _check_predicted(name: str, objective: str) -> None:
    """Refuse a metric of times where hazards are predicted, or one of hazards where times are."""
    refused = _OF_TIMES if objective == COX else ("cox-nloglik",)
    if _family(name) in refused:
        what = "hazards, not times" if objective == COX else "times, not hazards"
        others = (*(_OF_COX if objective == COX else (*_OF_TIMES, "c-index")), BRIER)
        raise InvalidJob(
            f"metrics: '{name}' does not suit {objective}, which predicts {what}; choose from "
            + ", ".join(others)
        )


def of_job(
    names: Sequence[str],
    task: Task,
    times: FailureTimes,
    objective: str | None,
    quantiles: Sequence[float] = (),
) -> tuple[str, ...]:
    """Return a job's metrics, with the distribution of its failure times where they name none.

    Those of survival depend on what is predicted, too, where none are named. Of several quantiles
    the metric is the mean over them.

    Raises
    ------
    InvalidJob
        Another metric with several quantiles.
    """
    if len(quantiles) > 1:
        own = "pinball@" + ":".join(f"{alpha!r}" for alpha in quantiles)
        scripts = tuple(name for name in names if by_script(name))
        for name in names:
            if name not in ("pinball", own, *scripts):
                raise InvalidJob(
                    f"metrics: '{name}' is of one prediction a row, and the job has "
                    f"{len(quantiles)} quantiles; choose pinball, the mean over them"
                )
        return (own, *scripts)
    if task is not Task.SURVIVAL:
        return tuple(names)
    if objective == COX:
        return tuple(names) or _OF_COX
    return tuple(
        name + times.suffix if name in OF_TIMES else name for name in names or defaults(task)
    )


def power_of(name: str) -> float | tuple[float, ...] | FailureTimes | QueryScore:
    """Return the number of ``tweedie_deviance@1.3`` or ``pinball@0.9``, or its default.

    Of ``pinball@0.1:0.9`` it is a number of each output, of ``aft-nloglik@logistic:1.2`` a
    distribution, of ``ndcg@10-`` which ranks count.
    """
    family, at, text = name.partition("@")
    if _family(name) in QUERIES:
        return QueryScore.of(name)
    if family in OF_TIMES:
        return FailureTimes.of(text, name) if at else FailureTimes()
    if family in SCRIPTED:
        return 0.0
    if family not in NUMBERS:
        if at:
            raise InvalidJob(f"metrics: '{family}' takes no '@' parameter")
        return 0.0
    default, what, least, most = NUMBERS[family]
    numbers = []
    for one in text.split(":") if family == "pinball" else [text]:
        try:
            numbers.append(float(one) if at else default)
        except ValueError:
            numbers.append(math.nan)
        if not least <= numbers[-1] <= most:
            raise InvalidJob(f"metrics: '{name}': the {what} must be in [{least:g}, {most:g}]")
    return tuple(numbers) if len(numbers) > 1 else numbers[0]
