import json
import math
import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import xgboost as xgb
from click.testing import CliRunner

import hedgerow
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import DataWarning
from hedgerow.boosting.tables import to_dataset
from hedgerow.coordinator.operator.commands.predict import evaluate, predict
from hedgerow.services.wire import schema as schema_wire
from tests.late import Late
from tests.oracles import PLAIN_TASKS

oracle: Any = Late("sklearn.metrics")

N = 400


def rows(task, seed=0, n=N):
    rng = np.random.default_rng(seed)
    x, c = rng.normal(size=n), rng.integers(0, 4, n)
    signal = x + (c == 2) + rng.normal(0, 0.5, n)
    names = np.array(["red", "green", "blue", "teal"])
    label = {
        Task.BINARY: (signal > 0.3).astype(int),
        Task.MULTICLASS: np.array(["low", "mid", "top"])[np.digitize(signal, [-0.5, 0.8])],
        Task.REGRESSION: signal,
    }[task]
    columns = {"x": x, "colour": names[c], "_id": [f"r{k}" for k in range(n)], "label": label}
    return pa.table(columns)


OBJECTIVES = {
    Task.BINARY: "binary:logistic",
    Task.MULTICLASS: "multi:softprob",
    Task.REGRESSION: "reg:squarederror",
}


def make_run(folder, task, strategy="bagging"):
    """A run folder as the coordinator leaves it, around a model that XGBoost has trained."""
    data = to_dataset(rows(task), "t", task=task, label="label")
    matrix = xgb.DMatrix(
        data.X,
        data.y,
        feature_names=list(data.schema.names),
        feature_types=data.schema.feature_types,
        enable_categorical=True,
    )
    parameters = {"objective": OBJECTIVES[task], "max_depth": 3, "nthread": 1}
    if task is Task.MULTICLASS:
        parameters["num_class"] = 3
    booster = xgb.train(parameters, matrix, 8)
    folder.mkdir()
    booster.save_model(folder / "model.ubj")
    (folder / "schema.json").write_bytes(schema_wire.dump(data.schema))
    (folder / "job.toml").write_text(f'strategy = "{strategy}"\ntask = "{task.value}"\n')
    report = {"strategy": strategy, "model": "model.ubj", "artefacts": ["model.ubj"]}
    (folder / "report.json").write_text(json.dumps(report))
    return booster, data.schema


@pytest.fixture(params=PLAIN_TASKS)
def run(request, tmp_path):
    booster, schema = make_run(tmp_path / "run", request.param)
    table = rows(request.param, seed=1)
    # other order, other columns, a category that no silo had
    colours = table["colour"].to_pylist()
    colours[0] = "mauve"
    table = table.set_column(1, "colour", [colours]).append_column("more", [np.zeros(N)])
    table = table.select(["more", "label", "colour", "_id", "x"])
    pq.write_table(table, tmp_path / "new.parquet")
    codes = {name: code for code, name in enumerate(schema.features[1].categories)}
    X = np.array([table["x"].to_pylist(), [codes.get(c, np.nan) for c in colours]]).T
    expected = booster.predict(
        xgb.DMatrix(
            X, feature_names=["x", "colour"], feature_types=["q", "c"], enable_categorical=True
        )
    )
    return request.param, tmp_path, table, expected


