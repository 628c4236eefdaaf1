"""``hedgerow.xgboost.train`` in a context: XGBoost's loop, one model however rows are dealt."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xgboost

import hedgerow
import hedgerow.xgboost as xgb
from hedgerow.boosting.errors import FederationError, InvalidJob
from hedgerow.coordinator.operator.library.running import RunFailed
from hedgerow.services.wire import job_file
from hedgerow.xgboost.parameters import asked
from hedgerow.xgboost.scripted import named
from tests.late import Late

pd: Any = Late("pandas")

pytestmark = [pytest.mark.process, pytest.mark.slow]

BINARY = {"objective": "binary:logistic", "max_depth": 3, "eval_metric": ["auc", "logloss"]}


def made(n: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(seed)
    X = draws.normal(size=(n, 4)).astype(np.float32)
    y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(np.float32)
    X[draws.random(X.shape) < 0.05] = np.nan
    return X, y


def matrices() -> tuple[xgb.DMatrix, xgb.DMatrix]:
    return xgb.DMatrix(*made()), xgb.DMatrix(*made(100, 1))


def test_a_model_does_not_depend_on_the_silos_that_have_its_rows():
    found = []
    for silos in (1, 3, 5):
        with xgb.collective.simulate(silos):
            assert xgb.collective.get_world_size() == silos
            weight = np.linspace(0.5, 2, 400)
            rows = xgb.QuantileDMatrix(*made(), weight=weight)
            found.append(xgb.train(BINARY, rows, 4).save_raw("json"))
    assert found[0] == found[1] == found[2]
    assert xgb.collective.get_world_size() == 1


def test_what_a_sparse_matrix_does_not_list_is_missing():
    sparse = pytest.importorskip("scipy.sparse")
    X, y = made()
    X[:5, 0] = 0.0  # listed, so that it is a number
    at = np.nonzero(~np.isnan(X))
    listed = sparse.csr_matrix((X[at], at), X.shape)
    found = []
    for rows in (X, listed):
        with xgb.collective.simulate():
            booster = xgb.train(BINARY, xgb.DMatrix(rows, y), 3)
            found.append(booster.save_raw("json"))
    assert found[0] == found[1]


def test_scores_are_those_that_xgboost_computes_of_the_model():
    log: dict = {}
    with xgb.collective.simulate():
        rows, others = matrices()
        sets = [(others, "test"), (rows, "train")]
        booster = xgb.train(BINARY, rows, 4, evals=sets, evals_result=log, verbose_eval=False)
    assert type(booster) is xgboost.Booster
    assert [*log] == ["test", "train"]
    assert [*log["test"]] == ["auc", "logloss"]
    for matrix, name in sets:
        text = booster.eval(matrix).split("\t")[1:]
        own = {part.split(":")[0].removeprefix("eval-"): float(part.split(":")[1]) for part in text}
        for metric, value in own.items():
            assert log[name][metric][-1] == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize(
    ("objective", "labels"),
    [
        ("reg:squarederror", lambda z: z),
        ("reg:pseudohubererror", lambda z: z),
        ("reg:gamma", lambda z: np.exp(z)),
        ("reg:tweedie", lambda z: np.floor(np.exp(z))),
        ("count:poisson", lambda z: np.floor(np.exp(z))),
        ("reg:logistic", lambda z: 1 / (1 + np.exp(-z))),
        ("reg:squaredlogerror", lambda z: np.exp(z)),
        ("reg:absoluteerror", lambda z: z),
        ("reg:quantileerror", lambda z: z),
        ("binary:logistic", lambda z: z > 0),
        ("binary:hinge", lambda z: z > 0),
        ("multi:softprob", lambda z: np.digitize(z, [-1, 1])),
        ("multi:softmax", lambda z: np.digitize(z, [-1, 1])),
    ],
)
def test_each_objective_trains_as_xgboosts_and_is_scored_as_xgboost_scores_it(objective, labels):
    X, _ = made(600)
    y = labels(np.nan_to_num(X[:, 0] + X[:, 1] / 2)).astype(np.float32)
    parameters = {"objective": objective, "max_depth": 3}
    if objective.startswith("multi"):
        parameters["num_class"] = 3
    if objective == "reg:quantileerror":
        parameters["quantile_alpha"] = 0.7
    if objective == "reg:pseudohubererror":
        parameters["eval_metric"] = "rmse"
    log: dict = {}
    rows = xgb.DMatrix(X, y)
    with xgb.collective.simulate(hedgerow_min_cell=1):
        booster = xgb.train(parameters, rows, 8, evals=[(rows, "train")], evals_result=log)
    ((name, values),) = log["train"].items()
    theirs: dict = {}
    stock = xgboost.train(parameters, rows, 8, evals=[(rows, "train")], evals_result=theirs)
    assert values[-1] == pytest.approx(float(booster.eval(rows).split(":")[-1]), abs=1e-5)
    assert values[-1] == pytest.approx(theirs["train"][name][-1], rel=0.2, abs=0.02)
    assert values == sorted(values, reverse=True)
    assert booster.predict(rows).shape == stock.predict(rows).shape


def times(n: int = 600, seed: int = 0, **more) -> xgb.DMatrix:
    X, _ = made(n, seed)
    draws = np.random.default_rng(seed)
    time = np.exp(np.nan_to_num(X[:, 0] + X[:, 1] / 2) + draws.normal(size=n) / 2)
    upper = np.where(draws.random(n) < 0.3, np.inf, time)
    return xgb.DMatrix(X, label_lower_bound=time, label_upper_bound=upper, **more)


@pytest.mark.parametrize("distribution", ["normal", "logistic", "extreme"])
def test_times_between_bounds_train_as_xgboosts_and_are_scored_as_xgboost_scores_them(
    distribution,
):
    given = {
        "objective": "survival:aft", "aft_loss_distribution": distribution, "max_depth": 3,
        "aft_loss_distribution_scale": 0.8, "base_score": 1.0,
        "eval_metric": ["aft-nloglik", "interval-regression-accuracy"],
    }  # fmt: skip
    rows, others = times(), times(200, 1)
    sets = [(rows, "train"), (others, "test")]
    log, theirs = {}, {}
    with xgb.collective.simulate(hedgerow_min_cell=1):
        booster = xgb.train(given, rows, 8, evals=sets, evals_result=log, verbose_eval=False)
    xgboost.train(given, rows, 8, evals=sets, evals_result=theirs, verbose_eval=False)
    assert log["train"]["aft-nloglik"] == sorted(log["train"]["aft-nloglik"], reverse=True)
    booster.set_param({name: value for name, value in given.items() if name != "eval_metric"})
    for matrix, name in sets:
        text = booster.eval(matrix).split("\t")[1:]
        for part in text:
            metric, value = part.removeprefix("eval-").rsplit(":", 1)
            assert log[name][metric][-1] == pytest.approx(float(value), abs=1e-5)
        last = theirs[name]["aft-nloglik"][-1]
        assert log[name]["aft-nloglik"][-1] == pytest.approx(last, abs=0.06)


def test_signed_times_train_as_xgboosts_hazards_and_are_scored_as_xgboost_scores_them():
    given = {"objective": "survival:cox", "max_depth": 3, "eta": 0.2}
    sets = []
    for k, n in enumerate((600, 200)):
        bounded = times(n, k)
        time, upper = (bounded.get_float_info(f"label_{end}_bound") for end in ("lower", "upper"))
        sets.append((xgb.DMatrix(made(n, k)[0], np.where(time == upper, time, -time)), "ab"[k]))
    log, theirs = {}, {}
    rows = sets[0][0]
    with xgb.collective.simulate(hedgerow_min_cell=1):
        booster = xgb.train(given, rows, 8, evals=sets, evals_result=log, verbose_eval=False)
    xgboost.train(given, rows, 8, evals=sets, evals_result=theirs, verbose_eval=False)
    for matrix, name in sets:
        own = float(booster.eval(matrix).split(":")[1])
        assert log[name]["cox-nloglik"][-1] == pytest.approx(own, abs=1e-5)
        last = theirs[name]["cox-nloglik"][-1]
        assert log[name]["cox-nloglik"][-1] == pytest.approx(last, abs=0.03)
    with xgb.collective.simulate(), pytest.raises(InvalidJob, match="survival:aft alone has bou"):
        xgb.train(given, times(60), 1)


def test_bounds_and_labels_that_do_not_go_with_the_objective_are_refused():
    aft = {"objective": "survival:aft"}
    X, y = made(60)
    with xgb.collective.simulate():
        with pytest.raises(InvalidJob, match="label_lower_bound: survival:aft alone has bounds"):
            xgb.train({"objective": "reg:squarederror"}, times(60), 1)
        with pytest.raises(InvalidJob, match="label: survival:aft has label_lower_bound and"):
            xgb.train(aft, xgb.DMatrix(X, y), 1)
        with pytest.raises(InvalidJob, match=r"expected label_lower_bound .* of 60 rows, received"):
            xgb.train(aft, xgb.DMatrix(X), 1)
        half = xgb.DMatrix(X, label_lower_bound=y + 1)
        with pytest.raises(InvalidJob, match="and label_upper_bound of 60 rows, received 0"):
            xgb.train(aft, half, 1)
        named = times(60, feature_names=["a", "b", "c", "label_upper"])
        with pytest.raises(
            InvalidJob, match="label_upper: 'label_upper' is among the job's features"
        ):
            xgb.train(aft, named, 1)


def test_trees_whose_second_derivatives_grow_equal_xgboosts():
    """Of labels of zero the squared logarithmic error's grow as margins fall below zero."""
    rng = np.random.default_rng(3)
    X = rng.integers(0, 20, (400, 1)).astype(np.float32)
    y = np.maximum(X[:, 0] - 10.0, 0.0)
    given = {"objective": "reg:squaredlogerror", "max_depth": 3, "eta": 1.0, "base_score": 0.5}
    stock = xgboost.train(given, xgboost.DMatrix(X, y), 4).predict(xgboost.DMatrix(X))
    with xgb.collective.simulate(1, hedgerow_min_cell=1):
        found = xgb.train(given, xgb.DMatrix(X, y), 4).predict(xgboost.DMatrix(X))
    assert found == pytest.approx(stock, abs=1e-4)


