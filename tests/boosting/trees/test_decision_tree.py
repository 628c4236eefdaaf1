"""One tree: its export, its drawings, its cross-validation."""

import json

import numpy as np
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.trees.cart import (
    best_depth,
    cross_validate,
    fit_structure,
    fold_numbers,
    grow_cart,
    score,
)
from hedgerow.boosting.trees.decision_tree import MODEL_FILE, DecisionTree
from hedgerow.boosting.trees.genetics import canonical, random_structures
from hedgerow.boosting.trees.loading import load
from hedgerow.boosting.trees.ranked import RankedTable, rank_table

TASKS = [Task.BINARY, Task.MULTICLASS, Task.REGRESSION]


def mixed_table(task: Task, seed: int, n_samples: int = 300) -> RankedTable:
    rng = np.random.default_rng(seed)
    X = np.stack(
        [
            rng.normal(size=n_samples),
            rng.integers(0, 6, n_samples),
            rng.integers(0, 4, n_samples),
        ],
        axis=1,
    ).astype(np.float32)
    signal = X[:, 0] + (X[:, 2] == 2) * 2 - X[:, 1] / 3 + rng.normal(size=n_samples) / 2
    X[rng.random(X.shape) < 0.1] = np.nan
    n_classes = {Task.BINARY: 2, Task.MULTICLASS: 3, Task.REGRESSION: 0}[task]
    y = signal.astype(np.float64)
    if n_classes:
        y = np.digitize(y, np.quantile(y, np.arange(1, n_classes) / n_classes)).astype(np.float64)
    schema = Schema(
        (Feature("size"), Feature("count"), Feature("kind", ("ox", "cow", "hen", "bee", "elk"))),
        "label",
        task,
        n_classes,
    )
    return rank_table(Dataset(schema, X, y))


def unseen_rows(seed: int) -> np.ndarray:
    """Rows with values, gaps and a category that no silo has."""
    rng = np.random.default_rng(seed + 1)
    X = np.stack([rng.normal(size=500), rng.integers(-1, 8, 500), rng.integers(0, 5, 500)], axis=1)
    X = X.astype(np.float32)
    X[rng.random(X.shape) < 0.1] = np.nan
    return X


