"""What an agent's memory holds while it trains, and what a limit on it costs.

``python -m benchmarks.memory [--quick] [--rows N] [--rounds R] [--limits "3 GB,2 GB"] [--dask
"1,2"] [--tables FOLDER] [--json FILE]``. A coordinator and three agents, processes of their own,
run a histogram job with secure sums. One agent has the table, the others a thousand rows each. Its
peak of resident memory (``VmHWM``; no control group is needed) is read after the job, and compared
with that of the same job where it too has a thousand rows. 24 bytes a row are for labels, margins,
gradients and order; the rest is put on the values. Tables stay in ``--tables`` for another run.

With ``--limits`` the same job runs again, on the same table, for each limit: as the agent's
``memory_limit``, and as that of a control group that its process is in (cgroup 1 or 2, which must
be writable). A tree's time is the least of all rounds but the first, so that other work on the
machine counts least; so are a tree's CPU seconds in the agent, and the megabytes that it reads of
the disk (``/proc``). Models must be equal. With ``--dask`` the job runs with the bins on so many
workers of a Dask cluster of processes on this machine, a thread each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ByteSize, TypeAdapter

from benchmarks.many_agents import ROOT, start_coordinator
from hedgerow.coordinator.operator.library.clients import client_for
from hedgerow.services.identity.authority import throwaway
from hedgerow.services.wire import job_file

N_FEATURES = 28
ROW_BYTES = 24
SILOS = ("large", "small-1", "small-2")
JOB = """
name = "memory"
strategy = "histogram"
seed = 7
min_silos = 3
start_timeout_seconds = 300
step_timeout_seconds = 3600
[histogram]
rounds = {rounds}
[booster]
max_depth = 8
"""


def write_table(path: Path, n_rows: int, seed: int) -> None:
    """Write a table, a part at a time."""
    names = [f"f{j}" for j in range(N_FEATURES)]
    schema = pa.schema([*((name, pa.float32()) for name in names), ("label", pa.int8())])
    rng = np.random.default_rng(seed)
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for start in range(0, n_rows, 250_000):
            n = min(250_000, n_rows - start)
            X = rng.standard_normal((N_FEATURES, n), dtype=np.float32)
            label = (X[0] + X[1] * X[2] + rng.standard_normal(n) > 0).astype(np.int8)
            writer.write_table(pa.table([*X, label], schema=schema))


class Run(NamedTuple):
    """Bytes of the large silo's agent at its peak, resident and its own, and what a tree takes.

    ``seconds``, ``cpu_seconds`` and those of Dask's ``worker_seconds`` are a tree's, as are the
    bytes ``read`` of the disk.
    """

    peak: int
    own: int
    seconds: float
    cpu_seconds: float
    read: float
    worker_seconds: float
    model: bytes


@contextlib.contextmanager
def control_group(limit: int | None) -> Iterator[list[str]]:
    """Make a control group of the limit; yield the command by which a process enters it."""
    if limit is None:
        yield []
        return
    root = Path("/sys/fs/cgroup")
    old = (root / "memory").is_dir()
    group = (root / "memory" if old else root) / f"hedgerow-{os.getpid()}"
    group.mkdir()
    try:
        (group / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(limit))
        enter = f'echo $$ > {shlex.quote(str(group / "cgroup.procs"))}; exec "$@"'
        yield ["sh", "-c", enter, "sh"]
    finally:
        group.rmdir()


@contextlib.contextmanager
def dask_cluster(n_workers: int) -> Iterator[tuple[str, list[int]]]:
    """Start a cluster of processes, if any; yield its address and theirs."""
    if not n_workers:
        yield "", []
        return
    import distributed

    with (
        distributed.LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
        ) as made,
        distributed.Client(made) as client,
    ):
        yield made.scheduler_address, list(client.run(os.getpid).values())


def run(table: Path, n_rounds: int, limit: int | None = None, n_workers: int = 0) -> Run:
    """Run the job with the large silo's agent held to a limit, or with its bins on workers."""
    with (
        tempfile.TemporaryDirectory() as name,
        control_group(limit) as enter,
        dask_cluster(n_workers) as (scheduler, workers),
    ):
        folder = Path(name)
        throwaway(folder / "pki", sorted(SILOS), time.time())
        coordinator, address = start_coordinator(folder)
        agents = []
        try:
            for k, silo in enumerate(SILOS):
                path = table
                if k:
                    path = folder / f"{silo}.parquet"
                    write_table(path, 1000, k)
                settings: dict[str, Any] = {
                    "coordinator": address,
                    "identity": str(folder / "pki/silo" / silo),
                    "state": str(folder / f"state-{silo}"),
                    "metrics": "",
                }
                if limit and not k:
                    settings["memory_limit"] = limit
                if scheduler and not k:
                    settings["dask"] = scheduler
                lines = [f"{k} = {json.dumps(v)}\n" for k, v in settings.items()]
                config = folder / f"{silo}.toml"
                config.write_text("".join(lines) + f"[data]\npath = {json.dumps(str(path))}\n")
                command = [sys.executable, "-m", "hedgerow.client_agent", "--config", str(config)]
                with (folder / f"{silo}.log").open("wb") as log:
                    agents.append(
                        subprocess.Popen(
                            [*(() if k else enter), *command], stdout=log, stderr=log, cwd=ROOT
                        )
                    )
            client = client_for(address, folder / "pki/operator", None)
            job_id = client.create(job_file.parse(JOB.format(rounds=n_rounds)))
            own = [0]
            ended = threading.Event()

            def sample() -> None:
                with contextlib.suppress(OSError, ValueError):  # it has ended
                    while not ended.wait(0.02):
                        own[0] = max(own[0], status(agents[0].pid, "RssAnon"))

            threading.Thread(target=sample, daemon=True).start()
            rounds, used = [], []
            for view in client.watch(job_id):
                rounds += view.rounds
                at_work = sum(usage(pid)[0] for pid in workers)
                used += [(*usage(agents[0].pid), at_work)] * len(view.rounds)
                if view.ended and view.state != "SUCCEEDED":
                    log_text = (folder / "large.log").read_text()
                    raise RuntimeError(
                        f"the job has {view.state.lower()}: {view.detail}\n{log_text}"
                    )
            ended.set()
            seconds = min(each.seconds for each in rounds[1:])
            spent = np.diff(used, axis=0)
            cpu_seconds, read, at_work = spent[spent[:, 0] > 0].min(axis=0).tolist()
            model = client.download(job_id)[1]
            peak = status(agents[0].pid, "VmHWM")
            return Run(peak, own[0], seconds, cpu_seconds, read, at_work, model)
        finally:
            for process in [*agents, coordinator]:
                process.terminate()
                process.wait(60)


