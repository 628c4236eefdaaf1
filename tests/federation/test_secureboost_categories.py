"""Categories of all parties divided into sets: XGBoost's divisions of the joined table."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xgboost as xgb

from hedgerow.boosting.dataset import Dataset, Feature, Task, recode
from hedgerow.boosting.engine.binning import BinnedFeatures
from hedgerow.boosting.engine.splitting import Scale, TreeParameters
from hedgerow.boosting.errors import DataError, InvalidJob, OfferRejected
from hedgerow.boosting.ports import Artefact
from hedgerow.boosting.strategies.secureboost.category_sets import (
    CategoryOrder,
    Chain,
    divisions,
    places_right,
)
from hedgerow.boosting.strategies.secureboost.courier import SealedChannel
from hedgerow.boosting.strategies.secureboost.directions import ActiveTrees
from hedgerow.boosting.strategies.secureboost.divisions import Divisions
from hedgerow.boosting.strategies.secureboost.joined import joined
from hedgerow.boosting.strategies.secureboost.model import load_part
from hedgerow.boosting.strategies.secureboost.steps import (
    GRADIENTS,
    HISTOGRAMS,
    SPLITS,
    CategorySet,
    LevelDivisions,
    NodeDivision,
    StepName,
)
from hedgerow.boosting.trees.ensemble import Ensemble
from tests.federation import vertical
from tests.federation.memory import Fault, Outcome
from tests.federation.test_secureboost_models import Memories, kept, predictions, run, score
from tests.oracles import PLAIN_TASKS

WIDTHS = [3, 3, 2]
TEXT = {1: 6, 3: 9, 4: 3, 7: 12}
"""Columns of categories, and how many they have."""


def table(n: int, task: Task = Task.BINARY, *, seed: int = 0, missing: float = 0.1) -> Dataset:
    """Return a table with columns of categories whose order says nothing."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, sum(WIDTHS))).astype(np.float32)
    effect = np.random.default_rng(99)
    total = np.nan_to_num(X)[:, ::3].sum(axis=1)
    for j, size in TEXT.items():
        X[:, j] = rng.integers(0, size, n)
        X[:size, j] = np.arange(size)
        total = total + effect.normal(size=size)[X[:, j].astype(int)]
    X[rng.random(X.shape) < missing] = np.nan
    total = total + 0.3 * rng.normal(size=n)
    y = {
        Task.REGRESSION: total,
        Task.BINARY: (total > 0).astype(float),
        Task.MULTICLASS: np.digitize(total, [-1, 1]).astype(float),
    }[task]
    ids = [f"p{k:05d}" for k in rng.permutation(10 * n)[:n]]
    return vertical.coded(vertical.dataset(X, ids, task, y), TEXT)


def cut(whole: Dataset) -> dict[str, Dataset]:
    return vertical.cut_by_columns(whole, WIDTHS)


def trained(
    whole: Dataset, booster: dict[str, Any], memories: Memories | None = None, **changes: Any
) -> tuple[Outcome, Memories]:
    job = vertical.job(
        whole.schema.task,
        booster,
        **{"encryption": "plain", "categories": "sets", "rounds": 3, **changes},
    )
    return run(job, cut(whole), memories, through_wire=True)


def check_trees(outcome: Outcome, ensemble: Ensemble) -> None:
    """Compare a job's trees with the pooled engine's, sets of categories included."""
    assert outcome.error is None, (outcome.error, outcome.errors)
    active, passive = vertical.parts(outcome.kept)
    assert any(part.sets for part in passive.values())
    for own, pooled in zip(joined(active, passive)[0].trees, ensemble.trees, strict=True):
        assert own.left.tolist() == pooled.left.tolist()
        assert own.feature.tolist() == pooled.feature.tolist()
        assert own.default_left.tolist() == pooled.default_left.tolist()
        found, expected = (
            {node: codes.tolist() for node, codes in tree.categories} for tree in (own, pooled)
        )
        assert found == expected


@pytest.mark.parametrize("task", PLAIN_TASKS)
@pytest.mark.parametrize("missing", [0.0, 0.1])
@pytest.mark.parametrize(
    "more", [{}, {"max_cat_to_onehot": 100}, {"max_cat_threshold": 3, "max_depth": 4}]
)
def test_trees_are_those_of_the_pooled_engine(
    task: Task, missing: float, more: dict[str, Any]
) -> None:
    whole, new = table(400, task, missing=missing), table(80, task, seed=5)
    booster = {"min_child_weight": 0.0, **more}
    outcome, _ = trained(whole, booster)
    job = vertical.job(task, booster)
    ensemble = vertical.pooled(job, whole, 3)
    check_trees(outcome, ensemble)
    scored = score(job, kept(outcome), cut(new))
    assert scored.error is None, (scored.error, scored.errors)
    types = whole.schema.feature_types
    rows = xgb.DMatrix(vertical.by_id(new).X, feature_types=types, enable_categorical=True)
    expected = ensemble.booster(n_threads=1).predict(rows, validate_features=False)
    ids = vertical.by_id(new).ids
    assert ids is not None
    by_id = {row["_id"]: row for row in predictions(scored)}
    column = {Task.BINARY: "probability", Task.REGRESSION: "prediction"}.get(task, "probability_0")
    got = [float(by_id[i][column]) for i in ids]
    assert got == pytest.approx(expected[:, 0] if expected.ndim == 2 else expected, abs=1e-5)


