"""FedXGBllr from end to end: both halves, the real rendezvous, payloads through their codecs."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.errors import DataError, InvalidJob, QuorumLost
from hedgerow.boosting.exchange import Place, Silo
from hedgerow.boosting.job import Booster
from hedgerow.boosting.metrics import higher_is_better
from hedgerow.boosting.ports import CoordinatorStart, JobParameters, SiloStart
from hedgerow.boosting.strategies.fedxgbllr.combiners import Rows
from hedgerow.boosting.strategies.fedxgbllr.leaf_values import LeafOrdinals
from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr
from hedgerow.boosting.strategies.fedxgbllr.record import Record, validation_metrics
from hedgerow.boosting.strategies.fedxgbllr.stacked_model import (
    StackedModel,
    learnt_rates,
    rates_by_tree,
)
from hedgerow.boosting.trees.ensemble import load
from hedgerow.boosting.trees.local import matrix
from hedgerow.coordinator.server.rendezvous import Rendezvous
from hedgerow.crypto.local_vault import LocalVault
from hedgerow.services.wire import codec_of
from tests.boosting.sums.federation_of_sums import Authority, TestIdentity
from tests.federation import memory
from tests.federation.memory import Fault, MemoryLink, SiloKilled, run_in_memory

CATEGORIES = ("red", "green", "blue", "grey", "black", "white")


def table(task: Task, n: int, seed: int, *, n_classes: int = 3) -> Dataset:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5)).astype(np.float32)
    X[:, 4] = rng.integers(0, len(CATEGORIES), n)
    signal = X[:, 0] + np.abs(X[:, 1]) + X[:, 2] * (X[:, 4] > 2) + rng.normal(0, 0.3, n)
    X[rng.random(X.shape) < 0.05] = np.nan
    if task is Task.REGRESSION:
        y = 50 + 4 * signal
    elif task is Task.BINARY:
        y = (signal > 1).astype(np.float64)
    else:
        y = np.digitize(signal, np.linspace(0, 2, n_classes - 1)).astype(np.float64)
    names = [Feature(f"f{i}") for i in range(4)]
    size = {Task.REGRESSION: 0, Task.BINARY: 2, Task.MULTICLASS: n_classes}[task]
    schema = Schema((*names, Feature("colour", CATEGORIES)), "label", task, size)
    return Dataset(schema, X, y.astype(np.float64))


def silos(task: Task, n_silos: int, n: int = 120) -> dict[str, Dataset]:
    return {f"s{i:02d}": table(task, n + 7 * i, i) for i in range(n_silos)}


def job(task: Task, strategy: FedXGBllr, **rest) -> JobParameters:
    booster = Booster(eta=0.3, max_depth=3, subsample=0.8)
    return JobParameters("t", strategy, task=task, seed=3, **{"booster": booster, **rest})


def small(**given) -> FedXGBllr:
    return FedXGBllr(**{"trees": 12, "rounds": 3, "epochs": 2, "channels": 8, **given})


def of_task(task: Task) -> list[str]:
    linear = "ridge" if task is Task.REGRESSION else "logit_ridge"
    return ["cnn", "conv3", "dense", "mean", linear, "leaves"]


CASES = [(task, combiner) for task in Task for combiner in of_task(task)]


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


def margins_of(outcome, X):
    return StackedModel.load(outcome.artefact.files).margins(X)


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
    assert network.rounds[0].metrics == mean.rounds[0].metrics


def test_a_strategy_scores_its_own_files():
    test = table(Task.MULTICLASS, 60, 94)
    outcome = run_in_memory(job(Task.MULTICLASS, small()), silos(Task.MULTICLASS, 2))
    files = outcome.artefact.files
    assert np.array_equal(FedXGBllr.margins(files, test), margins_of(outcome, test.X))
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
    with pytest.raises(ValueError, match="format"):
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
    assert np.isfinite(FedXGBllr.margins(ours, test)).all()
    for files in wrong:
        with pytest.raises(DataError):
            FedXGBllr.margins(files, test)


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
    record = Record.decode(task.parameters, task, data["a"].schema, both.rounds[-1].checkpoint)
    parts = []
    for number, rows in enumerate(data.values()):
        every = [tree for trees in record.trees for tree in trees]
        leaves = LeafOrdinals.of(every, rows.X)
        rng = np.random.default_rng(np.random.SeedSequence([3, number, 1, 302]))
        parts.append(
            record.combiner.local(
                record.combiner.initial().candidates,
                Rows(leaves, rows.labels),
                1,
                0,
                rng,
                lambda: None,
            )
        )
    weights = sum(part[1:] for part in parts) / 360
    np.testing.assert_allclose(record.state.solution, weights, atol=1e-6)


# --- silos that are lost, late, empty or odd ------------------------------------------------------


def test_a_silo_of_one_class_and_a_silo_without_rows_take_part():
    data = silos(Task.BINARY, 4)
    data["s01"] = Dataset(data["s01"].schema, data["s01"].X, np.ones(data["s01"].n_samples))
    data["s02"] = table(Task.BINARY, 0, 1)
    for combiner in ("cnn", "logit_ridge", "leaves"):
        outcome = run_in_memory(job(Task.BINARY, small(combiner=combiner)), data)
        assert outcome.error is None
        assert not outcome.errors
        model = StackedModel.load(outcome.artefact.files)
        assert model.silos == ("s00", "s01", "s03")
        assert np.isfinite(model.margins(data["s00"].X)).all()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_silo_lost_in_a_round_is_left_out_and_its_trees_stay(when):
    data = silos(Task.BINARY, 3)
    outcome = run_in_memory(
        job(Task.BINARY, small(), min_silos=2),
        data,
        faults=(Fault("s01", "weights", round=2, when=when),),
    )
    assert outcome.error is None
    assert [silo for silo, _ in outcome.lost] == ["s01"]
    assert outcome.rounds[-1].silos == ("s00", "s02")
    assert StackedModel.load(outcome.artefact.files).silos == ("s00", "s01", "s02")


def test_a_silo_lost_in_round_zero_has_no_block():
    outcome = run_in_memory(
        job(Task.BINARY, small(), min_silos=2),
        silos(Task.BINARY, 3),
        faults=(Fault("s01", "trees"),),
    )
    model = StackedModel.load(outcome.artefact.files)
    assert model.silos == ("s00", "s02")
    assert len(model.ensemble.trees) == 8  # each silo made 12 / 3


def test_too_few_silos_end_the_attempt():
    outcome = run_in_memory(
        job(Task.BINARY, small(), min_silos=3),
        silos(Task.BINARY, 3),
        faults=(Fault("s01", "weights", round=1),),
    )
    assert isinstance(outcome.error, QuorumLost)


class Paced:
    """A federation whose coordinator half goes on when the test says so."""

    def __init__(self, task: JobParameters, data: dict[str, Dataset], present: tuple[str, ...]):
        self.job, self.data = task, {Silo(name): rows for name, rows in data.items()}
        self.roster = tuple(sorted(self.data))
        self.hub = Rendezvous(self.roster, tuple(map(Silo, present)), 60.0)
        self.schema = next(iter(data.values())).schema
        n_samples = {name: rows.n_samples for name, rows in self.data.items()}
        start = CoordinatorStart(task, "job", 1, self.roster, self.schema, n_samples)
        self.half = task.strategy.coordinate(task.parameters, self.hub, start)

    def offers_of_round(self, number: int) -> int:
        """Count the silos that have made their first offer of a round."""
        at = Place(number)
        return self.hub.standing("weights", at)[0] + self.hub.standing("sums", at)[0]

    def silo(self, name: str, *faults: Fault) -> asyncio.Future[None]:
        """Start a silo's half in a thread."""
        silo = Silo(name)
        self.hub.join(silo)
        link = MemoryLink(silo, self.hub, asyncio.get_running_loop(), True, faults)
        start = SiloStart(self.job, "job", 1, silo, self.roster, self.schema, self.data[silo])
        return asyncio.ensure_future(
            asyncio.to_thread(self.job.strategy.participate, self.job.parameters, link, None, start)
        )


