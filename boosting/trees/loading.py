"""The one way from bytes to an ensemble: files, checkpoints and what other parties send.

XGBoost and the compiled kernels trust the structure of a model: a feature or a child out of range
makes them read foreign memory, and a cycle never ends. So nothing of a received model reaches them
but trees that were checked here and a header that was written here from checked texts and numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import FOREIGN, InvalidJob, ModelRejected
from hedgerow.boosting.failure_times import FailureTimes
from hedgerow.boosting.trees import categories, ubjson
from hedgerow.boosting.trees.ensemble import ROUND_ENDS, Ensemble, Tree, quantiles_of
from hedgerow.boosting.trees.limits import ANY_CATEGORIES, TreeLimits, fault, step_groups

if TYPE_CHECKING:
    import xgboost

MAX_BYTES = 1 << 30
"""Most bytes of a model."""
MAX_FEATURES = 1 << 20
MAX_OUTPUTS = 1 << 14
MAX_CATEGORIES = 1 << 24
"""As XGBoost's: a float32 holds every smaller code exactly."""
MAX_CATEGORY_BYTES = 1 << 28
"""Most bytes of all category sets: XGBoost keeps a bit for each code up to the largest."""
MAX_TEXT = 1 << 20
"""Longest text of a header, in bytes."""


def load(
    raw: bytes, *, blank: Ensemble | None = None, limits: TreeLimits | None = None, sender: str = ""
) -> Ensemble:
    """Return the ensemble of a stock XGBoost model (UBJSON, or JSON that begins with ``{"``).

    DART's tree weights are folded into the leaves.

    Parameters
    ----------
    raw : bytes
        From any party or file.
    blank : Ensemble, optional
        The ensemble without trees that the model should have begun as: its header is taken, and
        the model's own facts must be the same.
    limits : TreeLimits, optional
        What the trees must keep to; its groups are those of one step.

    Raises
    ------
    ModelRejected
        Not a tree model of XGBoost 2 or later, vector leaves, categories that are numbers,
        or a structure that is unsound or outside the limits.
    """
    try:
        return _load(raw, blank, limits)
    except ModelRejected as error:
        if not sender:
            raise
        raise ModelRejected(f"{sender}: {error}") from error


def trees_of(booster: xgboost.Booster) -> list[Tree]:
    """Return the trees of a booster of this process, in order."""
    document = ubjson.read(bytes(booster.save_raw("ubj")))
    return _trees(document["learner"]["gradient_booster"])


def _load(raw: bytes, blank: Ensemble | None, limits: TreeLimits | None) -> Ensemble:
    if len(raw) > MAX_BYTES:
        raise ModelRejected(f"expected a model of at most {MAX_BYTES} bytes, received {len(raw)}")
    try:
        document = json.loads(raw) if raw[:2] == b'{"' else ubjson.read(raw)
        learner = document["learner"]
        gbm = learner["gradient_booster"]
        dropped = gbm.get("weight_drop")  # beside the trees; from XGBoost 3.4 on, among them
        if gbm["name"] == "dart":  # up to XGBoost 3.2; since then trees may have weights
            gbm = {**gbm["gbtree"], "name": "gbtree"}
        if gbm["name"] != "gbtree":
            raise ModelRejected(f"expected a model of trees, received {_text(gbm['name'])[:40]}")
        header = _header(document["version"], learner, gbm["model"])
        dropped = gbm["model"].get("weight_drop", dropped)
        weights = None if dropped is None else [float(weight) for weight in dropped]
        trees = _trees(gbm, weights)
        steps = [_whole(end) for end in gbm["model"]["iteration_indptr"]]
        attributes = _texts(learner["attributes"])
        ends = [_whole(end) for end in json.loads(attributes.pop(ROUND_ENDS, "[]"))]
    except FOREIGN as error:
        raise ModelRejected("expected an XGBoost model of trees") from error
    found = Ensemble(ubjson.write(header), tuple(trees), tuple(steps[1:]), tuple(ends), attributes)
    if blank is not None:
        if found.about != blank.about:
            raise ModelRejected("expected a model that begins as the job's, received another")
        found = replace(found, header=blank.header)
    else:
        found.base_margins(1)  # an objective and a base score that XGBoost knows
    if limits is None:
        limits = stock_limits(found.header, 0)
    _check_trees(found, limits)
    _check_ends(found, steps[:1], limits)
    return found


# --- the header ---


