"""Cross-validation with folds inside silos."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hedgerow
from hedgerow.boosting.errors import InvalidJob
from hedgerow.coordinator.operator.library.searching import HeldBack
from tests.coordinator.operator.library.tables import people
from tests.late import Late

pd: Any = Late("pandas")
xgb: Any = Late("xgboost")


def _numbers(n: int, seed: int) -> Any:
    table = pd.DataFrame(people(n, seed)).drop(columns="site")
    return table.assign(label=(table["label"] == "yes").astype(int))


def _folds(silos: Any, nfold: int, **options: Any) -> list[dict[str, Any]]:
    job = hedgerow.Job("bagging", rounds=1).parameters
    rows = HeldBack(silos, 1.0 / nfold, job.seed, **options)
    return [rows.turned(k / nfold).held_in_silos(job) for k in range(nfold)]


def test_one_silo_has_the_scores_of_xgboost_cv() -> None:
    table = _numbers(240, 0)
    job = hedgerow.Job("bagging", rounds=5, eta=0.4, max_depth=3, base_score=0.5)
    found = hedgerow.cv(job, {"one": table}, nfold=4)
    held = [own["one"] for own in _folds({"one": table}, 4)]
    places = {
        tuple(row): k
        for k, row in enumerate(table[["age", "dose"]].fillna(-9).to_numpy(np.float32))
    }
    tests = [np.sort([places[tuple(row)] for row in np.nan_to_num(own.X, nan=-9)]) for own in held]
    folds = [(np.setdiff1d(np.arange(240), test), test) for test in tests]
    matrix = xgb.DMatrix(table.drop(columns="label"), table["label"])
    settings = {"eta": 0.4, "max_depth": 3, "objective": "binary:logistic", "base_score": 0.5}
    expected = xgb.cv(settings, matrix, 5, folds=folds, metrics=["auc", "logloss"], as_pandas=True)
    assert found.columns == list(expected.columns)
    np.testing.assert_allclose(np.asarray(found), expected.to_numpy(), atol=1e-5)


@pytest.mark.parametrize("n_rows", [7, 30, 100])
def test_each_row_of_a_silo_is_held_back_in_one_fold(n_rows: int) -> None:
    table = {"age": np.arange(n_rows, dtype=float), "label": np.arange(n_rows) % 2}
    for nfold in (2, 3, 5, 7):
        for options in ({}, {"stratified": True}):
            parts = [own["a"].X[:, 0] for own in _folds({"a": table}, nfold, **options)]
            np.testing.assert_array_equal(np.sort(np.concatenate(parts)), table["age"])


def test_stratified_folds_have_each_class_in_its_share() -> None:
    silos = {"a": _numbers(150, 1), "b": _numbers(90, 2)}
    for name, table in silos.items():
        share = table["label"].mean()
        for own in _folds(silos, 5, stratified=True):
            held = own[name]
            assert abs(held.labels.sum() - share * held.n_samples) <= 1.0


def test_masks_change_no_score_and_early_stopping_ends_at_the_best_mean() -> None:
    silos = {name: _numbers(80, k) for k, name in enumerate(("a", "b", "c"))}
    job = hedgerow.Job("histogram", rounds=8, eta=1.0, max_depth=3)
    whole = hedgerow.cv(job, silos, nfold=3, metrics="log_loss")
    assert whole.columns == [
        "train-logloss-mean", "train-logloss-std", "test-logloss-mean", "test-logloss-std",
    ]  # fmt: skip
    open_ = hedgerow.cv(job, silos, nfold=3, metrics="log_loss", crypto=False)
    np.testing.assert_allclose(np.asarray(whole), np.asarray(open_), rtol=1e-6)
    means = whole["test-logloss-mean"]
    best = int(np.argmin(means))
    assert best < 5
    ended = hedgerow.cv(job, silos, nfold=3, metrics="log_loss", early_stopping_rounds=3)
    np.testing.assert_array_equal(np.asarray(ended), np.asarray(whole)[: best + 1])


def test_what_makes_no_common_model_is_refused() -> None:
    table = _numbers(30, 0)
    with pytest.raises(InvalidJob, match="fedga does not make one model"):
        hedgerow.cv(hedgerow.Job("fedga"), {"a": table})
    with pytest.raises(InvalidJob, match="nfold: expected at least 2, received 1"):
        hedgerow.cv(hedgerow.Job("bagging"), {"a": table}, nfold=1)
