"""A pandas index is no column: not a feature, in no door; only ``_id`` names rows."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import hedgerow
from hedgerow.client_agent.config import Source
from hedgerow.client_agent.sources import extent
from hedgerow.coordinator.cli import main
from hedgerow.coordinator.operator.library.frames import arrow_of
from hedgerow.sklearn import FederatedClassifier
from tests.late import Late

pd: Any = Late("pandas")

N = 300


def indexed(name: str | None, *, text: bool = True) -> Any:
    """A frame whose rows are named, in an order that tells the label."""
    rng = np.random.default_rng(0)
    label = np.sort(rng.integers(0, 2, N))
    frame = pd.DataFrame({"a": rng.normal(size=N), "b": rng.normal(size=N), "label": label})
    if text:
        frame["town"] = rng.choice(["x", "y", "z"], N)
    frame.index = np.arange(N) * 2 if name is None else [f"p{k:04}" for k in range(N)]
    frame.index.name = name
    return frame.sample(frac=1.0, random_state=1)


def of_arrow(frame: Any) -> Any:
    return pa.Table.from_pandas(frame)


def of_batch(frame: Any) -> Any:
    return pa.RecordBatch.from_pandas(frame)


@pytest.mark.parametrize("made", [lambda frame: frame, of_arrow, of_batch])
@pytest.mark.parametrize("name", [None, "patient", "a", "label"])
def test_no_table_of_a_frame_has_its_index(name: str | None, made: Callable[[Any], Any]) -> None:
    names = arrow_of(made(indexed(name)), "t").column_names
    assert names == ["a", "b", "label", "town"]


def test_several_indexes_are_none_and_one_named_id_names_rows() -> None:
    frame = indexed("patient").set_index("town", append=True)
    assert arrow_of(frame, "t").column_names == ["a", "b", "label"]
    named = indexed("_id").set_index("town", append=True)
    assert sorted(arrow_of(named, "t").column_names) == ["_id", "a", "b", "label"]


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("name", [None, "patient", "_id"])
def test_an_estimator_learns_the_same_with_any_index(name: str | None, text: bool) -> None:
    frame = indexed(name, text=text)
    plain = frame.reset_index(drop=True)
    fitted = []
    for own in (frame, plain):
        X = own.drop(columns="label")
        model = FederatedClassifier("bagging", rounds=2).fit(X, own["label"], silos=2)
        assert list(model.feature_names_in_) == list(X.columns)
        fitted.append(model.predict_proba(X))
    np.testing.assert_array_equal(*fitted)


@pytest.mark.parametrize("name", [None, "patient"])
def test_simulate_split_and_models_take_a_frame_without_its_index(name: str | None) -> None:
    frame = indexed(name)
    plain = frame.reset_index(drop=True)
    job = hedgerow.Job("bagging", label="label", rounds=2)
    run, same = (hedgerow.simulate(job, own, 2) for own in (frame, plain))
    assert list(run.model.names) == ["a", "b", "town"]
    for ask in ("predict_proba", "shap"):
        found = [getattr(one.model, ask)(own) for one, own in ((run, frame), (same, plain))]
        np.testing.assert_array_equal(*found)
    for piece in hedgerow.split(frame, 2, label="label").values():
        assert piece.column_names == ["a", "b", "label", "town"]
    plan = hedgerow.plan(job, {"north": frame, "south": frame})
    assert "patient" not in repr(plan)


@pytest.mark.process
def test_a_run_of_named_frames_has_no_name_of_a_row(tmp_path: Path) -> None:
    frame = indexed("patient")
    job = hedgerow.Job("bagging", label="label", rounds=1)
    tables = {"north": frame[:150], "south": frame[150:]}
    run = hedgerow.local(job, tables, out=tmp_path / "run", quiet=True)
    assert list(run.model.names) == ["a", "b", "town"]
    assert b"p0007" not in b"".join(one.read_bytes() for one in (tmp_path / "run").glob("*.*"))


def test_files_that_pandas_wrote_have_no_index(tmp_path: Path) -> None:
    frame, file, comma = indexed("patient"), tmp_path / "t.parquet", tmp_path / "t.csv"
    frame.to_parquet(file)
    assert "patient" in pq.read_schema(file).names
    assert len(extent(Source(path=str(file)))[1]) == 4
    indexed(None).to_csv(comma)
    for path in (file, comma):
        out = tmp_path / path.suffix[1:]
        words = ["split", str(path), "--out", str(out), "--silos", "2", "--label", "label"]
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
        done = CliRunner().invoke(main, ["check", str(path), "--label", "label", "--json"])
        assert done.exit_code == 0, done.output
        job = hedgerow.Job("bagging", label="label", rounds=1)
        run = hedgerow.simulate(job, path, 2)
        assert list(run.model.names) == ["a", "b", "town"]
    assert pq.read_schema(tmp_path / "parquet/silo-0.parquet").names == ["a", "b", "label", "town"]
    buffer = io.BytesIO()
    indexed("_id").to_parquet(buffer)
    pq.write_table(pq.read_table(buffer), tmp_path / "ids.parquet")
    assert len(extent(Source(path=str(tmp_path / "ids.parquet")))[1]) == 4
