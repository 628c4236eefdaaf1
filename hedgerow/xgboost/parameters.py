"""XGBoost's parameters as the job that all sites of a federation run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.failure_times import FailureTimes
from hedgerow.boosting.job import Booster
from hedgerow.boosting.metrics import higher_is_better, of_job
from hedgerow.boosting.metrics.names import canonical
from hedgerow.boosting.strategies.histogram import STRATEGY  # here: no part of a training's time
from hedgerow.coordinator.operator.library.arguments import interactions, monotone, number
from hedgerow.coordinator.operator.library.jobs import XGBOOST_ALIASES, Job, plain
from hedgerow.services.wire import job_file
from hedgerow.xgboost.collective import COLUMNS
from hedgerow.xgboost.data import EVENT, QUERY, UPPER, WEIGHT, labels_of, margins_of
from hedgerow.xgboost.scripted import named

_OBJECTIVES = {
    "reg:squarederror": (Task.REGRESSION, "rmse"),
    "reg:pseudohubererror": (Task.REGRESSION, "mphe"),
    "reg:tweedie": (Task.REGRESSION, "tweedie-nloglik@{tweedie_variance_power}"),
    "count:poisson": (Task.REGRESSION, "poisson-nloglik"),
    "reg:gamma": (Task.REGRESSION, "gamma-deviance"),
    "reg:logistic": (Task.REGRESSION, "rmse"),
    "binary:logistic": (Task.BINARY, "logloss"),
    "reg:squaredlogerror": (Task.REGRESSION, "rmsle"),
    "binary:logitraw": (Task.BINARY, "logloss"),
    "binary:hinge": (Task.BINARY, "error"),
    "multi:softprob": (Task.MULTICLASS, "mlogloss"),
    "multi:softmax": (Task.MULTICLASS, "mlogloss"),
    "survival:aft": (Task.SURVIVAL, "aft-nloglik"),
    **{
        name: (Task.RANKING, metric + "@{lambdarank_num_pair_per_sample}")
        for name, metric in (("rank:ndcg", "ndcg"), ("rank:pairwise", "ndcg"), ("rank:map", "map"))
    },
    "survival:cox": (Task.SURVIVAL, "cox-nloglik"),
    "reg:absoluteerror": (Task.REGRESSION, "mae"),
    "reg:quantileerror": (Task.REGRESSION, "quantile"),
}
"""Task and default metric of each objective of a histogram job that is XGBoost's."""
_NO_EFFECT = (
    "nthread", "verbosity", "validate_parameters", "use_label_encoder",
     "seed_per_iteration", "lambdarank_bias_norm", "enable_categorical", "predictor", "silent",
)  # fmt: skip
"""What trees do not depend on."""
_TOP = "lambdarank_num_pair_per_sample"
_NO_DEFAULT = "disable_default_eval_metric"
_ON: tuple[Any, ...] = (True, 1, "true")
_OFF: tuple[Any, ...] = (False, 0, "false")
_ONLY: dict[str, tuple[tuple[Any, ...], str]] = {
    "booster": (("gbtree",), "linear models and dropped trees have no secure sums: use gbtree"),
    "tree_method": (("hist", "auto"), "silos sum histograms: use hist"),
    "device": (("cpu",), "trees grow from sums of integers on CPUs: use cpu"),
    "process_type": (("default",), "trees are grown only: use default"),
    **dict.fromkeys(("data_split_mode", "dsplit"), (("row", 0, "0", "auto"), COLUMNS)),
    "refresh_leaf": ((1, True), "trees are grown only: leave it out"),
    "sampling_method": (("uniform", "gradient_based"), "use uniform or gradient_based"),
    "lambdarank_pair_method": (
        ("topk",),
        "pairs are drawn by a query's place among all queries, which no site knows: use topk",
    ),
    "lambdarank_normalization": (_ON, "it bounds gradients, which secure sums need: leave it out"),
    "lambdarank_unbiased": (_OFF, "places of clicks are no sums over silos here: leave it out"),
    "ndcg_exp_gain": (_ON, "gains are 2 to the label less one, as by default: leave it out"),
}
_VECTOR = ("one_output_per_tree", "multi_output_tree")
_STOPS = ("early_stopping_rounds", "tol", "validation", "validation_tables")
_REFUSED = {
    "updater": "silos sum histograms: leave it out",
    "feature_weights": "give them to the matrix that is trained on",
    "num_target": "it follows from the labels: leave it out",
    "cache_host_ratio": "each silo has its bins in memory: leave it out",
}
_TYPES: dict[str, Callable[[Any], Any]] = {
    f.name.rstrip("_"): int if isinstance(f.default, int) else float for f in fields(Booster)
} | {"objective": str, "grow_policy": str, "aft_loss_distribution": str}


