"""Models of vertical jobs: scoring, going on from one, resuming, stopping early."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xgboost as xgb
from numpy.typing import NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.allowances import EVERY_CLASS, PartyLimits
from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.errors import OfferRejected, SchemaMismatch
from hedgerow.boosting.exchange import Discloses
from hedgerow.boosting.ports import Artefact, JobParameters, SiloStart
from hedgerow.boosting.strategies.secureboost.eini import MOST_NUMBERS, check_shapes
from hedgerow.boosting.strategies.secureboost.party import held_back
from hedgerow.boosting.strategies.secureboost.routing import n_exchanges
from hedgerow.boosting.strategies.secureboost.silo import participate
from hedgerow.boosting.strategies.secureboost.steps import TreeShape, TreeShapes
from hedgerow.client_agent.policy import Policy
from tests.federation import vertical
from tests.federation.memory import Fault, Outcome, run_in_memory
from tests.oracles import PLAIN_TASKS
from tests.pooled import train_pooled

Memories = dict[str, dict[str, bytes]]


def run(
    job: JobParameters,
    parties: dict[str, Dataset],
    memories: Memories | None = None,
    **options: Any,
) -> tuple[Outcome, Memories]:
    memories = {silo: {} for silo in parties} if memories is None else memories
    outcome = run_in_memory(
        job,
        parties,
        schema=parties["guest"].schema,
        vaults=vertical.vaults(),
        memories=memories,
        **options,
    )
    return outcome, memories


def kept(outcome: Outcome, name: str = "model") -> Memories:
    """Return memories in which silos find what they keep of a finished job."""
    found: Memories = {}
    for silo, artefact in outcome.kept.items():
        assert isinstance(artefact, Artefact)
        found[str(silo)] = {f"kept:{name}/part.json": artefact.files["part.json"]}
    return found


def predictions(outcome: Outcome) -> list[dict[str, str]]:
    artefact = outcome.kept["guest"]  # type: ignore[index]
    assert isinstance(artefact, Artefact)
    return list(csv.DictReader(io.StringIO(artefact.files["predictions.csv"].decode())))


def score(
    job: JobParameters, memories: Memories, parties: dict[str, Dataset], **changes: Any
) -> Outcome:
    """Score tables with the model that silos keep."""
    changes = {"encryption": "plain", **changes}
    scoring = replace(job, parameters=vertical.strategy(predict_from="model", **changes))
    return run(scoring, parties, memories)[0]


WIDTHS: dict[str, list[int]] = {"two parties": [3, 3], "three hosts": [2, 2, 2, 2]}


@pytest.mark.parametrize("parties", WIDTHS)
@pytest.mark.parametrize("task", PLAIN_TASKS)
def test_scores_of_new_rows_are_those_of_the_pooled_model(parties: str, task: Task) -> None:
    widths = WIDTHS[parties]
    whole = vertical.table(150, sum(widths), task, missing=0.1)
    new = vertical.table(90, sum(widths), task, seed=8, missing=0.1)
    job = vertical.job(task, encryption="plain", rounds=3)
    trained, _ = run(job, vertical.cut_by_columns(whole, widths))
    assert trained.error is None
    tables = vertical.cut_by_columns(new, widths, seed=4)
    scored = score(job, kept(trained), tables)
    assert scored.error is None, (scored.error, scored.errors)
    ensemble = vertical.pooled(job, whole, 3)
    margins = ensemble.margins(xgb.DMatrix(new.X)).astype(np.float64)
    assert new.ids is not None
    place = {row["_id"]: k for k, row in enumerate(predictions(scored))}
    assert list(place) == list(tables["guest"].ids)  # type: ignore[arg-type]
    rows = [predictions(scored)[place[i]] for i in new.ids]
    if task is Task.BINARY:
        got = np.array([float(row["probability"]) for row in rows])
        expected: NDArray[np.floating[Any]] = 1 / (1 + np.exp(-margins))
    elif task is Task.REGRESSION:
        got, expected = np.array([float(row["prediction"]) for row in rows]), margins
    else:
        got = np.array([[float(row[f"probability_{c}"]) for c in range(3)] for row in rows])
        exponents = np.exp(margins - margins.max(axis=1, keepdims=True))
        expected = exponents / exponents.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(got, expected.reshape(got.shape), atol=1e-6)
    assert set(scored.rounds[0].metrics) == {"test"}


def test_scoring_takes_at_most_as_many_exchanges_as_trees_are_deep() -> None:
    widths = [2, 2, 2]
    whole = vertical.table(200, 6)
    job = vertical.job(booster={"max_depth": 4}, encryption="plain", rounds=4)
    trained, _ = run(job, vertical.cut_by_columns(whole, widths))
    active, _ = vertical.parts(trained.kept)
    assert 0 < n_exchanges(active.trees) <= 4


def test_rows_are_scored_without_labels() -> None:
    whole = vertical.table(120, 4)
    job = vertical.job(encryption="plain")
    trained, _ = run(job, vertical.cut_by_columns(whole, [2, 2]))
    tables = vertical.cut_by_columns(whole, [2, 2])
    tables["guest"] = replace(tables["guest"], y=None)
    scored = score(job, kept(trained), tables)
    assert len(predictions(scored)) == 120
    assert scored.rounds[0].metrics == {}


def test_parts_that_do_not_belong_together_are_refused_by_name() -> None:
    whole = vertical.table(120, 4)
    parties = vertical.cut_by_columns(whole, [2, 2])
    one, _ = run(vertical.job(encryption="plain"), parties)
    other, _ = run(vertical.job(booster={"eta": 0.1, "max_depth": 2}, encryption="plain"), parties)
    mixed = {"guest": kept(one)["guest"], "host-1": kept(other)["host-1"]}
    scored = score(vertical.job(), mixed, parties)
    assert "host-1 does not belong to that of guest" in str(scored.error)
    assert any(isinstance(error, OfferRejected) for error in scored.errors.values())


def test_a_party_without_a_part_ends_the_job_by_name() -> None:
    parties = vertical.cut_by_columns(vertical.table(60, 4), [2, 2])
    scored = score(vertical.job(), {"guest": {}, "host-1": {}}, parties)
    assert "keeps no part of a model of job 'model'" in str(scored.error)


def test_training_goes_on_from_an_earlier_model() -> None:
    whole = vertical.table(200, 6, missing=0.1)
    parties = vertical.cut_by_columns(whole, [3, 3])
    job = vertical.job(encryption="plain")
    first, _ = run(job, parties)
    more, memories = run(vertical.job(encryption="plain", warm_start="model"), parties, kept(first))
    assert more.error is None, (more.error, more.errors)
    active, passive = vertical.parts(more.kept)
    ensemble = vertical.pooled(job, whole, 4)
    assert vertical.joined(active, passive, [3, 3]) == vertical.divisions(ensemble)
    assert [tree.round for tree in active.trees] == [0, 1, 2, 3]
    rows = vertical.by_id(whole)
    expected = ensemble.margins(xgb.DMatrix(rows.X)).reshape(-1, 1)
    assert np.abs(vertical.margins(memories["guest"], 1) - expected).max() < 1e-6


@pytest.mark.parametrize("victim", ["guest", "host-1"])
@pytest.mark.parametrize(
    ("step", "level"), [("gradients", 0), ("histograms", 1), ("bitmaps", 3), ("scores", 10)]
)
def test_a_killed_job_goes_on_from_its_last_tree_with_the_same_result(
    victim: str, step: str, level: int
) -> None:
    whole = vertical.table(160, 6)
    parties = vertical.cut_by_columns(whole, [3, 3])
    job = vertical.job(encryption="plain", rounds=3, booster={"colsample_bynode": 0.7})
    secrets = {silo: {"secureboost/secret": bytes(range(32))} for silo in parties}
    undisturbed, _ = run(job, parties, {s: dict(m) for s, m in secrets.items()})
    level = _level_of(undisturbed, step) if step == "scores" else level
    killed, memories = run(
        job, parties, secrets, faults=(Fault(victim, step, round=1, level=level),)
    )
    assert victim in str(killed.error)
    assert len(killed.rounds) == 1
    resumed, _ = run(
        job,
        parties,
        memories,
        checkpoint=killed.rounds[-1].checkpoint,
        first_round=1,
        attempt=2,
    )
    assert resumed.error is None, (resumed.error, resumed.errors)
    parts, expected = vertical.parts(resumed.kept), vertical.parts(undisturbed.kept)
    assert parts[0].trees == expected[0].trees
    assert parts[1]["host-1"].nodes == expected[1]["host-1"].nodes
    assert parts[1]["host-1"].digest == parts[0].digest
    assert resumed.rounds[-1].metrics == undisturbed.rounds[-1].metrics


def _level_of(outcome: Outcome, step: str) -> int:
    """Return the level of a round's last exchange: gradients, then two or three a level."""
    active, _ = vertical.parts(outcome.kept)
    tree = active.trees[1]
    depth = {0: 0}
    levels: dict[int, set[int]] = {}
    for node, left in enumerate(tree.left):
        if left >= 0:
            depth[left] = depth[left + 1] = depth[node] + 1
            levels.setdefault(depth[node], set()).add(tree.owner[node])
    exchanges = 1 + sum(3 if 1 in owners else 2 for owners in levels.values())
    deepest = max(levels) + 1
    return exchanges + (2 if deepest < 3 else 0)