def call(command, *arguments, code=0):
    result = CliRunner().invoke(command, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output if code else result.stdout


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_predictions_are_those_of_stock_xgboost_row_by_row(run, ending):
    task, folder, table, expected = run
    out = folder / f"p.{ending}"
    call(predict, folder / "run", folder / "new.parquet", "--out", out)
    made = pa.csv.read_csv(out) if ending == "csv" else pq.read_table(out)
    assert made["_id"].to_pylist() == table["_id"].to_pylist()
    if task is Task.REGRESSION:
        assert made.column_names == ["_id", "prediction"]
        np.testing.assert_allclose(made["prediction"], expected, rtol=1e-5)
    elif task is Task.BINARY:
        names = ["_id", "prediction", "probability", "probability_0", "probability_1"]
        assert made.column_names == names
        np.testing.assert_allclose(made["probability"], expected, rtol=1e-5)
        np.testing.assert_allclose(made["probability_0"], 1 - expected, atol=1e-6)
        assert made["prediction"].to_pylist() == (expected >= 0.5).astype(int).tolist()
    else:
        names = ["low", "mid", "top"]
        for k, name in enumerate(names):
            np.testing.assert_allclose(made[f"probability_{name}"], expected[:, k], rtol=1e-4)
        assert made["prediction"].to_pylist() == [names[k] for k in expected.argmax(axis=1)]


def test_a_csv_keeps_columns_of_all_types(run, tmp_path):
    _, folder, table, _ = run
    n = table.num_rows
    more = {
        "_id": pa.array([f"={k}" for k in range(n)], pa.large_string()),
        "note": pa.array(["-x", None] * n, pa.large_string())[:n],
        "wait": pa.array(np.arange(n) * 1500, pa.duration("ms")),
        "many": pa.array([[1]] * n),
    }
    wide = pa.table({k: more.get(k, table[k]) for k in table.column_names} | more)
    pq.write_table(wide, tmp_path / "wide.parquet")
    words = [predict, folder / "run", tmp_path / "wide.parquet", "--out", tmp_path / "p.csv"]
    call(*words, "--keep", "note,wait")
    made = pa.csv.read_csv(tmp_path / "p.csv")
    assert made["_id"].to_pylist() == [f"'={k}" for k in range(n)]
    assert set(made["note"].to_pylist()) == {"'-x", ""}
    np.testing.assert_array_equal(made["wait"], np.arange(n) * 1.5)
    assert "column 'many' has type list" in call(*words, "--keep", "many", code=2)


def test_columns_are_kept_and_a_threshold_decides(run):
    task, folder, table, _ = run
    out = folder / "p.parquet"
    words = [predict, folder / "run", folder / "new.parquet", "--out", out]
    call(*words, "--keep", "more,colour")
    made = pq.read_table(out)
    assert made.column_names[:4] == ["_id", "more", "colour", "prediction"]
    assert made["colour"].to_pylist() == table["colour"].to_pylist()
    assert "there is no column 'colur'; did you mean colour" in call(
        *words, "--keep", "colur", code=2
    )
    assert "have a column '_id' of their own" in call(*words, "--keep", "_id", code=2)
    if task is not Task.BINARY:
        assert f"a {task.value} model has none" in call(*words, "--threshold", "0.9", code=2)
        return
    call(*words, "--threshold", "0.9")
    made = pq.read_table(out)
    sure = made["probability"].to_numpy() >= 0.9
    assert made["prediction"].to_pylist() == sure.astype(int).tolist()


def test_categories_that_the_model_does_not_know_are_told_with_their_rows(run):
    """A column that is spelt otherwise than in training would else score as if it were empty."""
    _, folder, table, _ = run
    known = CliRunner().invoke(
        predict, [str(folder / "run"), str(folder / "new.parquet"), "--out", str(folder / "p.csv")]
    )
    said = (
        "new.parquet: column 'colour': 1 of 400 rows have a category that the model does not know"
    )
    assert known.stderr == f"warning: {said}, taken as missing\n"
    model = hedgerow.load(folder / "run")
    upper = [c.upper() for c in table["colour"].to_pylist()]
    with pytest.warns(DataWarning, match=r"'colour': 400 of 400 rows have a category"):
        model.predict(table.set_column(2, "colour", [upper]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(rows(Task.REGRESSION, seed=1))


def test_evaluation_equals_scikit_learn(run):
    task, folder, table, expected = run
    told = json.loads(call(evaluate, folder / "run", folder / "new.parquet", "--json"))
    assert told["rows"] == N
    label = np.array(table["label"].to_pylist())
    if task is Task.REGRESSION:
        right = {
            "rmse": oracle.root_mean_squared_error(label, expected),
            "r2": oracle.r2_score(label, expected),
        }
    elif task is Task.BINARY:
        right = {
            "auc": oracle.roc_auc_score(label, expected),
            "logloss": oracle.log_loss(label, expected),
        }
    else:
        right = {
            "merror": 1
            - oracle.accuracy_score(
                label, np.array(["low", "mid", "top"])[expected.argmax(axis=1)]
            ),
            "mlogloss": oracle.log_loss(label, expected),
        }
    assert told["metrics"] == pytest.approx(right, rel=1e-4)
    assert f"{N} rows" in call(evaluate, folder / "run", folder / "new.parquet")


def test_metrics_can_be_chosen_and_an_undefined_one_is_null_and_an_error(tmp_path):
    make_run(tmp_path / "run", Task.BINARY)
    table = rows(Task.BINARY, 2)
    ones = table.filter(pa.array(table["label"].to_numpy() == 1))
    pq.write_table(ones, tmp_path / "ones.parquet")
    given = (evaluate, tmp_path / "run", tmp_path / "ones.parquet", "--metrics")
    told, error = map(json.loads, call(*given, "auc, f1", "--json", code=2).splitlines())
    assert error == {
        "error": "auc of ones.parquet is not defined: all of its rows are of one class"
    }
    assert list(told["metrics"]) == ["auc", "f1"]
    assert told["metrics"]["auc"] is None
    assert not math.isnan(told["metrics"]["f1"])
    shown = call(*given, "auc", code=2)
    assert "not defined" in shown


def test_a_stock_model_file_of_any_origin_is_scored(tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 3)), rng.integers(0, 2, 200)
    booster = xgb.train({"objective": "binary:logistic", "nthread": 1}, xgb.DMatrix(X, y), 5)
    for name in ("m.ubj", "m.json"):
        booster.save_model(tmp_path / name)
        pq.write_table(
            pa.table({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "label": y}), tmp_path / "d.parquet"
        )
        told = json.loads(call(evaluate, tmp_path / name, tmp_path / "d.parquet", "--json"))
        right = oracle.roc_auc_score(y, booster.predict(xgb.DMatrix(X)))
        assert told["metrics"]["auc"] == pytest.approx(right, abs=1e-9)
    pq.write_table(pa.table({"a": X[:, 0], "label": y}), tmp_path / "narrow.parquet")
    assert "the model has 3 features, the table 1" in call(
        evaluate, tmp_path / "m.ubj", tmp_path / "narrow.parquet", code=2
    )


def test_a_bare_model_cannot_guess_categories(tmp_path):
    make_run(tmp_path / "run", Task.BINARY)
    (tmp_path / "run" / "schema.json").unlink()
    pq.write_table(rows(Task.BINARY), tmp_path / "d.parquet")
    told = call(evaluate, tmp_path / "run" / "model.ubj", tmp_path / "d.parquet", code=2)
    assert "column 'colour' has text" in told
    assert "schema.json" in told


def test_a_sparse_table_has_the_features_it_does_not_mention(tmp_path):
    X, y = np.eye(4), np.array([0.0, 1.0, 0.0, 1.0])
    matrix = xgb.DMatrix(X, y, feature_names=["f1", "f2", "f3", "f4"])
    xgb.train({"nthread": 1}, matrix, 2).save_model(tmp_path / "m.ubj")
    (tmp_path / "d.libsvm").write_text("0 1:1\n1 2:1\n")
    assert (
        json.loads(call(evaluate, tmp_path / "m.ubj", tmp_path / "d.libsvm", "--json"))["rows"] == 2
    )


def test_an_empty_table_gets_an_empty_prediction_and_no_evaluation(tmp_path):
    make_run(tmp_path / "run", Task.MULTICLASS)
    pq.write_table(rows(Task.MULTICLASS).slice(0, 0), tmp_path / "d.parquet")
    call(predict, tmp_path / "run", tmp_path / "d.parquet", "--out", tmp_path / "p.parquet")
    assert pq.read_table(tmp_path / "p.parquet").num_rows == 0
    assert "no rows" in call(evaluate, tmp_path / "run", tmp_path / "d.parquet", code=2)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: (run / "report.json").unlink(), "no report.json"),
        (lambda run: (run / "report.json").write_text("{"), "report.json cannot be read"),
        (lambda run: (run / "model.ubj").unlink(), "model.ubj cannot be read: No such file"),
        (lambda run: (run / "model.ubj").write_bytes(b"{L\x7f\xff"), "no XGBoost model of trees"),
        (lambda run: (run / "model.ubj").write_bytes(b""), "no XGBoost model of trees"),
        (lambda run: (run / "schema.json").write_text("{"), "schema.json: not a schema file"),
        (lambda run: (run / "job.toml").write_text("sed = 1"), "unknown key sed"),
        (
            lambda run: (run / "report.json").write_text(
                '{"strategy": "bagging", "model": "", "state": "FAILED"}'
            ),
            "ended without a model (FAILED)",
        ),
    ],
)
def test_a_spoilt_run_folder_is_told_in_one_line_with_code_2(tmp_path, spoil, message):
    make_run(tmp_path / "run", Task.BINARY)
    pq.write_table(rows(Task.BINARY), tmp_path / "d.parquet")
    spoil(tmp_path / "run")
    told = call(evaluate, tmp_path / "run", tmp_path / "d.parquet", code=2)
    assert message in " ".join(told.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none", "d.parquet"], "no such run folder or model file"),
        (["run", "none.parquet"], "none.parquet: there is no such file"),
        (["run", "d.parquet", "--metrics", "acc"], "no metric 'acc'; did you mean"),
        (["run", "d.parquet", "--metrics", "rmse"], "does not suit a binary job"),
        (["run", "d.parquet", "--label", "lable"], "no label column 'lable'; did you mean 'label'"),
        (["run", "wrong.parquet"], "no feature 'colour'; did you mean 'color'"),
    ],
)
def test_bad_use_is_told_in_one_line_with_code_2(tmp_path, monkeypatch, arguments, message):
    make_run(tmp_path / "run", Task.BINARY)
    table = rows(Task.BINARY)
    pq.write_table(table, tmp_path / "d.parquet")
    pq.write_table(table.rename_columns(["x", "color", "_id", "label"]), tmp_path / "wrong.parquet")
    monkeypatch.chdir(tmp_path)
    assert message in " ".join(call(evaluate, *arguments, code=2).split())


