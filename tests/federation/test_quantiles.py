"""Quantiles near those of pooled training, and refused where leaves are sums of gradients."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from sklearn.metrics import mean_pinball_loss

import hedgerow
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.registry import NAMES

pytestmark = pytest.mark.process


def rows(n: int, seed: int) -> pd.DataFrame:
    draws = np.random.default_rng(seed)
    a = draws.normal(size=n)
    label = 2 * a + draws.normal(size=n) * (1 + (a > 0))
    return pd.DataFrame({"a": a, "b": draws.normal(size=n), "label": label})


def job(strategy: str = "bagging", **booster: object) -> hedgerow.Job:
    given = {"objective": "reg:quantileerror", **booster}
    return hedgerow.Job(strategy, label="label", task="regression", min_silos=3, **given)


@pytest.mark.parametrize("alpha", [0.1, 0.9])
def test_the_share_below_a_quantile_is_that_of_pooled_training(alpha: float) -> None:
    table, test = rows(4500, 1), rows(4000, 2)
    metrics = [f"pinball@{alpha}"]
    given = job("bagging", rounds=40, max_depth=3, quantile_alpha=alpha, metrics=metrics)
    run = hedgerow.simulate(given, table, 3, crypto=False, test=0.0)
    own = np.asarray(run.model.predict(test.drop(columns="label"))).ravel()
    parameters = {"objective": "reg:quantileerror", "quantile_alpha": alpha, "max_depth": 3}
    pooled = xgb.train(parameters, xgb.DMatrix(table[["a", "b"]], table.label), 40)
    whole = pooled.predict(xgb.DMatrix(test[["a", "b"]]))
    assert abs((test.label < own).mean() - alpha) < 0.03
    losses = [mean_pinball_loss(test.label, one, alpha=alpha) for one in (own, whole)]
    assert losses[0] < 1.06 * losses[1]  # leaves are means around the quantile
    # A stock model, which scores by itself what the run says.
    stock = run.model.to_xgboost().predict(xgb.DMatrix(test[["a", "b"]]))
    np.testing.assert_allclose(stock, own, rtol=1e-6)


HISTOGRAM = {"strategy": "histogram", "rounds": 40, "max_depth": 3, "min_child_weight": 10.0}


@pytest.mark.parametrize(
    ("objective", "alpha"),
    [("reg:quantileerror", 0.1), ("reg:quantileerror", 0.9), ("reg:absoluteerror", 0.5)],
)
def test_secure_sums_give_the_loss_of_pooled_xgboost(objective: str, alpha: float) -> None:
    """Within 3 % on training rows, whose labels XGBoost knows exactly, and on others."""
    table, test = rows(4500, 1), rows(4000, 2)
    own_metric = "mae" if objective == "reg:absoluteerror" else f"pinball@{alpha}"
    parameters = {"objective": objective, "max_depth": 3, "min_child_weight": 10.0}
    if objective == "reg:quantileerror":
        parameters["quantile_alpha"] = alpha
    given = job(**HISTOGRAM | parameters, metrics=[own_metric])
    run = hedgerow.simulate(given, table, 3, crypto=False, test=0.0)
    pooled = xgb.train(parameters, xgb.DMatrix(table[["a", "b"]], table.label), 40)
    for part in table, test:
        ours = np.asarray(run.model.predict(part.drop(columns="label"))).ravel()
        theirs = pooled.predict(xgb.DMatrix(part[["a", "b"]]))
        losses = [mean_pinball_loss(part.label, one, alpha=alpha) for one in (ours, theirs)]
        assert losses[0] < 1.03 * losses[1]
        assert abs((part.label < ours).mean() - alpha) < 0.03


def test_several_quantiles_of_one_job_are_those_of_pooled_xgboost(tmp_path: Path) -> None:
    table, test = rows(4500, 1), rows(4000, 2)
    alphas = [0.05, 0.5, 0.95]
    given = job(**HISTOGRAM | {"quantile_alpha": alphas})
    assert given.parameters.metrics == ("pinball@0.05:0.5:0.95",)
    run = hedgerow.simulate(given, table, 3, crypto=False, test=0.0)
    ours = run.model.predict(test.drop(columns="label"))
    parameters = {"objective": "reg:quantileerror", "quantile_alpha": alphas, "max_depth": 3}
    pooled = xgb.train(
        parameters | {"min_child_weight": 10.0}, xgb.DMatrix(table[["a", "b"]], table.label), 40
    )
    theirs = pooled.predict(xgb.DMatrix(test[["a", "b"]]))
    for k, alpha in enumerate(alphas):
        losses = [mean_pinball_loss(test.label, one[:, k], alpha=alpha) for one in (ours, theirs)]
        assert losses[0] < 1.03 * losses[1]
        assert abs((test.label < ours[:, k]).mean() - alpha) < 0.03
    (mean,) = run.model.evaluate(test).values()
    each = [mean_pinball_loss(test.label, ours[:, k], alpha=a) for k, a in enumerate(alphas)]
    assert mean == pytest.approx(np.mean(each))
    assert run.model.score(test) == mean
    stock = run.model.to_xgboost().predict(xgb.DMatrix(test[["a", "b"]]))
    np.testing.assert_allclose(stock, ours, rtol=1e-6)
    assert run.model.outputs == ("0.05", "0.5", "0.95")
    assert run.model.shap(test).shape == (4000, 3, 3)
    test.to_csv(tmp_path / "test.csv", index=False)
    predict = ["predict", str(run.folder), str(tmp_path / "test.csv"), "--out"]
    subprocess.run(
        [sys.executable, "-m", "hedgerow", *predict, str(tmp_path / "out.csv")], check=True
    )
    out = pd.read_csv(tmp_path / "out.csv")
    np.testing.assert_allclose(out["prediction_0.95"], ours[:, 2], rtol=1e-6)


@pytest.mark.parametrize(
    ("strategy", "given", "why"),
    [
        ("histogram", {"quantile_alpha": [0.9, 0.1]}, "expected quantiles that rise"),
        ("histogram", {"quantile_alpha": []}, "received an empty list"),
        ("histogram", {"quantile_alpha": [0.1, 1.0]}, "quantile_alpha: expected"),
        ("histogram", {"metrics": ["mae"]}, "choose pinball, the mean over them"),
        ("histogram", {"metrics": ["pinball@0.1"]}, "choose pinball, the mean over them"),
        ("histogram", {"objective": "reg:squarederror"}, "reg:quantileerror"),
        ("bagging", {}, "more_alphas: expected one with bagging"),
    ],
)
def test_what_several_quantiles_have_not_is_refused(
    strategy: str, given: dict[str, object], why: str
) -> None:
    own = HISTOGRAM if strategy == "histogram" else {"strategy": strategy}
    with pytest.raises(InvalidJob, match=why):
        job(**own | {"quantile_alpha": [0.1, 0.9]} | given)


def test_labels_that_are_large_beside_their_spread_are_told_apart() -> None:
    """Times in seconds, prices: cells are as fine as float32 is."""
    table = rows(3000, 1)
    table["label"] = 1e6 + table.label
    given = job(**HISTOGRAM | {"quantile_alpha": 0.5})
    run = hedgerow.simulate(given, table, 3, crypto=False, test=0.0)
    ours = np.asarray(run.model.predict(table.drop(columns="label"))).ravel()
    assert abs((table.label < ours).mean() - 0.5) < 0.05


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"min_child_weight": 9.0}, "min_child_weight: expected at least min_cell = 10"),
        ({"quantile_alpha": 0.995}, "quantile_alpha: expected"),
        ({"blind_coordinator": True}, "blind_coordinator = true"),
        ({"silos_per_round": 3}, "silos_per_round"),
        ({"coarse_bits": 4}, "coarse_bits"),
        ({"sampling": "goss"}, "sampling"),
        ({"increasing": ["a"]}, "monotone"),
        ({"columns": {"weight": "b"}}, "rows are counted, each as one"),
    ],
)
def test_what_does_not_go_with_counted_leaves_is_refused(
    given: dict[str, object], why: str
) -> None:
    silos = ["one", "two", "three", "four", "five", "six", "seven"]
    with pytest.raises(InvalidJob, match=why):
        job(**HISTOGRAM | {"silos": silos} | given)


def labels_told(booster: xgb.Booster, labels: np.ndarray, rates: list[float]) -> float:
    """Return the share of leaves that, put back on the label's scale, are the label of a row."""
    trees = booster.trees_to_dataframe()
    config = json.loads(booster.save_config())["learner"]["learner_model_param"]
    base = float(config["base_score"].strip("[]"))
    hits = [
        np.isclose(leaf / rates[tree] + base, labels, rtol=0, atol=2e-5).any()
        for tree, leaf in trees.loc[trees.Feature == "Leaf", ["Tree", "Gain"]].to_numpy()
        for tree in [int(tree)]
    ]
    return float(np.mean(hits))


