"""How long each process takes from its command until it can be used, and in what CPU time.

``python -m benchmarks.starts [--quick] [--times N] [--json FILE]``. A coordinator and a crypto
process are ready when they have opened their ports, an agent when it holds its lease, the console
when it has printed its address. Of all starts but the first, which may write compiled modules, the
least is shown: other work on the machine counts least. The agent has a thousand rows, and does not
measure its machine, as it does once in its life.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.many_agents import ROOT, start_coordinator
from hedgerow.coordinator.operator.library.clients import client_for
from hedgerow.services.identity.authority import throwaway

CRYPTO = """
silo = "a"
listen = "127.0.0.1:0"
metrics = "127.0.0.1:0"
identity = "{folder}/pki/crypto/a"
state = "{folder}/crypto"
ready_file = "{folder}/crypto.ready"
"""
AGENT = """
coordinator = "{address}"
identity = "{folder}/pki/silo/a"
state = "{folder}/agent"
calibrate = false
data = {{ path = "{folder}/rows.parquet" }}
"""


def write(folder: Path) -> None:
    """Write what the processes begin with."""
    throwaway(folder / "pki", ["a"], time.time())
    rng = np.random.default_rng(0)
    columns = {f"x{j}": rng.normal(size=1000) for j in range(8)}
    label = rng.integers(0, 2, 1000).astype(np.int8)
    pq.write_table(pa.table(columns | {"label": label}), folder / "rows.parquet")


def start(folder: Path, until: ExitStack, *words: str) -> tuple[subprocess.Popen[bytes], Path]:
    """Start a process, until ``until`` ends; return it and the file of what it prints."""
    printed = folder / f"{words[1]}.out"
    with printed.open("wb") as out:
        process = subprocess.Popen([sys.executable, *words], stdout=out, stderr=out, cwd=ROOT)
    until.callback(process.wait, 30)
    until.callback(process.terminate)
    return process, printed


def once(folder: Path) -> dict[str, tuple[float, float, float]]:
    """Start each process; return seconds, CPU seconds and resident MB of each when it is ready."""
    found = {}

    def wait(name: str, process: subprocess.Popen[bytes], ready: Callable[[], bool]) -> None:
        while not ready():
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended: see {folder}")
            time.sleep(0.01)
        took = psutil.Process(process.pid)
        seconds, spent = time.time() - took.create_time(), took.cpu_times()
        found[name] = seconds, spent.user + spent.system, took.memory_info().rss / 1e6

    with ExitStack() as until:
        coordinator, address = start_coordinator(folder)
        until.callback(coordinator.wait, 30)
        until.callback(coordinator.terminate)
        wait("coordinator", coordinator, lambda: True)
        for name, text in (("crypto", CRYPTO), ("agent", AGENT)):
            text = text.format(folder=folder, address=address)
            (folder / f"{name}.toml").write_text(text)
        ready = folder / "crypto.ready"
        ready.unlink(missing_ok=True)
        words = ("-m", "hedgerow.crypto", "--config", str(folder / "crypto.toml"))
        wait("crypto process", start(folder, until, *words)[0], ready.exists)
        client = client_for(address, folder / "pki/operator", None)
        words = ("-m", "hedgerow.client_agent", "--config", str(folder / "agent.toml"))
        agent, _ = start(folder, until, *words)
        wait("agent", agent, lambda: any(one.alive for one in client.silos()))
        connection = ("--coordinator", address, "--identity", str(folder / "pki/operator"))
        console, printed = start(
            folder, until, "-m", "hedgerow", "console", "--listen", "127.0.0.1:0", *connection
        )
        wait("console", console, lambda: b"secret=" in printed.read_bytes())
    return found


def main() -> None:
    """Print what each process takes to start."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two starts of each")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        write(Path(name))
        runs = [once(Path(name)) for _ in range(3 if options.quick else options.times + 1)][1:]
    least = {key: [min(run[key][j] for run in runs) for j in range(3)] for key in runs[0]}
    print(f"{'process':<16}{'seconds':>9}{'CPU s':>9}{'MB':>9}   least of {len(runs)}")
    for key, (seconds, spent, resident) in least.items():
        print(f"{key:<16}{seconds:9.2f}{spent:9.2f}{resident:9.0f}")
    if options.json:
        options.json.write_text(json.dumps(least, indent=1))


if __name__ == "__main__":
    main()
