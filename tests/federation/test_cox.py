"""Cox's model over silos: trees of one table, and how near they are to XGBoost's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from numpy.typing import NDArray

import hedgerow
from hedgerow.boosting import metrics
from hedgerow.boosting.allowances import COLUMNS
from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.job import Booster, ColumnRules
from hedgerow.boosting.metrics.survival import pairs_by_row
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from tests import oracles
from tests.federation.memory import Fault
from tests.federation.test_histogram import job_of, model_of, opening_of, pooled_of, run, same
from tests.federation.test_histogram import silos_of as parts_of
from tests.pooled import cells_of_labels

SIZES = (400, 0, 300, 200)
FILES = Path(__file__).parents[1] / "data" / "survival"
BOOSTER = Booster(max_depth=3, max_bin=32, objective="survival:cox")


Floats = NDArray[np.float64]


@cache
def made(n: int = sum(SIZES), seed: int = 5) -> Dataset:
    """Return rows of which some are censored."""
    rng, data = np.random.default_rng(seed), oracles.generated(Task.REGRESSION, n)
    time, end = np.exp(0.3 * data.labels + rng.normal(0, 0.5, n)), np.exp(rng.normal(0.5, 1, n))
    return timed(data, np.minimum(time, end), time <= end)


def timed(data: Dataset, time: Any, seen: Any) -> Dataset:
    y = np.stack([time, np.where(seen, time, np.inf)], axis=1)
    schema = replace(data.schema, task=Task.SURVIVAL)
    return replace(data, y=y.astype(np.float32).astype(np.float64), schema=schema)


@cache
def real(name: str) -> tuple[Dataset, pd.DataFrame]:
    """Return a set of lifelines, shuffled, as rows and as a table of time, seen and features."""
    table = pd.read_csv(FILES / f"{name}.csv")
    time, event, at = {
        "rossi": ("week", "arrest", 1), "gbsg2": ("time", "cens", 1), "lung": ("time", "status", 1)
    }[name]  # fmt: skip
    table = table.sample(frac=1, random_state=3).reset_index(drop=True)
    text = [c for c in table if not pd.api.types.is_numeric_dtype(table[c])]
    table[text] = table[text].apply(lambda c: c.astype("category").cat.codes)
    table = table.rename(columns={time: "time"}).assign(seen=(table[event] == at).astype(int))
    table = table.drop(columns=[event, *(["inst"] if name == "lung" else [])])
    features = [c for c in table if c not in ("time", "seen")]
    schema = Schema(tuple(Feature(c) for c in features), "label", Task.REGRESSION, 0)
    rows = Dataset(schema, table[features].to_numpy(np.float32), table.time.to_numpy(float))
    return timed(rows, table.time, table.seen == 1), table


def job(booster: Booster = BOOSTER, **parameters: Any) -> Any:
    told = Histogram(**{"rounds": 4, **parameters})
    return replace(job_of(told, Task.SURVIVAL, booster, min_silos=3), metrics=("cox-nloglik",))


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"secure": False},
        {"min_cell": 40, "binning": "summary"},
        {"sampling": "uniform"},
        {"sampling": "mvs"},
        {"sampling": "goss"},
    ],
)
def test_the_federated_model_is_the_pooled_one_bit_for_bit(parameters: dict[str, Any]) -> None:
    asked, data = job(**parameters), made()
    asked.parameters.validate(asked)
    outcome = run(asked, parts_of(data, SIZES))
    assert same(model_of(outcome), pooled_of(asked, data, outcome, SIZES))
    assert opening_of(outcome, data).base_score == 1.0
    losses = [one.metrics["train"]["cox-nloglik"] for one in outcome.rounds]
    assert losses == sorted(losses, reverse=True) or asked.parameters.sampling == "goss"


def test_one_threshold_of_all_silos_is_found_by_their_risk_sets() -> None:
    asked = job(sampling="mvs", sampling_scope="global", rounds=2)
    plain = replace(asked, parameters=replace(asked.parameters, secure=False))
    models = [model_of(run(one, parts_of(made(), SIZES))) for one in (asked, plain)]
    assert same(*models)


@pytest.mark.parametrize("name", ["rossi", "gbsg2", "lung"])
def test_trees_are_xgboosts_with_gradients_of_the_same_cells(name: str) -> None:
    """XGBoost grows them by an objective that compares rows one by one, of cells of time."""
    data, _ = real(name)
    cuts = oracles.xgboost_cuts(data, 16)
    inner = np.split(cuts.values, cuts.offsets[1:-1])
    given = tuple(
        f"{f.name}: " + " ".join(repr(float(v)) for v in own[:-1])
        for f, own in zip(data.schema.features, inner, strict=True)
    )
    booster = replace(BOOSTER, max_bin=16, eta=0.1)
    asked = job(booster, rounds=10, binning="given", cut_points=given, min_cell=5)
    n = data.n_samples
    model = model_of(run(asked, parts_of(data, (n // 2, n // 4, n - n // 2 - n // 4))))
    thresholds = cells_of_labels(data, 5).thresholds
    assert len(thresholds) > 9
    cell = np.searchsorted(thresholds, data.labels[:, 0].astype(np.float32), side="right")
    seen = data.labels[:, 0] == data.labels[:, 1]

    def compared(margin: Any, _: xgb.DMatrix) -> Any:
        own = np.exp(margin.astype(np.float64))
        g, h = -seen.astype(np.float64), np.zeros(n)
        for k in np.flatnonzero(seen):
            share = np.where(cell >= cell[k], own, 0.0)
            share /= share.sum()
            g, h = g + share, h + share - share**2
        return g, h

    told = {**booster.native(), "max_bin": 16, "base_score": 0.0, "tree_method": "hist"}
    told["objective"] = "reg:squarederror"
    theirs = xgb.train(told, oracles.quantile_matrix(data, 16), 10, obj=compared)
    rows = xgb.DMatrix(data.X)
    ours = model.booster(n_threads=1).predict(rows, output_margin=True, validate_features=False)
    np.testing.assert_allclose(
        ours, theirs.predict(rows, output_margin=True), atol=1e-6 * max(1, np.abs(ours).max())
    )


@pytest.mark.parametrize("name", ["rossi", "gbsg2", "lung"])
def test_a_model_of_three_silos_is_near_xgboosts_of_all_rows(name: str) -> None:
    """By rows held out, over five splits: C-index within 0.02, partial log-likelihood 0.03."""
    data, _ = real(name)
    n, away = data.n_samples, []
    for split in range(5):
        order = np.random.default_rng(split).permutation(n)
        train, test = data.take(order[n // 4 :]), data.take(order[: n // 4])
        m = train.n_samples
        booster = replace(BOOSTER, max_bin=64, eta=0.1, max_depth=2)
        outcome = run(
            job(booster, rounds=20), parts_of(train, (m // 2, m // 4, m - m // 2 - m // 4))
        )
        time, seen = train.labels[:, 0], train.labels[:, 0] == train.labels[:, 1]
        told = {**booster.native(), "objective": "survival:cox", "max_bin": 64}
        theirs = xgb.train(told, xgb.DMatrix(train.X, np.where(seen, time, -time)), 20)
        rows, scores = xgb.DMatrix(test.X), []
        for one in (model_of(outcome).booster(n_threads=1), theirs):
            margin = one.predict(rows, output_margin=True, validate_features=False)
            names = ["c-index", "cox-nloglik"]
            found = metrics.evaluate(names, test.labels, margin, objective="survival:cox")
            scores.append([*found.values()])
        away.append(np.subtract(*scores))
    mean = np.abs(np.mean(away, axis=0))
    assert mean[0] < 0.02, (name, away)
    assert mean[1] < 0.03, (name, away)


def test_a_run_has_the_kaplan_meier_curve_of_all_silos_rows() -> None:
    data, _ = real("gbsg2")
    n = data.n_samples
    asked = job(min_cell=12, rounds=2)
    outcome = run(asked, parts_of(data, (n // 2, n // 4, n - n // 2 - n // 4)))
    assert outcome.artefact is not None
    told = json.loads(outcome.artefact.files["survival.json"])
    cells = told["cells"]
    assert min(cell["events"] for cell in cells) >= told["min_cell"] == 12
    assert sum(cell["rows"] for cell in cells) == n
    time, seen = data.labels[:, 0], data.labels[:, 0] == data.labels[:, 1]
    assert sum(cell["events"] for cell in cells) == seen.sum()
    left = 1.0
    for cell in cells:
        of = (time >= cell["from"]) & (time < (cell["until"] or np.inf))
        d = cell["events"]
        assert (of & seen).sum() == d
        at_risk = (time >= cell["from"]).sum() - (of & ~seen).sum() * (d - 1) / (2 * d)
        left *= 1 - (of & seen).sum() / at_risk
        assert cell["survival"] == pytest.approx(left, abs=1e-6)
        assert 0 <= cell["low"] < left < cell["high"] <= 1
    # Nearly the curve of single times.
    exact = 1.0
    ends = [cell["until"] for cell in cells[:-1]]
    near = dict(zip(ends, (cell["survival"] for cell in cells), strict=False))
    for t in np.unique(time[seen]):
        for end in [end for end in near if end <= t]:
            assert near.pop(end) == pytest.approx(exact, abs=0.005)
        exact *= 1 - ((time == t) & seen).sum() / (time >= t).sum()


def test_a_restart_keeps_the_curve_and_few_events_have_none() -> None:
    data = made()
    silos = parts_of(data, SIZES)
    memories: dict[str, dict[str, bytes]] = {silo: {} for silo in silos}
    first = run(job(), silos, stop_after_rounds=2, memories=memories)
    again = run(job(), silos, attempt=2, first_round=2, memories=memories,
                checkpoint=first.rounds[-1].checkpoint)  # fmt: skip
    whole = run(job(), silos)
    assert again.artefact is not None
    assert whole.artefact is not None
    curve = whole.artefact.files["survival.json"]
    assert again.artefact.files["survival.json"] == curve
    few = run(job(min_cell=700), silos)
    assert few.artefact is not None
    assert json.loads(few.artefact.files["survival.json"])["cells"] == []


def test_another_way_to_divide_times_counts_as_one_of_labels() -> None:
    ways = {
        job(min_cell=min_cell).parameters.safeguards(job(min_cell=min_cell)).binnings[1]
        for min_cell in (10, 11)
    }
    assert ways == {("labels label", "min_cell 10"), ("labels label", "min_cell 11")}


def test_events_of_another_column_divide_times_otherwise_whatever_its_new_name() -> None:
    def ways(**rules: Any) -> set[tuple[str, str]]:
        own = replace(job(), columns=ColumnRules(**rules))
        return {one for one in own.parameters.safeguards(own).binnings if one[0] != COLUMNS}

    for key in ("event", "label_upper"):
        died, relapsed = (ways(**{key: "x"}, rename=((old, "x"),)) for old in ("died", "relapsed"))
        assert not died & relapsed
        assert died == ways(**{key: "died"})


def test_pairs_are_those_that_a_loop_finds() -> None:
    rng = np.random.default_rng(0)
    for n in (0, 1, 2, 3, 40, 130):
        time, seen = rng.integers(1, 20, n) / 2, rng.random(n) < 0.6
        score = rng.integers(0, 8, n).astype(np.float64)
        y = np.stack([time, np.where(seen, time, np.inf)], axis=1)
        right, pairs = pairs_by_row(y, score)
        found = np.zeros((2, n), np.int64)
        for i in np.flatnonzero(seen):
            later = (time > time[i]) | ((time == time[i]) & ~seen)
            found[1, i] = later.sum()
            found[0, i] = (
                2 * (later & (score > score[i])).sum() + (later & (score == score[i])).sum()
            )
        assert np.array_equal([right, pairs], found)


def test_the_partial_likelihood_is_xgboosts_and_sums_are_within_silos() -> None:
    data, rng = made(), np.random.default_rng(0)
    margin = rng.normal(size=data.n_samples).astype(np.float32)
    time, seen = data.labels[:, 0], data.labels[:, 0] == data.labels[:, 1]
    rows = xgb.DMatrix(np.zeros((len(time), 1)), np.where(seen, time, -time), base_margin=margin)
    theirs = float(xgb.Booster({"objective": "survival:cox"}, [rows]).eval(rows).split(":")[1])
    names, given = ["cox-nloglik", "c-index"], {"objective": "survival:cox"}
    whole = metrics.evaluate(names, data.labels, margin, **given)  # type: ignore[arg-type]
    assert whole["cox-nloglik"] == pytest.approx(theirs, rel=1e-6)
    totals = []
    for own in (slice(0, 300), slice(300, None)):
        totals.append(metrics.sums(names, data.labels[own], margin[own], **given))  # type: ignore[arg-type]
    found = metrics.combine(names, np.sum(totals, axis=0))
    parts = [pairs_by_row(data.labels[own], -margin[own].astype(float)) for own in
             (slice(0, 300), slice(300, None))]  # fmt: skip
    right, pairs = (sum(int(part[k].sum()) for part in parts) for k in (0, 1))
    assert found["c-index"] == right / (2 * pairs)
    assert found["cox-nloglik"] < whole["cox-nloglik"], "risk sets of a silo are smaller"
    times = metrics.evaluate(["c-index"], data.labels, -margin, objective="survival:aft")
    assert times["c-index"] == whole["c-index"]


def brier_by_hand(y: Floats, chance: Callable[[float], Floats]) -> float:
    """Return the integrated Brier score as Graf's formula has it, row by row."""
    time, seen = y[:, 0], y[:, 0] == y[:, 1]

    def uncensored(until: float) -> float:
        left = 1.0
        for one in np.unique(time[time <= until]):
            gone = ((time == one) & ~seen).sum()
            left *= 1 - gone / max((time >= one).sum() - ((time == one) & seen).sum(), 1)
        return left or np.inf

    times, scores = np.linspace(time[seen].min(), time[seen].max(), 32, endpoint=False), []
    for at in times:
        told, found = chance(at), []
        for i in range(len(time)):
            if time[i] <= at:
                found.append(told[i] ** 2 / uncensored(time[i]) if seen[i] else 0.0)
            else:
                found.append((1 - told[i]) ** 2 / uncensored(at))
        scores.append(np.mean(found))
    return float(np.trapezoid(scores, times) / (times[-1] - times[0]))


