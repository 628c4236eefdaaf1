import math
import re
from typing import Any

import numpy as np
import pytest
import xgboost as xgb
from hypothesis import given, settings
from hypothesis import strategies as st

import hedgerow
from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.metrics import names
from hedgerow.boosting.metrics.scores import METRICS
from tests.late import Late

oracle: Any = Late("sklearn.metrics")


def binary_rows(seed, n=400, spread=2.0):
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < 0.3).astype(float)
    margin = np.round(rng.normal(y * spread - 1.0, 1.5), 1)  # rounding makes ties
    return y, margin, rng.integers(1, 5, n).astype(float)


def class_rows(seed, n=500, k=4):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    margin = rng.normal(size=(n, k))
    margin[np.arange(n), y] += 0.8
    return y.astype(float), margin, rng.random(n) + 0.1


def number_rows(seed, n=300):
    rng = np.random.default_rng(seed)
    y = rng.gamma(2.0, 3.0, n) + 1e-3
    return y, np.log(y) + rng.normal(0, 0.4, n), rng.random(n) + 0.1


def by_xgboost(metric, objective, y, margin, weight):
    """Return XGBoost's own value of a metric of margins."""
    rows = xgb.DMatrix(np.zeros((len(y), 1)), y, weight=weight, base_margin=margin)
    settings = {"objective": objective, "eval_metric": metric, "nthread": 1}
    said = xgb.train(settings, rows, 0).eval(rows)
    return float(said.rpartition(":")[2])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("seed", range(3))
def test_binary_metrics_equal_scikit_learn_with_and_without_weights(seed):
    y, margin, weight = binary_rows(seed)
    p, hard = sigmoid(margin), (margin >= 0).astype(int)
    names = metrics.known(Task.BINARY)
    for w in (None, weight):
        got = metrics.evaluate(names, y, margin, objective="binary:logistic", weight=w)
        assert got == pytest.approx(
            {
                "auc": oracle.roc_auc_score(y, p, sample_weight=w),
                "logloss": oracle.log_loss(y, p, sample_weight=w),
                "error": 1 - oracle.accuracy_score(y, hard, sample_weight=w),
                "accuracy": oracle.accuracy_score(y, hard, sample_weight=w),
                "balanced_accuracy": oracle.balanced_accuracy_score(y, hard, sample_weight=w),
                "f1": oracle.f1_score(y, hard, sample_weight=w),
                "precision": oracle.precision_score(y, hard, sample_weight=w),
                "recall": oracle.recall_score(y, hard, sample_weight=w),
                "brier": oracle.brier_score_loss(y, p, sample_weight=w),
                "ks": np.max(np.abs(np.subtract(*oracle.roc_curve(y, p, sample_weight=w)[:2]))),
                "aucpr": by_xgboost("aucpr", "binary:logistic", y, margin, w),
                "average_precision": oracle.average_precision_score(y, p, sample_weight=w),
            },
            rel=1e-12,
        )


@pytest.mark.parametrize("seed", range(3))
def test_multiclass_metrics_equal_scikit_learn_with_and_without_weights(seed):
    y, margin, weight = class_rows(seed)
    p = metrics.link("multi:softprob", margin)
    hard = margin.argmax(axis=1)
    names = metrics.known(Task.MULTICLASS)
    for w in (None, weight):
        got = metrics.evaluate(names, y, margin, objective="multi:softprob", weight=w)
        # weights are left out of scikit-learn's multi-class AUC, so average its binary ones
        auc = np.mean([oracle.roc_auc_score(y == c, p[:, c], sample_weight=w) for c in range(4)])
        odds = np.log(p / (1 - p))
        aucpr = [by_xgboost("aucpr", "binary:logistic", y == c, odds[:, c], w) for c in range(4)]
        assert got.pop("aucpr") == pytest.approx(np.mean(aucpr), rel=1e-7)  # margins in float32
        assert got == pytest.approx(
            {
                "auc": auc,
                "average_precision": np.mean(
                    [
                        oracle.average_precision_score(y == c, p[:, c], sample_weight=w)
                        for c in range(4)
                    ]
                ),
                "mlogloss": oracle.log_loss(y, p, sample_weight=w),
                "merror": 1 - oracle.accuracy_score(y, hard, sample_weight=w),
                "accuracy": oracle.accuracy_score(y, hard, sample_weight=w),
                "balanced_accuracy": oracle.balanced_accuracy_score(y, hard, sample_weight=w),
                "f1": oracle.f1_score(y, hard, sample_weight=w, average="macro"),
                "precision": oracle.precision_score(y, hard, sample_weight=w, average="macro"),
                "recall": oracle.recall_score(y, hard, sample_weight=w, average="macro"),
                "brier": oracle.brier_score_loss(y, p, sample_weight=w),
            },
            rel=1e-12,
        )