def test_training_ends_early_as_xgboosts_does(capsys):
    log: dict = {}
    with xgb.collective.simulate():
        rows, others = matrices()
        booster = xgb.train(
            {**BINARY, "eta": 1.0}, rows, 60,
            evals=[(others, "test")], evals_result=log, early_stopping_rounds=2,
        )  # fmt: skip
    losses = log["test"]["logloss"]
    assert booster.best_iteration == int(np.argmin(losses))
    assert booster.num_boosted_rounds() == len(losses) == booster.best_iteration + 3 < 60
    assert booster.best_score == min(losses)
    first, *_ = capsys.readouterr().out.splitlines()
    assert first == f"[0]\ttest-auc:{log['test']['auc'][0]:.5f}\ttest-logloss:{losses[0]:.5f}"


def test_a_schedule_of_learning_rates_scales_the_leaves_of_the_rounds_that_xgboost_scales():
    def leaves(rates, package=xgb):
        with xgb.collective.simulate():
            rows, _ = matrices()
            schedule = xgb.callback.LearningRateScheduler(rates)
            settings = {**BINARY, "eta": 0.5}
            booster = package.train(settings, rows, 2, callbacks=[schedule], verbose_eval=False)
        trees = booster.trees_to_dataframe()
        return [
            trees[(trees["Tree"] == k) & (trees["Feature"] == "Leaf")]["Gain"].to_numpy()
            for k in range(2)
        ]

    for package in (xgb, xgboost):
        same, falling = leaves([0.5, 0.5], package), leaves(lambda r: 0.25 * 0.5**r, package)
        assert np.array_equal(falling[0], same[0])
        assert falling[1] == pytest.approx(same[1] / 2, rel=1e-6)
        assert not leaves([0.0, 0.5], package)[1].any()
        assert leaves([2.0, 0.5], package)[1] == pytest.approx(same[1] * 4, rel=1e-6)
    with pytest.raises(InvalidJob, match="etas: expected finite numbers from 0"):
        leaves([-1.0, 0.5])