@pytest.mark.parametrize("combiner", ["cnn", "leaves"])
async def test_a_late_silo_adds_no_trees_but_trains_the_head(combiner):
    task = job(Task.BINARY, small(combiner=combiner, rounds=4), min_silos=2)
    paced = Paced(task, silos(Task.BINARY, 3), ("s00", "s01"))
    halves = [paced.silo("s00"), paced.silo("s01")]
    results = [await anext(paced.half), await anext(paced.half)]
    halves.append(paced.silo("s02"))
    while paced.offers_of_round(2) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    results += [result async for result in paced.half]
    await asyncio.gather(*halves)
    assert [len(result.silos) for result in results] == [2, 2, 3, 3, 3]
    artefact = task.strategy.artefact(task.parameters, task, paced.schema, results[-1].checkpoint)
    assert StackedModel.load(artefact.files).silos == ("s00", "s01")


@pytest.mark.parametrize("combiner", ["cnn", "logit_ridge", "leaves"])
async def test_a_silo_that_returns_without_memory_goes_on_beside_its_trees(combiner):
    task = job(Task.BINARY, small(combiner=combiner, rounds=4), min_silos=2)
    paced = Paced(task, silos(Task.BINARY, 3), ("s00", "s01", "s02"))
    step = "weights" if combiner == "cnn" else "sums"
    lost = paced.silo("s02", Fault("s02", step, round=1))
    halves = [paced.silo("s00"), paced.silo("s01")]
    results = [await anext(paced.half)]
    pull = asyncio.ensure_future(anext(paced.half))
    with pytest.raises(SiloKilled):
        await lost
    paced.hub.drop(Silo("s02"), "killed by the test")
    results.append(await pull)
    halves.append(paced.silo("s02"))
    while paced.offers_of_round(2) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    results += [result async for result in paced.half]
    await asyncio.gather(*halves)
    rounds = [3, 2] + [3] * task.parameters.n_rounds
    assert [len(result.silos) for result in results] == rounds[: task.parameters.n_rounds + 1]
    artefact = task.strategy.artefact(task.parameters, task, paced.schema, results[-1].checkpoint)
    assert StackedModel.load(artefact.files).silos == ("s00", "s01", "s02")


