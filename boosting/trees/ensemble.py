"""Trees as columns of numbers, and ensembles of them as stock XGBoost models.

Node order is XGBoost's own; node 0 is the root. A numeric node sends ``x < threshold`` left; a
missing value follows ``default_left``. Trees follow the order (federated round, silo, local step,
class, parallel index); a *step* is one boosting iteration of one silo.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import ModelRejected
from hedgerow.boosting.failure_times import FailureTimes
from hedgerow.boosting.trees import categories, ubjson

if TYPE_CHECKING:
    import xgboost

    from hedgerow.boosting.dataset import Schema
    from hedgerow.boosting.job import Booster

NO_PARENT = 2147483647
"""XGBoost's parent of a root."""

ROUND_ENDS = "fed_round_ends"
"""Model attribute: JSON list of the step count after each federated round."""
INTERVAL = "hedgerow_interval"
"""Model attribute: JSON of the share of rows that an interval holds, its half width, and the rows
held back that this follows from."""


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """One regression tree; all arrays have one entry a node."""

    left: NDArray[np.int32]
    right: NDArray[np.int32]
    """Of shape (n_nodes,), int32. ``left`` and ``right``: child positions, -1 at leaves; always
    after their parent."""
    feature: NDArray[np.int32]
    """Of shape (n_nodes,), int32. Feature index of a split; 0 at leaves."""
    threshold: NDArray[np.float32]
    """Of shape (n_nodes,), float32. ``x < threshold`` goes left at a numeric split; the leaf value
    (shrinkage included) at a leaf; unused at a categorical split. XGBoost's
    ``split_conditions``."""
    default_left: NDArray[np.bool_]
    """Of shape (n_nodes,), bool."""
    gain: NDArray[np.float32]
    """Of shape (n_nodes,), float32. XGBoost's ``loss_changes``; 0 at leaves and when scrubbed."""
    cover: NDArray[np.float32]
    """Of shape (n_nodes,), float32. XGBoost's ``sum_hessian``; 0 when scrubbed."""
    weight: NDArray[np.float32]
    """Of shape (n_nodes,), float32. XGBoost's ``base_weights`` (unshrunken); 0 when scrubbed."""
    categories: tuple[tuple[int, NDArray[np.int32]], ...] = ()
    """Tuple of (node, codes). For each categorical split, the sorted int32 codes that go **right**
    (XGBoost's convention)."""
    group: int = 0
    """Class index of the output the tree adds to."""

    @property
    def n_nodes(self) -> int:
        """Number of nodes, splits and leaves."""
        return int(self.left.shape[0])

    def by_level(self) -> Tree:
        """Return the tree with its nodes level by level, siblings side by side.

        XGBoost 3.2 explains rows as if each right child came right after the left one.
        """
        order = [0]
        for node in order:  # grows while it is read
            if self.left[node] >= 0:
                order += [int(self.left[node]), int(self.right[node])]
        if order == list(range(self.n_nodes)):
            return self
        return self.take(np.array(order))

    def take(self, nodes: NDArray[np.intp]) -> Tree:
        """Return the tree of some nodes in their order; the root is first, children are among them.

        Parameters
        ----------
        nodes : ndarray of shape (n_taken,)
        """
        place = np.full(self.n_nodes, -1, np.int32)
        place[nodes] = np.arange(len(nodes), dtype=np.int32)
        leaf = self.left[nodes] < 0
        moved = {int(place[node]): codes for node, codes in self.categories if place[node] >= 0}
        return replace(
            self,
            left=np.where(leaf, -1, place[self.left[nodes]]).astype(np.int32),
            right=np.where(leaf, -1, place[self.right[nodes]]).astype(np.int32),
            feature=self.feature[nodes],
            threshold=self.threshold[nodes],
            default_left=self.default_left[nodes],
            gain=self.gain[nodes],
            cover=self.cover[nodes],
            weight=self.weight[nodes],
            categories=tuple((node, moved[node]) for node in sorted(moved)),
        )

    @property
    def is_leaf(self) -> NDArray[np.bool_]:
        """Which nodes are leaves, shape (n_nodes,)."""
        return self.left < 0

    @property
    def parents(self) -> NDArray[np.int32]:
        """Parent of each node, shape (n_nodes,); :data:`NO_PARENT` at the root."""
        parents = np.full(self.n_nodes, NO_PARENT, np.int32)
        splits = np.flatnonzero(~self.is_leaf).astype(np.int32)
        parents[self.left[splits]] = splits
        parents[self.right[splits]] = splits
        return parents

    def reached(self, X: NDArray[np.floating]) -> list[NDArray[np.intp]]:
        """Return, for each node, which rows reach it.

        Parameters
        ----------
        X : ndarray of shape (n_samples, n_features)
            NaN where a value is missing.
        """
        places = [np.empty(0, np.intp)] * self.n_nodes
        places[0] = np.arange(len(X))
        right_of = dict(self.categories)
        for node in np.flatnonzero(~self.is_leaf).tolist():
            rows = places[node]
            values = X[rows, self.feature[node]]
            if node in right_of:
                goes_left = ~np.isin(values, right_of[node].astype(np.float32))
            else:
                goes_left = values < self.threshold[node]
            goes_left = np.where(np.isnan(values), self.default_left[node], goes_left)
            places[int(self.left[node])] = rows[goes_left]
            places[int(self.right[node])] = rows[~goes_left]
        return places

    @property
    def structure(self) -> tuple[object, ...]:
        """All that predictions follow from, in a form that survives a model file."""
        categorical = [node for node, _ in self.categories]
        threshold = self.threshold.astype(np.float32)
        threshold[categorical] = 0  # unused there
        return (
            self.left.astype(np.int32),
            self.feature.astype(np.int32),
            threshold,
            self.default_left.astype(np.bool_),
            tuple((int(node), codes.astype(np.int32)) for node, codes in self.categories),
            self.group,
        )

    @property
    def total_gain(self) -> float:
        """Sum of the gains of all splits."""
        return float(self.gain.astype(np.float64).sum())

    def scrubbed(self) -> Tree:
        """Return the tree without gain, cover and weight; predictions are the same."""
        zeros = np.zeros(self.n_nodes, np.float32)
        return replace(self, gain=zeros, cover=zeros, weight=zeros)

    def scaled(self, factor: float) -> Tree:
        """Return the tree with its leaf values times ``factor``, rounded to float32 once."""
        if factor == 1.0:
            return self
        values = (self.threshold.astype(np.float64) * factor).astype(np.float32)
        return replace(self, threshold=np.where(self.is_leaf, values, self.threshold))

    def clipped(self, bound: float) -> Tree:
        """Return the tree with its leaf values limited to ``[-bound, bound]``."""
        over = self.is_leaf & (np.abs(self.threshold) > bound)
        if not over.any():
            return self
        # The largest float32 within the bound: rounding to nearest may exceed it.
        limit = np.float32(bound)
        if float(limit) > bound:
            limit = np.nextafter(limit, np.float32(0.0))
        return replace(
            self, threshold=np.where(over, np.copysign(limit, self.threshold), self.threshold)
        )


