"""Models trained again without a silo or rows: to the byte those that never had them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from hedgerow.boosting.errors import DataWarning, InvalidJob
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.trees.agreed import fingerprints
from hedgerow.coordinator.cli import main
from hedgerow.coordinator.operator.library.clients import fetch
from hedgerow.coordinator.operator.library.jobs import Job, table_of
from hedgerow.coordinator.operator.library.memory import Conditions, federate
from hedgerow.coordinator.operator.library.running import Run
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from tests.federation.processes import federation, write_table

CUTS = [f"x{j}: -1.5 -1 -0.5 0 0.5 1 1.5" for j in range(4)]
OWN: dict[str, Any] = {"base_score": 0.5, "binning": "given", "cut_points": CUTS, "max_depth": 3}
GONE = 3


def asked(**given: Any) -> Job:
    drawn = {} if "sampling" in given else {"sampling": "uniform", "sampling_rate": 0.15}
    own = OWN | {"rounds": 8} | drawn | given
    return Job("histogram", seed=4, min_silos=3, **own)


def tables(folder: Path, n_silos: int = 3) -> dict[str, pa.Table]:
    folder.mkdir(exist_ok=True)
    return {
        f"s{k}": pq.read_table(write_table(folder / f"s{k}.parquet", 120 + 10 * k, k))
        for k in range(n_silos)
    }


def trained(job: Job, parts: dict[str, pa.Table], out: Path, **given: Any) -> Run:
    job = job.on(parts, has_test=False)
    own = {name: table_of(job.parameters, name, part) for name, part in parts.items()}
    federate(job, own, Conditions(**given), None, {}).write(out)
    return Run(out)


def model(run: Run) -> bytes:
    return (run.folder / "model.ubj").read_bytes()


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"coarse_bits": 4},
        {"colsample_bytree": 0.5, "reweight": False},
        {"etas": [0.1 * (k + 1) for k in range(8)]},
        {"n_silos": 9, "silos_per_round": 3, "sampling": "none", "max_close_sums": 9},
    ],
    ids=lambda given: ", ".join(given) or "uniform",
)
def test_without_rows_the_later_rounds_give_the_bytes_of_a_whole_training(
    given: dict[str, Any], tmp_path: Path
) -> None:
    """The rows stand last, so that the others' draws, which go by place, are the same without."""
    n_silos = given.pop("n_silos", 3)
    job, parts = asked(**given), tables(tmp_path / "t", n_silos)
    run = trained(job, parts, tmp_path / "run")
    of = job.on(parts, has_test=False).parameters
    names = tuple(map(Silo, sorted(parts)))
    firsts = {
        name: of.strategy.first_rounds(of.parameters, of, names, name, of.seed, len(parts[name]))
        for name in names
    }
    name = next(n for n in names if firsts[n][-GONE:].min() > 0)
    first = int(firsts[name][-GONE:].min())
    assert first < 8
    less = {**parts, name: parts[name].slice(0, len(parts[name]) - GONE)}
    whole = trained(job, less, tmp_path / "whole")
    assert model(whole) != model(run)
    again = run.retraining(first=first + 1)
    told = again.parameters.warm_start
    assert told is not None
    assert told.rounds_before == first
    found = trained(again, less, tmp_path / "again", starting_model=model(run))
    assert model(found) == model(whole)
    with pytest.raises(InvalidJob, match="expected 1 to 8, the rounds of the model, received 9"):
        run.retraining(first=9)
    late = run.retraining(first=first + 2) if first < 7 else None
    if late is not None:
        kept = trained(late, less, tmp_path / "late", starting_model=model(run))
        assert model(kept) != model(whole), "a round later is too late"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"binning": "recursive", "cut_points": []}, "cut points"),
        ({"base_score": None}, "the start score"),
        ({"validation": 0.2}, "which rows are held back"),
        ({"early_stopping_rounds": 2}, "the last round"),
        ({"ring_bits": 48}, "the bits of a gradient"),
        ({"objective": "reg:squarederror", "task": "regression"}, "the largest gradient"),
        ({"sampling": "goss"}, "draws, with"),
    ],
)
def test_what_follows_from_all_rows_keeps_no_round(given: dict[str, Any], why: str) -> None:
    own = {key: value for key, value in (OWN | given).items() if value is not None}
    sampling = {"sampling": "uniform"} | {k: own.pop(k) for k in ("sampling",) if k in own}
    of = Job("histogram", rounds=3, min_silos=3, **sampling, **own).parameters
    names = (Silo("a"), Silo("b"), Silo("c"))
    with pytest.raises(InvalidJob, match=f"rows matter from the first round.*{why}"):
        of.strategy.first_rounds(of.parameters, of, names, names[0], 0, 10)