def test_the_integrated_brier_score_is_grafs_and_a_mean_over_silos_rows() -> None:
    data, rng = made(), np.random.default_rng(0)
    y, name = data.labels[:120].astype(np.float64), "integrated-brier@logistic:0.7"
    margin = rng.normal(size=120) / 2
    told = metrics.evaluate([name], y, margin, objective="survival:aft")[name]

    def logistic(time: float) -> Floats:
        return 1 / (1 + np.exp((np.log(time) - margin) / 0.7))

    assert told == pytest.approx(brier_by_hand(y, logistic), rel=1e-9)
    base = metrics.canonical("integrated_brier_score", Task.SURVIVAL)
    of_cox = metrics.evaluate([base], y, margin, objective="survival:cox")[base]

    def breslow(time: float) -> Floats:
        at = np.unique(y[(y[:, 0] == y[:, 1]) & (y[:, 0] <= time), 0])
        risk = [np.exp(margin[y[:, 0] >= one]).sum() for one in at]
        events = [((y[:, 0] == one) & (y[:, 1] == one)).sum() for one in at]
        return np.exp(-np.sum(np.divide(events, risk)) * np.exp(margin))

    assert of_cox == pytest.approx(brier_by_hand(y, breslow), rel=1e-9)
    parts = [slice(0, 70), slice(70, 120)]
    sums = [metrics.sums([name], y[p], margin[p], objective="survival:aft") for p in parts]
    each = [
        metrics.evaluate([name], y[p], margin[p], objective="survival:aft")[name] for p in parts
    ]
    assert metrics.combine([name], sums[0] + sums[1])[name] == pytest.approx(
        np.average(each, weights=[70, 50])
    )
    # Rows between two times count as none, and of fewer than two times of events there is no score.
    more = np.concatenate([y, [[1.0, 2.0]]])
    both = metrics.evaluate([name], more, np.append(margin, 9.0), objective="survival:aft")
    assert both[name] == told
    assert np.isnan(metrics.evaluate([name], y[:1], margin[:1], objective="survival:aft")[name])
    empty = metrics.sums([name], np.zeros((0, 2)), np.zeros(0), objective="survival:cox")
    assert not empty.any()


