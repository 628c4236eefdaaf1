"""Exploring: what is told equals what the joined rows have, for any division over silos."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.errors import InvalidJob, ModelRejected, PolicyDeclined, StateUnwritable
from hedgerow.boosting.job import ColumnRules
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.explore.parameters import Explore
from hedgerow.boosting.strategies.explore.silo import participate
from hedgerow.boosting.strategies.explore.statistics import _inflation
from hedgerow.client_agent.opened import Openings, TableOpenings, would_add
from hedgerow.client_agent.policy import Policy
from hedgerow.client_agent.records import Records
from tests.federation.memory import MemoryLink, Outcome, run_in_memory
from tests.federation.test_results import KeyedIdentity
from tests.oracles import PLAIN_TASKS

SHOPS = ("east", "north", "south", "west")


def rows(n: int, task: Task = Task.BINARY) -> Dataset:
    rng = np.random.default_rng(n)
    X = rng.normal(size=(n, 5)).astype(np.float32)
    X[:, 1] = 2 * X[:, 0] + X[:, 1] + 2000
    X[:, 2] = np.exp(X[:, 2])
    X[:, 3] = rng.choice(4, n, p=[0.001, 0.2, 0.3, 0.499])
    X[:, 4] = (X[:, 3] + rng.integers(0, 2, n)) % 3
    X[rng.random(n) < 0.2, 2] = np.nan
    X[rng.random(n) < 0.1, 3] = np.nan
    score = X[:, 0] + (X[:, 3] == 1) + rng.normal(0, 0.5, n)
    y = {Task.BINARY: score > 0.5, Task.MULTICLASS: np.digitize(score, [-0.5, 0.7])}.get(
        task, score
    )
    names = (
        Feature("a"),
        Feature("b"),
        Feature("c"),
        Feature("shop", SHOPS),
        Feature("kind", ("x", "y", "z")),
    )
    classes = {Task.BINARY: 2, Task.MULTICLASS: 3, Task.REGRESSION: 0}[task]
    return Dataset(Schema(names, "label", task, classes), X, np.asarray(y, np.float64))


def explore(whole: Dataset, sizes: list[int], **options: Any) -> tuple[dict[str, Any], Any]:
    order = np.random.default_rng(len(sizes)).permutation(whole.n_samples)
    parts = np.split(order, np.cumsum(sizes)[:-1])
    job = JobParameters("look", Explore(**options), task=whole.schema.task, min_silos=3)
    job.parameters.validate(job)
    data = {f"s{k}": whole.take(own) for k, own in enumerate(parts)}
    outcome = run_in_memory(job, data, identities=KeyedIdentity)
    assert outcome.error is None, outcome.error
    return json.loads(outcome.artefact.files["statistics.json"]), outcome


@pytest.mark.parametrize("task", PLAIN_TASKS)
def test_any_division_of_the_rows_tells_the_same_table(task: Task) -> None:
    whole = rows(2000, task)
    even, _ = explore(whole, [700, 600, 700])
    uneven, _ = explore(whole, [5, 1800, 95, 100])
    assert even == uneven


@settings(max_examples=6, deadline=None)
@given(st.data())
def test_random_divisions_of_random_rows_tell_the_same_table(data: st.DataObject) -> None:
    n, n_silos = data.draw(st.integers(200, 900)), data.draw(st.integers(3, 5))
    whole = rows(n, data.draw(st.sampled_from(PLAIN_TASKS)))
    ends = data.draw(
        st.lists(st.integers(1, n - 1), min_size=n_silos - 1, max_size=n_silos - 1, unique=True)
    )
    sizes = np.diff([0, *sorted(ends), n]).tolist()
    assume(sum(size >= 10 for size in sizes) >= 3)  # silos with fewer hide no others
    told, _ = explore(whole, sizes)
    assert told == explore(whole, [n // 3, n // 3, n - 2 * (n // 3)])[0]
    for k, one in enumerate(told["columns"]):
        if one["kind"] == "number":
            x = whole.X[:, k]
            assert one["distinct_at_least"] <= len(np.unique(x[~np.isnan(x)]))


def to_ten(n: int) -> int:
    return (int(n) + 5) // 10 * 10


def test_counts_means_and_correlations_are_those_of_the_joined_rows() -> None:
    whole = rows(30_000)
    found, _ = explore(whole, [10_000, 5_000, 15_000])
    frame = pd.DataFrame(whole.X, columns=list(whole.schema.names)).astype(float)
    columns = {one["name"]: one for one in found["columns"]}
    assert found["rows"] == 30_000
    for k, told in enumerate(found["label"]["classes"]):
        assert told["rows"] == to_ten((whole.y == k).sum())
    about = frame.describe()
    reach = (frame - about.loc["50%"]).abs().max()
    for name in "abc":
        one = columns[name]
        assert one["missing"] == to_ten(frame[name].isna().sum())
        assert sum(cell["rows"] for cell in one["cells"]) == pytest.approx(30_000, abs=105)
        n = about[name]["count"]
        step = 10 * 4 * reach[name] / n  # min_cell rows at twice the bound, to a power of two
        assert one["mean"] == pytest.approx(about[name]["mean"], abs=step, rel=1e-5)
        assert one["deviation"] ** 2 == pytest.approx(
            frame[name].var(ddof=0), abs=10 * 16 * reach[name] ** 2 / n, rel=1e-4
        )
        for quantile in one["quantiles"].values():
            below = float((frame[name].dropna() < np.float32(quantile["value"])).mean())
            assert quantile["below"] == pytest.approx(below, abs=0.004)
    exact = frame[["a", "b", "c"]].corr()
    for a, row in found["pearson"].items():
        for b, r in row.items():
            if r is not None:
                assert r == pytest.approx(exact[a][b], abs=0.13)
    assert found["pearson"]["a"]["b"] == pytest.approx(exact["a"]["b"], abs=0.02)
    assert found["spearman"]["a"]["b"] == pytest.approx(
        frame[["a", "b"]].corr("spearman")["a"]["b"], abs=0.02
    )
    shops = {cell["name"]: cell["rows"] for cell in columns["shop"]["cells"]}
    assert shops["west"] == to_ten((whole.X[:, 3] == 3).sum())
    assert columns["shop"]["against_label"]["iv"] > columns["kind"]["against_label"]["iv"]


def test_with_one_row_as_the_smallest_cell_numbers_are_as_exact_as_they_are_told() -> None:
    whole = rows(4000)
    found, _ = explore(whole, [1000, 2000, 1000], min_cell=1)
    frame = pd.DataFrame(whole.X, columns=list(whole.schema.names)).astype(float)
    columns = {one["name"]: one for one in found["columns"]}
    for name in "ab":
        assert columns[name]["mean"] == pytest.approx(frame[name].mean(), abs=0.02)
    # East has under 5 % of the rows: it counts as one with the next larger one, the missing.
    shop, n = frame["shop"].replace(0, np.nan).fillna(-1), len(frame)
    cells = pd.crosstab(shop, frame["kind"]).to_numpy()
    expected = np.outer(cells.sum(axis=1), cells.sum(axis=0)) / n
    chi = ((cells - expected) ** 2 / expected).sum()
    assert found["cramers_v"]["shop"]["kind"] == pytest.approx((chi / n / 2) ** 0.5, abs=0.01)


def counts_of(value: Any) -> list[int]:
    if isinstance(value, dict):
        own = [value["rows"]] if "rows" in value else []
        own += [*value.get("by_class", {}).values()]
        return own + [n for each in value.values() for n in counts_of(each)]
    return [n for each in value for n in counts_of(each)] if isinstance(value, list) else []


def labelled(kind: str, n: int) -> Dataset:
    """Return rows with a label of many equal numbers."""
    whole, rng = rows(n, Task.REGRESSION), np.random.default_rng(n + 1)
    y = {
        "integers": np.round(rng.normal(1000, 200, n)),
        "small integers": rng.poisson(3.0, n).astype(float),
        "zeros": np.where(rng.random(n) < 0.6, 0.0, rng.gamma(2.0, 10.0, n)),
        "tenths": np.round(rng.normal(0, 1, n), 1),  # between the numbers of float32
    }[kind]
    return replace(whole, y=y)


@pytest.mark.parametrize("whole", [
    *(pytest.param(rows(n, task), id=f"{task.value}-{n}") for task in PLAIN_TASKS
      for n in (60, 200, 3000)),
    *(pytest.param(labelled(kind, n), id=f"{kind}-{n}")
      for kind in ("integers", "small integers", "zeros", "tenths") for n in (200, 2000)),
])  # fmt: skip
def test_no_count_of_a_few_rows_is_told(whole: Dataset) -> None:
    n = whole.n_samples
    found, _ = explore(whole, [n // 3, n // 3, n - 2 * (n // 3)], bins=40)
    assert min(counts_of(found)) >= 10
    # So is any difference of two columns of which one follows from the other but for a few rows.
    assert not np.any(np.array(counts_of(found)) % 10)
    for one in found["columns"]:
        assert one["missing"] is None or one["missing"] == 0 or one["missing"] >= 10


@pytest.mark.parametrize("n", [200, 2000])
@pytest.mark.parametrize("kind", ["integers", "small integers", "zeros", "tenths"])
def test_classes_of_a_regression_are_whole_cells_of_its_label(kind: str, n: int) -> None:
    whole = labelled(kind, n)
    found, _ = explore(whole, [n // 2, n // 4, n // 4], min_cell=1)  # counts as they are
    label = found["label"]
    below = np.cumsum([cell["rows"] for cell in label["column"]["cells"]])
    assert label["classes"][0]["rows"] in below
    cut = np.float32(label["classes"][0]["name"].removeprefix("below "))
    assert label["classes"][0]["rows"] == int((whole.y.astype(np.float32) < cut).sum())


def test_a_job_tells_one_table_in_all_attempts() -> None:
    whole = rows(900)
    memories: dict[str, dict[str, bytes]] = {f"s{k}": {} for k in range(6)}
    data = {f"s{k}": whole.take(own) for k, own in enumerate(np.split(np.arange(900), 6))}
    job = JobParameters("look", Explore(), task=whole.schema.task, min_silos=3)

    def attempt(n_silos: int, bins: int = 20) -> Outcome:
        now = replace(job, parameters=Explore(bins=bins))
        return run_in_memory(now, dict(list(data.items())[:n_silos]), memories=memories)

    first = attempt(6)
    assert first.artefact is not None
    assert attempt(6).artefact == first.artefact  # a crash, and again
    for other in (attempt(3), attempt(6, 10)):
        assert any("expected that over s0, s1" in str(e) for e in other.errors.values()), other
        assert other.artefact is None


def test_a_rare_value_is_told_neither_by_counts_nor_by_the_mean() -> None:
    def told(n_ones: int) -> dict[str, Any]:
        x = np.zeros((900, 2), np.float32)
        x[:n_ones, 0] = 1
        x[:, 1] = np.arange(900) % 7
        schema = Schema((Feature("rare"), Feature("other")), "label", Task.BINARY, 2)
        return explore(Dataset(schema, x, np.arange(900.0) % 2), [300, 300, 300])[0]

    assert told(1) == told(4)


def told_of(x: Any, y: Any = None, task: Task = Task.BINARY) -> dict[str, Any]:
    """Return what is told of one column, beside another one."""
    n = len(x)
    schema = Schema((Feature("x"), Feature("other")), "label", task, 2 * (task is Task.BINARY))
    values = np.column_stack([x, np.arange(n) % 7]).astype(np.float32)
    labels = np.arange(n) % 2 if y is None else y
    whole = Dataset(schema, values, np.asarray(labels, np.float64))
    return explore(whole, [n // 3, n // 3, n - 2 * (n // 3)])[0]


def test_what_is_rounded_away_is_not_told_as_a_number() -> None:
    x = np.random.default_rng(0).normal(size=30_000)
    x[7] = 300
    (one, _) = told_of(x)["columns"]
    assert one["deviation"] is None
    assert abs(one["mean"]) <= 0.25
    (one, _) = told_of(np.full(12, 5.0))["columns"]
    assert one["mean"] is None
    assert one["deviation"] is None


def test_a_few_missing_values_hide_no_more_than_their_number() -> None:
    x = np.random.default_rng(1).normal(50, 10, 3000)
    x[:3] = np.nan
    (one, _) = told_of(x)["columns"]
    assert one["missing"] is None
    assert one["mean"] == pytest.approx(50, abs=1)
    assert one["quantiles"]["0.5"]["value"] == pytest.approx(50, abs=2)


def test_cut_points_are_told_to_the_digit_and_name_the_classes() -> None:
    x = np.repeat(1_100_004.0 + 8 * np.arange(6), 100)
    found = told_of(x, x, Task.REGRESSION)
    names = [cell["name"] for cell in found["columns"][0]["cells"]]
    assert names[:2] == ["below 1100012", "1100012 to below 1100020"]
    first, second = (one["name"] for one in found["label"]["classes"])
    assert first.removeprefix("below ") == second.removeprefix("from ")
    assert any(first.split()[1] in name for name in names)


def test_inflation_is_told_where_all_correlations_are() -> None:
    assert _inflation(["a", "b"], {"a": {"b": 0.8}})["a"] == pytest.approx(2.78)
    some = {"a": {"b": 0.8, "c": None}, "b": {"c": 0.1}}
    assert set(_inflation(["a", "b", "c"], some).values()) == {None}


def test_silos_check_the_table() -> None:
    _, outcome = explore(rows(300), [100, 100, 100])
    files = outcome.artefact.files
    for check in outcome.checks.values():
        check(files)
        with pytest.raises(ModelRejected):
            check({"statistics.json": b"{}"})


def test_a_table_is_explored_as_often_as_the_policy_says(tmp_path: Path) -> None:
    records = Records(tmp_path / "opened", tmp_path / "turns", bytes(32))
    job = JobParameters("look", Explore())
    at_once = TableOpenings(records, "t", 0, 2)
    at_once.check_told(job, "three", ())  # admitted, and charges nothing before it tells
    for name in ("one", "two", "two"):  # a further attempt is no further job
        at_once.note_told(job, name, ())
    for refuse in (at_once.note_told, TableOpenings(records, "t", 0, 2).check_told):
        with pytest.raises(PolicyDeclined, match=r"max_explorations: 2 explore jobs"):
            refuse(job, "three", ())
    own = Openings(explored=["one"], max_explorations=1)
    text = would_add(replace(job, silos=("a", "b", "c")), own)
    assert text.endswith("max_explorations is 1, 1 jobs have told counts: it would be declined")
    assert Policy().max_explorations == 1


def test_what_cannot_be_charged_to_disk_is_not_told(tmp_path: Path) -> None:
    kept = TableOpenings(Records(tmp_path / "opened", tmp_path / "turns", bytes(32)), "t", 0, 1)
    (tmp_path / "opened").write_text("no folder")
    for _ in range(2):  # nor at the next attempt
        with pytest.raises(StateUnwritable):
            kept.note_told(JobParameters("look", Explore()), "one", ())


def test_the_count_is_charged_before_the_table_is_told_and_not_by_jobs_that_fail() -> None:
    def declined() -> None:
        raise PolicyDeclined("policy rule max_explorations: none is left")

    told: list[str] = []

    class Noted(MemoryLink):
        def exchange(self, step: Any, at: Any, offer: Any) -> Any:
            told.append(step.name)
            return super().exchange(step, at, offer)

    whole = rows(300)
    data = {f"s{k}": whole.take(own) for k, own in enumerate(np.split(np.arange(300), 3))}
    outcome = run_in_memory(
        JobParameters("look", Explore(), task=Task.BINARY, min_silos=3), data, make_link=Noted,
        participate_as=lambda p, link, vault, start: participate(
            p, link, vault, replace(start, telling=declined)
        ),
    )  # fmt: skip
    assert "sum-single" in told
    assert "release" not in told
    assert [str(error)[-12:] for error in outcome.errors.values()] == ["none is left"] * 3


def test_rows_without_a_label_are_not_left_out() -> None:
    job = JobParameters("look", Explore(), columns=ColumnRules(missing_label="drop"))
    with pytest.raises(InvalidJob, match=r"missing_label: .* received 'drop'"):
        job.parameters.validate(job)


def test_more_cells_by_class_than_two_bytes_number_are_counted() -> None:
    rng = np.random.default_rng(3)
    codes = np.append(np.arange(700), rng.integers(0, 700, 1400))
    words = tuple(f"word {k:03}" for k in range(700))
    schema = Schema((Feature("word", words),), "label", Task.MULTICLASS, 100)
    labels = np.arange(2100, dtype=np.float64) % 100
    whole = Dataset(schema, codes[:, None].astype(np.float32), labels)
    found, _ = explore(whole, [700, 700, 700], min_cell=1)
    (column,) = found["columns"]
    told = {cell["name"]: cell["rows"] for cell in column["cells"]}
    counted = np.bincount(codes, minlength=700).tolist()
    assert told == dict(zip(words, counted, strict=True))
