"""Histogram boosting, both halves: the pooled engine's trees bit for bit, faults included."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from hedgerow.boosting import checkpoints
from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.errors import InvalidJob, OfferRejected
from hedgerow.boosting.exchange import Call, ExchangeKey, Step
from hedgerow.boosting.job import Booster
from hedgerow.boosting.strategies.histogram import opening as histogram_opening
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.histogram.steps import CutPoints, RelayedTotal
from hedgerow.boosting.trees.loading import load
from tests import oracles
from tests.federation.histograms import (
    DATA,
    job_of,
    model_of,
    opening_of,
    plain_job,
    pooled_of,
    run,
    same,
    silos_of,
)
from tests.federation.memory import (
    Fault,
    MemoryJournal,
    MemoryLink,
)

ROUNDS = 3
SIZES = (900, 0, 400, 200)

VARIANTS = {
    "masked": (
        Task.BINARY,
        Histogram(rounds=ROUNDS, binning="summary"),
        Booster(max_depth=4, max_bin=32),
    ),
    "plain": (
        Task.BINARY,
        Histogram(rounds=ROUNDS, binning="summary", secure=False),
        Booster(max_depth=4, max_bin=32),
    ),
    "without recovery": (
        Task.BINARY,
        Histogram(rounds=ROUNDS, binning="summary", dropout_recovery=False),
        Booster(max_depth=4, max_bin=32),
    ),
    "48-bit ring": (
        Task.BINARY,
        Histogram(rounds=ROUNDS, binning="summary", ring_bits=48),
        Booster(max_depth=4, max_bin=32),
    ),
    "regression, recursive cuts": (
        Task.REGRESSION,
        Histogram(rounds=ROUNDS, binning="recursive", binning_error=1e-2),
        Booster(max_depth=3, max_bin=16),
    ),
    "absolute errors from the median": (
        Task.REGRESSION,
        Histogram(rounds=ROUNDS, binning="summary"),
        Booster(max_depth=3, max_bin=16, objective="lae"),
    ),
    "a quantile": (
        Task.REGRESSION,
        Histogram(rounds=ROUNDS),
        Booster(
            max_depth=4,
            max_bin=16,
            objective="reg:quantileerror",
            quantile_alpha=0.8,
            min_child_weight=10.0,
        ),
    ),
    "several quantiles": (
        Task.REGRESSION,
        Histogram(rounds=ROUNDS),
        Booster(
            max_depth=4,
            max_bin=16,
            objective="reg:quantileerror",
            quantile_alpha=0.1,
            more_alphas=(0.5, 0.95),
            min_child_weight=10.0,
        ),
    ),
    "quantiles of two trees a round": (
        Task.REGRESSION,
        Histogram(rounds=ROUNDS),
        Booster(
            max_depth=3,
            max_bin=16,
            objective="reg:quantileerror",
            quantile_alpha=0.2,
            more_alphas=(0.8,),
            num_parallel_tree=2,
            colsample_bynode=0.5,
            min_child_weight=10.0,
        ),
    ),
    "absolute errors": (
        Task.REGRESSION,
        Histogram(rounds=ROUNDS, secure=False),
        Booster(max_depth=3, max_bin=16, objective="reg:absoluteerror", min_child_weight=10.0),
    ),
    "a loss of the job's own": (
        Task.REGRESSION,
        Histogram(rounds=ROUNDS, binning="summary"),
        Booster(
            max_depth=3,
            max_bin=16,
            loss="where(label > margin, 3 * (label - margin)**2, (label - margin)**2)",
        ),
    ),
    "a loss of the job's own, of few bits": (
        Task.BINARY,
        Histogram(rounds=ROUNDS, coarse_bits=5, sampling="mvs", sampling_rate=0.5),
        Booster(max_depth=3, max_bin=16, loss="max(0, 1.5 - margin * (2 * label - 1))**2"),
    ),
    "classes": (
        Task.MULTICLASS,
        Histogram(rounds=ROUNDS, binning="summary"),
        Booster(max_depth=3, max_bin=16),
    ),
    "classes in one tree": (
        Task.MULTICLASS,
        Histogram(rounds=ROUNDS, binning="summary", multi_output=True),
        Booster(max_depth=3, max_bin=16),
    ),
    "loss-guided columns": (
        Task.BINARY,
        Histogram(rounds=ROUNDS, binning="summary", growth="lossguide"),
        Booster(max_depth=0, max_leaves=9, max_bin=16, colsample_bytree=0.7, colsample_bynode=0.7),
    ),
    "mvs": (
        Task.BINARY,
        Histogram(rounds=ROUNDS, binning="summary", sampling="mvs", sampling_rate=0.3),
        Booster(max_depth=3, max_bin=16),
    ),
    "a random forest a round": (
        Task.MULTICLASS,
        Histogram(
            rounds=ROUNDS, binning="summary", sampling="uniform", sampling_rate=0.6, reweight=False
        ),
        Booster(max_depth=3, max_bin=16, num_parallel_tree=3, colsample_bynode=0.6),
    ),
    "a forest of heavier rows": (
        Task.REGRESSION,
        Histogram(rounds=ROUNDS, binning="summary", sampling="mvs", sampling_rate=0.4),
        Booster(max_depth=3, max_bin=16, num_parallel_tree=2, objective="count:poisson"),
    ),
    "a forest of all rows": (
        Task.BINARY,
        Histogram(rounds=ROUNDS, binning="summary", secure=False),
        Booster(max_depth=3, max_bin=16, num_parallel_tree=4, colsample_bylevel=0.5),
    ),
    "coarse, of a sample, without a bound": (
        Task.REGRESSION,
        Histogram(rounds=ROUNDS, binning="summary", coarse_bits=5, sampling="mvs"),
        Booster(max_depth=3, max_bin=16),
    ),
    "coarse": (
        Task.BINARY,
        Histogram(rounds=ROUNDS, binning="summary", coarse_bits=5),
        Booster(max_depth=4, max_bin=32),
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_federated_model_is_the_pooled_one_bit_for_bit(name: str) -> None:
    task, strategy, booster = VARIANTS[name]
    data = oracles.generated(task, sum(SIZES), weighted=name in ("masked", "regression"))
    if booster.objective == "count:poisson":
        data = replace(data, y=np.floor(np.exp(np.clip(data.labels, -2, 2))))
    job = job_of(strategy, task, booster)
    strategy.validate(job)
    outcome = run(job, silos_of(data, SIZES))
    assert not outcome.errors
    model = model_of(outcome)
    assert same(model, pooled_of(job, data, outcome, SIZES))
    n_outputs = max(data.schema.n_outputs, len(booster.quantiles))
    n_trees = len(outcome.rounds) * n_outputs * booster.num_parallel_tree
    assert (len(model.trees), model.about.num_parallel_tree) == (
        n_trees, booster.num_parallel_tree
    )  # fmt: skip
    if booster.num_parallel_tree > 1:
        assert not np.array_equal(model.trees[0].threshold, model.trees[1].threshold)
    assert outcome.rounds[-1].final
    assert outcome.open_places <= 3


@pytest.mark.parametrize("secure", [True, False])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["masked", "unmask"])
def test_a_silo_lost_at_a_rounds_start_is_out_and_the_others_go_on(
    secure: bool, when: str, step: str
) -> None:
    if not secure and step == "unmask":
        step = "plain"
    name = f"histograms-{step if secure else 'plain'}"
    sizes = (500, 400, 300, 200, 100)
    job = plain_job(secure=secure)
    outcome = run(job, silos_of(DATA, sizes), faults=(Fault("silo-4", name, 1, 0, when),))
    ensemble = model_of(outcome)
    assert len(outcome.rounds) == 4
    assert "silo-4" in outcome.rounds[0].silos
    assert "silo-4" not in outcome.rounds[2].silos
    # From the round after, trees are those of the rest, on the margins that all agree on.
    covers = [tree.cover[0] for tree in ensemble.trees]
    assert covers[2] < covers[0] * 0.96


def test_a_silo_lost_inside_a_tree_closes_it_and_the_next_starts_without_it() -> None:
    sizes = (500, 400, 300, 200, 100)
    fault = Fault("silo-4", "histograms-single", 1, 2, "before")
    outcome = run(plain_job(), silos_of(DATA, sizes), faults=(fault,))
    ensemble = model_of(outcome)
    whole = run(plain_job(), silos_of(DATA, sizes))
    depths = [tree.n_nodes for tree in ensemble.trees]
    assert depths[1] < model_of(whole).trees[1].n_nodes
    assert depths[2] > depths[1]
    assert np.array_equal(ensemble.trees[0].threshold, model_of(whole).trees[0].threshold)
    # All silos' sums of levels 0 and 1 are of the root and its children, which are leaves now.
    closed, full = ensemble.trees[1], model_of(whole).trees[1]
    assert np.array_equal(closed.feature[:1], full.feature[:1])
    assert np.array_equal(closed.cover, full.cover[:3])
    assert outcome.rounds[-1].silos == ("silo-0", "silo-1", "silo-2", "silo-3")


def test_a_silo_that_comes_late_enters_at_a_rounds_start_with_all_trees() -> None:
    sizes = (500, 400, 300, 300)
    outcome = run(plain_job(rounds=5), silos_of(DATA, sizes), joins_after={"silo-3": 1})
    assert outcome.error is None
    assert not outcome.errors
    # The end of round 1 was announced without it, so it enters after round 2.
    present = ["silo-3" in result.silos for result in outcome.rounds]
    assert present == [False, False, False, True, True]
    first = 3
    trees = model_of(outcome).trees
    # Its rows are weighed by the margins of the trees that it missed: h would be 1/4 otherwise.
    assert trees[first].cover[0] > trees[first - 1].cover[0]
    assert trees[first].cover[0] < trees[first - 1].cover[0] + 0.24 * 300


@pytest.mark.parametrize("secure", [True, False])
def test_a_restarted_coordinator_goes_on_from_the_last_round(secure: bool) -> None:
    sizes = (500, 400, 300, 300)
    job = plain_job(secure=secure)
    memories: dict[str, dict[str, bytes]] = {f"silo-{i}": {} for i in range(4)}
    whole = model_of(run(job, silos_of(DATA, sizes)))
    begun = run(job, silos_of(DATA, sizes), memories=memories, stop_after_rounds=2)
    ended = run(
        job,
        silos_of(DATA, sizes),
        memories=memories,
        checkpoint=begun.rounds[-1].checkpoint,
        first_round=2,
        attempt=2,
    )
    assert len(ended.rounds) == 2
    assert same(model_of(ended), whole)


@pytest.mark.parametrize("sampling", ["none", "goss"])
@pytest.mark.parametrize("drawn", [0, 3])
def test_a_restart_goes_on_where_each_round_asks_for_the_largest_gradients(
    sampling: str, drawn: int
) -> None:
    """The sum of who has checked the trees comes before these, and closes no place of theirs."""
    data, sizes = oracles.generated(Task.REGRESSION, 1500), (300, 300, 300, 200, 200, 200)
    given = Histogram(rounds=4, sampling=sampling, silos_per_round=drawn)  # type: ignore[arg-type]
    silos = silos_of(data, sizes)
    job = job_of(given, Task.REGRESSION, Booster(max_depth=3, max_bin=16), min_silos=3)
    job = replace(job, silos=tuple(silos), max_close_sums=9)
    memories: dict[str, dict[str, bytes]] = {silo: {} for silo in silos}
    whole = model_of(run(job, silos))
    begun = run(job, silos, memories=memories, stop_after_rounds=2)
    ended = run(
        job,
        silos,
        memories=memories,
        checkpoint=begun.rounds[-1].checkpoint,
        first_round=2,
        attempt=2,
    )
    assert same(model_of(ended), whole)
    if not drawn:
        late = run(job, silos, joins_after={"silo-5": 1})
        assert model_of(late).trees
        assert "silo-5" in late.rounds[-1].silos


def test_too_few_silos_end_the_job_by_name() -> None:
    sizes = (500, 500, 500)
    fault = Fault("silo-1", "histograms-single", 1, 1, "before")
    outcome = run(plain_job(), silos_of(DATA, sizes), faults=(fault,))
    assert outcome.error is not None
    assert "silo-1" in str(outcome.error)


@pytest.mark.parametrize("parallel", [1, 2])
def test_silos_find_the_same_splits_when_the_coordinator_is_blind(parallel: int) -> None:
    sizes = (500, 400, 300, 300)
    seen = []
    for blind, coarse in ((False, 0), (True, 0), (True, 5), (False, 5)):
        job = plain_job(
            rounds=3, binning="recursive", binning_error=1e-2, blind_coordinator=blind,
            coarse_bits=coarse,
        )  # fmt: skip
        columns = 1.0 if parallel == 1 else 0.5
        forest = {"num_parallel_tree": parallel, "colsample_bytree": columns}
        job = replace(job, booster=replace(job.booster, **forest))
        job.parameters.validate(job)
        outcome = run(job, silos_of(DATA, sizes))
        assert not outcome.errors
        if not blind:
            seen.append(model_of(outcome))
            continue
        assert outcome.artefact is not None
        assert set(outcome.artefact.files) == {"job.json"}
        models = {silo: kept.files["model.ubj"] for silo, kept in outcome.kept.items() if kept}
        assert len(models) == 4
        assert len(set(models.values())) == 1
        model = load(next(iter(models.values())))
        seen.append(model)
        # Nothing of a tree is in what the coordinator keeps.
        for result in outcome.rounds:
            arrays, about = checkpoints.load(result.checkpoint)
            assert not arrays
            assert set(about) == {
                "round", "best_round", "best_score", "state", "times", "interval"
            }  # fmt: skip
            assert not any(about[name] for name in ("state", "times", "interval"))
    assert same(seen[0], seen[1])
    assert same(seen[2], seen[3])


@pytest.mark.parametrize("task", [Task.BINARY, Task.REGRESSION])
def test_one_sampling_threshold_keeps_the_rate_of_all_rows_and_masks_change_nothing(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silo whose gradients are larger keeps more of its rows than one whose are smaller."""
    from hedgerow.boosting.engine.sampling import Sampler

    kept: dict[float, list[int]] = {}
    draw = Sampler.draw

    def watched(self: Sampler, g, h, rng, threshold=None):  # type: ignore[no-untyped-def]
        sample = draw(self, g, h, rng, threshold)
        kept.setdefault(float(threshold), []).append(sample.rows.shape[0])
        return sample

    monkeypatch.setattr(Sampler, "draw", watched)
    data = oracles.generated(task, 4000)
    order = np.argsort(np.abs(data.labels - data.labels.mean()), kind="stable")
    silos = silos_of(data.take(order), (1500, 1500, 1000))
    fields = {"sampling": "mvs", "sampling_rate": 0.3, "sampling_scope": "global"}
    fields["binning"] = "summary"
    booster = Booster(max_depth=3, max_bin=16)
    models = []
    for secure in (True, False):
        job = job_of(Histogram(rounds=3, secure=secure, **fields), task, booster)  # type: ignore[arg-type]
        job.parameters.validate(job)
        outcome = run(job, silos, through_wire=secure)
        assert not outcome.errors
        models.append(model_of(outcome))
    assert same(*models)
    assert len(kept) == 3  # one threshold a round, the same in every silo and run
    for counts in kept.values():
        assert sum(counts) / 2 == pytest.approx(0.3 * 4000, rel=0.1)
    if task is Task.REGRESSION:
        first = sorted(next(iter(kept.values())))
        assert first[-1] > 1.5 * first[0]


