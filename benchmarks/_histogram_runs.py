"""Federated runs of ``benchmarks.histogram``: of this project, and of XGBoost's plugin."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._histogram_tables import Source, silo_names
from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.job import Booster
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.trees.ensemble import Ensemble
from hedgerow.boosting.trees.loading import load

BOOSTER = Booster(max_depth=8, eta=0.1)
TICK = 1.0 / os.sysconf("SC_CLK_TCK")
PEERS_PYTHON = Path(__file__).resolve().parents[1] / ".venv-peers" / "bin" / "python"
_AROUND_TREES = ("ExchangeKeys", "ExchangeSketches", "ExchangeSums")
"""Steps of setup, cut points and start, which belong to no tree."""


@dataclass(frozen=True)
class Variant:
    """A federated run: its name, bins a feature and parameters; ``scored`` runs take all rounds."""

    name: str
    max_bin: int
    fields: dict[str, Any]
    scored: bool = True


@dataclass(frozen=True)
class Link:
    """A line to each silo: milliseconds there and back, million bits a second each way."""

    rtt: float
    mbit: float

    @classmethod
    def of(cls, text: str) -> Link:
        """Read ``RTT:MBIT``."""
        rtt, mbit = (float(part) for part in text.split(":"))
        return cls(rtt, mbit)

    def __str__(self) -> str:
        return f", {self.rtt:g} ms, {self.mbit:g} Mbit/s"


@dataclass(frozen=True)
class Run:
    """What a federated run gave.

    ``cpu`` is in seconds a tree by kind of process, ``seconds`` the median tree's wall time,
    ``carried`` the bytes a silo and tree over a slow link.
    """

    report: dict[str, Any]
    cpu: dict[str, float]
    seconds: float
    model: Ensemble | None = None
    margins: NDArray[np.float32] | None = None
    carried: tuple[float, float] | None = None

    @property
    def exchanges(self) -> float:
        """Calls of all silos in trees, shares dealt included."""
        steps = self.report["bytes"]["by_step"]
        return float(sum(s["calls"] for name, s in steps.items() if name not in _AROUND_TREES))


def job_of(variant: Variant, rounds: int, task: Task, seed: int = 7) -> JobParameters:
    """Return a run's job."""
    booster = replace(BOOSTER, max_bin=variant.max_bin)
    strategy = Histogram(
        rounds=rounds, **{"binning": "summary", "filled_bins": True, **variant.fields}
    )
    return JobParameters("benchmark", strategy, task=task, seed=seed, booster=booster)


def toml(variant: Variant, rounds: int, source: Source, n_silos: int) -> str:
    """Return a run's job as a file."""
    lines = [
        'name = "benchmark"',
        'strategy = "histogram"',
        'label = "label"',
        f'task = "{source.task.value}"',
        "seed = 7",
        f"min_silos = {min(3, n_silos)}",
        f'metrics = ["{source.metric}"]',
        "[histogram]",
        f"rounds = {rounds}",
        *(
            f"{name} = {json.dumps(value)}"
            for name, value in {"binning": "summary", "filled_bins": True, **variant.fields}.items()
        ),
        "[booster]",
        f"max_depth = {BOOSTER.max_depth}",
        f"eta = {BOOSTER.eta}",
        f"max_bin = {variant.max_bin}",
    ]
    return "\n".join(lines) + "\n"