async def test_a_silo_that_comes_before_the_trees_are_in_takes_part_from_the_start():
    task = job(Task.REGRESSION, small(combiner="ridge"), min_silos=2)
    paced = Paced(task, silos(Task.REGRESSION, 3), ("s00", "s01"))
    pull = asyncio.ensure_future(anext(paced.half))
    halves = [paced.silo("s00")]
    await asyncio.sleep(0)
    halves += [paced.silo("s02"), paced.silo("s01")]
    first = await pull
    assert set(first.silos) >= {"s00", "s01"}
    results = [first, *[result async for result in paced.half]]
    await asyncio.gather(*halves)
    assert results[-1].silos == ("s00", "s01", "s02")


@pytest.mark.parametrize("combiner", ["cnn", "leaves", "logit_ridge"])
def test_a_restarted_coordinator_goes_on_to_the_same_result(combiner):
    task = job(
        Task.BINARY,
        small(combiner=combiner, rounds=4, server_optimiser="fedadam", server_rate=0.01),
    )
    data = silos(Task.BINARY, 3)
    whole = run_in_memory(task, data)
    half = run_in_memory(task, data, stop_after_rounds=2)
    rest = run_in_memory(
        task, data, checkpoint=half.rounds[-1].checkpoint, first_round=2, attempt=2
    )
    assert rest.rounds[0].round == 2
    assert rest.rounds[-1].checkpoint == whole.rounds[-1].checkpoint


# --- choices on validation rows -------------------------------------------------------------------


@pytest.mark.parametrize(("task", "combiner"), CASES)
def test_the_best_round_on_validation_rows_is_the_result(task, combiner):
    outcome = run_in_memory(
        job(task, small(combiner=combiner, validation=0.3, rounds=4)),
        silos(task, 3, n=200),
        through_wire=True,
    )
    assert outcome.error is None
    if combiner == "mean":
        return
    first = validation_metrics(job(task, small()))[0]
    scores = [r.metrics["valid"][first] for r in outcome.rounds[1:]]
    pick = np.argmin if not higher_is_better(first) else np.argmax
    assert outcome.rounds[-1].best_round == 1 + int(pick(scores))
    names = validation_metrics(job(task, small()))
    assert set(outcome.rounds[-1].metrics["valid"]) == set(names)