def test_a_callback_sets_rates_by_the_number_of_the_round_alone():
    class Falls(xgb.callback.TrainingCallback):
        def before_iteration(self, model, epoch, evals_log):
            if epoch == 1:
                model.set_param({"learning_rate": 0.2})

        def after_iteration(self, model, epoch, evals_log):
            model.set_param("eta", 0.4 / (epoch + 1))
            print("of the round")

    class Looks(xgb.callback.TrainingCallback):
        def after_iteration(self, model, epoch, evals_log):
            model.set_param("eta", 0.1 * evals_log["train"]["auc"][-1])

    with xgb.collective.simulate():
        rows, _ = matrices()
        found = xgb.train(BINARY, rows, 3, callbacks=[Falls()], verbose_eval=False)
        agreed = xgb.callback.LearningRateScheduler([0.2, 0.2, 0.1])
        expected = xgb.train(BINARY, rows, 3, callbacks=[agreed], verbose_eval=False)
        assert found.get_dump() == expected.get_dump()
        with pytest.raises(InvalidJob, match=r"callback.LearningRateScheduler, with a list or a"):
            xgb.train(BINARY, rows, 3, evals=[(rows, "train")], callbacks=[Looks()])


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (([("eta", 0.1), ("max_depth", 2)],), "keeps its parameters: give them to train"),
        (("max_depth", 2), "keeps its parameters: give them to train"),
    ],
)
def test_parameters_of_a_training_under_way_are_refused_with_the_nearest_thing(told, says):
    class Changes(xgb.callback.TrainingCallback):
        def after_iteration(self, model, epoch, evals_log):
            model.set_param(*told)

    with xgb.collective.simulate():
        rows, _ = matrices()
        with pytest.raises(InvalidJob, match=says):
            xgb.train(BINARY, rows, 3, callbacks=[Changes()], verbose_eval=False)


def test_a_callback_ends_training_and_sees_no_trees():
    class Ends(xgb.callback.TrainingCallback):
        def after_iteration(self, model, epoch, evals_log):
            assert model.num_boosted_rounds() == epoch + 1
            with pytest.raises(InvalidJob, match="predict: silos keep the trees"):
                model.predict(rows)
            return epoch == 1

    with xgb.collective.simulate():
        rows, _ = matrices()
        booster = xgb.train(BINARY, rows, 9, callbacks=[Ends()])
    assert booster.num_boosted_rounds() == 2


@pytest.mark.parametrize("form", ["booster", "file", "bytes", "saved again"])
def test_two_rounds_and_then_four_are_six(form: str, tmp_path: Path) -> None:
    """Scores, callbacks' rounds and draws go on, too: rows are drawn for each round."""
    rows, tests = matrices()
    drawn = {**BINARY, "subsample": 0.7, "seed": 3}
    log: dict = {}
    with xgb.collective.simulate(3):
        whole = xgb.train(drawn, rows, 6, evals=[(tests, "t")], evals_result=log)
        first = xgb.train(drawn, rows, 2)
        given = first
        if form == "file":
            given = tmp_path / "model.ubj"
            first.save_model(given)
        elif form == "bytes":
            given = first.save_raw("ubj")
        elif form == "saved again":
            given = xgboost.Booster(model_file=first.save_raw("json"))
        own: dict = {}
        best = xgboost.callback.EarlyStopping(50)
        found = xgb.train(
            drawn, rows, 4, evals=[(tests, "t")], xgb_model=given, evals_result=own,
            callbacks=[best],
        )  # fmt: skip
        again = xgb.train(drawn, rows, 1, xgb_model=found)
    assert found.get_dump(with_stats=True) == whole.get_dump(with_stats=True)
    assert own["t"]["logloss"] == log["t"]["logloss"][2:]
    assert found.best_iteration == 2 + int(np.argmin(own["t"]["logloss"]))
    assert again.num_boosted_rounds() == 7
    assert again.get_dump()[:6] == found.get_dump()


def test_training_goes_on_from_what_the_federation_grew_alone() -> None:
    rows, _ = matrices()
    alone = xgboost.train(BINARY, rows, 2)
    with xgb.collective.simulate(3):
        grown = xgb.train(BINARY, rows, 3)
        for given, said in (
            (alone, "expected a booster that train has returned in a federation"),
            (grown[:2], "the booster has other trees than run"),
        ):
            with pytest.raises(InvalidJob, match=said):
                xgb.train(BINARY, rows, 2, xgb_model=given)
        for objective, said in (("binary:hinge", "objective"), ("reg:tweedie", "classes")):
            with pytest.raises(FederationError, match=said):
                xgb.train({"objective": objective}, rows, 2, xgb_model=grown)
        with pytest.raises(xgboost.core.XGBoostError):
            xgb.train(BINARY, rows, 2, xgb_model="no-model.ubj")
    with xgb.collective.simulate(3), pytest.raises(InvalidJob, match="in this context"):
        xgb.train(BINARY, rows, 2, xgb_model=grown)


