"""Whole bagging jobs with both halves, the real barrier and the wire's codecs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import xgboost as xgb

from benchmarks.bagging import in_process
from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.errors import (
    DataError,
    FederationError,
    InvalidJob,
    OfferRejected,
    PlacePassed,
)
from hedgerow.boosting.exchange import ExchangeKey, Silo, SiloChannel
from hedgerow.boosting.job import Booster
from hedgerow.boosting.ports import JobParameters, SiloStart
from hedgerow.boosting.rounds import steps
from hedgerow.boosting.rounds.log import TreeLog
from hedgerow.boosting.rounds.steps import SYNC, TREES, TreeCatchUp, TreeOffer
from hedgerow.boosting.strategies.bagging import parameters
from hedgerow.boosting.strategies.bagging.parameters import Bagging
from hedgerow.boosting.strategies.bagging.silo import participate
from hedgerow.boosting.strategies.bagging.steps import ScoreSums
from hedgerow.boosting.sums.groups import groups_of
from hedgerow.boosting.trees import categories, ubjson
from hedgerow.boosting.trees.ensemble import blank
from hedgerow.boosting.trees.loading import load
from hedgerow.boosting.trees.local import MarginRows
from hedgerow.boosting.trees.packing import pack, unpack
from hedgerow.crypto.vault.local_vault import LocalVault
from tests.boosting.sums.federation_of_sums import Authority, TestIdentity
from tests.boosting.trees.ensembles import KINDS, Kind, dataset, margin, matrix
from tests.federation.memory import Fault, MemoryLink, Outcome, run_in_memory

BINARY, REGRESSION, POISSON, CLASSES = KINDS[:4]
START = (BINARY.objective, Booster(), BINARY.base_score)


def silos(kind: Kind, *sizes: int) -> dict[str, Dataset]:
    return {f"silo-{i}": dataset(kind, n, seed=i) for i, n in enumerate(sizes)}


def job(kind: Kind, strategy: Bagging, **given: Any) -> JobParameters:
    known = {field.name for field in fields(Booster)}
    extra = {key: value for key, value in kind.extra.items() if key in known}
    booster = Booster(objective=kind.objective, base_score=kind.base_score, **extra)
    return JobParameters(
        "test", strategy, task=kind.task, seed=5, booster=given.pop("booster", booster), **given
    )


def run(job: JobParameters, data: Mapping[str, Dataset], **given: Any) -> Outcome:
    """Run a job that must succeed."""
    outcome = run_in_memory(job, data, through_wire=True, **given)
    assert outcome.error is None, outcome.error
    assert outcome.open_places <= 2
    return outcome


def whole(**given: Any) -> Bagging:
    """A job whose trees keep their statistics; tests/federation/test_covers.py has the others."""
    return Bagging(**{"scrub": "none", **given})


def model(outcome: Outcome) -> bytes:
    assert outcome.artefact is not None
    return outcome.artefact.files["model.ubj"]


def blocks(outcome: Outcome) -> list[tuple[int, str, float]]:
    log, _ = TreeLog.decode(outcome.rounds[-1].checkpoint)
    return [
        (round, silo, factor)
        for round, added in enumerate(log.rounds)
        for silo, factor in zip(added.silos, added.factors, strict=True)
    ]


def loop(job: JobParameters, data: Mapping[str, Dataset], etas: list[float]) -> bytes:
    assert isinstance(job.parameters, Bagging)
    parameters = {
        **job.booster.native(),
        "objective": job.objective,
        "base_score": job.booster.base_score,
        "nthread": 1,
    }
    if job.task.value == "multiclass":
        parameters["num_class"] = 3
    return in_process(
        [data[name] for name in sorted(data)],
        parameters,
        rounds=job.parameters.rounds,
        steps=job.parameters.trees_per_round,
        etas=etas,
        seed=job.seed,
    )


# --- equivalence ---


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("steps", [1, 3])
def test_the_model_is_the_in_process_loops_to_the_byte(kind: Kind, steps: int) -> None:
    data = silos(kind, 220, 180, 200)
    uniform = job(kind, whole(rounds=3, trees_per_round=steps, lr_mode="uniform", leaf_bound=0))
    ours = model(run(uniform, data))
    theirs = loop(uniform, data, [0.3 / 3] * 3)
    if kind.name == "pruned":  # deleted nodes stay in XGBoost's file
        rows = dataset(kind, 100, 9)
        first, second = (xgb.Booster(model_file=bytearray(m)) for m in (ours, theirs))
        np.testing.assert_array_equal(margin(first, rows), margin(second, rows))
        return
    assert without_names(ours) == without_names(theirs)


def without_names(raw: bytes) -> bytes:
    """XGBoost refuses one of the feature names, and knows no category names of plain codes."""
    document = ubjson.read(raw)
    document["learner"]["feature_names"] = []
    document["learner"]["gradient_booster"]["model"]["cats"] = categories.encode([])
    return ubjson.write(document)


def test_rates_follow_the_rows() -> None:
    data = silos(BINARY, 100, 200, 300)
    by_rows = job(BINARY, whole(rounds=2, lr_mode="rows"))
    etas = [0.3 * n / 600 for n in (100, 200, 300)]
    assert without_names(model(run(by_rows, data))) == without_names(loop(by_rows, data, etas))
    total = job(BINARY, whole(rounds=2, lr_mode="total", eta_total=0.9))
    etas = [0.9 * n / 600 for n in (100, 200, 300)]
    assert without_names(model(run(total, data))) == without_names(loop(total, data, etas))


def test_gain_weights_scale_the_leaves_of_plain_trees() -> None:
    data = silos(BINARY, 150, 250)
    one = run(job(BINARY, whole(rounds=1, lr_mode="gain")), data)
    plain = load(model(run(job(BINARY, whole(rounds=1, lr_mode="plain")), data)))
    gains = [tree.total_gain for tree in plain.trees]
    factors = [factor for _, _, factor in blocks(one)]
    np.testing.assert_allclose(factors, np.array(gains) / sum(gains))
    expected = [t.scaled(f).threshold for t, f in zip(plain.trees, factors, strict=True)]
    for tree, threshold in zip(load(model(one)).trees, expected, strict=True):
        np.testing.assert_array_equal(tree.threshold, threshold)


def test_scores_are_those_of_the_model() -> None:
    test = dataset(BINARY, 300, 77)
    data = silos(BINARY, 150, 250, 90)
    names = ("auc", "logloss", "accuracy")
    outcome = run(job(BINARY, whole(rounds=3, evaluate="silos"), metrics=names), data, test=test)
    scores = outcome.rounds[-1].metrics
    booster = load(model(outcome)).booster()
    for part, rows in (("test", [test]), ("train", list(data.values()))):
        y = np.concatenate([r.labels for r in rows])
        margins = np.concatenate([margin(booster, r) for r in rows])
        exact = metrics.evaluate(names, y, margins, objective=BINARY.objective)
        for name in names:
            tolerance = 2e-3 if (part, name) == ("train", "auc") else 1e-9
            assert scores[part][name] == pytest.approx(exact[name], abs=tolerance)


def test_scores_go_on_without_a_lost_silo_and_with_it_once_there_are_new_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parameters, "_ROUNDS_A_SETUP", 3)
    setups: list[tuple[str, int]] = []

    class Watching(MemoryLink):
        def exchange(self, step: Any, at: ExchangeKey, offer: Any) -> Any:
            if step.name == "sum-keys":
                setups.append((self.silo, at.round))
            return super().exchange(step, at, offer)

    data = silos(REGRESSION, 150, 120, 90, 200, 80, 110)
    scored = Bagging(rounds=7, scrub="none", evaluate="silos")
    start = Booster(base_score=0.5)
    asked = job(REGRESSION, scored, metrics=("rmse",), min_silos=2, booster=start)
    outcome = run(asked, data, make_link=Watching, joins_after={"silo-3": 1})
    groups = groups_of(tuple(data), asked.seed)
    own, other = sorted(groups, key=lambda group: "silo-3" not in group)
    booster = load(model(outcome)).booster()

    def rmse(upto: int, *present: str) -> float:
        margins = [margin(booster[:upto], data[s]) for s in present]
        y = np.concatenate([data[s].labels for s in present])
        return float(np.sqrt(((np.concatenate(margins) - y) ** 2).mean()))

    found = [done.metrics["train"]["rmse"] for done in outcome.rounds]
    assert {tuple(at for one, at in setups if one == silo) for silo in own} == {(3, 6)}
    assert {tuple(at for one, at in setups if one == silo) for silo in other} == {(0, 3, 6)}
    ends = json.loads(booster.attr("fed_round_ends") or "[]")
    early = [rmse(ends[k], *other) for k in range(3)]
    assert found[:3] == pytest.approx(early, rel=1e-5)
    assert found[3:] == pytest.approx([rmse(ends[k], *data) for k in range(3, 7)], rel=1e-5)


def test_two_silos_tell_each_its_metrics_to_four_digits_and_nothing_else() -> None:
    told: dict[str, ScoreSums] = {}

    class Watching(MemoryLink):
        def exchange(self, step: Any, at: ExchangeKey, offer: Any) -> Any:
            if step.name == "scores":
                told[self.silo] = offer
            return super().exchange(step, at, offer)

    data = silos(BINARY, 150, 250)
    names = ("auc", "logloss")
    asked = job(BINARY, whole(rounds=1, evaluate="silos"), metrics=names)
    outcome = run(asked, data, make_link=Watching)
    booster = load(model(outcome)).booster()
    exact = {
        silo: metrics.evaluate(
            names, rows.labels, margin(booster, rows), objective=BINARY.objective
        )
        for silo, rows in data.items()
    }
    for silo, offer in told.items():
        assert not len(offer.valid)
        assert offer.train.tolist() == [float(f"{value:.4g}") for value in offer.train]
        assert offer.train[1] == pytest.approx(exact[silo]["logloss"], rel=6e-4)
    mean = np.average([own["logloss"] for own in exact.values()], weights=[150, 250])
    assert outcome.rounds[0].metrics["train"]["logloss"] == pytest.approx(mean, rel=6e-4)


def test_scrubbing_changes_no_prediction_and_keeps_no_statistic() -> None:
    data = silos(CLASSES, 150, 150)
    full = load(model(run(job(CLASSES, whole(rounds=2)), data)))
    bare = load(model(run(job(CLASSES, whole(rounds=2, scrub="stats")), data)))
    assert bare.save() == full.scrubbed().save()


def test_stock_xgboost_loads_the_model_and_finds_the_rounds() -> None:
    data = silos(CLASSES, 150, 150)
    outcome = run(job(CLASSES, whole(rounds=3, trees_per_round=2)), data)
    booster = xgb.Booster(model_file=bytearray(model(outcome)))
    assert booster.attr("fed_round_ends") == "[4,8,12]"
    assert booster.num_boosted_rounds() == 12
    assert booster.feature_names == ["a", "b", "weird(_name", "colour"]
    provenance = json.loads(outcome.artefact.files["provenance.json"])  # type: ignore[union-attr]
    assert provenance["trees"] == 36
    assert [b["silo"] for b in provenance["blocks"]] == ["silo-0", "silo-1"] * 3


# --- base score ---


@pytest.mark.parametrize("sizes", [(150, 250), (100, 120, 140)], ids=["plain", "secure"])
def test_a_regression_starts_from_the_mean_label_of_all_silos(sizes: tuple[int, ...]) -> None:
    data = silos(REGRESSION, *sizes)
    agreed = job(REGRESSION, whole(rounds=2), booster=Booster(max_depth=3))
    authority = Authority()
    known = {name: TestIdentity(authority, name) for name in data}
    outcome = run(agreed, data, vaults=lambda _: LocalVault(), identities=known.__getitem__)
    y = np.concatenate([silo.labels for silo in data.values()])
    base_score = load(model(outcome)).about.base_score
    np.testing.assert_allclose(base_score, [y.mean()], rtol=1e-7)


def test_labels_that_a_loss_cannot_start_from_end_the_job() -> None:
    data = silos(POISSON, 100, 100)
    data = {n: replace(d, y=np.zeros(d.n_samples)) for n, d in data.items()}
    zeros = job(POISSON, whole(rounds=1), booster=Booster(objective="count:poisson"))
    outcome = run_in_memory(zeros, data)
    assert "positive mean" in str(outcome.error)


# --- participation ---


def test_drawn_silos_are_the_only_ones_that_add_trees() -> None:
    data = silos(BINARY, 100, 100, 100, 100)
    drawn = job(BINARY, whole(rounds=6, silos_per_round=2))
    with pytest.raises(InvalidJob, match=r"silos_per_round: expected 0 to 3, received 4"):
        Bagging(silos_per_round=4).validate_cohort(3)
    first, second = run(drawn, data), run(drawn, data)
    rounds = [[silo for r, silo, _ in blocks(first) if r == round] for round in range(6)]
    assert all(len(names) == 2 and names == sorted(names) for names in rounds)
    assert len({tuple(names) for names in rounds}) > 1
    assert model(first) == model(second)
    assert first.rounds[0].silos == tuple(rounds[0])


def test_cyclic_silos_take_turns() -> None:
    outcome = run(job(BINARY, whole(rounds=5, mode="cyclic")), silos(BINARY, 90, 80, 70))
    names = [silo for _, silo, _ in blocks(outcome)]
    assert names == ["silo-0", "silo-1", "silo-2", "silo-0", "silo-1"]


def test_an_empty_silo_looks_on_and_a_single_class_silo_takes_part() -> None:
    data = silos(BINARY, 150, 0, 120, 90)
    ones = replace(data["silo-2"], y=np.ones(120))
    outcome = run(job(BINARY, whole(rounds=3, validation=0.2)), {**data, "silo-2": ones})
    assert {silo for _, silo, _ in blocks(outcome)} == {"silo-0", "silo-2", "silo-3"}
    assert not outcome.errors
    assert np.isfinite(outcome.rounds[-1].metrics["valid"]["logloss"])


def test_early_stopping_keeps_the_best_round() -> None:
    data = silos(BINARY, 60, 60)
    hot = Booster(eta=1.0, max_depth=8, lambda_=0.0, min_child_weight=0.0)
    stopping = whole(
        rounds=60, lr_mode="plain", validation=0.4, early_stopping_rounds=3, evaluate="none"
    )
    outcome = run(job(BINARY, stopping, booster=hot, metrics=("logloss",)), data)
    losses = [result.metrics["valid"]["logloss"] for result in outcome.rounds]
    best = int(np.argmin(losses))
    assert len(losses) == best + 4 < 60
    assert outcome.rounds[-1].best_round == best
    assert [result.final for result in outcome.rounds] == [False] * (best + 3) + [True]
    assert len(load(model(outcome)).round_ends) == best + 1
    assert not outcome.errors
    on = replace(stopping, rounds=best + 3, early_stopping_rounds=0)
    outcome = run(job(BINARY, on, booster=hot, metrics=("logloss",)), data)
    assert outcome.rounds[-1].best_round == best + 2
    assert len(load(model(outcome)).round_ends) == best + 3


# --- faults ---


class Watched:
    """A silo's link that a test looks into or disturbs."""

    def __init__(self, link: SiloChannel, silo: Silo) -> None:
        self.link = link
        self.silo = silo
        self.check, self.remember, self.recall = link.check, link.remember, link.recall