def test_predictions_go_to_csv_or_parquet_only(tmp_path):
    make_run(tmp_path / "run", Task.BINARY)
    told = call(predict, tmp_path / "run", "d.parquet", "--out", tmp_path / "p.xlsx", code=2)
    assert "the ending should be .csv or .parquet" in told


@pytest.fixture(params=[Task.BINARY, Task.MULTICLASS])
def own_models(request, tmp_path):
    """The run folder of a job that leaves each silo a model of its own."""
    task = request.param
    booster, schema = make_run(tmp_path / "run", task, "fedga")
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    report |= {"model": "structures.json", "artefacts": ["structures.json", "schema.json"]}
    (tmp_path / "run" / "report.json").write_text(json.dumps(report))
    for n_trees, silo in ((2, "north"), (8, "south")):
        (tmp_path / "run" / "silos" / silo).mkdir(parents=True)
        booster[:n_trees].save_model(tmp_path / "run" / "silos" / silo / "model.ubj")
        (tmp_path / "run" / "silos" / silo / "schema.json").write_bytes(schema_wire.dump(schema))
    (tmp_path / "run" / "model.ubj").unlink()
    pq.write_table(rows(task, 5), tmp_path / "new.parquet")
    return tmp_path / "run", tmp_path / "new.parquet"


