"""Two jobs over a table that changed by a few rows between them tell these rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.errors import PolicyDeclined
from hedgerow.boosting.job import ColumnRules
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.tables import for_job
from hedgerow.boosting.tables.digests import digest_of
from hedgerow.client_agent.policy import Policy
from hedgerow.client_agent.records import Records
from hedgerow.client_agent.seen_tables import SeenTables, counts_rows
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from tests.federation.processes import federation, write_table
from tests.federation.test_faults import succeeded

N = 2_000


def job(text: str = "", label: str = "y") -> JobParameters:
    spec = f'strategy = "histogram"\nlabel = "{label}"\n'
    spec += 'silos = ["a", "b", "c"]\nmin_silos = 3\n'
    return job_wire.decode(job_file.parse(spec + text))


def table(n: int = N, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "age": np.round(rng.normal(50, 15, n), 2),
        "stay": rng.exponential(5, n),
        "sex": rng.choice(["f", "m"], n),
        "y": (rng.random(n) < 0.2).astype(int),
    }


def rows(columns: dict[str, Any], asked: JobParameters) -> Dataset:
    own = pa.table({name: pa.array(values, from_pandas=True) for name, values in columns.items()})
    parts = (str(list(values)).encode() for values in columns.values())
    return replace(for_job(own, asked, "t"), digest=digest_of(*parts), table=own)


def seen(folder: Path, least: int = 10) -> SeenTables:
    return SeenTables(Records(folder / "seen", folder / "turns" / "seen", bytes(32)), least)


def without(columns: dict[str, Any], n: int) -> dict[str, Any]:
    return {name: values[n:] for name, values in columns.items()}


def older(columns: dict[str, Any]) -> dict[str, Any]:
    return {**columns, "age": columns["age"] + 1}


def corrected(columns: dict[str, Any], name: str, n: int) -> dict[str, Any]:
    values = columns[name].copy()
    values[:n] = {"y": 1 - values[:n]}.get(name, values[:n] + 3)
    return {**columns, name: values}


BEFORE = table()


@pytest.mark.parametrize(
    ("now", "close"),
    [
        (BEFORE, False),
        ({name: values[::-1] for name, values in BEFORE.items()}, False),
        (without(BEFORE, 1), True),
        (without(BEFORE, 9), True),
        (without(BEFORE, 10), False),
        ({**without(BEFORE, 3), "extra": np.arange(N - 3.0)}, True),
        (older(without(BEFORE, 2)), True),
        (older(BEFORE), False),
        (corrected(BEFORE, "stay", 2), True),
        (corrected(BEFORE, "y", 1), True),
        (corrected(BEFORE, "stay", 300), False),
        (table(seed=1), False),
        ({name: np.concatenate([v, table(50, 2)[name]]) for name, v in BEFORE.items()}, False),
    ],
)
def test_a_table_that_changed_by_a_few_rows_is_declined(
    now: dict[str, Any], close: bool, tmp_path: Path
) -> None:
    """In another job, after a restart, and where the job calls the columns something else."""
    seen(tmp_path).note(job(), "one", rows(BEFORE, job()))
    later = replace(job(), columns=ColumnRules(rename=(("stay", "days"),)))
    for asked in (job(), later):
        own = rows(now, asked)
        if close:
            with pytest.raises(PolicyDeclined, match="min_changed_rows: since job one fewer than"):
                seen(tmp_path).check(asked, own)
        else:
            seen(tmp_path).check(asked, own)
        seen(tmp_path, 1).check(asked, own)


def codes(n: int = N) -> dict[str, Any]:
    """Return a table of few values a column, and a column of years."""
    rng = np.random.default_rng(5)
    few = {name: rng.integers(0, 5, n) for name in ("sex", "stage", "ward")}
    return few | {"years": rng.integers(20, 95, n), "y": few["sex"] % 2}


@pytest.mark.parametrize(
    "later",
    [
        '[columns]\ncategorical = ["sex", "stage", "ward", "years"]\n',
        "[columns]\nmissing = 0\n",
        'features = ["sex"]\n[columns]\ncategorical = ["sex"]\nlevels = {"sex" = ["3", "4"]}\n',
        '[columns]\nrename = {"y" = "out"}\n',
        "[columns]\nclass_weight = {1 = 3.0}\n",
    ],
)
def test_no_way_to_read_columns_hides_that_few_rows_have_changed(
    later: str, tmp_path: Path
) -> None:
    seen(tmp_path).note(job(), "one", rows(codes(), job()))
    asked = job(later, "out" if "out" in later else "y")
    now = without(codes(), 1)
    with pytest.raises(PolicyDeclined, match="min_changed_rows"):
        seen(tmp_path).check(asked, rows(now, asked))
    seen(tmp_path).check(asked, rows(without(codes(), 10), asked))


def test_jobs_on_other_columns_of_a_wide_table_are_compared(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    wide = {f"x{k:03}": rng.normal(size=300) for k in range(160)} | {"y": np.arange(300) % 2}
    names = [f"x{k:03}" for k in range(160)]
    first = job(f"features = {names[:70]}\n")
    seen(tmp_path).note(first, "one", rows(wide, first))
    for least in (9, 10):  # a value that two rows add 1 for and take 1 away is in many columns
        second = job(f"features = {names[90:]}\n")
        gone = rows(without(wide, least), second)
        if least < 10:
            with pytest.raises(PolicyDeclined):
                seen(tmp_path).check(second, gone)
        else:
            seen(tmp_path).check(second, gone)


def test_rows_whose_label_alone_has_come_are_few(tmp_path: Path) -> None:
    """Beside many rows without one, and in a job on another label of the same table."""
    asked = job('[columns]\nmissing_label = "drop"\n')
    known = {**BEFORE, "y": BEFORE["y"].astype(float), "z": BEFORE["y"].astype(float)}
    known["y"][:50] = np.nan
    known["z"][:53] = np.nan
    seen(tmp_path).note(asked, "one", rows(known, asked))
    seen(tmp_path).check(asked, rows(known, asked))
    new = {name: np.concatenate([v, v[:40]]) for name, v in known.items()}
    new["y"][46] = 1.0
    with pytest.raises(PolicyDeclined, match="rows with a label"):
        seen(tmp_path).check(asked, rows(new, asked))
    other = replace(asked, label="z")
    with pytest.raises(PolicyDeclined):
        seen(tmp_path).check(other, rows(known, other))


def test_two_jobs_that_are_checked_before_either_begins_are_compared(tmp_path: Path) -> None:
    kept, now = seen(tmp_path), rows(without(BEFORE, 1), job())
    kept.check(job(), rows(BEFORE, job()))
    kept.check(job(), now)
    kept.note(job(), "one", rows(BEFORE, job()))
    with pytest.raises(PolicyDeclined, match="since job one"):
        kept.note(job(), "two", now)


def test_rows_that_go_one_by_one_are_as_few_as_at_once(tmp_path: Path) -> None:
    """Tables that were declined are no step; each is held against every one that was told."""
    kept = seen(tmp_path)
    kept.note(job(), "one", rows(BEFORE, job()))
    for n in range(1, 10):
        with pytest.raises(PolicyDeclined, match="since job one"):
            kept.check(job(), rows(without(BEFORE, n), job()))
    kept.check(job(), rows(without(BEFORE, 12), job()))
    kept.note(job(), "two", rows(without(BEFORE, 12), job()))
    with pytest.raises(PolicyDeclined, match="since job two"):
        kept.check(job(), rows(without(BEFORE, 13), job()))
    with pytest.raises(PolicyDeclined, match="since job one"):
        kept.check(job(), rows(corrected(BEFORE, "y", 1), job()))


def test_the_same_rows_written_anew_every_night_make_no_table_forgotten(tmp_path: Path) -> None:
    kept, later = seen(tmp_path), rows(without(BEFORE, 40), job())
    kept.note(job(), "one", rows(BEFORE, job()))
    for night in range(40):
        kept.note(job(), "two", replace(later, digest=f"d{night}"))
    with pytest.raises(PolicyDeclined, match="since job one"):
        seen(tmp_path).check(job(), rows(without(BEFORE, 1), job()))


def test_jobs_with_many_labels_make_no_table_forgotten(tmp_path: Path) -> None:
    """An operator chooses labels, and so rows with one; of the table before one row is gone."""
    rng, kept = np.random.default_rng(3), seen(tmp_path)
    labels = {f"l{k}": (rng.random(N) < 0.5).astype(float) for k in range(34)}
    for k, values in enumerate(labels.values()):
        values[rng.permutation(N)[: 60 + 20 * k]] = np.nan  # each has other rows without it
    jobs = [job('[columns]\nmissing_label = "drop"\n', name) for name in labels]
    before = table() | labels
    now = without(before, 1)
    kept.note(jobs[0], "first", rows(before, jobs[0]))
    for other in jobs[1:]:
        kept.note(other, "another", rows(now, other))
    with pytest.raises(PolicyDeclined, match="since job first fewer"):
        kept.check(jobs[0], rows(now, jobs[0]))


def test_columns_of_a_later_job_on_the_same_table_are_kept_too(tmp_path: Path) -> None:
    kept, narrow = seen(tmp_path), job('features = ["sex"]\n')
    kept.note(narrow, "one", rows(BEFORE, narrow))
    wide = {**BEFORE, "town": np.array([f"t{k}" for k in range(N)])}
    for asked in (narrow, job()):
        kept.note(asked, "two", replace(rows(wide, asked), digest="d"))
    now = {**without(wide, 2), "age": np.arange(N - 2.0), "stay": np.arange(N - 2.0)}
    with pytest.raises(PolicyDeclined, match="since job two"):
        seen(tmp_path).check(job(), rows(now, job()))


DP = 'strategy = "dp_tree"\n[dp_tree]\nepsilon = '
BOOST = 'strategy = "private_boost"\n[private_boost]\ndelta = 1e-6\nreason = "a test"\nepsilon = '


@pytest.mark.parametrize(
    ("text", "exempt"),
    [
        (DP + "2", True),
        (DP + "2.5", False),
        (DP + "inf", False),
        (DP + '1\nbinning = "quantile"', False),
        (BOOST + "2", True),
        (BOOST + "1e6", False),
        ('strategy = "private_boost"', False),
        ('strategy = "fedga"', False),
        ('strategy = "explore"', False),
    ],
)
def test_a_budget_that_hides_no_row_exempts_no_job(tmp_path: Path, text: str, exempt: bool) -> None:
    """The attack: the same job of an epsilon of a million on the table before and after a row."""
    kept = seen(tmp_path)
    kept.note(job(), "monday", rows(BEFORE, job()))
    spec = f'label = "y"\nsilos = ["a", "b", "c"]\nmin_silos = 3\n{text}'
    asked = job_wire.decode(job_file.parse(spec))
    assert counts_rows(asked) is not exempt
    with pytest.raises(PolicyDeclined, match="since job monday fewer than 10"):
        kept.check(asked, rows(without(BEFORE, 1), asked))


def test_the_rule_is_that_of_cells() -> None:
    assert Policy().min_changed_rows == Policy().min_cell == 10


@pytest.mark.process
def test_a_silo_declines_a_job_after_one_of_its_rows_has_gone(tmp_path: Path) -> None:
    text = (
        'strategy = "histogram"\nmin_silos = 3\nsilos = ["s0", "s1", "s2"]\n'
        'start_timeout_seconds = 20\nfeatures = ["x0", "x1"]\n'
        "[histogram]\nrounds = 2\n[booster]\nmax_depth = 2\n"
    )
    with federation(tmp_path, 3) as fed:
        succeeded(fed.end(fed.submit(text)))
        file = fed.silos["s1"]
        whole = pq.read_table(file)
        pq.write_table(whole.slice(1), file)
        view = fed.end(fed.submit(text))
        assert view.state == "FAILED"
        told = {one.name: one.detail for one in view.silos}["s1"]
        assert told.startswith("policy rule min_changed_rows: since job "), told
        pq.write_table(whole.slice(10), file)
        succeeded(fed.end(fed.submit(text)))


@pytest.mark.process
def test_validation_and_test_rows_that_have_gone_are_counted_too(tmp_path: Path) -> None:
    """Test rows where their scores may leave: of two silos they do, of one of these held back."""
    text = (
        'strategy = "histogram"\nmin_silos = 3\nsilos = ["s0", "s1", "s2"]\n'
        "start_timeout_seconds = 20\n"
        "[histogram]\nrounds = 1\nvalidation_tables = true\n[booster]\nmax_depth = 1\n"
    )
    lets = {"may_send": ["schema", "keys", "masked", "scores"]}
    with federation(tmp_path, 3, start=False) as fed:
        fed.start_coordinator()
        files = {name: write_table(tmp_path / f"v-{name}.parquet", 200, 9) for name in fed.silos}
        tested = {"path": str(write_table(tmp_path / "t.parquet", 200, 8))}
        extra: dict[str, dict[str, Any]] = {
            "s0": {"test": tested, "policy": lets},
            "s1": {"test": tested},
        }
        extra["s2"] = {"hold_back": 0.5, "policy": lets}
        for name, file in files.items():
            fed.start_agent(name, validation={"path": str(file)}, **extra[name])
        succeeded(fed.end(fed.submit(text)))
        for silo, file in (("s1", files["s1"]), ("s0", tmp_path / "t.parquet")):
            whole = pq.read_table(file)
            pq.write_table(whole.slice(1), file)
            view = fed.end(fed.submit(text))
            told = {one.name: one.detail for one in view.silos}
            refusal = "policy rule min_changed_rows: since job "
            assert [name for name, why in told.items() if why.startswith(refusal)] == [silo], told
            pq.write_table(whole.slice(10), file)
        succeeded(fed.end(fed.submit(text)))