@pytest.mark.parametrize("objective", ["reg:absoluteerror", "reg:quantileerror"])
def test_no_leaf_is_the_label_of_a_row(objective: str) -> None:
    """XGBoost's own leaf of a median is one row's residual: half of them are labels."""
    table = rows(4500, 1)
    given = job("bagging", objective=objective, rounds=1, max_depth=3, metrics=["mae"])
    run = hedgerow.simulate(given, table, 3, crypto=False, test=0.0)
    n_rows = [silo["rows"] for silo in run.document["silos"]]
    rates = [0.3 * n / sum(n_rows) for n in n_rows]
    labels = table.label.to_numpy()
    assert labels_told(run.model.to_xgboost(), labels, rates) < 0.05
    parameters = {"objective": objective, "max_depth": 3, "base_score": 0.5}
    if objective == "reg:quantileerror":
        parameters["quantile_alpha"] = 0.5
    stock = xgb.train(parameters, xgb.DMatrix(table[["a", "b"]], table.label), 1)
    assert labels_told(stock, labels, [0.3]) > 0.3


@pytest.mark.parametrize("strategy", sorted(set(NAMES) - {"bagging", "histogram", "secureboost"}))
def test_other_strategies_refuse_it_by_name(strategy: str) -> None:
    with pytest.raises(InvalidJob, match=r"objective|received a regression"):
        job(strategy, **({"epsilon": 1.0} if strategy == "dp_tree" else {}))


def test_a_policy_is_told_how_few_rows_a_leaf_is_of() -> None:
    def told(**booster: float) -> int | None:
        given = job("bagging", **booster).parameters
        return given.parameters.safeguards(given).leaf_rows

    assert told() == 1
    assert told(min_child_weight=7.0) == 7
    assert told(min_child_weight=100.0) == 10
    assert told(objective="reg:squarederror", min_child_weight=100.0) == 100


def test_a_policy_is_told_in_how_many_rows_a_quantile_is_searched() -> None:
    given = job(**HISTOGRAM | {"min_child_weight": 50.0}, min_cell=20, binning="recursive")
    told = given.parameters.parameters.safeguards(given.parameters)
    assert (told.leaf_rows, told.cell_rows) == (20, 20)


def test_an_alpha_that_is_none_or_has_no_effect_is_refused() -> None:
    with pytest.raises(InvalidJob, match="quantile_alpha: expected"):
        job("bagging", quantile_alpha=1.0)
    with pytest.raises(InvalidJob, match="quantile_alpha: it would have no effect"):
        job("bagging", objective="reg:squarederror", quantile_alpha=0.9)