def test_early_stopping_ends_after_the_rounds_without_progress():
    outcome = run_in_memory(
        job(
            Task.REGRESSION,
            small(
                rounds=60,
                epochs=30,
                validation=0.3,
                early_stopping_rounds=2,
                learning_rate=0.02,
                channels=16,
            ),
        ),
        silos(Task.REGRESSION, 2, n=80),
    )
    last = outcome.rounds[-1]
    assert last.final
    assert last.round < 60
    assert last.round == last.best_round + 2


def test_epochs_are_chosen_in_the_first_round_and_kept():
    task = job(Task.BINARY, small(epoch_choices=(1, 40), validation=0.3, rounds=3))
    data = silos(Task.BINARY, 2, n=300)
    outcome = run_in_memory(task, data, through_wire=True)
    assert outcome.error is None
    record = Record.decode(task.parameters, task, data["s00"].schema, outcome.rounds[-1].checkpoint)
    assert record.choice in (0, 1)
    assert record.state.candidates.shape[0] == 1
    alone = [
        run_in_memory(job(Task.BINARY, small(epochs=e, validation=0.3, rounds=3)), data)
        .rounds[1]
        .metrics["valid"]["logloss"]
        for e in (1, 40)
    ]
    assert record.choice == int(np.argmin(alone))


def test_penalties_are_chosen_on_validation_rows():
    task = job(Task.REGRESSION, small(combiner="ridge", validation=0.3))
    data = silos(Task.REGRESSION, 2, n=200)
    outcome = run_in_memory(task, data, through_wire=True)
    record = Record.decode(task.parameters, task, data["s00"].schema, outcome.rounds[-1].checkpoint)
    each = [
        run_in_memory(
            job(Task.REGRESSION, small(combiner="ridge", validation=0.3, penalty=p)), data
        )
        for p in (1.0, 10.0, 100.0, 1000.0)
    ]
    scores = [o.rounds[-1].metrics["valid"]["rmse"] for o in each]
    assert record.choice == int(np.argmin(scores))
    assert outcome.rounds[-1].metrics["valid"]["rmse"] == pytest.approx(min(scores))


# --- server optimisers, smaller messages ---------------------------------------------------------


def test_server_momentum_zero_and_rate_one_is_plain_averaging():
    data = silos(Task.BINARY, 2)
    plain, momentum = (
        run_in_memory(job(Task.BINARY, small(**given)), data)
        for given in ({}, {"server_optimiser": "fedavgm", "server_momentum": 0.0})
    )
    X = data["s00"].X
    np.testing.assert_allclose(margins_of(plain, X), margins_of(momentum, X), atol=1e-4)


@pytest.mark.parametrize("optimiser", ["fedavgm", "fedadam"])
def test_server_optimisers_lower_the_loss(optimiser):
    rate = 0.01 if optimiser == "fedadam" else 1.0
    outcome = run_in_memory(
        job(
            Task.BINARY,
            small(
                server_optimiser=optimiser,
                server_rate=rate,
                server_momentum=0.5,
                rounds=8,
                epochs=5,
            ),
        ),
        silos(Task.BINARY, 2, n=300),
        test=table(Task.BINARY, 300, 96),
    )
    losses = [r.metrics["test"]["logloss"] for r in outcome.rounds[1:]]
    assert losses[-1] < losses[0]


def traffic(task: JobParameters, data, **rest):
    """Return the outcome and the bytes of all payloads, up and down, by step."""
    sizes: dict[str, int] = {}
    original = memory.through_wire

    def counted(payload):
        codec = codec_of(type(payload))
        frames = sum(len(m.SerializeToString()) for m in codec.encode(payload))
        names = sorted(payload.arrays)
        sizes[names[0] if names else ""] = sizes.get(names[0] if names else "", 0) + frames
        return original(payload)

    memory.through_wire = counted
    try:
        outcome = run_in_memory(task, data, through_wire=True, **rest)
    finally:
        memory.through_wire = original
    return outcome, sum(sizes.values())


