"""``hedgerow.local``: processes of a federation, from Python."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import numpy as np
import pytest

import hedgerow
from hedgerow.boosting.errors import DataWarning, InvalidJob
from hedgerow.coordinator.operator.library import running
from tests.coordinator.operator.library.tables import people
from tests.federation import forked

SILOS = {f"s{k}": people(80, k) for k in range(3)}


@pytest.fixture(autouse=True)
def _interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start them as users do."""
    monkeypatch.setattr(running, "command_in_process", forked.in_interpreter)


@pytest.mark.process
def test_a_run_shows_itself_and_its_temporary_folder_goes_with_it(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as notebooks do
    job = hedgerow.Job("bagging", rounds=2, max_depth=2, min_silos=3, metrics=["auc"])
    run = hedgerow.local(job, SILOS, people(40, 9))
    said = capfd.readouterr().err
    assert "round   2/2" in said
    assert "waiting for silos" not in said  # a bar would be drawn anew on line after line
    assert run.state == "SUCCEEDED"
    assert run.metrics.columns == ["round", "seconds", "test.auc", "bytes_up", "bytes_down"]
    assert set(run.bytes["silo"]) == set(SILOS)
    # Bytes of trees depend on their size.
    assert set(run.plan["step"]) == {"ExchangeKeys", "ExchangeShares"}
    assert "succeeded: 2 rounds" in run.summary()
    assert "test.auc" in run._repr_html_()
    assert run.job.parameters.silos == ("s0", "s1", "s2")
    assert run.models == {}
    folder = run.folder
    del run
    gc.collect()
    assert not folder.exists()


@pytest.mark.process
def test_what_cannot_run_is_an_error_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match="min_silos: the job needs 5 silos and 3 are given"):
        hedgerow.local(hedgerow.Job("bagging", rounds=2, min_silos=5), SILOS)
    job = hedgerow.Job("bagging", rounds=2, label="labl", min_silos=3)
    silos = SILOS | {"s0": SILOS["s0"] | {"z": np.arange(80) + 2**60}}
    with (
        pytest.raises(hedgerow.RunFailed, match="there is no label column 'labl'") as failed,
        pytest.warns(DataWarning, match=r"^s0: column 'z': integers beyond 2\^53"),
    ):
        hedgerow.local(job, silos, out=tmp_path / "run", quiet=True)
    assert isinstance(failed.value, hedgerow.RunFailed)
    assert failed.value.run is not None
    assert failed.value.run.state == "FAILED"
    with pytest.raises(hedgerow.RunFailed, match="no file nowhere"):
        hedgerow.local(hedgerow.Job("bagging", rounds=2), {"a": "nowhere.parquet"}, quiet=True)


@pytest.mark.process
def test_hashes_of_rows_are_sent_on_this_machine_only_when_asked(tmp_path: Path) -> None:
    job = hedgerow.Job("simfl", rounds=2, max_depth=2, min_silos=3, metrics=["auc"])
    with pytest.raises(hedgerow.RunFailed, match="hashes' to may_send to allow it"):
        hedgerow.local(job, SILOS, out=tmp_path / "run", quiet=True)
    run = hedgerow.local(job, SILOS, out=tmp_path / "run", may_send=["hashes"], quiet=True)
    assert run.metrics["round"].tolist() == [1, 2]


def test_a_network_without_torch_is_refused_before_anything_trains(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # as where it is not installed
    job = hedgerow.Job("fedxgbllr", rounds=1, trees=3, combiner="cnn", min_silos=2, secure=False)
    with pytest.raises(InvalidJob, match=r"pip install hedgerow\[torch\], or choose combiner"):
        hedgerow.simulate(job, people(60, 1), 2, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.process
def test_a_watcher_is_told_each_round_and_may_stop_the_job() -> None:
    seen = []
    job = hedgerow.Job("bagging", rounds=3, max_depth=2, metrics=["auc"])
    run = hedgerow.local(job, SILOS, people(40, 9), quiet=True, watch=seen.append)
    assert [done.round + 1 for done in seen] == run.metrics["round"].tolist()
    assert [done.metrics["test"]["auc"] for done in seen] == run.metrics["test.auc"].tolist()
    assert [done.bytes_up for done in seen] == run.metrics["bytes_up"].tolist()
    assert {done.silos for done in seen} == {tuple(SILOS)}
    seen.clear()
    job = hedgerow.Job("bagging", rounds=5000, max_depth=2, metrics=["auc"])
    run = hedgerow.local(
        job, SILOS, people(40, 9), quiet=True,
        watch=lambda done: seen.append(done) or done.round == 1,  # type: ignore[func-returns-value]
    )  # fmt: skip
    assert [done.round for done in seen] == [0, 1]
    assert run.state == "CANCELLED"
    assert 2 <= len(run.metrics) < 5000
    with pytest.raises(hedgerow.FederationError, match=r"ended without a model \(CANCELLED\)"):
        _ = run.model
    with pytest.raises(ZeroDivisionError):
        hedgerow.local(job, SILOS, quiet=True, watch=lambda done: 1 // 0)


@pytest.mark.process
def test_silos_bring_validation_rows_of_their_own() -> None:
    job = hedgerow.Job("histogram", rounds=4, validation_tables=True, metrics=["logloss"])
    rows = {name: people(30 + 20 * k, 10 + k) for k, name in enumerate(SILOS)}
    run = hedgerow.local(job, SILOS, validation=rows, quiet=True)
    for data, silos in (("train", SILOS), ("valid", rows)):
        whole = {
            name: np.concatenate([own[name] for own in silos.values()]) for name in SILOS["s0"]
        }
        last = run.document["rounds"][-1]["metrics"][data]["logloss"]
        assert run.model.score(whole, "logloss") == pytest.approx(last, abs=2e-6)


@pytest.mark.process
def test_validation_tables_are_of_all_silos_of_a_job_that_has_them() -> None:
    job = hedgerow.Job("histogram", rounds=4, validation_tables=True)
    with pytest.raises(hedgerow.RunFailed, match="expected rows of each silo"):
        hedgerow.local(job, SILOS, validation={"s0": people(30, 1)}, quiet=True)
    with pytest.raises(hedgerow.RunFailed, match="only a job with validation_tables"):
        hedgerow.local(
            hedgerow.Job("histogram", rounds=4), SILOS, validation={"s0": people(30, 1)}, quiet=True
        )
    few = {name: people(5, 1) for name in SILOS}
    with pytest.raises(hedgerow.RunFailed, match="expected at least 20 validation rows of s0"):
        hedgerow.local(job, SILOS, validation=few, quiet=True)
    with pytest.raises(InvalidJob, match="silos of one process have none"):
        hedgerow.simulate(job, people(90, 1), silos=3)
