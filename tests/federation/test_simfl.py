"""Whole SimFL jobs: against a plain loop and against XGBoost, with silos that are lost or lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost as xgb

from hedgerow.boosting.dataset import Dataset, Schema
from hedgerow.boosting.engine.objective import objective_of
from hedgerow.boosting.errors import InvalidJob, OfferRejected, PlacePassed, PolicyDeclined
from hedgerow.boosting.exchange import Silo, SiloChannel
from hedgerow.boosting.job import Booster
from hedgerow.boosting.ports import JobParameters, SiloStart
from hedgerow.boosting.rounds.log import TreeLog
from hedgerow.boosting.rounds.steps import TREES
from hedgerow.boosting.strategies.simfl.forecast import paper_bytes
from hedgerow.boosting.strategies.simfl.parameters import SimFL
from hedgerow.boosting.strategies.simfl.silo import participate
from hedgerow.boosting.strategies.simfl.similarity import hashes_of, most_similar, ranges_of
from hedgerow.boosting.strategies.simfl.steps import (
    GRADIENTS,
    HASHES,
    RANGES,
    FeatureRanges,
)
from hedgerow.boosting.streams import Purpose, generator, xgboost_seed
from hedgerow.boosting.trees.ensemble import blank
from hedgerow.boosting.trees.loading import load, trees_of
from hedgerow.boosting.trees.local import booster_parameters
from hedgerow.client_agent.policy import Policy
from tests.boosting.sums.federation_of_sums import Authority, TestIdentity
from tests.boosting.trees.ensembles import KINDS, Kind, dataset, margin, matrix
from tests.federation.memory import Fault, Outcome, run_in_memory
from tests.federation.planned import plan_and_run

BINARY, REGRESSION, POISSON, CLASSES = KINDS[:4]


def job(kind: Kind, strategy: SimFL, **given: Any) -> JobParameters:
    booster = Booster(
        objective=kind.objective,
        base_score=kind.base_score,
        max_depth=3,
        subsample=0.8,
        num_parallel_tree=kind.extra.get("num_parallel_tree", 1),
    )
    return JobParameters(
        "test", strategy, task=kind.task, seed=5, booster=given.pop("booster", booster), **given
    )


def silos(kind: Kind, *sizes: int) -> dict[str, Dataset]:
    return {f"silo-{i}": dataset(kind, n, seed=i) for i, n in enumerate(sizes)}


def run(asked: JobParameters, data: Mapping[str, Dataset], **given: Any) -> Outcome:
    """Run a job that must succeed."""
    asked.parameters.validate(asked)
    outcome = run_in_memory(asked, data, through_wire=True, **given)
    assert outcome.error is None, outcome.error
    assert outcome.open_places <= 3
    return outcome


def model(outcome: Outcome) -> bytes:
    assert outcome.artefact is not None
    return outcome.artefact.files["model.ubj"]


def growers(outcome: Outcome) -> list[str]:
    """Return who grew each round's tree; empty where nobody did."""
    return ["".join(result.silos) for result in outcome.rounds]


# --- equivalence ---


