"""Parameters that no job can have are refused by name."""

from __future__ import annotations

import pytest

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.job import Booster
from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr
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
        ({"paper": "talk", "validation": None}, Task.BINARY, "paper: expected one of"),
        (
            {"paper": "text", "validation": None, "epochs": 10},
            Task.BINARY,
            "booster.* it would have",
        ),
        ({"weight_bits": 8, "combiner": "leaves"}, Task.BINARY, "weight_bits"),
        ({"weight_bits": 16}, Task.BINARY, "weight_bits"),
        ({"leaf_bits": 8}, Task.BINARY, "leaf_bits"),
        ({"leaf_bits": 16, "scrub": "none"}, Task.BINARY, "leaf_bits"),
        ({"secure": True}, Task.BINARY, "min_silos"),
        ({"scale_target": True}, Task.BINARY, "scale_target"),
        ({"scrub": "all"}, Task.BINARY, "scrub"),
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


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"validation": 0.1}, "validation: it would have no effect; expected no paper = 'code'"),
        ({"epochs": 20}, "epochs"),
        ({"share_penalties": True}, "share_penalties"),
        ({"combiner": "leaves"}, "paper: it would have no effect; expected a combiner of cnn"),
    ],
    ids=str,
)
def test_a_published_job_has_its_own_epochs_rows_and_booster(given, named):
    task = job(Task.BINARY, small(), booster=Booster())
    with pytest.raises(InvalidJob, match=named):
        FedXGBllr(paper="code", **given).validate(task)