def over(kind: type[Any]) -> Callable[..., None]:
    """Return the silo half over links of that kind."""

    def half(parameters: Bagging, link: SiloChannel, vault: Any, start: SiloStart) -> None:
        participate(parameters, kind(link, start.silo), vault, start)

    return half


def test_a_coordinator_that_starts_again_ends_with_the_same_bytes() -> None:
    data = silos(CLASSES, 120, 90, 100)
    sampled = Booster(max_depth=3, subsample=0.7, colsample_bynode=0.7)
    test = dataset(CLASSES, 50, 3)
    again = job(CLASSES, whole(rounds=4, validation=0.2), booster=sampled)
    undisturbed = run(again, data, test=test)
    for done in (1, 3):
        killed = run(again, data, test=test, stop_after_rounds=done)
        resumed = run(
            again,
            data,
            test=test,
            checkpoint=killed.rounds[-1].checkpoint,
            first_round=done,
            attempt=2,
        )
        assert model(resumed) == model(undisturbed)
        assert resumed.rounds[-1].metrics == undisturbed.rounds[-1].metrics
        assert resumed.rounds[-1].checkpoint == undisturbed.rounds[-1].checkpoint


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_silo_is_left_out_while_enough_remain(when: str) -> None:
    data = silos(BINARY, 100, 100, 200)
    fault = Fault("silo-2", "trees", round=1, when=when)
    tolerant = job(BINARY, whole(rounds=4, lr_mode="rows"), min_silos=2)
    outcome = run(tolerant, data, faults=(fault,))
    by_round = [[s for r, s, _ in blocks(outcome) if r == round] for round in range(4)]
    assert by_round[0] == ["silo-0", "silo-1", "silo-2"]
    assert by_round[2] == by_round[3] == ["silo-0", "silo-1"]
    # The rates of the round in which it was lost are those of the silos that were there.
    scale = {factor for r, _, factor in blocks(outcome) if r == 1}
    assert scale == ({1.0} if "silo-2" in by_round[1] else {2.0})


