"""``hedgerow explore``: from tables to statistics, and to a job file that trains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import hedgerow
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.selection import Selection
from hedgerow.coordinator.cli import main
from hedgerow.coordinator.operator.exploring import untold


def table(n: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=n), rng.normal(size=n)
    label = np.where(a + rng.normal(0, 0.7, n) > 0, "ill", "well")
    twin, site = a + rng.normal(0, 0.01, n), rng.choice(["x", "y"], n)
    return {"a": a, "twin": twin, "noise": b, "site": site, "label": label}


def test_a_run_is_shown_and_its_job_file_trains(tmp_path: Path) -> None:
    tables = {name: table(2000, k) for k, name in enumerate("abc")}
    whole = {key: np.concatenate([own[key] for own in tables.values()]) for key in tables["a"]}
    run = hedgerow.simulate(
        hedgerow.Job("explore", min_silos=3), whole, silos=3, out=tmp_path / "run"
    )
    assert run.statistics["rows"] == 6000, "no test rows are held back"
    with pytest.raises(hedgerow.FederationError, match="has statistics and no model"):
        _ = run.model
    job = tmp_path / "train.toml"
    done = CliRunner().invoke(main, ["explore", str(run.folder), "--job", str(job)])
    assert done.exit_code == 0, done.output
    assert "6,000 rows, label label (ill:" in done.output
    found = json.loads(CliRunner().invoke(main, ["explore", str(run.folder), "--json"]).stdout)
    assert len(found["selected"]) == 1  # of a and its twin one, of the others none
    assert found["selected"][0] in ("a", "twin")
    assert hedgerow.Job.load(job).parameters.features == tuple(found["selected"])
    again = CliRunner().invoke(main, ["explore", str(run.folder), "--job", str(job)])
    assert again.exit_code != 0  # a job file that is there is kept
    by_rule = tmp_path / "rule.toml"
    by_rule.write_text('strategy = "histogram"\n[features]\nexplored = "run"\n')
    assert hedgerow.Job.load(by_rule).parameters.features == tuple(found["selected"])
    of_run = {"explored": run.folder, "select": "iv > 0.02"}
    assert set(hedgerow.Job("bagging", features=of_run).parameters.features) == {"a", "twin"}
    trained = hedgerow.simulate(job, whole, silos=3, test=0.2)
    assert trained.metrics["test.auc"][-1] > 0.8


def test_what_is_no_rule_or_no_run_is_refused(tmp_path: Path) -> None:
    assert Selection.parse("iv > 0.1") == Selection(0.1, 1.0)
    with pytest.raises(InvalidJob, match="received 'auc > 1'"):
        Selection.parse("auc > 1")
    for arguments in ([str(tmp_path)], [str(tmp_path / "no.toml")]):
        done = CliRunner().invoke(main, ["explore", *arguments])
        assert done.exit_code == 2, done.output


def test_the_strongest_correlation_of_a_pair_decides_and_untold_ones_are_named() -> None:
    columns = [
        {"name": name, "missing": 0, "quantiles": {}, "against_label": {"iv": iv}}
        for name, iv in (("a", 0.9), ("b", 0.8), ("c", 0.7))
    ]
    statistics = {
        "columns": columns,
        "pearson": {"a": {"b": 0.97, "c": None}, "b": {"c": 0.1}},
        "spearman": {"a": {"b": 0.5, "c": None}, "b": {"c": 0.1}},
        "cramers_v": {},
    }
    chosen = Selection.parse("iv > 0.02, corr < 0.9").of(statistics)
    assert chosen == ("a", "c")
    assert untold(statistics, chosen) == [("a", "c")]


@pytest.mark.parametrize(("features", "named"), [
    ({"select": "iv > 0.1"}, "features.explored: expected the run folder"),
    ({"explored": "look", "best": 3}, "features.best: expected"),
    ({"explored": "nothing"}, "nothing: no statistics.json"),
    ({"explored": "look"}, "the label 'label', .*look has 'ill'"),
    ({"explored": 3}, "features.explored: "),
])  # fmt: skip
def test_a_rule_for_features_that_cannot_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, features: dict[str, Any], named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    statistics: dict[str, Any] = {"columns": [], "label": {"name": "ill", "classes": []}}
    statistics |= {"pearson": {}, "spearman": {}, "cramers_v": {}}
    (tmp_path / "look").mkdir()
    (tmp_path / "look" / "statistics.json").write_text(json.dumps(statistics))
    with pytest.raises(InvalidJob, match=named):
        hedgerow.Job("histogram", features=features)
    if features == {"explored": "look"}:
        with pytest.raises(InvalidJob, match=r"no column of look has iv > 0\.02"):
            hedgerow.Job("histogram", label="ill", features=features)
        with pytest.raises(InvalidJob, match="a text has no folder"):
            hedgerow.Job.from_toml('strategy = "histogram"\n[features]\nexplored = "look"\n')
        statistics["columns"] = [{"name": "lab: column 0", "kind": "anonymous"}]
        (tmp_path / "look" / "statistics.json").write_text(json.dumps(statistics))
        with pytest.raises(InvalidJob, match="a vertical job have no names"):
            hedgerow.Job("histogram", label="ill", features=features)


@pytest.fixture(scope="module")
def told() -> hedgerow.Exploration:
    silos = {name: table(2000, k) for k, name in enumerate("abc")}
    return hedgerow.explore(silos, quiet=True, bins=10)


@pytest.mark.process
def test_statistics_are_frames_of_what_is_told(told: hedgerow.Exploration) -> None:
    assert list(told.columns["name"]) == ["a", "twin", "noise", "site"]
    assert told.columns["rows"][0] == 6000
    cells = [row for row in told.cells.rows() if row["column"] == "site"]
    whole = np.concatenate([np.asarray(table(2000, k)["site"]) for k in range(3)])
    shown = {row["cell"]: row["rows"] for row in cells}
    assert shown == {v: pytest.approx((whole == v).sum(), abs=5) for v in ("x", "y")}
    first = told.correlations.rows()[0]
    assert {first["first"], first["second"]} == {"a", "twin"}
    assert list(told.information_value["column"])[2:] == ["noise", "site"]
    group = told.groups.rows()[0]
    assert group["rows"] == pytest.approx(group["rows of ill"] + group["rows of well"], abs=10)
    assert told.training_job().parameters.features == tuple(told.selected())
    assert told.training_job().parameters.name == "explore-train"
    assert len(told.selected("corr < 0.9")) == 3
    assert "<caption>information value" in told._repr_html_()
    with pytest.raises(InvalidJob, match="no column has iv > 9"):
        told.training_job("iv > 9")


@pytest.mark.process
def test_a_silo_that_is_not_like_the_others_is_named(told: hedgerow.Exploration) -> None:
    odd = table(2000, 2)
    odd["noise"] = odd["noise"] + 3
    found = told.differences({"north": table(2000, 1), "south": odd})
    assert [(row["silo"], row["column"]) for row in found.rows() if row["verdict"]] == [
        ("south", "noise")
    ]
    assert len(found) == 2 * 5


@pytest.mark.process
def test_what_explore_cannot_do_is_refused_in_words() -> None:
    silos = {name: table(200, k) for k, name in enumerate("abc")}
    with pytest.raises(InvalidJob, match="expected \"explore\", received 'bagging'"):
        hedgerow.explore(silos, strategy="bagging")
    with pytest.raises(InvalidJob, match="3 silos"):
        hedgerow.explore({name: silos[name] for name in "ab"}, quiet=True)
    with pytest.raises(hedgerow.RunFailed, match="no label column 'outcome'"):
        hedgerow.explore(silos, "outcome", quiet=True)


@pytest.mark.process
def test_dates_are_told_as_dates_and_names_that_may_be_one_have_a_proposal() -> None:
    silos = {name: table(900, k) for k, name in enumerate("abc")}
    first = np.datetime64("2020-01-01")
    for k, own in enumerate(silos.values()):
        own["seen"] = (first + np.arange(900).astype("timedelta64[D]")).astype(object)
        own["cover"] = np.where(np.arange(900) % 3 == k, "privat", ["private", "public "][k % 2])
    job = {"columns": {"dates": {"seen": ["days_since", "year"]}}, "bins": 4}
    found = hedgerow.explore(silos, quiet=True, **job)
    columns = {one["name"]: one for one in found.statistics["columns"]}
    seen = columns["seen_days_since"]
    middle = np.datetime64(seen["quantiles"]["0.5"]["date"]) - first
    assert abs(middle.astype(int) - 450) < 30
    assert seen["mean_date"][:4] == "2021"
    for cell in seen["cells"]:  # the date is the first one that is in the bin
        low = cell["name"].removeprefix("from ").split(" to ")[0]
        if "from" in cell:
            day = (np.datetime64(low) - np.datetime64("1970-01-01")).astype(int)
            assert day - 1 < cell["from"] <= day
    assert "date" not in columns["seen_year"]["quantiles"].get("0.5", {})
    assert columns["cover"]["distinct"] == 3
    assert dict(zip(found.columns["name"], found.columns["distinct"], strict=True))["site"] == 2
    (near,) = found.spellings.rows()
    assert near["names"] == "'privat', 'private'"
    assert near["differ"] == "a letter"
    assert near["proposal"].startswith("write 'private' as 'privat' in all tables")
    shown = CliRunner().invoke(main, ["explore", str(found.run.folder)])
    assert "write 'private' as 'privat'" in shown.output, shown.output