@dataclass(frozen=True)
class TrainRequest:
    """What a call of ``train`` asks for."""

    job: Job
    metrics: tuple[tuple[str, str], ...]
    """XGBoost's name of each metric that is scored, and the job's."""
    quantiles: tuple[float, ...] = ()
    """``quantile_alpha``, of the metric too."""
    by_round: Sequence[Mapping[str, Any]] = ()
    """What callbacks set for each round, where they do."""
    custom: str = ""
    """The job's name of the script's own metric."""

    @property
    def classes(self) -> int:
        """How many classes labels are of; 0 where they are numbers."""
        if self.job.parameters.task is Task.BINARY:
            return 2
        return self.job.parameters.classes

    @property
    def bounded(self) -> bool:
        """Whether labels are bounds of times."""
        return self.job.parameters.task is Task.SURVIVAL and not self.signed

    @property
    def signed(self) -> bool:
        """Whether labels are times, negative of rows whose event was not seen."""
        return self.job.parameters.objective == "survival:cox"

    @property
    def ranked(self) -> bool:
        """Whether rows are of queries."""
        return self.job.parameters.task is Task.RANKING


@dataclass(frozen=True)
class Stopping:
    """When a job of several organisations ends early, which no script decides alone."""

    rounds: int
    metric: str | None = None
    maximize: bool | None = None
    by: float = 0.0

    def rule(self, metrics: Sequence[tuple[str, str]]) -> tuple[list[str], dict[str, Any]]:
        """Return the job's metrics, that which ends it first, and its rule."""
        by_name = dict(metrics)
        if not by_name:
            raise InvalidJob("early_stopping_rounds: expected a metric, received none")
        name = self.metric or [*by_name][-1]
        if name not in by_name:
            raise InvalidJob(f"metric_name: {name!r} is none of {', '.join(by_name)}")
        first = by_name[name]
        if self.maximize not in (None, higher_is_better(first)):
            better = "higher" if higher_is_better(first) else "lower"
            raise InvalidJob(f"maximize: {name} is better when it is {better}, for all sites")
        others = [ours for ours in by_name.values() if ours != first]
        rule = {"early_stopping_rounds": number("early_stopping_rounds", self.rounds, int)}
        return [first, *others], rule | ({"tol": self.by} if self.by else {})