class ListeningLink(MemoryLink):
    """Keeps the totals that a silo receives, as the coordinator sent them."""

    totals: ClassVar[list[NDArray[np.uint64]]] = []

    def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
        reply = super().exchange(step, at, offer)
        if isinstance(reply, RelayedTotal) and self.silo == "silo-0":
            self.totals.append(reply.residues.view(np.uint64))
        return reply


def test_a_blind_coordinator_gets_uniform_noise() -> None:
    totals = ListeningLink.totals
    totals.clear()
    job = plain_job(rounds=2, binning="recursive", binning_error=1e-2, blind_coordinator=True)
    run(job, silos_of(DATA, (500, 500, 500)), make_link=ListeningLink)
    words = np.concatenate(totals)
    assert words.shape[0] > 1000
    # Sums are small numbers; masked ones have even bits, the highest included.
    for bit in range(64):
        share = ((words >> np.uint64(bit)) & np.uint64(1)).mean()
        assert abs(share - 0.5) < 5 * 0.5 / np.sqrt(words.shape[0])
    # Lengths are the same in every round, whatever the trees are like.
    sizes = [t.shape[0] for t in totals]
    assert sizes[-3:] == sizes[-6:-3]


@pytest.mark.parametrize("max_leaves", [0, 11])
def test_a_level_summed_in_parts_gives_the_same_trees(max_leaves: int) -> None:
    booster = Booster(
        max_depth=5, max_bin=16, max_leaves=max_leaves, min_child_weight=0.0,
        colsample_bylevel=0.7, colsample_bynode=0.7,
    )  # fmt: skip
    models, exchanges = [], []
    for most in (0, 3, 1):
        strategy = Histogram(rounds=3, binning="summary", max_split_nodes=most)
        job = job_of(strategy, Task.MULTICLASS, booster)
        strategy.validate(job)
        data = oracles.generated(Task.MULTICLASS, 1500, seed=3)
        outcome = run(job, silos_of(data, (500, 400, 300, 300)), make_link=LevelLink)
        assert outcome.error is None, outcome.error
        assert not outcome.errors
        assert outcome.artefact is not None
        models.append(outcome.artefact.files["model.ubj"])
        exchanges.append(len(LevelLink.levels))
        LevelLink.levels.clear()
    assert models[0] == models[1] == models[2]
    assert exchanges[0] < exchanges[1] < exchanges[2]