CIPHERS: dict[str, dict[str, Any]] = {
    "paillier": {"encryption": "paillier"},
    "elgamal": {"encryption": "elgamal", "fraction_bits": 18},
}


@pytest.mark.parametrize("cipher", CIPHERS)
def test_encrypted_sums_of_categories_give_the_trees_of_the_pooled_engine(cipher: str) -> None:
    whole = table(90)
    booster = {"min_child_weight": 0.0, "max_bin": 4}
    outcome, _ = trained(whole, booster, rounds=1, **CIPHERS[cipher])
    check_trees(outcome, vertical.pooled(vertical.job(booster=booster), whole, 1))


@pytest.mark.parametrize("mode", ["mix", "layered"])
def test_every_mode_divides_sets_and_scores_them_in_a_single_pass(mode: str) -> None:
    """EINI, too; the trees are those of a pooled engine that sees columns by tree or level."""
    widths = [4, 4]
    whole, new = table(300), table(13, seed=5)
    rounds, guest, host = 7, range(4), range(4, 8)
    changes: dict[str, Any] = {"mode": mode, "complete_secure": 1, "rounds": rounds}
    if mode == "mix":
        visible, depths = [[guest], *[[guest], [host]] * 3], [3] * rounds
    else:
        visible, depths = [[guest], *[[host, host, guest]] * 6], [3, *[4] * 6]
        changes |= {"host_depth": 2}
    job = vertical.job(
        booster={"min_child_weight": 0.0}, encryption="plain", categories="sets", **changes
    )
    outcome, _ = run(job, vertical.cut_by_columns(whole, widths), through_wire=True)
    check_trees(outcome, vertical.pooled_by_levels(job, vertical.by_id(whole), visible, depths))
    rows = vertical.cut_by_columns(new, widths)
    scored = score(job, kept(outcome), rows)
    hidden = score(job, kept(outcome), rows, inference="eini", encryption="paillier")
    assert hidden.error is None, (hidden.error, hidden.errors)
    for a, b in zip(predictions(scored), predictions(hidden), strict=True):
        assert float(a["probability"]) == pytest.approx(float(b["probability"]), abs=1e-4)


def test_serving_and_the_whole_model_send_rows_where_prediction_jobs_do() -> None:
    whole, new = table(300), table(80, seed=5)
    outcome, _ = trained(whole, {})
    active, passive = vertical.parts(outcome.kept)
    tables = {name: vertical.by_id(own).X for name, own in cut(new).items()}
    forest = ActiveTrees.of(active)
    bits = forest.joined(
        Divisions.of(active).directions(tables["guest"]),
        {name: Divisions.of(part).directions(tables[name]) for name, part in passive.items()},
    )
    ensemble, schema = joined(active, passive)
    rows = xgb.DMatrix(
        vertical.by_id(new).X, feature_types=schema.feature_types, enable_categorical=True
    )
    booster = ensemble.booster(n_threads=1)
    expected = booster.predict(rows, output_margin=True, validate_features=False)
    assert forest.margins(bits, None)[:, 0] == pytest.approx(expected, abs=1e-5)