def test_the_job_ends_when_too_few_silos_remain() -> None:
    data = silos(BINARY, 100, 100, 100)
    faults = tuple(Fault(f"silo-{k}", "trees", round=1) for k in (1, 2))
    strict = job(BINARY, whole(rounds=3), min_silos=2)
    outcome = run_in_memory(strict, data, faults=faults)
    assert "needs 2 silos" in str(outcome.error)
    assert len(outcome.rounds) == 1


def test_a_late_silo_catches_up_and_takes_part() -> None:
    third_round, synchronised = threading.Event(), threading.Event()

    class Paced(Watched):
        """Silo 2 synchronises in round 3 or later; round 5 waits for it."""

        def exchange(self, step: Any, at: ExchangeKey, offer: Any) -> Any:
            if self.silo == "silo-2" and step is SYNC:
                third_round.wait(200)
            if self.silo == "silo-0" and at.round == 3:
                third_round.set()
            if self.silo == "silo-0" and at.round == 5:
                synchronised.wait(200)
            reply = self.link.exchange(step, at, offer)
            if self.silo == "silo-2" and step is SYNC:
                synchronised.set()
            return reply

    data = silos(BINARY, 100, 100, 100)
    outcome = run(
        job(BINARY, whole(rounds=12), min_silos=2),
        data,
        participate_as=over(Paced),
        late={"silo-2": 0.0},
    )
    rounds = [r for r, silo, _ in blocks(outcome) if silo == "silo-2"]
    assert 3 < rounds[0] <= 7
    assert rounds == list(range(rounds[0], 12))
    assert not outcome.errors


