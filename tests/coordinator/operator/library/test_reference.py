"""A trained model's rows of before and today's, by the model's own bins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import hedgerow
from hedgerow.boosting.errors import DataError
from hedgerow.coordinator.cli import main
from tests.coordinator.operator.library.tables import people
from tests.coordinator.operator.library.test_models import finished

SHAPES = (("histogram", "binary"), ("bagging", "multiclass"), ("histogram", "regression"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> hedgerow.Run:
    folder = tmp_path_factory.mktemp("drift") / "run"
    return hedgerow.Run(finished(folder, "histogram", rounds=20, max_depth=4, min_cell=1))


def older(n: int, seed: int, task: str = "binary") -> dict[str, Any]:
    found = people(n, seed, task)
    found["age"] = found["age"] + 6
    return found


def by_column(frame: hedgerow.Frame) -> dict[str, dict[str, Any]]:
    return {row["column"]: row for row in frame.rows()}


@pytest.mark.parametrize(("strategy", "task"), SHAPES)
def test_what_has_changed_is_named_and_nothing_else(
    strategy: str, task: str, tmp_path: Path
) -> None:
    made = hedgerow.Run(finished(tmp_path / "run", strategy, task))
    counts = made.reference(people(2000, 1, task))
    same = by_column(made.drift(people(2000, 2, task), counts))
    assert {"label", "age", "site", "(score)"} <= set(same)
    assert all(row["psi"] < 2 * row["by_chance"] for row in same.values())
    found = by_column(made.drift(older(2000, 3, task), counts))
    assert {name for name, row in found.items() if row["psi"] > 0.2} == {"age", "(score)"}


def test_bins_are_the_models_and_counts_those_of_the_rows(run: hedgerow.Run) -> None:
    table = people(3000, 4)
    counts = run.reference(table)
    (age,) = [one for one in counts["columns"] if one["name"] == "age"]
    edges = [cell["below"] for cell in age["cells"] if "below" in cell]
    trees = run.model.trees()
    cuts = {t for f, t in zip(trees["feature"], trees["threshold"], strict=True) if f == "age"}
    assert len(cuts) > 20 > len(edges) > 10
    assert set(edges) <= cuts
    rows = np.histogram(table["age"].astype(np.float32), [-np.inf, *edges, np.inf])[0]
    assert [cell["rows"] for cell in age["cells"][1:]] == rows.tolist()
    assert sum(cell["rows"] for cell in counts["score"]["cells"]) == counts["rows"] == 3000
    once = by_column(run.drift(table, counts))
    assert all(row["psi"] == pytest.approx(0, abs=1e-12) for row in once.values())


def test_the_commands_compare_with_a_table_a_file_and_an_explore_job(
    run: hedgerow.Run, tmp_path: Path
) -> None:
    for name, table in (("then", people(1500, 5)), ("now", older(900, 6))):
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    then, now = str(tmp_path / "then.parquet"), str(tmp_path / "now.parquet")
    file = tmp_path / "counts.json"
    done = CliRunner().invoke(main, ["reference", str(run.folder), then, "--out", str(file)])
    assert done.exit_code == 0, done.output
    assert file.stat().st_mode & 0o077 == 0
    told = []
    for beside in (then, str(file)):
        asked = ["drift", str(run.folder), now, "--beside", beside, "--json"]
        done = CliRunner().invoke(main, asked)
        assert done.exit_code == 1, done.output
        told.append(json.loads(done.stdout))
    assert told[0] == told[1]
    assert told[0]["drifted"] == ["age", "(score)"]
    looked = hedgerow.simulate(
        hedgerow.Job("explore", min_silos=3, bins=10), people(3000, 7), 3, out=tmp_path / "look"
    )
    found = by_column(run.drift(older(900, 6), beside=looked))
    assert found["age"]["psi"] > 0.2 > found["dose"]["psi"]
    assert "(score)" not in found
    again = CliRunner().invoke(main, ["reference", str(run.folder), then, "--out", str(file)])
    assert "--overwrite replaces it" in again.output


def test_what_cannot_be_compared_is_refused_in_words(run: hedgerow.Run, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no counts of the rows that it was trained on"):
        run.drift(people(50, 1))
    other = hedgerow.Run(finished(tmp_path / "other", "histogram"))
    with pytest.raises(DataError, match="received another model's"):
        run.drift(people(50, 1), beside=other.reference(people(50, 2)))
    broken = tmp_path / "broken.json"
    broken.write_text('{"format": 1}')
    with pytest.raises(DataError, match="expected the counts that `hedgerow reference` writes"):
        run.drift(people(50, 1), beside=broken)
    with pytest.raises(DataError, match="age"):
        run.drift({"site": ["hill"]}, beside=people(50, 1))
    pq.write_table(pa.table(people(50, 1)), tmp_path / "t.parquet")
    done = CliRunner().invoke(main, ["drift", str(run.folder), str(tmp_path / "t.parquet")])
    assert done.exit_code == 2, done.output
    assert "--beside TABLE" in done.output