def test_training_stops_early_and_keeps_the_best_round() -> None:
    whole = vertical.table(120, 4)
    job = vertical.job(
        booster={"eta": 1.0}, encryption="plain", rounds=40, validation=0.3,
        early_stopping_rounds=2,
    )  # fmt: skip
    outcome, _ = run(job, vertical.cut_by_columns(whole, [2, 2]))
    assert outcome.error is None
    assert len(outcome.rounds) < 40
    assert outcome.rounds[-1].final
    best = outcome.rounds[-1].best_round
    assert best == len(outcome.rounds) - 3
    active, passive = vertical.parts(outcome.kept)
    assert active.best_round == best
    assert passive["host-1"].n_used == best + 1 == len(active.used_trees)
    scores = [own["valid"]["auc"] for own in vertical.own_scores(outcome.kept)]
    assert scores[best] == max(scores)
    assert passive["host-1"].n_trees == len(active.trees) > len(active.used_trees)
    longer = replace(job.parameters, rounds=best + 2, early_stopping_rounds=0)
    on, _ = run(replace(job, parameters=longer), vertical.cut_by_columns(whole, [2, 2]))
    assert on.rounds[-1].best_round == best + 1 == vertical.parts(on.kept)[0].best_round
    shorter = replace(active, trees=active.used_trees)
    assert active.importance() == shorter.importance()
    told = json.loads(outcome.kept["guest"].files["part.json"])["importance"]  # type: ignore
    assert told == active.importance()
    divided = sum(owner == 1 for tree in active.used_trees for owner in tree.owner)
    assert sum(own["splits"] for own in passive["host-1"].importance().values()) == divided
    assert divided < len(passive["host-1"].nodes), "trees after the best round divide by it, too"