def test_unweighted_multiclass_auc_is_one_versus_rest_macro():
    y, margin, _ = class_rows(9)
    p = metrics.link("multi:softprob", margin)
    got = metrics.evaluate(["auc"], y, margin, objective="multi:softprob")["auc"]
    assert got == pytest.approx(oracle.roc_auc_score(y, p, multi_class="ovr", average="macro"))


def test_the_auc_of_many_rows_counts_the_same_pairs():
    rng = np.random.default_rng(3)
    y = (rng.random(20_000) < 0.3).astype(float)
    margin = (rng.normal(size=20_000) + y).round(2).astype(np.float32)  # many ties, both zeros
    margin[::500] = -0.0
    for labels in (y, np.ones_like(y)):
        plain, weighted = (
            metrics.evaluate(["auc"], labels, margin, objective="binary:logistic", weight=w)["auc"]
            for w in (None, np.ones_like(y))
        )
        assert plain == weighted or np.isnan([plain, weighted]).all()


@pytest.mark.parametrize("power", [1.0, 1.3, 1.5, 2.0])
def test_regression_metrics_equal_scikit_learn_with_and_without_weights(power):
    y, margin, weight = number_rows(4)
    mu = np.exp(margin)
    names = ("rmse", "mse", "mae", "mape", "pinball@0.9", "r2", f"tweedie_deviance@{power}")
    for w in (None, weight):
        got = metrics.evaluate(names, y, margin, objective="reg:tweedie", weight=w)
        assert list(got.values()) == pytest.approx(
            [
                oracle.root_mean_squared_error(y, mu, sample_weight=w),
                oracle.mean_squared_error(y, mu, sample_weight=w),
                oracle.mean_absolute_error(y, mu, sample_weight=w),
                oracle.mean_absolute_percentage_error(y, mu, sample_weight=w),
                oracle.mean_pinball_loss(y, mu, alpha=0.9, sample_weight=w),
                oracle.r2_score(y, mu, sample_weight=w),
                oracle.mean_tweedie_deviance(y, mu, power=power, sample_weight=w),
            ],
            rel=1e-9,
        )


def test_deviance_allows_zero_labels_below_power_two():
    y = np.array([0.0, 2.0, 0.0])
    margin = np.array([0.1, 0.5, -1.0])
    for power in (1.0, 1.5):
        name = f"tweedie_deviance@{power}"
        got = metrics.evaluate([name], y, margin, objective="reg:tweedie")[name]
        assert got == pytest.approx(oracle.mean_tweedie_deviance(y, np.exp(margin), power=power))


def test_macro_averages_leave_out_a_class_that_no_row_has_or_is_given():
    y = np.array([0.0, 1.0, 1.0, 0.0])
    margin = np.array([[2.0, 0, 0], [0, 2.0, 0], [2.0, 0, 0], [2.0, 0, 0]])
    got = metrics.evaluate(["f1", "precision"], y, margin, objective="multi:softprob")
    assert got == pytest.approx(
        {
            "f1": oracle.f1_score(y, [0, 1, 0, 0], average="macro"),
            "precision": oracle.precision_score(y, [0, 1, 0, 0], average="macro"),
        }
    )


CASES = {
    "binary:logistic": (binary_rows, Task.BINARY),
    "multi:softprob": (class_rows, Task.MULTICLASS),
    "reg:tweedie": (number_rows, Task.REGRESSION),
}


