"""FedXGBllr from end to end: both halves, the real barrier, payloads through their codecs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import DataError, ModelRejected
from hedgerow.boosting.job import Booster
from hedgerow.boosting.strategies.fedxgbllr.combiners import TrainingRows
from hedgerow.boosting.strategies.fedxgbllr.leaf_values import LeafOrdinals
from hedgerow.boosting.strategies.fedxgbllr.stacked_model import (
    StackedModel,
    learnt_rates,
    margins_of_files,
    rates_by_tree,
)
from hedgerow.boosting.trees.loading import load
from hedgerow.boosting.trees.local import matrix
from tests.federation.memory import MemoryLink, run_in_memory
from tests.federation.stacking import CASES, job, margins_of, record_of, silos, small, table


@pytest.mark.parametrize(("task", "combiner"), CASES)
def test_a_job_ends_with_a_model_that_predicts_as_its_last_round_scored(task, combiner):
    test = table(task, 200, 99)
    outcome = run_in_memory(
        job(task, small(combiner=combiner)), silos(task, 3), test=test, through_wire=True
    )
    assert outcome.error is None
    assert not outcome.errors
    assert outcome.rounds[-1].final
    assert outcome.open_places <= 2
    assert outcome.artefact is not None
    files = outcome.artefact.files
    model = StackedModel.load(files)
    names = metrics.defaults(task)
    scored = metrics.evaluate(
        names, test.labels, model.margins(test.X), objective=job(task, small()).objective
    )
    assert scored == pytest.approx(outcome.rounds[-1].metrics["test"], rel=1e-5)
    manifest = json.loads(files["manifest.json"])
    assert [silo["silo"] for silo in manifest["silos"]] == ["s00", "s01", "s02"]
    assert sum(silo["share"] for silo in manifest["silos"]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("task", "combiner"),
    [(t, c) for t, c in CASES if c in ("mean", "ridge", "logit_ridge", "leaves")],
)
def test_linear_combiners_are_stock_models_that_predict_the_same(task, combiner):
    outcome = run_in_memory(job(task, small(combiner=combiner)), silos(task, 3))
    test = table(task, 150, 98)
    stock = load(outcome.artefact.files["model.ubj"])
    rows = matrix(test, 1)
    found = stock.booster().predict(rows, output_margin=True, validate_features=False)
    np.testing.assert_allclose(found, margins_of(outcome, test.X), rtol=2e-5, atol=2e-4)


def test_round_zero_scores_the_mean_of_the_ensembles():
    test = table(Task.BINARY, 200, 94)
    network, mean = (
        run_in_memory(job(Task.BINARY, small(combiner=c)), silos(Task.BINARY, 3), test=test)
        for c in ("cnn", "mean")
    )
    for name, value in mean.rounds[0].metrics["test"].items():
        assert network.rounds[0].metrics["test"][name] == pytest.approx(value, rel=1e-6), name


def test_a_strategy_scores_its_own_files():
    test = table(Task.MULTICLASS, 60, 94)
    outcome = run_in_memory(job(Task.MULTICLASS, small()), silos(Task.MULTICLASS, 2))
    files = outcome.artefact.files
    assert np.array_equal(margins_of_files(files, test), margins_of(outcome, test.X))
    probabilities = StackedModel.load(files).predict(test)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    assert [silo.silo for silo in learnt_rates(files)] == ["s00", "s01"]


def test_learnt_rates_are_read_from_the_files_that_hold_them():
    outcome = run_in_memory(job(Task.MULTICLASS, small()), silos(Task.MULTICLASS, 2))
    files = outcome.artefact.files
    model = StackedModel.load(files)
    assert learnt_rates({"manifest.json": files["manifest.json"]}) == model.by_silo()
    np.testing.assert_array_equal(
        rates_by_tree({"head.safetensors": files["head.safetensors"]}), model.rates
    )
    with pytest.raises(DataError, match="format"):
        learnt_rates({"manifest.json": b"[]"})


@pytest.mark.parametrize("combiner", ["cnn", "logit_ridge", "leaves"])
def test_files_of_different_models_are_refused(combiner):
    data = silos(Task.BINARY, 2)
    ours, others = (
        run_in_memory(job(Task.BINARY, small(combiner=combiner, trees=n)), data).artefact.files
        for n in (12, 16)
    )
    test = data["s00"]
    wrong = [
        {**ours, "head.safetensors": others["head.safetensors"]},
        {**ours, "ensemble.ubj": others["ensemble.ubj"]},
        {**ours, "head.safetensors": b"nothing of the kind"},
        {**ours, "ensemble.ubj": b"{"},
        {**ours, "manifest.json": b"{}"},
        {name: file for name, file in ours.items() if name != "head.safetensors"},
    ]
    assert np.isfinite(margins_of_files(ours, test)).all()
    for files in wrong:
        with pytest.raises((DataError, ModelRejected)):
            margins_of_files(files, test)


def test_networks_are_not_given_as_stock_models():
    outcome = run_in_memory(job(Task.BINARY, small()), silos(Task.BINARY, 2))
    assert sorted(outcome.artefact.files) == ["ensemble.ubj", "head.safetensors", "manifest.json"]
    assert outcome.artefact.model == "ensemble.ubj"


def test_one_silo_averages_to_plain_xgboost():
    data = silos(Task.BINARY, 1)
    outcome = run_in_memory(job(Task.BINARY, small(combiner="mean")), data)
    (rows,) = data.values()
    model = StackedModel.load(outcome.artefact.files)
    booster = model.ensemble.booster()
    margins = booster.predict(matrix(rows, 1), output_margin=True, validate_features=False)
    np.testing.assert_allclose(model.margins(rows.X), margins, atol=1e-5)
    assert model.ensemble.about.base_score == (0.5,)


@pytest.mark.parametrize("combiner", ["cnn", "ridge", "leaves"])
def test_one_to_fifty_silos_run(combiner):
    for n_silos, trees in ((1, 12), (2, 12), (17, 12), (50, 60)):
        outcome = run_in_memory(
            job(Task.REGRESSION, small(combiner=combiner, trees=trees, channels=4, epochs=1)),
            silos(Task.REGRESSION, n_silos, n=30),
        )
        assert outcome.error is None
        assert len(StackedModel.load(outcome.artefact.files).silos) == n_silos


def test_silos_trees_are_those_xgboost_grows_on_centred_labels():
    data = silos(Task.REGRESSION, 3)
    task = job(Task.REGRESSION, small(combiner="mean"))
    outcome = run_in_memory(task, data)
    model = StackedModel.load(outcome.artefact.files)
    everyone = np.concatenate([d.labels for d in data.values()])
    assert model.center == pytest.approx(everyone.mean(), rel=1e-12)
    assert len(model.ensemble.trees) == 12
    own = LeafOrdinals.of(model.ensemble.trees[:4], data["s00"].X)
    margins = own.margins(own.table.values.astype(float), 1)[:, 0]
    residual = data["s00"].labels - model.center
    assert ((residual - margins) ** 2).mean() < 0.5 * residual.var()


def test_shared_penalties_are_those_of_the_booster_over_the_number_of_silos():
    data = silos(Task.BINARY, 4)
    given = {"combiner": "mean", "trees": 16}
    shared, as_they_stand = (
        run_in_memory(
            job(
                Task.BINARY,
                small(**given, share_penalties=share),
                booster=Booster(eta=0.3, max_depth=4, alpha=a, gamma=g),
            ),
            data,
            through_wire=True,
        )
        for share, a, g in ((True, 4.0, 2.0), (False, 1.0, 0.5))
    )
    assert shared.error is None
    found, expected = (
        StackedModel.load(outcome.artefact.files).ensemble for outcome in (shared, as_they_stand)
    )
    assert all(
        np.array_equal(a.threshold, b.threshold) and np.array_equal(a.left, b.left)
        for a, b in zip(found.trees, expected.trees, strict=True)
    )


def test_ridge_over_silos_equals_the_pooled_closed_form():
    data = silos(Task.REGRESSION, 4)
    outcome = run_in_memory(
        job(Task.REGRESSION, small(combiner="ridge", penalty=5.0)), data, through_wire=True
    )
    model = StackedModel.load(outcome.artefact.files)
    X = np.concatenate([d.X for d in data.values()])
    y = np.concatenate([d.labels for d in data.values()]) - model.center
    leaves = LeafOrdinals.of(model.ensemble.trees, X)
    F = leaves.outputs(np.arange(len(X))).astype(np.float64)
    Fc, start = F - F.mean(0), np.full(12, 1 / 4)
    r = y - F @ start
    expected = start + np.linalg.solve(Fc.T @ Fc + 5.0 * np.eye(12), Fc.T @ (r - r.mean()))
    np.testing.assert_allclose(model.point[:12], expected, atol=1e-8)


def test_the_head_learns_more_than_the_mean_of_a_target_far_from_zero():
    # without centring the first rounds go into the output's bias alone
    test = table(Task.REGRESSION, 400, 97)
    for combiner in ("cnn", "ridge", "leaves", "mean"):
        outcome = run_in_memory(
            job(
                Task.REGRESSION,
                small(combiner=combiner, trees=40, epochs=10, channels=32),
                metrics=("mse",),
            ),
            silos(Task.REGRESSION, 2, n=300),
            test=test,
        )
        assert outcome.rounds[-1].metrics["test"]["mse"] < 0.7 * test.labels.var(), combiner


def test_a_run_is_the_same_bit_for_bit_whenever_it_is_repeated():
    first, again = (
        run_in_memory(job(Task.BINARY, small()), silos(Task.BINARY, 3), through_wire=wire)
        for wire in (False, True)
    )
    assert first.rounds[-1].checkpoint == again.rounds[-1].checkpoint
    assert first.artefact.files == again.artefact.files


def test_federated_averaging_weights_silos_by_their_rows():
    data = {"a": table(Task.BINARY, 300, 1), "b": table(Task.BINARY, 60, 2)}
    task = job(Task.BINARY, small(rounds=1))
    both = run_in_memory(task, data)
    record = record_of(task, both)
    parts = []
    for number, rows in enumerate(data.values()):
        every = [tree for trees in record.trees for tree in trees]
        leaves = LeafOrdinals.of(every, rows.X)
        rng = np.random.default_rng(np.random.SeedSequence([3, number, 1, 302]))
        parts.append(
            record.combiner.local(
                record.combiner.initial().candidates,
                TrainingRows(leaves, rows.labels),
                1,
                0,
                rng,
                lambda: None,
            )
        )
    weights = sum(part[1:] for part in parts) / 360
    np.testing.assert_allclose(record.state.solution, weights, atol=1e-6)


def test_a_silo_that_states_more_rows_than_can_be_counted_is_refused_and_the_others_go_on() -> None:
    class Liar(MemoryLink):
        def exchange(self, step, at, offer):
            if self.silo == "s01" and step.name == "trees":
                offer = replace(offer, rows=1 << 62)
            return super().exchange(step, at, offer)

    asked = job(Task.BINARY, small(combiner="cnn"), min_silos=3)
    outcome = run_in_memory(asked, silos(Task.BINARY, 4), make_link=Liar)
    assert "expected fewer than" in str(outcome.errors["s01"])
    assert outcome.error is None, outcome.error
