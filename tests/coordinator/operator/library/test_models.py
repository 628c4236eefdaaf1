"""Models of every strategy: predictions, explanations, trees."""

from __future__ import annotations

import itertools
import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import hedgerow
from hedgerow.boosting.errors import DataError
from hedgerow.boosting.trees.ensemble import Tree
from hedgerow.coordinator.operator.commands.predict import predict
from hedgerow.coordinator.operator.library.jobs import table_of
from hedgerow.coordinator.operator.library.memory import Conditions, federate
from hedgerow.coordinator.operator.library.scoring import ModelUnusable
from tests.coordinator.operator.library.tables import people
from tests.late import Late

pd: Any = Late("pandas")
pl: Any = Late("polars")

PLAIN = Conditions(crypto=False, codecs=False)
JOBS: dict[str, dict[str, Any]] = {
    "bagging": {"rounds": 3, "max_depth": 3, "metrics": ["auc"]},
    "histogram": {"rounds": 2, "max_depth": 3},
    "fedxgbllr": {"rounds": 2, "trees": 6, "epochs": 1},
    "fedga": {"generations": 2, "population": 4, "max_depth": 2, "folds": 2},
    "dp_tree": {"epsilon": 20.0, "depth": 2},
}


def finished(folder: Path, strategy: str, task: str = "binary", **settings: Any) -> Path:
    """Run a job in this process and write its run folder."""
    own = {**JOBS.get(strategy, {}), **settings}
    job = hedgerow.Job(strategy, task=task, seed=3, min_silos=3, **own)
    tables = {f"s{k}": people(150, k, task) for k in range(3)}
    rows = {name: table_of(job.parameters, name, table) for name, table in tables.items()}
    test = table_of(job.parameters, "test", people(80, 9, task))
    federate(job, rows, PLAIN, test).write(folder)
    return folder


def opened(folder: Path, strategy: str) -> hedgerow.Model:
    return hedgerow.load(folder, "s1" if strategy == "fedga" else "")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", JOBS)
def test_every_strategys_model_predicts_and_explains_as_the_command_does(
    strategy: str, tmp_path: Path
) -> None:
    run = finished(tmp_path / "run", strategy)
    model = opened(run, strategy)
    new = people(60, 20)
    pq.write_table(pa.table(new), tmp_path / "new.parquet")
    silo = ["--silo", "s1"] if strategy == "fedga" else []
    out = tmp_path / "scores.parquet"
    said = CliRunner().invoke(
        predict, [str(run), str(tmp_path / "new.parquet"), "--out", str(out), *silo]
    )
    assert said.exit_code == 0, said.output
    scores = pq.read_table(out)
    # Columns in another order, without the label and with one that is not known.
    frame = pl.DataFrame({"other": np.zeros(60), **{k: new[k] for k in ("site", "dose", "age")}})
    found = model.predict_proba(frame)
    assert found.columns == ["no", "yes"]
    np.testing.assert_allclose(found["yes"], scores.column("probability").to_numpy(), rtol=1e-6)
    assert model.predict(pd.DataFrame(new)).tolist() == scores.column("prediction").to_pylist()

    model.save(tmp_path / "kept")
    owner = "s1" if strategy == "fedga" else ""
    for again in (hedgerow.load(tmp_path / "kept", owner), pickle.loads(pickle.dumps(model))):
        assert again.predict_proba(frame)["yes"].tolist() == found["yes"].tolist()
        assert again.predict(frame).tolist() == model.predict(frame).tolist()
    with pytest.raises(hedgerow.FederationError, match="give --overwrite"):
        model.save(run)
    if strategy == "bagging":
        model.save(tmp_path / "m.ubj")
        with pytest.raises(hedgerow.FederationError, match="overwrite=True replaces it"):
            model.save(tmp_path / "m.ubj")
        model.save(tmp_path / "m.ubj", overwrite=True)
    sure = model.predict(new, threshold=0.9)
    assert sure.tolist() == np.where(found["yes"] >= 0.9, "yes", "no").tolist()
    right = np.mean(model.predict(new) == new["label"])
    assert model.score(new) == pytest.approx(right)
    assert model.evaluate(new, ["accuracy_score", "logloss"])["accuracy"] == pytest.approx(right)

    values = model.shap(frame)
    assert values.shape == (60, 4)
    margins = model.margins(model.rows(frame))
    np.testing.assert_allclose(values.sum(axis=1), margins, atol=1e-4)
    table = model.trees()
    assert len(table) == sum(tree.n_nodes for tree in model.ensemble.trees)
    assert set(model.importance()["feature"]) <= {"age", "site", "dose"}
    assert model.plot_tree(0)._repr_svg_().startswith("<svg")
    assert strategy in model._repr_html_()
    if model.is_stock:
        assert model.to_xgboost().num_boosted_rounds() > 0
    else:
        with pytest.raises(ModelUnusable, match="a network combines"):
            model.to_xgboost()


