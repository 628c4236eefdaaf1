"""A silo's rows as XGBoost trains on them: loaded once, with their margins.

Training from stored margins gives the same trees, bit for bit, as continuing the growing model, but
loads, slices and evaluates no earlier tree.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import DataError, InvalidJob, ModelRejected
from hedgerow.boosting.job import ADAPTIVE_LEAF_ROWS
from hedgerow.boosting.queries import query_starts, rows_of_queries
from hedgerow.boosting.trees.ensemble import Ensemble, Forest, Tree, blank, first_line
from hedgerow.boosting.trees.loading import trees_of

if TYPE_CHECKING:
    import xgboost

    from hedgerow.boosting.dataset import Dataset, Labels, Schema
    from hedgerow.boosting.exchange import Silo
    from hedgerow.boosting.job import Booster


def booster_parameters(
    booster: Booster, objective: str, n_outputs: int, n_threads: int, device: str = ""
) -> dict[str, Any]:
    """Return XGBoost's parameters in every silo, except eta, seed and base score.

    Parameters
    ----------
    device : str
        The silo's own, in place of the job's; empty where it has none. Exact trees grow on CPUs.
    """
    parameters = booster.native()
    if (where := device or booster.device) != "cpu" and booster.tree_method != "exact":
        parameters["device"] = where
    parameters |= {"objective": objective, "nthread": n_threads, "verbosity": 0}
    if n_outputs > 1 and objective.startswith("multi:"):
        parameters["num_class"] = n_outputs
    return parameters


def check_device(device: str, where: str, *, cluster: bool = False) -> None:
    """Raise :class:`InvalidJob` for a GPU where this process has XGBoost's build for CPUs.

    Parameters
    ----------
    device : str
        As XGBoost names it; empty for the CPU.
    where : str
        For the message: what this process is.
    cluster : bool
        Whether trees grow on a Dask cluster instead, whose workers are not asked.
    """
    if device in ("", "cpu"):
        return
    if cluster:
        raise InvalidJob(
            f"[booster] device: expected cpu, for trees of {where} grow on a Dask cluster, "
            f"received {device!r}"
        )
    import xgboost

    if not xgboost.build_info().get("USE_CUDA"):
        raise InvalidJob(
            f"device = {device!r}: {where} has the build of XGBoost for CPUs: install the wheel "
            "xgboost in place of xgboost-cpu there, or leave device out"
        )


def update(booster: xgboost.Booster, rows: xgboost.DMatrix, step: int, device: str) -> None:
    """Grow the trees of one boosting step.

    Raises
    ------
    DataError
        A GPU was asked for and there is none, for which XGBoost takes the CPU without a word.
    """
    booster.update(rows, step)
    if step == 0 and device != "cpu":
        found = json.loads(booster.save_config())["learner"]["generic_param"]["device"]
        if not found.startswith("cuda"):
            raise DataError(f"device = {device!r}: XGBoost finds no such GPU on this machine")


def grow(
    parameters: Mapping[str, Any],
    rows: xgboost.DMatrix,
    n_steps: int,
    check: Callable[[], None] = lambda: None,
) -> list[Tree]:
    """Return the trees of ``n_steps`` boosting steps; ``check`` is called between, and may raise.

    Raises
    ------
    DataError
        XGBoost refuses the rows.
    """
    import xgboost

    try:
        booster = xgboost.Booster(parameters, [rows])
        for step in range(n_steps):
            check()
            update(booster, rows, step, parameters.get("device", "cpu"))
    except xgboost.core.XGBoostError as error:
        raise DataError(f"XGBoost cannot train on these rows: {first_line(error)}") from error
    return trees_of(booster)


def constrained(booster: Booster, schema: Schema) -> Booster:
    """Return the parameters with constraints of features by place, as XGBoost has them.

    Raises
    ------
    InvalidJob
        A feature that is named is not there, or is text and would be monotone.
    """
    names = {**dict.fromkeys(booster.increasing, 1), **dict.fromkeys(booster.decreasing, -1)}
    groups = booster.interaction_constraints
    place = {name: k for k, name in enumerate(schema.names)}
    of_key = [("increasing, decreasing", name) for name in names]
    of_key += [("interaction_constraints", name) for group in groups for name in group]
    for key, name in of_key:
        if name not in place:
            near = difflib.get_close_matches(name, place, 1, 0.5)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise InvalidJob(f"[booster] {key}: '{name}' is no feature{hint}")
        if name in names and schema.features[place[name]].is_categorical:
            raise InvalidJob(f"[booster] {key}: '{name}' is text, which has no order")
    groups = tuple(tuple(place[name] for name in group) for group in groups)
    if names:
        places = tuple(names.get(name, 0) for name in schema.names)
        booster = replace(booster, monotone_constraints=places, increasing=(), decreasing=())
    return replace(booster, interaction_constraints=groups)


def check_fits(booster: Booster, objective: str, schema: Schema) -> None:
    """Raise :class:`InvalidJob` where XGBoost's parameters do not suit the silos' tables."""
    if booster.tree_method == "exact" and "c" in schema.feature_types:
        raise InvalidJob("[booster] tree_method: exact supports no categorical features")
    n_constraints = len(constrained(booster, schema).monotone_constraints)
    if n_constraints not in (0, schema.n_features):
        raise InvalidJob(
            f"[booster] monotone_constraints: expected {schema.n_features}, "
            f"received {n_constraints}"
        )
    try:
        blank(schema, objective, booster, 0.5)
    except ModelRejected as error:
        raise InvalidJob(f"[booster] {error}") from error


def matrix(dataset: Dataset, n_threads: int) -> xgboost.DMatrix:
    """Return rows in XGBoost's form: categorical features as codes, missing values as NaN."""
    import xgboost

    types = dataset.schema.feature_types
    return xgboost.DMatrix(
        dataset.X,
        **label_arguments(dataset.y, dataset.schema.task),
        weight=dataset.weight,
        feature_types=types if "c" in types else None,  # numbers without are read faster
        enable_categorical=True,
        nthread=n_threads,
    )


