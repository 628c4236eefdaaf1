"""Metrics by the names of XGBoost and scikit-learn."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import NamedTuple

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.metrics.scores import (
    ABOUT,
    METRICS,
    NUMBERS,
    OF_TIMES,
    QUERIES,
    REGISTRY,
    Metric,
)

_ALIASES: dict[str, tuple[str, ...]] = {
    "roc_auc": ("auc",),
    "roc_auc_score": ("auc",),
    "roc_auc_ovr": ("auc",),
    "pr_auc": ("aucpr", "query-aucpr"),
    "aucpr": ("query-aucpr",),
    "average_precision_score": ("average_precision",),
    "log_loss": ("logloss", "mlogloss"),
    "accuracy_score": ("accuracy",),
    "balanced_accuracy_score": ("balanced_accuracy",),
    "f1_score": ("f1",),
    "precision_score": ("precision",),
    "recall_score": ("recall",),
    "brier_score": ("brier",),
    "brier_score_loss": ("brier",),
    "mean_squared_error": ("mse",),
    "root_mean_squared_error": ("rmse",),
    "mean_absolute_error": ("mae",),
    "mean_absolute_percentage_error": ("mape",),
    "root_mean_squared_log_error": ("rmsle",),
    "r2_score": ("r2",),
    "mean_pinball_loss": ("pinball",),
    "quantile": ("pinball",),
    "mean_poisson_deviance": ("poisson-deviance",),
    "mean_gamma_deviance": ("gamma-deviance",),
    "mean_tweedie_deviance": ("tweedie_deviance",),
    "ndcg_score": ("ndcg",),
    "concordance_index": ("c-index",),
    "integrated_brier_score": ("integrated-brier",),
    "concordance_index_censored": ("c-index",),
}
"""Other names of a metric, of which a job takes the first that suits its task."""
_OF_CLASSES = {f"{name}_macro": name for name in ("f1", "precision", "recall")}
"""Names that mean the mean over classes, which a metric of two classes is not."""


class MetricRow(NamedTuple):
    """A metric as people read it: names with ``@`` take a number."""

    metric: str
    tasks: str
    better: str
    also_called: str
    meaning: str


def canonical(name: str, task: Task) -> str:
    """Return our name of a metric, of one that suits the task if any; others come back as is."""
    family, at, number = name.partition("@")
    others = _ALIASES.get(family, ())
    if task is Task.MULTICLASS and family in _OF_CLASSES:
        others = (_OF_CLASSES[family],)
    spelt = (family, family.replace("_", "-"), family.replace("-", "_"), *others)
    if task is Task.RANKING and family.removesuffix("-") in QUERIES:
        return name
    known = [ours for ours in spelt if ours in METRICS]
    suited = (ours for ours in known if task in METRICS[ours].tasks)
    ours = next(suited, known[0] if known else "")
    return f"{ours}{at}{number}" if ours else name


def hint(name: str, task: Task) -> str:
    """Return what to say of a name that is none: the nearest one of the task, or all of them."""
    family = name.partition("@")[0].lower()
    known = [ours for ours, metric in METRICS.items() if task in metric.tasks]
    if family.startswith("neg_"):
        meant = canonical(family.removeprefix("neg_"), task)
        if meant in known:
            return f"did you mean '{meant}'? Losses keep their sign here, and the least is best"
    meant = canonical(family, task)
    names = {**{ours: ours for ours in known}, **{a: canonical(a, task) for a in _ALIASES}}
    suited = [name for name, ours in names.items() if ours in known]
    near = [n for n in suited if len(family) > 2 and n.startswith(family)]
    near = near or difflib.get_close_matches(family, suited, 1, 0.8)
    found = meant if meant in known else names[near[0]] if near else ""
    if found:
        return f"did you mean '{found}'?"
    if REGISTRY.is_foreign(family):
        return "it is of another package, which is not installed here"
    return f"a {task.value} job has {', '.join(known)}"


def described(task: Task | None = None) -> Iterator[MetricRow]:
    """Yield all metrics, or those of a task; of a package's that is not sound why it is not."""
    others: dict[str, list[str]] = {name: [] for name in REGISTRY.installed()}
    for alias, ours in _ALIASES.items():
        for name in ours:
            others[name] += [alias]
    for alias, name in _OF_CLASSES.items():
        others[name] += [f"{alias} (multiclass)"]
    letters = {"quantile": "q", "variance power": "p", "slope": "s"}
    for name in others:
        try:
            metric = REGISTRY.load(name, Metric)
        except InvalidJob as error:
            yield MetricRow(name, "not usable", "", "", str(error))
            continue
        if task is not None and task not in metric.tasks:
            continue
        shown = f"{name}@{letters[NUMBERS[name][1]]}" if name in NUMBERS else name
        shown = f"{name}@distribution:scale" if name in OF_TIMES else shown
        shown = f"{name}@n" if name in QUERIES else shown
        tasks = [each.value for each in Task if each in metric.tasks]
        meaning = ABOUT.get(name, metric.about)
        better = "higher" if metric.higher_is_better else "lower"
        yield MetricRow(shown, ", ".join(tasks), better, ", ".join(others[name]), meaning)
