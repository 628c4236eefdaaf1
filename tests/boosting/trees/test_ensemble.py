from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import xgboost as xgb
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.boosting.errors import ModelRejected, OfferRejected
from hedgerow.boosting.job import Booster
from hedgerow.boosting.trees import ubjson
from hedgerow.boosting.trees.ensemble import Ensemble, Tree, blank
from hedgerow.boosting.trees.limits import TreeLimits, depth, step_groups, validate_upload
from hedgerow.boosting.trees.loading import load, trees_of
from tests.boosting.trees.ensembles import (
    KINDS,
    Kind,
    dataset,
    margin,
    matrix,
    parameters,
    raw,
    train,
)

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
unpruned = pytest.mark.parametrize(
    "kind", [k for k in KINDS if k.name != "pruned"], ids=lambda kind: kind.name
)


def blank_of(kind: Kind) -> Ensemble:
    names = ("num_parallel_tree", "tree_method")
    booster = Booster(**{k: v for k, v in kind.extra.items() if k in names})
    return blank(dataset(kind, 1, 0).schema, kind.objective, booster, kind.base_score)


def limits(kind: Kind, steps: int = 1) -> TreeLimits:
    schema = dataset(kind, 1, 0).schema
    return TreeLimits(
        step_groups(steps, schema.n_outputs, kind.extra.get("num_parallel_tree", 1)),
        tuple(len(feature.categories or ()) for feature in schema.features),
    )


@every_kind
def test_documents_are_rewritten_to_the_byte(kind: Kind) -> None:
    model = raw(train(kind, dataset(kind, 300, 1), 60))
    assert ubjson.write(ubjson.read(model)) == model


@unpruned
def test_a_model_survives_the_ensemble_to_the_byte(kind: Kind) -> None:
    model = raw(train(kind, dataset(kind, 300, 1), 3))
    assert load(model).save() == model


@every_kind
def test_json_and_ubjson_give_the_same_ensemble(kind: Kind) -> None:
    booster = train(kind, dataset(kind, 300, 2), 3)
    ours, from_json = load(raw(booster)), load(bytes(booster.save_raw("json")))
    assert from_json.save() == ours.save()
    assert load(ours.save("json")).save() == ours.save()


@every_kind
def test_stock_xgboost_predicts_the_same_from_a_converted_model(kind: Kind) -> None:
    data = dataset(kind, 300, 3)
    booster = train(kind, data, 4)
    ensemble = load(raw(booster))
    np.testing.assert_array_equal(margin(booster, data), margin(ensemble.booster(), data))
    reloaded = xgb.Booster(model_file=bytearray(ensemble.save("json")))
    np.testing.assert_array_equal(margin(booster, data), margin(reloaded, data))


def test_pruned_nodes_are_left_out_and_predictions_stay() -> None:
    kind = next(k for k in KINDS if k.name == "pruned")
    data = dataset(kind, 400, 4)
    booster = train(kind, data, 4)
    document = ubjson.read(raw(booster))
    trees = document["learner"]["gradient_booster"]["model"]["trees"]
    assert any(int(tree["tree_param"]["num_deleted"]) for tree in trees)
    ensemble = load(raw(booster))
    validate_upload(ensemble.trees, limits(kind, 4))
    for tree, before in zip(ensemble.trees, trees, strict=True):
        parameters = before["tree_param"]
        assert tree.n_nodes == int(parameters["num_nodes"]) - int(parameters["num_deleted"])


@every_kind
def test_merged_margins_are_the_sum_of_the_parts(kind: Kind) -> None:
    """The equivalence behind bagging, with XGBoost's own predictions as the oracle."""
    silos = [dataset(kind, n, seed) for seed, n in enumerate((250, 200, 300))]
    boosters = [train(kind, data, steps=2, seed=i) for i, data in enumerate(silos)]
    ensemble = blank_of(kind)
    for booster in boosters:
        trees = trees_of(booster)
        validate_upload(trees, limits(kind, 2))
        ensemble = ensemble.extend(trees, n_steps=2)
    rows = dataset(kind, 200, 9)
    merged = margin(ensemble.booster(), rows)
    base = ensemble.base_margins(rows.n_samples)
    expected = base + sum(margin(booster, rows) - base for booster in boosters)
    np.testing.assert_allclose(merged, expected, atol=2e-5)
    assert ensemble.round_ends == (2, 4, 6)
    assert ensemble.booster().num_boosted_rounds() == 6
    first = ensemble.booster().predict(
        matrix(rows), output_margin=True, iteration_range=(0, 2), validate_features=False
    )
    np.testing.assert_array_equal(first, margin(boosters[0], rows))


