"""Hundreds of agents against one coordinator: what a round costs, and what the coordinator holds.

``python -m benchmarks.many_agents [--quick] [--agents N] [--rounds N] [--longer K] [--no-model]
[--json FILE]``. Stumps on 200 rows a silo, so that next to nothing is training. The coordinator is
a process of its own; the agents are threads of other processes, each with its own certificate,
connection, lease, state and ledger; their threads look only every five seconds whether they are to
end. Another silo, which takes part in no job, times renewals of its lease meanwhile.
A second job of four times the rounds (``--longer``) tells what a round costs without the start of
a job, and what grows with rounds: nothing but the ensemble may. ``--no-model``: agents do not take
the model; to check all of its trees is a second of each, which hundreds have no cores for here.
In a third one the coordinator is killed when half of the rounds are done, and started again.
Then the same job by the same agents without a network, one after another, is the base line.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import grpc._common
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from benchmarks.bagging import in_process
from hedgerow.boosting.errors import FederationError
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.bagging.parameters import Bagging
from hedgerow.boosting.tables import for_job, read_table
from hedgerow.client_agent.__main__ import build
from hedgerow.client_agent.calibration import Calibration
from hedgerow.client_agent.config import AgentSettings, Source
from hedgerow.coordinator.operator.library.clients import client_for
from hedgerow.crypto.vault.local_vault import LocalVault
from hedgerow.services.identity.authority import throwaway
from hedgerow.services.identity.certificates import IdentityPaths
from hedgerow.services.rpc import federation
from hedgerow.services.rpc.channel import Channels
from hedgerow.services.rpc.federation import FederationClient, Heartbeat, Registration
from hedgerow.services.rpc.jobs import JobClient
from hedgerow.services.rpc.metering import Metrics
from hedgerow.services.wire import job_file
from hedgerow.services.wire.job_view import JobView

ROOT = Path(__file__).resolve().parent.parent
N_ROWS = 200
AGENTS_A_PROCESS = 125
JOB = """
name = "stumps"
strategy = "bagging"
seed = 7
min_silos = {n}
metrics = ["logloss"]
start_timeout_seconds = 300
keep_model = {keep}
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


def start_coordinator(
    folder: Path, listen: str = "127.0.0.1:0"
) -> tuple[subprocess.Popen[bytes], str]:
    """Start the coordinator process; return it and its address."""
    ready = folder / "coordinator.ready"
    ready.unlink(missing_ok=True)
    settings = {
        "listen": listen,
        "metrics": "127.0.0.1:0",
        "identity": str(folder / "pki/coordinator"),
        "database": f"sqlite:///{folder / 'state.db'}",
        "artefacts": str(folder / "artefacts"),
        "ready_file": str(ready),
        "lease_seconds": 30.0,
    }
    path = folder / "coordinator.toml"
    path.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in settings.items()))
    with (folder / "coordinator.log").open("ab") as log:
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


def settings_of(folder: Path, name: str, table: Path, address: str) -> AgentSettings:
    """Return the settings of an agent."""
    return AgentSettings(
        coordinator=address,
        identity=folder / "pki/silo" / name,
        state=folder / f"state-{name}",
        data=Source(path=str(table)),
        metrics="",
    )


def measure_machine(folder: Path, tables: dict[str, Path]) -> None:
    """Measure this machine once for all agents, which find its rates in their state.

    Agents that share an interpreter would measure all at once, each a second of its own: with 250
    of them that is minutes, in which nobody answers the coordinator.
    """
    first = settings_of(folder, *min(tables.items()), "127.0.0.1:1")
    first.state.mkdir()
    rates = Calibration(first, lambda pause: LocalVault()).start()
    while not rates():
        time.sleep(0.05)
    for name in set(tables) - {min(tables)}:
        state = folder / f"state-{name}"
        state.mkdir()
        shutil.copy(first.state / "rates.json", state)


