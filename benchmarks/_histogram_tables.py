"""Tables of ``benchmarks.histogram``, dealt to silos."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from sklearn.datasets import make_classification

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.tables import read_table

TEST_ROWS = 200_000


@dataclass(frozen=True)
class Source:
    """A table: how many rows train at most, its file in the data folder, its task and metric."""

    n_rows: int
    file: str = ""
    task: Task = Task.BINARY
    metric: str = "auc"


SOURCES = {
    "synthetic": Source(1_000_000),
    "flights": Source(2_800_000, "flights_3m.parquet"),
    "a9a": Source(1_000_000, "a9a.parquet"),
    "tb_electricity": Source(1_000_000, "tb_electricity.parquet"),
    "nursery": Source(1_000_000, "nursery.parquet", Task.MULTICLASS, "merror"),
}


def silo_names(n_silos: int) -> list[str]:
    """Return names that sort in the order of their numbers."""
    digits = len(str(n_silos - 1))
    return [f"silo-{k:0{digits}}" for k in range(n_silos)]


def made(n_rows: int, seed: int) -> pa.Table:
    """Return scikit-learn's ``make_classification`` of 28 columns."""
    X, y = make_classification(
        n_rows, 28, n_informative=14, n_redundant=4, flip_y=0.05, random_state=seed
    )
    columns = {f"f{j}": X[:, j].astype(np.float32) for j in range(28)}
    return pa.table({**columns, "label": y.astype(np.int8)})


def deal(name: str, data: Path | None, folder: Path, n: int, n_silos: int, seed: int = 7) -> bool:
    """Write a table's silos and test rows; False where its file is missing.

    A table that says which rows test keeps to that; of others 200,000 rows test, of small ones a
    fifth.
    """
    source = SOURCES[name]
    n = min(n, source.n_rows)
    rng = np.random.default_rng(seed)
    if not source.file:
        table = made(n + TEST_ROWS, seed)
        train, test = table.slice(0, n), table.slice(n)
    else:
        if data is None or not (data / source.file).is_file():
            return False
        table = read_table(str(data / source.file))
        if "label_delay" in table.column_names:
            table = table.drop_columns(["label_delay"])
        if "_split" in table.column_names:
            train, test = (table.filter(pc.equal(table["_split"], s)) for s in ("train", "test"))
            train = train.take(pa.array(rng.permutation(train.num_rows)[:n]))
        else:
            held = min(TEST_ROWS, table.num_rows // 5)
            table = table.take(pa.array(rng.permutation(table.num_rows)[: n + held]))
            train, test = table.slice(0, table.num_rows - held), table.slice(table.num_rows - held)
    edges = np.linspace(0, train.num_rows, n_silos + 1).astype(int)
    for k, silo in enumerate(silo_names(n_silos)):
        pq.write_table(train.slice(edges[k], edges[k + 1] - edges[k]), folder / f"{silo}.parquet")
    pq.write_table(test, folder / "test.parquet")
    return True
