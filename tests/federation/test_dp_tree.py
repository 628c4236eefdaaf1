"""The private tree, both halves: plain without noise, within its budget with it."""

import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost

from hedgerow.boosting.budget import BudgetLedger
from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.errors import InvalidJob, OfferRejected, QuorumLost
from hedgerow.boosting.exchange import ExchangeKey, Receipt, Silo
from hedgerow.boosting.ports import CoordinatorStart, JobParameters
from hedgerow.boosting.strategies.dp_tree.bins import STAGES, EdgeSearch
from hedgerow.boosting.strategies.dp_tree.checkpoint import PrivateTree
from hedgerow.boosting.strategies.dp_tree.coordinator import PrivateGrower
from hedgerow.boosting.strategies.dp_tree.noisy_tree import BinnedTree, bin_counts, to_bins
from hedgerow.boosting.strategies.dp_tree.parameters import DPTree
from hedgerow.boosting.strategies.dp_tree.queries import Queries
from hedgerow.boosting.strategies.dp_tree.silo import Counter, check_search, check_tree
from hedgerow.coordinator.server.barrier import Barrier
from hedgerow.crypto.masking.noise import discrete_laplace_epsilon
from hedgerow.crypto.vault.local_vault import LocalVault
from tests.boosting.sums.federation_of_sums import Authority, TestIdentity
from tests.federation.memory import Fault, Outcome, run_in_memory
from tests.federation.planned import plan_and_run
from tests.late import Late

oracle: Any = Late("sklearn.tree")

PLAIN = DPTree(math.inf, depth=3, bins=6, binning="quantile")


def dataset_of(seed: int, n_samples: int, n_classes: int = 2, categorical: bool = True) -> Dataset:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_samples, 4)).astype(np.float32)
    features = [Feature(f"x{i}") for i in range(4)]
    if categorical:
        X[:, 3] = rng.integers(0, 5, n_samples)
        features[3] = Feature("kind", tuple("abcde"))
    signal = 2 * X[:, 0] + X[:, 1] * X[:, 2] + (X[:, 3] == 1) + 0.3 * rng.normal(size=n_samples)
    edges = [0.0] if n_classes == 2 else [-1.0, 1.0]
    y = np.digitize(signal, edges).astype(np.float64)
    task = Task.BINARY if n_classes == 2 else Task.MULTICLASS
    return Dataset(Schema(tuple(features), "label", task, n_classes), X, y)


def silos_of(n_silos: int = 4, n_samples: int = 300, **other: Any) -> dict[str, Dataset]:
    return {f"silo-{i}": dataset_of(i, n_samples, **other) for i in range(n_silos)}


def pooled(silos: dict[str, Dataset]) -> Dataset:
    parts = list(silos.values())
    X = np.concatenate([part.X for part in parts])
    return Dataset(parts[0].schema, X, np.concatenate([part.labels for part in parts]))


def run(strategy: DPTree, silos: dict[str, Dataset], close: int = 9, **other: Any) -> Outcome:
    authority = Authority()
    identities = {silo: TestIdentity(authority, silo) for silo in silos}
    schema = next(iter(silos.values())).schema
    # Tests of losses are of five silos: groups have tests of their own.
    job = JobParameters("test", strategy, task=schema.task, seed=3, max_close_sums=close)
    if "min_silos" in other:
        job = replace(job, min_silos=other.pop("min_silos"))
    job.parameters.validate(job)
    return run_in_memory(job, silos, identities=identities.__getitem__, **other)


def margins_of(outcome: Outcome, data: Dataset) -> np.ndarray:
    assert outcome.artefact is not None, outcome.error
    booster = xgboost.Booster(model_file=bytearray(outcome.artefact.files["model.ubj"]))
    rows = xgboost.DMatrix(
        data.X,
        feature_names=list(data.schema.names),
        feature_types=data.schema.feature_types,
        enable_categorical=True,
    )
    margins: np.ndarray = booster.predict(rows, output_margin=True)
    return margins


@pytest.mark.parametrize("query", ["histogram", "candidates"])
def test_infinite_epsilon_gives_the_tree_that_scikit_learn_grows_on_the_same_bins(
    query: str,
) -> None:
    silos = silos_of(categorical=False)
    outcome = run(replace(PLAIN, query=query), silos)
    assert outcome.error is None
    assert not outcome.errors
    data = pooled(silos)
    edges = PrivateTree.decode(outcome.rounds[-1].checkpoint).tree.edges
    bins = to_bins(data.schema, edges, data.X)
    peer = oracle.DecisionTreeClassifier(max_depth=3, random_state=0).fit(bins, data.labels)
    ours = (margins_of(outcome, data) >= 0).astype(float)
    assert np.array_equal(ours, peer.predict(bins))


