"""Groups of a column and silos' contributions, against scikit-learn, algebra, and real jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import confusion_matrix, roc_auc_score

import hedgerow
from hedgerow.boosting.errors import FederationError
from hedgerow.coordinator.operator.library.audit.contribution import contributions
from hedgerow.coordinator.operator.library.audit.groups import LARGEST, LEAST_ROWS, Group, by_group
from hedgerow.coordinator.operator.library.audit.limits import judged
from hedgerow.coordinator.operator.library.audit.subject import opened
from tests.coordinator.operator.library.tables import people


def tables(task: str = "binary") -> dict[str, Any]:
    return hedgerow.split(people(3_000, 2, task), 3, test=0.4, seed=1)


def job(**more: Any) -> hedgerow.Job:
    settings = {"rounds": 4, "max_depth": 3, "min_silos": 2, "evaluate": "none",
                "metrics": ["auc"], "base_score": 0.5, **more}  # fmt: skip
    return hedgerow.Job("bagging", **settings)


@pytest.fixture(scope="module")
def parts() -> dict[str, Any]:
    found = tables()
    return {name: pa.table(table) for name, table in found.items()}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, parts: dict[str, Any]) -> hedgerow.Run:
    return trained(tmp_path_factory.mktemp("groups") / "run", parts, job())


def trained(out: Path, parts: dict[str, Any], of: hedgerow.Job, *silos: str) -> hedgerow.Run:
    names = silos or tuple(name for name in parts if name != "test")
    whole = pa.concat_tables(
        [parts[n].append_column("_site", pa.array([n] * parts[n].num_rows)) for n in names]
    )
    return hedgerow.simulate(of, whole, scheme="column:_site", test=0.0, out=out, crypto=False)


def groups_of(run: hedgerow.Run, parts: dict[str, Any], column: str) -> dict[str, Group]:
    of = opened(run.folder, {"silo-0": parts["silo-0"]}, parts["test"])
    return {one.group: one for one in by_group(of, column)}


def test_rates_of_groups_are_scikit_learns(run: hedgerow.Run, parts: dict[str, Any]) -> None:
    found = groups_of(run, parts, "site")
    test = parts["test"]
    p = run.model.predictions(run.model.margins(run.model.rows(test)))
    y = np.array(test["label"].to_pylist()) == "yes"
    site = np.array(test["site"].to_pylist())
    assert set(found) == {*site, LARGEST}
    for name in set(site):
        own = site == name
        true_no, false_yes, false_no, true_yes = confusion_matrix(y[own], p[own] >= 0.5).ravel()
        at = {what: of.value for what, of in found[name].measures.items()}
        assert found[name].rows == own.sum()
        assert at["true positive rate"] == pytest.approx(true_yes / (true_yes + false_no))
        assert at["false positive rate"] == pytest.approx(false_yes / (false_yes + true_no))
        assert at["positive rate"] == pytest.approx((true_yes + false_yes) / own.sum())
        assert at["auc"] == pytest.approx(roc_auc_score(y[own], p[own]), abs=1e-6)
        assert at["calibration"] == pytest.approx(p[own].mean() - y[own].mean(), abs=1e-6)
    rates = [found[name].measures["positive rate"].value for name in set(site)]
    gap = found[LARGEST].measures["positive rate"]
    assert gap.value == pytest.approx(max(rates) - min(rates))
    assert gap.low <= gap.value <= gap.high


def test_small_groups_have_no_line_of_their_own(run: hedgerow.Run, parts: dict[str, Any]) -> None:
    n = parts["test"].num_rows
    for small, merged in ((LEAST_ROWS - 1, False), (LEAST_ROWS + 4, True)):
        codes = ["a"] * (n - small) + [["b", "c", None][k % 3] for k in range(small)]
        more = {**parts, "test": parts["test"].append_column("_code", pa.array(codes))}
        found = groups_of(run, more, "_code")
        assert not {"b", "c", "missing"} & set(found)
        assert (f"all of fewer than {LEAST_ROWS} rows" in found) == merged
        assert min(one.rows for one in found.values()) >= LEAST_ROWS


def test_a_class_of_few_rows_has_no_rate(run: hedgerow.Run, parts: dict[str, Any]) -> None:
    y = np.array(parts["test"]["label"].to_pylist()) == "yes"
    few = y & (np.cumsum(y) > LEAST_ROWS - 1)  # all positives but 19
    more = {**parts, "test": parts["test"].append_column("_code", pa.array(few.astype(int)))}
    found = groups_of(run, more, "_code")
    assert not {"true positive rate", "label rate", "auc", "calibration"} & set(found["0"].measures)
    assert "false positive rate" in found["0"].measures


@pytest.mark.parametrize(
    ("task", "names"),
    [("multiclass", {"accuracy", "calibration"}),
     ("regression", {"mean error", "mean absolute error"})],
)  # fmt: skip
def test_groups_of_other_tasks(tmp_path: Path, task: str, names: set[str]) -> None:
    parts = {name: pa.table(table) for name, table in tables(task).items()}
    of = hedgerow.Job("bagging", task=task, rounds=3, max_depth=3, min_silos=2, evaluate="none")
    made = trained(tmp_path / "run", parts, of)
    found = groups_of(made, parts, "site")
    assert all(set(one.measures) == names for one in found.values())


def test_a_column_that_has_no_groups_is_refused(run: hedgerow.Run, parts: dict[str, Any]) -> None:
    for column, said in (
        ("sex", "group sex: expected a column of the test table, received one of age, site"),
        ("age", "group age: expected at most 50 groups, received"),
    ):
        with pytest.raises(FederationError, match=said):
            groups_of(run, parts, column)


def test_limits_of_groups_are_of_the_worse_end(run: hedgerow.Run, parts: dict[str, Any]) -> None:
    silos, test = {"silo-0": parts["silo-0"]}, parts["test"]
    limits = {"group_positive_rate_gap_max": 1.0, "group_auc_min": 0.999,
              "group_calibration_max": 1.0}  # fmt: skip
    found = run.audit(silos, test, limits, group=["site"])
    assert {one["name"]: one["passed"] for one in found["limits"]} == {
        "group_positive_rate_gap_max": True, "group_auc_min": False, "group_calibration_max": True,
    }  # fmt: skip
    least = min(one["measures"]["auc"]["low"] for one in found["groups"] if one["group"] != LARGEST)
    assert found["limits"][1]["found"] == least
    without = run.audit(silos, test, limits)
    assert [(one["found"], one["passed"]) for one in without["limits"]] == [(None, False)] * 3


def test_shapley_values_add_up_to_the_models_score(
    run: hedgerow.Run, parts: dict[str, Any]
) -> None:
    of = opened(run.folder, {"silo-0": parts["silo-0"]}, parts["test"])
    found = contributions(of)
    assert [one.silo for one in found] == ["silo-0", "silo-1", "silo-2"]
    total = sum(one.measures["shapley"].value for one in found)
    score = run.model.score(parts["test"], "auc")
    assert total == pytest.approx(score - 0.5, abs=1e-6)
    for one in found:
        for measure in one.measures.values():
            assert measure.low <= measure.value <= measure.high


@pytest.mark.parametrize("lr_mode", ["rows", "uniform", "plain"])
def test_leave_one_out_is_a_job_without_the_silo(
    tmp_path: Path, parts: dict[str, Any], lr_mode: str
) -> None:
    """Of one round, in which no tree depends on another silo's."""
    uneven = {**parts, "silo-2": parts["silo-2"].slice(0, 60)}
    of = job(rounds=1, lr_mode=lr_mode, metrics=["logloss"])
    made = trained(tmp_path / "run", uneven, of)
    found = contributions(opened(made.folder, {"silo-0": parts["silo-0"]}, parts["test"]))
    whole = made.model.score(parts["test"], "logloss")
    for left, one in enumerate(found):
        others = [f"silo-{k}" for k in range(3) if k != left]
        less = trained(tmp_path / one.silo, uneven, of, *others)
        expected = less.model.score(parts["test"], "logloss") - whole
        assert one.measures["leave one out"].value == pytest.approx(expected, abs=1e-5)


