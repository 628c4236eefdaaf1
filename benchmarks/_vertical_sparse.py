"""Vertical jobs over sparse tables: CPU seconds, bytes, and the memory of each process."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import pyarrow as pa

from benchmarks._vertical_processes import Row, local

GUEST = 10
"""Columns of the active party, which are dense."""
JOB = """
name = "benchmark"
strategy = "secureboost"
label = "label"
task = "binary"
seed = 7
min_silos = 2
[secureboost]
active = "guest"
rounds = 1
encryption = "elgamal"
alignment = "digest"
[booster]
max_depth = 4
max_bin = 16
"""


def table(n_rows: int, n_columns: int, share: float, seed: int = 0) -> dict[str, Any]:
    """Return the tables of two parties, the passive one's without ``1 - share`` of its values."""
    rng = np.random.default_rng(seed)
    ids = pa.array([f"p{k:07d}" for k in range(n_rows)])
    score = np.zeros(n_rows, np.float32)
    own: dict[str, Any] = {"_id": ids, "label": None}
    for j in range(GUEST):
        x = rng.normal(size=n_rows).astype(np.float32)
        score += x / 3
        own[f"a{j}"] = pa.array(x)
    other: dict[str, Any] = {"_id": ids}
    for j in range(n_columns):
        listed = rng.choice(n_rows, round(share * n_rows), replace=False)
        x, absent = np.zeros(n_rows, np.float32), np.ones(n_rows, np.bool_)
        x[listed], absent[listed] = rng.normal(size=len(listed)) + 1, False
        if j % max(n_columns // 20, 1) == 0:
            score += x
        other[f"b{j}"] = pa.array(x, mask=absent)
    noisy = score + rng.normal(size=n_rows)
    own["label"] = pa.array((noisy > np.median(noisy)).astype(np.int64))
    return {"guest": pa.table(own), "host": pa.table(other)}


class Peaks:
    """The largest resident set of each process under this one, as the kernel keeps it, by log."""

    def __init__(self) -> None:
        self.found: dict[str, float] = {}
        self._stop = threading.Event()
        self._names: dict[int, str] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        me = psutil.Process()
        while not self._stop.wait(0.2):
            for process in me.children(recursive=True):
                try:
                    if process.pid not in self._names:
                        logs = [f.path for f in process.open_files() if f.path.endswith(".log")]
                        if not logs:
                            continue
                        self._names[process.pid] = Path(logs[0]).stem
                    status = Path(f"/proc/{process.pid}/status").read_text()
                except (psutil.Error, OSError):
                    continue
                peak = status.partition("VmHWM:")[2].split()[:1]
                if peak:
                    name = self._names[process.pid]
                    self.found[name] = max(self.found.get(name, 0.0), 1024.0 * int(peak[0]))

    def stop(self) -> dict[str, float]:
        """Return the peaks, bytes."""
        self._stop.set()
        self._thread.join()
        return self.found


def sparse(data: Path, quick: bool) -> Iterator[Row]:
    """Give the rows of one job after another."""
    for n_rows, n_columns, share in shapes(quick):
        with tempfile.TemporaryDirectory() as folder:
            pieces = table(n_rows, n_columns, share)
            peaks = Peaks()
            report, cpu, _ = local(Path(folder), pieces, JOB)
            found = peaks.stop()
        values = {
            "cpu": (cpu, "s"),
            "wall": (report["seconds"], "s"),
            "bytes": (report["bytes"]["up"] / 1e6, "MB"),
        }
        values |= {f"peak {name}": (peak / 1e6, "MB") for name, peak in sorted(found.items())}
        who = f"{n_rows} x {n_columns}, {share:.0%}"
        for metric, (value, unit) in values.items():
            yield {"metric": f"sparse {metric}", "who": who, "value": round(value, 2), "unit": unit}


def shapes(quick: bool) -> list[tuple[int, int, float]]:
    """Return rows, columns of the passive party, and the share of its values that are there."""
    if quick:
        return [(4_000, 400, share) for share in (0.01, 0.05, 1.0)]
    some = [(20_000, 2_000, share) for share in (0.01, 0.05, 0.2)]
    return [(5_000, 2_000, 1.0), *some, (100_000, 5_000, 0.05)]