def test_an_error_of_a_callback_ends_the_job():
    class Fails(xgb.callback.TrainingCallback):
        def after_iteration(self, model, epoch, evals_log):
            raise KeyError("mine")

    with xgb.collective.simulate():
        rows, _ = matrices()
        with pytest.raises(KeyError, match="mine"):
            xgb.train(BINARY, rows, 9, callbacks=[Fails()])
        assert xgb.train(BINARY, rows, 1).num_boosted_rounds() == 1


@pytest.mark.parametrize("code", [-1.0, 0.5, 2.0**24, 2.0**31])
def test_codes_that_are_no_categories_are_refused(code):
    X = np.array([[0.0], [1.0], [code]], np.float32)
    rows = xgb.DMatrix(X, np.zeros(3), feature_types=["c"], enable_categorical=True)
    with (
        xgb.collective.simulate(),
        pytest.raises(InvalidJob, match="feature f0: expected categories as whole numbers"),
    ):
        xgb.train({}, rows, 1)


def test_names_of_categories_that_xgboost_cuts_wrongly_are_refused():
    X = pd.DataFrame({"town": pd.Categorical(["éa", "b", "c"] * 20)})
    rows = xgb.DMatrix(X, np.arange(60) % 2, enable_categorical=True)
    with (
        xgb.collective.simulate(),
        pytest.raises(InvalidJob, match="expected names of categories in ASCII"),
    ):
        xgb.train({}, rows, 1)


def test_the_index_of_a_pandas_frame_is_no_feature():
    X, y = made()
    frame = pd.DataFrame(X, columns=[*"abcd"]).iloc[np.argsort(y)]
    table = pa.Table.from_pandas(frame)
    assert "__index_level_0__" in table.column_names
    with xgb.collective.simulate():
        with pytest.raises(InvalidJob, match="is the index of a pandas frame"):
            xgb.train(BINARY, xgb.DMatrix(table, np.sort(y)), 2)
        plain = pa.Table.from_pandas(frame, preserve_index=False)
        found = xgb.train(BINARY, xgb.DMatrix(plain, np.sort(y)), 2)
    assert found.feature_names == [*"abcd"]


def test_codes_of_categories_are_the_matrixs_own():
    codes = np.random.default_rng(0).choice([2.0, 11.0, 7.0, np.nan], 300)
    X = np.stack([np.linspace(0, 1, 300), codes], 1).astype(np.float32)
    y = 3.0 * (codes == 11) - (codes == 7) + X[:, 0]
    rows = xgb.DMatrix(X, y, feature_types=["q", "c"])
    parameters = {"max_depth": 4, "max_cat_to_onehot": 1, "base_score": 0.5}
    with xgb.collective.simulate():
        booster = xgb.train(parameters, rows, 30)
    assert booster.feature_types == ["q", "c"]
    assert booster.feature_names is None
    error = np.abs(booster.predict(xgb.DMatrix(X, feature_types=["q", "c"])) - y)
    assert error.max() < 0.2


