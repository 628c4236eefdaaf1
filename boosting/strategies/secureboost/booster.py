"""Which of the booster's parameters a vertical job has: what it cannot follow, it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hedgerow.boosting.checks import on_cpus, one_of, within
from hedgerow.boosting.engine.objective import check_parameters, objective_of
from hedgerow.boosting.engine.splitting import TreeParameters
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.job import Booster

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters

MOST_BINS = 65535
_DEFAULT = Booster()
_POSITIONS = "text is divided by the position of a category, without secureboost.categories = sets"


def check_booster(job: JobParameters, *, mode: str, sampling: str, sets: bool) -> None:
    """Refuse parameters that are out of range, or that this strategy would have to ignore.

    Parameters
    ----------
    mode, sampling : str
        The strategy's.
    sets : bool
        Whether it divides categories into sets.

    Raises
    ------
    InvalidJob
        Names the parameter.
    """
    booster = job.booster
    for name, asked, why in (
        *(
            (
                name,
                any(getattr(booster, name)),
                "a vertical job has secureboost.increasing and decreasing",
            )
            for name in ("monotone_constraints", "increasing", "decreasing")
        ),
        (
            "interaction_constraints",
            bool(booster.interaction_constraints),
            "a vertical job has secureboost.interaction_constraints",
        ),
        ("num_parallel_tree", booster.num_parallel_tree != 1, "one tree is grown at a time"),
        ("tree_method", booster.tree_method != "hist", "expected hist"),
        *(
            (name, not sets and getattr(booster, name) != getattr(_DEFAULT, name), _POSITIONS)
            for name in ("max_cat_to_onehot", "max_cat_threshold")
        ),
    ):
        if asked:
            raise InvalidJob(f"[booster] {name}: {why}")
    on_cpus(booster.device)
    within("booster", "max_bin", booster.max_bin, 2, MOST_BINS)
    if mode == "layered" and booster.grow_policy != "depthwise":
        raise InvalidJob("[booster] grow_policy: mode layered grows level by level (depthwise)")
    one_of("booster", "sampling_method", booster.sampling_method, ("uniform", "gradient_based"))
    if not 0 < booster.subsample <= 1:
        raise InvalidJob(
            f"[booster] subsample: expected above 0, to 1, received {booster.subsample:g}"
        )
    if (
        booster.sampling_method == "gradient_based"
        and booster.subsample == 1
        and sampling == "none"
    ):
        raise InvalidJob("[booster] sampling_method: gradient_based needs a subsample below 1")
    if sampling != "none":
        for name, own, default in (
            ("subsample", booster.subsample, _DEFAULT.subsample),
            ("sampling_method", booster.sampling_method, _DEFAULT.sampling_method),
        ):
            if own != default:
                raise InvalidJob(
                    f"[booster] {name}: rows are sampled by secureboost.sampling = {sampling}"
                )
    TreeParameters.of(booster, 1)
    check_parameters(job.objective, booster, "")
    objective = objective_of(job.objective, job.task, booster)
    if booster.base_score is not None:
        objective.margin_of(booster.base_score)