def loop(asked: JobParameters, data: Mapping[str, Dataset]) -> xgb.Booster:
    """SimFL without a federation: one booster, its derivatives added up row by row."""
    assert isinstance(asked.parameters, SimFL)
    parameters, tables = asked.parameters, [data[name] for name in sorted(data)]
    schema = tables[0].schema
    objective = objective_of(asked.objective, asked.task, asked.booster)
    low = np.min([ranges_of(table).low for table in tables], axis=0)
    high = np.max([ranges_of(table).high for table in tables], axis=0)
    n_hashes = parameters.n_hashes(schema)
    hashes = [
        hashes_of(table, FeatureRanges(low, high), n_hashes, parameters.width, asked.seed)
        for table in tables
    ]
    native = booster_parameters(asked.booster, asked.objective, schema.n_outputs, 1)
    native |= {"base_score": asked.booster.base_score, "eta": asked.booster.eta}
    rows = [matrix(table) for table in tables]
    grown = xgb.Booster(native, rows)
    for round_ in range(parameters.rounds):
        turn = round_ % len(tables)
        pairs = []
        for table, own in zip(tables, rows, strict=True):
            margins = grown.predict(own, output_margin=True, validate_features=False)
            shaped = margins.reshape(table.n_samples, -1)
            pairs.append(objective.gradients(shaped, table.labels, table.weight))
        total = [np.zeros(side.shape) for side in pairs[turn]]
        for other in range(len(tables)):
            if other == turn:
                continue
            rng = generator(asked.seed, other, turn, Purpose.SIMILAR_ROWS)
            similar = most_similar(hashes[other], hashes[turn], rng, lambda: None)
            own_sums = [np.zeros(side.shape) for side in total]
            for row, at in enumerate(similar):
                for side in (0, 1):
                    own_sums[side][at] += pairs[other][side][row]
            for side in (0, 1):
                total[side] += own_sums[side].astype(np.float32)
        g, h = (
            mine + summed.astype(np.float32)
            for mine, summed in zip(pairs[turn], total, strict=True)
        )
        grown.set_param({"seed": xgboost_seed(asked.seed, turn, round_, Purpose.XGBOOST)})
        step = xgb.Booster(native, [rows[turn]])
        step.set_param({"seed": xgboost_seed(asked.seed, turn, round_, Purpose.XGBOOST)})
        step.boost(rows[turn], 0, grad=g, hess=h)
        grown = _joined(grown, step, asked, schema)
    return grown


