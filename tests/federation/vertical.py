"""Tables of vertical parties, jobs over them, and what the pooled engine makes of the same rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.engine.cuts import local_cuts
from hedgerow.boosting.engine.grower import ColumnSampler
from hedgerow.boosting.engine.objective import objective_of
from hedgerow.boosting.engine.quantising import (
    Quantiser,
    bound_of_exponents,
    exponents,
    static_bound,
)
from hedgerow.boosting.engine.sampling import Sample, Sampler
from hedgerow.boosting.engine.splitting import TreeParameters
from hedgerow.boosting.engine.start import margins_of, start_score
from hedgerow.boosting.engine.table import Table
from hedgerow.boosting.job import Booster
from hedgerow.boosting.own_scores import OWN_SCORES, read_scores
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.secureboost.divisions import restored
from hedgerow.boosting.strategies.secureboost.model import ActivePart, PassivePart
from hedgerow.boosting.strategies.secureboost.parameters import SecureBoost
from hedgerow.boosting.trees.ensemble import Ensemble, blank
from hedgerow.crypto.arithmetic.engine import Engine
from hedgerow.crypto.vault.local_vault import LocalVault
from tests.pooled import Training, grow_tree, train_pooled

KEY_BITS = 512
"""Of keys in tests; anything below 2048 is refused elsewhere."""


def vaults() -> Any:
    """Return a maker of vaults that take short keys, on one core."""
    made: dict[str, LocalVault] = {}

    def vault(silo: str) -> LocalVault:
        if silo not in made:
            made[silo] = LocalVault(engine=Engine(workers=1), insecure_test_keys=True)
        return made[silo]

    return vault


def strategy(**changes: Any) -> SecureBoost:
    """Return a small strategy without guards, so that trees are the pooled engine's."""
    values: dict[str, Any] = {
        "active": "guest",
        "rounds": 2,
        "key_bits": KEY_BITS,
        "min_leaf": 1,
        "max_purity": 1.0,
        "allow_insecure": True,
        **changes,
    }
    return SecureBoost(**values)


def job(
    task: Task = Task.BINARY, booster: Mapping[str, Any] | None = None, **changes: Any
) -> JobParameters:
    """Return a job of :func:`strategy`."""
    return JobParameters(
        name="vertical",
        parameters=strategy(**changes),
        task=task,
        seed=3,
        booster=Booster(**{"max_depth": 3, "max_bin": 8, **(booster or {})}),
        classes=3 if task is Task.MULTICLASS else 0,
    )


def dataset(
    X: NDArray[np.float32],
    ids: Sequence[str],
    task: Task = Task.BINARY,
    y: NDArray[np.float64] | None = None,
    prefix: str = "f",
) -> Dataset:
    """Return a party's table."""
    n_classes = 0
    if task is not Task.REGRESSION:
        n_classes = 2 if y is None or task is Task.BINARY else int(y.max()) + 1
    schema = Schema(
        tuple(Feature(f"{prefix}{j}") for j in range(X.shape[1])),
        "label" if y is not None else "",
        task,
        n_classes,
    )
    return Dataset(schema, np.ascontiguousarray(X, np.float32), y, ids=np.array(ids, dtype=object))