@dataclass(frozen=True, slots=True)
class Header:
    """The facts in a model without trees."""

    objective: str
    n_features: int
    n_outputs: int
    """Margins a row."""
    num_parallel_tree: int
    base_score: tuple[float, ...]
    """As in the file: on the label's scale for most objectives, one entry an output."""
    failure_times: FailureTimes = field(default_factory=FailureTimes)
    """Distribution of the times that ``survival:aft`` predicts."""
    quantiles: tuple[float, ...] = ()
    """Those that ``reg:quantileerror`` predicts."""


@dataclass(frozen=True, slots=True)
class Ensemble:
    """An ordered list of trees and the other parts of a stock XGBoost model."""

    header: bytes
    """A stock model without trees (UBJSON): objective, base score, feature names and types."""
    trees: tuple[Tree, ...] = ()
    steps: tuple[int, ...] = ()
    """Number of trees after each step; XGBoost's ``iteration_indptr`` without its leading 0."""
    round_ends: tuple[int, ...] = ()
    """Number of steps after each federated round; the first ``r`` rounds of a saved model are its
    ``iteration_range=(0, round_ends[r - 1])``."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Further model attributes."""

    @property
    def version(self) -> int:
        """Number of trees."""
        return len(self.trees)

    @property
    def about(self) -> Header:
        """The header's facts."""
        return _about(self.header)

    @property
    def category_names(self) -> tuple[categories.Names, ...]:
        """Names of each feature's categories, None where it is numeric; empty without names."""
        learner = ubjson.read(self.header)["learner"]
        cats = learner["gradient_booster"]["model"].get("cats", {})
        return categories.decode(cats, (), self.about.n_features)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the model as XGBoost would load it."""
        return hashlib.sha256(self.save()).hexdigest()

    def extend(self, trees: Sequence[Tree], *, n_steps: int, end_round: bool = True) -> Ensemble:
        """Return the ensemble with the trees of ``n_steps`` more steps appended."""
        a_step, rest = divmod(len(trees), n_steps) if n_steps else (0, len(trees))
        if rest:
            raise ValueError(
                f"expected {n_steps} steps of equally many trees, received {len(trees)} trees"
            )
        start = len(self.trees)
        steps = self.steps + tuple(start + a_step * (i + 1) for i in range(n_steps))
        ends = (*self.round_ends, len(steps)) if end_round else self.round_ends
        return replace(self, trees=self.trees + tuple(trees), steps=steps, round_ends=ends)

    def slice(self, n_rounds: int) -> Ensemble:
        """Return the first ``n_rounds`` federated rounds."""
        ends = self.round_ends[:n_rounds]
        n_steps = ends[-1] if ends else 0
        n_trees = self.steps[n_steps - 1] if n_steps else 0
        return replace(
            self, trees=self.trees[:n_trees], steps=self.steps[:n_steps], round_ends=ends
        )

    def scrubbed(self) -> Ensemble:
        """Return the ensemble without gains, covers and weights."""
        return replace(self, trees=tuple(tree.scrubbed() for tree in self.trees))

    def unnamed(self) -> Ensemble:
        """Return the ensemble without names of features and categories: rows have positions."""
        document = ubjson.read(self.header)
        learner = document["learner"]
        learner["feature_names"] = []
        learner["gradient_booster"]["model"]["cats"] = categories.encode([])
        return replace(self, header=ubjson.write(document))

    def parallel(self, n_trees: int) -> Ensemble:
        """Return the ensemble, of whose steps each has this many trees an output."""
        document = ubjson.read(self.header)
        model = document["learner"]["gradient_booster"]["model"]
        model["gbtree_model_param"]["num_parallel_tree"] = str(n_trees)
        return replace(self, header=ubjson.write(document))

    def save(self, format: str = "ubj") -> bytes:
        """Return the stock XGBoost model, as ``"ubj"`` or ``"json"``."""
        document = ubjson.read(self.header)
        learner = document["learner"]
        model = learner["gradient_booster"]["model"]
        n_features = self.about.n_features
        model["trees"] = [_tree_document(t, i, n_features) for i, t in enumerate(self.trees)]
        model["tree_info"] = [tree.group for tree in self.trees]
        model["iteration_indptr"] = [0, *self.steps]
        model["gbtree_model_param"]["num_trees"] = str(len(self.trees))
        learner["attributes"] = dict(self.attributes)
        if self.round_ends:
            learner["attributes"][ROUND_ENDS] = json.dumps(self.round_ends, separators=(",", ":"))
        if format == "ubj":
            return ubjson.write(document)
        return json.dumps(_plain(document), separators=(",", ":")).encode()

    def booster(self, *, n_threads: int = 1) -> xgboost.Booster:
        """Return the model loaded by XGBoost; raises ModelRejected where XGBoost refuses it."""
        return _booster(self.save(), n_threads)

    def margins(
        self, rows: xgboost.DMatrix, *, start: NDArray[np.float32] | None = None, n_threads: int = 1
    ) -> NDArray[np.float32]:
        """Return margins of rows: ``start`` plus every tree, added in order in float32.

        Adding an ensemble's parts one after the other gives the same bits as all at once.

        Parameters
        ----------
        rows : xgboost.DMatrix
            Its base margin is overwritten.
        start : ndarray of shape (n_samples,) or (n_samples, n_outputs), float32, optional
            Margins before these trees; the base margin when not given.
        """
        if start is None:
            start = self.base_margins(rows.num_row())
        return Forest(self, n_threads).margins(rows, start)

    def base_margins(self, n_samples: int) -> NDArray[np.float32]:
        """Return the margins before any tree, shape (n_samples,) or (n_samples, n_outputs)."""
        base = np.asarray(_base_margin(self.header), np.float32)
        if len(base) == 1:
            return np.full(n_samples, base[0], np.float32)
        return np.tile(base, (n_samples, 1))


class Forest:
    """Trees loaded once for all rows that they are added to, by any thread."""

    def __init__(self, trees: Ensemble, n_threads: int) -> None:
        self._booster = trees.booster(n_threads=n_threads) if trees.trees else None
        self._lock = threading.Lock()  # XGBoost's cache of predictions is not safe without

    def margins(self, rows: xgboost.DMatrix, start: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return margins as :meth:`Ensemble.margins`; the rows' base margin is overwritten."""
        if self._booster is None:
            return start
        rows.set_base_margin(start)
        with self._lock:
            margins: NDArray[np.float32] = self._booster.predict(
                rows, output_margin=True, validate_features=False
            )
        return margins