@pytest.mark.parametrize("strategy", ["bagging", "fedxgbllr", "fedga"])
def test_of_other_strategies_rows_matter_from_the_first_round(strategy: str) -> None:
    of = Job(strategy).parameters
    with pytest.raises(InvalidJob, match=f"the trees of a {strategy} job"):
        of.strategy.first_rounds(of.parameters, of, (Silo("a"),), Silo("a"), 0, 10)


@pytest.mark.parametrize("given", [{}, {"binning": "summary", "cut_points": [], "base_score": 0.5}])
def test_a_silo_that_joined_in_a_later_round_leaves_the_rounds_before(
    given: dict[str, Any], tmp_path: Path
) -> None:
    parts = tables(tmp_path / "t", 4)
    job = asked(sampling="none", secure=False, rounds=4, **given)
    run = trained(job, parts, tmp_path / "run", away=lambda silo, r: silo == "s3" and r < 2)
    assert [("s3" in one["silos"]) for one in run.document["rounds"]] == [False, False, True, True]
    less = {name: part for name, part in parts.items() if name != "s3"}
    again = run.retraining(without="s3")
    told = again.parameters.warm_start
    assert told is not None
    assert (told.rounds_before, again.parameters.silos) == (2, ("s0", "s1", "s2"))
    found = trained(again, less, tmp_path / "again", starting_model=model(run))
    assert model(found) == model(trained(job, less, tmp_path / "whole"))


def test_the_command_says_what_is_kept_and_why_not(tmp_path: Path) -> None:
    parts = tables(tmp_path / "t", 4)
    run = trained(asked(binning="recursive", cut_points=[]), parts, tmp_path / "run")
    out = tmp_path / "job.toml"
    told = CliRunner().invoke(
        main, ["retrain", str(run.folder), "--without", "s1", "--out", str(out)]
    )
    assert told.exit_code == 0, told.output
    assert "keeps 0 of 8 rounds" in told.output
    assert "from the first round follow cut points" in " ".join(told.output.split())
    assert Job.load(out).parameters.silos == ("s0", "s2", "s3")
    words = ["retrain", str(run.folder), "--without", "s2", "--out", str(out)]
    told = CliRunner().invoke(main, words)
    assert told.exit_code == 2
    assert f"--out: {out} is there already; --overwrite replaces it" in told.output
    assert Job.load(out).parameters.silos == ("s0", "s2", "s3")
    assert CliRunner().invoke(main, [*words, "--overwrite"]).exit_code == 0
    assert Job.load(out).parameters.silos == ("s0", "s1", "s3")
    for options, why in (
        (("--without", "s9"), "expected a silo of the run (s0, s1, s2, s3), received 's9'"),
        ((), "expected the first round in which rows mattered, or a silo's name"),
        (("--from", "9"), "expected 1 to 8, the rounds of the model, received 9"),
    ):
        words = ["retrain", str(run.folder), *options, "--out", str(out), "--overwrite"]
        told = CliRunner().invoke(main, words)
        assert told.exit_code != 0
        assert why in " ".join(told.output.split())