def _header(version: Any, learner: Any, model: Any) -> dict[str, Any]:
    """Return the document of a model without trees: known fields only, each of its type."""
    given = learner["learner_model_param"]
    n_features = _number(given["num_feature"], 1, MAX_FEATURES)
    n_classes = _number(given["num_class"], 0, MAX_OUTPUTS)
    n_targets = _number(given.get("num_target", "1"), 0, MAX_OUTPUTS)
    if min(n_targets, n_classes) > 1:
        raise ModelRejected("expected several targets or several classes, received both")
    facts = {
        "base_score": _base_score(given["base_score"], max(1, n_classes, n_targets)),
        "num_class": str(n_classes),
        "num_feature": str(n_features),
    }
    if "num_target" in given:
        facts["num_target"] = str(n_targets)
    if "boost_from_average" in given:
        facts["boost_from_average"] = str(_number(given["boost_from_average"], 0, 1))
    given_objective = dict(learner["objective"])
    objective: dict[str, Any] = {"name": _text(given_objective.pop("name"))}
    objective |= {_text(key): _texts(value) for key, value in given_objective.items()}
    if "aft_loss_param" in objective:
        times = objective["aft_loss_param"]
        known = [times.get(f"aft_loss_distribution{what}", "") for what in ("", "_scale")]
        try:
            FailureTimes.of(f"{known[0] or 'normal'}:{known[1]}", "aft_loss_param")
        except InvalidJob as error:
            raise ModelRejected(str(error)) from error
    quantiles = quantiles_of(objective.get("quantile_loss_param", {}))
    if any(not 0 < alpha < 1 for alpha in quantiles) or len(quantiles) not in (0, 1, n_targets):
        raise ModelRejected("expected a quantile of each output, above 0 and below 1")
    of_classes = objective.get("softmax_multiclass_param", {}).get("num_class", facts["num_class"])
    if of_classes != facts["num_class"]:
        raise ModelRejected("expected as many classes in the objective as in the model")
    trees = _number(model["gbtree_model_param"]["num_parallel_tree"], 0, MAX_FEATURES)
    empty: dict[str, Any] = {
        "gbtree_model_param": {"num_parallel_tree": str(trees), "num_trees": "0"},
        "iteration_indptr": [0],
        "tree_info": [],
        "trees": [],
    }
    types = _by_feature(learner["feature_types"], n_features)
    if "cats" in model:
        empty["cats"] = categories.encode(categories.decode(model["cats"], types, n_features))
    return {
        "learner": {
            "attributes": {},
            "feature_names": _by_feature(learner["feature_names"], n_features),
            "feature_types": types,
            "gradient_booster": {"model": empty, "name": "gbtree"},
            "learner_model_param": facts,
            "objective": objective,
        },
        "version": _version(version),
    }


def _version(version: Any) -> list[int]:
    """Return XGBoost's version; those before 2 read base scores in another way."""
    parts = [_whole(part) for part in version]
    if len(parts) != 3 or parts[0] < 2:
        raise ModelRejected("expected a model of XGBoost 2 or later")
    return parts


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError
    if not 0 <= value < 1 << 31:
        raise OverflowError
    return int(value)


def _number(text: Any, least: int, most: int) -> int:
    """Return a whole number that the header has as a text."""
    number = int(_text(text))
    if not least <= number <= most:
        raise ModelRejected(f"a header with {number} where {least} to {most} are accepted")
    return number


def _base_score(text: Any, n_outputs: int) -> str:
    score = _text(text)
    found = json.loads(score)  # "[5E-1]"; a bare "5E-1" before 3.1
    scores = [float(one) for one in found] if isinstance(found, list) else [float(found)]
    if len(scores) not in (1, n_outputs) or not np.isfinite(np.array(scores, np.float32)).all():
        raise ModelRejected("expected a finite base score, one or one for each output")
    return score


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value.encode()) > MAX_TEXT:
        raise TypeError
    return value


def _texts(values: Any) -> dict[str, str]:
    return {_text(key): _text(value) for key, value in values.items()}


def _by_feature(values: Any, n_features: int) -> list[str]:
    if not isinstance(values, list) or len(values) not in (0, n_features):
        raise ModelRejected("expected names and types of all features, or of none")
    return [_text(value) for value in values]


# --- trees ---


def _trees(gbm: Any, weights: list[float] | None = None) -> list[Tree]:
    model = gbm["model"]
    if [_whole(tree["id"]) for tree in model["trees"]] != list(range(len(model["trees"]))):
        raise ModelRejected("expected tree identifiers in order")
    with np.errstate(all="ignore"):
        trees = [
            _tree(tree, _whole(group))
            for tree, group in zip(model["trees"], model["tree_info"], strict=True)
        ]
        if weights is not None:
            trees = [tree.scaled(weight) for tree, weight in zip(trees, weights, strict=True)]
    return trees


def _tree(document: Mapping[str, Any], group: int) -> Tree:
    """Read a tree; pruned nodes are dropped, the others keep their order."""
    if int(document["tree_param"]["size_leaf_vector"]) > 1:
        raise ModelRejected("vector leaves are not supported")
    n = len(document["left_children"])

    def whole(name: str) -> NDArray[np.int32]:
        return _column(document, name, n, np.dtype(np.int32))

    def real(name: str) -> NDArray[np.float32]:
        return _column(document, name, n, np.dtype(np.float32))

    left = whole("left_children")
    leaf = left < 0
    tree = Tree(
        left,
        whole("right_children"),
        np.where(leaf, np.int32(0), whole("split_indices")),
        real("split_conditions"),
        whole("default_left").astype(np.bool_) & ~leaf,
        np.where(leaf, np.float32(0), real("loss_changes")),
        real("sum_hessian"),
        real("base_weights"),
        _categories(document, whole("split_type")),
        group,
    )
    if int(document["tree_param"]["num_deleted"]) == 0:
        return tree
    return _compacted(tree)