@pytest.mark.parametrize("epsilon", [2.0, 3.0, math.inf])
def test_few_rows_hide_no_silo_in_counts_that_no_noise_hides(epsilon: float) -> None:
    """The attack: three silos, of which two have five rows each, and a budget that hides little."""
    silos = silos_of(3)
    bare = {silo: data.take(np.arange(5)) for silo, data in silos.items() if silo != "silo-0"}
    outcome = run(DPTree(epsilon, depth=1, bins=3), {**silos, **bare}, close=0)
    refused = "fewer than three have 10 rows or more"
    told = {refused in str(error) for error in outcome.errors.values()}
    assert told == (set() if epsilon == 2.0 else {True})


@pytest.mark.parametrize("secure", [True, False])
@pytest.mark.parametrize("binning", ["private", "quantile"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_infinite_epsilon_gives_the_tree_of_the_pooled_rows(
    secure: bool, binning: str, n_classes: int
) -> None:
    silos = silos_of(n_classes=n_classes)
    strategy = replace(PLAIN, secure=secure, binning=binning)
    outcome = run(strategy, silos, through_wire=True)
    assert outcome.error is None
    assert not outcome.errors
    alone = run(replace(strategy, secure=False), {"all": pooled(silos)})
    assert alone.artefact is not None
    assert outcome.artefact is not None
    assert outcome.artefact.files["model.ubj"] == alone.artefact.files["model.ubj"]
    assert [result.round for result in outcome.rounds] == [0, 1, 2, 3]
    assert outcome.rounds[-1].final


def test_large_budget_is_nearly_as_good_as_none() -> None:
    silos = silos_of(n_samples=2000)
    test = dataset_of(99, 2000)
    exact, private, drowned = (
        run(DPTree(epsilon, depth=3), silos, test=test) for epsilon in (math.inf, 50.0, 0.01)
    )
    scores = [one.rounds[-1].metrics["test"]["auc"] for one in (exact, private, drowned)]
    assert scores[0] > 0.8
    assert scores[1] > scores[0] - 0.05
    assert scores[2] < scores[0]


def test_tree_stops_where_counts_drown_in_noise() -> None:
    silos = silos_of(n_samples=60)
    outcome = run(DPTree(0.05, depth=6, binning="quantile"), silos)
    assert outcome.error is None
    assert len(outcome.rounds) < 7
    assert outcome.rounds[-1].final


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 7.3])
@pytest.mark.parametrize("binning", ["private", "quantile"])
def test_ledgers_of_all_parties_stay_within_epsilon(epsilon: float, binning: str) -> None:
    silos = silos_of(n_samples=1000)
    ledgers = {silo: BudgetLedger(epsilon) for silo in silos}
    strategy = DPTree(epsilon, depth=3, binning=binning)
    outcome = run(strategy, silos, accountants=ledgers)
    assert outcome.artefact is not None
    written = json.loads(outcome.artefact.files["epsilon-ledger.json"])
    assert 0 < written["spent"] <= epsilon == written["epsilon"]
    for ledger in ledgers.values():
        assert ledger.spent <= Fraction(epsilon)
        queries = zip(ledger.document()["queries"], written["queries"], strict=True)
        assert all({**own, "key": ""} == {**other, "key": ""} for own, other in queries)
    stages = [query for query in written["queries"] if "edges" in query["query"]]
    assert len(stages) == (3 if binning == "private" else 0)


def test_full_tree_spends_all_of_the_budget() -> None:
    silos = silos_of(n_samples=1000)
    outcome = run(DPTree(400.0, depth=2), silos)
    assert outcome.artefact is not None
    written = json.loads(outcome.artefact.files["epsilon-ledger.json"])
    assert written["spent"] == pytest.approx(400.0)