def test_what_a_job_without_a_silo_changes_is_told(tmp_path: Path) -> None:
    run = trained(asked(rounds=1), tables(tmp_path / "t", 4), tmp_path / "run")
    spec = job_wire.parse(job_file.load(run.folder / "job.toml"))
    del spec.silos[:]  # it names none, and needs all
    spec.min_silos, spec.test_data = 4, "held"
    Job.from_spec(spec.SerializeToString()).save(run.folder / "job.toml")
    out = tmp_path / "job.toml"
    words = ["retrain", str(run.folder), "--without", "s1", "--out", str(out), "--json"]
    told = json.loads(CliRunner().invoke(main, words).stdout)
    assert told["changes"] == [
        "min_silos is 3, where the run had 4",
        'test_data is "held", as in the run: rows of s1 must not be in it; without the key '
        "nothing is scored there",
        "sums without s1 and those of the run differ by what it added: silos decline the job at a "
        "coordinator unless max_close_sums allows it, in the job and in all their policies",
    ]
    again = Job.load(out).parameters
    assert (again.silos, again.min_silos) == (("s0", "s2", "s3"), 3)
    with pytest.warns(DataWarning) as caught:
        run.retraining(without="s1")
    assert [str(one.message) for one in caught] == told["changes"]


def test_silos_that_are_too_few_without_one_get_no_job(tmp_path: Path) -> None:
    run = trained(asked(rounds=1), tables(tmp_path / "t"), tmp_path / "run")
    out = tmp_path / "job.toml"
    words = ["retrain", str(run.folder), "--without", "s1", "--out", str(out)]
    told = CliRunner().invoke(main, words)
    assert told.exit_code == 2
    assert "without s1: [histogram] secure: sums are over 3 silos or more" in told.output
    assert not out.exists()
    with pytest.raises(InvalidJob, match=r"without s1: \[histogram\] secure: .* received 2"):
        run.retraining(without="s1")


@pytest.mark.process
@pytest.mark.slow
def test_a_silo_says_where_its_rows_begin_and_the_federation_trains_from_there(
    tmp_path: Path,
) -> None:
    with federation(tmp_path, n_rows=300, start=False) as fed:
        whole = {name: write_table(file, 300, int(name[1]), _id=np.arange(300))
                 for name, file in fed.silos.items()}  # fmt: skip
        fed.start_coordinator()
        for name in whole:
            fed.start_agent(name, policy={"min_cell": 1, "min_changed_rows": 1})
        view = fed.end(fed.client.create(asked(rounds=12, sampling_rate=0.1).spec))
        assert view.state == "SUCCEEDED", view.detail
        fetch(fed.client, view.job_id, tmp_path / "run")

        def first(*rows: int, job: str = view.job_id, code: int = 0) -> dict[str, Any]:
            own = ["--config", str(fed.folder / "agent-s1.toml"), "--job", job]
            own += [word for row in rows for word in ("--value", str(row))]
            told = subprocess.run(
                [sys.executable, "-m", "hedgerow", "first-round", *own,
                 "--column", "_id", "--json"],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert told.returncode == code, told.stderr
            return dict(json.loads(told.stdout)) if not code else {"said": told.stderr}

        rows = {row: first(row)["first_round"] for row in range(8)}
        assert {1 <= one <= 12 for one in rows.values() if one is not None} == {True}
        assert len(set(rows.values())) > 2
        row, begins = next((k, n) for k, n in rows.items() if n not in (None, 1, 12))
        assert "received 1 of 2 that no row has" in first(row, 300, code=2)["said"]
        said = first(row, job="nowhere", code=2)["said"]
        assert "in which this silo has taken part" in said

        table = pq.read_table(whole["s1"])
        pq.write_table(pa.concat_tables([table[:row], table[row + 1 :]]), whole["s1"])
        assert "its table has changed" in first(row, code=2)["said"]
        again = Run(tmp_path / "run").retraining(first=begins)
        view = fed.end(fed.client.create(again.spec))
        assert view.state == "SUCCEEDED", view.detail
        fetch(fed.client, view.job_id, tmp_path / "again")
        old, new = (Run(tmp_path / name).model.ensemble for name in ("run", "again"))
        kept = old.steps[begins - 2]
        assert old.round_ends == new.round_ends
        same = [
            a == b for a, b in zip(fingerprints(old.trees), fingerprints(new.trees), strict=True)
        ]
        assert all(same[:kept])
        assert not any(same[kept:])
