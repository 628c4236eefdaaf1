"""``hedgerow simulate``: one table, many silos, one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import hedgerow
from hedgerow.boosting.errors import DataError, InvalidJob
from hedgerow.coordinator.cli import main
from hedgerow.coordinator.operator.library.running import Run
from tests.coordinator.operator.library.tables import people

JOB = hedgerow.Job("bagging", rounds=3, max_depth=3, min_silos=2, metrics=["auc"])


def test_the_command_gives_the_model_of_split_and_local(tmp_path: Path) -> None:
    data = tmp_path / "people.parquet"
    pq.write_table(pa.table(people(300, 0)), data)
    JOB.save(tmp_path / "job.toml")
    split = ["split", str(data), "--silos", "3", "--test", "0.2", "--seed", "4"]
    call = CliRunner().invoke(
        main, [*split, "--scheme", "label-skew:0.5", "--out", str(tmp_path / "parts")]
    )
    assert call.exit_code == 0, call.output
    parts = {f"silo-{k}": tmp_path / f"parts/silo-{k}.parquet" for k in range(3)}
    run = hedgerow.local(JOB, parts, tmp_path / "parts/test.parquet", quiet=True)
    call = CliRunner().invoke(
        main,
        ["simulate", str(tmp_path / "job.toml"), "--data", str(data), "--silos", "3", "--seed", "4",
         "--scheme", "dirichlet:0.5", "--out", str(tmp_path / "run")],
    )  # fmt: skip
    assert call.exit_code == 0, call.output
    assert "round   3  test auc" in call.output
    model = (tmp_path / "run/model.ubj").read_bytes()
    assert model == (run.folder / "model.ubj").read_bytes()
    again = Run(tmp_path / "run")
    assert list(again.metrics["test.auc"]) == list(run.metrics["test.auc"])
    assert again.report().is_file()


def test_a_stratified_run_is_that_of_the_tables_of_split() -> None:
    table = people(300, 5)
    parts = hedgerow.split(table, 3, test=0.2, stratify=True, seed=2)
    test = parts.pop("test")
    run = hedgerow.local(JOB, parts, test, quiet=True)
    same = hedgerow.simulate(JOB, table, 3, stratify=True, seed=2)
    assert (same.folder / "model.ubj").read_bytes() == (run.folder / "model.ubj").read_bytes()
    with pytest.raises(DataError, match="parties are cut by columns"):
        hedgerow.simulate(hedgerow.Job("secureboost", active="a"), table, 3, parties="a:label;b:*")


def test_who_is_away_follows_from_the_seed_or_a_schedule() -> None:
    runs = [
        hedgerow.simulate(JOB, people(400, 1), 6, away=0.3, seed=seed, crypto=False)
        for seed in (7, 7, 6)
    ]
    present = [[r["silos"] for r in run.document["rounds"]] for run in runs]
    assert present[0] == present[1] != present[2]
    assert len(present[0][0]) == 6
    run = hedgerow.simulate(JOB, people(400, 1), 3, away={2: ["silo-1"]}, crypto=False)
    assert run.document["rounds"][2]["silos"] == ["silo-0", "silo-2"]
    with pytest.raises(InvalidJob, match="away: expected a share"):
        hedgerow.simulate(JOB, people(40, 1), 3, away=1.5)


def test_lines_make_rounds_as_long_as_their_slowest_silo_needs() -> None:
    runs = [
        hedgerow.simulate(JOB, people(300, 3), 3, links=links)
        for links in ((), ("1000:1000",), ("1:1000", "1:1000", "4000:0.01"))
    ]
    assert len({(run.folder / "model.ubj").read_bytes() for run in runs}) == 1
    seconds = [list(run.metrics["seconds"]) for run in runs]
    moved = [r["bytes_up"] + r["bytes_down"] for r in runs[2].document["rounds"]]
    # One silo's trees and what it receives, at 10,000 bits a second, and a round trip.
    assert all(
        found > 4.0 + 8 * n / 3 / 1e4 / 2 for found, n in zip(seconds[2], moved, strict=True)
    )
    assert min(seconds[1]) > 1.0


@pytest.mark.parametrize("link", ["20", "20:0", "-1:5", "fast:slow", "1:2:3", "nan:1"])
def test_a_line_that_is_none_is_refused(link: str) -> None:
    with pytest.raises(InvalidJob, match="expected MILLISECONDS:MBIT"):
        hedgerow.simulate(JOB, people(300, 3), 3, links=[link])


def test_a_vertical_job_is_cut_by_columns() -> None:
    table = {**people(200, 2), "_id": np.arange(200)}
    job = hedgerow.Job("secureboost", active="bank", rounds=1, max_depth=2, min_silos=2)
    with pytest.raises(InvalidJob, match="parties: a vertical job needs them"):
        hedgerow.simulate(job, table, 2)
    run = hedgerow.simulate(job, table, parties="bank:label,age;insurer:site,dose", crypto=False)
    assert 0.0 < run.metrics["test.auc"][0] <= 1.0
    assert run.model.n_features == 3