def test_a_silo_lost_is_out_of_the_risk_sets_and_one_that_comes_late_is_in() -> None:
    sizes = (300, 250, 200, 150, 120)
    data = made(sum(sizes))
    asked = replace(job(rounds=5), max_close_sums=9)
    for step, passing in (("risk-sets-masked", 0), ("histograms-masked", 0)):
        fault = Fault("silo-4", step, 2, 0, "before", passing=passing)
        outcome = run(asked, parts_of(data, sizes), faults=(fault,))
        assert len(outcome.rounds) == 5
        assert "silo-4" not in outcome.rounds[-1].silos
    late = run(replace(asked, parameters=replace(asked.parameters, rounds=8)),
               parts_of(data, sizes), joins_after={"silo-4": 1})  # fmt: skip
    assert "silo-4" not in late.rounds[0].silos
    assert "silo-4" in late.rounds[-1].silos


def test_a_second_attempt_goes_on_with_the_same_cells() -> None:
    silos = parts_of(made(), SIZES)
    memories: dict[str, dict[str, bytes]] = {silo: {} for silo in silos}
    first = run(job(), silos, stop_after_rounds=2, memories=memories)
    checkpoint = first.rounds[-1].checkpoint
    second = run(job(), silos, attempt=2, first_round=2, checkpoint=checkpoint, memories=memories)
    assert not second.errors
    assert same(model_of(second), model_of(run(job(), silos)))