@settings(max_examples=25, deadline=None)
@given(
    objective=st.sampled_from(sorted(CASES)),
    seed=st.integers(0, 10_000),
    cuts=st.lists(st.integers(0, 300), min_size=1, max_size=4),
    center=st.floats(-2, 2),
)
def test_pooled_sums_of_any_partition_give_the_metric_of_the_whole(objective, seed, cuts, center):
    make, task = CASES[objective]
    y, margin, weight = make(seed, n=300)
    names = metrics.known(task)
    n_outputs = 1 if margin.ndim == 1 else margin.shape[1]
    total = np.zeros(metrics.width(names, n_outputs))
    for part in np.split(np.arange(300), sorted(cuts)):
        total += metrics.sums(
            names, y[part], margin[part], objective=objective, weight=weight[part], center=center
        )
    pooled = metrics.combine(names, total, n_outputs=n_outputs)
    whole = metrics.evaluate(names, y, margin, objective=objective, weight=weight)
    for name in names:
        near = {"auc": 4e-3, "ks": 0.02, "aucpr": 0.02, "average_precision": 0.02}
        tolerance = near.get(name, 1e-9)
        assert pooled[name] == pytest.approx(whole[name], abs=tolerance, rel=1e-8)


@pytest.mark.parametrize("spread", [1e-3, 0.02, 1.0, 6.0])
@pytest.mark.parametrize("base", [0.0, -1.2, 3.0])
def test_histogram_auc_is_close_at_every_scale_of_scores_around_the_base_margin(spread, base):
    rng = np.random.default_rng(3)
    y = (rng.random(20_000) < 0.1).astype(float)
    margin = base + spread * rng.normal(y, 1.0)
    total = metrics.sums(["auc"], y, margin, objective="binary:logistic", center=base)
    pooled = metrics.combine(["auc"], total)["auc"]
    assert pooled == pytest.approx(oracle.roc_auc_score(y, margin), abs=2e-4)


def test_histogram_auc_of_unweighted_rows_is_made_of_counts():
    y, margin, _ = binary_rows(1)
    total = metrics.sums(["auc"], y, margin, objective="binary:logistic")
    assert total.sum() == len(y)
    assert np.array_equal(total, np.round(total))


def test_no_rows_add_nothing_and_have_no_value():
    empty = np.zeros(0)
    for objective, (_, task) in CASES.items():
        n_outputs = 3 if task is Task.MULTICLASS else 1
        margin = np.zeros((0, 3)) if task is Task.MULTICLASS else empty
        names = metrics.known(task)
        total = metrics.sums(names, empty, margin, objective=objective)
        assert total.shape == (metrics.width(names, n_outputs),)
        assert not total.any()
        values = metrics.combine(names, total, n_outputs=n_outputs)
        assert all(
            math.isnan(v) for name, v in values.items() if name not in ("f1", "precision", "recall")
        )
        assert math.isnan(metrics.evaluate(names, empty, margin, objective=objective)[names[0]])


def test_auc_of_a_single_class_has_no_value():
    got = metrics.evaluate(["auc"], np.ones(5), np.arange(5.0), objective="binary:logistic")
    assert math.isnan(got["auc"])


def test_false_sums_have_no_root_and_are_no_error_of_arithmetic():
    assert math.isnan(metrics.combine(["rmse"], np.array([-4.0, 2.0]))["rmse"])


def test_extreme_margins_stay_finite():
    y = np.array([0.0, 1.0])
    margin = np.array([-800.0, 800.0])
    got = metrics.evaluate(("auc", "logloss"), y, margin, objective="binary:logistic")
    assert got == {"auc": 1.0, "logloss": 0.0}
    wrong = metrics.evaluate(["logloss"], 1 - y, margin, objective="binary:logistic")
    assert wrong["logloss"] == 800.0


def test_better_follows_the_metrics_direction_and_never_prefers_nan():
    assert metrics.better("auc", 0.9, 0.8)
    assert metrics.better("rmse", 0.8, 0.9)
    assert not metrics.better("rmse", 0.9, 0.9)
    assert metrics.better("auc", 0.1, math.nan)
    assert not metrics.better("rmse", math.nan, 1.0)