def test_constraints_by_name_or_place():
    X, y = made()
    rows = xgb.DMatrix(X, y, feature_names=["a", "b", "c", "d"])
    found = []
    for directions, groups in (
        ({"a": 1}, [["a", "b"], ["c", "d"]]),
        ("(1,0,0,0)", "[[0, 1], [2, 3]]"),
    ):
        given = {"monotone_constraints": directions, "interaction_constraints": groups}
        with xgb.collective.simulate():
            found.append(xgb.train({**BINARY, **given}, rows, 3).save_raw("json"))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("parameters", "arguments", "said"),
    [
        ({"tree_method": "exact"}, {}, "tree_method = 'exact': silos sum histograms: use hist"),
        ({"booster": "dart"}, {}, "use gbtree"),
        (
            {"objective": "reg:expectileerror"},
            {},
            "'reg:expectileerror' is none of a histogram job",
        ),
        ({"objective": "reg:quantileerror"}, {}, "quantile_alpha: expected one with"),
        (
            {"objective": "reg:quantileerror", "quantile_alpha": [0.5, 0.1]},
            {},
            "quantile_alpha: expected quantiles that rise",
        ),
        (
            {"objective": "reg:absoluteerror", "num_class": 0},
            {},
            "min_child_weight: expected at least min_cell = 10",
        ),
        ({"eval_metric": "ndcg"}, {"scored": True}, "'ndcg' does not suit a regression job"),
        ({"multi_strategy": "x"}, {}, "multi_strategy = 'x': use one_output_per_tree or"),
        ({"hedgerow_rouds": 3}, {}, "rouds"),
        ({"hedgerow_features": ["f1"]}, {}, "hedgerow_features: it follows from"),
        ({"seed": "x"}, {}, "seed: expected a whole number, received 'x'"),
        ({"seed": 1.5}, {}, "seed: expected a whole number"),
        ({"max_depth": 3.7}, {}, "max_depth: expected a whole number, received 3.7"),
        ({"eta": []}, {}, "eta: expected a number"),
        ({"subsample": "x"}, {}, "subsample: expected a number, received 'x'"),
        ({"num_class": "x"}, {}, "num_class: expected a whole number, received 'x'"),
        ({"monotone_constraints": "(1,"}, {}, "monotone_constraints: expected a list"),
        ({"monotone_constraints": ["x"]}, {}, "monotone_constraints: expected a whole number"),
        ({"monotone_constraints": [0] * 5}, {}, "monotone_constraints: expected -1, 0 or 1"),
        ({"monotone_constraints": {"q": 1}}, {}, "monotone_constraints: there is no feature 'q'"),
        ({"interaction_constraints": "[[0,"}, {}, "interaction_constraints: expected a list"),
        ({"interaction_constraints": [0, 1]}, {}, "interaction_constraints: expected lists"),
        ({"interaction_constraints": [[[0]]]}, {}, "interaction_constraints: there is no feature"),
        ({"eval_metric": 3}, {}, "eval_metric: expected names"),
        ({"disable_default_eval_metric": "x"}, {}, "disable_default_eval_metric: expected true"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(parameters, arguments, said):
    with xgb.collective.simulate():
        rows, _ = matrices()
        if arguments.pop("scored", False):
            arguments = {"evals": [(rows, "train")]}
        with pytest.raises(InvalidJob, match=said):
            xgb.train(parameters, rows, 2, **arguments)


@pytest.mark.parametrize(
    ("parameters", "labels", "most"),
    [
        ({"objective": "binary:logistic"}, [-1, 1], 1),
        ({"objective": "binary:logistic"}, [0, 1, 2], 1),
        ({"objective": "multi:softprob", "num_class": 3}, [1, 2, 3], 2),
        ({"objective": "multi:softmax", "num_class": 3}, [-1, 0, 1], 2),
    ],
)
def test_labels_outside_the_classes_are_refused(parameters, labels, most):
    X, _ = made()
    rows = xgb.DMatrix(X, np.resize(labels, 400))
    with pytest.raises(xgboost.core.XGBoostError, match="label must be"):
        xgboost.train(parameters, rows, 1)
    said = f"dtrain: expected labels that are whole numbers from 0 to {most}"
    with xgb.collective.simulate(), pytest.raises(InvalidJob, match=said):
        xgb.train(parameters, rows, 1)


def test_without_a_default_metric_nothing_is_scored():
    for value in (True, "1"):
        log: dict = {}
        with xgb.collective.simulate():
            rows, others = matrices()
            parameters = {"disable_default_eval_metric": value}
            xgb.train(parameters, rows, 1, evals=[(others, "test")], evals_result=log)
            assert log == {}
            parameters["eval_metric"] = "mae"
            xgb.train(parameters, rows, 1, evals=[(others, "test")], evals_result=log)
        assert [*log["test"]] == ["mae"]


def test_parameters_are_none_as_xgboosts():
    with xgb.collective.simulate():
        rows, _ = matrices()
        found = [xgb.train(given, rows, 1).save_raw("json") for given in (None, {}, [])]
    assert found[0] == found[1] == found[2]


def test_a_job_names_its_features_in_the_order_of_the_matrix():
    shared: dict = {"rounds": 1, "weighted": False, "scored": False, "tested": False}
    first, second = (
        asked({}, {}, features=names, world_size=3, **shared).job for names in ("ab", "ba")
    )
    assert first.parameters.features == ("a", "b")
    found = job_file.difference(first.spec, second.spec)
    assert found is not None
    assert found[0] == "features"


def test_two_silos_are_refused_unless_the_script_says_so():
    with xgb.collective.simulate(2):
        rows, _ = matrices()
        with pytest.raises(InvalidJob, match="two sites cannot hide their sums"):
            xgb.train(BINARY, rows, 2)
        assert xgb.train({**BINARY, "hedgerow_secure": False}, rows, 1).num_boosted_rounds() == 1
    with xgb.collective.simulate(2, hedgerow_secure=False):
        assert xgb.train(BINARY, rows, 1).num_boosted_rounds() == 1


def test_unknown_parameters_are_told_as_xgboost_tells_them():
    with xgb.collective.simulate():
        rows, _ = matrices()
        for name, value in (("max_dept", 3), ("loss", "margin ** 2"), ("fair_c", 2)):
            with pytest.warns(UserWarning, match=rf'Parameters: {{ "{name}" }} are not used\.'):
                xgb.train({name: value}, rows, 1)


def test_outside_of_a_context_training_is_xgboosts_own():
    rows, _ = matrices()
    own = xgboost.train(BINARY, rows, 3)
    assert xgb.train(BINARY, rows, 3).save_raw("json") == own.save_raw("json")
    assert xgb.collective.get_rank() == 0


def test_a_matrix_of_quantiles_from_elsewhere_is_refused():
    rows = xgb.QuantileDMatrix(*made())
    with xgb.collective.simulate(), pytest.raises(InvalidJob, match="make it there"):
        xgb.train(BINARY, rows, 1)


def test_a_name_that_there_is_not_says_why():
    with pytest.raises(AttributeError, match="has no RabitTracker, for"):
        xgb.RabitTracker  # noqa: B018


def test_no_booster_grows_trees_of_one_sites_rows_in_a_context(tmp_path: Path) -> None:
    X, y = made()
    dtrain = xgb.DMatrix(X, y)
    outside = xgb.Booster(BINARY, [dtrain])
    outside.update(dtrain, 0)
    assert outside.num_boosted_rounds() == 1
    with xgb.collective.simulate(3):
        with pytest.raises(InvalidJob, match="this site's rows alone: use train"):
            xgb.Booster({}, [dtrain]).update(dtrain, 0)
        with pytest.raises(InvalidJob, match="this site's rows alone: use train"):
            xgb.Booster({}, [dtrain]).boost(dtrain, 0, y, y)
        outside.save_model(tmp_path / "model.ubj")
        assert xgb.Booster(model_file=tmp_path / "model.ubj").predict(dtrain).shape == y.shape


@pytest.mark.parametrize("slope", [1.0, 0.3])
def test_pseudo_huber_errors_are_scored_as_xgboost_scores_them(slope: float) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3)).astype(np.float32)
    rows = xgb.DMatrix(X, 3 * X[:, 0] + rng.normal(size=400))
    given = {"objective": "reg:pseudohubererror", "huber_slope": slope, "base_score": 0.0}
    log: dict[str, Any] = {}
    with xgb.collective.simulate(3, hedgerow_min_cell=1):
        booster = xgb.train(
            given, rows, 4, evals=[(rows, "train")], evals_result=log, verbose_eval=False
        )
    assert [*log["train"]] == ["mphe"]
    booster.set_param({"huber_slope": slope})
    told = float(booster.eval(rows).rsplit(":", 1)[1])
    assert log["train"]["mphe"][-1] == pytest.approx(told, rel=1e-5)


