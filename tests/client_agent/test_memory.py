"""``memory_limit``: what fits, what goes into files, what is declined."""

from __future__ import annotations

import gc
import re
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

import hedgerow
from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.errors import LimitReached, StateUnwritable
from hedgerow.boosting.ports import JobParameters, strategy_of
from hedgerow.boosting.storage import IN_MEMORY, Storage
from hedgerow.boosting.strategies import NAMES
from hedgerow.boosting.tables import open_table, read_table, to_dataset
from hedgerow.client_agent import sources
from hedgerow.client_agent.config import AgentSettings, Source
from hedgerow.client_agent.memory import PROCESS_BYTES, MappedFiles, MemoryLimit
from hedgerow.coordinator.operator.library.memory import Conditions, federate
from hedgerow.services.process.settings import SettingsInvalid, load
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file

N_ROWS, N_FEATURES = 3000, 40


def job_of(strategy: str) -> JobParameters:
    table = {"secureboost": 'active = "a"', "dp_tree": "epsilon = 1.0"}.get(strategy, "")
    text = f'strategy = "{strategy}"\n[{strategy}]\n{table}\n'
    return job_wire.decode(job_file.parse(text))


def dataset_of(n_rows: int = N_ROWS) -> Dataset:
    schema = Schema(tuple(Feature(f"x{j}") for j in range(N_FEATURES)), "label", Task.BINARY, 2)
    return Dataset(schema, np.zeros((n_rows, N_FEATURES), np.float32), np.zeros(n_rows))


def held(job: JobParameters, n_rows: int = N_ROWS) -> int:
    need = job.strategy.memory(job.parameters, job, dataset_of(n_rows).schema, n_rows, 1, 1.0)
    return PROCESS_BYTES + need.held - need.labels


def maps(folder: Path) -> int:
    """Return how many files of a folder this process has mapped."""
    return len(re.findall(f" {re.escape(str(folder))}/.*", Path("/proc/self/maps").read_text()))


