"""A federation in one process: what it trains and counts is what processes train and count."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import safetensors.numpy

import hedgerow
from hedgerow.boosting.rounds import steps
from hedgerow.coordinator.operator.library import memory
from hedgerow.coordinator.operator.library.jobs import table_of
from hedgerow.coordinator.operator.library.memory import Conditions, MemoryResult, federate
from hedgerow.coordinator.operator.library.running import Run, RunFailed
from hedgerow.services.rpc import exchange
from hedgerow.services.rpc.in_memory import INSTANT
from hedgerow.services.wire.job_view import FinishedRound
from tests.coordinator.operator.library.tables import people

SILOS = {f"s{k}": people(90 + 15 * k, k) for k in range(3)}
JOBS: dict[str, Mapping[str, Any]] = {
    "bagging": {"rounds": 3, "max_depth": 3, "metrics": ["auc"]},
    "histogram": {"rounds": 2, "max_depth": 2, "metrics": ["auc"]},
    "fedxgbllr": {"rounds": 2, "trees": 6, "epochs": 1, "secure": True},
    "fedga": {"generations": 2, "population": 4, "max_depth": 2, "folds": 2},
    "dp_tree": {"epsilon": 8.0, "depth": 2},
}


def ran(job: hedgerow.Job, conditions: Conditions, silos: Any = SILOS) -> MemoryResult:
    """Run a job in this process."""
    tables = {name: table_of(job.parameters, name, table) for name, table in silos.items()}
    return federate(job, tables, conditions, table_of(job.parameters, "test", people(80, 9)))


@pytest.mark.process
@pytest.mark.parametrize("strategy", ["bagging", "histogram"])
def test_model_scores_and_bytes_are_those_of_processes(strategy: str, tmp_path: Path) -> None:
    job = hedgerow.Job(strategy, seed=3, min_silos=3, **JOBS[strategy])
    run = hedgerow.local(job, SILOS, people(80, 9), quiet=True)
    result = ran(job, Conditions())
    result.write(tmp_path)
    again = Run(tmp_path)
    for name in ("model.ubj", "schema.json"):
        assert (tmp_path / name).read_bytes() == (run.folder / name).read_bytes()
    for column in run.metrics.columns:
        if column.startswith("test."):
            assert list(again.metrics[column]) == list(run.metrics[column])
    ours, theirs = again.bytes.rows(), run.bytes.rows()
    assert [(row["silo"], row["step"]) for row in ours] == [
        (row["silo"], row["step"]) for row in theirs
    ]
    for mine, other in zip(ours, theirs, strict=True):
        # Signatures and certificates differ by a few bytes from key to key; so do job identifiers.
        assert mine["up"] == pytest.approx(other["up"], rel=0.02, abs=400), mine
        assert mine["down"] == pytest.approx(other["down"], rel=0.02, abs=400), mine


@pytest.mark.slow
@pytest.mark.parametrize("strategy", JOBS)
def test_without_masks_and_codecs_the_model_is_the_same(strategy: str) -> None:
    job = hedgerow.Job(strategy, seed=3, min_silos=3, **JOBS[strategy])
    if strategy in ("fedga", "dp_tree"):  # their noise is never the same
        assert ran(job, Conditions(crypto=False, codecs=False)).view.rounds
        return
    masked = ran(job, Conditions())
    plain = ran(job, Conditions(crypto=False, codecs=False))
    if strategy == "fedxgbllr":  # it names rates, which are sums of floats where nothing is masked
        assert plain.files.keys() == masked.files.keys()
        assert plain.files["ensemble.ubj"] == masked.files["ensemble.ubj"]
        mine, other = (
            safetensors.numpy.load(one.files["head.safetensors"]) for one in (plain, masked)
        )
        np.testing.assert_allclose(mine.pop("rates"), other.pop("rates"), rtol=1e-5)
        for name, tensor in mine.items():
            np.testing.assert_array_equal(tensor, other[name])
    else:
        assert plain.files == masked.files
    assert sum(step.bytes_up for step in masked.view.steps) > 0
    assert not plain.view.steps


def test_a_silo_that_is_away_for_a_round_comes_back_for_the_next() -> None:
    job = hedgerow.Job("bagging", rounds=4, max_depth=2, min_silos=2)
    result = ran(job, Conditions(away=lambda silo, round: silo == "s1" and round == 1))
    assert [finished.silos for finished in result.view.rounds] == [
        ("s0", "s1", "s2"),
        ("s0", "s2"),
        ("s0", "s2"),  # it receives what it missed, and has a rate from the next round on
        ("s0", "s1", "s2"),
    ]


def test_a_job_without_enough_silos_fails_with_the_reason() -> None:
    job = hedgerow.Job("bagging", rounds=4, max_depth=2, min_silos=3)
    with pytest.raises(RunFailed, match="needs 3 silos, 2 offered; missing s1"):
        ran(job, Conditions(away=lambda silo, round: silo == "s1" and round == 1))


@pytest.mark.slow
def test_a_silo_may_be_away_in_one_round_after_another() -> None:
    job = hedgerow.Job("bagging", rounds=8, max_depth=1, min_silos=2)
    for _ in range(5):  # whether it leaves before others see it back is the threads' to say
        result = ran(
            job,
            Conditions(crypto=False, away=lambda silo, round: silo == "s1" and 1 <= round < 7),
        )
        assert all("s1" not in finished.silos for finished in result.view.rounds[1:7])


@pytest.mark.process
@pytest.mark.parametrize("strategy", ["bagging", "fedga"])
def test_silos_in_processes_give_the_files_of_silos_in_threads(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = hedgerow.Job(strategy, seed=3, min_silos=2, **JOBS[strategy])
    plain = strategy == "fedga"  # its noise is never the same; every silo keeps a tree of its own
    away = (
        (lambda silo, round: False) if plain else (lambda silo, round: (silo, round) == ("s1", 1))
    )
    conditions = Conditions(crypto=not plain, away=away, workers=2)
    threads = ran(job, conditions)
    monkeypatch.setattr(memory, "SHARED_FROM", len(SILOS))
    # Replies of thousands of silos: longer than what is joined, and the same for all.
    monkeypatch.setattr(exchange, "JOINED_BYTES", 0)
    monkeypatch.setattr(steps, "_ALIKE", 1)
    processes = ran(job, conditions)
    assert [done.silos for done in processes.view.rounds] == [
        done.silos for done in threads.view.rounds
    ]
    assert {step.silo for step in processes.view.steps} == set(SILOS)
    if not plain:
        assert processes.files == threads.files
    assert {silo: set(kept) for silo, kept in processes.kept.items()} == {
        silo: set(kept) for silo, kept in threads.kept.items()
    }


@pytest.mark.process
def test_seconds_are_simulated_for_silos_in_processes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "SHARED_FROM", len(SILOS))
    job = hedgerow.Job("bagging", rounds=2, max_depth=2, min_silos=3)
    result = ran(job, Conditions(crypto=False, workers=2, lines=[INSTANT]))
    # What takes time is the work alone, which worker processes measure.
    assert all(done.seconds > 0.0 for done in result.view.rounds)


@pytest.mark.process
def test_a_run_whose_worker_process_dies_fails_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "SHARED_FROM", len(SILOS))
    job = hedgerow.Job("bagging", rounds=50, max_depth=2, min_silos=3)
    before = set(psutil.Process().children())

    def kill(done: FinishedRound) -> None:
        if done.round == 1:
            workers = set(psutil.Process().children()) - before
            next(w for w in workers if "resource_tracker" not in " ".join(w.cmdline())).kill()

    with pytest.raises(RunFailed, match="worker process of this silo has ended"):
        ran(job, Conditions(crypto=False, workers=2, watch=kill))