def test_each_silos_own_model_is_evaluated_and_their_mean(own_models):
    run, new = own_models
    told = json.loads(call(evaluate, run, new, "--metrics", "f1,accuracy", "--json"))
    assert set(told["silos"]) == {"north", "south"}
    for silo, scores in told["silos"].items():
        alone = json.loads(
            call(evaluate, run, new, "--metrics", "f1,accuracy", "--json", "--silo", silo)
        )
        model = run / "silos" / silo / "model.ubj"
        stock = json.loads(call(evaluate, model, new, "--metrics", "f1,accuracy", "--json"))
        assert alone["metrics"] == stock["metrics"] == scores
    mean = np.mean([scores["f1"] for scores in told["silos"].values()])
    assert told["metrics"]["f1"] == pytest.approx(mean)
    shown = call(evaluate, run, new)
    assert all(word in shown for word in ("north", "south", "mean"))


def test_each_silos_own_model_predicts_in_columns_under_its_name(own_models):
    run, new = own_models
    call(predict, run, new, "--out", new.parent / "all.parquet")
    together = pq.read_table(new.parent / "all.parquet")
    width = 0
    for silo in ("north", "south"):
        call(predict, run, new, "--silo", silo, "--out", new.parent / "one.parquet")
        alone = pq.read_table(new.parent / "one.parquet")
        assert alone["_id"].equals(together["_id"])
        for name in alone.column_names[1:]:
            kind, _, rest = name.partition("_")
            column = f"{kind}_{silo}_{rest}" if rest else f"{kind}_{silo}"
            assert together[column].equals(alone[name])
            width += 1
    assert len(together.column_names) == width + 1
    assert not together["prediction_north"].equals(together["prediction_south"])


