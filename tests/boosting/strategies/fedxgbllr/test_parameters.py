"""Parameters that no job can have are refused by name."""

from __future__ import annotations

import pytest

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.job import Booster
from tests.federation.stacking import job, small, table


@pytest.mark.parametrize(
    ("given", "task", "named"),
    [
        ({"combiner": "cmn"}, Task.BINARY, "combiner"),
        ({"combiner": "ridge"}, Task.BINARY, "logit_ridge"),
        ({"combiner": "logit_ridge"}, Task.REGRESSION, "ridge"),
        ({"trees": 0}, Task.BINARY, "trees"),
        ({"epochs": 0}, Task.BINARY, "epochs"),
        ({"validation": 0.9}, Task.BINARY, "validation"),
        (
            {"validation": 0.2, "combiner": "mean", "epochs": 10, "channels": 64, "rounds": 10},
            Task.BINARY,
            "combiner that learns",
        ),
        ({"early_stopping_rounds": 3}, Task.BINARY, "validation > 0"),
        ({"epoch_choices": (1, 2)}, Task.BINARY, "validation > 0"),
        ({"epoch_choices": (2,), "validation": 0.2, "combiner": "mean"}, Task.BINARY, "epochs"),
        ({"weight_bits": 8, "combiner": "leaves"}, Task.BINARY, "weight_bits"),
        ({"weight_bits": 16}, Task.BINARY, "weight_bits"),
        ({"leaf_bits": 8}, Task.BINARY, "leaf_bits"),
        ({"leaf_bits": 16, "scrub": "none"}, Task.BINARY, "leaf_bits"),
        ({"secure": True}, Task.BINARY, "min_silos"),
        ({"scale_target": True}, Task.BINARY, "scale_target"),
        ({"scrub": "all"}, Task.BINARY, "scrub"),
        ({"server_optimiser": "sgd"}, Task.BINARY, "server_optimiser"),
    ],
    ids=str,
)
def test_unusable_parameters_are_refused_by_name(given, task, named):
    with pytest.raises(InvalidJob, match=named):
        small(**given).validate(job(task, small()))


def test_objectives_whose_margins_a_head_does_not_fit_are_refused():
    task = job(Task.REGRESSION, small(), booster=Booster(objective="count:poisson"))
    with pytest.raises(InvalidJob, match="objective"):
        small().validate(task)


@pytest.mark.parametrize("given", [{"channels": 5}, {"combiner": "conv3", "channels": 1}], ids=str)
def test_a_network_too_narrow_to_start_at_the_mean_is_refused(given):
    task = job(Task.MULTICLASS, small(**given))
    with pytest.raises(InvalidJob, match="channels: expected at least"):
        task.parameters.validate_for(task, table(Task.MULTICLASS, 2, 0).schema)