@pytest.mark.parametrize("kind", [xgb.DMatrix, xgb.QuantileDMatrix])
def test_a_matrix_of_columns_is_refused_with_the_strategy_that_has_them(kind: Any) -> None:
    made = (np.zeros((60, 2), np.float32), np.arange(60) % 2)
    with xgb.collective.simulate(3):
        whole = kind(*made)
        trains = [
            lambda: xgb.train({"data_split_mode": "col"}, whole, 1),
            lambda: xgb.train({"dsplit": "col"}, whole, 1),
            lambda: xgb.collective.simulate(3, data_split_mode="col").__enter__(),
            lambda: xgb.collective.CommunicatorContext(
                dmlc_communicator="federated", hedgerow_identity="north", data_split_mode=1
            ),
        ]
        if hasattr(xgboost.core, "DataSplitMode"):  # not since XGBoost 3.4
            cut = kind(*made, data_split_mode=xgboost.core.DataSplitMode.COL)
            trains += [
                lambda: xgb.train({}, cut, 1),
                lambda: xgb.train({}, whole, 1, evals=[(cut, "test")]),
                lambda: xgb.cv({}, cut, 1, nfold=2),
            ]
        for train in trains:
            with pytest.raises(InvalidJob, match=r"data_split_mode|dsplit") as refused:
                train()
            assert "hedgerow.Job('secureboost')" in str(refused.value)


def test_a_booster_predicts_on_quantiles_what_it_predicts_on_their_values() -> None:
    rng = np.random.default_rng(3)
    X, new = rng.normal(size=(600, 3)), rng.normal(size=(300, 3))
    y, weight = X[:, 0] * X[:, 1] + X[:, 2], rng.uniform(0.5, 1, 600)
    with xgb.collective.simulate(3, hedgerow_min_cell=1):
        rows = xgb.QuantileDMatrix(X, y, weight=weight, max_bin=32)
        told = new[:, 0] * new[:, 1] + new[:, 2]
        others, log = xgb.QuantileDMatrix(new, told, ref=rows, max_bin=32), {}
        sets = [(others, "test")]
        booster = xgb.train(
            {"max_bin": 32}, rows, 4, evals=sets, evals_result=log, verbose_eval=False
        )
        unseen = booster.predict(others)
        seen, cuts = booster.predict(rows), rows.get_quantile_cut()
    assert np.array_equal(seen, booster.predict(xgboost.DMatrix(X)))
    assert np.array_equal(unseen, booster.predict(xgboost.DMatrix(new)))
    error = float(np.sqrt(np.mean((unseen - told) ** 2)))
    assert log["test"]["rmse"][-1] == pytest.approx(error, rel=1e-6)
    own = xgboost.QuantileDMatrix(X, y, weight=weight, max_bin=32).get_quantile_cut()
    assert all(map(np.array_equal, cuts, own))


MADE = np.random.default_rng(5).normal(size=(300, 2)).astype(np.float32)


@pytest.mark.parametrize("bins", [8, None])
def test_bins_of_quantiles_are_those_of_training(bins: int | None) -> None:
    param = {} if bins is None else {"max_bin": bins}
    found = []
    with xgb.collective.simulate(3, hedgerow_min_cell=1):
        for kind, own in ((xgb.QuantileDMatrix, {"max_bin": bins}), (xgb.DMatrix, {})):
            found.append(xgb.train(param, kind(MADE, MADE[:, 0], **own), 1).save_raw())
    assert found[0] == found[1]


@pytest.mark.parametrize(("of_matrix", "of_training"), [(8, None), (None, 8), (8, 9)])
@pytest.mark.parametrize("package", [xgb, xgboost])
def test_other_bins_of_quantiles_than_of_training_are_refused(
    package: Any, of_matrix: int | None, of_training: int | None
) -> None:
    param = {} if of_training is None else {"max_bin": of_training}
    said = "`max_bin` should be the same across different QuantileDMatrix, and consistent with"
    with xgb.collective.simulate(3, hedgerow_min_cell=1):
        rows = package.QuantileDMatrix(MADE, MADE[:, 0], max_bin=of_matrix)
        with pytest.raises(xgboost.core.XGBoostError, match=said):
            package.train(param, rows, 1)
        with pytest.raises((ValueError, InvalidJob), match=said):
            package.QuantileDMatrix(MADE, ref=rows, max_bin=of_training)


def test_a_base_score_of_each_output_is_one_where_they_are_alike() -> None:
    X = np.random.default_rng(0).normal(size=(120, 2)).astype(np.float32)
    rows = xgb.DMatrix(X, X[:, 0])
    found = set()
    with xgb.collective.simulate(3, hedgerow_min_cell=1):
        for score in (0.25, [0.25], np.full(1, 0.25), [0.25, 0.25]):
            found.add(bytes(xgb.train({"base_score": score}, rows, 1).save_raw()))
        with pytest.raises(InvalidJob, match="base_score: expected one number for all outputs"):
            xgb.train({"base_score": [0.25, 0.5]}, rows, 1)
    assert len(found) == 1


def _logistic(margins: Any, matrix: Any) -> tuple[Any, Any]:
    chance = 1 / (1 + np.exp(-margins))
    return chance - matrix.get_label(), chance * (1 - chance)


