"""``hedgerow.mlflow``: runs in MLflow's own store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hedgerow
from tests.coordinator.operator.library.tables import people
from tests.late import Late

mlflow: Any = Late("mlflow")
tracking: Any = Late("hedgerow.mlflow")
pd: Any = Late("pandas")

pytestmark = pytest.mark.process  # MLflow starts threads, and Git


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A store in SQLite, without the server in front of it."""
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'store.db'}")
    mlflow.create_experiment("adult", artifact_location=(tmp_path / "files").as_uri())
    yield mlflow.MlflowClient()
    mlflow.set_tracking_uri(None)


def _numbers(seed: int) -> dict[str, Any]:
    table = people(120, seed)
    return {"age": table["age"], "dose": table["dose"], "label": table["label"]}


def test_a_run_has_parameters_rounds_bytes_files_and_a_model(store: Any) -> None:
    job = hedgerow.Job("bagging", rounds=3, eta=0.2, max_depth=3, name="people")
    run = hedgerow.simulate(job, _numbers(0), 3)
    run_id = tracking.log_run(run, experiment="adult")
    assert mlflow.active_run() is None
    found = store.get_run(run_id)
    assert found.info.run_name == "people"
    assert found.data.params["booster.eta"] == "0.2"
    assert found.data.params["bagging.rounds"] == "3"
    assert found.data.tags["hedgerow.state"] == "SUCCEEDED"
    for name in ("test.auc", "test.logloss", "bytes_up", "bytes_down"):
        told = store.get_metric_history(run_id, name)
        assert [one.step for one in told] == [1, 2, 3]
        assert [one.value for one in told] == pytest.approx(run.metrics[name].tolist())
    assert found.data.metrics["total_bytes_up"] == run.document["bytes"]["up"]
    files = {one.path for one in store.list_artifacts(run_id)}
    assert {"job.toml", "model.ubj", "schema.json", "report.json", "evaluation.json"} <= files
    assert not any(name.startswith(("silos", "ledger", "logs")) for name in files)
    [logged] = mlflow.search_logged_models(
        [found.info.experiment_id],
        filter_string=f"source_run_id = '{run_id}'",
        output_format="list",
    )
    model = mlflow.pyfunc.load_model(logged.model_uri)
    assert model.metadata.signature.inputs.input_names() == ["age", "dose"]
    rows = pd.DataFrame(_numbers(5)).drop(columns="label")
    expected = np.asarray(run.model.predict_proba(rows))[:, 1]
    np.testing.assert_allclose(model.predict(rows), expected, rtol=1e-6)
    booster = mlflow.xgboost.load_model(logged.model_uri)
    assert booster.save_raw() == run.model.to_xgboost().save_raw()


def test_parts_of_a_vertical_model_stay_and_an_active_run_is_used(store: Any) -> None:
    table = {**people(200, 2), "_id": np.arange(200)}
    job = hedgerow.Job("secureboost", active="bank", rounds=1, max_depth=2)
    run = hedgerow.simulate(job, table, parties="bank:label,age;insurer:site,dose", crypto=False)
    mlflow.set_experiment("adult")
    with mlflow.start_run() as started:
        assert tracking.log_run(run) == started.info.run_id
        assert mlflow.active_run() is not None
    found = store.get_run(started.info.run_id)
    assert found.data.params["secureboost.active"] == "bank"
    files = {one.path for one in store.list_artifacts(started.info.run_id)}
    assert "report.json" in files
    assert not [name for name in files if "part" in name or "silos" in name]


def test_every_run_is_logged_until_that_is_ended(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow.set_experiment("adult")
    experiment = store.get_experiment_by_name("adult").experiment_id
    job = hedgerow.Job("bagging", rounds=1, name="people")

    def logged() -> list[str]:
        return [found.info.run_name for found in store.search_runs([experiment])]

    tracking.autolog()
    tracking.autolog()  # twice is once
    hedgerow.simulate(job, _numbers(0), 3)
    assert logged() == ["people"]
    with monkeypatch.context() as away:
        away.setattr("mlflow.start_run", lambda **_: 1 / 0)
        with pytest.warns(UserWarning, match="MLflow has not logged people .ZeroDivisionError"):
            assert hedgerow.simulate(job, _numbers(0), 3).state == "SUCCEEDED"
    tracking.autolog(disable=True)
    hedgerow.simulate(job, _numbers(0), 3)
    assert logged() == ["people"]