class LevelLink(MemoryLink):
    """Notes the places of histogram sums."""

    levels: ClassVar[set[tuple[int, int, int]]] = set()

    def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
        if step.call is Call.HISTOGRAMS:
            self.levels.add((at.round, at.level, at.passing))
        return super().exchange(step, at, offer)


def test_a_silo_with_too_few_rows_for_goss_uses_all_of_them() -> None:
    strategy = Histogram(rounds=3, binning="summary", sampling="goss")
    job = job_of(strategy, Task.BINARY, Booster(max_depth=3, max_bin=16), min_silos=4)
    data = silos_of(DATA, (500, 400, 7, 300))
    outcome = run(job, data)
    assert outcome.error is None, outcome.error
    assert not outcome.errors
    assert all(result.silos == tuple(sorted(data)) for result in outcome.rounds)
    schema = next(iter(data.values())).schema
    rows = {silo: one.n_samples for silo, one in data.items()}
    notes = job.strategy.forecast(strategy, job, schema, rows).notes
    (small,) = (silo for silo, n in rows.items() if n == 7)
    assert f"too few rows for GOSS, all of them are used in: {small}" in notes


def test_given_cut_points_are_used_as_they_are() -> None:
    points = tuple(f"n{j}: -1 0 0.5" for j in range(5))
    job = plain_job(rounds=2, binning="given", cut_points=points)
    job.parameters.validate(job)
    outcome = run(job, silos_of(DATA, (500, 500, 500)))
    assert opening_of(outcome, DATA).cuts.of(0).tolist()[:3] == [-1.0, 0.0, 0.5]
    assert same(model_of(outcome), pooled_of(job, DATA, outcome, (500, 500, 500)))