@pytest.mark.parametrize(
    "smaller",
    [{"weight_bits": 8}, {"weight_bits": 4}, {"leaf_bits": 16}],
    ids=str,
)
def test_options_that_shrink_messages_keep_the_result_close(smaller):
    task, data = Task.REGRESSION, silos(Task.REGRESSION, 3, n=400)
    test = table(task, 500, 95)
    rest = {"metrics": ("mse",), "booster": Booster(eta=0.3, max_depth=6)}
    exact, bytes_exact = traffic(job(task, small(trees=45), **rest), data, test=test)
    small_one, bytes_small = traffic(job(task, small(trees=45, **smaller), **rest), data, test=test)
    assert small_one.error is None
    assert bytes_small < bytes_exact
    score, other = (o.rounds[-1].metrics["test"]["mse"] for o in (exact, small_one))
    assert other < 1.15 * score


def test_with_shared_cuts_every_threshold_is_a_cut_that_all_silos_know():
    task, data = Task.REGRESSION, silos(Task.REGRESSION, 3, n=200)
    parameters = job(task, small(shared_cuts=8, combiner="mean"))
    outcome = run_in_memory(parameters, data, through_wire=True)
    record = Record.decode(
        parameters.parameters, parameters, data["s00"].schema, outcome.rounds[-1].checkpoint
    )
    assert record.agreed.cuts is not None
    exact = run_in_memory(job(task, small(combiner="mean")), data)
    own = job(task, small(combiner="mean"))
    plain = Record.decode(own.parameters, own, data["s00"].schema, exact.rounds[-1].checkpoint)
    sizes = [sum(u["trees"].nbytes for u in r.uploads.values()) for r in (record, plain)]
    assert sizes[0] < sizes[1]
    for tree in (tree for trees in record.trees for tree in trees):
        numeric = ~tree.is_leaf
        numeric[[node for node, _ in tree.categories]] = False
        for node in np.flatnonzero(numeric):
            assert tree.threshold[node] in record.agreed.cuts[tree.feature[node]]


# --- secure sums ----------------------------------------------------------------------------------


def secure_run(task: JobParameters, data, **rest):
    authority = Authority()
    return run_in_memory(
        task,
        data,
        vaults=lambda _: LocalVault(),
        identities=lambda silo: TestIdentity(authority, silo),
        **rest,
    )


@pytest.mark.parametrize(
    ("task", "combiner"),
    [
        (Task.BINARY, "cnn"),
        (Task.REGRESSION, "ridge"),
        (Task.REGRESSION, "leaves"),
        (Task.MULTICLASS, "logit_ridge"),
    ],
)
def test_secure_sums_give_the_result_of_plain_sums(task, combiner):
    data = silos(task, 4)
    given = {"combiner": combiner, "validation": 0.2, "rounds": 2}
    plain = run_in_memory(job(task, small(**given), min_silos=3), data)
    secure = secure_run(
        job(task, small(**given, secure=True), min_silos=3), data, through_wire=True
    )
    assert secure.error is None
    assert not secure.errors
    X = data["s00"].X
    np.testing.assert_allclose(margins_of(secure, X), margins_of(plain, X), atol=2e-3)


def test_a_silo_lost_under_secure_sums_is_left_out():
    data = silos(Task.BINARY, 5)
    outcome = secure_run(
        job(Task.BINARY, small(secure=True), min_silos=3),
        data,
        faults=(Fault("s03", "weights-sum-masked", round=2),),
    )
    assert outcome.error is None
    assert "s03" not in outcome.rounds[-1].silos
    assert len(outcome.rounds[-1].silos) == 4


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "task", "says"),
    [
        ({"combiner": "cmn"}, Task.BINARY, "combiner"),
        ({"combiner": "ridge"}, Task.BINARY, "logit_ridge"),
        ({"combiner": "logit_ridge"}, Task.REGRESSION, "ridge"),
        ({"trees": 0}, Task.BINARY, "trees"),
        ({"epochs": 0}, Task.BINARY, "epochs"),
        ({"validation": 0.9}, Task.BINARY, "validation"),
        ({"early_stopping_rounds": 3}, Task.BINARY, "validation > 0"),
        ({"epoch_choices": (1, 2)}, Task.BINARY, "validation > 0"),
        ({"epoch_choices": (2,), "validation": 0.2, "combiner": "mean"}, Task.BINARY, "epochs"),
        ({"weight_bits": 8, "combiner": "leaves"}, Task.BINARY, "weight_bits"),
        ({"weight_bits": 16}, Task.BINARY, "weight_bits"),
        ({"leaf_bits": 8}, Task.BINARY, "leaf_bits"),
        ({"leaf_bits": 16, "scrub": "none"}, Task.BINARY, "leaf_bits"),
        ({"secure": True}, Task.BINARY, "min_silos"),
        ({"scale_target": True}, Task.BINARY, "scale_target"),
        ({"scrub": "all"}, Task.BINARY, "scrub"),
        ({"server_optimiser": "sgd"}, Task.BINARY, "server_optimiser"),
    ],
    ids=str,
)
def test_unusable_parameters_are_refused_by_name(given, task, says):
    with pytest.raises(InvalidJob, match=says):
        small(**given).validate(job(task, small()))


