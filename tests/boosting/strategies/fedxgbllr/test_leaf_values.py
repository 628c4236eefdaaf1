"""Leaf ordinals against XGBoost's own predictions, one tree at a time."""

import numpy as np
import pytest
import xgboost as xgb

from hedgerow.boosting.strategies.fedxgbllr.leaf_values import LeafOrdinals, LeafTable
from hedgerow.boosting.trees.loading import trees_of
from tests.boosting.trees.ensembles import KINDS, dataset, matrix, train


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_gathered_outputs_equal_xgboosts_predictions_tree_by_tree(kind):
    booster = train(kind, dataset(kind, 400, 1), 4)
    rows = dataset(kind, 150, 2, missing=0.2)
    leaves = LeafOrdinals.of(trees_of(booster), rows.X)
    found = leaves.outputs(np.arange(rows.n_samples))
    reached = booster.predict(matrix(rows), pred_leaf=True, strict_shape=True)
    reached = reached.reshape(rows.n_samples, -1)
    document = xgb_document(booster)
    # pred_leaf orders by iteration, class and parallel tree, as the model's trees are
    expected = np.column_stack(
        [
            np.asarray(tree["split_conditions"], np.float32)[reached[:, t].astype(int)]
            for t, tree in enumerate(document)
        ]
    )
    assert np.array_equal(found, expected)
    assert leaves.ordinals.dtype == np.uint8


def xgb_document(booster: xgb.Booster):
    import json

    return json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_sums_of_leaf_values_are_the_margins_of_the_ensemble(kind):
    booster = train(kind, dataset(kind, 400, 1), 5)
    rows = dataset(kind, 100, 2)
    leaves = LeafOrdinals.of(trees_of(booster), rows.X)
    n_outputs = rows.schema.n_outputs
    margins = leaves.margins(leaves.table.values.astype(np.float64), n_outputs)
    expected = booster.predict(matrix(rows), output_margin=True).reshape(len(rows.X), -1)
    none = booster[:1]  # margins of no tree: those of the first step without its trees
    first = LeafOrdinals.of(trees_of(none), rows.X)
    base = none.predict(matrix(rows), output_margin=True).reshape(len(rows.X), -1)
    base = base - first.margins(first.table.values.astype(np.float64), n_outputs)
    np.testing.assert_allclose(margins + base, expected, atol=2e-5)


def test_ordinals_need_two_bytes_when_a_tree_has_more_than_256_leaves():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 3)).astype(np.float32)
    grown = xgb.train(
        {
            "max_depth": 0,
            "grow_policy": "lossguide",
            "max_leaves": 700,
            "base_score": 0.0,
            "min_child_weight": 0,
            "lambda": 0,
        },
        xgb.DMatrix(X, X[:, 0] * X[:, 1]),
        2,
    )
    leaves = LeafOrdinals.of(trees_of(grown), X)
    assert np.diff(leaves.table.offsets).max() > 256
    assert leaves.ordinals.dtype == np.uint16
    np.testing.assert_allclose(
        leaves.margins(leaves.table.values.astype(float), 1)[:, 0],
        grown.predict(xgb.DMatrix(X), output_margin=True),
        atol=1e-5,
    )


def test_leaf_sums_add_each_rows_error_to_the_leaves_it_reaches():
    kind = KINDS[3]
    trees = trees_of(train(kind, dataset(kind, 300, 1), 3))
    rows = dataset(kind, 60, 2)
    leaves = LeafOrdinals.of(trees, rows.X)
    errors = np.random.default_rng(3).normal(size=(60, 3))
    expected = np.zeros(leaves.table.n_leaves)
    for row in range(60):
        for tree, group in enumerate(leaves.table.groups):
            leaf = leaves.table.offsets[tree] + leaves.ordinals[row, tree]
            expected[leaf] += errors[row, group]
    np.testing.assert_allclose(leaves.leaf_sums(errors), expected, atol=1e-12)


def test_no_rows_and_single_leaf_trees_are_legal():
    kind = KINDS[1]
    stump = xgb.train({"gamma": 1e9, "base_score": 0.0}, matrix(dataset(kind, 50, 1)), 2)
    trees = trees_of(stump)
    assert LeafTable.of(trees).n_leaves == 2
    empty = LeafOrdinals.of(trees, np.empty((0, 4), np.float32))
    assert empty.outputs(np.empty(0, np.int64)).shape == (0, 2)
    one = LeafOrdinals.of(trees, np.zeros((3, 4), np.float32))
    assert np.array_equal(one.ordinals, np.zeros((3, 2)))