def test_a_silo_that_lost_a_reply_is_sent_its_own_trees_too() -> None:
    class Losing(Watched):
        """Silo 1 loses the reply of round 1 and finds the place passed."""

        def exchange(self, step: Any, at: ExchangeKey, offer: Any) -> Any:
            reply = self.link.exchange(step, at, offer)
            if self.silo == "silo-1" and step is TREES and at.round == 1:
                raise PlacePassed("the reply was lost")
            return reply

    data = silos(BINARY, 120, 100)
    outcome = run(job(BINARY, whole(rounds=4)), data, participate_as=over(Losing))
    assert not outcome.errors
    names = [(r, silo) for r, silo, _ in blocks(outcome)]
    assert (1, "silo-1") in names
    assert (3, "silo-1") in names


def lying(lie: str) -> Callable[..., None]:
    """Return a silo half of which the last silo sends what it should not."""

    def half(parameters: Bagging, link: SiloChannel, vault: Any, start: SiloStart) -> None:
        if start.silo != "silo-2":
            participate(parameters, link, vault, start)
            return
        standing = link.exchange(SYNC, ExchangeKey(0), TreeCatchUp(0, -1, start.dataset.n_samples))
        link.exchange(TREES, ExchangeKey(0), LIES[lie](standing))

    return half