@every_kind
def test_margins_added_part_by_part_equal_the_whole_to_the_bit(kind: Kind) -> None:
    data = dataset(kind, 250, 5)
    whole = load(raw(train(kind, data, 6)))
    rows = matrix(data)
    per_step = len(whole.trees) // 6
    part = replace(whole, trees=(), steps=())
    margins = part.margins(rows)
    for start in range(0, 6, 2):
        trees = whole.trees[start * per_step : (start + 2) * per_step]
        margins = part.extend(trees, n_steps=2).margins(rows, start=margins)
    np.testing.assert_array_equal(margins, whole.margins(rows))
    np.testing.assert_array_equal(margins, margin(whole.booster(), data))


@pytest.mark.parametrize(
    "kind", [k for k in KINDS if "subsample" not in k.extra], ids=lambda kind: kind.name
)
def test_training_with_cached_margins_equals_continuing_the_model(kind: Kind) -> None:
    """Holds to the bit without row sampling, whose stream follows the booster's step count."""
    data = dataset(kind, 300, 6)
    first = train(kind, data, 2)
    rows = matrix(data)
    ensemble = load(raw(first))
    rows.set_base_margin(ensemble.margins(rows))
    fresh = xgb.Booster(parameters(kind), [rows])
    fresh.update(rows, 0)
    continued = xgb.train(parameters(kind), matrix(data), 1, xgb_model=first)
    assert (
        ensemble.extend(trees_of(fresh), n_steps=1, end_round=False).save()
        == load(raw(continued)).save()
    )


def test_slices_are_whole_rounds() -> None:
    kind = KINDS[3]
    ensemble = blank_of(kind)
    data = dataset(kind, 200, 7)
    for seed, steps in enumerate((2, 1, 3)):
        ensemble = ensemble.extend(trees_of(train(kind, data, steps, seed)), n_steps=steps)
    assert ensemble.round_ends == (2, 3, 6)
    assert ensemble.steps == (3, 6, 9, 12, 15, 18)
    two = ensemble.slice(2)
    assert (two.version, two.steps, two.round_ends) == (9, (3, 6, 9), (2, 3))
    by_range = ensemble.booster().predict(
        matrix(data), output_margin=True, iteration_range=(0, 3), validate_features=False
    )
    np.testing.assert_array_equal(margin(two.booster(), data), by_range)
    assert load(ensemble.save()).round_ends == (2, 3, 6)
    assert ensemble.slice(0).version == 0


def test_the_digest_follows_trees_and_header() -> None:
    kind = KINDS[0]
    data = dataset(kind, 200, 8)
    ensemble = blank_of(kind).extend(trees_of(train(kind, data, 2)), n_steps=2)
    again = blank_of(kind).extend(trees_of(train(kind, data, 2)), n_steps=2)
    assert ensemble.digest == again.digest != ensemble.scrubbed().digest
    assert ensemble.slice(0).digest != blank_of(KINDS[1]).digest


@every_kind
def test_scrubbing_keeps_predictions_and_loses_statistics(kind: Kind) -> None:
    data = dataset(kind, 250, 10)
    ensemble = load(raw(train(kind, data, 3)))
    bare = ensemble.scrubbed()
    np.testing.assert_array_equal(margin(ensemble.booster(), data), margin(bare.booster(), data))
    assert not any(t.gain.any() or t.cover.any() or t.weight.any() for t in bare.trees)


def test_scaling_multiplies_margins() -> None:
    kind = KINDS[0]
    data = dataset(kind, 250, 11)
    ensemble = load(raw(train(kind, data, 1)))
    half = replace(ensemble, trees=tuple(tree.scaled(0.5) for tree in ensemble.trees))
    np.testing.assert_allclose(
        margin(half.booster(), data), margin(ensemble.booster(), data) / 2, rtol=1e-6
    )
    assert ensemble.trees[0].scaled(1.0) is ensemble.trees[0]