@pytest.mark.parametrize(("honest", "expected"), [(0, 4 / 3), (2, 2.0), (4, 1.0)])
def test_noise_of_the_sums_has_the_variance_of_the_budget(
    honest: int, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[np.ndarray] = []
    true = PrivateGrower.grow

    def watch(self: PrivateGrower, tree: BinnedTree, total: np.ndarray, n_parts: int) -> BinnedTree:
        seen.append(total.copy())
        return true(self, tree, total, n_parts)

    monkeypatch.setattr(PrivateGrower, "grow", watch)
    categories = tuple(str(code) for code in range(1200))
    schema = Schema((Feature("code", categories),), "label", Task.BINARY, 2)
    empty = Dataset(schema, np.zeros((1, 1), np.float32), np.zeros(1))
    silos = {f"silo-{i}": empty for i in range(4)}
    strategy = DPTree(0.9, depth=1, honest=honest)
    outcome = run(strategy, silos)
    assert outcome.error is None
    # Bins 1 and up have no rows: what is there is noise. Three queries share the budget.
    noise = seen[0][4:].astype(float)
    q = math.exp(-0.3)
    variance = 2 * q / (1 - q) ** 2
    assert len(noise) == 2400
    assert abs(noise.var() / (expected * variance) - 1) < 0.25
    assert abs(noise.mean()) < 4 * math.sqrt(expected * variance / 2400)


def test_restart_repeats_the_same_noise_and_spends_nothing_twice() -> None:
    silos = silos_of(n_samples=1000)
    keys = {silo: LocalVault() for silo in silos}
    ledgers = {silo: BudgetLedger(5.0) for silo in silos}
    strategy = DPTree(5.0, depth=3)
    kept: dict[str, Any] = {"vaults": keys.__getitem__, "accountants": ledgers}
    whole = run(strategy, silos, memories={silo: {} for silo in silos}, **kept)
    assert whole.artefact is not None
    entered = {silo: dict(ledger.entries) for silo, ledger in ledgers.items()}
    kept["memories"] = {silo: {} for silo in silos}
    cut = run(strategy, silos, stop_after_rounds=2, attempt=2, **kept)
    resumed = run(
        strategy, silos, checkpoint=cut.rounds[-1].checkpoint, first_round=2, attempt=3, **kept
    )
    assert resumed.artefact == whole.artefact
    assert entered == {silo: ledger.entries for silo, ledger in ledgers.items()}


def test_lost_silo_is_made_up_for_when_fewer_honest_ones_suffice() -> None:
    silos = silos_of(5)
    fault = Fault("silo-1", "counts-masked", round=1)
    outcome = run(DPTree(50.0, depth=3, honest=3), silos, faults=(fault,))
    assert outcome.error is None
    assert len(outcome.rounds[0].silos) == 5
    assert len(outcome.rounds[-1].silos) == 4


@pytest.mark.parametrize("honest", [0, 4])
def test_job_ends_rather_than_miss_noise(honest: int) -> None:
    # Four silos are left: four parts are whole noise, but not to a silo that knows one of them.
    silos = silos_of(5)
    fault = Fault("silo-1", "counts-masked", round=1)
    outcome = run(DPTree(50.0, depth=3, honest=honest), silos, faults=(fault,))
    assert isinstance(outcome.error, QuorumLost)


@pytest.mark.parametrize(
    ("n_silos", "honest", "lost"), [(3, 0, 0), (5, 0, 0), (9, 3, 2), (4, 4, 0)]
)
def test_a_silo_that_subtracts_its_part_of_a_sum_sees_the_whole_noise(
    n_silos: int, honest: int, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    totals: list[np.ndarray] = []
    answered: list[np.ndarray] = []
    present: list[int] = []
    grow, answer = PrivateGrower.grow, Counter.counts

    def watch(self: PrivateGrower, tree: BinnedTree, total: np.ndarray, n_parts: int) -> BinnedTree:
        totals.append(total.copy())
        present.append(n_parts)
        return grow(self, tree, total, n_parts)

    def member(self: Counter, tree: BinnedTree, silos: tuple[Silo, ...]) -> np.ndarray:
        found = answer(self, tree, silos)
        if self._dataset.labels[0] == 1:
            answered.append(found)
        return found

    monkeypatch.setattr(PrivateGrower, "grow", watch)
    monkeypatch.setattr(Counter, "counts", member)
    schema = Schema((Feature("code", tuple(map(str, range(1500)))),), "label", Task.BINARY, 2)
    silos = {
        f"silo-{i}": Dataset(schema, np.zeros((1, 1), np.float32), np.array([float(i == 0)]))
        for i in range(n_silos)
    }
    faults = tuple(Fault(f"silo-{1 + k}", "counts-masked", round=0) for k in range(lost))
    outcome = run(DPTree(0.9, depth=1, honest=honest), silos, faults=faults)
    assert outcome.error is None
    noise = (totals[0] - answered[0])[4:].astype(float)
    q, parts = math.exp(-0.3), present[0] - 1
    assert present[0] <= n_silos - lost
    whole = 2 * q / (1 - q) ** 2
    held = parts / (honest or n_silos - 1)
    assert held == 0.75 if honest == n_silos else held >= 1
    assert noise.var() == pytest.approx(held * whole, rel=0.2)


def test_silo_that_joins_late_or_twice_is_refused() -> None:
    roster = tuple(Silo(f"silo-{i}") for i in range(4))
    hub = Barrier(roster, roster, 1.0)
    job = JobParameters("test", DPTree(1.0))
    schema = dataset_of(0, 10).schema
    start = CoordinatorStart(job, "job", 1, roster, schema, {})
    grower = PrivateGrower(DPTree(1.0), hub, start)
    for silo in roster[:3]:
        search = grower.standing(silo, ExchangeKey(0), Receipt()).search
        assert search is not None
        assert search.stage == 0
    grower.members = frozenset(roster[:3])
    for silo in (roster[3], roster[0]):
        with pytest.raises(OfferRejected, match="under way"):
            grower.standing(silo, ExchangeKey(0), Receipt())
    assert hub.silos == roster[1:3]


def test_missing_values_and_unknown_categories_have_a_bin_of_their_own() -> None:
    schema = dataset_of(0, 10).schema
    edges = (np.array([0.0], np.float32),) * 3 + (np.empty(0, np.float32),)
    X = np.array([[-1, 0, np.nan, np.nan], [1, np.nan, 0.5, 4]], dtype=np.float32)
    assert bin_counts(schema, edges) == [3, 3, 3, 6]
    assert to_bins(schema, edges, X).tolist() == [[0, 1, 2, 5], [1, 2, 1, 4]]


def test_missing_values_go_where_they_were_counted() -> None:
    silos = silos_of()
    for data in silos.values():
        data.X[data.labels == 1, 0] = np.nan
    outcome = run(PLAIN, silos)
    data = pooled(silos)
    assert (((margins_of(outcome, data) >= 0) == data.labels).mean()) > 0.97


def test_tree_that_counts_a_row_twice_is_refused() -> None:
    schema = dataset_of(0, 10).schema
    edges = (np.array([0.0], np.float32),) * 3 + (np.empty(0, np.float32),)
    right = np.array([2, -1, -1], dtype=np.int32)
    fair = BinnedTree(
        1,
        edges,
        np.array([0, -2, -2], dtype=np.int32),
        np.array([1, -1, -1], dtype=np.int32),
        right,
        np.eye(3, 6, dtype=bool),
    )
    check_tree(fair, schema)
    for hostile in (
        replace(fair, right=fair.left),
        replace(fair, right=-right),
        replace(fair, edges=edges[:3]),
        replace(fair, feature=np.array([4, -2, -2], dtype=np.int32)),
        replace(fair, goes_left=np.eye(3, 5, dtype=bool)),
        replace(fair, goes_left=np.zeros((3, 6), dtype=bool)),
        replace(fair, left=np.array([1, 0, -1], dtype=np.int32)),  # a leaf above the root
    ):
        with pytest.raises(OfferRejected, match="does not fit"):
            check_tree(hostile, schema)
    with pytest.raises(ValueError, match="at least 0"):
        replace(fair, level=-1)


@pytest.mark.parametrize("stage", [-1, 0, 1, STAGES, STAGES + 1])
def test_intervals_that_the_budget_does_not_cover_are_refused(stage: int) -> None:
    schema = Schema(
        (Feature("x"), Feature("z"), Feature("c", ("a", "b"))), "y", Task.BINARY, 2
    )  # fmt: skip

    def search(*intervals: tuple[int, ...]) -> EdgeSearch:
        return EdgeSearch(stage, tuple(np.array(own, dtype=np.uint32) for own in intervals))

    queries = Queries(DPTree(epsilon=1.0), schema, 3)
    allowed = [search((0,), (0,), ()), search((), (0, 1), ())] if stage in (0, 1) else []
    for fair in allowed:
        check_search(fair, schema)
    # A row without a missing value changes one count of each feature that is asked about.
    assert [queries.spendings(fair)[0].sensitivity for fair in allowed] == [2, 1][: len(allowed)]
    refused = [
        search((0,), (0,), (0,)),
        search((), (), (0,)),
        search((0,), (0, 0), ()),
        search((0,), (1, 0), ()),
        search((0,), ()),
        search((), (), ()),
    ]
    if not allowed:
        refused.append(search((0,), (0,), ()))
    for hostile in refused:
        with pytest.raises(OfferRejected, match="do not fit the schema"):
            check_search(hostile, schema)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"depth": 0}, "depth"),
        ({"bins": 1}, "bins"),
        ({"binning": "uniform"}, "binning"),
        ({"query": "counts"}, "query"),
    ],
)
def test_parameter_out_of_range_is_named(change: dict[str, Any], key: str) -> None:
    strategy = replace(DPTree(1.0), **change)
    with pytest.raises(InvalidJob, match=rf"\[dp_tree\] {key}: expected"):
        strategy.validate(JobParameters("test", strategy))