TEXT = (
    'strategy = "{strategy}"\ntask = "{task}"\nmin_silos = 3\n[columns]\n{columns}\n'
    '[booster]\nobjective = "survival:cox"\n{more}'
)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"more": "[histogram]\nblind_coordinator = true"}, "with blind_coordinator = true, since"),
        ({"more": "[histogram]\ncoarse_bits = 4"}, "with coarse_bits, since few rows"),
        ({"columns": 'event = "e"\nweight = "w"'}, r"with \[columns\] weight, since rows at risk"),
        ({"strategy": "bagging"}, "objective: expected .*survival:aft.* received 'survival:cox'"),
        ({"task": "regression", "columns": ""}, 'task: expected "survival" with survival:cox'),
    ],
)
def test_what_does_not_go_with_it_is_refused(told: dict[str, str], said: str) -> None:
    own = {"strategy": "histogram", "task": "survival", "columns": 'event = "e"', "more": ""} | told

    def read() -> None:
        found = job_wire.decode(job_file.parse(TEXT.format(**own)))
        found.parameters.validate(found)

    with pytest.raises(InvalidJob, match=said):
        read()


@pytest.mark.parametrize(
    ("objective", "names", "said"),
    [
        ("survival:cox", ("aft-nloglik",), "predicts hazards, not times; choose from cox-nloglik"),
        ("survival:aft", ("cox-nloglik",), "predicts times, not hazards; choose from aft-nloglik"),
    ],
)
def test_metrics_of_another_prediction_are_refused(
    objective: str, names: tuple[str, ...], said: str
) -> None:
    with pytest.raises(InvalidJob, match=said):
        metrics.check(names, Task.SURVIVAL, 1, objective)