def expected_margin(tree: Tree, row: np.ndarray[Any, Any], known: set[int], node: int = 0) -> float:
    """Return a tree's mean output where only some features are known, by the covers of nodes."""
    left, right = int(tree.left[node]), int(tree.right[node])
    if left < 0:
        return float(tree.threshold[node])
    feature = int(tree.feature[node])
    if feature in known:
        value, away = row[feature], dict(tree.categories).get(node)
        goes_left = value < tree.threshold[node] if away is None else value not in away
        if math.isnan(value):
            goes_left = bool(tree.default_left[node])
        return expected_margin(tree, row, known, left if goes_left else right)
    parts = [expected_margin(tree, row, known, child) for child in (left, right)]
    return float(np.average(parts, weights=[rows_of(tree, child) for child in (left, right)]))


def rows_of(tree: Tree, node: int) -> float:
    """Return the cover of the leaves below a node."""
    if tree.left[node] < 0:
        return float(tree.cover[node])
    return sum(rows_of(tree, int(child)) for child in (tree.left[node], tree.right[node]))


@pytest.mark.parametrize("strategy", ["fedga", "dp_tree", "bagging"])
def test_shapley_values_are_exact_over_all_subsets_of_features(
    strategy: str, tmp_path: Path
) -> None:
    settings = {"scrub": "none"} if strategy == "bagging" else {}
    model = opened(finished(tmp_path, strategy, **settings), strategy)
    table = people(12, 30)
    rows, values = model.rows(table).X, model.shap(table)
    for row, found in zip(rows, values, strict=True):
        for feature in range(3):
            others = [k for k in range(3) if k != feature]
            expected = 0.0
            for size in range(3):
                weight = math.factorial(size) * math.factorial(2 - size) / math.factorial(3)
                for known in itertools.combinations(others, size):
                    for tree in model.ensemble.trees:
                        with_it = expected_margin(tree, row, {*known, feature})
                        expected += weight * (with_it - expected_margin(tree, row, set(known)))
            assert found[feature] == pytest.approx(expected, abs=1e-4)


def test_without_covers_the_background_is_counted(tmp_path: Path) -> None:
    model = hedgerow.load(finished(tmp_path, "bagging"))
    bare = model.ensemble.scrubbed()
    object.__setattr__(model, "ensemble", bare)
    table, background = people(20, 1), people(300, 2)
    values = model.shap(table, background)
    np.testing.assert_allclose(values.sum(1), model.margins(model.rows(table)), atol=1e-4)
    bias = model.margins(model.rows(background)).mean()
    assert values[0, -1] == pytest.approx(bias, abs=0.02)
    assert np.isfinite(model.shap(table)).all()


def test_several_classes_have_values_and_names_each(tmp_path: Path) -> None:
    model = hedgerow.load(finished(tmp_path, "bagging", "multiclass", metrics=["mlogloss"]))
    table = people(10, 5)
    assert model.predict_proba(table).columns == ["low", "mid", "top"]
    assert set(model.predict(table)) <= {"low", "mid", "top"}
    assert model.shap(table).shape == (10, 3, 4)
    regression = hedgerow.load(
        finished(tmp_path / "r", "bagging", "regression", metrics=["rmse"], lr_mode="plain")
    )
    assert regression.predict(table).dtype == np.float64
    with pytest.raises(ModelUnusable, match="no probabilities"):
        regression.predict_proba(table)


def test_nodes_have_names_of_columns_and_categories(tmp_path: Path) -> None:
    rows = hedgerow.load(finished(tmp_path, "bagging")).trees().rows()
    texts = [row for row in rows if row["feature"] == "site"]
    assert texts
    for row in texts:
        assert set(row["categories"]) <= {"harbour", "hill", "mill", "moor"}
        assert row["threshold"] is None
    leaves = [row for row in rows if row["feature"] is None]
    assert all(row["value"] is not None and row["yes"] is None for row in leaves)