@pytest.mark.parametrize(
    ("fields", "booster", "named"),
    [
        ({"sampling": "best"}, {}, "sampling"),
        ({"ring_bits": 16}, {}, "ring_bits"),
        ({"blind_coordinator": True, "early_stopping_rounds": 3}, {}, "early_stopping_rounds"),
        ({"pax_epsilon": 0.1, "binning": "summary"}, {}, "pax_epsilon: it would have no effect"),
        ({"max_split_nodes": 2, "growth": "lossguide"}, {"max_leaves": 4}, "max_split_nodes"),
        ({"max_split_nodes": 2, "blind_coordinator": True}, {}, "max_split_nodes: it would have"),
        ({"bins_policy": "pax_printed"}, {}, "bins_policy: it would have no effect"),
        ({"tol": 0.1}, {}, "tol"),
        ({"binning": "given"}, {}, "cut_points"),
        ({"blind_coordinator": True, "binning": "summary"}, {}, "binning"),
        ({"blind_coordinator": True, "secure": False}, {}, "blind_coordinator"),
        ({}, {"max_bin": 1}, "max_bin"),
        ({}, {"num_parallel_tree": 0}, "num_parallel_tree"),
        ({}, {"subsample": 0.5}, "subsample"),
        ({}, {"objective": "reg:absoluteerror"}, "objective"),
        ({"growth": "breadth"}, {}, "growth"),
    ],
)
def test_jobs_that_cannot_run_name_the_parameter(
    fields: dict[str, object], booster: dict[str, object], named: str
) -> None:
    strategy = Histogram(**fields)  # type: ignore[arg-type]
    job = job_of(strategy, Task.BINARY, replace(Booster(), **booster))  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match=named):
        strategy.validate(job)