def status(pid: int, key: str) -> int:
    """Return bytes that Linux counts of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{key}:")]
    return int(line.split()[1]) << 10


def usage(pid: int) -> tuple[float, int]:
    """Return a process's CPU seconds, and the bytes that it has had read of the disk."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    read = re.search(r"^read_bytes: (\d+)", Path(f"/proc/{pid}/io").read_text(), re.MULTILINE)
    assert read is not None
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), int(read[1])


def table_of(folder: Path, n_rows: int) -> Path:
    """Return a table of the folder, made if it is not there."""
    path = folder / f"{n_rows}.parquet"
    if not path.exists():
        write_table(folder / "new", n_rows, 0)
        (folder / "new").rename(path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="500,000 rows")
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limits", default="", help="as 3 GB, separated by commas")
    parser.add_argument("--dask", default="", help="numbers of workers, as 1,2")
    parser.add_argument("--tables", type=Path, help="folder that keeps the tables")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    n_rows = 500_000 if given.quick else given.rows
    limits = [each.strip() for each in given.limits.split(",") if each.strip()]
    shown: list[dict[str, Any]] = []

    def show(metric: str, value: float, unit: str, variant: str = "") -> None:
        variant = f"{n_rows} x {N_FEATURES}{variant}"
        row = {"metric": metric, "who": "hedgerow", "variant": variant, "value": value}
        shown.append(row | {"unit": unit})
        print(f"{metric:<24} {variant:<36} {value:>10.4g} {unit}", flush=True)

    with tempfile.TemporaryDirectory() as name:
        folder = given.tables or Path(name)
        folder.mkdir(exist_ok=True)
        small, large = table_of(folder, 1000), table_of(folder, n_rows)
        base = run(small, 3)
        whole = run(large, given.rounds)
        above = whole.peak - base.peak
        show("agent_base", base.peak / 1e6, "MB")
        show("agent_peak", whole.peak / 1e6, "MB")
        show("bytes_a_row_in_all", above / n_rows, "B")
        values = above - ROW_BYTES * n_rows
        show("bytes_a_value_histogram", values / n_rows / N_FEATURES, "B")
        show("seconds_a_tree", whole.seconds, "s")
        show("cpu_seconds_a_tree", whole.cpu_seconds, "s")
        for text in limits:
            held = run(large, given.rounds, int(TypeAdapter(ByteSize).validate_python(text)))
            if held.model != whole.model:
                raise RuntimeError(f"{text}: the model differs from the one without a limit")
            show("seconds_a_tree", held.seconds, "s", f", {text}")
            show("ratio_to_memory", held.seconds / whole.seconds, "", f", {text}")
            show("cpu_seconds_a_tree", held.cpu_seconds, "s", f", {text}")
            show("cpu_ratio_to_memory", held.cpu_seconds / whole.cpu_seconds, "", f", {text}")
            show("read_a_tree", held.read / 1e6, "MB", f", {text}")
            show("agent_own_memory", held.own / 1e6, "MB", f", {text}")
        for n_workers in map(int, filter(None, given.dask.split(","))):
            spread = run(large, given.rounds, n_workers=n_workers)
            if spread.model != whole.model:
                raise RuntimeError(f"Dask, {n_workers} workers: the model differs")
            variant = f", Dask, {n_workers} workers"
            show("seconds_a_tree", spread.seconds, "s", variant)
            show("ratio_to_memory", spread.seconds / whole.seconds, "", variant)
            show("cpu_seconds_a_tree", spread.cpu_seconds, "s", variant)
            show("worker_cpu_seconds_a_tree", spread.worker_seconds, "s", variant)
            show("agent_own_memory", spread.own / 1e6, "MB", variant)
    if given.json:
        given.json.write_text(json.dumps(shown, indent=1))


if __name__ == "__main__":
    main()