def be_agents(folder: Path, tables: dict[str, Path], address: str, begin: Event) -> None:
    """Be an agent a table, each in a thread, until this process is ended."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    # Hundreds of threads share an interpreter here; each that waits for it would ask for it 200
    # times a second, and from some load on all of them would do nothing else.
    sys.setswitchinterval(0.1)
    # A call that waits wakes four times a second for an agent and ten for gRPC, which a machine of
    # its own hardly notices; a thousand agents here would do little else.
    grpc._common.MAXIMUM_WAIT_TIMEOUT = federation.NOTICE_SECONDS = 5.0
    agents = [build(settings_of(folder, name, table, address))[0] for name, table in tables.items()]
    with (folder / "built").open("a") as file:
        file.write(".")
    begin.wait()
    for agent in agents:
        threading.Thread(target=agent.run, daemon=True).start()
    threading.Event().wait()


def start_agents(folder: Path, tables: dict[str, Path], address: str) -> tuple[list[Any], Event]:
    """Start processes that build agents; they register once the event is set."""
    context = multiprocessing.get_context("spawn")
    begin = context.Event()
    names = sorted(tables)
    processes = []
    for first in range(0, len(names), AGENTS_A_PROCESS):
        own = {name: tables[name] for name in names[first : first + AGENTS_A_PROCESS]}
        process = context.Process(target=be_agents, args=(folder, own, address, begin), daemon=True)
        process.start()
        processes.append(process)
    built = folder / "built"
    while not (built.exists() and len(built.read_text()) == len(processes)):
        if not all(process.is_alive() for process in processes):
            raise RuntimeError("a process of agents has ended")
        time.sleep(0.05)
    return processes, begin


def be_probe(folder: Path, address: str) -> None:
    """Hold a lease, and write how many seconds each renewal takes."""
    channels = Channels(address, IdentityPaths.of(folder / "pki/silo/probe"), Metrics())
    client = FederationClient(channels(), address, lambda method, request, job_id, tells: None)
    silo = Registration("probe", version("hedgerow"), ("secureboost",), 0, 0, ())
    for left in reversed(range(100)):  # agents of the same cores are busy with a job
        try:
            lease = client.register(silo).lease_id
            break
        except FederationError:
            if not left:
                raise
            time.sleep(1.0)
    with (folder / "renewals").open("w") as file:
        while True:
            began = time.perf_counter()
            try:
                client.renew(lease, Heartbeat())
            except FederationError:
                return
            file.write(f"{time.perf_counter() - began}\n")
            file.flush()
            time.sleep(0.05)


def wait_for_agents(client: JobClient, n_agents: int) -> float:
    """Wait until the coordinator knows so many silos; return the seconds that it took."""
    began = time.perf_counter()
    while True:
        try:
            if sum(silo.alive for silo in client.silos()) >= n_agents:
                return time.perf_counter() - began
        except FederationError:
            pass
        time.sleep(0.5)


def run(client: JobClient, job: str) -> JobView:
    """Run a job to its end."""
    job_id = client.create(job_file.parse(job))
    for view in client.watch(job_id):
        check(view)
    return client.get(job_id)


def check(view: JobView) -> None:
    """Raise RuntimeError for a job that has ended without success."""
    if view.ended and view.state != "SUCCEEDED":
        raise RuntimeError(f"the job has {view.state.lower()}: {view.detail}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="20 agents, 5 rounds")
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--longer", type=int, default=4)
    parser.add_argument("--no-model", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    n_agents, rounds = (20, 5) if given.quick else (given.agents, given.rounds)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    shown: list[dict[str, Any]] = []

    def job(rounds: int) -> str:
        keep = "false" if given.no_model else "true"
        return JOB.format(n=n_agents, rounds=rounds, keep=keep)

    def show(metric: str, who: str, value: float, unit: str) -> None:
        shown.append({"metric": metric, "who": who, "value": value, "unit": unit})
        print(f"{metric:<52} {who:<9} {value:>11.4f} {unit}", flush=True)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tables = write_tables(folder, n_agents)
        throwaway(folder / "pki", [*sorted(tables), "probe"], time.time())
        measure_machine(folder, tables)
        coordinator, address = start_coordinator(folder)
        held = psutil.Process(coordinator.pid)
        client = client_for(address, folder / "pki/operator", None)
        probe = multiprocessing.get_context("spawn").Process(
            target=be_probe, args=(folder, address), daemon=True
        )
        processes: list[Any] = []
        try:
            show("coordinator's memory, nobody there", "hedgerow", _mib(held), "MiB")
            processes, begin = start_agents(folder, tables, address)
            processes.append(probe)
            begin.set()
            seconds = wait_for_agents(client, n_agents)
            show(f"until all {n_agents} agents hold a lease", "hedgerow", seconds, "s")
            show("coordinator's memory, all agents there", "hedgerow", _mib(held), "MiB")
            probe.start()
            before: tuple[int, float] | None = None
            for n, label in ((rounds, "first job"), (given.longer * rounds, "longer job")):
                spent, own = _cpu(held), sum(map(_cpu_of, processes))
                view = run(client, job(n))
                spent, own = _cpu(held) - spent, sum(map(_cpu_of, processes)) - own
                each = [r.seconds for r in view.rounds]
                # In the first round nobody has trees to be sent, with the last the farewell goes.
                moved = [r.bytes_up + r.bytes_down for r in view.rounds[1:-1]]
                half = len(moved) // 2
                late, soon = statistics.mean(moved[half:]), statistics.mean(moved[:half])
                show(f"{label}: wall a round, median", "hedgerow", statistics.median(each), "s")
                show(f"{label}: coordinator's CPU a round", "hedgerow", spent / n, "s")
                show(f"{label}: an agent's CPU a round", "hedgerow", own / n / n_agents, "s")
                show(f"{label}: bytes a round, later half over first", "hedgerow", late / soon, "")
                show(f"{label}: coordinator's memory after it", "hedgerow", _mib(held), "MiB")
                if before is not None and n > before[0]:
                    more = (spent - before[1]) / (n - before[0])
                    show("a round more: coordinator's CPU", "hedgerow", more, "s")
                before = n, spent
                if n == rounds:
                    model = client.download(view.job_id)[1]
            probe.terminate()
            renewals = [float(line) for line in (folder / "renewals").read_text().split()]
            show(
                "renewal of a lease, 99 of 100 within", "hedgerow", np.quantile(renewals, 0.99), "s"
            )

            job_id = client.create(job_file.parse(job(rounds)))
            while len((view := client.get(job_id)).rounds) < rounds // 2:
                check(view)
                time.sleep(0.2)
            coordinator.kill()
            coordinator.wait()
            began = time.perf_counter()
            coordinator, _ = start_coordinator(folder, address)
            show(
                "killed coordinator: until it listens", "hedgerow", time.perf_counter() - began, "s"
            )
            seconds = wait_for_agents(client, n_agents)
            show("until all agents are back after that", "hedgerow", seconds, "s")
            for view in client.watch(job_id):
                check(view)
            same = client.download(job_id)[1] == model
            show("its model equals the first to the byte", "hedgerow", float(same), "")
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
            coordinator.terminate()
            coordinator.wait(60)
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
    if given.json:
        given.json.write_text(json.dumps(shown, indent=1))


def _mib(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / (1 << 20)


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _cpu_of(process: Any) -> float:
    return _cpu(psutil.Process(process.pid)) if process.is_alive() else 0.0


if __name__ == "__main__":
    main()
