"""What the active party says of rows: their weights, and the margins that they begin with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xgboost as xgb

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.errors import DataError, InvalidJob
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.secureboost.choice import PurityGuard
from hedgerow.boosting.strategies.secureboost.directions import ActiveTrees
from hedgerow.boosting.strategies.secureboost.divisions import Divisions
from hedgerow.boosting.tables import for_job
from hedgerow.crypto.arithmetic.engine import Engine
from hedgerow.crypto.ciphers.packing import PairLayout
from hedgerow.crypto.vault.local_vault import LocalVault
from tests.federation import vertical
from tests.federation.memory import run_in_memory
from tests.federation.test_secureboost_models import kept, logit, predictions, run, score
from tests.oracles import PLAIN_TASKS

WIDTHS = [3, 3]


def weighted(whole: Dataset, low: float = 0.0, high: float = 6.0) -> Dataset:
    weight = np.random.default_rng(5).uniform(low, high, whole.n_samples)
    weight[::7] = low
    return replace(whole, weight=weight)


def begun(whole: Dataset) -> Dataset:
    rng = np.random.default_rng(6)
    margin = rng.normal(size=(whole.n_samples, whole.schema.n_outputs)).astype(np.float32)
    return replace(whole, base_margin=margin)


def names(task: Task) -> tuple[str, ...]:
    return ("m0", "m1", "m2") if task is Task.MULTICLASS else ("m0",)


def check_pooled(job: JobParameters, whole: Dataset, rounds: int) -> dict[str, dict[str, bytes]]:
    """Train, compare with the pooled engine, and return what the parties keep."""
    outcome, memories = run(job, vertical.cut_by_columns(whole, WIDTHS))
    assert outcome.error is None, (outcome.error, outcome.errors)
    ensemble = vertical.pooled(job, whole, rounds)
    active, passive = vertical.parts(outcome.kept)
    assert vertical.joined(active, passive, WIDTHS) == vertical.divisions(ensemble)
    rows = vertical.by_id(whole)
    table = xgb.DMatrix(rows.X)
    expected = ensemble.margins(table).reshape(-1, whole.schema.n_outputs)
    if rows.base_margin is not None:
        expected = expected + rows.base_margin
    got = vertical.margins(memories["guest"], len(outcome.rounds) - 1, whole.schema.n_outputs)
    assert np.abs(got - expected).max() < 2e-6
    found = metrics.evaluate(
        metrics.defaults(job.task), rows.labels, got.astype(float), objective=job.objective,
        weight=rows.weight,
    )  # fmt: skip
    assert vertical.own_scores(outcome.kept)[-1]["train"] == pytest.approx(found)
    return kept(outcome)


CASES: dict[str, dict[str, Any]] = {
    "paillier": {},
    "elgamal": {"encryption": "elgamal", "fraction_bits": 26},
    "small weights": {
        "low": 1e-4, "high": 1e-3, "booster": {"min_child_weight": 0.0, "lambda_": 1e-3},
    },
    "large weights": {"high": 1e4},
    "positives weigh more": {"booster": {"scale_pos_weight": 3.0}},
    "goss": {"sampling": "goss", "encryption": "plain"},
    "classes": {"task": Task.MULTICLASS, "encryption": "plain"},
    "a loss without bounds": {"task": Task.REGRESSION},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_weighted_rows_make_the_trees_of_the_joined_table(case: str) -> None:
    changes = {"weight": "w", **CASES[case]}
    task, booster = changes.pop("task", Task.BINARY), changes.pop("booster", {})
    low, high = changes.pop("low", 0.0), changes.pop("high", 6.0)
    whole = weighted(vertical.table(150, 6, task), low, high)
    job = vertical.job(task, booster, **changes)
    if job.parameters.sampling == "goss":
        outcome, _ = run(job, vertical.cut_by_columns(whole, WIDTHS))
        sampler = job.parameters.sampler(job.booster)
        ensemble = vertical.pooled(job, whole, 2, sampler=sampler)
        parts = vertical.parts(outcome.kept)
        assert vertical.joined(*parts, WIDTHS) == vertical.divisions(ensemble)
        return
    check_pooled(job, whole, 2)
    plain = vertical.pooled(job, replace(whole, weight=None), 2)
    assert vertical.divisions(plain) != vertical.divisions(vertical.pooled(job, whole, 2))


@pytest.mark.parametrize("task", PLAIN_TASKS)
@pytest.mark.parametrize("encryption", ["paillier", "plain"])
def test_rows_begin_with_their_own_margins(task: Task, encryption: str) -> None:
    whole = begun(weighted(vertical.table(120, 6, task)))
    job = vertical.job(task, encryption=encryption, base_margin=names(task), weight="w")
    memories = check_pooled(job, whole, 2)
    new = begun(vertical.table(60, 6, task, seed=8))
    tables = vertical.cut_by_columns(new, WIDTHS)
    scored = score(job, memories, tables, base_margin=names(task))
    assert scored.error is None, (scored.error, scored.errors)
    ensemble = vertical.pooled(job, whole, 2)
    assert new.base_margin is not None
    margins = ensemble.margins(xgb.DMatrix(new.X)).reshape(new.base_margin.shape)
    values = metrics.link(job.objective, (margins + new.base_margin).astype(float))
    assert new.ids is not None
    at = {row["_id"]: row for row in predictions(scored)}
    column = {Task.BINARY: "probability", Task.REGRESSION: "prediction"}.get(task, "probability_1")
    got = [float(at[i][column]) for i in new.ids]
    expected = values[:, 1] if task is Task.MULTICLASS else values.reshape(-1)
    np.testing.assert_allclose(got, expected, atol=2e-6)


def test_margins_of_rows_count_when_the_path_is_hidden_and_in_scores_on_request() -> None:
    whole = begun(vertical.table(150, 6))
    job = vertical.job(encryption="plain", rounds=8, base_margin=("m0",))
    trained, _ = run(job, vertical.cut_by_columns(whole, WIDTHS))
    new = begun(vertical.table(30, 6, seed=9))
    tables = vertical.cut_by_columns(new, WIDTHS)
    standard = predictions(score(job, kept(trained), tables, base_margin=("m0",)))
    hidden = score(
        job, kept(trained), tables, base_margin=("m0",), inference="eini", encryption="paillier"
    )
    assert hidden.error is None, (hidden.error, hidden.errors)
    for a, b in zip(standard, predictions(hidden), strict=True):
        assert abs(logit(a) - logit(b)) < 1e-5
    active, passive = vertical.parts(trained.kept)
    aligned = {name: vertical.by_id(table) for name, table in tables.items()}
    forest = ActiveTrees.of(active)
    bits = forest.joined(
        Divisions.of(active).directions(aligned["guest"].X),
        {"host-1": Divisions.of(passive["host-1"]).directions(aligned["host-1"].X)},
    )
    start = aligned["guest"].base_margin
    margins = forest.margins(bits, start)
    by_id = {row["_id"]: logit(row) for row in standard}
    assert aligned["guest"].ids is not None
    np.testing.assert_allclose(margins[:, 0], [by_id[i] for i in aligned["guest"].ids], atol=1e-5)
    np.testing.assert_allclose(forest.contributions(bits, start).sum(axis=2), margins, atol=1e-5)


def test_training_goes_on_from_a_model_with_base_margins() -> None:
    whole = begun(vertical.table(150, 6))
    job = vertical.job(encryption="plain", base_margin=("m0",))
    first, _ = run(job, vertical.cut_by_columns(whole, WIDTHS))
    more = vertical.job(encryption="plain", base_margin=("m0",), warm_start="model")
    outcome, _ = run(more, vertical.cut_by_columns(whole, WIDTHS), kept(first))
    assert outcome.error is None, (outcome.error, outcome.errors)
    expected = vertical.divisions(vertical.pooled(job, whole, 4))
    assert vertical.joined(*vertical.parts(outcome.kept), WIDTHS) == expected


def test_a_model_and_rows_that_begin_otherwise_are_refused() -> None:
    whole = begun(vertical.table(100, 6))
    bare = vertical.cut_by_columns(replace(whole, base_margin=None), WIDTHS)
    job = vertical.job(encryption="plain", base_margin=("m0",))
    trained, _ = run(job, vertical.cut_by_columns(whole, WIDTHS))
    scored = score(job, kept(trained), bare)
    assert "trained from base margins m0, the rows have none" in str(scored.error)
    plain = vertical.job(encryption="plain")
    other, _ = run(plain, bare)
    scored = score(plain, kept(other), vertical.cut_by_columns(whole, WIDTHS), base_margin=("m0",))
    assert "trained without base margins, the rows have some" in str(scored.error)
    more = vertical.job(encryption="plain", warm_start="model")
    outcome, _ = run(more, bare, kept(trained))
    assert "base margins: the model was trained from" in str(outcome.error)


def test_a_passive_party_learns_of_weights_the_power_of_two_above_the_largest() -> None:
    seen: dict[float, list[PairLayout]] = {}

    class Watching(LocalVault):
        def hold_rows(self, session: str, key: bytes, layout: PairLayout, *rest: Any) -> None:
            seen.setdefault(high, []).append(layout)
            super().hold_rows(session, key, layout, *rest)

    for high in (3.1, 3.9, 4.5):
        whole = weighted(vertical.table(60, 4), 1.0, 3.0)
        assert whole.weight is not None
        whole.weight[1] = high
        made = {
            silo: Watching(engine=Engine(workers=1), insecure_test_keys=True)
            for silo in ("guest", "host-1")
        }
        outcome = run_in_memory(
            vertical.job(rounds=1, weight="w"),
            vertical.cut_by_columns(whole, [2, 2]),
            schema=whole.schema,
            vaults=made.__getitem__,
            through_wire=True,
        )
        assert outcome.error is None, (outcome.error, outcome.errors)
    assert seen[3.1] == seen[3.9] != seen[4.5]


@pytest.mark.parametrize("positive", [1.0, 0.2, 5.0])
@pytest.mark.parametrize("even", [True, False])
def test_the_purity_of_a_side_is_estimated_exactly_in_the_first_tree(
    positive: float, even: bool
) -> None:
    rng = np.random.default_rng(3)
    y = (rng.random(400) < 0.4).astype(float)
    weight = np.ones(400) if even else rng.uniform(0.5, 3, 400)
    own = weight * np.where(y == 1, positive, 1.0)
    p = 0.37
    sums = np.stack([own * (p - y), own * p * (1 - p)], axis=1)
    sides = np.stack([rng.random(400) < 0.5, (y == 1) | (rng.random(400) < 0.04)])
    sides = np.stack([*sides, ~sides[1]])
    shares = [float((weight * y)[side].sum() / weight[side].sum()) for side in sides]
    for most in (0.6, 0.9, 0.95):
        guard = PurityGuard(most, positive)
        unit = 2.0**-30
        totals = np.rint(sums.sum(axis=0) / unit).astype(np.int64)
        got = guard.allows(
            np.array([np.rint(sums[s].sum(axis=0) / unit) for s in sides]).astype(np.int64),
            totals, float((own * y).sum() / own.sum()), float(own.sum() / unit),
        )  # fmt: skip
        rest = [float((weight * y)[~s].sum() / weight[~s].sum()) for s in sides]
        pure = [max(a, 1 - a, b, 1 - b) > most for a, b in zip(shares, rest, strict=True)]
        assert got.tolist() == [not one for one in pure]


REFUSED: dict[str, dict[str, Any]] = {
    r"base_margin: expected 1 columns, one an output, received 2": {"base_margin": ("a", "b")},
    r"weight, base_margin: column 'a' has another use": {"base_margin": ("a",), "weight": "a"},
    r"column 'label' has another use": {"weight": "label"},
}


@pytest.mark.parametrize("said", REFUSED)
def test_columns_that_cannot_be_are_refused(said: str) -> None:
    job = vertical.job(key_bits=2048, **REFUSED[said])
    with pytest.raises(InvalidJob, match=said):
        job.parameters.validate(job)


def test_a_base_score_beside_base_margins_is_refused() -> None:
    job = vertical.job(booster={"base_score": 0.4}, key_bits=2048, base_margin=("a",))
    with pytest.raises(InvalidJob, match=r"\[booster\] base_score: secureboost.base_margin is in"):
        job.parameters.validate(job)


def test_the_active_partys_table_has_the_columns_and_a_passive_one_its_features() -> None:
    import pyarrow as pa

    job = vertical.job(key_bits=2048, weight="w", base_margin=("m",))
    columns: dict[str, Any] = {"_id": ["a", "b"], "x": [1, 2], "w": [0.5, 2.0], "m": [0.0, -1.5]}
    own = for_job(pa.table({**columns, "label": [0, 1]}), job, "bank.csv", party="guest")
    assert own.schema.names == ("x",)
    assert own.weight is not None
    assert own.weight.tolist() == [0.5, 2.0]
    assert own.base_margin is not None
    assert own.base_margin.tolist() == [[0.0], [-1.5]]
    assert own.sources == ("x", "w", "m")
    other = for_job(pa.table(columns), job, "shop.csv", party="host-1")
    assert other.schema.names == ("x", "w", "m")
    assert (other.weight, other.base_margin) == (None, None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"w": [-1.0, 1.0]}, "weight column 'w': expected weights from 0, not all of them 0"),
        ({"w": [0.0, 0.0]}, "weight column 'w': expected weights from 0, not all of them 0"),
        ({"w": [None, 1.0]}, "weight column 'w': some are missing, infinite or beyond float32"),
        ({"w": ["a", "b"]}, "weight column 'w': expected numbers, received type string"),
        ({"m": [float("inf"), 1.0]}, "base margin 'm': some are missing, infinite"),
        ({"w": None}, "there is no weight column 'w'"),
        ({"m": None}, "there is no base margin 'm'"),
    ],
)
def test_weights_and_margins_that_are_none_are_refused_without_being_shown(
    changes: dict[str, Any], said: str
) -> None:
    import pyarrow as pa

    job = vertical.job(key_bits=2048, weight="w", base_margin=("m",))
    columns: dict[str, Any] = {"_id": ["a", "b"], "x": [1, 2], "w": [0.5, 2.0], "m": [0.0, -1.5]}
    columns = {k: v for k, v in ({**columns, "label": [0, 1], **changes}).items() if v is not None}
    with pytest.raises(DataError, match=said):
        for_job(pa.table(columns), job, "bank.csv", party="guest")