def test_clipped_leaves_pass_the_bound_they_were_clipped_to() -> None:
    kind = KINDS[1]
    tree = trees_of(train(kind, dataset(kind, 250, 12), 1))[0]
    for bound in (0.1, 1 / 3, 0.7):
        clipped = tree.clipped(bound)
        validate_upload([clipped], replace(limits(kind), leaf_bound=bound))
        splits = ~tree.is_leaf
        np.testing.assert_array_equal(clipped.threshold[splits], tree.threshold[splits])
    assert tree.clipped(1e9) is tree


def test_dart_weights_are_folded_into_the_leaves() -> None:
    kind = KINDS[0]
    data = dataset(kind, 300, 13)
    given = {"objective": kind.objective, "base_score": 0.5, "booster": "dart", "rate_drop": 0.5}
    booster = xgb.train(given, matrix(data), 6)
    ensemble = load(raw(booster))
    np.testing.assert_allclose(margin(ensemble.booster(), data), margin(booster, data), atol=1e-6)


def test_models_that_are_no_plain_trees_are_refused() -> None:
    kind = KINDS[0]
    data = dataset(kind, 100, 14, missing=0.0)
    linear = xgb.train({"booster": "gblinear"}, xgb.DMatrix(data.X, label=data.y), 1)
    with pytest.raises(ModelRejected, match="gblinear"):
        load(raw(linear))
    targets = np.column_stack([data.labels, data.labels])
    vector = xgb.train(
        {"multi_strategy": "multi_output_tree", "tree_method": "hist"},
        xgb.DMatrix(data.X, label=targets),
        1,
    )
    with pytest.raises(ModelRejected, match="vector"):
        load(raw(vector))
    for bad in (b"", b"{", b'{"a": 1}', b"garbage", raw(linear)[:200], b"{" * 5000):
        with pytest.raises(ModelRejected):
            load(bad)


def test_feature_names_and_types_reach_the_model() -> None:
    model = json.loads(blank_of(KINDS[0]).save("json"))["learner"]
    assert model["feature_names"] == ["a", "b", "weird(_name", "colour"]
    assert model["feature_types"] == ["q", "q", "q", "c"]


def test_header_of_an_older_file_with_a_scalar_base_score_is_read() -> None:
    document = ubjson.read(blank_of(KINDS[1]).header)
    document["learner"]["learner_model_param"]["base_score"] = "1.25E0"
    assert Ensemble(ubjson.write(document)).about.base_score == (1.25,)


# --- uploads ---


def stump(**columns: object) -> Tree:
    base = Tree(
        left=np.array([1, 3, -1, -1, -1], np.int32),
        right=np.array([2, 4, -1, -1, -1], np.int32),
        feature=np.array([0, 3, 0, 0, 0], np.int32),
        threshold=np.array([0.5, 0, 0.1, -0.2, 0.3], np.float32),
        default_left=np.zeros(5, np.bool_),
        gain=np.ones(5, np.float32),
        cover=np.ones(5, np.float32),
        weight=np.ones(5, np.float32),
        categories=((1, np.array([1, 4], np.int32)),),
    )
    return replace(base, **columns)  # type: ignore[arg-type]


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


RULES = TreeLimits((0,), (0, 0, 0, 9), max_depth=2, max_nodes=9, leaf_bound=1.0)


def test_a_sound_upload_passes() -> None:
    validate_upload([stump()], RULES)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"left": ints(1, 0, -1, -1, -1)}, "cycle"),
        ({"left": ints(1, 1, -1, -1, -1)}, "cycle"),
        ({"left": ints(1, 2, -1, -1, -1)}, "two parents"),
        ({"left": ints(1, 9, -1, -1, -1)}, "does not exist"),
        ({"left": ints(1, -7, -1, -1, -1)}, "does not exist"),
        ({"left": ints(1, -1, -1, -1, -1)}, "one child"),
        (
            {"left": ints(1, -1, -1, -1, -1), "right": ints(2, -1, -1, -1, -1), "categories": ()},
            "unreachable",
        ),
        ({"feature": ints(4, 3, 0, 0, 0)}, "feature outside"),
        ({"feature": ints(-1, 3, 0, 0, 0)}, "feature outside"),
        ({"threshold": floats(0.5, 0, np.nan, 0, 0)}, "not finite"),
        ({"threshold": floats(np.inf, 0, 0, 0, 0)}, "not finite"),
        ({"gain": floats(np.nan, 0, 0, 0, 0)}, "not finite"),
        ({"threshold": floats(5.0, 0, 0.1, 1.5, 0)}, "above the bound"),
        ({"categories": ()}, "categories at other nodes"),
        ({"categories": ((0, ints(1)), (1, ints(1)))}, "categories at other nodes"),
        ({"categories": ((1, ints(9)),)}, "category out of range"),
        ({"categories": ((1, ints(-1, 3)),)}, "category out of range"),
        ({"categories": ((1, ints()),)}, "category out of range"),
        ({"categories": ((1, ints(4, 1)),)}, "rising"),
        ({"cover": floats(1, 1)}, "unequal length"),
        ({"group": 1}, "expected class 0"),
    ],
)
def test_a_faulty_upload_is_refused_with_the_rule_named(
    columns: dict[str, object], says: str
) -> None:
    with pytest.raises(OfferRejected, match=says):
        validate_upload([stump(**columns)], RULES)


