"""Which of the booster's parameters a vertical job has: what it cannot follow, it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hedgerow.boosting.engine.objective import objective_of
from hedgerow.boosting.engine.splitting import TreeParameters
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.job import Booster

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters

MOST_BINS = 65535
_DEFAULT = Booster()
_PLACES = "columns of text are divided by the place of a category; there are no categorical splits"
_NOT_OFFERED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "monotone_constraints": (any, "a vertical job does not have them"),
    "num_parallel_tree": (lambda n: n != 1, "a vertical job grows one tree at a time"),
    "tree_method": (lambda name: name != "hist", "a vertical job has histograms: expected hist"),
    "max_cat_to_onehot": (lambda n: n != _DEFAULT.max_cat_to_onehot, _PLACES),
    "max_cat_threshold": (lambda n: n != _DEFAULT.max_cat_threshold, _PLACES),
}
"""By parameter: whether a value asks for what is not there, and what is said of it."""
_OF_OBJECTIVES = ("scale_pos_weight", "huber_slope", "fair_c", "tweedie_variance_power")
"""Parameters of some objectives, without a meaning for the others."""


def check_booster(job: JobParameters, *, mode: str, sampling: str) -> None:
    """Refuse parameters that are out of range, or that this strategy would have to ignore.

    Parameters
    ----------
    mode, sampling : str
        The strategy's.

    Raises
    ------
    InvalidJob
        Names the parameter.
    """
    booster = job.booster
    for name, (asks, why) in _NOT_OFFERED.items():
        if asks(getattr(booster, name)):
            raise InvalidJob(f"booster.{name}: {why}")
    if not 2 <= booster.max_bin <= MOST_BINS:
        raise InvalidJob(
            f"booster.max_bin: expected a value from 2 to {MOST_BINS}, {booster.max_bin} came"
        )
    if mode == "layered" and booster.grow_policy != "depthwise":
        raise InvalidJob("booster.grow_policy: mode layered grows level by level (depthwise)")
    _check_sampling(booster, sampling)
    TreeParameters.of(booster, 1)
    objective = objective_of(job.objective, job.task, booster)
    for name in _OF_OBJECTIVES:
        changed = replace(booster, **{name: getattr(_DEFAULT, name)})
        if getattr(booster, name) != getattr(_DEFAULT, name) and (
            objective_of(job.objective, job.task, changed) == objective
        ):
            raise InvalidJob(f"booster.{name}: has no meaning for the objective {job.objective}")
    if booster.base_score is not None:
        objective.margin_of(booster.base_score)


def _check_sampling(booster: Booster, sampling: str) -> None:
    known = ("uniform", "gradient_based")
    if booster.sampling_method not in known:
        raise InvalidJob(
            f"booster.sampling_method: expected one of {', '.join(known)}, "
            f"{booster.sampling_method!r} came"
        )
    if not 0 < booster.subsample <= 1:
        raise InvalidJob(f"booster.subsample: expected (0, 1], {booster.subsample:g} came")
    if sampling != "none":
        for name in ("subsample", "sampling_method"):
            if getattr(booster, name) != getattr(_DEFAULT, name):
                raise InvalidJob(
                    f"booster.{name}: rows are sampled by secureboost.sampling = {sampling}"
                )
