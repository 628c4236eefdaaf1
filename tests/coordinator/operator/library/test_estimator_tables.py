"""The estimators of scikit-learn on tables and labels of all kinds: one model for one meaning."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hedgerow
from hedgerow.boosting.dataset import Feature
from hedgerow.boosting.errors import DataError, FederationError, InvalidJob
from tests.late import Late

estimators: Any = Late("hedgerow.sklearn")
pd: Any = Late("pandas")

N = 240
RNG = np.random.default_rng(5)
SIZE, ROOMS = RNG.normal(size=N), RNG.integers(0, 4, N)
TOWN = RNG.choice(["x", "y", "zé"], N)
LABEL = (SIZE + 0.5 * ROOMS + (TOWN == "x") > 1).astype(int)


def frame(**others: Any) -> Any:
    return pd.DataFrame({"size": SIZE, "rooms": ROOMS, "town": TOWN, **others})


def fit(X: Any, y: Any = LABEL, **options: Any) -> Any:
    told = {k: options.pop(k) for k in ("silos", "eval_set", "sample_weight") if k in options}
    settings = {"secure": False, **options.pop("settings", {})}
    model = estimators.FederatedClassifier(
        "histogram", n_estimators=3, n_silos=2, settings=settings, **options
    )
    return model.fit(X, y, **told)


def scores(X: Any, **options: Any) -> Any:
    return fit(X, **options).predict_proba(X)


def of_arrow(X: Any) -> Any:
    return pa.Table.from_pandas(X)


def of_batch(X: Any) -> Any:
    return pa.RecordBatch.from_pandas(X)


@pytest.mark.parametrize("made", [of_arrow, of_batch])
@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("index", [None, "patient", "_id"])
def test_an_arrow_table_is_the_frame_without_its_index(
    made: Callable[[Any], Any], text: bool, index: str | None
) -> None:
    X = frame() if text else frame().drop(columns="town")
    tells = X.set_index(pd.Index(LABEL * 7 + 1, name=index))
    model = fit(made(tells))
    assert model.model_.features == tuple(X.columns)
    assert model.n_features_in_ == len(X.columns)
    assert list(model.feature_names_in_) == list(X.columns)
    np.testing.assert_array_equal(model.predict_proba(made(tells)), scores(X))


@pytest.mark.parametrize(
    ("kind", "known"),
    [("Int64", [0, 1]), ("int64[pyarrow]", [0, 1]), ("boolean", [False, True])],
)
def test_nullable_labels_come_back_as_they_are(kind: str, known: list[Any]) -> None:
    model = fit(frame(), pd.Series(LABEL.astype(bool) if kind == "boolean" else LABEL).astype(kind))
    assert model.classes_.tolist() == known
    assert type(model.classes_.tolist()[0]) is type(known[0])
    assert set(map(type, model.predict(frame()).tolist())) == {type(known[0])}


@pytest.mark.parametrize("gap", [None, np.nan, "NA"])
@pytest.mark.parametrize("made", [list, lambda values: pd.Series(values, dtype=object)])
def test_a_missing_label_or_silo_is_no_class_and_no_silo(gap: Any, made: Any) -> None:
    gap = pd.NA if gap == "NA" else gap
    words = made([gap if k in (3, 8) else "yes" if one else "no" for k, one in enumerate(LABEL)])
    with pytest.raises(ValueError, match=f"Input y contains NaN: 2 of {N} are missing"):
        fit(frame(), words)
    with pytest.raises(ValueError, match=f"Input silos contains NaN: 2 of {N} are missing"):
        fit(frame(), silos=words)
    numbers = pd.Series(np.where(np.arange(N) < 2, np.nan, LABEL)).astype("Int64")
    for own in (numbers, numbers.astype(float)):
        with pytest.raises(ValueError, match=f"2 of {N} are missing"):
            fit(frame(), own)
        with pytest.raises(ValueError, match=f"2 of {N} are missing"):
            fit(frame(), silos=own)


def test_dates_and_durations_are_no_numbers_to_predict() -> None:
    model = estimators.FederatedRegressor("histogram", settings={"secure": False})
    for y in (pd.date_range("2020", periods=N), pd.to_timedelta(np.arange(N), unit="h")):
        with pytest.raises(ValueError, match="y: expected numbers, received"):
            model.fit(frame(), y)


@pytest.mark.parametrize("gone", [None, np.nan])
def test_rows_that_all_lack_a_text_are_scored(gone: float | None) -> None:
    model = fit(frame())
    one = frame()[:1].assign(town=gone)
    mixed = pd.concat([one, frame()[1:2]])
    np.testing.assert_array_equal(model.predict_proba(one), model.predict_proba(mixed)[:1])
    fit(frame(), eval_set=[(frame().assign(town=gone), LABEL)])


@pytest.mark.parametrize("code", [-999.0, 0.0, np.inf])
@pytest.mark.parametrize("text", [True, False])
def test_a_code_for_missing_holds_wherever_the_model_goes(code: float, text: bool) -> None:
    X = frame(size=np.where(ROOMS == 2, np.nan, SIZE))
    X = X if text else X.drop(columns="town")
    coded = X.assign(size=X["size"].fillna(code))
    model, plain = fit(coded, missing=code), fit(X)
    if code == 0.0:  # a number of rooms, too
        plain = fit(X.assign(rooms=X["rooms"].replace(0, np.nan)))
    wanted = plain.predict_proba(X if code else X.assign(rooms=X["rooms"].replace(0, np.nan)))
    np.testing.assert_array_equal(model.predict_proba(coded), wanted)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(coded), wanted)
    if np.isfinite(code):
        np.testing.assert_array_equal(np.asarray(model.model_.predict_proba(coded)), wanted)


def test_a_saved_model_knows_the_code_for_missing(tmp_path: Any) -> None:
    coded = frame(size=np.where(ROOMS == 2, -999.0, SIZE))
    model = fit(coded, missing=-999)
    model.model_.save(tmp_path / "m")
    found = np.asarray(hedgerow.load(tmp_path / "m").predict_proba(coded))
    np.testing.assert_array_equal(found, model.predict_proba(coded))


def test_missing_is_one_number() -> None:
    np.testing.assert_array_equal(scores(frame(), missing=None), scores(frame()))
    with pytest.raises(InvalidJob, match="missing: expected a number, received 'NA'"):
        fit(frame(), missing="NA")
    with pytest.raises(InvalidJob, match=r"missing = -1 and settings\['missing'\] = -9 are one"):
        fit(frame(), missing=-1, settings={"missing": -9})


@pytest.mark.parametrize("text", [True, False])
def test_settings_say_what_becomes_of_columns(text: bool) -> None:
    X = frame() if text else frame().drop(columns="town")
    for settings in ({"drop": ["size"]}, {"columns": {"drop": ["size"]}}):
        model = fit(X, settings=settings)
        assert model.model_.features == tuple(X.columns[1:])
        np.testing.assert_array_equal(model.predict_proba(X), scores(X.drop(columns="size")))
        np.testing.assert_array_equal(
            model.model_.predict_proba(X)["1"], model.predict_proba(X)[:, 1]
        )
    assert fit(X, settings={"features": ["rooms"]}).model_.features == ("rooms",)
    assert fit(X, settings={"rename": {"size": "m2"}}).model_.features[0] == "m2"
    model = fit(X, settings={"categorical": ["rooms"]})
    assert model.model_.schema.features[1] == Feature("rooms", ("0", "1", "2", "3"))
    with pytest.raises(DataError, match="X: there is no column 'sise'; did you mean 'size'"):
        fit(X, settings={"drop": ["sise"]})


def test_dates_of_a_frame_are_numbers_where_settings_say_so() -> None:
    X = frame(day=pd.date_range("2020-01-01", periods=N, freq="30D"))
    model = fit(X, settings={"dates": {"day": ["year", "month"]}})
    plain = frame(day_year=X["day"].dt.year, day_month=X["day"].dt.month)
    assert {"day_year", "day_month"} < set(model.model_.features)
    found, wanted = fit(X, settings={"dates": {"day": ["year", "month"]}}), fit(plain)
    np.testing.assert_array_equal(found.predict_proba(X), wanted.predict_proba(plain))


@pytest.mark.parametrize("key", ["positive", "missing_label", "weight", "class_weight"])
def test_settings_of_labels_are_refused_with_what_to_do(key: str) -> None:
    value = {"1": 9.0} if key == "class_weight" else "drop"
    with pytest.raises(InvalidJob, match=rf"\[columns\] {key}: "):
        fit(frame(), settings={key: value})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"silos": 2.5}, "silos: expected a whole number or each row's silo, received 2.5"),
        ({"silos": np.where(ROOMS > 1, "a/b", "c")}, "silos: the name 'a/b': up to 63 letters"),
        ({"class_weight": {0: "x"}}, "class_weight: 0: expected a number, received 'x'"),
        ({"random_state": np.random.default_rng(0)}, "random_state: expected a whole number"),
        ({"random_state": 1.5}, "random_state: expected a whole number, received 1.5"),
        ({"random_state": -3}, r"random_state: expected 0 to 2\^32 - 1, received -3"),
        ({"eval_set": (SIZE, LABEL)}, r"eval_set: expected a list of pairs \(X, y\)"),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(options: Any, said: str) -> None:
    with pytest.raises((FederationError, ValueError), match=said):
        fit(frame(), **options)


def test_tables_without_rows_or_columns_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="X: expected at least 1 row, received 0"):
        fit(frame()[:0], LABEL[:0])
    with pytest.raises(ValueError, match="X: expected at least 1 row, received 0"):
        fit(frame(), eval_set=[(frame()[:0], LABEL[:0])])
    with pytest.raises(ValueError, match=r"0 feature\(s\)"):
        fit(frame()[[]])
    assert len(fit(frame()).predict(frame()[:0])) == 0


def test_a_generator_gives_each_fit_a_seed() -> None:
    drawn = [np.random.RandomState(4).randint(2**31, size=2).tolist() for _ in range(2)]
    assert drawn[0] == drawn[1]
    model = estimators.FederatedClassifier(
        n_estimators=2, subsample=0.5, random_state=np.random.RandomState(4)
    )
    for seed in drawn[0]:
        found = model.fit(frame(), LABEL).predict_proba(frame())
        plain = estimators.FederatedClassifier(n_estimators=2, subsample=0.5, random_state=seed)
        np.testing.assert_array_equal(found, plain.fit(frame(), LABEL).predict_proba(frame()))


def test_a_threshold_is_a_number_and_of_two_classes() -> None:
    model = fit(frame(), threshold="0.9")
    assert model.predict(frame()).sum() == (model.predict_proba(frame())[:, 1] >= 0.9).sum()
    with pytest.raises(InvalidJob, match="threshold: expected a number, received 'high'"):
        model.set_params(threshold="high").predict(frame())
    several = fit(frame().drop(columns="rooms"), ROOMS, threshold=0.3)
    with pytest.raises(FederationError, match="threshold: a multiclass model has none"):
        several.predict(frame().drop(columns="rooms"))


@pytest.mark.parametrize("kind", ["csr", "csc", "coo"])
@pytest.mark.parametrize("missing", [np.nan, 2.0])
def test_what_a_sparse_matrix_does_not_list_is_missing(kind: str, missing: float) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    full = np.column_stack([SIZE, ROOMS])
    full[0] = 0.0  # listed, so that they are numbers
    listed = np.ones(full.shape, bool)
    listed[1:] = full[1:] != 0.0
    at = np.nonzero(listed)
    halves = np.concatenate([full[at], full[at]]) / 2  # a value in parts is their sum
    own = sparse.coo_matrix((halves, np.hstack([at, at])), full.shape).asformat(kind)
    dense = np.where(listed, full, np.nan)
    expected, found = (fit(X, missing=missing) for X in (dense, own))
    assert found.n_features_in_ == 2
    np.testing.assert_array_equal(found.predict_proba(own), expected.predict_proba(dense))
    np.testing.assert_array_equal(found.predict_proba(dense), expected.predict_proba(dense))
    assert not np.array_equal(scores(full, missing=missing), expected.predict_proba(dense))


@pytest.mark.parametrize(
    "options",
    [
        {"objective": "survival:aft"},
        {"settings": {"objective": "survival:cox"}},
        {"settings": {"task": "survival"}},
        {"settings": {"event": "rooms"}},
    ],
)
def test_survival_is_refused_with_the_doors_that_have_it(options: dict[str, Any]) -> None:
    for name in ("FederatedRegressor", "FederatedClassifier"):
        model = getattr(estimators, name)("histogram", **options)
        with pytest.raises(InvalidJob, match=r"survival needs two: take FederatedSurvival"):
            model.fit(frame(), LABEL)
