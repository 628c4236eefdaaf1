"""FedGA, both halves: equal to a search in one place, and steady when silos join and leave."""

import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import xgboost

from hedgerow.boosting.budget import BudgetLedger
from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.errors import InvalidJob, OfferRejected
from hedgerow.boosting.exchange import ExchangeKey, Silo
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.fedga.checkpoint import SearchState
from hedgerow.boosting.strategies.fedga.evolution import (
    Generation,
    absorb,
    empty_generation,
    first_brood,
    fitness,
    next_brood,
)
from hedgerow.boosting.strategies.fedga.forecast import forecast
from hedgerow.boosting.strategies.fedga.local_trees import LocalTrees
from hedgerow.boosting.strategies.fedga.packed import PackedStructures
from hedgerow.boosting.strategies.fedga.parameters import FedGA
from hedgerow.boosting.strategies.fedga.silo import SiloSide
from hedgerow.boosting.strategies.fedga.steps import (
    PROPOSALS,
    Proposal,
    SearchTask,
    TreeComparison,
)
from hedgerow.boosting.streams import Purpose, generator
from hedgerow.boosting.trees.cart import fit_structure
from hedgerow.boosting.trees.decision_tree import DecisionTree
from hedgerow.boosting.trees.genetics import keys
from hedgerow.boosting.trees.ranked import rank_table
from hedgerow.boosting.trees.structures import CLASS_SCORES, fitness_of
from hedgerow.crypto.vault.local_vault import LocalVault
from tests.federation.memory import Fault, Outcome, run_in_memory
from tests.federation.planned import plan_and_run

QUICK = FedGA(generations=5, population=12, max_depth=3, epsilon_rows=1e4)


def dataset_of(task: Task, seed: int, n_samples: int) -> Dataset:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_samples, 5)).astype(np.float32)
    X[:, 4] = rng.integers(0, 4, n_samples)
    signal = X[:, 0] * X[:, 1] + (X[:, 4] == 1) + 0.3 * rng.normal(size=n_samples)
    n_classes = {Task.BINARY: 2, Task.MULTICLASS: 3, Task.REGRESSION: 0}[task]
    y = signal.astype(np.float64)
    if n_classes:
        edges = [0.3] if n_classes == 2 else [-0.2, 0.6]
        y = np.digitize(y, edges).astype(np.float64)
    features = (*(Feature(f"x{i}") for i in range(4)), Feature("kind", ("a", "b", "c", "d")))
    return Dataset(Schema(features, "label", task, n_classes), X, y)


def silos_of(task: Task, n_silos: int = 4, n_samples: int = 80) -> dict[str, Dataset]:
    return {f"silo-{i}": dataset_of(task, i, n_samples) for i in range(n_silos)}


def job_of(task: Task = Task.BINARY, strategy: FedGA = QUICK, **other: object) -> JobParameters:
    return JobParameters("test", strategy, task=task, seed=3, **other)  # type: ignore[arg-type]


