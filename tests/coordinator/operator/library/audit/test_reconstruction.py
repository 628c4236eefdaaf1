"""Rows that trees give away are guessed, and leaves are read as XGBoost has them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xgboost

import hedgerow
from hedgerow.coordinator.operator.library.audit.attacks import MOST_ROUNDS, Attack, reconstruction
from hedgerow.coordinator.operator.library.audit.reconstruction import Leaves
from hedgerow.coordinator.operator.library.audit.subject import opened
from tests.coordinator.operator.library.audit.test_groups import trained
from tests.coordinator.operator.library.tables import people

INFERRED = f"reconstruction: leaves inferred, {MOST_ROUNDS} rounds"


def stripes(n: int, seed: int, shift: float = 0.0) -> pa.Table:
    """Return rows whose label changes with every step of either feature, and little else."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 4, (n, 2))
    label = np.where((X.sum(axis=1) % 2) == 1, "yes", "no")
    return pa.table({"a": X[:, 0] + shift, "b": X[:, 1] + shift, "label": label})


def attacked(run: hedgerow.Run, silo: pa.Table, test: pa.Table) -> dict[str, Attack]:
    of = opened(run.folder, {"silo-0": silo}, test)
    return {one.attack: one for one in reconstruction(of)}


def deep(**more: Any) -> hedgerow.Job:
    settings = {"rounds": 6, "max_depth": 8, "min_child_weight": 0, "min_silos": 3,
                "evaluate": "none", "leaf_bound": 0, **more}  # fmt: skip
    return hedgerow.Job("bagging", **settings)


@pytest.mark.parametrize("scrub", ["stats", "none"])
def test_values_that_trees_enclose_are_guessed(tmp_path: Path, scrub: str) -> None:
    """An adversary without rows of that range has nothing but the trees."""
    parts = {f"silo-{k}": stripes(100, k) for k in range(3)}
    run = trained(tmp_path / "run", parts, deep(scrub=scrub))
    strangers = stripes(100, 9, shift=-0.7)
    found = attacked(run, parts["silo-0"], strangers)
    own, best = (found[f"reconstruction: {name}"].measures["within 0.1"]
                 for name in ("own rows, no tree", "every leaf known"))  # fmt: skip
    assert best.low > own.high + 0.2
    inferred = found[INFERRED].measures
    assert inferred["leaves counted exactly"].value == 1.0  # scrubbed or not
    assert inferred["within 0.1"].low > own.high
    document = run.audit({"silo-0": parts["silo-0"]}, strangers, {"reconstruction_gain_max": 0.2})
    assert not document["passed"]


def test_trees_that_say_nothing_give_nothing_away(tmp_path: Path) -> None:
    parts = {f"silo-{k}": stripes(100, k) for k in range(3)}
    run = trained(tmp_path / "run", parts, deep(max_depth=1, rounds=2))
    found = attacked(run, parts["silo-0"], stripes(100, 9))
    own, best = (found[f"reconstruction: {name}"].measures["within 0.1"]
                 for name in ("own rows, no tree", "every leaf known"))  # fmt: skip
    assert best.value < own.value + 0.1


def test_leaves_are_xgboosts_with_categories_and_gaps(tmp_path: Path) -> None:
    whole = people(600, 4)
    run = hedgerow.simulate(
        deep(max_depth=4), whole, 3, test=0.0, out=tmp_path / "run", crypto=False
    )
    of = opened(run.folder, {"silo-0": whole}, whole)
    matrix = xgboost.DMatrix(of.test.X, feature_types=of.test.schema.feature_types,
                             enable_categorical=True)  # fmt: skip
    reached = run.model.to_xgboost().predict(matrix, pred_leaf=True, validate_features=False)
    X = np.asarray(of.test.X, np.float64)
    assert any(tree.categories for tree in of.model.ensemble.trees)
    for k, tree in enumerate(of.model.ensemble.trees):
        leaves = Leaves.read(tree, X.shape[1], covers=False)
        at = leaves.of(X)
        assert leaves.nodes[at].tolist() == reached[:, k].astype(int).tolist()
        inside = (leaves.low[at] <= X) & (leaves.high[at] > X)
        assert inside[~np.isnan(X)].all()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"trees_per_round": 2}, "expected one tree a round, of all rows and columns"),
        ({"subsample": 0.5}, "expected one tree a round, of all rows and columns"),
        ({"alpha": 0.5}, "expected binary:logistic, without alpha and max_delta_step"),
        ({"validation": 0.2}, "expected trees of all rows of the silo, without weights"),
        ({"lr_mode": "gain", "scrub": "none"}, 'expected rates .*, received lr_mode "gain"'),
    ],
)
def test_what_cannot_be_inferred_says_why(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    parts = {f"silo-{k}": stripes(100, k) for k in range(3)}
    run = trained(tmp_path / "run", parts, deep(rounds=2, **more))
    found = attacked(run, parts["silo-0"], stripes(100, 9))
    assert re.search(said, found[INFERRED].note)
    assert "reconstruction: every leaf known" in found


def test_models_of_all_rows_together_and_of_several_classes_say_why(tmp_path: Path) -> None:
    for k, (strategy, task, said) in enumerate([
        ("histogram", "binary", "of a histogram job are of the rows of all silos together"),
        ("bagging", "multiclass", "expected two classes, received multiclass"),
    ]):  # fmt: skip
        whole = people(300, 3, task)
        job = hedgerow.Job(strategy, task=task, rounds=2, max_depth=3, min_silos=3)
        run = hedgerow.simulate(job, whole, 3, out=tmp_path / str(k), crypto=False)
        of = opened(run.folder, {"silo-0": whole}, whole)
        (found,) = reconstruction(of)
        assert said in found.note
        assert not found.measures
