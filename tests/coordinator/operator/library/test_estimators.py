"""scikit-learn's estimators over silos."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import hedgerow
from hedgerow.boosting.errors import InvalidJob
from tests.coordinator.operator.library.tables import people
from tests.late import Late

estimators: Any = Late("hedgerow.sklearn")
pd: Any = Late("pandas")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["FederatedClassifier", "FederatedRegressor"])
def test_the_estimator_is_one_of_scikit_learn(name: str) -> None:
    from sklearn.utils.estimator_checks import check_estimator

    check_estimator(getattr(estimators, name)(rounds=8, n_silos=2), on_skip=None)


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
        "histogram", rounds=2, max_depth=2, settings={"binning": "summary", "max_bin": 256}
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