def pooled_search(job: JobParameters, silos: dict[str, Dataset]) -> Generation:
    """The same search with all silos' rows in one place and no protocol."""
    strategy = job.parameters
    assert isinstance(strategy, FedGA)
    trees = [
        LocalTrees(data, strategy, lambda use, place=place: generator(job.seed, place + 1, 0, use))
        for place, data in enumerate(silos.values())
    ]
    votes = sorted(tree.depth_vote() for tree in trees)
    depth = votes[(len(votes) - 1) // 2]
    own = np.array([tree.cart(depth).structure(depth) for tree in trees])
    rows = np.array([data.n_samples for data in silos.values()], dtype=float)
    generation = empty_generation(own.shape[1])
    brood = first_brood(generator(job.seed, 0, 0, Purpose.BREEDING), strategy, own, 5, depth)
    for of_round in range(strategy.generations):
        # Added up as the coordinator does: structures of equal worth stay in order.
        scores = [n * tree.thousandths(brood) / 1000 for n, tree in zip(rows, trees, strict=True)]
        worth = fitness(sum(scores) / rows.sum(), brood, strategy.node_cost, job.task)
        generation = absorb(generation, brood, worth, strategy.population)
        rng = generator(job.seed, 0, of_round + 1, Purpose.BREEDING)
        brood = next_brood(rng, strategy, generation, 5, own[:0])
    return generation


def last_generation(outcome: Outcome) -> Generation:
    return SearchState.decode(outcome.rounds[-1].checkpoint).generation


@pytest.mark.parametrize("task", [Task.BINARY, Task.MULTICLASS])
@pytest.mark.parametrize("metric", CLASS_SCORES)
def test_federated_search_finds_what_a_search_in_one_place_finds(task: Task, metric: str) -> None:
    silos = silos_of(task)
    job = job_of(task, replace(QUICK, metric=metric))
    outcome = run_in_memory(job, silos)
    assert outcome.error is None
    assert not outcome.errors
    assert [result.round for result in outcome.rounds] == list(range(5))
    assert [result.final for result in outcome.rounds] == [False] * 4 + [True]
    generation, pooled = last_generation(outcome), pooled_search(job, silos)
    assert np.array_equal(generation.population, pooled.population)
    np.testing.assert_allclose(generation.fitness, pooled.fitness, rtol=1e-12)


@pytest.mark.parametrize("task", [Task.BINARY, Task.MULTICLASS, Task.REGRESSION])
def test_each_silo_keeps_the_final_structure_that_suits_it_best(task: Task) -> None:
    silos = silos_of(task)
    outcome = run_in_memory(job_of(task), silos, through_wire=True)
    assert not outcome.errors
    generation = last_generation(outcome)
    for silo, data in silos.items():
        kept = outcome.kept[silo]
        assert kept is not None
        assert set(kept.files) == {"model.ubj", "tree.txt", "tree.dot", "tree.json"}
        table = rank_table(data)
        booster = xgboost.Booster(model_file=bytearray(kept.files["model.ubj"]))
        rows = xgboost.DMatrix(
            data.X,
            feature_names=list(data.schema.names),
            feature_types=data.schema.feature_types,
            enable_categorical=True,
        )
        predicted = booster.predict(rows)
        if task is Task.REGRESSION:
            found = fitness_of(table, generation.population, table.all_rows, None, 1)
            # The structure may have been chosen on held-out rows; it is fitted to all.
            assert np.isclose(((predicted - data.labels) ** 2).mean(), found, rtol=1e-4).any()
        else:
            classes = predicted >= 0.5 if task is Task.BINARY else np.argmax(predicted, axis=1)
            document = json.loads(kept.files["tree.json"])
            assert (classes == data.labels).mean() > 0.6
            assert document["nodes"][0]["rows"] == data.n_samples


def test_same_seed_gives_the_same_result_and_the_wire_changes_nothing() -> None:
    silos = silos_of(Task.BINARY)
    first, second, other = (
        run_in_memory(replace(job_of(), seed=seed), silos, through_wire=wire)
        for seed, wire in ((3, False), (3, True), (4, False))
    )
    assert first.artefact == second.artefact
    assert first.kept == second.kept
    assert first.artefact != other.artefact


def test_reports_compare_the_federated_tree_with_the_silos_own() -> None:
    silos = silos_of(Task.BINARY)
    test = dataset_of(Task.BINARY, 99, 500)
    job = job_of(metrics=("accuracy", "auc"))
    outcome = run_in_memory(job, silos, tests=dict.fromkeys(silos, test), through_wire=True)
    scores = outcome.rounds[-1].metrics["test"]
    assert set(scores) == {
        "f1", "own_f1", "accuracy", "own_accuracy", "auc", "own_auc", "share_gaining",
        "delta",
    }  # fmt: skip
    assert scores["share_gaining"] in (0.0, 0.25, 0.5, 0.75, 1.0)
    assert all("test" not in result.metrics for result in outcome.rounds[:-1])
    assert outcome.artefact is not None
    document = json.loads(outcome.artefact.files["structures.json"])
    assert document["test"] == scores


def compared(
    task: Task, scores: list[tuple[float, float]], monkeypatch: pytest.MonkeyPatch
) -> Outcome:
    """Run a job whose silos report these scores: of the federated tree, of their own."""
    given = {f"silo-{i}": pair for i, pair in enumerate(scores)}

    def compare(self: SiloSide, _: object) -> TreeComparison:
        return TreeComparison(*(np.array([score]) for score in given[self._start.silo]))

    monkeypatch.setattr(SiloSide, "compare", compare)
    return run_in_memory(job_of(task, metrics=()), silos_of(task, len(scores)))


def test_delta_is_the_mean_change_from_own_to_federated_trees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reports: list[TreeComparison] = []
    honest = SiloSide.compare

    def noted(self: SiloSide, tree: DecisionTree | None) -> TreeComparison:
        reports.append(honest(self, tree))
        return reports[-1]

    monkeypatch.setattr(SiloSide, "compare", noted)
    silos = {f"silo-{n}": dataset_of(Task.REGRESSION, n, n) for n in (40, 90, 300)}
    test = dataset_of(Task.REGRESSION, 99, 500)
    outcome = run_in_memory(
        job_of(Task.REGRESSION), silos, tests=dict.fromkeys(silos, test), through_wire=True
    )
    scores = outcome.rounds[-1].metrics["test"]
    ratios = [report.federated[0] / report.own[0] for report in reports]
    assert len(ratios) == 3
    assert scores["delta"] == pytest.approx(100 * (np.mean(ratios) - 1))
    assert scores["delta"] != pytest.approx(100 * (scores["mse"] / scores["own_mse"] - 1), rel=0.01)


@pytest.mark.parametrize(
    ("task", "scores", "delta"),
    [
        (Task.BINARY, [(0.6, 0.5), (0.45, 0.5), (0.45, 1e-6), (0.5, 0.0)], 5.0),
        (Task.BINARY, [(0.6, 0.0), (0.4, 5e-324)], None),
        (Task.REGRESSION, [(9.0, 10.0), (5.5, 5.0), (2e-6, 1e-6), (1.0, 5e-324)], 0.0),
        (Task.REGRESSION, [(1e-3, 0.0), (9.0, 0.0), (9.0, 5e-324)], None),
    ],
)
def test_own_trees_with_scores_of_nearly_nothing_are_left_out_of_delta(
    task: Task, scores: list[tuple[float, float]], delta: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    found = compared(task, scores, monkeypatch).rounds[-1].metrics["test"]
    assert found.get("delta") == (None if delta is None else pytest.approx(delta, abs=1e-9))


@pytest.mark.parametrize(
    ("task", "report", "said"),
    [
        (Task.BINARY, (1.5, 0.5), "expected f1 from 0 to 1, received 1.5"),
        (Task.BINARY, (0.5, -0.1), "expected f1 from 0 to 1"),
        (Task.BINARY, (math.nan, 0.5), "expected f1 from 0 to 1, received nan"),
        (Task.REGRESSION, (math.inf, 0.5), "expected mse from 0"),
        (Task.REGRESSION, (1.0, -2.0), "expected mse from 0"),
    ],
)
def test_scores_that_cannot_be_are_refused_and_count_for_nobody(
    task: Task, report: tuple[float, float], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = (0.75, 0.5)
    outcome = compared(task, [good, report, good, good], monkeypatch)
    assert outcome.error is None
    assert said in str(outcome.errors["silo-1"])
    assert outcome.rounds[-1].metrics["test"]["delta"] == pytest.approx(50.0)


def test_without_test_rows_there_is_no_comparison() -> None:
    outcome = run_in_memory(job_of(), silos_of(Task.BINARY))
    assert "test" not in outcome.rounds[-1].metrics


def test_only_drawn_silos_score_under_partial_participation() -> None:
    strategy = replace(QUICK, participation=0.5, generations=8)
    outcome = run_in_memory(job_of(strategy=strategy), silos_of(Task.BINARY, 6))
    assert outcome.error is None
    assert not outcome.errors
    assert all(len(result.silos) == 3 for result in outcome.rounds)
    assert len({result.silos for result in outcome.rounds}) > 1
    assert all(kept is not None for kept in outcome.kept.values())


@pytest.mark.parametrize("step", ["depths", "proposals", "scores", "reports"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_job_goes_on_without_a_silo_that_dies(step: str, when: str) -> None:
    last = {"depths": (0, 0), "proposals": (0, 1), "scores": (2, 2), "reports": (4, 3)}[step]
    fault = Fault("silo-1", step, round=last[0], level=last[1], when=when)
    outcome = run_in_memory(
        job_of(min_silos=3), silos_of(Task.BINARY), faults=(fault,), timeout_seconds=20
    )
    assert outcome.error is None
    assert outcome.rounds[-1].final
    assert set(outcome.errors) == {"silo-1"}
    assert all(outcome.kept[silo] is not None for silo in ("silo-0", "silo-2", "silo-3"))


def test_job_ends_when_too_few_silos_are_left() -> None:
    fault = Fault("silo-1", "scores", round=1, level=2)
    outcome = run_in_memory(job_of(min_silos=4), silos_of(Task.BINARY), faults=(fault,))
    assert outcome.error is not None
    assert "needs 4 silos" in str(outcome.error)


def test_search_goes_on_from_a_checkpoint_to_the_same_end() -> None:
    silos = silos_of(Task.BINARY)
    memories: dict[str, dict[str, bytes]] = {silo: {} for silo in silos}
    whole = run_in_memory(job_of(), silos, memories=memories)
    cut = run_in_memory(job_of(), silos, stop_after_rounds=2, memories=memories)
    resumed = run_in_memory(
        job_of(), silos, checkpoint=cut.rounds[-1].checkpoint, first_round=2, attempt=2,
        memories=memories,
    )  # fmt: skip
    assert [result.round for result in resumed.rounds] == [2, 3, 4]
    assert resumed.artefact == whole.artefact
    assert resumed.kept == whole.kept


def test_a_search_whose_result_was_not_stored_gives_it_without_another_generation() -> None:
    """As when the coordinator is killed after the last checkpoint."""
    silos = silos_of(Task.BINARY)
    memories: dict[str, dict[str, bytes]] = {silo: {} for silo in silos}
    whole = run_in_memory(job_of(), silos, memories=memories)
    last = whole.rounds[-1].checkpoint
    resumed = run_in_memory(
        job_of(), silos, checkpoint=last, first_round=len(whole.rounds), attempt=2,
        memories=memories,
    )  # fmt: skip
    assert resumed.error is None
    assert resumed.rounds == []
    assert resumed.kept == whole.kept


def test_noisy_row_count_is_drawn_once_in_the_life_of_a_job() -> None:
    silos = silos_of(Task.BINARY)
    job = job_of(strategy=replace(QUICK, epsilon_rows=0.05))
    keys = {silo: LocalVault() for silo in silos}
    ledgers = {silo: BudgetLedger(0.05) for silo in silos}

    def sent() -> dict[Silo, int]:
        outcome = run_in_memory(job, silos, vaults=keys.__getitem__, accountants=ledgers)
        return SearchState.decode(outcome.rounds[-1].checkpoint).rows

    once = sent()
    assert any(rows != 80 for rows in once.values())
    assert sent() == once
    assert all(ledger.spent == Fraction(0.05) for ledger in ledgers.values())


def test_silo_that_joins_late_takes_part_and_keeps_a_tree() -> None:
    silos = silos_of(Task.BINARY)
    outcome = run_in_memory(job_of(), silos, joins_after={"silo-3": 1}, through_wire=True)
    assert outcome.error is None
    assert not outcome.errors
    assert outcome.kept["silo-3"] is not None
    # It is sent on to round 3, and drawn for the one after that.
    assert ["silo-3" in result.silos for result in outcome.rounds] == [False] * 4 + [True]


def test_silos_without_rows_or_with_one_class_do_no_harm() -> None:
    silos = silos_of(Task.BINARY, 5)
    none = silos["silo-1"].take(np.empty(0, dtype=np.intp))
    single = silos["silo-2"].take(np.flatnonzero(silos["silo-2"].labels == 0))
    tiny = silos["silo-3"].take(np.arange(4))
    silos |= {"silo-1": none, "silo-2": single, "silo-3": tiny}
    outcome = run_in_memory(job_of(), silos)
    assert not outcome.errors
    assert outcome.kept["silo-1"] is None
    assert outcome.kept["silo-2"] is not None
    assert outcome.kept["silo-3"] is not None


def test_search_ends_early_when_nothing_gets_better() -> None:
    strategy = replace(QUICK, generations=300, patience=3, population=30, node_cost=0.0)
    outcome = run_in_memory(job_of(strategy=strategy), silos_of(Task.BINARY))
    assert outcome.rounds[-1].final
    assert len(outcome.rounds) < 200
    best = [result.metrics["train"]["f1"] for result in outcome.rounds]
    assert best == sorted(best)
    assert best[-4] == best[-1]


def test_regression_with_elitism_never_loses_the_silos_structures() -> None:
    silos = silos_of(Task.REGRESSION)
    outcome = run_in_memory(job_of(Task.REGRESSION), silos)
    generation = last_generation(outcome)
    # All labels are distinct, so every silo votes for elitism.
    assert generation.elite
    assert set(generation.elite) <= set(keys(generation.population))
    assert "relative_mse" in outcome.rounds[-1].metrics["train"]


def test_structure_of_features_that_are_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = SiloSide.propose

    def hostile(self: SiloSide, due: SearchTask) -> SearchTask:
        if self._start.silo != "silo-2":
            return honest(self, due)
        genes = np.full((1, 2**due.depth - 1), 77, dtype=np.int16)
        proposal = Proposal(PackedStructures.of(genes), False, False)
        return self._link.exchange(PROPOSALS, ExchangeKey(0, 1), proposal)

    monkeypatch.setattr(SiloSide, "propose", hostile)
    outcome = run_in_memory(job_of(min_silos=3), silos_of(Task.BINARY))
    assert outcome.error is None
    assert isinstance(outcome.errors["silo-2"], OfferRejected)
    assert "feature 77 of 5" in str(outcome.errors["silo-2"])


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"generations": 0}, "generations"),
        ({"min_depth": 5, "max_depth": 4}, "max_depth"),
        ({"participation": 0.0}, "participation"),
        ({"participation": 1.5}, "participation"),
        ({"epsilon_rows": 0.0}, "epsilon_rows"),
        ({"epsilon_rows": float("nan")}, "epsilon_rows"),
        ({"categorical_order": "random"}, "categorical_order"),
        ({"node_cost": -0.1}, "node_cost"),
    ],
)
def test_parameter_out_of_range_is_named(change: dict[str, object], key: str) -> None:
    strategy = replace(QUICK, **change)  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match=rf"\[fedga\] {key}: expected"):
        strategy.validate(job_of(strategy=strategy))


