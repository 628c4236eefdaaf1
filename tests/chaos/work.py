"""The tables and small jobs of the federation, of every strategy, with planted values."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hedgerow.boosting import warm_start
from hedgerow.boosting.ports import SiloStart
from hedgerow.boosting.streams import own_draws
from hedgerow.client_agent.__main__ import _own_keys
from hedgerow.client_agent.config import Source
from hedgerow.client_agent.sources import load
from hedgerow.crypto.vault.local_vault import LocalVault
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from tests.boosting.sums.federation_of_sums import Authority, TestIdentity
from tests.federation.memory import Fault, run_in_memory
from tests.federation.processes import write_table

_FIRST, _, _LAST = os.environ.get("SEEDS", "3").rpartition(":")
SEEDS = range(int(_FIRST or 0), int(_LAST))
"""Seeds of random faults: ``SEEDS=20`` are the first twenty, ``SEEDS=17:18`` is one."""
SILOS = ("s0", "s1", "s2")
N_ROWS = 120
PLANTED_FEATURE = 7777.125
PLANTED_ID = "patient-7f3a"
"""Begins every row's identifier; neither it nor the feature's value may be in a log."""

_HEAD = """
name = "chaos"
strategy = "{strategy}"
seed = 3
min_silos = {min_silos}
silos = {silos}
features = ["x0", "x1", "x2", "x3"]
step_timeout_seconds = {timeout}
start_timeout_seconds = {timeout}
metrics = ["logloss"]
"""
_BODIES = {
    "bagging": """
[bagging]
rounds = 25
[booster]
max_depth = 3
""",
    "histogram": """
[histogram]
rounds = 4
[booster]
max_depth = 3
max_bin = 16
""",
    "histogram-mvs": """
[histogram]
rounds = 4
sampling = "mvs"
[booster]
max_depth = 3
max_bin = 16
""",
    "fedxgbllr": """
[fedxgbllr]
trees = 12
rounds = 6
combiner = "leaves"
[booster]
max_depth = 3
""",
    "fedga": """
[fedga]
generations = 8
population = 12
max_depth = 3
epsilon_rows = inf
""",
    "dp_tree": """
[dp_tree]
epsilon = inf
depth = 3
""",
    "private_boost": """
[private_boost]
trees = 40
depth = 3
trees_per_exchange = 5
[columns.ranges]
x0 = [-3, 3]
x1 = [-3, 3]
x2 = [-3, 3]
x3 = [-3, 3]
""",
    "explore": """
[explore]
bins = 10
""",
    "simfl": """
[simfl]
rounds = 25
[booster]
max_depth = 3
""",
    "secureboost": """
[secureboost]
active = "s0"
rounds = 1
[booster]
max_depth = 2
max_bin = 8
""",
}
NAMES = tuple(_BODIES)
"""Jobs that need all silos; what a name has after a dash is a variant of the strategy before."""
_BODIES["histogram-clear"] = _BODIES["histogram"].replace("4\n", "12\nsecure = false\n", 1)
WITH_FEWER = ("bagging", "simfl", "histogram-clear", "fedga", "fedxgbllr")
"""Jobs that can do with two of three silos."""


def job(
    name: str, *, min_silos: int = 0, timeout: float = 60.0, silos: Sequence[str] = SILOS
) -> str:
    """Return a job file; all of its silos are needed where ``min_silos`` is not given."""
    strategy = name.partition("-")[0]
    silos = silos[:2] if strategy == "secureboost" else silos
    head = _HEAD.format(
        strategy=strategy,
        min_silos=min_silos or len(silos),
        silos=list(silos),
        timeout=timeout,
    ).replace("'", '"')
    if strategy in ("fedga", "secureboost", "explore"):
        head = head.replace('metrics = ["logloss"]\n', "")
    return head + _BODIES[name]


def tables(folder: Path, silos: Sequence[str] = SILOS) -> dict[str, Path]:
    """Write a table a silo; ids are the same rows for all, as parties of a vertical job need."""
    ids = [f"{PLANTED_ID}-{k:04d}" for k in range(N_ROWS)]
    made = {}
    for k, silo in enumerate(silos):
        path = write_table(folder / f"{silo}.parquet", N_ROWS, k, _id=ids)
        made[silo] = _planted(path)
    return made


def replayed(
    text: str, folder: Path, states: Mapping[str, Path], faults: tuple[Fault, ...]
) -> dict[str, bytes]:
    """Return the files of a job in one process, where silos are lost at given exchanges.

    ``states``: folders of the agents' states, whose secrets the silos' draws follow from.
    """
    job = job_wire.decode(job_file.parse(text))
    data = {
        silo: load(Source(path=str(folder / f"{silo}.parquet")), job, silo) for silo in job.silos
    }

    def as_agent(_: Any, link: Any, vault: Any, start: SiloStart) -> Any:
        kept = LocalVault(noise_folder=_own_keys(states[start.silo] / "vault/sealing.key"))
        own = own_draws(kept, start.job, start.dataset.digest)
        return warm_start.participate(link, vault, replace(start, draws=own))

    authority = Authority()
    identities = {silo: TestIdentity(authority, silo) for silo in data}
    outcome = run_in_memory(
        job, data, identities=identities.__getitem__, faults=faults, participate_as=as_agent
    )
    return {} if outcome.artefact is None else dict(outcome.artefact.files)


def _planted(path: Path) -> Path:
    table = pq.read_table(path)
    values = table["x3"].to_numpy().copy()
    values[:3] = np.float32(PLANTED_FEATURE)
    at = table.column_names.index("x3")
    pq.write_table(table.set_column(at, "x3", pa.array(values)), path)
    return path