def blank(
    schema: Schema, objective: str, booster: Booster, base_score: float | Sequence[float]
) -> Ensemble:
    """Return an ensemble without trees: the common start of every silo.

    Parameters
    ----------
    booster : Booster
        Only parameters that a model stores are used (``num_parallel_tree``, the objective's).
    base_score : float
        On the label's scale, as XGBoost defines it: 0.5 for logistic.

    Raises
    ------
    ModelRejected
        XGBoost refuses a parameter or the base score.
    """
    score = base_score if isinstance(base_score, int | float) else tuple(base_score)
    return Ensemble(_header(schema, objective, booster, score))


@lru_cache(maxsize=16)
def _header(
    schema: Schema, objective: str, booster: Booster, base_score: float | tuple[float, ...]
) -> bytes:
    import xgboost

    rows = xgboost.DMatrix(
        np.zeros((1, schema.n_features), np.float32),
        label=np.ones((1, len(schema.labels)), np.float32),  # by whose shape XGBoost counts outputs
        feature_types=schema.feature_types,
        enable_categorical=True,
        nthread=1,
    )
    parameters = {**booster.native(), "objective": objective, "nthread": 1}
    parameters["base_score"] = base_score
    if schema.n_outputs > 1 and not schema.more_labels:
        parameters["num_class"] = schema.n_outputs
    try:
        raw = bytes(xgboost.Booster(parameters, [rows]).save_raw("ubj"))
    except xgboost.core.XGBoostError as error:
        raise ModelRejected(first_line(error)) from error
    document = ubjson.read(raw)
    learner = document["learner"]
    learner["feature_names"] = [_model_name(name) for name in schema.names]
    names = [feature.categories for feature in schema.features]
    learner["gradient_booster"]["model"]["cats"] = categories.encode(names)
    return ubjson.write(document)