def test_a_mapped_file_has_no_name_and_goes_with_its_array(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    array = MappedFiles(folder).array((1000, 7), np.uint16)
    array[:] = 3
    assert (array == 3).all()
    assert [*folder.iterdir()] == [], "another process has nothing to open"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert maps(folder) == 1
    part = array[5:]
    del array
    assert part.sum() == 3 * 995 * 7
    del part
    gc.collect()
    assert maps(folder) == 0
    assert MappedFiles(folder).array((0, 7), np.uint8).shape == (0, 7)


def test_a_full_disk_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(StateUnwritable, match="disk of this silo's state folder is full"):
        MappedFiles(tmp_path).array((1 << 50,), np.uint8)


def test_bins_have_the_room_that_the_rest_leaves(tmp_path: Path) -> None:
    job, data = job_of("histogram"), dataset_of()
    bins, labels = N_ROWS * N_FEATURES, N_ROWS * 4

    def taken(limit: int) -> Storage:
        return MemoryLimit(limit, MappedFiles(tmp_path)).take("j", 1, job, data)

    for limit, room in ((0, 0), (bins, bins), (labels + 2 * bins - 1, labels + 2 * bins - 1)):
        storage = taken(held(job) + limit)
        assert storage.room == room
        placed = storage.placed(data)
        assert maps(tmp_path) == 1, "labels make room for bins"
        assert np.array_equal(placed.labels, data.labels)
        assert placed.weight is None
        del placed
        gc.collect()
        assert maps(tmp_path) == 0
    storage = taken(held(job) + labels + 2 * bins)
    assert storage.room == 2 * bins
    assert storage.placed(data) is data
    most = taken(held(job) + 10**12).room
    assert most == 4 * bins, "what other jobs could have is left"
    assert MemoryLimit(None, MappedFiles(tmp_path)).take("j", 1, job, data) is IN_MEMORY


@pytest.mark.parametrize("strategy", NAMES)
def test_a_job_over_the_limit_is_declined_with_figures_of_its_size_class(
    tmp_path: Path, strategy: str
) -> None:
    job = job_of(strategy)
    limit = MemoryLimit(held(job, 60_000) - 1, MappedFiles(tmp_path))
    said = []
    for n_rows in (60_000, 65_536):
        with pytest.raises(LimitReached) as declined:
            limit.check(job, dataset_of(n_rows))
        said.append(str(declined.value))
    assert re.fullmatch(
        f"memory_limit: {strategy} takes up to 0[.][0-9]+ GB for a table of this silo's size "
        "class, at most 0[.][0-9]+ GB may be taken",
        said[0],
    )
    assert said[0] == said[1], "the figures tell no more than the size class"
    MemoryLimit(held(job, 60_000), MappedFiles(tmp_path)).check(job, dataset_of(60_000))


def test_jobs_share_the_limit_and_attempts_at_one_job_do_not_add_up(tmp_path: Path) -> None:
    job, data = job_of("histogram"), dataset_of()
    need = held(job) - PROCESS_BYTES
    limit = MemoryLimit(PROCESS_BYTES + 2 * need - 1, MappedFiles(tmp_path))
    limit.take("one", 1, job, data)
    with pytest.raises(LimitReached, match=r"beside 0[.][0-9]+ GB of other jobs"):
        limit.take("two", 1, job, data)
    limit.take("one", 2, job, data)
    limit.give_back("one", 1)
    with pytest.raises(LimitReached):
        limit.take("two", 1, job, data)
    limit.give_back("one", 2)
    limit.take("two", 1, job, data)


def test_silos_own_test_rows_count(tmp_path: Path) -> None:
    job, data = job_of("histogram"), dataset_of()
    limit = MemoryLimit(held(job), MappedFiles(tmp_path), lambda n: n // 10)
    with pytest.raises(LimitReached):
        limit.check(job, data)
    rows = sources.SourceRows(Source(path="t.parquet"), None, 0.2, "s", b"")
    assert rows.n_scored(80) == 20


def test_a_file_that_is_read_whole_is_not_begun_where_it_cannot_fit(tmp_path: Path) -> None:
    path = tmp_path / "t.libsvm"
    path.write_text("0 1:1.5\n1 1:2.5\n" * 100)
    size = path.stat().st_size
    job = job_of("histogram")
    most = MemoryLimit(PROCESS_BYTES + 3 * size, MappedFiles(tmp_path)).most_read
    assert most == size
    assert sources.load(Source(path=str(path)), job, "s", most).n_samples == 200
    with pytest.raises(LimitReached, match="as a Parquet or CSV file it would be read in parts"):
        sources.load(Source(path=str(path)), job, "s", most - 1)
    other = sources.SourceRows(
        Source(path="none.parquet"), Source(path=str(path)), 0.0, "s", b"", 1
    )
    with pytest.raises(LimitReached):
        other.train(job)


def test_a_csv_file_is_read_in_parts_with_the_model_and_the_refusals_of_parquet(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    silos: dict[str, dict[str, Dataset]] = {"csv": {}, "parquet": {}}
    job = hedgerow.Job(
        "histogram", rounds=3, max_depth=3, min_silos=3, metrics=["auc"], columns={"drop": ["day"]}
    )
    for k in range(3):
        x = rng.normal(size=(400, 3)).astype(np.float32)
        table = pa.table({f"x{j}": x[:, j] for j in range(3)} | {
            "site": rng.choice(["hill", "mill", None], 400), "day": ["2020-01-02"] * 400,
            "n": [None] * 390 + [1, 2] * 5, "label": (x[:, 0] > rng.normal(size=400)).astype(int),
        })  # fmt: skip
        csv.write_csv(table, tmp_path / f"{k}.csv")
        again = csv.read_csv(
            tmp_path / f"{k}.csv", convert_options=csv.ConvertOptions(strings_can_be_null=True)
        )
        pq.write_table(again, tmp_path / f"{k}.parquet", row_group_size=100)
        for kind, own in silos.items():
            source = Source(path=str(tmp_path / f"{k}.{kind}"))
            own[f"s{k}"] = sources.load(source, job.parameters, "s", 1, tmp_path / "scratch")
    ran = {kind: federate(job, own, Conditions(crypto=False)) for kind, own in silos.items()}
    assert ran["csv"].files["model.ubj"] == ran["parquet"].files["model.ubj"]
    assert not list((tmp_path / "scratch").iterdir())  # its files have no name
    said = set()
    for own in silos.values():
        with pytest.raises(LimitReached) as refused:
            MemoryLimit(PROCESS_BYTES + 1, MappedFiles(tmp_path)).check(job.parameters, own["s0"])
        said.add(str(refused.value))
    assert len(said) == 1


def test_the_setting_is_a_size_above_what_the_process_takes(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    text = 'coordinator = "c:1"\nidentity = "i"\nstate = "s"\nmemory_limit = {}\n[data]\n'
    path.write_text(text.format('"3 GB"'))
    assert load(AgentSettings, path).memory_limit == 3_000_000_000
    path.write_text(text.format('"2GiB"'))
    assert load(AgentSettings, path).memory_limit == 2 << 30
    path.write_text(text.format('"3 MB"'))
    with pytest.raises(SettingsInvalid, match=r"more than the 400 MB .* received 3 MB"):
        load(AgentSettings, path)
    path.write_text(text.format('"much"'))
    with pytest.raises(SettingsInvalid, match="memory_limit"):
        load(AgentSettings, path)


def test_a_party_of_a_sparse_table_takes_memory_for_what_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "t.libsvm"
    path.write_text("".join(f"{k % 2} {1 + k % 400}:1 400:{k} # p{k}\n" for k in range(900)))
    job = job_of("secureboost")
    limit = MemoryLimit(PROCESS_BYTES + 150_000, MappedFiles(tmp_path))
    for table, fits in ((open_table(str(path)), True), (read_table(str(path)), False)):
        dataset = to_dataset(table, "t", task=Task.BINARY, label="", with_ids=True)
        with nullcontext() if fits else pytest.raises(LimitReached, match="secureboost takes"):
            limit.check(job, dataset)


def test_every_strategy_says_what_it_takes() -> None:
    schema = dataset_of().schema
    for name in NAMES:
        job = job_of(name)
        few, many = (
            strategy_of(name).memory(job.parameters, job, schema, n, 1, 1.0) for n in (10**3, 10**6)
        )
        assert many.held - few.held >= 24 * (10**6 - 10**3), "labels, margins and gradients"