@pytest.mark.parametrize("n_features", [8, 31, 300])
def test_search_of_twenty_silos_and_fifty_generations_stays_below_five_megabytes(
    n_features: int,
) -> None:
    FedGA().validate(job_of(strategy=FedGA()))
    features = tuple(Feature(f"x{i}") for i in range(n_features))
    schema = Schema(features, "label", Task.BINARY, 2)
    planned = forecast(FedGA(generations=50), job_of(), schema, {})
    (exchanges, up, down) = planned.steps["ExchangeScores"]
    assert planned.rounds == 50
    assert exchanges == 54
    assert 20 * (up + down) <= 5e6
    half = forecast(FedGA(generations=50, participation=0.5), job_of(), schema, {})
    assert half.steps["ExchangeScores"][2] < 0.6 * down


def test_dearer_nodes_make_smaller_trees() -> None:
    silos = silos_of(Task.BINARY)
    sizes = []
    for node_cost in (0.0, 0.01, 0.5):
        strategy = replace(QUICK, generations=12, min_depth=3, node_cost=node_cost)
        outcome = run_in_memory(job_of(strategy=strategy), silos)
        kept = [json.loads(one.files["tree.json"]) for one in outcome.kept.values() if one]
        sizes.append(sum("feature" in node for tree in kept for node in tree["nodes"]))
    assert sizes[0] > sizes[1] > sizes[2]