def test_categories_of_few_rows_are_merged_and_sides_keep_enough_rows() -> None:
    whole = table(200)
    least = 12
    outcome, _ = trained(whole, {"max_depth": 4}, min_leaf=least, rounds=4)
    assert outcome.error is None, (outcome.error, outcome.errors)
    active, passive = vertical.parts(outcome.kept)
    assert any(part.sets for part in passive.values())
    X = vertical.by_id(whole).X
    for number, tree in enumerate(joined(active, passive)[0].trees):
        places = {0: np.arange(len(X))}
        right = dict(tree.categories)
        for node in range(tree.n_nodes):
            rows = places[node]
            if (left := int(tree.left[node])) < 0:
                continue
            values = X[rows, tree.feature[node]]
            goes = values < tree.threshold[node]
            if node in right:
                goes = ~np.isin(values, right[node])
            goes = np.where(np.isnan(values), tree.default_left[node], goes)
            places[left], places[left + 1] = rows[goes], rows[~goes]
            if active.trees[number].owner[node] > 0:
                assert min(goes.sum(), (~goes).sum()) >= least


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"chains": (1000,)}, "expected chains of its candidates"),
        ({"chains": (0, 2)}, "expected chains of its candidates"),
        ({"missing": b""}, "host-1"),
        ({"chains": (1,) * 5000}, "expected at most 4096 columns of categories, received 5000"),
    ],
)
def test_chains_that_are_none_are_refused_with_their_sender(
    changes: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = SealedChannel.send

    def lying(self: SealedChannel, step: Any, **sent: Any) -> Any:
        if self.party == "host-1" and step is GRADIENTS:
            sent["boxes"] = {p: replace(box, **changes) for p, box in sent["boxes"].items()}
        return honest(self, step, **sent)

    monkeypatch.setattr(SealedChannel, "send", lying)
    outcome, _ = trained(table(80), {})
    assert said in str(outcome.error)
    assert "host-1" in str(outcome.error)


@pytest.mark.parametrize(
    "asked",
    [
        CategorySet(0, (10**6,), False, True),
        CategorySet(0, (), False, False),
        CategorySet(10**6, (), True, True),
    ],
)
def test_sets_that_were_not_offered_are_refused(
    asked: CategorySet, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = SealedChannel.send

    def lying(self: SealedChannel, step: Any, **sent: Any) -> Any:
        if self.party == "guest" and step is SPLITS:
            sent["boxes"] = {
                party: replace(
                    box,
                    divisions=tuple(
                        replace(d, tied=(), sets=(asked,)) if d.tied or d.sets else d
                        for d in box.divisions
                    ),
                )
                for party, box in sent["boxes"].items()
            }
        return honest(self, step, **sent)

    monkeypatch.setattr(SealedChannel, "send", lying)
    outcome, _ = trained(table(80), {})
    assert "not offered" in str(outcome.error)
    assert any(isinstance(error, OfferRejected) for error in outcome.errors.values())


def test_an_order_of_256_categories_fits_its_bins() -> None:
    bins = np.arange(256, dtype=np.uint16)[:, None]
    binned = BinnedFeatures(bins, bins.T.copy(), np.array([256]), np.zeros(1, np.bool_))
    order = CategoryOrder.draw([0], binned, np.arange(256), 1, np.random.default_rng(0))
    assert sorted(order.codes[0].tolist()) == list(range(256))


def test_categories_after_the_last_sum_are_one_more() -> None:
    sums = np.array([[-4, 5], [0, 0], [3, 9]], np.int64)
    job = vertical.job(Task.BINARY, {"max_cat_to_onehot": 1})
    known = np.array([True, False, True])
    left, ways = divisions(
        Chain(0, 2, 3, False), sums, known, np.array([1, 12]), TreeParameters.of(job.booster, 1),
        Scale(1.0, 1.0), 1,
    )  # fmt: skip
    # Categories 1 and 2 are merged: bins of (-4, 5), (7, 4) and the rest (-2, 3).
    sets = [ways[k] for k in range(len(left))]
    assert [own.right for own in sets] == [(4,), (4,), (4,), (4,)]
    assert [own.rest_right for own in sets] == [False, True, True, False]
    assert left.tolist() == [[-6, 8], [-4, 5], [-4, 5], [-6, 8]]
    right = places_right(sets[1], Chain(0, 2, 3, False), known, 4, False, "guest")
    assert right.tolist() == [False, True, True, True, False]


def test_a_column_of_too_many_categories_is_refused_by_name() -> None:
    parties = cut(table(80))
    host = parties["host-1"]
    names = tuple(f"c{k}" for k in range(1 << 16))
    features = (replace(host.schema.features[0], categories=names), *host.schema.features[1:])
    parties["host-1"] = replace(host, schema=replace(host.schema, features=features))
    outcome, _ = run(vertical.job(encryption="plain", categories="sets"), parties)
    assert "column 'host-1_0' has 65536 categories, expected at most 65535" in str(outcome.error)


def test_missing_values_that_training_has_not_go_with_a_group() -> None:
    """There may be few of them, and who sees both directions would know which rows they are."""
    chain, known = Chain(0, 0, 3, False), np.ones(3, np.bool_)
    for rest in (False, True):
        for default in (False, True):
            asked = CategorySet(0, (0,), rest, default)
            assert places_right(asked, chain, known, 4, True, "guest")[-1] == rest
            assert places_right(asked, chain, known, 4, False, "guest")[-1] != default


def test_parameters_of_sets_need_sets() -> None:
    job = vertical.job(booster={"max_cat_threshold": 3}, key_bits=2048)
    with pytest.raises(InvalidJob, match="without secureboost"):
        job.parameters.validate(job)


@pytest.mark.parametrize("then", ["sets", "order"])
def test_a_warm_start_divides_categories_as_the_model_does(then: str) -> None:
    whole, first = table(200), {"sets": "order", "order": "sets"}[then]
    model, _ = trained(whole, {}, categories=first)
    same, _ = trained(whole, {}, kept(model), categories=first, warm_start="model", rounds=1)
    assert same.error is None, (same.error, same.errors)
    active, passive = vertical.parts(same.kept)
    assert len(joined(active, passive)[0].trees) == 4
    other, _ = trained(whole, {}, kept(model), categories=then, warm_start="model", rounds=1)
    ways = {"order": "in order", "sets": "into sets"}
    expected = f"the model divides them {ways[first]}, the job {ways[then]}"
    assert expected in str(other.error)


def test_a_part_with_sets_is_of_a_format_that_older_versions_refuse() -> None:
    for way, number in (("sets", 2), ("order", 1)):
        outcome, _ = trained(table(120), {}, rounds=1, categories=way)
        for artefact in outcome.kept.values():
            assert isinstance(artefact, Artefact)
            data = artefact.files["part.json"]
            document = json.loads(data)
            assert document["format"] == number
            assert load_part(data).dump() == data
            held = document if document["role"] == "passive" else document["trees"][0]
            for codes in ([], [99], [-1]) if held["sets"] else ():
                held["sets"] = dict.fromkeys(held["sets"], codes)
                with pytest.raises(DataError, match="set of categories that are none"):
                    load_part(json.dumps(document).encode())


OWN = NodeDivision(0, 0)
CHOSEN = CategorySet(0, (0,), False, True)
UNSUMMED = {
    "a number at the root": [LevelDivisions((NodeDivision(0, 1, (20,)),), b"")],
    "the root": [LevelDivisions((NodeDivision(0, 1, (), (CHOSEN,)),), b"")],
    "a node that is not asked for any more": [
        LevelDivisions((OWN,), b"\xf0" * 10),
        LevelDivisions((replace(OWN, node=1),), b"\xf0" * 5),
        LevelDivisions((NodeDivision(2, 1, (), (CHOSEN,)),), b""),
    ],
}


@pytest.mark.parametrize("where", UNSUMMED)
def test_sets_of_a_node_without_sums_are_refused(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its sums are made nobody has merged a node's categories of few rows."""
    honest = SealedChannel.send

    def lying(self: SealedChannel, step: Any, **sent: Any) -> Any:
        if self.party == "guest" and step is GRADIENTS:
            sent["then"] = StepName.SPLITS
        if self.party == "guest" and step is HISTOGRAMS:
            *first, last = UNSUMMED[where]
            for box in first:
                honest(self, SPLITS, boxes={"host-1": box}, then=StepName.SPLITS)
            honest(self, SPLITS, boxes={"host-1": last}, then=StepName.HISTOGRAMS)
        return honest(self, step, **sent)

    monkeypatch.setattr(SealedChannel, "send", lying)
    job = vertical.job(encryption="plain", categories="sets", booster={"max_depth": 4})
    outcome, _ = run(job, vertical.cut_by_columns(table(80), [4, 4]))
    assert "guest chose a division of a node before it had its sums" in str(outcome.error)
    assert isinstance(outcome.errors["host-1"], OfferRejected)


def _turned(data: Dataset) -> Dataset:
    """Return a party's table with its columns, and each column's categories, in reverse order."""
    features = tuple(
        Feature(own.name, own.categories[::-1] if own.categories else None)
        for own in data.schema.features[::-1]
    )
    return recode(data, replace(data.schema, features=features))


def test_a_killed_warm_start_goes_on_with_the_model_s_columns_and_categories() -> None:
    whole = table(200)
    model, _ = trained(whole, {})
    job = vertical.job(
        whole.schema.task, {}, encryption="plain", categories="sets", rounds=3, warm_start="model"
    )
    parties = {silo: _turned(data) for silo, data in cut(whole).items()}
    secret = {"secureboost/secret": bytes(range(32))}
    undisturbed, _ = run(job, parties, {s: {**own, **secret} for s, own in kept(model).items()})
    assert undisturbed.error is None, (undisturbed.error, undisturbed.errors)
    faults = (Fault("host-1", "gradients", round=1, level=0),)
    memories = {silo: {**own, **secret} for silo, own in kept(model).items()}
    killed, memories = run(job, parties, memories, faults=faults)
    at = killed.rounds[-1].checkpoint
    resumed, _ = run(job, parties, memories, checkpoint=at, first_round=1, attempt=2)
    assert resumed.error is None, (resumed.error, resumed.errors)
    (active, passive), (same, others) = (
        vertical.parts(outcome.kept) for outcome in (resumed, undisturbed)
    )
    assert active.trees == same.trees
    assert passive["host-1"].nodes == others["host-1"].nodes