@settings(max_examples=25)
@given(
    task=st.sampled_from(TASKS),
    seed=st.integers(0, 5000),
    depth=st.integers(1, 5),
    random=st.booleans(),
)
def test_stock_xgboost_predicts_what_the_tree_predicts(
    task: Task, seed: int, depth: int, random: bool
) -> None:
    table = mixed_table(task, seed, 120)
    if random:
        genes = random_structures(np.random.default_rng(seed), 1, depth, 3, 0.2)[0]
        tree = fit_structure(table, genes, table.all_rows, 1)
    else:
        tree = grow_cart(table, table.all_rows, depth, 1)
    raw = tree.files()[MODEL_FILE]
    booster = xgboost.Booster({"nthread": 1}, model_file=bytearray(raw))
    X = np.concatenate([table.dataset.X, unseen_rows(seed)])
    rows = xgboost.DMatrix(
        X,
        feature_names=list(table.dataset.schema.names),
        feature_types=table.dataset.schema.feature_types,
        enable_categorical=True,
        nthread=1,
    )
    margins = booster.predict(rows, output_margin=True)
    np.testing.assert_allclose(margins, tree.margins(X), rtol=1e-6, atol=1e-6)
    predicted = booster.predict(rows)
    if task is Task.BINARY:
        predicted = (predicted >= 0.5).astype(np.float64)
    elif task is Task.MULTICLASS:
        predicted = np.argmax(predicted, axis=1)
    np.testing.assert_allclose(predicted, tree.predict(X), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("task", TASKS)
def test_exported_model_loads_as_an_ensemble(task: Task) -> None:
    table = mixed_table(task, 1)
    tree = grow_cart(table, table.all_rows, 3, 1)
    loaded = load(tree.files()[MODEL_FILE])
    assert loaded.about.n_outputs == table.dataset.schema.n_outputs
    assert len(loaded.trees) == table.dataset.schema.n_outputs
    assert loaded.trees[0].n_nodes == tree.n_nodes


@pytest.mark.parametrize("task", TASKS)
def test_exported_siblings_are_side_by_side_as_xgboost_explains_them(task: Task) -> None:
    table = mixed_table(task, 3)
    raw = grow_cart(table, table.all_rows, 5, 1).files()[MODEL_FILE]
    for tree in load(raw).trees:
        splits = tree.left >= 0
        assert splits.sum() > 3
        assert (tree.right[splits] == tree.left[splits] + 1).all()


def test_tied_leaf_votes_for_the_lowest_class_in_the_export_too() -> None:
    schema = Schema((Feature("a"),), "label", Task.BINARY, 2)
    table = rank_table(Dataset(schema, np.zeros((2, 1), np.float32), np.array([0.0, 1.0])))
    tree = grow_cart(table, table.all_rows, 2, 1)
    assert tree.n_nodes == 1
    assert tree.predict(np.zeros((1, 1), np.float32)).tolist() == [0]
    assert tree.margins(np.zeros((1, 1), np.float32))[0] < 0


@settings(max_examples=20)
@given(st.sampled_from(TASKS), st.integers(0, 5000), st.integers(1, 5))
def test_structure_is_the_tree_without_its_numbers(task: Task, seed: int, depth: int) -> None:
    table = mixed_table(task, seed, 80)
    tree = grow_cart(table, table.all_rows, depth, 1)
    genes = tree.structure(depth)
    assert np.array_equal(canonical(genes[np.newaxis])[0], genes)
    assert int((genes >= 0).sum()) == tree.n_decisions
    again = fit_structure(table, genes, table.all_rows, 1)
    assert again.cuts == tree.cuts


@settings(max_examples=20)
@given(st.sampled_from(TASKS), st.integers(0, 5000), st.integers(0, 5))
def test_top_of_a_tree_is_the_one_grown_to_that_depth(task: Task, seed: int, depth: int) -> None:
    table = mixed_table(task, seed, 80)
    deep = grow_cart(table, table.all_rows, 5, 1)
    shallow = grow_cart(table, table.all_rows, depth, 1)
    top = deep.level <= depth
    assert np.array_equal(deep.content[top], shallow.content)
    assert [cut for cut, level in zip(deep.cuts, deep.level, strict=True) if level < depth] == [
        cut for cut, level in zip(shallow.cuts, shallow.level, strict=True) if level < depth
    ]
    X = unseen_rows(seed)
    assert np.array_equal(deep.predict(X, depth), shallow.predict(X))


@pytest.mark.parametrize("task", TASKS)
def test_cross_validation_scores_trees_grown_without_the_fold(task: Task) -> None:
    table = mixed_table(task, 7)
    scores = cross_validate(np.random.default_rng(1), table, range(2, 5), 4, 1)
    fold = fold_numbers(np.random.default_rng(1), table, 4)
    for k in range(4):
        for row, depth in enumerate(range(2, 5)):
            tree = grow_cart(table, np.flatnonzero(fold != k), depth, 1)
            assert scores[row, k] == score(table, tree, np.flatnonzero(fold == k))


def test_folds_are_even_and_spread_the_classes() -> None:
    table = mixed_table(Task.MULTICLASS, 3)
    fold = fold_numbers(np.random.default_rng(0), table, 5)
    assert np.bincount(fold).tolist() == [60] * 5
    for label in range(3):
        counts = np.bincount(fold[table.dataset.labels == label], minlength=5)
        assert counts.max() - counts.min() <= 1


def test_best_depth_is_the_smallest_of_equal_ones() -> None:
    scores = np.array([[0.5, 0.5], [0.7, 0.7], [0.7, 0.7]])
    assert best_depth(scores, range(2, 5), higher_is_better=True) == 3
    assert best_depth(-scores, range(2, 5), higher_is_better=False) == 3


def drawn_tree() -> DecisionTree:
    schema = Schema(
        (Feature("age"), Feature('kind "x"', ("ox", "cow", "hen"))), "ill", Task.BINARY, 2
    )
    X = np.array([[1, 0], [1, 2], [5, 0], [5, 1], [5, 1], [5, 0]], dtype=np.float32)
    table = rank_table(Dataset(schema, X, np.array([0, 0, 0, 1, 1, 0], dtype=np.float64)))
    return fit_structure(table, np.array([0, -1, 1], dtype=np.int16), table.all_rows, 1)


def test_drawing_reads_as_questions_and_answers() -> None:
    assert drawn_tree().draw().splitlines() == [
        "age < 3.0?  (6 rows)",
        "yes: ill = 0 (100%)  (2 rows)",
        'no:  kind "x" in {ox}?  (4 rows)',
        "    yes: ill = 0 (100%)  (2 rows)",
        "    no:  ill = 1 (100%)  (2 rows)",
    ]


def test_graph_has_a_node_and_two_edges_a_question() -> None:
    graph = drawn_tree().graph()
    assert graph.startswith("digraph tree {")
    assert graph.count("label=") == 5 + 4
    assert graph.count("->") == 4
    assert '\\"x\\"' in graph


def test_document_is_json_with_every_node() -> None:
    document = json.loads(json.dumps(drawn_tree().document()))
    assert [node.get("feature") for node in document["nodes"]] == [0, None, 1, None, None]
    assert document["nodes"][0]["threshold"] == 3.0
    assert document["nodes"][2]["left_codes"] == [0]