@lru_cache(maxsize=16)
def _about(header: bytes) -> Header:
    learner = ubjson.read(header)["learner"]
    parameters = learner["learner_model_param"]
    scores = json.loads(parameters["base_score"])  # "[5E-1]"; a bare "5E-1" before 3.1
    times = learner["objective"].get("aft_loss_param", {})
    return Header(
        learner["objective"]["name"],
        int(parameters["num_feature"]),
        max(1, int(parameters["num_class"]), int(parameters.get("num_target", 1))),
        int(learner["gradient_booster"]["model"]["gbtree_model_param"]["num_parallel_tree"]),
        tuple(float(s) for s in (scores if isinstance(scores, list) else [scores])),
        FailureTimes(
            times.get("aft_loss_distribution", "normal"),
            float(times.get("aft_loss_distribution_scale", 1.0)),
        ),
        quantiles_of(learner["objective"].get("quantile_loss_param", {})),
    )


def quantiles_of(parameters: Mapping[str, str]) -> tuple[float, ...]:
    """Return the quantiles of a model, from the parameters of its objective."""
    told = json.loads(parameters.get("quantile_alpha", "[]"))
    return tuple(float(alpha) for alpha in (told if isinstance(told, list) else [told]))


@lru_cache(maxsize=16)
def _base_margin(header: bytes) -> tuple[float, ...]:
    import xgboost

    row = xgboost.DMatrix(np.zeros((1, _about(header).n_features), np.float32), nthread=1)
    booster = _booster(header, 1)
    try:  # only now XGBoost looks at the base score
        margin = booster.predict(row, output_margin=True, validate_features=False)
    except xgboost.core.XGBoostError as error:
        raise ModelRejected(f"XGBoost refuses the model: {first_line(error)}") from error
    return tuple(float(m) for m in margin.reshape(-1))