def test_defaults_suit_their_task():
    for task in Task:
        metrics.check(metrics.defaults(task), task)


def test_an_unknown_metric_is_refused_with_the_nearest_name():
    for asked, task, said in (
        ("loglos", Task.BINARY, "there is no metric 'loglos'; did you mean 'logloss'"),
        ("AUC", Task.BINARY, "did you mean 'auc'"),
        ("roc_auc", Task.BINARY, "did you mean 'auc'"),
        ("neg_log_loss", Task.MULTICLASS, "did you mean 'mlogloss'? Losses keep their sign"),
        (
            metrics.canonical("mean_absolute_error", Task.BINARY),
            Task.BINARY,
            "'mae' does not suit a binary job",
        ),
        ("gini", Task.REGRESSION, "a regression job has error, mse, rmse, rmsle, "),
    ):
        with pytest.raises(InvalidJob, match=re.escape(said)):
            metrics.check([asked], task)


def test_names_of_others_are_taken_where_they_suit_the_task():
    for theirs, task, ours in (
        ("roc_auc", Task.BINARY, "auc"),
        ("log_loss", Task.BINARY, "logloss"),
        ("log_loss", Task.MULTICLASS, "mlogloss"),
        ("f1_macro", Task.MULTICLASS, "f1"),
        ("f1_macro", Task.BINARY, "f1_macro"),
        ("mean_pinball_loss@0.9", Task.REGRESSION, "pinball@0.9"),
        ("gamma_deviance", Task.REGRESSION, "gamma-deviance"),
        ("tweedie-deviance@1.2", Task.REGRESSION, "tweedie_deviance@1.2"),
        ("mean_squared_error", Task.BINARY, "mse"),  # which check refuses by the task
    ):
        assert metrics.canonical(theirs, task) == ours
    job = hedgerow.Job("bagging", rounds=1, metrics=["roc_auc", "log_loss"], min_silos=2)
    assert job.parameters.metrics == ("auc", "logloss")


def test_every_metric_is_described():
    assert list(names.ABOUT) == list(METRICS)
    assert {"auc", "pinball@q", "tweedie-nloglik@p"} <= {m.metric for m in names.described()}
    assert all("regression" in m.tasks for m in names.described(Task.REGRESSION))


@pytest.mark.parametrize("power", [1.2, 1.5])
def test_likelihoods_and_deviances_are_xgboosts(power):
    y, margin, weight = number_rows(4)
    margin = margin.astype(np.float32)
    counts = np.floor(y)
    for metric, objective, labels in (
        ("poisson-nloglik", "count:poisson", counts),
        ("gamma-nloglik", "reg:gamma", y),
        ("gamma-deviance", "reg:gamma", y),
        (f"tweedie-nloglik@{power}", "reg:tweedie", y),
        ("rmsle", "reg:tweedie", y),
    ):
        for w in (None, weight):
            got = metrics.evaluate([metric], labels, margin, objective=objective, weight=w)
            theirs = by_xgboost(metric, objective, labels, margin, w)
            assert got[metric] == pytest.approx(theirs, rel=2e-6)
    mu = np.exp(margin.astype(float))
    names_ = ("poisson-deviance", "gamma-deviance")
    got = metrics.evaluate(names_, counts + 1, margin, objective="reg:tweedie", weight=weight)
    assert list(got.values()) == pytest.approx(
        [
            oracle.mean_poisson_deviance(counts + 1, mu, sample_weight=weight),
            oracle.mean_gamma_deviance(counts + 1, mu, sample_weight=weight),
        ]
    )


def test_a_metric_of_another_task_is_refused():
    with pytest.raises(InvalidJob, match="'rmse' does not suit a binary job"):
        metrics.check(["rmse"], Task.BINARY)


@pytest.mark.parametrize("name", ["tweedie_deviance@3", "tweedie_deviance@x", "rmse@2"])
def test_a_bad_metric_parameter_is_refused(name):
    with pytest.raises(InvalidJob):
        metrics.check([name], Task.REGRESSION)


def test_sums_of_the_wrong_length_are_refused():
    with pytest.raises(ValueError, match="shape"):
        metrics.combine(["logloss"], np.zeros(3))