@pytest.mark.parametrize("encryption", ["plain", "paillier"])
def test_held_back_rows_take_no_part_in_bins_or_trees(encryption: str) -> None:
    whole = vertical.table(200, 4, missing=0.1)
    job = vertical.job(encryption=encryption, validation=0.3, rounds=2)
    outcome, memories = run(job, vertical.cut_by_columns(whole, [2, 2]))
    assert outcome.error is None, (outcome.error, outcome.errors)
    rows = vertical.by_id(whole)
    held = held_back(0.3, job.seed, 200)
    assert len(held) == 60
    fit = np.setdiff1d(np.arange(200), held)
    ensemble = train_pooled(job, rows.take(fit), 2)
    active, passive = vertical.parts(outcome.kept)
    assert vertical.joined(active, passive, [2, 2]) == vertical.divisions(ensemble)
    expected = ensemble.margins(xgb.DMatrix(rows.X)).reshape(-1, 1)
    assert np.abs(vertical.margins(memories["guest"], 1) - expected).max() < 1e-6
    found = metrics.evaluate(
        ("logloss",), rows.labels[held], expected[held].astype(float), objective="binary:logistic"
    )
    own = vertical.own_scores(outcome.kept)[-1]["valid"]["logloss"]
    assert own == pytest.approx(found["logloss"], abs=1e-6)
    told = outcome.rounds[-1].metrics["valid"]["logloss"]
    assert told == float(f"{own:.4g}"), "four digits leave"


