"""Latency and throughput of ``hedgerow serve`` with a vertical model: processes on loopback.

``python -m benchmarks.serving [--quick] [--soak SECONDS] [--json FILE]``. A coordinator, two
passive parties' agents and the active party's server; 100 trees of depth 5 over 3 parties. One
row at a time over one connection gives ``p50_ms`` and ``p99_ms``, batches of 100 rows over four
give ``rows_per_second``. CPU seconds are of all processes but the client's. ``--soak`` then sends
batches at half of that rate, restarts an agent in the middle, and counts what failed and what
memory grew.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tests.federation import vertical
from tests.federation.processes import wait_until
from tests.federation.serving import ServingFederation

WIDTHS = (10, 10, 10)
N_TREES, DEPTH, N_ROWS = 100, 5, 2000
BATCH, CONNECTIONS = 100, 4
WARM = 50


class Measured(ServingFederation):
    """The federation of the tests, with a server's own defaults."""

    def server_settings(self) -> dict[str, Any]:
        """Return the settings without the tests' short waits."""
        return {k: v for k, v in super().server_settings().items() if k != "patience_seconds"}


class Connection:
    """A connection of a client that keeps it open."""

    def __init__(self, port: int, path: str) -> None:
        self._port, self._path = port, path
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def open(self) -> Connection:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    def close(self) -> None:
        """Disconnect."""
        self._writer.close()

    async def ask(self, ids: list[str]) -> tuple[int, dict[str, Any]]:
        """Return status and document of a request."""
        body = json.dumps({"instances": ids}).encode()
        head = f"POST {self._path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        length = next(int(x[15:]) for x in lines if x.lower().startswith("content-length:"))
        found, code = await self._reader.readexactly(length), int(lines[0].split()[1])
        return code, json.loads(found) if code == 200 else {"error": found.decode()}


def used(federation: ServingFederation) -> Mapping[str, tuple[float, float]]:
    """Return CPU seconds and MB by process."""
    found = {}
    for name, process in federation.processes.items():
        if process.poll() is None:
            of = psutil.Process(process.pid)
            cpu = of.cpu_times()
            found[name] = (cpu.user + cpu.system, of.memory_info().rss / 1e6)
    return found


async def latency(federation: ServingFederation, ids: list[str], n: int) -> dict[str, float]:
    """Ask one row at a time."""
    connection = await Connection(federation.ports["serve"]["port"], PATH).open()
    seconds, before = [], used(federation)
    for k in range(WARM + n):
        if k == WARM:
            before = used(federation)
        began = time.perf_counter()
        code, found = await connection.ask([ids[k % len(ids)]])
        seconds.append(time.perf_counter() - began)
        assert code == 200, found
    connection.close()
    p50, p99 = np.percentile(np.array(seconds[WARM:]) * 1e3, [50, 99])
    cpu = {name: cpu - before[name][0] for name, (cpu, _) in used(federation).items()}
    return {
        "p50_ms": float(p50),
        "p99_ms": float(p99),
        **{f"cpu_ms {name}": spent / n * 1e3 for name, spent in cpu.items()},
    }


async def throughput(
    federation: ServingFederation, ids: list[str], seconds: float
) -> dict[str, float]:
    """Ask batches as fast as answers come."""
    until, rows = time.perf_counter() + seconds, 0

    async def client(k: int) -> None:
        nonlocal rows
        connection = await Connection(federation.ports["serve"]["port"], PATH).open()
        at = k * BATCH
        while time.perf_counter() < until:
            some = [ids[(at + j) % len(ids)] for j in range(BATCH)]
            code, found = await connection.ask(some)
            assert code == 200, found
            rows, at = rows + BATCH, at + BATCH
        connection.close()

    before, began = used(federation), time.perf_counter()
    await asyncio.gather(*(client(k) for k in range(CONNECTIONS)))
    spent = time.perf_counter() - began
    after = used(federation)
    cpu = sum(after[name][0] - before[name][0] for name in after)
    return {"rows_per_second": rows / spent, "cpu_us_per_row": cpu / rows * 1e6}


async def soak(
    federation: ServingFederation, ids: list[str], rate: float, seconds: float
) -> dict[str, float]:
    """Ask at a rate, restart an agent in the middle; return what failed and grew."""
    asked = failed = 0
    port = federation.ports["serve"]["port"]
    began = time.perf_counter()
    before = used(federation)

    idle: list[Connection] = []
    restarts: list[float] = []

    async def request(at: int) -> None:
        """Ask when it is due, whether or not those before have been answered."""
        nonlocal asked, failed
        some = [ids[(at + j) % len(ids)] for j in range(BATCH)]
        connection, code = idle.pop() if idle else None, 0
        if connection is not None:
            # The server may have closed a connection that was idle for a minute.
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                code, _ = await connection.ask(some)
        if not code:
            connection = await Connection(port, PATH).open()
            code, _ = await connection.ask(some)
        assert connection is not None
        asked, failed = asked + 1, failed + (code != 200)
        idle.append(connection)

    async def clients() -> None:
        async with asyncio.TaskGroup() as running:
            turn = 0
            while (now := time.perf_counter() - began) < seconds:
                due = turn * BATCH / rate
                if now < due:
                    await asyncio.sleep(due - now)
                running.create_task(request(turn * BATCH))
                turn += 1
        for connection in idle:
            connection.close()

    def restart() -> None:
        gone = time.perf_counter()
        federation.kill("agent-host-1", 15)
        federation.start_agent("host-1", answers=federation.answers("host-1"))
        restarts.append(time.perf_counter() - gone)

    async def fault() -> None:
        await asyncio.sleep(seconds / 2)
        await asyncio.to_thread(restart)

    await asyncio.gather(fault(), clients())
    after = used(federation)
    grown = max(after[n][1] - before[n][1] for n in after if n != "agent-host-1")
    return {
        "soak_requests": float(asked),
        "soak_failed_share": failed / asked,
        "soak_rows_per_second": asked * BATCH / seconds,
        "soak_grown_mb": grown,
        "soak_restart_seconds": restarts[0],
    }


PATH = "/v1/models/credit:predict"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer requests")
    parser.add_argument("--soak", type=float, default=0.0, help="seconds at half of the rate")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hedgerow-") as folder:
        federation = Measured(
            Path(folder),
            vertical.table(N_ROWS, sum(WIDTHS), missing=0.1),
            N_TREES,
            WIDTHS,
            booster={"max_depth": DEPTH, "max_bin": 32},
        )
        assert federation.whole.ids is not None
        ids = [str(i) for i in federation.whole.ids]
        try:
            federation.start()
            wait_until(lambda: federation.ask("/readyz")[0] == 200, 60, "ready")
            rows = asyncio.run(latency(federation, ids, 300 if given.quick else 3000))
            rows |= asyncio.run(throughput(federation, ids, 3.0 if given.quick else 20.0))
            if given.soak:
                rate = rows["rows_per_second"] / 2
                rows |= asyncio.run(soak(federation, ids, rate, given.soak))
        finally:
            federation.stop()
    nodes = [sum(owner >= 0 for owner in t.owner) for t in federation.active.trees]
    print(f"{len(nodes)} trees, {sum(nodes)} divisions, {len(WIDTHS)} parties")
    for name, value in rows.items():
        print(f"{name:22} {value:12.4g}")
    if given.json:
        given.json.write_text(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