def asked(
    given: Mapping[str, Any] | Sequence[tuple[str, Any]] | None,
    settings: Mapping[str, Any],
    *,
    rounds: int,
    features: Sequence[str],
    weighted: bool,
    scored: bool,
    tested: bool,
    world_size: int,
    stopping: Stopping | None = None,
    validated: bool = False,
    by_round: Sequence[Mapping[str, Any]] = (),
    n_labels: int = 1,
    n_starts: int = 0,
    feature_weights: Sequence[float] = (),
    gradients: str = "",
    custom_metric: Any = None,
) -> TrainRequest:
    """Return the job of XGBoost's parameters.

    Parameters
    ----------
    settings : Mapping
        Keys of a job file that the context has.
    scored : bool
        Whether there are evaluation sets.
    tested : bool
        Whether these are rows of their own.
    stopping : Stopping, optional
        When all sites' job ends early.
    validated : bool
        Whether each site brings validation rows.
    by_round : sequence of Mapping
        Parameters of each round, in place of those of the training.
    n_labels : int
        Labels a row.
    n_starts : int
        Base margins a row.
    feature_weights : sequence of float
        How likely each feature is drawn; empty where all are alike.
    gradients : str
        What the script's own function is called; empty where the objective has gradients.
    custom_metric : callable, optional
        The script's own metric.

    Raises
    ------
    InvalidJob
        A parameter that a histogram job cannot have; says why, and what is nearest.
    """
    parameters, metrics, settings = _sorted(given, settings)
    _refuse(parameters)
    n_classes = number("num_class", parameters.pop("num_class", 0), int)
    alone = "multi:softmax" if n_classes > 1 else "reg:squarederror"  # as XGBoost
    objective = parameters.setdefault("objective", alone)
    if objective not in _OBJECTIVES:
        raise InvalidJob(
            f"objective: {objective!r} is none of a histogram job; it has {', '.join(_OBJECTIVES)}"
        )
    task, default = _OBJECTIVES[objective]
    if (task is Task.MULTICLASS) != (n_classes > 1) and n_classes != 1:
        raise InvalidJob(f"num_class: {n_classes} does not go with {objective}")
    own: dict[str, Any] = {"strategy": STRATEGY.parameters.name, "task": task.value}
    own["label"] = [*labels_of(n_labels)]
    own["features"] = list(features)  # their order is the model's: one that differs is refused
    own["histogram"] = {"rounds": rounds, **_sampling(parameters)}
    if task is Task.MULTICLASS:
        own["classes"] = n_classes
    if "seed" in parameters:
        own["seed"] = number("seed", parameters.pop("seed"), int)
    if weighted and task is Task.RANKING:
        raise InvalidJob("weight: queries of a ranking count alike here: leave it out")
    if weighted:
        own["columns"] = {"weight": WEIGHT}
    if task is Task.RANKING:
        own["columns"] = {"qid": QUERY}
    if task is Task.SURVIVAL:
        key, name = ("event", EVENT) if objective == "survival:cox" else ("label_upper", UPPER)
        own.setdefault("columns", {})[key] = name
    quantiles = _quantiles(parameters)
    strategy = parameters.pop("multi_strategy", _VECTOR[0])
    strategies = [one.get("multi_strategy", strategy) for one in by_round or [{}]]
    if bad := {*strategies} - {*_VECTOR}:
        raise InvalidJob(f"multi_strategy = {min(bad)!r}: use {' or '.join(_VECTOR)}")
    several = task is Task.MULTICLASS or max(n_labels, len(quantiles)) > 1
    if several and _VECTOR[1] in strategies:
        own["histogram"]["multi_output"] = True
        mixed = [k for k, one in enumerate(strategies) if one != _VECTOR[1]]
        own["histogram"] |= {"one_output_rounds": mixed} if mixed else {}
    no_default = _flag(_NO_DEFAULT, parameters.pop(_NO_DEFAULT, False))
    own["booster"] = _booster(parameters, features)
    if feature_weights and any(name.startswith("colsample_") for name in own["booster"]):
        own["histogram"]["feature_weights"] = [*feature_weights]
    if task is Task.MULTICLASS and "base_score" not in own["booster"] and not gradients:
        own["histogram"]["class_start"] = True
    if n_starts:
        own["histogram"]["base_margin"] = [*margins_of(n_starts)]
    if gradients:
        own["histogram"]["gradients"] = gradients
        own["booster"].setdefault("base_score", 0.5)  # XGBoost estimates none then
    if not metrics and default and not no_default:
        power = own["booster"].get("tweedie_variance_power", 1.5)
        top = own["booster"].get(_TOP, Booster().lambdarank_num_pair_per_sample)
        metrics = [default.format(tweedie_variance_power=f"{power:g}", **{_TOP: top})]
    if scored and not metrics and not no_default and custom_metric is None:
        raise InvalidJob(f"eval_metric: say one, for that of {objective} is no sum over silos here")
    times = FailureTimes(
        own["booster"].get("aft_loss_distribution", Booster().aft_loss_distribution),
        own["booster"].get("aft_loss_distribution_scale", Booster().aft_loss_distribution_scale),
    )
    slope = own["booster"].get("huber_slope", Booster().huber_slope)
    numbered = {"mphe": f"mphe@{slope:g}"} if slope != 1.0 else {}
    if len(quantiles) == 1:
        numbered["quantile"] = f"quantile@{quantiles[0]:g}"
    told = [(name, canonical(numbered.get(name, name), task)) for name in dict.fromkeys(metrics)]
    found = tuple(
        (name, of_job([ours], task, times, objective, quantiles)[0]) for name, ours in told
    )
    custom = ""
    if custom_metric is not None:
        high = stopping is not None and stopping.maximize
        custom = f"script{'-high' if high else ''}@{named(custom_metric)}"
    scored_by = (*found, *([(named(custom_metric).split()[0], custom)] if custom else []))
    own["metrics"] = [ours for _, ours in scored_by]
    eta = own["booster"].get("eta", Booster().eta)
    etas = [one.get("eta", eta) for one in by_round or [{}] * rounds]
    if any("eta" in one for one in by_round) or not 0 < eta <= 1:  # a job's eta is between
        own["booster"].pop("eta", None)
        own["histogram"]["etas"] = etas
    if validated and scored_by:
        own["histogram"]["validation_tables"] = True
    if stopping is not None:
        own["metrics"], rule = stopping.rule(scored_by)
        own["histogram"] |= rule
    if tested and scored_by:
        own["test_data"] = "test"
    for key, value in settings.items():
        if key == "columns" or (key in own and key != "seed"):
            raise InvalidJob(f"hedgerow_{key}: it follows from the parameters and the matrix")
        table = next(
            (t for t in ("histogram", "booster", "columns") if key in job_file.keys(t)), ""
        )
        follows = key in own.get(table, ()) or bool(stopping and key in _STOPS)
        if follows or (validated and key == "validation"):
            raise InvalidJob(f"hedgerow_{key}: it follows from what train is given")
        (own.setdefault(table, {}) if table else own)[key] = plain(value)
    hidden = own["histogram"].get("secure")
    if world_size == 1:
        own["histogram"]["secure"] = False
    elif world_size == 2 and hidden is not False:
        raise InvalidJob(
            "hedgerow_secure: two sites cannot hide their sums from each other, for each takes its "
            "own from the total; train with three, or say hedgerow_secure=False"
        )
    return TrainRequest(Job.from_spec(job_file.of_table(own)), found, quantiles, by_round, custom)