def test_too_many_too_deep_and_too_large_uploads_are_refused() -> None:
    with pytest.raises(OfferRejected, match="expected 1 trees, received 2"):
        validate_upload([stump(), stump()], RULES)
    with pytest.raises(OfferRejected, match="expected 1 trees, received 0"):
        validate_upload([], RULES)
    with pytest.raises(OfferRejected, match="deeper than 1"):
        validate_upload([stump()], replace(RULES, max_depth=1))
    with pytest.raises(OfferRejected, match="at most 3"):
        validate_upload([stump()], replace(RULES, max_nodes=3))


def test_step_groups_follow_xgboost() -> None:
    kind = next(k for k in KINDS if k.name == "forest")
    trees = trees_of(train(kind, dataset(kind, 100, 1), 2))
    assert step_groups(2, 3, 3) == tuple(tree.group for tree in trees)


@st.composite
def random_trees(draw: st.DrawFn) -> Tree:
    """Trees grown by splitting a random leaf at a time, as lossguide does."""
    left, right = [-1], [-1]
    for _ in range(draw(st.integers(0, 12))):
        leaves = [i for i, child in enumerate(left) if child < 0]
        node = draw(st.sampled_from(leaves))
        left[node], right[node] = len(left), len(left) + 1
        left += [-1, -1]
        right += [-1, -1]
    n = len(left)
    numbers = st.lists(st.floats(-1, 1, width=32), min_size=n, max_size=n)
    is_leaf = np.array(left) < 0
    feature = np.array(draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)), np.int32)
    return Tree(
        left=np.array(left, np.int32),
        right=np.array(right, np.int32),
        feature=np.where(is_leaf, 0, feature).astype(np.int32),
        threshold=np.array(draw(numbers), np.float32),
        default_left=np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n))) & ~is_leaf,
        gain=np.where(is_leaf, 0, np.array(draw(numbers))).astype(np.float32),
        cover=np.array(draw(numbers), np.float32),
        weight=np.array(draw(numbers), np.float32),
    )


def walk(tree: Tree, row: np.ndarray) -> np.float32:
    node = 0
    while tree.left[node] >= 0:
        x = row[tree.feature[node]]
        goes_left = tree.default_left[node] if np.isnan(x) else x < tree.threshold[node]
        node = int(tree.left[node] if goes_left else tree.right[node])
    return tree.threshold[node]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(trees=st.lists(random_trees(), min_size=1, max_size=3), seed=st.integers(0, 99))
def test_any_sound_tree_is_loaded_and_evaluated_as_written(trees: list[Tree], seed: int) -> None:
    kind = Kind("any", KINDS[1].task, "reg:squarederror", 0.0, {"tree_method": "exact"})
    validate_upload(trees, TreeLimits((0,) * len(trees), (0, 0, 0, 0)))
    data = dataset(kind, 12, seed, missing=0.3)
    ensemble = blank_of(kind).extend(trees, n_steps=len(trees))
    expected = np.zeros(12, np.float32)
    for tree in trees:
        expected += np.array([walk(tree, row) for row in data.X])
    np.testing.assert_array_equal(margin(ensemble.booster(), data), expected)
    assert load(ensemble.save()).save() == ensemble.save()


@settings(max_examples=40, deadline=None)
@given(tree=random_trees())
def test_depth_is_the_longest_path(tree: Tree) -> None:
    def below(node: int) -> int:
        if tree.left[node] < 0:
            return 0
        return 1 + max(below(int(tree.left[node])), below(int(tree.right[node])))

    true_depth = below(0)
    assert depth(tree) == true_depth
    if true_depth:
        assert depth(tree, true_depth - 1) == -1
