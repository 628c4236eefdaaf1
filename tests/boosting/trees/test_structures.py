"""Fitting structures: every cut against brute force, the trie against one tree at a time."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.trees.cart import fit_structure, grow_cart, score
from hedgerow.boosting.trees.decision_tree import DecisionTree
from hedgerow.boosting.trees.genetics import LEAF, random_structures
from hedgerow.boosting.trees.node_cuts import best_cut
from hedgerow.boosting.trees.ranked import RankedTable, rank_table
from hedgerow.boosting.trees.structures import CLASS_SCORES, f1_of, fitness_of
from tests.late import Late

metrics: Any = Late("sklearn.metrics")
peers: Any = Late("sklearn.tree")


def table_of(
    task: Task,
    seed: int,
    n_samples: int,
    *,
    n_values: int = 5,
    weighted: bool = False,
    missing: float = 0.0,
    order: str = "target",
) -> RankedTable:
    """Two numeric features (few and many values), two categorical ones, labels that depend."""
    rng = np.random.default_rng(seed)
    few = rng.integers(0, n_values, n_samples).astype(np.float32)
    many = rng.normal(size=n_samples).astype(np.float32)
    color = rng.integers(0, 4, n_samples).astype(np.float32)
    shape = rng.integers(0, 3, n_samples).astype(np.float32)
    X = np.stack([few, many, color, shape], axis=1)
    signal = few - 2 * (color == 1) + many + rng.normal(size=n_samples)
    X[rng.random(X.shape) < missing] = np.nan
    n_classes = {Task.BINARY: 2, Task.MULTICLASS: 3, Task.REGRESSION: 0}[task]
    if task is Task.REGRESSION:
        y = np.round(signal, 2)
    elif task is Task.BINARY:
        y = (signal > np.median(signal)).astype(np.float64)
    else:
        y = np.digitize(signal, np.quantile(signal, [0.3, 0.7])).astype(np.float64)
    schema = Schema(
        (
            Feature("few"),
            Feature("many"),
            Feature("color", ("red", "green", "blue", "grey", "never")),
            Feature("shape", ("a", "b", "c")),
        ),
        "label",
        task,
        n_classes,
    )
    weight = rng.integers(1, 4, n_samples).astype(np.float64) if weighted else None
    return rank_table(Dataset(schema, X, y, weight), order)


def impurity(table: RankedTable, rows: np.ndarray) -> float:
    """Weighted Gini impurity or squared error of a set of rows, from the definition."""
    weight, labels = table.weight[rows], table.dataset.labels[rows]
    total = weight.sum()
    if total == 0:
        return 0.0
    if table.is_regression:
        return float(weight @ (labels - (weight @ labels) / total) ** 2)
    shares = [weight[labels == c].sum() / total for c in np.unique(labels)]
    return float(total * (1.0 - sum(p * p for p in shares)))


def naive_least_impurity(
    table: RankedTable, rows: np.ndarray, feature: int, min_leaf: int
) -> float:
    """Try every partition that a cut may make; inf when none is admissible."""
    column = table.dataset.X[rows, feature]
    missing = np.isnan(column)
    present = np.unique(column[~missing])
    sides: list[np.ndarray] = []
    if not table.categorical[feature]:
        sides = [~missing & (column <= value) for value in present]
    elif not table.by_target:
        sides = [~missing & (column <= code) for code in present]
    else:
        # The best of all subsets: what ordering by the target must find for two classes and means.
        for size in range(1, len(present) + 1):
            for chosen in itertools.combinations(present.tolist(), size):
                sides.append(np.isin(column, chosen))
    least = math.inf
    for left in sides:
        for side in (left, left | missing):
            if min(side.sum(), (~side).sum()) < min_leaf:
                continue
            least = min(least, impurity(table, rows[side]) + impurity(table, rows[~side]))
    return least


TASKS = [Task.BINARY, Task.MULTICLASS, Task.REGRESSION]


@settings(max_examples=40)
@given(
    task=st.sampled_from(TASKS),
    order=st.sampled_from(["ordinal", "target"]),
    seed=st.integers(0, 10_000),
    n_samples=st.integers(4, 60),
    min_leaf=st.integers(1, 5),
    missing=st.sampled_from([0.0, 0.2]),
    weighted=st.booleans(),
)
def test_every_cut_has_the_least_impurity_of_all(
    task: Task,
    order: str,
    seed: int,
    n_samples: int,
    min_leaf: int,
    missing: float,
    weighted: bool,
) -> None:
    table = table_of(task, seed, n_samples, missing=missing, weighted=weighted, order=order)
    rows = table.all_rows[:: 1 + seed % 2]
    for feature in range(4):
        by_target = order == "target" and table.categorical[feature]
        if by_target and (task is Task.MULTICLASS or min_leaf > 1):
            continue  # the theorem is about two classes or means, and free side sizes
        found = best_cut(table, rows, np.array([feature]), min_leaf)
        least = naive_least_impurity(table, rows, feature, min_leaf)
        if impurity(table, rows) < 1e-9 or len(rows) < 2 * min_leaf:
            assert found is None
            continue
        if found is None:
            assert least == math.inf
            continue
        _, left, right = found
        assert min(len(left), len(right)) >= min_leaf
        assert np.array_equal(np.sort(np.concatenate([left, right])), rows)
        achieved = impurity(table, left) + impurity(table, right)
        assert achieved == pytest.approx(least, rel=1e-9, abs=1e-9)


@settings(max_examples=40)
@given(
    task=st.sampled_from(TASKS),
    order=st.sampled_from(["ordinal", "target"]),
    seed=st.integers(0, 10_000),
    depth=st.integers(1, 4),
    min_leaf=st.integers(1, 4),
    missing=st.sampled_from([0.0, 0.2]),
    weighted=st.booleans(),
    held_out=st.booleans(),
    metric=st.sampled_from(CLASS_SCORES),
)
def test_population_scores_equal_those_of_trees_fitted_one_by_one(
    task: Task,
    order: str,
    seed: int,
    depth: int,
    min_leaf: int,
    missing: float,
    weighted: bool,
    held_out: bool,
    metric: str,
) -> None:
    table = table_of(task, seed, 70, missing=missing, weighted=weighted, order=order)
    population = random_structures(np.random.default_rng(seed), 12, depth, 4, 0.3)
    population[3] = population[1]
    population[5, 0] = LEAF
    fit, rest = table.all_rows[:50], table.all_rows[50:]
    scored = rest if held_out else None
    together = fitness_of(table, population, fit, scored, min_leaf, metric)
    on = fit if scored is None else scored
    alone = [
        score(table, fit_structure(table, genes, fit, min_leaf), on, metric=metric)
        for genes in population
    ]
    if metric == "accuracy" and task is not Task.REGRESSION:
        tree = fit_structure(table, population[0], fit, min_leaf)
        right = tree.predict(table.dataset.X[on]) == table.dataset.labels[on]
        assert together[0] == pytest.approx(np.average(right, weights=table.weight[on]))
    np.testing.assert_allclose(together, alone, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("n_values", [5, 400])
def test_rows_reach_the_node_that_counted_them(task: Task, n_values: int) -> None:
    table = table_of(task, 3, 300, n_values=n_values, missing=0.1)
    population = random_structures(np.random.default_rng(0), 5, 4, 4, 0.2)
    for genes in population:
        tree = fit_structure(table, genes, table.all_rows, 1)
        leaf = tree.apply(table.dataset.X)
        counted = np.bincount(leaf, minlength=tree.n_nodes)
        assert np.array_equal(counted[tree.left < 0], tree.n_rows[tree.left < 0])
        assert (counted[tree.left >= 0] == 0).all()


def numeric_table(task: Task, seed: int) -> tuple[RankedTable, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(3000, 6)).astype(np.float32)
    signal = X[:, 0] * X[:, 1] + X[:, 2] + rng.normal(size=3000)
    if task is Task.REGRESSION:
        y, n_classes = signal.astype(np.float64), 0
    else:
        n_classes = 2 if task is Task.BINARY else 4
        cuts = np.quantile(signal, np.arange(1, n_classes) / n_classes)
        y = np.digitize(signal, cuts).astype(np.float64)
    schema = Schema(tuple(Feature(f"f{i}") for i in range(6)), "label", task, n_classes)
    # Random weights: no two cuts are equally good.
    return rank_table(Dataset(schema, X, y, rng.uniform(0.5, 1.5, 3000))), X, y


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("depth", [1, 3, 5])
@pytest.mark.parametrize("min_leaf", [5, 40])
def test_cart_grows_the_tree_that_scikit_learn_grows(task: Task, depth: int, min_leaf: int) -> None:
    table, X, y = numeric_table(task, depth)
    ours = grow_cart(table, table.all_rows, depth, min_leaf)
    kind = "Regressor" if task is Task.REGRESSION else "Classifier"
    peer = getattr(peers, f"DecisionTree{kind}")(
        max_depth=depth,
        min_samples_leaf=min_leaf,
        min_impurity_decrease=1e-12,  # its rounding calls some pure nodes impure
        random_state=0,
    )
    peer.fit(X, y, table.weight)
    assert ours.n_nodes == peer.tree_.node_count
    np.testing.assert_allclose(ours.predict(X), peer.predict(X), rtol=1e-6)
    inner = peer.tree_.children_left >= 0
    assert [cut.feature for cut in ours.cuts if cut] == peer.tree_.feature[inner].tolist()
    np.testing.assert_allclose(
        [cut.threshold for cut in ours.cuts if cut], peer.tree_.threshold[inner], rtol=1e-6
    )


@pytest.mark.parametrize("task", TASKS)
def test_structure_of_a_cart_tree_fitted_again_is_that_tree(task: Task) -> None:
    table = table_of(task, 11, 200, missing=0.1)
    cart = grow_cart(table, table.all_rows, 4, 2)
    again = fit_structure(table, cart.structure(4), table.all_rows, 2)
    assert again.cuts == cart.cuts
    assert np.array_equal(again.content, cart.content)


def test_equal_cuts_go_to_the_lowest_feature_and_the_lowest_threshold() -> None:
    column = np.array([0, 0, 1, 1, 2, 2], dtype=np.float32)
    X = np.stack([np.zeros(6, dtype=np.float32), column, column], axis=1)
    y = np.array([0, 0, 1, 1, 0, 0], dtype=np.float64)
    schema = Schema((Feature("a"), Feature("b"), Feature("c")), "label", Task.BINARY, 2)
    table = rank_table(Dataset(schema, X, y))
    found = best_cut(table, table.all_rows, np.arange(3), 1)
    assert found is not None
    assert (found[0].feature, found[0].threshold) == (1, 0.5)
    assert not found[0].missing_left


def test_threshold_between_neighbouring_floats_still_separates_them() -> None:
    low = np.float32(1.0)
    high = np.nextafter(low, np.float32(2.0))
    X = np.array([[low], [low], [high], [high]], dtype=np.float32)
    schema = Schema((Feature("a"),), "label", Task.BINARY, 2)
    table = rank_table(Dataset(schema, X, np.array([0.0, 0.0, 1.0, 1.0])))
    tree: DecisionTree = grow_cart(table, table.all_rows, 1, 1)
    assert tree.predict(X).tolist() == [0, 0, 1, 1]


def test_missing_alone_can_be_asked_for() -> None:
    X = np.array([[1], [1], [np.nan], [np.nan]], dtype=np.float32)
    schema = Schema((Feature("a"),), "label", Task.BINARY, 2)
    table = rank_table(Dataset(schema, X, np.array([0.0, 0.0, 1.0, 1.0])))
    tree = grow_cart(table, table.all_rows, 2, 1)
    assert tree.predict(X).tolist() == [0, 0, 1, 1]
    assert tree.predict(np.array([[1e30]], dtype=np.float32)).tolist() == [0]


@settings(max_examples=30)
@given(st.integers(0, 1000), st.integers(2, 5))
def test_f1_is_scikit_learns(seed: int, n_classes: int) -> None:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, 40)
    predicted = rng.integers(0, n_classes, 40)
    classes = np.arange(n_classes)
    hits = np.array([((y == c) & (predicted == c)).sum() for c in classes], dtype=np.float64)
    ours = f1_of(
        hits,
        np.bincount(predicted, minlength=n_classes).astype(np.float64),
        np.bincount(y, minlength=n_classes).astype(np.float64),
    )
    if n_classes == 2:
        expected = metrics.f1_score(y, predicted, zero_division=0.0)
    else:
        expected = metrics.f1_score(
            y, predicted, labels=np.unique(y), average="macro", zero_division=0.0
        )
    assert float(ours) == pytest.approx(expected)