def test_silos_choose_among_the_finalists_only() -> None:
    strategy = replace(QUICK, finalists=1)
    outcome = run_in_memory(job_of(strategy=strategy), silos_of(Task.BINARY), through_wire=True)
    generation = last_generation(outcome)
    assert len(generation.population) == strategy.population
    for silo, data in silos_of(Task.BINARY).items():
        table = rank_table(data)
        best = fit_structure(table, generation.population[0], table.all_rows, 1)
        kept = outcome.kept[Silo(silo)]
        assert kept is not None
        assert kept.files["tree.txt"].decode() == best.draw()


def test_the_papers_search_has_free_nodes_and_all_finalists() -> None:
    apart = replace(QUICK, node_cost=0.0, finalists=QUICK.population)
    kept = [
        run_in_memory(job_of(strategy=one), silos_of(Task.BINARY)).kept
        for one in (apart, replace(QUICK, paper=True))
    ]
    for silo, artefact in kept[0].items():
        again = kept[1][silo]
        assert artefact is not None
        assert again is not None
        assert artefact.files == again.files
    for key in ("node_cost", "finalists"):
        with pytest.raises(InvalidJob, match=f"{key}: it would have no effect"):
            FedGA(paper=True, **{key: 1}).validate(job_of())


def test_a_search_may_be_for_accuracy_and_says_so() -> None:
    silos, test = silos_of(Task.BINARY), dataset_of(Task.BINARY, 99, 500)
    job = job_of(strategy=replace(QUICK, metric="accuracy"))
    outcome = run_in_memory(job, silos, tests=dict.fromkeys(silos, test), through_wire=True)
    last = outcome.rounds[-1]
    assert last.metrics["train"].keys() == {"accuracy"}
    assert last.metrics["test"].keys() == {"accuracy", "own_accuracy", "share_gaining", "delta"}
    assert outcome.artefact is not None
    assert json.loads(outcome.artefact.files["structures.json"])["score"] == "accuracy"
    with pytest.raises(InvalidJob, match="metric: it would have no effect"):
        FedGA(metric="accuracy").validate(job_of(Task.REGRESSION))