def test_a_silo_without_anything_to_tell_adds_nothing(
    tmp_path: Path, parts: dict[str, Any]
) -> None:
    """Seven silos, so that orders are drawn; the last one's labels are coins."""
    rng = np.random.default_rng(0)
    cut = {f"silo-{k}": parts[f"silo-{k % 3}"].slice(90 * (k // 3), 90) for k in range(6)}
    coins = pa.array(np.where(rng.random(90) < 0.5, "yes", "no"))
    at = parts["silo-0"].column_names.index("label")
    cut["silo-6"] = parts["silo-0"].slice(0, 90).set_column(at, "label", coins)
    made = trained(tmp_path / "run", cut, job())
    found = contributions(opened(made.folder, {"silo-0": cut["silo-0"]}, parts["test"]))
    shares = {one.silo: one.measures["shapley"] for one in found}
    assert min(shares, key=lambda name: shares[name].value) == "silo-6"
    assert shares["silo-6"].high < np.median([one.value for one in shares.values()])
    score = made.model.score(parts["test"], "auc")
    assert sum(one.value for one in shares.values()) == pytest.approx(score - 0.5, abs=1e-6)


@pytest.mark.parametrize("booster", [{}, {"lambda_": 0.2}])
def test_the_loss_of_all_rows_is_that_of_each_row(
    tmp_path: Path, parts: dict[str, Any], booster: dict[str, Any]
) -> None:
    """And a silo whose labels are the other way round raises it."""
    first = parts["silo-0"]
    other = pa.array(["no" if own == "yes" else "yes" for own in first["label"].to_pylist()])
    at = first.column_names.index("label")
    wrong = {**parts, "silo-0": first.set_column(at, "label", other)}
    made = trained(tmp_path / "run", wrong, job(trees_per_round=2, **booster))
    of = opened(made.folder, {name: wrong[name] for name in wrong if name != "test"}, parts["test"])
    expected = dict.fromkeys(of.silos, 0.0)
    for rows in of.silos.values():
        margin = np.zeros(rows.n_samples)
        for r in range(4):
            added = np.zeros(rows.n_samples)
            for name, trees in of.trees_of.items():
                own = margin
                for tree in trees[2 * r : 2 * r + 2]:
                    p = 1 / (1 + np.exp(-own))
                    g, h, step = p - rows.labels, p * (1 - p), of.added_by((tree,), rows)
                    expected[name] -= float((g * step + h * step**2 / 2).sum()) * (r >= 2)
                    own, added = own + step, added + step
            margin = margin + added
    n_rows = sum(rows.n_samples for rows in of.silos.values())
    found = {one.silo: one.measures["loss of all rows"] for one in contributions(of)}
    for name, fall in expected.items():
        assert found[name].value == pytest.approx(fall / n_rows, abs=2e-6)
    few = min(0.0, 2 * float(np.median([one.value for one in found.values()])))
    assert [name for name in found if found[name].value < few] == ["silo-0"]


def test_a_model_of_single_silos_covers_tells_no_loss_of_all_rows(
    tmp_path: Path, parts: dict[str, Any]
) -> None:
    for more in ({"scrub": "none"}, {"max_delta_step": 0.7}, {"alpha": 0.5}):
        made = trained(tmp_path / next(iter(more)), parts, job(**more))
        found = contributions(opened(made.folder, {"silo-0": parts["silo-0"]}, parts["test"]))
        assert [set(one.measures) for one in found] == [{"leave one out", "shapley"}] * 3


def test_contributions_that_are_not_defined_say_why(tmp_path: Path, parts: dict[str, Any]) -> None:
    for more, said in (
        ({"lr_mode": "gain", "scrub": "none"}, 'lr_mode "gain" shares the step out by gains'),
        ({"mode": "cyclic"}, "round 1 has trees of silo-0: expected trees of all 3 silos"),
    ):
        made = trained(tmp_path / said[:7], parts, job(**more))
        (found,) = contributions(opened(made.folder, {"silo-0": parts["silo-0"]}, parts["test"]))
        assert said in found.note
    first = trained(tmp_path / "first", parts, job())
    whole = pa.concat_tables(
        [parts[n].append_column("_site", pa.array([n] * parts[n].num_rows))
         for n in parts if n != "test"]
    )  # fmt: skip
    again = hedgerow.simulate(job(), whole, scheme="column:_site", test=0.0, model=first,
                              out=tmp_path / "again", crypto=False)  # fmt: skip
    (found,) = contributions(opened(again.folder, {"silo-0": parts["silo-0"]}, parts["test"]))
    assert "went on from another one's model" in found.note


def _document(attacks: list[dict[str, object]], groups: list[dict[str, object]]) -> dict:
    return {"strategy": "bagging", "attacks": attacks, "groups": groups}


def _attack(name: str, low: float, high: float) -> dict[str, object]:
    measures = {"auc": {"value": (low + high) / 2, "low": low, "high": high}}
    return {"attack": f"membership: {name}", "silo": "a", "baseline": False, "measures": measures}


def test_a_limit_does_not_hold_where_one_attack_or_group_was_not_measured() -> None:
    measured = [_attack("loss threshold", 0.49, 0.52)]
    group = {"group": "f", "measures": {"auc": {"value": 0.9, "low": 0.85, "high": 0.95}}}
    limits = {"membership_auc_max": 0.6, "group_auc_min": 0.8}
    whole = judged(_document(measured, [group]), limits)
    assert [one["passed"] for one in whole] == [True, True]
    missing = {**_attack("own trees", 0, 0), "measures": {}}
    few = {"group": "m", "measures": {}}
    lacking = judged(_document([*measured, missing], [group, few]), limits)
    assert [(one["found"], one["passed"]) for one in lacking] == [(None, False)] * 2


def test_an_attack_that_is_wrong_most_of_the_time_is_right_the_other_way_round() -> None:
    [found] = judged(_document([_attack("x", 0.18, 0.22)], []), {"membership_auc_max": 0.6})
    assert (round(found["found"], 2), found["passed"]) == (0.82, False)


@pytest.mark.process
def test_test_rows_of_one_class_are_said_to_measure_nothing(tmp_path: Path) -> None:
    found = tables()
    test = found.pop("test")
    labels = np.asarray(test["label"])
    run = hedgerow.local(job(rounds=2), found, out=tmp_path / "run")
    told = run.audit(found, test.filter(pa.array(labels == labels[0])))
    [one] = told["contributions"]
    assert "auc is not defined on the test rows" in one["note"]
