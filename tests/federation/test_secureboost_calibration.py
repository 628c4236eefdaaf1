"""Calibrated probabilities of vertical models: scale and shift of margins, and who uses them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost as xgb
from numpy.typing import NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.errors import DataError, InvalidJob
from hedgerow.boosting.strategies.secureboost import platt
from hedgerow.boosting.strategies.secureboost.directions import ActiveTrees
from hedgerow.boosting.strategies.secureboost.divisions import Divisions
from hedgerow.boosting.strategies.secureboost.joined import joined
from hedgerow.boosting.strategies.secureboost.model import ActivePart
from hedgerow.boosting.strategies.secureboost.party import held_back
from tests.federation import vertical
from tests.federation.memory import Fault, Outcome
from tests.federation.test_secureboost_models import Memories, kept, predictions, run, score
from tests.federation.test_secureboost_processes import JOB, hedgerow, write_parties
from tests.late import Late

optimize: Any = Late("scipy.optimize")
linear_model: Any = Late("sklearn.linear_model")

Margins = NDArray[np.float32]
WIDTHS = [2, 2, 2]
SURE = {"max_depth": 3, "eta": 0.9}
"""What makes a model that is surer of its classes than it should be."""
OBJECTIVES = {Task.BINARY: "binary:logistic", Task.MULTICLASS: "multi:softprob"}


def table(n: int, seed: int, task: Task = Task.BINARY) -> Dataset:
    return vertical.table(n, sum(WIDTHS), task, seed=seed, missing=0.1)


def trained(
    train: Dataset, valid: Dataset, memories: Memories | None = None, **options: Any
) -> tuple[Outcome, Memories]:
    changes = {"rounds": 6, "encryption": "plain", "calibrate": True, "validation_tables": True}
    job = vertical.job(
        train.schema.task, SURE, key_bits=2048, **{**changes, **options.pop("changes", {})}
    )
    job.parameters.validate(job)
    valid_tables = vertical.cut_by_columns(valid, WIDTHS, seed=6)
    return run(
        job, vertical.cut_by_columns(train, WIDTHS), memories, validation=valid_tables, **options
    )


def same_secrets() -> Memories:
    """Return memories with which runs have the same anonymous numbers of features."""
    return {name: {"secureboost/secret": bytes(32)} for name in ("guest", "host-1", "host-2")}


def margins(outcome: Outcome, rows: Dataset) -> Margins:
    """Return margins of the whole model on a joined table."""
    active, passive = vertical.parts(outcome.kept)
    booster = joined(active, passive)[0].booster(n_threads=1)
    booster.feature_names = None
    found = booster.predict(xgb.DMatrix(rows.X), output_margin=True)
    return np.asarray(found, np.float32).reshape(rows.n_samples, -1)


def log_loss(z: Margins, rows: Dataset) -> float:
    objective = OBJECTIVES[rows.schema.task]
    (value,) = metrics.evaluate(
        ["logloss" if z.shape[1] == 1 else "mlogloss"], rows.labels, z.astype(np.float64),
        objective=objective,
    ).values()  # fmt: skip
    return value


@pytest.mark.parametrize("task", list(OBJECTIVES))
def test_the_finished_models_margins_have_the_scale_and_shift_of_the_validation_rows(
    task: Task,
) -> None:
    train, valid, new = (table(n, seed, task) for n, seed in ((200, 1), (150, 2), (150, 3)))
    outcome, _ = trained(train, valid)
    assert outcome.error is None, (outcome.error, outcome.errors)
    plain, _ = trained(train, valid, changes={"calibrate": False})
    active, passive = vertical.parts(outcome.kept)
    before, others = vertical.parts(plain.kept)
    assert (active.digest, before.calibration) == (before.digest, [])
    assert vertical.joined(active, passive, WIDTHS) == vertical.joined(before, others, WIDTHS)
    assert [r.metrics for r in outcome.rounds] == [r.metrics for r in plain.rounds]
    scale, shift = active.calibration
    assert 0 < scale < 1
    assert [scale, shift] == pytest.approx(
        platt.fit(margins(plain, valid), valid.labels, None), abs=1e-4
    )
    for rows in (valid, new):
        expected = scale * margins(plain, rows) + shift
        assert margins(outcome, rows) == pytest.approx(expected, abs=1e-5)
        assert log_loss(margins(outcome, rows), rows) < log_loss(margins(plain, rows), rows)


@pytest.mark.parametrize("weighted", [False, True])
def test_two_classes_get_platts_scale_and_shift(weighted: bool) -> None:
    rng = np.random.default_rng(5)
    z = rng.normal(0.4, 3, size=(300, 1)).astype(np.float32)
    y = (rng.random(300) < 1 / (1 + np.exp(-0.4 * z[:, 0] + 0.7))).astype(np.float64)
    weight = rng.uniform(0.1, 4, 300).astype(np.float32) if weighted else None
    w = np.ones(300) if weight is None else weight / weight.mean()
    n = np.bincount(y.astype(int), w)
    smooth = np.where(y == 1, (n[1] + 1) / (n[1] + 2), 1 / (n[0] + 2))
    model = linear_model.LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000)
    model.fit(np.tile(z, (2, 1)), np.repeat([1, 0], 300), np.r_[w * smooth, w * (1 - smooth)])
    scale, shift = platt.fit(z, y, weight)
    assert scale == pytest.approx(model.coef_[0, 0], abs=1e-4)
    assert shift == pytest.approx(model.intercept_[0], abs=1e-4)


def test_more_classes_get_the_temperature_of_least_loss() -> None:
    rng = np.random.default_rng(6)
    z = rng.normal(0, 4, size=(400, 3)).astype(np.float32)
    p = metrics.link("multi:softprob", 0.3 * z.astype(np.float64))
    y = (rng.random((400, 1)) > p.cumsum(axis=1)).sum(axis=1).astype(np.float64)
    smooth = ((np.bincount(y.astype(int)) + 1) / (np.bincount(y.astype(int)) + 2))[y.astype(int)]
    target = np.repeat((1 - smooth)[:, None] / 2, 3, axis=1)
    target[np.arange(400), y.astype(int)] = smooth

    def loss(scale: float) -> float:
        return float(-(target * np.log(metrics.link("multi:softprob", scale * z))).sum())

    best = optimize.minimize_scalar(
        loss, bounds=(0.01, 2), method="bounded", options={"xatol": 1e-8}
    ).x
    assert platt.fit(z, y, None) == pytest.approx((best, 0.0), abs=1e-5)


@pytest.mark.parametrize(
    ("z", "y", "weight", "shift"),
    [
        ([3, 2, 1, -2, -3], [0, 0, 0, 1, 1], None, None),  # turned round
        ([3, 2, 1, -2, -3], [1, 1, 1, 1, 1], None, None),  # one class
        ([1, 1, 1, 1], [0, 1, 1, 1], None, None),  # all rows alike
        ([3, -3, 1], [1, 0, 1], [0, 0, 0], 0.0),  # no row counts
    ],
)
def test_an_order_is_never_turned_round_and_no_rows_are_too_poor(
    z: list[float], y: list[float], weight: list[float] | None, shift: float | None
) -> None:
    w = None if weight is None else np.array(weight, np.float32)
    scale, found = platt.fit(np.array(z, np.float32)[:, None], np.array(y, np.float64), w)
    assert scale > 0
    assert np.isfinite(found)
    if shift is not None:
        assert (scale, found) == (1.0, shift)
    scale, _ = platt.fit(np.outer(z, [1, -1, 0]).astype(np.float32), np.array(y), w)
    assert scale > 0
    assert np.isfinite(scale)


def test_separated_rows_get_a_finite_scale() -> None:
    z = np.linspace(-2, 2, 20, dtype=np.float32)[:, None]
    scale, shift = platt.fit(z, (z[:, 0] > 0).astype(np.float64), None)
    assert 1 < scale < 100
    assert shift == pytest.approx(0, abs=1e-6)


def test_the_best_round_is_what_is_calibrated_and_a_restart_changes_nothing() -> None:
    train, valid = table(200, 1), table(150, 2)
    early = {"changes": {"rounds": 12, "early_stopping_rounds": 2}}
    whole, _ = trained(train, valid, same_secrets(), **early)
    active = vertical.parts(whole.kept)[0]
    assert len(active.used_trees) < len(active.trees)
    plain, _ = trained(train, valid, changes={**early["changes"], "calibrate": False})
    assert active.calibration == pytest.approx(
        platt.fit(margins(plain, valid), valid.labels, None), abs=1e-4
    )
    fault = Fault("host-1", "histograms", round=active.best_round + 1, level=1)
    first, memories = trained(train, valid, same_secrets(), faults=(fault,), **early)
    assert first.error is not None
    again, _ = trained(
        train, valid, memories, checkpoint=first.rounds[-1].checkpoint,
        first_round=len(first.rounds), attempt=2, **early,
    )  # fmt: skip
    assert vertical.parts(again.kept)[0] == active


@pytest.mark.parametrize("inference", ["standard", "eini"])
def test_prediction_jobs_serving_and_shares_of_held_back_rows_use_it(inference: str) -> None:
    train, new = table(200, 1), table(60, 3)
    share = {"validation_tables": False, "validation": 0.3, "rounds": 14}
    outcome, _ = trained(train, new, changes=share)
    plain, _ = trained(train, new, changes={**share, "calibrate": False})
    active, passive = vertical.parts(outcome.kept)
    held = vertical.by_id(train).take(held_back(0.3, 3, 200).astype(np.intp))
    assert active.calibration == pytest.approx(
        platt.fit(margins(plain, held), held.labels, None), abs=1e-4
    )
    rows, scale_shift = vertical.by_id(new), active.calibration
    expected = metrics.link(
        "binary:logistic", scale_shift[0] * margins(plain, rows)[:, 0] + scale_shift[1]
    )
    encrypted = {"encryption": "paillier"} if inference == "eini" else {}
    job = vertical.job(booster=SURE)
    scored = score(
        job, kept(outcome), vertical.cut_by_columns(new, WIDTHS), inference=inference, **encrypted
    )
    assert scored.error is None, (scored.error, scored.errors)
    by_id = {row["_id"]: float(row["probability"]) for row in predictions(scored)}
    assert rows.ids is not None
    assert [by_id[i] for i in rows.ids] == pytest.approx(expected, abs=1e-5)
    forest = ActiveTrees.of(active)
    tables = {
        name: vertical.by_id(own).X for name, own in vertical.cut_by_columns(new, WIDTHS).items()
    }
    bits = forest.joined(
        Divisions.of(active).directions(tables["guest"]),
        {name: Divisions.of(part).directions(tables[name]) for name, part in passive.items()},
    )
    served = metrics.link("binary:logistic", forest.margins(bits, None).astype(np.float64)[:, 0])
    assert served == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("task", "changes", "said"),
    [
        (Task.BINARY, {}, "calibrate: .*expected validation above 0, or validation_tables"),
        (Task.REGRESSION, {"validation": 0.2}, "calibrate: .*expected a classification job"),
        (Task.BINARY, {"validation": 0.2, "predict_from": "a"}, "expected a job that trains"),
        (Task.BINARY, {"validation": 0.2, "base_margin": ("m",)}, "rows bring base margins"),
    ],
)
def test_jobs_in_which_it_cannot_be_are_refused(
    task: Task, changes: dict[str, Any], said: str
) -> None:
    job = vertical.job(task, key_bits=2048, calibrate=True, **changes)
    with pytest.raises(InvalidJob, match=said):
        job.parameters.validate(job)


def test_a_part_without_it_is_read_and_one_with_half_of_it_refused() -> None:
    outcome, _ = trained(table(60, 1), table(40, 2), changes={"rounds": 1})
    document = json.loads(outcome.kept["guest"].files["part.json"])  # type: ignore[index, union-attr]
    document["calibration"] = [1.0]
    with pytest.raises(DataError, match="no scale and shift"):
        ActivePart.load(json.dumps(document).encode())
    del document["calibration"]
    assert ActivePart.load(json.dumps(document).encode()).calibration == []


def test_processes_predict_calibrated_probabilities(tmp_path: Path) -> None:
    train, valid = (vertical.table(n, 6, seed=seed) for n, seed in ((150, 1), (90, 2)))
    silos = write_parties(vertical.cut_by_columns(train, [3, 3]), tmp_path)
    own = write_parties(vertical.cut_by_columns(valid, [3, 3]), tmp_path, "valid-")
    parties = [f"{k}={v}" for k, v in own.items()]
    given = [f"--silo={name}={path}" for name, path in silos.items()]
    more = 'validation_tables = true\nencryption = "plain"\nallow_insecure = true\n'
    losses = {}
    for calibrate in ("true", "false"):
        text = JOB.format(rounds=5, more=f"{more}calibrate = {calibrate}")
        (tmp_path / "job.toml").write_text(text + "eta = 0.9\n")
        out = f"run-{calibrate}"
        valid_tables = [f"--validation={one}" for one in parties]
        done = hedgerow(tmp_path, "local", "job.toml", *given, *valid_tables, "--out", out)
        assert done.returncode == 0, done.stdout + done.stderr
        scored = hedgerow(tmp_path, "evaluate", out, *parties, "--metrics", "logloss", "--json")
        assert scored.returncode == 0, scored.stderr
        losses[calibrate] = json.loads(scored.stdout)["metrics"]["logloss"]
    assert losses["true"] < losses["false"]
    done = hedgerow(tmp_path, "predict", "run-true", *parties, "--out", "scores.csv")
    assert done.returncode == 0, done.stderr
    assert valid.ids is not None
    labels = dict(zip(valid.ids, valid.labels, strict=True))
    rows = list(csv.DictReader((tmp_path / "scores.csv").open()))
    p = np.array([float(row["probability"]) for row in rows])
    y = np.array([labels[row["_id"]] for row in rows])
    assert -np.mean(np.log(np.where(y == 1, p, 1 - p))) == pytest.approx(losses["true"], abs=1e-5)
