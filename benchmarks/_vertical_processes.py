"""A vertical job as ``hedgerow local`` runs it: coordinator, agents and crypto processes."""

from __future__ import annotations

import compileall
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pyarrow.parquet as pq

Row = dict[str, object]
WITHOUT_KERNELS = (
    "from hedgerow.crypto.arithmetic import engine\nengine.available_kernels = lambda: ('gmpy2',)\n"
)


class Watch:
    """Samples memory and CPU time of a process and its children, also of those nobody waits for."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._stop = threading.Event()
        self.pss = 0.0
        self._cpu: dict[int, float] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            total = 0.0
            try:
                family = [self._process, *self._process.children(recursive=True)]
                for process in family:
                    total += process.memory_full_info().pss
                    times = process.cpu_times()
                    self._cpu[process.pid] = times.user + times.system
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            self.pss = max(self.pss, total)

    @property
    def cpu(self) -> float:
        """CPU seconds of all processes as last seen."""
        return sum(self._cpu.values())

    def stop(self) -> float:
        """Return the largest sum of proportional set sizes, bytes."""
        self._stop.set()
        self._thread.join()
        return self.pss


@functools.cache
def _compile_sources() -> None:
    """Write byte code, as installing does: some environments forbid processes to write theirs."""
    root = Path(__file__).parents[1]
    for room in [
        "boosting",
        "client_agent",
        "coordinator",
        "crypto",
        "hedgerow",
        "proto",
        "services",
    ]:
        compileall.compile_dir(root / room, quiet=1)


def local(
    folder: Path, pieces: Mapping[str, Any], job: str, *, kernels: bool = True
) -> tuple[dict[str, Any], float, float]:
    """Run a job; return its report, CPU seconds and peak PSS bytes of all processes."""
    _compile_sources()
    arguments = []
    for name, table in pieces.items():
        path = folder / f"{name}.parquet"
        pq.write_table(table, path)
        party = name.removeprefix("test-")
        arguments += ["--test" if name != party else "--silo", f"{party}={path}"]
    (folder / "job.toml").write_text(job)
    program = "" if kernels else WITHOUT_KERNELS
    program += "from hedgerow.coordinator.cli import run; run()"
    command = [sys.executable, "-c", program, "local", str(folder / "job.toml"), *arguments]
    process = subprocess.Popen(
        [*command, "--out", str(folder / "run")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    watch = Watch(process.pid)
    assert process.stdout is not None
    output = process.stdout.read().decode()
    pss = watch.stop()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    report = json.loads((folder / "run/report.json").read_text())
    if report["state"] != "SUCCEEDED":
        raise RuntimeError(output[-2000:])
    return report, max(usage.ru_utime + usage.ru_stime, watch.cpu), pss


def measured(
    name: str, who: str, pieces: Mapping[str, Any], job: str, *, kernels: bool = True
) -> tuple[list[Row], dict[str, Any]]:
    """Return the rows of a job's table."""
    with tempfile.TemporaryDirectory() as folder:
        report, cpu, pss = local(Path(folder), pieces, job, kernels=kernels)
    rounds = [r["seconds"] for r in report["rounds"]]
    last = report["rounds"][-1]["metrics"]
    rows: list[Row] = [
        {"metric": f"{name}_cpu", "who": who, "value": round(cpu, 2), "unit": "s"},
        {"metric": f"{name}_wall", "who": who, "value": round(report["seconds"], 2), "unit": "s"},
        {
            "metric": f"{name}_wall_tree",
            "who": who,
            "value": round(statistics.median(rounds), 3),
            "unit": "s",
        },
        {
            "metric": f"{name}_bytes",
            "who": who,
            "value": round(report["bytes"]["up"] / 1e6, 2),
            "unit": "MB",
        },
        {"metric": f"{name}_pss", "who": who, "value": round(pss / 1e9, 3), "unit": "GB"},
    ]
    for metric, value in last.get("test", {}).items():
        rows.append(
            {"metric": f"{name}_test_{metric}", "who": who, "value": round(value, 5), "unit": ""}
        )
    return rows, report


def coordinator_peak(folder: Path, pieces: Mapping[str, Any], job: str) -> float:
    """Return the largest resident set of a job's coordinator, bytes."""
    peaks: dict[int, float] = {}
    done = threading.Event()
    parent = psutil.Process()

    def look() -> None:
        while not done.wait(0.1):
            for process in parent.children(recursive=True):
                try:
                    log = [f.path for f in process.open_files() if f.path.endswith(".log")]
                    if any(path.endswith("coordinator.log") for path in log):
                        peaks[process.pid] = max(
                            peaks.get(process.pid, 0.0), process.memory_info().rss
                        )
                except (psutil.NoSuchProcess, psutil.AccessDenied):
                    continue

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    local(folder, pieces, job)
    done.set()
    thread.join()
    return max(peaks.values(), default=0.0)
