"""What a vertical job makes of each of the booster's parameters: it follows it, or refuses it."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
import xgboost as xgb
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.job import Booster
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.secureboost.model import ActivePart, PassivePart
from tests.federation import vertical
from tests.federation.memory import run_in_memory

FOLLOWED: dict[str, dict[str, Any]] = {
    "objective": {"objective": "huber"},
    "eta": {"eta": 0.1},
    "gamma": {"gamma": 2.0},
    "max_depth": {"max_depth": 2},
    "max_leaves": {"max_leaves": 5},
    "grow_policy": {"grow_policy": "lossguide", "max_leaves": 5},
    "min_child_weight": {"min_child_weight": 40.0},
    "max_delta_step": {"max_delta_step": 0.1},
    "subsample": {"subsample": 0.5},
    "sampling_method": {"subsample": 0.5, "sampling_method": "gradient_based"},
    "lambda_": {"lambda_": 20.0},
    "alpha": {"alpha": 5.0},
    "max_bin": {"max_bin": 4},
    "base_score": {"base_score": 0.25},
    "huber_slope": {"objective": "huber", "huber_slope": 0.3},
    "fair_c": {"objective": "fair", "fair_c": 0.3},
    "loss": {"loss": "(margin - label)**4"},
    "hessian": {"loss": "(margin - label)**2 / 2", "hessian": "3"},
}
"""By parameter, for regressions: what makes another model than without it."""
FOLLOWED_BY_PARTY = ("colsample_bytree", "colsample_bylevel", "colsample_bynode")
"""Each party samples its own columns."""
REFUSED: dict[str, dict[str, Any]] = {
    "monotone_constraints": {"monotone_constraints": (1, 0)},
    "increasing": {"increasing": ("x0",)},
    "decreasing": {"decreasing": ("x0",)},
    "interaction_constraints": {"interaction_constraints": (("x0", "x1"),)},
    "num_parallel_tree": {"num_parallel_tree": 2},
    "tree_method": {"tree_method": "exact"},
    "max_cat_to_onehot": {"max_cat_to_onehot": 1},
    "max_cat_threshold": {"max_cat_threshold": 8},
    "scale_pos_weight": {"scale_pos_weight": 2.0},  # of binary tasks
    "tweedie_variance_power": {"tweedie_variance_power": 1.2},  # of another objective
    "quantile_alpha": {"quantile_alpha": 0.9},  # of another objective
    "more_alphas": {"more_alphas": (0.9,)},  # too
    "aft_loss_distribution": {"aft_loss_distribution": "logistic"},
    "aft_loss_distribution_scale": {"aft_loss_distribution_scale": 0.5},
    "lambdarank_num_pair_per_sample": {"lambdarank_num_pair_per_sample": 4},
    "lambdarank_score_normalization": {"lambdarank_score_normalization": False},
    "device": {"device": "cuda"},
    "huber_slope": {"huber_slope": 2.0},
    "fair_c": {"objective": "huber", "fair_c": 2.0},
    "max_bin": {"max_bin": 1},
    "sampling_method": {"sampling_method": "goss"},
    "subsample": {"subsample": 1.5},
}


Parts = tuple[ActivePart, dict[str, PassivePart]]


def model(
    task: Task, booster: dict[str, Any]
) -> tuple[Parts, NDArray[np.float32], JobParameters, Dataset]:
    """Return what a job makes: parts, margins, and the job with its table."""
    whole = vertical.table(150, 4, task)
    job = vertical.job(task, booster, encryption="plain", key_bits=2048, rounds=1)
    job.parameters.validate(job)
    memories: dict[str, dict[str, bytes]] = {"guest": {}, "host-1": {}}
    outcome = run_in_memory(
        job,
        vertical.cut_by_columns(whole, [2, 2]),
        schema=whole.schema,
        vaults=vertical.vaults(),
        memories=memories,
    )
    assert outcome.error is None, (outcome.error, outcome.errors)
    return vertical.parts(outcome.kept), vertical.margins(memories["guest"], 0), job, whole


def test_every_parameter_is_followed_or_refused() -> None:
    assert {f.name for f in fields(Booster)} == {*FOLLOWED, *FOLLOWED_BY_PARTY, *REFUSED}


@pytest.mark.parametrize("name", FOLLOWED)
def test_a_parameter_makes_the_pooled_engines_trees_and_others_than_without_it(name: str) -> None:
    changes = FOLLOWED[name]
    without = {key: value for key, value in changes.items() if key.rstrip("_") != name.rstrip("_")}
    parts, got, job, whole = model(Task.REGRESSION, changes)
    ensemble = vertical.pooled(job, whole, 1)
    assert vertical.joined(*parts, [2, 2]) == vertical.divisions(ensemble)
    expected = ensemble.margins(xgb.DMatrix(vertical.by_id(whole).X)).reshape(got.shape)
    assert np.abs(got - expected).max() < 1e-6
    assert not np.array_equal(got, model(Task.REGRESSION, without)[1])


def test_the_weight_of_positive_rows_is_followed_in_binary_tasks() -> None:
    parts, got, job, whole = model(Task.BINARY, {"scale_pos_weight": 3.0})
    ensemble = vertical.pooled(job, whole, 1)
    assert vertical.joined(*parts, [2, 2]) == vertical.divisions(ensemble)
    assert not np.array_equal(got, model(Task.BINARY, {})[1])


@pytest.mark.parametrize("name", FOLLOWED_BY_PARTY)
def test_each_party_samples_its_own_columns(name: str) -> None:
    parts, got, _, _ = model(Task.REGRESSION, {name: 0.5})
    (tree,) = vertical.joined(*parts, [2, 2])
    plain = model(Task.REGRESSION, {})[1]
    depth = {0: 0}
    used: dict[tuple[int, int], set[int]] = {}
    for node, (column, _, _, left) in sorted(tree.items()):
        depth[left] = depth[left + 1] = depth[node] + 1
        scope = {"colsample_bytree": 0, "colsample_bylevel": depth[node]}.get(name, node)
        used.setdefault((scope, column // 2), set()).add(column)
    # Of two columns each party has one for the tree, for the level, for the node.
    assert all(len(columns) == 1 for columns in used.values())
    # A passive party draws in secret, so now and then just those that a tree splits on anyway.
    again = (model(Task.REGRESSION, {name: 0.5})[1] for _ in range(30))
    assert any(not np.array_equal(margins, plain) for margins in chain([got], again))


@pytest.mark.parametrize("name", REFUSED)
def test_a_parameter_that_cannot_be_followed_is_refused_by_name(name: str) -> None:
    job = vertical.job(Task.REGRESSION, REFUSED[name], key_bits=2048)
    with pytest.raises(InvalidJob, match=rf"\[booster\] {name}: "):
        job.parameters.validate(job)


def test_rows_are_not_sampled_by_two_rules() -> None:
    job = vertical.job(booster={"subsample": 0.5}, sampling="goss", key_bits=2048)
    with pytest.raises(InvalidJob, match=r"\[booster\] subsample: rows are sampled by secureboost"):
        job.parameters.validate(job)


def test_a_test_table_of_the_coordinator_is_refused() -> None:
    job = replace(vertical.job(key_bits=2048), has_test=True)
    with pytest.raises(InvalidJob, match="test_data: a vertical job is scored on the parties' own"):
        job.parameters.validate(job)