# --- from tables ---


@pytest.mark.process
def test_the_command_line_trains_scores_and_reports(tmp_path: Path) -> None:
    _, table = real("gbsg2")
    parts = np.array_split(np.arange(len(table)), [200, 350, 500])
    for k, own in enumerate(parts):
        table.iloc[own].to_csv(tmp_path / (f"s{k}.csv" if k < 3 else "test.csv"), index=False)
    (tmp_path / "job.toml").write_text(
        'strategy = "histogram"\ntask = "survival"\nlabel = "time"\nmin_silos = 3\n'
        '[columns]\nevent = "seen"\n[histogram]\nrounds = 12\n'
        '[booster]\nobjective = "survival:cox"\nmax_depth = 2\neta = 0.1\n'
    )

    def command(*arguments: Any) -> str:
        run = [sys.executable, "-m", "hedgerow", *map(str, arguments)]
        done = subprocess.run(run, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    silos = [part for k in range(3) for part in ("--silo", f"s{k}={tmp_path / f's{k}.csv'}")]
    assert "by cell of times" in command("plan", tmp_path / "job.toml", *silos)
    out, test = tmp_path / "run", tmp_path / "test.csv"
    command("local", tmp_path / "job.toml", *silos, "--test", test, "--out", out)
    told = json.loads((out / "report.json").read_text())["rounds"][-1]["metrics"]["test"]
    assert {*told} == {"cox-nloglik", "c-index"}
    assert told["c-index"] > 0.6
    scored = json.loads(command("evaluate", out, test, "--json"))
    assert scored["metrics"] == pytest.approx(told)
    command("predict", out, test, "--out", tmp_path / "p.csv")
    ours = pd.read_csv(tmp_path / "p.csv")["prediction"]
    stock, held = xgb.Booster(model_file=out / "model.ubj"), table.iloc[parts[3]]
    rows = xgb.DMatrix(held.drop(columns=["time", "seen"])[list(stock.feature_names)])
    np.testing.assert_allclose(stock.predict(rows), ours, rtol=1e-5)
    command("report", out)
    page = (out / "report.html").read_text()
    assert "Time to the event" in page
    assert "Kaplan-Meier" in page


@pytest.mark.process
def test_a_model_of_python_scores_by_concordance() -> None:
    _, table = real("rossi")
    told = hedgerow.Job(
        "histogram", label="time", task="survival", event="seen", objective="survival:cox",
        min_silos=3, rounds=15, max_depth=2,
    )  # fmt: skip
    found = hedgerow.simulate(told, table, 3, crypto=False, test=0.25)
    scores = found.model.evaluate(table)
    assert [*scores] == ["cox-nloglik", "c-index"]
    assert found.model.score(table) == scores["c-index"] > 0.65
    with pytest.raises(InvalidJob, match="predicts hazards, not times"):
        found.model.evaluate(table, ["aft-nloglik"])
    assert found.model.evaluate(table, ["concordance_index"]) == {"c-index": scores["c-index"]}
