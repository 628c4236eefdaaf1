"""A hundred agents against one coordinator: what a round costs, and what the coordinator holds.

``python -m benchmarks.many_agents [--quick] [--agents N] [--rounds N] [--json FILE]``. Stumps on
200 rows a silo, so that next to nothing is training. The coordinator is a process of its own; the
agents are threads of this one, each with its own certificate, connection, lease, state and ledger,
so that they share one interpreter: a round's wall time is the sum of what a hundred silos would do
side by side.
A second job of four times the rounds tells what grows with rounds: nothing but the ensemble may.
Then the same job by the same agents without a network, one after another, is the base line.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from benchmarks.bagging import in_process
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.bagging.parameters import Bagging
from hedgerow.boosting.tables import for_job, read_table
from hedgerow.client_agent.__main__ import build
from hedgerow.client_agent.config import AgentSettings, Source
from hedgerow.client_agent.loop import Agent
from hedgerow.coordinator.operator.library.clients import client_for
from hedgerow.services.identity.authority import throwaway
from hedgerow.services.rpc.jobs import JobClient
from hedgerow.services.wire import job_file
from hedgerow.services.wire.job_view import JobView

ROOT = Path(__file__).resolve().parent.parent
N_ROWS = 200
JOB = """
name = "stumps"
strategy = "bagging"
seed = 7
min_silos = {n}
metrics = ["logloss"]
start_timeout_seconds = 300
[bagging]
rounds = {rounds}
lr_mode = "uniform"
evaluate = "none"
scrub = "none"
[booster]
max_depth = 1
"""


def write_tables(folder: Path, n_agents: int) -> dict[str, Path]:
    """Write one small table an agent, seeded by its number."""
    tables = {}
    for k in range(n_agents):
        rng = np.random.default_rng(k)
        X = rng.normal(size=(N_ROWS, 8)).astype(np.float32)
        columns = {f"x{j}": X[:, j] for j in range(8)}
        label = (X[:, 0] + rng.normal(size=N_ROWS) > 0).astype(np.int8)
        name = f"silo-{k:03d}"
        tables[name] = folder / f"{name}.parquet"
        pq.write_table(pa.table(columns | {"label": label}), tables[name])
    return tables


def start_coordinator(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start the coordinator process; return it and its address."""
    ready = folder / "coordinator.ready"
    settings = {
        "listen": "127.0.0.1:0",
        "metrics": "127.0.0.1:0",
        "identity": str(folder / "pki/coordinator"),
        "database": f"sqlite:///{folder / 'state.db'}",
        "artefacts": str(folder / "artefacts"),
        "ready_file": str(ready),
        "lease_seconds": 30.0,
    }
    path = folder / "coordinator.toml"
    path.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in settings.items()))
    with (folder / "coordinator.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "hedgerow.coordinator", "--config", str(path)],
            stdout=log,
            stderr=log,
            cwd=ROOT,
        )
    while not (ready.exists() and ready.read_text()):
        if process.poll() is not None:
            raise RuntimeError((folder / "coordinator.log").read_text())
        time.sleep(0.02)
    return process, f"127.0.0.1:{json.loads(ready.read_text())['port']}"


def start_agents(
    folder: Path, tables: dict[str, Path], address: str
) -> list[tuple[Agent, Callable[[], None], threading.Thread]]:
    """Start an agent a table, each in a thread of this process."""
    started = []
    for name, table in tables.items():
        agent, close, _ = build(
            AgentSettings(
                coordinator=address,
                identity=folder / "pki/silo" / name,
                state=folder / f"state-{name}",
                data=Source(path=str(table)),
                metrics="",
            )
        )
        thread = threading.Thread(target=agent.run, daemon=True)
        thread.start()
        started.append((agent, close, thread))
    return started


def run(client: JobClient, n_agents: int, rounds: int) -> tuple[str, JobView]:
    """Run a job to its end."""
    spec = job_file.parse(JOB.format(n=n_agents, rounds=rounds))
    job_id = client.create(spec)
    for view in client.watch(job_id):
        if view.ended and view.state != "SUCCEEDED":
            raise RuntimeError(f"the job has {view.state.lower()}: {view.detail}")
    return job_id, client.get(job_id)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="20 agents, 5 rounds")
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    n_agents, rounds = (20, 5) if given.quick else (given.agents, given.rounds)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    shown: list[dict[str, Any]] = []

    def show(metric: str, who: str, value: float, unit: str) -> None:
        shown.append({"metric": metric, "who": who, "value": value, "unit": unit})
        print(f"{metric:<52} {who:<9} {value:>11.4f} {unit}", flush=True)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tables = write_tables(folder, n_agents)
        throwaway(folder / "pki", sorted(tables), time.time())
        process, address = start_coordinator(folder)
        agents = []
        try:
            held = psutil.Process(process.pid)
            client = client_for(address, folder / "pki/operator", None)
            show("coordinator's memory, nobody there", "hedgerow", _mib(held), "MiB")
            began = time.perf_counter()
            agents = start_agents(folder, tables, address)
            while sum(agent.leased for agent, _, _ in agents) < n_agents:
                time.sleep(0.05)
            seconds = time.perf_counter() - began
            show(f"until all {n_agents} agents hold a lease", "hedgerow", seconds, "s")
            show("coordinator's memory, all agents there", "hedgerow", _mib(held), "MiB")
            model = b""
            for n, label in ((rounds, "first job"), (4 * rounds, "job of four times the rounds")):
                cpu, own = _cpu(held), time.process_time()
                job_id, view = run(client, n_agents, n)
                _, data = client.download(job_id)
                model = model or data
                own = (time.process_time() - own) / n / n_agents
                each = [r.seconds for r in view.rounds]
                spent = (_cpu(held) - cpu) / n
                # In the first round nobody has trees to be sent, with the last the farewell goes.
                moved = [r.bytes_up + r.bytes_down for r in view.rounds[1:-1]]
                half = len(moved) // 2
                late, soon = statistics.mean(moved[half:]), statistics.mean(moved[:half])
                show(f"{label}: wall a round, median", "hedgerow", statistics.median(each), "s")
                show(f"{label}: coordinator's CPU a round", "hedgerow", spent, "s")
                show(f"{label}: an agent's CPU a round", "hedgerow", own, "s")
                show(f"{label}: bytes a round, later half over first", "hedgerow", late / soon, "")
                show(f"{label}: model", "hedgerow", len(data) / 1e6, "MB")
                show(f"{label}: coordinator's memory after it", "hedgerow", _mib(held), "MiB")
            silos = [
                for_job(read_table(str(path)), JobParameters("stumps", Bagging()), path.name)
                for path in tables.values()
            ]
            began = time.perf_counter()
            alone = in_process(
                silos,
                {
                    "objective": "binary:logistic",
                    "base_score": 0.5,
                    "max_depth": 1,
                    "nthread": 1,
                    "verbosity": 0,
                },
                rounds=rounds,
                steps=1,
                etas=[0.3 / n_agents] * n_agents,
                seed=7,
            )
            seconds = (time.perf_counter() - began) / rounds
            show("loop in one process: wall a round, mean", "native", seconds, "s")
            show("model equals the loop's to the byte", "hedgerow", float(alone == model), "")
        finally:
            for agent, _, _ in agents:
                agent.stop()
            for _, close, thread in agents:
                thread.join(10)
                close()
            process.terminate()
            process.wait(20)
    if given.json:
        given.json.write_text(json.dumps(shown, indent=1))
    sys.stdout.flush()
    # The threads of a hundred closed channels need not be waited for.
    os._exit(0)


def _mib(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / (1 << 20)


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main()