class Samples:
    """CPU times of processes over time, by ``/proc``."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, dict[int, float]]] = []

    def take(self, pids: Sequence[int]) -> None:
        """Note what processes have spent so far."""
        self._samples.append((time.monotonic(), {pid: spent(pid) for pid in pids}))

    def between(self, kinds: Sequence[str], begin: float, end: float) -> dict[str, float]:
        """Return CPU seconds by kind; processes are in the order of their numbers."""
        whole = [s for s in self._samples if len(s[1]) == len(kinds)]
        first, last = (min(whole, key=lambda s: abs(s[0] - at)) for at in (begin, end))
        cpu: dict[str, float] = defaultdict(float)
        for kind, pid in zip(kinds, sorted(last[1]), strict=True):
            cpu[kind] += last[1][pid] - first[1][pid]
        return dict(cpu)

    @property
    def whole_until(self) -> float:
        """Time of the last sample of as many processes as there ever were."""
        most = max(len(s[1]) for s in self._samples)
        return max(s[0] for s in self._samples if len(s[1]) == most)


def local(
    folder: Path, variant: Variant, rounds: int, source: Source, n_silos: int, link: Link | None
) -> Run:
    """Run a federation; measure its processes' CPU time over the last two thirds of its rounds."""
    samples = Samples()
    report, total = federated(
        folder, toml(variant, rounds, source, n_silos), n_silos, link, samples
    )
    counted = max(2 * rounds // 3, 1)
    seconds = [r["seconds"] for r in report["rounds"]][-counted:]
    end = samples.whole_until - 0.5
    kinds = ["coordinator", *["crypto"] * n_silos, *["agents"] * n_silos]
    cpu = samples.between(kinds, end - sum(seconds), end)
    return Run(
        report,
        {kind: value / counted for kind, value in cpu.items()},
        statistics.median(seconds),
        load((folder / "run" / "model.ubj").read_bytes()),
        carried=a_silo_and_tree(total, n_silos * rounds),
    )


def federated(
    folder: Path, text: str, n_silos: int, link: Link | None, samples: Samples
) -> tuple[dict[str, Any], Mapping[str, int] | None]:
    """Run a job's file over the silos' and the test table of a folder, a process each.

    Returns the report of ``folder/run``, and the bytes that a slow link carried.
    """
    job, out = folder / "job.toml", folder / "run"
    job.write_text(text)
    code = "import sys; from hedgerow.coordinator.cli import run; sys.argv[0] = 'hedgerow'; run()"
    command = [sys.executable, "-c", code, "local", str(job), "--out", str(out)]
    for name in silo_names(n_silos):
        command += ["--silo", f"{name}={folder / f'{name}.parquet'}"]
    command += ["--test", str(folder / "test.parquet")]
    port = free_port()
    with (folder / "log").open("wb") as log, slowed(port, link) as (address, carried):
        away = {
            "HEDGEROW_COORDINATOR_LISTEN": f"127.0.0.1:{port}",
            "HEDGEROW_AGENT_COORDINATOR": f"127.0.0.1:{address}",
        }
        environment = {**os.environ, **(away if link else {})}
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        while process.poll() is None:
            samples.take(children(process.pid))
            time.sleep(0.1)
        total = carried()
    if process.returncode:
        raise SystemExit((folder / "log").read_text())
    return json.loads((out / "report.json").read_text()), total


def plugin(
    folder: Path, parts: Sequence[Dataset], test: Dataset, job: Mapping[str, Any], link: Link | None
) -> Run | None:
    """Train with XGBoost's federated plugin, a process a silo; None where it is not installed."""
    script = Path(__file__).with_name("_xgboost_federated.py")
    probe = "import xgboost; raise SystemExit(not xgboost.build_info()['USE_FEDERATED'])"
    if not PEERS_PYTHON.exists() or subprocess.run([PEERS_PYTHON, "-c", probe]).returncode:
        print("skipped xgboost-federated: .venv-peers has no xgboost with the plugin (make peers)")
        return None
    n_silos, port = len(parts), free_port()
    edges = np.linspace(0, test.n_samples, n_silos + 1).astype(int)
    for k, part in enumerate(parts):
        held = slice(edges[k], edges[k + 1])
        arrays = {"X": part.X, "y": part.labels}
        arrays |= {"test_X": test.X[held], "test_y": test.labels[held]}
        np.savez(folder / f"part-{k}.npz", **arrays)
    samples, file = Samples(), folder / "plugin.json"
    command = [str(PEERS_PYTHON), str(script), str(file)]
    with slowed(port, link) as (address, carried):
        file.write_text(
            json.dumps(
                {
                    **job,
                    "folder": str(folder),
                    "silos": n_silos,
                    "port": port,
                    "address": address,
                    "feature_types": test.schema.feature_types,
                }
            )
        )
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until(lambda: listens(port))
        workers = [
            subprocess.Popen([*command, str(k)], stdout=subprocess.PIPE, text=True)
            for k in range(n_silos)
        ]
        while any(worker.poll() is None for worker in workers):
            samples.take([server.pid, *(worker.pid for worker in workers)])
            time.sleep(0.1)
        server.terminate()
        server.wait()
        total = carried()
    if any(worker.returncode for worker in workers):
        raise SystemExit("a worker of XGBoost's federated plugin failed")
    said = [worker.communicate()[0] for worker in workers]
    ends = json.loads(said[0].splitlines()[-1])
    counted = max(2 * len(ends) // 3, 1)
    begin = ends[-counted - 1] if counted < len(ends) else ends[0]
    cpu = samples.between(["server", *["workers"] * n_silos], begin, ends[-1])
    return Run(
        {},
        {kind: value / counted for kind, value in cpu.items()},
        statistics.median(np.diff(ends)[-counted:]),
        margins=np.load(folder / "margins.npy"),
        carried=a_silo_and_tree(total, n_silos * len(ends)),
    )


@contextmanager
def slowed(
    port: int, link: Link | None
) -> Iterator[tuple[int, Callable[[], Mapping[str, int] | None]]]:
    """Yield the port to reach ``port`` by, and what tells the bytes carried once all is over."""
    if link is None:
        yield port, lambda: None
        return
    command = [sys.executable, "-m", "benchmarks._slow_link", str(port)]
    with subprocess.Popen(
        [*command, str(link.rtt), str(link.mbit)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None

        def carried() -> Mapping[str, int]:
            counts: dict[str, int] = json.loads(process.communicate()[0])
            return counts

        try:
            yield int(process.stdout.readline()), carried
        finally:
            process.kill()


def a_silo_and_tree(total: Mapping[str, int] | None, n: int) -> tuple[float, float] | None:
    """Return bytes up and down, a silo and tree."""
    return None if total is None else (total["up"] / n, total["down"] / n)


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def spent(pid: int) -> float:
    """Return the CPU seconds of a process so far."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) * TICK


def free_port() -> int:
    """Return a port of loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listens(port: int) -> bool:
    """Whether somebody listens on a port of loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until(ready: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until something is the case."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise SystemExit(f"not ready within {seconds:.0f} s")
        time.sleep(0.05)