def _sorted(
    given: Mapping[str, Any] | Sequence[tuple[str, Any]] | None, settings: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str], dict[str, Any]]:
    """Return parameters by first name, metrics, and keys of the job."""
    pairs = list(given.items() if isinstance(given, Mapping) else given or ())
    parameters: dict[str, Any] = {}
    metrics: list[str] = []
    settings = dict(settings)
    for name, value in pairs:
        if value is None:
            continue
        if name == "eval_metric":
            metrics += value if isinstance(value, list | tuple) else [value]
        elif name.startswith("hedgerow_"):
            settings[name.removeprefix("hedgerow_")] = value
        else:
            parameters[XGBOOST_ALIASES.get(name, name)] = plain(value)
    for name in metrics:
        if not isinstance(name, str):
            raise InvalidJob("eval_metric: expected names, for silos sum what all of them know")
    return parameters, metrics, settings


def _refuse(parameters: dict[str, Any]) -> None:
    """Take out what has no effect; refuse what a histogram job cannot have."""
    for name in _NO_EFFECT:
        parameters.pop(name, None)
    for name, why in _REFUSED.items():
        if name in parameters:
            raise InvalidJob(f"{name}: {why}")
    for name, (allowed, why) in _ONLY.items():
        value = parameters.get(name, allowed[0])
        if str(value) not in map(str, allowed):
            raise InvalidJob(f"{name} = {value!r}: {why}")
        if name != "sampling_method":
            parameters.pop(name, None)


def _quantiles(parameters: dict[str, Any]) -> tuple[float, ...]:
    """Return ``quantile_alpha``, which a metric may have alone; leave it to its objective only."""
    given = parameters.pop("quantile_alpha", None)
    own = parameters["objective"] == "reg:quantileerror"
    if given is None:
        if own:
            raise InvalidJob("quantile_alpha: expected one with reg:quantileerror, received none")
        return ()
    found = tuple(number("quantile_alpha", one, float) for one in np.ravel(given).tolist())
    if own:
        parameters["quantile_alpha"] = found
    elif len(found) > 1:
        raise InvalidJob("quantile_alpha: expected one of a metric alone, received several")
    return found


def _sampling(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return how rows are drawn: XGBoost's gradient-based draw is MVS."""
    method = parameters.pop("sampling_method", "")
    share = number("subsample", parameters.pop("subsample", 1.0), float)
    if share == 1.0:
        return {}
    if method == "gradient_based":
        return {"sampling": "mvs", "sampling_rate": share}
    return {"sampling": "uniform", "sampling_rate": share, "reweight": False}


def _booster(parameters: Mapping[str, Any], features: Sequence[str]) -> dict[str, Any]:
    """Return the job's ``[booster]``; warns of other keys as XGBoost does."""
    found: dict[str, Any] = {}
    unused = []
    for name, value in parameters.items():
        if name == "monotone_constraints":
            if directions := monotone(value, features):
                found[name] = directions
        elif name == "interaction_constraints":
            if groups := interactions(value, features):
                found[name] = groups
        elif name == "base_score" and np.size(value) > 1 and np.unique(value).size > 1:
            raise InvalidJob("base_score: expected one number for all outputs, received several")
        elif name == "quantile_alpha":
            found[name] = [*value]
        elif name == "lambdarank_score_normalization":
            found |= {} if _flag(name, value) else {name: False}
        elif name not in _TYPES or name in ("fair_c", "loss", "hessian"):  # none of XGBoost's
            unused.append(name)
        else:
            one = value
            if name == "base_score" and np.size(value):  # one, or as often as outputs
                one = np.ravel(value).tolist()[0]
            found[name] = str(one) if _TYPES[name] is str else number(name, one, _TYPES[name])
    if unused:
        names = ", ".join(f'"{name}"' for name in sorted(unused))
        warnings.warn(f"Parameters: {{ {names} }} are not used.", UserWarning, stacklevel=5)
    return found


def _flag(name: str, value: Any) -> bool:
    """Return a parameter as the truth that it is, or that its text is for XGBoost."""
    for found in (False, True):
        if str(value).lower() in (str(found).lower(), str(int(found))):
            return found
    raise InvalidJob(f"{name}: expected true or false, received {value!r}")
