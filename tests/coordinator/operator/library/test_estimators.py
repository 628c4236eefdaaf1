"""scikit-learn's estimators over silos."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import hedgerow
from hedgerow.boosting.errors import DataWarning, InvalidJob, ResultWarning
from tests.coordinator.operator.library.tables import people
from tests.late import Late

estimators: Any = Late("hedgerow.sklearn")
pd: Any = Late("pandas")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["FederatedClassifier", "FederatedRegressor"])
def test_the_estimator_is_one_of_scikit_learn(name: str) -> None:
    from sklearn.utils.estimator_checks import check_estimator

    dealt = "rows are dealt to silos: the same row twice may be at both of them"
    kinds = ("dense", "sparse")
    check_estimator(
        getattr(estimators, name)(rounds=8, n_silos=2),
        on_skip=None,
        expected_failed_checks={
            f"check_sample_weight_equivalence_on_{k}_data": dealt for k in kinds
        },
    )


@pytest.mark.process
def test_the_trees_are_those_of_a_federation_of_processes() -> None:
    tables = {f"silo-{k}": people(120 + 10 * k, k) for k in range(3)}
    for table in tables.values():
        table["label"] = (table["label"] == "yes").astype(int)
    job = hedgerow.Job("bagging", rounds=3, eta=0.4, max_depth=3, seed=11, min_silos=1, gamma=0.5)
    run = hedgerow.local(job, tables, quiet=True)
    rows = pd.concat([pd.DataFrame(table) for table in tables.values()], ignore_index=True)
    silos = np.repeat(list(tables), [len(table["age"]) for table in tables.values()])
    X, y = rows.drop(columns="label"), rows["label"]
    model = estimators.FederatedClassifier(
        rounds=3, eta=0.4, max_depth=3, random_state=11, settings={"gamma": 0.5}
    ).fit(X, y, silos=silos)
    assert list(model.silos_) == sorted(tables)
    ours = (run.folder / "model.ubj").read_bytes()
    assert model.model_.to_xgboost().save_raw() == run.model.to_xgboost().save_raw()
    assert model._result[0]["model.ubj"] == ours
    np.testing.assert_array_equal(model.predict_proba(X), np.asarray(run.model.predict_proba(X)))


@pytest.mark.process
@pytest.mark.parametrize("classes", [{}, {"yes": 2.5}])
def test_weights_are_those_of_a_federation_of_processes(classes: dict[str, float]) -> None:
    rng = np.random.default_rng(3)
    tables = {f"silo-{k}": people(120 + 10 * k, k) for k in range(3)}
    for table in tables.values():
        table["w"] = rng.uniform(0, 4, len(table["age"])).round(3)
    given: dict[str, Any] = {"weight": "w"} | ({"class_weight": classes} if classes else {})
    job = hedgerow.Job(
        "histogram", rounds=2, max_depth=3, seed=11, columns=given, binning="summary", max_bin=16
    )
    run = hedgerow.local(job, tables, quiet=True)
    rows = pd.concat([pd.DataFrame(table) for table in tables.values()], ignore_index=True)
    silos = np.repeat(list(tables), [len(table["age"]) for table in tables.values()])
    X = rows.drop(columns=["label", "w"])
    model = estimators.FederatedClassifier(
        "histogram", rounds=2, eta=0.3, max_depth=3, random_state=11, class_weight=classes or None,
        settings={"binning": "summary", "max_bin": 16},
    ).fit(X, rows["label"], silos=silos, sample_weight=rows["w"])  # fmt: skip
    np.testing.assert_array_equal(model.predict_proba(X), np.asarray(run.model.predict_proba(X)))
    plain = estimators.FederatedClassifier(
        "histogram", rounds=2, max_depth=3, random_state=11,
        settings={"binning": "summary", "max_bin": 16},
    ).fit(X, rows["label"], silos=silos)  # fmt: skip
    assert not np.array_equal(model.predict_proba(X), plain.predict_proba(X))
    from sklearn.metrics import log_loss

    expected = log_loss(rows["label"], model.predict_proba(X), sample_weight=rows["w"])
    assert run.model.evaluate(rows, ["logloss"])["logloss"] == pytest.approx(expected)
    with pytest.raises(hedgerow.FederationError, match="weight column 'w': expected weights"):
        run.model.evaluate(rows.assign(w=-1.0), ["logloss"])


def test_balanced_classes_weigh_the_same_and_weights_are_checked() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    y = np.where(X[:, 0] + rng.normal(size=300) > 1.5, "rare", "usual")
    balanced = estimators.FederatedClassifier(rounds=3, class_weight="balanced").fit(X, y)
    share = np.mean(y == "rare")
    told = {"rare": 0.5 / share, "usual": 0.5 / (1 - share)}
    given = estimators.FederatedClassifier(rounds=3, class_weight=told).fit(X, y)
    np.testing.assert_allclose(balanced.predict_proba(X), given.predict_proba(X), rtol=1e-6)
    plain = estimators.FederatedClassifier(rounds=3).fit(X, y)
    assert balanced.predict_proba(X)[:, 0].mean() > 1.2 * plain.predict_proba(X)[:, 0].mean()
    for weight, said in (
        (np.zeros(300), "not all zero"),
        (-np.ones(300), "finite numbers from 0"),
        (np.full(300, np.nan), "finite numbers from 0"),
        (np.ones(3), "sample_weight.shape"),
    ):
        with pytest.raises(ValueError, match=said):
            plain.fit(X, y, sample_weight=weight)
    private = estimators.FederatedClassifier(
        "dp_tree", rounds=None, settings={"epsilon": 1.0, "secure": False}
    )
    with pytest.raises(InvalidJob, match="dp_tree draws its noise for rows that count one each"):
        private.fit(X, y, sample_weight=np.ones(300))
    settings = {"columns": {"weight": "w"}}
    with pytest.raises(InvalidJob, match="give the weights to fit, as sample_weight"):
        estimators.FederatedClassifier(settings=settings).fit(X, y)


def test_evaluation_sets_have_weights_of_their_own() -> None:
    from sklearn.metrics import log_loss

    rng = np.random.default_rng(0)
    X, weight = rng.normal(size=(200, 2)), rng.uniform(0, 5, 200)
    y = (X[:, 0] + rng.normal(size=200) > 0).astype(int)
    model = estimators.FederatedClassifier(rounds=2, eval_metric="logloss")
    model.fit(X, y, eval_set=[(X, y), (X, y)], sample_weight_eval_set=[None, weight])
    last = [model.evals_result()[f"validation_{k}"]["logloss"][-1] for k in (0, 1)]
    found = model.predict_proba(X)
    assert last == pytest.approx(
        [log_loss(y, found), log_loss(y, found, sample_weight=weight)], rel=1e-6
    )
    with pytest.raises(ValueError, match="expected 1 arrays, one a set of eval_set, received 2"):
        model.fit(X, y, eval_set=[(X, y)], sample_weight_eval_set=[weight, weight])


@pytest.mark.slow
def test_pipelines_searches_and_importances_work() -> None:
    from sklearn.inspection import permutation_importance
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    table = people(300, 0, "multiclass")
    X = np.column_stack([table["age"], table["dose"]])
    pipeline = make_pipeline(StandardScaler(), estimators.FederatedClassifier(rounds=4))
    search = GridSearchCV(pipeline, {"federatedclassifier__max_depth": [1, 3]}, cv=2)
    search.fit(X, table["label"])
    assert set(search.classes_) == {"low", "mid", "top"}
    assert search.score(X, table["label"]) > 0.6
    found = permutation_importance(
        search.best_estimator_, X, table["label"], n_repeats=2, random_state=0
    )
    assert found.importances_mean[0] > found.importances_mean[1]
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    np.testing.assert_array_equal(again.predict_proba(X), search.predict_proba(X))


def test_histograms_give_one_model_however_rows_are_dealt() -> None:
    table = people(200, 1, "regression")
    X = np.column_stack([table["age"], table["dose"]])
    model = estimators.FederatedRegressor(
        "histogram",
        rounds=2,
        max_depth=2,
        settings={"binning": "summary", "max_bin": 256, "min_cell": 1},
    )
    one = model.fit(X, table["label"], silos=1).predict(X)
    several = model.fit(X, table["label"], silos=4).predict(X)
    np.testing.assert_allclose(several, one, rtol=0.1, atol=0.2)
    assert model.score(X, table["label"]) > 0.5


def test_what_is_no_model_of_one_table_is_refused() -> None:
    X, y = np.zeros((8, 1)), np.arange(8) % 2
    with pytest.raises(InvalidJob, match="secureboost does not make one model of one table"):
        estimators.FederatedClassifier("secureboost", settings={"active": "a"}).fit(X, y)
    with pytest.raises(InvalidJob, match="fedga does not make one model"):
        estimators.FederatedClassifier("fedga", rounds=None).fit(X, y)
    with pytest.raises(ValueError, match="silos: expected 8 names"):
        estimators.FederatedClassifier().fit(X, y, silos=["a"])


@pytest.mark.parametrize("n_silos", [2, 4])
def test_importances_threshold_and_booster_are_as_in_scikit_learn_and_xgboost(n_silos: int) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 4))
    y = (X[:, 2] + 0.3 * X[:, 0] > 0).astype(int)
    found = estimators.FederatedClassifier(rounds=4, max_depth=3, n_silos=n_silos).fit(X, y)
    importances = found.feature_importances_
    assert importances.shape == (4,)
    assert importances.argmax() == 2
    assert importances.sum() == pytest.approx(1.0)
    assert found.get_booster().num_boosted_rounds() > 0
    sure = found.set_params(threshold=0.9).predict(X)
    assert sure.tolist() == (found.predict_proba(X)[:, 1] >= 0.9).astype(int).tolist()
    with pytest.raises(ValueError, match="not fitted"):
        _ = estimators.FederatedClassifier().feature_importances_


def test_a_regressor_predicts_several_targets_and_a_classifier_refuses_them() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    y = np.stack([X[:, 0], 10 + X[:, 1] * 5], axis=1)
    found = estimators.FederatedRegressor("histogram", rounds=10).fit(X, y, eval_set=[(X, y)])
    assert found.predict(X).shape == (200, 2)
    assert found.score(X, y) > 0.8
    assert found.get_booster().num_boosted_rounds() == 10
    assert found.evals_result()["validation_0"]["rmse"][-1] < 2
    with pytest.raises(ValueError, match="validation_0 has another number of labels than y"):
        estimators.FederatedRegressor(rounds=2).fit(X, y, eval_set=[(X, y[:, 0])])
    with pytest.raises(ValueError, match="MultiOutputClassifier around it"):
        estimators.FederatedClassifier(rounds=2).fit(X, (y > 1).astype(int))


def _table(n: int = 300) -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    X = pd.DataFrame(rng.normal(size=(n, 3)), columns=["a", "b", "c"])
    return X, np.where(X["a"] + 0.5 * X["b"] + rng.normal(size=n) > 0, "yes", "no")


def test_parameters_by_the_names_of_xgboost_are_those_by_our_own() -> None:
    X, y = _table()
    theirs = estimators.FederatedClassifier(
        n_estimators=3, learning_rate=0.4, max_depth=3, reg_lambda=2.0, reg_alpha=0.1, gamma=0.2,
        min_child_weight=2.0, max_bin=32, eval_metric="logloss", random_state=5,
    )  # fmt: skip
    ours = estimators.FederatedClassifier(
        rounds=3,
        eta=0.4,
        settings={
            "max_depth": 3, "lambda": 2.0, "alpha": 0.1, "gamma": 0.2,
            "booster": {"min_child_weight": 2.0, "max_bin": 32}, "metrics": ["logloss"], "seed": 5,
        },
    )  # fmt: skip
    expected = ours.fit(X, y, silos=np.arange(300) % 2)
    found = theirs.fit(X, y, silos=np.arange(300) % 2)
    assert found.get_booster().save_raw() == expected.get_booster().save_raw()
    assert found._result[2] == expected._result[2]


@pytest.mark.parametrize("drawn", [{"subsample": 0.5}, {"colsample_bytree": 0.5}])
def test_draws_by_xgboosts_names_change_the_trees(drawn: dict[str, float]) -> None:
    X, y = _table()
    whole = estimators.FederatedClassifier(n_estimators=2).fit(X, y)
    part = estimators.FederatedClassifier(n_estimators=2, **drawn).fit(X, y)
    assert part.get_booster().save_raw() != whole.get_booster().save_raw()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rounds": 30, "n_estimators": 3}, "rounds = 30 and n_estimators = 3 are one parameter"),
        ({"eta": 0.3, "learning_rate": 0.1}, "eta = 0.3 and learning_rate = 0.1 are one"),
        ({"reg_lambda": 1.0, "settings": {"lambda": 2.0}}, r"reg_lambda = 1.0 and settings\['lam"),
        ({"random_state": 0, "settings": {"seed": 1}}, r"random_state = 0 and settings\['seed'\]"),
    ],
)
def test_one_parameter_with_two_values_is_an_error(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        estimators.FederatedClassifier(**given).fit(*_table(20))


def test_a_parameter_may_be_given_twice_with_one_value() -> None:
    model = estimators.FederatedClassifier(rounds=2, n_estimators=2, settings={"rounds": 2})
    assert model.fit(*_table(40)).n_rounds_ == 2


@pytest.mark.slow
def test_searches_clones_and_pipelines_take_xgboosts_names() -> None:
    from sklearn.base import clone
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X, y = _table()
    model = clone(estimators.FederatedClassifier(n_estimators=3, missing=-999.0))
    assert model.get_params()["n_estimators"] == 3
    assert np.isnan(clone(estimators.FederatedClassifier()).missing)
    pipeline = make_pipeline(StandardScaler(), model)
    grid = {f"federatedclassifier__{name}": values for name, values in {
        "n_estimators": [1, 4], "learning_rate": [0.001, 0.5]}.items()}  # fmt: skip
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise", scoring="neg_log_loss")
    assert search.fit(X, y).best_params_ == {
        "federatedclassifier__n_estimators": 4,
        "federatedclassifier__learning_rate": 0.5,
    }


@pytest.mark.parametrize("strategy", ["bagging", "histogram", "simfl"])
def test_every_evaluation_set_is_scored_after_each_round(strategy: str) -> None:
    from sklearn.metrics import log_loss, roc_auc_score

    X, y = _table()
    model = estimators.FederatedClassifier(strategy, n_estimators=4, max_depth=2)
    model.fit(X[:200], y[:200], eval_set=[(X[:200], y[:200]), (X[200:], y[200:])])
    found = model.evals_result()
    assert list(found) == ["validation_0", "validation_1"]
    for name, part in (("validation_0", slice(200)), ("validation_1", slice(200, None))):
        chances = model.predict_proba(X[part])[:, 1]
        assert len(found[name]["auc"]) == 4
        assert found[name]["auc"][-1] == pytest.approx(roc_auc_score(y[part], chances))
        assert found[name]["logloss"][-1] == pytest.approx(log_loss(y[part], chances), rel=1e-5)
    model.fit(X[:200], y[:200])
    assert model.evals_result() == {}


@pytest.mark.parametrize("strategy", ["bagging", "histogram"])
def test_an_evaluation_set_ends_training_and_its_best_round_is_the_model(strategy: str) -> None:
    from sklearn.metrics import log_loss

    X, y = _table()
    model = estimators.FederatedClassifier(
        strategy, n_estimators=100, learning_rate=1.0, early_stopping_rounds=3
    )
    model.fit(X[:200], y[:200], eval_set=[(X[200:], y[200:])])
    scores = model.evals_result()["validation_0"]["logloss"]
    assert model.n_rounds_ == len(scores) == model.best_iteration + 4 < 100
    assert model.best_score == min(scores) == scores[model.best_iteration]
    assert log_loss(y[200:], model.predict_proba(X[200:])) == pytest.approx(min(scores), rel=1e-5)
    model.set_params(early_stopping_rounds=None, n_estimators=2).fit(X, y, eval_set=[(X, y)])
    assert not hasattr(model, "best_iteration")


def test_without_an_evaluation_set_silos_hold_rows_back_to_stop_by() -> None:
    model = estimators.FederatedClassifier(
        n_estimators=20, learning_rate=1.0, early_stopping_rounds=2, settings={"validation": 0.3}
    )
    assert model.fit(*_table()).n_rounds_ < 20
    with pytest.raises(InvalidJob, match="validation: expected above 0 for early stopping"):
        model.set_params(settings=None).fit(*_table(40))


@pytest.mark.parametrize("strategy", ["bagging", "histogram"])
def test_monotone_constraints_go_by_column_name(strategy: str) -> None:
    X, _ = _table()
    y = np.sin(2.0 * X["a"]) + X["b"]
    model = estimators.FederatedRegressor(
        strategy, n_estimators=5, monotone_constraints={"a": -1}
    ).fit(X, y)
    assert model.model_.importance().rows()
    line = pd.DataFrame({"a": np.linspace(-2, 2, 50), "b": 0.0, "c": 0.0})
    assert (np.diff(model.predict(line)) <= 1e-6).all()
    free = estimators.FederatedRegressor(strategy, n_estimators=5).fit(X, y)
    assert (np.diff(free.predict(line)) > 0.1).any()
    for by_place in ((-1, 0, 0), np.array([-1, 0, 0]), "(-1,0, 0)", "(-1,)", '{"a": -1}'):
        other = estimators.FederatedRegressor(
            strategy, n_estimators=5, monotone_constraints=by_place
        ).fit(X, y)
        np.testing.assert_array_equal(other.predict(X), model.predict(X))
    unbound = model.set_params(monotone_constraints="()").fit(X, y)
    np.testing.assert_array_equal(unbound.predict(X), free.predict(X))
    for given, said in (
        ({"z": 1}, "there is no feature 'z'; expected some of a, b, c"),
        ("(1,x)", r"expected a list, received '\(1,x\)'"),
        ("(1.5,)", "expected a whole number, received 1.5"),
        ("{[]: 1}", "expected a list"),
        ("(1,2)", "expected -1, 0 or 1 for each of 3 features"),
    ):
        with pytest.raises(InvalidJob, match=f"^monotone_constraints: {said}"):
            model.set_params(monotone_constraints=given).fit(X, y)


@pytest.mark.parametrize("strategy", ["bagging", "histogram"])
def test_interaction_constraints_go_by_column_name_or_place(strategy: str) -> None:
    X, _ = _table()
    y = X["a"] * X["b"] + X["c"]

    def fitted(groups: Any) -> Any:
        model = estimators.FederatedRegressor(
            strategy, n_estimators=4, max_depth=3, interaction_constraints=groups
        )
        return model.fit(X, y).predict(X)

    np.testing.assert_array_equal(fitted([["a", "c"]]), fitted([(0, 2)]))
    np.testing.assert_array_equal(fitted([["a", "c"]]), fitted("[[0, 2]]"))
    assert (fitted([["a", "c"]]) != fitted(None)).any()
    with pytest.raises(InvalidJob, match="there is no feature 'z'; expected some of a, b, c"):
        fitted([["a", "z"]])


def test_a_number_may_stand_for_missing_values() -> None:
    table = people(200, 0)
    X, y = pd.DataFrame(table).drop(columns="label"), table["label"]
    marked = X.fillna({"dose": -999.0})
    assert (marked["dose"] == -999.0).any()
    model = estimators.FederatedClassifier(n_estimators=3, missing=-999.0).fit(marked, y)
    expected = estimators.FederatedClassifier(n_estimators=3).fit(X, y)
    assert model.get_booster().save_raw() == expected.get_booster().save_raw()
    np.testing.assert_array_equal(model.predict_proba(marked), expected.predict_proba(X))
    numbers = marked[["age", "dose"]].to_numpy()
    of_numbers = estimators.FederatedClassifier(n_estimators=3, missing=-999.0).fit(numbers, y)
    known = expected.fit(np.where(numbers == -999.0, np.nan, numbers), y)
    np.testing.assert_array_equal(
        of_numbers.predict_proba(numbers),
        known.predict_proba(np.where(numbers == -999.0, np.nan, numbers)),
    )


def test_all_cores_but_one_and_weights_of_classes_that_are_none() -> None:
    X, y = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 2
    every = estimators.FederatedClassifier(rounds=1, n_silos=3).fit(X, y)
    for n_jobs in (-1, -2, -100):
        own = estimators.FederatedClassifier(rounds=1, n_silos=3, n_jobs=n_jobs).fit(X, y)
        assert (own.predict_proba(X) == every.predict_proba(X)).all()
    for wrong in (-1.0, 0.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="class_weight: 0: expected a number between"):
            estimators.FederatedClassifier(rounds=1, class_weight={0: wrong, 1: 1.0}).fit(X, y)
    heavy = estimators.FederatedClassifier(rounds=1, class_weight={1: 2.0**31})
    with pytest.raises(ValueError, match="sample_weight times class_weight: expected weights"):
        heavy.fit(X, y, sample_weight=np.full(len(y), 2.0**60))


def test_columns_that_no_job_has_as_features_are_refused_and_odd_ones_warned_of() -> None:
    rng = np.random.default_rng(2)
    X = pd.DataFrame({"x": rng.normal(size=60), "title": [f"title {k}" for k in range(60)]})
    y = (X["x"] > 0).astype(int)
    model = estimators.FederatedClassifier("histogram", rounds=1, max_depth=2)
    with pytest.raises(ValueError, match=r"^X: '_split', 'label_2': no job has") as refused:
        model.fit(X.assign(_split=y, label_2=y), y)
    assert "X.drop(columns=['_split', 'label_2'])" in str(refused.value)
    with pytest.warns(ResultWarning, match="'title': likely names or free text: 60 different"):
        model.fit(X, y)
    large = X[["x"]].assign(z=np.arange(60) + 2**60, n=[f"{k % 4}.5" for k in range(60)])
    with pytest.warns(DataWarning) as told:
        model.fit(large, y)
    assert [str(one.message).partition(":")[2].split(",")[0] for one in told] == [
        " column 'z': integers beyond 2^53: float32 does not tell all of them apart",
        " numbers such as '0.5' are text",
    ]
    with pytest.warns(DataWarning, match="the table: column 'z': integers beyond"):
        hedgerow.simulate(hedgerow.Job("histogram", label="y", rounds=1), large.assign(y=y), 3)