def _joined(
    grown: xgb.Booster, step: xgb.Booster, asked: JobParameters, schema: Schema
) -> xgb.Booster:
    start = blank(schema, asked.objective, asked.booster, asked.booster.base_score or 0.0)
    trees = [*trees_of(grown), *trees_of(step)]
    per_step = schema.n_outputs * asked.booster.num_parallel_tree
    return start.unnamed().extend(trees, n_steps=len(trees) // per_step).booster()


@pytest.mark.parametrize("kind", KINDS[:5], ids=lambda kind: kind.name)
def test_the_model_is_the_plain_loops(kind: Kind) -> None:
    data = silos(kind, 90, 70, 80)
    asked = job(kind, SimFL(rounds=4, hashes=4, width=0.5))
    ours = xgb.Booster(model_file=bytearray(model(run(asked, data))))
    rows = dataset(kind, 200, 9)
    np.testing.assert_array_equal(margin(ours, rows), margin(loop(asked, data), rows))


def test_one_silo_alone_trains_as_xgboost_does() -> None:
    plain = Booster(max_depth=4, base_score=0.5)
    asked = job(BINARY, SimFL(rounds=5), booster=plain)
    data = silos(BINARY, 200)
    ours = xgb.Booster(model_file=bytearray(model(run(asked, data))))
    native = {"objective": "binary:logistic", "max_depth": 4, "base_score": 0.5, "nthread": 1}
    theirs = xgb.train(native, matrix(data["silo-0"]), 5)
    rows = dataset(BINARY, 200, 9)
    np.testing.assert_array_equal(margin(ours, rows), margin(theirs, rows))


def test_two_silos_with_the_same_rows_train_as_xgboost_with_weights_of_two() -> None:
    """Each row's most similar row is its twin, so every gradient counts twice."""
    table = dataset(BINARY, 150, 0, missing=0.0)
    asked = job(
        BINARY, SimFL(rounds=4, hashes=40, width=0.01), booster=Booster(max_depth=4, base_score=0.5)
    )
    outcome = run(asked, {"silo-0": table, "silo-1": replace(table)})
    ours = xgb.Booster(model_file=bytearray(model(outcome)))
    native = {"objective": "binary:logistic", "max_depth": 4, "base_score": 0.5, "nthread": 1}
    twice = matrix(table)
    twice.set_weight(np.full(table.n_samples, 2.0))
    theirs = xgb.train(native, twice, 4)
    rows = dataset(BINARY, 200, 9)
    np.testing.assert_array_equal(margin(ours, rows), margin(theirs, rows))
    assert growers(outcome) == ["silo-0", "silo-1"] * 2


@pytest.mark.parametrize("sizes", [(60, 50), (60, 50, 40)], ids=["plain", "secure"])
def test_the_base_score_of_a_regression_is_the_mean_of_all_labels(sizes: tuple[int, ...]) -> None:
    data, authority = silos(REGRESSION, *sizes), Authority()
    asked = job(REGRESSION, SimFL(rounds=2), booster=Booster(max_depth=2))
    outcome = run(asked, data, identities=lambda silo: TestIdentity(authority, silo))
    labels = np.concatenate([table.labels for table in data.values()])
    assert load(model(outcome)).about.base_score[0] == pytest.approx(labels.mean(), rel=1e-6)


# --- lost, late and restarted ---


class Watched:
    """A silo's link that a test looks into or disturbs."""

    def __init__(self, link: SiloChannel, silo: Silo) -> None:
        self.link = link
        self.silo = silo
        self.check, self.remember, self.recall = link.check, link.remember, link.recall


def over(kind: type[Any]) -> Callable[..., Any]:
    def half(parameters: SimFL, link: SiloChannel, vault: Any, start: SiloStart) -> Any:
        return participate(parameters, kind(link, start.silo), vault, start)

    return half


def test_a_coordinator_that_starts_again_ends_with_the_same_bytes() -> None:
    data = silos(CLASSES, 80, 70, 90)
    asked = job(CLASSES, SimFL(rounds=6, width=0.5))
    undisturbed = model(run(asked, data, test=dataset(CLASSES, 50, 8)))
    for done in (1, 4):
        memories: dict[str, dict[str, bytes]] = {silo: {} for silo in data}
        killed = run(asked, data, stop_after_rounds=done, memories=memories)
        again = run(
            asked,
            data,
            checkpoint=killed.rounds[-1].checkpoint,
            first_round=done,
            attempt=2,
            memories=memories,
        )
        assert model(again) == undisturbed
        assert not again.errors


def test_a_restart_before_the_first_round_hashes_again() -> None:
    data = silos(BINARY, 60, 50)
    asked = job(BINARY, SimFL(rounds=3))
    memories: dict[str, dict[str, bytes]] = {silo: {} for silo in data}
    first = model(run(asked, data, memories=memories))
    assert model(run(asked, data, attempt=2, memories=memories)) == first


@pytest.mark.parametrize("step", ["gradients", "trees"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_silos_rounds_pass_without_a_tree(step: str, when: str) -> None:
    data = silos(BINARY, 60, 50, 40)
    asked = job(BINARY, SimFL(rounds=9), min_silos=2)
    outcome = run(asked, data, faults=(Fault("silo-1", step, 4, when=when),))
    late = "silo-1" if (step, when) == ("trees", "after") else ""
    turns = ["silo-0", "silo-1", "silo-2"] * 3
    assert growers(outcome) == [*turns[:4], late, "silo-2", "silo-0", "", "silo-2"]
    assert TreeLog.decode(outcome.rounds[-1].checkpoint)[0].version == 9


@pytest.mark.parametrize("step", ["ranges", "hashes"])
def test_a_silo_lost_while_rows_are_hashed_adds_nothing(step: str) -> None:
    data = silos(BINARY, 60, 50, 40)
    asked = job(BINARY, SimFL(rounds=6), min_silos=2)
    outcome = run(asked, data, faults=(Fault("silo-2", step),))
    assert growers(outcome) == ["silo-0", "silo-1", ""] * 2


def test_a_silo_that_lost_the_others_hashes_says_so() -> None:
    """Alone it would follow in silence; lost, it makes a strict job hash again."""

    class Losing(Watched):
        def exchange(self, step: Any, at: Any, offer: Any) -> Any:
            reply = self.link.exchange(step, at, offer)
            if self.silo == "silo-1" and step is HASHES:
                raise PlacePassed("the reply was lost")
            return reply

    asked = job(BINARY, SimFL(rounds=4), min_silos=2)
    outcome = run(asked, silos(BINARY, 60, 50, 40), participate_as=over(Losing))
    assert growers(outcome) == ["silo-0", "", "silo-2", "silo-0"]
    assert "silo-1 was restarted while it looked" in str(outcome.errors[Silo("silo-1")])


def test_too_few_silos_end_the_job() -> None:
    asked = job(BINARY, SimFL(rounds=6), min_silos=2)
    faults = (Fault("silo-1", "gradients", 2),)
    outcome = run_in_memory(asked, silos(BINARY, 60, 50), faults=faults)
    assert "needs 2 silos" in str(outcome.error)
    assert len(outcome.rounds) == 2


def test_a_late_silo_follows_the_model_and_adds_nothing() -> None:
    data = silos(BINARY, 60, 50, 40)
    asked = job(BINARY, SimFL(rounds=8), min_silos=2)
    outcome = run(asked, data, joins_after={"silo-1": 2})
    assert growers(outcome) == ["silo-0", "", "silo-2"] * 2 + ["silo-0", ""]
    assert not outcome.errors
    assert set(outcome.checks) == set(data)


def test_a_silo_that_missed_a_place_goes_on() -> None:
    class Losing(Watched):
        """Silo 1 loses a reply of its sums, later one of its tree."""

        def exchange(self, step: Any, at: Any, offer: Any) -> Any:
            reply = self.link.exchange(step, at, offer)
            if self.silo == "silo-1" and (step.name, at.round) in {("gradients", 1), ("trees", 4)}:
                raise PlacePassed("the reply was lost")
            return reply

    data = silos(BINARY, 60, 50, 40)
    outcome = run(job(BINARY, SimFL(rounds=9)), data, participate_as=over(Losing))
    assert not outcome.errors
    turns = ["silo-0", "silo-1", "silo-2"] * 3
    assert growers(outcome) == [turns[0], "", *turns[2:]]


def test_silos_without_rows_take_part_and_grow_nothing() -> None:
    data = silos(BINARY, 60, 0, 40)
    outcome = run(job(BINARY, SimFL(rounds=6)), data)
    assert growers(outcome) == ["silo-0", "", "silo-2"] * 2
    assert not outcome.errors


# --- lies ---


def lying(step_name: str, round_: int, lie: Callable[[Any], Any]) -> type[Watched]:
    class Liar(Watched):
        def exchange(self, step: Any, at: Any, offer: Any) -> Any:
            if self.silo == "silo-2" and (step.name, at.round) == (step_name, round_):
                offer = lie(offer)
            return self.link.exchange(step, at, offer)

    return Liar


def _sums(offer: Any, g: float, h: float, extra: int = 0) -> Any:
    n = max(1, len(offer.gradients)) + extra
    return replace(offer, gradients=np.full(n, g, np.float32), hessians=np.full(n, h, np.float32))


LIES = {
    "ranges of other columns": ("ranges", 0, lambda o: replace(o, low=o.low[:2])),
    "an infinite range": ("ranges", 0, lambda o: replace(o, low=o.low - np.float32(np.inf))),
    "hashes of another silo": ("hashes", 0, lambda o: replace(o, silo=Silo("silo-0"))),
    "hashes of more rows": (
        "hashes", 0, lambda o: replace(o, values=np.vstack([o.values, o.values])),
    ),
    "fewer hashes": ("hashes", 0, lambda o: replace(o, values=o.values[:, :1])),
    "sums for more rows": ("gradients", 0, lambda o: _sums(o, 0.0, 1.0, 3)),
    "a hessian below zero": ("gradients", 0, lambda o: _sums(o, 0.0, -1.0)),
    "an infinite gradient": ("gradients", 0, lambda o: _sums(o, np.inf, 1.0)),
    "sums for its own rows": ("gradients", 2, lambda o: _sums(o, 0.0, 1.0)),
    "a tree out of turn": ("trees", 0, lambda o: replace(o, steps=1, data=b"\x01tree")),
    "garbage": ("trees", 2, lambda o: replace(o, steps=1, data=b"\x01tree")),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_silo_is_refused_and_the_others_go_on(lie: str) -> None:
    data = silos(BINARY, 60, 50, 40)
    asked = job(BINARY, SimFL(rounds=5), min_silos=2)
    outcome = run(asked, data, participate_as=over(lying(*LIES[lie])))
    assert isinstance(outcome.errors[Silo("silo-2")], OfferRejected)
    assert "silo-2" not in growers(outcome)


def deceiving(step_name: str, lie: Callable[[Any], Any]) -> type[Watched]:
    class Deceived(Watched):
        def exchange(self, step: Any, at: Any, offer: Any) -> Any:
            reply = self.link.exchange(step, at, offer)
            return lie(reply) if self.silo == "silo-0" and step.name == step_name else reply

    return Deceived


DECEITS = {
    "hashes of a stranger": (
        "hashes", lambda r: replace(r, silos=(replace(r.silos[0], silo=Silo("x")),)),
    ),
    "own hashes": (
        "hashes", lambda r: replace(r, silos=(replace(r.silos[0], silo=Silo("silo-0")),)),
    ),
    "hashes twice": ("hashes", lambda r: replace(r, silos=(r.silos[0], r.silos[0]))),
    "more hash functions": (
        "hashes",
        lambda r: replace(
            r, silos=(replace(r.silos[0], values=np.hstack([r.silos[0].values] * 2)),)
        ),
    ),
    "ranges without a number": (
        "ranges", lambda r: replace(r, high=r.high + np.float32(np.nan)),
    ),
    "sums for fewer rows": (
        "gradients", lambda r: replace(r, gradients=r.gradients[:3], hessians=r.hessians[:3]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("deceit", DECEITS)
def test_a_silo_refuses_what_a_lying_coordinator_sends(deceit: str) -> None:
    data = silos(BINARY, 60, 50, 40)
    asked = job(BINARY, SimFL(rounds=4), min_silos=2)
    outcome = run(asked, data, participate_as=over(deceiving(*DECEITS[deceit])))
    assert isinstance(outcome.errors[Silo("silo-0")], OfferRejected)


# --- policy ---


def test_a_default_policy_refuses_it_and_each_class_must_be_allowed() -> None:
    data, asked = silos(BINARY, 60, 50), job(BINARY, SimFL(rounds=2))
    needed = [step.discloses for step in (RANGES, HASHES, GRADIENTS, TREES)]
    assert len(set(needed)) == 4
    every = frozenset(Policy(may_send=tuple(needed)).classes | Policy().classes)
    assert not run(asked, data, may_send=every).errors
    for refusing in (Policy().classes, *(every - {one} for one in needed)):
        outcome = run_in_memory(asked, data, may_send=refusing)
        assert all(isinstance(error, PolicyDeclined) for error in outcome.errors.values())
        assert len(outcome.errors) == 2


# --- bytes ---


def test_bytes_are_the_plans_and_within_a_tenth_of_the_sources_formula(tmp_path: Path) -> None:
    text = (
        'strategy = "simfl"\nmin_silos = 4\nseed = 1\n[simfl]\nrounds = 24\nhashes = 5\n'
        "[booster]\nmax_depth = 4\n"
    )
    planned, report = plan_and_run(tmp_path, text, n_silos=4, n_samples=5000)
    moved = {way: report["bytes"][way] for way in ("up", "down")}
    assert planned["bytes"] == pytest.approx(moved, rel=0.1)
    n_nodes, n_rows = 2**4 - 1, 4 * 5000
    formula = 8 * 4 * n_rows * 5 + 8 * 24 * (n_rows + n_nodes * 3)
    assert sum(moved.values()) == pytest.approx(formula, rel=0.1)
    assert any(str(formula) in note for note in planned["notes"])


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [(BINARY, SimFL(rounds=1, hashes=-1)), (BINARY, SimFL(width=0)), (BINARY, SimFL(rounds=0))],
)
def test_parameters_out_of_range_are_refused(kind: Kind, strategy: SimFL) -> None:
    asked = job(kind, strategy)
    with pytest.raises(InvalidJob, match=r"\[simfl\] (hashes|width|rounds): expected"):
        strategy.validate(asked)


def test_the_formula_gives_the_sources_figure_for_a9a() -> None:
    """150.4 MB (of 2^20 bytes) for 32,561 rows, ten silos, depth 8, 500 trees, seven functions."""
    asked = job(BINARY, SimFL(hashes=7), booster=Booster(max_depth=8))
    assert isinstance(asked.parameters, SimFL)
    schema = dataset(BINARY, 10, 0).schema
    found = paper_bytes(asked.parameters, asked, schema, 10, 32_561)
    assert found / 2**20 == pytest.approx(150.4, rel=0.005)