def labels(X: NDArray[np.float32], task: Task, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return labels that depend on every third column."""
    score = np.nan_to_num(X)[:, ::3].sum(axis=1) + 0.5 * rng.normal(size=len(X))
    if task is Task.REGRESSION:
        return np.asarray(score, np.float64)
    if task is Task.BINARY:
        return np.asarray(score > 0, np.float64)
    return np.asarray(np.digitize(score, [-0.7, 0.7]), np.float64)


def table(
    n: int,
    columns: int,
    task: Task = Task.BINARY,
    *,
    seed: int = 0,
    missing: float = 0.0,
) -> Dataset:
    """Return a whole table with text ids."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, columns)).astype(np.float32)
    y = labels(X, task, rng)
    X[rng.random(X.shape) < missing] = np.nan
    ids = [f"p{k:05d}" for k in rng.permutation(10 * n)[:n]]
    return dataset(X, ids, task, y)


def coded(table: Dataset, columns: Mapping[int, int]) -> Dataset:
    """Return a table of which columns are codes of text: by number, how many categories."""
    features = list(table.schema.features)
    for j, size in columns.items():
        features[j] = replace(features[j], categories=tuple(f"c{k:02d}" for k in range(size)))
    return replace(table, schema=replace(table.schema, features=tuple(features)))


def with_text(whole: Dataset, columns: Mapping[int, int]) -> Dataset:
    """Return a table of which columns are text: by number, how many categories they have.

    Categories are between quantiles, and shuffled, so that their alphabet says nothing; the first
    rows have each of them.
    """
    X = whole.X.copy()
    for j, size in columns.items():
        edges = np.nanquantile(X[:, j], np.linspace(0, 1, size + 1)[1:-1])
        codes = np.random.default_rng(j).permutation(size)[np.digitize(X[:, j], edges)]
        X[:, j] = np.where(np.isnan(X[:, j]), np.nan, codes)
        X[:size, j] = np.arange(size)
    return coded(replace(whole, features=X), columns)


def cut_by_columns(whole: Dataset, widths: Sequence[int], seed: int = 0) -> dict[str, Dataset]:
    """Return parties ``guest``, ``host-1``, ...: each its columns, its rows in its own order."""
    rng = np.random.default_rng(seed)
    assert whole.ids is not None
    parties = {}
    edges = np.cumsum([0, *widths])
    for k in range(len(widths)):
        rows = rng.permutation(whole.n_samples)
        name = f"host-{k:x}" if k else "guest"
        parties[name] = dataset(
            whole.X[rows][:, edges[k] : edges[k + 1]],
            whole.ids[rows].tolist(),
            whole.schema.task,
            None if k else whole.labels[rows],
            prefix=f"{name}_",
        )
        own = whole.schema.features[edges[k] : edges[k + 1]]
        sizes = {j: len(f.categories) for j, f in enumerate(own) if f.categories}
        parties[name] = coded(parties[name], sizes)
        if not k:  # what the active party says of rows
            said = whole.take(rows.astype(np.intp))
            parties[name] = replace(parties[name], weight=said.weight, base_margin=said.base_margin)
    return parties


def by_id(whole: Dataset) -> Dataset:
    """Return the rows in the order in which aligned parties hold them."""
    assert whole.ids is not None
    return whole.take(np.argsort(whole.ids.astype(str), kind="stable").astype(np.intp))


def pooled(
    job: JobParameters,
    whole: Dataset,
    rounds: int,
    *,
    sampler: Sampler | None = None,
    multi_output: bool = False,
    alone: int = 0,
    n_alone: int = 0,
) -> Ensemble:
    """Return what the pooled engine makes of the joined table.

    The first ``alone`` rounds see the first ``n_alone`` columns only: the others are one bin.
    """
    rows = by_id(whole)
    cuts = local_cuts(rows, job.booster.max_bin)
    if alone:
        columns = whole.schema.n_features
        visible = [[range(n_alone if r < alone else columns)] for r in range(rounds)]
        return pooled_by_levels(job, rows, visible)
    return train_pooled(
        job, rows, rounds, Training(cuts=cuts, sampler=sampler, multi_output=multi_output)
    )


class Levels(ColumnSampler):
    """In place of a sampler: the columns that a tree may use, by depth; the last are for below."""

    def __init__(self, by_depth: Sequence[Sequence[int]], n_features: int) -> None:
        self._by_depth = by_depth
        self.of_tree = np.arange(n_features)

    def of_node(self, depth: int) -> NDArray[np.int64]:
        return np.array(self._by_depth[min(depth, len(self._by_depth) - 1)], np.int64)


def pooled_by_levels(
    job: JobParameters,
    rows: Dataset,
    visible: Sequence[Sequence[Sequence[int]]],
    depths: Sequence[int] = (),
) -> Ensemble:
    """Return what the pooled engine makes when a round, or a level of its trees, sees some columns.

    Parameters
    ----------
    visible
        Columns by round and depth; the last ones of a round are for all levels below.
    depths
        Depth limit by round; the booster's where there is none.
    """
    schema = rows.schema
    objective = objective_of(job.objective, schema.task, job.booster)
    base = start_score(objective, job.booster, rows.labels, None)
    ensemble = blank(schema, objective.model_name, job.booster, base)
    cuts = local_cuts(rows, job.booster.max_bin)
    table = Table.of(rows, cuts, margins_of(objective, base), 1)
    sample = Sample(np.arange(rows.n_samples, dtype=np.int32))
    for r, by_depth in enumerate(visible):
        booster = replace(job.booster, max_depth=depths[r]) if depths else job.booster
        parameters = TreeParameters.of(booster, schema.n_features)
        g, h = objective.gradients(table.margins, table.y, None)
        bound = static_bound(objective, Sampler(), schema.n_outputs, 1.0)
        quantiser = Quantiser.fitting(
            rows.n_samples, bound or bound_of_exponents(*exponents(g, h, sample))
        )
        integers = quantiser.lossless(g, h, sample)
        for c in range(schema.n_outputs):
            grown, partition = grow_tree(
                table,
                sample,
                np.ascontiguousarray(integers[:, 2 * c : 2 * c + 2]),
                None,
                quantiser,
                cuts,
                parameters,
                Levels(by_depth, schema.n_features),
            )
            table.add_tree(grown, partition, [c])
            ensemble = ensemble.extend(grown.trees(cuts, [c]), n_steps=1)
    return ensemble


def own_scores(kept: Mapping[Any, Any]) -> list[dict[str, dict[str, float | None]]]:
    """Return the scores of each round that the active party has kept."""
    return read_scores(kept["guest"].files[OWN_SCORES])


def parts(kept: Mapping[Any, Any]) -> tuple[ActivePart, dict[str, PassivePart]]:
    """Return the parts that the parties of a job kept."""
    active: ActivePart | None = None
    passive = {}
    for silo, artefact in kept.items():
        data = artefact.files["part.json"]
        if silo == "guest":
            active = ActivePart.load(data)
        else:
            passive[str(silo)] = PassivePart.load(data)
    assert active is not None
    return active, passive


def joined(
    active: ActivePart, passive: Mapping[str, PassivePart], widths: Sequence[int]
) -> list[dict[int, tuple[int, float, bool, int]]]:
    """Return every division of every tree over the columns of the joined table.

    By node: column, threshold, whether missing values go left, left child.
    """
    edges = np.cumsum([0, *widths])
    trees = []
    known = {k: passive[p] for k, p in enumerate(active.parties) if p in passive}
    for t, tree in enumerate(restored(active.trees, known)):
        found = {}
        for node, owner in enumerate(tree.owner):
            if owner < 0:
                continue
            feature, threshold, default = (
                tree.feature[node],
                tree.threshold[node],
                tree.default_left[node],
            )
            if owner:
                record = passive[active.parties[owner]].nodes[f"{t}:{node}"]
                left, feature, threshold, default = record
                assert left == tree.left[node]
            column = int(edges[owner] + feature)
            found[node] = (column, float(threshold), bool(default), tree.left[node])
        trees.append(found)
    return trees


def divisions(ensemble: Ensemble) -> list[dict[int, tuple[int, float, bool, int]]]:
    """Return the same of the pooled engine's trees."""
    return [
        {
            node: (
                int(tree.feature[node]),
                float(tree.threshold[node]),
                bool(tree.default_left[node]),
                int(tree.left[node]),
            )
            for node in np.flatnonzero(tree.left >= 0).tolist()
        }
        for tree in ensemble.trees
    ]


def margins(memory: Mapping[str, bytes], round: int, n_outputs: int = 1) -> NDArray[np.float32]:
    """Return the margins in the active party's record of a round."""
    record = json.loads(memory[f"secureboost/{round % 2}"])
    flat = np.frombuffer(bytes.fromhex(record["margins"]), "<f4")
    return flat.reshape(-1, n_outputs)