def test_a_vertical_runs_parts_are_one_model_where_all_are_there(tmp_path: Path) -> None:
    whole = people(200, 0)
    ids = [f"id{k}" for k in range(200)]
    bank = {"_id": ids, "age": whole["age"], "label": whole["label"]}
    insurer = {"_id": ids[::-1], "site": whole["site"][::-1], "dose": whole["dose"][::-1]}
    job = hedgerow.Job("secureboost", active="bank", rounds=2, max_depth=2, min_silos=2, min_leaf=1)
    tables = {"bank": bank, "insurer": insurer}
    rows = {name: table_of(job.parameters, name, table) for name, table in tables.items()}
    result = federate(job, rows, PLAIN, tests=rows)
    result.write(tmp_path)
    model = hedgerow.load(tmp_path)
    apart = model.predict_proba({"bank": pd.DataFrame(bank), "insurer": pl.DataFrame(insurer)})
    together = model.predict_proba(whole)
    np.testing.assert_array_equal(np.asarray(apart), np.asarray(together))
    right = np.mean(model.predict(whole) == whole["label"])
    reported = result.view.rounds[-1].metrics["test"]
    assert right > 0.75
    logloss = -np.mean(np.log(np.where(whole["label"] == "yes", together["yes"], together["no"])))
    assert reported["logloss"] == pytest.approx(logloss, abs=1e-5)
    assert set(model.importance()["feature"]) <= {"age", "site", "dose"}
    np.testing.assert_allclose(
        model.shap(whole).sum(1), model.margins(model.rows(whole)), atol=1e-4
    )
    own = {"cust": bank.pop("_id"), **bank}
    ids, tables = {"bank": "cust"}, {"bank": own, "insurer": insurer}
    np.testing.assert_array_equal(np.asarray(model.predict_proba(tables, ids=ids)), together)
    assert model.predict(tables, ids=ids).tolist() == model.predict(whole).tolist()
    assert model.evaluate(tables, ["logloss"], ids=ids)["logloss"] == pytest.approx(logloss)
    assert model.score(tables, ids=ids) == pytest.approx(right)
    assert (model.shap(tables, ids=ids) == model.shap(whole)).all()
    with pytest.raises(DataError, match="ids: expected parties of bank, insurer, received banks"):
        model.predict(tables, ids={"banks": "cust"})
    with pytest.raises(DataError, match="no tables by party are there, received bank"):
        model.predict(pd.DataFrame(whole), ids=ids)
    (tmp_path / "silos/insurer/part.json").unlink()
    with pytest.raises(ModelUnusable, match="part of party insurer is not there"):
        hedgerow.load(tmp_path)


def test_rows_bring_their_base_margins_to_a_vertical_model(tmp_path: Path) -> None:
    whole = people(200, 0)
    ids, margin = [f"id{k}" for k in range(200)], np.linspace(-2, 2, 200)
    bank = {"_id": ids, "age": whole["age"], "label": whole["label"], "prior": margin}
    insurer = {"_id": ids, "site": whole["site"], "dose": whole["dose"]}
    job = hedgerow.Job(
        "secureboost", active="bank", rounds=2, max_depth=2, min_silos=2, base_margin=["prior"]
    )
    rows = {
        name: table_of(job.parameters, name, table)
        for name, table in {"bank": bank, "insurer": insurer}.items()
    }
    result = federate(job, rows, PLAIN, tests=rows)
    result.write(tmp_path)
    model = hedgerow.load(tmp_path)
    assert model.base_margins == ("prior",)
    together = {**whole, "prior": margin}
    found = model.predict_proba({"bank": pd.DataFrame(bank), "insurer": pd.DataFrame(insurer)})
    logloss = -np.mean(np.log(np.where(whole["label"] == "yes", found["yes"], found["no"])))
    assert result.view.rounds[-1].metrics["test"]["logloss"] == pytest.approx(logloss, abs=1e-5)
    np.testing.assert_allclose(
        model.shap(together).sum(1), model.margins(model.rows(together)), atol=1e-4
    )
    with pytest.raises(DataError, match="there is no base margin 'prior'"):
        model.predict(whole)


def test_what_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", "fedga")
    with pytest.raises(ModelUnusable, match="say whose: s0, s1, s2"):
        hedgerow.load(run)
    assert set(hedgerow.Run(run).models) == {"s0", "s1", "s2"}
    deep = tmp_path / "deep"
    deep.mkdir()
    (deep / "report.json").write_text("[" * 99999)
    with pytest.raises(ModelUnusable, match=r"report.json cannot be read"):
        hedgerow.load(deep)
    with pytest.raises(ModelUnusable, match="is no run folder"):
        hedgerow.load(tmp_path)
    model = hedgerow.load(run, "s0")
    with pytest.raises(DataError, match="there is no feature 'dose'"):
        model.predict({"age": [1.0], "site": ["hill"]})
    report = json.loads((run / "report.json").read_text())
    assert report["strategy"] == "fedga"


@pytest.mark.process
@pytest.mark.parametrize("flags", [False, True])
def test_codes_that_were_categories_of_a_frame_score_as_plain_numbers_too(
    tmp_path: Path, flags: bool
) -> None:
    rng = np.random.default_rng(0)
    ward = rng.integers(0, 2, 300) > 0 if flags else rng.integers(0, 5, 300)
    plain = pd.DataFrame({"a": rng.normal(size=300), "ward": ward, "label": ward % 2 == 1})
    coded = plain.assign(ward=pd.Categorical(ward))
    job = hedgerow.Job("histogram", rounds=2, secure=False)
    model = hedgerow.simulate(job, coded, 2, test=0.0).model
    assert model.schema is not None
    assert model.schema.features[1].is_categorical
    wanted = np.asarray(model.predict_proba(coded))
    coded.to_parquet(tmp_path / "coded.parquet")
    plain.to_csv(tmp_path / "plain.csv", index=False)
    for table in (plain, tmp_path / "coded.parquet", tmp_path / "plain.csv"):
        np.testing.assert_array_equal(np.asarray(model.predict_proba(table)), wanted)
    assert model.score(plain) == model.score(coded) == 1.0
    with pytest.raises(DataError, match="column 'ward': expected text or whole numbers"):
        model.predict(plain.assign(ward=0.5))