def offer_of(kind: Kind, steps: int, **columns: Any) -> TreeOffer:
    from hedgerow.boosting.trees.loading import trees_of
    from tests.boosting.trees.ensembles import train

    trees = trees_of(train(kind, dataset(kind, 100, 1), 1))
    return TreeOffer(0, steps, 1.0, pack([replace(tree, **columns) for tree in trees]))


LIES = {
    "garbage": lambda _: TreeOffer(0, 1, 1.0, b"\x01garbage"),
    "64 MiB of garbage": lambda _: TreeOffer(0, 1, 1.0, b"\x01" + bytes(range(256)) * (1 << 18)),
    "more steps": lambda _: offer_of(BINARY, 2),
    "no trees": lambda _: TreeOffer(0, 1, 1.0, b""),
    "another class": lambda _: offer_of(BINARY, 1, group=1),
    "another model": lambda _: replace(offer_of(BINARY, 1), version=3),
    "no gain": lambda _: replace(offer_of(BINARY, 1), gain=float("nan")),
    "huge leaves": lambda _: rescaled(offer_of(BINARY, 1), 1e6),
    "infinite leaves": lambda _: rescaled(offer_of(BINARY, 1), np.inf),
}


def rescaled(offer: TreeOffer, factor: float) -> TreeOffer:
    with np.errstate(all="ignore"):
        return replace(offer, data=pack([t.scaled(factor) for t in unpack(offer.data)]))


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_upload_is_refused_and_the_others_go_on(lie: str) -> None:
    data = silos(BINARY, 100, 100, 100)
    outcome = run(job(BINARY, whole(rounds=2), min_silos=2), data, participate_as=lying(lie))
    assert isinstance(outcome.errors[Silo("silo-2")], OfferRejected)
    assert {silo for _, silo, _ in blocks(outcome)} == {"silo-0", "silo-1"}


