"""Validation tables of vertical parties: scored each round, for early stops."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost as xgb

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.errors import DataError, InvalidJob, OfferRejected
from hedgerow.boosting.strategies.secureboost.courier import SealedChannel
from hedgerow.boosting.strategies.secureboost.steps import GRADIENTS
from tests.federation import vertical
from tests.federation.memory import Fault, Outcome
from tests.federation.test_secureboost_models import Memories, run
from tests.federation.test_secureboost_processes import JOB, hedgerow, write_parties

WIDTHS = [2, 2, 2]
ROUNDS, PATIENCE = 12, 2
SMALL = {"max_depth": 3, "eta": 0.9}


def table(n: int, seed: int, noise: float = 0.8, *, weighted: bool = False) -> Dataset:
    """Return a table whose labels are so noisy that a model soon learns them by heart."""
    whole = vertical.table(n, sum(WIDTHS), seed=seed, missing=0.1)
    rng = np.random.default_rng(seed)
    score = np.nan_to_num(whole.X)[:, ::3].sum(axis=1) + noise * rng.normal(size=n)
    weight = rng.uniform(0.1, 3, n) if weighted else None
    return replace(whole, y=(score > 0).astype(np.float64), weight=weight)


def trained(
    train: Dataset, valid: Dataset | None, memories: Memories | None = None, **options: Any
) -> tuple[Outcome, Memories]:
    more = {"validation_tables": True, "early_stopping_rounds": PATIENCE}
    changes = {"rounds": ROUNDS, "encryption": "plain", **more, **options.pop("changes", {})}
    job = vertical.job(booster=SMALL, **changes)
    if valid is not None:
        options["validation"] = vertical.cut_by_columns(valid, WIDTHS, seed=6)
    return run(job, vertical.cut_by_columns(train, WIDTHS), memories, **options)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("with_test", [False, True])
def test_rounds_are_scored_on_the_validation_tables_and_the_best_one_is_kept(
    weighted: bool, with_test: bool
) -> None:
    train, valid = (table(n, seed, weighted=weighted) for n, seed in ((220, 1), (130, 2)))
    tests = vertical.cut_by_columns(table(90, 3), WIDTHS) if with_test else None
    outcome, memories = trained(train, valid, tests=tests, through_wire=True)
    assert outcome.error is None, (outcome.error, outcome.errors)
    job = vertical.job(booster=SMALL, encryption="plain")
    active, passive = vertical.parts(outcome.kept)
    rounds = len(outcome.rounds)
    ensemble = vertical.pooled(job, train, rounds)
    if not weighted:
        assert vertical.joined(active, passive, WIDTHS) == vertical.divisions(ensemble)
        expected = [
            metrics.evaluate(
                metrics.defaults(job.task),
                valid.labels,
                vertical.pooled(job, train, r + 1)
                .margins(xgb.DMatrix(valid.X))
                .astype(np.float64)
                .reshape(-1, 1),
                objective=job.objective,
            )
            for r in range(rounds)
        ]
        for told, own in zip(vertical.own_scores(outcome.kept), expected, strict=True):
            assert told["valid"] == pytest.approx(own, abs=1e-6)
    name = next(iter(outcome.rounds[0].metrics["valid"]))
    scores = [own["valid"][name] for own in vertical.own_scores(outcome.kept)]
    best = max(range(rounds), key=lambda r: scores[r] if name == "auc" else -scores[r])
    assert rounds == best + PATIENCE + 1 < ROUNDS
    assert active.best_round == outcome.rounds[-1].best_round == best
    assert [p.n_used for p in passive.values()] == [best + 1] * 2
    assert len(active.used_trees) == best + 1
    assert {frozenset(r.metrics) for r in outcome.rounds} == {
        frozenset({"train", "valid", *(["test"] if with_test else [])})
    }
    assert json.loads(memories["guest"][f"secureboost/{(rounds - 1) % 2}"])["final"]


def test_trees_and_bins_do_not_depend_on_validation_rows() -> None:
    train = table(220, 1)
    early = {"changes": {"early_stopping_rounds": 0, "rounds": 3}}
    parts = [
        vertical.parts(trained(train, table(n, seed), **early)[0].kept) for n, seed in
        ((130, 2), (60, 9))
    ]  # fmt: skip
    found = [vertical.joined(*own, WIDTHS) for own in parts]
    assert found[0] == found[1]
    assert all(len(own[0].used_trees) == 3 for own in parts)


def test_a_restarted_job_stops_where_it_would_have_stopped() -> None:
    train, valid = table(220, 1), table(130, 2)
    whole, _ = trained(train, valid)
    fault = Fault("host-1", "histograms", round=2, level=1)
    first, memories = trained(train, valid, faults=(fault,))
    assert first.error is not None
    again, _ = trained(
        train, valid, memories, checkpoint=first.rounds[-1].checkpoint,
        first_round=len(first.rounds), attempt=2,
    )  # fmt: skip
    assert again.error is None, (again.error, again.errors)
    assert [r.metrics for r in (*first.rounds, *again.rounds)] == [r.metrics for r in whole.rounds]
    assert vertical.parts(again.kept)[0].best_round == vertical.parts(whole.kept)[0].best_round


def test_a_party_without_validation_rows_is_named() -> None:
    own = vertical.cut_by_columns(table(130, 2), WIDTHS)
    del own["host-2"]
    outcome, _ = trained(table(80, 1), None, validation=own)
    assert isinstance(outcome.error, DataError)
    assert "host-2: [secureboost] validation_tables: this party has no" in str(outcome.error)


def test_gradients_of_validation_rows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = SealedChannel.send

    def lying(self: SealedChannel, step: Any, **sent: Any) -> Any:
        if self.party == "guest" and step is GRADIENTS:
            more = {
                party: replace(box, sampled=b"\xff" * len(box.sampled))
                for party, box in sent["boxes"].items()
            }
            sent["boxes"] = more
        return honest(self, step, **sent)

    monkeypatch.setattr(SealedChannel, "send", lying)
    outcome, _ = trained(table(80, 1), table(40, 2))
    assert "received those of 80, and of 120 rows in all" in str(outcome.error)
    assert any(isinstance(error, OfferRejected) for error in outcome.errors.values())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"validation": 0.2, "validation_tables": True}, "validation: expected 0, the parties"),
        ({"early_stopping_rounds": 2}, "expected validation above 0, or validation_tables"),
    ],
)
def test_settings_that_contradict_are_refused(changes: dict[str, Any], said: str) -> None:
    job = vertical.job(key_bits=2048, **changes)
    with pytest.raises(InvalidJob, match=said):
        job.parameters.validate(job)


def test_processes_stop_early_on_the_parties_validation_tables(tmp_path: Path) -> None:
    widths = [3, 3]
    more = (
        "validation_tables = true\nearly_stopping_rounds = 1\n"
        'encryption = "plain"\nallow_insecure = true'
    )
    (tmp_path / "job.toml").write_text(JOB.format(rounds=6, more=more) + "eta = 0.9\n")
    silos = write_parties(vertical.cut_by_columns(table(150, 1), widths), tmp_path)
    own = write_parties(vertical.cut_by_columns(table(90, 2), widths), tmp_path, "valid-")
    given = [f"--silo={name}={path}" for name, path in silos.items()]
    valid = [f"--validation={name}={path}" for name, path in own.items()]
    done = hedgerow(tmp_path, "local", "job.toml", *given, *valid, "--out", "run")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert {frozenset(r["metrics"]) for r in report["rounds"]} == {frozenset({"train", "valid"})}
    best = report["best_round"] - 1
    assert len(report["rounds"]) in (best + 2, 6)
    part = json.loads((tmp_path / "run/silos/guest/part.json").read_text())
    assert part["best_round"] == best
    scored = hedgerow(tmp_path, "evaluate", "run", *(f"{k}={v}" for k, v in own.items()), "--json")
    assert scored.returncode == 0, scored.stderr
    found = json.loads(scored.stdout)["metrics"]
    assert found == pytest.approx(report["rounds"][best]["metrics"]["valid"], abs=1e-6)

    done = hedgerow(tmp_path, "local", "job.toml", *given, valid[0], "--out", "other")
    assert done.returncode != 0
    assert "(--validation SILO=FILE), received none for host-1" in done.stderr
    (tmp_path / "job.toml").write_text(JOB.format(rounds=1, more=""))
    done = hedgerow(tmp_path, "local", "job.toml", *given, *valid, "--out", "other")
    assert "only a job with validation_tables = true" in done.stderr
