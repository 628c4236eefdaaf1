"""Boosting over public structures, both halves: what it learns, tells, charges and refuses."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xgboost

from hedgerow.boosting.budget import BudgetLedger, epsilon_of
from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.errors import InvalidJob, OfferRejected
from hedgerow.boosting.exchange import ExchangeKey, Silo
from hedgerow.boosting.job import Booster, ColumnRules
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.private_boost import silo as silo_half
from hedgerow.boosting.strategies.private_boost.artefact import Boosted, artefact
from hedgerow.boosting.strategies.private_boost.mechanism import Mechanism
from hedgerow.boosting.strategies.private_boost.parameters import PrivateBoost
from hedgerow.boosting.strategies.private_boost.steps import BoostedTrees
from hedgerow.boosting.sums.answers import NoisyRelease
from hedgerow.boosting.sums.records import UnmaskingAt, UnmaskingRecord
from hedgerow.boosting.tables import to_dataset
from hedgerow.boosting.trees import loading
from hedgerow.coordinator.operator.report.effects import MISSING, Effect, effects
from hedgerow.coordinator.operator.report.trees import NodeNames
from hedgerow.crypto.vault.local_vault import LocalVault
from tests.federation.memory import Fault, KeyedIdentity, Outcome, run_in_memory
from tests.oracles import PLAIN_TASKS

RANGES = tuple((name, (-3.0, 3.0)) for name in "abc")
COLUMNS = ColumnRules(ranges=RANGES, levels=(("kind", ("u", "v", "w")),))
QUICK = PrivateBoost(trees=18, depth=3, trees_per_exchange=6)
NOISY = PrivateBoost(4.0, 1e-4, trees=24, depth=3, trees_per_exchange=4)


def rows_of(seed: int, n: int, task: Task = Task.BINARY) -> Dataset:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)).astype(np.float32)
    X[:, 3] = rng.integers(0, 3, n)
    X[rng.random(n) < 0.1, 0] = np.nan
    signal = np.nan_to_num(X[:, 0]) + X[:, 1] * (X[:, 3] == 1) + rng.normal(0, 0.3, n)
    y, n_classes = signal.astype(np.float64), 0
    if task is not Task.REGRESSION:
        y = np.digitize(signal, [0.0] if task is Task.BINARY else [-0.5, 0.5]).astype(np.float64)
        n_classes = 2 if task is Task.BINARY else 3
    features = (*map(Feature, "abc"), Feature("kind", ("u", "v", "w")))
    return Dataset(Schema(features, "label", task, n_classes), X, y)


def silos_of(n: int = 400, n_silos: int = 3, **other: Any) -> dict[str, Dataset]:
    return {f"s{k}": rows_of(k, n + 7 * k, **other) for k in range(n_silos)}


def job_of(parameters: PrivateBoost, task: Task = Task.BINARY, **other: Any) -> JobParameters:
    columns = COLUMNS
    if task is Task.REGRESSION:
        columns = replace(columns, ranges=(*RANGES, ("label", (-4.0, 4.0))))
    # Tests of losses are of five silos: groups have tests of their own.
    told = {"columns": columns, "seed": 5, "max_close_sums": 9, **other}
    job = JobParameters("test", parameters, task=task, **told)
    job.parameters.validate(job)
    return job


def run(parameters: PrivateBoost, silos: dict[str, Dataset], **other: Any) -> Outcome:
    task = next(iter(silos.values())).schema.task
    of_job = {key: other.pop(key) for key in ("min_silos", "columns", "seed") if key in other}
    job = job_of(parameters, task, **of_job)
    return run_in_memory(job, silos, identities=KeyedIdentity, **other)


def model_of(outcome: Outcome) -> bytes:
    assert outcome.error is None, outcome.error
    assert not outcome.errors, outcome.errors
    assert not outcome.rejected, "silos refuse the model that they have made"
    assert outcome.artefact is not None
    return outcome.artefact.files["model.ubj"]


def predicted(model: bytes, data: Dataset) -> np.ndarray:
    booster = xgboost.Booster(model_file=bytearray(model))
    types = data.schema.feature_types
    rows = xgboost.DMatrix(data.X, feature_types=types, enable_categorical=True)
    found: np.ndarray = booster.predict(rows, output_margin=True, validate_features=False)
    return found


def effects_of(model: bytes, silos: dict[str, Dataset]) -> list[Effect]:
    ensemble, schema = loading.load(model), next(iter(silos.values())).schema
    names = NodeNames.of(schema)
    found = effects(ensemble.trees, names, ensemble.attributes)
    assert found is not None
    return found


@pytest.mark.parametrize("task", PLAIN_TASKS)
@pytest.mark.parametrize("drawn", [{}, {"splits": "node"}, {"structure": "cyclic"}], ids=str)
def test_without_a_budget_the_model_is_that_of_all_rows_in_one_place(
    task: Task, drawn: dict[str, str]
) -> None:
    silos = silos_of(task=task)
    parameters = replace(QUICK, **drawn)  # type: ignore[arg-type]
    model = model_of(run(parameters, silos, through_wire=True))
    parts = list(silos.values())
    pooled = Dataset(
        parts[0].schema,
        np.concatenate([part.X for part in parts]),
        np.concatenate([part.labels for part in parts]),
    )
    assert model == model_of(run(replace(parameters, secure=False), {"all": pooled}))
    assert model == model_of(run(replace(parameters, dropout_recovery=False), silos))
    job = job_of(parameters, task)
    plan = Mechanism(parameters, job, pooled.schema, 3)
    margins = plan.start_margins(pooled.n_samples)
    codes = plan.domain.codes(pooled.X)
    keys = plan.keys(codes, pooled.labels)
    for batch in range(plan.n_batches):
        leaves = plan.leaves(batch, codes)
        sums = plan.read(batch, plan.sums(batch, leaves, margins, pooled.labels, keys))
        plan.add(batch, leaves, margins, plan.leaf_values(batch, sums, 3))
    assert np.allclose(
        predicted(model, pooled).reshape(margins.shape), margins, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("task", PLAIN_TASKS)
@pytest.mark.parametrize("epsilon", [None, 6.0])
def test_curves_of_a_cyclic_model_add_up_to_its_margins(task: Task, epsilon: float | None) -> None:
    silos = silos_of(task=task)
    budget = {} if epsilon is None else {"epsilon": epsilon, "delta": 1e-5}
    parameters = PrivateBoost(**budget, trees=30, depth=3, structure="cyclic")  # type: ignore[arg-type]
    ensemble = loading.load(model_of(run(parameters, silos)))
    data = next(iter(silos.values()))
    categories = tuple(tuple(f.categories or ()) for f in data.schema.features)
    steps = effects_of(ensemble.save(), silos)
    used = {step.feature for step in steps}
    assert len(used) > 1
    margins = np.tile(ensemble.base_margins(1), (data.n_samples, 1)).astype(np.float64)
    for step in steps:
        k = data.schema.names.index(step.feature)
        column = data.X[:, k]
        if step.at == MISSING:
            here = np.isnan(column)
        elif categories[k]:
            here = column == categories[k].index(step.at)
        else:
            here = ~np.isnan(column)
            here &= column >= (-np.inf if step.least is None else step.least)
            here &= column < (np.inf if step.below is None else step.below)
        margins[here, step.group] += step.value
        assert (step.deviation is None) == (epsilon is None)
        assert step.deviation is None or 0.0 < step.deviation < 5.0
    expected = predicted(ensemble.save(), data).reshape(margins.shape)
    assert np.allclose(margins, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("task", PLAIN_TASKS)
def test_a_curve_moves_by_the_deviation_that_it_states(task: Task) -> None:
    """Over draws of the noise of three silos, two of whose parts make the whole noise."""
    parameters = PrivateBoost(2.0, 1e-5, trees=2, depth=2, structure="cyclic")
    data = rows_of(1, 20_000, task)
    job = job_of(parameters, task)
    plan, rng = Mechanism(parameters, job, data.schema, 3), np.random.default_rng(0)
    codes = plan.domain.codes(data.X)
    margins, keys = plan.start_margins(data.n_samples), plan.keys(codes, data.labels)
    exact = plan.sums(0, plan.leaves(0, codes), margins, data.labels, keys)
    names = NodeNames.of(data.schema)
    drawn, stated = [], []
    for _ in range(400):
        noise = rng.normal(0, math.sqrt(plan.variance * 3 / 2), exact.shape)
        sums = plan.read(0, exact + np.rint(noise).astype(np.int64))
        values = plan.leaf_values(0, sums, 3)
        state = Boosted(1, values, sums.reshape(-1), np.array([3 / 2]))
        files = artefact(parameters, job, data.schema, state.encode()).files
        found = loading.load(files["model.ubj"])
        curves = effects(found.trees, names, found.attributes)
        assert curves is not None
        drawn.append([step.value for step in curves])
        stated.append([step.deviation or 0.0 for step in curves])
    ratio = np.std(drawn, axis=0) / np.mean(stated, axis=0)
    moved = np.std(drawn, axis=0) > 0
    assert moved.sum() > 3
    assert (ratio[moved] > 0.85).all(), ratio
    assert (ratio[moved] < 1.15).all(), ratio


def test_small_gradients_of_a_rare_class_come_to_their_sum() -> None:
    for parameters in (QUICK, NOISY):
        data = rows_of(0, 50_000)
        plan = Mechanism(parameters, job_of(parameters), data.schema, 3)
        labels = np.zeros(data.n_samples)
        keys = plan.keys(plan.domain.codes(data.X), labels)
        p = 2.0**-plan.grid_bits / 5  # a fifth of the grid: to the nearest it is nothing
        margins = np.full((data.n_samples, 1), math.log(p / (1 - p)), np.float32)
        sums = [
            plan.rows(batch, margins, labels, keys)[:, 0].sum() / 2**plan.grid_bits
            for batch in range(4)
        ]
        assert len(set(sums)) == 4
        assert abs(np.mean(sums) / (p * data.n_samples * plan.units[0]) - 1) < 0.03


def test_a_model_whose_trees_ask_of_several_features_has_no_curves() -> None:
    silos = silos_of()
    ensemble = loading.load(model_of(run(QUICK, silos)))
    schema = next(iter(silos.values())).schema
    names = NodeNames.of(schema)
    assert effects(ensemble.trees, names) is None


@pytest.mark.parametrize("task", PLAIN_TASKS)
def test_it_learns_with_and_without_noise(task: Task) -> None:
    silos, test = silos_of(1500, task=task), rows_of(99, 1000, task)
    noisy = PrivateBoost(6.0, 1e-5, trees=80, depth=3, trees_per_exchange=4)
    for parameters in (PrivateBoost(trees=160, depth=4), noisy):
        found = run(parameters, silos, test=test)
        model_of(found)
        scores = found.rounds[-1].metrics["test"]
        if task is Task.REGRESSION:
            assert scores["rmse"] < 0.6 * float(np.std(test.labels))
        else:
            assert scores.get("auc", 0.0) > 0.85 or scores.get("mlogloss", 9.0) < 0.7


def test_the_model_says_how_private_it_is_and_the_account_agrees() -> None:
    silos = silos_of()
    ledgers = {silo: BudgetLedger(4.0, delta=1e-4) for silo in silos}
    outcome = run(NOISY, silos, accountants=ledgers)
    booster = xgboost.Booster(model_file=bytearray(model_of(outcome)))
    assert (booster.attr("epsilon"), booster.attr("delta")) == ("4.0", "0.0001")
    assert booster.attr("privacy_unit") == "row"
    assert outcome.artefact is not None
    told = json.loads(outcome.artefact.files["epsilon-ledger.json"])
    assert 3.3 < told["spent"] <= 4.0
    for ledger in ledgers.values():
        assert float(ledger.spent) == told["spent"]
        assert len(ledger.entries) == 6


def test_the_sum_over_all_silos_has_the_noise_that_is_charged() -> None:
    job = job_of(replace(NOISY, trees=8, depth=5, trees_per_exchange=8, honest=3))
    silos = silos_of(n_silos=4)
    plan = Mechanism(job.parameters, job, rows_of(0, 5).schema, 4)  # type: ignore[arg-type]
    exact = np.zeros(plan.n_values(0), np.int64)
    for data in silos.values():
        leaves = plan.leaves(0, plan.domain.codes(data.X))
        keys = plan.keys(plan.domain.codes(data.X), data.labels)
        exact += plan.sums(0, leaves, plan.start_margins(data.n_samples), data.labels, keys)
    noise = []
    for _ in range(6):  # each with keys of its own
        outcome = run(job.parameters, silos)  # type: ignore[arg-type]
        assert outcome.artefact is not None
        kept = outcome.rounds[-1].checkpoint
        units = np.repeat(np.tile(plan.units, 8), plan.n_leaves)
        total = Boosted.decode(kept).sums / units * 2.0**plan.grid_bits
        noise.append(np.rint(total).astype(np.int64) - exact)
    found = np.concatenate(noise).astype(np.float64)
    expected = plan.variance * 4 / 3
    assert abs(found.var() / expected - 1) < 5 * math.sqrt(2 / len(found))
    assert abs(found.mean()) < 5 * math.sqrt(expected / len(found))


def test_no_row_adds_more_than_is_charged_for() -> None:
    rng = np.random.default_rng(0)
    for task in (Task.BINARY, Task.MULTICLASS, Task.REGRESSION):
        job = job_of(NOISY, task)
        plan = Mechanism(NOISY, job, rows_of(0, 5, task).schema, 3)
        margins = (10 ** rng.uniform(-3, 5, (4000, plan.n_outputs))).astype(np.float32)
        margins *= rng.choice([-1, 1], margins.shape).astype(np.float32)
        margins[:2] = [[np.inf], [-np.inf]]
        labels = rng.integers(0, max(2, plan.n_outputs), 4000).astype(np.float64)
        if task is Task.REGRESSION:
            labels = rng.normal(size=4000) * 1e6
        keys = rng.integers(0, 1 << 63, 4000).astype(np.uint64)
        rows = plan.rows(3, margins, labels, keys)
        square, absolute = plan.sensitivities(1)
        assert int((rows**2).sum(axis=1).max()) <= square
        assert int(np.abs(rows).sum(axis=1).max()) <= absolute
        spent = plan.rho * (plan.n_batches + NOISY.repeats)
        assert epsilon_of(spent, 1e-4) <= 4.0
        assert epsilon_of(spent * 1.01, 1e-4) > 3.99


def test_gradients_of_several_classes_are_read_without_what_only_noise_can_be() -> None:
    data = rows_of(0, 2000, Task.MULTICLASS)
    plan = Mechanism(NOISY, job_of(NOISY, Task.MULTICLASS), data.schema, 3)
    codes, margins = plan.domain.codes(data.X), plan.start_margins(data.n_samples)
    keys = plan.keys(codes, data.labels)
    exact = plan.sums(0, plan.leaves(0, codes), margins, data.labels, keys)
    rng = np.random.default_rng(0)
    noise = np.rint(rng.normal(0, math.sqrt(plan.variance), (400, exact.size))).astype(np.int64)
    read = np.array([plan.read(0, exact + one) for one in noise])
    assert np.abs(read[:, :, 0].sum(axis=2)).max() < 1e-9
    for at, stated in enumerate((plan.deviation, plan.hessian_deviation)):
        assert abs(read[:, :, at].std(axis=0).mean() / stated - 1) < 0.02
    mean = read[:, :, 0].mean(axis=0)
    assert np.abs(mean - plan.read(0, exact)[:, 0]).max() < 6 * plan.deviation / 20
    steps = []
    for trees in (300, 600):
        parameters = replace(NOISY, trees=trees, trees_per_exchange=2)
        job = job_of(parameters, Task.MULTICLASS)
        steps.append(Mechanism(parameters, job, data.schema, 3).step_of(2))
    assert steps == [0.5, 0.25]


def test_the_structure_depends_on_no_row() -> None:
    one, other = (model_of(run(QUICK, silos_of(n))) for n in (50, 400))
    first, second = (
        json.loads(xgboost.Booster(model_file=bytearray(m)).save_raw("json"))["learner"]
        for m in (one, other)
    )
    for a, b in zip(
        first["gradient_booster"]["model"]["trees"],
        second["gradient_booster"]["model"]["trees"],
        strict=True,
    ):
        inner = np.array(a["left_children"]) >= 0
        for key in ("split_indices", "default_left", "left_children"):
            assert a[key] == b[key]
        assert a["categories"] == b["categories"]
        assert (np.array(a["split_conditions"]) == b["split_conditions"])[inner].all()


def test_values_out_of_range_are_at_its_ends_and_missing_ones_have_a_side() -> None:
    job = job_of(QUICK)
    domain = Mechanism(QUICK, job, rows_of(0, 5).schema, 3).domain
    X = np.array([[3.0], [99.0], [-3.0], [-99.0], [np.nan]], np.float32).repeat(4, axis=1)
    X[:, 3] = 0
    codes = domain.codes(X)
    assert (codes[0] == codes[1])[:3].all()
    assert (codes[2] == codes[3])[:3].all()
    sides = {
        bool(structure.right[0, -1])
        for t in range(40)
        for structure in [domain.structure(5, t, 1, by_node=False)]
    }
    assert sides == {True, False}
    assert codes[4, 0] not in codes[:4, 0]


@pytest.mark.parametrize("secure", [True, False])
def test_the_same_question_has_the_same_noise_and_any_other_has_not(
    secure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    silos = silos_of()
    asked: list[tuple[bytes, tuple[str, ...], list[int]]] = []
    answer = NoisyRelease.answer

    def watched(self: NoisyRelease, query: bytes, parts: Any, **other: Any) -> Any:
        found = answer(self, query, parts, **other)
        again = answer(self, query, parts, **other)
        assert [one.tolist() for one in found] == [one.tolist() for one in again]
        noise = (found[0] - parts[0][1]).tolist()
        changed = answer(self, query + b"!", parts, **other)
        assert (changed[0] - parts[0][1]).tolist() != noise
        fewer = answer(self, query, parts, silos=("x",), honest=other["honest"])
        assert (fewer[0] - parts[0][1]).tolist() != noise
        asked.append((query, other["silos"], noise))
        return found

    monkeypatch.setattr(silo_half.NoisyRelease, "answer", watched)
    ledgers = {silo: BudgetLedger(math.inf, delta=1e-4) for silo in silos}
    model_of(run(replace(NOISY, secure=secure), silos, accountants=ledgers))
    assert len({str(noise) for *_, noise in asked}) == len(asked) == 18
    assert {len(ledger.entries) for ledger in ledgers.values()} == {18}  # three each, once


def test_a_resumed_job_asks_the_same_and_gives_the_same_bytes() -> None:
    for parameters in (QUICK, replace(NOISY, epsilon=9.0)):
        silos = silos_of()
        memories: dict[str, dict[str, bytes]] = {silo: {} for silo in silos}
        whole = run(parameters, silos, memories=memories)
        again = run(
            parameters, silos, memories={silo: {} for silo in silos},
            checkpoint=whole.rounds[1].checkpoint, first_round=2, attempt=2,
        )  # fmt: skip
        if parameters is QUICK:
            assert model_of(whole) == model_of(again)
        assert [one.round for one in again.rounds] == [
            one.round for one in whole.rounds if one.round > 1
        ]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_silo_is_left_out_and_the_noise_stays_whole(when: str) -> None:
    silos = silos_of(n_silos=5)
    fault = Fault("s2", "leaf-sums-masked", 2, when=when)
    outcome = run(replace(NOISY, honest=3), silos, faults=(fault,))
    assert outcome.error is None
    assert outcome.rounds[-1].final
    assert "s2" not in outcome.rounds[-1].silos
    outcome = run(replace(NOISY, honest=4), silos, faults=(fault,))
    # Of five silos four make up the noise, and one may be false: none of them may be missing.
    assert outcome.error is not None or when == "after"


def test_a_silo_refuses_more_than_its_tables_budget() -> None:
    silos = silos_of()
    ledgers = {silo: BudgetLedger(4.0, delta=1e-4) for silo in silos}
    model_of(run(NOISY, silos, accountants=ledgers))
    outcome = run(NOISY, silos, accountants=ledgers, seed=6)
    assert outcome.error is not None
    assert len(outcome.rounds) <= NOISY.repeats
    assert "are left" in str(next(iter(outcome.errors.values())))


REFUSED = {
    "delta: expected both": PrivateBoost(1.0),
    "reason: an epsilon of 11": PrivateBoost(11.0, 1e-5),
    "reason: it would have no effect": PrivateBoost(1.0, 1e-5, reason="because"),
    "honest: it would have no effect": PrivateBoost(honest=2),
    "repeats: it would have no effect": PrivateBoost(repeats=2),
    "clip: it would have no effect": PrivateBoost(clip=0.5),
    "dropout_recovery: it would have no": PrivateBoost(secure=False, dropout_recovery=False),
    "structure: expected one of random, cyclic": PrivateBoost(structure="pairs"),
    "splits: it would have no effect": PrivateBoost(structure="cyclic", splits="node"),
    "epsilon: expected 0.001": PrivateBoost(math.inf, 1e-5),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_not_sound_is_refused_by_name(why: str) -> None:
    with pytest.raises(InvalidJob, match=why):
        job_of(REFUSED[why])
    job_of(PrivateBoost(11.0, 1e-5, reason="a rehearsal on invented rows"))


def test_a_domain_that_the_job_does_not_declare_is_refused_with_names() -> None:
    schema = rows_of(0, 5).schema
    for columns, lacking in (
        (replace(COLUMNS, ranges=RANGES[:1]), r"\[columns.ranges\] lacks b, c: "),
        (replace(COLUMNS, levels=()), r"\[columns.levels\] lacks kind: "),
    ):
        job = job_of(NOISY, columns=columns)
        with pytest.raises(InvalidJob, match=lacking):
            job.strategy.layout.validate_for(NOISY, job, schema)  # type: ignore[union-attr]
    job = JobParameters("t", NOISY, task=Task.REGRESSION, columns=COLUMNS)
    with pytest.raises(InvalidJob, match=r"lacks label"):
        Mechanism(NOISY, job, rows_of(0, 5, Task.REGRESSION).schema, 3)
    with pytest.raises(InvalidJob, match=r"follow|eta"):
        job_of(NOISY, booster=Booster(eta=0.1))


@pytest.mark.parametrize("wrong", ["leaves", "bound", "nan", "batch", "bits"])
def test_a_silo_refuses_what_is_no_state_of_the_job(wrong: str) -> None:
    plan = Mechanism(QUICK, job_of(QUICK), rows_of(0, 5).schema, 3)
    fine = np.zeros(plan.n_values(0) // 2, np.float16)
    if wrong in ("bound", "nan"):
        fine[3] = 9.0 if wrong == "bound" else np.nan
    told = fine.view(np.uint16)
    batch = plan.n_batches + 1 if wrong == "batch" else 1
    with pytest.raises(OfferRejected, match="from the coordinator"):
        silo_half.checked_state(
            plan, BoostedTrees(batch, 60 if wrong == "bits" else 9, told[wrong == "leaves" :])
        )


def test_epsilon_against_silos_grows_with_the_parts_that_they_know() -> None:
    plan = Mechanism(NOISY, job_of(NOISY), rows_of(0, 5).schema, 5)
    assert plan.honest == 4
    known = [plan.epsilon_against(parts) for parts in (5, 4, 3, 2, 1, 0)]
    assert known[0] == known[1] <= 4.0
    assert known == sorted(known)
    assert known[4] < 14.0  # a quarter of the noise is a quarter of its variance
    assert math.isinf(known[5])


def test_noise_that_was_opened_over_fewer_silos_is_opened_over_no_others() -> None:
    """Over twelve silos and over nine it would tell three without it."""
    silos = silos_of(n_silos=12)
    vaults = {silo: LocalVault() for silo in silos}
    memories: dict[str, dict[str, bytes]] = {silo: {} for silo in silos}
    ledgers = {silo: BudgetLedger(math.inf, delta=1e-4) for silo in silos}
    away = ("s3", "s4", "s5")
    lost = tuple(Fault(silo, "leaf-sums-masked") for silo in away)
    one = replace(NOISY, trees=4, honest=8)
    kept: dict[str, Any] = {
        "vaults": vaults.__getitem__, "memories": memories, "accountants": ledgers,
    }  # fmt: skip
    first = run(one, silos, faults=lost, **kept)
    again = run(one, silos, attempt=2, **kept)  # they are back, and find the sum closed
    for outcome in (first, again):
        assert outcome.error is None
        assert not {*away} & {*outcome.rounds[0].silos}
    assert set(again.errors) == {*away}
    assert {len(ledger.entries) for ledger in ledgers.values()} == {1}
    for silo in ("s0", "s1"):
        record = next(UnmaskingRecord.parse(raw) for raw in memories[silo].values())
        [(vector, present)] = record.vectors.items()
        noised = UnmaskingAt("", ExchangeKey(0), vector, whole=False, noised=True)
        assert record.forbids(noised, present) is None
        assert record.forbids(noised, tuple(map(Silo, sorted(silos)))) is not None
        assert (
            record.forbids(replace(noised, noised=False), tuple(map(Silo, sorted(silos)))) is None
        )


def test_epsilon_against_silos_has_the_batches_that_may_be_repeated() -> None:
    job = job_of(replace(NOISY, trees=8, repeats=200))
    plan = Mechanism(job.parameters, job, rows_of(0, 10).schema, 5)  # type: ignore[arg-type]
    assert plan.epsilon_against(4) == pytest.approx(4.0, rel=0.01)


@pytest.mark.parametrize("budget", [{}, {"epsilon": 4.0, "delta": 1e-4}], ids=str)
@pytest.mark.parametrize("span", [1e-7, 1.0, 1e9])
def test_labels_of_any_scale_are_learnt(span: float, budget: dict[str, float]) -> None:
    silos = {
        silo: replace_labels(data, data.labels * span)
        for silo, data in silos_of(1500, task=Task.REGRESSION).items()
    }
    test = rows_of(99, 1000, Task.REGRESSION)
    columns = replace(COLUMNS, ranges=(*RANGES, ("label", (-4.0 * span, 4.0 * span))))
    job = replace(
        job_of(PrivateBoost(trees=160, depth=4, **budget), Task.REGRESSION), columns=columns
    )
    outcome = run_in_memory(
        job, silos, identities=KeyedIdentity, test=replace_labels(test, test.labels * span)
    )
    model_of(outcome)
    rmse = outcome.rounds[-1].metrics["test"]["rmse"]
    assert rmse < 0.6 * span * float(np.std(test.labels))


def replace_labels(data: Dataset, labels: np.ndarray) -> Dataset:
    return Dataset(data.schema, data.X, labels)


def test_a_column_with_a_range_is_of_numbers_though_it_is_empty() -> None:
    """Else one row's value would be seen, and draw other trees."""
    one = pa.table({"a": pa.array([None, 3.0]), "label": [0, 1]})
    none = pa.table({"a": pa.nulls(2), "label": [0, 1]})
    rules = ColumnRules(ranges=(("a", (0.0, 9.0)),))
    schemas = [
        to_dataset(t, "t", task=Task.BINARY, label="label", rules=rules).schema for t in (one, none)
    ]
    assert schemas[0] == schemas[1]
    assert schemas[0].features == (Feature("a"),)