def test_objectives_whose_margins_a_head_does_not_fit_are_refused():
    task = job(Task.REGRESSION, small(), booster=Booster(objective="count:poisson"))
    with pytest.raises(InvalidJob, match="objective"):
        small().validate(task)


def test_forecast_of_the_papers_setting_counts_the_network_exactly():
    strategy = FedXGBllr()
    task = job(Task.BINARY, strategy, booster=Booster(eta=0.1, max_depth=8))
    schema = table(Task.BINARY, 2, 0).schema
    plan = strategy.forecast(task, schema, {f"s{i}": 2442 for i in range(10)})
    _, up, down = plan.steps["ExchangeWeights"]
    assert 10 * 4 * 3905 <= up <= 10 * (4 * 3905 + 100)
    assert 10 * 4 * 3905 <= down <= 10 * (4 * 3905 + 100)
    assert plan.rounds == 11
    assert "network: 3905 weights" in plan.notes
    assert plan.reveals == strategy.reveals


@pytest.mark.parametrize(("n_silos", "alpha", "gamma"), [(3, 0.0, 0.0), (10, 5.0, 5.0)])
def test_forecast_is_within_a_tenth_of_what_the_default_network_sends(n_silos, alpha, gamma):
    booster = Booster(eta=0.1, max_depth=6, alpha=alpha, gamma=gamma)
    parameters = job(Task.BINARY, FedXGBllr(trees=60, epochs=1), booster=booster)
    data = silos(Task.BINARY, n_silos, n=300)
    outcome, moved = traffic(parameters, data)
    assert outcome.error is None
    plan = parameters.strategy.forecast(
        parameters.parameters,
        parameters,
        data["s00"].schema,
        {name: d.n_samples for name, d in data.items()},
    )
    # traffic() sees what is the same for several silos, a reply, as often as it is sent
    planned = n_silos * sum(up + down for _, up, down in plan.steps.values())
    assert moved == pytest.approx(planned, rel=0.1)


@pytest.mark.parametrize(("task", "combiner"), CASES)
def test_forecast_counts_a_rounds_vectors_as_they_travel(task, combiner):
    parameters = job(task, small(combiner=combiner))
    data = silos(task, 3)
    sent: dict[str, int] = {}

    def count(payload):
        codec = codec_of(type(payload))
        size = sum(len(m.SerializeToString()) for m in codec.encode(payload))
        for key in ("weights", "sum", "slopes"):
            if key in payload.arrays:
                sent[key] = max(sent.get(key, 0), size)
        return payload

    original = memory.through_wire
    memory.through_wire = count
    try:
        run_in_memory(parameters, data, through_wire=True)
    finally:
        memory.through_wire = original
    plan = parameters.strategy.forecast(
        parameters.parameters,
        parameters,
        data["s00"].schema,
        {name: d.n_samples for name, d in data.items()},
    )
    call = "ExchangeWeights" if parameters.parameters.is_network else "ExchangeSums"
    if combiner == "mean":
        assert plan.steps.get(call, (0, 0, 0))[1] <= 200
    elif combiner != "leaves":
        key = "weights" if parameters.parameters.is_network else "sum"
        a_round = plan.steps[call][1] / parameters.parameters.n_rounds
        assert a_round == pytest.approx(sent[key], rel=0.05, abs=250)