def test_every_payload_fits_its_frames_and_changes_nothing() -> None:
    sizes = (500, 400, 300, 300)
    for fields in (
        {"coarse_bits": 5},
        {"secure": False, "validation": 0.2},
        {"binning": "recursive", "binning_error": 1e-2},
        {"dropout_recovery": False},
    ):
        job = plain_job(rounds=2, **fields)
        plain, wired = (run(job, silos_of(DATA, sizes), through_wire=w) for w in (False, True))
        assert not wired.errors
        assert same(model_of(plain), model_of(wired))


def test_parameters_and_their_message_have_the_same_fields() -> None:
    from dataclasses import fields

    from hedgerow.api.federation.v1 import strategy_pb2

    message = {f.name for f in strategy_pb2.Histogram.DESCRIPTOR.fields}
    assert message == {field.name for field in fields(Histogram)}


def test_merged_cut_points_are_those_of_the_first_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Histograms of other ones, too, would tell the rows between: a few, by a choice of both."""
    sizes = (120, 90, 100, 110)
    silos = silos_of(oracles.generated(Task.BINARY, sum(sizes)), sizes)
    job = job_of(Histogram(rounds=2, binning="summary"), Task.BINARY, Booster(max_depth=2))
    memories: dict[str, dict[str, bytes]] = {silo: {} for silo in silos}
    journal = MemoryJournal()
    told: list[CutPoints] = []
    whole = histogram_opening.cut_points

    def seen(cuts: Any) -> CutPoints:
        told.append(whole(cuts))
        return told[-1]

    monkeypatch.setattr(histogram_opening, "cut_points", seen)
    model_of(run(job, silos, memories=memories, journal=journal))
    # As if it had ended before its first sum of a round.
    key = "histogram/cut-points"
    memories = {silo: {key: known[key]} for silo, known in memories.items()}
    journal.records = {key: journal.records[key]}
    model_of(run(job, silos, memories=memories, journal=journal, attempt=2))
    assert len(told) == 1, "the journal has them"
    memories = {silo: {key: known[key]} for silo, known in memories.items()}
    moved = {s: Dataset(d.schema, d.X * 2, d.labels) for s, d in silos.items()}
    outcome = run(job, moved, memories=memories, attempt=3)
    assert len(told) == 2
    assert {type(error) for error in outcome.errors.values()} >= {OfferRejected}
    assert any("those of an earlier attempt" in str(e) for e in outcome.errors.values())


def test_summaries_of_tables_without_numbers_are_of_nothing() -> None:
    rng = np.random.default_rng(3)
    schema = Schema((Feature("kind", ("u", "v", "w")), Feature("of", ("a", "b"))), "label",
                    Task.BINARY, 2)  # fmt: skip
    X = np.stack([rng.integers(0, 3, 400), rng.integers(0, 2, 400)], axis=1).astype(np.float32)
    silos = silos_of(Dataset(schema, X, (X[:, 0] == X[:, 1]).astype(float)), (150, 120, 130))
    models = [
        model_of(run(job_of(Histogram(rounds=2, binning=of), Task.BINARY, Booster()), silos))
        for of in ("summary", "recursive")
    ]
    assert same(*models)


@pytest.mark.parametrize("secure", [True, False])
def test_a_forest_a_round_goes_on_after_a_restart(secure: bool) -> None:
    sizes = (500, 400, 300, 300)
    job = plain_job(sampling="uniform", sampling_rate=0.5, secure=secure)
    job = replace(job, booster=replace(job.booster, num_parallel_tree=3))
    memories: dict[str, dict[str, bytes]] = {f"silo-{i}": {} for i in range(4)}
    silos = silos_of(DATA, sizes)
    whole = model_of(run(job, silos))
    begun = run(job, silos, memories=memories, stop_after_rounds=2)
    ended = run(
        job, silos, memories=memories, checkpoint=begun.rounds[-1].checkpoint,
        first_round=2, attempt=2,
    )  # fmt: skip
    assert len(whole.trees) == 12
    assert same(model_of(ended), whole)


def test_rounds_that_a_job_has_not_cannot_have_trees_of_their_own() -> None:
    parameters = Histogram(rounds=2, multi_output=True, one_output_rounds=(2,))
    job = job_of(parameters, Task.MULTICLASS, Booster())
    with pytest.raises(InvalidJob, match=r"one_output_rounds: expected numbers from 0 to 1"):
        job.parameters.validate(job)