def _booster(model: bytes, n_threads: int) -> xgboost.Booster:
    import xgboost

    try:
        return xgboost.Booster({"nthread": n_threads}, model_file=bytearray(model))
    except xgboost.core.XGBoostError as error:
        raise ModelRejected(f"XGBoost refuses the model: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """Return the text of an XGBoost error, without time, source line and stack."""
    return re.sub(r"^\[[0-9:]+\] \S+ ", "", str(error).partition("\n")[0])


def _model_name(name: str) -> str:
    """Return a feature name that XGBoost accepts."""
    return name.translate(str.maketrans("[]<", "()_"))


def _tree_document(tree: Tree, index: int, n_features: int) -> dict[str, Any]:
    nodes = np.array([node for node, _ in tree.categories], np.int32)
    sizes = np.array([len(codes) for _, codes in tree.categories], np.int64)
    split_type = np.zeros(tree.n_nodes, np.uint8)
    split_type[nodes] = 1
    codes = [codes for _, codes in tree.categories]
    return {
        "base_weights": tree.weight,
        "categories": np.concatenate(codes) if codes else np.zeros(0, np.int32),
        "categories_nodes": nodes,
        "categories_segments": np.cumsum(sizes) - sizes,
        "categories_sizes": sizes,
        "default_left": tree.default_left.astype(np.uint8),
        "id": index,
        "left_children": tree.left,
        "loss_changes": tree.gain,
        "parents": tree.parents,
        "right_children": tree.right,
        "split_conditions": tree.threshold,
        "split_indices": tree.feature,
        "split_type": split_type,
        "sum_hessian": tree.cover,
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(n_features),
            "num_nodes": str(tree.n_nodes),
            "size_leaf_vector": "1",
        },
    }


def _plain(value: Any) -> Any:
    """Return a document of plain lists; float32 keep their shortest exact decimal."""
    if isinstance(value, np.ndarray):
        if value.dtype == np.float32:
            return [float(str(x)) for x in value]
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