def label_arguments(y: Labels | None, task: Task) -> dict[str, Any]:
    """Return labels as XGBoost's matrices take them: those of two columns are two arguments."""
    if y is not None and task is Task.SURVIVAL:
        return {"label_lower_bound": y[:, 0], "label_upper_bound": y[:, 1]}
    if y is not None and task is Task.RANKING:
        starts = query_starts(y[:, 1])
        return {"label": y[:, 0], "group": np.diff(starts)}
    return {"label": y}


def split_rows(
    n_samples: int, share: float, rng: np.random.Generator
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows to train on and those held out for validation, both in rising order."""
    n_valid = round(share * n_samples)
    order = rng.permutation(n_samples)
    return np.sort(order[n_valid:]), np.sort(order[:n_valid])


def split_dataset(
    dataset: Dataset, share: float, rng: np.random.Generator
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return rows as :func:`split_rows` does; of a ranking that share of whole queries."""
    if dataset.schema.task is not Task.RANKING:
        return split_rows(dataset.n_samples, share, rng)
    n_queries = len(query_starts(dataset.labels[:, 1])) - 1
    _, drawn = split_rows(n_queries, share, rng)
    held = rows_of_queries(dataset.labels, np.isin(np.arange(n_queries), drawn))
    return np.flatnonzero(~held), np.flatnonzero(held)


class MarginRows:
    """Rows with their margins under the ensemble so far.

    Parameters
    ----------
    start : Ensemble
        The ensemble at whose predictions the margins begin: without trees, or an earlier model.
    """

    def __init__(self, dataset: Dataset, start: Ensemble, n_threads: int) -> None:
        self.dataset = dataset
        self.n_threads = n_threads
        self.margins = start.base_margins(dataset.n_samples)
        if dataset.base_margin is not None:
            self.margins = dataset.base_margin.reshape(self.margins.shape)
        self._matrix = matrix(dataset, n_threads) if dataset.n_samples else None
        self.add(start)

    def add(self, trees: Ensemble | Forest) -> None:
        """Add the trees of ``trees`` to the margins."""
        if self._matrix is None:
            return
        forest = Forest(trees, self.n_threads) if isinstance(trees, Ensemble) else trees
        self.margins = forest.margins(self._matrix, self.margins)

    def train(
        self,
        parameters: Mapping[str, Any],
        n_steps: int,
        *,
        check: Callable[[], None] = lambda: None,
    ) -> list[Tree]:
        """Return the trees of ``n_steps`` boosting steps from the margins, which do not change.

        Parameters
        ----------
        parameters : Mapping
            XGBoost's; ``base_score`` is ignored, because margins are given.
        check : callable
            Called between steps; raises to stop.
        """
        assert self._matrix is not None, "expected rows to train on"
        self._matrix.set_base_margin(self.margins)
        return grow({"base_score": 0.5, **parameters}, self._matrix, n_steps, check)

    def boost(
        self,
        parameters: Mapping[str, Any],
        gradients: NDArray[np.float32],
        hessians: NDArray[np.float32],
    ) -> list[Tree]:
        """Return the trees of one boosting step on given derivatives of the loss.

        Parameters
        ----------
        gradients, hessians : ndarray of shape (n_samples, n_outputs), float32
        """
        import xgboost

        assert self._matrix is not None, "expected rows to train on"
        try:
            booster = xgboost.Booster({"base_score": 0.5, **parameters}, [self._matrix])
            booster.boost(self._matrix, 0, grad=gradients, hess=hessians)
        except xgboost.core.XGBoostError as error:
            raise DataError(f"XGBoost cannot train on these rows: {first_line(error)}") from error
        return trees_of(booster)

    def smoothed(
        self, trees: Sequence[Tree], blank: Ensemble, n_steps: int, alpha: float, rate: float
    ) -> list[Tree]:
        """Return trees whose leaves are means of rows around a quantile, and not the quantile.

        XGBoost's leaf of an absolute or quantile error is one row's residual, and so its label.

        Parameters
        ----------
        trees : sequence of Tree
            Of these rows, as :meth:`train` returns them; the margins are those of before.
        blank : Ensemble
            An unnamed ensemble without trees.
        alpha : float
            The quantile.
        rate : float
            Of a tree: what its leaves are multiplied by.
        """
        margins, found = self.margins, []
        for step in _steps_of(trees, n_steps):
            whole = blank.extend(step, n_steps=1)
            residual = self.dataset.labels - margins.reshape(len(margins), -1)[:, 0]
            weight = self.dataset.weight
            made = [
                replace(tree, threshold=_smooth_leaves(tree, at, residual, weight, alpha, rate))
                for tree, at in zip(step, self.leaves(whole).T, strict=True)
            ]
            assert self._matrix is not None
            margins = Forest(blank.extend(made, n_steps=1), self.n_threads).margins(
                self._matrix, margins
            )
            found += made
        return found

    def leaves(self, trees: Ensemble) -> NDArray[np.intp]:
        """Return the node of the leaf that each row reaches, shape (n_samples, n_trees).

        ``trees`` is unnamed.
        """
        if self._matrix is None:
            return np.empty((0, len(trees.trees)), np.intp)
        booster = trees.booster(n_threads=self.n_threads)
        nodes = booster.predict(self._matrix, pred_leaf=True, validate_features=False)
        return np.asarray(nodes, np.intp).reshape(self.dataset.n_samples, -1)


def _steps_of(trees: Sequence[Tree], n_steps: int) -> list[Sequence[Tree]]:
    each = len(trees) // n_steps
    return [trees[k * each : (k + 1) * each] for k in range(n_steps)]


def _smooth_leaves(
    tree: Tree,
    node: NDArray[Any],
    residual: NDArray[np.float64],
    weight: NDArray[np.float64] | None,
    alpha: float,
    rate: float,
) -> NDArray[np.float32]:
    """Return a tree's thresholds, with at leaves the mean of the rows around the quantile."""
    values = tree.threshold.copy()
    order = np.lexsort((residual, node))
    ends = np.searchsorted(node[order], np.arange(tree.n_nodes + 1))
    for leaf in np.flatnonzero(tree.is_leaf).tolist():
        rows = order[ends[leaf] : ends[leaf + 1]]
        if not len(rows):
            continue
        own = np.ones(len(rows)) if weight is None else weight[rows]
        middle = int(np.searchsorted(np.cumsum(own), alpha * own.sum()))
        n_near = min(ADAPTIVE_LEAF_ROWS, len(rows))
        first = min(max(middle - n_near // 2, 0), len(rows) - n_near)
        near = slice(first, first + n_near)
        total = own[near].sum()
        mean = (residual[rows[near]] * own[near]).sum() / total if total > 0 else 0.0
        values[leaf] = np.float32(rate * mean)
    return values


def roster_index(silo: Silo, roster: tuple[Silo, ...]) -> int:
    """Return the position of a silo in the job's sorted roster."""
    return sorted(roster).index(silo)