@pytest.mark.parametrize("kind", [xgb.DMatrix, xgb.QuantileDMatrix])
def test_gradients_of_the_script_give_the_objectives_trees(kind: Any) -> None:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(600, 4)).astype(np.float32)
    y = (X[:, 0] * X[:, 1] > 0).astype(np.float32)
    param = {"objective": "binary:logistic", "max_depth": 3, "base_score": 0.5}
    with xgb.collective.simulate(3, hedgerow_min_cell=1):
        matrix = kind(X, y)
        own = xgb.train(param, matrix, 4)
        found = xgb.train({**param, "base_score": None}, matrix, 4, obj=_logistic)
    for ours, theirs in zip(found.trees_to_dataframe(), own.trees_to_dataframe(), strict=True):
        assert ours == theirs
    np.testing.assert_allclose(found.predict(matrix), own.predict(matrix), atol=1e-6)


def test_gradients_that_are_none_are_refused_by_name() -> None:
    matrix = xgb.DMatrix(np.arange(60.0).reshape(30, 2), np.arange(30.0))
    ours = "gradients: expected"
    with xgb.collective.simulate(3, hedgerow_min_cell=1):
        for own, text in (
            (lambda p, d: (p[:2], p[:2]), f"{ours} 10 gradients, one a row and output"),
            (lambda p, d: (p * np.nan, p), f"{ours} finite gradients"),
            (lambda p, d: (p, p - 9), f"{ours} finite gradients, and hessians from 0"),
        ):
            with pytest.raises(RunFailed, match=text):
                xgb.train({}, matrix, 1, obj=own)
        with pytest.raises(ZeroDivisionError):
            xgb.train({}, matrix, 1, obj=lambda p, d: 1 / 0)
        with pytest.raises(InvalidJob, match="gradients: expected none with reg:absoluteerror"):
            xgb.train({"objective": "reg:absoluteerror"}, matrix, 1, obj=_logistic)


def test_scripts_are_told_apart_by_what_their_function_says() -> None:
    def times(factor: float) -> Any:
        return lambda p, d: (p * factor, p)

    assert named(times(1.0)) == named(times(1.0)) != named(times(2.0))
    assert named(functools.partial(_logistic, 1)) != named(functools.partial(_logistic, 2))
    assert named(_logistic).startswith("_logistic ")
    spoken: dict[str, Any] = {}
    for sign in "+-":
        exec(f"def own(p, d): return p {sign} 1, p", spoken)
        spoken[sign] = spoken["own"]
    assert named(spoken["+"]) != named(spoken["-"])


def test_a_set_has_one_name_in_whichever_order_a_process_holds_it() -> None:
    assert [*{0, 8}] != [*{8, 0}]

    def among(chosen: set[int]) -> Any:
        return lambda p, d: (p, p if len(p) in chosen else 1)

    assert named(among({0, 8})) == named(among({8, 0})) != named(among({0, 16}))
    spoken: dict[str, Any] = {}
    for elements in ("0, 8", "8, 0", "0, 16"):
        exec(f"def own(p, d): return p if len(p) in {{{elements}}} else 1, p", spoken)
        spoken[elements] = spoken["own"]
    assert named(spoken["0, 8"]) == named(spoken["8, 0"]) != named(spoken["0, 16"])


def test_rows_begin_at_their_base_margins() -> None:
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(900, 3)), rng.integers(0, 3, 900)
    first = {"objective": "multi:softprob", "num_class": 3, "max_depth": 3}
    with xgb.collective.simulate(3, hedgerow_min_cell=1):
        matrix = xgb.DMatrix(X, y)
        half = xgb.train(first, matrix, 2)
        margins = half.predict(matrix, output_margin=True)
        later = xgb.DMatrix(X, y, base_margin=margins)
        log: dict = {}
        more = xgb.train(first, later, 2, evals=[(later, "all")], evals_result=log)
        whole_log: dict = {}
        whole = xgb.train(first, matrix, 4, evals=[(matrix, "all")], evals_result=whole_log)
        with pytest.raises(InvalidJob, match="all: expected 3 base margins a row, as dtrain has"):
            xgb.train(first, later, 1, evals=[(matrix, "all")])
    np.testing.assert_allclose(more.predict(later), whole.predict(matrix), atol=1e-6)
    assert log["all"]["mlogloss"] == pytest.approx(whole_log["all"]["mlogloss"][2:])


class Switches(xgb.callback.TrainingCallback):
    def after_iteration(self, model, epoch, evals_log):
        model.set_param({"multi_strategy": ("one_output_per_tree", "multi_output_tree")[epoch % 2]})


def test_rounds_have_the_strategy_that_a_callback_sets_for_them():
    X, y = made()
    y = y + (X[:, 3] > 0.5)
    param = {"objective": "multi:softprob", "num_class": 3, "multi_strategy": "multi_output_tree"}
    param |= {"colsample_bynode": 0.7, "num_parallel_tree": 2, "max_depth": 3}

    def trained(silos=3, callbacks=(), **given):
        with xgb.collective.simulate(silos):
            rows = xgb.DMatrix(X, y)
            return xgb.train(param | given, rows, 4, callbacks=[*callbacks], verbose_eval=False)

    mixed = trained(callbacks=[Switches()])
    assert mixed.save_raw() == trained(1, callbacks=[Switches()]).save_raw()
    splits = [[t.count("yes") for t in mixed[k].get_dump()] for k in range(4)]
    assert splits[0][0::2] == [splits[0][0]] * 3  # of one tree, by class
    assert splits[2][0::2] == [splits[2][0]] * 3
    alone = trained(multi_strategy="one_output_per_tree")
    assert alone.save_raw() != mixed.save_raw()