def test_scores_of_evaluation_rows_follow_training() -> None:
    whole, test = vertical.table(150, 4), vertical.table(80, 4, seed=6)
    job = vertical.job(encryption="plain")
    parties = vertical.cut_by_columns(whole, [2, 2])
    outcome, memories = run(job, parties, tests=vertical.cut_by_columns(test, [2, 2]))
    assert outcome.error is None, (outcome.error, outcome.errors)
    ensemble = vertical.pooled(job, whole, 2)
    rows = vertical.by_id(test)
    expected = ensemble.margins(xgb.DMatrix(rows.X)).reshape(-1, 1)
    got = vertical.margins(memories["guest"], 1)[whole.n_samples :]
    assert np.abs(got - expected).max() < 1e-6


def test_importance_counts_passive_features_under_anonymous_numbers() -> None:
    whole = vertical.table(150, 6)
    outcome, _ = run(vertical.job(encryption="plain"), vertical.cut_by_columns(whole, [3, 3]))
    active, passive = vertical.parts(outcome.kept)
    host = passive["host-1"]
    by_name = {
        host.features[j]: active.importance().get(f"host-1:{host.anonymous[j]}", {"splits": 0})
        for j in range(3)
    }
    own = {name: found["splits"] for name, found in host.importance().items()}
    assert {name: found["splits"] for name, found in by_name.items() if found["splits"]} == own
    document = json.loads(outcome.kept["guest"].files["part.json"])  # type: ignore
    assert not any(name.startswith("host-1_") for name in document["importance"])


def logit(row: dict[str, str]) -> float:
    p = float(row["probability"])
    return float(np.log(p / (1 - p)))


@pytest.mark.parametrize("encryption", ["paillier", "elgamal"])
@pytest.mark.parametrize("widths", [[3, 3], [3, 3, 3]])
def test_single_pass_scores_equal_standard_ones(encryption: str, widths: list[int]) -> None:
    whole = vertical.table(150, sum(widths), missing=0.1)
    new = vertical.cut_by_columns(vertical.table(30, sum(widths), seed=9, missing=0.1), widths)
    job = vertical.job(encryption="plain", rounds=8)
    trained, _ = run(job, vertical.cut_by_columns(whole, widths))
    memories = kept(trained)
    standard = predictions(score(job, memories, new))
    hidden = score(job, memories, new, inference="eini", encryption=encryption)
    assert hidden.error is None, (hidden.error, hidden.errors)
    tolerance = 1e-6 if encryption == "paillier" else 1e-4
    for a, b in zip(standard, predictions(hidden), strict=True):
        assert a["_id"] == b["_id"]
        assert abs(logit(a) - logit(b)) < tolerance


@pytest.mark.parametrize(
    "mode",
    [
        {"mode": "mix", "rounds": 8},
        {"mode": "layered", "host_depth": 1, "guest_depth": 2, "rounds": 7},
    ],
)
def test_single_pass_scores_models_of_every_mode(mode: dict[str, Any]) -> None:
    whole = vertical.table(150, 4)
    new = vertical.cut_by_columns(vertical.table(10, 4, seed=9), [2, 2])
    job = vertical.job(encryption="plain", **mode)
    trained, _ = run(job, vertical.cut_by_columns(whole, [2, 2]))
    standard = predictions(score(job, kept(trained), new))
    hidden = score(job, kept(trained), new, inference="eini", encryption="elgamal")
    assert hidden.error is None, (hidden.error, hidden.errors)
    for a, b in zip(standard, predictions(hidden), strict=True):
        assert abs(logit(a) - logit(b)) < 1e-4