def _column(document: Mapping[str, Any], name: str, n: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    values = np.asarray(document[name])
    kinds = "iub" if dtype.kind == "i" else "iuf"
    if values.shape != (n,) or (n and values.dtype.kind not in kinds):
        raise ModelRejected(f"{name}: expected {n} numbers in a row")
    if n and dtype.kind == "i" and not np.can_cast(values.dtype, np.int32):
        limits = np.iinfo(np.int32)
        if int(values.min()) < limits.min or int(values.max()) > limits.max:
            raise ModelRejected(f"{name}: expected numbers of 32 bits")
    return values.astype(dtype)


def _categories(
    document: Mapping[str, Any], split_type: NDArray[np.int32]
) -> tuple[tuple[int, NDArray[np.int32]], ...]:
    whole = np.dtype(np.int32)
    n, n_codes = len(document["categories_nodes"]), len(document["categories"])
    others = len(document["categories_segments"]) + len(document["categories_sizes"])
    if not (n or n_codes or others or split_type.any()):
        return ()
    codes = _column(document, "categories", n_codes, whole)
    nodes = _column(document, "categories_nodes", n, whole)
    starts = _column(document, "categories_segments", n, whole)
    sizes = _column(document, "categories_sizes", n, whole).astype(np.int64)
    ends = np.cumsum(sizes)
    if (sizes < 0).any() or (starts != ends - sizes).any() or sizes.sum() != n_codes:
        raise ModelRejected("expected category sets one after another")
    if nodes.tolist() != np.flatnonzero(split_type).tolist():
        raise ModelRejected("expected a category set for each categorical split")
    return tuple(
        (int(node), codes[end - size : end])
        for node, end, size in zip(nodes, ends, sizes, strict=True)
    )


def _compacted(tree: Tree) -> Tree:
    """Return the tree without nodes that its root does not reach."""
    reached = np.zeros(tree.n_nodes, np.bool_)
    frontier = np.zeros(1, np.int32)
    while len(frontier):
        if (frontier < 0).any() or (frontier >= tree.n_nodes).any() or reached[frontier].any():
            raise ModelRejected("a child that does not exist, or with two parents")
        reached[frontier] = True
        frontier = frontier[tree.left[frontier] >= 0]
        frontier = np.concatenate([tree.left[frontier], tree.right[frontier]])
    return tree.take(np.flatnonzero(reached))


# --- what the trees keep to ---


def stock_limits(header: bytes, n_steps: int) -> TreeLimits:
    """Return limits of trees without a job: any category of a feature that may have some.

    Parameters
    ----------
    header : bytes
        A model without trees, already checked.
    n_steps : int
        Steps that are expected; 0 for any number of trees, of any class.
    """
    about = Ensemble(header).about
    types = ubjson.read(header)["learner"]["feature_types"]
    sizes = tuple(MAX_CATEGORIES if kind == "c" else 0 for kind in types)
    groups = step_groups(n_steps, about.n_outputs, max(1, about.num_parallel_tree))
    return TreeLimits(groups, sizes or (ANY_CATEGORIES,) * about.n_features)


def _check_trees(model: Ensemble, limits: TreeLimits) -> None:
    n_outputs, room = model.about.n_outputs, 0
    for index, tree in enumerate(model.trees):
        expected = limits.groups[index % len(limits.groups)] if limits.groups else tree.group
        if tree.group != expected or tree.group >= n_outputs:
            raise ModelRejected(f"tree {index}: class {tree.group} out of order or range")
        wrong = fault(tree, limits)
        if wrong:
            raise ModelRejected(f"tree {index}: {wrong}")
        room += sum(int(codes[-1]) // 8 + 1 for _, codes in tree.categories)
    if room > MAX_CATEGORY_BYTES:
        raise ModelRejected(f"category sets that take more than {MAX_CATEGORY_BYTES} bytes")


def _check_ends(model: Ensemble, origin: list[int], limits: TreeLimits) -> None:
    """Check where steps and rounds end; with limits every step has as many trees."""
    n_trees = len(model.trees)
    steps, rounds = np.array(model.steps, np.int64), np.array(model.round_ends, np.int64)
    sound = origin == [0] and (np.diff(steps, prepend=0) > 0).all()
    if not sound or (model.steps[-1] if model.steps else 0) != n_trees:
        raise ModelRejected(f"expected steps that divide {n_trees} trees")
    a_step = len(limits.groups)
    if a_step and (np.diff(steps, prepend=0) != a_step).any():
        raise ModelRejected(f"expected steps of {a_step} trees")
    if (np.diff(rounds, prepend=0) < 0).any() or (rounds > len(steps)).any():
        raise ModelRejected(f"expected rounds that divide {len(steps)} steps")