def test_epsilon_has_no_default() -> None:
    with pytest.raises(TypeError, match="epsilon"):
        DPTree()  # type: ignore[call-arg]


def test_regression_is_refused() -> None:
    with pytest.raises(InvalidJob, match="regression"):
        DPTree(1.0).validate(JobParameters("test", DPTree(1.0), task=Task.REGRESSION))


def test_plan_says_epsilon_against_silos_that_know_their_parts() -> None:
    schema = dataset_of(0, 10).schema
    rows = {Silo(f"silo-{i}"): 100 for i in range(4)}

    def note(strategy: DPTree, rows: dict[Silo, int] = rows) -> str:
        job = JobParameters("test", strategy, task=schema.task)
        return job.strategy.forecast(strategy, job, schema, rows).notes[1]

    assert "epsilon is 1, against a silo of the job 1, 2 of them " in note(DPTree(1.0))
    weak = DPTree(1.0, honest=4)
    queries = Queries(weak, schema, 4)
    found = queries.epsilon_against(3)
    shares = [queries.stage_epsilon] * 3, [queries.level_epsilon] * 5, [queries.level_epsilon] * 4
    costs = zip(shares, (3, 1, 4), strict=True)  # three numeric features of four
    alone = [
        discrete_laplace_epsilon(epsilon, sensitivity=changed, parts=3, honest=4)
        for own, changed in costs
        for epsilon in own
    ]
    assert found > 1.2
    assert found == pytest.approx(sum(alone))
    assert f"epsilon is 1, against a silo of the job {found:.3g}, 2 of them " in note(weak)
    assert "a sum over 4" in note(weak)
    assert "against" not in note(replace(weak, secure=False, honest=0))