@pytest.mark.parametrize("together", [False, True])
def test_single_pass_scores_several_classes(together: bool) -> None:
    whole = vertical.table(150, 4, Task.MULTICLASS)
    new = vertical.cut_by_columns(vertical.table(12, 4, Task.MULTICLASS, seed=9), [2, 2])
    job = vertical.job(Task.MULTICLASS, encryption="plain", rounds=5, multi_output=together)
    trained, _ = run(job, vertical.cut_by_columns(whole, [2, 2]))
    standard = predictions(score(job, kept(trained), new))
    hidden = score(job, kept(trained), new, inference="eini", encryption="elgamal")
    assert hidden.error is None, (hidden.error, hidden.errors)
    for a, b in zip(standard, predictions(hidden), strict=True):
        assert all(abs(float(a[k]) - float(b[k])) < 1e-4 for k in a if k.startswith("prob"))


TREE = (1, -1, 3, -1, -1)


@pytest.mark.parametrize(
    "trees",
    [
        [],
        [((), 0), (TREE, 0)],
        [((1, -1), 0)],
        [((-1,), 0), ((2, -1, -1), 0)],
        [(TREE, 0)] + [((), k) for k in range(1, MOST_NUMBERS // 3 + 1)],
    ],
)
def test_structures_that_are_no_trees_or_too_many_are_refused(
    trees: list[tuple[tuple[int, ...], int]],
) -> None:
    with pytest.raises(OfferRejected, match="guest sent structures that are no trees"):
        check_shapes(TreeShapes(tuple(TreeShape(*tree) for tree in trees)), "guest")


def test_single_pass_is_refused_where_sums_would_tell_the_way() -> None:
    whole = vertical.table(150, 4)
    parties = vertical.cut_by_columns(whole, [2, 2])
    job = vertical.job(encryption="plain", rounds=1, booster={"max_depth": 1})
    trained, _ = run(job, vertical.cut_by_columns(whole, [2, 2]))
    active, _ = vertical.parts(trained.kept)
    hidden = score(job, kept(trained), parties, inference="eini", encryption="elgamal")
    if active.trees[0].owner[0] == 1:
        assert "so few ways through the divisions of host-1" in str(hidden.error)
    else:
        assert hidden.error is None


@pytest.mark.parametrize("start", ["predict_from", "warm_start"])
@pytest.mark.parametrize("party", ["guest", "host-1"])
def test_a_column_that_is_missing_is_named_to_its_own_party_only(party: str, start: str) -> None:
    whole = vertical.table(80, 4)
    parties = vertical.cut_by_columns(whole, [2, 2])
    trained, _ = run(vertical.job(encryption="plain", rounds=1), parties)
    own = parties[party]
    features = (replace(own.schema.features[0], name="other"), *own.schema.features[1:])
    parties[party] = replace(own, schema=replace(own.schema, features=features))
    again: dict[str, Any] = {start: "model"}
    job = vertical.job(encryption="plain", rounds=1, **again)
    outcome, _ = run(job, parties, kept(trained))
    assert str(outcome.error).startswith(f"{party}: its table cannot be used for this job")
    error = outcome.errors[party]  # type: ignore[index]
    assert f"{party}_0" not in f"{outcome.error} {error}"
    assert isinstance(error.__cause__, SchemaMismatch)
    assert f"no column '{party}_0'" in str(error.__cause__)


def test_a_policy_without_scores_keeps_them_with_the_active_party_which_stops_by_them() -> None:
    job = vertical.job(encryption="plain", validation=0.3, rounds=12, early_stopping_rounds=2)
    parties = vertical.cut_by_columns(vertical.table(200, 4, missing=0.1), [2, 2])

    def quiet(parameters: Any, link: Any, vault: Any, start: SiloStart) -> Any:
        limits = PartyLimits(tells_scores=Discloses.SCORES in Policy().classes)
        return participate(parameters, link, vault, replace(start, limits=limits))

    told, _ = run(job, parties)
    kept, _ = run(job, parties, participate_as=quiet, may_send=EVERY_CLASS - {Discloses.SCORES})
    assert kept.error is None, (kept.error, kept.errors)
    assert [set(r.metrics) for r in told.rounds] == [{"train", "valid"}] * len(told.rounds)
    assert [r.metrics for r in kept.rounds] == [{}] * len(told.rounds)
    assert kept.rounds[-1].best_round == told.rounds[-1].best_round
    assert vertical.own_scores(kept.kept) == vertical.own_scores(told.kept)