def test_a_lying_upload_that_leaves_too_few_ends_the_job_by_name() -> None:
    data = silos(BINARY, 100, 100, 100)
    outcome = run_in_memory(
        job(BINARY, whole(rounds=2), min_silos=3), data, participate_as=lying("garbage")
    )
    assert "silo-2" in str(outcome.error)


def test_a_model_that_differs_is_noticed() -> None:
    class Deceived(Watched):
        def exchange(self, step: Any, at: ExchangeKey, offer: Any) -> Any:
            reply = self.link.exchange(step, at, offer)
            if self.silo == "silo-2" and step is TREES and at.round == 1:
                return replace(reply, digest=bytes(32))
            return reply

    data = silos(BINARY, 100, 100, 100)
    outcome = run(job(BINARY, whole(rounds=3), min_silos=2), data, participate_as=over(Deceived))
    assert isinstance(outcome.errors[Silo("silo-2")], FederationError)
    assert "differs" in str(outcome.errors[Silo("silo-2")])


# --- what travels ---


def test_a_silo_is_sent_the_others_trees_and_never_its_own() -> None:
    sent: dict[str, list[steps.TreeRound]] = {}

    class Noting(Watched):
        def exchange(self, step: Any, at: ExchangeKey, offer: Any) -> Any:
            reply = self.link.exchange(step, at, offer)
            if step in (TREES, SYNC):
                sent.setdefault(self.silo, []).extend(reply.rounds)
            return reply

    data = silos(BINARY, 100, 100, 100)
    run(job(BINARY, whole(rounds=3)), data, participate_as=over(Noting))
    assert set(sent) == {f"silo-{k}" for k in range(3)}
    for name, rounds in sent.items():
        assert [added.silos for added in rounds] == [tuple(sorted(sent))] * 3
        for added in rounds:
            own = added.sizes[added.silos.index(Silo(name))]
            assert 0 < own == sum(added.sizes) - len(added.data)


def test_predictions_of_the_model_match_margins_kept_in_the_silos() -> None:
    """Through the training loss: each silo's pooled score comes from its own margins."""
    data = silos(REGRESSION, 200, 200, 200)
    outcome = run(job(REGRESSION, whole(rounds=3, evaluate="silos"), metrics=("rmse",)), data)
    booster = load(model(outcome)).booster()
    squares = sum(
        float(((margin(booster, rows).astype(np.float64) - rows.labels) ** 2).sum())
        for rows in data.values()
    )
    n = sum(rows.n_samples for rows in data.values())
    assert outcome.rounds[-1].metrics["train"]["rmse"] == pytest.approx((squares / n) ** 0.5)
    assert matrix(data["silo-0"]).num_row() == 200


@pytest.mark.parametrize(
    ("booster", "says"),
    [
        (Booster(tree_method="exact"), "exact supports no categorical"),
        (Booster(monotone_constraints=(1, 0)), "expected 4, received 2"),
        (Booster(grow_policy="sideways"), "'depthwise', 'lossguide'"),
        (Booster(subsample=1.5), "subsample"),
    ],
)
def test_a_booster_that_does_not_suit_the_tables_ends_the_job(booster: Booster, says: str) -> None:
    outcome = run_in_memory(job(BINARY, whole(), booster=booster), silos(BINARY, 50, 50))
    assert says in str(outcome.error)


def test_what_xgboost_refuses_is_reported_without_a_stack() -> None:
    data = silos(BINARY, 50, 50)
    rows = MarginRows(data["silo-0"], blank(data["silo-0"].schema, *START), 1)
    with pytest.raises(DataError) as caught:
        rows.train({"objective": BINARY.objective, "max_depth": -3}, 1)
    assert "max_depth" in str(caught.value)
    assert "\n" not in str(caught.value)