def test_a_silo_without_a_model_is_told_with_those_that_have_one(own_models):
    run, new = own_models
    told = " ".join(call(evaluate, run, new, "--silo", "west", code=2).split())
    assert "no model of silo west; there are those of north, south" in told


def test_a_run_whose_models_stay_in_the_silos_says_where_to_score(own_models):
    run, new = own_models
    for model in run.glob("silos/*/model.ubj"):
        model.unlink()
    told = " ".join(call(evaluate, run, new, code=2).split())
    assert "the models of strategy fedga stay in the silos" in told


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.8, 1.0])
def test_a_threshold_of_evaluate_decides_as_that_of_predict(tmp_path, threshold):
    make_run(tmp_path / "run", Task.BINARY)
    table = rows(Task.BINARY, seed=1)
    pq.write_table(table, tmp_path / "new.parquet")
    run = hedgerow.load(tmp_path / "run")
    decided = run.predict(tmp_path / "new.parquet", threshold=threshold)
    truth, names = table.column("label").to_numpy(), "f1,accuracy,recall,auc"
    asked = [str(tmp_path / "run"), str(tmp_path / "new.parquet"), "--metrics", names, "--json"]
    told = CliRunner().invoke(evaluate, [*asked, "--threshold", str(threshold)])
    assert told.exit_code == 0, told.output
    found = json.loads(told.output)["metrics"]
    whole = run.evaluate(tmp_path / "new.parquet", names.split(","))
    assert found == run.evaluate(tmp_path / "new.parquet", names.split(","), threshold=threshold)
    assert found["f1"] == pytest.approx(oracle.f1_score(truth, decided, zero_division=0))
    assert found["accuracy"] == pytest.approx(np.mean(truth == decided))
    assert found["recall"] == pytest.approx(oracle.recall_score(truth, decided))
    assert found["auc"] == whole["auc"]  # a rank has no threshold
    assert (found == whole) == (threshold == 0.5)


def test_a_threshold_is_refused_where_there_is_none(tmp_path):
    make_run(tmp_path / "run", Task.MULTICLASS)
    pq.write_table(rows(Task.MULTICLASS), tmp_path / "new.parquet")
    asked = [str(tmp_path / "run"), str(tmp_path / "new.parquet"), "--threshold"]
    told = CliRunner().invoke(evaluate, [*asked, "0.3"])
    assert told.exit_code
    assert "threshold: a multiclass model has none" in str(told.exception) + told.output
    assert CliRunner().invoke(evaluate, [*asked, "1.5"]).exit_code == 2