def test_quantiles_may_share_a_tree_whose_leaves_are_theirs():
    X, y = made()
    y = y + X[:, 0] / 4
    y[np.isnan(y)] = 0
    param = {"objective": "reg:quantileerror", "quantile_alpha": [0.2, 0.5, 0.8], "eta": 1.0,
             "multi_strategy": "multi_output_tree", "max_depth": 2,
             "min_child_weight": 90}  # fmt: skip
    found = []
    for silos in (1, 3):
        with xgb.collective.simulate(silos, hedgerow_min_cell=1):
            rows = xgb.DMatrix(X, y)
            found.append(xgb.train(param, rows, 1, verbose_eval=False))
    assert found[0].save_raw() == found[1].save_raw()
    leaves, predicted = found[0].predict(rows, pred_leaf=True), found[0].predict(rows)
    assert (leaves == leaves[:, :1]).all()
    for leaf in np.unique(leaves[:, 0]):
        own = leaves[:, 0] == leaf
        assert own.sum() >= 30
        told = np.quantile(y[own], [0.2, 0.5, 0.8])
        np.testing.assert_allclose(predicted[own][0], told, atol=0.05)


def test_features_of_weight_0_are_never_drawn():
    X, y = made()
    with xgb.collective.simulate():
        rows = xgb.DMatrix(X, y, feature_weights=[1.0, 0.0, 0.5, 0.0])
        found = xgb.train({**BINARY, "colsample_bynode": 0.75}, rows, 4, verbose_eval=False)
    assert {*found.get_score()} == {"f0", "f2"}


def test_the_error_of_shares_is_xgboosts():
    X, y = made()
    y = (y + np.linspace(0, 1, len(y))).astype(np.float32) / 2
    logs = {}, {}
    param = {"objective": "reg:logistic", "eval_metric": "error", "base_score": 0.5}
    with xgb.collective.simulate(hedgerow_min_cell=1):
        rows = xgb.DMatrix(X, y)
        given = {"evals": [(rows, "train")], "evals_result": logs[0], "verbose_eval": False}
        found = xgb.train(param, rows, 3, **given)
    assert logs[0]["train"]["error"][-1] == pytest.approx(
        float(found.eval(rows).rsplit(":", 1)[1]), abs=1e-6
    )


def wrong(predt, dtrain):
    return "mine", float(np.mean((predt > 0.5) != dtrain.get_label()))


def test_a_custom_metric_is_scored_each_round_and_ends_training():
    log: dict[str, Any] = {}
    with xgb.collective.simulate():
        rows, others = matrices()
        given = {"evals": [(rows, "train"), (others, "test")], "evals_result": log}
        param = {**BINARY, "eval_metric": "error"}
        xgb.train(param, rows, 5, custom_metric=wrong, verbose_eval=False, **given)
        assert [*log["test"]] == ["error", "mine"]
        np.testing.assert_allclose(log["test"]["mine"], log["test"]["error"], atol=1e-6)
        np.testing.assert_allclose(log["train"]["mine"], log["train"]["error"], atol=1e-6)

        def fails(predt, dtrain):
            raise ValueError(f"label {dtrain.get_label()[0]}")

        with pytest.raises(ValueError, match=r"^label"):
            xgb.train(param, rows, 2, custom_metric=fails, verbose_eval=False, **given)
        with pytest.raises(FederationError, match="a finite number"):
            xgb.train(
                param, rows, 2, custom_metric=lambda p, d: ("m", np.nan), verbose_eval=False,
                **given,
            )  # fmt: skip


def test_folds_of_cv_are_those_that_xgboost_draws():
    found = {}
    for package in (xgb, xgboost):
        with xgb.collective.simulate(hedgerow_min_cell=1):
            rows = package.DMatrix(*made())
            given = {"nfold": 3, "seed": 4, "as_pandas": False}
            if package is xgb:
                given["custom_metric"] = wrong
            param = {"objective": "binary:logistic", "max_depth": 3, "eval_metric": "logloss"}
            found[package] = package.cv(param, rows, 3, **given)
    assert "test-mine-mean" in found[xgb]
    for name in ("test-logloss-mean", "train-logloss-mean", "test-logloss-std"):
        np.testing.assert_allclose(found[xgb][name], found[xgboost][name], atol=0.03)


def test_margins_of_classes_begin_where_xgboosts_do():
    X, y = made()
    y = y + (X[:, 3] > 0.5)
    param = {"objective": "multi:softprob", "num_class": 3}
    scores = []
    for package in (xgb, xgboost):
        with xgb.collective.simulate():
            rows = package.DMatrix(X, y, weight=np.linspace(1, 2, len(y)))
            found = package.train(param, rows, 1, verbose_eval=False).save_config()
            text = json.loads(found)["learner"]["learner_model_param"]["base_score"]
            scores.append(json.loads(text))
    np.testing.assert_allclose(*scores, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("given", [{"gradients": "mine 01"}, {"metrics": ["script@mine 01"]}])
def test_jobs_whose_functions_scripts_alone_have_are_refused_before_they_run(given):
    table = pa.table({"x": np.arange(40.0), "label": np.arange(40) % 2})
    job = hedgerow.Job("histogram", label="label", rounds=2, **given)
    tables = dict.fromkeys(("north", "south", "west"), table)
    received = "'mine" if "gradients" in given else "'script@mine"
    for run, rows in ((hedgerow.local, tables), (hedgerow.plan, tables)):
        with pytest.raises(
            InvalidJob, match=f"for agents and tables have none, received {received}"
        ):
            run(job, rows)
    with pytest.raises(FederationError, match=r"scripts have: hedgerow\.join"):
        hedgerow.simulate(job, table, silos=3)