def test_noise_that_holds_against_the_coordinator_only_is_charged_as_that() -> None:
    for honest, only in ((0, False), (4, True)):
        silos = silos_of(n_samples=60)
        ledgers = {silo: BudgetLedger(1.0) for silo in silos}
        outcome = run(DPTree(1.0, depth=1, honest=honest), silos, accountants=ledgers)
        assert outcome.artefact is not None
        written = json.loads(outcome.artefact.files["epsilon-ledger.json"])
        told = {query.get("coordinator_only", False) for query in written["queries"]}
        assert told == {only}
        for ledger in ledgers.values():
            assert {entry.coordinator_only for entry in ledger.entries.values()} == {only}
            assert BudgetLedger.decode(ledger.encode()) == ledger


def test_budget_too_small_for_any_noise_table_is_refused_before_anything_is_asked() -> None:
    outcome = run(DPTree(0.001, depth=10, query="candidates"), silos_of())
    assert isinstance(outcome.error, InvalidJob)


@pytest.mark.parametrize("secure", [True, False])
def test_plan_is_within_a_tenth_of_what_a_full_tree_moves(tmp_path: Path, secure: bool) -> None:
    table = f"depth = 2\nepsilon = inf\nsecure = {str(secure).lower()}\n"
    job = f"strategy = 'dp_tree'\nmin_silos = 3\nmetrics = ['f1']\n[dp_tree]\n{table}"
    planned, report = plan_and_run(tmp_path, job, n_samples=900)
    assert planned["rounds"] == len(report["rounds"]) == 3
    for way in ("up", "down"):
        assert planned["bytes"][way] == pytest.approx(report["bytes"][way], rel=0.1)
    by_step = report["bytes"]["by_step"]
    for step in planned["steps"]:
        assert step["exchanges"] == by_step[step["method"]]["calls"] / 3
    assert {"model.ubj", "tree.txt", "tree.dot", "tree.json", "epsilon-ledger.json"} <= {
        file.name for file in (tmp_path / "run").iterdir()
    }