def test_plan_is_within_a_tenth_of_what_a_run_moves(tmp_path: Path) -> None:
    tables = "strategy = 'fedga'\nmin_silos = 3\n[fedga]\ngenerations = 8\npopulation = 20\n"
    planned, report = plan_and_run(tmp_path, tables + "min_depth = 4\nmax_depth = 4\n")
    for way in ("up", "down"):
        assert planned["bytes"][way] == pytest.approx(report["bytes"][way], rel=0.1)
    calls = report["bytes"]["by_step"]["ExchangeScores"]["calls"]
    assert planned["steps"][0]["exchanges"] == calls / 3
    scores = report["rounds"][-1]["metrics"]["test"]
    assert 0.0 <= scores["share_gaining"] <= 1.0
    assert {"f1", "own_f1"} <= set(scores)
    for silo in ("s0", "s1", "s2"):
        files = {file.name for file in (tmp_path / "run" / "silos" / silo).iterdir()}
        assert {"model.ubj", "schema.json", "tree.dot", "tree.json", "tree.txt"} <= files


def test_only_noise_keeps_a_seed_from_repeating_a_run_and_the_plan_says_so() -> None:
    silos = silos_of(Task.BINARY)
    schema = next(iter(silos.values())).schema
    rows = {Silo(silo): data.n_samples for silo, data in silos.items()}
    for epsilon, repeatable in ((math.inf, True), (0.05, False)):
        job = job_of(strategy=replace(QUICK, epsilon_rows=epsilon))
        # Each run has fresh keys of noise, as on other machines.
        one, other = (run_in_memory(job, silos) for _ in range(2))
        weights = [SearchState.decode(run.rounds[-1].checkpoint).rows for run in (one, other)]
        assert (weights[0] == weights[1]) == repeatable
        assert one.artefact == other.artefact or not repeatable
        notes = " ".join(forecast(job.parameters, job, schema, rows).notes)
        assert ("cannot be repeated" not in notes) == repeatable
